//! Runs by name: a word where the folder of a run can stand.

use crate::refused::Failure;
use anyhow::Result;
use clap::Args;
use gradwire::disk::Disk;
use gradwire_study::runs;
use std::path::{Component, Path, PathBuf};

/// Where the runs are that words name.
#[derive(Debug, Args)]
pub(super) struct RunsDir {
    /// The folder in which a run's name, or `last` for the newest run, is looked for
    #[arg(long = "runs", value_name = "FOLDER", default_value = "runs/out")]
    folder: PathBuf,
}

impl RunsDir {
    /// The folders that `words` mean.
    pub(super) fn all(&self, words: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
        words.iter().map(|word| self.one(word)).collect()
    }

    /// The folder that `word` means.
    pub(super) fn one(&self, word: &Path) -> Result<PathBuf, Failure> {
        meant(&self.folder, word).map_err(Failure::refused)
    }
}

/// The path itself where something is there, or where it is more than a word; else the run under `out`
/// that the word means.
pub(super) fn meant(out: &Path, word: &Path) -> Result<PathBuf> {
    let mut parts = word.components();
    let is_word = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    match word.to_str() {
        Some(word) if is_word && !Path::new(word).exists() => {
            runs::find(&Disk::default(), out, word)
        }
        _ if word.exists() || !out.join(word).exists() => Ok(word.to_path_buf()),
        _ => Ok(out.join(word)),
    }
}
