//! What is known about zeros: a side room. A caller may hand over a [`Gradient`] with a [`Support`]; the
//! exchange keeps it in its [`KnownZeros`], which are empty unless that happened, and asks them where they
//! can spare work: while it encodes, and while it writes the mean.

use std::ops::Range;

use crate::compress::SparseBlocks;
use crate::wire::{Frame, floats};
use crate::{Error, Result};

/// Elements that one bit stands for.
pub(crate) const BLOCK: usize = 64;

/// A part of a flat gradient, in blocks of 64 elements, outside of which it is all zeros.
///
/// A batch of text touches few rows of an embedding table; looking for them in the whole table costs
/// more than everything that is done with them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Support {
    length: usize,
    words: Vec<u64>,
}

impl Support {
    /// Nothing of a gradient of `length` elements.
    pub fn nothing(length: usize) -> Self {
        Self { length, words: vec![0; length.div_ceil(BLOCK).div_ceil(64)] }
    }

    /// Elements of the gradient.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the gradient has no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Makes it nothing.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Makes it everything.
    pub fn fill(&mut self) {
        self.add(0..self.length);
    }

    /// Whether it is everything.
    pub fn is_everything(&self) -> bool {
        let blocks: u32 = self.words.iter().map(|word| word.count_ones()).sum();
        blocks as usize == self.length.div_ceil(BLOCK)
    }

    /// Adds the blocks that these elements lie in.
    ///
    /// # Panics
    /// When they are not elements of the gradient.
    pub fn add(&mut self, elements: Range<usize>) {
        assert!(elements.end <= self.length, "{elements:?} of {}", self.length);
        if elements.is_empty() {
            return;
        }
        masks(elements).for_each(|(word, mask)| self.words[word] |= mask);
    }

    /// Adds all of another part of the same gradient.
    pub(crate) fn join(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, more)| *word |= more);
    }

    /// Whether any of these elements lies in it.
    ///
    /// # Panics
    /// As [`add`](Self::add).
    #[inline]
    pub fn meets(&self, elements: Range<usize>) -> bool {
        assert!(elements.end <= self.length, "{elements:?} of {}", self.length);
        !elements.is_empty() && masks(elements).any(|(word, mask)| self.words[word] & mask != 0)
    }

    /// A bit for each block, from the lowest.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }
}

/// The words that have bits for these elements, of which there are some, and those bits.
#[inline]
fn masks(elements: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let (first, last) = (elements.start / BLOCK, (elements.end - 1) / BLOCK);
    (first / 64..=last / 64).map(move |word| {
        let from = if word == first / 64 { first % 64 } else { 0 };
        let to = if word == last / 64 { last % 64 } else { 63 };
        (word, (u64::MAX << from) & (u64::MAX >> (63 - to)))
    })
}

/// A gradient that an exchange reads and overwrites by the mean, with what is known about zeros.
///
/// A slice or a vector of f32 turns into one by itself: `exchange.allreduce(step, &mut values)`.
#[derive(Debug)]
pub struct Gradient<'a> {
    pub(crate) values: &'a mut [f32],
    pub(crate) support: Option<&'a mut Support>,
}

impl<'a> Gradient<'a> {
    /// A gradient that is zero outside `support`, which the exchange overwrites by that of the
    /// mean.
    ///
    /// # Panics
    /// When `support` is of a gradient of another length.
    pub fn within(values: &'a mut [f32], support: &'a mut Support) -> Self {
        assert_eq!(support.len(), values.len(), "a support of another gradient");
        Self { values, support: Some(support) }
    }
}

impl<'a, T: AsMut<[f32]> + ?Sized> From<&'a mut T> for Gradient<'a> {
    fn from(values: &'a mut T) -> Self {
        Self { values: values.as_mut(), support: None }
    }
}

