//! How long the runs of a grid that are still to be made will take here.

use super::definition::Choice;
use super::grid::Planned;
use crate::bench::training;
use crate::machine::cores;
use anyhow::{Context, Result};

/// Steps that are timed.
const STEPS: u64 = 3;

/// How many times as fast a sample is evaluated as trained on: one pass of three.
const EVALUATION: f64 = 3.0;

/// Seconds of each task's share of `runs`, in the order of `tasks`: a few steps of each task that has
/// one are taken here and now, as its first run takes them, with at most as many workers as there are
/// cores.
///
/// # Errors
/// When a step fails.
pub fn seconds(tasks: &[Choice], runs: &[&Planned]) -> Result<Vec<f64>> {
    let seconds = |task: &Choice| {
        let name = &task.label.name;
        let of_task = runs.iter().copied().filter(|planned| planned.task == *name);
        let runs: Vec<&Planned> = of_task.collect();
        let Some(first) = runs.first() else { return Ok(0.0) };
        let rate = rate(first).with_context(|| format!("timing a step of {name}"))?;
        Ok(runs.iter().fold(0.0, |sum, planned| sum + samples(planned) / rate))
    };
    tasks.iter().map(seconds).collect()
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
