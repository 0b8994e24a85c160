//! Whole runs of the program, seen from outside, and what no compiler checks about the repository.
//!
//! One test program with a module for each subject: `cargo test --workspace --test program resume::`.

#![allow(clippy::unwrap_used, reason = "tests")]

mod advise;
mod checkpoints;
mod common;
mod conservation;
mod corpus;
mod dashboards;
mod data;
mod disk;
mod doctor;
mod examples;
mod faults;
#[path = "../fuzz/hostile.rs"]
mod hostile;
mod house;
mod job;
mod keys;
mod language;
mod licences;
mod local;
#[cfg(feature = "mpi")]
mod mpi;
mod network;
mod overlap;
mod pages;
#[path = "tensorboard/reader.rs"]
mod reader;
mod record;
mod refusals;
mod report;
mod reproduce;
mod resume;
mod runs;
mod sweep;
mod train;
