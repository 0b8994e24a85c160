//! Data sets as files: what a distribution is to those who find, check and download it.

use std::path::Path;

#[cfg(feature = "fetch")]
use parquet::file::reader::FileReader;

use crate::error::Result;
use crate::files::{Official, Place};

/// A data set as it is given away: a folder of files whose contents are known.
pub trait Distribution: Sync {
    /// What people call it.
    fn title(&self) -> &'static str;
    /// Its name and folder.
    fn place(&self) -> &Place;
    /// Its files, the training set's first.
    fn files(&self) -> Vec<&Official>;
    /// The most bytes that `file` may have.
    fn limit(&self, file: &Official) -> u64;
    /// What `file` holds, for messages.
    fn expected(&self, file: &Official) -> String;
    /// Checks all records of `contents`, and counts those of each class (of the finest label).
    ///
    /// # Errors
    /// What is wrong with the file at `path`, and where.
    fn per_class(&self, path: &Path, contents: &[u8]) -> Result<Vec<u64>>;
    /// Where the hub has it; nowhere unless the data set says so.
    #[cfg(feature = "fetch")]
    fn hosted(&self) -> Option<&Hosted> {
        None
    }
}

/// Where a data set is on the Hugging Face hub, and how its rows become the official records.
#[cfg(feature = "fetch")]
pub struct Hosted {
    /// The repository, `owner/name`.
    pub repository: &'static str,
    /// Where people get the official files, for those without access to the hub.
    pub archive: &'static str,
    /// How its rows become official records.
    pub convert: Convert,
}

/// Makes the contents of the official files, end to end, of the rows of a split's Parquet files. The
/// repository is for messages.
#[cfg(feature = "fetch")]
pub type Convert = fn(repository: &'static str, split: &[Box<dyn FileReader>]) -> Result<Vec<u8>>;
