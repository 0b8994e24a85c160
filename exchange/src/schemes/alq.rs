//! Adaptive levels of Faghri et al.: symmetric, without zero, for a mixture of truncated normals.
//!
//! # Paper
//! Faghri et al. 2020 ("Adaptive Gradient Quantization for Data-Parallel SGD", NeurIPS), ALQ by
//! coordinate descent, minimising the expected variance (not the normalised one).
//!
//! # Idea
//! As [`optquant`](crate::schemes::optquant), its nearest neighbour: random rounding between levels that
//! follow the gradients. But the distribution is summed up by means and variances of blocks, taken
//! for truncated normal ones, and each level in turn moves to where it is best between its
//! neighbours, until none moves.
//!
//! # Wire
//! | bytes | what |
//! |---|---|
//! | 1 | 1 when a statistic follows the codes |
//! | 4·2^bits | the levels, f32 |
//! | 4·⌈n/block⌉ | each block's largest magnitude, f32 |
//! | ⌈n·bits/8⌉ | the number of each element's level |
//! | 0 or 8 + 4·48 | total weight, f64; over it, f32: weights, weighted means, weighted mean squares |
//!
//! # State
//! The shared levels, and the moving average of the statistic behind them.
//!
//! # Where we differ
//! The paper's levels are a sign and a magnitude, of which zero is one; ours have no zero, as in its authors' code, so
//! that a zero arrives as the smallest level of either sign. Blocks are divided by their largest magnitude (the paper allows any norm; its runs take the L2
//! norm of 8192 elements), so that the end levels are reached. The mixture has 16 components: the
//! blocks whose deviations lie within the same half octave, instead of up to a few hundred sampled
//! blocks. The descent starts from uniform and from exponential levels and keeps the better end.
//! Integrals over the densities are sums over 254 bins. The multiplier variant AMQ and the
//! projected-gradient variant are not here.

use crate::compress::adaptive::{Adaptive, AdaptiveSettings, LevelFit, Statistics};
use crate::compress::histogram::{BinSums, Distribution, EDGES, edges};
use crate::compress::rounding::Rounder;
use crate::compress::{Built, Law, Properties, Seat, Soundness};
use crate::{Result, Scheme};

/// Components of the mixture, by half octaves of the deviation from 2⁻⁸ to 1.
const COMPONENTS: usize = 16;

/// The least deviation that a component is given, about that of a uniform density in the two
/// innermost bins.
const LEAST_DEVIATION: f64 = 4e-5;

settings! {
    /// The settings of `alq`.
    pub struct Config {
        /// Bits of each element's code, 1 to 5: 2^bits levels, half of them negative. Default 3.
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
    }
}

impl Config {
    fn adaptive(&self) -> AdaptiveSettings {
        AdaptiveSettings {
            rounder: Rounder { bits: self.bits, block: self.block },
            statistics: self.statistics,
            refresh: self.refresh,
            memory: self.memory,
            sharpness: 1.0,
        }
    }
}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        Properties {
            name: "alq",
            line: "random rounding to levels fitted to a mixture of truncated normals",
            paper: "Faghri et al. 2020",
            law: Law::Unbiased,
            soundness: Soundness::Unsound("it is unbiased and its variance would be fed back"),
            feedback: false,
        }
    }

    fn validate(&self) -> Result<()> {
        self.adaptive().validate(self.about().name)
    }

    fn build(&self, seat: &Seat) -> Built {
        Built::codec(Adaptive::new(seat, self.adaptive(), Mixture::new(1 << self.bits)))
    }

    fn examples() -> Vec<Self> {
        let with = |bits| Self { bits, ..Self::default() };
        vec![with(2), Self { statistics: Statistics::Aggregate, ..with(4) }]
    }
}

/// Means and variances of blocks as a statistic.
struct Mixture {
    distribution: Distribution,
    edges: Vec<f64>,
    bins: Vec<BinSums>,
    /// Two candidates, all levels of each.
    levels: [Vec<f64>; 2],
}

impl Mixture {
    fn new(levels: usize) -> Self {
        Self {
            distribution: Distribution::on(edges()),
            edges: edges(),
            bins: vec![[0.0; 3]; EDGES - 1],
            levels: [vec![0.0; levels], vec![0.0; levels]],
        }
    }