/// What is known about zeros in the step under way: nothing, unless the caller gave a support.
#[derive(Debug, Default)]
pub(crate) struct KnownZeros {
    known: bool,
    /// Outside of it this rank's own gradient is zero.
    given: Support,
    /// Outside of it the mean is zero, as far as it has been taken.
    mean: Support,
}

impl KnownZeros {
    /// Begins a step whose gradient has this support.
    pub(crate) fn begin(&mut self, support: Option<&Support>) {
        self.known = support.is_some();
        if let Some(support) = support {
            self.given.clone_from(support);
            self.mean.clone_from(support);
        }
    }

    /// This rank's gradient has been encoded: from now on the mean is written over it.
    pub(crate) fn encoded(&mut self) {
        self.mean.clear();
    }

    /// The support that the step leaves: of the mean, or of what a failed step left behind.
    pub(crate) fn end(&self, outcome: Result<(), &Error>, support: &mut Support) {
        match outcome {
            _ if !self.known => support.fill(),
            Ok(()) => support.clone_from(&self.mean),
            // Buckets hold the whole mean, or are as given.
            Err(Error::NonFinite { .. } | Error::Aborted { .. }) => support.join(&self.mean),
            Err(_) => support.fill(),
        }
    }

    /// A bit for each block of a bucket's gradient, if it is known and the bucket is the whole gradient.
    pub(crate) fn words(&self, range: &Range<usize>) -> Option<&[u64]> {
        (self.known && *range == (0..self.given.len())).then(|| self.given.words())
    }

    /// Whether all of these elements of this rank's gradient are known to be zero.
    pub(crate) fn are_all(&self, elements: Range<usize>) -> bool {
        self.known && !self.given.meets(elements)
    }

    /// Overwrites the gradient from `start` on by values of the mean; what is zero and stays so is not
    /// written.
    pub(crate) fn put(&mut self, start: usize, values: &[[u8; 4]], gradient: &mut [f32]) {
        if !self.known {
            return floats::copy(values, &mut gradient[start..]);
        }
        for (block, values) in values.chunks(BLOCK).enumerate() {
            let start = start + block * BLOCK;
            let elements = start..start + values.len();
            let zero = values.iter().fold(0, |any, value| any | u32::from_le_bytes(*value)) == 0;
            if !zero || self.given.meets(elements.clone()) {
                floats::copy(values, &mut gradient[elements.clone()]);
            }
            if !zero {
                self.mean.add(elements);
            }
        }
    }

    /// Notes where the mean of the elements `range` may be other than zero: in the blocks that messages
    /// spoke of, or everywhere.
    pub(crate) fn note(&mut self, range: &Range<usize>, touched: Option<&Touched>) {
        match touched.filter(|touched| touched.known) {
            _ if !self.known => {}
            None => self.mean.add(range.clone()),
            Some(touched) => touched.blocks().for_each(|block| {
                let start = range.start + block * BLOCK;
                self.mean.add(start..range.end.min(start + BLOCK));
            }),
        }
    }
}

/// The blocks of a bucket that some rank's last message spoke of, if messages are
/// [read by blocks](crate::Compressor::sparse_blocks): its mean is zero outside of them.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    words: Vec<u64>,
    /// Whether the last messages were read so.
    pub(crate) known: bool,
}

impl Touched {
    /// Room for a bucket of `length` elements.
    pub(crate) fn new(length: usize) -> Self {
        Self { words: vec![0; length.div_ceil(BLOCK).div_ceil(64)], known: false }
    }

