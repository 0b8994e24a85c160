//! Arms in figures, for programs.

use super::tables::{accuracy, best_accuracy, bits, bytes_per_step, top5_accuracy};
use super::tasks::{self, Arm, Task};
use super::words;
use crate::results::Results;
use crate::statistics::LEVEL;
use serde_json::{Value, json};

/// Of every arm of every task an object: its runs by outcome, means over the seeds that finished with
/// deviation and 95 % interval, the same on each link, and the accuracy against the baseline's.
pub fn rows(results: &Results) -> Vec<Value> {
    let tasks = tasks::tasks(results);
    tasks.iter().flat_map(|task| task.arms.iter().map(move |arm| row(task, arm))).collect()
}

fn row(task: &Task<'_>, arm: &Arm<'_>) -> Value {
    let target = task.target();
    let on_link = |word: &String| {
        let to_accuracy = target.as_ref().map(|target| {
            let reached = arm.reached(word, target);
            (target.accuracy, reached.seconds, reached.seeds, reached.all)
        });
        Some(json!({
            "link": word,
            "step_seconds": arm.on_link(word, |link| link.step_seconds)?,
            "exposed_seconds": arm.on_link(word, |link| link.exposed_seconds),
            "seconds": arm.on_link(word, |link| link.seconds),
            "to_accuracy": to_accuracy,
        }))
    };
    let against = task.against_baseline(arm, accuracy).zip(task.baseline());
    let against = against.map(|(comparison, baseline)| {
        let (own, other) = (&arm.label.label, &baseline.label.label);
        json!({
            "arm": other,
            "difference": comparison.difference(),
            "ends": comparison.p().and(comparison.ends(LEVEL / 2.0)),
            "p": comparison.p(),
            "words": comparison.in_words(own, other, words::points),
        })
    });
    json!({
        "task": task.label.label,
        "arm": arm.label.label,
        "names": arm.names(),
        "outcomes": words::counted(arm.runs.iter().map(|run| run.outcome.word())),
        "accuracy": arm.mean(accuracy).map(|mean| mean.within(0.0, 1.0)),
        "best_accuracy": arm.mean(best_accuracy).map(|mean| mean.within(0.0, 1.0)),
        "top5_accuracy": arm.mean(top5_accuracy).map(|mean| mean.within(0.0, 1.0)),
        "bits_per_parameter": arm.mean(bits),
        "bytes_per_step": arm.mean(bytes_per_step),
        "compression_ratio": arm.mean(|m| m.summary.compression_ratio()),
        "links": task.links.iter().filter_map(on_link).collect::<Vec<_>>(),
        "against_baseline": against,
    })
}
