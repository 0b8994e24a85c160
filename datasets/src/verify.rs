//! What a folder holds: which data set, whole or not, official or not.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::distribution::Distribution;
use crate::error::{Error, Result};
use crate::files::FileSum;
use crate::survey::grouped;

/// Every distribution that is known.
fn known() -> Vec<&'static dyn Distribution> {
    Config::all().iter().filter_map(|config| config.definition().distribution()).collect()
}

/// What was found of one data set. Its [`Display`](fmt::Display) is a table for people.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// What people call the data set.
    pub title: &'static str,
    /// Where its files lie.
    pub folder: PathBuf,
    /// Its files, the training set's first.
    pub files: Vec<FileReport>,
}

/// What was found of one file.
#[derive(Debug)]
#[non_exhaustive]
pub struct FileReport {
    /// Its name.
    pub name: &'static str,
    /// The number of records of the official file of that name.
    pub official_records: u64,
    /// Its size and sum, unless it is missing or cannot be read.
    pub sum: Option<FileSum>,
    /// What it is.
    pub state: FileState,
}

/// What a file is.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileState {
    /// Byte for byte the official file.
    Official,
    /// Not the official file, but every record is as it should be.
    WellFormed {
        /// The number of records of each class (of the finest label).
        per_class: Vec<u64>,
    },
    /// Missing, unreadable or damaged.
    Broken(Error),
}

impl FileReport {
    /// The number of records, where all are as they should be.
    pub fn records(&self) -> Option<u64> {
        match &self.state {
            FileState::Official => Some(self.official_records),
            FileState::WellFormed { per_class } => Some(per_class.iter().sum()),
            FileState::Broken(_) => None,
        }
    }
}

impl Report {
    /// Whether every file is byte for byte the official one.
    pub fn is_official(&self) -> bool {
        self.files.iter().all(|file| matches!(file.state, FileState::Official))
    }

    /// Whether every file is there and as it should be, official or not.
    pub fn is_well_formed(&self) -> bool {
        self.files.iter().all(|file| file.records().is_some())
    }
}

/// Says what data sets `dir` holds: in folders of their official names, or its own files. Every
/// record of every file is checked.
///
/// Damaged files are no error here but part of the report.
///
/// # Errors
/// [`Error::NoDataSet`] when nothing known is there; [`Error::Read`] when `dir` cannot be looked
/// into.
pub fn verify(dir: &Path) -> Result<Vec<Report>> {
    let (mut reports, mut instead) = (Vec::new(), None);
    for known in known() {
        let names = known.files().into_iter().map(|file| file.name);
        match known.place().find(dir, names) {
            Ok(folder) => reports.push(report(known, folder)),
            Err(Error::Missing { .. }) => {}
            Err(error @ Error::Unfit { .. }) => instead = Some(error),
            Err(error) => return Err(error),
        }
    }
    if let Some(error) = instead.filter(|_| reports.is_empty()) {
        return Err(error);
    }
    if reports.is_empty() {
        let folders: Vec<&str> = known().iter().map(|known| known.place().folder).collect();
        return Err(Error::NoDataSet { path: dir.to_owned(), folders: folders.join(", ") });
    }
    Ok(reports)
}

