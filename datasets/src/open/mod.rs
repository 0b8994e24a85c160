//! Data of one's own: what files of every kind have in common once they are read.

pub(crate) mod arrays;
pub(crate) mod idx;
mod npz;
pub(crate) mod parquet;
pub(crate) mod picture;
pub(crate) mod pictures;
pub(crate) mod rows;
pub(crate) mod table;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use sha2::{Digest, Sha256};

pub use self::picture::Resize;
use crate::definition::{Data, Selection};
use crate::error::{Error, Result};
pub(crate) use crate::files::named;
use crate::files::{self, FileSum};
use crate::images::{GatheredImages, Size};
use crate::survey::{Survey, grouped};
use crate::text::Words;

/// What samples are made of.
pub(crate) enum RawValues {
    Images(Size, Vec<u8>),
    Texts(Vec<String>),
}

/// Samples as they were read.
pub(crate) struct Part {
    values: RawValues,
    /// Each one's class.
    labels: Vec<u32>,
    /// Of what each one is made of: the first eight bytes of its SHA-256.
    sums: Vec<u64>,
    /// Where each one stands among all that were read.
    places: Vec<usize>,
    /// What each place is called, where it is not by its number.
    names: Arc<[String]>,
}

impl Part {
    pub(crate) fn new(values: RawValues, labels: Vec<u32>) -> Self {
        let sum = |bytes: &[u8]| {
            let digest = Sha256::digest(bytes);
            digest.iter().take(8).fold(0, |sum, &byte| sum << 8 | u64::from(byte))
        };
        let sums = match &values {
            RawValues::Images(size, pixels) => pixels.par_chunks(size.bytes()).map(sum).collect(),
            RawValues::Texts(texts) => texts.par_iter().map(|text| sum(text.as_bytes())).collect(),
        };
        let places = (0..labels.len()).collect();
        Self { values, labels, sums, places, names: Arc::default() }
    }

    /// The same, each sample with a name by which a person finds it.
    pub(crate) fn with_names(self, names: impl Iterator<Item = String>) -> Self {
        Self { names: names.collect(), ..self }
    }

    /// What the sample of this number is called.
    fn name(&self, sample: usize) -> String {
        let place = self.places[sample];
        self.names.get(place).cloned().unwrap_or_else(|| format!("sample {}", place + 1))
    }

    /// Those of its samples for which `keep` says so, and the others.
    fn divided(self, keep: &[bool]) -> [Self; 2] {
        [true, false].map(|wanted| {
            let chosen = || (0..keep.len()).filter(|&i| keep[i] == wanted);
            let values = match &self.values {
                RawValues::Images(size, pixels) => {
                    let mut own = Vec::with_capacity(chosen().count() * size.bytes());
                    for i in chosen() {
                        own.extend_from_slice(&pixels[i * size.bytes()..][..size.bytes()]);
                    }
                    RawValues::Images(*size, own)
                }
                RawValues::Texts(texts) => {
                    RawValues::Texts(chosen().map(|i| texts[i].clone()).collect())
                }
            };
            let labels = chosen().map(|i| self.labels[i]).collect();
            let sums = chosen().map(|i| self.sums[i]).collect();
            let places = chosen().map(|i| self.places[i]).collect();
            Self { values, labels, sums, places, names: self.names.clone() }
        })
    }

    /// At most `limit` of its samples: those whose sums are lowest, so that all classes are among them.
    fn limited(self, limit: Option<usize>) -> Self {
        let Some(limit) = limit.filter(|&limit| limit < self.labels.len()) else { return self };
        let mut order: Vec<usize> = (0..self.labels.len()).collect();
        order.sort_by_key(|&i| (self.sums[i], i));
        let mut keep = vec![false; order.len()];
        order[..limit].iter().for_each(|&i| keep[i] = true);
        let [kept, _] = self.divided(&keep);
        kept
    }

