//! Plots of lines and points over two axes, their legend beside them.

use super::axis::Axis;
use super::canvas::{self, Canvas, Drawn, FINE, Place, fine, font};
use super::labels::{self, wrap};
use super::style::{Dash, Fill, GRID, INK, MUTED, Mark, Style};
use super::{FONT, TITLE, WIDTH};
use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

/// The least height of a plot, in pixels.
const HEIGHT: u32 = 460;
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
}

impl Figure {
    /// Draws it.
    ///
    /// # Errors
    /// When it cannot be drawn, which is ours to mend.
    pub fn svg(&self) -> Result<String> {
        let names: Vec<Vec<String>> =
            self.series.iter().map(|series| wrap(&series.name, LETTERS, 2)).collect();
        let lines = names.iter().map(Vec::len).sum::<usize>() + self.guide_names().len();
        let height = HEIGHT.max((lines as f64 * ROW + 70.0) as u32);
        canvas::svg(&self.title, (WIDTH, height), |canvas| self.draw(canvas, &names))
    }

    fn guide_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.guides.iter().map(|(name, _)| name.as_str()).collect();
        names.dedup();
        names
    }

    fn draw(&self, canvas: &Canvas<'_>, names: &[Vec<String>]) -> Drawn {
        let guides = self.guide_names();
        let words = names.iter().flatten().map(String::as_str).chain(guides.iter().copied());
        let widest = words.map(|word| canvas::width(word, FONT)).fold(0.0, f64::max);
        let legend = if widest > 0.0 { widest + 48.0 } else { 12.0 };
        let left = f64::from(WIDTH) - legend;
        // What is left beside the margins and the labels of the other axis.
        let x = self.x.thinned(left - 106.0, |label| canvas::width(label, FONT));
        let (plot, _) = canvas.area.split_horizontally(fine(left));
        let mut chart = ChartBuilder::on(&plot)
            .margin(fine(10.0))
            .margin_right(fine(16.0))
            .caption(&self.title, font(TITLE, INK))
            .x_label_area_size(fine(50.0))
            .y_label_area_size(fine(80.0))
            .build_cartesian_2d(x, self.y.clone())?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID.rgb.stroke_width(fine(1.0) as u32))
            .axis_style(MUTED.rgb.stroke_width(fine(1.0) as u32))
            .set_all_tick_mark_size(fine(4.0))
            .label_style(font(FONT, INK))
            .axis_desc_style(font(FONT, INK))
            .x_desc(self.x.title.as_str())
            .y_desc(self.y.title.as_str())
            .draw()?;
        let at = |(x, y): (f64, f64)| -> Option<Place> {
            let place = (self.x.place(x)?, self.y.place(y)?);
            let (x, y) = chart.backend_coord(&place);
            Some((f64::from(x) / FINE, f64::from(y) / FINE))
        };
        let all = |points: &[(f64, f64)]| -> Vec<Place> {
            points.iter().filter_map(|point| at(*point)).collect()
        };
        for series in &self.series {
            let high = series.band.iter().map(|[x, _, high]| (*x, *high));
            // On a logarithmic axis what is not above 0 lies at the edge.
            let edge = if self.y.is_logarithmic() { f64::MIN_POSITIVE } else { f64::MIN };
            let low = series.band.iter().rev().map(|[x, low, _]| (*x, low.max(edge)));
            let corners = all(&high.chain(low).collect::<Vec<_>>());
            canvas.shade(&corners, series.style.colour, 0.16)?;
        }
        for (_, points) in &self.guides {
            canvas.line(&all(points), MUTED, 1.2, Dash::Dashed)?;
        }
        for (number, series) in self.series.iter().enumerate() {
            let colour = series.style.colour;
            for stray in &series.strays {
                let places = all(stray);
                canvas.line(&places, colour, 1.0, series.style.dash)?;
                let end = Style { mark: Mark::Cross, fill: Fill::Full, ..series.style };
                places.last().map_or(Ok(()), |place| canvas.mark(&end, *place, 5.5))?;
            }
            let places = all(&series.points);
            if series.joined {
                canvas.line(&places, colour, 2.0, series.style.dash)?;
            }
            for [x, low, high] in &series.whiskers {
                canvas.line(&all(&[(*x, *low), (*x, *high)]), colour, 1.4, Dash::Solid)?;
            }
            for place in marked(&places, number, self.series.len()) {
                canvas.mark(&series.style, place, if series.joined { 3.6 } else { 5.0 })?;
            }
        }
        self.label(canvas, all, left - 12.0)?;
        self.legend(canvas, names, left)
    }

    /// Writes names beside points, to the left of `right`.
    fn label(
        &self,
        canvas: &Canvas<'_>,
        all: impl Fn(&[(f64, f64)]) -> Vec<Place>,
        right: f64,
    ) -> Drawn {
        let named = self
            .series
            .iter()
            .filter_map(|series| Some((*all(&series.points).last()?, series.label.as_deref())));
        let named: Vec<(Place, Option<&str>)> = named.collect();
        let whiskers = self.series.iter().flat_map(|series| &series.whiskers);
        let whiskers: Vec<labels::Room> = whiskers
            .filter_map(|[x, low, high]| match all(&[(*x, *high), (*x, *low)])[..] {
                [(x, top), (_, bottom)] => Some([x - 1.0, top, x + 1.0, bottom]),
                _ => None,
            })
            .collect();
        let height = f64::from(canvas.area.dim_in_pixel().1) / FINE;
        let around = [96.0, 34.0, right, height - 66.0];
        let size = FONT - 1.0;
        for (place, (_, name)) in labels::places(&named, &whiskers, size, around).iter().zip(&named)
        {
            if let (Some(place), Some(name)) = (place, name) {
                canvas.text(name, *place, HPos::Left, size, INK)?;
            }
        }
        Ok(())
    }

    fn legend(&self, canvas: &Canvas<'_>, names: &[Vec<String>], left: f64) -> Drawn {
        let mut y = 44.0;
        for (series, lines) in self.series.iter().zip(names) {
            let Style { colour, dash, .. } = series.style;
            if series.joined {
                canvas.line(&[(left, y), (left + 34.0, y)], colour, 2.0, dash)?;
            }
            canvas.mark(&series.style, (left + 17.0, y), if series.joined { 3.6 } else { 5.0 })?;
            for line in lines {
                canvas.text(line, (left + 41.0, y), HPos::Left, FONT, INK)?;
                y += ROW;
            }
        }
        for name in self.guide_names() {
            canvas.line(&[(left, y), (left + 34.0, y)], MUTED, 1.2, Dash::Dashed)?;
            canvas.text(name, (left + 41.0, y), HPos::Left, FONT, INK)?;
            y += ROW;
        }
        Ok(())
    }
}

