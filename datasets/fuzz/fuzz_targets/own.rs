//! `cargo +nightly fuzz run own corpus/own`: hostile files of one's own.
#![no_main]

#[path = "../hostile.rs"]
mod hostile;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hostile::own(bytes));
