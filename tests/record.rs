//! A run's files, read back.

use crate::reader::Value;
use gradwire::disk::Disk;
use gradwire::record::{
    Epoch, Event, FileSum, Histogram, Histograms, Kind, Phases, Provenance, Record, RuleTraffic,
    Started, Step, Tagged, Text, Warning, create_stamped,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A record, and the folder that it is written to.
fn create(out: &Path) -> (Record, PathBuf) {
    let place = create_stamped(&Disk::default(), out, "tests", None).unwrap();
    let record =
        Record::create(&Disk::default(), place, "workers = 2\n", &Provenance::here()).unwrap();
    let folder = record.folder().to_path_buf();
    (record, folder)
}

/// The events of `metrics.jsonl`.
fn events(folder: &Path) -> Vec<Event> {
    let text = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn a_step(step: u64) -> Step {
    let x = step as f64;
    Step {
        step,
        epoch: 1 + step / 100,
        loss: 2.3 / x,
        accuracy: Some(1.0 - 1.0 / x),
        learning_rate: 0.1,
        samples: 256,
        seconds: 0.125,
        phases: Phases {
            data: 0.001,
            forward: 0.04,
            backward: 0.07,
            encode: 0.002,
            wait: 0.003,
            decode: 0.004,
            optimizer: 0.005,
        },
        exchange_seconds: 0.011,
        exposed_seconds: 0.009,
        wire_bytes: 1234.5,
        wire_bytes_total: 2469 * step,
        uplink_bytes: Some(2469),
        downlink_bytes: Some(4000),
        local_bytes: Some(5000),
        dense_bytes: 4 * 270_000,
        bits_per_parameter: 0.64,
        compression_ratio: 0.02,
        residual_norm: Some(3.5),
        gradient_norm: Some(0.75),
        gauges: vec![("größe".into(), x), ("kept".into(), 0.01)],
        rules: vec![RuleTraffic::new("fc.*", [100, 400], [100 * step, 400 * step])],
    }
}

#[test]
fn every_value_of_every_event_is_in_both_files() {
    let out = tempfile::tempdir().unwrap();
    let (mut record, folder) = create(out.path());
    let values: Vec<f32> = (-50..100).map(|i| i as f32 * 0.01).collect();
    let histogram = Histogram::new(&values);
    let sent = [
        Event::from(Started { workers: 2, ..Started::default() }),
        Event::from(a_step(1)),
        Event::from(Histograms {
            step: 1,
            entries: vec![
                Tagged { tag: "gradient/层1.weight".into(), histogram: histogram.clone() },
                Tagged { tag: "residual/fc.bias".into(), histogram: Histogram::new(&[]) },
            ],
        }),
        Event::from(Step { loss: f64::NAN, accuracy: None, ..a_step(7) }),
        Event::from(Warning { step: Some(7), message: "loss is NaN".into() }),
        Event::from(Text { step: 7, tag: "note".into(), text: "Grüße\n\n*zwei*".into() }),
        Event::from(Epoch {
            bits_per_byte: None,
            epoch: 1,
            step: 7,
            train_loss: 1.5,
            train_accuracy: Some(0.5),
            test_loss: Some(1.25),
            test_accuracy: Some(0.625),
            test_top5_accuracy: Some(0.875),
            seconds: 10.0,
            evaluation_seconds: 1.0,
            samples_per_second: 512.0,
        }),
    ];
    for event in &sent {
        assert_eq!(record.record(event).unwrap(), None);
    }
    let finished = record.finish().unwrap();

    let lines = events(&folder);
    let texts: Vec<_> = lines.iter().map(|event| serde_json::to_string(event).unwrap()).collect();
    let expected: Vec<_> =
        sent.iter().chain([&finished]).map(|event| serde_json::to_string(event).unwrap()).collect();
    assert!(matches!(&lines[0].kind, Kind::Text(text) if text.tag == "recipe"));
    assert_eq!(texts[1..], expected);

    let records = crate::reader::read_folder(&folder);
    assert_eq!(records[0].file_version, "brain.Event:2");
    let at = |record: usize| -> BTreeMap<&str, &Value> {
        records[record].values.iter().map(|(tag, value)| (tag.as_str(), value)).collect()
    };
    let times: Vec<_> = records[3..].iter().map(|record| (record.wall_time, record.step)).collect();
    let (s, h) = (|i: usize| sent[i].time, 1);
    let end = (finished.time, 7);
    assert_eq!(times, [(s(1), 1), (s(2), h), (s(3), 7), (s(5), 7), (s(6), 7), (s(6), 7), end]);
    assert_eq!((records[1].step, records[2].step), (0, 0));

    let text = |text: &str| Value::Text(text.into());
    assert_eq!(at(2), BTreeMap::from([("recipe", &text("```toml\nworkers = 2\n```"))]));
    assert_eq!(at(6), BTreeMap::from([("note", &text("Grüße\n\n*zwei*"))]));

    // `check.py` compares every scalar with what metrics.jsonl implies.
    let scalar = |record: usize, tag: &str| match at(record).get(tag) {
        Some(Value::Scalar(value)) => *value,
        other => panic!("{tag}: {other:?}"),
    };
    assert_eq!(at(3).len(), 25, "{:?}", at(3));
    assert_eq!([scalar(3, "rule_bits/fc.*"), scalar(7, "Test/top5_accuracy")], [8.0, 0.875]);
    let of_step =
        ["exchange/wire_bytes", "exchange/local_bytes", "speed/samples_per_second", "scheme/größe"];
    assert_eq!(of_step.map(|tag| scalar(3, tag)), [1234.5, 5000.0, 2048.0, 1.0]);
    assert!(scalar(5, "Train/loss").is_nan());
    assert!(!at(5).contains_key("Train/accuracy"));
    assert_eq!(["Test/loss", "epoch/seconds"].map(|tag| scalar(7, tag)), [1.25, 10.0]);
    assert_eq!(at(8).len(), 4, "what the run came to: {:?}", at(8));
    assert_eq!(scalar(8, "Test/wire_bytes"), 7.0 * 2469.0);
    assert!(at(9).values().all(|value| !matches!(value, Value::Scalar(_))), "{:?}", at(9));

    let Histogram { min, max, sum, sum_squares, limits, counts, .. } = histogram;
    let counts = counts.iter().map(|&count| count as f64).collect();
    let figures = [min, max, 150.0, sum, sum_squares];
    assert_eq!(*at(4)["gradient/层1.weight"], Value::Histogram { figures, limits, counts });
    let empty = at(4)["residual/fc.bias"];
    assert!(matches!(empty, Value::Histogram { counts, .. } if *counts == [0.0]));
}

#[test]
fn nothing_is_lost_when_the_process_ends_at_once() {
    let out = tempfile::tempdir().unwrap();
    let (mut record, folder) = create(out.path());
    for step in 1..=1000 {
        record.record(&Event::from(a_step(step))).unwrap();
    }
    // As a kill would: nothing of the record is dropped, flushed or closed.
    std::mem::forget(record);
    assert_eq!(events(&folder).len(), 1001);
    assert_eq!(crate::reader::read_folder(&folder).last().unwrap().step, 1000);
}

#[test]
fn the_folder_tells_what_made_it() {
    let out = tempfile::tempdir().unwrap();
    let provenance = Provenance {
        kernels: "avx2".into(),
        workers: 2,
        threads: 1,
        data: vec![FileSum { name: "a.bin".into(), bytes: 3, sha256: "00ff".into() }],
        ..Provenance::here()
    };
    let place = create_stamped(&Disk::default(), out.path(), "größe", None).unwrap();
    let record = Record::create(&Disk::default(), place, "seed = 1\n", &provenance).unwrap();
    assert!(record.folder().starts_with(out.path().join("größe")));
    let read = |name: &str| fs::read_to_string(record.folder().join(name)).unwrap();
    assert_eq!(read("recipe.toml"), "seed = 1\n");
    assert_eq!(serde_json::from_str::<Provenance>(&read("provenance.json")).unwrap(), provenance);
}

#[test]
fn runs_that_start_together_get_their_own_folders() {
    let out = tempfile::tempdir().unwrap();
    let folders: BTreeSet<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..16).map(|_| scope.spawn(|| create(out.path()).1)).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert_eq!(folders.len(), 16);
    for folder in &folders {
        assert_eq!(crate::reader::read_folder(folder).len(), 3);
    }
}
