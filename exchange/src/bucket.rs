//! A bucket: parameters that are reduced as one, and what reduces them.

use std::ops::Range;

use crate::compress::{Built, Compressor};
use crate::layout::BucketRange;
use crate::reducer::{Mail, Reducer};
use crate::support::BLOCK;
use crate::wire::Kind;
use crate::{Gauge, Result, State, Support};

/// A bucket of one rank.
pub(crate) struct Bucket {
    /// Its elements in the flat gradient.
    pub(crate) range: Range<usize>,
    /// What its gradient is reduced by; plain f32 without one.
    pub(crate) engine: Engine,
    /// A bit for each block that some rank's last message may have something in, if messages can
    /// be read [by blocks](Compressor::sparse_blocks): the mean is zero outside of them.
    pub(crate) touched: Vec<u64>,
    /// Whether the last messages were read so.
    pub(crate) by_blocks: bool,
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
    pub(crate) fn new(place: &BucketRange, built: Built) -> Self {
        let range = place.range.clone();
        let mut engine = match built {
            _ if range.is_empty() => Engine::Plain,
            Built::Plain => Engine::Plain,
            Built::Codec(compressor) => Engine::Codec(compressor),
            Built::Reducer(reducer) => Engine::Rounds(reducer, Mail::default()),
        };
        let mut touched = Vec::new();
        if let Engine::Codec(compressor) = &mut engine
            && compressor.sparse_blocks().is_some()
        {
            touched = vec![0; range.len().div_ceil(BLOCK).div_ceil(64)];
        }
        Self { range, engine, touched, by_blocks: false }
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
    pub(crate) fn mail_mut(&mut self) -> Option<&mut Mail> {
        match &mut self.engine {
            Engine::Rounds(_, mail) => Some(mail),
            _ => None,
        }
    }

    /// The same, to encode with or to learn.
    pub(crate) fn codec_mut(&mut self) -> Option<&mut (dyn Compressor + 'static)> {
        match &mut self.engine {
            Engine::Codec(compressor) => Some(&mut **compressor),
            _ => None,
        }
    }

    /// The words of the flat gradient's support, if its elements are those of the flat gradient.
    pub(crate) fn words<'s>(&self, support: Option<&'s Support>, flat: usize) -> Option<&'s [u64]> {
        support.filter(|_| self.range == (0..flat)).map(Support::words)
    }

    /// Overwrites its elements from `start` on, in the flat gradient.
    pub(crate) fn put(&self, start: usize, values: &[[u8; 4]], gradient: &mut [f32]) {
        copy(values, &mut self.elements_mut(gradient)[start..]);
    }

    /// Overwrites its elements from `start` on, in the flat gradient, which is zero outside of
    /// `within`, and adds those that are not zero then to `support`. What is zero and stays so is
    /// not written.
    pub(crate) fn put_within(
        &self,
        start: usize,
        values: &[[u8; 4]],
        within: &Support,
        support: &mut Support,
        gradient: &mut [f32],
    ) {
        for (block, values) in values.chunks(BLOCK).enumerate() {
            let start = self.range.start + start + block * BLOCK;
            let elements = start..start + values.len();
            let zero = values.iter().fold(0, |any, value| any | u32::from_le_bytes(*value)) == 0;
            if !zero || within.meets(elements.clone()) {
                copy(values, &mut gradient[elements.clone()]);
            }
            if !zero {
                support.add(elements);
            }
        }
    }

    /// Adds the elements where its mean may be other than zero to `support`.
    pub(crate) fn note_touched(&self, support: &mut Support) {
        if !self.by_blocks {
            return support.add(self.range.clone());
        }
        for (word, bits) in self.touched.iter().enumerate() {
            let mut rest = *bits;
            while rest != 0 {
                let start = self.range.start + (64 * word + rest.trailing_zeros() as usize) * BLOCK;
                support.add(start..self.range.end.min(start + BLOCK));
                rest &= rest - 1;
            }
        }
    }

    /// What its compressor or reducer tells about the last step.
    pub(crate) fn gauges(&self) -> &[Gauge] {
        match &self.engine {
            Engine::Plain => &[],
            Engine::Codec(compressor) => compressor.gauges(),
            Engine::Rounds(reducer, _) => reducer.gauges(),
        }
    }

    /// Puts the entries of every compressor and reducer into `state`, under `bucket.N/`.
    pub(crate) fn save_all(buckets: &[Bucket], state: &mut State) {
        for (number, bucket) in buckets.iter().enumerate() {
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
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State) when it does not fit.
    pub(crate) fn restore_all(buckets: &mut [Bucket], state: &State) -> Result<()> {
        for (number, bucket) in buckets.iter_mut().enumerate() {
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

fn copy(from: &[[u8; 4]], to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = f32::from_le_bytes(*from));
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
    pub(crate) fn gradient(bucket: usize, of: &Bucket, plain: bool) -> Self {
        let plain = plain || of.is_plain();
        Self { bucket, length: of.length(), kind: Kind::Dense, round: 0, plain }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_stay_zero_are_not_written_and_all_others_are() {
        let place = BucketRange { parameters: 0..1, range: 32..5 * BLOCK, dense: false };
        let bucket = Bucket::new(&place, Built::Plain);
        let (mut within, mut support) = (Support::nothing(6 * BLOCK), Support::nothing(6 * BLOCK));
        within.add(2 * BLOCK..2 * BLOCK + 1);
        // A value outside of `within` shows where nothing was written.
        let mut flat = vec![7.0; 6 * BLOCK];
        let mut values = vec![[0; 4]; 4 * BLOCK];
        values[3 * BLOCK] = 5f32.to_le_bytes();
        bucket.put_within(0, &values, &within, &mut support, &mut flat);
        let element = 32 + 3 * BLOCK;
        assert_eq!(flat[element..element + BLOCK][..2], [5.0, 0.0]);
        assert!(support.meets(element..element + 1) && !support.meets(0..3 * BLOCK));
        assert_eq!(flat[32 + BLOCK..32 + 3 * BLOCK], [0.0; 2 * BLOCK]);
        let untouched = [&flat[..32 + BLOCK], &flat[32 + 4 * BLOCK..]].concat();
        assert!(untouched.iter().all(|value| *value == 7.0));
    }
}
