//! What ended a run: of all the errors of its workers, the first cause.
//!
//! When a worker stops, its end of the exchange drops and the others stop too, each with an error
//! of its own that is only an echo. A silent worker, or one whose message cannot be read, reports
//! nothing at all: its peers accuse it.

use crate::text::duration;
use crate::train::position::Position;
use anyhow::{Error, anyhow};
use gradwire_exchange as exchange;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::time::{Duration, Instant};
use std::{fmt, io};

/// A replica is not what that of rank 0 is. Every rank finds the same.
#[derive(Debug, thiserror::Error)]
#[error(
    "replicas differ after step {step}: {parameter} is not the same on rank {rank} as on rank 0; this is a defect of the \
     program or of the memory, not of the recipe"
)]
pub(crate) struct ReplicasDiffer {
    pub(crate) step: u64,
    pub(crate) parameter: String,
    pub(crate) rank: usize,
}

/// Why and when a worker stopped.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) rank: usize,
    pub(crate) at: Instant,
    pub(crate) position: Position,
    pub(crate) error: Error,
    /// Whose fault it is by this failure's own account, and how far that account is to be
    /// believed: lower is further.
    pub(crate) accuses: (u8, usize),
    pub(crate) kind: FailureKind,
}

/// What a failure is to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FailureKind {
    /// A worker was lost: the run may go on from a checkpoint.
    Lost,
    /// A gradient or a loss is no number, on all workers alike: the same recipe would come to the same end.
    Diverged,
    /// A disk failed, which whoever is left has as well; or replicas differ, which a checkpoint would hide.
    Broken,
}

impl Failure {
    pub(crate) fn new(rank: usize, position: Position, error: Error) -> Self {
        use exchange::Error::{Aborted, NonFinite, NonFiniteMean};
        let accuses = accuses(rank, &error);
        let from_disk = || error.chain().any(|cause| cause.is::<io::Error>());
        let kind = match error.downcast_ref::<exchange::Error>() {
            Some(NonFinite { .. } | NonFiniteMean { .. } | Aborted { .. }) => FailureKind::Diverged,
            None if error.is::<ReplicasDiffer>() || from_disk() => FailureKind::Broken,
            _ => FailureKind::Lost,
        };
        Self { rank, at: Instant::now(), position, error, accuses, kind }
    }

    pub(crate) fn panic(rank: usize, position: Position, panic: &(dyn Any + Send)) -> Self {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
        Self::new(rank, position, anyhow!("panicked: {}", words.unwrap_or("no message")))
    }

    /// A worker has shown no progress for too long.
    pub(crate) fn stall(rank: usize, position: Position, limit: Duration) -> Self {
        let error = anyhow!(
            "no progress for {}; exchange.timeout says how long one worker may keep the others waiting",
            duration(limit.as_secs_f64())
        );
        Self::new(rank, position, error)
    }
}

/// Whose fault an error of `rank` is, and how far that is to be believed.
fn accuses(own: usize, error: &Error) -> (u8, usize) {
    use exchange::Error::{Aborted, Message, NonFinite, PeerLost, Timeout, Topology, Transport};
    if let Some(ReplicasDiffer { rank, .. }) = error.downcast_ref() {
        return (0, *rank);
    }
    match error.downcast_ref::<exchange::Error>() {
        Some(NonFinite { rank, .. }) => (0, *rank),
        Some(Message { rank, .. }) => (1, *rank),
        // Who gave up for another's message says so itself.
        Some(Aborted { rank, .. }) if *rank != own => (2, *rank),
        Some(Timeout { rank, .. }) => (3, *rank),
        Some(PeerLost { rank, .. }) => (4, *rank),
        Some(Transport { .. }) => (5, own),
        // Groups that differ may do so for a message that was damaged.
        Some(Topology { .. }) => (2, own),
        _ => (0, own),
    }
}

/// The end of a run by a worker's fault: who, where, why.
#[derive(Debug)]
pub struct RunFailure {
    /// The worker.
    pub rank: usize,
    /// Where it was.
    pub position: Position,
    /// The process and the machine it ran in, when there are several.
    pub whereabouts: Option<String>,
    kind: FailureKind,
    /// What went wrong.
    pub error: Error,
}

impl RunFailure {
    /// The failure that caused the others. `positions` is where all workers were when the first
    /// failure was reported, by rank.
    pub(crate) fn first(mut failures: Vec<Failure>, positions: &[Position]) -> Option<Self> {
        failures.sort_by_key(|failure| (failure.accuses.0, failure.at));
        let first = failures.first()?;
        let (_, rank) = first.accuses;
        let damaged = matches!(
            first.error.downcast_ref::<exchange::Error>(),
            Some(exchange::Error::Message { .. })
        );
        // The culprit knows better where it was; the accuser knows more of what it saw. The sender of
        // what was damaged on its way may be in the next step already.
        let own = failures.iter().find(|failure| failure.rank == rank).map(|own| own.position);
        let own = own.or_else(|| positions.get(rank).copied()).filter(|_| !damaged);
        let position = own.unwrap_or(first.position);
        let Failure { error, kind, .. } = failures.swap_remove(0);
        Some(Self { rank, position, whereabouts: None, error, kind })
    }