/// The places of a line that get a mark: all when they are few, otherwise some at equal distances,
/// other ones for each line, and the last.
fn marked(places: &[Place], number: usize, of: usize) -> Vec<Place> {
    if places.len() <= 2 * MARKS {
        return places.to_vec();
    }
    let every = places.len() as f64 / MARKS as f64;
    let first = every * number as f64 / of.max(1) as f64;
    let some = (0..MARKS).map(|n| (first + n as f64 * every) as usize);
    some.filter_map(|n| places.get(n).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::say;
    use super::*;

    fn figure(series: Vec<Series>) -> Figure {
        let values = |of: fn(&(f64, f64)) -> f64| {
            series.iter().flat_map(|s| s.points.iter().map(of)).collect::<Vec<_>>()
        };
        Figure {
            title: "time & accuracy".into(),
            x: Axis::time("virtual time", values(|p| p.0)),
            y: Axis::linear("accuracy", values(|p| p.1), say::percent),
            guides: vec![],
            series,
        }
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
        let svg = figure.svg().unwrap();
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
        assert!(figure(vec![]).svg().unwrap().contains("virtual time"));
        let none = Series::line("none", Style::numbered(0), vec![(f64::NAN, 1.0), (0.0, 0.5)]);
        let svg = figure(vec![none]).svg().unwrap();
        assert!(svg.contains("none") && !svg.contains("NaN"));
    }
}
