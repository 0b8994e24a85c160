//! What the command line changes in a recipe, whatever the command.

use anyhow::{Result, bail, ensure};
use clap::Args;
use gradwire::recipe::{self, Source};
use gradwire_study::grid::names_seed;
use toml::Value;

/// What the command line changes in a recipe.
#[derive(Debug, Args)]
pub(super) struct Changes {
    /// Change any value of the recipe, such as scheme.ratio=0.001; may be repeated
    #[arg(long = "set", value_name = "PATH=VALUE")]
    sets: Vec<String>,
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
            text("record.out", self.out),
            text("dataset.dir", self.dir),
        ];
        let flags: Vec<_> = flags.into_iter().flatten().collect();
        refuse_two_values(&flags, &self.sets)?;
        Ok(Source { recipe, flags, sets: self.sets })
    }
}

/// What the command line changes in the recipe of runs that are trained to their end.
#[derive(Debug, Args)]
pub(super) struct TrainingChanges {
    #[command(flatten)]
    changes: Changes,
    /// A word to find the run by (`gradwire runs --tag TAG`): record.tags; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Updates after which the run ends early: train.max_steps
    #[arg(long)]
    steps: Option<u32>,
    /// Samples of a worker in one forward pass: train.batch
    #[arg(long)]
    batch: Option<u32>,
    /// The highest learning rate: optimizer.learning_rate
    #[arg(long)]
    lr: Option<f64>,
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
        ];
        let mut source = self.changes.source(recipe)?;
        source.flags.extend(flags.into_iter().flatten());
        source.flags.extend(tagged(self.tags));
        refuse_two_values(&source.flags, &source.sets)?;
        Ok(source)
    }
}

/// Refuses a key that a flag and `--set` give different values: which is meant, nobody can know.
fn refuse_two_values(flags: &[(&'static str, Value)], sets: &[String]) -> Result<()> {
    for (path, value) in sets.iter().filter_map(|set| set.split_once('=')) {
        let (path, values) = (path.trim(), recipe::split_values(value));
        let is_equal = |given: &Value| match (given, values.as_slice()) {
            (Value::Float(given), [Value::Integer(value)]) => *given == *value as f64,
            (given, values) => values == [given.clone()],
        };
        let flag = flags.iter().find(|(flag, given)| *flag == path && !is_equal(given));
        if let Some((_, given)) = flag {
            bail!(
                "{path} is given twice: {given} by a flag, and --set {path}={value}; give it once"
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
