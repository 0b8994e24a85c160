//! Carrying bytes between ranks.
//!
//! A [`Collective`] moves one message of every rank to every rank and never looks inside. What
//! trainers need besides the gradient (sums for a sharded evaluation, averaged statistics,
//! comparing replicas) is derived from that, framed, so that ranks that do different things at
//! the same time find out instead of adding unrelated numbers.

pub mod cluster;
mod derived;
mod mesh;
#[cfg(feature = "mpi")]
pub mod mpi;
mod solo;

use std::ops::{Deref, Range};
use std::sync::Arc;

pub use derived::Mismatch;
pub use mesh::mesh;
pub use solo::Solo;

use crate::{Error, Result};

/// One rank's message, shared by all that read it; it may lie in a buffer among others.
#[derive(Clone, Debug)]
pub struct Payload {
    buffer: Arc<Vec<u8>>,
    part: Range<usize>,
}

impl Payload {
    /// The bytes `part` of a buffer.
    ///
    /// # Panics
    /// When they are not within it.
    pub(crate) fn within(buffer: &Arc<Vec<u8>>, part: Range<usize>) -> Self {
        assert!(part.start <= part.end && part.end <= buffer.len(), "{part:?} of {}", buffer.len());
        Self { buffer: buffer.clone(), part }
    }

    /// The bytes `part` of it.
    ///
    /// # Panics
    /// When they are not within it.
    pub(crate) fn slice(&self, part: Range<usize>) -> Self {
        assert!(part.end <= self.len(), "{part:?} of {}", self.len());
        Self::within(&self.buffer, self.part.start + part.start..self.part.start + part.end)
    }

    /// Whether no other rank reads its buffer any more.
    #[doc(hidden)]
    pub fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.buffer) == 1
    }

    /// The buffer, when no other rank reads it any more.
    #[doc(hidden)]
    pub fn reclaim(self) -> Option<Vec<u8>> {
        Arc::into_inner(self.buffer)
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self { part: 0..bytes.len(), buffer: Arc::new(bytes) }
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.part.clone()]
    }
}

/// Messages of one kind that went out, oldest first, whose buffers are used again once no other rank
/// reads them any more.
///
/// The youngest that all ranks have let go of is written over first: it is the one that a cache may
/// still hold.
#[derive(Debug, Default)]
pub(crate) struct Spare(Vec<Payload>);

impl Spare {
    /// Messages that may still be read when the next is written. All ranks have read the one before the
    /// last when the last is answered.
    const KEPT: usize = 3;

    /// An empty buffer.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let free = self.0.iter().rposition(Payload::is_unshared);
        let mut buffer = free.and_then(|free| self.0.remove(free).reclaim()).unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Takes a message that was sent, to be used again.
    pub(crate) fn keep(&mut self, sent: Option<Payload>) {
        self.0.extend(sent);
        if self.0.len() > Self::KEPT {
            self.0.remove(0);
        }
    }
}

/// A group of ranks that exchange messages in lock step: every rank makes the same calls in the
/// same order.
///
/// A transport implements the first three, and says so if it shares memory. The
/// others are derived; each of them fails with
/// [`Error::OutOfStep`](crate::Error::OutOfStep) when a peer is in another call, and with the
/// peer's own [`Error::Aborted`](crate::Error::Aborted) when it gave up.
pub trait Collective: Send {
    /// This rank, counted from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn world_size(&self) -> usize;

    /// Gives `mine` to every rank and returns everybody's message, in order of rank, this rank's
    /// own included.
    ///
    /// # Errors
    /// [`Error::PeerLost`](crate::Error::PeerLost) when a peer is gone,
    /// [`Error::Timeout`](crate::Error::Timeout) when one is silent for too long. No wait is
    /// unbounded. A message that a peer sent before it went is still delivered.
    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>>;

    /// Whether a message that is given to several ranks is not copied, because all of them read
    /// the same memory: then sharing a result costs no transfer. False unless a transport says so.
    fn shares_memory(&self) -> bool {
        false
    }

    /// Whether [`alltoall`](Self::alltoall) is there. False unless a transport says so.
    fn divides(&self) -> bool {
        false
    }

    /// Gives each rank the part of `mine` with its number, which saves sending all of it to everybody,
    /// and returns what each has given this one, in order of rank. A rank that is in an
    /// [`allgather`](Self::allgather) meanwhile gives its message whole.
    ///
    /// # Errors
    /// As [`allgather`](Self::allgather); [`Error::Transport`] when there is not one part for each
    /// rank, or nothing that divides messages.
    fn alltoall(&mut self, _mine: Vec<Vec<u8>>) -> Result<Vec<Payload>> {
        let problem = "this collective gives every message to every rank".to_string();
        Err(Error::Transport { problem })
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`allgather`](Self::allgather), and as the trait says.
    fn barrier(&mut self) -> Result<()> {
        derived::barrier(self)
    }

    /// Overwrites `bytes` on every rank by those of rank `root`.
    ///
    /// # Errors
    /// As [`allgather`](Self::allgather), and as the trait says.
    fn broadcast(&mut self, root: usize, bytes: &mut Vec<u8>) -> Result<()> {
        derived::broadcast(self, root, bytes)
    }

    /// Overwrites each value by its sum over ranks, added in order of rank: bit-identical
    /// everywhere. All ranks pass the same number of values.
    ///
    /// # Errors
    /// As [`allgather`](Self::allgather), and as the trait says;
    /// [`Error::Message`](crate::Error::Message) when a peer passed another number of values.
    fn sum_f64(&mut self, values: &mut [f64]) -> Result<()> {
        derived::sum_f64(self, values)
    }

    /// Overwrites each value by its mean over ranks: the sum in order of rank, times 1/N in f32.
    /// All ranks pass the same number of values. NaN and infinity go through.
    ///
    /// # Errors
    /// As [`sum_f64`](Self::sum_f64).
    fn mean_f32(&mut self, values: &mut [f32]) -> Result<()> {
        derived::mean_f32(self, values)
    }

    /// Compares values (hashes of replicas) that should be equal on every rank, and returns the
    /// first that is not. Every rank gets the same answer.
    ///
    /// # Errors
    /// As [`sum_f64`](Self::sum_f64).
    fn compare(&mut self, values: &[u64]) -> Result<Option<Mismatch>> {
        derived::compare(self, values)
    }
}
