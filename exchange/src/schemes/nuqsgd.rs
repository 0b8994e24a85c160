//! Levels at powers of two of a block's norm, rounded at random.
//!
//! # Paper
//! Ramezani-Kebrya, Faghri, Markov, Aksenov, Alistarh & Roy 2021 ("NUQSGD: Provably
//! Communication-efficient Data-parallel SGD via Nonuniform Quantization", JMLR 22), section 3:
//! levels 0, 2^−s, …, 1/4, 1/2, 1 of the L2 norm.
//!
//! # Idea
//! Of a long vector most elements are far below its norm; equal distances waste levels above them.
//! Halving distances keep the variance relative to each element instead: between two powers it is
//! at most ⅛ of the element's square.
//!
//! # Wire
//! | bytes | what |
//! |---|---|
//! | 4·blocks | the norm of each block, f32 |
//! | ⌈n·w/8⌉ | a sign and a level each, w = 1 + ⌈log2(levels + 1)⌉ bits |
//!
//! # Where we differ
//! `levels` counts the levels above zero: the paper's s + 1. Blocks are of 512 by default, as
//! those of `qsgd`, so that the two compare. Scaling by the largest magnitude is offered too.

use super::qsgd::{OnLadder, check_levels};
use crate::compress::ladder::Powers;
use crate::compress::levels::Norm;
use crate::compress::{Built, Law, Properties, Seat, Soundness};
use crate::{Result, Scheme};

settings! {
    /// The settings of `nuqsgd`.
    pub struct Config {
        /// Levels above zero, 1 to 127: 2^(1 − levels), …, 1/2, 1. Default 7: 4 bits with the sign.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 127)))]
        pub levels: u8 = 7,
        /// What a block is scaled by. Default `l2`.
        pub norm: Norm = Norm::L2,
        /// Elements of a block; 0 for the whole bucket. Default 512.
        pub block: usize = 512,
        /// Error feedback, which does harm here: its variance is fed back. Default false.
        pub feedback: bool = false,
    }
}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        Properties {
            name: "nuqsgd",
            line: "levels at powers of two of a block's norm, rounded at random without bias",
            paper: "Ramezani-Kebrya et al. 2021",
            law: Law::Unbiased,
            soundness: Soundness::Unsound("its rounding is unbiased, and its variance is fed back"),
            feedback: self.feedback,
        }
    }

    fn validate(&self) -> Result<()> {
        check_levels(self.about().name, self.levels)
    }

    fn build(&self, seat: &Seat) -> Built {
        let Self { levels, norm, block, .. } = *self;
        Built::codec(OnLadder::new(Powers(levels), norm, block, seat))
    }

    fn examples() -> Vec<Self> {
        vec![
            Self { levels: 3, norm: Norm::Linf, block: 0, ..Self::default() },
            Self { levels: 127, ..Self::default() },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::testing::{mean_square_error, round_trip};

    /// Between neighbouring levels a and b an element r has the variance (b − r)(r − a).
    #[test]
    fn the_error_has_the_variance_of_the_closed_form() {
        const STEPS: u64 = 500;
        let gradient: Vec<f32> = (0..400).map(|i| (i as f32 * 0.7).sin() * 0.01).collect();
        let config = Config { levels: 5, block: 0, ..Config::default() };
        let scale = f64::from(Norm::L2.scale(&gradient));
        let levels = [0.0, 0.0625, 0.125, 0.25, 0.5, 1.0];
        let variance = |g: &f32| {
            let r = f64::from(g.abs()) / scale;
            let above = levels.iter().position(|level| *level > r).unwrap();
            (levels[above] - r) * (r - levels[above - 1]) * scale * scale
        };
        let expected: f64 = gradient.iter().map(variance).sum();
        let mean = mean_square_error(&config, &gradient, STEPS);
        assert!((mean / expected - 1.0).abs() < 0.05, "{mean} {expected}");
    }

    #[test]
    fn powers_of_two_of_the_norm_arrive_exactly() {
        let config = Config { norm: Norm::Linf, ..Config::default() };
        let gradient = [8.0, -4.0, 2.0, -0.125, 0.0, -8.0];
        assert_eq!(round_trip(&config, &gradient, 1).1, gradient);
    }
}
