//! How long the runs of a grid will take here.

use super::grid::{Grid, Planned};
use crate::bench::training;
use crate::machine::cores;
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Steps that are timed.
const STEPS: u64 = 3;

/// How many times as fast a sample is evaluated as trained on: one pass of three.
const EVALUATION: f64 = 3.0;

/// Seconds of each task's runs together, in the grid's order: a few steps of each task are taken
/// here and now, with its first arm and at most as many workers as there are cores.
///
/// # Errors
/// When a step fails.
pub fn seconds(grid: &Grid) -> Result<Vec<f64>> {
    let mut rates: BTreeMap<&str, f64> = BTreeMap::new();
    let mut all = Vec::new();
    for task in &grid.tasks {
        let name = task.label.name.as_str();
        let mut sum = 0.0;
        for planned in grid.wanted().filter(|planned| planned.task == name) {
            let rate = match rates.get(name) {
                Some(rate) => *rate,
                None => rate(planned).with_context(|| format!("timing a step of {name}"))?,
            };
            rates.insert(name, rate);
            sum += samples(planned) / rate;
        }
        all.push(sum);
    }
    Ok(all)
}

/// Training samples per second over all ranks.
fn rate(planned: &Planned) -> Result<f64> {
    let mut recipe = planned.recipe.clone();
    recipe.workers = recipe.workers.min(cores());
    let threads = recipe.threads_per_worker(cores());
    Ok(training::measure(&recipe, threads, STEPS)?.samples_per_s)
}

/// What a run costs, in training samples: its evaluations too.
fn samples(planned: &Planned) -> f64 {
    let train = &planned.recipe.train;
    let [training, test] = planned.samples;
    let trained =
        planned.steps as f64 * (planned.recipe.workers * planned.recipe.local_batch()) as f64;
    let epochs = (trained / training.max(1) as f64).ceil();
    let evaluations = (epochs / train.evaluate_every.max(1) as f64).ceil().max(1.0);
    trained + evaluations * test as f64 / EVALUATION
}
