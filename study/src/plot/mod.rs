//! Figures, drawn twice from the same data: as a plain SVG file on white ground, which papers and every viewer
//! take ([`Figure::svg`], and from it PDF and PNG by [`Page`]), and for a page that is read with the mouse
//! ([`Figure::interactive`]).

mod axis;
mod figure;
mod files;
mod interactive;
mod style;

pub use axis::{Axis, Quantity};
pub use figure::{Figure, Series};
pub use files::{FileFormat, Page};
pub use interactive::script;
pub use style::{HUES, Style};

/// A text in which nothing is taken for a tag, or for the end of an attribute.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}
