//! What becomes of hostile recipes, faults, checkpoints and event files: an error, or something
//! whole. Shared by the fuzz targets and by the test that replays their corpora.
#![allow(dead_code, reason = "each fuzz target uses one of these")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use gradwire::checkpoint::Checkpoint;
use gradwire::disk::Disk;
use gradwire::recipe::{BatchNorm, Recipe};
use gradwire::record::event_file;
use gradwire::train::faults::Faults;
use gradwire_datasets::sha256;
use serde_json::Value;
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

/// An event file, and an event in a record whose checksums are right: behind them every byte may be
/// anything. What is kept is read again as it is, and depends on the step alone.
pub(crate) fn events(bytes: &[u8]) {
    const END: &str = "_hparams_/session_end_info";
    for step in [0, 3, u64::MAX] {
        let (kept, damage) = event_file::up_to(bytes, step, END);
        assert!(kept.len() <= bytes.len(), "records came from nowhere");
        assert!(damage.is_none_or(|damage| damage.offset < bytes.len()), "damage after the end");
        assert_eq!(event_file::up_to(&kept, step, END), (kept.clone(), None));
    }
    let read = event_file::Event::read(bytes);
    let file = [framed(&[]), framed(bytes), framed(&[])].concat();
    let whole = |data: &[u8]| data.len() + 16;
    let (kept, damage) = event_file::up_to(&file, 3, END);
    match read {
        Ok(event) => {
            assert_eq!(damage, None);
            let stays = (0..=3).contains(&event.step) && event.tags().all(|t| t != END.as_bytes());
            let expected = file.len() - if stays { 0 } else { whole(bytes) };
            assert_eq!(kept.len(), expected, "step {}", event.step);
        }
        Err(_) => {
            assert_eq!(damage.map(|damage| damage.offset), Some(whole(&[])));
            assert_eq!(kept, framed(&[]));
        }
    }
}

/// A record of an event file.
fn framed(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length, &masked_crc32c(&length)[..], data, &masked_crc32c(data)].concat()
}

/// CRC-32C, a bit at a time, with the framing's mask.
fn masked_crc32c(bytes: &[u8]) -> [u8; 4] {
    let crc = !bytes.iter().fold(!0u32, |mut crc, byte| {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
        crc
    });
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
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
