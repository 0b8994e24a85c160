//! IDX files, as MNIST, FashionMNIST and KMNIST are given away, packed by gzip or not
//! (LeCun, Cortes and Burges, "The MNIST database of handwritten digits", 1998).
//!
//! A file is two zero bytes, one for the type of its values (8: a byte), one for the number of dimensions, the
//! dimensions in four bytes each with the highest first, and the values.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::array::{self, Arrays, Images};
use super::{Read, Which, contents, entries, named, unpacked};
use crate::definition::{About, DEFAULT_DIR, Data, Definition, Form};
use crate::error::{Error, Result};
use crate::files::FileSum;
use crate::survey::Survey;

/// A folder of IDX files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Idx {
    /// The folder that holds the files, such as `train-images-idx3-ubyte` or `t10k-labels-idx1-ubyte.gz`.
    pub dir: PathBuf,
    /// Where there are no files for testing: the share of each class that is tested on, 0.1 if left out. Which
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

impl Default for Idx {
    fn default() -> Self {
        Self { dir: DEFAULT_DIR.into(), test_share: None, train_limit: None, test_limit: None }
    }
}

impl Definition for Idx {
    fn about(&self) -> About {
        let line = "IDX files: MNIST, FashionMNIST, KMNIST, EMNIST";
        About { name: "idx", line, paper: "LeCun, Cortes and Burges 1998" }
    }

    fn form(&self) -> Result<Form> {
        let (images, _) = file(&self.dir, TRAIN, "images")?.read()?;
        let (labels, _) = file(&self.dir, TRAIN, "labels")?.read()?;
        let classes: std::collections::BTreeSet<u8> = labels.values.iter().copied().collect();
        Ok(Form { shape: images.images()?.size.shape(), classes: classes.len() })
    }

    fn validate(&self) -> Result<()> {
        self.which().validate()
    }

    fn load(&self, _scratch: &Path, _vocabulary: Option<&str>) -> Result<Data> {
        self.read()?.into_data(None)
    }

    fn survey(&self) -> Option<Result<Survey>> {
        Some(self.read().map(|read| read.survey(&self.dir)))
    }
}

/// What the names of files for training begin with, or hold.
const TRAIN: &[&str] = &["train"];
/// The same of files for testing.
const TEST: &[&str] = &["t10k", "test"];

impl Idx {
    fn which(&self) -> Which {
        let &Self { test_share, train_limit, test_limit, .. } = self;
        Which { test_share, train_limit, test_limit }
    }

    pub(crate) fn read(&self) -> Result<Read> {
        let mut files = Vec::new();
        let mut read = |part: &[&str]| -> Result<Arrays> {
            let (images, image_sum) = file(&self.dir, part, "images")?.read()?;
            let (labels, label_sum) = file(&self.dir, part, "labels")?.read()?;
            files.extend([image_sum, label_sum]);
            Ok(Arrays { images: images.images()?, labels: labels.labels()? })
        };
        let train = read(TRAIN)?;
        let test = if has(&self.dir, TEST)? { Some(read(TEST)?) } else { None };
        let names = ["training", "testing"];
        array::read(&self.dir, names, [Some(train), test], self.which(), files)
    }
}

/// The IDX files in `dir` whose names hold one of `part`.
fn found(dir: &Path, part: &[&str]) -> Result<Vec<PathBuf>> {
    let mut paths = entries(dir)?;
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        path.is_file() && is_idx(path) && part.iter().any(|part| name.contains(part))
    });
    Ok(paths)
}

/// Whether a file is called as IDX files are.
pub(crate) fn is_idx(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    name.contains("idx") && name.contains("ubyte")
}

fn has(dir: &Path, part: &[&str]) -> Result<bool> {
    Ok(!found(dir, part)?.is_empty())
}

