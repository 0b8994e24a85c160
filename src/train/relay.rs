//! What workers tell, on its way from their process to process 0.

use crate::cluster::{Bytes, ControlMessage, encode};
use crate::train::failure::{Failure, FailureKind};
use crate::train::position::{Phase, Position};
use crate::train::report::Report;
use anyhow::{Error, Result};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// What a process tells process 0 of its worker.
#[derive(Serialize, Deserialize)]
pub(super) enum WorkerMessage {
    /// What it reports.
    Report(Report),
    /// Workers have failed; nothing more will come.
    Failed(Vec<FailureReport>),
    /// All workers have come to the end; nothing more will come.
    Done,
}

impl WorkerMessage {
    /// The message that carries it; an error for a report that only rank 0 makes.
    pub(super) fn message(&self) -> Result<ControlMessage> {
        Ok(ControlMessage::Report(Bytes(encode(self)?)))
    }
}

/// A worker's failure, as another process is told of it.
#[derive(Serialize, Deserialize)]
pub(super) struct FailureReport {
    rank: usize,
    step: u64,
    phase: Phase,
    /// How long the worker had been there, in seconds.
    since: f64,
    accuses: (u8, usize),
    kind: FailureKind,
    words: String,
}

impl From<&Failure> for FailureReport {
    fn from(failure: &Failure) -> Self {
        Self {
            rank: failure.rank,
            step: failure.position.step,
            phase: failure.position.phase,
            since: failure.position.elapsed().as_secs_f64(),
            accuses: failure.accuses,
            kind: failure.kind,
            words: format!("{:#}", failure.error),
        }
    }
}

impl From<FailureReport> for Failure {
    fn from(report: FailureReport) -> Self {
        let FailureReport { rank, step, phase, since, accuses, kind, words } = report;
        let since = Duration::try_from_secs_f64(since).ok();
        let now = Instant::now();
        let since = since.and_then(|since| now.checked_sub(since)).unwrap_or(now);
        let position = Position { step, phase, since };
        Self { rank, at: now, position, error: Error::msg(words), accuses, kind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Part, Tensor, Tensors};
    use crate::cluster::decode;
    use crate::train::report::{EndOfEpoch, RankStep};
    use gradwire_exchange::{Entry, Error as Exchange, Gauge, Traffic};

    fn step() -> WorkerMessage {
        let mut traffic = Traffic::default();
        traffic.wire_bytes = 77;
        traffic.gauges = vec![Gauge::sum("kept", f64::NAN), Gauge::mean("bits", 3.0, 2.0)];
        let step =
            RankStep { rank: 3, step: 9, exposed: f64::INFINITY, traffic, ..RankStep::default() };
        WorkerMessage::Report(Report::Step(Box::new(step)))
    }

    /// What process 0 reads of a report, through the message that it comes in.
    fn read(message: &WorkerMessage) -> WorkerMessage {
        let message = encode(&message.message().unwrap()).unwrap();
        let ControlMessage::Report(report) = decode(&message).unwrap() else {
            panic!("another message")
        };
        decode(&report.0).unwrap()
    }

    #[test]
    fn reports_are_read_as_they_were_written() {
        let WorkerMessage::Report(Report::Step(found)) = read(&step()) else {
            panic!("another report")
        };
        assert_eq!((found.rank, found.step, found.traffic.wire_bytes), (3, 9, 77));
        assert!(found.exposed.is_infinite() && found.traffic.gauges[0].value.is_nan());
        assert_eq!(found.traffic.gauges[1], Gauge::mean("bits", 3.0, 2.0));
        // It is for who reads it to refuse what no step comes to.
        assert!(found.check().is_err() && RankStep::default().check().is_ok());

        let mut own = Tensors::default();
        let tensor = Tensor { shape: vec![2, 1], values: Entry::F32(vec![1.0, f32::MIN]) };
        own.0.insert("buffers/a".into(), tensor);
        let part = Part { rank: 2, step: 5, own: own.clone(), shared: None, stall: 0.5 };
        let part = WorkerMessage::Report(Report::Part(Box::new(part)));
        let WorkerMessage::Report(Report::Part(part)) = read(&part) else {
            panic!("another report")
        };
        assert_eq!((part.rank, part.step, part.stall, part.own), (2, 5, 0.5, own));
        let epoch = EndOfEpoch { epoch: 1, step: 1, test: None, evaluation_seconds: 0.0 };
        assert!(WorkerMessage::Report(Report::Epoch(epoch)).message().is_err(), "it is rank 0's");
    }

    #[test]
    fn a_failure_accuses_whom_it_accused() {
        let position = Position::at(4, Phase::Exchange);
        let lost = Exchange::PeerLost {
            rank: 1,
            by: 2,
            awaited: gradwire_exchange::Awaited::Gradient { step: 4 },
        };
        let failure = Failure::new(2, position, lost.into());
        let message = WorkerMessage::Failed(vec![FailureReport::from(&failure)]);
        let WorkerMessage::Failed(reports) = read(&message) else { panic!("another report") };
        let told = Failure::from(reports.into_iter().next().unwrap());
        assert_eq!((told.rank, told.accuses), (2, failure.accuses));
        assert_eq!((told.position.step, told.position.phase), (4, Phase::Exchange));
        assert_eq!(told.error.to_string(), failure.error.to_string());
    }

    #[test]
    fn what_is_no_report_is_an_error() {
        let bytes = encode(&step()).unwrap();
        assert!((0..bytes.len()).all(|end| decode::<WorkerMessage>(&bytes[..end]).is_err()));
        assert!(decode::<WorkerMessage>(&[&bytes[..], &[0]].concat()).is_err());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            // Whatever comes of it: no panic.
            let _ = decode::<WorkerMessage>(&damaged);
        }
    }
}
