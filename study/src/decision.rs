//! What a few seeds decide about a claim: whether the truth lies within the claim's bounds, outside
//! of them, or neither yet.
//!
//! Each side of an interval is wrong with a probability of at most [`SIDE`]. That is a one-sided test
//! where a claim has one bound, and two one-sided tests, each at 5 %, where it has two (equivalence:
//! Schuirmann 1987, "A comparison of the two one-sided tests procedure and the power approach"), so
//! that the interval shown is the 90 % one. The opposite of a claim with two bounds can be wrong on
//! either side: there each side has half the error, so that it is the 95 % interval that must lie
//! outside.
//!
//! Who looks several times has several chances to be wrong. What may be wrong in all is spent over the
//! looks, by the function of Lan and DeMets (1983, "Discrete sequential boundaries for clinical trials")
//! that is like Pocock's: up to the share t of the seeds, SIDE·ln(1 + (e − 1)t). Each [`Look`] has what is
//! spent since the one before, so that all together err no more often than SIDE (Boole). What one look
//! decides stays decided: later seeds do not count for it.

use crate::statistics::{Estimate, correlation};

/// How probable it may be that a decision is wrong: that the truth lies outside of the bounds where
/// the claim is called reproduced, or within them where it is called contradicted.
pub const SIDE: f64 = 0.05;

/// Seeds after which `--until-decided` looks at the verdicts.
pub const LOOKS: [usize; 3] = [3, 6, 10];

/// One look at the verdicts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    /// How many seeds count, the first ones.
    pub seeds: usize,
    /// How probable a wrong decision may be on each side of an interval.
    pub side: f64,
}

/// The looks at verdicts that may be looked at so many times: once, or at [`LOOKS`].
pub fn looks(times: usize) -> Vec<Look> {
    if times <= 1 {
        return vec![Look { seeds: usize::MAX, side: SIDE }];
    }
    let last = LOOKS[LOOKS.len() - 1] as f64;
    let spent = |seeds: usize| SIDE * ((std::f64::consts::E - 1.0) * seeds as f64 / last).ln_1p();
    let before = std::iter::once(0).chain(LOOKS);
    let look = |(before, seeds)| Look { seeds, side: spent(seeds) - spent(before) };
    before.zip(LOOKS).map(look).collect()
}

/// The most seeds that are looked for when a claim is undecided; beyond, no number is given.
pub const MOST_SEEDS: usize = 1000;

/// How numbers of seeds are averaged and compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Average {
    /// As they are: accuracies, losses, their differences.
    Arithmetic,
    /// By their logarithms: factors, savings and times. No end of an interval is negative.
    Geometric,
}

impl Average {
    /// The number that is averaged.
    fn apply(self, value: f64) -> f64 {
        match self {
            Self::Arithmetic => value,
            Self::Geometric => value.ln(),
        }
    }

    /// What an average of such numbers stands for.
    fn undo(self, value: f64) -> f64 {
        match self {
            Self::Arithmetic => value,
            Self::Geometric => value.exp(),
        }
    }
}

/// The numbers of the seeds.
#[derive(Clone, Debug, PartialEq)]
pub enum Sample {
    /// One number of each seed.
    One(Vec<f64>),
    /// Two numbers of each seed, `a` and `b`: both runs had the same data in the same order and the
    /// same start, so that what the seed does to both alike drops out.
    Paired(Vec<(f64, f64)>),
    /// Numbers of `a` and of `b` that have nothing in common.
    Apart(Vec<f64>, Vec<f64>),
}

/// What is estimated from a sample: its mean, or `a` less `b`, or `a` over `b` where averages are
/// geometric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimated {
    average: Average,
    estimate: Estimate,
    /// How the two numbers of a seed vary together.
    pub correlation: Option<f64>,
    /// The estimate that treats the two numbers of a seed as unrelated.
    welch: Option<Estimate>,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The whole interval lies within the bounds.
    Within,
    /// The whole interval lies outside of them, at the error of [`Bounds::side_outside`].
    Outside,
    /// It straddles a bound.
    Straddles,
}

