//! `cargo +nightly fuzz run recipe corpus/recipe`: hostile recipes.
#![no_main]

#[path = "../hostile.rs"]
mod hostile;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hostile::recipe(bytes));
