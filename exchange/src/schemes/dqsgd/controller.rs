//! The controller: bits that follow the norm of the gradient, and a budget that they keep.

use super::{Config, MAX_WINDOW, Rounding, Target};
use crate::compress::bit_schedule::{Course, k_for_mean};
use crate::state::Entry;
use crate::{Error, Result, State};

/// How fast k is corrected: over 1/`CORRECTION` of the steps left, a quarter, the distance to the k
/// that would spend the rest of the budget, if the norm stayed as it is, falls to 1/e.
///
/// Without a correction a norm that falls leaves the budget unspent; corrected at once, k falls as
/// the norm rises and cancels it. At 4 the mean is met within 0.05 bits on every path of norms in
/// the tests; the smaller, the longer the bits follow the norm, and the farther off the mean.
const CORRECTION: f64 = 4.0;

/// The most rounds that a state may count: those to come are added to them.
const MOST_ROUNDS: u64 = u64::MAX / 2;

/// The bits planned, and what they follow from.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Controller {
    config: Config,
    course: Course,
    /// Steps between two decisions.
    gap: u64,
    /// Norms of the mean gradient, that of the round number i (from 0) at i modulo the length.
    norms: Vec<f64>,
    /// Rounds seen.
    rounds: u64,
    /// Bits per element spent in them, added up.
    spent: f64,
    /// The norm the plan was made with; 0 before the first.
    pub(super) norm: f64,
    /// The factor the plan was made with; 0 before the first.
    pub(super) k: f64,
    /// Whether a target of mean bits has been solved for k.
    solved: bool,
    /// Bits per element, not rounded.
    pub(super) bits: f64,
}

impl Controller {
    pub(super) fn new(config: &Config, course: Course) -> Self {
        Self {
            course,
            gap: config.gap(course.horizon),
            norms: vec![0.0; config.window(course.horizon)],
            rounds: 0,
            spent: 0.0,
            norm: 0.0,
            k: 0.0,
            solved: false,
            bits: f64::from(config.max_bits),
            config: config.clone(),
        }
    }

    /// Whole bits for a step, whose shared random number is `dither`, in [0, 1).
    pub(super) fn whole_bits(&self, dither: f64) -> u8 {
        match self.config.rounding {
            Rounding::Ceil => self.bits.ceil() as u8,
            Rounding::Dither => (self.bits.floor() + f64::from(self.bits.fract() > dither)) as u8,
        }
    }

    /// Takes in a round after which `step` steps have been made; plans anew at every gap.
    pub(super) fn note(&mut self, step: u64, norm: f64, spent: f64) {
        let window = self.norms.len() as u64;
        self.norms[(self.rounds % window) as usize] = norm;
        self.rounds += 1;
        self.spent += spent;
        if step.is_multiple_of(self.gap) {
            let known = self.rounds.min(window) as usize;
            self.norm = self.norms[..known].iter().sum::<f64>() / known as f64;
            let course = self.course;
            match self.config.target {
                Target::K(k) => self.k = k,
                Target::Error(error) => self.k = course.k_for_error(error),
                Target::Bits(mean) => self.keep_to(mean, course, step),
            }
            self.bits = self.clamped(course.bits(self.k, step, self.norm));
        }
    }

    /// Solves for k the first time that there is a norm, and moves it slowly towards the budget
    /// afterwards. A norm of zero says nothing about k.
    fn keep_to(&mut self, mean: f64, course: Course, step: u64) {
        let left = course.horizon.saturating_sub(step);
        if left == 0 || self.norm == 0.0 {
            return;
        }
        let k = self.level(mean, course, step, left) / self.norm;
        if self.solved {
            let share = (CORRECTION * self.gap as f64 / left as f64).min(1.0);
            self.k *= (k / self.k).powf(share);
        } else {
            (self.k, self.solved) = (k, true);
        }
    }

