//! The messages that other ranks have sent to one rank, and which of them will send no more.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::Payload;
use crate::error::{Awaited, Error};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::wire::Fault;

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

    /// Takes one message of every other rank and hands it to `take`, in order of rank; none when
    /// one will never come, or has not come within `timeout`. What a rank sent before it ended counts.
    pub(super) fn take_all(
        &self,
        timeout: Duration,
        mut take: impl FnMut(usize, Payload),
    ) -> Result<(), Missing> {
        let start = Instant::now();
        let mut messages = self.lock();
        while let Some(lacking) = messages.lacking(self.owner) {
            let left = timeout.saturating_sub(start.elapsed());
            let silent = left.is_zero().then_some(Missing::Silent(lacking));
            if let Some(why) = messages.lost(self.owner).or(silent) {
                messages.awaited = false;
                return Err(why);
            }
            let waited = self.changed.wait_timeout(messages, left);
            messages = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        messages.awaited = false;
        for (from, queue) in messages.queues.iter_mut().enumerate() {
            if let Some(message) = queue.pop_front() {
                take(from, message);
            }
        }
        Ok(())
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
