//! Before the run begins: every process says what it would train with, and process 0 compares.

use super::letter::Blob;
use super::{Job, Letter, Machine, SLOWEST};
use crate::checkpoint::{Checkpoint, Manifest, Tensors};
use crate::course::Progress;
use crate::launch;
use crate::recipe::Recipe;
use crate::record::{FileSum, Provenance};
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What a process would train with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(super) host: String,
    pub(super) processors: String,
    cores: usize,
    version: String,
    commit: Option<String>,
    profile: String,
    kernels: String,
    data: Vec<FileSum>,
    /// What has gone wrong already: the recipe differs, the data cannot be read.
    pub(super) problem: Option<String>,
}

impl Hello {
    /// Of this process, with what produces its figures.
    pub(super) fn new(here: &Provenance) -> Self {
        Self {
            cores: here.cores,
            version: here.version.clone(),
            commit: here.commit.clone(),
            profile: here.profile.clone(),
            kernels: here.kernels.clone(),
            data: here.data.clone(),
            ..Self::failed(None)
        }
    }

    /// Of a process that has come no further.
    pub(super) fn failed(problem: Option<String>) -> Self {
        let unknown = || "an unknown host".to_string();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(
            |_| std::env::var("HOSTNAME").unwrap_or_else(|_| unknown()),
            |name| name.trim().to_string(),
        );
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut lines = status.lines();
        let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let processors = list.unwrap_or_default().trim().to_string();
        Self { host, processors, problem, ..Self::default() }
    }

    /// What keeps this process from training with one that said `other`: first what it itself
    /// says, then what differs, with both values.
    fn objection(&self, other: &Self) -> Option<String> {
        if let Some(problem) = &other.problem {
            return Some(problem.clone());
        }
        let commit = |hello: &Self| hello.commit.clone().unwrap_or_else(|| "unknown".into());
        let advice = "GRADWIRE_KERNELS chooses those that all processors have";
        let pairs = [
            ("version", self.version.clone(), other.version.clone(), "start the same program"),
            ("commit", commit(self), commit(other), "start the same program"),
            ("build", self.profile.clone(), other.profile.clone(), "start the same program"),
            ("kernels", self.kernels.clone(), other.kernels.clone(), advice),
        ];
        for (key, mine, theirs, advice) in pairs {
            if mine != theirs {
                return Some(format!("its {key} is {theirs}, process 0's is {mine}; {advice}"));
            }
        }
        let differs = |file: &&FileSum| !self.data.contains(file);
        if let Some(file) = other.data.iter().find(differs) {
            let mine = self.data.iter().find(|mine| mine.name == file.name);
            let mine = mine.map_or("which process 0 has not read".to_string(), |mine| {
                format!("where process 0's has {} bytes, SHA-256 {}", mine.bytes, mine.sha256)
            });
            return Some(format!(
                "its data file {} has {} bytes, SHA-256 {}, {mine}",
                file.name, file.bytes, file.sha256
            ));
        }
        let missing = self.data.iter().find(|file| !other.data.contains(file));
        missing.map(|file| format!("it has not read the data file {}", file.name))
    }
}

/// What a follower begins with.
#[derive(Serialize, Deserialize)]
pub(crate) struct Go {
    /// The folder of the run.
    pub(super) folder: String,
    /// Where the run goes on.
    pub(super) progress: Progress,
    /// Compute threads of each worker.
    pub(super) threads: usize,
    /// By process: host and processors.
    pub(super) machines: Vec<(String, String)>,
    /// What its workers take up, when the run goes on from a checkpoint.
    pub(super) state: Option<State>,
}

/// A checkpoint on its way to the workers of one process.
#[derive(Serialize, Deserialize)]
pub struct State {
    folder: String,
    manifest: String,
    model: Blob,
    optimizer: Blob,
    /// Its ranks' own: the first rank's number, then theirs.
    first: usize,
    ranks: Vec<Blob>,
}

impl State {
    /// What the ranks from `first` on need of a checkpoint.
    ///
    /// # Errors
    /// When it cannot be encoded.
    pub fn of(checkpoint: &Checkpoint, first: usize, ranks: usize) -> Result<Self> {
        let own = checkpoint.ranks.iter().skip(first).take(ranks);
        Ok(Self {
            folder: checkpoint.folder.display().to_string(),
            manifest: serde_json::to_string(&checkpoint.manifest)?,
            model: Blob::of(&checkpoint.model)?,
            optimizer: Blob::of(&checkpoint.optimizer)?,
            first,
            ranks: own.map(Blob::of).collect::<Result<_>>()?,
        })
    }

    /// The checkpoint, but for what other ranks have of their own.
    ///
    /// # Errors
    /// When the bytes are not what [`of`](Self::of) made.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        let manifest: Manifest = serde_json::from_str(&self.manifest)?;
        let mut ranks = vec![Tensors::default(); manifest.world_size];
        let places = ranks.iter_mut().skip(self.first);
        for (place, own) in places.zip(&self.ranks) {
            *place = own.tensors()?;
        }
        Ok(Checkpoint {
            folder: PathBuf::from(&self.folder),
            manifest,
            model: self.model.tensors()?,
            optimizer: self.optimizer.tensors()?,
            ranks,
        })
    }
}

impl Job {
    /// Process 0: tells the others the recipe, before it reads its own data.
    ///
    /// # Errors
    /// When the recipe cannot be written down.
    pub fn announce(&self, recipe: &Recipe) -> Result<()> {
        if self.is_shared() { self.write_all(&Letter::Recipe(recipe.to_toml()?)) } else { Ok(()) }
    }

