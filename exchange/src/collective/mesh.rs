//! Threads of one process, each with a mailbox that all others put their messages into.
//!
//! Messages of one rank to another arrive in the order sent. A message is written once and
//! shared: N ranks read the same bytes. Sending never waits; lock step keeps the mailboxes short,
//! because nobody sends its next message before it has everybody's last.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::{Collective, Payload, Solo};
use crate::error::Awaited;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::wire::Fault;
use crate::{Error, Result};

/// Of waiting for messages, what is counted at once. A process that was stopped meanwhile, as by Ctrl-Z, has waited no
/// longer than that: the clock goes on without it.
const SLICE: Duration = Duration::from_secs(1);

/// One rank's end of a [`mesh()`].
#[derive(Debug)]
struct Mesh {
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
/// gone, whichever rank they are waiting for. A rank by itself is [`Solo`].
pub fn mesh(world_size: usize, timeout: Duration) -> Vec<Box<dyn Collective>> {
    if world_size == 1 {
        return vec![Box::new(Solo)];
    }
    let mailboxes: Arc<[Mailbox]> =
        (0..world_size).map(|owner| Mailbox::new(owner, world_size)).collect();
    let end = |rank| Mesh { rank, timeout, mailboxes: mailboxes.clone(), broken: None };
    (0..world_size).map(|rank| Box::new(end(rank)) as _).collect()
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
        self.mailboxes[self.rank].take_all(self.timeout, &mine).map_err(|missing| {
            self.end(missing);
            self.broken.insert(missing.error(self.rank, self.timeout)).clone()
        })
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.end(Missing::Gone(self.rank));
    }
}

/// One rank's mailbox: a queue for each sender, and one condition for all of them, so that the first
/// loss is noticed whichever rank is awaited.
#[derive(Debug)]
pub(super) struct Mailbox {
    owner: usize,
    messages: Mutex<Messages>,
    /// Notified when there is a message from everybody, or a rank ends.
    changed: Condvar,
}

#[derive(Debug)]
struct Messages {
    /// By sender; the owner's own stays empty.
    queues: Vec<VecDeque<Payload>>,
    /// By rank, why it will send nothing more.
    ended: Vec<Option<Missing>>,
    /// Whether the owner is waiting, or about to.
    awaited: bool,
}

/// Why a round of messages will not be complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// This rank is gone.
    Gone(usize),
    /// This rank, the first of perhaps several, has sent nothing in time.
    Silent(usize),
    /// What this rank sent to another process cannot be read.
    Unreadable(usize, Fault),
}

impl Missing {
    /// The error of rank `by`, which waited for `after`.
    pub(super) fn error(self, by: usize, after: Duration) -> Error {
        let awaited = Awaited::Message;
        match self {
            Missing::Gone(rank) => Error::PeerLost { rank, by, awaited },
            Missing::Silent(rank) => Error::Timeout { rank, by, awaited, after },
            Missing::Unreadable(rank, fault) => Error::Message { rank, awaited, fault },
        }
    }
}

impl Mailbox {
    pub(super) fn new(owner: usize, world_size: usize) -> Self {
        let queues = (0..world_size).map(|_| VecDeque::new()).collect();
        let messages = Messages { queues, ended: vec![None; world_size], awaited: false };
        Self { owner, messages: Mutex::new(messages), changed: Condvar::new() }
    }

    /// Puts a message in. Never waits; a message to an owner that is gone is dropped.
    pub(super) fn put(&self, from: usize, message: Payload) {
        let mut messages = self.lock();
        if messages.ended[self.owner].is_some() {
            return;
        }
        messages.queues[from].push_back(message);
        if messages.lacking(self.owner).is_none() {
            self.changed.notify_one();
        }
    }

    /// Tells that a rank, perhaps the owner, will send nothing more, and why; the first reason counts.
    pub(super) fn end(&self, rank: usize, why: Missing) {
        let mut messages = self.lock();
        messages.ended[rank].get_or_insert(why);
        if rank == self.owner {
            messages.queues.iter_mut().for_each(VecDeque::clear);
        }
        self.changed.notify_one();
    }

    /// Tells that the owner is about to wait for everybody's message.
    pub(super) fn expect(&self) {
        self.lock().awaited = true;
    }

    /// Takes one message of every other rank, in order of rank, the owner's own being `mine`; none when
    /// one will never come, or has not come within `timeout`. What a rank sent before it ended counts.
    pub(super) fn take_all(
        &self,
        timeout: Duration,
        mine: &Payload,
    ) -> Result<Vec<Payload>, Missing> {
        let mut left = timeout;
        let mut messages = self.lock();
        while let Some(lacking) = messages.lacking(self.owner) {
            let silent = left.is_zero().then_some(Missing::Silent(lacking));
            if let Some(why) = messages.lost(self.owner).or(silent) {
                messages.awaited = false;
                return Err(why);
            }
            let (began, slice) = (Instant::now(), left.min(SLICE));
            let waited = self.changed.wait_timeout(messages, slice);
            messages = waited.unwrap_or_else(PoisonError::into_inner).0;
            left -= began.elapsed().min(slice);
        }
        messages.awaited = false;
        let queues = messages.queues.iter_mut();
        Ok(queues.map(|queue| queue.pop_front().unwrap_or_else(|| mine.clone())).collect())
    }

    /// The first rank that the owner is waiting for.
    pub(super) fn awaited(&self) -> Option<usize> {
        let messages = self.lock();
        messages.lacking(self.owner).filter(|_| messages.awaited)
    }

    /// The messages; nothing that holds them can panic half-way.
    fn lock(&self) -> MutexGuard<'_, Messages> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Messages {
    /// The ranks of which there is no message.
    fn missing(&self, owner: usize) -> impl Iterator<Item = usize> {
        let others = (0..self.queues.len()).filter(move |rank| *rank != owner);
        others.filter(|rank| self.queues[*rank].is_empty())
    }

    /// The first rank of which there is no message.
    fn lacking(&self, owner: usize) -> Option<usize> {
        self.missing(owner).next()
    }

    /// Why there will be none of a rank of which there is none.
    fn lost(&self, owner: usize) -> Option<Missing> {
        self.missing(owner).find_map(|rank| self.ended[rank])
    }
}
