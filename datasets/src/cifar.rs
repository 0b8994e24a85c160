//! CIFAR-10 and CIFAR-100 in their official binary layouts (Krizhevsky, "Learning multiple layers
//! of features from tiny images", 2009; <https://www.cs.toronto.edu/~kriz/cifar.html>).
//!
//! A file is records without header or separator. A record is one label byte (CIFAR-10) or two,
//! coarse then fine (CIFAR-100), and 3,072 bytes of pixels: 1,024 red, 1,024 green, 1,024 blue,
//! each row by row.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

#[cfg(feature = "fetch")]
use crate::convert;
use crate::definition::{About, DEFAULT_DIR, Data, DatasetDefinition, Form, Reading, Selection};
use crate::distribution::Distribution;
#[cfg(feature = "fetch")]
use crate::distribution::Hosted;
use crate::error::{Error, Result};
use crate::files::{self, FileSum, Official, Place};
use crate::images::{CIFAR, GatheredImages, IMAGE};
use crate::names;

settings! {
    /// Where CIFAR-10 lies and how much of it to use.
    pub struct Cifar10 {
        /// The folder that holds `cifar-10-batches-bin/`, or that folder itself.
        pub dir: PathBuf = DEFAULT_DIR.into(),
        /// Accept files with fewer records than the official ones: a synthetic twin or a subset.
        pub partial: bool = false,
    }
}

impl DatasetDefinition for Cifar10 {
    fn about(&self) -> About {
        About {
            name: "cifar10",
            line: "50,000 + 10,000 photos of 32×32 pixels, 10 classes",
            paper: "Krizhevsky 2009",
        }
    }

    fn form(&self) -> Result<Form> {
        Ok(Form { shape: CIFAR.shape(), classes: 10 })
    }

    fn validate(&self, samples: &Selection) -> Result<()> {
        samples.share(true).map(drop)
    }

    fn load(&self, reading: &Reading<'_>) -> Result<Data> {
        CIFAR10.load(&self.dir, 0, self.partial, &reading.samples)
    }

    fn distribution(&self) -> Option<&'static dyn Distribution> {
        Some(&CIFAR10)
    }
}

settings! {
    /// Where CIFAR-100 lies, which of its two labels to learn and how much of it to use.
    pub struct Cifar100 {
        /// The folder that holds `cifar-100-binary/`, or that folder itself.
        pub dir: PathBuf = DEFAULT_DIR.into(),
        /// Which classes to tell apart.
        pub labels: Labels = Labels::Fine,
        /// Accept files with fewer records than the official ones: a synthetic twin or a subset.
        pub partial: bool = false,
    }
}

impl DatasetDefinition for Cifar100 {
    fn about(&self) -> About {
        About {
            name: "cifar100",
            line: "50,000 + 10,000 photos of 32×32 pixels, 100 fine or 20 coarse classes",
            paper: "Krizhevsky 2009",
        }
    }

    fn form(&self) -> Result<Form> {
        Ok(Form { shape: CIFAR.shape(), classes: CIFAR100.labels[self.label()].classes.len() })
    }

    fn validate(&self, samples: &Selection) -> Result<()> {
        samples.share(true).map(drop)
    }

    fn load(&self, reading: &Reading<'_>) -> Result<Data> {
        CIFAR100.load(&self.dir, self.label(), self.partial, &reading.samples)
    }

    fn distribution(&self) -> Option<&'static dyn Distribution> {
        Some(&CIFAR100)
    }
}

impl Cifar100 {
    /// Which of a record's label bytes is learned.
    fn label(&self) -> usize {
        usize::from(self.labels == Labels::Fine)
    }
}

/// The two labels of a CIFAR-100 image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Labels {
    /// The 100 classes.
    #[default]
    Fine,
    /// The 20 groups of five classes.
    Coarse,
}

/// One of the two layouts.
pub(crate) struct Format {
    title: &'static str,
    pub(crate) place: Place,
    pub(crate) train: &'static [Official],
    pub(crate) test: Official,
    /// The label bytes of a record, in order.
    pub(crate) labels: &'static [Label],
    #[cfg(feature = "fetch")]
    hosted: Hosted,
}

/// One label byte of a record.
pub(crate) struct Label {
    pub(crate) name: &'static str,
    pub(crate) classes: &'static [&'static str],
}

/// CIFAR-10: 50,000 training images in five files, 10,000 test images.
#[rustfmt::skip]
pub(crate) static CIFAR10: Format = Format {
    title: "CIFAR-10",
    place: Place { fetch: "cifar10", folder: "cifar-10-batches-bin" },
    train: &[
        Official { name: "data_batch_1.bin", records: 10_000, sha256: "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5" },
        Official { name: "data_batch_2.bin", records: 10_000, sha256: "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed" },
        Official { name: "data_batch_3.bin", records: 10_000, sha256: "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67" },
        Official { name: "data_batch_4.bin", records: 10_000, sha256: "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48" },
        Official { name: "data_batch_5.bin", records: 10_000, sha256: "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add" },
    ],
    test: Official { name: "test_batch.bin", records: 10_000, sha256: "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b" },
    labels: &[Label { name: "class", classes: names::CIFAR10 }],
    #[cfg(feature = "fetch")]
    hosted: Hosted {
        repository: "uoft-cs/cifar10",
        archive: "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz \
                  (md5 c32a1d4ab5d03f1284b67883e8d87530)",
        convert: |repository, split| convert::images(repository, &["label"], split),
    },
};

