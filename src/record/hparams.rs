//! What TensorBoard's HParams dashboard knows of runs: in every run's own file what it was trained
//! with and how it ended, and beside all runs of an experiment which columns they have.
//!
//! A column is named as `--set` names the value: `scheme`, `scheme.ratio`, `workers`,
//! `train.batch`. What says nothing about the result (places, checkpoints, timeouts) has none.
//!
//! The messages are those of TensorBoard's `plugins/hparams/plugin_data.proto` and `api.proto`, for
//! which `tensorboard-proto` has no types; field numbers stand beside their names.

use super::event::{Event, Finished, Kind};
use super::folder;
use super::proto::Message;
use super::tensorboard::{TensorBoard, nothing, of_plugin, scalar};
use crate::disk::Disk;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tensorboard_proto::summary::Summary_Value;
use toml::Value;

/// A run's settings, by column.
pub(super) type Settings = BTreeMap<String, Value>;

/// The name of the plugin, and the beginning of its tags.
const PLUGIN: &str = "hparams";
const EXPERIMENT: &str = "_hparams_/experiment";
const START: &str = "_hparams_/session_start_info";
/// Stands in the one record that says how a run has ended.
pub(super) const END: &str = "_hparams_/session_end_info";

/// The file that describes an experiment, in the folder of all its runs.
const FILE: &str = "events.out.tfevents.0000000000.gradwire.hparams";

/// Keys, or tables of keys, that no column is worth.
const LEFT_OUT: [&str; 11] = [
    "name",
    "threads",
    "dataset.dir",
    "exchange.timeout",
    "exchange.compare_replicas_every",
    "exchange.overlap_bytes",
    "train.evaluation_batch",
    "train.evaluate_every",
    "record",
    "checkpoint",
    "faults",
];

/// Columns that an experiment has in any case, if its runs have such a setting at all.
const ALWAYS: [&str; 5] = ["scheme", "scheme.bits", "scheme.ratio", "seed", "workers"];

/// What is compared, on what. Settings that follow from these need no column: a data set's size, a
/// scheme's habits.
const TASK: [&str; 3] = ["dataset", "model", "scheme"];

/// What a run comes to: the tag of a scalar at its end, what it is called, and what it is. The
/// tags come before all others in order of name, because where no experiment is described the
/// dashboard shows the first few.
const METRICS: [(&str, &str, &str); 6] = [
    ("at_end/accuracy", "test accuracy", "Fraction of right answers on the test set, at the end"),
    ("at_end/bits_per_parameter", "bits per parameter", "Sent by one rank, mean over the steps"),
    ("at_end/seconds", "seconds", "From the first step to the end, evaluations included"),
    ("at_end/train_loss", "training loss", "Mean over the last epoch"),
    ("at_end/best_accuracy", "best accuracy", "The best test accuracy of all evaluations"),
    ("at_end/wire_bytes", "wire bytes", "Sent by all ranks together, headers included"),
];

