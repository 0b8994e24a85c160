//! What a replay leaves behind: a folder of tables and plots, and TensorBoard curves against virtual
//! time.

use super::folder;
use super::tensorboard::{TensorBoard, scalar};
use crate::disk::Disk;
use anyhow::{Context, Result, ensure};
use std::path::Path;

/// The file by which such a folder is known.
pub const TABLE: &str = "replay.json";

/// A TensorBoard run whose clock is virtual.
#[derive(Clone, Debug)]
pub struct Curves {
    /// Its folder's name.
    pub name: String,
    /// When it began, in seconds since the Unix epoch.
    pub began: f64,
    /// Its points, in order of time.
    pub points: Vec<Point>,
}

/// Values at one time.
#[derive(Clone, Debug)]
pub struct Point {
    /// Seconds since the beginning.
    pub seconds: f64,
    /// The step.
    pub step: u64,
    /// Values, by tag.
    pub values: Vec<(String, f64)>,
}

/// Writes `files`, by name and content, and `curves`, each in a folder of its own, into `folder`,
/// in place of an earlier replay.
///
/// # Errors
/// When they cannot be written, or `folder` holds something else.
pub fn write(
    disk: &Disk,
    folder: &Path,
    files: &[(&str, String)],
    curves: &[Curves],
) -> Result<()> {
    let there = disk.list(folder).unwrap_or_default();
    if !there.is_empty() {
        ensure!(
            there.iter().any(|path| path.ends_with(TABLE)),
            "{} holds something that is no replay; write an empty folder with --out",
            folder.display()
        );
        disk.remove_folder(folder).with_context(|| folder::cannot_write(folder))?;
    }
    disk.create_folders(folder).with_context(|| folder::cannot_write(folder))?;
    for (name, content) in files {
        folder::write(disk, &folder.join(name), content)?;
    }
    for Curves { name, began, points } in curves {
        let sub = folder.join(name);
        disk.create_folder(&sub).with_context(|| folder::cannot_write(&sub))?;
        TensorBoard::create(disk, &sub, &[], *began, |file| {
            points.iter().try_for_each(|Point { seconds, step, values }| {
                let values = values.iter().map(|(tag, value)| scalar(tag, *value));
                file.values(began + seconds, *step, values.collect())
            })
        })?;
    }
    Ok(())
}
