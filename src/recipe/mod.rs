//! Recipes: everything that decides a run, as one TOML document.
//!
//! A recipe is read from a file or from the ones built in, changed by `--set path=value`, typed
//! with unknown keys refused, and checked across fields once. The typed recipe is written into
//! the run's record, so that the record alone repeats the run.

/// Types of settings with their defaults. Bounds of numbers (`schemars`) are in the schema, by which a recipe is
/// [checked](schema).
macro_rules! settings {
    ($($settings:tt)*) => {
        gradwire_registry::settings! { @ [derive(schemars::JsonSchema)] $($settings)* }
    };
}

pub mod average;
mod compare;
mod device;
pub mod keys;
pub mod local;
pub mod optimizer;
pub mod schedule;
pub mod schema;
mod settings;
mod table;
mod typed;
mod validation;
mod words;

pub use compare::{Change, flat, is_one_of};
pub use device::Device;
pub use settings::{
    BatchNorm, CheckpointSettings, ExchangeSettings, Faults, NEWEST, OnWorkerLoss, Recipe, Record,
    TestViews, Train, holds, in_words, input, synthetic_for,
};
pub use table::{Recipes, Source, part_of, scheme_of, split_values};
pub use typed::{elsewhere, nearest};
