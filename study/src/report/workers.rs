//! Plots against the number of workers.

use super::document::Plot;
use super::figures::{BANDS, capital, plot};
use super::tasks::Task;
use crate::measured::Measured;
use crate::plot::{Axis, Figure, Format, Series};
use crate::statistics::SeedMean;
use gradwire::text;

/// Where a figure of a run is read.
type Of = fn(&Measured) -> Option<f64>;

/// What is shown: its name, its title, where it is read, and how it is written.
const SHOWN: [(&str, &str, Of, Format); 4] = [
    ("union", "elements in the union of all supports", |m| m.gauge("union"), text::count),
    (
        "union-ratio",
        "union over what one rank keeps",
        |m| m.gauge("union_ratio"),
        text::three_digits,
    ),
    (
        "server-bytes",
        "bytes the union costs a server in a step",
        |m| m.gauge("server_bytes"),
        text::bytes,
    ),
    ("downlink", "bytes sent back to all ranks in a step", |m| m.downlink_bytes, text::bytes),
];

/// What grows with the number of workers, where tasks differ in nothing else: unions of supports
/// and what a server sends back.
pub(super) fn by_workers(tasks: &[Task<'_>]) -> Vec<Plot> {
    let first = |task: &Task<'_>| {
        let measured = task.arms.iter().flat_map(|arm| &arm.runs).find_map(|r| r.measured.as_ref());
        measured.map(|m| (m.model.clone(), m.dataset.clone()))
    };
    let kinds = super::words::counted(tasks.iter().filter_map(first));
    let mut plots = Vec::new();
    for (kind, _) in kinds {
        let alike: Vec<&Task<'_>> =
            tasks.iter().filter(|task| first(task).as_ref() == Some(&kind)).collect();
        for (name, title, figure, format) in SHOWN {
            let series = workers_series(&alike, figure);
            if series.iter().all(|series| series.points.len() < 2) {
                continue;
            }
            let values = |of: fn(&(f64, f64)) -> f64| -> Vec<f64> {
                series.iter().flat_map(|s| s.points.iter().map(of)).chain([0.0]).collect()
            };
            let x = Axis::counts("workers", values(|p| p.0).into_iter().filter(|n| *n > 0.0));
            let y = Axis::linear(title, values(|p| p.1), format);
            let figure = Figure::new(capital(&format!("{title}, against workers")), x, y, series);
            let (model, dataset) = &kind;
            let caption = format!("{model} on {dataset}. {BANDS}");
            let (task, name) = (format!("{model}-{dataset}"), format!("workers-{name}"));
            plots.push(plot(&task, &name, caption, &figure));
        }
    }
    plots
}

/// A line for each arm over tasks that differ in their number of workers.
fn workers_series(tasks: &[&Task<'_>], of: impl Fn(&Measured) -> Option<f64>) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for arm in tasks.iter().flat_map(|task| &task.arms) {
        let Some(SeedMean { mean, deviation, .. }) = arm.mean(&of) else { continue };
        let Some((_, measured)) = arm.finished().next() else { continue };
        let at = measured.workers as f64;
        let place = series.iter().position(|line| line.name == arm.label.label);
        let place = place.unwrap_or_else(|| {
            series.push(Series::line(&arm.label.label, arm.style, Vec::new()));
            series.len() - 1
        });
        series[place].points.push((at, mean));
        series[place].band.extend(deviation.map(|by| [at, mean - by, mean + by]));
    }
    for line in &mut series {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        line.band.sort_by(|a, b| a[0].total_cmp(&b[0]));
    }
    series
}
