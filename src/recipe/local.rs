//! Local steps: how many steps a rank trains by itself between two exchanges, and what is made of what
//! all ranks have come to.

use super::optimizer::Sgd;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

settings! {
    /// How often ranks exchange. With local steps every rank updates its own weights by its own gradients for
    /// a *round* of steps. At its end the ranks exchange their *progress*, the weights at the round's
    /// beginning minus the weights now, by the recipe's scheme; the mean is the gradient of the outer
    /// optimizer, whose weights are the next round's beginning on every rank (local SGD: Stich 2019; DiLoCo:
    /// Douillard et al. 2023, algorithm 1). The last step of a run ends a round.
    #[derive(Copy)]
    pub struct Local {
        /// Steps of a round; 1 for an exchange of gradients at every step.
        #[schemars(range(min = 1))]
        pub steps: u64 = 1,
        /// Steps at the run's beginning that exchange gradients (post-local SGD: Lin et al. 2020).
        pub after: u64 = 0,
        /// What becomes of the optimizer's vectors at the end of a round.
        pub state: InnerState = InnerState::Own,
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

settings! {
    /// The outer optimizer, which takes the mean progress of a round as its gradient.
    #[derive(Copy)]
    pub struct Outer {
        /// Which one it is.
        pub kind: OuterKind = OuterKind::Sgd,
        /// The learning rate; 1 without momentum takes the mean of the ranks' weights.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub learning_rate: f64 = 1.0,
        /// Momentum, 0 to below 1; 0 for none.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub momentum: f64 = 0.0,
        /// Nesterov's form of momentum (with 0.9 and a learning rate of 0.7 DiLoCo's).
        pub nesterov: bool = false,
        /// Fragments that are exchanged one at a time, each once in a round (Streaming DiLoCo: Douillard et al. 2025, arXiv
        /// 2501.18512, section 2.2). A fragment is a run of whole buckets. Of P fragments and rounds of H steps the one of
        /// number p, from 1 on, is exchanged p·H/P steps into each round. The last step of a run exchanges all.
        #[schemars(range(min = 1))]
        pub fragments: u64 = 1,
        /// Steps that a rank goes on with while an exchange is under way, whose mean it then takes (section 2.3, τ).
        pub delay: u64 = 0,
        /// With a delay, the share α of its own weights that a rank keeps of the fragment when the mean arrives, 0 to below
        /// 1: it goes on from α·own + (1 − α)·outer weights (section 2.3, equation 3).
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub mix: f64 = 0.5,
    }
}

/// The rules of an outer optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OuterKind {
    /// Stochastic gradient descent.
    Sgd,
}

impl Outer {
    /// The optimizer of these settings.
    pub fn optimizer(&self) -> Sgd {
        let Self { kind: OuterKind::Sgd, learning_rate, momentum, nesterov, .. } = *self;
        Sgd { learning_rate, momentum, nesterov, ..Sgd::default() }
    }

    /// Whether there are steps at which ranks have exchanged and yet differ.
    pub fn streams(&self) -> bool {
        self.fragments > 1 || self.delay > 0
    }

    pub(super) fn validate(&self, local: &Local) -> Result<(), String> {
        let (Self { fragments, delay, .. }, steps) = (*self, local.steps);
        if fragments > steps {
            return Err(format!(
                "outer.fragments = {fragments} are exchanged at as many steps of a round, and local.steps = {steps}; \
                 write outer.fragments = {steps} or fewer, or local.steps = {fragments} or more"
            ));
        }
        if delay > 0 && delay >= steps / fragments {
            let fits = match (steps / fragments).saturating_sub(1) {
                0 => "outer.delay = 0".to_string(),
                most => format!("outer.delay = {most} or less"),
            };
            return Err(format!(
                "outer.delay = {delay} must be below the steps from one exchange to the next, {}: local.steps = \
                 {steps} over outer.fragments = {fragments}; write {fits}, or more local.steps",
                steps / fragments
            ));
        }
        match self.nesterov && self.momentum == 0.0 {
            true => Err("outer.nesterov = true needs outer.momentum above 0, such as 0.9".into()),
            false => Ok(()),
        }
    }
}
