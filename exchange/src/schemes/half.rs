//! Every element in 16 bits: IEEE binary16 or bfloat16.
//!
//! # Paper
//! Micikevicius et al. 2018 ("Mixed Precision Training") for f16; Kalamkar et al. 2019 ("A Study
//! of BFLOAT16 for Deep Learning Training") for bf16.
//!
//! # Idea
//! Half the bits are noise beside the gradient's own. f16 has 11 bits of precision between 6e-5
//! and 65,504, and ever fewer down to 6e-8; bf16 has 8, over the whole range of f32.
//!
//! # Wire
//! | bytes | what |
//! |---|---|
//! | 2·n | the elements, rounded to nearest even |
//!
//! # Where we differ
//! There is no loss scaling. What is beyond the format's range is sent as its largest number, so
//! that the message is always nearer to the gradient than zero is and error feedback is sound;
//! it is off by default, because so little is missed. The mean is taken in f32.
use serde::{Deserialize, Serialize};

use crate::compress::{Built, Compressor, Encoded, Law, Properties, Seat, Soundness};
use crate::simd::wide;
use crate::wire::Fault;
use crate::{Result, Scheme};

/// Elements converted at a time.
const BLOCK: usize = 1024;

/// A format of 16 bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// IEEE binary16.
    #[default]
    F16,
    /// bfloat16: the upper half of an f32.
    Bf16,
}

settings! {
    /// The settings of `half`.
    pub struct Config {
        /// `f16` or `bf16`. Default `f16`.
        pub format: Precision = Precision::F16,
        /// Whether what rounding misses is added to the next gradient. Default false.
        pub feedback: bool = false,
    }
}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        Properties {
            name: "half",
            line: "every element in 16 bits, f16 or bf16",
            paper: "Micikevicius et al. 2018; Kalamkar et al. 2019",
            law: Law::Contraction,
            soundness: Soundness::Sound,
            feedback: self.feedback,
        }
    }

    fn build(&self, seat: &Seat) -> Built {
        Built::codec(Half { length: seat.length, format: self.format })
    }

    fn examples() -> Vec<Self> {
        vec![
            Self { format: Precision::Bf16, feedback: false },
            Self { format: Precision::Bf16, feedback: true },
            Self { format: Precision::F16, feedback: true },
        ]
    }
}

struct Half {
    length: usize,
    format: Precision,
}

impl Compressor for Half {
    fn encode(&mut self, gradient: &[f32], _step: u64, out: &mut Vec<u8>) -> Encoded {
        out.reserve(2 * gradient.len());
        let mut words = [[0; 2]; BLOCK];
        for some in gradient.chunks(BLOCK) {
            let words = &mut words[..some.len()];
            match self.format {
                Precision::F16 => to_f16(some, words),
                Precision::Bf16 => to_bf16(some, words),
            }
            out.extend_from_slice(words.as_flattened());
        }
        Encoded::Message
    }

    fn decode_add(&self, wire: &[u8], start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        let (words, rest) = wire.as_chunks::<2>();
        let words = match words.len() {
            _ if !rest.is_empty() => None,
            count if count == self.length => Some(&words[start..start + sum.len()]),
            count => (count == sum.len()).then_some(words),
        };
        let fault = Fault::Length { expected: 2 * self.length, found: wire.len() };
        let words = words.ok_or(fault)?;
        let (infinity, finite) = match self.format {
            Precision::F16 => (F16_INFINITY, add_f16(words, weight, sum)),
            Precision::Bf16 => (BF16_INFINITY, add(words, BF16_INFINITY, from_bf16, weight, sum)),
        };
        if !finite {
            Err(Fault::Field { field: "value", found: infinity.into() })?;
        }
        Ok(())
    }

    fn element_bytes(&self) -> Option<usize> {
        Some(2)
    }

    fn reads_ranges(&self) -> bool {
        true
    }
}

const F16_INFINITY: u16 = 0x7c00;
const BF16_INFINITY: u16 = 0x7f80;

/// Adds `weight` times each word, widened, to the sum at the same position; tells whether all of
/// them are finite. One pass over memory, and no branch on the words: what is not finite is noticed
/// by its exponent, which is that of `infinity`.
#[inline(always)]
fn add(
    words: &[[u8; 2]],
    infinity: u16,
    widen: impl Fn(u16) -> f32,
    weight: f32,
    sum: &mut [f32],
) -> bool {
    wide!({
        let mut special = 0;
        for (sum, word) in sum.iter_mut().zip(words) {
            let word = u16::from_le_bytes(*word);
            special |= u16::from(word & infinity == infinity);
            *sum += weight * widen(word);
        }
        special == 0
    })
}

