//! Tiny deterministic twins of the data sets, in the same official formats.
//!
//! They are made up, quick to learn, and read by the parsers that read the real files; so a smoke
//! test exercises everything but the contents. The same counts and seed give the same bytes.

mod images;
mod text;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::agnews::{self, AgNews};
use crate::cifar::{self, Cifar10, Cifar100};
use crate::definition::{
    About, Counts, Data, DatasetDefinition, Form, Holds, Reading, Selection, Twin, check_count,
};
use crate::error::Result;
use crate::files::{self, Official, Place};
use crate::plain_text::PlainText;

/// A twin of CIFAR-10: each class has a colour and a texture of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SyntheticCifar10 {}

/// A twin of CIFAR-100: ten colours times ten textures.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SyntheticCifar100 {}

settings! {
    /// A twin of AG News: made-up news of four topics, each with words of its own.
    pub struct SyntheticAgNews {
        /// The largest number of token ids, the two for padding and unknown words included.
        #[cfg_attr(feature = "schema", schemars(range(min = 3, max = 1 << 20)))]
        pub vocabulary: usize = 1000,
        /// How often a word must occur in the training set to get an id.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub minimum_count: u64 = 2,
        /// Tokens per text: longer texts are cut, shorter ones padded.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1 << 16)))]
        pub length: usize = 32,
    }
}

settings! {
    /// A made-up text: the sentences of made-up news of about 150 characters each, one after the other.
    pub struct SyntheticText {
        /// Characters that a model sees at a time (the length of a block).
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1 << 16)))]
        pub length: usize = 32,
    }
}

/// How much is made up.
#[derive(Clone, Copy)]
struct Amount {
    train: usize,
    test: usize,
    seed: u64,
}

/// A file to be, and its contents.
type Made = (PathBuf, Vec<u8>);

impl SyntheticCifar10 {
    const AMOUNT: Amount = Amount { train: 1024, test: 256, seed: 0 };

    fn files(dir: &Path, amount: Amount) -> Vec<Made> {
        images::files(&cifar::CIFAR10, dir, amount)
    }

    fn reader(&self, dir: PathBuf) -> Cifar10 {
        Cifar10 { dir, partial: true }
    }
}

impl SyntheticCifar100 {
    const AMOUNT: Amount = Amount { train: 2000, test: 500, seed: 0 };

    fn files(dir: &Path, amount: Amount) -> Vec<Made> {
        images::files(&cifar::CIFAR100, dir, amount)
    }

    fn reader(&self, dir: PathBuf) -> Cifar100 {
        Cifar100 { dir, partial: true, ..Cifar100::default() }
    }
}

impl SyntheticAgNews {
    const AMOUNT: Amount = Amount { train: 2000, test: 500, seed: 0 };

    fn files(dir: &Path, amount: Amount) -> Vec<Made> {
        text::files(dir, amount)
    }

    fn reader(&self, dir: PathBuf) -> AgNews {
        let &Self { vocabulary, minimum_count, length } = self;
        AgNews { dir, vocabulary, minimum_count, length, partial: true }
    }
}

/// The files of a made-up text.
const TEXT: Place = Place { fetch: "text", folder: "synthetic-text" };
const TEXTS: [Official; 2] = [
    Official { name: "train.txt", records: 100_000, sha256: "" },
    Official { name: "test.txt", records: 10_000, sha256: "" },
];

impl SyntheticText {
    const AMOUNT: Amount = Amount { train: 200, test: 40, seed: 0 };

    fn files(dir: &Path, Amount { train, test, seed }: Amount) -> Vec<Made> {
        let made = [(0, train), (1, test)].into_iter().zip(&TEXTS).map(|((set, count), file)| {
            (dir.join(TEXT.folder).join(file.name), text::prose(set, count, seed).into_bytes())
        });
        made.collect()
    }

    #[expect(clippy::needless_pass_by_value, reason = "as the readers of the other twins")]
    fn reader(&self, dir: PathBuf) -> PlainText {
        let [file, test_file] = TEXTS.each_ref().map(|file| dir.join(TEXT.folder).join(file.name));
        PlainText { file, test_file: Some(test_file), length: self.length, ..PlainText::default() }
    }
}

