//! What the processes of a job send each other beside gradients, and how it becomes bytes.

use crate::checkpoint::{Checkpoint, Progress};
use crate::machine::Machine;
use crate::record::{FileSum, Provenance, as_json};
use anyhow::{Context, Result, bail};
use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize, Serializer};

/// A message between processes.
#[derive(Serialize, Deserialize)]
pub enum ControlMessage {
    /// From process 0, before anything else: the recipe, as TOML.
    Recipe(String),
    /// To process 0: what this process would train with.
    Hello(Box<Hello>),
    /// From process 0: begin.
    Begin(Box<Begin>),
    /// From process 0: the run does not begin.
    Refused,
    /// To process 0: a worker's report, which whoever trains can read.
    Report(Bytes),
    /// From process 0: everything is written.
    Finished,
}

/// A message as bytes.
///
/// # Errors
/// When something in it is no text.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>> {
    postcard::to_extend(message, Vec::new()).context("writing a message")
}

/// A message from bytes.
///
/// # Errors
/// When they are not such a message's.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes).context("it cannot be read")? {
        (message, []) => Ok(message),
        (_, rest) => bail!("{} bytes follow its end", rest.len()),
    }
}

/// Bytes, written as one piece.
#[derive(Clone, Debug, PartialEq)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A message is read from a slice, which can be borrowed from.
        <&[u8]>::deserialize(deserializer).map(|bytes| Self(bytes.to_vec()))
    }
}

/// What a process would train with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub(super) machine: Machine,
    /// What produces its figures.
    #[serde(with = "as_json")]
    pub(super) here: Provenance,
    /// What has gone wrong already: the recipe differs, the data cannot be read.
    problem: Option<String>,
}

impl Hello {
    /// Of this process, with what produces its figures.
    pub fn new(here: &Provenance) -> Self {
        Self { here: here.clone(), ..Self::failed(None) }
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
        let (here, there) = (&self.here, &other.here);
        let commit = |of: &Provenance| of.commit.clone().unwrap_or_else(|| "unknown".into());
        let (commits, same) = ([commit(here), commit(there)], "start the same program");
        let advice = "precision and GRADWIRE_KERNELS choose those that all processors have";
        let pairs = [
            ("version", &here.version, &there.version, same),
            ("commit", &commits[0], &commits[1], same),
            ("build", &here.profile, &there.profile, same),
            ("kernels", &here.kernels, &there.kernels, advice),
        ];
        for (key, mine, theirs, advice) in pairs {
            if mine != theirs {
                return Some(format!("its {key} is {theirs}, process 0's is {mine}; {advice}"));
            }
        }
        let differs = |file: &&FileSum| !here.data.contains(file);
        if let Some(file) = there.data.iter().find(differs) {
            let mine = here.data.iter().find(|mine| mine.name == file.name);
            let mine = mine.map_or("which process 0 has not read".to_string(), |mine| {
                format!("where process 0's has {} bytes, SHA-256 {}", mine.bytes, mine.sha256)
            });
            return Some(format!(
                "its data file {} has {} bytes, SHA-256 {}, {mine}",
                file.name, file.bytes, file.sha256
            ));
        }
        let missing = here.data.iter().find(|file| !there.data.contains(file));
        missing.map(|file| format!("it has not read the data file {}", file.name))
    }
}

/// What a follower begins with.
#[derive(Serialize, Deserialize)]
pub struct Begin {
    /// The folder of the run.
    pub folder: String,
    /// Where the run goes on.
    pub progress: Progress,
    /// Compute threads of each worker.
    pub threads: usize,
    /// Where each process runs.
    pub machines: Vec<Machine>,
    /// What its worker takes up, when the run goes on from a checkpoint, of which other ranks' own is left out.
    pub from: Option<Checkpoint>,
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
        let told = objection(&|hello| hello.here.version = "2".into());
        assert!(told.contains("version is 2, process 0's is 1"), "{told}");
        let told = objection(&|hello| hello.here.kernels = "portable".into());
        assert!(told.contains("kernels") && told.contains("GRADWIRE_KERNELS"), "{told}");
        let told = objection(&|hello| hello.here.data[1] = file("b", "12"));
        assert!(told.contains("file b") && told.contains("12") && told.contains("11"), "{told}");
        let told = objection(&|hello| drop(hello.here.data.pop()));
        assert!(told.contains("not read the data file b"), "{told}");
        let told = objection(&|hello| hello.problem = Some("no disk".into()));
        assert_eq!(told, "no disk");
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        let bytes = encode(&ControlMessage::Report(Bytes(vec![7; 100]))).unwrap();
        let ControlMessage::Report(found) = decode(&bytes).unwrap() else {
            panic!("another message")
        };
        assert_eq!(found, Bytes(vec![7; 100]));
        assert!((0..bytes.len()).all(|end| decode::<ControlMessage>(&bytes[..end]).is_err()));
        assert!(decode::<ControlMessage>(&[&bytes[..], &[0]].concat()).is_err());
    }
}
