//! What TensorBoard's HParams dashboard is told, and what is shown after a resume. `tests/tensorboard/check.py` asks
//! TensorBoard itself, and looks at the charts of Custom Scalars too.

use crate::reader::Value;
use gradwire::disk::Disk;
use gradwire::record::{
    self, Checkpoint, Epoch, Event, Histogram, Histograms, Provenance, Record, Started, Step,
    Summary, Tagged, Text, create_given, create_stamped,
};
use protobuf::well_known_types::{Value as Setting, Value_oneof_kind as Kind};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tensorboard_proto::api::Status;
use tensorboard_proto::plugin_hparams::{HParamsPluginData, SessionStartInfo};

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
    let place = create_stamped(&Disk::default(), out, "tests", None).unwrap();
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

/// What the HParams plugin finds under a tag.
fn hparams_of(folder: &Path, tag: &str) -> Vec<HParamsPluginData> {
    let values = crate::reader::read_folder(folder).into_iter().flat_map(|record| record.values);
    let found = values.filter_map(|(of, value)| match value {
        Value::Hparams(data) if of == tag => Some(data),
        _ => None,
    });
    found.collect()
}

/// The only start that a folder's file tells of.
fn start_of(folder: &Path) -> SessionStartInfo {
    let mut starts = hparams_of(folder, "_hparams_/session_start_info");
    assert_eq!(starts.len(), 1, "{starts:?}");
    starts.remove(0).take_session_start_info()
}

/// The columns of a folder's file, with values as TOML would write them.
fn columns_of(folder: &Path) -> BTreeMap<String, String> {
    let in_toml = |setting: Setting| match setting.kind {
        Some(Kind::number_value(number)) => number.to_string(),
        Some(Kind::string_value(text)) => format!("{text:?}"),
        Some(Kind::bool_value(flag)) => flag.to_string(),
        other => panic!("no value: {other:?}"),
    };
    let settings = start_of(folder).hparams.into_iter();
    settings.map(|(key, setting)| (key, in_toml(setting))).collect()
}

/// The statuses of all ends that a folder's file tells of.
fn statuses(folder: &Path) -> Vec<Status> {
    let ends = hparams_of(folder, "_hparams_/session_end_info").into_iter();
    let status = |mut data: HParamsPluginData| {
        let end = data.take_session_end_info();
        assert!(end.end_time_secs > 0.0, "{end:?}");
        end.status
    };
    ends.map(status).collect()
}

#[test]
fn a_run_says_what_it_is_trained_with() {
    let out = tempfile::tempdir().unwrap();
    let record = create(out.path(), RECIPE);
    let expected = [
        ("1 scheme", r#""topk""#),
        ("4 data set", r#""cifar10""#),
        ("5 workers", "4"),
        ("7 seed", "3"),
        ("schedule", r#""multi-step""#),
        ("schedule.at", r#""[8, 12]""#),
        ("scheme.feedback", "true"),
        ("scheme.ratio.end", "0.01"),
        ("scheme.ratio.start", "0.25"),
        ("train.batch", "16"),
        ("train.clip_norm", r#""inf""#),
    ];
    let expected = expected.map(|(key, value)| (key.to_string(), value.to_string()));
    assert_eq!(columns_of(record.folder()), BTreeMap::from(expected));
    assert!(statuses(record.folder()).is_empty(), "it has not ended");
}

/// A constant that nobody has set fills no column.
#[test]
fn what_is_usual_has_no_column() {
    let out = tempfile::tempdir().unwrap();
    let sets = ["train.batch=7", "optimizer.learning_rate=0.25"];
    let recipe = gradwire::recipe::Source::of(sets).load().unwrap();
    let record = create(out.path(), &recipe.to_toml().unwrap());
    let columns = columns_of(record.folder());
    let first: Vec<&str> = columns.keys().take(7).map(String::as_str).collect();
    let numbered =
        ["1 scheme", "2 ratio", "3 model", "4 data set", "5 workers", "6 rate", "7 seed"];
    assert_eq!(first, numbered);
    assert_eq!((&columns["6 rate"][..], &columns["train.batch"][..]), ("0.25", "7"));
    for constant in ["policy.bucketing", "exchange.topology", "device", "train.accumulate"] {
        assert!(!columns.contains_key(constant), "{columns:?}");
    }
}

/// How often ranks exchange, in which groups and in how many fragments.
#[test]
fn rounds_groups_and_fragments_have_columns() {
    let out = tempfile::tempdir().unwrap();
    let sets = [
        "workers=4",
        "local.steps=16",
        "outer={fragments=2,learning_rate=0.7,momentum=0.9}",
        "exchange.topology={kind=\"two-level\",group=2}",
        "policy.bucketing=parameter",
    ];
    let recipe = gradwire::recipe::Source::of(sets).load().unwrap();
    let record = create(out.path(), &recipe.to_toml().unwrap());
    let columns = columns_of(record.folder());
    for (column, value) in [
        ("local.steps", "16"),
        ("outer.fragments", "2"),
        ("outer.learning_rate", "0.7"),
        ("exchange.topology", "\"two-level\""),
        ("exchange.topology.group", "2"),
    ] {
        assert_eq!(columns.get(column).map(String::as_str), Some(value), "{columns:?}");
    }
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
    let start = start_of(&folder);
    for event in [started(1, 6), step(1), step(2)] {
        record.record(&event).unwrap();
    }
    record.fail(&anyhow::anyhow!("worker 1 is gone"), false).unwrap();
    assert_eq!(statuses(&folder), [Status::STATUS_FAILURE]);
    // Stopped on request after step 4, then to the end; each time from the very step it ended at.
    for (first, last, status) in [(3, 4, Status::STATUS_UNKNOWN), (5, 6, Status::STATUS_SUCCESS)] {
        let mut record = resume(&folder, first, Summary::default());
        assert!(statuses(&folder).is_empty());
        record.record(&started(first, 6)).unwrap();
        (first..=last).for_each(|n| drop(record.record(&step(n)).unwrap()));
        record.finish().unwrap();
        assert_eq!(statuses(&folder), [status]);
        assert_eq!(start_of(&folder), start);
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
fn trials_are_called_what_tells_them_apart() {
    let out = tempfile::tempdir().unwrap();
    let trial = |record: &Record| start_of(record.folder()).group_name;
    let one = create(out.path(), RECIPE);
    assert_eq!(trial(&one), format!("topk seed 3 · {}", one.folder().display()));
    let folder = out.path().join("a/seed-3");
    let recipe = RECIPE.replace("every = 1 }", "every = 1, name = \"dense-8\" }");
    create_given(&Disk::default(), &folder).unwrap();
    let again =
        Record::create(&Disk::default(), folder.clone(), &recipe, &Provenance::here()).unwrap();
    let named = trial(&again);
    assert!(named.starts_with(&format!("dense-8 · {} · ", folder.display())), "{named}");
}
