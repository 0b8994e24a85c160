//! What the record keeps of rank 0's own gradient.

use super::Worker;
use crate::record::{Histogram, Histograms, Tagged, gradient};
use crate::train::post::Phase;
use anyhow::Result;

impl Worker {
    /// Rank 0's gradient and residual, parameter by parameter, if it is time.
    pub(super) fn histograms(&self, step: u64) -> Option<Histograms> {
        if !self.histograms_due(step) {
            return None;
        }
        let residual = self.exchange.residual();
        let vectors = [("gradient", Some(self.gradient.flat.as_slice())), ("residual", residual)];
        let entries = vectors.into_iter().filter_map(|(what, v)| Some((what, v?))).flat_map(
            |(what, vector)| {
                self.replica.params.iter().map(move |p| Tagged {
                    tag: format!("{what}/{}", p.name),
                    histogram: Histogram::of(&vector[p.range.clone()]),
                })
            },
        );
        Some(Histograms { step, entries: entries.collect() })
    }

    pub(super) fn histograms_due(&self, step: u64) -> bool {
        let every = self.session.recipe.record.histograms_every;
        self.post.rank() == 0 && every > 0 && (step == 1 || step.is_multiple_of(every))
    }

    pub(super) fn gradient_due(&self, step: u64) -> bool {
        let every = self.session.recipe.record.gradients;
        self.post.rank() == 0 && every > 0 && step.is_multiple_of(every)
    }

    /// Writes rank 0's gradient to the run's folder if it is time.
    pub(super) fn keep_gradient(&mut self, step: u64) -> Result<()> {
        let due = self.gradient_due(step);
        if let Some(folder) = self.session.folder.as_ref().filter(|_| due) {
            self.post.phase(Phase::RecordingGradient);
            let parameters = self.replica.params.iter().map(|param| {
                let values = &self.gradient.flat[param.range.clone()];
                (param.name.as_str(), param.var.dims(), values)
            });
            gradient::save(&self.session.disk, folder, parameters, step)?;
        }
        Ok(())
    }
}
