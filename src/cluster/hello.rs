//! What processes tell each other before the run begins.

use super::blob::Blob;
use crate::checkpoint::{Checkpoint, Manifest, Progress, Tensors};
use crate::machine::Machine;
use crate::record::{FileSum, Provenance};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a process would train with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub(super) machine: Machine,
    pub(super) cores: usize,
    version: String,
    commit: Option<String>,
    profile: String,
    kernels: String,
    data: Vec<FileSum>,
    /// What has gone wrong already: the recipe differs, the data cannot be read.
    problem: Option<String>,
}

impl Hello {
    /// Of this process, with what produces its figures.
    pub fn new(here: &Provenance) -> Self {
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
    pub fn failed(problem: Option<String>) -> Self {
        Self { machine: Machine::here(), problem, ..Self::default() }
    }

    /// What keeps this process from training with one that said `other`: first what it itself
    /// says, then what differs, with both values.
    pub(super) fn objection(&self, other: &Self) -> Option<String> {
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
pub struct Go {
    /// The folder of the run.
    pub folder: String,
    /// Where the run goes on.
    pub progress: Progress,
    /// Compute threads of each worker.
    pub threads: usize,
    /// Where each process runs.
    pub machines: Vec<Machine>,
    /// What its workers take up, when the run goes on from a checkpoint.
    pub state: Option<State>,
}

/// A checkpoint on its way to another process.
#[derive(Serialize, Deserialize)]
pub struct State {
    folder: String,
    manifest: String,
    model: Blob,
    optimizer: Blob,
    /// Whose rank it is for, and what only that rank needs.
    rank: usize,
    own: Blob,
}

impl State {
    /// What a rank needs of a checkpoint.
    ///
    /// # Errors
    /// When it cannot be encoded, or has nothing of the rank.
    pub fn new(checkpoint: &Checkpoint, rank: usize) -> Result<Self> {
        let own = checkpoint.ranks.get(rank);
        let own = own.with_context(|| format!("the checkpoint has no rank {rank}"))?;
        Ok(Self {
            folder: checkpoint.folder.display().to_string(),
            manifest: serde_json::to_string(&checkpoint.manifest)?,
            model: Blob::of(&checkpoint.model)?,
            optimizer: Blob::of(&checkpoint.optimizer)?,
            rank,
            own: Blob::of(own)?,
        })
    }

    /// The checkpoint, but for what other ranks have of their own.
    ///
    /// # Errors
    /// When the bytes are not what [`new`](Self::new) made.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        let manifest: Manifest = serde_json::from_str(&self.manifest)?;
        let mut ranks = vec![Tensors::default(); manifest.world_size];
        if let Some(own) = ranks.get_mut(self.rank) {
            *own = self.own.tensors()?;
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
