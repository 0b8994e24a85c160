//! The rules of selection, and what is a sensible setting of each.

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::compress::scheme::require;

/// Which k elements of u = gradient + residual are sent. U is the last union: all positions that
/// any rank sent in the round before. As serde reads it, in TOML: `rule = { by = "prev-union", p = 0.75 }`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "by", rename_all = "kebab-case", deny_unknown_fields)]
#[serde(expecting = "a rule, such as { by = \"prev-union\", p = 0.75 }")]
pub enum SelectionRule {
    /// p·k places for the largest |u| inside U, the other places for the largest of the rest.
    PrevUnion {
        /// Share of places, 0 to 1. Default 0.75.
        #[serde(default = "three_quarters")]
        #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 1.0)))]
        p: f64,
    },
    /// The largest |u| + λ·|S|, where S is the last sum over ranks (a sum, not a mean, so that λ
    /// means the same for any number of ranks).
    Mix {
        /// Weight of the last sum, 0 or more. Default 0.5.
        #[serde(default = "half")]
        #[cfg_attr(feature = "schema", schemars(range(min = 0.0)))]
        lambda: f64,
    },
    /// The largest |u|, inside U counted h-fold.
    Hysteresis {
        /// Factor, 1 or more. Default 2.
        #[serde(default = "two")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1.0)))]
        h: f64,
    },
    /// The largest |u|: what the others are judged against.
    Topk,
}

fn half() -> f64 {
    0.5
}

fn three_quarters() -> f64 {
    0.75
}

fn two() -> f64 {
    2.0
}

impl Default for SelectionRule {
    fn default() -> Self {
        SelectionRule::PrevUnion { p: three_quarters() }
    }
}

impl SelectionRule {
    /// Checks the setting by itself.
    pub(crate) fn validate(self, scheme: &'static str) -> Result<()> {
        let weight = |key, value: f64, least: f64, wanted| {
            require((value as f32).is_finite() && value >= least, scheme, key, value, wanted)
        };
        match self {
            SelectionRule::PrevUnion { p } => {
                require((0.0..=1.0).contains(&p), scheme, "rule.p", p, "write a share from 0 to 1")
            }
            SelectionRule::Mix { lambda } => {
                weight("rule.lambda", lambda, 0.0, "write a number that is not negative")
            }
            SelectionRule::Hysteresis { h } => weight("rule.h", h, 1.0, "write a number from 1 on"),
            SelectionRule::Topk => Ok(()),
        }
    }

    /// Places that a share gives, of `k`.
    pub(crate) fn places(p: f64, k: usize) -> usize {
        ((p * k as f64 + 0.5).floor() as usize).min(k)
    }
}
