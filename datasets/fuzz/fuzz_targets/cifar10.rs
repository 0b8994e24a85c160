//! `cargo +nightly fuzz run cifar10 corpus/cifar10`: hostile files for the loader.
#![no_main]

#[path = "../hostile.rs"]
mod hostile;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hostile::cifar10(bytes));
