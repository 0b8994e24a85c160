//! Replays the seeds of the fuzz targets, and what is in `fuzz/found`, so that what a fuzzer found
//! once stays found.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(missing_docs, reason = "the module is shared with the fuzz targets")]

#[path = "../fuzz/hostile.rs"]
mod hostile;
#[path = "../fuzz/seeds.rs"]
mod seeds;

use std::fs;
use std::path::Path;

use gradwire_exchange::{Scheme, SchemeConfig, Seat};

#[test]
fn corpora_are_read_without_harm() {
    let seeds = seeds::all();
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/found");
    let read = |name: &str| -> Vec<Vec<u8>> {
        let own = seeds.iter().filter(|(folder, ..)| folder == name);
        let own: Vec<_> = own.map(|(.., bytes)| bytes.clone()).collect();
        assert!(!own.is_empty(), "no seed for {name}");
        // What a fuzzer has found and somebody has put there.
        let found = fs::read_dir(found.join(name)).into_iter().flatten();
        own.into_iter().chain(found.map(|file| fs::read(file.unwrap().path()).unwrap())).collect()
    };
    for scheme in SchemeConfig::all().into_iter().filter(|s| s.codec(&Seat::alone(1, 0)).is_some())
    {
        let name = scheme.about().name;
        let schemes = hostile::specimens(name);
        for seed in read(name) {
            hostile::message(&schemes, &seed);
            // And everything that differs from it in one bit, or ends early.
            for bit in 0..8 * seed.len().min(256) {
                let mut changed = seed.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                hostile::message(&schemes, &changed);
            }
            (0..seed.len()).for_each(|end| hostile::message(&schemes, &seed[..end]));
        }
    }
    let learning = hostile::learning();
    for seed in read("downlinks") {
        hostile::downlink(&learning, &seed);
        for bit in 0..8 * seed.len().min(64) {
            let mut changed = seed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            hostile::downlink(&learning, &changed);
        }
        let ends = (0..seed.len()).step_by(1 + seed.len() / 100);
        ends.for_each(|end| hostile::downlink(&learning, &seed[..end]));
    }
    read("frames").iter().for_each(|seed| hostile::frames(seed));
    for seed in read("rounds") {
        hostile::rounds(&seed);
        for bit in 0..8 * seed.len().min(64) {
            let mut changed = seed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            hostile::rounds(&changed);
        }
    }
}
