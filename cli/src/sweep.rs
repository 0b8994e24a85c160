//! `gradwire sweep`: a question of one's own, from a recipe to the answer.

use crate::changes::TrainingChanges;
use crate::grid::GridArgs;
use crate::making::AskedExperiment;
use crate::network::words_of_links;
use crate::refused::Failure;
use anyhow::{Result, ensure};
use clap::Args;
use gradwire::recipe::Recipe;
use gradwire_study::question::Question;
use gradwire_study::sweep::{Over, Sweep as Grid};
use std::process::ExitCode;

/// Seeds that a sweep is made with, unless it is said.
const SEEDS: u64 = 3;

/// What to go over, and what to answer.
#[derive(Debug, Args)]
#[command(mut_arg("seed", |seed| seed.hide(true)))]
pub(super) struct Sweep {
    /// A built-in recipe's name (see `gradwire list recipes`) or a TOML file
    recipe: String,
    /// Values that a path of the recipe takes in turn; may be repeated, for all combinations. A setting
    /// that a scheme does not have is left out for it
    #[arg(long, value_name = "PATH=V1,V2,…", required = true)]
    over: Vec<String>,
    /// What to answer, such as "accuracy within 1 point of dense", "bits per parameter at most 1" or
    /// "step seconds at 1gbit at least 2 times as fast as dense"; may be repeated (docs/sweep.md)
    #[arg(long, value_name = "QUESTION")]
    ask: Vec<String>,
    /// The arm that tables compare the others with; dense, or else the first, if left out
    #[arg(long, value_name = "ARM")]
    baseline: Option<String>,
    /// What the sweep is called: its folder is NAME-sweep; the recipe's name, if left out
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    running: GridArgs,
    /// Links to tell the times on, by name (`gradwire network links`) or bandwidth
    #[arg(long, value_name = "LINK,…", default_value = "100mbit,1gbit,10gbit")]
    links: Vec<String>,
    #[command(flatten)]
    changes: TrainingChanges,
}

impl Sweep {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let (running, asked) = self.plan().map_err(Failure::refused)?;
        running.run(&asked)
    }

    /// The experiment, and how it is to be run.
    fn plan(self) -> Result<(GridArgs, AskedExperiment)> {
        self.changes.without_seed(SEEDS)?;
        let source = self.changes.source(Some(self.recipe))?;
        let recipe = source.table()?;
        // What is wrong with the recipe itself is told before anything about the sweep.
        let mut typed = Recipe::from_table(recipe.clone())?;
        if let Some(name) = self.name {
            typed = typed.with("name", name)?;
        }
        let sweep = Grid {
            recipe,
            over: self
                .over
                .iter()
                .map(|over| Over::parse("--over", over))
                .collect::<Result<_>>()?,
            questions: self.ask.iter().map(|ask| Question::parse(ask)).collect::<Result<_>>()?,
            baseline: self.baseline,
            links: words_of_links(&self.links)?,
            seeds: self.running.seeds.unwrap_or(SEEDS),
        };
        ensure!(
            !self.running.until_decided || !sweep.questions.is_empty(),
            "--until-decided: nothing is asked that could be undecided; add --ask, or --seeds N for more seeds"
        );
        let asked = AskedExperiment::of_sweep(typed, &sweep, None)?;
        let mut notes: Vec<String> = Vec::new();
        for over in sweep.over.iter().filter(|_| !self.running.is_silent()) {
            let part = over.path().strip_suffix(".kind").unwrap_or(over.path());
            let is_of_part =
                |path: &&str| path.strip_prefix(part).is_some_and(|rest| rest.starts_with('.'));
            for path in source.paths().filter(is_of_part).filter(|path| *path != over.path()) {
                eprintln!(
                    "note: {path} counts where an arm's {part} is of the recipe's own kind, and others have their \
                     defaults; give it to them within the value: --over '{part}={{ kind = …, … }}'"
                );
            }
        }
        for note in sweep.recipes()?.iter().filter_map(|recipe| source.batch_note(recipe)) {
            if !notes.contains(&note) && !self.running.is_silent() {
                eprintln!("note: {note}");
                notes.push(note);
            }
        }
        Ok((self.running, asked))
    }
}