/// CIFAR-100: 50,000 training and 10,000 test images, a file each.
#[rustfmt::skip]
pub(crate) static CIFAR100: Format = Format {
    title: "CIFAR-100",
    place: Place { fetch: "cifar100", folder: "cifar-100-binary" },
    train: &[
        Official { name: "train.bin", records: 50_000, sha256: "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29" },
    ],
    test: Official { name: "test.bin", records: 10_000, sha256: "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a" },
    labels: &[
        Label { name: "coarse", classes: names::CIFAR100_COARSE },
        Label { name: "fine", classes: names::CIFAR100_FINE },
    ],
    #[cfg(feature = "fetch")]
    hosted: Hosted {
        repository: "uoft-cs/cifar100",
        archive: "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz \
                  (md5 03b5dce01913d631647c71ecec9e9cb8)",
        convert: |repository, split| {
            convert::images(repository, &["coarse_label", "fine_label"], split)
        },
    },
};

impl Format {
    /// Bytes of a record.
    pub(crate) fn record_bytes(&self) -> usize {
        self.labels.len() + IMAGE
    }

    /// Reads both sets from `dir`, of each the first so many images; the class is the record's label
    /// number `label`.
    fn load(&self, dir: &Path, label: usize, partial: bool, samples: &Selection) -> Result<Data> {
        let folder = self.place.find(dir, self.files().iter().map(|file| file.name))?;
        let mut files = Vec::new();
        let mut gather = |officials: &[Official], limit: Option<usize>| {
            let mut gathered = GatheredImages::default();
            for official in officials {
                let rest = limit.map_or(usize::MAX, |limit| limit - gathered.len());
                if rest == 0 {
                    break;
                }
                let path = folder.join(official.name);
                let (limit, expected) = (self.limit(official), self.expected(official));
                let contents = self.place.read(&path, limit, &expected)?;
                // All records are checked, also those that are not gathered.
                let found = self.check(&path, &contents)?;
                if found != official.records && !partial {
                    return Err(files::record_count(&path, found, official.records, &contents));
                }
                gathered.reserve(rest.min(found as usize));
                for record in contents.chunks_exact(self.record_bytes()).take(rest) {
                    let planes = record.last_chunk().expect("invariant: a record ends in an image");
                    gathered.push(record[label], planes);
                }
                files.push(FileSum::new(&path, &contents));
            }
            Ok(gathered)
        };
        let train = gather(self.train, samples.train)?;
        let test = gather(std::slice::from_ref(&self.test), samples.test)?;
        let classes = self.labels[label].classes;
        let unseen = files::unseen(train.labels.iter().map(|&label| label as usize), classes);
        let (train, test, normalisation) =
            GatheredImages::into_sets(train, test, CIFAR, classes.iter().copied());
        Ok(Data {
            altered: files::altered(&files, &self.files(), partial),
            warnings: files::twice(&files).into_iter().chain(unseen).collect(),
            normalisation: Some(normalisation),
            ..Data::new(train, test, files)
        })
    }

    /// Checks that `contents` are whole records with labels in range, and counts them.
    pub(crate) fn check(&self, path: &Path, contents: &[u8]) -> Result<u64> {
        let size = self.record_bytes();
        let records = contents.chunks_exact(size);
        let count = records.len();
        let rest = records.remainder().len();
        if rest != 0 {
            let problem = format!(
                "record {} begins at byte {} and is cut short: {rest} of {size} bytes; the file is damaged, fetch or \
                 unpack it again",
                count + 1,
                count * size
            );
            return Err(Error::within(path, problem));
        }
        for (number, record) in records.enumerate() {
            for (byte, label) in self.labels.iter().enumerate() {
                if usize::from(record[byte]) >= label.classes.len() {
                    let problem = format!(
                        "record {} (byte {}) has the {} label {}, but labels run from 0 to {}; the file is damaged or \
                         of another data set, fetch or unpack it again",
                        number + 1,
                        number * size + byte,
                        label.name,
                        record[byte],
                        label.classes.len() - 1
                    );
                    return Err(Error::within(path, problem));
                }
            }
        }
        Ok(count as u64)
    }
}

impl Distribution for Format {
    fn title(&self) -> &'static str {
        self.title
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn files(&self) -> Vec<&Official> {
        self.train.iter().chain([&self.test]).collect()
    }

    fn limit(&self, file: &Official) -> u64 {
        file.records * self.record_bytes() as u64
    }

    fn expected(&self, file: &Official) -> String {
        let size = self.record_bytes();
        format!("{} with {} records of {size} bytes ({})", file.name, file.records, self.title)
    }

    fn per_class(&self, path: &Path, contents: &[u8]) -> Result<Vec<u64>> {
        self.check(path, contents)?;
        let finest = self.labels.len() - 1;
        let mut counts = vec![0; self.labels[finest].classes.len()];
        for record in contents.chunks_exact(self.record_bytes()) {
            counts[usize::from(record[finest])] += 1;
        }
        Ok(counts)
    }

    #[cfg(feature = "fetch")]
    fn hosted(&self) -> Option<&Hosted> {
        Some(&self.hosted)
    }
}

#[cfg(test)]
mod tests;
