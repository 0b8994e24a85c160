//! What the record keeps of rank 0's own gradient.

use super::Worker;
use super::shown::shown;
use crate::record::{Histogram, Histograms, Tagged, gradient};
use crate::train::post::Phase;
use anyhow::Result;

impl Worker {
    /// Rank 0's gradient and residual, of the parameters that are shown, if it is time.
    ///
    /// # Errors
    /// When the recipe names parameters that are not there.
    pub(super) fn histograms(&self, step: u64) -> Result<Option<Histograms>> {
        if !self.histograms_due(step) {
            return Ok(None);
        }
        let params: Vec<_> = self.replica.params.iter().collect();
        let about: Vec<_> = params.iter().map(|p| (p.name.as_str(), p.var.dims())).collect();
        let shown = shown(self.session.recipe.record.histograms.as_deref(), &about)?;
        let residual = self.exchange.residual();
        let vectors = [("gradient", Some(self.gradient.flat.as_slice())), ("residual", residual)];
        let entries = vectors.into_iter().filter_map(|(what, v)| Some((what, v?))).flat_map(
            |(what, vector)| {
                let params = &params;
                shown.iter().map(move |place| Tagged {
                    tag: format!("{what}/{}", params[*place].name),
                    histogram: Histogram::new(&vector[params[*place].range.clone()]),
                })
            },
        );
        Ok(Some(Histograms { step, entries: entries.collect() }))
    }

    pub(super) fn histograms_due(&self, step: u64) -> bool {
        let every = self.session.recipe.record.histograms_every;
        self.post.rank() == 0 && every > 0 && (step == 1 || step.is_multiple_of(every))
    }

    pub(super) fn gradient_due(&self, step: u64) -> bool {
        let every = self.session.recipe.record.gradients;
        self.post.rank() == 0 && every > 0 && step.is_multiple_of(every)
    }

    /// Writes rank 0's gradient, and the residual that the exchange will add to it, to the run's folder
    /// if it is time.
    pub(super) fn keep_gradient(&mut self, step: u64) -> Result<()> {
        let due = self.gradient_due(step);
        if let Some(folder) = self.session.folder.as_ref().filter(|_| due) {
            self.post.phase(Phase::RecordingGradient);
            let residual = self.exchange.residual();
            let parameters = self.replica.params.iter().map(|param| gradient::Parameter {
                name: &param.name,
                dims: param.var.dims(),
                gradient: &self.gradient.flat[param.range.clone()],
                residual: residual.map(|residual| &residual[param.range.clone()]),
            });
            gradient::save(&self.session.disk, folder, parameters, step)?;
        }
        Ok(())
    }
}
