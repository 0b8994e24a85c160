//! The share of elements that a sparsifier keeps, constant or falling during training.

use serde::{Deserialize, Serialize};

use super::scheme::require;
use crate::Result;

/// The share of each bucket's elements that is sent: a number, or
/// `{ start = 0.25, end = 0.001, steps = 4000 }` for one that falls by equal factors from the
/// first step to step `steps`, and stays (the sparsity warm-up of Lin et al. 2018, section 3.3,
/// which falls once an epoch: 25 %, 6.25 %, 1.5625 %, 0.4 %, 0.1 %).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(
    untagged,
    expecting = "a ratio is a number such as 0.01, or { start = 0.25, end = 0.001, steps = 4000 }"
)]
#[non_exhaustive]
pub enum Ratio {
    /// The same at every step.
    Constant(
        #[cfg_attr(feature = "schema", schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0)))]
         f64,
    ),
    /// Falling.
    Falling(Fall),
}

/// A ratio that falls.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Fall {
    /// At the first step.
    #[cfg_attr(feature = "schema", schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0)))]
    pub start: f64,
    /// From step `steps` on.
    #[cfg_attr(feature = "schema", schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0)))]
    pub end: f64,
    /// Steps that the fall takes.
    pub steps: u64,
}

impl From<f64> for Ratio {
    fn from(ratio: f64) -> Self {
        Ratio::Constant(ratio)
    }
}

impl Ratio {
    /// The share at `step`, which counts from 1.
    pub(crate) fn at(self, step: u64) -> f64 {
        match self {
            Ratio::Constant(ratio) => ratio,
            Ratio::Falling(Fall { start, end, steps }) => {
                if step >= steps {
                    return end;
                }
                let done = step.saturating_sub(1) as f64 / (steps - 1).max(1) as f64;
                start * (end / start).powf(done)
            }
        }
    }

    /// Elements to keep of `length` at `step`: the rounded share, and at least one.
    pub(crate) fn count(self, length: usize, step: u64) -> usize {
        ((self.at(step) * length as f64).round() as usize).clamp(1, length.max(1))
    }

    /// The same for the largest share of all steps: what a message may hold.
    pub(crate) fn most(self, length: usize) -> usize {
        let widest = match self {
            Ratio::Constant(ratio) => ratio,
            Ratio::Falling(Fall { start, end, .. }) => start.max(end),
        };
        Ratio::Constant(widest).count(length, 1)
    }

    /// Checks the setting by itself.
    pub(crate) fn validate(self, scheme: &'static str) -> Result<()> {
        let is_share = |ratio: f64| ratio > 0.0 && ratio <= 1.0;
        let (value, good) = match self {
            Ratio::Constant(ratio) => (ratio.to_string(), is_share(ratio)),
            Ratio::Falling(Fall { start, end, steps }) => {
                let value = format!("{{ start = {start}, end = {end}, steps = {steps} }}");
                (value, is_share(start) && is_share(end) && end <= start)
            }
        };
        let wanted = "write a share above 0 and at most 1, such as 0.01, or a falling one, such as \
                      { start = 0.25, end = 0.01, steps = 1000 }";
        require(good, scheme, "ratio", value, wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_falling_ratio_falls_by_equal_factors_and_stays() {
        let ratio = Ratio::Falling(Fall { start: 0.16, end: 0.01, steps: 5 });
        let shares: Vec<f64> = (1..=7).map(|step| ratio.at(step)).collect();
        for (share, expected) in shares.iter().zip([0.16, 0.08, 0.04, 0.02, 0.01, 0.01, 0.01]) {
            assert!((share - expected).abs() < 1e-12, "{shares:?}");
        }
        assert_eq!((ratio.count(1000, 1), ratio.count(1000, 9), ratio.most(1000)), (160, 10, 160));
        assert_eq!(ratio.validate("topk"), Ok(()));
        for steps in [0, 1] {
            let ratio = Ratio::Falling(Fall { start: 0.16, end: 0.01, steps });
            assert_eq!(ratio.at(1), 0.01, "from step {steps} on");
        }
    }

    #[test]
    fn shares_without_meaning_are_refused() {
        for ratio in [0.0, -0.1, 1.000_001, f64::NAN, f64::INFINITY] {
            assert!(Ratio::Constant(ratio).validate("topk").is_err(), "{ratio}");
            let fall = Fall { start: 0.5, end: ratio, steps: 9 };
            assert!(Ratio::Falling(fall).validate("topk").is_err(), "{ratio}");
        }
        let rising = Ratio::Falling(Fall { start: 0.01, end: 0.1, steps: 9 });
        let error = rising.validate("topk").unwrap_err().to_string();
        assert!(error.contains("ratio = { start = 0.01, end = 0.1, steps = 9 }"), "{error}");
    }
}