/// What a claim allows: the least and the most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds(pub Option<f64>, pub Option<f64>);

impl Bounds {
    fn hold(self, [low, high]: [f64; 2]) -> bool {
        self.0.is_none_or(|least| least <= low) && self.1.is_none_or(|most| high <= most)
    }

    fn exclude(self, [low, high]: [f64; 2]) -> bool {
        self.0.is_some_and(|least| high < least) || self.1.is_some_and(|most| low > most)
    }

    /// The error on each side of the interval that must lie outside of the bounds, so that a truth
    /// within them is missed with a probability of at most `side`: half of it where the interval may
    /// lie on either side of them.
    pub fn side_outside(self, side: f64) -> f64 {
        match self {
            Self(Some(_), Some(_)) => side / 2.0,
            _ => side,
        }
    }
}

impl Estimated {
    /// From the numbers of the seeds; `None` where there is none, or one is not finite, or not
    /// above zero where its logarithm is needed.
    pub fn new(average: Average, sample: &Sample) -> Option<Self> {
        let all =
            |values: &[f64]| values.iter().map(|value| average.apply(*value)).collect::<Vec<_>>();
        let (estimate, correlation, welch) = match sample {
            Sample::One(values) => (Estimate::new(&all(values))?, None, None),
            Sample::Apart(a, b) => (Estimate::welch(&all(a), &all(b))?, None, None),
            Sample::Paired(pairs) => {
                let pairs: Vec<(f64, f64)> =
                    pairs.iter().map(|(a, b)| (average.apply(*a), average.apply(*b))).collect();
                let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
                (Estimate::paired(&pairs)?, correlation(&pairs), Estimate::welch(&a, &b))
            }
        };
        Some(Self { average, estimate, correlation, welch })
    }

    /// The mean, or the difference of means, or the ratio of geometric means.
    pub fn mean(&self) -> f64 {
        self.average.undo(self.estimate.mean)
    }

    /// Seeds of the smaller group.
    pub fn seeds(&self) -> usize {
        self.estimate.seeds()
    }

    /// Both ends of the interval; `None` for one seed.
    pub fn ends(&self, side: f64) -> Option<[f64; 2]> {
        Some(self.estimate.ends(side)?.map(|end| self.average.undo(end)))
    }

    /// The same interval by Welch, as if the numbers of a seed had nothing in common; `None` where
    /// they are no pairs.
    pub fn welch(&self, side: f64) -> Option<[f64; 2]> {
        Some(self.welch?.ends(side)?.map(|end| self.average.undo(end)))
    }

    /// What follows when a decision may be wrong with the probability `side`. One seed decides by its
    /// number alone: whether it may is for the caller to decide.
    pub fn decide(&self, bounds: Bounds, side: f64) -> Decision {
        let ends = |side| self.ends(side).unwrap_or([self.mean(); 2]);
        let outside = bounds.exclude(ends(bounds.side_outside(side)));
        match (bounds.hold(ends(side)), outside) {
            (true, _) => Decision::Within,
            (false, true) => Decision::Outside,
            (false, false) => Decision::Straddles,
        }
    }

    /// How many seeds beyond those that there are would decide, if mean and deviation stayed as they
    /// are; `None` for more than [`MOST_SEEDS`].
    pub fn more_seeds(&self, bounds: Bounds, side: f64) -> Option<usize> {
        let more = |side: f64, decides: fn(Bounds, [f64; 2]) -> bool| {
            self.estimate.more_seeds(side, MOST_SEEDS, |ends| {
                decides(bounds, ends.map(|end| self.average.undo(end)))
            })
        };
        // The mean lies within the bounds or outside of them: only one of both can come.
        more(side, Bounds::hold).or_else(|| more(bounds.side_outside(side), Bounds::exclude))
    }

