//! Local steps: how many steps a rank trains by itself between two exchanges, and what is made of what
//! all ranks have come to.

use super::optimizer::Sgd;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How often ranks exchange. With local steps every rank updates its own weights by its own gradients for
/// a *round* of steps. At its end the ranks exchange their *progress*, the weights at the round's
/// beginning minus the weights now, by the recipe's scheme; the mean is the gradient of the outer
/// optimizer, whose weights are the next round's beginning on every rank (local SGD: Stich 2019; DiLoCo:
/// Douillard et al. 2023, algorithm 1). The last step of a run ends a round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Local {
    /// Steps of a round; 1 for an exchange of gradients at every step.
    #[schemars(range(min = 1))]
    pub steps: u64,
    /// Steps at the run's beginning that exchange gradients (post-local SGD: Lin et al. 2020).
    pub after: u64,
    /// What becomes of the optimizer's vectors at the end of a round.
    pub state: InnerState,
}

impl Default for Local {
    fn default() -> Self {
        Self { steps: 1, after: 0, state: InnerState::Own }
    }
}

/// What becomes of the optimizer's vectors, such as its momentum, at the end of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InnerState {
    /// Every rank keeps its own.
    Own,
    /// Every rank takes the mean over the ranks, which crosses the wire as f32.
    Averaged,
}

/// The outer optimizer, which takes the mean progress of a round as its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Outer {
    /// Which one it is.
    pub kind: OuterKind,
    /// The learning rate; 1 without momentum takes the mean of the ranks' weights.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub learning_rate: f64,
    /// Momentum, 0 to below 1; 0 for none.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub momentum: f64,
    /// Nesterov's form of momentum (with 0.9 and a learning rate of 0.7 DiLoCo's).
    pub nesterov: bool,
}

impl Default for Outer {
    fn default() -> Self {
        Self { kind: OuterKind::Sgd, learning_rate: 1.0, momentum: 0.0, nesterov: false }
    }
}

/// The rules of an outer optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OuterKind {
    /// Stochastic gradient descent.
    Sgd,
}

impl Local {
    /// # Errors
    /// A sentence that names the key and what to write instead.
    pub(super) fn validate(&self) -> Result<(), String> {
        match self.steps {
            0 => Err("local.steps = 0: write 1 for an exchange at every step, or how many steps a rank trains by itself".into()),
            _ => Ok(()),
        }
    }
}

impl Outer {
    /// The optimizer of these settings.
    pub fn optimizer(&self) -> Sgd {
        let Self { kind: OuterKind::Sgd, learning_rate, momentum, nesterov } = *self;
        Sgd { learning_rate, momentum, nesterov, ..Sgd::default() }
    }

    /// # Errors
    /// A sentence that names the key and what to write instead.
    pub(super) fn validate(&self) -> Result<(), String> {
        if !(self.learning_rate > 0.0 && self.learning_rate.is_finite()) {
            return Err(format!(
                "outer.learning_rate = {} must be above 0; 1 takes the mean of the ranks' weights",
                self.learning_rate
            ));
        }
        if !(0.0..1.0).contains(&self.momentum) {
            return Err(format!(
                "outer.momentum = {} must be at least 0 and below 1",
                self.momentum
            ));
        }
        match self.nesterov && self.momentum == 0.0 {
            true => Err("outer.nesterov = true needs outer.momentum above 0, such as 0.9".into()),
            false => Ok(()),
        }
    }
}
