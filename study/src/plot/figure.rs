//! A figure as data, and as a plain SVG: attributes and no style sheet, so that LaTeX, Inkscape, Word and librsvg
//! show the colours that are written.

use super::axis::Axis;
use super::escape;
use super::files::Page;
use super::style::{HUES, Mark, Style};
use plotters::chart::{ChartContext, LabelAreaPosition};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A figure.
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
}

/// One thing that is compared.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Hue and mark.
    pub style: Style,
    /// Its points, in order. Those that have no place on the axes are left out.
    pub points: Vec<(f64, f64)>,
    /// Whether they are joined by a line.
    pub joined: bool,
    /// How far y deviates: x, least and most y. A band around a line, a whisker through each point else.
    pub spread: Vec<[f64; 3]>,
    /// Thin lines for themselves, each with a cross at its end: runs that stopped there.
    pub strays: Vec<Vec<(f64, f64)>>,
}

impl Series {
    /// Points joined by a line.
    pub fn line(name: &str, style: Style, points: Vec<(f64, f64)>) -> Self {
        let name = name.into();
        Self { name, style, points, joined: true, spread: Vec::new(), strays: Vec::new() }
    }
}

/// Plotters places everything on whole units: so many of them are a point of the page.
const FINE: f64 = 10.0;
const INK: RGBColor = RGBColor(40, 40, 40);
const MUTED: RGBColor = RGBColor(112, 112, 112);
const GRID: RGBColor = RGBColor(225, 225, 225);
/// Marks along a line that has more points.
const MARKS: usize = 8;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Axis, Axis>>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;
type Pixel = (i32, i32);

impl Figure {
    /// A figure of these.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis, series: Vec<Series>) -> Self {
        Self { title: title.into(), x, y, series }
    }

    /// Draws it for a page, the legend below it.
    pub fn svg(&self, page: &Page) -> String {
        let legend = Legend::new(self, page);
        let size = (page.width, page.width * 0.56 + legend.rows as f64 * legend.row);
        let units = |points: f64| (points * FINE).round() as u32;
        let mut text = String::new();
        let root = SVGBackend::with_string(&mut text, (units(size.0), units(size.1)));
        let root = root.into_drawing_area();
        self.draw(&root, page, &legend).expect("invariant: a text takes what is drawn");
        drop(root);
        // In points, and named for those who do not see it.
        let end = text.find(" viewBox").unwrap_or(0);
        let head = format!(
            "<svg width=\"{:.1}\" height=\"{:.1}\" role=\"img\" aria-label=\"{}\"",
            size.0,
            size.1,
            escape(&self.title)
        );
        head + &text[end..]
    }

    fn draw(&self, root: &Area<'_>, page: &Page, legend: &Legend<'_>) -> Drawn {
        root.fill(&WHITE)?;
        let (above, below) = root.split_vertically((page.width * 0.56 * FINE).round() as i32);
        let em = |of: f64| (of * page.font * FINE).round() as i32;
        let font = |size: f64| ("sans-serif", f64::from(em(size))).into_font().color(&INK);
        let mut builder = ChartBuilder::on(&above);
        builder.margin(em(0.6)).margin_right(em(1.6));
        if page.titled {
            builder.caption(&self.title, font(1.15));
        }
        let mut chart = builder
            .set_label_area_size(LabelAreaPosition::Left, em(5.4))
            .set_label_area_size(LabelAreaPosition::Bottom, em(3.4))
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        let wide = page.width / page.font;
        chart
            .configure_mesh()
            .axis_style(MUTED.stroke_width(em(0.07) as u32))
            .bold_line_style(GRID.stroke_width(em(0.06) as u32))
            .max_light_lines(0)
            .set_all_tick_mark_size(em(0.4))
            .label_style(font(1.0))
            .axis_desc_style(font(1.0))
            .x_labels((wide / 6.0) as usize)
            .y_labels(8)
            .x_desc(&self.x.title)
            .y_desc(&self.y.title)
            .draw()?;
        let pen = Pen { root, font: page.font };
        for series in self.series.iter().filter(|series| series.joined) {
            let high = series.spread.iter().map(|[x, _, high]| (*x, *high));
            // On a logarithmic axis what is not above 0 lies at the edge.
            let low = series.spread.iter().rev().map(|[x, low, _]| (*x, low.max(self.y.ends[0])));
            let corners = self.pixels(&chart, high.chain(low));
            if corners.len() > 2 {
                root.draw(&Polygon::new(corners, colour(series.style).mix(0.16).filled()))?;
            }
        }
        for (number, series) in self.series.iter().enumerate() {
            self.draw_series(&chart, &pen, number, series)?;
        }
        legend.draw(&Pen { root: &below, font: page.font })
    }

    fn draw_series(
        &self,
        chart: &Chart<'_>,
        pen: &Pen<'_, '_>,
        number: usize,
        series: &Series,
    ) -> Drawn {
        let Series { style, .. } = series;
        for stray in &series.strays {
            let line = self.pixels(chart, stray.iter().copied());
            pen.line(&line, &colour(*style), 0.8)?;
            let cross = Style { mark: Mark::Cross, ..*style };
            line.last().map_or(Ok(()), |end| pen.mark(cross, *end))?;
        }
        let line = self.pixels(chart, series.points.iter().copied());
        if series.joined {
            pen.line(&line, &colour(*style), width(*style))?;
        } else {
            for [x, low, high] in &series.spread {
                let whisker = self.pixels(chart, [(*x, *low), (*x, *high)].into_iter());
                pen.line(&whisker, &colour(*style), 1.2)?;
            }
        }
        // All points when they are few, otherwise some at equal distances, other ones on each line.
        let every = (line.len() / MARKS).max(1);
        let some = if line.len() > 2 * MARKS { every } else { 1 };
        let first = every * number / self.series.len().max(1) % some;
        line.iter().skip(first).step_by(some).try_for_each(|at| pen.mark(*style, *at))
    }

    /// Where points lie; those that have no place are left out.
    fn pixels(&self, chart: &Chart<'_>, points: impl Iterator<Item = (f64, f64)>) -> Vec<Pixel> {
        let has_place =
            |(x, y): &(f64, f64)| self.x.share(*x).is_some() && self.y.share(*y).is_some();
        points.filter(has_place).map(|point| chart.backend_coord(&point)).collect()
    }
}

