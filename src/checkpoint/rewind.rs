//! Taking back what a run kept after a step, so that it can go on from there.

use super::model::{BEST, LAST, find};
use super::names::{MODEL, by_age, discard};
use super::read::is_damage;
use crate::disk::Disk;
use anyhow::{Context, Result};
use std::path::Path;

/// Removes the checkpoints of `run` after `step`, which a run that goes on from there would not
/// lead to or would write again, and models of later steps. Tells whether the best model is still
/// there.
///
/// # Errors
/// When one cannot be removed. To do it again does no harm.
pub fn rewind(disk: &Disk, run: &Path, step: u64) -> Result<bool> {
    for (_, folder) in by_age(disk, run)?.into_iter().filter(|(at, _)| *at > step) {
        discard(disk, &folder)?;
    }
    for which in [BEST, LAST] {
        let file = run.join(which).join(MODEL);
        let stale = file.is_file()
            && match find(&file) {
                Ok(saved) => saved.step > step,
                // A damaged one is of no use to anybody.
                Err(error) if is_damage(&error) => true,
                Err(error) => return Err(error),
            };
        if stale {
            disk.remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
        }
    }
    Ok(run.join(BEST).join(MODEL).is_file())
}
