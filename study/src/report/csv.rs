//! Figures for spreadsheets: one line for each run, and one for each arm of each task.

use super::tables::{Reader, accuracy, best_accuracy, bits, bytes_per_step, top5_accuracy};
use super::tasks::{Arm, Task};
use crate::measured::OnLink;
use crate::results::{Results, RunResult};
use crate::sheet::sheet;
use anyhow::Result;

/// The figures of a run: each with its column, and where it is read.
const FIGURES: [(&str, Reader); 15] = [
    ("accuracy", accuracy),
    ("best_accuracy", best_accuracy),
    ("top5_accuracy", top5_accuracy),
    ("training_loss", |m| m.summary.train_loss),
    ("test_loss", |m| m.summary.test_loss),
    ("bits_per_parameter", bits),
    ("compression_ratio", |m| m.summary.compression_ratio()),
    ("bytes_per_rank_and_step", bytes_per_step),
    ("downlink_bytes_per_step", |m| m.downlink_bytes),
    ("local_bytes_per_step", |m| m.local_bytes),
    ("compute_seconds", |m| Some(m.work.compute)),
    ("encode_seconds", |m| Some(m.work.encode)),
    ("decode_seconds", |m| Some(m.work.decode)),
    ("kept_ratio", |m| m.gauge("kept_ratio")),
    ("wall_seconds", |m| Some(m.summary.seconds)),
];

/// Where a figure of a run on a link is read.
type LinkReader = fn(&OnLink) -> f64;

/// The figures of a run on a link: each with how its columns begin, and where it is read.
const ON_LINK: [(&str, LinkReader); 3] = [
    ("step_seconds", |link| link.step_seconds),
    ("exposed_seconds", |link| link.exposed_seconds),
    ("seconds", |link| link.seconds),
];

/// A line for each run, those that did not finish as far as they went.
pub(super) fn runs(results: &Results) -> Result<String> {
    let mut head = columns([
        "task", "arm", "seed", "outcome", "error", "folder", "name", "settings", "workers", "steps",
    ]);
    head.extend(FIGURES.iter().map(|(name, _)| name.to_string()));
    for link in &results.links {
        head.extend(ON_LINK.map(|(name, _)| format!("{name}_{link}")));
    }
    let row = |run: &RunResult| {
        let measured = run.measured.as_ref();
        let figures = FIGURES.iter().map(|(_, of)| measured.and_then(of));
        let on_links = results.links.iter().flat_map(|word| {
            let link = measured.and_then(|m| m.link(word));
            ON_LINK.map(|(_, of)| link.map(of))
        });
        let figures: Vec<_> = figures.chain(on_links).map(finite).collect();
        (
            (run.task.clone(), run.arm.clone(), run.seed),
            (run.outcome.word(), run.outcome.error().map(String::from)),
            run.folder.display().to_string(),
            measured.and_then(|m| m.name.clone()),
            measured.map(|m| m.settings.clone()),
            measured.map(|m| m.workers),
            measured.map(|m| m.summary.step),
            figures,
        )
    };
    sheet(head, results.runs.iter().map(row))
}

/// A line for each value of each run's curves, whatever became of the run: `loss` is the training loss as
/// it was recorded, `accuracy` and `test_loss` are those of evaluations, `bytes` is what one rank had sent
/// by then, `seconds_<link>` the virtual time; the other names are those of gauges.
pub(super) fn curves(results: &Results) -> Result<String> {
    let head = columns(["run", "task", "arm", "seed", "step", "name", "value"]);
    let of = |run: &RunResult| {
        let mut values: Vec<(u64, String, Option<f64>)> = Vec::new();
        if let Some(measured) = &run.measured {
            for (place, point) in measured.losses.iter().enumerate() {
                values.push((point.step, "loss".into(), Some(point.loss)));
                values.push((point.step, "bytes".into(), Some(point.bytes)));
                values.extend(measured.links.iter().map(|link| {
                    let name = format!("seconds_{}", link.link);
                    (point.step, name, link.at_losses.get(place).copied())
                }));
            }
            for point in &measured.evaluations {
                values.push((point.step, "accuracy".into(), Some(point.accuracy)));
                values.push((point.step, "test_loss".into(), point.loss));
            }
            for (name, points) in &measured.gauges {
                values.extend(points.iter().map(|(at, value)| (*at, name.clone(), Some(*value))));
            }
        }
        let folder = run.folder.display().to_string();
        let run = (folder, run.task.clone(), run.arm.clone(), run.seed);
        let known = values.into_iter().filter_map(|(step, name, value)| {
            let value = finite(value)?;
            Some((step, name, value))
        });
        known.map(move |value| (run.clone(), value))
    };
    sheet(head, results.runs.iter().flat_map(of))
}

/// A line for each arm of each task: means, deviations and numbers of seeds.
pub(super) fn arms(tasks: &[Task<'_>]) -> Result<String> {
    let mut head = columns(["task", "arm", "runs", "finished", "diverged"]);
    for (name, _) in FIGURES {
        head.extend(["mean", "deviation"].map(|of| format!("{name}_{of}")));
    }
    head.extend(columns(["accuracy_low", "accuracy_high", "accuracy_p"]));
    let row = |task: &Task<'_>, arm: &Arm<'_>| {
        let diverged = arm.runs.iter().filter(|run| run.outcome.word() == "diverged").count();
        let figures = FIGURES.iter().flat_map(|(_, of)| {
            let over = arm.mean(of);
            [over.map(|over| over.mean), over.and_then(|over| over.deviation)]
        });
        let ends = arm.mean(accuracy).and_then(|over| over.ends);
        let p = task.against_baseline(arm, accuracy).and_then(|c| c.p());
        let chance = [ends.map(|ends| ends[0]), ends.map(|ends| ends[1]), p];
        let figures: Vec<_> = figures.chain(chance).map(finite).collect();
        let names = (task.label.name.clone(), arm.label.name.clone());
        (names, arm.runs.len(), arm.finished().count(), diverged, figures)
    };
    let rows = tasks.iter().flat_map(|task| task.arms.iter().map(move |arm| row(task, arm)));
    sheet(head, rows)
}

fn columns<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(String::from).into()
}

/// A number, or nothing where there is none.
fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::super::tasks;
    use super::super::tests::results;
    use super::*;
    use crate::results::RunStatus;

    fn read(text: &str) -> impl Fn(usize, &str) -> String + use<> {
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let head = reader.headers().unwrap().clone();
        let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        move |row, title| rows[row][head.iter().position(|h| h == title).unwrap()].to_string()
    }

    #[test]
    fn every_cell_stays_in_its_column() {
        let mut results = results();
        let evil = "a,b\n\"c\"";
        results.runs[5].outcome = RunStatus::Diverged { error: evil.into() };
        results.runs[0].measured.as_mut().unwrap().summary.train_loss = Some(f64::NAN);
        let cell = read(&runs(&results).unwrap());
        assert_eq!(cell(5, "error"), evil);
        assert_eq!(
            (cell(0, "training_loss"), cell(0, "accuracy")),
            (String::new(), "0.901".into())
        );
        assert_eq!(
            (cell(6, "outcome"), cell(6, "step_seconds_1gbit")),
            ("missing".into(), String::new())
        );
        let cell = read(&arms(&tasks::tasks(&results)).unwrap());
        assert_eq!([cell(1, "finished"), cell(1, "diverged")], ["2", "1"]);
        // Both pairs differ by the same, which tells nothing of chance.
        assert_eq!(cell(1, "accuracy_p"), "");
        assert_eq!(cell(2, "accuracy_mean"), "");
    }
}
