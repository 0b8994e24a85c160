//! Training: from a recipe to a finished run.
//!
//! [`launch::train`] reads the data, starts a [`crew`] of [`worker`] threads, gathers their reports in
//! rank order and writes them down. Workers meet nowhere but in the exchange.

mod average;
pub mod checkpoints;
pub mod course;
pub mod crew;
pub mod evaluate;
pub mod faults;
pub mod flags;
pub mod follow;
pub mod launch;
pub mod loss;
pub mod memory;
mod notes;
pub mod optim;
pub mod overlap;
pub mod params;
pub mod post;
mod recover;
mod relay;
pub mod replica;
pub mod report;
pub mod resume;
mod saving;
pub mod schedule;
pub mod session;
pub mod spent;
pub mod tally;
pub mod views;
mod watch;
pub mod worker;
