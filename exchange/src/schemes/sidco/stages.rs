//! How many stages a threshold is fitted in, and which share each stage keeps.

use serde::{Deserialize, Serialize};

use crate::compress::scheme::require;
use crate::{Entry, Error, Result, State};

/// The share that the first of several stages keeps, δ₁.
pub(crate) const FIRST_SHARE: f64 = 0.25;

/// Messages over which the controller averages, Q.
const INTERVAL: u64 = 5;

/// How far the average of k̂/k may be from 1 before the number of stages changes, ε.
const TOLERANCE: f64 = 0.2;

/// The most stages that settings may ask for.
const MOST: u32 = 32;

/// How many stages: a number, `"adaptive"` or `"chain"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "stages are a number, \"adaptive\" or \"chain\"")]
pub enum Stages {
    /// Always so many: the first keeps a quarter, the others equal shares of what is left to do.
    Fixed(#[cfg_attr(feature = "schema", schemars(range(min = 1, max = MOST)))] u32),
    /// By a rule.
    By(StageRule),
}

/// A rule for the number of stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StageRule {
    /// One more when too few elements were kept over the last five messages, one less when too
    /// many: from 1 to ⌈log₂ 1/ratio⌉, starting at 1.
    Adaptive,
    /// As many as it takes when each keeps a quarter; the last keeps what remains.
    Chain,
}

impl Stages {
    /// Checks the setting by itself.
    pub(crate) fn validate(self, scheme: &'static str) -> Result<()> {
        let Stages::Fixed(count) = self else { return Ok(()) };
        let wanted = "write 1 to 32, \"adaptive\" or \"chain\"";
        require((1..=MOST).contains(&count), scheme, "stages", count, wanted)
    }
}

/// The shares of the stages: their product is the share aimed at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StageShares {
    /// Stages, at least one.
    pub count: u32,
    first: f64,
    between: f64,
    last: f64,
}

impl StageShares {
    /// `count` stages; one where the share is not below what the first of several keeps.
    pub(crate) fn equal(share: f64, count: u32) -> Self {
        if count <= 1 || share >= FIRST_SHARE {
            return Self { count: 1, first: share, between: share, last: share };
        }
        let each = (share / FIRST_SHARE).powf(1.0 / f64::from(count - 1));
        Self { count, first: FIRST_SHARE, between: each, last: each }
    }

    /// As many stages of a quarter as it takes.
    pub(crate) fn chain(share: f64) -> Self {
        if share >= FIRST_SHARE {
            return Self::equal(share, 1);
        }
        let left = share / FIRST_SHARE;
        // Rounding must not make one more of a power of the quarter.
        let later = ((left.ln() / FIRST_SHARE.ln() - 1e-12).ceil() as u32).max(1);
        let last = left / FIRST_SHARE.powf(f64::from(later - 1));
        Self { count: later + 1, first: FIRST_SHARE, between: FIRST_SHARE, last }
    }

    /// What stage `number`, from 1, keeps of what it gets.
    pub(crate) fn share(self, number: u32) -> f64 {
        match number {
            1 => self.first,
            _ if number == self.count => self.last,
            _ => self.between,
        }
    }
}

/// Changes the number of stages by what was kept (the authors' mode −1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StageController {
    stages: u64,
    /// Of k̂/k, over the messages since the last change.
    sum: f64,
    messages: u64,
    /// Whether more stages are taken to keep more elements, as bouncing may have found.
    flipped: bool,
}

impl Default for StageController {
    fn default() -> Self {
        Self { stages: 1, sum: 0.0, messages: 0, flipped: false }
    }
}

impl StageController {
    /// Stages now.
    pub(crate) fn stages(&self) -> u32 {
        self.stages as u32
    }

