//! Selected values as a sign and one of two magnitudes each (`values = "2bit"`).
//!
//! # Paper
//! Sarfi, Thérien, Lidin & Belilovsky 2025 ("Communication Efficient LLM Pre-training with
//! SparseLoCo", arXiv 2508.15706), section 3: 2-bit values of a chunk's top-k.
//!
//! # Wire
//! For each 64 values in order of position, and what is left of them at the end:
//!
//! | bytes | what |
//! |---|---|
//! | 2, 2 | the two magnitudes, bf16, the smaller first |
//! | ⌈values/4⌉ | two bits each: whether it is of the larger magnitude, then its sign |
//!
//! # Where we differ
//! The paper's code has one table of four numbers for each tensor: bins 1.5 standard deviations wide
//! around the mean of its values, which the largest of a chunk leave half empty, and the mean of each
//! bin. Here the two magnitudes of each 64 values are those that leave least of them: of all ways
//! to divide the values by magnitude in two, the one whose means are nearest to them. They belong to so many values
//! and not to a chunk, so that every sparsifier can have them, whatever a chunk keeps.

use half::bf16;

use crate::wire::{Fault, Format, Read, Reader};

/// Values that share two magnitudes.
pub(super) const BLOCK: usize = 64;

/// Bytes of the two magnitudes.
const MAGNITUDES: usize = 4;

/// Bytes of a whole block.
const BLOCK_BYTES: usize = MAGNITUDES + BLOCK / 4;

/// Appends values; `kept` is memory.
pub(super) fn put(values: impl Iterator<Item = f32>, kept: &mut Vec<f32>, out: &mut Vec<u8>) {
    kept.clear();
    for value in values {
        kept.push(value);
        if kept.len() == BLOCK {
            put_block(kept, out);
            kept.clear();
        }
    }
    if !kept.is_empty() {
        put_block(kept, out);
    }
}

fn put_block(values: &[f32], out: &mut Vec<u8>) {
    let (magnitudes, least_large) = divide(values);
    Format::Bf16.put(magnitudes.into_iter(), out);
    out.extend(values.chunks(4).map(|four| {
        let code = |value: &f32| {
            u8::from(value.abs() >= least_large) | u8::from(value.is_sign_negative()) << 1
        };
        four.iter().rev().fold(0, |byte, value| byte << 2 | code(value))
    }));
}

/// The means of the smaller and of the larger magnitudes, and the least of the larger, in the division
/// that leaves least: Σ nᵢcᵢ² is largest. The smaller are none where all are equal.
fn divide(values: &[f32]) -> ([f32; 2], f32) {
    let mut sorted = [0.0; BLOCK];
    let sorted = &mut sorted[..values.len()];
    sorted.iter_mut().zip(values).for_each(|(magnitude, value)| *magnitude = value.abs());
    sorted.sort_unstable_by(f32::total_cmp);
    let total: f64 = sorted.iter().map(|magnitude| f64::from(*magnitude)).sum();
    let mean = |sum: f64, count: usize| if count == 0 { 0.0 } else { sum / count as f64 };
    let (mut below, mut best) = (0.0, (f64::NEG_INFINITY, [0.0; 2], 0.0));
    for small in 0..sorted.len() {
        if small == 0 || sorted[small - 1] < sorted[small] {
            let large = sorted.len() - small;
            let means = [mean(below, small), mean(total - below, large)];
            let covered = means[0] * below + means[1] * (total - below);
            if covered > best.0 {
                best = (covered, means.map(|mean| mean as f32), sorted[small]);
            }
        }
        below += f64::from(sorted[small]);
    }
    (best.1, best.2)
}

/// Values of a message, read one after another.
#[derive(Debug)]
pub(crate) struct TwoBits<'a> {
    bytes: &'a [u8],
    at: usize,
    count: usize,
}

