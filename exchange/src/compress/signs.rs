//! One bit per element, its sign: packing, the magnitudes that go with it, and the compressor of
//! signs of one magnitude that signSGD with and without error feedback share.
use serde::{Deserialize, Serialize};

use super::levels::{bits_gauge, take_scales};
use super::moments::magnitude_sum;
use super::{Compressor, Encoded};
use crate::simd::{run_wide, wide};
use crate::wire::Read;
use crate::wire::codes::{self, BLOCK};
use crate::{Gauge, Result};

/// Elements that sums take at a time, each into a place of its own.
const LANES: usize = 16;

/// Appends the sign bits, 1 for negative, packed.
pub(crate) fn put(gradient: &[f32], out: &mut Vec<u8>) {
    put_bits(
        gradient,
        out,
        #[inline(always)]
        |_, value| negative(value),
    );
}

/// The same, but that zeros are plus and minus in turns, from place to place and from one `turn` to the next.
fn put_by_turns(gradient: &[f32], turn: u64, out: &mut Vec<u8>) {
    let turn = (turn & 1) as u32;
    put_bits(
        gradient,
        out,
        #[inline(always)]
        move |place, value| {
            // `if value == 0.0 { place ^ turn } else { negative(value) }`, without a branch and in words as long as
            // the value's, so that it is done with vectors.
            let zero = u32::from(value == 0.0);
            ((place as u32 ^ turn) & zero | (value.to_bits() >> 31) & (zero ^ 1)) as u8
        },
    );
}

/// 1 for a value with a sign bit, else 0.
#[inline(always)]
fn negative(value: f32) -> u8 {
    (value.to_bits() >> 31) as u8
}

/// Appends a bit of each element, of its place in a block of [`BLOCK`] and its value. All is moved into the loop: what lies
/// behind a reference would be read again after every store, one element at a time.
#[inline(always)]
fn put_bits(gradient: &[f32], out: &mut Vec<u8>, bit: impl Fn(usize, f32) -> u8 + Copy) {
    out.reserve(codes::bytes(gradient.len(), 1));
    let mut signs = [0; BLOCK];
    for some in gradient.chunks(BLOCK) {
        let to = &mut signs[..some.len()];
        run_wide(
            #[inline(always)]
            move || {
                for (place, (sign, value)) in to.iter_mut().zip(some).enumerate() {
                    *sign = bit(place, *value);
                }
            },
        );
        codes::put(&signs[..some.len()], 1, out);
    }
}

/// Adds `plus` where a sign bit is clear and `minus` where it is set.
pub(crate) fn add(wire: &[u8], plus: f32, minus: f32, sum: &mut [f32]) -> Read<()> {
    codes::expect(wire, sum.len(), 1)?.each_block(|first, signs| {
        add_some(signs, plus, minus, &mut sum[first..first + signs.len()]);
        Ok(())
    })
}

/// The same for signs that have been unpacked.
#[inline(always)]
pub(crate) fn add_some(signs: &[u8], plus: f32, minus: f32, sum: &mut [f32]) {
    wide!({
        for (sum, sign) in sum.iter_mut().zip(signs) {
            *sum += picked(minus, *sign == 1) + picked(plus, *sign == 0);
        }
    });
}

/// The value, or 0, without a branch that would be guessed wrong half of the time.
#[inline(always)]
fn picked(value: f32, pick: bool) -> f32 {
    f32::from_bits(value.to_bits() & 0u32.wrapping_sub(u32::from(pick)))
}

/// The mean magnitude of the elements without a sign bit, and of those with one; 0 of none. Added
/// up in f64.
pub(crate) fn means(values: &[f32]) -> [f32; 2] {
    let (mut plus, mut minus) = ([0f64; LANES], [0f64; LANES]);
    let mut negative = [0u32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut last = [0.0; LANES];
    last[..rest.len()].copy_from_slice(rest);
    wide!({
        for chunk in chunks.iter().chain([&last]) {
            for (i, value) in chunk.iter().enumerate() {
                let sign = value.to_bits() >> 31;
                plus[i] += f64::from(picked(value.abs(), sign == 0));
                minus[i] += f64::from(picked(value.abs(), sign == 1));
                negative[i] += sign;
            }
        }
    });
    let negative = f64::from(negative.iter().sum::<u32>());
    let mean =
        |lanes: [f64; LANES], count: f64| (lanes.iter().sum::<f64>() / count.max(1.0)) as f32;
    [mean(plus, values.len() as f64 - negative), mean(minus, negative)]
}

/// The mean magnitude of all elements; 0 of none. Added up in f64.
fn mean(values: &[f32]) -> f32 {
    (magnitude_sum(values) / values.len().max(1) as f64) as f32
}

/// What a sign stands for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Magnitude {
    /// The mean magnitude of the bucket, ‖g‖₁/n.
    #[default]
    Mean,
    /// 1.
    Unit,
}

