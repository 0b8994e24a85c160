//! The manifest of a checkpoint: what it holds, and how to know that it is whole.

use super::names::file_names;
use super::progress::{Progress, Sums};
use crate::record::{FileSum, Provenance, Summary};
use crate::tensors::MOST_UPDATES;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// What the manifest calls the format.
pub(super) const FORMAT: &str = "gradwire-checkpoint";
/// The version that this program writes and reads.
pub(super) const VERSION: u64 = 2;

/// A manifest is some kilobytes; the recipe in it may be long.
pub(super) const LONGEST_MANIFEST: u64 = 64 << 20;

/// The most workers that a run can have.
const MOST_WORKERS: usize = 1024;

/// What a checkpoint says about itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// `gradwire-checkpoint`.
    pub format: String,
    /// The format's version.
    pub version: u64,
    /// Steps taken, and the place in the data.
    #[serde(flatten)]
    pub progress: Progress,
    /// Number of workers whose state it holds.
    pub world_size: usize,
    /// What every random stream derives from; the numbers themselves have no state.
    pub seed: u64,
    /// The learning rate of the last step.
    pub learning_rate: f64,
    /// The updates the optimizer has made.
    pub updates: u64,
    /// The merit of the best model that is saved.
    pub best: Option<f64>,
    /// The test accuracy after this very step, if it was evaluated.
    pub test_accuracy: Option<f64>,
    /// How good the model is after this very step, if it was evaluated: its test accuracy, or where a text is continued
    /// its test loss, negated.
    pub merit: Option<f64>,
    /// The sums of the running epoch.
    pub sums: Sums,
    /// The run in figures, so far.
    pub summary: Summary,
    /// The recipe as TOML.
    pub recipe: String,
    /// What produced it.
    pub provenance: Provenance,
    /// When, in seconds since the Unix epoch.
    pub time: f64,
    /// The other files.
    pub files: Vec<FileSum>,
}

/// A program with another format wrote it: no reason to take it for damaged.
#[derive(Debug, thiserror::Error)]
#[error(
    "it is of version {0}, and this program reads version {VERSION}: resume it with the program that wrote it"
)]
pub(super) struct OtherVersion(u64);

impl Manifest {
    /// Checks that the text is a manifest of a version that this program reads.
    pub(super) fn check_version(text: &[u8]) -> Result<()> {
        /// What every version says.
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u64,
        }
        let head: Head = serde_json::from_slice(text).context("it is not a manifest")?;
        ensure!(head.format == FORMAT, "it is of the format {:?}, not {FORMAT}", head.format);
        ensure!(head.version == VERSION, OtherVersion(head.version));
        Ok(())
    }

    /// Reads a manifest; an error when it is none, of a version that this program does not know, or
    /// contradicts itself.
    pub(super) fn parse(text: &[u8]) -> Result<Self> {
        Self::check_version(text)?;
        let manifest: Self = serde_json::from_slice(text).context("it is not a whole manifest")?;
        ensure!(
            (1..=MOST_WORKERS).contains(&manifest.world_size),
            "a world size of {} is not possible",
            manifest.world_size
        );
        let Progress { step, epoch, .. } = manifest.progress;
        ensure!(step >= 1 && epoch >= 1, "step {step} of epoch {epoch} is not possible");
        ensure!(step < MOST_UPDATES, "step {step} is not possible");
        // So that the number of an epoch's first step is no more than 64 bits.
        ensure!(epoch < 1 << 31, "epoch {epoch} is not possible");
        let updates = manifest.updates;
        ensure!(updates < MOST_UPDATES, "{updates} updates are not possible");
        let names = manifest.files.iter().map(|file| &file.name);
        ensure!(
            names.eq(&file_names(manifest.world_size)),
            "it does not name the files of {} workers",
            manifest.world_size
        );
        Ok(manifest)
    }
}
