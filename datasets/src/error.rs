//! What can go wrong with data, as data: which file, which record, which byte, and what to do.

use std::io;
use std::path::{Path, PathBuf};

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a data set could not be read, written, sampled or fetched.
///
/// Records count from 1, as lines do; byte offsets count from 0.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such file or folder of an official data set.
    #[error(
        "{} is not there: {expected} was looked for; fetch it with `gradwire data fetch {fetch}`, \
         or name the folder that holds `{folder}/` (`--dir`, or `dir` in a recipe)",
        path.display()
    )]
    Missing {
        /// What is not there.
        path: PathBuf,
        /// What it would have held.
        expected: String,
        /// The name that `gradwire data fetch` knows the data set by.
        fetch: &'static str,
        /// The official name of the data set's folder.
        folder: &'static str,
    },

    /// A folder without any official data set.
    #[error(
        "no data set in {}: neither one of the folders {folders} nor the files of one; fetch one \
         with `gradwire data fetch`, or name the folder that holds one",
        path.display()
    )]
    NoDataSet {
        /// The folder.
        path: PathBuf,
        /// The names of the folders that were looked for.
        folders: String,
    },

    /// The operating system refused to read.
    #[error("cannot read {}: {cause}; check the path and its permissions", path.display())]
    Read {
        /// What was to be read.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },

    /// The operating system refused to write.
    #[error("cannot write {}: {cause}; check the path, its permissions and the space left", path.display())]
    Write {
        /// What was to be written.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },

    /// Files that are not what they should be, or that no data set can be made of.
    #[error("{}{problem}", path.display())]
    Unfit {
        /// The file or folder.
        path: PathBuf,
        /// Where in it, what is wrong with it, and what to do.
        problem: String,
    },

    /// A tokenizer that could not be made, read or applied.
    #[error("the vocabulary cannot be used: {problem}")]
    Vocabulary {
        /// What is wrong with it.
        problem: String,
    },

    /// A setting that cannot be.
    #[error("`{field}` is {found}: {problem}")]
    Setting {
        /// Its name in the recipe.
        field: &'static str,
        /// What it was set to.
        found: String,
        /// What is wrong with that and what to write instead.
        problem: String,
    },

    /// The hub cannot be reached, or does not give the data set.
    #[error("{problem}")]
    Hub {
        /// What happened, which repository was asked for, and what to do.
        problem: String,
    },

    /// A file that is not ours to replace.
    #[error(
        "{} is there already and is not what would be written; move it away, or choose another \
         folder with `--dir`",
        path.display()
    )]
    InTheWay {
        /// The file.
        path: PathBuf,
    },

    /// Samples of a program's own that make no data set.
    #[error("{problem}")]
    Samples {
        /// Which sample it is, counted from 1, and what is wrong with it.
        problem: String,
    },

    /// The loader was asked for a step after its last one.
    #[error("the loader was made for steps up to {last_step} and they have all been taken")]
    Exhausted {
        /// The last step of the loader's plan.
        last_step: u64,
    },

    /// The thread that fills batches could not be started, failed, or has filled none for too long.
    #[error("{problem}")]
    Loader {
        /// What happened, and to which rank's loader.
        problem: String,
    },
}

impl Error {
    pub(crate) fn setting(
        field: &'static str,
        found: &impl ToString,
        problem: impl Into<String>,
    ) -> Self {
        Self::Setting { field, found: found.to_string(), problem: problem.into() }
    }

    /// What is wrong with `path`, as a sentence whose subject is the path.
    pub(crate) fn unfit(path: impl Into<PathBuf>, problem: impl std::fmt::Display) -> Self {
        Self::Unfit { path: path.into(), problem: format!(" {problem}") }
    }

    /// What is wrong in `path`, as a sentence whose subject is a place in it, such as `record 3 (byte 6146)`.
    pub(crate) fn within(path: impl Into<PathBuf>, problem: impl std::fmt::Display) -> Self {
        Self::Unfit { path: path.into(), problem: format!(": {problem}") }
    }

    /// Of a path that the operating system does not read.
    pub(crate) fn read(path: &Path) -> impl Fn(io::Error) -> Self {
        move |cause| Self::Read { path: path.to_owned(), cause }
    }

    pub(crate) fn vocabulary(problem: impl std::fmt::Display) -> Self {
        Self::Vocabulary { problem: problem.to_string() }
    }
}
