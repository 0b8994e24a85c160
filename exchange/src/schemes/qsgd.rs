//! Equally spaced levels of a block's norm, rounded at random.
//!
//! # Paper
//! Alistarh, Grubic, Li, Tomioka & Vojnovic 2017 ("QSGD: Communication-Efficient SGD via Gradient
//! Quantization and Encoding"), section 3.1: Q(g_i) = ‖g‖ · sgn(g_i) · ξ_i with ξ_i one of the
//! levels 0, 1/s, …, 1 around |g_i|/‖g‖.
//!
//! # Idea
//! A few levels are enough if rounding is unbiased: between l/s and (l + 1)/s the upper one is
//! taken with the probability s·|g_i|/‖g‖ − l. The price is variance: (‖g‖/s)² · Σ f(1 − f) with f
//! the fractional parts.
//!
//! # Wire
//! | bytes | what |
//! |---|---|
//! | 4·blocks | the norm of each block, f32 |
//! | ⌈n·w/8⌉ | a sign and a level each, w = 1 + ⌈log2(s + 1)⌉ bits |
//!
//! # State
//! None. Random numbers are a function of seed, rank, bucket, step and position.
//!
//! # Where we differ
//! The defaults are those of the paper's experiments: 4 bits (7 levels), blocks of 512, scaled by
//! the largest magnitude, which the paper proposes beside the L2 norm of its theory. (GRACE, which
//! many comparisons use, has 127 levels and the L2 norm of the whole tensor.) Levels are all of one
//! width, where the paper has Elias codes too. The level goes up where the
//! fractional part is larger than the random number; published code that has it the other way
//! round is biased and has many times the error. A block whose L2 norm is beyond 2^112 is scaled by
//! its largest magnitude, which is as unbiased: elements as large as that norm could not be added up.
use crate::compress::ladder::{Ladder, Uniform};
use crate::compress::levels::{self, Norm, Quantiser};
use crate::compress::scheme::require;
use crate::compress::{Built, Compressor, Encoded, Law, Properties, Seat, Soundness};
use crate::rng::Stream;
use crate::{Gauge, Result, Scheme};

settings! {
    /// The settings of `qsgd`.
    pub struct Config {
        /// Levels above zero, s: 1 to 127. Default 7: 4 bits with the sign.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 127)))]
        pub levels: u8 = 7,
        /// What a block is scaled by. Default `linf`.
        pub norm: Norm = Norm::Linf,
        /// Elements of a block; 0 for the whole bucket. Default 512.
        pub block: usize = 512,
        /// Error feedback, which does harm here: its variance is fed back. Default false.
        pub feedback: bool = false,
    }
}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        Properties {
            name: "qsgd",
            line: "equally spaced levels of a block's norm, rounded at random without bias",
            paper: "Alistarh et al. 2017",
            law: Law::Unbiased,
            soundness: Soundness::Unsound(
                "its rounding is unbiased, and its variance, larger than the gradient, is fed back",
            ),
            feedback: self.feedback,
        }
    }

    fn validate(&self) -> Result<()> {
        check_levels(self.about().name, self.levels)
    }

    fn build(&self, seat: &Seat) -> Built {
        let Self { levels, norm, block, .. } = *self;
        Built::codec(OnLadder::new(Uniform(levels), norm, block, seat))
    }

    fn examples() -> Vec<Self> {
        vec![
            Self { levels: 3, ..Self::default() },
            Self { levels: 127, norm: Norm::L2, block: 0, ..Self::default() },
            Self { levels: 4, block: 100, ..Self::default() },
            Self { levels: 1, norm: Norm::L2, ..Self::default() },
        ]
    }
}

/// Refuses numbers of levels that no code holds.
pub(super) fn check_levels(scheme: &'static str, levels: u8) -> Result<()> {
    let wanted = "write 1 to 127 levels above zero";
    require((1..=127).contains(&levels), scheme, "levels", levels, wanted)
}

