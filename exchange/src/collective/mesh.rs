//! Threads of one process, each with a mailbox that all others put their messages into.
//!
//! Messages of one rank to another arrive in the order sent. A message is written once and
//! shared: N ranks read the same bytes. Sending never waits; lock step keeps the mailboxes short,
//! because nobody sends its next message before it has everybody's last.

use std::sync::Arc;
use std::time::Duration;

use super::mailbox::{Mailbox, Missing};
use super::{Collective, Payload};
use crate::{Error, Result};

/// One rank's end of a [`mesh()`].
#[derive(Debug)]
pub struct Mesh {
    rank: usize,
    timeout: Duration,
    /// By rank.
    mailboxes: Arc<[Mailbox]>,
    /// The error after which this end fails every call: a late message would be taken for one of
    /// the next round.
    broken: Option<Error>,
}

/// Joins `world_size` ranks and returns their ends in order of rank, one for each thread.
///
/// An allgather fails when a message of some rank has not come within `timeout` of sending this
/// rank's own, so it must be longer than the slowest rank's lag behind the fastest. An end that has
/// failed fails from then on, and the others learn why. Dropping an end tells them that the rank is
/// gone, whichever rank they are waiting for.
pub fn mesh(world_size: usize, timeout: Duration) -> Vec<Mesh> {
    let mailboxes: Arc<[Mailbox]> =
        (0..world_size).map(|owner| Mailbox::new(owner, world_size)).collect();
    let end = |rank| Mesh { rank, timeout, mailboxes: mailboxes.clone(), broken: None };
    (0..world_size).map(end).collect()
}

impl Mesh {
    /// Tells all ranks that this one sends nothing more.
    fn end(&self, why: Missing) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.end(self.rank, why));
    }
}

impl Collective for Mesh {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.mailboxes.len()
    }

    fn shares_memory(&self) -> bool {
        true
    }

    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let mine = Payload::from(mine);
        for (to, mailbox) in self.mailboxes.iter().enumerate() {
            if to != self.rank {
                mailbox.put(self.rank, mine.clone());
            }
        }
        let mut all = vec![mine; self.mailboxes.len()];
        let mailbox = &self.mailboxes[self.rank];
        match mailbox.take_all(self.timeout, |from, theirs| all[from] = theirs) {
            Ok(()) => Ok(all),
            Err(missing) => {
                self.end(missing);
                Err(self.broken.insert(missing.error(self.rank, self.timeout)).clone())
            }
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.end(Missing::Gone(self.rank));
    }
}
