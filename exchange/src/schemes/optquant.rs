//! Random rounding to levels that are optimised during training for the distribution that the
//! gradients of all ranks have.
//!
//! # Paper
//! He et al. 2019 ("OptQuant: Distributed training of neural networks with optimized quantization
//! mechanisms", Neurocomputing 340). Only its abstract was within our reach: **this is a reconstruction
//! from the abstract**, which states parameterised unbiased mechanisms, optimised dynamically during
//! training from aggregated information about the gradients, and parameterised biased ones.
//!
//! # Idea
//! Divide each block by its largest magnitude and round at random between neighbouring levels, so
//! that nothing is lost on average. The rounding's variance depends on where the levels lie:
//! every so often pool a histogram of the ranks' normalised gradients and solve for the best.
//!
//! # Wire
//! A flag; levels, scales and codes; now and then the statistic. With L = 2^bits:
//!
//! | bytes | what |
//! |---|---|
//! | 1 | 1 when a statistic follows the codes |
//! | 4·L | the levels, f32 |
//! | 4·⌈n/block⌉ | each block's largest magnitude, f32 |
//! | ⌈n·bits/8⌉ | the number of each element's level |
//! | 0 or 8 + 4·508 (biased: 8 + 4·762) | total weight, f64; the histogram's terms over it, f32 |
//!
//! # State
//! The shared levels, and the moving average of the statistic behind them.
//!
//! # How the levels are found
//! Weighted by the square of its block's scale (aggregation weighs errors so), each element falls
//! into one of 254 bins with edges ±(k/127)², of which sums of w, w·u and w·u² are kept. Among
//! levels on the edges the expected error is exact and its minimum is found by dynamic
//! programming. Without bias the end levels are ±1. With bias, λ·bias² + variance is minimised:
//! the best probability of rounding up at t of the way is clip(½ + κ(t − ½)), κ = λ/(λ − 1), and
//! the end levels are free (what lies beyond is clipped). λ = 1 rounds to the nearest level.
//!
//! # Where we differ
//! The family of levels, the objective and the solver are ours. Levels travel in every message
//! (32 bytes at 3 bits), so that a message can be read by itself.
//!
//! # Feedback
//! Without `lambda` the rounding is unbiased and feedback is refused: it would feed back variance.
//! With `lambda` feedback is possible, and is what small λ need to converge. The expected error is
//! at most λ times that of rounding to the nearest of its best levels, which is 0.50, 0.18 and 0.05 of
//! the squared norm for 2, 4 and 8 levels and Laplace distributed elements: a contraction for such
//! gradients up to λ = 2^bits (with one bit below it), beyond which feedback is refused. No λ makes a contraction of it for
//! every gradient: where no level is 0, zeros do not stay zeros.

use crate::compress::adaptive::{Adaptive, AdaptiveSettings, LevelFit, Statistics};
use crate::compress::histogram::{Aim, Distribution, EDGES, Solver, bin, edges};
use crate::compress::rounding::Rounder;
use crate::compress::scheme::require;
use crate::compress::{Built, Law, Properties, Seat, Soundness};
use crate::{Result, Scheme};

const BINS: usize = EDGES - 1;

settings! {
    /// The settings of `optquant`.
    pub struct Config {
        /// Bits of each element's code, 1 to 5: 2^bits levels, signs among them. Default 3.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 5)))]
        pub bits: u32 = 3,
        /// Elements that share a scale, a multiple of 8. Default 512.
        #[cfg_attr(feature = "schema", schemars(range(min = 8, max = 1 << 20), extend("multipleOf" = 8)))]
        pub block: usize = 512,
        /// Where the distribution comes from. Default `pooled`.
        pub statistics: Statistics = Statistics::Pooled,
        /// Steps between two optimisations; there are more at steps 1, 10 and 30. Default 100.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub refresh: u64 = 100,
        /// Share that the older statistic keeps when a new one comes, below 1. Default 0.9.
        #[cfg_attr(feature = "schema", schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0)))]
        pub memory: f64 = 0.9,
        /// Weight λ of the squared bias against the variance, 1 or more; left out, there is no bias.
        /// For N ranks with equal biases λ = N is best for the mean without feedback, 2 with it.
        /// Default: left out.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1.0)))]
        pub lambda: Option<f64> = None,
        /// Whether what is not sent is added to the next gradient: only with a `lambda` of at most 2^bits. Default false.
        pub feedback: bool = false,
    }
}

