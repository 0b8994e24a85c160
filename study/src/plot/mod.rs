//! Plots as SVG: lines that can be told apart without colour, in colours that a page may choose for
//! its ground; by themselves they stand on white.

mod axis;
mod bars;
mod canvas;
mod figure;
mod labels;
pub mod say;
mod style;

pub use axis::{Axis, Say};
pub use bars::{Bar, Bars};
pub use figure::{Figure, Series};
pub use style::Style;

/// The width of every plot, in pixels.
const WIDTH: u32 = 840;

/// The font of titles, in pixels.
const TITLE: f64 = 17.0;

/// The font of everything else, in pixels.
const FONT: f64 = 14.5;
