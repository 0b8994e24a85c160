//! How fast the schemes of an experiment encode and decode what its runs had to say: for each claim
//! about speed, the last gradient that each of the arm's runs recorded, encoded and decoded by both
//! schemes in turns on one thread. The phases of a training step are no such measure: eight ranks that
//! share two cores slow each other down.

use super::claim::Claim;
use super::definition::Experiment;
use super::grid::{Grid, Planned};
use super::results::{Run, Timing};
use crate::bench::codecs;
use crate::disk::Disk;
use crate::record::gradient;
use anyhow::{Context, Result};
use std::path::Path;

/// Times whatever claims about speed need and `known` does not have, and returns all. A claim whose
/// runs are not there, or recorded no gradient, has no timing; neither has one whose gradient is damaged
/// or cannot be encoded by a scheme, and `tell` is told why.
///
/// # Errors
/// When the folder of a run cannot be read.
pub fn measure(
    disk: &Disk,
    folder: &Path,
    experiment: &Experiment,
    grid: &Grid,
    runs: &[Run],
    known: Vec<Timing>,
    mut tell: impl FnMut(&str),
) -> Result<Vec<Timing>> {
    let mut timings = known;
    for claim in experiment.claims.iter().filter(|claim| claim.measure.is_timed()) {
        for run in runs.iter().filter(|run| run.task == claim.task && run.arm == claim.arm) {
            let Some(measured) = run.measured.as_ref().filter(|_| run.outcome.is_finished()) else {
                continue;
            };
            let started = measured.summary.started;
            let has = |arm: &String| {
                timings.iter().any(|timing| {
                    (&timing.task, &timing.of, &timing.arm) == (&run.task, &run.arm, arm)
                        && (timing.seed, timing.started) == (run.seed, started)
                })
            };
            let arms = arms(claim);
            if arms.iter().all(has) {
                continue;
            }
            let at = folder.join(&run.folder);
            let Some(file) = gradient::last(disk, &at)? else { continue };
            let scheme = |arm: &String| Some(&planned(grid, run, arm)?.recipe.scheme);
            let schemes: Option<Vec<_>> = arms.iter().map(scheme).collect();
            let Some(schemes) = schemes else { continue };
            let speeds = gradient::load(&file)
                .and_then(|gradient| codecs::in_turns(&schemes, &gradient))
                .with_context(|| format!("claim {:?}: timing on {}", claim.claim, file.display()));
            let speeds = match speeds {
                Ok(speeds) => speeds,
                Err(error) => {
                    tell(&format!("{error:#}"));
                    continue;
                }
            };
            timings.retain(|timing| {
                (&timing.task, &timing.of, timing.seed) != (&run.task, &run.arm, run.seed)
                    || !arms.contains(&timing.arm)
            });
            for (arm, [encode, decode]) in arms.into_iter().zip(speeds) {
                let (task, of, seed) = (run.task.clone(), run.arm.clone(), run.seed);
                timings.push(Timing { task, of, seed, started, arm, encode, decode });
            }
        }
    }
    Ok(timings)
}

/// The arms whose schemes a claim compares.
fn arms(claim: &Claim) -> Vec<String> {
    std::iter::once(&claim.arm).chain(&claim.against).cloned().collect()
}

/// What is planned of an arm on the task of a run, with its seed.
fn planned<'a>(grid: &'a Grid, run: &Run, arm: &str) -> Option<&'a Planned> {
    let is = |planned: &&Planned| {
        planned.task == run.task && planned.arm == arm && planned.recipe.seed == run.seed
    };
    grid.runs.iter().find(is)
}
