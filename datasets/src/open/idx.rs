//! IDX files, as MNIST, FashionMNIST and KMNIST are given away, packed by gzip or not
//! (LeCun, Cortes and Burges, "The MNIST database of handwritten digits", 1998).
//!
//! A file is two zero bytes, one for the type of its values (8: a byte), one for the number of dimensions, the
//! dimensions in four bytes each with the highest first, and the values.
//!
//! The reader of `candle-datasets` is not used: it takes memory for as many values as a file's header claims before it
//! reads them, reads the four unpacked files of MNIST's names alone, and loses the images' rows and columns.

use std::path::{Path, PathBuf};

use super::arrays::{Images, Labelled, ReadArrays, check_bytes, size_of};
use super::{contents, entries, file_name, named, unpacked};
use crate::error::{Error, Result};
use crate::files::FileSum;
use crate::images::Size;

/// What the names of files for training begin with, or hold.
const TRAIN: &[&str] = &["train"];
/// The same of files for testing.
const TEST: &[&str] = &["t10k", "test"];

/// The size of the images, and the labels of the training set.
pub(super) fn form(dir: &Path) -> Result<(Size, Vec<String>)> {
    let (images, _) = file(dir, TRAIN, "images")?;
    let (labels, _) = file(dir, TRAIN, "labels")?;
    Ok((images.images()?.size, labels.labels()?))
}

/// The files in `dir`.
pub(super) fn read(dir: &Path) -> Result<ReadArrays> {
    let mut files = Vec::new();
    let mut read = |part: &[&str]| -> Result<Labelled> {
        let (images, image_sum) = file(dir, part, "images")?;
        let (labels, label_sum) = file(dir, part, "labels")?;
        files.extend([image_sum, label_sum]);
        Ok((images.images()?, labels.labels()?))
    };
    let train = read(TRAIN)?;
    let test = if found(dir, TEST)?.is_empty() { None } else { Some(read(TEST)?) };
    Ok(ReadArrays { train, test, files, warning: None })
}

/// The IDX files in `dir` whose names hold one of `part`.
fn found(dir: &Path, part: &[&str]) -> Result<Vec<PathBuf>> {
    let mut paths = entries(dir)?;
    paths.retain(|path| {
        let name = file_name(path);
        path.is_file() && is_idx(path) && part.iter().any(|part| name.contains(part))
    });
    Ok(paths)
}

/// Whether a file is called as IDX files are.
pub(crate) fn is_idx(path: &Path) -> bool {
    let name = file_name(path);
    name.contains("idx") && name.contains("ubyte")
}

/// The one file of `what` in `dir`; of several that differ only in being packed, the one that is not.
fn file(dir: &Path, part: &[&str], what: &str) -> Result<(IdxArray, FileSum)> {
    let mut paths = found(dir, part)?;
    paths.retain(|path| file_name(path).contains(what));
    if let [plain, packed] = paths.as_slice()
        && packed.file_stem() == plain.file_name()
    {
        paths.truncate(1);
    }
    match paths.as_slice() {
        [path] => array(path),
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

/// What an IDX file holds.
struct IdxArray {
    path: PathBuf,
    shape: Vec<u64>,
    values: Vec<u8>,
}

fn array(path: &Path) -> Result<(IdxArray, FileSum)> {
    let (packed, sum) = contents(path)?;
    let unfit = |problem: String| Error::unfit(path, problem);
    // No more than the header says, once that is known: four dimensions of four bytes.
    let head =
        unpacked(packed.clone(), 19).map_err(|e| unfit(format!("cannot be unpacked: {e}")))?;
    let (shape, start) = header(&head).map_err(unfit)?;
    let count = shape.iter().try_fold(1u64, |product, &side| product.checked_mul(side));
    let whole = count.and_then(|count| count.checked_add(start as u64));
    let whole = whole.ok_or_else(|| unfit(format!("cannot have the shape {shape:?}")))?;
    if shape.len() > 1 {
        size_of(&shape).map_err(unfit)?;
    }
    check_bytes(whole).map_err(unfit)?;
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
    Ok((IdxArray { path: path.to_owned(), shape, values }, sum))
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

impl IdxArray {
    fn images(self) -> Result<Images> {
        let size = size_of(&self.shape).map_err(|problem| Error::unfit(self.path, problem))?;
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