impl Config {
    fn adaptive(&self) -> AdaptiveSettings {
        AdaptiveSettings {
            rounder: Rounder { bits: self.bits, block: self.block },
            statistics: self.statistics,
            refresh: self.refresh,
            memory: self.memory,
            sharpness: self.lambda.map_or(1.0, |lambda| (1.0 - 1.0 / lambda) as f32),
        }
    }
}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        Properties {
            name: "optquant",
            line: "random rounding to levels optimised for the pooled distribution",
            paper: "He et al. 2019 (reconstruction from the abstract)",
            law: if self.lambda.is_none() { Law::Unbiased } else { Law::Biased },
            soundness: match self.lambda {
                Some(lambda) if lambda <= f64::from(1 << self.bits.min(30)) => Soundness::Sound,
                Some(_) => Soundness::Unsound(
                    "with `lambda` above 2^bits it is nearly unbiased and its variance would be fed back",
                ),
                None => Soundness::Unsound(
                    "without `lambda` it is unbiased and its variance would be fed back",
                ),
            },
            feedback: self.feedback,
        }
    }

    fn validate(&self) -> Result<()> {
        let scheme = self.about().name;
        self.adaptive().validate(scheme)?;
        let Some(lambda) = self.lambda else { return Ok(()) };
        let wanted = "write a number of 1 or more, or leave it out for no bias";
        require((1.0..f64::INFINITY).contains(&lambda), scheme, "lambda", lambda, wanted)
    }

    fn build(&self, seat: &Seat) -> Built {
        let aim = self.lambda.map_or(Aim::Unbiased, Aim::Biased);
        Built::codec(Adaptive::new(seat, self.adaptive(), Histogram::new(aim, 1 << self.bits)))
    }

    fn examples() -> Vec<Self> {
        let with = |bits| Self { bits, ..Self::default() };
        let biased = |lambda, feedback| Self { lambda: Some(lambda), feedback, ..with(2) };
        vec![
            with(2),
            Self { statistics: Statistics::Aggregate, ..with(4) },
            Self { statistics: Statistics::None, ..with(3) },
            Self { block: 8, ..with(1) },
            biased(2.0, true),
            biased(1.0, false),
        ]
    }
}

/// The moment histogram as a statistic.
struct Histogram {
    aim: Aim,
    distribution: Distribution,
    solver: Solver,
    levels: Vec<f64>,
}

impl Histogram {
    fn new(aim: Aim, levels: usize) -> Self {
        let distribution = Distribution::on(edges());
        Self { aim, distribution, solver: Solver::default(), levels: vec![0.0; levels] }
    }
}

impl LevelFit for Histogram {
    fn terms(&self) -> usize {
        // Without bias Σw·u² shifts the error of all levels alike.
        if self.aim == Aim::Unbiased { 2 * BINS } else { 3 * BINS }
    }

    fn weights(&self) -> usize {
        BINS
    }

    fn gather(&self, block: &[f32], scale: f32, sums: &mut [f64]) {
        let scale = f64::from(scale);
        let weight = scale * scale;
        let (first, rest) = sums.split_at_mut(BINS);
        let (second, third) = rest.split_at_mut(BINS);
        for value in block {
            let u = f64::from(*value) / scale;
            let bin = bin(u);
            first[bin] += weight;
            second[bin] += weight * u;
            if let Some(third) = third.get_mut(bin) {
                *third += weight * u * u;
            }
        }
    }

    fn solve(&mut self, terms: &[f64], levels: &mut [f32]) {
        let term = |order: usize, bin: usize| terms.get(order * BINS + bin).copied();
        let moments = |bin| std::array::from_fn(|order| term(order, bin).unwrap_or(0.0));
        self.distribution.fill((0..BINS).map(moments));
        self.solver.solve(&self.distribution, self.aim, &mut self.levels);
        for (level, exact) in levels.iter_mut().zip(&self.levels) {
            *level = *exact as f32;
        }
    }
}

#[cfg(test)]
mod tests;
