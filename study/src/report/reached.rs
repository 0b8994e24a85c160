//! The seconds in which runs came to a test accuracy: of their own steps and evaluations, by the clock.

use super::tasks::{self, Arm};
use super::terminal::{WIDEST, titled};
use super::words;
use crate::measured::Measured;
use crate::results::Results;
use crate::statistics::SeedMean;
use gradwire::text;
use serde::Serialize;

/// The finished runs of an arm on a task, and how they came to a test accuracy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reached {
    task: String,
    arm: String,
    target: f64,
    seeds: Vec<u64>,
    /// The test accuracy at the end of each, as a fraction.
    accuracies: Vec<f64>,
    /// Seconds of steps and evaluations until the first evaluation that found the target; absent for a
    /// run that never did.
    seconds: Vec<Option<f64>>,
    /// Seconds of all steps and evaluations of each.
    all_seconds: Vec<f64>,
    /// Bytes that one rank of each sent.
    bytes: Vec<f64>,
    /// Runs that diverged, failed or are missing: in none of the lists.
    unfinished: usize,
}

/// How the runs of each arm came to the test accuracy `target`.
pub fn reached(results: &Results, target: f64) -> Vec<Reached> {
    let tasks = tasks::tasks(results);
    let of_arm = |task: &str, arm: &Arm<'_>| {
        let runs: Vec<&Measured> = arm.finished().map(|(_, measured)| measured).collect();
        let first = |run: &Measured| {
            run.evaluations.get(run.reaches_accuracy(target)?).and_then(|found| found.seconds)
        };
        let each = |figure: fn(&Measured) -> f64| runs.iter().map(|run| figure(run)).collect();
        Reached {
            task: task.into(),
            arm: arm.label.label.clone(),
            target,
            seeds: runs.iter().map(|run| run.seed).collect(),
            accuracies: each(|run| run.summary.test_accuracy.unwrap_or(f64::NAN)),
            seconds: runs.iter().map(|run| first(run)).collect(),
            all_seconds: each(|run| run.summary.step_seconds + run.summary.evaluation_seconds),
            bytes: each(|run| run.sent),
            unfinished: arm.runs.len() - runs.len(),
        }
    };
    let arms = tasks.iter().flat_map(|task| task.arms.iter().map(|arm| (&task.label.label, arm)));
    arms.map(|(task, arm)| of_arm(task, arm)).collect()
}

/// The same as a table for each task, of at most 80 columns.
pub fn reached_in_words(all: &[Reached]) -> String {
    let mut text = String::new();
    for task in all.chunk_by(|a, b| a.task == b.task) {
        let Reached { task: label, target, .. } = &task[0];
        text += &format!("\n{label}, to a test accuracy of {}\n", text::percent(*target));
        let titles = ["arm", "seeds", "accuracy", "reached", "time to it", "whole run", "bytes"];
        let mut table = titled(titles.map(String::from));
        task.iter().for_each(|reached| table.row(row(reached)));
        text += &table.fit(WIDEST);
    }
    text
}

fn row(reached: &Reached) -> [String; 7] {
    let mean = |values: &[f64], format: fn(&SeedMean) -> String| {
        words::or_none(SeedMean::new(values).as_ref().map(format))
    };
    let known: Vec<f64> = reached.seconds.iter().copied().flatten().collect();
    let all = reached.seeds.len() + reached.unfinished;
    // Of those that were fast enough alone it would be no time of the arm.
    let times = if known.len() == all { known.as_slice() } else { &[] };
    [
        reached.arm.clone(),
        all.to_string(),
        mean(&reached.accuracies, words::accuracy),
        format!("{} of {all}", known.len()),
        mean(times, words::duration),
        mean(&reached.all_seconds, words::duration),
        mean(&reached.bytes, |bytes| text::bytes(bytes.mean)),
    ]
}