fn colour(style: Style) -> RGBColor {
    let [light, _] = HUES[style.hue];
    let part = |at: usize| u8::from_str_radix(&light[at..at + 2], 16).unwrap_or(0);
    RGBColor(part(1), part(3), part(5))
}

/// How wide a line is, in tenths of a letter's height: guides are thin.
fn width(style: Style) -> f64 {
    if style == Style::GUIDE { 0.9 } else { 1.6 }
}

/// Draws at places that are known in units.
struct Pen<'a, 'b> {
    root: &'a Area<'b>,
    font: f64,
}

impl Pen<'_, '_> {
    fn em(&self, of: f64) -> i32 {
        (of * self.font * FINE).round() as i32
    }

    /// A line, so many tenths of a letter's height wide.
    fn line(&self, points: &[Pixel], colour: &RGBColor, width: f64) -> Drawn {
        let style = colour.stroke_width(self.em(width / 10.0) as u32);
        self.root.draw(&PathElement::new(points.to_vec(), style))
    }

    fn mark(&self, style: Style, (x, y): Pixel) -> Drawn {
        let radius = f64::from(self.em(0.27));
        let at = |dx: f64, dy: f64| (x + (dx * radius) as i32, y + (dy * radius) as i32);
        let colour = colour(style);
        let corners = match style.mark {
            Mark::None => return Ok(()),
            Mark::Circle => {
                return self.root.draw(&Circle::new((x, y), radius as i32, colour.filled()));
            }
            Mark::Cross => {
                let line = |ends: [Pixel; 2]| self.line(&ends, &colour, 1.6);
                line([at(-0.9, -0.9), at(0.9, 0.9)])?;
                return line([at(-0.9, 0.9), at(0.9, -0.9)]);
            }
            Mark::Triangle => vec![at(0.0, -1.25), at(1.15, 0.8), at(-1.15, 0.8)],
            Mark::Inverted => vec![at(0.0, 1.25), at(1.15, -0.8), at(-1.15, -0.8)],
            Mark::Square => vec![at(-0.9, -0.9), at(0.9, -0.9), at(0.9, 0.9), at(-0.9, 0.9)],
            Mark::Diamond => vec![at(0.0, -1.3), at(1.3, 0.0), at(0.0, 1.3), at(-1.3, 0.0)],
        };
        self.root.draw(&Polygon::new(corners, colour.filled()))
    }
}

