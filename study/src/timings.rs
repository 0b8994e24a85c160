//! How fast the schemes of an experiment encode and decode gradients of its runs: for each claim
//! about speed, the last gradient that each of the arm's runs recorded, residual included, encoded and
//! decoded by both schemes in turns on one thread. The phases of a training step are no such measure:
//! eight ranks that share two cores slow each other down.

use crate::bench::codecs;
use crate::claim::Claim;
use crate::experiment::Experiment;
use crate::grid::{Grid, PlannedRun};
use crate::results::{RunResult, Timing};
use anyhow::{Context, Result};
use gradwire::disk::Disk;
use gradwire::record::{Provenance, gradient};
use std::path::Path;

/// Times whatever claims about speed need and `known` does not have, and returns all. A claim whose
/// runs are not there, or recorded no gradient, has no timing; neither has one whose gradient is damaged
/// or cannot be encoded by a scheme, and `report_error` gets the reason.
///
/// # Errors
/// When the folder of a run cannot be read.
pub fn measure(
    disk: &Disk,
    folder: &Path,
    experiment: &Experiment,
    grid: &Grid,
    runs: &[RunResult],
    known: Vec<Timing>,
    mut report_error: impl FnMut(&str),
) -> Result<Vec<Timing>> {
    let mut timings = known;
    for run in runs {
        let Some(measured) = run.measured.as_ref().filter(|_| run.outcome.is_finished()) else {
            continue;
        };
        let arms = compared_on(experiment, grid, run);
        let started = measured.summary.started;
        let is_known = |arm: &PlannedRun| {
            timings.iter().any(|timing| {
                (&timing.task, &timing.gradient_of, &timing.arm) == (&run.task, &run.arm, &arm.arm)
                    && (timing.seed, timing.started) == (run.seed, started)
                    && timing.scheme == arm.recipe.scheme_in_words()
            })
        };
        if arms.iter().all(|arm| is_known(arm)) {
            continue;
        }
        let Some(file) = gradient::last(disk, &folder.join(&run.folder))? else { continue };
        let schemes: Vec<_> = arms.iter().map(|arm| &arm.recipe.scheme).collect();
        let speeds = gradient::load(&file)
            .and_then(|gradient| codecs::in_turns(&schemes, &gradient))
            .with_context(|| format!("timing schemes on {}", file.display()));
        let speeds = match speeds {
            Ok(speeds) => speeds,
            Err(error) => {
                report_error(&format!("{error:#}"));
                continue;
            }
        };
        timings.retain(|timing| {
            (&timing.task, &timing.gradient_of, timing.seed) != (&run.task, &run.arm, run.seed)
        });
        for (arm, [encode, decode]) in arms.into_iter().zip(speeds) {
            let (task, gradient_of, seed) = (run.task.clone(), run.arm.clone(), run.seed);
            let (arm, scheme) = (arm.arm.clone(), arm.recipe.scheme_in_words());
            let provenance = Some(Provenance::here());
            timings.push(Timing {
                task,
                gradient_of,
                seed,
                started,
                arm,
                scheme,
                encode,
                decode,
                provenance,
            });
        }
    }
    Ok(timings)
}

/// The arms that claims about speed compare on the gradient of a run, each once, so that all are timed
/// in the same turns.
fn compared_on<'a>(
    experiment: &Experiment,
    grid: &'a Grid,
    run: &RunResult,
) -> Vec<&'a PlannedRun> {
    let is_of = |claim: &&Claim| claim.measure.is_timed() && claim.is_about(&run.task, &run.arm);
    let mut names: Vec<&String> = Vec::new();
    for claim in experiment.claims.iter().filter(is_of) {
        for arm in std::iter::once(&claim.arm).chain(&claim.against) {
            if !names.contains(&arm) {
                names.push(arm);
            }
        }
    }
    let planned = |arm: &String| {
        let is_planned = |planned: &&PlannedRun| {
            planned.task == run.task && planned.arm == *arm && planned.recipe.seed == run.seed
        };
        grid.runs.iter().find(is_planned)
    };
    names.into_iter().filter_map(planned).collect()
}
