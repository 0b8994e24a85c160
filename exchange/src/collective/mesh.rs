//! Threads of one process, joined by a channel for every ordered pair.
//!
//! Messages of one rank to another arrive in the order sent. A message is written once and
//! shared: N ranks read the same bytes. Channels do not block the sender; lock step keeps them
//! short, because nobody sends its next message before it has everybody's last.

use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use super::{Collective, Payload};
use crate::error::Awaited;
use crate::{Error, Result};

/// One rank's end of a [`mesh()`].
#[derive(Debug)]
pub struct Mesh {
    rank: usize,
    timeout: Duration,
    /// To each rank, by rank; the own place is `None`.
    senders: Vec<Option<Sender<Payload>>>,
    /// From each rank, by rank; the own place is `None`.
    receivers: Vec<Option<Receiver<Payload>>>,
}

/// Joins `world_size` ranks and returns their ends in order of rank, one for each thread.
///
/// An allgather fails when it has not heard from everybody within `timeout` of sending its own
/// message, so it must be longer than the slowest rank's lag behind the fastest. Dropping an end
/// tells the others that the rank is gone.
pub fn mesh(world_size: usize, timeout: Duration) -> Vec<Mesh> {
    let mut ends: Vec<Mesh> = (0..world_size)
        .map(|rank| Mesh { rank, timeout, senders: Vec::new(), receivers: Vec::new() })
        .collect();
    for from in 0..world_size {
        for to in 0..world_size {
            let (sender, receiver) = if from == to { (None, None) } else { both(unbounded()) };
            ends[from].senders.push(sender);
            ends[to].receivers.push(receiver);
        }
    }
    ends
}

fn both<A, B>((a, b): (A, B)) -> (Option<A>, Option<B>) {
    (Some(a), Some(b))
}

impl Collective for Mesh {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.senders.len()
    }

    fn shares_memory(&self) -> bool {
        true
    }

    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        let start = Instant::now();
        let mine = Payload::from(mine);
        for sender in self.senders.iter().flatten() {
            // A peer that is gone may have left a message that says why: receiving decides.
            let _ = sender.send(mine.clone());
        }
        let mut all = Vec::with_capacity(self.receivers.len());
        for (from, receiver) in self.receivers.iter().enumerate() {
            let Some(receiver) = receiver else {
                all.push(mine.clone());
                continue;
            };
            let left = self.timeout.saturating_sub(start.elapsed());
            let (rank, by, awaited) = (from, self.rank, Awaited::Message);
            all.push(receiver.recv_timeout(left).map_err(|error| match error {
                RecvTimeoutError::Disconnected => Error::PeerLost { rank, by, awaited },
                RecvTimeoutError::Timeout => {
                    Error::Timeout { rank, by, awaited, after: self.timeout }
                }
            })?);
        }
        Ok(all)
    }
}
