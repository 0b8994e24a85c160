//! Blocks of a gradient on a ladder of levels: what QSGD, DQ-SGD, NUQSGD and TernGrad share.
//!
//! A block's scale is a norm of it. Every element is a share of that scale, between 0 and 1, and
//! is rounded at random to the rung below or above it, so that its expectation is the element. A
//! code is the sign bit above the level's bits; the codes of all blocks lie end to end.
//!
//! | bytes | what |
//! |---|---|
//! | 4·blocks | the blocks' scales, f32, finite and not negative |
//! | ⌈n·w/8⌉ | codes of w = 1 + ⌈log2(levels + 1)⌉ bits (`wire/codes.rs`); TernGrad has trits in their place |

use serde::{Deserialize, Serialize};

use super::ladder::{Ladder, width};
use super::moments::largest;
use crate::Gauge;
use crate::rng::Stream;
use crate::simd::wide;
use crate::wire::codes::{self, BLOCK, Codes};
use crate::wire::{Fault, Read, Reader, floats};

/// 2^112: 65,536 times it is f32's range. An element may arrive as large as its block's norm, so
/// that gradients far from overflow would overflow when quantised.
const LARGEST_NORM: f32 = f32::from_bits((127 + 112) << 23);

/// What a block is scaled by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Norm {
    /// The Euclidean norm: √Σg².
    L2,
    /// The largest magnitude.
    Linf,
}

impl Norm {
    /// The scale of a block: its norm, or its largest magnitude where the norm is so large that a
    /// sum over as many ranks as there can be could overflow. Rounding is unbiased with either, and
    /// with the largest magnitude no element decodes to more than that.
    pub(crate) fn scale(self, block: &[f32]) -> f32 {
        match self {
            Norm::L2 => match floats::norm(block) as f32 {
                norm if norm <= LARGEST_NORM => norm,
                _ => largest(block),
            },
            Norm::Linf => largest(block),
        }
    }
}

/// Elements of a block, 0 being the whole bucket, as a length that is not 0.
pub(crate) fn stretch(block: usize, length: usize) -> usize {
    if block == 0 { length.max(1) } else { block }
}

/// Bits that a message of some bytes takes for each element.
pub(crate) fn bits_gauge(bytes: usize, length: usize) -> Gauge {
    Gauge::mean("bits", 8.0 * bytes as f64 / length.max(1) as f64, length as f64)
}

/// Cuts the `count` elements from `first` on at the ends of blocks of `stretch` elements, and
/// visits each part: its block's number, and its range within the `count` elements.
#[inline(always)]
pub(crate) fn each_part(
    first: usize,
    count: usize,
    stretch: usize,
    mut visit: impl FnMut(usize, std::ops::Range<usize>),
) {
    let mut at = 0;
    while at < count {
        let block = (first + at) / stretch;
        let end = ((block + 1) * stretch - first).min(count);
        visit(block, at..end);
        at = end;
    }
}

/// Writes gradients on ladders; keeps its memory.
#[derive(Debug, Default)]
pub(crate) struct Quantiser {
    scales: Vec<f32>,
}

impl Quantiser {
    /// With memory for so many blocks.
    pub(crate) fn with_capacity(blocks: usize) -> Self {
        Self { scales: Vec::with_capacity(blocks) }
    }

    /// Appends the scales, each `scale` of a block, and keeps them for the codes.
    pub(crate) fn put_scales(
        &mut self,
        gradient: &[f32],
        block: usize,
        scale: impl Fn(&[f32]) -> f32,
        out: &mut Vec<u8>,
    ) {
        self.scales.clear();
        self.scales.extend(gradient.chunks(stretch(block, gradient.len())).map(scale));
        floats::put(&self.scales, out);
    }

    /// Gives `take` the codes of 1 to 1024 elements after another. `block` and `gradient` are those
    /// of the scales; an element beyond its scale counts as the scale.
    #[inline(always)]
    pub(crate) fn each_codes<L: Ladder>(
        &self,
        gradient: &[f32],
        block: usize,
        ladder: L,
        stream: Stream,
        mut take: impl FnMut(&[u8]),
    ) {
        let stretch = stretch(block, gradient.len());
        let sign = width(ladder.top()) - 1;
        let mut codes = [0; BLOCK];
        for (number, some) in gradient.chunks(BLOCK).enumerate() {
            let first = number * BLOCK;
            each_part(first, some.len(), stretch, |block, part| {
                let scale = self.scales[block];
                let start = (first + part.start) as u32;
                quantise(&some[part.clone()], scale, sign, ladder, stream, start, &mut codes[part]);
            });
            take(&codes[..some.len()]);
        }
    }

    /// Appends the codes.
    pub(crate) fn put_codes<L: Ladder>(
        &self,
        gradient: &[f32],
        block: usize,
        ladder: L,
        stream: Stream,
        out: &mut Vec<u8>,
    ) {
        let width = width(ladder.top());
        self.each_codes(gradient, block, ladder, stream, |codes| codes::put(codes, width, out));
    }
}

#[inline(always)]
fn quantise<L: Ladder>(
    gradient: &[f32],
    scale: f32,
    sign: u32,
    ladder: L,
    stream: Stream,
    first: u32,
    codes: &mut [u8],
) {
    if scale == 0.0 {
        codes.fill(0);
        return;
    }
    wide!({
        for (i, (code, value)) in codes.iter_mut().zip(gradient).enumerate() {
            let share = (value.abs() / scale).min(1.0);
            let rung = ladder.rung(share, stream.bits(first + i as u32));
            *code = (rung | value.to_bits() >> 31 << sign) as u8;
        }
    });
}