    /// The number of samples of each class.
    fn counts(&self, classes: usize) -> Vec<u64> {
        let mut counts = vec![0; classes];
        self.labels.iter().for_each(|&label| counts[label as usize] += 1);
        counts
    }
}

/// A data set as it was read.
pub(crate) struct Read {
    classes: Vec<String>,
    train: Part,
    test: Part,
    files: Vec<FileSum>,
    warnings: Vec<String>,
}

impl Read {
    /// The samples of `path` that were read, divided where nothing says which are for testing.
    pub(crate) fn new(
        path: &Path,
        classes: Vec<String>,
        [train, test]: [Option<Part>; 2],
        samples: &Selection,
        files: Vec<FileSum>,
    ) -> Result<Self> {
        let train = train.filter(|part| !part.labels.is_empty());
        let train = train.ok_or_else(|| Error::unfit(path, "has no samples to train on"))?;
        let share = samples.share(test.is_some())?;
        let [test, train] = match test {
            Some(test) => [test, train],
            None => {
                let tested = tested(&train.labels, &train.sums, share);
                train.divided(&tested)
            }
        };
        if test.labels.is_empty() {
            return Err(Error::unfit(path, "has no samples to test on: every class has but one"));
        }
        if classes.len() < 2 {
            let problem = format!("has samples of one class, {}; two are needed", named(&classes));
            return Err(Error::unfit(path, problem));
        }
        let (train, test) = (train.limited(samples.train), test.limited(samples.test));
        let mut read = Self { classes, train, test, files, warnings: Vec::new() };
        read.warn();
        Ok(read)
    }

    /// Adds what a person should know before anything is trained.
    pub(crate) fn with_warnings(mut self, warnings: impl IntoIterator<Item = String>) -> Self {
        self.warnings.extend(warnings);
        self
    }

    fn warn(&mut self) {
        let [train, test] = [&self.train, &self.test].map(|part| part.counts(self.classes.len()));
        let of = |is: fn(u64, u64) -> bool| {
            let counts = train.iter().zip(&test).zip(&self.classes);
            let those = counts.filter(|((train, test), _)| is(**train, **test));
            let names: Vec<String> = those.map(|(_, name)| name.clone()).collect();
            (!names.is_empty()).then(|| {
                format!("{} of {} classes", names.len(), train.len())
                    + &format!(": {}", named(&names))
            })
        };
        let labels = self.train.labels.iter().map(|&label| label as usize);
        let none = files::unseen(labels, &self.classes);
        let once = of(|train, test| train + test == 1).map(|which| {
            format!("there is a single sample, which is trained on and never tested, for {which}")
        });
        let untested = of(|train, test| train > 1 && test == 0)
            .map(|which| format!("there are no samples to test on for {which}"));
        let (doubles, tests) = (self.doubles().len(), self.test.labels.len());
        let doubles = (doubles > 0).then(|| {
            let all = if doubles == tests { ": the test set is part of the training set" } else { "" };
            format!(
                "{doubles} of {tests} test samples are also in the training set, value by value{all}; what is \
                 measured on them says nothing about new samples"
            )
        });
        self.warnings = [none, once, untested, doubles].into_iter().flatten().collect();
    }

    /// The test samples that are in the training set, too: each with the first of those.
    fn doubles(&self) -> Vec<(usize, usize)> {
        let train = self.train.sums.iter().enumerate().rev();
        let train: HashMap<u64, usize> = train.map(|(place, &sum)| (sum, place)).collect();
        let tests = self.test.sums.iter().enumerate();
        tests.filter_map(|(test, sum)| Some((test, *train.get(sum)?))).collect()
    }

    /// What it is, in a line: samples, classes, how many are tested on.
    pub(crate) fn line(&self) -> String {
        let [train, test] = [&self.train, &self.test].map(|part| part.labels.len() as u64);
        let (all, classes) = (grouped(train + test), self.classes.len());
        format!("{all} {} in {classes} classes; {} for testing", self.sample(), grouped(test))
    }

