//! What plots are drawn with: elements of SVG, in colours that a page may choose for its own ground.

use super::style::{Colour, Dash, Fill, GROUND, Mark, Style};
use std::fmt::Write;

/// A point, in pixels from the upper left.
pub(super) type Pixel = (f64, f64);

/// Which part of a text stands at its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// The elements of an SVG so far, the later ones over the earlier ones. Lengths are in pixels.
#[derive(Default)]
pub(super) struct Canvas {
    elements: String,
}

/// Draws an SVG with a title for those who do not see it.
pub(super) fn svg(title: &str, width: f64, height: f64, draw: impl FnOnce(&mut Canvas)) -> String {
    let mut canvas = Canvas::default();
    draw(&mut canvas);
    let (title, ground) = (escape(title), paint(GROUND));
    format!(
        "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"{title}\" font-family=\"sans-serif\" xmlns=\"http://www.w3.org/2000/svg\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"{ground}\"/>\n{}</svg>\n",
        canvas.elements
    )
}

/// A text in which nothing is taken for a tag, or for the end of an attribute.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

/// A colour as an attribute has it: the page's own if it has one.
fn paint(Colour { name, rgb: [r, g, b] }: Colour) -> String {
    format!("var(--plot-{name},#{r:02X}{g:02X}{b:02X})")
}

fn list(points: &[Pixel]) -> String {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    points.join(" ")
}

/// About how wide a text is in a font of this size.
pub(super) fn width(text: &str, size: f64) -> f64 {
    let narrow = |c: char| matches!(c, 'i' | 'l' | 'j' | 't' | 'f' | 'r' | ' ' | '.' | ',' | '-');
    let units = text.chars().map(|c| match c {
        c if narrow(c) => 0.36,
        'm' | 'w' | 'M' | 'W' | '%' => 0.88,
        c if c.is_uppercase() => 0.7,
        _ => 0.58,
    });
    units.sum::<f64>() * size
}

impl Style {
    /// A short line with its mark, as SVG, to stand beside a name.
    pub fn swatch(&self) -> String {
        svg("", 34.0, 13.0, |canvas| {
            canvas.line(&[(0.0, 6.5), (34.0, 6.5)], self.colour, 2.0, self.dash);
            canvas.mark(self, (17.0, 6.5), 3.6);
        })
    }
}

impl Canvas {
    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.elements, "{element}");
    }

    /// A text whose height is centred on the point.
    pub(super) fn text(&mut self, text: &str, at: Pixel, anchor: Anchor, size: f64, of: Colour) {
        self.turned_text(text, at, anchor, size, of, 0.0);
    }

    /// The same, turned around its point by so many degrees.
    pub(super) fn turned_text(
        &mut self,
        text: &str,
        (x, y): Pixel,
        anchor: Anchor,
        size: f64,
        colour: Colour,
        degrees: f64,
    ) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let turned = match degrees {
            0.0 => String::new(),
            degrees => format!(" transform=\"rotate({degrees} {x:.1} {y:.1})\""),
        };
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" dy=\"0.35em\" text-anchor=\"{anchor}\" \
             font-size=\"{size}\" fill=\"{}\"{turned}>{}</text>",
            paint(colour),
            escape(text)
        ));
    }

    /// A line through these points.
    pub(super) fn line(&mut self, points: &[Pixel], colour: Colour, width: f64, dash: Dash) {
        if points.len() < 2 {
            return;
        }
        let dashes = match dash {
            Dash::Solid => "",
            Dash::Dashed => " stroke-dasharray=\"8 4\"",
            Dash::Dotted => " stroke-dasharray=\"2.5 3\"",
        };
        self.add(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{width:.1}\"{dashes}/>",
            list(points),
            paint(colour)
        ));
    }

    /// An area within these corners.
    pub(super) fn area(&mut self, corners: &[Pixel], colour: Colour, opacity: f64) {
        if corners.len() > 2 {
            let (points, fill) = (list(corners), paint(colour));
            self.add(format_args!(
                "<polygon points=\"{points}\" fill=\"{fill}\" opacity=\"{opacity}\"/>"
            ));
        }
    }

    /// A mark of the size of a circle of this radius.
    pub(super) fn mark(&mut self, style: &Style, (x, y): Pixel, radius: f64) {
        if style.fill == Fill::Dot {
            self.mark(&Style { fill: Fill::Open, ..*style }, (x, y), radius);
            return self.mark(&Style { fill: Fill::Full, ..*style }, (x, y), radius * 0.42);
        }
        let full = style.fill == Fill::Full;
        let (fill, stroke) = (paint(if full { style.colour } else { GROUND }), paint(style.colour));
        let outline = 1.6f64.min(radius / 3.0);
        let corners: &[Pixel] = match style.mark {
            Mark::Circle => {
                return self.add(format_args!(
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.2}\" fill=\"{fill}\" \
                     stroke=\"{stroke}\" stroke-width=\"{outline:.1}\"/>"
                ));
            }
            Mark::Cross => {
                let (r, width) = (radius * 0.85, if full { 2.4 } else { 1.4 });
                for (dx, dy) in [(r, r), (r, -r)] {
                    let ends = [(x - dx, y - dy), (x + dx, y + dy)];
                    self.line(&ends, style.colour, width, Dash::Solid);
                }
                return;
            }
            Mark::Triangle => &[(0.0, -1.25), (1.15, 0.8), (-1.15, 0.8)],
            Mark::Inverted => &[(0.0, 1.25), (1.15, -0.8), (-1.15, -0.8)],
            Mark::Square => &[(-0.92, -0.92), (0.92, -0.92), (0.92, 0.92), (-0.92, 0.92)],
            Mark::Diamond => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
        };
        let corner = |(dx, dy): &Pixel| (x + dx * radius, y + dy * radius);
        let points = list(&corners.iter().map(corner).collect::<Vec<_>>());
        self.add(format_args!(
            "<polygon points=\"{points}\" fill=\"{fill}\" stroke=\"{stroke}\" \
             stroke-width=\"{outline:.1}\"/>"
        ));
    }
}
