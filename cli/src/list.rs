//! `gradwire list`: what a recipe may name, read from the enums themselves.

use crate::keys::{Keys, Schema};
use anyhow::Result;
use clap::{Args, Subcommand};
use gradwire::recipe::Recipes;
use gradwire::recipe::optimizer;
use gradwire::text::{Column, Table};
use gradwire_datasets as datasets;
use gradwire_exchange::{Scheme, SchemeConfig, Topology};
use gradwire_models as models;
use gradwire_registry::About;

/// What to show; all of them but the keys without a word.
#[derive(Debug, Args)]
pub(super) struct List {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Every key of a recipe or experiment: its values, its default, what it is
    Keys(Keys),
    /// The JSON schema of a recipe or experiment, for an editor
    Schema(Schema),
    #[command(flatten)]
    Names(Names),
}

/// Lists of what a recipe chooses by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
enum Names {
    /// How gradients are compressed
    Schemes,
    /// The shapes that messages travel in
    Topologies,
    /// What is trained
    Models,
    /// What is trained on
    Datasets,
    /// How weights are updated
    Optimizers,
    /// The runs that are built in
    Recipes,
}

impl List {
    /// Prints the lists.
    ///
    /// # Errors
    /// When there is no key of the name that is asked for.
    pub(super) fn run(&self) -> Result<()> {
        match &self.what {
            Some(What::Keys(keys)) => keys.run(),
            Some(What::Schema(schema)) => schema.run(),
            Some(What::Names(names)) => {
                names.print();
                Ok(())
            }
            None => {
                for (names, title) in TITLES {
                    println!("{title}");
                    names.print();
                    println!();
                }
                println!("every key of a recipe: gradwire list keys");
                Ok(())
            }
        }
    }
}

/// Every list in order, with how its names are written in a recipe.
const TITLES: [(Names, &str); 6] = [
    (Names::Schemes, "schemes (scheme = …)"),
    (Names::Topologies, "topologies (exchange.topology = …)"),
    (Names::Models, "models (model = …)"),
    (Names::Datasets, "data sets (dataset = …)"),
    (Names::Optimizers, "optimizers (optimizer.kind = …)"),
    (Names::Recipes, "recipes (gradwire train …)"),
];

impl Names {
    fn print(self) {
        let mut table = Table::new([""; 3].map(Column::left));
        self.rows().into_iter().for_each(|(name, line)| table.row([String::new(), name, line]));
        print!("{table}");
    }

    fn rows(self) -> Vec<(String, String)> {
        fn rows<T>(entries: &[T], about: fn(&T) -> About) -> Vec<(String, String)> {
            let row = |about: About| (about.name.to_string(), about.in_words());
            entries.iter().map(about).map(row).collect()
        }
        match self {
            Self::Schemes => rows(&SchemeConfig::all(), SchemeConfig::about),
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
