//! IDX files, as MNIST, FashionMNIST and KMNIST are given away, packed by gzip or not
//! (LeCun, Cortes and Burges, "The MNIST database of handwritten digits", 1998).
//!
//! A file is two zero bytes, one for the type of its values (8: a byte), one for the number of dimensions, the
//! dimensions in four bytes each with the highest first, and the values.
//!
//! The reader of `candle-datasets` is not used: it takes memory for as many values as a file's header claims before it
//! reads them, reads the four unpacked files of MNIST's names alone, and loses the images' rows and columns.

use std::path::{Path, PathBuf};

use super::arrays::{Images, Labelled, ReadArrays, check_bytes, check_counts, size_of};
use super::{begun, contents, entries, file_name, named};
use crate::error::{Error, Result};
use crate::files::FileSum;
use crate::images::Size;

/// What the names of files for training begin with, or hold.
const TRAIN: &[&str] = &["train"];
/// The same of files for testing.
const TEST: &[&str] = &["t10k", "test"];

/// The size of the images, and the labels of the training set.
pub(super) fn form(dir: &Path) -> Result<(Size, Vec<String>)> {
    let (size, _, labels) = pair(dir, TRAIN, "training")?;
    Ok((size, labels.labels()?))
}

/// The files in `dir`.
pub(super) fn read(dir: &Path) -> Result<ReadArrays> {
    let mut files = Vec::new();
    let mut read = |part: &[&str], set: &str| -> Result<Labelled> {
        let (size, images, labels) = pair(dir, part, set)?;
        files.extend([images.sum.clone(), labels.sum.clone()]);
        Ok((Images { size, pixels: images.values()? }, labels.labels()?))
    };
    let train = read(TRAIN, "training")?;
    let test = if found(dir, TEST)?.is_empty() { None } else { Some(read(TEST, "testing")?) };
    Ok(ReadArrays { train, test, files, warning: None })
}

/// The images of a set with their size, and as many labels, neither unpacked yet.
fn pair(dir: &Path, part: &[&str], set: &str) -> Result<(Size, IdxArray, IdxArray)> {
    let (images, labels) = (file(dir, part, "images")?, file(dir, part, "labels")?);
    let size = size_of(&images.shape).map_err(|problem| Error::unfit(&images.path, problem))?;
    if labels.shape.len() != 1 {
        let problem = format!("has the shape {:?}; labels have one dimension", labels.shape);
        return Err(Error::unfit(&labels.path, problem));
    }
    check_counts(&images.shape, &labels.shape, set)
        .map_err(|problem| Error::unfit(dir, problem))?;
    Ok((size, images, labels))
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
fn file(dir: &Path, part: &[&str], what: &str) -> Result<IdxArray> {
    let mut paths = found(dir, part)?;
    paths.retain(|path| file_name(path).contains(what));
    if let [plain, packed] = paths.as_slice()
        && packed.file_stem() == plain.file_name()
    {
        paths.truncate(1);
    }
    match paths.as_slice() {
        [path] => IdxArray::open(path),
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

/// An IDX file, and what its header says.
struct IdxArray {
    path: PathBuf,
    contents: Vec<u8>,
    sum: FileSum,
    shape: Vec<u64>,
    /// Where the values begin, and the number of bytes up to their end.
    start: usize,
    whole: u64,
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
    fn open(path: &Path) -> Result<Self> {
        let (contents, sum) = contents(path)?;
        let unfit = |problem: String| Error::unfit(path, problem);
        // Of what is packed only a header: four bytes, and four dimensions of four bytes.
        let head = begun(path, &contents, 20)?;
        let (shape, start) = header(head.as_deref().unwrap_or(&contents)).map_err(unfit)?;
        let count = shape.iter().try_fold(1u64, |product, &side| product.checked_mul(side));
        let whole = count.and_then(|count| count.checked_add(start as u64));
        let whole = whole.ok_or_else(|| unfit(format!("cannot have the shape {shape:?}")))?;
        check_bytes(whole).map_err(unfit)?;
        Ok(Self { path: path.to_owned(), contents, sum, shape, start, whole })
    }

    /// The values, of which no more are unpacked than the header says.
    fn values(self) -> Result<Vec<u8>> {
        let Self { path, contents, shape, start, whole, .. } = self;
        let mut values = begun(&path, &contents, whole + 1)?.unwrap_or(contents);
        if values.len() as u64 != whole {
            let (found, more) = (values.len(), values.len() as u64 > whole);
            let problem = format!(
                "has {} bytes, and with the shape {shape:?} it should have {whole}; get it again",
                if more { format!("more than {whole}") } else { found.to_string() }
            );
            return Err(Error::unfit(path, problem));
        }
        values.drain(..start);
        Ok(values)
    }

    fn labels(self) -> Result<Vec<String>> {
        Ok(self.values()?.iter().map(ToString::to_string).collect())
    }
}
