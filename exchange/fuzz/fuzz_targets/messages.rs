//! `GRADWIRE_SCHEME=topk cargo +nightly fuzz run messages corpus/topk`: hostile messages for one
//! scheme's decoder; without the variable, for all of them at once.
#![no_main]

#[path = "../hostile.rs"]
mod hostile;

use std::sync::LazyLock;

use gradwire_exchange::SchemeConfig;
use libfuzzer_sys::fuzz_target;

static SCHEMES: LazyLock<Vec<SchemeConfig>> =
    LazyLock::new(|| match std::env::var("GRADWIRE_SCHEME") {
        Ok(name) => {
            let schemes = hostile::specimens(&name);
            assert!(!schemes.is_empty(), "there is no scheme {name}");
            schemes
        }
        Err(_) => SchemeConfig::codecs(),
    });

fuzz_target!(|bytes: &[u8]| hostile::message(&SCHEMES, bytes));
