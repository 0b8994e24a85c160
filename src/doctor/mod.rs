//! What this machine has, and whether this build computes right on it.
//!
//! [`facts::here`] says what is there; [`selftest::run`] compares what a device computes with candle's composed
//! operations on the CPU and with stored values of PyTorch.

pub mod check;
pub mod facts;
pub mod selftest;
mod step;
