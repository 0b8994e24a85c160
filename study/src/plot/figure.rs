//! Plots of lines and points over two axes, their legend beside them.

use super::axis::{Axis, Frame};
use super::labels::{self, wrap};
use super::style::{Dash, Fill, INK, MUTED, Mark, Style};
use super::svg::{self, Anchor, Canvas, Pixel};
use super::{FONT, TITLE, WIDTH};

/// The least height of a plot, in pixels.
const HEIGHT: f64 = 460.0;
/// The height of a line of the legend, in pixels.
const ROW: f64 = 21.0;
/// Marks along a line that has more points.
const MARKS: usize = 8;
/// Characters in a line of the legend.
const LETTERS: usize = 26;

/// A plot.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What it shows.
    pub title: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// What is compared, in the order of the legend.
    pub series: Vec<Series>,
    /// Thin grey lines behind, each with its name; those of the same name have one place in the
    /// legend.
    pub guides: Vec<(String, Vec<(f64, f64)>)>,
}

/// One thing that is compared: points, perhaps joined by a line.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Colour, mark, dashes.
    pub style: Style,
    /// Its points, in order. Those that have no place on the axes are left out.
    pub points: Vec<(f64, f64)>,
    /// Whether they are joined.
    pub joined: bool,
    /// Around the line: x, least and most y.
    pub band: Vec<[f64; 3]>,
    /// Around points: x, least and most y.
    pub whiskers: Vec<[f64; 3]>,
    /// Lines for themselves, thin, each with a cross at its end: what stopped there.
    pub strays: Vec<Vec<(f64, f64)>>,
    /// What stands beside the last point, if there is room.
    pub label: Option<String>,
}

impl Series {
    /// Points joined by a line.
    pub fn line(name: &str, style: Style, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.into(),
            style,
            points,
            joined: true,
            band: Vec::new(),
            whiskers: Vec::new(),
            strays: Vec::new(),
            label: None,
        }
    }

    fn mark_radius(&self) -> f64 {
        if self.joined { 3.6 } else { 5.0 }
    }
}

impl Figure {
    /// A plot without guides.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis, series: Vec<Series>) -> Self {
        Self { title: title.into(), x, y, series, guides: Vec::new() }
    }

    /// Draws it.
    pub fn svg(&self) -> String {
        let names: Vec<Vec<String>> =
            self.series.iter().map(|series| wrap(&series.name, LETTERS, 2)).collect();
        let lines = names.iter().map(Vec::len).sum::<usize>() + self.guide_names().len();
        let height = HEIGHT.max(lines as f64 * ROW + 70.0);
        svg::svg(&self.title, WIDTH, height, |canvas| self.draw(canvas, &names, height))
    }

    fn guide_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.guides.iter().map(|(name, _)| name.as_str()).collect();
        names.dedup();
        names
    }

    fn draw(&self, canvas: &mut Canvas, names: &[Vec<String>], height: f64) {
        let guides = self.guide_names();
        let words = names.iter().flatten().map(String::as_str).chain(guides);
        let widest = words.map(|word| svg::width(word, FONT)).fold(0.0, f64::max);
        let legend = WIDTH - if widest > 0.0 { widest + 48.0 } else { 12.0 };
        let frame = Frame { left: 90.0, top: 40.0, right: legend - 16.0, bottom: height - 60.0 };
        let middle = (frame.left + frame.right) / 2.0;
        canvas.text(&self.title, (middle, 20.0), Anchor::Middle, TITLE, INK);
        frame.draw(canvas, &self.x, Some(&self.y));
        let pixels = |points: &[(f64, f64)]| -> Vec<Pixel> {
            points.iter().filter_map(|point| frame.pixel([&self.x, &self.y], *point)).collect()
        };
        for series in &self.series {
            let high = series.band.iter().map(|[x, _, high]| (*x, *high));
            // On a logarithmic axis what is not above 0 lies at the edge.
            let edge = if self.y.is_logarithmic() { f64::MIN_POSITIVE } else { f64::MIN };
            let low = series.band.iter().rev().map(|[x, low, _]| (*x, low.max(edge)));
            let corners = pixels(&high.chain(low).collect::<Vec<_>>());
            canvas.area(&corners, series.style.colour, 0.16);
        }
        for (_, points) in &self.guides {
            canvas.line(&pixels(points), MUTED, 1.2, Dash::Dashed);
        }
        for (number, series) in self.series.iter().enumerate() {
            let Style { colour, dash, .. } = series.style;
            for stray in &series.strays {
                let stray = pixels(stray);
                canvas.line(&stray, colour, 1.0, dash);
                let cross = Style { mark: Mark::Cross, fill: Fill::Full, ..series.style };
                stray.last().into_iter().for_each(|end| canvas.mark(&cross, *end, 5.5));
            }
            let line = pixels(&series.points);
            if series.joined {
                canvas.line(&line, colour, 2.0, dash);
            }
            for [x, low, high] in &series.whiskers {
                canvas.line(&pixels(&[(*x, *low), (*x, *high)]), colour, 1.4, Dash::Solid);
            }
            for at in marked(&line, number, self.series.len()) {
                canvas.mark(&series.style, at, series.mark_radius());
            }
        }
        self.draw_labels(canvas, pixels, frame);
        self.draw_legend(canvas, names, legend);
    }

    /// Writes names beside points, within the frame.
    fn draw_labels(
        &self,
        canvas: &mut Canvas,
        pixels: impl Fn(&[(f64, f64)]) -> Vec<Pixel>,
        frame: Frame,
    ) {
        let named = self
            .series
            .iter()
            .filter_map(|series| Some((*pixels(&series.points).last()?, series.label.as_deref())));
        let named: Vec<(Pixel, Option<&str>)> = named.collect();
        let whiskers = self.series.iter().flat_map(|series| &series.whiskers);
        let whiskers: Vec<labels::Room> = whiskers
            .filter_map(|[x, low, high]| match pixels(&[(*x, *high), (*x, *low)])[..] {
                [(x, top), (_, bottom)] => Some([x - 1.0, top, x + 1.0, bottom]),
                _ => None,
            })
            .collect();
        let around = [frame.left + 6.0, frame.top, frame.right + 4.0, frame.bottom - 6.0];
        let size = FONT - 1.0;
        for (at, (_, name)) in labels::beside(&named, &whiskers, size, around).iter().zip(&named) {
            if let (Some(at), Some(name)) = (at, name) {
                canvas.text(name, *at, Anchor::Start, size, INK);
            }
        }
    }

    fn draw_legend(&self, canvas: &mut Canvas, names: &[Vec<String>], left: f64) {
        let mut y = 44.0;
        for (series, lines) in self.series.iter().zip(names) {
            let Style { colour, dash, .. } = series.style;
            if series.joined {
                canvas.line(&[(left, y), (left + 34.0, y)], colour, 2.0, dash);
            }
            canvas.mark(&series.style, (left + 17.0, y), series.mark_radius());
            for line in lines {
                canvas.text(line, (left + 41.0, y), Anchor::Start, FONT, INK);
                y += ROW;
            }
        }
        for name in self.guide_names() {
            canvas.line(&[(left, y), (left + 34.0, y)], MUTED, 1.2, Dash::Dashed);
            canvas.text(name, (left + 41.0, y), Anchor::Start, FONT, INK);
            y += ROW;
        }
    }
}

