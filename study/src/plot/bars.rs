//! Bars, one below the other, each with its name and figure.

use super::axis::{Axis, Format, Frame};
use super::style::{Dash, INK, Style};
use super::svg::{self, Anchor, Canvas};
use super::{FONT, TITLE, WIDTH};

/// The height of a bar with the air around it, in pixels.
const ROW: f64 = 26.0;

/// A plot of bars.
#[derive(Clone, Debug)]
pub struct Bars {
    /// What it shows.
    pub title: String,
    /// What the lengths are.
    pub axis: String,
    /// How a length is written.
    pub format: Format,
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
    /// The lengths that it is made of, each fainter than the one before.
    pub parts: Vec<f64>,
    /// How far the whole length deviates.
    pub deviation: f64,
    /// What stands at its end.
    pub note: String,
}

impl Bars {
    /// Draws it.
    pub fn svg(&self) -> String {
        let height = self.bars.len() as f64 * ROW + 104.0;
        svg::svg(&self.title, WIDTH, height, |canvas| self.draw(canvas, height))
    }

    fn draw(&self, canvas: &mut Canvas, height: f64) {
        let widest = |text: fn(&Bar) -> &str| {
            self.bars.iter().map(|bar| svg::width(text(bar), FONT)).fold(0.0, f64::max)
        };
        let lengths = self.bars.iter().map(|bar| bar.parts.iter().sum::<f64>() + bar.deviation);
        let longest = lengths.filter(|length| length.is_finite()).fold(0.0, f64::max);
        let ends = [0.0, if longest > 0.0 { longest } else { 1.0 }];
        let frame = Frame {
            left: widest(|bar| &bar.name).clamp(60.0, 330.0) + 24.0,
            top: 44.0,
            right: WIDTH - widest(|bar| &bar.note) - 16.0,
            bottom: height - 56.0,
        };
        canvas.text(&self.title, (WIDTH / 2.0, 22.0), Anchor::Middle, TITLE, INK);
        let x = Axis::between(&self.axis, ends, self.format);
        frame.draw(canvas, &x, None);
        let at = |length: f64| x.position(length, frame.left, frame.right).unwrap_or(frame.left);
        for (row, bar) in self.bars.iter().enumerate() {
            let middle = frame.top + (row as f64 + 0.5) * ROW;
            canvas.text(&bar.name, (frame.left - 9.0, middle), Anchor::End, FONT, INK);
            let (top, bottom) = (middle - ROW * 0.32, middle + ROW * 0.32);
            let opacities = [0.95, 0.4, 0.2].into_iter().chain(std::iter::repeat(0.1));
            let mut sum = 0.0;
            for (part, opacity) in bar.parts.iter().zip(opacities) {
                let (from, to) = (at(sum), at(sum + part));
                let corners = [(from, top), (to, top), (to, bottom), (from, bottom)];
                canvas.area(&corners, bar.style.colour, opacity);
                sum += part;
            }
            let end = sum + bar.deviation;
            if bar.deviation > 0.0 {
                let ends = [(at(sum - bar.deviation), middle), (at(end), middle)];
                canvas.line(&ends, INK, 1.2, Dash::Solid);
            }
            canvas.text(&bar.note, (at(end) + 7.0, middle), Anchor::Start, FONT, INK);
        }
    }
}
