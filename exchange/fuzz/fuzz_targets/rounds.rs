//! `cargo +nightly fuzz run rounds corpus/rounds`: a hostile peer, for schemes of several rounds.
#![no_main]

#[path = "../hostile.rs"]
mod hostile;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hostile::rounds(bytes));
