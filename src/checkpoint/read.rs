//! Finding and reading checkpoints, whose bytes may have become anything.

use super::manifest::{FileEntry, Manifest};
use super::model::MODEL;
use super::tensors::Tensors;
use super::write::{FOLDER, MANIFEST, MANIFEST_SUM, OPTIMIZER, by_age, sha256, step_of};
use crate::disk::Disk;
use anyhow::{Context, Error, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};

/// A manifest is some kilobytes; the recipe in it may be long.
pub(super) const LONGEST_MANIFEST: u64 = 64 << 20;
/// One line.
const LONGEST_SUM: u64 = 1 << 10;

/// A checkpoint in memory, found whole.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Its folder.
    pub folder: PathBuf,
    /// What it says about itself.
    pub manifest: Manifest,
    /// The weights, and rank 0's batch norm statistics.
    pub model: Tensors,
    /// The optimizer's vectors.
    pub optimizer: Tensors,
    /// What each rank has of its own, in order of rank.
    pub ranks: Vec<Tensors>,
}

/// A run to go on with.
#[derive(Clone, Debug)]
pub struct Found {
    /// The run's folder.
    pub run: PathBuf,
    /// Its newest whole checkpoint, or the one that was named.
    pub checkpoint: Checkpoint,
    /// Newer ones that are damaged, and how.
    pub damaged: Vec<String>,
}

/// Finds what `path` names: a run's folder, whose newest whole checkpoint is taken, or the folder
/// of one checkpoint.
///
/// # Errors
/// When there is no checkpoint, or none that is whole: then with what is wrong with each.
pub fn find_newest(disk: &Disk, path: &Path) -> Result<Found> {
    if step_of(path).is_some() || path.join(MANIFEST).is_file() {
        // Its run is two folders up, which a path such as `.` does not spell out.
        let path = fs::canonicalize(path).with_context(|| format!("finding {}", path.display()))?;
        let run = path.parent().and_then(Path::parent).unwrap_or(Path::new("")).to_path_buf();
        let checkpoint = Checkpoint::read(disk, &path).with_context(|| {
            let run = run.display();
            format!("the checkpoint is damaged; --resume {run} takes the newest whole one instead")
        })?;
        return Ok(Found { run, checkpoint, damaged: Vec::new() });
    }
    ensure!(
        path.is_dir(),
        "there is no run at {}: give the folder that `gradwire train` said its record is in",
        path.display()
    );
    let mut damaged = Vec::new();
    for (_, folder) in by_age(disk, path)? {
        match Checkpoint::read(disk, &folder) {
            Ok(checkpoint) => return Ok(Found { run: path.to_path_buf(), checkpoint, damaged }),
            Err(error) => damaged.push(format!("{error:#}")),
        }
    }
    if damaged.is_empty() {
        bail!(
            "there is no checkpoint in {}: the run had written none when it ended, or its recipe \
             says checkpoint.keep_last = 0; start it anew",
            path.join(FOLDER).display()
        );
    }
    let list = damaged.iter().map(|problem| format!("\n  {problem}")).collect::<String>();
    bail!("no checkpoint in {} is whole: start the run anew{list}", path.join(FOLDER).display())
}

impl Checkpoint {
    /// Reads the checkpoint in `folder` and checks every byte of it.
    ///
    /// # Errors
    /// When a file is missing, is not what the manifest says, or holds nonsense: which one, and
    /// how.
    pub fn read(disk: &Disk, folder: &Path) -> Result<Self> {
        let at = |name: &str| folder.join(name).display().to_string();
        let manifest = read_manifest(disk, folder)?;
        ensure!(
            step_of(folder).is_none_or(|step| step == manifest.progress.step),
            "{}: it is of step {}, not of the step that its folder is named after",
            at(MANIFEST),
            manifest.progress.step
        );
        let read = |file: &FileEntry| -> Result<Tensors> {
            let bytes = read_file(disk, folder, file).with_context(|| at(&file.name))?;
            Tensors::decode(&bytes).with_context(|| at(&file.name))
        };
        let mut model = Tensors::default();
        let mut optimizer = Tensors::default();
        let mut ranks = Vec::new();
        for file in &manifest.files {
            match file.name.as_str() {
                MODEL => model = read(file)?,
                OPTIMIZER => optimizer = read(file)?,
                _ => ranks.push(read(file)?),
            }
        }
        Ok(Self { folder: folder.to_path_buf(), manifest, model, optimizer, ranks })
    }
}

fn read_manifest(disk: &Disk, folder: &Path) -> Result<Manifest> {
    let (path, sum_path) = (folder.join(MANIFEST), folder.join(MANIFEST_SUM));
    let read = |path: &Path, limit| -> Result<Vec<u8>> {
        disk.read(path, limit).with_context(|| path.display().to_string())
    };
    let text = read(&path, LONGEST_MANIFEST)?;
    // Before the checksum: another version may keep it elsewhere.
    Manifest::check_version(&text).with_context(|| path.display().to_string())?;
    let sum = read(&sum_path, LONGEST_SUM)?;
    let expected = format!("{}  {MANIFEST}\n", sha256(&text));
    ensure!(
        sum == expected.as_bytes(),
        "{}: its bytes are not those that {} tells the checksum of: it has been damaged or changed",
        path.display(),
        sum_path.display()
    );
    Manifest::parse(&text).with_context(|| path.display().to_string())
}

/// The bytes of a file, if they are those that were written.
fn read_file(disk: &Disk, folder: &Path, file: &FileEntry) -> Result<Vec<u8>> {
    let path = folder.join(&file.name);
    let found = fs::metadata(&path)?.len();
    ensure!(found == file.bytes, "it has {found} bytes where {} were written", file.bytes);
    let bytes = disk.read(&path, file.bytes).map_err(Error::from)?;
    ensure!(
        sha256(&bytes) == file.sha256,
        "its bytes are not those that were written: its checksum differs from the manifest's"
    );
    Ok(bytes)
}
