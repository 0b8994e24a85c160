//! Every element in 16 bits: IEEE binary16 or bfloat16.
//!
//! # Paper
//! Micikevicius et al. 2018 ("Mixed Precision Training") for fp16; Kalamkar et al. 2019 ("A Study
//! of BFLOAT16 for Deep Learning Training") for bf16.
//!
//! # Idea
//! Half the bits are noise beside the gradient's own. fp16 has 11 bits of precision between 6e-8
//! and 65,504; bf16 has 8, over the whole range of f32.
//!
//! # Wire
//! | bytes | what |
//! |---|---|
//! | 2·n | the elements, rounded to nearest even |
//!
//! # State
//! None of its own.
//!
//! # Where we differ
//! There is no loss scaling. What is beyond the format's range is sent as its largest number, so
//! that the message is always nearer to the gradient than zero is and error feedback is sound;
//! it is off by default, because so little is missed. The mean is taken in f32.

use std::ops::Range;

use ::half::slice::HalfFloatSliceExt;
use serde::{Deserialize, Serialize};

use super::{About, ByParts, Compressor, Definition, Encoded, Law, Seat, Soundness};
use crate::Result;
use crate::simd::wide;
use crate::wire::Fault;

/// Elements converted at a time.
const BLOCK: usize = 1024;

/// A format of 16 bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// IEEE binary16.
    #[default]
    Fp16,
    /// bfloat16: the upper half of an f32.
    Bf16,
}

/// The settings of `half`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `fp16` or `bf16`. Default `fp16`.
    pub format: Precision,
    /// Whether what rounding misses is added to the next gradient. Default false.
    pub feedback: bool,
}

impl Definition for Config {
    type Instance = Box<dyn Compressor>;

    const ABOUT: About = About {
        name: "half",
        line: "every element in 16 bits, fp16 or bf16",
        paper: "Micikevicius et al. 2018; Kalamkar et al. 2019",
    };
    const FEEDBACK: Soundness = Soundness::Sound;

    fn feedback(&self) -> bool {
        self.feedback
    }

    fn law(&self) -> Law {
        Law::Contraction
    }

    fn validate(&self) -> Result<()> {
        Ok(())
    }

    fn build(&self, _seat: &Seat) -> Box<dyn Compressor> {
        Box::new(Half { format: self.format })
    }

    fn specimens() -> Vec<Self> {
        vec![
            Self { format: Precision::Bf16, feedback: false },
            Self { format: Precision::Bf16, feedback: true },
            Self { format: Precision::Fp16, feedback: true },
        ]
    }
}

struct Half {
    format: Precision,
}

impl Compressor for Half {
    fn encode(&mut self, gradient: &[f32], _step: u64, out: &mut Vec<u8>) -> Encoded {
        out.reserve(2 * gradient.len());
        let mut words = [0u16; BLOCK];
        for some in gradient.chunks(BLOCK) {
            let words = &mut words[..some.len()];
            match self.format {
                Precision::Fp16 => to_fp16(some, words),
                Precision::Bf16 => to_bf16(some, words),
            }
            out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        Encoded::Message
    }

    fn decode_add(&self, wire: &[u8], weight: f32, sum: &mut [f32]) -> Result<()> {
        self.decode_part(wire, sum.len(), 0..sum.len(), weight, sum)
    }

    fn element_bytes(&self) -> Option<usize> {
        Some(2)
    }

    fn by_parts(&self) -> Option<&dyn ByParts> {
        Some(self)
    }
}

impl ByParts for Half {
    fn decode_part(
        &self,
        wire: &[u8],
        length: usize,
        part: Range<usize>,
        weight: f32,
        sum: &mut [f32],
    ) -> Result<()> {
        let (words, rest) = wire.as_chunks::<2>();
        if words.len() != length || !rest.is_empty() {
            Err(Fault::Length { expected: 2 * length, found: wire.len() })?;
        }
        let words = &words[part];
        let mut values = [0.0; BLOCK];
        for (sum, words) in sum.chunks_mut(BLOCK).zip(words.chunks(BLOCK)) {
            let values = &mut values[..words.len()];
            match self.format {
                Precision::Fp16 => from_fp16(words, values),
                Precision::Bf16 => from_bf16(words, values),
            }
            if values.iter().any(|value| !value.is_finite()) {
                Err(Fault::Field { field: "value", found: 0x7c00 })?;
            }
            wide(
                #[inline(always)]
                || {
                    for (sum, value) in sum.iter_mut().zip(values) {
                        *sum += weight * *value;
                    }
                },
            );
        }
        Ok(())
    }
}

/// Rounds to binary16, by the processor's instruction where it has one.
fn to_fp16(values: &[f32], words: &mut [u16]) {
    const MOST: f32 = 65_504.0;
    let (mut within, mut halves) = ([0.0; BLOCK], [::half::f16::ZERO; BLOCK]);
    let (within, halves) = (&mut within[..values.len()], &mut halves[..values.len()]);
    for (within, value) in within.iter_mut().zip(values) {
        *within = value.clamp(-MOST, MOST);
    }
    halves.convert_from_f32_slice(within);
    for (word, half) in words.iter_mut().zip(halves) {
        *word = half.to_bits();
    }
}

fn from_fp16(words: &[[u8; 2]], values: &mut [f32]) {
    let mut halves = [::half::f16::ZERO; BLOCK];
    let halves = &mut halves[..words.len()];
    for (half, word) in halves.iter_mut().zip(words) {
        *half = ::half::f16::from_le_bytes(*word);
    }
    halves.convert_to_f32_slice(values);
}

/// Rounds to bfloat16: adds just less than half of the last place kept, and its lowest bit.
fn to_bf16(values: &[f32], words: &mut [u16]) {
    wide(
        #[inline(always)]
        || {
            for (word, value) in words.iter_mut().zip(values) {
                let bits = value.to_bits();
                let magnitude = (bits & 0x7fff_ffff).min(0x7f7f_0000);
                let rounded = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
                *word = (rounded | bits >> 31 << 15) as u16;
            }
        },
    );
}

fn from_bf16(words: &[[u8; 2]], values: &mut [f32]) {
    wide(
        #[inline(always)]
        || {
            for (value, word) in values.iter_mut().zip(words) {
                *value = f32::from_bits(u32::from(u16::from_le_bytes(*word)) << 16);
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::values::Format;

    proptest! {
        #[test]
        fn elements_arrive_as_the_values_module_rounds_them(
            values in proptest::collection::vec(any::<f32>(), 0..1500),
        ) {
            let gradient: Vec<f32> = values.into_iter().filter(|value| value.is_finite()).collect();
            let seat = Seat::alone(gradient.len(), 3);
            for (format, naive) in
                [(Precision::Fp16, Format::F16), (Precision::Bf16, Format::Bf16)]
            {
                let config = Config { format, ..Config::default() };
                let (mut wire, mut sum) = (Vec::new(), vec![0.0; gradient.len()]);
                config.build(&seat).encode(&gradient, 1, &mut wire);
                config.build(&seat).decode_add(&wire, 1.0, &mut sum).unwrap();
                let expected: Vec<f32> = gradient.iter().map(|g| naive.rounded(*g)).collect();
                prop_assert_eq!(&sum, &expected);
            }
        }
    }

    #[test]
    fn infinities_are_refused() {
        let seat = Seat::alone(1, 3);
        for (format, word) in [(Precision::Fp16, 0x7c00u16), (Precision::Bf16, 0xff80)] {
            let half = Config { format, ..Config::default() }.build(&seat);
            assert!(half.decode_add(&word.to_le_bytes(), 1.0, &mut [0.0]).is_err());
        }
    }
}
