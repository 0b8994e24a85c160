//! NumPy's `.npz`: a ZIP archive of arrays, as MedMNIST (Yang et al. 2023) is given away.

use std::io::{Cursor, Read as _};
use std::path::{Path, PathBuf};

use zip::ZipArchive;

use super::arrays::{Images, Labelled, ReadArrays, check_bytes, check_counts, size_of};
use super::{contents, named};
use crate::error::{Error, Result};
use crate::images::Size;

/// What the arrays may be called.
const TRAIN: [[&str; 2]; 2] = [["train_images", "x_train"], ["train_labels", "y_train"]];
/// The same of those for testing.
const TEST: [[&str; 2]; 2] = [["test_images", "x_test"], ["test_labels", "y_test"]];

/// The size of the images, and the labels of the training set.
pub(super) fn form(file: &Path) -> Result<(Size, Vec<String>)> {
    let (mut archive, _) = Archive::open(file)?;
    let size = archive.check(TRAIN, "training")?;
    Ok((size, archive.array(TRAIN[1], true)?.labels()?))
}

/// The arrays of `file`.
pub(super) fn read(file: &Path) -> Result<ReadArrays> {
    let (mut archive, sum) = Archive::open(file)?;
    let names = archive.names();
    let has = |name: &str| names.iter().any(|found| found == name);
    let mut part = |arrays: [[&str; 2]; 2], set: &str| -> Result<Labelled> {
        let size = archive.check(arrays, set)?;
        let [images, labels] = arrays;
        let pixels = archive.array(images, true)?.values;
        Ok((Images { size, pixels }, archive.array(labels, true)?.labels()?))
    };
    let train = part(TRAIN, "training")?;
    let has_test = TEST[0].iter().any(|name| has(name));
    let test = if has_test { Some(part(TEST, "testing")?) } else { None };
    let left_out = || "the arrays for validation are left out".to_owned();
    Ok(ReadArrays { train, test, files: vec![sum], warning: has("val_images").then(left_out) })
}

/// The most bytes of one array's header.
const HEADER: usize = 1 << 16;

struct Archive {
    path: PathBuf,
    zip: ZipArchive<Cursor<Vec<u8>>>,
}

impl Archive {
    fn open(path: &Path) -> Result<(Self, crate::files::FileSum)> {
        let (contents, sum) = contents(path)?;
        let zip = ZipArchive::new(Cursor::new(contents)).map_err(|error| {
            Error::unfit(path, format!("is no .npz file, or is cut short ({error}); get it again"))
        })?;
        Ok((Self { path: path.to_owned(), zip }, sum))
    }

    /// The names of its arrays.
    fn names(&self) -> Vec<String> {
        let names = self.zip.file_names().filter_map(std::result::Result::ok);
        names.map(|name| name.trim_end_matches(".npy").to_owned()).collect()
    }

    /// The size of the images of a set, whose arrays must fit each other by what their headers say.
    fn check(&mut self, [images, labels]: [[&str; 2]; 2], set: &str) -> Result<Size> {
        let (images, labels) = (self.array(images, false)?, self.array(labels, false)?);
        let size = images.size()?;
        labels.check_labels()?;
        check_counts(&images.shape, &labels.shape, set)
            .map_err(|problem| Error::unfit(&self.path, problem))?;
        Ok(size)
    }

    /// The array of the first of two names that there is; its values only where they are wanted.
    fn array(&mut self, names: [&str; 2], values: bool) -> Result<Array> {
        let all = self.names();
        let name = names.into_iter().find(|name| all.iter().any(|found| found == name));
        let Some(name) = name else {
            let problem = format!(
                "has no array {} or {}; its arrays are {}. Save it with numpy.savez_compressed(file, \
                 train_images=…, train_labels=…, test_images=…, test_labels=…)",
                names[0],
                names[1],
                named(&all)
            );
            return Err(Error::unfit(&self.path, problem));
        };
        let unfit = |problem: String| Error::unfit(&self.path, format!("{name}: {problem}"));
        let broken = |error: &dyn std::fmt::Display| {
            unfit(format!("cannot be read ({error}); get the file again"))
        };
        let file = self.zip.by_name(&format!("{name}.npy"));
        let mut file = file.map_err(|error| broken(&error))?;
        let (descr, shape) = header(&mut file).map_err(unfit)?;
        let kind = NumberType::of(&descr).map_err(unfit)?;
        let bytes =
            shape.iter().try_fold(kind.bytes as u64, |product, &side| product.checked_mul(side));
        let bytes = bytes.ok_or_else(|| unfit(format!("cannot have the shape {shape:?}")))?;
        check_bytes(bytes).map_err(unfit)?;
        let path = self.path.clone();
        if !values {
            return Ok(Array { path, name: name.to_owned(), kind, shape, values: Vec::new() });
        }
        let mut values = Vec::new();
        file.take(bytes.saturating_add(1))
            .read_to_end(&mut values)
            .map_err(|error| broken(&error))?;
        if values.len() as u64 != bytes {
            return Err(unfit(format!("does not have the {bytes} bytes of its shape {shape:?}")));
        }
        Ok(Array { path, name: name.to_owned(), kind, shape, values })
    }
}

