//! Gradwire: data-parallel training with compressed gradient exchange, native in Rust on candle.
//!
//! One process, one thread per worker; or several, started together ([`cluster`]). Every worker
//! holds a replica of the model, trains on its share of the data, and exchanges compressed gradients
//! with the others; the mean gradient, the same bits on every rank, updates every replica. The
//! compression scheme is a choice in a [`recipe::Recipe`]; [`train::launch::train`] runs one.
//!
//! The crate is ten rooms and two tools at their feet, [`disk`] and [`machine`]. Which room may use
//! which is in `ARCHITECTURE.md`, and `tests/house` computes from these sources that it is so.

pub mod bench;
pub mod checkpoint;
pub mod cli;
pub mod cluster;
pub mod disk;
pub mod doctor;
pub mod machine;
pub mod network;
pub mod recipe;
pub mod record;
pub mod study;
pub mod train;