/// [`add`] of binary16, 16 elements at a time where the processor has AVX-512.
fn add_f16(words: &[[u8; 2]], weight: f32, sum: &mut [f32]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V4::try_new() {
        let (sixteens, rest) = words.as_chunks();
        let (sums, sums_rest) = sum.as_chunks_mut();
        let finite = simd.vectorize(avx512::AddHalves { simd, words: sixteens, weight, sums });
        return finite & add(rest, F16_INFINITY, from_f16, weight, sums_rest);
    }
    add(words, F16_INFINITY, from_f16, weight, sum)
}

/// The largest magnitude that binary16 holds.
const MOST_F16: f32 = 65_504.0;

/// Makes each word the rounded value at the same position.
#[inline(always)]
fn to_each(values: &[f32], words: &mut [[u8; 2]], rounded: impl Fn(f32) -> u16) {
    for (word, value) in words.iter_mut().zip(values) {
        *word = rounded(*value).to_le_bytes();
    }
}

/// Rounds to binary16, 16 elements at a time where the processor has AVX-512. One by one ([`f16`])
/// is the same, which vector units of any kind do at half the speed.
fn to_f16(values: &[f32], words: &mut [[u8; 2]]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V4::try_new() {
        let (sixteens, rest) = values.as_chunks();
        let (halves, halves_rest) = words.as_chunks_mut();
        simd.vectorize(avx512::RoundToHalf { simd, values: sixteens, halves });
        return to_each(rest, halves_rest, f16);
    }
    wide!(to_each(values, words, f16));
}

/// Rounding and widening by the processor's own instructions.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::{__m256i, __m512, _MM_FROUND_TO_NEAREST_INT};

    use super::MOST_F16;

    /// Elements of a vector.
    const LANES: usize = 16;

    /// The simple form is [`to_each`](super::to_each) by [`f16`](super::f16).
    pub(super) struct RoundToHalf<'a> {
        pub(super) simd: pulp::x86::V4,
        pub(super) values: &'a [[f32; LANES]],
        pub(super) halves: &'a mut [[[u8; 2]; LANES]],
    }

    impl pulp::NullaryFnOnce for RoundToHalf<'_> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let vectors = self.simd.avx512f;
            let (least, most) =
                (vectors._mm512_set1_ps(-MOST_F16), vectors._mm512_set1_ps(MOST_F16));
            for (halves, values) in self.halves.iter_mut().zip(self.values) {
                let values: __m512 = pulp::cast(*values);
                let within = vectors._mm512_max_ps(least, vectors._mm512_min_ps(most, values));
                // This processor is little-endian, and so are the words of a vector.
                *halves =
                    pulp::cast(vectors._mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(within));
            }
        }
    }

    /// The simple form is [`add`](super::add) by [`from_f16`](super::from_f16).
    pub(super) struct AddHalves<'a> {
        pub(super) simd: pulp::x86::V4,
        pub(super) words: &'a [[[u8; 2]; LANES]],
        pub(super) weight: f32,
        pub(super) sums: &'a mut [[f32; LANES]],
    }

    impl pulp::NullaryFnOnce for AddHalves<'_> {
        type Output = bool;

        #[inline(always)]
        fn call(self) -> bool {
            let vectors = self.simd.avx512f;
            let weight = vectors._mm512_set1_ps(self.weight);
            let infinity = vectors._mm512_set1_epi32(f32::INFINITY.to_bits().cast_signed());
            let mut special = 0;
            for (sums, words) in self.sums.iter_mut().zip(self.words) {
                let halves: __m256i = pulp::cast(*words);
                let values = vectors._mm512_cvtph_ps(halves);
                let exponents = vectors._mm512_and_si512(pulp::cast(values), infinity);
                special |= vectors._mm512_cmpeq_epi32_mask(exponents, infinity);
                // Two roundings, as one by one: a product, and a sum.
                let sum: __m512 = pulp::cast(*sums);
                let sum = vectors._mm512_add_ps(sum, vectors._mm512_mul_ps(weight, values));
                *sums = pulp::cast(sum);
            }
            special == 0
        }
    }
}

/// Rounds to the nearest binary16, ties to even, and never beyond the largest finite one.
///
/// For a number that is normal in binary16, the exponent is rebiased, and just less than half of
/// the last place kept is added, plus the lowest bit kept. A smaller number is added to ½: the last
/// place of that sum is binary16's smallest number, so that the addition does the rounding.
#[inline(always)]
fn f16(value: f32) -> u16 {
    const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
    const HALF: u32 = (127 - 1) << 23;
    let bits = value.to_bits();
    let magnitude = (bits & 0x7fff_ffff).min(MOST_F16.to_bits());
    let rebiased = magnitude.wrapping_sub((127 - 15) << 23);
    let normal = rebiased.wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    let sum = f32::from_bits(magnitude) + f32::from_bits(HALF);
    let small = sum.to_bits().wrapping_sub(HALF);
    let rounded = if magnitude < SMALLEST_NORMAL { small } else { normal };
    (rounded | bits >> 16 & 0x8000) as u16
}

