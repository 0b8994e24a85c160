//! What the command line changes in a recipe, whatever the command.

use anyhow::{Result, anyhow, bail, ensure};
use clap::Args;
use gradwire::recipe::{self, Source};
use gradwire_models as models;
use gradwire_study::grid::names_seed;
use std::path::{Path, PathBuf};
use toml::Value;

/// What the command line changes in a recipe.
#[derive(Debug, Args)]
pub(super) struct Changes {
    /// Change any value of the recipe, such as scheme.ratio=0.001; may be repeated
    #[arg(long = "set", value_name = "PATH=VALUE")]
    sets: Vec<String>,
    /// Data of one's own: a folder of class folders with pictures, of IDX files or of an official data set; a .npz,
    /// .csv, .tsv, .parquet or .txt file. Says what is found there, and takes another model where the recipe's cannot read it
    #[arg(long, value_name = "PATH", conflicts_with_all = ["dataset", "dir"])]
    data: Option<PathBuf>,
    /// The data set, by name or with settings: '{ kind = "cifar10", dir = "data" }'
    #[arg(long)]
    dataset: Option<String>,
    /// The model, by name or with settings: '{ kind = "bilstm", hidden = 64 }'
    #[arg(long)]
    model: Option<String>,
    /// The compression scheme, by name or with settings: '{ kind = "topk", ratio = 0.001 }'
    #[arg(long)]
    scheme: Option<String>,
    /// World size: workers
    #[arg(long)]
    workers: Option<u32>,
    /// Passes over the training set: train.epochs
    #[arg(long)]
    epochs: Option<u32>,
    /// What the processor's products are computed in, f32 or bf16: precision
    #[arg(long)]
    precision: Option<String>,
    /// What every random stream derives from: seed
    #[arg(long, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: Option<u64>,
    /// The folder that runs are written under: record.out
    #[arg(long)]
    out: Option<String>,
    /// The folder that holds the data set: dataset.dir
    #[arg(long)]
    dir: Option<String>,
}

impl Changes {
    /// The recipe that is named, with the changes.
    ///
    /// # Errors
    /// When a flag and `--set` give one key two values.
    pub(super) fn source(self, recipe: Option<String>) -> Result<Source> {
        let part = |path, value: Option<String>| Some((path, recipe::part_of(&value?)));
        let text = |path, value: Option<String>| Some((path, Value::String(value?)));
        let number = |path, value: Option<i64>| Some((path, Value::Integer(value?)));
        let flags = [
            part("dataset", self.dataset),
            part("model", self.model),
            part("scheme", self.scheme),
            number("workers", self.workers.map(i64::from)),
            number("train.epochs", self.epochs.map(i64::from)),
            number("seed", self.seed.map(|seed| seed as i64)),
            text("precision", self.precision),
            text("record.out", self.out),
            text("dataset.dir", self.dir),
        ];
        let flags: Vec<_> = flags.into_iter().flatten().collect();
        refuse_two_values(&flags, &self.sets)?;
        let mut source = Source { recipe, flags, sets: self.sets };
        if let Some(path) = self.data {
            take_data(&mut source, &path)?;
        }
        Ok(source)
    }
}

/// Puts the data set at `path` into the recipe. If the recipe names data of the same kind, its other settings stay. Where the
/// recipe's own model cannot read the data, one that can takes its place.
fn take_data(source: &mut Source, path: &Path) -> Result<()> {
    let changed = source.sets.iter().any(|set| set.trim_start().starts_with("dataset."));
    let found = gradwire_datasets::look(path).map_err(|error| match changed {
        true => anyhow!(
            "{error}. What --set says of the data set counts after this look: in place of --data write \
             --dataset '{{ kind = \"…\", … }}'"
        ),
        false => error.into(),
    })?;
    let before = if changed { "; as it is without what --set says" } else { "" };
    eprintln!("{}: {}{before}", path.display(), found.line);
    let mut dataset = Value::try_from(&found.config)?;
    let own = source.table()?.remove("dataset");
    if let (Value::Table(new), Some(Value::Table(own))) = (&mut dataset, own)
        && new.get("kind") == own.get("kind")
    {
        let place = |key: &str| ["dir", "file", "path", "test_file"].contains(&key);
        new.extend(own.into_iter().filter(|(key, _)| !place(key)));
    }
    source.flags.insert(0, ("dataset", dataset));
    let named = |set: &String| {
        set.split('=').next().is_some_and(|key| key.trim() == "model" || key.trim() == "model.kind")
    };
    if source.flags.iter().any(|(key, _)| *key == "model") || source.sets.iter().any(named) {
        return Ok(());
    }
    // With what --set says of it; what is wrong there is said when the recipe is read.
    let config = source.table()?.remove("dataset").map(Value::try_into);
    let Some(Ok(config)) = config else { return Ok(()) };
    let config: gradwire_datasets::Config = config;
    let form = config.form()?;
    let problem = |model: &models::Config| -> Option<String> {
        let reads = model.input_kind();
        match reads == recipe::holds(&config) {
            true => {
                Some(model.parameters(&recipe::input(form.shape), form.classes).err()?.to_string())
            }
            false => Some(format!("reads {reads}")),
        }
    };
    let Some(Ok(own)) = source.table()?.remove("model").map(Value::try_into::<models::Config>)
    else {
        return Ok(());
    };
    let Some(why) = problem(&own) else { return Ok(()) };
    let mut others =
        USUAL.into_iter().filter_map(models::Config::from_name).chain(models::Config::all());
    if let Some(other) = others.find(|other| problem(other).is_none()) {
        eprintln!(
            "model {} in the place of {}, which cannot read it: {why}",
            other.name(),
            own.name()
        );
        source.flags.push(("model", Value::String(other.name().into())));
    }
    Ok(())
}

