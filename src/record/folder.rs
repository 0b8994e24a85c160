//! The folder of one run: made once, never shared.

use crate::disk::{Disk, File};
use anyhow::{Context, Result, bail, ensure};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use time::UtcDateTime;

/// Runs of one recipe that may start within one second.
const RUNS_PER_SECOND: u32 = 1000;

/// Makes `<out>/<recipe>/<stamp>`, or `<stamp>-<name>` of a run with a name: a folder that did not exist
/// before.
pub(super) fn create(disk: &Disk, out: &Path, recipe: &str, name: Option<&str>) -> Result<PathBuf> {
    let stamp = now();
    create_at(disk, out, recipe, &name.map_or(stamp.clone(), |name| format!("{stamp}-{name}")))
}

/// Makes this folder, which did not exist before.
pub(super) fn create_given(disk: &Disk, folder: &Path) -> Result<()> {
    if let Some(parent) = folder.parent() {
        disk.create_folders(parent).with_context(|| cannot_make(parent))?;
    }
    disk.create_folder(folder).with_context(|| cannot_make(folder))
}

/// Moves the folder of a run that was cut off away from its place, to `<folder>-cut-off-<n>` beside it.
///
/// # Errors
/// When it cannot be moved.
pub fn set_aside(disk: &Disk, folder: &Path) -> Result<()> {
    // A path such as `.` does not spell its name out.
    let folder = folder.canonicalize().with_context(|| format!("finding {}", folder.display()))?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let places = (1..).map(|n| folder.with_file_name(format!("{name}-cut-off-{n}")));
    let aside = places.into_iter().find(|place| !place.exists()).unwrap_or_default();
    disk.rename(&folder, &aside)
        .with_context(|| format!("cannot move {} to {}", folder.display(), aside.display()))
}

fn create_at(disk: &Disk, out: &Path, recipe: &str, stamp: &str) -> Result<PathBuf> {
    check_name(recipe)?;
    let runs = out.join(recipe);
    disk.create_folders(&runs).with_context(|| cannot_make(&runs))?;
    for run in 1..=RUNS_PER_SECOND {
        let name = if run == 1 { stamp.to_owned() } else { format!("{stamp}-{run}") };
        let folder = runs.join(name);
        match disk.create_folder(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| cannot_make(&folder)),
        }
    }
    bail!("{RUNS_PER_SECOND} runs of {recipe} started in the second {stamp}: wait and try again")
}

/// This moment, as folders are named.
pub(super) fn now() -> String {
    stamp(UtcDateTime::now())
}

/// The moment as a folder name that sorts by time: `2026-11-21T05-04-33Z`.
fn stamp(moment: UtcDateTime) -> String {
    let (hour, minute, second) = moment.as_hms();
    format!("{}T{hour:02}-{minute:02}-{second:02}Z", moment.date())
}

/// The recipe's name becomes one path component, so it must be nothing else.
fn check_name(recipe: &str) -> Result<()> {
    let component = !recipe.is_empty()
        && recipe.len() <= 100
        && !recipe.starts_with('.')
        && !recipe.chars().any(|c| c.is_control() || matches!(c, '/' | '\\' | ':'));
    ensure!(
        component,
        "the recipe's name {recipe:?} cannot name a folder: use 1 to 100 letters, digits, `-`, `_` \
         or spaces, not beginning with a dot"
    );
    Ok(())
}

/// Makes a file that did not exist before.
pub(super) fn open(disk: &Disk, path: &Path) -> Result<File> {
    disk.create(path).with_context(|| cannot_write(path))
}

/// Opens a file to write at its end; makes it where there is none.
pub(super) fn append(disk: &Disk, path: &Path) -> Result<File> {
    let opened = if path.exists() { disk.append(path) } else { disk.create(path) };
    opened.with_context(|| cannot_write(path))
}

/// Makes a file with this content.
pub(super) fn write(disk: &Disk, path: &Path, content: &str) -> Result<()> {
    open(disk, path)?.write_all(content.as_bytes()).with_context(|| cannot_write(path))
}

/// Says which file could not be written, and what to do.
pub(super) fn cannot_write(path: &Path) -> String {
    format!(
        "cannot write {}: make room or permission there, or choose another folder with --out",
        path.display()
    )
}

/// Says which folder could not be made, what is in its way, and what to do.
fn cannot_make(folder: &Path) -> String {
    let obstacle = folder.ancestors().find(|path| path.exists() && !path.is_dir());
    let advice = match obstacle {
        Some(file) => format!("{} is not a folder; choose another with --out", file.display()),
        None => "choose a place you may write to with --out".to_string(),
    };
    format!("cannot make the run's folder {}: {advice}", folder.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn stamps_sort_by_time() {
        let at = |seconds| stamp(UtcDateTime::from_unix_timestamp(seconds).unwrap());
        assert_eq!(at(1_795_237_473), "2026-11-21T05-04-33Z");
        assert_eq!(at(951_782_400), "2000-02-29T00-00-00Z");
        let stamps: Vec<_> = (0..50).map(|i| at(1_700_000_000 + i * 7_654_321)).collect();
        assert!(stamps.is_sorted());
    }

    #[test]
    fn runs_of_one_second_get_their_own_folders() {
        let out = tempfile::tempdir().unwrap();
        let disk = Disk::default();
        let folders: Vec<_> = (0..12)
            .map(|_| create_at(&disk, out.path(), "a", "2026-11-21T05-04-33Z").unwrap())
            .collect();
        assert!(folders[0].ends_with("a/2026-11-21T05-04-33Z"));
        assert!(folders[1].ends_with("a/2026-11-21T05-04-33Z-2"));
        assert_eq!(folders.iter().collect::<std::collections::HashSet<_>>().len(), 12);
    }

    #[test]
    fn names_are_one_path_component() {
        for bad in ["", ".", "..", "a/b", "../a", "a\\b", "a\nb", "c:", &"x".repeat(101)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        for good in ["newcomer", "größe 2", "cifar10-topk_1%"] {
            assert!(check_name(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        let out = tempfile::tempdir().unwrap();
        let file = out.path().join("file");
        fs::write(&file, "").unwrap();
        for place in [file.clone(), file.join("deeper/still")] {
            let error = format!("{:#}", create(&Disk::default(), &place, "a", None).unwrap_err());
            assert!(error.contains("is not a folder") && error.contains("--out"), "{error}");
            assert!(error.contains(&file.display().to_string()), "{error}");
        }
    }

    #[test]
    fn a_file_that_exists_is_not_overwritten() {
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("recipe.toml");
        write(&Disk::default(), &path, "first").unwrap();
        assert!(write(&Disk::default(), &path, "second").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
    }
}
