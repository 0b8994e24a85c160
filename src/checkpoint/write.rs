//! Writing a checkpoint so that it is there whole or not at all, and removing those that have had
//! their time.

use super::manifest::{FORMAT, LONGEST_MANIFEST, Manifest, VERSION};
use super::model::{evaluated, metadata};
use super::names::{
    FOLDER, MANIFEST, MANIFEST_SUM, MODEL, OPTIMIZER, by_age, discard, folder_name, rank_name,
};
use super::part::Part;
use super::progress::{Progress, Sums};
use crate::disk::Disk;
use crate::recipe::Recipe;
use crate::record::{FileSum, Provenance, Summary};
use anyhow::{Context, Result, ensure};
use gradwire_datasets::sha256;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Everything that one checkpoint holds.
#[derive(Clone, Debug)]
pub struct Whole {
    /// How far the run has come.
    pub progress: Progress,
    /// The run.
    pub recipe: Recipe,
    /// What trains it.
    pub provenance: Provenance,
    /// The sums of the running epoch.
    pub sums: Sums,
    /// The run in figures.
    pub summary: Summary,
    /// Every rank's part, in order of rank.
    pub parts: Vec<Part>,
}

/// Writes a checkpoint of `run`; its folder, and the bytes in it. When this returns, it and the
/// run's records up to its step have reached the disk.
///
/// # Errors
/// When it cannot be written: nothing then stands under its name but what stood there before.
pub fn write(disk: &Disk, run: &Path, whole: Whole) -> Result<(PathBuf, u64)> {
    let place = run.join(FOLDER);
    let name = folder_name(whole.progress.step);
    let (folder, partial) = (place.join(&name), place.join(format!(".{name}.partial")));
    let cannot = |what: &'static str, path: &Path| format!("{what} {}", path.display());

    if !place.is_dir() {
        disk.create_folders(&place).with_context(|| cannot("making", &place))?;
    }
    clear(disk, &place)?;
    sync_records(disk, run)?;
    disk.create_folder(&partial).with_context(|| cannot("making", &partial))?;
    let bytes = fill(disk, &partial, whole).inspect_err(|_| {
        // Room for the next attempt. If this fails too, the next one clears up.
        let _ = disk.remove_folder(&partial);
    })?;
    disk.sync_folder(&partial).with_context(|| cannot("syncing", &partial))?;
    if folder.exists() {
        discard(disk, &folder)?;
    }
    disk.rename(&partial, &folder).with_context(|| cannot("renaming", &partial))?;
    disk.sync_folder(&place).with_context(|| cannot("syncing", &place))?;
    Ok((folder, bytes))
}

/// Removes checkpoints until those of the newest `last` steps are left, and with `best` that of the
/// best model (the oldest of several).
pub(super) fn retain(disk: &Disk, run: &Path, last: usize, best: bool) -> Result<()> {
    let all = by_age(disk, run)?;
    if all.len() <= last {
        return Ok(());
    }
    let merit = |folder: &Path| {
        let bytes = disk.read(&folder.join(MANIFEST), LONGEST_MANIFEST).ok()?;
        Manifest::parse(&bytes).ok()?.merit
    };
    let candidates = all.iter().filter(|_| best);
    let scored = candidates.filter_map(|(step, folder)| Some((merit(folder)?, *step)));
    let keep = scored.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))).map(|(_, step)| step);
    for (step, folder) in all.into_iter().skip(last).filter(|(step, _)| Some(*step) != keep) {
        discard(disk, &folder)
            .with_context(|| format!("removing the checkpoint of step {step}"))?;
    }
    Ok(())
}

/// Removes what was left half-written or half-removed by a process that was stopped.
fn clear(disk: &Disk, place: &Path) -> Result<()> {
    let all = disk.list(place).with_context(|| format!("listing {}", place.display()))?;
    for left in all {
        let name = left.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(".step-") {
            disk.remove_folder(&left).with_context(|| format!("removing {}", left.display()))?;
        }
    }
    Ok(())
}

/// Brings the run's own files to the disk, and the folders that lead to it: a checkpoint that
/// outlives the records of its steps would leave a hole in them.
fn sync_records(disk: &Disk, run: &Path) -> Result<()> {
    let cannot = |path: &Path| format!("syncing {}", path.display());
    for path in disk.list(run).with_context(|| format!("listing {}", run.display()))? {
        if path.is_file() {
            disk.sync_file(&path).with_context(|| cannot(&path))?;
        }
    }
    for folder in [Some(run), run.parent(), run.parent().and_then(Path::parent)] {
        if let Some(folder) = folder.filter(|folder| folder.is_dir()) {
            disk.sync_folder(folder).with_context(|| cannot(folder))?;
        }
    }
    Ok(())
}

/// Writes a checkpoint's files into an empty folder; the bytes of all of them.
fn fill(disk: &Disk, folder: &Path, whole: Whole) -> Result<u64> {
    let Whole { progress, recipe, provenance, sums, summary, mut parts } = whole;
    let world_size = parts.len();
    let shared = parts.first_mut().and_then(|part| part.shared.take());
    let shared = shared.context("invariant: rank 0 hands in what all ranks share")?;
    let mut files = Vec::with_capacity(world_size + 2);

    let mut model = shared.weights;
    let buffers = parts[0].own.under("buffers");
    model.0.extend(buffers.map(|(name, tensor)| (name.to_string(), tensor.clone())));
    let has_statistics = model.0.keys().any(|name| name.ends_with("running_mean"));
    // The accuracy may be that of something else.
    let is_its_own = evaluated(&recipe, has_statistics).is_none();
    let test_accuracy = shared.manifest.test_accuracy.filter(|_| is_its_own);
    let normalisation = shared.normalisation;
    let about = metadata(&recipe, progress.step, test_accuracy, normalisation, None)?;
    files.push(put(disk, folder, MODEL, &model.encode(Some(about))?)?);
    drop(model);
    files.push(put(disk, folder, OPTIMIZER, &shared.optimizer.encode(None)?)?);
    for (rank, part) in parts.into_iter().enumerate() {
        ensure!(part.rank == rank && part.step == progress.step, "invariant: parts of one step");
        files.push(put(disk, folder, &rank_name(rank), &part.own.encode(None)?)?);
    }

    let manifest = Manifest {
        format: FORMAT.into(),
        version: VERSION,
        progress,
        world_size,
        seed: recipe.seed,
        test_accuracy,
        sums,
        summary,
        recipe: recipe.to_toml()?,
        provenance,
        time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |s| s.as_secs_f64()),
        files,
        ..shared.manifest
    };
    let mut text = serde_json::to_vec_pretty(&manifest)?;
    text.push(b'\n');
    let entry = put(disk, folder, MANIFEST, &text)?;
    let sum = format!("{}  {MANIFEST}\n", entry.sha256);
    let last = put(disk, folder, MANIFEST_SUM, sum.as_bytes())?;
    Ok(manifest.files.iter().map(|file| file.bytes).sum::<u64>() + entry.bytes + last.bytes)
}

/// Writes one file and brings it to the disk.
fn put(disk: &Disk, folder: &Path, name: &str, bytes: &[u8]) -> Result<FileSum> {
    let path = folder.join(name);
    let write = || {
        let mut file = disk.create(&path)?;
        file.write_all(bytes)?;
        file.sync()
    };
    write().with_context(|| format!("writing {}", path.display()))?;
    Ok(FileSum { name: name.into(), bytes: bytes.len() as u64, sha256: sha256(bytes) })
}