    /// Takes note of one message's k̂/k for `share`. With `bounce`, a controller that stands at a
    /// bound and is still out of tolerance turns round.
    pub(crate) fn note(&mut self, kept_ratio: f64, share: f64, bounce: bool) {
        self.sum += kept_ratio;
        self.messages += 1;
        if self.messages < INTERVAL {
            return;
        }
        let average = self.sum / self.messages as f64;
        (self.sum, self.messages) = (0.0, 0);
        let too_few = average < 1.0 - TOLERANCE;
        let too_many = average > 1.0 + TOLERANCE;
        let most = (-share.log2()).ceil().max(1.0) as u64;
        if too_few || too_many {
            let moved = |flipped: bool| {
                let next = if too_few != flipped { self.stages + 1 } else { self.stages - 1 };
                next.clamp(1, most)
            };
            let next = moved(self.flipped);
            if bounce && next == self.stages {
                self.flipped = !self.flipped;
                self.stages = moved(self.flipped);
                return;
            }
            self.stages = next;
        }
        self.stages = self.stages.min(most);
    }

    pub(crate) fn save(&self, state: &mut State) {
        let flipped = u64::from(self.flipped);
        let entry = vec![self.stages, self.messages, flipped, self.sum.to_bits()];
        state.insert("stages", Entry::U64(entry));
    }

    pub(crate) fn restore(state: &State) -> Result<Self> {
        let [stages, messages, flipped, sum] = state.u64s("stages", 4)? else {
            unreachable!("invariant: there are four counters")
        };
        let sum = f64::from_bits(*sum);
        let read = Self { stages: *stages, sum, messages: *messages, flipped: *flipped == 1 };
        let sane = (1..=1100).contains(stages) && *messages < INTERVAL && *flipped <= 1;
        if sane && sum.is_finite() && sum >= 0.0 {
            return Ok(read);
        }
        let problem = format!("holds what no run leaves: {read:?}");
        Err(Error::State { entry: "stages".to_string(), problem })
    }
}

#[cfg(test)]
mod tests {
    use super::super::fit::tests::{number, vectors};
    use super::*;

    #[test]
    fn shares_of_stages_equal_the_vectors() {
        for row in vectors()["stage_ratios"].as_array().unwrap() {
            let (share, count) = (number(row, "delta"), row["stages"].as_u64().unwrap() as u32);
            let plan = if count == 0 {
                StageShares::chain(share)
            } else {
                StageShares::equal(share, count)
            };
            let expected = row["ratios"].as_array().unwrap();
            assert_eq!(plan.count as usize, expected.len(), "{row}");
            for (stage, expected) in expected.iter().enumerate() {
                let found = plan.share(stage as u32 + 1);
                assert!((found - expected.as_f64().unwrap()).abs() < 1e-9, "{row}");
            }
        }
        assert_eq!(StageShares::equal(0.5, 3).count, 1);
        assert_eq!(StageShares::chain(1.0).count, 1);
    }

    #[test]
    fn stage_counts_follow_the_vectors() {
        let vectors = vectors();
        let traces = vectors["adaptation"].as_array().unwrap();
        assert_eq!(traces.len(), 3);
        for trace in traces {
            let share = number(trace, "delta");
            let mut controller = StageController::default();
            let used = trace["M_used"].as_array().unwrap();
            for (kept, used) in trace["khat_over_k"].as_array().unwrap().iter().zip(used) {
                assert_eq!(u64::from(controller.stages()), used.as_u64().unwrap());
                controller.note(kept.as_f64().unwrap(), share, false);
            }
            assert_eq!(u64::from(controller.stages()), trace["M_after"].as_u64().unwrap());
        }
    }

    #[test]
    fn a_pinned_controller_bounces_when_it_may() {
        let run = |bounce| {
            let mut controller = StageController::default();
            (0..15).for_each(|_| controller.note(3.0, 0.01, bounce));
            controller.stages()
        };
        assert_eq!((run(false), run(true)), (1, 4));
        let mut whole = StageController::default();
        (0..15).for_each(|_| whole.note(3.0, 1.0, true));
        assert_eq!(whole.stages(), 1, "there is only one stage to have");
    }
}
