//! What TensorBoard's HParams and Custom Scalars dashboards are told, read back by a reader that
//! shares nothing with what wrote it. `tests/tensorboard/check.py` asks TensorBoard itself.

use crate::reader::{Field, Value, fields};
use gradwire::disk::Disk;
use gradwire::record::{
    self, Checkpoint, Destination, Epoch, Event, Histogram, Histograms, Provenance, Record,
    Started, Step, Summary, Tagged, Text,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const RECIPE: &str = r#"
name = "a run"
seed = 3
workers = 4
dataset = { kind = "cifar10", dir = "/somewhere" }
scheme = { kind = "topk", ratio = { start = 0.25, end = 0.01 }, feedback = true }
schedule = { kind = "multi-step", at = [8, 12] }
train = { batch = 16, clip_norm = inf, evaluate_every = 1 }
record = { every = 1 }
"#;

fn create(out: &Path, recipe: &str) -> Record {
    let place = Destination::Stamped { out, recipe: "tests", name: None };
    Record::create(&Disk::default(), place, recipe, &Provenance::here()).unwrap()
}

fn step(step: u64) -> Event {
    let wire_bytes_total = 40 * step;
    let sent = Step { wire_bytes: 10.0, wire_bytes_total, dense_bytes: 40, ..Step::default() };
    Event::from(Step { step, ..sent })
}

fn started(first_step: u64, steps: u64) -> Event {
    Event::from(Started { workers: 4, first_step, steps, ..Started::default() })
}

/// What stands under a tag for a plugin: tag, plugin, what it is to know, a string.
type OfPlugin = (String, String, Vec<u8>, Option<Vec<u8>>);

/// Everything for plugins in the event files of a folder, in order.
fn of_plugins(folder: &Path) -> Vec<OfPlugin> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let files = files.iter().filter(|file| file.to_string_lossy().contains("tfevents"));
    let records = files.flat_map(|file| crate::reader::read(&fs::read(file).unwrap()));
    let values = records.flat_map(|record| record.values);
    let found = values.filter_map(|(tag, value)| match value {
        Value::Plugin { plugin, content, string } => Some((tag, plugin, content, string)),
        _ => None,
    });
    found.collect()
}

/// What the HParams plugin finds under a tag, less its outer message, whose field is `field`.
fn hparams_of(folder: &Path, tag: &str, field: u64) -> Vec<Vec<u8>> {
    let found = of_plugins(folder).into_iter().filter(|found| found.0 == tag);
    let inner = found.map(|(_, plugin, content, _)| {
        assert_eq!(plugin, "hparams");
        message(&content, field).to_vec()
    });
    inner.collect()
}

/// The only field of a message, which is a message.
fn message(data: &[u8], field: u64) -> &[u8] {
    match fields(data)[..] {
        [(number, Field::Bytes(inner))] if number == field => inner,
        ref other => panic!("field {field} is not all there is: {other:?}"),
    }
}

/// The messages in the field of this number.
fn messages(data: &[u8], field: u64) -> Vec<&[u8]> {
    let found = fields(data).into_iter().filter_map(|found| match found {
        (number, Field::Bytes(inner)) if number == field => Some(inner),
        _ => None,
    });
    found.collect()
}

