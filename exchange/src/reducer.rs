//! Reducers: from one bucket's gradient on each rank to the mean on all of them, in any number of
//! rounds.
//!
//! A [`Compressor`](crate::Compressor) says everything in one message. Where what a rank has to
//! send depends on what all ranks sent before (PowerSGD orthogonalises the mean of the ranks'
//! factors before it can compute the second factor), a scheme is a [`Reducer`].
//!
//! The exchange calls [`Reducer::reduce`] once a round. In it a reducer reads what the round before
//! came to, and posts its part of this one: f32 values to be averaged
//! ([`allreduce`](Round::allreduce)), bytes for everybody ([`allgather`](Round::allgather)), or
//! both. It posts and returns; it does not wait. So the parts of all buckets of a group travel
//! together, one rendezvous a round, whatever the number of buckets.
//!
//! What is posted is framed, checksummed, numbered by step, bucket and round, counted to the byte,
//! bounded in time, and known to the model of the network for what it is.

use std::sync::Arc;

use crate::collective::Payload;
use crate::wire::frame::HEADER_BYTES;
use crate::{Gauge, Result, State};

/// Turns one bucket's gradient on each rank into the mean on all of them.
///
/// Laws: every rank posts in the same rounds, the same numbers of values; the mean that a reducer
/// writes depends only on its configuration, its state as it was saved, and what the rounds
/// brought, so that it has the same bits on every rank; nothing that lasts changes before
/// [`commit`](Self::commit).
pub trait Reducer: Send {
    /// One round. In round 0 nothing has been posted yet: the reducer reads
    /// [`BucketGradient::due`] and posts. In the round in which it returns [`Next::Done`] it has
    /// written the mean.
    ///
    /// # Errors
    /// Any, which becomes every rank's [`Error::Aborted`](crate::Error::Aborted); a message that
    /// makes no sense is [`Error::Wire`](crate::Error::Wire).
    fn reduce(&mut self, bucket: &mut BucketGradient<'_>, round: &mut Round<'_>) -> Result<Next>;

    /// The step has succeeded on this rank: what the reducer prepared becomes its state. A step
    /// that fails is begun again by round 0 without it.
    fn commit(&mut self) {}

    /// Puts everything that later steps depend on into `state`.
    fn save(&self, _state: &mut State) {}

    /// Takes up what [`save`](Self::save) put there.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State) when it does not fit.
    fn restore(&mut self, _state: &State) -> Result<()> {
        Ok(())
    }

    /// What the last step was like, for the record.
    fn gauges(&self) -> &[Gauge] {
        &[]
    }
}

/// Whether a reducer needs another round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It has posted, and wants to hear what comes of it.
    Again,
    /// The mean is written.
    Done,
}

/// One bucket on one rank, its elements end to end.
#[derive(Debug)]
pub struct BucketGradient<'a> {
    values: &'a mut [f32],
    due: Option<&'a mut [f32]>,
}

impl<'a> BucketGradient<'a> {
    /// A bucket whose gradient is `values`; with error feedback `due` holds the gradient plus the residual
    /// so far.
    ///
    /// # Panics
    /// When the two differ in length.
    pub fn new(values: &'a mut [f32], due: Option<&'a mut [f32]>) -> Self {
        if let Some(due) = &due {
            assert_eq!(values.len(), due.len(), "invariant: something due of each element");
        }
        Self { values, due }
    }

    /// What this rank has to send: its gradient, plus the residual with error feedback. Valid as
    /// long as neither of [`parts_mut`](Self::parts_mut) has been written to.
    pub fn due(&self) -> &[f32] {
        self.due.as_deref().unwrap_or(self.values)
    }

    /// Where the mean goes, in the last round; and with error feedback what was due, of which the
    /// reducer takes off what has been sent: what is left is the residual.
    pub fn parts_mut(&mut self) -> (&mut [f32], Option<&mut [f32]>) {
        (self.values, self.due.as_deref_mut())
    }
}

/// One round of one bucket.
#[derive(Debug)]
pub struct Round<'a> {
    pub(crate) step: u64,
    pub(crate) number: u8,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) mail: &'a mut Mail,
}

impl Round<'_> {
    /// The step, which counts the bucket's exchanges from 1: steps of the run, but for [local steps](crate::Turn).
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The round, which counts from 0.
    pub fn number(&self) -> usize {
        self.number.into()
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Posts values to be averaged over ranks; those of several calls in a round follow one another.
    /// In the next round [`mean`](Self::mean) has the result: the sum in order of rank times 1/N,
    /// the same bits on every rank. Every rank posts the same number of values.
    pub fn allreduce(&mut self, values: &[f32]) {
        self.mail.values.extend_from_slice(values);
        self.mail.posts_values = true;
    }

    /// The mean of what all ranks posted by [`allreduce`](Self::allreduce) in the round before.
    pub fn mean(&self) -> &[f32] {
        &self.mail.mean
    }

    /// Posts bytes that every rank will read; those of several calls in a round follow one another.
    /// Ranks may differ in length.
    pub fn allgather(&mut self, bytes: &[u8]) {
        self.mail.bytes.extend_from_slice(bytes);
        self.mail.posts_bytes = true;
    }

    /// What each rank posted by [`allgather`](Self::allgather) in the round before, in order of
    /// rank. These bytes are a peer's: they may be anything.
    pub fn messages(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.mail.messages.iter().map(|payload| &**payload)
    }
}

