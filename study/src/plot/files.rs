//! Figures as files for papers: PDF and PNG are made of the SVG.

use anyhow::{Context, Result, anyhow, ensure};
use krilla::geom::Size;
use krilla::page::PageSettings;
use krilla_svg::{SurfaceExt, SvgSettings};
use resvg::usvg::fontdb::Database;
use resvg::usvg::{Options, Tree};
use std::sync::{Arc, OnceLock};

/// The kind of a figure's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// For LaTeX and typst: letters stay letters.
    Pdf,
    /// For Inkscape, Word and web pages.
    Svg,
    /// For slides, with 300 points to the inch.
    Png,
}

impl FileFormat {
    /// Each with the word by which it is asked for, which is the ending of its files.
    pub const ALL: [(&'static str, Self); 3] =
        [("pdf", Self::Pdf), ("svg", Self::Svg), ("png", Self::Png)];

    /// The ending of its files.
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, format)| *format == self).map_or("", |(word, _)| word)
    }
}

/// What figures are drawn for: a web page, or the column of a paper.
#[derive(Clone, Debug)]
pub struct Page {
    /// How wide they are, in points (of a web page, in pixels).
    pub(super) width: f64,
    /// The size that plotters is given for letters, likewise; it draws them smaller by [`SHRUNK`].
    pub(super) font: f64,
    /// Whether they bear their title; in papers the caption says it.
    pub(super) titled: bool,
    /// What letters of PDF and PNG are drawn with, once it has been asked for.
    fonts: OnceLock<Arc<Database>>,
}

impl Default for Page {
    fn default() -> Self {
        Self { width: 840.0, font: 14.5, titled: true, fonts: OnceLock::new() }
    }
}

/// The size that plotters is given for letters, over the size that it writes into an SVG file.
const SHRUNK: f64 = 1.24;

/// Points in a millimetre.
const MILLIMETRE: f64 = 72.0 / 25.4;
/// The inch's pixels over its points.
const PIXELS: f32 = 300.0 / 72.0;

impl Page {
    /// A paper's column of so many millimetres, with letters of 7.5 points.
    ///
    /// # Errors
    /// Where no figure could be read any more.
    pub fn column(millimetres: f64) -> Result<Self> {
        ensure!(
            (40.0..=400.0).contains(&millimetres),
            "a figure is 40 to 400 mm wide, and not {millimetres} mm: a column is 84 mm in most journals"
        );
        let width = millimetres * MILLIMETRE;
        Ok(Self { width, font: 7.5 * SHRUNK, titled: false, fonts: OnceLock::new() })
    }

    /// What a converter needs to know: the fonts of this machine.
    pub(super) fn options(&self) -> Result<Options<'_>> {
        let fonts = self.fonts.get_or_init(|| Arc::new(system_fonts()));
        ensure!(
            !fonts.is_empty(),
            "this machine has no font that letters could be drawn with: install one (on Debian \
             fonts-dejavu-core), or ask for svg alone"
        );
        Ok(Options { fontdb: Arc::clone(fonts), ..Options::default() })
    }

    /// The bytes of a file of this format for what `svg` shows.
    ///
    /// # Errors
    /// When a converter refuses it, and where this machine has no font to draw PDF and PNG with.
    pub fn file(&self, svg: &str, format: FileFormat) -> Result<Vec<u8>> {
        let tree = || Ok::<_, anyhow::Error>(Tree::from_str(svg, &self.options()?)?);
        match format {
            FileFormat::Svg => Ok(svg.as_bytes().to_vec()),
            FileFormat::Pdf => pdf(&tree()?),
            FileFormat::Png => png(&tree()?),
        }
    }
}

/// The fonts of this machine, and one of them for letters without serifs.
fn system_fonts() -> Database {
    let mut fonts = Database::new();
    fonts.load_system_fonts();
    let families = fonts.faces().filter_map(|face| Some(face.families.first()?.0.clone()));
    let families: Vec<String> = families.collect();
    let wanted = ["Helvetica", "Arial", "Liberation Sans", "DejaVu Sans"];
    let known = wanted.iter().find(|name| families.iter().any(|family| family == *name));
    if let Some(family) = known.map(ToString::to_string).or(families.into_iter().next()) {
        fonts.set_sans_serif_family(family);
    }
    fonts
}

fn pdf(tree: &Tree) -> Result<Vec<u8>> {
    let size = Size::from_wh(tree.size().width(), tree.size().height()).context("its size")?;
    let mut document = krilla::Document::new();
    let mut page = document.start_page_with(PageSettings::new(size));
    let mut surface = page.surface();
    surface.draw_svg(tree, size, SvgSettings::default()).context("it cannot be drawn")?;
    surface.finish();
    page.finish();
    document.finish().map_err(|error| anyhow!("{error:?}"))
}

fn png(tree: &Tree) -> Result<Vec<u8>> {
    let size = tree.size().to_int_size().scale_by(PIXELS).context("its size")?;
    let pixels = resvg::tiny_skia::Pixmap::new(size.width(), size.height());
    let mut pixels = pixels.context("its size")?;
    let scale = resvg::tiny_skia::Transform::from_scale(PIXELS, PIXELS);
    resvg::render(tree, scale, &mut pixels.as_mut());
    Ok(pixels.encode_png()?)
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, Figure, Quantity, Series, Style};
    use super::*;

    #[test]
    fn a_column_has_its_width_in_every_format() {
        let axis = |title| Axis::new(title, Quantity::Number, false, [1.0, 2.0]);
        let line = Series::line("arm", Style::numbered(0), vec![(1.0, 1.0), (2.0, 2.0)]);
        let figure = Figure::new("title", axis("x"), axis("y"), vec![line]);
        let page = Page::column(84.0).unwrap();
        let file = |format| page.file(&figure.svg(&page), format).unwrap();
        let svg = String::from_utf8(file(FileFormat::Svg)).unwrap();
        // Letters of 7.5 points, in tenths.
        assert!(svg.contains("<svg width=\"238.1\"") && svg.contains("font-size=\"75"), "{svg}");
        let pdf = file(FileFormat::Pdf);
        assert!(pdf.starts_with(b"%PDF-"));
        let text = String::from_utf8_lossy(&pdf);
        assert!(text.contains("238.1") && text.contains("/FontFile"), "letters stay letters");
        let png = image::load_from_memory(&file(FileFormat::Png)).unwrap();
        assert!(png.width().abs_diff(992) < 4, "84 mm at 300 points to the inch: {}", png.width());
        let refusal = |mm| Page::column(mm).unwrap_err().to_string();
        assert!(refusal(3.0).contains("40 to 400 mm") && refusal(f64::NAN).contains("84 mm"));
    }
}
