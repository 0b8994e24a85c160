//! The seam between the exchange and schemes that come to the mean in several rounds.

use crate::{Gauge, Result, State};

/// Turns one bucket's gradient on each rank into the mean on all of them, in any number of rounds.
pub trait Reducer: Send {
    /// One turn: in round 0 reads the gradient and posts this rank's part; in later rounds reads
    /// what the round before came to.
    ///
    /// # Errors
    /// [`Error::Wire`](crate::Error::Wire) when what came of a round is not what was asked for.
    fn reduce(&mut self, gradient: Gradient<'_>, round: &mut Round<'_>) -> Result<Next>;

    /// The step has ended well on this rank: what it prepared becomes its state.
    fn commit(&mut self) {}

    /// Puts everything that later steps depend on into `state`.
    fn save(&self, _state: &mut State) {}

    /// Takes up what [`save`](Self::save) put there.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State) when it does not fit.
    fn restore(&mut self, _state: &State) -> Result<()> {
        Ok(())
    }

    /// What the last step was like, for the record.
    fn gauges(&self) -> &[Gauge] {
        &[]
    }
}

/// One bucket's gradient on one rank.
pub struct Gradient<'a> {
    /// In: this rank's gradient (plus residual, with error feedback). Out, with [`Next::Done`]: the
    /// mean on all ranks.
    pub values: &'a mut [f32],
    /// With error feedback: in the first round a copy of `values`; the reducer takes off what has
    /// been sent; what is left is the new residual.
    pub residual: Option<&'a mut [f32]>,
}

/// Whether a step goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another round is needed.
    Again,
    /// The gradient is the mean now.
    Done,
}

/// One round of one step, as one rank sees it.
pub struct Round<'a> {
    step: u64,
    number: usize,
    mean: &'a [f32],
    posted: &'a mut Vec<f32>,
}

impl<'a> Round<'a> {
    /// Round `number` of `step`, after one that came to `mean`; what is posted goes to `posted`.
    pub fn new(step: u64, number: usize, mean: &'a [f32], posted: &'a mut Vec<f32>) -> Self {
        Self { step, number, mean, posted }
    }

    /// The step, counted from 1.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The round, counted from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Posts numbers to be averaged over ranks: every rank posts as many.
    pub fn allreduce(&mut self, values: &[f32]) {
        self.posted.clear();
        self.posted.extend_from_slice(values);
    }

    /// The mean over ranks of what was posted in the round before; the same bits on all of them.
    pub fn mean(&self) -> &'a [f32] {
        self.mean
    }
}

/// Ranks in memory, whose rounds are held one after another.
#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Adds up in rank order, then divides by the number of ranks.
    fn mean(posted: &[Vec<f32>]) -> Vec<f32> {
        let share = 1.0 / posted.len() as f32;
        let sum = |i: usize| posted.iter().fold(0.0, |sum: f32, one| sum + one[i]);
        (0..posted[0].len()).map(|i| sum(i) * share).collect()
    }

    /// One step of all ranks, which have `gradients` and, with feedback, `residuals`: these hold
    /// means and new residuals after it. `false` when a mean was not finite; nothing is committed
    /// then.
    pub(crate) fn step(
        reducers: &mut [Box<dyn Reducer>],
        number: u64,
        gradients: &mut [Vec<f32>],
        mut residuals: Option<&mut [Vec<f32>]>,
    ) -> Result<bool> {
        if let Some(residuals) = &mut residuals {
            for (gradient, residual) in gradients.iter_mut().zip(residuals.iter_mut()) {
                gradient.iter_mut().zip(residual.iter()).for_each(|(g, r)| *g += r);
                residual.copy_from_slice(gradient);
            }
        }
        let mut average = Vec::new();
        for round in 0.. {
            let mut posted = vec![Vec::new(); reducers.len()];
            let mut done = 0;
            for (rank, reducer) in reducers.iter_mut().enumerate() {
                let residual = residuals.as_mut().map(|residuals| residuals[rank].as_mut_slice());
                let gradient = Gradient { values: &mut gradients[rank], residual };
                let mut round = Round::new(number, round, &average, &mut posted[rank]);
                done += usize::from(reducer.reduce(gradient, &mut round)? == Next::Done);
            }
            assert!(done == 0 || done == reducers.len(), "{done} ranks are done");
            if done > 0 {
                break;
            }
            average = mean(&posted);
            if average.iter().any(|value| !value.is_finite()) {
                return Ok(false);
            }
        }
        if gradients.iter().flatten().any(|value| !value.is_finite()) {
            return Ok(false);
        }
        reducers.iter_mut().for_each(|reducer| reducer.commit());
        Ok(true)
    }
}
