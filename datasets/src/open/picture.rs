//! A PNG or JPEG file as pixels.

use std::io::Cursor;

use image::codecs::jpeg::JpegDecoder;
use image::codecs::png::PngDecoder;
use image::imageops::FilterType;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageResult, Limits, imageops};
use serde::{Deserialize, Serialize};

/// How a picture of another shape or size becomes a square of the wanted one. Where pixels are made of
/// others, they are their weighted means (linear, over as many pixels as become one).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Resize {
    /// The largest square in its middle is taken, and made smaller or larger.
    #[default]
    Crop,
    /// All of it is seen, between black borders.
    Fit,
    /// Height and width are changed each by itself.
    Stretch,
}

/// The most rows or columns of a picture.
const SIDE: u32 = 1 << 14;
/// The most bytes that a picture may take once it is decoded.
const BYTES: u64 = 1 << 28;

/// Refuses a number of values per pixel that no picture is made into.
pub(crate) fn check_channels(channels: usize) -> crate::error::Result<()> {
    if matches!(channels, 1 | 3) {
        return Ok(());
    }
    let problem = "write 3 for colours or 1 for grey";
    Err(crate::error::Error::setting("dataset.channels", &channels, problem))
}

/// The picture, upright as its EXIF data says.
///
/// # Errors
/// A sentence that says what is wrong with it, and what to do.
pub(crate) fn decode(bytes: &[u8]) -> Result<DynamicImage, String> {
    let broken = |error: ImageError| {
        format!("the picture cannot be decoded ({error}); replace it or take it away")
    };
    if bytes.is_empty() {
        return Err("is empty (0 bytes); replace it or take it away".into());
    }
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE);
    limits.max_image_height = Some(SIDE);
    limits.max_alloc = Some(BYTES);
    match image::guess_format(bytes) {
        Ok(ImageFormat::Png) => {
            let decoder = PngDecoder::with_limits(Cursor::new(bytes), limits.clone());
            let decoder = decoder.map_err(broken)?;
            if decoder.is_apng().map_err(broken)? {
                return Err("is an animated PNG; save the picture that is meant by itself".into());
            }
            upright(decoder, limits).map_err(broken)
        }
        Ok(ImageFormat::Jpeg) => {
            // A file that is cut short decodes to a picture that is grey from there on.
            let last = |marker: [u8; 2]| bytes.windows(2).rposition(|found| found == marker);
            if last([0xff, 0xda]) > last([0xff, 0xd9]) {
                return Err(
                    "the JPEG is cut short: it has no end; replace it or take it away".into()
                );
            }
            upright(JpegDecoder::new(Cursor::new(bytes)).map_err(broken)?, limits).map_err(broken)
        }
        Ok(other) => {
            Err(format!("is a picture of the format {other:?}; convert it to PNG or JPEG"))
        }
        Err(_) => Err("is neither a PNG nor a JPEG; replace it or take it away".into()),
    }
}

fn upright(mut decoder: impl ImageDecoder, mut limits: Limits) -> ImageResult<DynamicImage> {
    let (width, height) = decoder.dimensions();
    limits.check_dimensions(width, height)?;
    limits.reserve(decoder.total_bytes())?;
    decoder.set_limits(limits)?;
    let orientation = decoder.orientation()?;
    let mut picture = DynamicImage::from_decoder(decoder)?;
    picture.apply_orientation(orientation);
    Ok(picture)
}

/// The picture with so many 8-bit values per pixel, 1 or 3.
pub(crate) fn coloured(picture: DynamicImage, channels: usize) -> DynamicImage {
    match channels {
        1 => DynamicImage::ImageLuma8(picture.into_luma8()),
        _ => DynamicImage::ImageRgb8(picture.into_rgb8()),
    }
}

/// The picture as `side` × `side` pixels of `channels` values, 1 or 3: 16-bit values become 8-bit ones, a
/// palette its colours, colours their luminance where grey is wanted; transparency is ignored.
pub(crate) fn square(picture: DynamicImage, side: u32, channels: usize, resize: Resize) -> Vec<u8> {
    let mut picture = coloured(picture, channels);
    let (width, height) = (picture.width(), picture.height());
    if (width, height) != (side, side) {
        let least = width.min(height);
        picture = match resize {
            Resize::Crop => picture
                .crop_imm((width - least) / 2, (height - least) / 2, least, least)
                .resize_exact(side, side, FilterType::Triangle),
            Resize::Stretch => picture.resize_exact(side, side, FilterType::Triangle),
            Resize::Fit => {
                let inner = picture.resize(side, side, FilterType::Triangle);
                let mut whole = coloured(DynamicImage::new_rgb8(side, side), channels);
                let middle = |inner: u32| i64::from(side.saturating_sub(inner) / 2);
                let (left, top) = (middle(inner.width()), middle(inner.height()));
                imageops::replace(&mut whole, &inner, left, top);
                coloured(whole, channels)
            }
        };
    }
    picture.into_bytes()
}
