//! Replays the corpora of the fuzz targets, so that what a fuzzer found once stays found.

use std::fs;

fn each(name: &str, try_out: fn(&[u8])) {
    let folder = crate::common::root().join("fuzz/corpus").join(name);
    let seeds: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(!seeds.is_empty(), "{}", folder.display());
    for seed in seeds {
        let seed = fs::read(seed).unwrap();
        try_out(&seed);
        // What ends early, and what differs in a bit, at some forty places.
        let stride = 1 + seed.len() / 40;
        for at in (0..seed.len()).step_by(stride) {
            try_out(&seed[..at]);
            let mut changed = seed.clone();
            changed[at] ^= 1 << (at % 8);
            try_out(&changed);
        }
    }
}

#[test]
fn recipes_are_read_without_harm() {
    each("recipe", crate::hostile::recipe);
}

#[test]
fn faults_are_read_without_harm() {
    each("inject", crate::hostile::inject);
}

#[test]
fn checkpoints_are_read_without_harm() {
    each("checkpoint", crate::hostile::checkpoint);
}