impl<'a> TwoBits<'a> {
    /// Takes `count` values, and checks their magnitudes.
    pub(super) fn take(reader: &mut Reader<'a>, count: usize) -> Read<Self> {
        let bytes = reader.take(MAGNITUDES * count.div_ceil(BLOCK) + count.div_ceil(4))?;
        for block in bytes.chunks(BLOCK_BYTES) {
            let [small, large] = magnitudes(block);
            let good = |magnitude: f32| (0.0..=f32::MAX).contains(&magnitude);
            if !(good(small) && good(large) && small <= large) {
                return Err(Fault::Field { field: "magnitude", found: large.to_bits().into() });
            }
        }
        let unused = bytes.last().map_or(0, |last| u32::from(*last) >> (2 * (count % 4)));
        if !count.is_multiple_of(4) && unused != 0 {
            return Err(Fault::Field { field: "padding", found: unused.into() });
        }
        Ok(Self { bytes, at: 0, count })
    }
}

impl Iterator for TwoBits<'_> {
    type Item = f32;

    fn next(&mut self) -> Option<f32> {
        let (block, within) = (self.at / BLOCK, self.at % BLOCK);
        let block = self.bytes.get(block * BLOCK_BYTES..).filter(|_| self.at < self.count)?;
        self.at += 1;
        let code = block.get(MAGNITUDES + within / 4)? >> (2 * (within % 4)) & 3;
        let magnitude = magnitudes(block)[usize::from(code & 1)];
        Some(if code & 2 == 0 { magnitude } else { -magnitude })
    }
}

/// The magnitudes that a block begins with; NaN where it is too short.
fn magnitudes(block: &[u8]) -> [f32; 2] {
    let both = block.first_chunk::<MAGNITUDES>().map_or([0xff; MAGNITUDES], |bytes| *bytes);
    let [small, small_high, large, large_high] = both;
    [[small, small_high], [large, large_high]].map(|bytes| bf16::from_le_bytes(bytes).to_f32())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sent(values: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let mut bytes = Vec::new();
        put(values.iter().copied(), &mut Vec::new(), &mut bytes);
        let mut reader = Reader::new(&bytes);
        let arrived = TwoBits::take(&mut reader, values.len()).unwrap().collect();
        reader.finish().unwrap();
        (bytes, arrived)
    }

    /// What two magnitudes leave of values.
    fn left(values: &[f32], magnitudes: [f64; 2]) -> f64 {
        let off = |value: &f32, magnitude: f64| (f64::from(value.abs()) - magnitude).powi(2);
        values.iter().map(|v| off(v, magnitudes[0]).min(off(v, magnitudes[1]))).sum()
    }

    #[test]
    fn bytes_are_as_the_table_says() {
        // 1 and 1.5 arrive as 1.25, the others as 23/3 in bf16.
        let (bytes, arrived) = sent(&[1.0, -8.0, 7.0, -1.5, 8.0]);
        assert_eq!(bytes, [0xa0, 0x3f, 0xf5, 0x40, 0b1001_1100, 0b01]);
        assert_eq!(arrived, [1.25, -7.65625, 7.65625, -1.25, 7.65625]);
    }

    proptest! {
        /// No two magnitudes leave less than those that are sent, but for their rounding; and what is
        /// sent is never further off than nothing.
        #[test]
        fn what_is_left_is_the_least(
            values in prop::collection::vec(-4f32..4.0, 1..150), small in 0f64..4.0, large in 0f64..4.0,
        ) {
            let (bytes, arrived) = sent(&values);
            prop_assert_eq!(bytes.len(), 4 * values.len().div_ceil(64) + values.len().div_ceil(4));
            for (values, arrived) in values.chunks(BLOCK).zip(arrived.chunks(BLOCK)) {
                let off: f64 = values.iter().zip(arrived)
                    .map(|(value, arrived)| (f64::from(*value) - f64::from(*arrived)).powi(2)).sum();
                let whole: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
                prop_assert!(off <= left(values, [small, large]) + whole / 65_536.0);
                prop_assert!(off <= whole);
            }
        }

        #[test]
        fn any_bytes_are_refused_or_finite(bytes: Vec<u8>, count in 0usize..200) {
            if let Ok(values) = TwoBits::take(&mut Reader::new(&bytes), count) {
                let values: Vec<f32> = values.collect();
                prop_assert_eq!(values.len(), count);
                prop_assert!(values.iter().all(|value| value.is_finite()));
            }
        }
    }

    #[test]
    fn the_largest_and_the_smallest_numbers_arrive_finite() {
        for value in [f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1), 0.0] {
            let (_, arrived) = sent(&[value, -value, value]);
            assert!(arrived.iter().all(|arrived| arrived.is_finite()), "{value:e}");
        }
    }
}
