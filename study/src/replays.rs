//! Replays on other networks in words, as a table for programs, and as plots.

use crate::network::report::{Figures, Line, Report};
use crate::plot::say::{duration, percent};
use crate::plot::{Axis, Figure, Series, Style, say};
use anyhow::Result;
use gradwire::record::network::Meter;
use std::fmt::Write;

/// The table for the terminal.
pub fn table(report: &Report<'_>) -> String {
    let figures = report.figures();
    let width = report.links.iter().map(|(word, _)| word.chars().count()).max().unwrap_or(0);
    let width = width.max(9);
    let mut text = String::new();
    for (run, rows) in report.runs.iter().zip(figures.chunks(report.links.len().max(1))) {
        let Some(first) = rows.first() else { continue };
        let _ = writeln!(
            text,
            "{}: {}, {} ranks, {} steps, {}\ncomputing: {}",
            first.run,
            first.scheme,
            first.ranks,
            first.steps,
            first.pattern,
            measured_by(run.header.clock),
        );
        let _ =
            write!(text, "{:<width$} {:>10} {:>10} {:>6}", "link", "per step", "exposed", "share");
        for target in &report.targets {
            let _ = write!(text, " {:>10}", format!("to {}", percent(*target)));
        }
        let _ = writeln!(text, " {:>10}", "all steps");
        for row in rows {
            let share = match row.step_seconds > 0.0 {
                true => row.exposed_seconds / row.step_seconds,
                false => 0.0,
            };
            let _ = write!(
                text,
                "{:<width$} {:>10} {:>10} {:>6}",
                row.link,
                duration(row.step_seconds),
                duration(row.exposed_seconds),
                format!("{:.0} %", share * 100.0),
            );
            for (_, seconds) in &row.to_accuracy {
                let _ = write!(text, " {:>10}", seconds.map_or("never".into(), duration));
            }
            let _ = writeln!(text, " {:>10}", duration(row.total_seconds));
        }
        text.push('\n');
    }
    if report.runs.len() > 1
        && let Some(target) = report.targets.last()
    {
        compare(report, &figures, *target, &mut text);
    }
    text
}

/// Time to one accuracy, a column for each run.
fn compare(report: &Report<'_>, figures: &[Figures], target: f64, text: &mut String) {
    let _ = writeln!(text, "time to {} on the test set", percent(target));
    let names = report.names();
    let width = report.links.iter().map(|(word, _)| word.chars().count()).max().unwrap_or(4);
    let _ = write!(text, "{:<width$}", "link");
    for name in &names {
        let _ = write!(text, "  {name:>10}");
    }
    text.push('\n');
    for (link, (word, _)) in report.links.iter().enumerate() {
        let _ = write!(text, "{word:<width$}");
        for (run, name) in names.iter().enumerate() {
            let row = &figures[run * report.links.len() + link];
            let reached = row.to_accuracy.last().and_then(|(_, seconds)| *seconds);
            let words = reached.map_or("never".into(), duration);
            let _ = write!(text, "  {words:>0$}", name.chars().count().max(10));
        }
        text.push('\n');
    }
}

/// The figures as CSV.
pub fn csv(report: &Report<'_>) -> String {
    let mut text = String::from(
        "run,scheme,link,bandwidth,pattern,ranks,steps,step_seconds,exposed_seconds,\
         total_seconds,total_exposed_seconds",
    );
    for target in &report.targets {
        let _ = write!(text, ",seconds_to_{target}");
    }
    text.push('\n');
    for row in report.figures() {
        let _ = write!(
            text,
            "{},{},{},{},{},{},{},{},{},{},{}",
            quoted(&row.run),
            quoted(&row.scheme),
            quoted(&row.link),
            row.bandwidth,
            row.pattern,
            row.ranks,
            row.steps,
            row.step_seconds,
            row.exposed_seconds,
            row.total_seconds,
            row.total_exposed_seconds
        );
        for (_, seconds) in row.to_accuracy {
            let _ = write!(text, ",{}", seconds.map_or(String::new(), |s| s.to_string()));
        }
        text.push('\n');
    }
    text
}