fn word(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A `google.protobuf.Value`, as TOML would write it.
fn value_of(data: &[u8]) -> String {
    match fields(data)[..] {
        [(2, Field::Fixed64(bits))] => f64::from_bits(bits).to_string(),
        [(3, Field::Bytes(text))] => format!("{:?}", word(text)),
        [(4, Field::Varint(flag))] => (flag == 1).to_string(),
        ref other => panic!("no value: {other:?}"),
    }
}

fn settings_of(info: &[u8]) -> BTreeMap<String, String> {
    let entry = |entry: &[u8]| match fields(entry)[..] {
        [(1, Field::Bytes(key)), (2, Field::Bytes(value))] => (word(key), value_of(value)),
        ref other => panic!("no entry of a map: {other:?}"),
    };
    messages(info, 1).into_iter().map(entry).collect()
}

/// The statuses of all ends that a folder's files tell of.
fn statuses(folder: &Path) -> Vec<u64> {
    let ends = hparams_of(folder, "_hparams_/session_end_info", 4);
    let status = |end: &Vec<u8>| match fields(end)[..] {
        [(1, Field::Varint(status)), (2, Field::Fixed64(_))] => status,
        ref other => panic!("no end: {other:?}"),
    };
    ends.iter().map(status).collect()
}

#[test]
fn a_run_says_what_it_is_trained_with() {
    let out = tempfile::tempdir().unwrap();
    let record = create(out.path(), RECIPE);
    let starts = hparams_of(record.folder(), "_hparams_/session_start_info", 3);
    let [start] = &starts[..] else { panic!("{} starts", starts.len()) };
    let expected = [
        ("dataset", r#""cifar10""#),
        ("schedule", r#""multi-step""#),
        ("schedule.at", r#""[8, 12]""#),
        ("scheme", r#""topk""#),
        ("scheme.feedback", "true"),
        ("scheme.ratio.end", "0.01"),
        ("scheme.ratio.start", "0.25"),
        ("seed", "3"),
        ("train.batch", "16"),
        ("train.clip_norm", r#""inf""#),
        ("workers", "4"),
    ];
    let expected = expected.map(|(key, value)| (key.to_string(), value.to_string()));
    assert_eq!(settings_of(start), BTreeMap::from(expected));
    assert_eq!(statuses(record.folder()), [0; 0], "it has not ended");
}

/// Goes on with the run in `folder` at step `first`.
fn resume(folder: &Path, first: u64, summary: Summary) -> Record {
    let disk = Disk::default();
    let (lock, here) = (record::lock(&disk, folder).unwrap(), Provenance::here());
    Record::resume(&disk, folder, lock, first, summary, RECIPE, &here).unwrap().0
}

#[test]
fn one_run_is_one_session_however_often_it_is_resumed() {
    let out = tempfile::tempdir().unwrap();
    let mut record = create(out.path(), RECIPE);
    let folder = record.folder().to_path_buf();
    for event in [started(1, 6), step(1), step(2)] {
        record.record(&event).unwrap();
    }
    record.fail(&anyhow::anyhow!("worker 1 is gone"), false).unwrap();
    assert_eq!(statuses(&folder), [2]);
    // Stopped on request after step 4, then to the end; each time from the very step it ended at.
    for (first, last, status) in [(3, 4, 0), (5, 6, 1)] {
        let mut record = resume(&folder, first, Summary::default());
        assert_eq!(statuses(&folder), [0; 0]);
        record.record(&started(first, 6)).unwrap();
        (first..=last).for_each(|n| drop(record.record(&step(n)).unwrap()));
        record.finish().unwrap();
        assert_eq!(statuses(&folder), [status]);
        assert_eq!(hparams_of(&folder, "_hparams_/session_start_info", 3).len(), 1);
    }
}

/// What a run's event file shows, but for what says how the run ended.
fn shown(folder: &Path) -> Vec<crate::reader::Record> {
    let mut records = crate::reader::read_folder(folder);
    records.retain(|record| {
        let end = |(tag, _): &(String, Value)| tag == "_hparams_/session_end_info";
        !record.values.is_empty() && !record.values.iter().any(end)
    });
    records
}

#[test]
fn after_a_resume_everything_up_to_its_step_is_shown_as_before() {
    let out = tempfile::tempdir().unwrap();
    let mut record = create(out.path(), RECIPE);
    let folder = record.folder().to_path_buf();
    let text = |step| Event::from(Text { step, tag: "note".into(), text: "ä".into() });
    let histograms = |step| {
        let histogram = Histogram::new(&[1.0, -2.0, 0.5, f32::NAN]);
        let entries = vec![Tagged { tag: "gradient/fc".into(), histogram }];
        Event::from(Histograms { step, entries })
    };
    let epoch = |step| {
        let test_accuracy = Some(1.0 / step as f64);
        Event::from(Epoch { step, test_accuracy, train_loss: f64::INFINITY, ..Epoch::default() })
    };
    let checkpoint = |step| Event::from(Checkpoint { step, bytes: 7, ..Checkpoint::default() });
    // Steps 3 and 5 are not recorded.
    let first =
        [started(1, 6), step(1), text(1), step(2), histograms(2), epoch(2), checkpoint(2), step(4)];
    first.iter().for_each(|event| drop(record.record(event).unwrap()));
    let summary = record.summary().clone();
    let before = shown(&folder);
    for event in [epoch(4), histograms(4), step(6), epoch(6)] {
        record.record(&event).unwrap();
    }
    let whole = shown(&folder);
    drop(record);
    let other = folder.join("events.out.tfevents.1.host.7");
    fs::write(&other, "another program's").unwrap();

    // Cut within the epoch, and gone on with to the same end.
    let mut record = resume(&folder, 5, summary);
    fs::remove_file(&other).expect("what others have written stays");
    let found = shown(&folder);
    let (kept, cut) = found.split_at(before.len());
    assert_eq!(kept, before);
    let tags = |records: &[crate::reader::Record]| -> Vec<(i64, String)> {
        let values = records.iter().flat_map(|r| r.values.iter().map(|v| (r.step, v.0.clone())));
        values.collect()
    };
    assert_eq!(cut.len(), 3, "step 4's evaluation, its results and histograms: {cut:?}");
    record.record(&step(6)).unwrap();
    record.record(&epoch(6)).unwrap();
    assert_eq!(tags(&shown(&folder)), tags(&whole));
}

#[test]
fn what_a_run_came_to_and_had_cost_is_a_curve_over_its_evaluations() {
    let out = tempfile::tempdir().unwrap();
    let results = |folder: &Path| -> Vec<(String, u64, f32)> {
        let records = crate::reader::read_folder(folder).into_iter();
        let values = records.flat_map(|record| {
            record.values.into_iter().map(move |(tag, value)| (tag, record.step as u64, value))
        });
        let scalars = values.filter_map(|(tag, step, value)| match value {
            Value::Scalar(value) if tag.starts_with("Test/") => Some((tag, step, value)),
            _ => None,
        });
        scalars.collect()
    };
    let evaluated = |step: u64, accuracy: f64| {
        Event::from(Epoch { step, test_accuracy: Some(accuracy), ..Epoch::default() })
    };
    let mut record = create(out.path(), RECIPE);
    let folder = record.folder().to_path_buf();
    let not = Event::from(Epoch { step: 1, ..Epoch::default() });
    for event in
        [started(1, 3), step(1), not, step(2), evaluated(2, 0.5), step(3), evaluated(3, 0.25)]
    {
        record.record(&event).unwrap();
    }
    record.finish().unwrap();
    let found = results(&folder);
    let of = |tag: &str| -> Vec<(u64, f32)> {
        let named = found.iter().filter(|(name, ..)| name == &format!("Test/{tag}"));
        named.map(|(_, step, value)| (*step, *value)).collect()
    };
    assert_eq!(of("accuracy"), [(2, 0.5), (3, 0.25)]);
    assert_eq!(of("best_accuracy"), [(2, 0.5), (3, 0.5)]);
    assert_eq!(of("bits_per_parameter"), [(2, 8.0), (3, 8.0)]);
    assert_eq!(of("wire_bytes"), [(2, 80.0), (3, 120.0)]);
    assert_eq!(of("seconds").len(), 2);
}

#[test]
fn trials_are_called_what_tells_them_apart() {
    let out = tempfile::tempdir().unwrap();
    let trial = |record: &Record| -> String {
        let starts = hparams_of(record.folder(), "_hparams_/session_start_info", 3);
        word(messages(&starts[0], 4)[0])
    };
    let one = create(out.path(), RECIPE);
    assert_eq!(trial(&one), format!("topk seed 3 · {}", one.folder().display()));
    let folder = out.path().join("a/seed-3");
    let recipe = RECIPE.replace("every = 1 }", "every = 1, name = \"dense-8\" }");
    let given = Destination::Given(&folder);
    let again = Record::create(&Disk::default(), given, &recipe, &Provenance::here()).unwrap();
    let named = trial(&again);
    assert!(named.starts_with(&format!("dense-8 · {} · ", folder.display())), "{named}");
}

#[test]
fn charts_are_laid_out_in_every_run() {
    let out = tempfile::tempdir().unwrap();
    let record = create(out.path(), RECIPE);
    let found = of_plugins(record.folder());
    let (_, plugin, _, layout) =
        found.iter().find(|found| found.0 == "custom_scalars__config__").unwrap();
    assert_eq!(plugin, "custom_scalars");
    let layout = layout.as_deref().unwrap();
    let categories = messages(layout, 2);
    let charts = categories.iter().flat_map(|category| messages(category, 2));
    let titles: Vec<String> = charts
        .map(|chart| match fields(chart)[..] {
            [(1, Field::Bytes(title)), (2, Field::Bytes(lines))] if !lines.is_empty() => {
                word(title)
            }
            ref other => panic!("no chart: {other:?}"),
        })
        .collect();
    for wanted in ["loss", "accuracy", "bits per parameter"] {
        assert!(titles.iter().any(|title| title == wanted), "{titles:?}");
    }
}
