//! Where checkpoints and their files lie.

use crate::disk::Disk;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// The file that holds a model.
pub const MODEL: &str = "model.safetensors";

/// The folder of checkpoints, within a run's.
pub const FOLDER: &str = "checkpoints";

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const MANIFEST_SUM: &str = "manifest.sha256";
pub(super) const OPTIMIZER: &str = "optimizer.safetensors";

/// The names of a checkpoint's files, manifest apart, in the order that they are written in.
pub(super) fn file_names(world_size: usize) -> Vec<String> {
    let ranks = (0..world_size).map(rank_name);
    [MODEL.to_string(), OPTIMIZER.to_string()].into_iter().chain(ranks).collect()
}

pub(super) fn rank_name(rank: usize) -> String {
    format!("rank-{rank:04}.safetensors")
}

/// The name of the folder of a step's checkpoint.
pub(super) fn folder_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step of a checkpoint's folder; `None` for what is none, such as one half-written.
pub(super) fn step_of(folder: &Path) -> Option<u64> {
    let digits = folder.file_name()?.to_str()?.strip_prefix("step-")?;
    let plain = digits.len() >= 8 && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| plain)
}

/// The checkpoints of a run by their folders' names, the newest first.
pub(super) fn by_age(disk: &Disk, run: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let place = run.join(FOLDER);
    if !place.is_dir() {
        return Ok(Vec::new());
    }
    let all = disk.list(&place).with_context(|| format!("listing {}", place.display()))?;
    let mut found: Vec<_> = all.into_iter().filter_map(|f| Some((step_of(&f)?, f))).collect();
    found.sort_by_key(|(step, _)| std::cmp::Reverse(*step));
    Ok(found)
}

/// Removes a checkpoint. Its name goes first, so that no half of one ever stands under it.
pub(super) fn discard(disk: &Disk, folder: &Path) -> Result<()> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let away = folder.with_file_name(format!(".{name}.removed"));
    let cannot = || format!("removing {}", folder.display());
    if away.exists() {
        disk.remove_folder(&away).with_context(cannot)?;
    }
    disk.rename(folder, &away).with_context(cannot)?;
    disk.remove_folder(&away).with_context(cannot)
}
