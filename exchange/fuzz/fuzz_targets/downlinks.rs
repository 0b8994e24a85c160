//! `cargo +nightly fuzz run downlinks corpus/downlinks`: a hostile server, for the schemes that learn from
//! what ranks send.
#![no_main]

#[path = "../hostile.rs"]
mod hostile;

use std::sync::LazyLock;

use gradwire_exchange::SchemeConfig;
use libfuzzer_sys::fuzz_target;

static SCHEMES: LazyLock<Vec<SchemeConfig>> = LazyLock::new(hostile::learning);

fuzz_target!(|bytes: &[u8]| hostile::downlink(&SCHEMES, bytes));