/// Accuracy against virtual time, a line for each link; of the run of this number.
///
/// # Errors
/// When the plot cannot be drawn.
pub fn accuracy_plot(report: &Report<'_>, number: usize) -> Result<String> {
    let header = &report.runs[number].header;
    let title = format!("{}, {} ranks", header.scheme, header.ranks);
    draw_accuracy(&title, &report.accuracies(number))
}

/// Time to the highest of the accuracies against bandwidth, a line for each run; `None` when
/// there is nothing to compare.
///
/// # Errors
/// When the plot cannot be drawn.
pub fn comparison_plot(report: &Report<'_>) -> Result<Option<String>> {
    let Some(target) = report.targets.last().filter(|_| report.runs.len() > 1) else {
        return Ok(None);
    };
    let title = format!("time to {} on the test set", percent(*target));
    draw_time_to_accuracy(&title, &report.times_to(*target)).map(Some)
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn measured_by(meter: Meter) -> &'static str {
    match meter {
        Meter::Cpu => "each worker's own processor time",
        Meter::Wall => {
            "the time that passed, because workers have several threads or a device; encoding and \
             decoding by their thread's processor time"
        }
    }
}

/// Accuracy against virtual time, on a logarithmic axis: links differ by orders of magnitude.
///
/// # Errors
/// When the plot cannot be drawn, which is ours to mend.
fn draw_accuracy(title: &str, lines: &[Line]) -> Result<String> {
    let top = values(lines, |(_, y)| y).fold(0.0, f64::max);
    draw(
        title,
        lines,
        Axis::time("virtual time", values(lines, |(x, _)| x)),
        Axis::between("accuracy on the test set", [0.0, top], percent),
    )
}

/// Time to an accuracy against bandwidth in bits per second, both logarithmic.
///
/// # Errors
/// As [`draw_accuracy`].
fn draw_time_to_accuracy(title: &str, lines: &[Line]) -> Result<String> {
    draw(
        title,
        lines,
        Axis::logarithmic("bandwidth", values(lines, |(x, _)| x), say::bandwidth),
        Axis::time("virtual time", values(lines, |(_, y)| y)),
    )
}

fn values(lines: &[Line], of: fn((f64, f64)) -> f64) -> impl Iterator<Item = f64> {
    lines.iter().flat_map(|line| &line.points).map(move |point| of(*point))
}

fn draw(title: &str, lines: &[Line], x: Axis, y: Axis) -> Result<String> {
    let series = lines.iter().enumerate().map(|(number, line)| {
        Series::line(&line.name, Style::numbered(number), line.points.clone())
    });
    let series = series.collect();
    Figure { title: title.into(), x, y, series, guides: Vec::new() }.svg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_drawn_and_named() {
        let line = |name: &str, scale: f64| Line {
            name: name.into(),
            points: vec![(scale, 0.25), (10.0 * scale, 0.75)],
        };
        let lines: Vec<_> =
            (0..8).map(|i| line(&format!("link {i} <&>"), f64::from(i) + 1.0)).collect();
        let svg = draw_accuracy("time & accuracy", &lines).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for i in 0..8 {
            assert!(svg.contains(&format!("link {i} &lt;&amp;&gt;")), "{svg}");
        }
        assert!(svg.contains("50 %") && svg.contains("10 s") && svg.contains("accuracy on"));
        assert!(svg.matches("<polyline").count() >= 16);
        let svg = draw_time_to_accuracy("t", &[line("a", 1e8), line("b", 1e9)]).unwrap();
        assert!(svg.contains("1 Gbit/s") && svg.contains("500 ms"), "{svg}");
    }

    #[test]
    fn nothing_to_draw_is_an_empty_plot() {
        assert!(draw_accuracy("nothing", &[]).unwrap().contains("nothing"));
        let none = Line { name: "none".into(), points: vec![] };
        assert!(draw_time_to_accuracy("nothing", &[none]).unwrap().contains("bandwidth"));
    }
}
