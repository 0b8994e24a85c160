//! `gradwire sample`: text from a trained model.

use crate::fitted;
use crate::named::RunsDir;
use anyhow::Result;
use clap::Args;
use gradwire::checkpoint;
use gradwire::train::sample::{Drawing, sample};
use std::path::{Path, PathBuf};

/// What is continued, and how.
#[derive(Debug, Args)]
pub(crate) struct SampleArgs {
    /// A model.safetensors, or a run by its folder, its name, or `last` (its best model)
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    #[command(flatten)]
    pub(crate) runs_dir: RunsDir,
    /// What the text begins with; without it, a line of its own
    #[arg(long)]
    pub(crate) prompt: Option<String>,
    /// Tokens to draw
    #[arg(long, default_value_t = 200)]
    pub(crate) tokens: usize,
    /// What logits are divided by: 0 takes the most likely token, more is more daring
    #[arg(long, default_value_t = 0.8)]
    pub(crate) temperature: f64,
    /// Draw from only so many of the most likely tokens; 0 for all
    #[arg(long, default_value_t = 0)]
    pub(crate) top: usize,
    /// What the draws derive from: another seed, another text
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

impl SampleArgs {
    pub(crate) fn run(self, run: &Path) -> Result<()> {
        let Self { prompt, tokens, temperature, top, seed, .. } = self;
        let mut saved = checkpoint::find(run)?;
        saved.recipe = fitted(&saved.recipe);
        let text = sample(&saved, prompt.as_deref(), Drawing { tokens, temperature, top, seed })?;
        println!("{}{text}", prompt.as_deref().unwrap_or("\n"));
        Ok(())
    }
}
