//! The elements above a threshold, and then those of them above a higher one.

use crate::Gauge;
use crate::compress::moments;
use crate::simd::wide;

/// Elements gathered at once: their positions and magnitudes stay in the nearest cache.
const BLOCK: usize = 1024;

/// Elements compared at once: one bit of a word each.
const LINE: usize = 32;

/// The largest f32 that is not above `threshold`: f32 numbers are above the one when they are
/// above the other.
pub(crate) fn rounded_down(threshold: f64) -> f32 {
    let near = threshold as f32;
    if f64::from(near) > threshold { near.next_down() } else { near }
}

/// How many magnitudes are above `threshold`.
pub(crate) fn count_above(values: &[f32], threshold: f32) -> usize {
    let count = |block: &[f32]| {
        block.iter().fold(0u32, |count, value| count + u32::from(value.abs() > threshold)) as usize
    };
    wide!(values.chunks(1 << 16).map(count).sum())
}

/// Keeps the numbers above `threshold`, in their order.
pub(crate) fn keep_above(values: &mut Vec<f32>, threshold: f32) {
    let mut kept = 0;
    for at in 0..values.len() {
        let value = values[at];
        values[kept] = value;
        kept += usize::from(value > threshold);
    }
    values.truncate(kept);
}

/// Elements written at once, the last of them perhaps for nothing: fewer branches to guess.
const GROUP: usize = 4;

/// Which of a line's magnitudes are above `threshold`, the first in the lowest bit.
#[inline(always)]
fn above(values: &[f32; LINE], threshold: f32) -> u32 {
    let mut bits = 0;
    for (within, value) in values.iter().enumerate() {
        bits |= if value.abs() > threshold { 1 << within } else { 0 };
    }
    bits
}

/// Elements whose magnitude is above a threshold, in ascending order of position.
#[derive(Debug, Clone)]
pub(crate) struct Exceedances {
    positions: Vec<u32>,
    magnitudes: Vec<f32>,
}

impl Exceedances {
    /// With memory for all of `length` elements: only what is ever gathered is really touched.
    pub(crate) fn new(length: usize) -> Self {
        Self { positions: Vec::with_capacity(length), magnitudes: Vec::with_capacity(length) }
    }

    /// Gathers the elements of `values` that are above `threshold` (strictly), which is not
    /// negative. The simple form: `if |values[i]| > threshold { push(i, |values[i]|) }`. Here a line
    /// is compared at once, and only the bits that are set are gone through.
    pub(crate) fn gather(&mut self, values: &[f32], threshold: f32) {
        self.positions.clear();
        self.magnitudes.clear();
        wide!({
            // Some more, which are written to and not kept.
            let (mut positions, mut magnitudes) = ([0u32; BLOCK + GROUP], [0f32; BLOCK + GROUP]);
            for (number, block) in values.chunks(BLOCK).enumerate() {
                let mut count = 0;
                let mut take = |start: usize, values: &[f32; LINE], mut above: u32| {
                    let mut at = count;
                    count += above.count_ones() as usize;
                    while above != 0 {
                        for _ in 0..GROUP {
                            let within = above.trailing_zeros() as usize % LINE;
                            positions[at] = (start + within) as u32;
                            magnitudes[at] = values[within].abs();
                            at += 1;
                            above &= above.wrapping_sub(1);
                        }
                    }
                };
                let (lines, rest) = block.as_chunks::<LINE>();
                for (line, values) in lines.iter().enumerate() {
                    take(number * BLOCK + line * LINE, values, above(values, threshold));
                }
                let mut end = [0.0; LINE];
                end[..rest.len()].copy_from_slice(rest);
                take(number * BLOCK + lines.len() * LINE, &end, above(&end, threshold));
                self.positions.extend_from_slice(&positions[..count]);
                self.magnitudes.extend_from_slice(&magnitudes[..count]);
            }
        });
    }

    /// Keeps those that are above a higher threshold too.
    pub(crate) fn raise(&mut self, threshold: f32) {
        let mut kept = 0;
        for at in 0..self.positions.len() {
            let (position, magnitude) = (self.positions[at], self.magnitudes[at]);
            self.positions[kept] = position;
            self.magnitudes[kept] = magnitude;
            kept += usize::from(magnitude > threshold);
        }
        self.positions.truncate(kept);
        self.magnitudes.truncate(kept);
    }

    /// Where nothing is above the threshold: the single largest element, the first of equals,
    /// unless all are zero.
    pub(crate) fn or_largest(&mut self, values: &[f32]) {
        if !self.positions.is_empty() {
            return;
        }
        let most = moments::largest(values);
        if most > 0.0 {
            let position = values.iter().position(|value| value.abs() == most);
            self.positions.extend(position.map(|position| position as u32));
            self.magnitudes.extend(position.map(|_| most));
        }
    }

    /// How many there are, as a multiple of the `k` that were wanted.
    pub(crate) fn kept_ratio(&self, k: usize) -> Gauge {
        Gauge::mean("kept_ratio", self.positions.len() as f64 / k as f64, k as f64)
    }

    /// Positions, ascending.
    pub(crate) fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// Magnitudes, in the order of positions.
    pub(crate) fn magnitudes(&self) -> &[f32] {
        &self.magnitudes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_above_thresholds_is_found(
            values in proptest::collection::vec(-2.0f32..2.0, 0..3000),
            low in 0.0f32..2.0,
            high in 0.0f32..2.0,
        ) {
            let (low, high) = (low.min(high), low.max(high));
            let above = |threshold: f32| -> Vec<u32> {
                (0..values.len() as u32).filter(|i| values[*i as usize].abs() > threshold).collect()
            };
            let mut found = Exceedances::new(0);
            found.gather(&values, low);
            prop_assert_eq!(found.positions(), above(low));
            prop_assert_eq!(count_above(&values, low), above(low).len());
            let mut left = found.magnitudes().to_vec();
            keep_above(&mut left, high);
            found.raise(high);
            prop_assert_eq!(found.magnitudes(), &left[..]);
            prop_assert_eq!(found.positions(), above(high));
            let magnitudes: Vec<f32> =
                found.positions().iter().map(|i| values[*i as usize].abs()).collect();
            prop_assert_eq!(found.magnitudes(), magnitudes);
        }
    }

    #[test]
    fn the_largest_stands_in_for_nothing() {
        let mut found = Exceedances::new(0);
        found.gather(&[1.0, -2.0, 2.0], 5.0);
        found.or_largest(&[1.0, -2.0, 2.0]);
        assert_eq!((found.positions(), found.magnitudes()), (&[1][..], &[2.0][..]));
        found.gather(&[0.0; 3], 0.0);
        found.or_largest(&[0.0; 3]);
        assert!(found.positions().is_empty());
        assert_eq!(rounded_down(1e300), f32::MAX);
        assert_eq!(rounded_down(0.0), 0.0);
    }
}
