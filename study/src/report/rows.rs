//! An arm on a task in figures, for programs.

use super::digest::{self, Arm, Over, Task};
use super::tables::{accuracy, best_accuracy, bits, bytes_per_step};
use super::words;
use crate::results::Results;
use crate::statistics::Comparison;
use serde::Serialize;

/// An arm on a task.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The task.
    pub task: String,
    /// The arm.
    pub arm: String,
    /// What those of its runs are called that have a name.
    pub names: Vec<String>,
    /// Its runs: how many there are of each outcome.
    pub outcomes: Vec<(&'static str, usize)>,
    /// Fraction of right answers on the test set, after the last step.
    pub accuracy: Option<Figure>,
    /// The best of the run.
    pub best_accuracy: Option<Figure>,
    /// Bits that one rank sent for each parameter and step.
    pub bits_per_parameter: Option<Figure>,
    /// Bytes that one rank sent in a step.
    pub bytes_per_step: Option<Figure>,
    /// Bytes sent over bytes of dense fp32.
    pub compression_ratio: Option<Figure>,
    /// On each link.
    pub links: Vec<OnLink>,
    /// The accuracy against the baseline's; absent for the baseline.
    pub against_baseline: Option<Against>,
}

/// A mean over the seeds that finished.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figure {
    /// The mean.
    pub mean: f64,
    /// The sample deviation; absent for one seed.
    pub deviation: Option<f64>,
    /// Both ends of the 95 % confidence interval; absent for one seed.
    pub ends: Option<[f64; 2]>,
    /// Seeds.
    pub seeds: usize,
}

/// Times on a link.
#[derive(Clone, Debug, Serialize)]
pub struct OnLink {
    /// The link's word.
    pub link: String,
    /// Seconds of a step.
    pub step_seconds: Figure,
    /// Seconds of a step that the link cost.
    pub exposed_seconds: Option<Figure>,
    /// Seconds of all steps.
    pub seconds: Option<Figure>,
    /// An accuracy, the mean seconds to it, how many seeds reached it, and of how many.
    pub to_accuracy: Option<(f64, Option<f64>, usize, usize)>,
}

/// A comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Against {
    /// With which arm.
    pub arm: String,
    /// Mean less mean.
    pub difference: f64,
    /// Both ends of its 95 % confidence interval.
    pub ends: Option<[f64; 2]>,
    /// Welch's p.
    pub p: Option<f64>,
    /// What can be said.
    pub words: String,
}

impl From<Over> for Figure {
    fn from(over: Over) -> Self {
        let deviation = (over.moments.count > 1).then_some(over.moments.deviation);
        let interval = over.interval;
        Self { mean: interval.mean, deviation, ends: interval.ends, seeds: interval.seeds }
    }
}

/// Every arm of every task.
pub fn rows(results: &Results) -> Vec<Row> {
    let tasks = digest::tasks(results);
    tasks.iter().flat_map(|task| task.arms.iter().map(move |arm| row(task, arm))).collect()
}

fn row(task: &Task<'_>, arm: &Arm<'_>) -> Row {
    let target = task.target();
    let on_link = |word: &String| {
        let seconds = arm.on_link(word, |link| link.step_seconds)?;
        let to = |target: &digest::Target| {
            let reached = arm.reached(word, target);
            (target.accuracy, reached.seconds, reached.seeds, reached.of)
        };
        Some(OnLink {
            link: word.clone(),
            step_seconds: seconds.into(),
            exposed_seconds: arm.on_link(word, |link| link.exposed_seconds).map(Figure::from),
            seconds: arm.on_link(word, |link| link.seconds).map(Figure::from),
            to_accuracy: target.as_ref().map(to),
        })
    };
    let against = |comparison: Comparison| {
        let baseline = task.baseline()?.label.label.clone();
        let words = comparison.in_words(&arm.label.label, &baseline, words::points);
        let Comparison { difference, ends, p, .. } = comparison;
        Some(Against { arm: baseline, difference, ends, p, words })
    };
    Row {
        task: task.label.label.clone(),
        arm: arm.label.label.clone(),
        names: words::names(arm),
        outcomes: words::counted(arm.runs.iter().map(|run| run.outcome.word())),
        accuracy: arm.over(accuracy).map(Figure::from),
        best_accuracy: arm.over(best_accuracy).map(Figure::from),
        bits_per_parameter: arm.over(bits).map(Figure::from),
        bytes_per_step: arm.over(bytes_per_step).map(Figure::from),
        compression_ratio: arm.over(|m| m.summary.compression_ratio()).map(Figure::from),
        links: task.links.iter().filter_map(on_link).collect(),
        against_baseline: task.against_baseline(arm, accuracy).and_then(against),
    }
}

#[cfg(test)]
mod tests {
    use super::super::digest::tests::results;
    use super::*;

    #[test]
    fn a_row_has_what_the_table_has() {
        let rows = rows(&results());
        assert_eq!(rows.len(), 3);
        let topk = &rows[1];
        assert_eq!(topk.outcomes, [("finished", 2), ("diverged", 1)]);
        assert_eq!(topk.accuracy.unwrap().seeds, 2);
        assert_eq!(topk.links.len(), 2);
        let (accuracy, seconds, seeds, of) = topk.links[0].to_accuracy.unwrap();
        assert!(accuracy == 0.86 && seconds.is_some() && (seeds, of) == (2, 2));
        assert!(topk.against_baseline.as_ref().unwrap().words.contains("hardly chance"));
        assert!(rows[0].against_baseline.is_none() && rows[2].accuracy.is_none());
        assert!(serde_json::to_string(&rows).unwrap().contains(r#""outcomes":[["finished",3]]"#));
    }
}
