//! Ascending positions in a bucket, in the cheapest of a few codings.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | coding: 0 packed, 1 Rice |
//! | 1 | packed: width; Rice: remainder bits |
//! | … | bits, the last byte filled with zeros |
//!
//! *Packed* and *Rice* write gaps: the number of positions skipped before each. *Packed* gives
//! every gap the width of the largest: best for regular positions. *Rice* (Golomb 1966, Rice
//! 1979) writes the gap's upper part in unary and the rest as it is: within 2 % of the binomial
//! bound for random positions at densities up to a tenth. With no remainder it is a bitmap that
//! ends at the last position, so that there is no coding of that name. The number of positions is
//! not in here: whoever has positions has values for them, and knows. No positions take no bytes
//! at all.

use super::bits::{self, BitReader, BitWriter};
use super::{Fault, Read, Reader};

const PACKED: u8 = 0;
const RICE: u8 = 1;

/// Remainder bits that Rice coding may have, and bits of a packed gap.
const MAX_WIDTH: u8 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PositionCoding {
    Packed { width: u32 },
    Rice { remainder: u32 },
}

impl PositionCoding {
    /// The cheapest coding, the first of equals.
    fn choose(positions: &[u32]) -> PositionCoding {
        let count = positions.len() as u64;
        let last = u64::from(positions.last().copied().unwrap_or(0));
        // The best divisor for geometric gaps is near ln 2 times their mean.
        let mean = (last + 1).saturating_sub(count) as f64 / count.max(1) as f64;
        let guess = (mean * std::f64::consts::LN_2).max(1.0).log2() as u32;
        let remainders = [guess.saturating_sub(1), guess, guess + 1].map(|bits| bits.min(31));
        let mut widest = 0;
        let mut quotients = [0u64; 3];
        each_gap(positions, |gap| {
            widest = widest.max(gap);
            for (quotient, remainder) in quotients.iter_mut().zip(remainders) {
                *quotient += u64::from(gap >> remainder);
            }
        });
        let width = u32::BITS - widest.leading_zeros();
        let mut best = (count * u64::from(width), PositionCoding::Packed { width });
        for (quotient, remainder) in quotients.into_iter().zip(remainders) {
            let bits = quotient + count * u64::from(remainder + 1);
            if bits < best.0 {
                best = (bits, PositionCoding::Rice { remainder });
            }
        }
        best.1
    }
}

fn each_gap(positions: &[u32], mut visit: impl FnMut(u32)) {
    let mut next = 0;
    for &position in positions {
        visit(position - next);
        next = position.wrapping_add(1);
    }
}

/// Appends strictly ascending positions.
pub(crate) fn put(positions: &[u32], out: &mut Vec<u8>) {
    if positions.is_empty() {
        return;
    }
    match PositionCoding::choose(positions) {
        PositionCoding::Packed { width } => {
            out.extend_from_slice(&[PACKED, width as u8]);
            let mut bits = BitWriter::new(out);
            each_gap(positions, |gap| bits.put(u64::from(gap), width));
            bits.finish();
        }
        PositionCoding::Rice { remainder } => {
            out.extend_from_slice(&[RICE, remainder as u8]);
            let mut bits = BitWriter::new(out);
            each_gap(positions, |gap| {
                let (ones, rest) = (gap >> remainder, u64::from(gap) & ((1 << remainder) - 1));
                let width = ones.saturating_add(1 + remainder);
                if width <= bits::MAX_WIDTH {
                    let unary = (1 << ones) - 1;
                    bits.put(unary | rest << (ones + 1), width);
                } else {
                    bits.put_unary(ones.into());
                    bits.put(rest, remainder);
                }
            });
            bits.finish();
        }
    }
}

/// Takes `count` positions, each less than `length`, and visits them in ascending order.
pub(crate) fn take(
    reader: &mut Reader<'_>,
    count: usize,
    length: usize,
    mut visit: impl FnMut(usize),
) -> Read<()> {
    if count == 0 {
        return Ok(());
    }
    let (coding, parameter) = (reader.u8()?, reader.u8()?);
    if parameter > MAX_WIDTH {
        return Err(Fault::Field { field: "index width", found: parameter.into() });
    }
    let width = u32::from(parameter);
    let mut bits = BitReader::new(reader.rest());
    let mut next = 0u64;
    let mut step = |gap: u64| {
        let position = next + gap;
        if position >= length as u64 {
            return Err(Fault::Position { length });
        }
        next = position + 1;
        visit(position as usize);
        Ok(())
    };
    match coding {
        PACKED => {
            for _ in 0..count {
                step(bits.take(width)?)?;
            }
        }
        RICE => {
            let limit = length as u64 >> width;
            for _ in 0..count {
                let quotient = bits.take_unary(limit)?;
                step(quotient << width | bits.take(width)?)?;
            }
        }
        found => return Err(Fault::Field { field: "index coding", found: found.into() }),
    }
    let used = bits.finish()?;
    reader.take(used).map(|_| ())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(positions: &[u32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put(positions, &mut bytes);
        bytes
    }

    fn read(bytes: &[u8], count: usize, length: usize) -> Read<Vec<u32>> {
        let mut reader = Reader::new(bytes);
        let mut positions = Vec::new();
        take(&mut reader, count, length, |position| positions.push(position as u32))?;
        reader.finish()?;
        Ok(positions)
    }

    /// Pseudo-random positions, each taken with a probability.
    fn random(density: f64, length: usize) -> Vec<u32> {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut uniform = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        (0..length as u32).filter(|_| uniform() < density).collect()
    }

    #[test]
    fn the_cheapest_coding_is_chosen() {
        let all: Vec<u32> = (0..1000).collect();
        assert_eq!(PositionCoding::choose(&all), PositionCoding::Packed { width: 0 });
        let every_eighth: Vec<u32> = (0..1000).map(|i| 8 * i + 7).collect();
        assert_eq!(PositionCoding::choose(&every_eighth), PositionCoding::Packed { width: 3 });
        assert_eq!(
            PositionCoding::choose(&random(0.6, 10_000)),
            PositionCoding::Rice { remainder: 0 }
        );
        assert_eq!(
            PositionCoding::choose(&random(0.01, 100_000)),
            PositionCoding::Rice { remainder: 6 }
        );
        assert!(written(&[]).is_empty());
    }

    #[test]
    fn positions_beyond_the_bucket_and_wrong_counts_are_refused() {
        for length in [40usize, 1000, 100_000] {
            let positions: Vec<u32> = random(0.3, length);
            let bytes = written(&positions);
            let count = positions.len();
            assert_eq!(read(&bytes, count, length).unwrap(), positions);
            // More than the filling of the last byte can stand for.
            assert!(read(&bytes, count + 8, length).is_err());
            assert!(read(&bytes, count - 8, length).is_err());
            let shorter = positions[count - 1] as usize;
            assert!(read(&bytes, count, shorter).is_err());
        }
    }

    proptest! {
        #[test]
        fn positions_come_back(taken in proptest::collection::btree_set(0u32..5000, 0..400), beyond in 0usize..3) {
            let positions: Vec<u32> = taken.into_iter().collect();
            let length = positions.last().map_or(0, |last| *last as usize + 1) + beyond;
            let bytes = written(&positions);
            prop_assert_eq!(read(&bytes, positions.len(), length), Ok(positions));
        }
    }
}
