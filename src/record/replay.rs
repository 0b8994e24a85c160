//! What a replay leaves behind: a folder of tables and plots, and TensorBoard curves against virtual
//! time.

use super::folder;
use super::tensorboard::{TensorBoard, is_own};
use crate::disk::Disk;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// The file by which such a folder is known.
pub const TABLE: &str = "replay.json";
/// The same figures for spreadsheets.
pub const SHEET: &str = "replay.csv";
/// The plot of accuracies against virtual time.
pub const ACCURACY: &str = "accuracy.svg";
/// The plot in which runs are compared.
pub const COMPARISON: &str = "comparison.svg";

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

/// Whether a replay makes a file of this path within its folder.
fn is_file(parts: &[&str]) -> bool {
    match parts {
        [name] => [TABLE, SHEET, ACCURACY, COMPARISON].contains(name),
        [_, name] => is_own(name),
        _ => false,
    }
}

/// Writes `files`, by name and content, and `curves`, each in a folder of its own, into `folder`,
/// in place of an earlier replay. What else is in its folder stays.
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
            folder.join(TABLE).is_file(),
            "{} holds something that is no replay; write an empty folder with --out",
            folder.display()
        );
        remove(disk, folder)?;
    }
    disk.create_folders(folder).with_context(|| folder::cannot_write(folder))?;
    for (name, content) in files {
        folder::write(disk, &folder.join(name), content)?;
    }
    for Curves { name, began, points } in curves {
        let sub = folder.join(name);
        disk.create_folders(&sub).with_context(|| folder::cannot_write(&sub))?;
        let points = points.iter().map(|p| (began + p.seconds, p.step, &p.values[..]));
        TensorBoard::scalars(disk, &sub, *began, points)?;
    }
    Ok(())
}

/// Removes what a replay has written into `folder`. Links are not followed.
fn remove(disk: &Disk, folder: &Path) -> Result<()> {
    let list =
        |place: &Path| disk.list(place).with_context(|| format!("listing {}", place.display()));
    let name = |path: &Path| -> String {
        path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    };
    let remove_file =
        |file: &Path| disk.remove_file(file).with_context(|| folder::cannot_write(file));
    let table = folder.join(TABLE);
    for path in list(folder)? {
        let (about, own) = (path.symlink_metadata()?, name(&path));
        if about.is_file() && is_file(&[&own]) && path != table {
            remove_file(&path)?;
        }
        if !about.is_dir() {
            continue;
        }
        let (curves, others): (Vec<PathBuf>, Vec<PathBuf>) =
            list(&path)?.into_iter().partition(|inside| is_file(&[&own, &name(inside)]));
        curves.iter().try_for_each(|file| remove_file(file))?;
        if !curves.is_empty() && others.is_empty() {
            disk.remove_empty_folder(&path).with_context(|| folder::cannot_write(&path))?;
        }
    }
    // By it the folder is known for a replay's, until nothing else of one is left.
    remove_file(&table)
}
