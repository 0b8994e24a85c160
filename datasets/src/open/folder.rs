//! A folder of class folders with pictures.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use walkdir::WalkDir;

use super::{Part, Read, Resize, Values, Which, entries, in_order, is_hidden, named, picture};
use crate::definition::{About, DEFAULT_DIR, Data, Definition, Form, check_count};
use crate::error::{Error, Result};
use crate::files::{FileSum, sha256};
use crate::images::Size;
use crate::survey::Survey;

/// A folder of class folders with pictures, and what they are made into.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ImageFolder {
    /// The folder that holds the class folders, or `train/` and `test/` (also `val/`) with class folders in each.
    pub dir: PathBuf,
    /// Rows and columns of every image; pictures of another size are made to fit, by `resize`.
    #[cfg_attr(feature = "schema", schemars(range(min = 4, max = 1024)))]
    pub size: usize,
    /// Values per pixel: 3 for colours, 1 for grey.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = [1, 3])))]
    pub channels: usize,
    /// What becomes of pictures that have another size: `crop`, `fit` or `stretch`.
    pub resize: Resize,
    /// Where there is no folder for testing: the share of each class that is tested on, 0.1 if left out. Which
    /// pictures that are follows from what they show, not from a seed.
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

impl Default for ImageFolder {
    fn default() -> Self {
        Self {
            dir: DEFAULT_DIR.into(),
            size: 32,
            channels: 3,
            resize: Resize::Crop,
            test_share: None,
            train_limit: None,
            test_limit: None,
        }
    }
}

impl Definition for ImageFolder {
    fn about(&self) -> About {
        About {
            name: "image-folder",
            line: "class folders of PNG and JPEG files of one's own",
            paper: "",
        }
    }

    fn form(&self) -> Result<Form> {
        let (train, _) = parts(&self.dir)?;
        Ok(Form { shape: self.images().shape(), classes: in_order(class_names(&train)?).len() })
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
        Some(self.read().map(|read| read.survey(&self.dir)))
    }
}

impl ImageFolder {
    fn which(&self) -> Which {
        let &Self { test_share, train_limit, test_limit, .. } = self;
        Which { test_share, train_limit, test_limit }
    }

    fn images(&self) -> Size {
        Size { height: self.size, width: self.size, channels: self.channels }
    }

    fn read(&self) -> Result<Read> {
        let (train, test) = parts(&self.dir)?;
        let classes = in_order(class_names(&train)?);
        let train = Pictures::find(&train, &classes)?;
        let test = test.map(|test| Pictures::find(&test, &classes)).transpose()?;
        let (mut files, mut others) = (Vec::new(), train.others.clone());
        let (part, sum) = self.decoded(&train)?;
        files.push(sum);
        let test = match test {
            None => None,
            Some(test) => {
                others.extend(test.others.clone());
                let (part, sum) = self.decoded(&test)?;
                files.push(sum);
                Some(part)
            }
        };
        let left_out = (!others.is_empty()).then(|| {
            let names: Vec<String> = others.iter().map(|path| path.display().to_string()).collect();
            format!("files that are no pictures are left out: {}", named(&names))
        });
        let read = Read::new(&self.dir, classes, [Some(part), test], self.which(), files)?;
        Ok(read.with_warnings(left_out))
    }

    /// The pictures' pixels, decoded by all cores; and one sum of all their files.
    fn decoded(&self, pictures: &Pictures) -> Result<(Part, FileSum)> {
        let (size, side) = (self.images(), self.size as u32);
        let mut pixels = vec![0; pictures.files.len() * size.bytes()];
        let decode = |(out, (path, _)): (&mut [u8], &(PathBuf, u32))| {
            let bytes = fs::read(path);
            let bytes = bytes.map_err(|cause| Error::Read { path: path.clone(), cause })?;
            let decoded = picture::decode(&bytes).map_err(|problem| Error::unfit(path, problem))?;
            out.copy_from_slice(&picture::square(decoded, side, self.channels, self.resize));
            Ok((bytes.len() as u64, sha256(&bytes)))
        };
        let done: Vec<Result<(u64, String)>> =
            pixels.par_chunks_mut(size.bytes()).zip(&pictures.files).map(decode).collect();
        let (mut total, mut sums) = (0, String::new());
        for (done, (path, _)) in done.into_iter().zip(&pictures.files) {
            let (bytes, sum) = done?;
            total += bytes;
            let inner = path.strip_prefix(&pictures.root).unwrap_or(path);
            sums += &format!("{} {sum}\n", inner.display());
        }
        let labels = pictures.files.iter().map(|(_, label)| *label).collect();
        let name = pictures.root.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = if pictures.root == self.dir { "pictures".into() } else { name };
        let sum = FileSum { name, bytes: total, sha256: sha256(sums.as_bytes()), official: false };
        let names = pictures.files.iter().map(|(path, _)| path.display().to_string());
        Ok((Part::new(Values::Images(size, pixels), labels).with_names(names), sum))
    }
}