/// Blocks of a gradient on the rungs of one ladder: all of this scheme and of `nuqsgd` but the
/// ladder.
pub(super) struct OnLadder<L> {
    ladder: L,
    norm: Norm,
    block: usize,
    seat: Seat,
    quantiser: Quantiser,
    gauges: Vec<Gauge>,
}

impl<L> OnLadder<L> {
    pub(super) fn new(ladder: L, norm: Norm, block: usize, seat: &Seat) -> Self {
        let (seat, gauges) = (seat.clone(), Vec::with_capacity(1));
        Self { ladder, norm, block, seat, quantiser: Quantiser::default(), gauges }
    }
}

impl<L: Ladder + Send> Compressor for OnLadder<L> {
    fn encode(&mut self, gradient: &[f32], step: u64, out: &mut Vec<u8>) -> Encoded {
        let Self { ladder, norm, block, .. } = *self;
        let start = out.len();
        self.quantiser.put_scales(gradient, block, |some| norm.scale(some), out);
        let stream = Stream::at(&self.seat, step);
        self.quantiser.put_codes(gradient, block, ladder, stream, out);
        self.gauges.clear();
        self.gauges.push(levels::bits_gauge(out.len() - start, gradient.len()));
        Encoded::Message
    }

    fn decode_add(&self, wire: &[u8], _start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        Ok(levels::add(wire, self.block, self.ladder, weight, sum)?)
    }

    fn gauges(&self) -> &[Gauge] {
        &self.gauges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::testing::{mean_square_error, round_trip, square};

    fn ramp(length: usize) -> Vec<f32> {
        (0..length).map(|i| (i as f32 * 0.7).sin() * (1.0 + (i % 13) as f32)).collect()
    }

    #[test]
    fn the_message_is_norms_and_codes() {
        let config = Config { levels: 3, block: 2, ..Config::default() };
        let (wire, sum) = round_trip(&config, &[3.0, -2.0, 0.0, 0.0, -1.5], 1);
        let scales = [3f32, 0.0, 1.5].map(f32::to_le_bytes).concat();
        // Levels 3, 2 (exactly), 0, 0, 3, the sign above them: 011 110 000 000 111.
        assert_eq!(wire, [&scales[..], &[0b0011_0011, 0b0111_0000]].concat());
        assert_eq!(sum, [3.0, -2.0, 0.0, 0.0, -1.5]);
        let (wire, _) = round_trip(&Config { levels: 3, ..Config::default() }, &ramp(5120), 1);
        assert_eq!(wire.len() * 8, 5120 * 3 + 10 * 32, "3.0625 bits");
    }

    /// The paper's variance, (‖g‖/s)² Σ f(1 − f), and its bound min(n/s², √n/s)·‖g‖².
    #[test]
    fn the_error_has_the_variance_of_the_closed_form() {
        const STEPS: u64 = 400;
        let gradient = ramp(600);
        for (norm, levels) in [(Norm::L2, 1), (Norm::L2, 9), (Norm::Linf, 3), (Norm::Linf, 127)] {
            let config = Config { levels, norm, block: 0, ..Config::default() };
            let (scale, s) = (f64::from(norm.scale(&gradient)), f64::from(levels));
            let f = gradient.iter().map(|g| (f64::from(g.abs()) / scale * s).fract());
            let expected = (scale / s).powi(2) * f.map(|f| f * (1.0 - f)).sum::<f64>();
            let mean = mean_square_error(&config, &gradient, STEPS);
            assert!((mean / expected - 1.0).abs() < 0.05, "{norm:?} {levels}: {mean} {expected}");
            let whole = square(&gradient);
            let n = gradient.len() as f64;
            assert!(norm == Norm::Linf || expected <= (n / s / s).min(n.sqrt() / s) * whole);
        }
    }

    #[test]
    fn blocks_whose_norm_is_beyond_f32_are_scaled_by_their_largest_magnitude() {
        let config = Config { norm: Norm::L2, ..Config::default() };
        assert_eq!(round_trip(&config, &[2e38; 9], 1).1, [2e38; 9]);
    }
}
