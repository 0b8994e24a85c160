//! Finding and reading checkpoints, whose bytes may have become anything.

use super::manifest::{LONGEST_MANIFEST, Manifest, OtherVersion};
use super::names::{FOLDER, MANIFEST, MANIFEST_SUM, MODEL, OPTIMIZER, by_age, step_of};
use crate::disk::Disk;
use crate::record::{FileSum, as_json};
use crate::tensors::Tensors;
use anyhow::{Context, Error, Result, bail, ensure};
use gradwire_datasets::sha256;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// One line.
const LONGEST_SUM: u64 = 1 << 10;

/// A checkpoint in memory, found whole.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Its folder.
    pub folder: PathBuf,
    /// What it says about itself.
    #[serde(with = "as_json")]
    pub manifest: Manifest,
    /// The weights, and rank 0's batch norm statistics.
    pub model: Tensors,
    /// The optimizer's vectors.
    pub optimizer: Tensors,
    /// What each rank has of its own, in order of rank.
    pub ranks: Vec<Tensors>,
}

/// Where to look for a checkpoint.
#[derive(Clone, Debug)]
pub struct Location {
    /// The run's folder.
    pub run: PathBuf,
    /// The one checkpoint that was named; absent for the newest whole one.
    pub folder: Option<PathBuf>,
}

/// What `path` names: a run's folder, or the folder of one checkpoint.
///
/// # Errors
/// When it is neither.
pub fn locate(path: &Path) -> Result<Location> {
    let folder = path.parent().filter(|place| place.ends_with(FOLDER) && place.is_dir());
    if let Some(place) = folder.filter(|_| !path.exists() && step_of(path).is_some()) {
        bail!(
            "there is no checkpoint {}: a run keeps as many of the last as checkpoint.keep_last says; {} has those that are there",
            path.display(),
            place.display()
        );
    }
    ensure!(
        path.is_dir(),
        "there is no run at {}: give the folder that `gradwire train` named as the record's",
        path.display()
    );
    if step_of(path).is_none() && !path.join(MANIFEST).is_file() {
        ensure!(
            path.join(FOLDER).is_dir() || path.join("recipe.toml").is_file(),
            "{} is the folder of no run, and holds no checkpoint: give the one that `gradwire train` named as the record's",
            path.display()
        );
        return Ok(Location { run: path.to_path_buf(), folder: None });
    }
    // Its run is two folders up, which a path such as `.` does not spell out.
    let folder = fs::canonicalize(path).with_context(|| format!("finding {}", path.display()))?;
    let place = folder.parent().filter(|place| place.ends_with(FOLDER));
    let run = place.and_then(Path::parent).with_context(|| {
        format!(
            "{} is not in the folder {FOLDER} of a run: put it there, or name another",
            folder.display()
        )
    })?;
    Ok(Location { run: run.to_path_buf(), folder: Some(folder) })
}

/// The folder of the newest checkpoint of the run in `run`, whole or not.
pub fn newest(run: &Path) -> Option<PathBuf> {
    by_age(&Disk::default(), run).ok()?.into_iter().next().map(|(_, folder)| folder)
}

/// Reads the checkpoint at a location: the one that was named, or the newest whole one; and how those newer are damaged.
///
/// # Errors
/// When there is none, or none that is whole: then with what is wrong with each.
pub fn find_newest(disk: &Disk, location: &Location) -> Result<(Checkpoint, Vec<String>)> {
    let Location { run, folder } = location;
    if let Some(folder) = folder {
        let checkpoint = Checkpoint::read(disk, folder).map_err(|error| {
            let run = run.display();
            let damaged = format!(
                "the checkpoint is damaged; --resume {run} takes the newest whole one instead"
            );
            if is_damage(&error) { error.context(damaged) } else { error }
        })?;
        return Ok((checkpoint, Vec::new()));
    }
    let mut damaged = Vec::new();
    for (_, folder) in by_age(disk, run)? {
        match Checkpoint::read(disk, &folder) {
            Ok(checkpoint) => return Ok((checkpoint, damaged)),
            Err(error) if is_damage(&error) => damaged.push(format!("{error:#}")),
            Err(error) => {
                return Err(error.context(format!(
                    "the newest checkpoint cannot be read now, but may be whole: mend what keeps it from \
                     being read, or name an older one in {} to go back to it",
                    run.join(FOLDER).display()
                )));
            }
        }
    }
    let all = run.join(FOLDER);
    if damaged.is_empty() {
        bail!(
            "there is no checkpoint in {}: the run had written none when it ended, or its recipe \
             says checkpoint.keep_last = 0; start it anew (checkpoint.every_steps = 100 writes one every 100 steps)",
            all.display()
        );
    }
    let list = damaged.iter().map(|problem| format!("\n  {problem}")).collect::<String>();
    bail!("no checkpoint in {} is whole: start the run anew{list}", all.display())
}

/// Whether a checkpoint is not whole, as far as this error tells. Permissions, a file system that fails for a moment
/// and the version of another program say nothing about it, and whoever passes over a checkpoint removes it later.
pub(super) fn is_damage(error: &Error) -> bool {
    use io::ErrorKind::{FileTooLarge, IsADirectory, NotADirectory, NotFound};
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    error.downcast_ref::<OtherVersion>().is_none()
        && io.is_none_or(|io| {
            matches!(io.kind(), NotFound | FileTooLarge | IsADirectory | NotADirectory)
        })
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
        let read = |file: &FileSum| -> Result<Tensors> {
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

    /// What a rank needs of it: nothing of what other ranks have of their own.
    ///
    /// # Errors
    /// When it has nothing of the rank.
    pub fn for_rank(&self, rank: usize) -> Result<Self> {
        let own = self.ranks.get(rank);
        let own = own.with_context(|| format!("the checkpoint has no rank {rank}"))?.clone();
        let mut ranks = vec![Tensors::default(); self.ranks.len()];
        ranks[rank] = own;
        let (folder, manifest) = (self.folder.clone(), self.manifest.clone());
        let (model, optimizer) = (self.model.clone(), self.optimizer.clone());
        Ok(Self { folder, manifest, model, optimizer, ranks })
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

/// Checks that a checkpoint's model `file` has the bytes that its manifest tells the checksum of, if it is of a version that
/// this program reads.
pub(super) fn check_model(file: &Path, bytes: &[u8]) -> Result<()> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let manifest = match read_manifest(&Disk::default(), folder) {
        Err(error) if error.downcast_ref::<OtherVersion>().is_some() => return Ok(()),
        manifest => manifest?,
    };
    let known = manifest.files.iter().any(|of| of.name == MODEL && of.sha256 == sha256(bytes));
    ensure!(
        known,
        "{} is damaged: its bytes are not those that {MANIFEST} tells the checksum of; use another checkpoint of the run",
        file.display()
    );
    Ok(())
}

/// The bytes of a file, if they are those that were written.
fn read_file(disk: &Disk, folder: &Path, file: &FileSum) -> Result<Vec<u8>> {
    let path = folder.join(&file.name);
    let found = fs::metadata(&path)?.len();
    ensure!(found == file.bytes, "it has {found} bytes where {} were written", file.bytes);
    let bytes = disk.read(&path, file.bytes)?;
    ensure!(
        sha256(&bytes) == file.sha256,
        "its bytes are not those that were written: its checksum differs from the manifest's"
    );
    Ok(bytes)
}
