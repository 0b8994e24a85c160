//! `cargo +nightly fuzz run events corpus/events`: hostile event files.
#![no_main]

#[path = "../hostile.rs"]
mod hostile;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hostile::events(bytes));
