//! Arrays of images and labels, as IDX and NumPy files hold them.

use std::path::Path;

use super::{Part, Read, Values, Which, numbered};
use crate::error::{Error, Result};
use crate::files::FileSum;
use crate::images::Size;

/// The most rows or columns of an image.
const SIDE: u64 = 1024;

/// Images of one size.
pub(super) struct Images {
    pub(super) size: Size,
    pub(super) pixels: Vec<u8>,
}

/// Images and their labels, as far as they are there.
pub(super) struct Arrays {
    pub(super) images: Images,
    pub(super) labels: Vec<String>,
}

/// The size of the images of an array of `shape`: images, rows, columns, and values of a pixel unless they are grey.
///
/// # Errors
/// A sentence that says what is wrong with it, and what to do.
pub(super) fn size_of(shape: &[u64]) -> std::result::Result<Size, String> {
    let (height, width, channels) = match *shape {
        [_, height, width] => (height, width, 1),
        [_, height, width, channels @ (1 | 3)] => (height, width, channels),
        [_, 1 | 3, ..] if shape.len() == 4 => {
            return Err(format!(
                "has the shape {shape:?}, with channels before rows and columns; transpose it: \
                 images.transpose(0, 2, 3, 1)"
            ));
        }
        _ => {
            return Err(format!(
                "has the shape {shape:?}; images are (images, rows, columns), or with 1 or 3 channels behind"
            ));
        }
    };
    if !(1..=SIDE).contains(&height) || !(1..=SIDE).contains(&width) {
        return Err(format!("has images of {height} × {width} pixels; 1 to {SIDE} are possible"));
    }
    let [height, width, channels] = [height, width, channels].map(|side| side as usize);
    Ok(Size { height, width, channels })
}

/// The data set of the arrays in `path`; each of the two sets goes by its name in messages.
pub(super) fn read(
    path: &Path,
    names: [&str; 2],
    [train, test]: [Option<Arrays>; 2],
    which: Which,
    files: Vec<FileSum>,
) -> Result<Read> {
    for (name, arrays) in names.iter().zip([&train, &test]) {
        let Some(Arrays { images, labels }) = arrays else { continue };
        let found = images.pixels.len() / images.size.bytes();
        if found != labels.len() {
            let problem = format!("has {found} images and {} labels for {name}", labels.len());
            return Err(Error::unfit(path, problem));
        }
    }
    let train = train.ok_or_else(|| Error::unfit(path, "has no training set"))?;
    if let Some(test) = test.as_ref().filter(|test| test.images.size != train.images.size) {
        let size = |size: Size| format!("{} × {} × {}", size.height, size.width, size.channels);
        let (train, test) = (size(train.images.size), size(test.images.size));
        let problem = format!("has training images of {train} values and test images of {test}");
        return Err(Error::unfit(path, problem));
    }
    let none = Vec::new();
    let labels = test.as_ref().map_or(&none, |test| &test.labels);
    let (classes, [train_labels, test_labels]) =
        numbered(&train.labels, labels).map_err(|(place, problem)| {
            Error::unfit(path, format!("test sample {}: {problem}", place + 1))
        })?;
    let part = |Images { size, pixels }, labels| Part::new(Values::Images(size, pixels), labels);
    let train = part(train.images, train_labels);
    let test = test.map(|test| part(test.images, test_labels));
    Read::new(path, classes, [Some(train), test], which, files)
}
