//! Plots as SVG: lines that differ in more than colour, in colours that a page may choose for
//! its ground; by themselves they stand on white.

mod axis;
mod bars;
mod figure;
mod labels;
mod style;
mod svg;

pub use axis::{Axis, Format};
pub use bars::{Bar, Bars};
pub use figure::{Figure, Series};
pub use style::Style;
pub(crate) use svg::escape;

/// The width of every plot, in pixels.
const WIDTH: f64 = 840.0;

/// The size of titles, in pixels.
const TITLE: f64 = 17.0;

/// The size of every other text, in pixels.
const FONT: f64 = 14.5;
