//! How long the runs of a grid that are still to be made will take here.

use crate::bench::training;
use crate::experiment::Choice;
use crate::grid::PlannedRun;
use anyhow::{Context, Result};
use gradwire::machine::cores;
use gradwire::train::views;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Steps that are timed.
const STEPS: u64 = 3;

/// How many times as fast a sample is evaluated as trained on: one pass of three, but in batches that
/// caches hold less well. The runs in `docs/results` have 1 (ResNet-20 with 16 workers) to 4.9 (VGG-16),
/// and this in the middle.
const EVALUATION: f64 = 2.4;

/// Seconds of each task's share of `runs`, in the order of `tasks`: a few steps of each arm that has
/// one are taken here and now, as its first run takes them once it compresses.
///
/// # Errors
/// When a step fails.
pub fn seconds(tasks: &[Choice], runs: &[&PlannedRun]) -> Result<Vec<f64>> {
    let seconds = |task: &Choice| {
        let mut rates: BTreeMap<&str, f64> = BTreeMap::new();
        let mut sum = 0.0;
        for planned in runs.iter().filter(|planned| planned.task == task.label.name) {
            let rate = match rates.entry(&planned.arm) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(first) => *first.insert(rate(planned).with_context(|| {
                    format!("timing a step of {} with {}", planned.task, planned.arm)
                })?),
            };
            sum += samples(planned) / rate;
        }
        Ok(sum)
    };
    tasks.iter().map(seconds).collect()
}

/// Training samples per second over all ranks.
fn rate(planned: &PlannedRun) -> Result<f64> {
    let mut recipe = planned.recipe.clone();
    recipe.policy.warmup_steps = Some(0);
    let threads = recipe.threads_per_worker(cores());
    Ok(training::measure(&recipe, threads, STEPS, Some(planned.sample))?.samples_per_s)
}

/// What a run costs, in training samples: its evaluations too.
fn samples(planned: &PlannedRun) -> f64 {
    let train = &planned.recipe.train;
    let [training, test] = planned.samples;
    let global = (planned.recipe.workers * planned.recipe.local_batch()).max(1) as u64;
    let epochs = planned.steps.div_ceil((training as u64).div_ceil(global).max(1));
    let evaluations = epochs.div_ceil(train.evaluate_every.max(1)).max(1);
    let views = views::count(train.test_views);
    (planned.steps * global) as f64 + (evaluations * (test * views) as u64) as f64 / EVALUATION
}
