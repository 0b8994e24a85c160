//! Plots against the number of workers.

use super::digest::Task;
use super::document::Plot;
use super::figures::{BANDS, capital, plot};
use crate::measured::Measured;
use crate::plot::{Axis, Figure, Say, Series, say};
use crate::statistics::Moments;
use anyhow::Result;

/// Where a figure of a run is read.
type Of = fn(&Measured) -> Option<f64>;

/// What is shown: its name, its title, where it is read, and how it is said.
const SHOWN: [(&str, &str, Of, Say); 4] = [
    ("union", "elements in the union of all supports", |m| m.gauge("union"), say::count),
    (
        "union-ratio",
        "union over what one rank keeps",
        |m| m.gauge("union_ratio"),
        say::three_digits,
    ),
    (
        "server-bytes",
        "bytes the union costs a server in a step",
        |m| m.gauge("server_bytes"),
        say::bytes,
    ),
    ("downlink", "bytes sent back to all ranks in a step", |m| m.downlink_bytes, say::bytes),
];

/// What grows with the number of workers, where tasks differ in nothing else: unions of supports
/// and what a server sends back.
///
/// # Errors
/// When one cannot be drawn, which is ours to mend.
pub(super) fn by_workers(tasks: &[Task<'_>]) -> Result<Vec<Plot>> {
    let first = |task: &Task<'_>| {
        let measured = task.arms.iter().flat_map(|arm| &arm.runs).find_map(|r| r.measured.as_ref());
        measured.map(|m| (m.model.clone(), m.dataset.clone()))
    };
    let kinds = super::words::counted(tasks.iter().filter_map(first));
    let mut plots = Vec::new();
    for (kind, _) in kinds {
        let alike: Vec<&Task<'_>> =
            tasks.iter().filter(|task| first(task).as_ref() == Some(&kind)).collect();
        for (name, title, of, say) in SHOWN {
            let series = workers_series(&alike, of);
            let many = series.iter().any(|series| series.points.len() > 1);
            if !many {
                continue;
            }
            let values = |of: fn(&(f64, f64)) -> f64| -> Vec<f64> {
                series.iter().flat_map(|s| s.points.iter().map(of)).chain([0.0]).collect()
            };
            let figure = Figure {
                title: capital(&format!("{title}, against workers")),
                x: Axis::of_counts("workers", values(|p| p.0).into_iter().filter(|n| *n > 0.0)),
                y: Axis::linear(title, values(|p| p.1), say),
                guides: Vec::new(),
                series,
            };
            let (model, dataset) = &kind;
            let caption = format!("{model} on {dataset}. {BANDS}");
            let (task, name) = (format!("{model}-{dataset}"), format!("workers-{name}"));
            plots.push(plot(&task, &name, caption, &figure)?);
        }
    }
    Ok(plots)
}

/// A line for each arm over tasks that differ in their number of workers.
fn workers_series(tasks: &[&Task<'_>], of: impl Fn(&Measured) -> Option<f64>) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for arm in tasks.iter().flat_map(|task| &task.arms) {
        let Some(over) = arm.over(&of) else { continue };
        let Moments { mean, deviation, count } = over.moments;
        let Some((_, measured)) = arm.finished().next() else { continue };
        let at = measured.workers as f64;
        let place = series.iter().position(|line| line.name == arm.label.label);
        let place = place.unwrap_or_else(|| {
            series.push(Series::line(&arm.label.label, arm.style, Vec::new()));
            series.len() - 1
        });
        series[place].points.push((at, mean));
        if count > 1 {
            series[place].band.push([at, mean - deviation, mean + deviation]);
        }
    }
    for line in &mut series {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        line.band.sort_by(|a, b| a[0].total_cmp(&b[0]));
    }
    series
}

#[cfg(test)]
mod tests {
    use super::super::digest::{self, tests::results};
    use super::*;
    use crate::results::Results;

    #[test]
    fn workers_are_compared_where_tasks_differ_in_them_alone() {
        let mut results = results();
        results.tasks[1].name = "text-8".into();
        for mut run in results.runs.clone() {
            run.task = "text-8".into();
            if let Some(measured) = &mut run.measured {
                measured.workers = 8;
            }
            results.runs.push(run);
        }
        for measured in results.runs.iter_mut().filter_map(|run| run.measured.as_mut()) {
            measured.downlink_bytes = Some(1e6 * measured.workers as f64);
        }
        let plots = by_workers(&digest::tasks(&results)).unwrap();
        assert_eq!(plots.len(), 1);
        assert_eq!(plots[0].name, "textcnn-synthetic-workers-downlink");
        assert!(plots[0].svg.contains("8 MB"));
    }

    #[test]
    fn nothing_measured_is_nothing_drawn() {
        let mut results = results();
        for run in &mut results.runs {
            run.measured = None;
        }
        assert!(by_workers(&digest::tasks(&results)).unwrap().is_empty());
        assert!(by_workers(&digest::tasks(&Results::default())).unwrap().is_empty());
    }
}
