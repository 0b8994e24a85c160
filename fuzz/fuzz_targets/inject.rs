//! `cargo +nightly fuzz run inject corpus/inject`: hostile clauses of --inject.
#![no_main]

#[path = "../hostile.rs"]
mod hostile;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hostile::inject(bytes));