/// What one bucket's reducer posts in a round, and what the round before brought.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    pub(crate) values: Vec<f32>,
    pub(crate) posts_values: bool,
    pub(crate) bytes: Vec<u8>,
    pub(crate) posts_bytes: bool,
    pub(crate) mean: Vec<f32>,
    pub(crate) messages: Vec<Payload>,
    /// Whether the reducer has written the mean.
    pub(crate) done: bool,
}

impl Mail {
    /// Forgets everything, before round 0.
    pub(crate) fn begin(&mut self) {
        self.clear_posts();
        self.mean.clear();
        self.messages.clear();
        self.done = false;
    }

    /// Forgets what was posted; what came of it stays.
    pub(crate) fn clear_posts(&mut self) {
        self.values.clear();
        self.bytes.clear();
        (self.posts_values, self.posts_bytes) = (false, false);
    }
}

/// A group of one rank for a reducer without an exchange: what it posts comes back as it is. For
/// tests, benches, and to look at a reducer.
#[derive(Debug, Default)]
#[doc(hidden)]
pub struct Alone {
    mail: Mail,
    /// The bytes posted in the call before; nobody else has them once `mail.messages` is empty.
    posted: Arc<Vec<u8>>,
    number: u8,
    wire_bytes: usize,
}

impl Alone {
    /// Calls the reducer once, after taking what it posted in the call before as what all ranks
    /// said.
    ///
    /// # Errors
    /// What the reducer fails with.
    ///
    /// # Panics
    /// After 256 rounds.
    pub fn turn(
        &mut self,
        reducer: &mut dyn Reducer,
        step: u64,
        bucket: &mut BucketGradient<'_>,
    ) -> Result<Next> {
        std::mem::swap(&mut self.mail.mean, &mut self.mail.values);
        self.mail.messages.clear();
        if self.mail.posts_bytes {
            let posted = Arc::make_mut(&mut self.posted);
            posted.clone_from(&self.mail.bytes);
            let all = 0..posted.len();
            self.mail.messages.push(Payload::within(&self.posted, all));
        }
        self.mail.clear_posts();
        let (number, mail) = (self.number, &mut self.mail);
        let next =
            reducer.reduce(bucket, &mut Round { step, number, rank: 0, world_size: 1, mail })?;
        for (posted, bytes) in [
            (self.mail.posts_values, size_of_val(self.mail.values.as_slice())),
            (self.mail.posts_bytes, self.mail.bytes.len()),
        ] {
            self.wire_bytes += if posted { HEADER_BYTES + bytes } else { 0 };
        }
        match next {
            Next::Again => {
                let more = self.number.checked_add(1);
                self.number = more.expect("a reducer wants more than 256 rounds");
            }
            Next::Done => {
                self.number = 0;
                self.mail.begin();
            }
        }
        Ok(next)
    }

    /// Bytes that have been posted in all turns so far, with the headers of their frames.
    pub fn wire_bytes(&self) -> usize {
        self.wire_bytes
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Adds up in rank order, then divides by the number of ranks.
    fn mean(posted: &[Vec<f32>]) -> Vec<f32> {
        let share = 1.0 / posted.len() as f32;
        let sum = |i: usize| posted.iter().fold(0.0, |sum: f32, one| sum + one[i]);
        (0..posted[0].len()).map(|i| sum(i) * share).collect()
    }

    /// One step of all ranks, which have `gradients` and, with feedback, `residuals`: these hold
    /// means and new residuals after it. `false` when a mean was not finite; nothing is committed
    /// then.
    pub(crate) fn step(
        reducers: &mut [Box<dyn Reducer>],
        number: u64,
        gradients: &mut [Vec<f32>],
        mut residuals: Option<&mut [Vec<f32>]>,
    ) -> Result<bool> {
        if let Some(residuals) = &mut residuals {
            for (gradient, residual) in gradients.iter_mut().zip(residuals.iter_mut()) {
                gradient.iter_mut().zip(residual.iter()).for_each(|(g, r)| *g += r);
                residual.copy_from_slice(gradient);
            }
        }
        let (mut average, mut messages) = (Vec::new(), Vec::new());
        for round in 0.. {
            let mut posted = vec![Vec::new(); reducers.len()];
            let mut gathered = Vec::new();
            let mut done = 0;
            for (rank, reducer) in reducers.iter_mut().enumerate() {
                let residual = residuals.as_mut().map(|residuals| residuals[rank].as_mut_slice());
                let mut bucket = BucketGradient::new(&mut gradients[rank], residual);
                let (mean, messages) = (average.clone(), messages.clone());
                let mut mail = Mail { mean, messages, ..Mail::default() };
                let (step, world_size) = (number, posted.len());
                let mut turn = Round { step, number: round, rank, world_size, mail: &mut mail };
                done += usize::from(reducer.reduce(&mut bucket, &mut turn)? == Next::Done);
                posted[rank] = mail.values;
                if mail.posts_bytes {
                    gathered.push(Payload::from(mail.bytes));
                }
            }
            messages = gathered;
            assert!(done == 0 || done == reducers.len(), "{done} ranks are done");
            if done > 0 {
                break;
            }
            average = mean(&posted);
            if average.iter().any(|value| !value.is_finite()) {
                return Ok(false);
            }
        }
        if gradients.iter().flatten().any(|value| !value.is_finite()) {
            return Ok(false);
        }
        reducers.iter_mut().for_each(|reducer| reducer.commit());
        Ok(true)
    }
}
