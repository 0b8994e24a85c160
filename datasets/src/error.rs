//! What can go wrong with data, as data: which file, which record, which byte, and what to do.

use std::io;
use std::path::PathBuf;

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a data set could not be read, written, sampled or fetched.
///
/// Records count from 1, as lines do; byte offsets count from 0.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such file or folder.
    #[error(
        "{} is not there: {expected} was looked for; fetch it with `gradwire data fetch {fetch}`, \
         or point `dir` at the folder that holds `{folder}/`",
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

    /// A folder without any data set.
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

    /// A file without a single byte.
    #[error("{} is empty (byte 0): {expected} expected; fetch or unpack it again", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: String,
    },

    /// A file whose size is not a whole number of records.
    #[error(
        "{}: record {record} begins at byte {offset} and is cut short: {found} of {record_bytes} \
         bytes; the file is damaged, fetch or unpack it again",
        path.display()
    )]
    CutShort {
        /// The file.
        path: PathBuf,
        /// The record that is not whole, counted from 1.
        record: u64,
        /// Where it begins.
        offset: u64,
        /// How many of its bytes are there.
        found: u64,
        /// How many there should be.
        record_bytes: u64,
    },

    /// A file with another number of records than the official one.
    #[error(
        "{} holds {found} records, the official file {official} (the difference begins at byte \
         {offset}); fetch or unpack it again{}",
        path.display(),
        if found < official { ", or say that a subset is meant with --set dataset.partial=true" } else { "" }
    )]
    RecordCount {
        /// The file.
        path: PathBuf,
        /// How many records it holds.
        found: u64,
        /// How many the official file holds.
        official: u64,
        /// The byte at which one of the two ends before the other.
        offset: u64,
    },

    /// A file too large to be what it should be.
    #[error(
        "{} has {bytes} bytes, at most {limit} are possible for this data set (byte {limit} is \
         already too many); it is not the file its name says, fetch or unpack it again",
        path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The largest size that would do.
        limit: u64,
    },

    /// A class that does not exist.
    #[error(
        "{}: record {record} (byte {offset}) has the {label} label {found}, but labels run from \
         0 to {last}; the file is damaged or of another data set, fetch or unpack it again",
        path.display()
    )]
    Label {
        /// The file.
        path: PathBuf,
        /// The record, counted from 1.
        record: u64,
        /// Where the label stands.
        offset: u64,
        /// Which of the record's labels: `class`, `coarse` or `fine`.
        label: &'static str,
        /// What it says.
        found: u8,
        /// The largest label.
        last: u8,
    },

    /// A row of a CSV file that is not what it should be.
    #[error("{}: record {record} (line {line}, byte {offset}): {problem}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// The record, counted from 1.
        record: u64,
        /// The line it begins on, counted from 1.
        line: u64,
        /// Where the problem is, or else where the record begins.
        offset: u64,
        /// What is wrong.
        problem: RowProblem,
    },

    /// Files of one's own that no data set can be made of.
    #[error("{} {problem}", path.display())]
    Unfit {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it, and what to do.
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

    /// The hub cannot be reached, or does not answer as expected.
    #[error(
        "{problem}; try again later (what has come is kept), or get {archive} on a machine with a \
         network, unpack it here, and name the folder that holds `{folder}/` with `--dir`"
    )]
    Hub {
        /// What happened, and which repository was asked for.
        problem: String,
        /// Where the official files are found.
        archive: &'static str,
        /// The official name of their folder.
        folder: &'static str,
    },

    /// What the hub gave is not the data set.
    #[error(
        "what the Hugging Face hub gave as {repository} is not the data set: {problem}; delete it \
         from the hub's cache and try again, or use the official files"
    )]
    Converted {
        /// The repository on the hub.
        repository: &'static str,
        /// What is wrong.
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

    /// A sample of a program's own that does not fit the others.
    #[error("sample {number}: {problem}")]
    Sample {
        /// Its number, counted from 1.
        number: u64,
        /// What is wrong with it.
        problem: String,
    },

    /// A program's own data without a single value.
    #[error("there are no samples to make a data set of, or they have no values")]
    NoSamples,

    /// The system allows no further thread.
    #[error(
        "cannot start the loader thread of rank {rank}: {cause}; use fewer workers or raise the limit"
    )]
    Thread {
        /// The rank whose loader it would have been.
        rank: usize,
        /// What the operating system said.
        cause: io::Error,
    },

    /// The loader was asked for a step after its last one.
    #[error("the loader was made for steps up to {last_step} and they have all been taken")]
    Exhausted {
        /// The last step of the loader's plan.
        last_step: u64,
    },

    /// The thread that fills batches ended by a panic: our own bug.
    #[error("the loader thread of rank {rank} failed: {message}; this is a bug, please report it")]
    LoaderFailed {
        /// The rank whose loader it was.
        rank: usize,
        /// The panic's message.
        message: String,
    },

    /// The thread that fills batches has filled none for too long.
    #[error("the loader thread of rank {rank} has filled no batch for {after:?}")]
    LoaderSilent {
        /// The rank whose loader it is.
        rank: usize,
        /// How long it was waited for.
        after: std::time::Duration,
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

    pub(crate) fn unfit(path: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self::Unfit { path: path.into(), problem: problem.into() }
    }

    pub(crate) fn vocabulary(problem: impl std::fmt::Display) -> Self {
        Self::Vocabulary { problem: problem.to_string() }
    }
}

