//! Arrays of images and labels: IDX files and NumPy's `.npz`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use image::DynamicImage;
use rayon::prelude::*;

use super::{LARGEST, Part, RawValues, Read, Resize, idx, npz, numbered, picture};
use crate::definition::{
    About, DEFAULT_DIR, Data, DatasetDefinition, Form, Reading, Selection, check_count,
};
use crate::error::{Error, Result};
use crate::files::FileSum;
use crate::images::Size;
use crate::survey::Survey;

settings! {
    /// A folder of IDX files, or a `.npz` file.
    pub struct Arrays {
        /// The folder that holds IDX files, such as `train-images-idx3-ubyte` or `t10k-labels-idx1-ubyte.gz`; or the
        /// `.npz` file, with arrays of the names `train_images`, `train_labels`, `test_images`, `test_labels` (as
        /// MedMNIST) or `x_train`, `y_train`, `x_test`, `y_test` (as Keras).
        pub path: PathBuf = DEFAULT_DIR.into(),
        /// Rows and columns that every image is made into, by `resize`; without it images stay as they are.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(range(min = 4, max = 1024)))]
        pub size: Option<usize> = None,
        /// Values per pixel that images are made into: 3 for colours, 1 for grey; without it they stay as they are.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(extend("enum" = [1, 3])))]
        pub channels: Option<usize> = None,
        /// What becomes of images of another size: `crop`, `fit` or `stretch`.
        pub resize: Resize = Resize::Crop,
    }
}

impl DatasetDefinition for Arrays {
    fn about(&self) -> About {
        let line = "arrays of images: IDX files as MNIST's, or a NumPy file as MedMNIST's";
        About { name: "arrays", line, paper: "" }
    }

    fn form(&self) -> Result<Form> {
        let (size, labels) = match self.is_folder() {
            true => idx::form(&self.path)?,
            false => npz::form(&self.path)?,
        };
        let classes: BTreeSet<String> = labels.into_iter().collect();
        Ok(Form { shape: self.made(size).shape(), classes: classes.len() })
    }

    fn validate(&self, _samples: &Selection) -> Result<()> {
        self.size.map_or(Ok(()), |size| check_count("dataset.size", size, 4, 1024))?;
        self.channels.map_or(Ok(()), picture::check_channels)
    }

    fn load(&self, reading: &Reading<'_>) -> Result<Data> {
        self.read(&reading.samples)?.into_data(None)
    }

    fn survey(&self) -> Option<Result<Survey>> {
        Some(self.read(&Selection::default()).map(|read| read.survey(&self.path)))
    }
}

/// What was read: the training set, the test set where there is one, the files, and what is to be said.
pub(super) struct ReadArrays {
    pub(super) train: Labelled,
    pub(super) test: Option<Labelled>,
    pub(super) files: Vec<FileSum>,
    pub(super) warning: Option<String>,
}

impl Arrays {
    /// Whether IDX files are meant, which are several, or a NumPy file.
    fn is_folder(&self) -> bool {
        !self.path.is_file()
    }

    /// The size of images that had this one.
    fn made(&self, size: Size) -> Size {
        let channels = self.channels.unwrap_or(size.channels);
        let [height, width] = [size.height, size.width].map(|side| self.size.unwrap_or(side));
        Size { height, width, channels }
    }

    /// The images in the size that is wanted.
    fn resized(&self, Images { size, pixels }: Images) -> std::result::Result<RawValues, String> {
        let made = self.made(size);
        if made == size {
            return Ok(RawValues::Images(size, pixels));
        }
        check_bytes(((pixels.len() / size.bytes()) as u64).saturating_mul(made.bytes() as u64))?;
        let (width, height) = (size.width as u32, size.height as u32);
        let picture = |pixels: &[u8]| match size.channels {
            1 => image::GrayImage::from_raw(width, height, pixels.into()).map(DynamicImage::from),
            _ => image::RgbImage::from_raw(width, height, pixels.into()).map(DynamicImage::from),
        };
        let resized = |pixels: &[u8]| {
            let picture = picture(pixels).expect("invariant: an image has its size's bytes");
            match self.size {
                Some(side) => picture::square(picture, side as u32, made.channels, self.resize),
                None => picture::coloured(picture, made.channels).into_bytes(),
            }
        };
        let pixels = pixels.par_chunks(size.bytes()).flat_map_iter(resized).collect();
        Ok(RawValues::Images(made, pixels))
    }

    pub(crate) fn read(&self, samples: &Selection) -> Result<Read> {
        let found = match self.is_folder() {
            true => idx::read(&self.path)?,
            false => npz::read(&self.path)?,
        };
        let ReadArrays { train, test, files, warning } = found;
        let unfit = |problem: String| Error::unfit(&self.path, problem);
        if let Some((test, _)) = test.as_ref().filter(|(test, _)| test.size != train.0.size) {
            let size = |size: Size| format!("{} × {} × {}", size.height, size.width, size.channels);
            let (train, test) = (size(train.0.size), size(test.size));
            let problem =
                format!("has training images of {train} values and test images of {test}");
            return Err(unfit(problem));
        }
        let tested = test.as_ref().map_or(&[][..], |(_, labels)| labels);
        let (classes, [train_labels, test_labels]) = numbered(&train.1, tested)
            .map_err(|(place, problem)| unfit(format!("test sample {}: {problem}", place + 1)))?;
        let part = |images, labels| Ok(Part::new(self.resized(images).map_err(unfit)?, labels));
        let test = test.map(|test| part(test.0, test_labels)).transpose()?;
        let parts = [Some(part(train.0, train_labels)?), test];
        let read = Read::new(&self.path, classes, parts, samples, files)?;
        Ok(read.with_warnings(warning))
    }
}

/// The most rows or columns of an image.
const SIDE: u64 = 1024;

/// Refuses values of so many bytes before they are unpacked into memory, if that is too many.
pub(super) fn check_bytes(bytes: u64) -> std::result::Result<(), String> {
    match bytes > LARGEST {
        true => Err(format!("has {bytes} bytes of values, and at most {LARGEST} are read")),
        false => Ok(()),
    }
}

/// The most samples: each takes a hundred bytes beside its pixels.
const SAMPLES: u64 = 1 << 28;

/// Refuses labels of another number than the images that they are for, or too many, before they are unpacked; `images`
/// and `labels` are the shapes of both arrays.
pub(super) fn check_counts(
    images: &[u64],
    labels: &[u64],
    set: &str,
) -> std::result::Result<(), String> {
    match (images[0], labels[0]) {
        (images, labels) if images != labels => {
            Err(format!("has {images} images and {labels} labels for {set}"))
        }
        (images, _) if images > SAMPLES => {
            Err(format!("has {images} images for {set}, and at most {SAMPLES} are read"))
        }
        _ => Ok(()),
    }
}

/// Images of one size.
pub(super) struct Images {
    pub(super) size: Size,
    pub(super) pixels: Vec<u8>,
}

/// Images and their labels.
pub(super) type Labelled = (Images, Vec<String>);

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
