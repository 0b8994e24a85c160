//! Bars, one below the other, each with its name and figure.

use super::axis::{Axis, Say};
use super::canvas::{self, Canvas, Drawn, FINE, fine, font};
use super::style::{Dash, GRID, INK, MUTED, Style};
use super::{FONT, TITLE, WIDTH};
use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

/// The height of a bar with the air around it, in pixels.
const ROW: f64 = 26.0;

/// A plot of bars.
#[derive(Clone, Debug)]
pub struct Bars {
    /// What it shows.
    pub title: String,
    /// What the lengths are.
    pub axis: String,
    /// How a length is said.
    pub say: Say,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// Its colour.
    pub style: Style,
    /// Its length, made up of these, each fainter than the one before.
    pub parts: Vec<f64>,
    /// How far the whole length deviates.
    pub deviation: f64,
    /// What stands at its end.
    pub note: String,
}

impl Bars {
    /// Draws it.
    ///
    /// # Errors
    /// When it cannot be drawn, which is ours to mend.
    pub fn svg(&self) -> Result<String> {
        let height = (self.bars.len() as f64 * ROW + 104.0) as u32;
        canvas::svg(&self.title, (WIDTH, height), |canvas| self.draw(canvas))
    }

    fn draw(&self, canvas: &Canvas<'_>) -> Drawn {
        let name = |bar: &Bar| canvas::width(&bar.name, FONT);
        let names = self.bars.iter().map(name).fold(0.0, f64::max).clamp(60.0, 330.0);
        let note = |bar: &Bar| canvas::width(&bar.note, FONT);
        let notes = self.bars.iter().map(note).fold(0.0, f64::max) + 16.0;
        let long = |bar: &Bar| bar.parts.iter().sum::<f64>() + bar.deviation;
        let longest = self.bars.iter().map(long).filter(|l| l.is_finite()).fold(0.0, f64::max);
        let ends = [0.0, if longest > 0.0 { longest } else { 1.0 }];
        let x = Axis::between(&self.axis, ends, self.say);
        let long = f64::from(WIDTH) - notes - names - 24.0;
        let shown = x.thinned(long, |label| canvas::width(label, FONT));
        let mut chart = ChartBuilder::on(&canvas.area)
            .margin(fine(10.0))
            .margin_right(fine(notes))
            .caption(&self.title, font(TITLE, INK))
            .x_label_area_size(fine(46.0))
            .y_label_area_size(fine(names + 14.0))
            .build_cartesian_2d(shown, Axis::places(self.bars.len()))?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID.rgb.stroke_width(fine(1.0) as u32))
            .axis_style(MUTED.rgb.stroke_width(fine(1.0) as u32))
            .set_all_tick_mark_size(fine(4.0))
            .label_style(font(FONT, INK))
            .axis_desc_style(font(FONT, INK))
            .x_desc(self.axis.as_str())
            .draw()?;
        let at = |length: f64, row: usize| {
            let (x, y) = chart.backend_coord(&(x.place(length).unwrap_or(0.0), row as f64));
            (f64::from(x) / FINE, f64::from(y) / FINE)
        };
        for (row, bar) in self.bars.iter().enumerate() {
            let (mut from, mut sum) = (at(0.0, row), 0.0);
            canvas.text(&bar.name, (from.0 - 9.0, from.1), HPos::Right, FONT, INK)?;
            let strengths = [0.95, 0.4, 0.2].into_iter().chain(std::iter::repeat(0.1));
            for (part, strength) in bar.parts.iter().zip(strengths) {
                sum += part;
                let to = at(sum, row);
                let (top, bottom) = (from.1 - ROW * 0.32, from.1 + ROW * 0.32);
                let corners = [(from.0, top), (to.0, top), (to.0, bottom), (from.0, bottom)];
                canvas.shade(&corners, bar.style.colour, strength)?;
                from = to;
            }
            let mut end = from.0;
            if bar.deviation > 0.0 {
                let (low, high) = (at(sum - bar.deviation, row), at(sum + bar.deviation, row));
                canvas.line(&[low, high], INK, 1.2, Dash::Solid)?;
                end = end.max(high.0);
            }
            canvas.text(&bar.note, (end + 7.0, from.1), HPos::Left, FONT, INK)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::say;
    use super::*;

    #[test]
    fn every_bar_has_its_name_and_figure() {
        let bar = |name: &str, seconds: f64| Bar {
            name: name.into(),
            style: Style::of_scheme(name, 0),
            parts: vec![seconds, seconds / 2.0],
            deviation: seconds / 10.0,
            note: say::duration(1.5 * seconds),
        };
        let bars = vec![bar("dense", 0.0), bar("topk", 0.002), bar("sidco", 0.001)];
        let bars = Bars { title: "encoding".into(), axis: "time".into(), say: say::duration, bars };
        let svg = bars.svg().unwrap();
        for part in ["dense", "topk", "sidco", "0 s", "3 ms", "1.5 ms"] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
        assert!(Bars { bars: vec![], ..bars }.svg().unwrap().contains("encoding"));
    }
}
