//! Data of one's own: what is read, what is refused and with which words, what is warned of.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod arrays;
mod folders;
mod look;
mod tables;

use std::fs;
use std::path::Path;

use gradwire_datasets::{Batch, Config, Data, Dataset, Features, Reading, Result, Selection};

/// A square PNG file of one colour.
fn png(path: &Path, side: u32, colour: [u8; 3]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    image::RgbImage::from_pixel(side, side, image::Rgb(colour)).save(path).unwrap();
}

/// The data set of these settings, in which DIR stands for `dir`; `samples` among them are a recipe's.
fn load(dir: &Path, settings: &str) -> Result<Data> {
    let settings = settings.replace("DIR", dir.to_str().unwrap());
    let mut table: toml::Table = settings.parse().unwrap_or_else(|e| panic!("{settings}: {e}"));
    let samples = table.remove("samples").map(|samples| samples.try_into().unwrap());
    let config: Config = table.try_into().unwrap_or_else(|e| panic!("{settings}: {e}"));
    let samples: Selection = samples.unwrap_or_default();
    config.load_as(&Reading { scratch: dir, samples, vocabulary: None })
}

fn all(set: &dyn Dataset) -> (Vec<Vec<f32>>, Vec<u32>) {
    let mut batch = Batch::default();
    set.batch(&(0..set.len() as u32).collect::<Vec<_>>(), None, &mut batch);
    match batch.features {
        Features::Images { pixels, height, width, channels } => {
            let images = pixels.chunks(height * width * channels).map(<[f32]>::to_vec);
            (images.collect(), batch.labels)
        }
        Features::Tokens { ids, length } | Features::Sequences { ids, length } => {
            let texts = ids.chunks(length).map(|ids| ids.iter().map(|&id| id as f32).collect());
            (texts.collect(), batch.labels)
        }
    }
}

/// What becomes of files.
enum Outcome {
    /// Refused, with all of these words.
    Refused(&'static [&'static str]),
    /// Read, with these numbers of samples, and a warning that has all of these words, or none.
    Read(usize, usize, &'static [&'static str]),
}
use Outcome::{Read, Refused};

/// A case: what it is, how its files are made in a folder, and what becomes of it.
type Case = (&'static str, fn(&Path), Outcome);

/// Tries each case with these settings.
fn try_all(settings: &str, cases: &[Case]) {
    for (what, make, outcome) in cases {
        try_one(what, make, settings, outcome);
    }
}

fn try_one(what: &str, make: impl Fn(&Path), settings: &str, outcome: &Outcome) {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("data");
    fs::create_dir(&dir).unwrap();
    make(&dir);
    let (found, words) = match (load(&dir, settings), outcome) {
        (Err(error), Refused(words)) => (error.to_string(), words),
        (Ok(data), Read(train, test, words)) => {
            assert_eq!((data.train.len(), data.test.len()), (*train, *test), "{what}");
            let warnings = data.warnings.join("\n");
            assert_eq!(warnings.is_empty(), words.is_empty(), "{what}: {warnings}");
            (warnings, words)
        }
        (Err(error), Read(..)) => panic!("{what}: {error}"),
        (Ok(data), Refused(_)) => {
            panic!("{what}: read {} samples, {:?}", data.train.len(), data.warnings)
        }
    };
    says(&found, words);
}

/// Fails unless all of these words are in `text`.
#[track_caller]
fn says(text: &str, words: &[&str]) {
    let missing = words.iter().find(|word| !text.contains(**word));
    assert!(missing.is_none(), "{missing:?} is not in {text:?}");
}

/// Tries settings of this kind that are refused without a file, each with the words of its error.
fn refuse_all(kind: &str, cases: &[(&str, &str)]) {
    for (settings, word) in cases {
        let settings = format!("kind = '{kind}'\n{settings}");
        says(&load(Path::new("nowhere"), &settings).err().unwrap().to_string(), &[word]);
    }
}