/// The points of line `number` of `lines` that get a mark: all when they are few, otherwise some at
/// equal distances, other ones on each line.
fn marked(points: &[Pixel], number: usize, lines: usize) -> Vec<Pixel> {
    if points.len() <= 2 * MARKS {
        return points.to_vec();
    }
    let every = points.len() as f64 / MARKS as f64;
    let first = every * number as f64 / lines.max(1) as f64;
    let some = (0..MARKS).map(|n| (first + n as f64 * every) as usize);
    some.filter_map(|n| points.get(n).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradwire::text;

    fn figure(series: Vec<Series>) -> Figure {
        let values = |of: fn(&(f64, f64)) -> f64| {
            series.iter().flat_map(|s| s.points.iter().map(of)).collect::<Vec<_>>()
        };
        let x = Axis::time("virtual time", values(|p| p.0));
        let y = Axis::linear("accuracy", values(|p| p.1), text::percent);
        Figure::new("time & accuracy", x, y, series)
    }

    #[test]
    fn everything_is_drawn_and_named() {
        let lines = (0..14).map(|i| {
            let points = (1..50).map(|x| (f64::from(x * (i + 1)), f64::from(x) / 60.0)).collect();
            let mut line =
                Series::line(&format!("arm {i} <&>"), Style::numbered(i as usize), points);
            line.band = vec![[1.0, 0.1, 0.2], [10.0, 0.2, 0.4]];
            line.strays = vec![vec![(1.0, 0.1), (5.0, 0.3)]];
            line
        });
        let mut figure = figure(lines.collect());
        figure.guides.push(("front".into(), vec![(1.0, 0.1), (9.0, 0.5)]));
        let svg = figure.svg();
        assert!(svg.starts_with("<svg width=\"840\"") && svg.trim_end().ends_with("</svg>"));
        for i in 0..14 {
            assert!(svg.contains(&format!("arm {i} &lt;&amp;&gt;")), "{svg}");
        }
        assert!(svg.contains("front") && svg.contains("time &amp; accuracy"));
        assert_eq!(svg.matches("opacity=\"0.16\"").count(), 14);
        assert!(svg.contains("var(--plot-ink,#282828)") && !svg.contains("=\"#"), "themed");
    }

    #[test]
    fn nothing_to_draw_is_an_empty_plot() {
        assert!(figure(vec![]).svg().contains("virtual time"));
        let none = Series::line("none", Style::numbered(0), vec![(f64::NAN, 1.0), (0.0, 0.5)]);
        let svg = figure(vec![none]).svg();
        assert!(svg.contains("none") && !svg.contains("NaN"));
    }
}
