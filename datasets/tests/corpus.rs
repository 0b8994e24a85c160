//! Replays the corpora of the fuzz targets, so that what a fuzzer found once stays found.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../fuzz/hostile.rs"]
mod hostile;

use std::fs;
use std::path::Path;

fn each(name: &str, try_out: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let seeds: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(!seeds.is_empty(), "{}", folder.display());
    for seed in seeds {
        let seed = fs::read(seed).unwrap();
        try_out(&seed);
        // What ends early, or differs in its first bytes.
        for end in (0..seed.len()).step_by(1 + seed.len() / 40) {
            try_out(&seed[..end]);
        }
        for at in 0..seed.len().min(40) {
            for flip in [1, 0x80] {
                let mut changed = seed.clone();
                changed[at] ^= flip;
                try_out(&changed);
            }
        }
    }
}

#[test]
fn cifar_is_read_without_harm() {
    each("cifar10", hostile::cifar10);
    each("cifar100", hostile::cifar100);
}

#[test]
fn ag_news_is_read_without_harm() {
    each("ag_news", hostile::ag_news);
}

#[test]
fn files_of_ones_own_are_read_without_harm() {
    each("own", hostile::own);
}
