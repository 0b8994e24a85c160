//! Removing a run: what belongs to it, and nothing else.

use super::run::{LOCK, METRICS, RECIPE, is_run, lock};
use super::{gradient, network, replay, tensorboard};
use crate::disk::Disk;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// What a run's folder holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Belongings {
    /// The run's folder.
    pub folder: PathBuf,
    /// Files that a run consists of, the recipe, by which it is known, and the lock last.
    pub files: Vec<PathBuf>,
    /// Their bytes.
    pub bytes: u64,
    /// Folders of such files, the deepest first.
    folders: Vec<PathBuf>,
    /// Everything else, links too: it stays.
    pub foreign: Vec<PathBuf>,
}

/// Lists what the run in `folder` consists of. Links are not followed.
///
/// # Errors
/// When it is no run's folder, a link to one, or cannot be listed.
pub fn belongings(disk: &Disk, folder: &Path) -> Result<Belongings> {
    let link = folder.symlink_metadata().is_ok_and(|about| about.is_symlink());
    ensure!(!link, "{} is a link: name the run's own folder", folder.display());
    ensure!(
        is_run(folder),
        "{} is not a run's folder: it has no {RECIPE} with a record beside it",
        folder.display()
    );
    let mut found = Belongings { folder: folder.into(), ..Belongings::default() };
    collect(disk, folder, &[], &mut found)?;
    let last = |file: &PathBuf| [RECIPE, LOCK].iter().position(|name| *file == folder.join(name));
    found.files.sort_by_key(|file| (last(file), file.clone()));
    Ok(found)
}

fn collect(disk: &Disk, place: &Path, above: &[&str], found: &mut Belongings) -> Result<()> {
    let entries = disk.list(place).with_context(|| format!("listing {}", place.display()))?;
    for path in entries {
        let about = path.symlink_metadata().with_context(|| format!("{}", path.display()))?;
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let parts = [above, &[name]].concat();
        if about.is_dir() && is_folder(&parts) {
            collect(disk, &path, &parts, found)?;
            found.folders.push(path);
        } else if about.is_file() && is_file(&parts) {
            found.bytes += about.len();
            found.files.push(path);
        } else {
            found.foreign.push(path);
        }
    }
    Ok(())
}

/// Whether a run makes a folder of this path within its own.
fn is_folder(parts: &[&str]) -> bool {
    match parts {
        ["best" | "last" | "checkpoints" | gradient::FOLDER | network::REPLAY] => true,
        ["checkpoints", step] => step.trim_start_matches('.').starts_with("step-"),
        [network::REPLAY, _] => true,
        _ => false,
    }
}

/// Whether a run makes a file of this path within its folder.
fn is_file(parts: &[&str]) -> bool {
    let ends = |name: &str, ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    match parts {
        [name] => {
            let name = name.strip_suffix(".partial").unwrap_or(name);
            let known = [RECIPE, METRICS, network::FILE, LOCK, "tokenizer.json"];
            known.contains(&name)
                || tensorboard::is_own(name)
                || name.starts_with("provenance") && name.ends_with(".json")
        }
        ["best" | "last", name] => ends(name, &[".safetensors", ".partial"]),
        ["checkpoints", _, name] => ends(name, &[".safetensors", ".json", ".sha256", ".partial"]),
        [gradient::FOLDER, name] => name.starts_with("step-"),
        [network::REPLAY, within @ ..] => replay::is_file(within),
        _ => false,
    }
}

