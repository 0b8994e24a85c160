//! A bucket: parameters that are reduced as one, and what reduces them.

use std::ops::Range;

use crate::compress::{Built, Compressor};
use crate::gradient::{Held, Seen};
use crate::layout::Part;
use crate::reducer::{Mail, Reducer};
use crate::support::BLOCK;
use crate::wire::Kind;
use crate::{Gauge, Result, State, Support};

/// A bucket of one rank.
pub(crate) struct Bucket {
    /// Where its elements lie in the flat gradient, in ascending order.
    pub(crate) ranges: Vec<Range<usize>>,
    /// Elements.
    pub(crate) length: usize,
    /// What its gradient is reduced by; plain f32 without one.
    pub(crate) engine: Engine,
    /// A bit for each block that some rank's last message may have something in, if messages can
    /// be read as [sparse blocks](Compressor::sparse_blocks): the mean is zero outside of them.
    pub(crate) touched: Vec<u64>,
    /// Whether the last messages were read so.
    pub(crate) by_blocks: bool,
    /// The elements end to end, when they do not lie so already.
    gathered: Vec<f32>,
    /// The same of the residual, for a reducer.
    unsent: Vec<f32>,
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
    pub(crate) fn new(part: &Part, built: Built) -> Self {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for range in &part.ranges {
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range.clone()),
            }
        }
        let length = part.length();
        let scattered = ranges.len() != 1;
        let engine = match built {
            _ if length == 0 => Engine::Plain,
            Built::Plain => Engine::Plain,
            Built::Codec(compressor) => Engine::Codec(compressor),
            Built::Reducer(reducer) => Engine::Rounds(reducer, Mail::default()),
        };
        let mut bucket = Self {
            ranges,
            length,
            engine,
            touched: Vec::new(),
            by_blocks: false,
            gathered: if scattered { vec![0.0; length] } else { Vec::new() },
            unsent: Vec::new(),
        };
        if let Engine::Codec(compressor) = &mut bucket.engine
            && compressor.sparse_blocks().is_some()
        {
            bucket.touched = vec![0; length.div_ceil(BLOCK).div_ceil(64)];
        }
        bucket
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

    /// Its elements, end to end, and its compressor.
    pub(crate) fn view<'a>(
        &'a mut self,
        from: Seen<'a>,
    ) -> (&'a [f32], Option<&'a mut Box<dyn Compressor>>) {
        let elements = match self.ranges.as_slice() {
            _ if from.one => from.values,
            [range] => &from.values[range.clone()],
            ranges => {
                gather(ranges, from.values, &mut self.gathered);
                &self.gathered
            }
        };
        let compressor = match &mut self.engine {
            Engine::Codec(compressor) => Some(compressor),
            _ => None,
        };
        (elements, compressor)
    }

    /// Lets `change` work on its elements, end to end.
    pub(crate) fn change<R>(
        &mut self,
        held: &mut Held<'_>,
        change: impl FnOnce(&mut [f32], Option<&mut dyn Compressor>) -> R,
    ) -> R {
        let compressor: Option<&mut dyn Compressor> = match &mut self.engine {
            Engine::Codec(compressor) => Some(&mut **compressor),
            _ => None,
        };
        match self.ranges.as_slice() {
            _ if held.one => change(held.values, compressor),
            [range] => change(&mut held.values[range.clone()], compressor),
            ranges => {
                gather(ranges, held.values, &mut self.gathered);
                let result = change(&mut self.gathered, compressor);
                scatter(ranges, &self.gathered, held.values);
                result
            }
        }
    }

    /// Lets its reducer work on its elements, end to end, with those of `residual` in the flat
    /// layout; `None` without a reducer.
    pub(crate) fn reduce<R>(
        &mut self,
        held: &mut Held<'_>,
        residual: Option<&mut [f32]>,
        reduce: impl FnOnce(&mut dyn Reducer, &mut Mail, &mut [f32], Option<&mut [f32]>) -> R,
    ) -> Option<R> {
        let Engine::Rounds(reducer, mail) = &mut self.engine else { return None };
        let ranges = self.ranges.as_slice();
        if let [range] = ranges {
            let values = if held.one { &mut *held.values } else { &mut held.values[range.clone()] };
            let residual = residual.map(|residual| &mut residual[range.clone()]);
            return Some(reduce(&mut **reducer, mail, values, residual));
        }
        let values = if held.one {
            &mut *held.values
        } else {
            gather(ranges, held.values, &mut self.gathered);
            &mut self.gathered
        };
        let result = match residual {
            None => reduce(&mut **reducer, mail, values, None),
            Some(residual) => {
                gather(ranges, residual, &mut self.unsent);
                let result = reduce(&mut **reducer, mail, values, Some(&mut self.unsent));
                scatter(ranges, &self.unsent, residual);
                result
            }
        };
        if !held.one {
            scatter(ranges, &self.gathered, held.values);
        }
        Some(result)
    }

    /// The words of the flat gradient's support, if its elements are those of the flat gradient.
    pub(crate) fn words<'s>(&self, support: Option<&'s Support>, flat: usize) -> Option<&'s [u64]> {
        let whole = matches!(self.ranges.as_slice(), [range] if *range == (0..flat));
        support.filter(|_| whole).map(Support::words)
    }

    /// Overwrites its elements from `start` on.
    pub(crate) fn put(&self, start: usize, values: &[[u8; 4]], held: &mut Held<'_>) {
        if held.one {
            return copy(values, &mut held.values[start..]);
        }
        let (mut skip, mut values) = (start, values);
        for range in &self.ranges {
            if skip >= range.len() {
                skip -= range.len();
                continue;
            }
            let elements = &mut held.values[range.start + skip..range.end];
            skip = 0;
            let (some, rest) = values.split_at(values.len().min(elements.len()));
            copy(some, elements);
            values = rest;
        }
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
        held: &mut Held<'_>,
    ) {
        let [range] = self.ranges.as_slice() else {
            self.put(start, values, held);
            return self.note_all(support);
        };
        for (block, values) in values.chunks(BLOCK).enumerate() {
            let start = range.start + start + block * BLOCK;
            let elements = start..start + values.len();
            let zero = values.iter().fold(0, |any, value| any | u32::from_le_bytes(*value)) == 0;
            if !zero || within.meets(elements.clone()) {
                copy(values, &mut held.values[elements.clone()]);
            }
            if !zero {
                support.add(elements);
            }
        }
    }

    /// Adds all of its elements to `support`.
    pub(crate) fn note_all(&self, support: &mut Support) {
        self.ranges.iter().for_each(|range| support.add(range.clone()));
    }

    /// Adds the elements where its mean may be other than zero to `support`.
    pub(crate) fn note_touched(&self, support: &mut Support) {
        let ([range], true) = (self.ranges.as_slice(), self.by_blocks) else {
            return self.note_all(support);
        };
        for (word, bits) in self.touched.iter().enumerate() {
            let mut rest = *bits;
            while rest != 0 {
                let start = range.start + (64 * word + rest.trailing_zeros() as usize) * BLOCK;
                support.add(start..range.end.min(start + BLOCK));
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

    /// The position in the flat gradient of an element.
    pub(crate) fn position(&self, element: usize) -> usize {
        let mut before = 0;
        for range in &self.ranges {
            if element < before + range.len() {
                return range.start + element - before;
            }
            before += range.len();
        }
        unreachable!("invariant: element {element} lies in a bucket of {}", self.length)
    }
}

fn gather(ranges: &[Range<usize>], flat: &[f32], into: &mut Vec<f32>) {
    into.clear();
    ranges.iter().for_each(|range| into.extend_from_slice(&flat[range.clone()]));
}

fn scatter(ranges: &[Range<usize>], mut gathered: &[f32], flat: &mut [f32]) {
    for range in ranges {
        let (elements, rest) = gathered.split_at(range.len());
        flat[range.clone()].copy_from_slice(elements);
        gathered = rest;
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
        Self { bucket, length: of.length, kind: Kind::Dense, round: 0, plain }
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
    fn scattered_elements_are_seen_and_changed_end_to_end() {
        let shapes = vec![vec![1], vec![1], vec![2]];
        let part = Part { ranges: vec![1..2, 2..3, 5..7], shapes, dense: false };
        let mut bucket = Bucket::new(&part, Built::Plain);
        assert_eq!(bucket.ranges, [1..3, 5..7]);
        let mut flat: Vec<f32> = (0..8).map(|i| i as f32).collect();
        assert_eq!(bucket.view(Seen::flat(&flat)).0, [1.0, 2.0, 5.0, 6.0]);
        let mut held = Held::flat(&mut flat);
        bucket.change(&mut held, |elements, _| elements.iter_mut().for_each(|e| *e = -*e));
        assert_eq!(held.values, [0.0, -1.0, -2.0, 3.0, 4.0, -5.0, -6.0, 7.0]);
        bucket.put(1, &[20f32, 50.0, 60.0].map(f32::to_le_bytes), &mut held);
        assert_eq!(flat, [0.0, -1.0, 20.0, 3.0, 4.0, 50.0, 60.0, 7.0]);
        assert_eq!([0, 1, 2, 3].map(|element| bucket.position(element)), [1, 2, 5, 6]);
    }

    #[test]
    fn blocks_that_stay_zero_are_not_written_and_all_others_are() {
        let range = 32..5 * BLOCK;
        let part = Part { ranges: vec![range], shapes: vec![vec![288]], dense: false };
        let bucket = Bucket::new(&part, Built::Plain);
        let (mut within, mut support) = (Support::nothing(6 * BLOCK), Support::nothing(6 * BLOCK));
        within.add(2 * BLOCK..2 * BLOCK + 1);
        // A value outside of `within` shows where nothing was written.
        let mut flat = vec![7.0; 6 * BLOCK];
        let mut values = vec![[0; 4]; 4 * BLOCK];
        values[3 * BLOCK] = 5f32.to_le_bytes();
        bucket.put_within(0, &values, &within, &mut support, &mut Held::flat(&mut flat));
        let element = 32 + 3 * BLOCK;
        assert_eq!(flat[element..element + BLOCK][..2], [5.0, 0.0]);
        assert!(support.meets(element..element + 1) && !support.meets(0..3 * BLOCK));
        assert_eq!(flat[32 + BLOCK..32 + 3 * BLOCK], [0.0; 2 * BLOCK]);
        let untouched = [&flat[..32 + BLOCK], &flat[32 + 4 * BLOCK..]].concat();
        assert!(untouched.iter().all(|value| *value == 7.0));
    }

    #[test]
    fn one_buckets_elements_are_where_they_are_handed_over() {
        let part = Part { ranges: vec![1..3, 5..7], shapes: vec![vec![2]; 2], dense: false };
        let mut bucket = Bucket::new(&part, Built::Plain);
        let mut values = [1.0, 2.0, 5.0, 6.0];
        let mut held = Held { values: &mut values, one: true };
        assert_eq!(bucket.view(held.seen()).0, [1.0, 2.0, 5.0, 6.0]);
        bucket.change(&mut held, |elements, _| elements[2] = -5.0);
        bucket.put(3, &[60f32.to_le_bytes()], &mut held);
        assert_eq!(values, [1.0, 2.0, -5.0, 60.0]);
    }
}
