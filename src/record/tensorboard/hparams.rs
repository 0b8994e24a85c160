//! What TensorBoard's HParams dashboard knows of runs: in every run's own file what it was trained
//! with and how it ended.
//!
//! TensorBoard sorts columns by name, those first in which the runs differ: what tells runs apart in every folder
//! is numbered ([`FIRST`]). Any other column is named as `--set` names the value, such as `train.batch`, and is there
//! only for a value that is not the usual one. What says nothing about the result (places, checkpoints,
//! timeouts) has none. No description of an experiment is written: of all that lie under a log directory
//! TensorBoard takes one, and hides the runs and columns that it does not name.

use super::values::{encoded, nothing, plugin_value, scalars};
use crate::recipe::{Recipe, flat, is_one_of};
use crate::record::event::{Event, Finished, Kind};
use crate::record::folder;
use crate::record::summary::Summary;
use anyhow::{Context, Result};
use protobuf::well_known_types;
use std::collections::BTreeMap;
use std::path::Path;
use tensorboard_proto::api::Status;
use tensorboard_proto::plugin_hparams::HParamsPluginData;
use tensorboard_proto::summary::Summary_Value;
use toml::{Table, Value};

/// A run's settings, by column.
type Settings = BTreeMap<String, Value>;

/// What the dashboard shows about a run: its name and its settings.
pub(in crate::record) struct Trial {
    name: String,
    settings: Settings,
}

impl Trial {
    /// The trial of the run in `folder` that begins at this time, in seconds since the Unix epoch.
    pub(in crate::record) fn new(resolved: &str, folder: &Path, time: f64) -> Result<Self> {
        let recipe: Table = resolved.parse().context("the resolved recipe is no TOML")?;
        let name = recipe.get("record").and_then(|record| record.get("name"));
        let name = name.and_then(Value::as_str).map(String::from);
        let (usual, all) = (usual(&recipe), settings(recipe));
        let name = trial_name(&all, name, folder, time);
        Ok(Self { name, settings: columns(all, &usual) })
    }
}

/// The name of the plugin, and the beginning of its tags.
const PLUGIN: &str = "hparams";
const START: &str = "_hparams_/session_start_info";
const END: &str = "_hparams_/session_end_info";

/// Keys, or tables of keys, that no column is worth.
const LEFT_OUT: [&str; 10] = [
    "name",
    "threads",
    "dataset.dir",
    "exchange.timeout",
    "exchange.compare_replicas_every",
    "exchange.overlap_bytes",
    "train.evaluate_every",
    "record",
    "checkpoint",
    "faults",
];

/// The columns that every folder has, in this order, and the keys whose values they hold.
const FIRST: [(&str, &str); 7] = [
    ("1 scheme", "scheme"),
    ("2 ratio", "scheme.ratio"),
    ("3 model", "model"),
    ("4 data set", "dataset"),
    ("5 workers", "workers"),
    ("6 rate", "optimizer.learning_rate"),
    ("7 seed", "seed"),
];

/// The columns for these settings, of which some are as usual. A kind, such as an optimizer's, is always told.
fn columns(mut all: Settings, usual: &Settings) -> Settings {
    let mut columns = Settings::new();
    for (column, key) in FIRST {
        columns.extend(all.remove(key).map(|value| (column.to_string(), value)));
    }
    columns.extend(all.into_iter().filter(|(key, value)| {
        let is_kind =
            !key.contains('.') && usual.keys().any(|of| of.starts_with(&format!("{key}.")));
        is_kind || usual.get(key) != Some(value)
    }));
    columns
}

/// The settings that the recipe would have if it said nothing about them.
fn usual(recipe: &Table) -> Settings {
    let part = |(name, _): (&String, &Value)| {
        let mut bare = recipe.clone();
        match bare.get_mut(name) {
            Some(Value::Table(said)) => said.retain(|key, _| key == "kind"),
            _ => drop(bare.remove(name)),
        }
        let whole = Recipe::from_toml(&bare.to_string()).ok()?.to_toml().ok()?;
        let usual = whole.parse::<Table>().ok()?.remove(name)?;
        Some((name.clone(), usual))
    };
    settings(recipe.iter().filter_map(part).collect())
}

