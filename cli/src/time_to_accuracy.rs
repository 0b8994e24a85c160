//! `gradwire bench time-to-accuracy`: how long whole runs of a recipe take to a test accuracy.

use crate::changes::TrainingChanges;
use crate::grid::GridArgs;
use crate::making::AskedExperiment;
use crate::refused::Failure;
use anyhow::{Result, ensure};
use clap::Args;
use gradwire::recipe::Recipe;
use gradwire_study::sweep::{Over, Sweep};
use std::process::ExitCode;

/// What to train, and what is to be reached.
#[derive(Debug, Args)]
#[command(mut_arg("seed", |seed| seed.hide(true)))]
pub(super) struct TimeToAccuracy {
    /// A built-in recipe's name (see `gradwire list recipes`) or a TOML file
    recipe: String,
    /// The test accuracy that is to be reached, in percent
    #[arg(long, value_name = "PERCENT")]
    target: f64,
    /// Train with seeds 1 to N
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Values that a path of the recipe takes in turn, such as scheme=dense,topk; may be repeated
    #[arg(long, value_name = "PATH=V1,V2,…")]
    over: Vec<String>,
    /// Go on with runs that were stopped, from their last checkpoints, rather than begin them
    /// again; finished ones are never made twice
    #[arg(long)]
    resume: bool,
    /// Show the runs and how long those still to be made will take here, and stop
    #[arg(long)]
    dry_run: bool,
    /// Print each arm as a line of JSON, and nothing else
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    changes: TrainingChanges,
}

impl TimeToAccuracy {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let (running, asked) = self.plan().map_err(Failure::refused)?;
        running.run(&asked)
    }

    /// The runs are those of a sweep, so that a sweep over the same recipe finds them made.
    fn plan(self) -> Result<(GridArgs, AskedExperiment)> {
        ensure!(
            self.target > 0.0 && self.target <= 100.0,
            "--target {} must be above 0 and at most 100 percent, such as 93",
            self.target
        );
        self.changes.without_seed(self.seeds)?;
        let recipe = self.changes.source(Some(self.recipe))?.table()?;
        let typed = Recipe::from_table(recipe.clone())?;
        let sweep = Sweep {
            recipe,
            over: self
                .over
                .iter()
                .map(|over| Over::parse("--over", over))
                .collect::<Result<_>>()?,
            questions: Vec::new(),
            baseline: None,
            links: Vec::new(),
            seeds: self.seeds,
        };
        let asked = AskedExperiment::of_sweep(typed, &sweep, Some(self.target / 100.0))?;
        Ok((GridArgs::of_seeds(self.seeds, self.resume, self.dry_run, self.json), asked))
    }
}