/// What can be wrong with a row of a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowProblem {
    /// Another number of columns than the three of AG News.
    #[error(
        "{found} columns, but class, title and description are expected; the file is damaged or of \
         another data set, fetch or unpack it again, or read it as dataset.kind = \"table\""
    )]
    Columns {
        /// How many there are.
        found: usize,
    },

    /// A class that AG News does not have.
    #[error(
        "column 1 says {found:?}, but classes are 1, 2, 3 and 4; {}",
        match found.as_str() {
            "0" => "its labels seem to start at 0: add 1 to each, or read the file as dataset.kind = \"table\"",
            word if *is_first && word.trim().parse::<f64>().is_err() =>
                "this is a header line: delete it, or read the file as dataset.kind = \"table\"",
            _ => "fetch or unpack the file again, or read it as dataset.kind = \"table\"",
        }
    )]
    Class {
        /// What the column says.
        found: String,
        /// Whether that is the first row.
        is_first: bool,
    },

    /// Another number of columns than the first row has.
    #[error(
        "{found} columns, and the first row has {expected}; a field with a delimiter in it must stand in double \
         quotes (dataset.delimiter, dataset.quotes)"
    )]
    Ragged {
        /// How many there are.
        found: usize,
        /// How many the first row has.
        expected: usize,
    },

    /// A column that is asked for and is not there.
    #[error(
        "there is no column {column}; the columns are {columns}. Name others by dataset.text and dataset.label; if \
         the first line is a sample, write dataset.header = false and number the columns"
    )]
    NoColumn {
        /// What was asked for.
        column: String,
        /// What there is.
        columns: String,
    },

    /// A sample without a label.
    #[error("the label is empty; give it one, or take the row away")]
    NoLabel,

    /// Text between a closing quote and the next delimiter.
    #[error(
        "a quote closes a field, and more follows before the next one begins; within quotes write \"\" for a quote \
         (not \\\"), or write dataset.quotes = false where quotes mean nothing (dataset.kind = \"table\")"
    )]
    AfterQuote {
        /// What follows, counted from the beginning of the record.
        at: usize,
    },

    /// Bytes that are not UTF-8.
    #[error("column {column} is not valid UTF-8; convert the file to UTF-8 or unpack it again")]
    Utf8 {
        /// The column, counted from 1.
        column: usize,
        /// The first bad byte, counted from the beginning of the record.
        at: usize,
    },

    /// A double quote without a second one, or a row that begins with one and does not end in one.
    #[error(
        "a double quote is missing at the end of a field; the file is cut short or damaged: fetch \
         or unpack it again"
    )]
    OpenQuote,
}
