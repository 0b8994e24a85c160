//! Numbers rounded at random to levels that the message itself names, block by block.
//!
//! Each block is divided by its largest magnitude s, so that u = g/s lies in [−1, 1]. Of L
//! ascending levels, u in [l_j, l_{j+1}] becomes one of the two.
//!
//! | bytes | what |
//! |---|---|
//! | 4·L | the levels, f32 |
//! | 4·⌈n/block⌉ | the scales s, f32 |
//! | ⌈n·bits/8⌉ | the number of each element's level, packed (`wire/codes.rs`) |
//!
//! No search, no branch: with one uniform number r for an element, its level is the number of
//! thresholds l_j + r·(l_{j+1} − l_j) that lie below u. All thresholds of lower intervals do, all
//! of higher ones do not, and its own does with probability (u − l_j)/(l_{j+1} − l_j). Replacing r
//! by ½ + sharpness·(r − ½) gives rounding between this (sharpness 1, unbiased) and to the nearest
//! level (sharpness 0).

use std::ops::Range;

use super::moments::largest;
use super::scheme::require;
use crate::Result;
use crate::rng::Stream;
use crate::simd::wide;
use crate::wire::{Fault, Read, Reader, codes};

/// Elements that are rounded and then packed while the first cache holds them.
const PIECE: usize = 512;

/// The most levels, at 5 bits.
pub(crate) const MOST_LEVELS: usize = 32;

/// How many levels there are, and how many elements share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rounder {
    /// Bits of a code: 2^bits levels.
    pub(crate) bits: u32,
    /// Elements of a block, a multiple of 8.
    pub(crate) block: usize,
}

impl Rounder {
    /// Checks both numbers as settings of `scheme`.
    pub(crate) fn validate(self, scheme: &'static str) -> Result<()> {
        let Self { bits, block } = self;
        let wanted = "write a whole number from 1 to 5, such as `bits = 3`";
        require((1..=5).contains(&bits), scheme, "bits", bits, wanted)?;
        let whole = block.is_multiple_of(8) && (8..=1 << 20).contains(&block);
        let wanted = "write a multiple of 8 from 8 to 1048576, such as `block = 512`";
        require(whole, scheme, "block", block, wanted)
    }

    /// Number of levels.
    pub(crate) fn levels(self) -> usize {
        1 << self.bits
    }

    /// Bytes of a message for `length` elements.
    pub(crate) fn bytes(self, length: usize) -> usize {
        4 * self.levels() + 4 * length.div_ceil(self.block) + codes::bytes(length, self.bits)
    }

    /// Appends `gradient`, rounded to `levels`, which ascend.
    pub(crate) fn put(
        self,
        gradient: &[f32],
        levels: &[f32],
        sharpness: f32,
        stream: Stream,
        out: &mut Vec<u8>,
    ) {
        debug_assert_eq!(levels.len(), self.levels());
        out.reserve(self.bytes(gradient.len()));
        out.extend(levels.iter().flat_map(|level| level.to_le_bytes()));
        match self.bits {
            1 => self.put_codes::<1>(gradient, levels, sharpness, stream, out),
            2 => self.put_codes::<3>(gradient, levels, sharpness, stream, out),
            3 => self.put_codes::<7>(gradient, levels, sharpness, stream, out),
            4 => self.put_codes::<15>(gradient, levels, sharpness, stream, out),
            _ => self.put_codes::<31>(gradient, levels, sharpness, stream, out),
        }
    }

    fn put_codes<const INTERVALS: usize>(
        self,
        gradient: &[f32],
        levels: &[f32],
        sharpness: f32,
        stream: Stream,
        out: &mut Vec<u8>,
    ) {
        let intervals: [(f32, f32); INTERVALS] =
            std::array::from_fn(|j| (levels[j], levels[j + 1] - levels[j]));
        let mut scale_at = out.len();
        out.resize(scale_at + 4 * gradient.len().div_ceil(self.block), 0);
        let mut first = 0;
        for block in gradient.chunks(self.block) {
            let scale = largest(block);
            out[scale_at..scale_at + 4].copy_from_slice(&scale.to_le_bytes());
            scale_at += 4;
            for piece in block.chunks(PIECE) {
                let mut codes = [0; PIECE];
                let codes = &mut codes[..piece.len()];
                let rule = RoundingRule { scale, intervals: &intervals, sharpness, stream };
                wide!(rule.round(piece, first, codes));
                codes::put(codes, self.bits, out);
                first += piece.len() as u32;
            }
        }
    }

