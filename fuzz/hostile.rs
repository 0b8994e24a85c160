//! What becomes of hostile recipes, faults and checkpoints: an error, or something
//! whole. Shared by the fuzz targets and by the test that replays their corpora.
#![allow(dead_code, reason = "each fuzz target uses one of these")]

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use gradwire::checkpoint::Checkpoint;
use gradwire::disk::Disk;
use gradwire::recipe::{BatchNorm, Recipe};
use gradwire::train::faults::Faults;
use gradwire_datasets::sha256;
use serde_json::Value;
use tempfile::TempDir;

static SCRATCH: LazyLock<TempDir> =
    LazyLock::new(|| tempfile::tempdir().expect("the fuzzer needs a scratch folder"));

/// The files of a whole checkpoint of two workers, by name: the seeds of the corpus, less their first byte.
const FILES: [(&str, &[u8]); 5] = [
    ("manifest.json", include_bytes!("corpus/checkpoint/manifest")),
    ("model.safetensors", include_bytes!("corpus/checkpoint/model")),
    ("optimizer.safetensors", include_bytes!("corpus/checkpoint/optimizer")),
    ("rank-0000.safetensors", include_bytes!("corpus/checkpoint/rank-0000")),
    ("rank-0001.safetensors", include_bytes!("corpus/checkpoint/rank-0000")),
];

/// A recipe that is read can be written, and read again.
pub(crate) fn recipe(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(recipe) = Recipe::from_toml(text) else { return };
    if let Ok(again) = recipe.to_toml() {
        Recipe::from_toml(&again).expect("what was written can be read");
    }
}

/// Faults that are read can be checked.
pub(crate) fn inject(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(faults) = Faults::parse(text) {
        let _ = faults.check(4, 1..=100, |step| step % 5 == 0, |step| step % 5 == 0);
    }
}

/// A whole checkpoint with another content of the file that the first byte chooses, and checksums that
/// fit: behind them every byte may be anything.
pub(crate) fn checkpoint(bytes: &[u8]) {
    let Some((choice, content)) = bytes.split_first() else { return };
    let (chosen, _) = FILES[usize::from(*choice) % (FILES.len() - 1)];
    let folder = SCRATCH.path().join(format!("{:?}", std::thread::current().id()));
    write(&folder, chosen, content);
    let Ok(checkpoint) = Checkpoint::read(&Disk::default(), &folder) else { return };
    for workers in [1, 3] {
        let _ = checkpoint.clone().reshard(workers, BatchNorm::Averaged);
    }
}

fn write(folder: &Path, chosen: &str, content: &[u8]) {
    fs::create_dir_all(folder).expect("the fuzzer's folder can be made");
    let content_of = |name: &str, seed: &'static [u8]| {
        if name == chosen { content.to_vec() } else { seed[1..].to_vec() }
    };
    let [(name, seed), others @ ..] = FILES;
    let mut manifest = content_of(name, seed);
    for (name, seed) in others {
        fs::write(folder.join(name), content_of(name, seed)).expect("the file can be written");
    }
    if chosen != name {
        let mut value: Value = serde_json::from_slice(&manifest).expect("the seed is a manifest");
        for (entry, (name, seed)) in
            value["files"].as_array_mut().expect("its files").iter_mut().zip(others)
        {
            let content = content_of(name, seed);
            entry["bytes"] = content.len().into();
            entry["sha256"] = sha256(&content).into();
        }
        manifest = serde_json::to_vec(&value).expect("a manifest");
    }
    let line = format!("{}  manifest.json\n", sha256(&manifest));
    fs::write(folder.join("manifest.json"), manifest).expect("the manifest can be written");
    fs::write(folder.join("manifest.sha256"), line).expect("its sum can be written");
}