/// Removes what a run consists of, and its folder if nothing else is in it.
///
/// # Errors
/// When a process is at work in the run, when the run is not as it was listed, or when something cannot be
/// removed: until all but the recipe is gone the folder is still that of a run.
pub fn remove(disk: &Disk, listed: &Belongings) -> Result<()> {
    let lock = lock(disk, &listed.folder)?;
    // A process may have ended between the listing and the lock, and have written until then. The lock
    // itself may be new.
    let run = belongings(disk, &listed.folder)?;
    let but_lock = |run: &Belongings| {
        let files = run.files.iter().filter(|file| !file.ends_with(LOCK));
        files.chain(&run.foreign).cloned().collect::<Vec<_>>()
    };
    ensure!(
        but_lock(&run) == but_lock(listed),
        "{} has changed since it was listed, so nothing was removed: try again",
        run.folder.display()
    );
    for file in &run.files {
        disk.remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    drop(lock);
    let own = run.foreign.is_empty().then_some(&run.folder);
    for folder in run.folders.iter().chain(own) {
        let kept = run.foreign.iter().any(|path| path.starts_with(folder));
        if !kept {
            disk.remove_empty_folder(folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn tree(out: &Path, files: &[&str]) -> PathBuf {
        let run = out.join("run");
        for file in files {
            let path = run.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "1234").unwrap();
        }
        run
    }

    const OWN: [&str; 15] = [
        "recipe.toml",
        "provenance.json",
        "provenance-00000012.json",
        "metrics.jsonl",
        "network.jsonl",
        "events.out.tfevents.1.gradwire.2",
        "tokenizer.json",
        ".lock",
        "best/model.safetensors",
        "last/model.safetensors",
        "checkpoints/step-00000001/manifest.json",
        "checkpoints/.step-00000002.partial/rank-0000.safetensors",
        "gradients/step-000001.safetensors",
        "network/replay.json",
        "network/1gbit/events.out.tfevents.1.gradwire.2",
    ];

    #[test]
    fn a_run_goes_and_what_is_not_its_own_stays() {
        let out = tempfile::tempdir().unwrap();
        let disk = Disk::default();
        let run = tree(out.path(), &OWN);
        let found = belongings(&disk, &run).unwrap();
        assert_eq!((found.files.len(), found.bytes), (15, 60));
        assert_eq!(found.files[13..], [RECIPE, LOCK].map(|name| run.join(name)));
        remove(&disk, &found).unwrap();
        assert!(!run.exists());

        let foreign = [
            "notes.md",
            "events.out.tfevents.1.host.2",
            "best/mine.txt",
            "checkpoints/other/model.safetensors",
            "network/mine.svg",
        ];
        let run = tree(out.path(), &[&OWN[..], &foreign].concat());
        let elsewhere = tree(&out.path().join("elsewhere"), &["step-1.safetensors"]);
        #[cfg(unix)]
        {
            fs::remove_dir_all(run.join("gradients")).unwrap();
            std::os::unix::fs::symlink(&elsewhere, run.join("gradients")).unwrap();
        }
        let found = belongings(&disk, &run).unwrap();
        remove(&disk, &found).unwrap();
        for name in foreign {
            assert!(run.join(name).exists(), "{name}");
        }
        assert!(elsewhere.join("step-1.safetensors").exists());
        assert!(!run.join(RECIPE).exists() && !run.join("last").exists());
        assert!(belongings(&disk, &run).is_err(), "it is no run any more");
    }

    #[test]
    fn what_is_no_run_is_refused() {
        let out = tempfile::tempdir().unwrap();
        let disk = Disk::default();
        let run = tree(out.path(), &["metrics.jsonl", "a"]);
        assert!(belongings(&disk, &run).unwrap_err().to_string().contains("not a run's folder"));
        let run = tree(out.path(), &OWN);
        #[cfg(unix)]
        {
            let link = out.path().join("link");
            std::os::unix::fs::symlink(&run, &link).unwrap();
            assert!(belongings(&disk, &link).unwrap_err().to_string().contains("is a link"));
        }
        let held = lock(&disk, &run).unwrap();
        let error = remove(&disk, &belongings(&disk, &run).unwrap()).unwrap_err().to_string();
        assert!(error.contains("another process") && run.join(METRICS).exists(), "{error}");
        drop(held);
    }

    #[test]
    fn what_changed_since_it_was_listed_stays() {
        let out = tempfile::tempdir().unwrap();
        let disk = Disk::default();
        let run = tree(out.path(), &OWN);
        let found = belongings(&disk, &run).unwrap();
        // A process that ended in between has discarded a checkpoint, and written the next.
        let [old, new] =
            ["step-00000001", "step-00000003"].map(|name| run.join("checkpoints").join(name));
        fs::rename(&old, &new).unwrap();
        let error = remove(&disk, &found).unwrap_err().to_string();
        assert!(error.contains("changed since it was listed"), "{error}");
        assert_eq!(belongings(&disk, &run).unwrap().files.len(), found.files.len());
        fs::rename(&new, &old).unwrap();
        remove(&disk, &found).unwrap();
        assert!(!run.exists());
    }

    #[test]
    fn what_could_not_be_removed_is_still_a_run() {
        let out = tempfile::tempdir().unwrap();
        let run = tree(out.path(), &OWN);
        for failing in 1..=OWN.len() as u64 - 1 {
            let run = if run.exists() { run.clone() } else { tree(out.path(), &OWN) };
            let fault = crate::disk::Fault::full(Some(crate::disk::Operation::Remove), failing);
            let found = belongings(&Disk::default(), &run).unwrap();
            if remove(&Disk::failing(fault), &found).is_err() {
                let left = belongings(&Disk::default(), &run).unwrap();
                remove(&Disk::default(), &left).unwrap();
            }
        }
        assert!(!run.exists());
    }
}
