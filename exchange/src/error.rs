//! Everything that can go wrong in an exchange, as data.

use std::fmt;
use std::time::Duration;

use crate::wire::{Fault, Header};

/// Result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, where, and what to do about it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting of a scheme, or of the policy around it, has no meaning.
    #[error("{of}: {key} = {value} is not possible; {wanted}", of = of(*scheme))]
    Config {
        /// The scheme's name; none if it is the policy's.
        scheme: Option<&'static str>,
        /// The setting.
        key: &'static str,
        /// Its value, as written.
        value: String,
        /// What to write instead.
        wanted: &'static str,
    },
    /// Error feedback was asked for around a scheme that it does harm to.
    #[error(
        "scheme `{scheme}` is unsound with error feedback ({reason}); switch \
         its feedback off, or set the policy's `force` to see the harm done"
    )]
    Unsound {
        /// The scheme's name.
        scheme: &'static str,
        /// Why the pair does not converge.
        reason: &'static str,
    },
    /// A gradient of another length than the layout's, groups of buckets that are no partition, or a
    /// group out of its turn.
    #[error("{problem}")]
    Input {
        /// What is wrong, and what to do instead.
        problem: String,
    },
    /// A layout, a bucketing, a link, a number of ranks that cannot be.
    #[error("{problem}")]
    Invalid {
        /// What is wrong, and what to do instead.
        problem: String,
    },
    /// A rank met NaN or infinity before encoding. Every rank returns this same error; neither
    /// gradient nor residual has been changed on any of them.
    #[error(
        "non-finite {quantity} on rank {rank} at step {step}: parameter `{parameter}`, element {index}",
        quantity = if *corrected { "gradient plus residual" } else { "gradient" }
    )]
    NonFinite {
        /// The rank that met it (the lowest, if several did).
        rank: usize,
        /// The step.
        step: u64,
        /// Whether the gradient is finite, and adding the residual overflows.
        corrected: bool,
        /// The parameter's name.
        parameter: String,
        /// Position within the parameter, counted from 0.
        index: usize,
    },
    /// Gradients that are finite on every rank have a mean that is not.
    #[error("the mean gradient overflows at step {step}: parameter `{parameter}`, element {index}")]
    NonFiniteMean {
        /// The step.
        step: u64,
        /// The parameter's name.
        parameter: String,
        /// Position within the parameter, counted from 0.
        index: usize,
    },
    /// A rank gave up the step for a reason of its own. Every rank returns this same error.
    #[error("rank {rank} gave up at step {step}: {reason}")]
    Aborted {
        /// The rank that gave up.
        rank: usize,
        /// Its step.
        step: u64,
        /// Its words.
        reason: String,
    },
    /// A peer is gone: its end of the transport has been dropped.
    #[error("rank {rank} is gone; rank {by} was waiting for {awaited}")]
    PeerLost {
        /// The peer that is gone.
        rank: usize,
        /// The rank that noticed.
        by: usize,
        /// What was awaited.
        awaited: Awaited,
    },
    /// A peer did not answer in time.
    #[error("rank {rank} was silent for {after:?}; rank {by} was waiting for {awaited}")]
    Timeout {
        /// The silent peer.
        rank: usize,
        /// The rank that waited.
        by: usize,
        /// What was awaited.
        awaited: Awaited,
        /// How long.
        after: Duration,
    },
    /// Other processes cannot be reached.
    #[error("between processes: {problem}")]
    Transport {
        /// What is wrong.
        problem: String,
    },
    /// A scheme, or its surroundings, cannot use a topology.
    #[error("topology `{topology}`: {problem}")]
    Topology {
        /// The topology's name.
        topology: &'static str,
        /// Why, and what to write instead.
        problem: String,
    },
    /// A peer is doing something else: another step, bucket or collective.
    #[error("out of step: rank {by} expected {expected}, but received {found}")]
    OutOfStep {
        /// The rank that noticed.
        by: usize,
        /// What should have come.
        expected: Header,
        /// What came.
        found: Header,
    },
    /// A message does not mean anything.
    #[error("message of rank {rank} for {awaited}: {fault}")]
    Message {
        /// The rank that sent it.
        rank: usize,
        /// What it was awaited as.
        awaited: Awaited,
        /// What is wrong with the bytes.
        fault: Fault,
    },
    /// Bytes do not mean anything (sender unknown at this level).
    #[error(transparent)]
    Wire(#[from] Fault),
    /// A saved state does not fit what it is restored into.
    #[error("saved state: entry `{entry}` {problem}")]
    State {
        /// The entry's name.
        entry: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl Error {
    /// Groups of buckets that are no partition, or a group out of its turn.
    pub(crate) fn groups(problem: &str) -> Self {
        Self::Input { problem: format!("groups of buckets: {problem}") }
    }

    /// More ranks than a frame can name, or none.
    pub(crate) fn world_size(world_size: usize) -> Self {
        let most = u16::MAX;
        let problem = format!("world size {world_size} is not between 1 and {most}");
        Self::Invalid { problem }
    }

    /// The same error, told what was being waited for. Transports know who is missing; only
    /// their callers know what for.
    #[must_use]
    pub(crate) fn awaiting(mut self, what: Awaited) -> Self {
        if let Error::PeerLost { awaited, .. } | Error::Timeout { awaited, .. } = &mut self {
            *awaited = what;
        }
        self
    }

    /// The same error, told whose bytes could not be read.
    #[must_use]
    pub(crate) fn sent_by(self, rank: usize, awaited: Awaited) -> Self {
        match self {
            Error::Wire(fault) => Error::Message { rank, awaited, fault },
            other => other,
        }
    }
}

fn of(scheme: Option<&str>) -> String {
    scheme.map_or("policy".to_string(), |scheme| format!("scheme `{scheme}`"))
}

/// What a rank was waiting for when something failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Awaited {
    /// A message of any kind.
    Message,
    /// The gradient of a step.
    Gradient {
        /// The step.
        step: u64,
    },
    /// A peer's part in a barrier.
    #[doc(hidden)]
    Barrier,
    /// A peer's part in a broadcast.
    #[doc(hidden)]
    Broadcast,
    /// A peer's part in a sum.
    #[doc(hidden)]
    Sum,
    /// A peer's part in a mean.
    #[doc(hidden)]
    Mean,
    /// A peer's part in a comparison.
    #[doc(hidden)]
    Comparison,
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Awaited::Message => f.write_str("a message"),
            Awaited::Gradient { step } => write!(f, "the gradient of step {step}"),
            Awaited::Barrier => f.write_str("a barrier"),
            Awaited::Broadcast => f.write_str("a broadcast"),
            Awaited::Sum => f.write_str("a sum"),
            Awaited::Mean => f.write_str("a mean"),
            Awaited::Comparison => f.write_str("a comparison"),
        }
    }
}
