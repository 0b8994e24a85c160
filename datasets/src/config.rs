//! Which data set, and how it is loaded.
//!
//! Adding one is a file with its settings, which implement [`DatasetDefinition`], the file's `mod` line,
//! and one line in the list below.

use std::ops::Deref;
use std::path::Path;

use crate::agnews::AgNews;
use crate::cifar::{Cifar10, Cifar100};
use crate::definition::{About, Data, DatasetDefinition, Reading, Selection};
use crate::error::Result;
use crate::open::arrays::Arrays;
use crate::open::pictures::Pictures;
use crate::open::table::TextTable;
use crate::plain_text::PlainText;
use crate::synthetic::{SyntheticAgNews, SyntheticCifar10, SyntheticCifar100, SyntheticText};

gradwire_registry::registry! {
    /// A data set of a recipe: `kind = "cifar10"` and that kind's settings.
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[non_exhaustive]
    pub enum Config: DatasetDefinition {
        Cifar10(Cifar10),
        Cifar100(Cifar100),
        AgNews(AgNews),
        Pictures(Pictures),
        Arrays(Arrays),
        Table(TextTable),
        Text(PlainText),
        SyntheticCifar10(SyntheticCifar10),
        SyntheticCifar100(SyntheticCifar100),
        SyntheticAgNews(SyntheticAgNews),
        SyntheticText(SyntheticText),
    }
}

impl Deref for Config {
    type Target = dyn DatasetDefinition;

    /// The settings, and everything that follows from them.
    fn deref(&self) -> &Self::Target {
        self.definition()
    }
}

impl Config {
    /// The data set of that kind with its defaults.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|config| config.name() == name)
    }

    /// The made-up stand-in of the data set of that kind.
    pub fn twin_of(name: &str) -> Option<Self> {
        let is = |config: &Self| config.twin().is_some_and(|twin| twin.original() == name);
        Self::all().into_iter().find(is)
    }

    /// What the data set is.
    pub fn about(&self) -> About {
        self.definition().about()
    }

    /// The kind, as in a recipe.
    pub fn name(&self) -> &'static str {
        self.about().name
    }

    /// Reads the whole data set into memory, checking every record. A synthetic one is first
    /// written below `scratch`, unless it is there already.
    ///
    /// # Errors
    /// Whatever is wrong with the settings or the files: see [`Error`](crate::Error).
    pub fn load(&self, scratch: &Path) -> Result<Data> {
        self.load_as(&Reading { scratch, samples: Selection::default(), vocabulary: None })
    }

    /// As [`load`](Self::load), with some of the samples, or with the vocabulary of an earlier run.
    ///
    /// # Errors
    /// As [`load`](Self::load), and [`Error::Vocabulary`](crate::Error::Vocabulary) when
    /// the vocabulary is not one of ours.
    pub fn load_as(&self, reading: &Reading<'_>) -> Result<Data> {
        reading.samples.validate()?;
        self.validate(&reading.samples)?;
        self.definition().load(reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Holds;

    #[test]
    fn every_kind_is_listed_and_has_defaults() {
        for config in Config::all() {
            let About { name, line, .. } = config.about();
            assert_eq!(Config::from_name(name).unwrap(), config);
            assert!(!line.is_empty());
            let parsed: Config = toml::from_str(&format!("kind = {name:?}")).unwrap();
            assert_eq!(parsed, config);
            let text = toml::to_string(&config).unwrap();
            assert_eq!(toml::from_str::<Config>(&text).unwrap(), config, "{text}");
            config.validate(&Selection::default()).unwrap();
        }
        // The compiler's list of kinds is as long as ours.
        let error = toml::from_str::<Config>("kind = 'mnist'").unwrap_err().to_string();
        assert_eq!(error.matches('`').count() / 2 - 1, Config::all().len(), "{error}");
        assert!(Config::from_name("mnist").is_none());
    }

    #[test]
    fn unknown_settings_are_refused() {
        for name in Config::all().iter().map(Config::name) {
            let text = format!("kind = {name:?}\ncolour = 3");
            let error = toml::from_str::<Config>(&text).unwrap_err().to_string();
            assert!(error.contains("unknown field `colour`"), "{error}");
        }
    }

    #[test]
    fn every_twin_stands_in_for_a_data_set_of_the_list() {
        let twins: Vec<Config> =
            Config::all().into_iter().filter(|c| c.definition().twin().is_some()).collect();
        assert_eq!(twins.len(), 4);
        for twin in twins {
            let of = Config::from_name(twin.definition().twin().unwrap().original()).unwrap();
            assert_eq!(Config::twin_of(of.name()), Some(twin.clone()));
            assert_eq!(of.holds(), twin.holds());
            assert_eq!(of.distribution().is_none(), of.holds() == Holds::Sequences);
        }
    }
}
