//! The plots of replays.

use crate::plot::{Axis, Figure, Series, Style, say};
use anyhow::Result;

/// A line of a plot.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// What it is of.
    pub(super) name: String,
    /// Its points.
    pub(super) points: Vec<(f64, f64)>,
}

/// Accuracy against virtual time, on a logarithmic axis: links differ by orders of magnitude.
///
/// # Errors
/// When the plot cannot be drawn, which is ours to mend.
pub(super) fn accuracy(title: &str, lines: &[Line]) -> Result<String> {
    let top = values(lines, |(_, y)| y).fold(0.0, f64::max);
    draw(
        title,
        lines,
        Axis::time("virtual time", values(lines, |(x, _)| x)),
        Axis::between("accuracy on the test set", [0.0, top], say::percent),
    )
}

/// Time to an accuracy against bandwidth in bits per second, both logarithmic.
///
/// # Errors
/// As [`accuracy`].
pub(super) fn time_to_accuracy(title: &str, lines: &[Line]) -> Result<String> {
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
        let svg = accuracy("time & accuracy", &lines).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for i in 0..8 {
            assert!(svg.contains(&format!("link {i} &lt;&amp;&gt;")), "{svg}");
        }
        assert!(svg.contains("50 %") && svg.contains("10 s") && svg.contains("accuracy on"));
        assert!(svg.matches("<polyline").count() >= 16);
        let svg = time_to_accuracy("t", &[line("a", 1e8), line("b", 1e9)]).unwrap();
        assert!(svg.contains("1 Gbit/s") && svg.contains("500 ms"), "{svg}");
    }

    #[test]
    fn nothing_to_draw_is_an_empty_plot() {
        assert!(accuracy("nothing", &[]).unwrap().contains("nothing"));
        let none = Line { name: "none".into(), points: vec![] };
        assert!(time_to_accuracy("nothing", &[none]).unwrap().contains("bandwidth"));
    }
}
