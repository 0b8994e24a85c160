//! Gradwire: data-parallel training with compressed gradient exchange, native in Rust on candle.
//!
//! One process, one thread per worker; or several, started together ([`cluster`]). Every worker
//! holds a replica of the model, trains on its share of the data, and exchanges compressed gradients
//! with the others; the mean gradient, the same bits on every rank, updates every replica. The
//! compression scheme is a choice in a [`recipe::Recipe`]; [`train::launch::train`] runs one.
//!
//! The crate is five rooms and three tools at their feet, [`disk`], [`machine`] and [`text`]. The crate
//! `gradwire-study` makes experiments of runs, `gradwire-cli` is the command line.

pub mod checkpoint;
pub mod cluster;
pub mod disk;
pub mod machine;
pub mod recipe;
pub mod record;
pub mod text;
pub mod train;
