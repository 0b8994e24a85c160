//! What the processes of a job write each other, as bytes.

use super::agree::{Go, Hello};
use crate::checkpoint::{Part, Tensors};
use crate::loss::Failure;
use crate::post::{Place, phase_of};
use crate::record::Warning;
use crate::worker::{Report, Step};
use anyhow::{Context, Error, Result, bail};
use postcard::ser_flavors::Flavor;
use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::time::{Duration, Instant};

/// A letter.
#[derive(Serialize, Deserialize)]
pub(crate) enum Letter {
    /// From process 0, first of all: the recipe, as TOML.
    Recipe(String),
    /// To process 0: what this process would train with.
    Hello(Box<Hello>),
    /// From process 0: begin.
    Go(Box<Go>),
    /// From process 0: the run does not begin.
    Refused,
    /// To process 0: a worker's step.
    Step(Box<Step>),
    /// To process 0: something that does not stop the run, and of which step.
    Warning(Option<u64>, String),
    /// To process 0: a worker's part of a checkpoint.
    Part(Handed),
    /// To process 0: workers have failed; nothing more will come.
    Failed(Vec<Account>),
    /// To process 0: all workers have come to the end; nothing more will come.
    Done,
    /// From process 0: everything is written.
    Bye,
}

impl Letter {
    /// As bytes.
    ///
    /// # Errors
    /// When something in it is no text.
    pub(crate) fn write(&self) -> Result<Vec<u8>> {
        postcard::serialize_with_flavor(self, Bytes(Vec::new())).context("writing a letter")
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are not a letter's.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        match postcard::take_from_bytes(bytes).context("it cannot be read")? {
            (letter, []) => Ok(letter),
            (_, rest) => bail!("{} bytes follow its end", rest.len()),
        }
    }

    /// A worker's report, for process 0.
    ///
    /// # Errors
    /// When a checkpoint's part cannot be encoded, or the report is one that only rank 0 makes.
    pub(crate) fn report(report: Report) -> Result<Self> {
        Ok(match report {
            Report::Step(step) => Self::Step(step),
            Report::Warning(Warning { step, message }) => Self::Warning(step, message),
            Report::Part(part) => {
                let Part { rank, step, own, shared, stall } = *part;
                anyhow::ensure!(shared.is_none(), "invariant: what all share is rank 0's to tell");
                Self::Part(Handed { rank, step, stall, own: Blob::of(&own)? })
            }
            Report::Histograms(_) | Report::Epoch(_) => bail!("invariant: rank 0 reports these"),
        })
    }
}

/// A part of a checkpoint on its way.
#[derive(Serialize, Deserialize)]
pub(crate) struct Handed {
    rank: usize,
    step: u64,
    stall: f64,
    own: Blob,
}

impl TryFrom<Handed> for Part {
    type Error = Error;

    fn try_from(Handed { rank, step, stall, own }: Handed) -> Result<Self> {
        Ok(Self { rank, step, own: own.tensors()?, shared: None, stall })
    }
}

/// A worker's failure, as another process is told of it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Account {
    rank: usize,
    step: u64,
    phase: String,
    /// How long the worker had been there, in seconds.
    since: f64,
    accuses: (u8, usize),
    recoverable: bool,
    words: String,
}

impl From<&Failure> for Account {
    fn from(failure: &Failure) -> Self {
        Self {
            rank: failure.rank,
            step: failure.place.step,
            phase: failure.place.phase.into(),
            since: failure.place.elapsed().as_secs_f64(),
            accuses: failure.accuses,
            recoverable: failure.recoverable,
            words: format!("{:#}", failure.error),
        }
    }
}

impl From<Account> for Failure {
    fn from(account: Account) -> Self {
        let Account { rank, step, phase, since, accuses, recoverable, words } = account;
        let since = Duration::try_from_secs_f64(since).ok();
        let now = Instant::now();
        let since = since.and_then(|since| now.checked_sub(since)).unwrap_or(now);
        let place = Place { step, phase: phase_of(phase), since };
        Self { rank, at: now, place, error: Error::msg(words), accuses, recoverable }
    }
}

/// What letters are written into.
struct Bytes(Vec<u8>);

impl Flavor for Bytes {
    type Output = Vec<u8>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

/// Bytes, written as one piece.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Blob(Vec<u8>);

impl Blob {
    pub(crate) fn of(tensors: &Tensors) -> Result<Self> {
        Ok(Self(tensors.encode(None)?))
    }

    pub(crate) fn tensors(&self) -> Result<Tensors> {
        Tensors::decode(&self.0)
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Piece;
        impl Visitor<'_> for Piece {
            type Value = Blob;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Blob, E> {
                Ok(Blob(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Tensor;
    use gradwire_exchange::{Entry, Error as Exchange, Gauge, Traffic};

    fn step() -> Step {
        let mut traffic = Traffic::default();
        traffic.wire_bytes = 77;
        traffic.gauges = vec![Gauge::sum("kept", f64::NAN), Gauge::mean("bits", 3.0, 2.0)];
        Step { rank: 3, step: 9, exposed: f64::INFINITY, traffic, ..Step::default() }
    }

    #[test]
    fn letters_are_read_as_they_were_written() {
        let read = |letter: &Letter| Letter::read(&letter.write().unwrap()).unwrap();
        let Letter::Step(found) = read(&Letter::report(Report::Step(Box::new(step()))).unwrap())
        else {
            panic!("another letter")
        };
        assert_eq!((found.rank, found.step, found.traffic.wire_bytes), (3, 9, 77));
        assert!(found.exposed.is_infinite() && found.traffic.gauges[0].value.is_nan());
        assert_eq!(found.traffic.gauges[1], Gauge::mean("bits", 3.0, 2.0));

        let mut own = Tensors::default();
        let tensor = Tensor { shape: vec![2, 1], values: Entry::F32(vec![1.0, f32::MIN]) };
        own.0.insert("buffers/a".into(), tensor);
        let part = Part { rank: 2, step: 5, own: own.clone(), shared: None, stall: 0.5 };
        let Letter::Part(handed) = read(&Letter::report(Report::Part(Box::new(part))).unwrap())
        else {
            panic!("another letter")
        };
        let part = Part::try_from(handed).unwrap();
        assert_eq!((part.rank, part.step, part.stall, part.own), (2, 5, 0.5, own));
    }

    #[test]
    fn a_failure_accuses_whom_it_accused() {
        let place = Place { step: 4, phase: "exchange", since: Instant::now() };
        let lost = Exchange::PeerLost {
            rank: 1,
            by: 2,
            awaited: gradwire_exchange::Awaited::Gradient { step: 4 },
        };
        let failure = Failure::new(2, place, lost.into());
        let letter = Letter::Failed(vec![Account::from(&failure)]);
        let Letter::Failed(accounts) = Letter::read(&letter.write().unwrap()).unwrap() else {
            panic!("another letter")
        };
        let told = Failure::from(accounts.into_iter().next().unwrap());
        assert_eq!((told.rank, told.accuses), (2, failure.accuses));
        assert_eq!((told.place.step, told.place.phase), (4, "exchange"));
        assert_eq!(told.error.to_string(), failure.error.to_string());
    }

    #[test]
    fn what_is_no_letter_is_an_error() {
        let bytes = Letter::report(Report::Step(Box::new(step()))).unwrap().write().unwrap();
        assert!((0..bytes.len()).all(|end| Letter::read(&bytes[..end]).is_err()));
        assert!(Letter::read(&[&bytes[..], &[0]].concat()).is_err());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            // Whatever comes of it: no panic.
            let _ = Letter::read(&damaged);
        }
    }
}