    /// What its samples are.
    fn sample(&self) -> String {
        match &self.train.values {
            RawValues::Images(size, _) => format!("images of {}", size.in_words()),
            RawValues::Texts(_) => "texts".into(),
        }
    }

    /// What there is of it, at `path`.
    pub(crate) fn survey(self, path: &Path) -> Survey {
        let doubles = self.doubles().into_iter();
        let doubles =
            doubles.map(|(test, train)| (self.test.name(test), self.train.name(train))).collect();
        let [train, test] = [&self.train, &self.test].map(|part| part.counts(self.classes.len()));
        let sample = self.sample();
        let counts = self.classes.into_iter().zip(train.into_iter().zip(test));
        let classes = counts.map(|(name, (train, test))| (name, train, test)).collect();
        let (files, warnings) = (self.files, self.warnings);
        Survey { path: path.to_owned(), sample, classes, doubles, files, warnings }
    }

    /// The data set of these samples; `words` is for texts, with the vocabulary of an earlier run.
    pub(crate) fn into_data(self, words: Option<(Words, Option<&str>)>) -> Result<Data> {
        let Self { classes, train, test, files, warnings } = self;
        let mut data = match (train.values, test.values, words) {
            (RawValues::Images(size, pixels), RawValues::Images(_, tested), _) => {
                let train = GatheredImages { pixels, labels: train.labels };
                let test = GatheredImages { pixels: tested, labels: test.labels };
                let (train, test, normalisation) =
                    GatheredImages::into_sets(train, test, size, classes);
                Data { normalisation: Some(normalisation), ..Data::new(train, test, files) }
            }
            (RawValues::Texts(texts), RawValues::Texts(tested), Some((words, earlier))) => {
                let sets = [(texts, train.labels), (tested, test.labels)];
                words.into_data(sets, &classes, files, earlier)?
            }
            _ => unreachable!("both parts are of one kind, and texts come with their settings"),
        };
        data.warnings.splice(0..0, warnings);
        Ok(data)
    }
}

/// Which samples are tested on: of each class that share whose sums are lowest, so that neither a seed nor the order of
/// files matters, and equal samples stay together; of a class of several at least one, and never all.
fn tested(labels: &[u32], sums: &[u64], share: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..labels.len()).collect();
    order.sort_by_key(|&i| (labels[i], sums[i], i));
    let mut tested = vec![false; order.len()];
    for class in order.chunk_by(|&a, &b| labels[a] == labels[b]) {
        let wanted = (class.len() as f64 * share).round() as usize;
        let mut count = wanted.max(1).min(class.len() - 1);
        while count > 0 && sums[class[count - 1]] == sums[class[count]] {
            count -= 1;
        }
        class[..count].iter().for_each(|&i| tested[i] = true);
    }
    tested
}

/// Names of classes in their order: numbers by value, words by their characters.
pub(crate) fn in_order(names: BTreeSet<String>) -> Vec<String> {
    let mut names: Vec<String> = names.into_iter().collect();
    if names.iter().all(|name| name.parse::<i64>().is_ok()) {
        names.sort_by_key(|name| name.parse::<i64>().unwrap_or_default());
    }
    names
}

/// The names of the classes, and the number of each label of two sets among them.
type Numbered = (Vec<String>, [Vec<u32>; 2]);

/// The classes of these labels, and the number of each label among them. What the test set has and the training set has
/// not is told by its place.
pub(crate) fn numbered(
    train: &[String],
    test: &[String],
) -> std::result::Result<Numbered, (usize, String)> {
    let classes = in_order(train.iter().cloned().collect());
    let numbers: HashMap<&str, u32> = classes.iter().map(String::as_str).zip(0..).collect();
    let number = |(place, label): (usize, &String)| {
        numbers.get(label.as_str()).copied().ok_or_else(|| {
            let problem = format!(
                "the label {label:?} is not among those of the training set, which are {}; take the sample away, \
                 or add such samples to the training set",
                named(&classes)
            );
            (place, problem)
        })
    };
    let of = |labels: &[String]| {
        labels.iter().enumerate().map(number).collect::<std::result::Result<_, _>>()
    };
    let numbers = [of(train)?, of(test)?];
    Ok((classes, numbers))
}