/// The folder of the training set's class folders, and that of the test set's where there is one.
pub(crate) fn parts(dir: &Path) -> Result<(PathBuf, Option<PathBuf>)> {
    entries(dir)?;
    let among = |names: &[&str]| {
        let mut paths = names.iter().map(|name| dir.join(name));
        // Without folders of its own it is a class of that name.
        paths.find(|path| class_names(path).is_ok_and(|classes| !classes.is_empty()))
    };
    match among(&["train", "training"]) {
        Some(train) => Ok((train, among(&["test", "testing", "val", "valid", "validation"]))),
        None => Ok((dir.to_owned(), None)),
    }
}

/// The names of the folders in `dir`.
pub(crate) fn class_names(dir: &Path) -> Result<BTreeSet<String>> {
    let folders = entries(dir)?.into_iter().filter(|path| path.is_dir());
    folders
        .map(|path| {
            let name = path.file_name().unwrap_or_default().to_str().map(str::to_owned);
            name.ok_or_else(|| Error::unfit(&path, "its name is not UTF-8; rename it"))
        })
        .collect()
}

/// Picture files of class folders.
pub(crate) struct Pictures {
    root: PathBuf,
    /// Each with its class, in the order of their paths within the classes.
    pub(crate) files: Vec<(PathBuf, u32)>,
    /// Files that are no pictures.
    others: Vec<PathBuf>,
}

impl Pictures {
    /// The pictures in the folders of `root`, which must be some of `classes`.
    pub(crate) fn find(root: &Path, classes: &[String]) -> Result<Self> {
        let found = class_names(root)?;
        let own: BTreeSet<String> = classes.iter().cloned().collect();
        let foreign: Vec<&String> = found.difference(&own).collect();
        if !foreign.is_empty() {
            let problem = format!(
                "has folders of classes that the training set has not: {}; its classes are {}. Rename or take \
                 away those folders, or add them to the training set",
                named(&foreign),
                named(classes)
            );
            return Err(Error::unfit(root, problem));
        }
        let mut this = Self { root: root.to_owned(), files: Vec::new(), others: Vec::new() };
        for (label, class) in (0..).zip(classes).filter(|(_, class)| found.contains(*class)) {
            let folder = root.join(class);
            let walk = WalkDir::new(&folder).follow_links(true).sort_by_file_name();
            let seen = |entry: &walkdir::DirEntry| entry.depth() == 0 || !is_hidden(entry.path());
            for entry in walk.into_iter().filter_entry(seen) {
                let entry = entry.map_err(|error| unwalkable(&folder, error))?;
                if entry.file_type().is_file() {
                    this.add(entry.into_path(), label)?;
                }
            }
        }
        Ok(this)
    }

    fn add(&mut self, path: PathBuf, label: u32) -> Result<()> {
        let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        match extension.as_str() {
            "png" | "jpg" | "jpeg" | "jpe" | "jfif" => self.files.push((path, label)),
            "gif" | "webp" | "bmp" | "tif" | "tiff" | "avif" | "heic" | "ppm" | "pgm" => {
                let problem =
                    format!("is a picture of the format {extension}; convert it to PNG or JPEG");
                return Err(Error::unfit(path, problem));
            }
            _ => self.others.push(path),
        }
        Ok(())
    }
}

fn unwalkable(folder: &Path, error: walkdir::Error) -> Error {
    let path = error.path().unwrap_or(folder).to_owned();
    match error.loop_ancestor() {
        Some(ancestor) => {
            let problem = format!(
                "is a symbolic link in a circle, back to {}; take it away",
                ancestor.display()
            );
            Error::unfit(path, problem)
        }
        None => Error::Read { path, cause: error.into() },
    }
}
