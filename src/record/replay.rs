//! What a replay leaves behind: a folder of tables and plots, and TensorBoard curves against virtual
//! time.

use super::folder;
use super::tensorboard::TensorBoard;
use crate::disk::Disk;
use anyhow::{Context, Result, ensure};
use std::path::Path;

/// The file by which such a folder is known.
pub const TABLE: &str = "replay.json";
/// The same figures for spreadsheets.
pub const SHEET: &str = "replay.csv";
/// The plot of accuracies against virtual time.
pub const ACCURACY: &str = "accuracy.svg";
/// The plot in which runs are compared.
pub const COMPARISON: &str = "comparison.svg";
/// The folder of the TensorBoard runs, which holds nothing else.
pub const CURVES: &str = "curves";

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

/// Writes `files`, by name and content, and `curves`, each in a folder of its own in [`CURVES`], into
/// `folder`, in place of an earlier replay. What else is in its folder stays.
///
/// # Errors
/// When they cannot be written, or `folder` holds something else.
pub fn write(
    disk: &Disk,
    folder: &Path,
    files: &[(&str, String)],
    curves: &[Curves],
) -> Result<()> {
    let is_replay = folder.join(TABLE).is_file();
    ensure!(
        is_replay || disk.list(folder).unwrap_or_default().is_empty(),
        "{} holds something that is no replay; write an empty folder with --out",
        folder.display()
    );
    let (place, comparison) = (folder.join(CURVES), folder.join(COMPARISON));
    if is_replay && place.is_dir() {
        disk.remove_folder(&place).with_context(|| folder::cannot_write(&place))?;
    }
    if is_replay && comparison.is_file() {
        disk.remove_file(&comparison).with_context(|| folder::cannot_write(&comparison))?;
    }
    disk.create_folders(folder).with_context(|| folder::cannot_write(folder))?;
    // The table first: with it the folder is a replay's, which another one may take the place of.
    let (table, others): (Vec<_>, Vec<_>) = files.iter().partition(|(name, _)| *name == TABLE);
    for (name, content) in table.into_iter().chain(others) {
        let path = folder.join(name);
        disk.replace(&path, content.as_bytes()).with_context(|| folder::cannot_write(&path))?;
    }
    disk.create_folders(&place).with_context(|| folder::cannot_write(&place))?;
    for Curves { name, began, points } in curves {
        let sub = place.join(name);
        disk.create_folders(&sub).with_context(|| folder::cannot_write(&sub))?;
        let points = points.iter().map(|p| (began + p.seconds, p.step, &p.values[..]));
        TensorBoard::scalars(disk, &sub, *began, points)?;
    }
    Ok(())
}