    /// Takes a message for `length` elements from `reader` and adds `weight` times what it says
    /// of the elements `part`, which begins at a multiple of [`codes::BLOCK`], to `sum`.
    pub(crate) fn add_part(
        self,
        reader: &mut Reader<'_>,
        length: usize,
        part: Range<usize>,
        weight: f32,
        sum: &mut [f32],
    ) -> Read<()> {
        let mut levels = [0f32; MOST_LEVELS];
        for level in &mut levels[..self.levels()] {
            *level = f32::from_bits(reader.u32()?);
            if !(-1.0..=1.0).contains(level) {
                return Err(Fault::Field { field: "level", found: level.to_bits().into() });
            }
        }
        if !levels[..self.levels()].is_sorted() {
            return Err(Fault::Field { field: "levels", found: 0 });
        }
        let scales = reader.take(4 * length.div_ceil(self.block))?;
        let packed = reader.take(codes::bytes(length, self.bits))?;
        let packed = codes::expect(packed, length, self.bits)?;
        packed.each_block_of(part.clone(), |first, mut codes| {
            let mut at = first;
            while !codes.is_empty() {
                let number = at / self.block;
                let bytes = scales[4 * number..].first_chunk().copied().unwrap_or_default();
                let scale = f32::from_le_bytes(bytes);
                if !(0.0..f32::INFINITY).contains(&scale) {
                    return Err(Fault::Field { field: "scale", found: scale.to_bits().into() });
                }
                let (some, rest) = codes.split_at(codes.len().min((number + 1) * self.block - at));
                let values = levels.map(|level| weight * (scale * level));
                let within = at - part.start;
                for (sum, code) in sum[within..within + some.len()].iter_mut().zip(some) {
                    *sum += values[usize::from(*code) % MOST_LEVELS];
                }
                at += some.len();
                codes = rest;
            }
            Ok(())
        })
    }
}

/// Evenly spaced levels from −1 to 1.
pub(crate) fn uniform(levels: &mut [f32]) {
    let last = levels.len() - 1;
    for (j, level) in levels.iter_mut().enumerate() {
        *level = (2.0 * j as f64 / last as f64 - 1.0) as f32;
    }
}

/// Whether levels may stand in a message: ascending, within [−1, 1].
pub(crate) fn are_levels(levels: &[f32]) -> bool {
    levels.is_sorted() && levels.iter().all(|level| (-1.0..=1.0).contains(level))
}

/// Elements whose codes are found side by side.
const LANES: usize = 32;

/// How the elements of a block become levels.
#[derive(Clone, Copy)]
struct RoundingRule<'a, const INTERVALS: usize> {
    scale: f32,
    /// The lower end of each interval between levels, and its width.
    intervals: &'a [(f32, f32); INTERVALS],
    sharpness: f32,
    stream: Stream,
}