    fn blocks(&self) -> impl Iterator<Item = usize> {
        self.words.iter().enumerate().flat_map(|(number, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(64 * number + bit)
            })
        })
    }

    /// Overwrites `mean`, which holds what this rank has encoded, by the mean of what the frames say:
    /// what is zero on all ranks is neither read nor written. Tells whether all of it is finite.
    pub(crate) fn mean<'a>(
        &mut self,
        (rank, world_size): (usize, usize),
        blame: impl Fn(usize, Error) -> Error,
        frames: impl Iterator<Item = &'a Frame<'a>> + Clone,
        decoder: &dyn SparseBlocks,
        mean: &mut [f32],
    ) -> Result<bool> {
        self.known = true;
        let length = mean.len();
        let block = |number: usize| number * BLOCK..length.min((number + 1) * BLOCK);
        let blame = |rank| {
            let blame = &blame;
            move |error| blame(rank, error)
        };
        if let Some(own) = frames.clone().nth(rank) {
            let clear = &mut |number| mean[block(number)].fill(0.0);
            decoder.each_block(own.payload, clear).map_err(blame(rank))?;
        }
        debug_assert!(
            mean.iter().all(|value| value.to_bits() == 0),
            "another gradient was encoded"
        );
        self.words.fill(0);
        let added = frames.enumerate().try_for_each(|(rank, frame)| {
            let mark = &mut |number: usize| self.words[number / 64] |= 1 << (number % 64);
            let marked = decoder.each_block(frame.payload, mark);
            let added = marked.and_then(|()| decoder.decode_add(frame.payload, 0, 1.0, mean));
            added.map_err(blame(rank))
        });
        let scale = 1.0 / world_size as f32;
        let scaled =
            |finite, number| finite & floats::scale_checked(&mut mean[block(number)], scale);
        let finite = self.blocks().fold(true, scaled);
        added.map(|()| finite)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn blocks_are_in_it_that_have_an_element_that_was_added(
            length in 1usize..20_000, ends in prop::collection::vec((0usize..20_000, 0usize..300), 0..6),
        ) {
            let mut support = Support::nothing(length);
            let mut naive = vec![false; length.div_ceil(BLOCK)];
            for (start, size) in ends {
                let range = start.min(length)..(start + size).min(length);
                support.add(range.clone());
                range.for_each(|element| naive[element / BLOCK] = true);
            }
            for (number, within) in naive.iter().enumerate() {
                let block = number * BLOCK..length.min((number + 1) * BLOCK);
                prop_assert_eq!(support.meets(block.clone()), *within);
                prop_assert_eq!(support.meets(block.start..block.start + 1), *within);
                prop_assert!(!support.meets(block.start..block.start));
            }
            prop_assert_eq!(support.meets(0..length), naive.contains(&true));
            prop_assert_eq!(support.is_everything(), !naive.contains(&false));
            let mut joined = Support::nothing(length);
            joined.join(&support);
            prop_assert_eq!(&joined, &support);
            support.fill();
            prop_assert!(support.is_everything());
            joined.join(&support);
            prop_assert_eq!(&joined, &support);
            prop_assert!((0..length).all(|element| support.meets(element..element + 1)));
            support.clear();
            prop_assert_eq!(support, Support::nothing(length));
        }
    }

    #[test]
    fn blocks_that_stay_zero_are_not_written_and_all_others_are() {
        let mut given = Support::nothing(6 * BLOCK);
        given.add(2 * BLOCK..2 * BLOCK + 1);
        let mut zeros = KnownZeros::default();
        zeros.begin(Some(&given));
        zeros.encoded();
        // A value outside of `given` shows where nothing was written.
        let mut flat = vec![7.0; 6 * BLOCK];
        let mut values = vec![[0; 4]; 4 * BLOCK];
        values[3 * BLOCK] = 5f32.to_le_bytes();
        zeros.put(32, &values, &mut flat);
        let mut support = Support::nothing(6 * BLOCK);
        zeros.end(Ok(()), &mut support);
        let element = 32 + 3 * BLOCK;
        assert_eq!(flat[element..element + BLOCK][..2], [5.0, 0.0]);
        assert!(support.meets(element..element + 1) && !support.meets(0..3 * BLOCK));
        assert_eq!(flat[32 + BLOCK..32 + 3 * BLOCK], [0.0; 2 * BLOCK]);
        let untouched = [&flat[..32 + BLOCK], &flat[32 + 4 * BLOCK..]].concat();
        assert!(untouched.iter().all(|value| *value == 7.0));
    }
}
