//! `gradwire new`: a commented recipe or experiment to start from.

use crate::keys::File;
use anyhow::{Result, bail};
use clap::Args;
use gradwire::recipe::Recipes;
use gradwire_study::experiment::Experiment;

const RECIPE: &str = include_str!("../../runs/new/recipe.toml");
const EXPERIMENT: &str = include_str!("../../runs/new/experiment.toml");

/// What to begin.
#[derive(Debug, Args)]
pub(super) struct New {
    /// What to print
    what: File,
    /// Print a built-in one in place of the commented one
    #[arg(long, value_name = "NAME")]
    from: Option<String>,
}

impl New {
    /// Prints it.
    ///
    /// # Errors
    /// When nothing of that name is built in.
    pub(super) fn run(&self) -> Result<()> {
        let (blank, all) = match self.what {
            File::Recipe => (RECIPE, Recipes::all()),
            File::Experiment => (EXPERIMENT, Experiment::built_in()),
        };
        let text = match &self.from {
            None => blank,
            Some(wanted) => match all.iter().find(|(name, _)| name == wanted) {
                Some((_, text)) => text,
                None => {
                    let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
                    let word = self.what.word();
                    bail!("there is no {word} {wanted:?}; built in are {}", names.join(", "));
                }
            },
        };
        print!("{text}");
        Ok(())
    }
}