/// Models that are taken first where a recipe's own cannot read the data.
const USUAL: [&str; 2] = ["resnet20", "fasttext"];

/// What the command line changes in the recipe of runs that are trained to their end.
#[derive(Debug, Args)]
pub(super) struct TrainingChanges {
    #[command(flatten)]
    changes: Changes,
    /// A word to find the run by (`gradwire runs --tag TAG`): record.tags; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Updates after which the run ends early: train.max_steps. A schedule that spans the run (cosine, triangular) is
    /// shortened with it; a warm-up (schedule.warmup, in epochs) is not
    #[arg(long)]
    steps: Option<u32>,
    /// Samples of a worker in one forward pass: train.batch
    #[arg(long)]
    batch: Option<u32>,
    /// The highest learning rate: optimizer.learning_rate
    #[arg(long)]
    lr: Option<f64>,
    /// The optimizer's momentum: optimizer.momentum
    #[arg(long)]
    momentum: Option<f64>,
    /// How the learning rate changes, by name or with settings: '{ kind = "step", every = 3 }'
    #[arg(long)]
    schedule: Option<String>,
}

impl TrainingChanges {
    /// Refuses a seed where all of so many are taken in turn.
    pub(super) fn without_seed(&self, seeds: u64) -> Result<()> {
        let is_set = self.changes.sets.iter().any(|set| names_seed(set));
        ensure!(
            self.changes.seed.is_none() && !is_set,
            "--seed is for one run; --seeds {seeds} makes every run with seeds 1 to {seeds}"
        );
        Ok(())
    }

    /// The recipe that is named, with the changes.
    ///
    /// # Errors
    /// When a flag and `--set` give one key two values.
    pub(super) fn source(self, recipe: Option<String>) -> Result<Source> {
        let whole = |path, value: Option<u32>| Some((path, Value::Integer(value?.into())));
        let flags = [
            whole("train.max_steps", self.steps),
            whole("train.batch", self.batch),
            self.lr.map(|rate| ("optimizer.learning_rate", Value::Float(rate))),
            self.momentum.map(|momentum| ("optimizer.momentum", Value::Float(momentum))),
            self.schedule.map(|schedule| ("schedule", recipe::part_of(&schedule))),
        ];
        let mut source = self.changes.source(recipe)?;
        source.flags.extend(flags.into_iter().flatten());
        source.flags.extend(tagged(self.tags));
        refuse_two_values(&source.flags, &source.sets)?;
        Ok(source)
    }
}

/// Refuses a key that a flag and `--set` give different values: which is meant, nobody can know.
pub(super) fn refuse_two_values(flags: &[(&'static str, Value)], sets: &[String]) -> Result<()> {
    for (path, value) in sets.iter().filter_map(|set| set.split_once('=')) {
        let (path, values) = (path.trim(), recipe::split_values(value));
        let is_other = |given: &Value, values: &[Value]| match (given, values) {
            (Value::Float(given), [Value::Integer(value)]) => *given != *value as f64,
            (given, values) => values != [given.clone()],
        };
        // A part's name is its key `kind`, and a part that is given whole has keys below it.
        let part = |path: &str| path.strip_suffix(".kind").unwrap_or(path).to_string();
        let clashes = |flag: &str, given: &Value| {
            let below = flag.strip_prefix(path).and_then(|rest| rest.strip_prefix('.'));
            let inside = |keys: &str| {
                let values = values.iter();
                let found = values.filter_map(|value| keys.split('.').try_fold(value, Value::get));
                found.cloned().collect::<Vec<_>>()
            };
            match below.map(inside) {
                Some(inside) => !inside.is_empty() && is_other(given, &inside),
                None => part(flag) == part(path) && is_other(given, &values),
            }
        };
        if let Some((flag, given)) = flags.iter().find(|(flag, given)| clashes(flag, given)) {
            bail!(
                "{flag} is given twice: {given} by a flag, and --set {path}={value}; give it once"
            );
        }
    }
    Ok(())
}

/// The key of tags and its value, if there are any.
pub(super) fn tagged(tags: Vec<String>) -> Option<(&'static str, Value)> {
    let words = Value::Array(tags.into_iter().map(Value::String).collect());
    words.as_array().is_some_and(|words| !words.is_empty()).then_some(("record.tags", words))
}
