//! What plots are drawn on: an SVG in fractions of a pixel, whose colours a page may choose anew.

use super::style::{self, Colour, Dash, Fill, Mark, Style};
use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;

/// The units of the SVG in a pixel: the backend knows whole ones only, and curves would have steps.
pub(super) const FINE: f64 = 4.0;

/// What went wrong while drawing.
pub(super) type Drawn = Result<(), Box<dyn Error>>;

/// A place, in pixels from the upper left.
pub(super) type Place = (f64, f64);

/// An area to draw on. Lengths are in pixels.
pub(super) struct Canvas<'a> {
    /// For what the crate draws itself.
    pub(super) area: DrawingArea<SVGBackend<'a>, Shift>,
}

/// Draws an SVG of a size in pixels with a title for those who do not see it.
pub(super) fn svg(
    title: &str,
    (width, height): (u32, u32),
    draw: impl FnOnce(&Canvas<'_>) -> Drawn,
) -> Result<String> {
    let mut svg = String::new();
    let size = (fine(f64::from(width)) as u32, fine(f64::from(height)) as u32);
    {
        let backend = SVGBackend::with_string(&mut svg, size);
        let canvas = Canvas { area: backend.into_drawing_area() };
        let drawn = canvas.area.fill(&style::GROUND.rgb).map_err(Into::into);
        drawn
            .and_then(|()| draw(&canvas))
            .and_then(|()| Ok(canvas.area.present()?))
            .map_err(|error| anyhow!("drawing {title:?}: {error}"))?;
    }
    let head = format!(r#"<svg width="{}" height="{}" "#, size.0, size.1);
    let new = format!(r#"<svg width="{width}" height="{height}" role="img" "#);
    let mut svg = svg.replacen(&head, &new, 1);
    for colour in style::ALL {
        let RGBColor(r, g, b) = colour.rgb;
        let hex = format!("#{r:02X}{g:02X}{b:02X}");
        // In texts, quotation marks are escaped.
        svg =
            svg.replace(&format!("=\"{hex}\""), &format!("=\"var(--plot-{},{hex})\"", colour.name));
    }
    Ok(svg)
}

impl Style {
    /// A short line with its mark, as SVG, to stand beside a name.
    ///
    /// # Errors
    /// When it cannot be drawn, which is ours to mend.
    pub fn swatch(&self) -> Result<String> {
        svg("", (34, 13), |canvas| {
            canvas.line(&[(0.0, 6.5), (34.0, 6.5)], self.colour, 2.0, self.dash)?;
            canvas.mark(self, (17.0, 6.5), 3.6)
        })
    }
}

/// Pixels in units of the SVG.
pub(super) fn fine(pixels: f64) -> i32 {
    (pixels * FINE).round() as i32
}

/// A font of so many pixels. The backend divides by what it takes for a font's line height.
pub(super) fn font<'a>(pixels: f64, colour: Colour) -> TextStyle<'a> {
    ("sans-serif", pixels * FINE * 1.24).into_font().color(&colour.rgb)
}

/// About how wide a text is in a font of so many pixels.
pub(super) fn width(text: &str, pixels: f64) -> f64 {
    let narrow = |c: char| matches!(c, 'i' | 'l' | 'j' | 't' | 'f' | 'r' | ' ' | '.' | ',' | '-');
    let units = text.chars().map(|c| match c {
        c if narrow(c) => 0.36,
        'm' | 'w' | 'M' | 'W' | '%' => 0.88,
        c if c.is_uppercase() => 0.7,
        _ => 0.58,
    });
    units.sum::<f64>() * pixels
}

impl Canvas<'_> {
    /// A text of so many pixels at a place, which is its left end, middle or right end, in the
    /// middle of its height.
    pub(super) fn text(
        &self,
        text: &str,
        place: Place,
        side: HPos,
        pixels: f64,
        colour: Colour,
    ) -> Drawn {
        let style = font(pixels, colour).pos(Pos::new(side, VPos::Center));
        self.area.draw(&Text::new(text.to_string(), point(place), style))?;
        Ok(())
    }

    /// A line through these places, so many pixels wide.
    pub(super) fn line(&self, places: &[Place], colour: Colour, width: f64, dash: Dash) -> Drawn {
        if places.len() < 2 {
            return Ok(());
        }
        let style = colour.rgb.stroke_width(fine(width) as u32);
        let points: Vec<(i32, i32)> = places.iter().map(|place| point(*place)).collect();
        let (long, gap) = match dash {
            Dash::Solid => {
                self.area.draw(&PathElement::new(points, style))?;
                return Ok(());
            }
            Dash::Dashed => (8.0, 4.0),
            Dash::Dotted => (2.5, 3.0),
        };
        let dashes = DashedPathElement::new(points, fine(long), fine(gap), style);
        self.area.draw(&dashes)?;
        Ok(())
    }

    /// A faint area within these corners.
    pub(super) fn shade(&self, corners: &[Place], colour: Colour, strength: f64) -> Drawn {
        if corners.len() < 3 {
            return Ok(());
        }
        let points: Vec<(i32, i32)> = corners.iter().map(|place| point(*place)).collect();
        self.area.draw(&Polygon::new(points, colour.rgb.mix(strength)))?;
        Ok(())
    }

    /// A mark at a place, of the size of a circle of so many pixels' radius.
    pub(super) fn mark(&self, style: &Style, place: Place, radius: f64) -> Drawn {
        if style.fill == Fill::Dot {
            self.mark(&Style { fill: Fill::Open, ..*style }, place, radius)?;
            return self.mark(&Style { fill: Fill::Full, ..*style }, place, radius * 0.42);
        }
        let full = style.fill == Fill::Full;
        let (colour, ground) = (style.colour.rgb, style::GROUND.rgb);
        let inside = if full { colour } else { ground };
        let outline = colour.stroke_width(fine(1.6f64.min(radius / 3.0)) as u32);
        let (x, y) = place;
        let corners: &[Place] = match style.mark {
            Mark::Circle => {
                let radius = fine(radius);
                self.area.draw(&Circle::new(point(place), radius, inside.filled()))?;
                self.area.draw(&Circle::new(point(place), radius, outline))?;
                return Ok(());
            }
            Mark::Cross => {
                let r = radius * 0.85;
                for (dx, dy) in [(r, r), (r, -r)] {
                    let ends = [(x - dx, y - dy), (x + dx, y + dy)];
                    let width = if full { 2.4 } else { 1.4 };
                    self.line(&ends, style.colour, width, Dash::Solid)?;
                }
                return Ok(());
            }
            Mark::Triangle => &[(0.0, -1.25), (1.15, 0.8), (-1.15, 0.8)],
            Mark::Inverted => &[(0.0, 1.25), (1.15, -0.8), (-1.15, -0.8)],
            Mark::Square => &[(-0.92, -0.92), (0.92, -0.92), (0.92, 0.92), (-0.92, 0.92)],
            Mark::Diamond => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
        };
        let at = |(dx, dy): &Place| point((x + dx * radius, y + dy * radius));
        let mut points: Vec<(i32, i32)> = corners.iter().map(at).collect();
        self.area.draw(&Polygon::new(points.clone(), inside.filled()))?;
        points.extend_from_within(..2.min(points.len()));
        self.area.draw(&PathElement::new(points, outline))?;
        Ok(())
    }
}

fn point((x, y): Place) -> (i32, i32) {
    (fine(x), fine(y))
}