/// The settings in a resolved recipe.
///
/// # Errors
/// When it is no TOML.
pub(super) fn settings(resolved: &str) -> Result<Settings> {
    let recipe: toml::Table = resolved.parse().context("the resolved recipe is no TOML")?;
    let mut settings = Settings::new();
    let mut open = vec![(String::new(), Value::Table(recipe))];
    while let Some((path, value)) = open.pop() {
        let is = |name: &&str| {
            path.strip_prefix(*name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        if LEFT_OUT.iter().any(is) {
            continue;
        }
        match value {
            Value::Table(table) => open.extend(table.into_iter().map(|(key, value)| {
                let path = match (path.as_str(), key.as_str()) {
                    ("", _) => key,
                    (_, "kind") => path.clone(),
                    _ => format!("{path}.{key}"),
                };
                (path, value)
            })),
            value => drop(settings.insert(path, value)),
        }
    }
    Ok(settings)
}

/// Says that a run with these settings begins, at a time in seconds since the Unix epoch:
/// `HParamsPluginData { session_start_info = 3 }`, `SessionStartInfo { hparams = 1,
/// start_time_secs = 5 }`; an entry of the map is `{ key = 1, value = 2 }`.
pub(super) fn start(settings: &Settings, time: f64) -> Summary_Value {
    let entry = |(key, value): (&String, &Value)| {
        Message::default().text(1, key).message(2, &Setting::of(value).message())
    };
    let info = Message::default().messages(1, settings.iter().map(entry)).number(5, time);
    of_plugin(START, PLUGIN, Message::default().message(3, &info).into_bytes(), nothing())
}

/// How a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// It was stopped on request.
    Unknown = 0,
    /// It took all its steps.
    Success = 1,
    /// It was stopped by an error.
    Failure = 2,
}

/// The scalars of what a run came to, and that it has ended: `HParamsPluginData {
/// session_end_info = 4 }`, `SessionEndInfo { status = 1, end_time_secs = 2 }`. Nothing for events
/// that are no end.
pub(super) fn end(event: &Event, last_step: Option<u64>) -> Vec<Summary_Value> {
    let (status, mut values) = match &event.kind {
        Kind::Finished(Finished { summary, .. }) => {
            let figures = [
                summary.test_accuracy,
                Some(summary.bits_per_parameter),
                Some(summary.seconds),
                summary.train_loss,
                summary.best_accuracy,
                Some(summary.wire_bytes as f64),
            ];
            let figures = METRICS.iter().zip(figures);
            let figures = figures.filter_map(|((tag, ..), value)| Some(scalar(tag, value?)));
            let whole = last_step.is_some_and(|last| summary.step >= last);
            (if whole { Status::Success } else { Status::Unknown }, figures.collect())
        }
        Kind::Failed(_) => (Status::Failure, Vec::new()),
        _ => return Vec::new(),
    };
    let info = Message::default().choice(1, status as i32).number(2, event.time);
    let data = Message::default().message(4, &info);
    values.push(of_plugin(END, PLUGIN, data.into_bytes(), nothing()));
    values
}

/// Describes an experiment to the HParams dashboard of a TensorBoard whose log directory is
/// `logdir`: a column for the scheme, its ratio or bits, the workers, the seed, and everything in
/// which its runs, the `resolved` recipes, differ without that following from data set, model and
/// scheme; test accuracy, bits per parameter and time as results. `name` is what the experiment is
/// called, `about` a description in Markdown.
///
/// Written to one file of always the same name, so that it may be done again, and replaces what
/// was there only where it says something else.
///
/// # Errors
/// A recipe is no TOML, or the file cannot be written.
pub fn experiment<'a>(
    disk: &Disk,
    logdir: &Path,
    name: &str,
    about: &str,
    resolved: impl IntoIterator<Item = &'a str>,
) -> Result<()> {
    let runs = resolved.into_iter().map(settings).collect::<Result<Vec<_>>>()?;
    let data = Message::default().message(2, &description(name, about, &runs));
    let value = of_plugin(EXPERIMENT, PLUGIN, data.into_bytes(), nothing());
    let mut bytes = Vec::new();
    // At no time of its own: the same experiment is the same file.
    TensorBoard::begin(&mut bytes, 0.0)
        .and_then(|mut file| file.values(0.0, 0, vec![value]))
        .context("encoding an experiment for TensorBoard")?;
    let path = logdir.join(FILE);
    if path.exists() && disk.read(&path, bytes.len() as u64).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    disk.replace(&path, &bytes).with_context(|| folder::cannot_write(&path))
}