/// A finite binary16: its bits as those of an f32 are 2^−112 times too small, subnormal or not.
#[inline(always)]
fn from_f16(word: u16) -> f32 {
    const UP: f32 = f32::from_bits((127 + 112) << 23);
    let magnitude = f32::from_bits(u32::from(word & 0x7fff) << 13) * UP;
    f32::from_bits(magnitude.to_bits() | u32::from(word & 0x8000) << 16)
}

/// The largest magnitude that bfloat16 holds.
const MOST_BF16: f32 = f32::from_bits(0x7f7f_0000);

fn to_bf16(values: &[f32], words: &mut [[u8; 2]]) {
    wide!(to_each(values, words, bf16));
}

/// Rounds to the nearest bfloat16, ties to even, and never beyond the largest finite one: adds just
/// less than half of the last place kept, plus the lowest bit kept.
#[inline(always)]
fn bf16(value: f32) -> u16 {
    let bits = value.clamp(-MOST_BF16, MOST_BF16).to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[inline(always)]
fn from_bf16(word: u16) -> f32 {
    f32::from_bits(u32::from(word) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::testing::bits;
    use crate::wire::Format;

    #[test]
    fn words_are_widened_together_as_they_are_alone() {
        let finite = (0..=u16::MAX).filter(|word| word & F16_INFINITY != F16_INFINITY);
        let mut words: Vec<[u8; 2]> = finite.map(u16::to_le_bytes).collect();
        words.truncate(words.len() - 3);
        let (mut together, mut alone) = (vec![-0.0; words.len()], vec![-0.0; words.len()]);
        assert!(add_f16(&words, -0.3, &mut together));
        assert!(add(&words, F16_INFINITY, from_f16, -0.3, &mut alone));
        assert!(bits(&together) == bits(&alone));
        for at in [0, 15, 16, words.len() - 1] {
            let whole = std::mem::replace(&mut words[at], [0, 0xfc]);
            assert!(!add_f16(&words, 1.0, &mut together), "{at}");
            words[at] = whole;
        }
    }

    #[test]
    fn every_word_arrives_as_what_it_is_or_is_refused() {
        for word in 0..=u16::MAX {
            let formats = [
                (Precision::F16, ::half::f16::from_bits(word).to_f32()),
                (Precision::Bf16, ::half::bf16::from_bits(word).to_f32()),
            ];
            for (format, value) in formats {
                let half = Half { length: 1, format };
                let mut sum = [-0.0];
                let read = half.decode_add(&word.to_le_bytes(), 0, 1.0, &mut sum);
                assert_eq!(read.is_ok(), value.is_finite(), "{format:?} {word:04x}");
                if value.is_finite() {
                    assert_eq!(sum[0].to_bits(), value.to_bits(), "{format:?} {word:04x}");
                }
            }
        }
    }

    /// Every half, the middle between it and the next, what lies beside either, and f32 numbers in
    /// steps over all exponents, rounded 16 at a time and one by one as the crate `half` does.
    #[test]
    fn rounding_is_to_the_nearest_and_of_two_to_the_even_one() {
        let finite = (0..0x7c00u16).map(|word| ::half::f16::from_bits(word).to_f32().to_bits());
        let middles = finite.flat_map(|bits| {
            // Half of a place of a normal half and of the smallest: others are shifted, and in steps.
            [0, 0x1000, 0x2000]
                .map(|up| bits + up)
                .into_iter()
                .flat_map(|bits| [bits.saturating_sub(1), bits, bits + 1])
        });
        let subnormal = (0..2049u32).flat_map(|twice| {
            let middle = (twice as f32 * (0.5 / 16_777_216.0)).to_bits();
            [middle.saturating_sub(1), middle, middle + 1]
        });
        let steps = (0..0x7f80_0000u32).step_by(9973);
        let most = 0x7f7f_ffff;
        let all = middles.chain(subnormal).chain(steps).chain([most, 0x4780_0000, 0x477f_efff]);
        let values: Vec<f32> =
            all.flat_map(|bits| [bits, bits | 1 << 31]).map(f32::from_bits).collect();
        let mut words = vec![[0; 2]; values.len()];
        to_f16(&values, &mut words);
        for (value, word) in values.iter().zip(&words) {
            let expected = ::half::f16::from_f32(value.clamp(-MOST_F16, MOST_F16)).to_bits();
            assert_eq!(u16::from_le_bytes(*word), expected, "{value:e}");
            assert_eq!(f16(*value), expected, "{value:e} alone");
        }
        to_bf16(&values, &mut words);
        for (value, word) in values.iter().zip(&words) {
            let expected = Format::Bf16.rounded(*value);
            let word = u16::from_le_bytes(*word);
            assert_eq!(from_bf16(word).to_bits(), expected.to_bits(), "{value:e}");
            assert_eq!(bf16(*value), word, "{value:e} alone");
        }
    }
}
