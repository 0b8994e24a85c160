//! `cargo +nightly fuzz run ag_news corpus/ag_news`: hostile files for the loader.
#![no_main]

#[path = "../hostile.rs"]
mod hostile;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hostile::ag_news(bytes));
