//! What the command line changes in a recipe, whatever the command.

use crate::recipe::Source;
use clap::Args;
use toml::Value;

/// What the command line changes in a recipe.
#[derive(Debug, Args)]
pub(super) struct Changes {
    /// Change any value of the recipe, such as scheme.ratio=0.001; may be repeated
    #[arg(long = "set", value_name = "PATH=VALUE")]
    sets: Vec<String>,
    /// The data set: dataset.kind
    #[arg(long)]
    dataset: Option<String>,
    /// The model: model.kind
    #[arg(long)]
    model: Option<String>,
    /// The compression scheme: scheme.kind
    #[arg(long)]
    scheme: Option<String>,
    /// World size: workers
    #[arg(long)]
    workers: Option<u32>,
    /// Passes over the training set: train.epochs
    #[arg(long)]
    epochs: Option<u32>,
    /// What every random stream derives from: seed
    #[arg(long)]
    seed: Option<i64>,
    /// The folder that runs are written under: record.out
    #[arg(long)]
    out: Option<String>,
    /// The folder that holds the data set: dataset.dir
    #[arg(long)]
    dir: Option<String>,
}

impl Changes {
    /// The seed, if one is named.
    pub(super) fn seed(&self) -> Option<i64> {
        self.seed
    }

    /// The recipe that is named, with the changes.
    pub(super) fn source(self, recipe: Option<String>) -> Source {
        let text = |path, value: Option<String>| Some((path, Value::String(value?)));
        let number = |path, value: Option<i64>| Some((path, Value::Integer(value?)));
        let flags = [
            text("dataset", self.dataset),
            text("model", self.model),
            text("scheme", self.scheme),
            number("workers", self.workers.map(i64::from)),
            number("train.epochs", self.epochs.map(i64::from)),
            number("seed", self.seed),
            text("record.out", self.out),
            text("dataset.dir", self.dir),
        ];
        Source { recipe, flags: flags.into_iter().flatten().collect(), sets: self.sets }
    }
}
