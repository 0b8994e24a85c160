//! CIFAR-10 and CIFAR-100 in their official binary layouts (Krizhevsky, "Learning multiple layers
//! of features from tiny images", 2009; <https://www.cs.toronto.edu/~kriz/cifar.html>).
//!
//! A file is records without header or separator. A record is one label byte (CIFAR-10) or two,
//! coarse then fine (CIFAR-100), and 3,072 bytes of pixels: 1,024 red, 1,024 green, 1,024 blue,
//! each row by row.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

#[cfg(feature = "fetch")]
use crate::convert;
use crate::definition::{About, DEFAULT_DIR, Data, Definition, check_limits};
use crate::distribution::Distribution;
#[cfg(feature = "fetch")]
use crate::distribution::Hosted;
use crate::error::{Error, Result};
use crate::files::{FileSum, Official, Place};
use crate::images::{Gathered, IMAGE};
use crate::names;

/// Where CIFAR-10 lies and how much of it to use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cifar10 {
    /// The folder that holds `cifar-10-batches-bin/`, or that folder itself.
    pub dir: PathBuf,
    /// Accept files with fewer records than the official ones: a synthetic twin or a subset.
    pub partial: bool,
    /// Use only the first so many training images (mean and deviation are then theirs).
    pub train_limit: Option<usize>,
    /// Use only the first so many test images.
    pub test_limit: Option<usize>,
}

impl Default for Cifar10 {
    fn default() -> Self {
        Self { dir: DEFAULT_DIR.into(), partial: false, train_limit: None, test_limit: None }
    }
}

impl Definition for Cifar10 {
    fn about(&self) -> About {
        About {
            name: "cifar10",
            line: "50,000 + 10,000 photos of 32×32 pixels, 10 classes",
            paper: "Krizhevsky 2009",
        }
    }

    fn is_text(&self) -> bool {
        false
    }

    fn validate(&self) -> Result<()> {
        check_limits(self.train_limit, self.test_limit)
    }

    fn load(&self, _scratch: &Path, _vocabulary: Option<&str>) -> Result<Data> {
        self.load()
    }

    fn distribution(&self) -> Option<&'static dyn Distribution> {
        Some(&CIFAR10)
    }
}

impl Cifar10 {
    pub(crate) fn load(&self) -> Result<Data> {
        CIFAR10.load(&self.dir, 0, self.partial, self.train_limit, self.test_limit)
    }
}

/// Where CIFAR-100 lies, which of its two labels to learn and how much of it to use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cifar100 {
    /// The folder that holds `cifar-100-binary/`, or that folder itself.
    pub dir: PathBuf,
    /// Which classes to tell apart.
    pub labels: Labels,
    /// Accept files with fewer records than the official ones: a synthetic twin or a subset.
    pub partial: bool,
    /// Use only the first so many training images (mean and deviation are then theirs).
    pub train_limit: Option<usize>,
    /// Use only the first so many test images.
    pub test_limit: Option<usize>,
}

impl Default for Cifar100 {
    fn default() -> Self {
        Self {
            dir: DEFAULT_DIR.into(),
            labels: Labels::Fine,
            partial: false,
            train_limit: None,
            test_limit: None,
        }
    }
}

impl Definition for Cifar100 {
    fn about(&self) -> About {
        About {
            name: "cifar100",
            line: "50,000 + 10,000 photos of 32×32 pixels, 100 fine or 20 coarse classes",
            paper: "Krizhevsky 2009",
        }
    }

    fn is_text(&self) -> bool {
        false
    }

    fn validate(&self) -> Result<()> {
        check_limits(self.train_limit, self.test_limit)
    }

    fn load(&self, _scratch: &Path, _vocabulary: Option<&str>) -> Result<Data> {
        self.load()
    }

    fn distribution(&self) -> Option<&'static dyn Distribution> {
        Some(&CIFAR100)
    }
}

impl Cifar100 {
    pub(crate) fn load(&self) -> Result<Data> {
        let label = match self.labels {
            Labels::Coarse => 0,
            Labels::Fine => 1,
        };
        CIFAR100.load(&self.dir, label, self.partial, self.train_limit, self.test_limit)
    }
}