/// `Experiment { description = 1, hparam_infos = 4, metric_infos = 5, name = 6 }`.
fn description(name: &str, about: &str, runs: &[Settings]) -> Message {
    let keys: BTreeSet<&str> = runs.iter().flatten().map(|(key, _)| key.as_str()).collect();
    let same_task =
        |one: &Settings, other: &Settings| TASK.iter().all(|key| one.get(*key) == other.get(*key));
    let first_of_task = |run| runs.iter().find(|other| same_task(run, other)).unwrap_or(run);
    let firsts: Vec<&Settings> = runs.iter().map(first_of_task).collect();
    let columns = keys.into_iter().filter_map(|key| {
        let differs = runs.iter().any(|run| run.get(key) != runs[0].get(key));
        let by_itself = runs.iter().zip(&firsts).any(|(run, first)| run.get(key) != first.get(key));
        let wanted = ALWAYS.contains(&key) || by_itself || differs && TASK.contains(&key);
        wanted.then(|| {
            let values = runs.iter().filter_map(|run| run.get(key)).map(Setting::of).collect();
            column(key, values, differs)
        })
    });
    Message::default()
        .text(1, about)
        .messages(4, columns)
        .messages(5, METRICS.into_iter().map(|(tag, name, about)| metric(tag, name, about)))
        .text(6, name)
}

/// `HParamInfo { name = 1, type = 4, domain_discrete = 5, domain_interval = 6, differs = 7 }`; the
/// domains are `ListValue { values = 1 }` and `Interval { min_value = 1, max_value = 2 }`.
fn column(key: &str, mut values: Vec<Setting<'_>>, differs: bool) -> Message {
    const STRING: i32 = 1;
    const BOOL: i32 = 2;
    const FLOAT64: i32 = 3;
    let numbers: Vec<f64> = values.iter().filter_map(Setting::number).collect();
    let info = Message::default().text(1, key);
    let info = if numbers.len() == values.len() {
        let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let most = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let interval = Message::default().number(1, least).number(2, most);
        info.choice(4, FLOAT64).message(6, &interval)
    } else {
        let flags = values.iter().all(|value| matches!(value, Setting::Flag(_)));
        if !flags {
            values = values.into_iter().map(|value| Setting::Word(value.word())).collect();
        }
        values.sort_by_key(Setting::word);
        values.dedup();
        let list = Message::default().messages(1, values.iter().map(Setting::message));
        info.choice(4, if flags { BOOL } else { STRING }).message(5, &list)
    };
    info.flag(7, differs)
}

/// `MetricInfo { name = 1, display_name = 3, description = 4, dataset_type = 5 }` of `MetricName {
/// group = 1, tag = 2 }`; the group is empty: the scalar is in the run itself.
fn metric(tag: &str, name: &str, about: &str) -> Message {
    let metric = Message::default().text(1, "").text(2, tag);
    Message::default().message(1, &metric).text(3, name).text(4, about)
}

/// A value as the dashboard has them.
#[derive(Clone, Debug, PartialEq)]
enum Setting<'a> {
    Number(f64),
    Flag(bool),
    Word(std::borrow::Cow<'a, str>),
}

impl<'a> Setting<'a> {
    fn of(value: &'a Value) -> Self {
        match value {
            Value::Integer(number) => Setting::Number(*number as f64),
            // JSON, in which the dashboard gets them, has no other numbers.
            Value::Float(number) if number.is_finite() => Setting::Number(*number),
            Value::Boolean(flag) => Setting::Flag(*flag),
            Value::String(word) => Setting::Word(word.into()),
            other => Setting::Word(other.to_string().into()),
        }
    }

    fn number(&self) -> Option<f64> {
        if let Setting::Number(number) = self { Some(*number) } else { None }
    }

    /// In words.
    fn word(&self) -> std::borrow::Cow<'a, str> {
        match self {
            Setting::Number(number) => number.to_string().into(),
            Setting::Flag(flag) => flag.to_string().into(),
            Setting::Word(word) => word.clone(),
        }
    }

    /// `google.protobuf.Value { number_value = 2, string_value = 3, bool_value = 4 }`.
    fn message(&self) -> Message {
        match self {
            Setting::Number(number) => Message::default().number(2, *number),
            Setting::Word(word) => Message::default().text(3, word),
            Setting::Flag(flag) => Message::default().flag(4, *flag),
        }
    }
}