/// Names with their lines and marks, in columns.
struct Legend<'a> {
    series: &'a [Series],
    columns: usize,
    /// The width of a column, in points.
    column: f64,
    rows: usize,
    /// The height of a row, in points.
    row: f64,
}

impl<'a> Legend<'a> {
    fn new(figure: &'a Figure, page: &Page) -> Self {
        let series = &figure.series;
        let longest = series.iter().map(|series| series.name.chars().count()).max().unwrap_or(1);
        // A letter is about half as wide as high.
        let widest = (longest as f64 * 0.53 + 4.2) * page.font;
        let columns = ((page.width / widest) as usize).clamp(1, series.len().max(1));
        let rows = series.len().div_ceil(columns);
        let column = widest.min(page.width / columns as f64);
        Self { series, columns, column, rows, row: page.font * 1.5 }
    }

    fn draw(&self, pen: &Pen<'_, '_>) -> Drawn {
        let left_middle = Pos::new(HPos::Left, VPos::Center);
        let font = ("sans-serif", f64::from(pen.em(1.0))).into_font().color(&INK).pos(left_middle);
        for (place, Series { name, style, joined, .. }) in self.series.iter().enumerate() {
            let x = ((place % self.columns) as f64 * self.column * FINE) as i32 + pen.em(1.0);
            let y = ((place / self.columns) as f64 * self.row * FINE) as i32 + pen.em(0.6);
            let ends = [(x, y), (x + pen.em(2.0), y)];
            if *joined {
                pen.line(&ends, &colour(*style), width(*style))?;
            }
            pen.mark(*style, (x + pen.em(1.0), y))?;
            pen.root.draw(&Text::new(name.to_string(), (x + pen.em(2.5), y), font.clone()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Quantity;
    use super::*;

    fn figure(series: Vec<Series>) -> Figure {
        let values = |of: fn(&(f64, f64)) -> f64| {
            series.iter().flat_map(|s| s.points.iter().map(of)).collect::<Vec<_>>()
        };
        let x = Axis::new("virtual time", Quantity::Seconds, true, values(|p| p.0));
        let y = Axis::new("accuracy", Quantity::Fraction, false, values(|p| p.1));
        Figure::new("time & accuracy", x, y, series)
    }

    fn lines() -> Vec<Series> {
        let line = |i: i32| {
            let points = (1..50).map(|x| (f64::from(x * (i + 1)), f64::from(x) / 60.0)).collect();
            let mut line =
                Series::line(&format!("arm {i} <&>"), Style::numbered(i as usize), points);
            line.spread = vec![[1.0, 0.1, 0.2], [10.0, -0.2, 0.4]];
            line.strays = vec![vec![(1.0, 0.1), (5.0, 0.3)]];
            line
        };
        (0..14).map(line).collect()
    }

    /// A viewer that knows attributes and no style sheets takes it, and finds a colour in each.
    #[test]
    fn everything_is_drawn_and_named_without_a_style_sheet() {
        let guide = Series::line("front", Style::GUIDE, vec![(1.0, 0.1), (9.0, 0.5)]);
        let figure = figure(lines().into_iter().chain([guide]).collect());
        let svg = figure.svg(&Page::default());
        for i in 0..14 {
            assert!(svg.contains(&format!("arm {i} &lt;&amp;&gt;")), "{svg}");
        }
        assert!(svg.contains("front") && svg.contains("time &amp; accuracy"));
        assert!(svg.matches("opacity=\"0.16\"").count() >= 14);
        for word in ["var(", "style", "class", "NaN"] {
            assert!(!svg.contains(word), "{word}");
        }
        let tree = resvg::usvg::Tree::from_str(&svg, &Page::default().options().unwrap()).unwrap();
        assert!(tree.root().has_children() && (tree.size().width() - 840.0).abs() < 1.0);
    }

    #[test]
    fn nothing_to_draw_is_an_empty_plot() {
        assert!(figure(vec![]).svg(&Page::default()).contains("virtual time"));
        let none = Series::line("none", Style::numbered(0), vec![(f64::NAN, 1.0), (0.0, 0.5)]);
        let svg = figure(vec![none]).svg(&Page::default());
        assert!(svg.contains("none") && !svg.contains("NaN"));
    }
}
