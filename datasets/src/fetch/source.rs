//! What can be fetched, and what fetching tells meanwhile.

use std::fmt;

use parquet::file::reader::FileReader;

use crate::config::Config;
use crate::distribution::{Distribution, Hosted};
use crate::error::Result;

/// A data set that can be fetched.
#[derive(Clone, Copy)]
pub struct Source {
    name: &'static str,
    distribution: &'static dyn Distribution,
    hosted: &'static Hosted,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.name).finish()
    }
}

impl Source {
    /// Every source: the data sets that say where the hub has them.
    pub fn all() -> Vec<Self> {
        let source = |config: &Config| {
            let distribution = config.definition().distribution()?;
            Some(Self { name: config.name(), distribution, hosted: distribution.hosted()? })
        };
        Config::all().iter().filter_map(source).collect()
    }

    /// The source of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|source| source.name == name)
    }

    /// The name of the data set in recipes.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The repository on the hub.
    pub fn repository(self) -> &'static str {
        self.hosted.repository
    }

    /// Where people get the official files, for those without access to the hub.
    pub(super) fn archive(self) -> &'static str {
        self.hosted.archive
    }

    pub(super) fn distribution(self) -> &'static dyn Distribution {
        self.distribution
    }

    pub(super) fn convert(self, split: &[Box<dyn FileReader>]) -> Result<Vec<u8>> {
        (self.hosted.convert)(self.hosted.repository, split)
    }
}

/// What [`fetch`](super::fetch) is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Asking the hub what there is.
    Asking,
    /// A file is on its way.
    Downloading {
        /// Its name on the hub.
        file: String,
        /// The bytes that are here.
        bytes: u64,
        /// All its bytes; 0 where the hub does not say.
        total: u64,
    },
    /// The official files are being made and checked.
    Converting,
}