    /// Adds `weight` of a normal density truncated to [−1, 1] to the bins, by the three-point
    /// Gauss rule in each.
    fn spread(&mut self, weight: f64, mean: f64, deviation: f64) {
        const POINTS: [(f64, f64); 3] = [
            (-0.774_596_669_241_483_4, 5.0 / 18.0),
            (0.0, 4.0 / 9.0),
            (0.774_596_669_241_483_4, 5.0 / 18.0),
        ];
        let density = |u: f64| (-0.5 * ((u - mean) / deviation).powi(2)).exp();
        let moments = |pair: &[f64]| {
            let (middle, half) = ((pair[0] + pair[1]) / 2.0, (pair[1] - pair[0]) / 2.0);
            let mut sums = [0.0; 3];
            for (at, share) in POINTS {
                let u = middle + at * half;
                let mass = 2.0 * half * share * density(u);
                (0..3).for_each(|i| sums[i] += mass * u.powi(i as i32));
            }
            sums
        };
        let whole: f64 = self.edges.windows(2).map(|pair| moments(pair)[0]).sum();
        if whole == 0.0 {
            // So narrow that no point of the rule comes near it.
            let bin =
                self.edges.partition_point(|edge| *edge <= mean).clamp(1, self.bins.len()) - 1;
            (0..3).for_each(|i| self.bins[bin][i] += weight * mean.powi(i as i32));
        } else {
            for (bin, pair) in self.bins.iter_mut().zip(self.edges.windows(2)) {
                let sums = moments(pair);
                (0..3).for_each(|i| bin[i] += weight / whole * sums[i]);
            }
        }
    }
}

impl LevelFit for Mixture {
    fn terms(&self) -> usize {
        3 * COMPONENTS
    }

    fn weights(&self) -> usize {
        COMPONENTS
    }

    fn gather(&self, block: &[f32], scale: f32, sums: &mut [f64]) {
        let (n, scale) = (block.len() as f64, f64::from(scale));
        let values = || block.iter().map(|value| f64::from(*value) / scale);
        let mean = values().sum::<f64>() / n;
        let squares = values().map(|value| value * value).sum::<f64>() / n;
        let variance = (squares - mean * mean).max(0.0);
        // Infinite for a constant block, and then clamped.
        let component = (-variance.log2()).clamp(0.0, COMPONENTS as f64 - 1.0) as usize;
        let weight = n * scale * scale;
        sums[component] += weight;
        sums[COMPONENTS + component] += weight * mean;
        sums[2 * COMPONENTS + component] += weight * squares;
    }

    fn solve(&mut self, terms: &[f64], levels: &mut [f32]) {
        self.bins.fill([0.0; 3]);
        for component in 0..COMPONENTS {
            let [weight, mean, squares] =
                std::array::from_fn(|order| terms[order * COMPONENTS + component]);
            if weight > 0.0 {
                let mean = mean / weight;
                // That of blocks about their means, and of their means about the component's.
                let variance = (squares / weight - mean * mean).max(0.0);
                self.spread(weight, mean, variance.sqrt().max(LEAST_DEVIATION));
            }
        }
        self.distribution.fill(self.bins.iter().copied());
        let half = levels.len() / 2;
        let starts: [fn(usize, usize) -> f64; 2] = [
            |j, half| (2 * j + 1) as f64 / (2 * half - 1) as f64,
            |j, half| 0.5f64.powi((half - 1 - j) as i32),
        ];
        for (levels, start) in self.levels.iter_mut().zip(starts) {
            for j in 0..half {
                levels[half + j] = start(j, half);
                levels[half - 1 - j] = -start(j, half);
            }
            descend(&self.distribution, levels);
        }
        let [first, second] = &self.levels;
        let better = self.distribution.variance(second) < self.distribution.variance(first);
        for (level, exact) in levels.iter_mut().zip(if better { second } else { first }) {
            *level = *exact as f32;
        }
    }
}

