//! What a rank keeps for local steps: the outer weights and their optimizer.

use crate::recipe::Recipe;
use crate::recipe::local::InnerState;
use crate::train::optim::Optimizer;
use crate::train::params::Params;
use crate::train::replica::Replica;
use anyhow::Result;
use gradwire_exchange::Support;

/// What a rank keeps for local steps.
pub(super) struct Local {
    pub(super) state: InnerState,
    learning_rate: f64,
    /// The outer weights, in the flat gradient's layout.
    pub(super) weights: Vec<f32>,
    /// What updates them, with the mean progress as gradient.
    pub(super) outer: Optimizer,
}

impl Local {
    /// What `recipe` needs for local steps, if it asks for them; the outer weights are those of `replica`.
    /// `correction` is the factor of the exchange's momentum correction.
    ///
    /// # Errors
    /// When a variable does not lie in memory as one contiguous `f32` slice.
    pub(super) fn new(recipe: &Recipe, correction: f64, replica: &Replica) -> Result<Option<Self>> {
        if !recipe.is_local() {
            return Ok(None);
        }
        let rule = recipe.outer.unwrap_or_default().optimizer();
        let mut local = Self {
            state: recipe.local.state,
            learning_rate: rule.learning_rate,
            weights: vec![0.0; replica.params.len()],
            outer: Optimizer::new(&rule, correction, &replica.params, None),
        };
        local.begin(&replica.params)?;
        Ok(Some(local))
    }

    /// Takes the weights as they are for the outer ones.
    ///
    /// # Errors
    /// When a variable does not lie in memory as one contiguous `f32` slice.
    pub(super) fn begin(&mut self, params: &Params) -> Result<()> {
        params.update(|param, now| self.weights[param.range.clone()].copy_from_slice(now))
    }

    /// Exchanges the weights and the outer weights; called again it puts them back.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub(super) fn swap(&mut self, params: &Params) -> Result<()> {
        params.update(|param, now| self.weights[param.range.clone()].swap_with_slice(now))
    }

    /// Writes how far the weights have come since the last exchange, as a gradient would point: outer weights
    /// minus weights.
    pub(super) fn progress(&self, params: &Params, flat: &mut [f32]) -> Result<()> {
        params.update(|param, now| {
            let outer = &self.weights[param.range.clone()];
            let progress = flat[param.range.clone()].iter_mut().zip(outer).zip(now);
            progress.for_each(|((progress, outer), now)| *progress = outer - *now);
        })
    }

    /// Updates the outer weights by the mean progress `flat`, and lets the weights go on from them.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub(super) fn update(
        &mut self,
        params: &Params,
        flat: &mut [f32],
        support: &Support,
    ) -> Result<()> {
        self.swap(params)?;
        self.outer.step(params, flat, support, self.learning_rate)?;
        self.begin(params)
    }
}