/// Of labels that are all numbers the place of the first one with a point, and what to say of it.
pub(crate) fn pointed(labels: &[String]) -> Option<(usize, String)> {
    if !labels.iter().all(|label| label.parse::<f64>().is_ok()) {
        return None;
    }
    let place = labels.iter().position(|label| label.parse::<i64>().is_err())?;
    let problem = format!(
        "the label {:?} is a number with a point, and classes are words or whole numbers. pandas writes 1.0 for 1 where \
         a column has gaps: table[column].astype(int) before it is written; or write words",
        labels[place]
    );
    Some((place, problem))
}

/// The name of a file, in lower case.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().to_lowercase()
}

/// The contents of a file, and its sum under its own name.
pub(crate) fn contents(path: &Path) -> Result<(Vec<u8>, FileSum)> {
    let contents = files::of_ones_own(path, LARGEST)?;
    if contents.is_empty() {
        return Err(Error::unfit(path, "is empty (0 bytes)"));
    }
    let sum = FileSum::new(path, &contents);
    Ok((contents, sum))
}

/// The most bytes of a table or an array, once it is unpacked.
pub(crate) const LARGEST: u64 = 16 << 30;

/// The contents of `path`, unpacked where they are packed by gzip; refused where they are more than `most` bytes.
pub(crate) fn unpacked(path: &Path, contents: Vec<u8>, most: u64) -> Result<Vec<u8>> {
    let contents = begun(path, &contents, most.saturating_add(1))?.unwrap_or(contents);
    if contents.len() as u64 > most {
        let problem = format!(
            "holds more than {most} bytes once unpacked, and no more are read; take a part of it"
        );
        return Err(Error::unfit(path, problem));
    }
    Ok(contents)
}

/// The first `most` bytes of what is packed by gzip in the contents of `path`; nothing where they are not packed.
pub(crate) fn begun(path: &Path, contents: &[u8], most: u64) -> Result<Option<Vec<u8>>> {
    if !contents.starts_with(&[0x1f, 0x8b]) {
        return Ok(None);
    }
    let mut unpacked = Vec::new();
    let packed = flate2::read::MultiGzDecoder::new(contents);
    packed.take(most).read_to_end(&mut unpacked).map_err(|error| {
        Error::unfit(path, format!("cannot be unpacked ({error}); get it again"))
    })?;
    Ok(Some(unpacked))
}

/// What is in a folder, by name; hidden files and what systems leave behind are not.
pub(crate) fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let failed = Error::read(dir);
    let found = fs::read_dir(dir).map_err(&failed)?;
    let paths = found.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<_>>();
    let mut paths: Vec<PathBuf> = paths.map_err(failed)?;
    paths.retain(|path| !is_hidden(path));
    paths.sort();
    Ok(paths)
}

/// Whether a file is none that a person has put there.
pub(crate) fn is_hidden(path: &Path) -> bool {
    let name = file_name(path);
    name.starts_with('.') || ["thumbs.db", "desktop.ini", "__macosx"].contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_or_torn_is_refused_and_not_cut() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, b"0123456789").unwrap();
        let packed = packed.finish().unwrap();
        let read = |contents: &[u8], most| unpacked(Path::new("a.gz"), contents.to_vec(), most);
        for contents in [packed.as_slice(), b"0123456789"] {
            assert_eq!(read(contents, 10).unwrap(), b"0123456789");
            let error = read(contents, 9).unwrap_err().to_string();
            assert!(error.starts_with("a.gz holds more than 9 bytes"), "{error}");
        }
        let error = read(&packed[..packed.len() - 9], 10).unwrap_err().to_string();
        assert!(error.starts_with("a.gz cannot be unpacked"), "{error}");
    }
}
