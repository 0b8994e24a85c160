//! Recipes: everything that decides a run, as one TOML document.
//!
//! A recipe is read from a file or from the ones built in, changed by `--set path=value`, typed
//! with unknown keys refused, and checked across fields once. The typed recipe is written into
//! the run's record, so that the record alone repeats the run.

/// Types of settings, each field with its default beside it. serde reads them as tables that may leave any key out and
/// have no others; bounds of numbers (`schemars`) are in the schema, by which a recipe is [checked](schema).
macro_rules! settings {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$of:meta])* $field_vis:vis $field:ident: $type:ty = $default:expr,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        $vis struct $name {
            $($(#[$of])* $field_vis $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
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
    BatchNorm, Checkpoint, Exchange, Faults, NEWEST, OnWorkerLoss, Recipe, Record, TestViews,
    Train, holds, in_words, input, synthetic_for,
};
pub use table::{Recipes, Source, part_of, scheme_of, split_values};
pub use typed::{elsewhere, nearest};
