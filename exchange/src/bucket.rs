//! A bucket: parameters that are encoded as one, and the compressor that does it.

use std::ops::Range;

use crate::compress::Compressor;
use crate::layout::Part;
use crate::{Result, State};

/// A bucket of one rank.
pub(crate) struct Bucket {
    /// Where its elements lie in the flat gradient, in ascending order.
    pub(crate) ranges: Vec<Range<usize>>,
    /// Elements.
    pub(crate) length: usize,
    /// `None` when plain frames need no instance.
    pub(crate) compressor: Option<Box<dyn Compressor>>,
    /// A bit for each block that some rank's last message speaks of, if they can be read
    /// [by blocks](Compressor::by_blocks).
    pub(crate) spoken_of: Vec<u64>,
    /// Whether the last ones were read so: the mean is zero outside of them.
    pub(crate) by_blocks: bool,
    /// The elements end to end, when they do not lie so already.
    gathered: Vec<f32>,
}

impl Bucket {
    pub(crate) fn new(part: &Part, compressor: Option<Box<dyn Compressor>>) -> Self {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for range in &part.ranges {
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range.clone()),
            }
        }
        let length = part.length();
        let gathered = if ranges.len() == 1 { Vec::new() } else { vec![0.0; length] };
        let by_blocks = compressor.as_ref().and_then(|compressor| compressor.by_blocks());
        let words = by_blocks.map_or(0, |by| length.div_ceil(by.block()).div_ceil(64));
        Self { ranges, length, compressor, spoken_of: vec![0; words], by_blocks: false, gathered }
    }

    /// Its elements of `flat`, end to end, and the compressor.
    pub(crate) fn view<'a>(
        &'a mut self,
        flat: &'a [f32],
    ) -> (&'a [f32], Option<&'a mut Box<dyn Compressor>>) {
        let elements = match self.ranges.as_slice() {
            [range] => &flat[range.clone()],
            ranges => {
                gather(ranges, flat, &mut self.gathered);
                &self.gathered
            }
        };
        (elements, self.compressor.as_mut())
    }

    /// Lets `change` work on its elements of `flat`, end to end.
    pub(crate) fn change<R>(
        &mut self,
        flat: &mut [f32],
        change: impl FnOnce(&mut [f32], Option<&dyn Compressor>) -> R,
    ) -> R {
        let compressor = self.compressor.as_deref().map(|compressor| compressor as &dyn Compressor);
        match self.ranges.as_slice() {
            [range] => change(&mut flat[range.clone()], compressor),
            ranges => {
                gather(ranges, flat, &mut self.gathered);
                let result = change(&mut self.gathered, compressor);
                let mut rest = &self.gathered[..];
                for range in ranges {
                    let (elements, others) = rest.split_at(range.len());
                    flat[range.clone()].copy_from_slice(elements);
                    rest = others;
                }
                result
            }
        }
    }

    /// Whether its elements are those of `flat`, all of them.
    pub(crate) fn is_all_of(&self, flat: &[f32]) -> bool {
        matches!(self.ranges.as_slice(), [range] if *range == (0..flat.len()))
    }

    /// What reads messages about it; `None` when there are only plain ones.
    pub(crate) fn decoder(&self) -> Option<&dyn Compressor> {
        self.compressor.as_deref().map(|compressor| compressor as &dyn Compressor)
    }

    /// Overwrites its elements from `start` on in `flat`.
    pub(crate) fn put(&self, start: usize, values: &[[u8; 4]], flat: &mut [f32]) {
        let (mut skip, mut values) = (start, values);
        for range in &self.ranges {
            if skip >= range.len() {
                skip -= range.len();
                continue;
            }
            let elements = &mut flat[range.start + skip..range.end];
            skip = 0;
            let (some, rest) = values.split_at(values.len().min(elements.len()));
            for (element, value) in elements.iter_mut().zip(some) {
                *element = f32::from_le_bytes(*value);
            }
            values = rest;
        }
    }

    /// Puts every compressor's entries into `state`, under `bucket.N/`.
    pub(crate) fn save_all(buckets: &[Bucket], state: &mut State) {
        for (number, bucket) in buckets.iter().enumerate() {
            if let Some(compressor) = &bucket.compressor {
                let mut inner = State::default();
                compressor.save(&mut inner);
                state.insert_scope(&format!("bucket.{number}"), inner);
            }
        }
    }

    /// Takes up what [`save_all`](Self::save_all) put there.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State) when it does not fit.
    pub(crate) fn restore_all(buckets: &mut [Bucket], state: &State) -> Result<()> {
        for (number, bucket) in buckets.iter_mut().enumerate() {
            if let Some(compressor) = &mut bucket.compressor {
                compressor.restore(&state.scope(&format!("bucket.{number}")))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_elements_are_seen_and_changed_end_to_end() {
        let part = Part { ranges: vec![1..2, 2..3, 5..7], dense: false };
        let mut bucket = Bucket::new(&part, None);
        assert_eq!(bucket.ranges, [1..3, 5..7]);
        let mut flat: Vec<f32> = (0..8).map(|i| i as f32).collect();
        assert_eq!(bucket.view(&flat).0, [1.0, 2.0, 5.0, 6.0]);
        bucket.change(&mut flat, |elements, _| elements.iter_mut().for_each(|e| *e = -*e));
        assert_eq!(flat, [0.0, -1.0, -2.0, 3.0, 4.0, -5.0, -6.0, 7.0]);
        bucket.put(1, &[20f32, 50.0, 60.0].map(f32::to_le_bytes), &mut flat);
        assert_eq!(flat, [0.0, -1.0, 20.0, 3.0, 4.0, 50.0, 60.0, 7.0]);
        assert_eq!([0, 1, 2, 3].map(|element| bucket.position(element)), [1, 2, 5, 6]);
    }
}
