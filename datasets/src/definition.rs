//! What a data set is to everybody else: the trait that each one's settings implement.

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use gradwire_registry::About;
use serde::{Deserialize, Serialize};

use crate::dataset::{Dataset, Shape};
use crate::distribution::Distribution;
use crate::error::{Error, Result};
use crate::files::FileSum;
use crate::normalisation::Normalisation;
use crate::survey::Survey;

/// The folder in which data sets are looked for and put when none is named.
pub const DEFAULT_DIR: &str = "data";

/// The settings of a data set in a recipe, and everything that follows from them.
pub trait DatasetDefinition {
    /// What the data set is; one that is made up has no paper.
    fn about(&self) -> About;

    /// What a sample looks like and how many classes there are, as far as the settings and a quick look
    /// at the files tell: the vocabulary of texts is as large as it may become.
    ///
    /// # Errors
    /// When files would have to be looked at and cannot be.
    fn form(&self) -> Result<Form>;

    /// What samples are, as the settings alone tell. Images, unless the data set says otherwise.
    fn holds(&self) -> Holds {
        Holds::Images
    }

    /// Whether the tokens of texts follow from the texts: a model then needs the vocabulary of its run.
    fn learns_tokens(&self) -> bool {
        self.holds() != Holds::Images
    }

    /// Checks what can be checked without touching a file, with a selection that is valid by itself.
    ///
    /// # Errors
    /// [`Error::Setting`] naming the setting and what to write instead.
    fn validate(&self, samples: &Selection) -> Result<()>;

    /// Reads the whole data set into memory, checking every record.
    ///
    /// # Errors
    /// Whatever is wrong with the settings or the files: see [`Error`].
    fn load(&self, reading: &Reading<'_>) -> Result<Data>;

    /// What there is, every sample read, for data of one's own. None unless the data set says so.
    fn survey(&self) -> Option<Result<Survey>> {
        None
    }

    /// The official files, for one that is given away as such: then `verify` knows them, and
    /// `fetch` too if they say where to download them from. None unless the data set says so.
    fn distribution(&self) -> Option<&'static dyn Distribution> {
        None
    }

    /// For a made-up stand-in of another data set: how to write its files. None unless the data
    /// set says so.
    fn twin(&self) -> Option<&dyn Twin> {
        None
    }
}

/// Which samples are used, whatever the data set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Selection {
    /// Use only so many training samples: the first ones of official files (mean, deviation and vocabulary are then
    /// theirs) and of a text; of other data of one's own those whose checksums are lowest. Of a made-up data set so
    /// many are made.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub train: Option<usize>,
    /// Use, or make, only so many test samples.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub test: Option<usize>,
    /// For data of one's own without a test set: the share that is tested on, 0.1 if left out: of each class, which
    /// samples those are follows from what they hold, not from a seed; of a text, the end.
    #[cfg_attr(
        feature = "schema",
        schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))
    )]
    pub test_share: Option<f64>,
    /// Hold out this share of the training samples, and test on them: the test set is left alone. Of a text the end; else
    /// drawn by the recipe's seed. What settings are chosen by.
    #[cfg_attr(
        feature = "schema",
        schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))
    )]
    pub validation: Option<f64>,
}

impl Selection {
    /// Checks what can be checked without knowing the data set.
    ///
    /// # Errors
    /// [`Error::Setting`] naming the setting and what to write instead.
    pub fn validate(&self) -> Result<()> {
        for (field, limit) in [("samples.train", self.train), ("samples.test", self.test)] {
            if limit == Some(0) {
                let problem = "at least 1 sample is needed; leave it out to use all";
                return Err(Error::setting(field, &0, problem));
            }
        }
        let shares =
            [("samples.test_share", self.test_share), ("samples.validation", self.validation)];
        for (field, share) in shares {
            if let Some(share) = share.filter(|share| !(*share > 0.0 && *share < 1.0)) {
                let problem = "write a share between 0 and 1, such as 0.1, or leave it out";
                return Err(Error::setting(field, &share, problem));
            }
        }
        Ok(())
    }

    /// The share that is tested on, unless there is a test set.
    pub(crate) fn share(&self, has_test_set: bool) -> Result<f64> {
        match self.test_share {
            Some(share) if has_test_set => {
                let problem = "there are samples for testing already; leave it out";
                Err(Error::setting("samples.test_share", &share, problem))
            }
            share => Ok(share.unwrap_or(SHARE)),
        }
    }
}

/// The share that is tested on where nothing else is said.
pub(crate) const SHARE: f64 = 0.1;

/// How a data set is read.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'a> {
    /// The folder below which what is made up is first written, unless it is there already.
    pub scratch: &'a Path,
    /// Which samples are used.
    pub samples: Selection,
    /// The [`Data::vocabulary`] of an earlier run, so that words get the ids its model was trained on; what has no
    /// vocabulary ignores it.
    pub vocabulary: Option<&'a str>,
}

/// What a data set holds, known before it is read whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// The shape of one sample.
    pub shape: Shape,
    /// The number of classes.
    pub classes: usize,
}

/// What samples are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Images.
    Images,
    /// Texts to be put into classes.
    Texts,
    /// Pieces of a text to continue.
    Sequences,
}

/// A made-up stand-in of a data set, in its official format.
pub trait Twin {
    /// The name of the data set whose format it has.
    fn original(&self) -> &'static str;

    /// Writes its files into `dir`, in a folder of the official name, and gives back their paths.
    ///
    /// # Errors
    /// [`Error::Setting`] when a count is impossible, [`Error::InTheWay`] when a file of one of
    /// the names is there with other contents (the real data set, say), [`Error::Write`] when one
    /// cannot be written.
    fn write(&self, dir: &Path, counts: Counts) -> Result<Vec<PathBuf>>;
}

/// How much to make up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of training samples; the twin's default if absent.
    pub train: Option<usize>,
    /// The number of test samples; the twin's default if absent.
    pub test: Option<usize>,
    /// What the samples are drawn from.
    pub seed: u64,
}

/// A data set in memory.
#[derive(Clone)]
pub struct Data {
    /// What is learned from.
    pub train: Arc<dyn Dataset>,
    /// What accuracy is measured on.
    pub test: Arc<dyn Dataset>,
    /// The files that were read, in that order.
    pub files: Vec<FileSum>,
    /// Those of them that hold as many records as the official file, as they must, and not its bytes.
    pub altered: Vec<String>,
    /// The tokenizer as JSON, for text: keep it with the model, which is useless without it.
    pub vocabulary: Option<String>,
    /// What pixels were normalised by, for images.
    pub normalisation: Option<Normalisation>,
    /// What a person should know before training on it, such as classes without samples.
    pub warnings: Vec<String>,
}

impl Data {
    /// A training and a test set, and the files they were read from; no more is known of them.
    pub(crate) fn new(
        train: impl Dataset + 'static,
        test: impl Dataset + 'static,
        files: Vec<FileSum>,
    ) -> Self {
        Self {
            train: Arc::new(train),
            test: Arc::new(test),
            files,
            altered: Vec::new(),
            vocabulary: None,
            normalisation: None,
            warnings: Vec::new(),
        }
    }
}

/// Refuses a number that is not from `least` to `most`.
pub(crate) fn check_count(
    field: &'static str,
    found: usize,
    least: usize,
    most: usize,
) -> Result<()> {
    if (least..=most).contains(&found) {
        return Ok(());
    }
    Err(Error::setting(field, &found, format!("write a number from {least} to {most}")))
}