    /// Whether a worker was lost, and the run may go on from a checkpoint.
    pub fn is_recoverable(&self) -> bool {
        self.kind == FailureKind::Lost
    }
}

/// Whether a run was ended by a gradient or a loss that is no finite number: the same recipe would
/// come to the same end.
pub fn diverged(error: &Error) -> bool {
    error.downcast_ref::<RunFailure>().is_some_and(|loss| loss.kind == FailureKind::Diverged)
}

impl fmt::Display for RunFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.whereabouts {
            None => write!(f, "worker {}, {}", self.rank, self.position),
            Some(whereabouts) => {
                write!(f, "worker {} ({whereabouts}), {}", self.rank, self.position)
            }
        }
    }
}

impl std::error::Error for RunFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.error.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::position::Phase;
    use exchange::{Awaited, wire::Fault};

    const AWAITED: Awaited = Awaited::Gradient { step: 5 };

    fn position(phase: Phase) -> Position {
        Position::at(5, phase)
    }

    fn failed(rank: usize, error: impl Into<Error>) -> Failure {
        Failure::new(rank, position(Phase::Exchange), error.into())
    }

    fn lost(rank: usize, by: usize) -> Failure {
        failed(by, exchange::Error::PeerLost { rank, by, awaited: AWAITED })
    }

    fn silent(rank: usize, by: usize) -> Failure {
        let after = Duration::from_secs(2);
        failed(by, exchange::Error::Timeout { rank, by, awaited: AWAITED, after })
    }

    fn first(failures: Vec<Failure>) -> String {
        let positions =
            [position(Phase::Exchange), position(Phase::Forward), position(Phase::Exchange)];
        format!("{:#}", Error::from(RunFailure::first(failures, &positions).unwrap()))
    }

    #[test]
    fn echoes_come_after_the_cause_whenever_they_are_heard() {
        let panicked = || Failure::panic(2, position(Phase::Backward), &"index out of bounds");
        let expected = "worker 2, step 5, backward: panicked: index out of bounds";
        assert_eq!(first(vec![lost(2, 0), lost(0, 1), panicked()]), expected);
        assert_eq!(first(vec![panicked(), silent(2, 0)]), expected);
    }

    #[test]
    fn a_silent_worker_is_named_where_it_was_seen() {
        let expected = "worker 1, step 5, forward: rank 1 was silent for 2s; rank 0 was waiting for the \
                    gradient of step 5";
        // Rank 1 has not ended at all; or it has, since, and complains of being left.
        assert_eq!(first(vec![lost(0, 2), silent(1, 0)]), expected);
        let expected = expected.replace("forward", "exchange");
        assert_eq!(first(vec![silent(1, 0), lost(0, 1), lost(0, 2)]), expected);
    }

    #[test]
    fn the_sender_of_a_damaged_message_is_the_cause() {
        let fault = Fault::Checksum { written: 1, found: 2 };
        let unread = |by| failed(by, exchange::Error::Message { rank: 2, awaited: AWAITED, fault });
        let mut gone_on = lost(2, 0);
        gone_on.position.step += 1;
        for sender in [unread(2), gone_on] {
            let expected = first(vec![lost(0, 1), unread(0), sender]);
            assert!(
                expected.starts_with("worker 2, step 5, exchange: message of rank 2"),
                "{expected}"
            );
        }
        // Who averages for the others has told them in its words.
        let reason = unread(0).error.to_string();
        let told =
            |by| failed(by, exchange::Error::Aborted { rank: 0, step: 5, reason: reason.clone() });
        let expected = first(vec![told(1), told(2), unread(0)]);
        assert!(
            expected.starts_with("worker 2, step 5, exchange: message of rank 2"),
            "{expected}"
        );
    }

    #[test]
    fn only_lost_workers_are_recovered_from() {
        let loss = |failure| RunFailure::first(vec![failure], &[]).unwrap().is_recoverable();
        assert!(loss(silent(1, 0)) && loss(failed(0, anyhow!("no memory"))));
        let reason = "the loss is NaN".to_string();
        assert!(!loss(failed(0, exchange::Error::Aborted { rank: 0, step: 5, reason })));
    }

    #[test]
    fn without_failures_there_is_no_loss() {
        assert!(RunFailure::first(Vec::new(), &[]).is_none());
    }
}
