//! Gradwire: data-parallel training with compressed gradient exchange, native in Rust on candle.
//!
//! One process, one thread per worker; or several, started together ([`job`]). Every worker holds a replica of the model, trains on its
//! share of the data, and exchanges compressed gradients with the others; the mean gradient, the
//! same bits on every rank, updates every replica. The compression scheme is a choice in a
//! [`recipe::Recipe`]; [`launch::train`] runs one.
//!
//! The house and its laws are in `ARCHITECTURE.md`.

pub mod advise;
pub mod bench;
pub mod checkpoint;
pub mod cli;
pub mod codecs;
pub mod course;
pub mod crew;
pub mod disk;
pub mod evaluate;
pub mod experiment;
pub mod inject;
pub mod job;
pub mod keeper;
pub mod launch;
pub mod loss;
pub mod network;
pub mod optim;
pub mod orders;
pub mod overlap;
pub mod params;
pub mod plot;
pub mod post;
pub mod recipe;
pub mod record;
mod recover;
pub mod replica;
pub mod report;
pub mod resume;
pub mod schedule;
pub mod signals;
pub mod spent;
pub mod statistics;
pub mod tally;
pub mod worker;