    /// The same where seeds are looked at in several looks: how many seeds more the first of the looks that are still to
    /// come takes that would decide; `None` where none of them would. An error of a look is shared by so many tasks.
    pub fn more_seeds_of_looks(&self, bounds: Bounds, looks: &[Look], tasks: f64) -> Option<usize> {
        let there = self.seeds();
        let decides = |look: &&Look| {
            let side = look.side / tasks;
            let ends = |side| {
                let ends = self.estimate.ends_with((look.seeds - there) as u64, side)?;
                Some(ends.map(|end| self.average.undo(end)))
            };
            ends(side).is_some_and(|ends| bounds.hold(ends))
                || ends(bounds.side_outside(side)).is_some_and(|ends| bounds.exclude(ends))
        };
        let later = looks.iter().filter(|look| look.seeds > there && look.seeds <= MOST_SEEDS);
        Some(later.into_iter().find(decides)?.seeds - there)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use gradwire_exchange::rng::Stream;
    use statrs::distribution::{ContinuousCDF, Normal};

    /// Draws from normal distributions, the same in every run.
    pub(crate) struct Draws(Stream, u32);

    impl Draws {
        pub(crate) fn new(seed: u64) -> Self {
            Self(Stream::new(&[seed]), 0)
        }

        pub(crate) fn normal(&mut self, mean: f64, deviation: f64) -> f64 {
            self.1 += 1;
            let uniform = f64::from(self.0.uniform(self.1)).clamp(1e-7, 1.0 - 1e-7);
            mean + deviation * Normal::new(0.0, 1.0).unwrap().inverse_cdf(uniform)
        }

        /// Accuracies of an arm and of its baseline over `seeds` seeds, `difference` apart, which vary
        /// by two points together and by one each.
        fn pairs(&mut self, seeds: usize, difference: f64) -> Vec<(f64, f64)> {
            let pair = |_| {
                let both = self.normal(0.9, 0.02);
                (both + difference + self.normal(0.0, 0.01), both + self.normal(0.0, 0.01))
            };
            (0..seeds).map(pair).collect()
        }
    }

    fn decide(sample: &Sample, bounds: Bounds, side: f64) -> Decision {
        Estimated::new(Average::Arithmetic, sample).unwrap().decide(bounds, side)
    }

    /// How often each decision is made in `TRIALS` experiments: within, outside, straddling.
    fn shares(mut decision: impl FnMut() -> Decision) -> [f64; 3] {
        const TRIALS: u32 = 2000;
        let mut counts = [0u32; 3];
        for _ in 0..TRIALS {
            let place = match decision() {
                Decision::Within => 0,
                Decision::Outside => 1,
                Decision::Straddles => 2,
            };
            counts[place] += 1;
        }
        counts.map(|count| f64::from(count) / f64::from(TRIALS))
    }

    /// At the edge of what is claimed, either decision is wrong as often as it may be. The deviation of
    /// a share of 5 % over 2,000 trials is half a percent.
    #[test]
    fn at_a_bound_each_decision_is_made_in_five_of_a_hundred() {
        let bounds = Bounds(Some(-0.01), None);
        for seeds in [3, 6] {
            let mut draws = Draws::new(seeds as u64);
            let paired =
                shares(|| decide(&Sample::Paired(draws.pairs(seeds, -0.01)), bounds, SIDE));
            let apart = shares(|| {
                let mut arm = |mean, deviation| {
                    (0..seeds).map(|_| draws.normal(mean, deviation)).collect::<Vec<_>>()
                };
                let sample = Sample::Apart(arm(0.89, 0.01), arm(0.9, 0.02));
                decide(&sample, bounds, SIDE)
            });
            for [within, outside, _] in [paired, apart] {
                assert!((0.03..0.065).contains(&within), "{seeds} seeds: {within}");
                assert!((0.03..0.065).contains(&outside), "{seeds} seeds: {outside}");
            }
        }
    }

    #[test]
    fn equivalence_is_shown_by_both_one_sided_tests() {
        let bounds = Bounds(Some(-0.02), Some(0.02));
        let mut draws = Draws::new(7);
        let of = |draws: &mut Draws, difference| {
            shares(|| decide(&Sample::Paired(draws.pairs(10, difference)), bounds, SIDE))
        };
        let [within, outside, _] = of(&mut draws, 0.0);
        assert!(within > 0.9 && outside == 0.0, "{within} {outside}");
        for edge in [-0.02, 0.02] {
            let [within, outside, _] = of(&mut draws, edge);
            assert!(within < 0.065 && outside < 0.065, "{within} {outside}");
        }
        let [within, outside, _] = of(&mut draws, 0.05);
        assert!(within == 0.0 && outside > 0.9, "{within} {outside}");
    }

    /// A window that is narrow against the deviation can be missed on either side: both together err
    /// in five of a hundred. With all of the error on each side, which is what half of twice the error
    /// is, they would err nearly twice as often.
    #[test]
    fn a_narrow_window_is_missed_in_five_of_a_hundred() {
        let bounds = Bounds(Some(-0.0002), Some(0.0002));
        let of = |seeds: usize, difference: f64, side: f64| {
            let mut draws = Draws::new(20 + seeds as u64);
            shares(|| decide(&Sample::Paired(draws.pairs(seeds, difference)), bounds, side))
        };
        for seeds in [3, 10] {
            for truth in [-0.0002, 0.0, 0.0002] {
                let [within, outside, _] = of(seeds, truth, SIDE);
                assert!(within < 0.01, "{seeds} seeds at {truth}: {within}");
                assert!((0.025..0.06).contains(&outside), "{seeds} seeds at {truth}: {outside}");
            }
            let [_, outside, _] = of(seeds, 0.0, 2.0 * SIDE);
            assert!(outside > 0.075, "uncorrected, {seeds} seeds: {outside}");
        }
    }

    /// Three seeds, then six, then ten, until something is decided, with a truth at the bound: each
    /// wrong decision stays below five of a hundred only when the error is spent over the looks.
    #[test]
    fn looking_three_times_is_paid_for() {
        let bounds = Bounds(Some(-0.01), None);
        let decided = |looks: &[Look]| {
            let mut draws = Draws::new(11);
            shares(|| {
                let pairs = draws.pairs(10, -0.01);
                let decisions = looks.iter().map(|look| {
                    decide(&Sample::Paired(pairs[..look.seeds].to_vec()), bounds, look.side)
                });
                let mut decisions = decisions.skip_while(|of| *of == Decision::Straddles);
                decisions.next().unwrap_or(Decision::Straddles)
            })
        };
        let [within, outside, _] = decided(&looks(3));
        assert!(within <= 0.055 && outside <= 0.055, "{within} {outside}");
        assert!(within >= 0.03 && outside >= 0.03, "not much is given away: {within} {outside}");
        let whole = LOOKS.map(|seeds| Look { seeds, side: SIDE });
        let [within, outside, _] = decided(&whole);
        assert!(within > 0.08 && outside > 0.08, "uncorrected: {within} {outside}");
    }

    /// The increments of 0.05·ln(1 + (e − 1)t) at t = 0.3, 0.6 and 1.
    #[test]
    fn the_error_is_spent_once() {
        let sides: Vec<f64> = looks(3).iter().map(|look| look.side).collect();
        for (found, expected) in sides.iter().zip([0.020_787, 0.014_639, 0.014_574]) {
            assert!((found - expected).abs() < 1e-6, "{sides:?}");
        }
        assert!((sides.iter().sum::<f64>() - SIDE).abs() < 1e-12);
        assert_eq!(looks(1), [Look { seeds: usize::MAX, side: SIDE }]);
    }

    #[test]
    fn the_looks_to_come_are_those_that_may_decide() {
        let bounds = Bounds(Some(0.0), None);
        let more = |values: &[f64]| {
            let estimated =
                Estimated::new(Average::Arithmetic, &Sample::One(values.to_vec())).unwrap();
            estimated.more_seeds_of_looks(bounds, &looks(3), 1.0)
        };
        assert_eq!(more(&[0.4, 1.0, 1.6]), Some(3));
        assert_eq!(more(&[0.1, 1.0, 1.9]), Some(7));
        assert_eq!(more(&[-5.0, 1.0, 7.0]), None);
        assert_eq!(
            more(&[-1.0, 1.0, 0.5, -0.5, 0.2, 0.1, 0.0, 0.4, 0.3, 0.2]),
            None,
            "the last one"
        );
    }

    /// What the seed does to both arms alike drops out of pairs, and not of Welch's interval.
    #[test]
    fn pairs_see_what_the_seed_hides() {
        let mut draws = Draws::new(3);
        let pairs = draws.pairs(10, 0.02);
        let estimated = Estimated::new(Average::Arithmetic, &Sample::Paired(pairs)).unwrap();
        let (paired, welch) = (estimated.ends(SIDE).unwrap(), estimated.welch(SIDE).unwrap());
        assert!(welch[1] - welch[0] > 1.3 * (paired[1] - paired[0]), "{paired:?} {welch:?}");
        assert!(estimated.correlation.unwrap() > 0.5);
        assert_eq!(estimated.seeds(), 10);
    }

    #[test]
    fn factors_have_no_negative_ends() {
        let times = |own: [f64; 3]| Sample::Paired(own.iter().map(|own| (8.0, *own)).collect());
        let estimated = Estimated::new(Average::Geometric, &times([1.0, 4.0, 16.0])).unwrap();
        assert!((estimated.mean() - 2.0).abs() < 1e-12, "the geometric mean");
        let [low, high] = estimated.ends(SIDE).unwrap();
        assert!(low > 0.0 && (low * high - 4.0).abs() < 1e-9, "{low} {high}");
        assert_eq!(Estimated::new(Average::Geometric, &times([1.0, 0.0, 2.0])), None);
        assert_eq!(Estimated::new(Average::Geometric, &times([1.0, -1.0, 2.0])), None);
    }

    #[test]
    fn what_straddles_says_how_many_seeds_decide() {
        let bounds = Bounds(Some(-0.01), None);
        let of = |values: &[f64]| {
            Estimated::new(Average::Arithmetic, &Sample::One(values.to_vec())).unwrap()
        };
        let near = of(&[-0.012, 0.004, 0.002]);
        assert_eq!(near.decide(bounds, SIDE), Decision::Straddles);
        let more = near.more_seeds(bounds, SIDE).unwrap();
        assert!((1..10).contains(&more), "{more}");
        assert_eq!(of(&[-0.02, -0.01, 0.0]).more_seeds(bounds, SIDE), None, "at the very edge");
        assert_eq!(of(&[0.5]).decide(bounds, SIDE), Decision::Within);
        // The 90 % interval begins at 0.0066, the 95 % one at 0.0050, and with a fourth seed at 0.0068.
        let above = of(&[0.008, 0.012, 0.010]);
        let window = Bounds(Some(-0.006), Some(0.006));
        assert_eq!(above.decide(Bounds(None, Some(0.006)), SIDE), Decision::Outside);
        assert_eq!(above.decide(window, SIDE), Decision::Straddles);
        assert_eq!(above.more_seeds(window, SIDE), Some(1));
        let within = of(&[0.004, -0.004, 0.001]);
        assert_eq!(within.decide(window, SIDE), Decision::Straddles);
        assert_eq!(within.more_seeds(window, SIDE), Some(1));
    }
}