/// Twins that write their `files`, and a `reader` of the data set they stand in for. Each names the official files of that,
/// which bound the numbers of samples.
macro_rules! twins {
    ($($twin:ident, $of:expr, $train:expr, $test:expr, $name:literal, $line:literal;)*) => {$(
        impl $twin {
            /// So much is made; refused where official files would not hold it.
            fn amount(train: Option<usize>, test: Option<usize>, seed: u64) -> Result<Amount> {
                let (train, test) =
                    (train.unwrap_or(Self::AMOUNT.train), test.unwrap_or(Self::AMOUNT.test));
                let most: u64 = $train.iter().map(|file: &Official| file.records).sum();
                check_count("samples.train", train, $train.len(), most as usize)?;
                check_count("samples.test", test, 1, $test.records as usize)?;
                Ok(Amount { train, test, seed })
            }
        }

        impl DatasetDefinition for $twin {
            fn about(&self) -> About {
                About { name: $name, line: $line, paper: "" }
            }

            fn form(&self) -> Result<Form> {
                self.reader(PathBuf::new()).form()
            }

            fn holds(&self) -> Holds {
                self.reader(PathBuf::new()).holds()
            }

            fn validate(&self, samples: &Selection) -> Result<()> {
                Self::amount(samples.train, samples.test, Self::AMOUNT.seed)?;
                self.reader(PathBuf::new()).validate(samples)
            }

            fn load(&self, reading: &Reading<'_>) -> Result<Data> {
                let Selection { train, test, .. } = reading.samples;
                let amount = Self::amount(train, test, Self::AMOUNT.seed)?;
                // Twins with other contents lie elsewhere, so all files there are this one's.
                let Amount { train, test, seed } = amount;
                let dir = reading.scratch.join(format!("{}-{train}-{test}-{seed}", $name));
                for (path, contents) in Self::files(&dir, amount) {
                    files::write(&path, &contents)?;
                }
                let all = Reading { samples: Selection::default(), ..*reading };
                self.reader(dir).load(&all)
            }

            fn twin(&self) -> Option<&dyn Twin> {
                Some(self)
            }
        }

        impl Twin for $twin {
            fn original(&self) -> &'static str {
                $of.fetch
            }

            fn write(&self, dir: &Path, counts: Counts) -> Result<Vec<PathBuf>> {
                let files = Self::files(dir, Self::amount(counts.train, counts.test, counts.seed)?);
                files::create(&files)?;
                Ok(files.into_iter().map(|(path, _)| path).collect())
            }
        }
    )*};
}

