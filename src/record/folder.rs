//! The folder of one run: made once, never shared, written by one process at a time.

use super::event::now;
use crate::disk::{Disk, File, Lock};
use anyhow::{Context, Result, anyhow, bail};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use time::UtcDateTime;

/// The file whose lock the process that writes a run holds, in the run's folder.
const LOCK: &str = ".lock";
/// The record of truth.
pub const METRICS: &str = "metrics.jsonl";
/// The resolved recipe, without which a folder is no run's.
pub const RECIPE: &str = "recipe.toml";
/// What produced the figures.
pub const PROVENANCE: &str = "provenance.json";

/// Whether a folder is that of a run: a recipe with something beside it that only a run has.
pub fn is_run(folder: &Path) -> bool {
    let is = |name: &str| folder.join(name).symlink_metadata().is_ok_and(|about| about.is_file());
    is(RECIPE) && [METRICS, PROVENANCE, LOCK].into_iter().any(is)
}

/// Whether a process is at work in a run.
pub fn is_written(disk: &Disk, run: &Path) -> bool {
    let path = run.join(LOCK);
    tried(|| disk.is_locked(&path), |locked| *locked)
}

/// How often a lock is tried before another process counts as its holder, with what pause: whoever asks
/// whether a run is being written holds its lock for a moment, and so does a process that is just starting.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// The result of the first attempt that does not find the lock held, or else of the last.
fn tried<T>(mut attempt: impl FnMut() -> T, held: impl Fn(&T) -> bool) -> T {
    for _ in 1..TRIES {
        let found = attempt();
        if !held(&found) {
            return found;
        }
        thread::sleep(PAUSE);
    }
    attempt()
}

/// Takes the lock of a run's folder.
///
/// # Errors
/// When another process writes this run, or the lock's file cannot be made.
pub fn lock(disk: &Disk, run: &Path) -> Result<Lock> {
    let path = run.join(LOCK);
    let held = |taken: &io::Result<Lock>| {
        taken.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    };
    tried(|| disk.lock(&path), held).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            anyhow!("another process is training in {}: wait for its end, or end it", run.display())
        }
        _ => anyhow::Error::new(error).context(cannot_write(&path)),
    })
}

/// Runs of one recipe that may start within one second.
const RUNS_PER_SECOND: u32 = 1000;

/// Makes `<out>/<recipe>/<stamp>`, or `<stamp>-<name>` of a run with a name: a folder that did not exist
/// before, even
/// of two that are made in one second.
///
/// # Errors
/// When it cannot be made, with what is in its way.
pub fn create_stamped(
    disk: &Disk,
    out: &Path,
    recipe: &str,
    name: Option<&str>,
) -> Result<PathBuf> {
    let stamp = stamp(now());
    let stamp = name.map_or(stamp.clone(), |name| format!("{stamp}-{name}"));
    let runs = out.join(recipe);
    disk.create_folders(&runs).with_context(|| cannot_make(&runs))?;
    for run in 1..=RUNS_PER_SECOND {
        let name = if run == 1 { stamp.clone() } else { format!("{stamp}-{run}") };
        let folder = runs.join(name);
        match disk.create_folder(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| cannot_make(&folder)),
        }
    }
    bail!("{RUNS_PER_SECOND} runs of {recipe} started in the second {stamp}: wait and try again")
}

/// Makes this folder, which did not exist before.
///
/// # Errors
/// When it cannot be made, with what is in its way.
pub fn create_given(disk: &Disk, folder: &Path) -> Result<()> {
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

/// A moment, in seconds since the Unix epoch, as a folder name that sorts by time:
/// `2026-11-21T05-04-33Z`.
pub(super) fn stamp(seconds: f64) -> String {
    let moment = UtcDateTime::from_unix_timestamp(seconds as i64);
    let moment = moment.unwrap_or(UtcDateTime::UNIX_EPOCH);
    let (hour, minute, second) = moment.as_hms();
    format!("{}T{hour:02}-{minute:02}-{second:02}Z", moment.date())
}

/// Whether a folder's name tells when it was made, as [`stamp`] writes it.
pub(super) fn has_stamp(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().as_encoded_bytes();
    let shape = b"0000-00-00T00-00-00Z";
    let fits = |(found, like): (&u8, &u8)| match like {
        b'0' => found.is_ascii_digit(),
        _ => found == like,
    };
    name.len() >= shape.len() && name.iter().zip(shape).all(fits)
}

/// Makes a file that did not exist before.
pub(super) fn open(disk: &Disk, path: &Path) -> Result<File> {
    disk.create(path).with_context(|| cannot_write(path))
}

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
        assert_eq!(stamp(1_795_237_473.9), "2026-11-21T05-04-33Z");
        assert_eq!(stamp(951_782_400.0), "2000-02-29T00-00-00Z");
        let at = |i| stamp(1_700_000_000.0 + f64::from(i) * 7_654_321.0);
        let stamps: Vec<_> = (0..50).map(at).collect();
        assert!(stamps.is_sorted());
        assert!(stamps.iter().all(|stamp| has_stamp(stamp.as_ref())));
        assert!(has_stamp("out/a/2026-11-21T05-04-33Z-name".as_ref()));
        assert!(!has_stamp("out/2026-11-21T05-04-33Z/seed-3".as_ref()));
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        let out = tempfile::tempdir().unwrap();
        let file = out.path().join("file");
        fs::write(&file, "kept").unwrap();
        let mut places = vec![(file.clone(), &file), (file.join("deeper/still"), &file)];
        // Nobody makes folders there, not even root.
        let nobodys = PathBuf::from("/proc/gradwire");
        places.extend(cfg!(target_os = "linux").then(|| (nobodys.clone(), &nobodys)));
        for (place, obstacle) in places {
            let error =
                format!("{:#}", create_stamped(&Disk::default(), &place, "a", None).unwrap_err());
            let is_file = obstacle == &file;
            assert!(error.contains("is not a folder") == is_file, "{error}");
            assert!(error.contains("--out"), "{error}");
            assert!(error.contains(&obstacle.display().to_string()), "{error}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
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
