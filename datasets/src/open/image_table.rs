//! A Parquet file with a column of pictures, as the hub gives away sets of images.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use image::DynamicImage;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::parquet::{Cell, Parquet};
use super::{Part, Read, Resize, Values, Which, in_order, named, numbered, picture};
use crate::definition::{About, Data, Definition, Form, check_count};
use crate::error::{Error, Result};
use crate::files::FileSum;
use crate::images::Size;
use crate::survey::Survey;

/// A Parquet file with a column of PNG or JPEG files and one of labels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ImageTable {
    /// The file. Reading it needs a build with `--features fetch`.
    pub file: PathBuf,
    /// The file to test on, with the same columns; without it a share of `file` is tested on.
    pub test_file: Option<PathBuf>,
    /// The column of pictures: the bytes of a PNG or JPEG file, or a group that has them as `bytes`.
    pub image: String,
    /// The column of labels: words or whole numbers, wherever those begin.
    pub label: String,
    /// Rows and columns of every image; pictures of another size are made to fit, by `resize`.
    #[cfg_attr(feature = "schema", schemars(range(min = 4, max = 1024)))]
    pub size: usize,
    /// Values per pixel: 3 for colours, 1 for grey.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = [1, 3])))]
    pub channels: usize,
    /// What becomes of pictures that have another size: `crop`, `fit` or `stretch`.
    pub resize: Resize,
    /// Where there is no file for testing: the share of each class that is tested on, 0.1 if left out. Which
    /// images that are follows from what they show, not from a seed.
    #[cfg_attr(
        feature = "schema",
        schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))
    )]
    pub test_share: Option<f64>,
    /// Use only so many training images.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub train_limit: Option<usize>,
    /// Use only so many test images.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub test_limit: Option<usize>,
}

impl Default for ImageTable {
    fn default() -> Self {
        Self {
            file: "train.parquet".into(),
            test_file: None,
            image: "image".into(),
            label: "label".into(),
            size: 32,
            channels: 3,
            resize: Resize::Crop,
            test_share: None,
            train_limit: None,
            test_limit: None,
        }
    }
}

impl Definition for ImageTable {
    fn about(&self) -> About {
        About {
            name: "image-table",
            line: "a Parquet file of one's own with a column of pictures",
            paper: "",
        }
    }

    fn form(&self) -> Result<Form> {
        let mut labels = BTreeSet::new();
        let file = Parquet::open(&self.file)?;
        file.rows(&[self.place(&file, &self.label)?], usize::MAX, |_, mut cells| {
            labels.insert(label(cells.pop())?);
            Ok(())
        })?;
        Ok(Form { shape: self.images().shape(), classes: in_order(labels).len() })
    }

    fn validate(&self) -> Result<()> {
        check_count("dataset.size", self.size, 4, 1024)?;
        picture::check_channels(self.channels)?;
        self.which().validate()
    }

    fn load(&self, _scratch: &Path, _vocabulary: Option<&str>) -> Result<Data> {
        self.read()?.into_data(None)
    }

    fn survey(&self) -> Option<Result<Survey>> {
        Some(self.read().map(|read| read.survey(&self.file)))
    }
}

impl ImageTable {
    fn which(&self) -> Which {
        let &Self { test_share, train_limit, test_limit, .. } = self;
        Which { test_share, train_limit, test_limit }
    }

    fn images(&self) -> Size {
        Size { height: self.size, width: self.size, channels: self.channels }
    }

    fn place(&self, file: &Parquet, column: &str) -> Result<usize> {
        let columns = file.columns();
        columns.iter().position(|found| found == column).ok_or_else(|| {
            let problem = format!("has no column {column:?}; its columns are {}", named(&columns));
            Error::unfit(&self.file, problem)
        })
    }

    pub(crate) fn read(&self) -> Result<Read> {
        let (train, labels, sum) = self.columns(&self.file)?;
        let test = self.test_file.as_ref().map(|file| self.columns(file)).transpose()?;
        let tested = test.as_ref().map_or(&[][..], |(_, labels, _)| labels);
        let (classes, numbers) = numbered(&labels, tested).map_err(|(place, problem)| {
            let path = self.test_file.as_ref().unwrap_or(&self.file);
            Error::unfit(path, format!("row {}: {problem}", place + 1))
        })?;
        let [train_labels, test_labels] = numbers;
        let (size, mut files) = (self.images(), vec![sum]);
        let train = Part::new(Values::Images(size, train), train_labels);
        let test = test.map(|(pixels, _, sum)| {
            files.push(sum);
            Part::new(Values::Images(size, pixels), test_labels)
        });
        Read::new(&self.file, classes, [Some(train), test], self.which(), files)
    }

    /// Its first pictures, as they are.
    pub(crate) fn some(&self, most: usize) -> Result<Vec<DynamicImage>> {
        let file = Parquet::open(&self.file)?;
        let mut some = Vec::new();
        file.rows(&[self.place(&file, &self.image)?], most, |_, mut cells| {
            some.push(picture::decode(&self.bytes(cells.pop())?)?);
            Ok(())
        })?;
        Ok(some)
    }

    /// A picture's file.
    fn bytes(&self, cell: Option<Cell>) -> std::result::Result<Vec<u8>, String> {
        match cell {
            Some(Cell::Bytes(bytes)) => Ok(bytes),
            other => {
                let kind = other.as_ref().map_or("nothing", Cell::kind);
                Err(format!(
                    "the column {:?} holds {kind}, and a picture's bytes are wanted",
                    self.image
                ))
            }
        }
    }

    /// The pixels of the pictures of a file, decoded by all cores, and their labels.
    fn columns(&self, path: &Path) -> Result<(Vec<u8>, Vec<String>, FileSum)> {
        let file = Parquet::open(path)?;
        let (mut pictures, mut labels) = (Vec::new(), Vec::new());
        let places = [self.place(&file, &self.image)?, self.place(&file, &self.label)?];
        file.rows(&places, usize::MAX, |_, mut cells| {
            labels.push(label(cells.pop())?);
            pictures.push(self.bytes(cells.pop())?);
            Ok(())
        })?;
        let (size, side) = (self.images(), self.size as u32);
        let mut pixels = vec![0; pictures.len() * size.bytes()];
        let decode = |(place, (out, bytes)): (usize, (&mut [u8], &Vec<u8>))| {
            let row = |problem| Error::unfit(path, format!("row {}: {problem}", place + 1));
            let decoded = picture::decode(bytes).map_err(row)?;
            out.copy_from_slice(&picture::square(decoded, side, self.channels, self.resize));
            Ok(())
        };
        let rows = pixels.par_chunks_mut(size.bytes()).zip(&pictures).enumerate();
        rows.map(decode).collect::<Vec<_>>().into_iter().collect::<Result<()>>()?;
        Ok((pixels, labels, file.sum))
    }
}

/// What a row says that its picture shows.
fn label(cell: Option<Cell>) -> std::result::Result<String, String> {
    match cell {
        Some(Cell::Text(label)) if !label.trim().is_empty() => Ok(label.trim().to_owned()),
        _ => Err("has no label, which is a word or a whole number".into()),
    }
}
