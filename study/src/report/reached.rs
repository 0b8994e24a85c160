//! The seconds in which runs came to a test accuracy: of their own steps and evaluations, by the clock.

use super::digest;
use super::terminal::columns;
use super::words;
use crate::measured::Measured;
use crate::plot::say;
use crate::results::Results;
use crate::statistics::Moments;
use serde::Serialize;

/// How an arm's runs came to a test accuracy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reached {
    /// What was trained.
    pub task: String,
    /// What it was trained with.
    pub arm: String,
    /// The test accuracy that was to be reached, as a fraction.
    pub target: f64,
    /// The seeds of the runs that ended.
    pub seeds: Vec<u64>,
    /// The test accuracy at the end of each, as a fraction.
    pub accuracies: Vec<f64>,
    /// Seconds of steps and evaluations until the first evaluation that found the target; absent for a
    /// run that never did.
    pub seconds: Vec<Option<f64>>,
    /// Seconds of all steps and evaluations of each run.
    pub all_seconds: Vec<f64>,
    /// Bytes that one rank of each run sent.
    pub bytes: Vec<f64>,
}

/// How the finished runs of each arm came to `target`.
pub fn reached(results: &Results, target: f64) -> Vec<Reached> {
    let mut all = Vec::new();
    for task in &digest::tasks(results) {
        for arm in &task.arms {
            let runs: Vec<_> = arm.finished().collect();
            let first = |measured: &Measured| -> Option<f64> {
                let at = measured.reaches_accuracy(target)?;
                measured.evaluations.get(at)?.seconds
            };
            let whole = |measured: &Measured| {
                measured.summary.step_seconds + measured.summary.evaluation_seconds
            };
            all.push(Reached {
                task: task.label.label.clone(),
                arm: arm.label.label.clone(),
                target,
                seeds: runs.iter().map(|(run, _)| run.seed).collect(),
                accuracies: runs
                    .iter()
                    .map(|(_, m)| m.summary.test_accuracy.unwrap_or(f64::NAN))
                    .collect(),
                seconds: runs.iter().map(|(_, m)| first(m)).collect(),
                all_seconds: runs.iter().map(|(_, m)| whole(m)).collect(),
                bytes: runs.iter().map(|(_, m)| m.sent).collect(),
            });
        }
    }
    all
}

/// The same as a table for each task, of at most 80 columns.
pub fn reached_in_words(all: &[Reached]) -> String {
    let mut text = String::new();
    for task in all.chunk_by(|a, b| a.task == b.task) {
        let Some(Reached { task: label, target, .. }) = task.first() else { continue };
        text += &format!("\n{label}, to a test accuracy of {}\n", say::percent(*target));
        let titles = ["arm", "seeds", "accuracy", "reached", "time to it", "whole run", "bytes"];
        let mut rows = vec![titles.map(String::from).to_vec()];
        rows.extend(task.iter().map(row));
        text += &columns(&rows);
    }
    text
}

fn row(reached: &Reached) -> Vec<String> {
    let none = || "–".to_string();
    let accuracy = Moments::of(&reached.accuracies);
    let accuracy = if accuracy.count == 0 { none() } else { words::accuracy(&accuracy) };
    let time = |seconds: &[f64]| {
        let Moments { mean, deviation, count } = Moments::of(seconds);
        match count {
            0 => none(),
            1 => say::duration(mean),
            _ => say::duration_about(mean, deviation),
        }
    };
    let known: Vec<f64> = reached.seconds.iter().copied().flatten().collect();
    let bytes = Moments::of(&reached.bytes);
    vec![
        reached.arm.clone(),
        reached.seeds.len().to_string(),
        accuracy,
        format!("{} of {}", known.len(), reached.seeds.len()),
        time(&known),
        time(&reached.all_seconds),
        if bytes.count == 0 { none() } else { say::bytes(bytes.mean) },
    ]
}

#[cfg(test)]
mod tests {
    use super::super::digest::tests::results;
    use super::*;

    #[test]
    fn the_first_evaluation_that_found_the_target_is_timed() {
        let mut results = results();
        results.runs.retain(|run| run.arm == results.arms[0].name);
        for run in &mut results.runs {
            let Some(measured) = &mut run.measured else { continue };
            let mut seconds = 0.0;
            for evaluation in &mut measured.evaluations {
                seconds += 10.0 * run.seed as f64;
                evaluation.seconds = Some(seconds);
            }
        }
        let accuracies = |run: usize| -> Vec<f64> {
            let measured = results.runs[run].measured.as_ref().unwrap();
            measured.evaluations.iter().map(|evaluation| evaluation.accuracy).collect()
        };
        // What only the last evaluation of the first run found.
        let target = *accuracies(0).last().unwrap();
        let place = |run: usize| accuracies(run).iter().position(|found| *found >= target);
        let all = reached(&results, target);
        assert_eq!(all.len(), 1);
        assert!(all[0].seeds.len() > 1);
        for (run, seconds) in all[0].seconds.iter().enumerate() {
            let seed = all[0].seeds[run] as f64;
            let expected = place(run).map(|place| 10.0 * seed * (place + 1) as f64);
            assert_eq!(*seconds, expected, "run {run}");
        }
        assert!(all[0].seconds[0].is_some());
        let never = reached(&results, 1.1);
        assert!(never[0].seconds.iter().all(Option::is_none));
        let text = reached_in_words(&never);
        let of = format!("0 of {}", never[0].seeds.len());
        assert!(text.contains(&of) && text.contains('–'), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
