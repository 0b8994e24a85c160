//! CIFAR-10, CIFAR-100, AG-News and files of one's own: loaders, synthetic twins, sharding, augmentation,
//! prefetching.
//!
//! A [`Config`] names a data set and where its files lie; [`Config::load`] reads the official
//! files whole into memory, checking every record, and gives back [`Data`]: a training and a test
//! [`Dataset`]. A [`Sampler`] says which samples rank `r` sees at a step, and a [`Loader`] fills
//! those batches ahead of time on a thread of its own.
//!
//! ```
//! use gradwire_datasets::{Config, Loader, Plan, Sampler};
//!
//! let scratch = tempfile::tempdir()?;
//! let config = Config::from_name("synthetic-cifar10").ok_or("no such data set")?;
//! let data = config.load(scratch.path())?;
//! // Rank 0 of 2, 16 samples a rank and step.
//! let sampler = Sampler::new(7, data.train.len(), 2, 0, 16)?;
//! let mut loader = Loader::new(data.train.clone(), sampler, Plan::default())?;
//! let first = loader.next()?;
//! assert_eq!((first.step, first.epoch, first.global_samples), (1, 1, 32));
//! assert_eq!(first.batch.len(), 16);
//! loader.recycle(first.batch);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`look`] finds out what a path holds, [`verify`] whether official files are whole, [`synthetic`]
//! writes tiny twins in the official formats, and `fetch` (with the feature of that name) downloads.
//!
//! Nothing here depends on the number of threads or on timing: the same seed gives the same
//! batches, bit for bit.

#[macro_use]
extern crate gradwire_registry;

mod agnews;
mod augment;
mod cifar;
mod config;
#[cfg(feature = "fetch")]
mod convert;
mod dataset;
mod definition;
mod distribution;
mod error;
#[cfg(feature = "fetch")]
pub mod fetch;
mod files;
mod held_out;
mod images;
mod loader;
mod look;
mod names;
mod normalisation;
mod open;
mod plain_text;
mod rng;
mod sampler;
mod samples;
mod survey;
mod sync;
pub mod synthetic;
mod text;
mod tokens;
mod verify;

pub use agnews::AgNews;
pub use augment::{Augment, Augmentation, Border, Flip};
pub use cifar::{Cifar10, Cifar100, Labels};
pub use config::Config;
pub use dataset::{Batch, Dataset, Features, Shape};
pub use definition::{
    About, Counts, DEFAULT_DIR, Data, DatasetDefinition, Form, Holds, Reading, Selection, Twin,
};
pub use distribution::Distribution;
#[cfg(feature = "fetch")]
pub use distribution::{Convert, Hosted};
pub use error::{Error, Result};
pub use files::{FileSum, Official, Place, sha256};
pub use loader::{Loaded, Loader, Plan};
pub use look::{Found, look};
pub use normalisation::Normalisation;
pub use open::Resize;
pub use open::arrays::Arrays;
pub use open::pictures::Pictures;
pub use open::table::{Column, Columns, TextTable};
pub use plain_text::{PlainText, TokensOf};
pub use sampler::{Sampler, Shard};
pub use samples::Samples;
pub use survey::Survey;
pub use text::{PAD, UNK};
pub use tokens::Tokens;
pub use verify::{FileReport, FileState, Report, verify};