    /// Process 0: hears what all others would train with, and checks that it is what this one has.
    ///
    /// # Errors
    /// Which process differs, on which host, by what; or which says nothing.
    pub fn agree(&self, recipe: &Recipe, here: &Provenance) -> Result<()> {
        if !self.is_shared() {
            return Ok(());
        }
        let mine = Hello::new(here);
        let mut all: Vec<Option<Hello>> = vec![None; self.processes];
        all[0] = Some(mine.clone());
        let deadline = Instant::now() + SLOWEST;
        while let Some(silent) = all.iter().position(Option::is_none) {
            match self.read(deadline)? {
                Some((from, Letter::Hello(hello))) => all[from] = Some(*hello),
                Some((from, _)) => bail!("process {from} does not say what it would train with"),
                None => bail!("process {silent} has said nothing for {SLOWEST:?}"),
            }
        }
        let all: Vec<Hello> = all.into_iter().flatten().collect();
        for (process, hello) in all.iter().enumerate().skip(1) {
            if let Some(objection) = mine.objection(hello) {
                let first = process * self.workers(recipe)?;
                bail!("process {process} (worker {first} and up, on {}): {objection}", hello.host);
            }
        }
        // Processes that may use the same processors share them.
        let sharing = |one: &Hello| {
            let same =
                |other: &&Hello| (&other.host, &other.processors) == (&one.host, &one.processors);
            one.cores / all.iter().filter(same).count()
        };
        let fewest = all.iter().map(sharing).min().unwrap_or(1);
        let threads = (fewest / self.workers(recipe)?).max(1);
        let machines =
            all.into_iter().map(|hello| Machine { host: hello.host, processors: hello.processors });
        self.settle(machines.collect(), threads)
    }

    pub(super) fn settle(&self, machines: Vec<Machine>, threads: usize) -> Result<()> {
        let first = self.machines.set(machines).is_ok() && self.threads.set(threads).is_ok();
        ensure!(first, "invariant: processes agree once");
        Ok(())
    }

    /// Process 0: lets the others begin.
    ///
    /// # Errors
    /// When the run's folder is no text, or the checkpoint cannot be encoded.
    pub fn begin(
        &self,
        recipe: &Recipe,
        folder: &std::path::Path,
        progress: Progress,
        from: Option<&Checkpoint>,
    ) -> Result<()> {
        let workers = self.workers(recipe)?;
        let folder = folder.to_str().with_context(|| format!("{} is no text", folder.display()))?;
        let machines = self.machines.get().into_iter().flatten();
        let machines: Vec<_> =
            machines.map(|machine| (machine.host.clone(), machine.processors.clone())).collect();
        for process in 1..self.processes {
            let state = from.map(|from| State::of(from, process * workers, workers)).transpose()?;
            let go = Go {
                folder: folder.into(),
                progress,
                threads: self.threads(recipe),
                machines: machines.clone(),
                state,
            };
            self.write(process, &Letter::Go(Box::new(go)))?;
        }
        self.begun.store(true, Ordering::SeqCst);
        Ok(())
    }
}

/// What a follower would train with: process 0's recipe with its own place of the data, unless its
/// own recipe is another.
pub(super) fn accept(leader: &str, own: Option<Result<Recipe>>) -> Result<Recipe> {
    let mut recipe = Recipe::from_toml(leader).context("process 0's recipe")?;
    let Some(own) = own.transpose()? else { return Ok(recipe) };
    let changes = recipe.changes(&own)?;
    let Some(change) = changes.iter().find(|change| change.objection.is_some()) else {
        recipe.dataset = own.dataset;
        return Ok(recipe);
    };
    let value = |value: &Option<toml::Value>| {
        value.as_ref().map_or("left out".to_string(), ToString::to_string)
    };
    Err(anyhow!(
        "its recipe says {} = {}, process 0's {}; give all the same",
        change.key,
        value(&change.new),
        value(&change.old)
    ))
}

/// What the figures of this process come from.
pub(super) fn provenance(recipe: &Recipe, data: &gradwire_datasets::Data) -> Result<Provenance> {
    launch::provenance(recipe, data, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, sha256: &str) -> FileSum {
        FileSum { name: name.into(), bytes: 3, sha256: sha256.into() }
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let here = Provenance {
            version: "1".into(),
            kernels: "avx2".into(),
            data: vec![file("a", "00"), file("b", "11")],
            ..Provenance::default()
        };
        let mine = Hello::new(&here);
        assert_eq!(mine.objection(&mine), None);
        let objection = |change: &dyn Fn(&mut Hello)| {
            let mut other = mine.clone();
            change(&mut other);
            mine.objection(&other).unwrap()
        };
        let told = objection(&|hello| hello.version = "2".into());
        assert!(told.contains("version is 2, process 0's is 1"), "{told}");
        let told = objection(&|hello| hello.kernels = "portable".into());
        assert!(told.contains("kernels") && told.contains("GRADWIRE_KERNELS"), "{told}");
        let told = objection(&|hello| hello.data[1] = file("b", "12"));
        assert!(told.contains("file b") && told.contains("12") && told.contains("11"), "{told}");
        let told = objection(&|hello| drop(hello.data.pop()));
        assert!(told.contains("not read the data file b"), "{told}");
        let told = objection(&|hello| hello.problem = Some("no disk".into()));
        assert_eq!(told, "no disk");
    }
}
