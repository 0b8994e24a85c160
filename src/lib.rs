//! Gradwire: data-parallel training with compressed gradient exchange, native in Rust on candle.
//!
//! Every worker holds a replica of the model and trains on its share of the data. After each backward
//! pass the workers exchange compressed gradients, and the mean gradient, the same bits on every rank,
//! updates every replica. The shortest program that trains, with a record, checkpoints and TensorBoard:
//!
//! ```
//! # let folder = std::env::temp_dir().join(format!("gradwire-{}", std::process::id()));
//! let settings = ["workers=2", "train.max_steps=2", "samples.train=64", "samples.test=16"];
//! let outcome = gradwire::Training::with(settings)?.out(&folder).run()?;
//! assert_eq!(outcome.summary.step, 2);
//! # std::fs::remove_dir_all(folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to | look at |
//! |---|---|
//! | train from a program | [`Training`] |
//! | train a model of your own, with its loss | [`ModelDefinition`], example `own_model` |
//! | train on samples of your own | [`Samples`], example `own_data` |
//! | update weights by a rule of your own | [`OptimizerDefinition`], [`Rule`], example `own_optimizer` |
//! | compress gradients by a scheme of your own | [`exchange::Scheme`], example `own_everything` |
//! | choose everything else | [`recipe::Recipe`]; the program `gradwire list keys` lists its keys |
//! | follow a run as it trains | [`Training::observe`], [`record::Event`] |
//! | read the loop that every rank runs | [`train`] |
//! | go on after a failure | [`Training::resume`], [`checkpoint`] |
//!
//! One process with one thread per worker trains a run, or several processes that were started
//! together ([`cluster`]). [`disk`], [`machine`], [`tensors`] and [`text`] are tools that every part uses. The crate
//! `gradwire-study` makes experiments of runs, `gradwire-cli` is the command line.

pub mod checkpoint;
pub mod cluster;
pub mod disk;
pub mod machine;
pub mod recipe;
pub mod record;
pub mod tensors;
pub mod text;
pub mod train;
mod training;

pub use anyhow::Result;
pub use candle_core;
pub use gradwire_datasets::Samples;
pub use gradwire_exchange as exchange;
pub use gradwire_models::{self as models, candle_nn};
pub use gradwire_registry::About;
pub use recipe::optimizer::{Now, Piece, Rule};
pub use record::Mode;
pub use train::launch::Outcome;
pub use train::parts::{ModelDefinition, OptimizerDefinition};
pub use training::Training;

/// What a program with parts of its own names.
pub mod prelude {
    pub use crate::candle_core::{self, Tensor};
    pub use crate::candle_nn::{self, Module, VarBuilder};
    pub use crate::exchange::wire::Fault;
    pub use crate::exchange::{
        self, Built, Compressor, Encoded, Law, Properties, Scheme, Seat, Soundness,
    };
    pub use crate::models::{Input, InputKind, Loss, Model, cross_entropy};
    pub use crate::{
        About, Mode, ModelDefinition, Now, OptimizerDefinition, Outcome, Piece, Result,
    };
    pub use crate::{Rule, Samples, Training};
    pub use std::ops::Range;
}
