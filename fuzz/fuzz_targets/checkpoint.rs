//! `cargo +nightly fuzz run checkpoint corpus/checkpoint`: hostile checkpoints.
#![no_main]

#[path = "../hostile.rs"]
mod hostile;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hostile::checkpoint(bytes));