twins! {
    SyntheticCifar10, cifar::CIFAR10.place, cifar::CIFAR10.train, cifar::CIFAR10.test,
        "synthetic-cifar10", "small made-up images in CIFAR-10's layout; needs no files";
    SyntheticCifar100, cifar::CIFAR100.place, cifar::CIFAR100.train, cifar::CIFAR100.test,
        "synthetic-cifar100", "small made-up images in CIFAR-100's layout; needs no files";
    SyntheticAgNews, agnews::PLACE, agnews::OFFICIAL[..1], agnews::OFFICIAL[1],
        "synthetic-ag-news", "small made-up news in AG News' layout; needs no files";
    SyntheticText, TEXT, TEXTS[..1], TEXTS[1],
        "synthetic-text", "a small made-up text to continue; needs no files";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::dataset::{Dataset, Features, whole};
    use crate::error::Error;

    fn counts(train: usize, test: usize, seed: u64) -> Counts {
        Counts { train: Some(train), test: Some(test), seed }
    }

    /// The features that the classes differ in: mean of each channel, and strength of the gratings
    /// of 1, 3, 5, 7, 9 waves across and down.
    fn features(image: &[f32]) -> Vec<f32> {
        let mut features: Vec<f32> =
            (0..3).map(|c| image.iter().skip(c).step_by(3).sum::<f32>() / 1024.0).collect();
        for waves in [1, 3, 5, 7, 9] {
            let angle = |at: usize| std::f32::consts::TAU * (waves * at) as f32 / 32.0;
            for across in [true, false] {
                let (mut cosine, mut sine) = (0.0, 0.0);
                for (position, pixel) in image.chunks_exact(3).enumerate() {
                    let at = if across { position % 32 } else { position / 32 };
                    let grey: f32 = pixel.iter().sum();
                    cosine += grey * angle(at).cos();
                    sine += grey * angle(at).sin();
                }
                features.push(cosine.hypot(sine) / 512.0);
            }
        }
        features
    }

    fn featured(set: &dyn Dataset) -> Vec<(usize, Vec<f32>)> {
        let batch = whole(set);
        let Features::Images { pixels, .. } = &batch.features else { panic!() };
        let features = pixels.chunks_exact(3072).map(features);
        batch.labels.iter().map(|&label| label as usize).zip(features).collect()
    }

    /// The share of test samples whose nearest class mean of the training set is their own.
    fn separability(data: &Data) -> f64 {
        let classes = data.train.classes().len();
        let train = featured(&*data.train);
        let mut means = vec![vec![0.0; 13]; classes];
        let mut counts = vec![0.0; classes];
        for (label, features) in &train {
            counts[*label] += 1.0;
            means[*label].iter_mut().zip(features).for_each(|(mean, f)| *mean += f);
        }
        let test = featured(&*data.test);
        let distance = |class: usize, features: &[f32]| -> f32 {
            let terms = means[class].iter().zip(features);
            terms.map(|(mean, f)| (mean / counts[class] - f).powi(2)).sum()
        };
        let right = test.iter().filter(|(label, features)| {
            (0..classes).min_by(|&a, &b| distance(a, features).total_cmp(&distance(b, features)))
                == Some(*label)
        });
        right.count() as f64 / test.len() as f64
    }

    #[test]
    fn twins_are_read_by_the_real_parsers_and_can_be_learned() {
        let scratch = tempfile::tempdir().unwrap();
        for (name, train, test) in
            [("synthetic-cifar10", 1024, 256), ("synthetic-cifar100", 2000, 500)]
        {
            let data = Config::from_name(name).unwrap().load(scratch.path()).unwrap();
            assert_eq!((data.train.len(), data.test.len()), (train, test));
            let share = separability(&data);
            assert!(share > 0.95, "{name}: {share}");
        }
    }

    /// The share of test texts that naive Bayes on the words of the training texts classifies right.
    fn bayes(data: &Data) -> f64 {
        let read = |set: &dyn Dataset| {
            let batch = whole(set);
            let Features::Tokens { ids, length } = batch.features else { panic!() };
            let texts = ids.chunks_exact(length).map(<[u32]>::to_vec);
            batch.labels.into_iter().zip(texts).collect::<Vec<_>>()
        };
        let mut counts = vec![[1.0f64; 4]; 1000];
        for (label, ids) in read(&*data.train) {
            ids.iter().for_each(|&id| counts[id as usize][label as usize] += 1.0);
        }
        let test = read(&*data.test);
        let right = test.iter().filter(|(label, ids)| {
            let score =
                |class: usize| ids.iter().map(|&id| counts[id as usize][class].ln()).sum::<f64>();
            (0..4).max_by(|&a, &b| score(a).total_cmp(&score(b))) == Some(*label as usize)
        });
        right.count() as f64 / test.len() as f64
    }

    #[test]
    fn made_up_news_can_be_told_apart_but_not_by_one_word() {
        let scratch = tempfile::tempdir().unwrap();
        let data = Config::from_name("synthetic-ag-news").unwrap().load(scratch.path()).unwrap();
        assert_eq!((data.train.len(), data.test.len()), (2000, 500));
        let share = bayes(&data);
        assert!((0.93..1.0).contains(&share), "{share}");
        let crate::Shape::Text { vocabulary, length } = data.test.shape() else { panic!() };
        assert!(vocabulary > 150 && length == 32, "{vocabulary}");
    }

    #[test]
    fn made_up_news_exercises_the_parser() {
        let dir = tempfile::tempdir().unwrap();
        let paths = SyntheticAgNews::default().write(dir.path(), Counts::default()).unwrap();
        let text = std::fs::read_to_string(&paths[0]).unwrap();
        for token in ["\"\"", "\\", ", ", "$", "'s"] {
            assert!(text.contains(token), "{token}");
        }
        assert_eq!(text.lines().count(), 2000);
        assert!(text.lines().all(|line| line.matches("\",\"").count() == 2));
    }

    #[test]
    fn the_same_seed_writes_the_same_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = |seed, folder: &str| {
            let twin = SyntheticCifar10::default();
            let paths = twin.write(&dir.path().join(folder), counts(7, 2, seed)).unwrap();
            assert_eq!(paths.len(), 6);
            paths.iter().map(|path| std::fs::read(path).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(bytes(1, "a"), bytes(1, "b"));
        assert_ne!(bytes(1, "a"), bytes(2, "c"));
        let other = SyntheticCifar10::default().write(&dir.path().join("a"), counts(8, 2, 1));
        assert!(matches!(other, Err(Error::InTheWay { .. })), "a file was written over");
        assert!(bytes(1, "a").iter().all(|file| !file.is_empty()));
    }

    #[test]
    fn impossible_counts_are_refused() {
        let scratch = Path::new("nowhere");
        for (train, test) in [(4, 1), (50_001, 1), (5, 0), (5, 10_001)] {
            let written = SyntheticCifar10::default().write(scratch, counts(train, test, 0));
            assert!(matches!(written, Err(Error::Setting { .. })));
        }
    }
}