/// The settings in a resolved recipe, a part's kind under the part's own name.
fn settings(recipe: Table) -> Settings {
    let told = flat(recipe).into_iter().filter(|(key, _)| !is_one_of(key, &LEFT_OUT));
    told.map(|(key, value)| (key.strip_suffix(".kind").unwrap_or(&key).into(), value)).collect()
}

/// Says that a run begins, at a time in seconds since the Unix epoch. The group is what the dashboard
/// calls a trial, in a narrow column: its name begins with what tells runs apart.
pub(super) fn start(trial: &Trial, time: f64) -> Summary_Value {
    let settings = trial.settings.iter();
    let mut data = HParamsPluginData::new();
    let info = data.mut_session_start_info();
    info.hparams = settings.map(|(key, value)| (key.clone(), in_message(value))).collect();
    info.group_name = trial.name.clone();
    info.start_time_secs = time;
    plugin_value(START, PLUGIN, encoded(&data), nothing())
}

/// What the dashboard calls the run in `folder`: its name, or else scheme and seed, then its folder, and
/// the moment at which it begins where the folder's name does not tell it.
fn trial_name(settings: &Settings, name: Option<String>, folder: &Path, time: f64) -> String {
    let word = |key: &str| settings.get(key).map(in_words);
    let label = match (name, word("scheme"), word("seed")) {
        (Some(name), ..) => name,
        (None, Some(scheme), Some(seed)) => format!("{scheme} seed {seed}"),
        (None, scheme, _) => scheme.unwrap_or_else(|| "run".into()),
    };
    let moment = match folder::has_stamp(folder) {
        true => String::new(),
        false => format!(" · {}", folder::stamp(time)),
    };
    format!("{label} · {}{moment}", folder.display())
}

/// What a run has come to by an evaluation, beside accuracy and loss, and what it had cost.
pub(super) fn results(summary: &Summary) -> Vec<Summary_Value> {
    let figures = [
        ("Test/best_accuracy", summary.best_accuracy),
        ("Test/bits_per_parameter", Some(summary.bits_per_parameter)),
        ("Test/seconds", Some(summary.seconds)),
        ("Test/wire_bytes", Some(summary.wire_bytes as f64)),
    ];
    scalars(figures).collect()
}

/// That a run has ended. Nothing for events that are no end.
pub(super) fn end(event: &Event, last_step: Option<u64>) -> Vec<Summary_Value> {
    let status = match &event.kind {
        Kind::Finished(Finished { summary, .. }) => match last_step {
            Some(last) if summary.step >= last => Status::STATUS_SUCCESS,
            // It was stopped on request.
            _ => Status::STATUS_UNKNOWN,
        },
        Kind::Failed(_) => Status::STATUS_FAILURE,
        _ => return Vec::new(),
    };
    let mut data = HParamsPluginData::new();
    let info = data.mut_session_end_info();
    info.status = status;
    info.end_time_secs = event.time;
    vec![plugin_value(END, PLUGIN, encoded(&data), nothing())]
}

/// A setting in words.
fn in_words(value: &Value) -> String {
    match value {
        Value::String(word) => word.clone(),
        Value::Integer(number) => (*number as f64).to_string(),
        other => other.to_string(),
    }
}

/// A setting as the dashboard has them.
fn in_message(value: &Value) -> well_known_types::Value {
    let mut setting = well_known_types::Value::new();
    match value {
        Value::Integer(number) => setting.set_number_value(*number as f64),
        // JSON, in which the dashboard gets them, has no other numbers.
        Value::Float(number) if number.is_finite() => setting.set_number_value(*number),
        Value::Boolean(flag) => setting.set_bool_value(*flag),
        other => setting.set_string_value(in_words(other)),
    }
    setting
}
