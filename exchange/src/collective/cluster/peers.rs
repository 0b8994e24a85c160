//! One rank's end of a cluster in which every rank sends to every rank.

use std::sync::Arc;
use std::time::Duration;

use super::{Remote, packet};
use crate::collective::mesh::{Mailbox, Missing};
use crate::collective::{Collective, Payload};
use crate::error::{Error, Result};

/// One rank's end: what the others send arrives in its mailbox.
pub(super) struct Peers {
    remote: Remote,
    mailbox: Arc<Mailbox>,
    timeout: Duration,
    /// The error after which this end fails every call: a late message would be taken for one of
    /// the next round.
    broken: Option<Error>,
}

impl Peers {
    pub(super) fn new(remote: Remote, mailbox: Arc<Mailbox>, timeout: Duration) -> Self {
        Self { remote, mailbox, timeout, broken: None }
    }

    fn check(&self) -> Result<()> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Everybody's message, of which this rank's own is `mine`.
    fn receive(&mut self, mine: &Payload) -> Result<Vec<Payload>> {
        self.mailbox.take_all(self.timeout, mine).map_err(|missing| {
            self.end(missing);
            self.broken.insert(missing.error(self.remote.rank, self.timeout)).clone()
        })
    }

    /// Tells all ranks that this one sends nothing more.
    fn end(&self, why: Missing) {
        self.remote.send_to_all(&packet::end(why, self.remote.notes()));
    }
}

impl Collective for Peers {
    fn rank(&self) -> usize {
        self.remote.rank
    }

    fn world_size(&self) -> usize {
        self.remote.world_size
    }

    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        self.check()?;
        self.mailbox.expect();
        let (packet, mine) = packet::message(mine, self.remote.notes());
        self.remote.send_to_all(&packet);
        drop(packet);
        self.receive(&mine)
    }

    fn divides(&self) -> bool {
        true
    }

    fn alltoall(&mut self, mut mine: Vec<Vec<u8>>) -> Result<Vec<Payload>> {
        self.check()?;
        let Remote { rank, world_size, .. } = self.remote;
        if mine.len() != world_size {
            let problem = format!("{} parts of a message for {world_size} ranks", mine.len());
            return Err(Error::Transport { problem });
        }
        self.mailbox.expect();
        let own = Payload::from(std::mem::take(&mut mine[rank]));
        let notes = self.remote.notes();
        for step in 1..world_size {
            let to = (rank + step) % world_size;
            let (packet, _) = packet::message(std::mem::take(&mut mine[to]), notes);
            self.remote.send(to, packet);
        }
        self.receive(&own)
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.end(Missing::Gone(self.remote.rank));
    }
}