/// The type and the dimensions of an array in NumPy's format, versions 1 to 3.
fn header(file: &mut impl std::io::Read) -> std::result::Result<(String, Vec<u64>), String> {
    let cut = |_| "is cut short within its header".to_owned();
    let mut start = [0; 8];
    file.read_exact(&mut start).map_err(cut)?;
    let length = match start {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _] => {
            let mut length = [0; 2];
            file.read_exact(&mut length).map_err(cut)?;
            usize::from(u16::from_le_bytes(length))
        }
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _] => {
            let mut length = [0; 4];
            file.read_exact(&mut length).map_err(cut)?;
            u32::from_le_bytes(length) as usize
        }
        _ => return Err("is no NumPy array".into()),
    };
    if length > HEADER {
        return Err(format!("has a header of {length} bytes, and at most {HEADER} are read"));
    }
    let mut text = vec![0; length];
    file.read_exact(&mut text).map_err(cut)?;
    let text = String::from_utf8_lossy(&text).replace([' ', '"'], "").replace('\'', "");
    let after = |key: &str| text.split_once(&format!("{key}:")).map(|(_, rest)| rest);
    let value = |key: &str, end: &str| Some(after(key)?.split_once(end)?.0.to_owned());
    let (descr, order) = (value("descr", ","), value("fortran_order", ","));
    let shape = value("shape", ")").and_then(|shape| {
        let sides = shape.trim_start_matches('(').split(',').filter(|side| !side.is_empty());
        sides.map(|side| side.parse().ok()).collect::<Option<Vec<u64>>>()
    });
    match (descr, order.as_deref(), shape) {
        (Some(_), Some("True"), _) => {
            Err("is saved column by column; save numpy.ascontiguousarray(array)".into())
        }
        (Some(descr), Some("False"), Some(shape)) => Ok((descr, shape)),
        _ => Err(format!("has a header that cannot be read: {text:.80}")),
    }
}

/// The type of an array's values: whole numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
struct NumberType {
    bytes: usize,
    signed: bool,
    big_endian: bool,
}

impl NumberType {
    fn of(descr: &str) -> std::result::Result<Self, String> {
        let (order, kind) = descr.split_at_checked(1).unwrap_or_default();
        let (letter, size) = kind.split_at_checked(1).unwrap_or_default();
        match (letter, size) {
            ("u" | "i" | "b", "1" | "2" | "4" | "8") => {
                let bytes = size.parse().unwrap_or(1);
                Ok(Self { bytes, signed: letter == "i", big_endian: order == ">" })
            }
            ("f", _) => Err(format!(
                "holds numbers with a point ({descr}); save images as bytes, (255 * images).astype('uint8'), and \
                 labels as labels.astype('int64')"
            )),
            ("O", _) => {
                Err("holds Python objects, which are not read; save it as an array of numbers"
                    .into())
            }
            _ => Err(format!("holds values of the type {descr}; whole numbers are read")),
        }
    }
}

struct Array {
    path: PathBuf,
    name: String,
    kind: NumberType,
    shape: Vec<u64>,
    values: Vec<u8>,
}

impl Array {
    fn unfit(&self, problem: impl std::fmt::Display) -> Error {
        Error::unfit(&self.path, format!("{}: {problem}", self.name))
    }

    /// The size of its images.
    fn size(&self) -> Result<Size> {
        if (self.kind.bytes, self.kind.signed) != (1, false) {
            let problem =
                "holds images that are not of bytes; save images.astype('uint8'), from 0 to 255";
            return Err(self.unfit(problem));
        }
        size_of(&self.shape).map_err(|problem| self.unfit(problem))
    }

    /// Refuses what is not one label a sample.
    fn check_labels(&self) -> Result<()> {
        match *self.shape.as_slice() {
            [_] | [_, 1] => Ok(()),
            [_, several] => {
                Err(self.unfit(format!("has {several} labels a sample; a classifier learns one")))
            }
            _ => Err(self.unfit(format!("has the shape {:?}; labels are (samples)", self.shape))),
        }
    }

    fn labels(self) -> Result<Vec<String>> {
        let NumberType { bytes, signed, big_endian } = self.kind;
        let number = |value: &[u8]| {
            let highest = if big_endian { value[0] } else { value[bytes - 1] };
            let filled = if signed && highest >= 0x80 { 0xff } else { 0 };
            let mut wide = [filled; 16];
            for (place, byte) in value.iter().enumerate() {
                wide[if big_endian { bytes - 1 - place } else { place }] = *byte;
            }
            i128::from_le_bytes(wide).to_string()
        };
        Ok(self.values.chunks_exact(bytes).map(number).collect())
    }
}