/// The state of each file of `known` in `folder`.
pub(crate) fn report(known: &dyn Distribution, folder: PathBuf) -> Report {
    let files = known.files().into_iter().map(|official| {
        let path = folder.join(official.name);
        let read = known.place().read(&path, known.limit(official), &known.expected(official));
        let (sum, state) = match read {
            Err(error) => (None, FileState::Broken(error)),
            Ok(contents) => {
                let sum = FileSum::new(&path, &contents);
                let state = match known.per_class(&path, &contents) {
                    _ if sum.sha256 == official.sha256 => FileState::Official,
                    Ok(per_class) => FileState::WellFormed { per_class },
                    Err(error) => FileState::Broken(error),
                };
                (Some(sum), state)
            }
        };
        FileReport { name: official.name, official_records: official.records, sum, state }
    });
    Report { title: known.title(), files: files.collect(), folder }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} in {}", self.title, self.folder.display())?;
        for file in &self.files {
            write!(f, "  {:<18}", file.name)?;
            if let Some(sum) = &file.sum {
                write!(f, "{:>12} bytes  sha256 {}…  ", grouped(sum.bytes), &sum.sha256[..12])?;
            }
            let official = grouped(file.official_records);
            match &file.state {
                FileState::Official => writeln!(f, "{official} records, the official file")?,
                FileState::WellFormed { per_class } => {
                    let records = grouped(per_class.iter().sum());
                    let least = grouped(per_class.iter().copied().min().unwrap_or(0));
                    let most = grouped(per_class.iter().copied().max().unwrap_or(0));
                    let spread = if least == most { most } else { format!("{least} to {most}") };
                    writeln!(
                        f,
                        "{records} of {official} records, {spread} a class: well-formed, but not \
                         the official file"
                    )?;
                }
                FileState::Broken(error) => writeln!(f, "BROKEN: {error}")?,
            }
        }
        let verdict = match (self.is_official(), self.is_well_formed()) {
            (true, _) => "whole, and byte for byte the official files",
            (_, true) => "readable, but not the official files: results do not compare with others",
            _ => "broken",
        };
        write!(f, "  {verdict}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Counts;
    use std::fs;

    fn twins(dir: &Path) {
        for (of, train, test) in [("cifar10", 20, 10), ("cifar100", 20, 10), ("ag-news", 1200, 8)] {
            let twin = Config::twin_of(of).unwrap();
            let counts = Counts { train: Some(train), test: Some(test), seed: 0 };
            twin.definition().twin().unwrap().write(dir, counts).unwrap();
        }
    }

    #[test]
    fn everything_in_a_folder_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(verify(dir.path()), Err(Error::NoDataSet { .. })));
        twins(dir.path());
        let reports = verify(dir.path()).unwrap();
        let titles: Vec<&str> = reports.iter().map(|report| report.title).collect();
        assert_eq!(titles, ["CIFAR-10", "CIFAR-100", "AG News"]);
        assert!(reports.iter().all(|report| report.is_well_formed() && !report.is_official()));
        let records = |report: &Report| {
            report.files.iter().map(|file| file.records().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(records(&reports[0]), [4, 4, 4, 4, 4, 10]);
        assert_eq!(records(&reports[1]), [20, 10]);
        let text = reports[2].to_string();
        assert!(
            text.contains(
                "1,200 of 120,000 records, 300 a class: well-formed, but not the official"
            ),
            "{text}"
        );
        assert!(
            text.ends_with(
                "readable, but not the official files: results do not compare with others"
            )
        );

        let alone = verify(&dir.path().join("cifar-100-binary")).unwrap();
        assert_eq!((alone.len(), alone[0].title), (1, "CIFAR-100"));
    }

    #[test]
    fn damage_is_reported_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        twins(dir.path());
        let cifar = dir.path().join("cifar-10-batches-bin");
        fs::remove_file(cifar.join("data_batch_2.bin")).unwrap();
        let mut contents = fs::read(cifar.join("data_batch_3.bin")).unwrap();
        contents[3073] = 77;
        fs::write(cifar.join("data_batch_3.bin"), &contents).unwrap();
        fs::write(cifar.join("data_batch_4.bin"), &contents[..5000]).unwrap();
        let reports = verify(dir.path()).unwrap();
        let broken = |file: usize| match &reports[0].files[file].state {
            FileState::Broken(error) => error.to_string(),
            state => panic!("{state:?}"),
        };
        assert!(broken(1).contains("data_batch_2.bin is not there"));
        assert!(broken(2).contains("record 2 (byte 3073) has the class label 77"));
        assert!(broken(3).contains("record 2 begins at byte 3073 and is cut short"));
        assert!(reports[0].files[2].sum.is_some() && reports[0].files[1].sum.is_none());
        assert!(!reports[0].is_well_formed() && reports[1].is_well_formed());
        assert!(reports[0].to_string().ends_with("broken"));
    }
}