/// Moves each pair of levels ±l but the ends in turn to the zero of the variance's derivative,
/// found by bisection (it ascends between the neighbours), until none moves.
fn descend(of: &Distribution, levels: &mut [f64]) {
    const SWEEPS: usize = 40;
    const HALVINGS: usize = 18;
    const STILL: f64 = 1e-4;
    let half = levels.len() / 2;
    for _ in 0..SWEEPS {
        let mut moved = 0f64;
        for j in half..levels.len() - 1 {
            // The innermost level's lower neighbour is its own mirror image.
            let (low, high) = (if j == half { 0.0 } else { levels[j - 1] }, levels[j + 1]);
            let (mut from, mut to) = (low, high);
            for _ in 0..HALVINGS {
                let level = (from + to) / 2.0;
                let side = |low: f64, level: f64, high: f64| {
                    let [below, above] = [of.range(low, level), of.range(level, high)];
                    (below[1] - low * below[0]) - (high * above[0] - above[1])
                };
                let slope = if j == half {
                    let inside = of.range(-level, level)[0];
                    let outer = |low: f64, high: f64, end: f64| {
                        let sums = of.range(low, high);
                        (end * sums[0] - sums[1]).abs()
                    };
                    2.0 * level * inside - outer(level, high, high) - outer(-high, -level, -high)
                } else {
                    // The mirrored interval counts with its elements' signs turned round.
                    let [below, above] = [of.range(-level, -low), of.range(-high, -level)];
                    let mirrored = (-below[1] - low * below[0]) - (high * above[0] + above[1]);
                    side(low, level, high) + mirrored
                };
                if slope < 0.0 { from = level } else { to = level }
            }
            let level = (from + to) / 2.0;
            moved = moved.max((level - levels[j]).abs());
            levels[j] = level;
            levels[2 * half - 1 - j] = -level;
        }
        if moved < STILL {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::rounding::are_levels;

    fn solved(deviation: f64, count: usize) -> (Mixture, Vec<f32>) {
        let mut mixture = Mixture::new(count);
        let mut terms = vec![0.0; 3 * COMPONENTS];
        (terms[3], terms[2 * COMPONENTS + 3]) = (2.0, 2.0 * deviation * deviation);
        let mut levels = vec![0.0; count];
        mixture.solve(&terms, &mut levels);
        (mixture, levels)
    }

    #[test]
    fn levels_are_symmetric_without_zero_and_no_neighbour_is_better() {
        for (deviation, count) in [(0.1, 4), (0.1, 8), (0.3, 8), (0.02, 16), (1e-9, 8)] {
            let (mixture, levels) = solved(deviation, count);
            assert!(are_levels(&levels), "{levels:?}");
            let mirrored: Vec<f32> = levels.iter().rev().map(|level| -level).collect();
            assert_eq!(levels, mirrored);
            assert_eq!(levels[count - 1], 1.0);
            let levels: Vec<f64> = levels.iter().map(|level| f64::from(*level)).collect();
            let variance = |levels: &[f64]| mixture.distribution.variance(levels);
            // Much narrower than a bin, the variance is below what the grid can tell.
            let resolved = if deviation < 0.01 { 0 } else { count / 2 - 1 };
            for j in count / 2..count / 2 + resolved {
                for factor in [0.9, 1.1] {
                    let mut other = levels.clone();
                    other[j] = (levels[j] * factor).min((levels[j] + levels[j + 1]) / 2.0);
                    other[count - 1 - j] = -other[j];
                    let (here, there) = (variance(&levels), variance(&other));
                    assert!(here <= there * (1.0 + 1e-4), "{deviation} {j}: {here} > {there}");
                }
            }
        }
    }

    /// A gradient of one constant: no point of the rule lies within forty deviations of it.
    #[test]
    fn what_is_narrower_than_the_rule_sees_keeps_its_weight() {
        let mut mixture = Mixture::new(8);
        mixture.spread(2.0, 1.0, 4e-5);
        mixture.spread(1.0, -1.0, 4e-5);
        assert_eq!(mixture.bins.first().unwrap()[0], 1.0);
        assert_eq!(*mixture.bins.last().unwrap(), [2.0; 3]);
    }

    /// Blocks that differ in their means alone are as wide as their means lie apart.
    #[test]
    fn blocks_far_from_each_other_have_levels_where_their_values_are() {
        let mut mixture = Mixture::new(8);
        let (mut terms, mut levels) = (vec![0.0; mixture.terms()], [0.0; 8]);
        for sign in [1.0, -1.0] {
            let block = [0.9, 0.95, 1.0, 0.9, 0.95, 1.0, 0.9, 0.95].map(|value: f32| sign * value);
            mixture.gather(&block, 1.0, &mut terms);
        }
        mixture.solve(&terms, &mut levels);
        assert!(levels[4] > 0.1, "{levels:?}");
    }
}
