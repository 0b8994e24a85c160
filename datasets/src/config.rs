//! Which data set, and how it is loaded.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::agnews::AgNews;
use crate::cifar::{Cifar10, Cifar100};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::files::FileSum;
use crate::images::Normalisation;
use crate::synthetic::{SyntheticAgNews, SyntheticCifar10, SyntheticCifar100};

/// The folder in which data sets are looked for and put when none is named.
pub const DEFAULT_DIR: &str = "data";

/// A data set of a recipe: `kind = "cifar10"` and what that kind can be told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Config {
    /// CIFAR-10.
    Cifar10(Cifar10),
    /// CIFAR-100.
    Cifar100(Cifar100),
    /// AG News.
    AgNews(AgNews),
    /// A tiny stand-in for CIFAR-10 in its layout.
    SyntheticCifar10(SyntheticCifar10),
    /// A tiny stand-in for CIFAR-100 in its layout.
    SyntheticCifar100(SyntheticCifar100),
    /// A tiny stand-in for AG News in its layout.
    SyntheticAgNews(SyntheticAgNews),
}

impl Config {
    /// Every kind with one line about it.
    pub const fn all() -> &'static [(&'static str, &'static str)] {
        &[
            ("cifar10", "50,000 + 10,000 photos of 32×32 pixels, 10 classes"),
            ("cifar100", "50,000 + 10,000 photos of 32×32 pixels, 100 fine or 20 coarse classes"),
            ("ag-news", "120,000 + 7,600 news in English, 4 topics"),
            ("synthetic-cifar10", "small made-up images in CIFAR-10's layout; needs no files"),
            ("synthetic-cifar100", "small made-up images in CIFAR-100's layout; needs no files"),
            ("synthetic-ag-news", "small made-up news in AG News' layout; needs no files"),
        ]
    }

    /// The data set of that kind with its defaults.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "cifar10" => Self::Cifar10(Cifar10::default()),
            "cifar100" => Self::Cifar100(Cifar100::default()),
            "ag-news" => Self::AgNews(AgNews::default()),
            "synthetic-cifar10" => Self::SyntheticCifar10(SyntheticCifar10::default()),
            "synthetic-cifar100" => Self::SyntheticCifar100(SyntheticCifar100::default()),
            "synthetic-ag-news" => Self::SyntheticAgNews(SyntheticAgNews::default()),
            _ => return None,
        })
    }

    /// The kind, as in a recipe.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Cifar10(_) => "cifar10",
            Self::Cifar100(_) => "cifar100",
            Self::AgNews(_) => "ag-news",
            Self::SyntheticCifar10(_) => "synthetic-cifar10",
            Self::SyntheticCifar100(_) => "synthetic-cifar100",
            Self::SyntheticAgNews(_) => "synthetic-ag-news",
        }
    }

    /// Whether samples are texts; otherwise they are images.
    pub const fn is_text(&self) -> bool {
        match self {
            Self::Cifar10(_)
            | Self::Cifar100(_)
            | Self::SyntheticCifar10(_)
            | Self::SyntheticCifar100(_) => false,
            Self::AgNews(_) | Self::SyntheticAgNews(_) => true,
        }
    }

    /// Checks what can be checked without touching a file.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] naming the setting and what to write instead.
    pub fn validate(&self) -> Result<()> {
        match self {
            Self::Cifar10(config) => config.validate(),
            Self::Cifar100(config) => config.validate(),
            Self::AgNews(config) => config.validate(),
            Self::SyntheticCifar10(config) => config.validate(),
            Self::SyntheticCifar100(config) => config.validate(),
            Self::SyntheticAgNews(config) => config.validate(),
        }
    }

    /// Reads the whole data set into memory, checking every record. A synthetic one is first
    /// written below `scratch`, unless it is there already.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the settings or the files: see [`Error`].
    pub fn load(&self, scratch: &Path) -> Result<Data> {
        self.load_with(scratch, None)
    }

    /// As [`load`](Self::load), with the vocabulary of an earlier run (its [`Data::vocabulary`]),
    /// so that words get the ids its model was trained on. Images have no vocabulary and ignore it.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load), and [`Error::Vocabulary`] when `vocabulary` is not one of ours.
    pub fn load_with(&self, scratch: &Path, vocabulary: Option<&str>) -> Result<Data> {
        self.validate()?;
        match self {
            Self::Cifar10(config) => config.load(),
            Self::Cifar100(config) => config.load(),
            Self::AgNews(config) => config.load(vocabulary),
            Self::SyntheticCifar10(config) => config.load(scratch),
            Self::SyntheticCifar100(config) => config.load(scratch),
            Self::SyntheticAgNews(config) => config.load(scratch, vocabulary),
        }
    }
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
    /// The tokenizer as JSON, for text: keep it with the model, which is useless without it.
    pub vocabulary: Option<String>,
    /// What pixels were normalised by, for images.
    pub normalisation: Option<Normalisation>,
}

/// Limits of 0 samples are refused.
pub(crate) fn check_limits(train: Option<usize>, test: Option<usize>) -> Result<()> {
    for (field, limit) in [("dataset.train_limit", train), ("dataset.test_limit", test)] {
        if limit == Some(0) {
            let problem = "at least 1 sample is needed; leave it out to use all";
            return Err(Error::setting(field, &0, problem));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_listed_and_has_defaults() {
        for &(name, description) in Config::all() {
            let config = Config::from_name(name).unwrap();
            assert_eq!(config.name(), name);
            assert!(!description.is_empty());
            let parsed: Config = toml::from_str(&format!("kind = {name:?}")).unwrap();
            assert_eq!(parsed, config);
            let text = toml::to_string(&config).unwrap();
            assert_eq!(toml::from_str::<Config>(&text).unwrap(), config, "{text}");
            config.validate().unwrap();
        }
        // The compiler's list of kinds is as long as ours.
        let error = toml::from_str::<Config>("kind = 'mnist'").unwrap_err().to_string();
        assert_eq!(error.matches('`').count() / 2 - 1, Config::all().len(), "{error}");
        assert!(Config::from_name("mnist").is_none());
    }

    #[test]
    fn unknown_settings_are_refused() {
        for &(name, _) in Config::all() {
            let text = format!("kind = {name:?}\ncolour = 3");
            let error = toml::from_str::<Config>(&text).unwrap_err().to_string();
            assert!(error.contains("unknown field `colour`"), "{error}");
        }
    }
}
