//! Data of one's own: what is read, what is refused and with which words, what is warned of.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod arrays;
mod folders;
mod look;
mod tables;

use std::fs;
use std::path::Path;

use gradwire_datasets::{Batch, Config, Data, Dataset, Features, Result};

/// A square PNG file of one colour.
fn png(path: &Path, side: u32, colour: [u8; 3]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    image::RgbImage::from_pixel(side, side, image::Rgb(colour)).save(path).unwrap();
}

/// The data set of these settings, in which DIR stands for `dir`.
fn load(dir: &Path, settings: &str) -> Result<Data> {
    let settings = settings.replace("DIR", dir.to_str().unwrap());
    let config: Config = toml::from_str(&settings).unwrap_or_else(|e| panic!("{settings}: {e}"));
    config.load(dir)
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

/// A case: what it is, how its files are made in a folder, the settings, and what becomes of it.
type Case = (&'static str, fn(&Path), &'static str, Outcome);

fn try_all(cases: &[Case]) {
    for (what, make, settings, outcome) in cases {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("data");
        fs::create_dir(&dir).unwrap();
        make(&dir);
        match (load(&dir, settings), outcome) {
            (Err(error), Refused(words)) => {
                let message = error.to_string();
                let missing = words.iter().find(|word| !message.contains(**word));
                assert!(missing.is_none(), "{what}: {missing:?} is not in {message:?}");
            }
            (Ok(data), Read(train, test, words)) => {
                assert_eq!((data.train.len(), data.test.len()), (*train, *test), "{what}");
                let warnings = data.warnings.join("\n");
                let missing = words.iter().find(|word| !warnings.contains(**word));
                assert!(missing.is_none(), "{what}: {missing:?} is not in {warnings:?}");
                assert_eq!(warnings.is_empty(), words.is_empty(), "{what}: {warnings}");
            }
            (Err(error), Read(..)) => panic!("{what}: {error}"),
            (Ok(data), Refused(_)) => {
                panic!("{what}: read {} samples, {:?}", data.train.len(), data.warnings)
            }
        }
    }
}
