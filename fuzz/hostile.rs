//! What becomes of hostile recipes, faults and checkpoints: an error, or something whole. Shared by
//! the fuzz targets and by the test that replays their corpora.
#![allow(dead_code, reason = "each fuzz target uses one of these")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use gradwire::checkpoint::Checkpoint;
use gradwire::disk::Disk;
use gradwire::inject::Faults;
use gradwire::recipe::{BatchNorm, Recipe};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

static SCRATCH: LazyLock<TempDir> =
    LazyLock::new(|| tempfile::tempdir().expect("the fuzzer needs a scratch folder"));

/// The golden checkpoint, by file name.
static GOLDEN: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let inside = "tests/checkpoints/v1/step-00000003";
    let folder = [root.join(inside), root.join("..").join(inside)];
    let folder = folder.into_iter().find(|folder| folder.is_dir()).expect("the golden checkpoint");
    let files = fs::read_dir(folder).expect("a folder").map(|entry| {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("a name");
        (name, fs::read(entry.path()).expect("a file"))
    });
    files.collect()
});

const FILES: [&str; 4] =
    ["manifest.json", "model.safetensors", "optimizer.safetensors", "rank-0000.safetensors"];

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
        let _ = faults.check(4, 100);
    }
}

/// The golden checkpoint with another content of the file that the first byte chooses, its
/// checksums made to fit: behind them every byte may be anything.
pub(crate) fn checkpoint(bytes: &[u8]) {
    let Some((choice, content)) = bytes.split_first() else { return };
    let name = FILES[usize::from(*choice) % FILES.len()];
    let folder = SCRATCH.path().join(format!("{:?}", std::thread::current().id()));
    write(&folder, name, content);
    let Ok(checkpoint) = Checkpoint::read(&Disk::default(), &folder) else { return };
    for workers in [1, 3] {
        let _ = checkpoint.clone().reshard(workers, BatchNorm::Averaged);
    }
}

fn write(folder: &PathBuf, name: &str, content: &[u8]) {
    fs::create_dir_all(folder).expect("the fuzzer's folder can be made");
    let mut manifest = Vec::new();
    for (golden, bytes) in GOLDEN.iter() {
        let bytes = if golden == name { content } else { bytes };
        if golden == "manifest.json" {
            manifest = bytes.to_vec();
        } else {
            fs::write(folder.join(golden), bytes).expect("the fuzzer's file can be written");
        }
    }
    if name != "manifest.json" {
        let mut said: Value = serde_json::from_slice(&manifest).expect("the golden manifest");
        let files = said["files"].as_array_mut().expect("its files");
        let entry = files.iter_mut().find(|entry| entry["name"] == name).expect("the file");
        entry["bytes"] = content.len().into();
        entry["sha256"] = sha256(content).into();
        manifest = serde_json::to_vec(&said).expect("a manifest");
    }
    let line = format!("{}  manifest.json\n", sha256(&manifest));
    fs::write(folder.join("manifest.json"), manifest).expect("the manifest can be written");
    fs::write(folder.join("manifest.sha256"), line).expect("its sum can be written");
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