/// The one file of `what` in `dir`; of several that differ only in being packed, the one that is not.
fn file(dir: &Path, part: &[&str], what: &str) -> Result<File> {
    let mut paths = found(dir, part)?;
    paths.retain(|path| path.to_string_lossy().to_lowercase().contains(what));
    if let [plain, packed] = paths.as_slice()
        && packed.file_stem() == plain.file_name()
    {
        paths.truncate(1);
    }
    match paths.as_slice() {
        [path] => Ok(File(path.clone())),
        [] => {
            let problem = format!(
                "has no IDX file of {what} for {}: such as {}-{what}-idx{}-ubyte, or with .gz",
                part[part.len() - 1],
                part[0],
                if what == "images" { 3 } else { 1 }
            );
            Err(Error::unfit(dir, problem))
        }
        several => {
            let names: Vec<_> =
                several.iter().filter_map(|path| path.file_name()?.to_str()).collect();
            let problem = format!(
                "has several IDX files of {what} for {}: {}; put each data set into a folder of its own",
                part[part.len() - 1],
                named(&names)
            );
            Err(Error::unfit(dir, problem))
        }
    }
}

struct File(PathBuf);

/// What an IDX file holds.
struct Array {
    path: PathBuf,
    shape: Vec<u64>,
    values: Vec<u8>,
}

impl File {
    fn read(self) -> Result<(Array, FileSum)> {
        let Self(path) = self;
        let (packed, sum) = contents(&path)?;
        let unfit = |problem: String| Error::unfit(&path, problem);
        // No more than the header says, once that is known: four dimensions of four bytes.
        let head =
            unpacked(packed.clone(), 19).map_err(|e| unfit(format!("cannot be unpacked: {e}")))?;
        let (shape, start) = header(&head).map_err(unfit)?;
        let count = shape.iter().try_fold(1u64, |product, &side| product.checked_mul(side));
        let whole = count.and_then(|count| count.checked_add(start as u64));
        let whole = whole.ok_or_else(|| unfit(format!("cannot have the shape {shape:?}")))?;
        let mut values =
            unpacked(packed, whole).map_err(|e| unfit(format!("cannot be unpacked: {e}")))?;
        if values.len() as u64 != whole {
            let (found, more) = (values.len(), values.len() as u64 > whole);
            let problem = format!(
                "has {} bytes, and with the shape {shape:?} it should have {whole}; get it again",
                if more { format!("more than {whole}") } else { found.to_string() }
            );
            return Err(unfit(problem));
        }
        values.drain(..start);
        Ok((Array { path, shape, values }, sum))
    }
}

/// The dimensions, and where the values begin.
fn header(bytes: &[u8]) -> std::result::Result<(Vec<u64>, usize), String> {
    let (dimensions, rest) = match bytes {
        [0, 0, 8, dimensions @ 1..=4, rest @ ..] => (usize::from(*dimensions), rest),
        [0, 0, kind @ (9 | 11..=14), ..] => {
            return Err(format!("holds values of type {kind}; only bytes (8) are read"));
        }
        _ => return Err("is no IDX file: it does not begin with 0, 0, 8 and 1 to 4".into()),
    };
    let (sides, _) = rest.as_chunks::<4>();
    let shape: Vec<u64> =
        sides.iter().take(dimensions).map(|side| u32::from_be_bytes(*side).into()).collect();
    match shape.len() == dimensions {
        true => Ok((shape, 4 + 4 * dimensions)),
        false => Err(format!("ends within its header, at byte {}", bytes.len())),
    }
}

impl Array {
    fn images(self) -> Result<Images> {
        let size =
            array::size_of(&self.shape).map_err(|problem| Error::unfit(self.path, problem))?;
        Ok(Images { size, pixels: self.values })
    }

    fn labels(self) -> Result<Vec<String>> {
        if self.shape.len() != 1 {
            let problem = format!("has the shape {:?}; labels have one dimension", self.shape);
            return Err(Error::unfit(self.path, problem));
        }
        Ok(self.values.iter().map(ToString::to_string).collect())
    }
}