/// What sign an element has that is zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Zeros {
    /// That of its sign bit: plus, but for −0.
    #[default]
    SignBit,
    /// Plus and minus by turns, as the sum of rank, step and place is even or odd: an even number of
    /// ranks that all have zero are a tie.
    ByTurns,
}

/// Signs of one magnitude.
pub(crate) struct Signs {
    magnitude: Magnitude,
    /// Of zeros by turns, the rank.
    rank: Option<u64>,
    gauges: Vec<Gauge>,
}

impl Signs {
    pub(crate) fn new(magnitude: Magnitude) -> Self {
        Self { magnitude, rank: None, gauges: Vec::with_capacity(2) }
    }

    /// The same with another sign for the zeros of that rank.
    pub(crate) fn with(self, zeros: Zeros, rank: usize) -> Self {
        Self { rank: (zeros == Zeros::ByTurns).then_some(rank as u64), ..self }
    }
}

impl Compressor for Signs {
    fn encode(&mut self, gradient: &[f32], step: u64, out: &mut Vec<u8>) -> Encoded {
        let start = out.len();
        let magnitude = match self.magnitude {
            Magnitude::Mean => mean(gradient),
            Magnitude::Unit if gradient.iter().all(|value| *value == 0.0) => 0.0,
            Magnitude::Unit => 1.0,
        };
        out.extend_from_slice(&magnitude.to_le_bytes());
        match self.rank {
            None => put(gradient, out),
            Some(rank) => put_by_turns(gradient, rank.wrapping_add(step), out),
        }
        let length = gradient.len();
        self.gauges.clear();
        self.gauges.extend([
            bits_gauge(out.len() - start, length),
            Gauge::mean("magnitude", f64::from(magnitude), length as f64),
        ]);
        Encoded::Message
    }

    fn decode_add(&self, wire: &[u8], _start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        let (magnitude, signs) = take_scales(wire, 1)?;
        let value = weight * magnitude.first().map_or(0.0, |bytes| f32::from_le_bytes(*bytes));
        Ok(add(signs, value, -value, sum)?)
    }

    fn gauges(&self) -> &[Gauge] {
        &self.gauges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_come_back_and_means_are_those_of_the_sides() {
        let values: Vec<f32> = (0..2100).map(|i| (i as f32 * 0.37).sin() * 3.0 + 0.4).collect();
        let mut wire = Vec::new();
        put(&values, &mut wire);
        assert_eq!(wire.len(), 263);
        let mut sum = vec![0.5; values.len()];
        add(&wire, 1.0, -2.0, &mut sum).unwrap();
        let expected = values.iter().map(|value| if *value < 0.0 { -1.5 } else { 1.5 });
        assert_eq!(sum, expected.collect::<Vec<f32>>());
        assert!(add(&wire[1..], 1.0, 1.0, &mut sum).is_err());

        let naive = |side: fn(&f32) -> bool| {
            let side: Vec<f64> =
                values.iter().filter(|value| side(value)).map(|v| f64::from(v.abs())).collect();
            side.iter().sum::<f64>() / side.len() as f64
        };
        let [plus, minus] = means(&values).map(f64::from);
        assert!((plus - naive(|value| *value >= 0.0)).abs() < 1e-6);
        assert!((minus - naive(|value| *value < 0.0)).abs() < 1e-6);
        assert!((f64::from(mean(&values)) - naive(|_| true)).abs() < 1e-6);
        assert_eq!((means(&[]), mean(&[])), ([0.0, 0.0], 0.0));
    }
}