/// The two labels of a CIFAR-100 image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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

    /// Reads both sets from `dir`; the class is the record's label number `label`.
    fn load(
        &self,
        dir: &Path,
        label: usize,
        partial: bool,
        train_limit: Option<usize>,
        test_limit: Option<usize>,
    ) -> Result<Data> {
        let folder = self.place.find(dir, self.files().iter().map(|file| file.name))?;
        let mut files = Vec::new();
        let mut gather = |officials: &[Official], limit: Option<usize>| {
            let limit = limit.unwrap_or(usize::MAX);
            let mut gathered = Gathered::default();
            for official in officials {
                if gathered.len() < limit {
                    let rest = limit - gathered.len();
                    let path = folder.join(official.name);
                    files.push(self.gather(
                        &path,
                        official,
                        label,
                        partial,
                        rest,
                        &mut gathered,
                    )?);
                }
            }
            Ok(gathered)
        };
        let train = gather(self.train, train_limit)?;
        let test = gather(std::slice::from_ref(&self.test), test_limit)?;
        let (train, test, normalisation) =
            Gathered::into_sets(train, test, self.labels[label].classes);
        Ok(Data {
            train: Arc::new(train),
            test: Arc::new(test),
            files,
            vocabulary: None,
            normalisation: Some(normalisation),
        })
    }

    /// Reads one file and gathers its first `limit` images. All records are checked, also those
    /// that are not gathered.
    fn gather(
        &self,
        path: &Path,
        official: &Official,
        label: usize,
        partial: bool,
        limit: usize,
        gathered: &mut Gathered,
    ) -> Result<FileSum> {
        let contents = self.place.read(path, self.limit(official), &self.expected(official))?;
        let found = self.check(path, &contents)?;
        if found != official.records && !partial {
            return Err(Error::RecordCount {
                path: path.to_owned(),
                found,
                official: official.records,
                offset: contents.len() as u64,
            });
        }
        gathered.reserve(limit.min(found as usize));
        for record in contents.chunks_exact(self.record_bytes()).take(limit) {
            let planes = record.last_chunk().expect("invariant: a record ends in an image");
            gathered.push(record[label], planes);
        }
        Ok(FileSum::new(official, &contents))
    }

    /// Checks that `contents` are whole records with labels in range, and counts them.
    pub(crate) fn check(&self, path: &Path, contents: &[u8]) -> Result<u64> {
        let size = self.record_bytes();
        let records = contents.chunks_exact(size);
        let count = records.len();
        let rest = records.remainder().len();
        if rest != 0 {
            return Err(Error::CutShort {
                path: path.to_owned(),
                record: count as u64 + 1,
                offset: (count * size) as u64,
                found: rest as u64,
                record_bytes: size as u64,
            });
        }
        for (number, record) in records.enumerate() {
            for (byte, label) in self.labels.iter().enumerate() {
                if usize::from(record[byte]) >= label.classes.len() {
                    return Err(Error::Label {
                        path: path.to_owned(),
                        record: number as u64 + 1,
                        offset: (number * size + byte) as u64,
                        label: label.name,
                        found: record[byte],
                        last: (label.classes.len() - 1) as u8,
                    });
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
mod tests {
    use super::*;
    use crate::dataset::{Batch, Features};
    use proptest::prelude::*;
    use std::fs;

    /// A set whose image i has label i mod 10 and every byte i.
    fn write(dir: &Path, per_file: u8) {
        for (number, file) in CIFAR10.files().into_iter().enumerate() {
            let mut contents = Vec::new();
            for i in 0..per_file {
                let value = number as u8 * per_file + i;
                contents.push(value % 10);
                contents.extend([value; IMAGE]);
            }
            crate::files::write(&dir.join(file.name), &contents).unwrap();
        }
    }

    fn config(dir: &Path) -> Cifar10 {
        Cifar10 { dir: dir.to_owned(), partial: true, ..Cifar10::default() }
    }

    fn labels(data: &dyn crate::Dataset) -> Vec<u32> {
        let mut batch = Batch::empty();
        data.batch(&(0..data.len() as u32).collect::<Vec<_>>(), None, &mut batch);
        batch.labels
    }

    #[test]
    fn files_are_read_in_order() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 4);
        let data = config(dir.path()).load().unwrap();
        assert_eq!(labels(&*data.train), (0..20).map(|i| i % 10).collect::<Vec<_>>());
        assert_eq!(labels(&*data.test), [0, 1, 2, 3]);
        assert_eq!(data.files.len(), 6);
        assert_eq!(
            (data.files[5].name.as_str(), data.files[5].bytes),
            ("test_batch.bin", 4 * 3073)
        );
        // Bytes 0..=19, each equally often.
        let normal = data.normalisation.unwrap();
        assert!((normal.mean[2] * 255.0 - 9.5).abs() < 1e-12);
        assert!((normal.deviation[2] * 255.0 - (399.0f64 / 12.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn planes_become_pixels() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 1);
        let mut record = vec![3];
        for plane in [200u8, 100, 50] {
            record.extend((0..1024).map(|i| plane + (i == 33) as u8));
        }
        fs::write(dir.path().join("test_batch.bin"), record).unwrap();
        let data = config(dir.path()).load().unwrap();
        let normal = data.normalisation.unwrap();
        let mut batch = Batch::empty();
        data.test.batch(&[0], None, &mut batch);
        let Features::Images { pixels, .. } = batch.features else { panic!() };
        for (position, pixel) in pixels.chunks_exact(3).enumerate() {
            for (c, plane) in [200.0, 100.0, 50.0].into_iter().enumerate() {
                let byte = plane + f64::from(position == 33);
                let expected = (byte / 255.0 - normal.mean[c]) / normal.deviation[c];
                assert!((f64::from(pixel[c]) - expected).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn limits_take_the_first_images_and_read_no_further() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 4);
        fs::remove_file(dir.path().join("data_batch_3.bin")).unwrap();
        let limited = Cifar10 { train_limit: Some(6), test_limit: Some(2), ..config(dir.path()) };
        let data = limited.load().unwrap();
        assert_eq!(labels(&*data.train), [0, 1, 2, 3, 4, 5]);
        assert_eq!(labels(&*data.test), [0, 1]);
        let zero = Cifar10 { train_limit: Some(0), ..config(dir.path()) };
        assert!(matches!(zero.validate(), Err(Error::Setting { .. })));
    }

    #[test]
    fn cifar100_has_two_labels() {
        let dir = tempfile::tempdir().unwrap();
        let mut contents = vec![4, 0];
        contents.extend([1; IMAGE]);
        contents.extend([1, 99]);
        contents.extend([2; IMAGE]);
        for file in CIFAR100.files() {
            fs::write(dir.path().join(file.name), &contents).unwrap();
        }
        let fine = Cifar100 { dir: dir.path().into(), partial: true, ..Cifar100::default() };
        assert_eq!(labels(&*fine.load().unwrap().train), [0, 99]);
        assert_eq!(fine.load().unwrap().train.classes().len(), 100);
        let coarse = Cifar100 { labels: Labels::Coarse, ..fine };
        assert_eq!(labels(&*coarse.load().unwrap().train), [4, 1]);
        assert_eq!(coarse.load().unwrap().train.classes()[4], "fruit_and_vegetables");
        contents[3074] = 20;
        fs::write(dir.path().join("test.bin"), &contents).unwrap();
        let error = coarse.load().err().unwrap();
        assert!(
            matches!(
                error,
                Error::Label { record: 2, offset: 3074, label: "coarse", found: 20, last: 19, .. }
            ),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_counted_or_refused(contents: Vec<u8>, records in 0usize..4, label: u8) {
            let path = Path::new("train.bin");
            let short = contents.len() % CIFAR10.record_bytes() != 0;
            prop_assert_eq!(CIFAR10.check(path, &contents).is_err(), short);
            let whole = [label, 0].repeat(records * CIFAR100.record_bytes() / 2);
            let counts = CIFAR100.per_class(path, &whole);
            prop_assert_eq!(counts.is_err(), records > 0 && label > 19);
            prop_assert!(counts.is_err() || counts.unwrap()[0] == records as u64);
        }
    }

    #[test]
    fn every_bad_file_is_told_with_place_and_remedy() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 4);
        let path = dir.path().join("data_batch_2.bin");
        let good = fs::read(&path).unwrap();
        let fails = |contents: &[u8], config: &Cifar10| {
            fs::write(&path, contents).unwrap();
            let error = config.load().err().expect("a bad file was accepted");
            let message = error.to_string();
            assert!(message.contains("data_batch_2.bin") && message.contains("again"), "{message}");
            error
        };
        let config = config(dir.path());

        let error = fails(&good[..good.len() - 1], &config);
        assert!(matches!(
            error,
            Error::CutShort { record: 4, offset: 9219, found: 3072, record_bytes: 3073, .. }
        ));
        assert!(matches!(fails(&good[..1], &config), Error::CutShort { record: 1, offset: 0, .. }));
        assert!(matches!(fails(b"", &config), Error::Empty { .. }));
        let mut label = good.clone();
        label[2 * 3073] = 10;
        let error = fails(&label, &config);
        assert!(matches!(error, Error::Label { record: 3, offset: 6146, found: 10, last: 9, .. }));
        let huge = vec![0; 10_001 * 3073];
        assert!(matches!(fails(&huge, &config), Error::TooLarge { .. }));
        fs::write(&path, &good).unwrap();

        // Without `partial`, a file must have the official number of records.
        let error = Cifar10 { partial: false, ..config.clone() }.load().err().unwrap();
        assert!(matches!(
            error,
            Error::RecordCount { found: 4, official: 10_000, offset: 12_292, .. }
        ));
        assert!(error.to_string().contains("partial = true"), "{error}");

        fs::remove_file(&path).unwrap();
        let error = config.load().err().unwrap();
        assert!(matches!(error, Error::Missing { .. }));
        assert!(error.to_string().contains("gradwire data fetch cifar10"), "{error}");
        fs::create_dir(&path).unwrap();
        assert!(matches!(config.load().err().unwrap(), Error::Read { .. }));
    }
}