    /// The k·‖g‖ that spends what is left of the budget in the steps left, if the norm stays: none
    /// below what gives the fewest bits throughout, none above what gives the most.
    fn level(&self, mean: f64, course: Course, step: u64, left: u64) -> f64 {
        /// Steps looked at, of those that are left: the schedule between them is smooth.
        const POINTS: u64 = 64;
        let budget = (mean * course.horizon as f64 - self.spent) / left as f64;
        let points = left.div_ceil(self.gap).min(POINTS);
        let level = k_for_mean(budget, points, |level, point| {
            let then = step + (u128::from(left) * u128::from(point) / u128::from(points)) as u64;
            let bits = self.clamped(course.bits(level, then, 1.0));
            match self.config.rounding {
                Rounding::Ceil => bits.ceil(),
                Rounding::Dither => bits,
            }
        });
        let levels = |bits: u8| f64::from(bits - 1).exp2() - 1.0;
        let first = course.alpha.powf(left as f64 / 2.0);
        level.clamp(levels(self.config.min_bits), levels(self.config.max_bits) / first)
    }

    /// Norms are `factor` times as large from now on; a k that was solved for gives them the same bits.
    pub(super) fn rescale(&mut self, factor: f64) {
        let factor = factor.abs();
        self.norms.iter_mut().chain([&mut self.norm]).for_each(|norm| *norm *= factor);
        if self.solved && factor > 0.0 {
            self.k /= factor;
        }
    }

    fn clamped(&self, bits: f64) -> f64 {
        bits.clamp(f64::from(self.config.min_bits), f64::from(self.config.max_bits))
    }

    pub(super) fn save(&self, state: &mut State) {
        let numbers = [self.spent, self.norm, self.k, self.bits].map(f64::to_bits);
        state.insert("rounds", Entry::U64(vec![self.rounds]));
        state.insert("plan", Entry::U64(numbers.to_vec()));
        state.insert("solved", Entry::U64(vec![self.solved.into()]));
        state.insert("norms", Entry::U64(self.norms.iter().map(|norm| norm.to_bits()).collect()));
    }

    /// Takes up a state.
    pub(super) fn restore(&mut self, state: &State) -> Result<()> {
        let refuse = |entry: &str, problem: String| Error::State { entry: entry.into(), problem };
        // No norm of f32 numbers comes near, nor a budget; sums and quotients of such numbers are finite.
        const LARGEST: f64 = 1e60;
        let up_to = |largest: f64, entry: &str, bits: u64| match f64::from_bits(bits) {
            number if (0.0..=largest).contains(&number) => Ok(number),
            other => Err(refuse(entry, format!("holds {other} where a number from 0 belongs"))),
        };
        let number = |entry: &str, bits: u64| up_to(LARGEST, entry, bits);
        let mut restored = Self::new(&self.config, self.course);
        // A run that goes on for longer than it was planned for keeps the window that it began with.
        let window = |norms: &[u64]| match self.config.window {
            Some(window) => norms.len() == window,
            None => (1..=MAX_WINDOW).contains(&norms.len()),
        };
        restored.norms = match state.entries().find(|(name, _)| *name == "norms") {
            Some((_, Entry::U64(norms))) if window(norms) => {
                norms.iter().map(|bits| number("norms", *bits)).collect::<Result<_>>()?
            }
            _ => return Err(refuse("norms", "holds no window of norms".into())),
        };
        restored.rounds = match state.u64s("rounds", 1)?[0] {
            rounds @ 0..=MOST_ROUNDS => rounds,
            other => return Err(refuse("rounds", format!("holds {other}, which no run reaches"))),
        };
        let plan = state.u64s("plan", 4)?;
        restored.spent = number("plan", plan[0])?;
        restored.norm = number("plan", plan[1])?;
        restored.k = up_to(f64::MAX, "plan", plan[2])?;
        restored.bits = self.clamped(number("plan", plan[3])?);
        restored.solved = match state.u64s("solved", 1)?[0] {
            0 => false,
            1 if restored.k > 0.0 => true,
            1 => return Err(refuse("solved", "holds 1, and k is 0".into())),
            other => return Err(refuse("solved", format!("holds {other}, and not 0 or 1"))),
        };
        *self = restored;
        Ok(())
    }
}
