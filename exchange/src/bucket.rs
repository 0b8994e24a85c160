//! A bucket: parameters that are reduced as one, and what reduces them.

use std::ops::Range;

use crate::compress::{Built, Compressor, Feedback};
use crate::layout::BucketRange;
use crate::reducer::{Mail, Reducer};
use crate::wire::Kind;
use crate::zeros::Touched;
use crate::{Gauge, Result, State};

/// A bucket of one rank.
pub(crate) struct Bucket {
    /// Its elements in the flat gradient.
    pub(crate) range: Range<usize>,
    /// What its gradient is reduced by; plain f32 without one.
    pub(crate) engine: Engine,
    /// What its last messages spoke of, if they can be read by blocks.
    pub(crate) touched: Option<Touched>,
    /// Whether what it leaves unsent is kept as its residual, where the exchange keeps one; else it is dropped.
    pub(crate) feeds_back: bool,
}

/// What reduces a bucket.
pub(crate) enum Engine {
    /// Nothing: the values travel as f32.
    Plain,
    /// One message of every rank.
    Codec(Box<dyn Compressor>),
    /// Any number of rounds, with what was posted in them.
    Rounds(Box<dyn Reducer>, Mail),
}

impl Bucket {
    pub(crate) fn new(place: &BucketRange, built: Built, feeds_back: bool) -> Self {
        let range = place.range.clone();
        let mut engine = match built {
            _ if range.is_empty() => Engine::Plain,
            Built::Plain => Engine::Plain,
            Built::Codec(compressor) => Engine::Codec(compressor),
            Built::Reducer(reducer) => Engine::Rounds(reducer, Mail::default()),
        };
        let by_blocks = match &mut engine {
            Engine::Codec(compressor) => compressor.sparse_blocks().is_some(),
            _ => false,
        };
        let touched = by_blocks.then(|| Touched::new(range.len()));
        Self { range, engine, touched, feeds_back }
    }

    /// Elements.
    pub(crate) fn length(&self) -> usize {
        self.range.len()
    }

    /// Its elements of a flat vector.
    pub(crate) fn elements<'a>(&self, flat: &'a [f32]) -> &'a [f32] {
        &flat[self.range.clone()]
    }

    /// Its elements of a flat vector, to be changed.
    pub(crate) fn elements_mut<'a>(&self, flat: &'a mut [f32]) -> &'a mut [f32] {
        &mut flat[self.range.clone()]
    }

    /// What encodes and decodes it, if that is one message.
    pub(crate) fn codec(&self) -> Option<&dyn Compressor> {
        match &self.engine {
            Engine::Codec(compressor) => Some(&**compressor),
            _ => None,
        }
    }

    /// Whether its values travel as f32 at every step.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.engine, Engine::Plain)
    }

    /// What its reducer posted and received, if it has one.
    pub(crate) fn mail(&self) -> Option<&Mail> {
        match &self.engine {
            Engine::Rounds(_, mail) => Some(mail),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub(crate) fn mail_mut(&mut self) -> Option<&mut Mail> {
        match &mut self.engine {
            Engine::Rounds(_, mail) => Some(mail),
            _ => None,
        }
    }

    /// The same as [`codec`](Self::codec), to encode with or to learn.
    pub(crate) fn codec_mut(&mut self) -> Option<&mut (dyn Compressor + 'static)> {
        match &mut self.engine {
            Engine::Codec(compressor) => Some(&mut **compressor),
            _ => None,
        }
    }

    /// Where the mean of what its reducer posted goes: so many zeros.
    pub(crate) fn posted_mean(&mut self, length: usize) -> &mut [f32] {
        let mail = self.mail_mut().expect("invariant: values are posted by a reducer");
        mail.mean.clear();
        mail.mean.resize(length, 0.0);
        &mut mail.mean
    }

    /// What its compressor or reducer tells about the last step.
    pub(crate) fn gauges(&self) -> &[Gauge] {
        match &self.engine {
            Engine::Plain => &[],
            Engine::Codec(compressor) => compressor.gauges(),
            Engine::Rounds(reducer, _) => reducer.gauges(),
        }
    }

    /// Ends a step's feedback: what buckets that feed back have left unsent is their residual now, and what others
    /// have is dropped.
    pub(crate) fn keep_unsent(buckets: &[Bucket], feedback: &mut Feedback) {
        for bucket in buckets.iter().filter(|bucket| !bucket.feeds_back) {
            bucket.elements_mut(feedback.due_mut()).fill(0.0);
        }
        feedback.commit();
    }

    /// Puts the entries of every compressor and reducer of those that are `owned` into `state`, under
    /// `bucket.N/`.
    pub(crate) fn save_all(buckets: &[Bucket], owned: &[bool], state: &mut State) {
        for (number, bucket) in buckets.iter().enumerate().filter(|(number, _)| owned[*number]) {
            let mut inner = State::default();
            match &bucket.engine {
                Engine::Plain => continue,
                Engine::Codec(compressor) => compressor.save(&mut inner),
                Engine::Rounds(reducer, _) => reducer.save(&mut inner),
            }
            state.insert_scope(&format!("bucket.{number}"), inner);
        }
    }

    /// Takes up what [`save_all`](Self::save_all) put there.
    pub(crate) fn restore_all(buckets: &mut [Bucket], owned: &[bool], state: &State) -> Result<()> {
        for (number, bucket) in buckets.iter_mut().enumerate().filter(|(number, _)| owned[*number])
        {
            let inner = || state.scope(&format!("bucket.{number}"));
            match &mut bucket.engine {
                Engine::Plain => {}
                Engine::Codec(compressor) => compressor.restore(&inner())?,
                Engine::Rounds(reducer, _) => reducer.restore(&inner())?,
            }
        }
        Ok(())
    }
}

/// What one frame of a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) bucket: usize,
    /// Elements.
    pub(crate) length: usize,
    /// `Dense` for a bucket's gradient in whatever form, `Values` for what its reducer posted.
    pub(crate) kind: Kind,
    /// The round of the step.
    pub(crate) round: u8,
    /// Whether every rank sends plain f32.
    pub(crate) plain: bool,
}

impl Item {
    /// A bucket's gradient.
    pub(crate) fn gradient(bucket: usize, held: &Bucket, plain: bool) -> Self {
        let plain = plain || held.is_plain();
        Self { bucket, length: held.length(), kind: Kind::Dense, round: 0, plain }
    }

    /// What a bucket's reducer posted in a round.
    pub(crate) fn values(bucket: usize, length: usize, round: u8) -> Self {
        Self { bucket, length, kind: Kind::Values, round, plain: true }
    }

    /// Bytes that a bucket's reducer posted in a round.
    pub(crate) fn bytes(bucket: usize, round: u8) -> Self {
        Self { bucket, length: 0, kind: Kind::Bytes, round, plain: true }
    }

    /// What reads messages about it; `None` when there are only plain ones.
    pub(crate) fn decoder(self, buckets: &[Bucket]) -> Option<&dyn Compressor> {
        buckets[self.bucket].codec().filter(|_| !self.plain)
    }
}
