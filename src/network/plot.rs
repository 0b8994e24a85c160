//! Plots as SVG: lines that can be told apart without colour, on a ground of their own, so that they
//! are read on a dark page as on a light one.

use anyhow::{Result, anyhow};
use plotters::chart::ChartContext;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;

/// A line of a plot.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// What it is of.
    pub(super) name: String,
    /// Its points.
    pub(super) points: Vec<(f64, f64)>,
}

/// The colours of Okabe & Ito 2008, told apart by all kinds of colour vision; their yellow, too
/// light for white ground, left out.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);
const SIZE: (u32, u32) = (900, 560);

/// An axis: what it shows, and where its labels are.
#[derive(Clone)]
struct Axis {
    title: &'static str,
    /// Both ends, as drawn.
    ends: [f64; 2],
    /// Places of labels, as drawn, and the labels.
    ticks: Vec<(f64, String)>,
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        let share = (value - self.ends[0]) / (self.ends[1] - self.ends[0]);
        low + (share * f64::from(high - low)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight().allow_light_points() {
            true => Vec::new(),
            false => self.ticks.iter().map(|(at, _)| *at).collect(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.ends[0]..self.ends[1]
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|(at, _)| (at - value).abs() < 1e-9);
        tick.map(|(_, label)| label.clone()).unwrap_or_default()
    }
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;
type Drawn = Result<(), Box<dyn Error>>;

/// Accuracy against virtual time, on a logarithmic axis: links differ by orders of magnitude.
///
/// # Errors
/// When the plot cannot be drawn, which is ours to mend.
pub(super) fn accuracy(title: &str, lines: &[Line]) -> Result<String> {
    let top = values(lines, |(_, y)| y).fold(0.0, f64::max);
    let step = if top > 0.5 { 0.1 } else { 0.05 };
    let ticks = (0..=20).map(|n| f64::from(n) * step).take_while(|y| *y <= top.max(step) * 1.04);
    let y = Axis {
        title: "accuracy on the test set",
        ends: [0.0, top.max(step) * 1.05],
        ticks: ticks.map(|y| (y, format!("{:.0} %", y * 100.0))).collect(),
    };
    let x = logarithmic("virtual time", values(lines, |(x, _)| x), duration);
    // Curves rise to the right.
    draw(title, lines, &x, &y, |p| (p.0.log10(), p.1), SeriesLabelPosition::LowerRight)
}

/// Time to an accuracy against bandwidth in bits per second, both logarithmic.
///
/// # Errors
/// As [`accuracy`].
pub(super) fn time_to_accuracy(title: &str, lines: &[Line]) -> Result<String> {
    let x = logarithmic("bandwidth", values(lines, |(x, _)| x), bandwidth);
    let y = logarithmic("virtual time", values(lines, |(_, y)| y), duration);
    // More bandwidth takes less time.
    let place = |p: (f64, f64)| (p.0.log10(), p.1.log10());
    draw(title, lines, &x, &y, place, SeriesLabelPosition::UpperRight)
}

fn values(lines: &[Line], of: fn((f64, f64)) -> f64) -> impl Iterator<Item = f64> {
    lines.iter().flat_map(|line| &line.points).map(move |point| of(*point))
}

/// An axis of powers of ten, and of twos and fives between them when there are few.
fn logarithmic(
    title: &'static str,
    values: impl Iterator<Item = f64>,
    say: fn(f64) -> String,
) -> Axis {
    let logs = values.filter(|value| *value > 0.0 && value.is_finite()).map(f64::log10);
    let [low, high] =
        logs.fold([f64::INFINITY, f64::NEG_INFINITY], |[a, b], v| [a.min(v), b.max(v)]);
    let [low, high] = if low <= high { [low - 0.06, high + 0.06] } else { [0.0, 1.0] };
    let within: &[f64] = if high - low < 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let decades = low.floor() as i32..=high.ceil() as i32;
    let ticks = decades.flat_map(|decade| within.iter().map(move |m| m * 10f64.powi(decade)));
    let ticks = ticks.map(|value| (value.log10(), say(value)));
    let ticks = ticks.filter(|(at, _)| (low..=high).contains(at)).collect();
    Axis { title, ends: [low, high], ticks }
}

fn draw(
    title: &str,
    lines: &[Line],
    x: &Axis,
    y: &Axis,
    place: fn((f64, f64)) -> (f64, f64),
    legend: SeriesLabelPosition,
) -> Result<String> {
    let mut svg = String::new();
    let backend = SVGBackend::with_string(&mut svg, SIZE);
    plot(backend, title, lines, [x, y], place, legend)
        .map_err(|error| anyhow!("drawing a plot: {error}"))?;
    Ok(svg)
}

fn plot(
    backend: SVGBackend<'_>,
    title: &str,
    lines: &[Line],
    [x, y]: [&Axis; 2],
    place: fn((f64, f64)) -> (f64, f64),
    legend: SeriesLabelPosition,
) -> Drawn {
    let text = |size: u32| ("sans-serif", size).into_font().color(&INK);
    let area = backend.into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .caption(title, text(19))
        .x_label_area_size(48)
        .y_label_area_size(84)
        .build_cartesian_2d(x.clone(), y.clone())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .label_style(text(14))
        .axis_desc_style(text(15))
        .x_desc(x.title)
        .y_desc(y.title)
        .draw()?;
    for (number, line) in lines.iter().enumerate() {
        let points: Vec<_> = line.points.iter().map(|point| place(*point)).collect();
        series(&mut chart, number, &line.name, &points)?;
    }
    chart
        .configure_series_labels()
        .label_font(text(14))
        .legend_area_size(40)
        .background_style(WHITE.mix(0.85))
        .border_style(GRID)
        .position(legend)
        .draw()?;
    area.present()?;
    Ok(())
}

/// Draws a line: its marks have a shape of their own beside its colour.
fn series<'a, 'b: 'a>(
    chart: &mut Chart<'a, 'b>,
    number: usize,
    name: &str,
    points: &[(f64, f64)],
) -> Drawn {
    let colour = COLOURS[number % COLOURS.len()];
    let (filled, open) = (ShapeStyle::from(colour).filled(), colour.stroke_width(2));
    macro_rules! line_with {
        ($mark:ident, $size:expr, $style:expr) => {{
            chart.draw_series(points.iter().map(|point| $mark::new(*point, $size, $style)))?;
            chart.draw_series(LineSeries::new(points.iter().copied(), open))?.label(name).legend(
                move |(x, y)| {
                    EmptyElement::at((x, y))
                        + PathElement::new(vec![(0, 0), (30, 0)], open)
                        + $mark::new((15, 0), $size, $style)
                },
            );
        }};
    }
    match number % 5 {
        0 => line_with!(Circle, 4, filled),
        1 => line_with!(TriangleMarker, 6, filled),
        2 => line_with!(Cross, 5, open),
        3 => line_with!(Circle, 5, open),
        _ => line_with!(TriangleMarker, 7, open),
    }
    Ok(())
}

/// Seconds as a person says them: `50 ms`, `2 s`, `5 min`, `3 h`, `2 d`.
pub(super) fn duration(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 1.0 => (s * 1e3, "ms"),
        s if s < 100.0 => (s, "s"),
        s if s < 6_000.0 => (s / 60.0, "min"),
        s if s < 172_800.0 => (s / 3_600.0, "h"),
        s => (s / 86_400.0, "d"),
    };
    format!("{} {unit}", three_digits(value))
}

/// Bits per second as a person says them: `100 Mbit/s`.
fn bandwidth(bits: f64) -> String {
    let (value, unit) = match bits {
        b if b < 1e6 => (b / 1e3, "kbit/s"),
        b if b < 1e9 => (b / 1e6, "Mbit/s"),
        b => (b / 1e9, "Gbit/s"),
    };
    format!("{} {unit}", three_digits(value))
}

/// Three digits that count: `0.05`, `1.67`, `33.3`, `833`.
fn three_digits(value: f64) -> String {
    let digits = match value.abs() {
        v if v < 0.1 => 3,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_said_shortly() {
        for (seconds, expected) in [
            (0.05, "50 ms"),
            (0.0004, "0.4 ms"),
            (2.0, "2 s"),
            (33.33, "33.3 s"),
            (100.0, "1.67 min"),
            (7200.0, "2 h"),
            (864_000.0, "10 d"),
        ] {
            assert_eq!(duration(seconds), expected);
        }
        assert_eq!([5e5, 1e8, 2.5e10].map(bandwidth), ["500 kbit/s", "100 Mbit/s", "25 Gbit/s"]);
    }

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
