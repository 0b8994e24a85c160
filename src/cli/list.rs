//! `gradwire list`: what a recipe may name, read from the enums themselves.

use crate::recipe::Recipes;
use crate::recipe::optimizer;
use anyhow::Result;
use clap::{Args, ValueEnum};
use gradwire_datasets as datasets;
use gradwire_exchange::{Scheme, Topology};
use gradwire_models as models;
use gradwire_registry::About;

/// What to show.
#[derive(Debug, Args)]
pub(super) struct List {
    /// Show only one kind
    what: Option<What>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    Schemes,
    Topologies,
    Models,
    Datasets,
    Optimizers,
    Recipes,
}

impl List {
    /// Prints the lists.
    ///
    /// # Errors
    /// None so far; commands share one signature.
    pub(super) fn run(&self) -> Result<()> {
        let shown: Vec<_> = What::value_variants()
            .iter()
            .filter(|w| self.what.is_none_or(|one| one == **w))
            .collect();
        for (i, what) in shown.iter().enumerate() {
            if i > 0 {
                println!();
            }
            if shown.len() > 1 {
                println!("{}", what.title());
            }
            for (name, line) in what.rows() {
                println!("  {name:<20} {line}");
            }
        }
        Ok(())
    }
}

impl What {
    fn title(self) -> &'static str {
        match self {
            Self::Schemes => "schemes (scheme = …)",
            Self::Topologies => "topologies (exchange.topology = …)",
            Self::Models => "models (model = …)",
            Self::Datasets => "data sets (dataset = …)",
            Self::Optimizers => "optimizers (optimizer.kind = …)",
            Self::Recipes => "recipes (gradwire train …)",
        }
    }

    fn rows(self) -> Vec<(String, String)> {
        fn rows<T>(entries: &[T], about: fn(&T) -> About) -> Vec<(String, String)> {
            let row = |about: About| (about.name.to_string(), about.in_words());
            entries.iter().map(about).map(row).collect()
        }
        match self {
            Self::Schemes => Scheme::all()
                .iter()
                .map(|scheme| scheme.about())
                .map(|about| (about.name.to_string(), format!("{} ({})", about.line, about.paper)))
                .collect(),
            Self::Topologies => {
                let row =
                    |t: &Topology| (t.name().to_string(), format!("{}; {}", t.line(), t.schemes()));
                Topology::ALL.iter().map(row).collect()
            }
            Self::Models => rows(&models::Config::all(), models::Config::about),
            Self::Datasets => rows(&datasets::Config::all(), datasets::Config::about),
            Self::Optimizers => rows(&optimizer::Config::all(), optimizer::Config::about),
            Self::Recipes => Recipes::all()
                .into_iter()
                .map(|(name, text)| (name, Recipes::headline(text).to_string()))
                .collect(),
        }
    }
}