/// Adds `weight` times what scales and codes say.
pub(crate) fn add<L: Ladder>(
    wire: &[u8],
    block: usize,
    ladder: L,
    weight: f32,
    sum: &mut [f32],
) -> Read<()> {
    let length = sum.len();
    let (scales, rest) = Scales::take(wire, block, length)?;
    let (top, width) = (ladder.top(), width(ladder.top()));
    codes::expect(rest, length, width)?.each_block(|first, codes| {
        check_levels(codes, top, width)?;
        scales.add(first, codes, ladder, weight, sum);
        Ok(())
    })
}

/// The first `count` numbers of the bytes as scales, finite and not negative, and the rest.
pub(crate) fn take_scales(wire: &[u8], count: usize) -> Read<(&[[u8; 4]], &[u8])> {
    let truncated = Fault::Truncated { needed: 4 * count, left: wire.len() };
    let (scales, rest) = wire.split_at_checked(4 * count).ok_or(truncated)?;
    let scales = floats::expect(scales, count)?;
    let unfit = |scale: &&[u8; 4]| !matches!(f32::from_le_bytes(**scale), 0.0..=f32::MAX);
    match scales.iter().find(unfit) {
        Some(scale) => {
            Err(Fault::Field { field: "scale", found: u32::from_le_bytes(*scale).into() })
        }
        None => Ok((scales, rest)),
    }
}

/// The scales of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scales<'a> {
    scales: &'a [[u8; 4]],
    stretch: usize,
}

impl<'a> Scales<'a> {
    /// The scales of the blocks of `length` elements, and the rest of the message.
    pub(crate) fn take(wire: &'a [u8], block: usize, length: usize) -> Read<(Self, &'a [u8])> {
        let stretch = stretch(block, length);
        let (scales, rest) = take_scales(wire, length.div_ceil(stretch))?;
        Ok((Self { scales, stretch }, rest))
    }

    /// Adds `weight` times what the codes of the elements from `first` on say.
    #[inline(always)]
    pub(crate) fn add<L: Ladder>(
        self,
        first: usize,
        codes: &[u8],
        ladder: L,
        weight: f32,
        sum: &mut [f32],
    ) {
        let sum = &mut sum[first..first + codes.len()];
        let sign = width(ladder.top()) - 1;
        each_part(first, codes.len(), self.stretch, |block, part| {
            let scale = f32::from_le_bytes(self.scales[block]);
            add_part(&codes[part.clone()], scale, sign, ladder, weight, &mut sum[part]);
        });
    }
}

#[inline(always)]
fn add_part<L: Ladder>(
    codes: &[u8],
    scale: f32,
    sign: u32,
    ladder: L,
    weight: f32,
    sum: &mut [f32],
) {
    wide!({
        for (sum, code) in sum.iter_mut().zip(codes) {
            *sum += weight * element(*code, scale, sign, ladder);
        }
    });
}

/// What a code says.
#[inline(always)]
fn element(code: u8, scale: f32, sign: u32, ladder: impl Ladder) -> f32 {
    let share = ladder.share(code & ((1 << sign) - 1));
    let negative = u32::from(code >> sign) << 31;
    f32::from_bits((share * scale).to_bits() ^ negative)
}

/// Scales and codes within a message, read one element after another.
#[derive(Debug)]
pub(crate) struct Elements<'a, L> {
    scales: Scales<'a>,
    codes: Codes<'a>,
    ladder: L,
    at: usize,
}

impl<'a, L: Ladder> Elements<'a, L> {
    /// Takes the scales and codes of `count` elements, and checks all of them.
    pub(crate) fn take(
        reader: &mut Reader<'a>,
        count: usize,
        block: usize,
        ladder: L,
    ) -> Read<Self> {
        let (scales, _) = Scales::take(reader.rest(), block, count)?;
        reader.take(4 * scales.scales.len())?;
        let (top, width) = (ladder.top(), width(ladder.top()));
        let codes = codes::expect(reader.take(codes::bytes(count, width))?, count, width)?;
        codes.each_block(|_, some| check_levels(some, top, width))?;
        Ok(Self { scales, codes, ladder, at: 0 })
    }

    /// The next element; 0 when there are no more.
    pub(crate) fn next(&mut self) -> f32 {
        let (code, sign) = (self.codes.get(self.at), width(self.ladder.top()) - 1);
        let scale = self.scales.scales.get(self.at / self.scales.stretch);
        self.at += 1;
        let (Some(code), Some(scale)) = (code, scale) else { return 0.0 };
        element(code, f32::from_le_bytes(*scale), sign, self.ladder)
    }
}

/// Refuses codes of levels above the ladder.
#[inline(always)]
fn check_levels(codes: &[u8], top: u8, width: u32) -> Read<()> {
    let mask = (1 << (width - 1)) - 1;
    let highest = codes.iter().fold(0, |most: u8, code| most.max(code & mask));
    if highest > top {
        return Err(Fault::Field { field: "level", found: u64::from(highest) });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_what_is_asked_and_stay_in_their_blocks() {
        for stretch in [1, 3, 512, 700, 5000] {
            let mut at = 1024;
            each_part(1024, 1024, stretch, |block, part| {
                assert_eq!(1024 + part.start, at);
                assert!(block * stretch <= at && 1024 + part.end <= (block + 1) * stretch);
                at = 1024 + part.end;
            });
            assert_eq!(at, 2048);
        }
    }
}
