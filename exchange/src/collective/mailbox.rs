//! What the other ranks have sent to one rank, and which of them are gone.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::Payload;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// One rank's mailbox: a queue for each sender, and one bell for all of them, so that the first
/// loss is noticed whoever else is awaited.
#[derive(Debug)]
pub(super) struct Mailbox {
    owner: usize,
    letters: Mutex<Letters>,
    /// Rung when there is a letter from everybody, or somebody goes.
    bell: Condvar,
}

#[derive(Debug)]
struct Letters {
    /// By sender; the owner's own stays empty.
    queues: Vec<VecDeque<Payload>>,
    gone: Vec<bool>,
}

/// Why not everybody's letter could be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// This rank is gone and has left no letter.
    Gone(usize),
    /// This rank, the first of perhaps several, has sent none in time.
    Silent(usize),
}

impl Mailbox {
    pub(super) fn new(owner: usize, world_size: usize) -> Self {
        let queues = (0..world_size).map(|_| VecDeque::new()).collect();
        let letters = Mutex::new(Letters { queues, gone: vec![false; world_size] });
        Self { owner, letters, bell: Condvar::new() }
    }

    /// Puts a letter in. Never waits; a letter to an owner that is gone is dropped.
    pub(super) fn put(&self, from: usize, letter: Payload) {
        let mut letters = self.open();
        if letters.gone[self.owner] {
            return;
        }
        letters.queues[from].push_back(letter);
        if letters.lacking(self.owner).is_none() {
            self.bell.notify_one();
        }
    }

    /// Says that a rank is gone: the owner, or one that will send nothing more.
    pub(super) fn leave(&self, rank: usize) {
        let mut letters = self.open();
        letters.gone[rank] = true;
        if rank == self.owner {
            letters.queues.iter_mut().for_each(VecDeque::clear);
        }
        self.bell.notify_one();
    }

    /// Takes one letter of every other rank and hands it to `take`, in order of rank; none when
    /// one is missing for good, or still after `patience`. What a rank sent before it went counts.
    pub(super) fn take_all(
        &self,
        patience: Duration,
        mut take: impl FnMut(usize, Payload),
    ) -> Result<(), Missing> {
        let start = Instant::now();
        let mut letters = self.open();
        while let Some(lacking) = letters.lacking(self.owner) {
            if let Some(gone) = letters.lost(self.owner) {
                return Err(Missing::Gone(gone));
            }
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(Missing::Silent(lacking));
            }
            letters =
                self.bell.wait_timeout(letters, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        for (from, queue) in letters.queues.iter_mut().enumerate() {
            if let Some(letter) = queue.pop_front() {
                take(from, letter);
            }
        }
        Ok(())
    }

    /// The letters; nothing that holds them can panic half-way.
    fn open(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Letters {
    /// The first rank of which there is no letter.
    fn lacking(&self, owner: usize) -> Option<usize> {
        let mut others = (0..self.queues.len()).filter(|rank| *rank != owner);
        others.find(|rank| self.queues[*rank].is_empty())
    }

    /// The first rank of which there is no letter, nor will be.
    fn lost(&self, owner: usize) -> Option<usize> {
        let mut others = (0..self.queues.len()).filter(|rank| *rank != owner);
        others.find(|rank| self.gone[*rank] && self.queues[*rank].is_empty())
    }
}
