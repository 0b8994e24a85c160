//! Natural compression: the nearest powers of two, chosen at random.
//!
//! # Paper
//! Horváth, Ho, Horváth, Sahu, Canini & Richtárik 2019 ("Natural Compression for Distributed Deep
//! Learning"), section 2: C_nat rounds |t| to 2^⌊log2|t|⌋ or 2^⌈log2|t|⌉ without bias.
//!
//! # Idea
//! Sign and exponent of an f32 are sent, its mantissa is not: a random mantissa added to it
//! carries into the exponent with just the probability that rounding up needs. Nine bits, and a
//! variance of at most ⅛ of the gradient's square.
//!
//! # Wire
//! | bytes | what |
//! |---|---|
//! | ⌈n/8⌉ | the signs |
//! | n | the exponents as in f32: 0 is zero, 1 to 254 are 2^(e − 127) |
//!
//! # Where we differ
//! Subnormal numbers go to 0 or 2^−126, still without bias. Gradients with an element beyond 2^127,
//! whose upper neighbour is none of f32, are sent as they are.
use crate::compress::{Built, Compressor, Encoded, Law, Properties, Seat, Soundness};
use crate::rng::Stream;
use crate::simd::wide;
use crate::wire::Fault;
use crate::wire::codes::{self, BLOCK};
use crate::{Result, Scheme};

settings! {
    /// The settings of `natural`.
    pub struct Config {
        /// Error feedback, which is of no use to unbiased rounding. Default false.
        pub feedback: bool = false,
    }
}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        Properties {
            name: "natural",
            line: "sign and exponent of every element, the mantissa rounded at random: nine bits",
            paper: "Horváth et al. 2019",
            law: Law::Unbiased,
            soundness: Soundness::Unsound("its rounding is unbiased, and its variance is fed back"),
            feedback: self.feedback,
        }
    }

    fn build(&self, seat: &Seat) -> Built {
        Built::codec(Natural { seat: seat.clone() })
    }
}

struct Natural {
    seat: Seat,
}

impl Compressor for Natural {
    fn encode(&mut self, gradient: &[f32], step: u64, out: &mut Vec<u8>) -> Encoded {
        crate::compress::signs::put(gradient, out);
        let stream = Stream::at(&self.seat, step);
        out.reserve(gradient.len());
        let mut exponents = [0; BLOCK];
        let mut most = 0;
        for (number, some) in gradient.chunks(BLOCK).enumerate() {
            let exponents = &mut exponents[..some.len()];
            most = most.max(round(some, stream, (number * BLOCK) as u32, exponents));
            out.extend_from_slice(exponents);
        }
        // An infinite neighbour may come of it, depending on chance: decide by the gradient.
        const LARGEST: u32 = 254 << 23;
        if most > LARGEST { Encoded::Dense } else { Encoded::Message }
    }

    fn decode_add(&self, wire: &[u8], _start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        let length = sum.len();
        let expected = codes::bytes(length, 1) + length;
        let split = wire.len() == expected;
        let fault = Fault::Length { expected, found: wire.len() };
        let (signs, exponents) =
            wire.split_at_checked(codes::bytes(length, 1)).filter(|_| split).ok_or(fault)?;
        codes::expect(signs, length, 1)?.each_block(|first, signs| {
            let exponents = &exponents[first..first + signs.len()];
            let sum = &mut sum[first..first + signs.len()];
            if exponents.contains(&255) {
                return Err(Fault::Field { field: "exponent", found: 255 });
            }
            wide!({
                for ((sum, exponent), sign) in sum.iter_mut().zip(exponents).zip(signs) {
                    let bits = u32::from(*exponent) << 23 | u32::from(*sign) << 31;
                    *sum += weight * f32::from_bits(bits);
                }
            });
            Ok(())
        })?;
        Ok(())
    }
}

/// The exponents after random rounding; returns the bits of the largest magnitude.
fn round(gradient: &[f32], stream: Stream, first: u32, exponents: &mut [u8]) -> u32 {
    wide!({
        let mut most = 0;
        for (i, (exponent, value)) in exponents.iter_mut().zip(gradient).enumerate() {
            let magnitude = value.to_bits() & 0x7fff_ffff;
            most = most.max(magnitude);
            let carried = magnitude + (stream.bits(first + i as u32) >> 9);
            *exponent = (carried >> 23).min(254) as u8;
        }
        most
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::testing::round_trip;

    fn run(gradient: &[f32], step: u64) -> Vec<f32> {
        let (wire, decoded) = round_trip(&Config::default(), gradient, step);
        assert_eq!(wire.len(), gradient.len() + gradient.len().div_ceil(8));
        decoded
    }

    #[test]
    fn powers_of_two_and_zeros_arrive_exactly() {
        let gradient = [1.0, -2.0, 0.0, 0.5f32.powi(126), -2f32.powi(127), 0.25];
        assert_eq!(run(&gradient, 1), gradient);
    }

    /// The naive rounding: up with probability (|t| − 2^a)/2^a, for all magnitudes.
    #[test]
    fn neighbours_are_chosen_as_the_paper_says() {
        const STEPS: u64 = 4000;
        let gradient = [1.25, -3.0, 0.011, 1e30, -2e-39, 1.999];
        let mut mean = [0.0; 6];
        for step in 1..=STEPS {
            for ((value, decoded), mean) in gradient.iter().zip(run(&gradient, step)).zip(&mut mean)
            {
                let low = f64::from(value.abs()).log2().floor().exp2();
                let decoded = f64::from(decoded);
                let tiny = value.abs() < f32::MIN_POSITIVE;
                let two =
                    [if tiny { 0.0 } else { low }, if tiny { 0.5f64.powi(126) } else { 2.0 * low }];
                assert!(two.contains(&decoded.abs()), "{value} {decoded}");
                *mean += decoded / f64::from(*value) / STEPS as f64;
            }
        }
        // The tiny one has a relative deviation of √(2^−126/2e−39 − 1) = 2.2, the others at most ⅓.
        assert!(mean.iter().all(|mean| (mean - 1.0).abs() < 4.5 * 2.3 / (STEPS as f64).sqrt()));
    }
}