impl<const INTERVALS: usize> RoundingRule<'_, INTERVALS> {
    /// The codes of `values`, the first of which is element `first` of the stream.
    #[inline(always)]
    fn round(self, values: &[f32], first: u32, codes: &mut [u8]) {
        let (whole, rest) = values.as_chunks::<LANES>();
        let (whole_codes, rest_codes) = codes.as_chunks_mut::<LANES>();
        let mut at = first;
        for (codes, values) in whole_codes.iter_mut().zip(whole) {
            *codes = self.side_by_side(values, at);
            at = at.wrapping_add(LANES as u32);
        }
        if !rest.is_empty() {
            let mut padded = [0.0; LANES];
            padded[..rest.len()].copy_from_slice(rest);
            rest_codes.copy_from_slice(&self.side_by_side(&padded, at)[..rest.len()]);
        }
    }

    /// The simple form, of each value: in how many intervals `value / scale > low + r · width`. All elements are compared
    /// with one interval before the next, without a branch.
    ///
    /// Inlined like its caller: a call would be compiled for the narrowest vectors, and take four
    /// times as long.
    #[inline(always)]
    fn side_by_side(self, values: &[f32; LANES], first: u32) -> [u8; LANES] {
        // A quotient and no reciprocal: that of a subnormal scale would be infinite.
        let scale = if self.scale == 0.0 { 1.0 } else { self.scale };
        let (mut u, mut r, mut level) = ([0f32; LANES], [0f32; LANES], [0u32; LANES]);
        for i in 0..LANES {
            u[i] = values[i] / scale;
            let uniform = self.stream.uniform(first.wrapping_add(i as u32));
            r[i] = 0.5 + self.sharpness * (uniform - 0.5);
        }
        for (low, width) in self.intervals {
            for i in 0..LANES {
                level[i] += u32::from(u[i] > low + r[i] * width);
            }
        }
        let mut codes = [0; LANES];
        for i in 0..LANES {
            codes[i] = level[i] as u8;
        }
        codes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simd::machines;

    /// One element at a time.
    fn simple<const INTERVALS: usize>(rule: RoundingRule<'_, INTERVALS>, value: f32, i: u32) -> u8 {
        let scale = if rule.scale == 0.0 { 1.0 } else { rule.scale };
        let r = 0.5 + rule.sharpness * (rule.stream.uniform(i) - 0.5);
        let above = |(low, width): &&(f32, f32)| value / scale > low + r * width;
        rule.intervals.iter().filter(above).count() as u8
    }

    fn on_every_machine<const INTERVALS: usize>(values: &[f32], first: u32, sharpness: f32) {
        let mut levels = vec![0.0; INTERVALS + 1];
        uniform(&mut levels);
        let intervals: [_; INTERVALS] =
            std::array::from_fn(|j| (levels[j], levels[j + 1] - levels[j]));
        for scale in [0.0, f32::from_bits(3), largest(values)] {
            let stream = Stream::new(&[first.into()]);
            let rule = RoundingRule { scale, intervals: &intervals, sharpness, stream };
            let expected: Vec<u8> =
                (first..).zip(values).map(|(i, value)| simple(rule, *value, i)).collect();
            for machine in machines() {
                let mut codes = vec![0xff; values.len()];
                machine.dispatch(
                    #[inline(always)]
                    || rule.round(values, first, &mut codes),
                );
                assert_eq!(codes, expected, "{machine:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn codes_are_those_of_the_simple_form_on_every_instruction_set(
            values in proptest::collection::vec(-2.0f32..2.0, 0..200), first in 0u32..1 << 20,
            sharpness in 0.0f32..=1.0,
        ) {
            on_every_machine::<1>(&values, first, sharpness);
            on_every_machine::<3>(&values, first, sharpness);
            on_every_machine::<7>(&values, first, sharpness);
            on_every_machine::<15>(&values, first, sharpness);
            on_every_machine::<31>(&values, first, sharpness);
        }
    }

    #[test]
    fn levels_and_scales_without_meaning_are_refused() {
        let rounder = Rounder { bits: 2, block: 8 };
        let mut wire = Vec::new();
        rounder.put(&[1.0, -0.5], &[-1.0, -0.5, 0.5, 1.0], 1.0, Stream::new(&[1]), &mut wire);
        for (at, value, field) in [
            (0, 2.0f32, "level"),
            (8, f32::NAN, "level"),
            (16, -1.0, "scale"),
            (16, f32::INFINITY, "scale"),
        ] {
            let mut spoilt = wire.clone();
            spoilt[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let fault = rounder
                .add_part(&mut Reader::new(&spoilt), 2, 0..2, 1.0, &mut [0.0; 2])
                .unwrap_err();
            assert!(
                matches!(fault, Fault::Field { field: found, .. } if found == field),
                "{fault}"
            );
        }
        assert!(Rounder { bits: 6, block: 8 }.validate("x").is_err());
        assert!(Rounder { bits: 0, block: 8 }.validate("x").is_err());
        assert!(Rounder { bits: 3, block: 12 }.validate("x").is_err());
    }
}
