//! `cargo +nightly fuzz run frames corpus/frames`: hostile bytes for the frame reader.
#![no_main]

#[path = "../hostile.rs"]
mod hostile;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hostile::frames(bytes));
