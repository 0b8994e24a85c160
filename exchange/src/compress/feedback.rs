//! Error feedback: what a message leaves pending is added to the next gradient.
//!
//! Stich, Cordonnier & Jaggi 2018 ("Sparsified SGD with Memory"); Karimireddy et al. 2019 ("Error
//! Feedback Fixes SignSGD"); first used by Seide et al. 2014. One identity, for every scheme:
//!
//! > sent + residual′ = gradient + residual
//!
//! so that nothing is lost, only late. Where we differ: the memory holds gradients, not gradients
//! times the learning rate, because the learning rate belongs to the optimizer, which comes after
//! the exchange; with a changing rate the two differ by the rate's change during the delay.
//!
//! # State
//! One f32 for each element of the gradient, saved in the order of the parameters' names: another
//! bucketing, or another scheme, can take the residual over. The new residual is prepared beside the old one
//! and takes its place only when the step's messages have all arrived.

use std::ops::Range;

use crate::wire::floats;
use crate::{Entry, Error, Layout, Result, State};

/// What one rank remembers of its gradients, and the corrected gradient of the step under way.
#[derive(Debug, Clone)]
#[doc(hidden)]
pub struct Feedback {
    residual: Vec<f32>,
    /// gradient + residual at first; then, bucket by bucket, what remains after sending.
    next: Vec<f32>,
    momentum: Option<Momentum>,
}

/// Momentum correction (Lin et al. 2018, "Deep Gradient Compression", sections 3.1 and 3.2): the
/// residual gathers velocities m·v + g instead of gradients, so that an element that is sent late
/// has moved by as much as if it had been sent at once.
#[derive(Debug, Clone)]
struct Momentum {
    factor: f32,
    velocity: Vec<f32>,
    next: Vec<f32>,
}

/// Elements that stay in the first cache.
const BLOCK: usize = 4096;

impl Feedback {
    /// A residual of zeros; with a momentum factor above 0 a velocity of zeros too.
    pub fn new(length: usize, momentum: f64) -> Self {
        let momentum = (momentum > 0.0).then(|| Momentum {
            factor: momentum as f32,
            velocity: vec![0.0; length],
            next: vec![0.0; length],
        });
        Self { residual: vec![0.0; length], next: vec![0.0; length], momentum }
    }

    /// What has not been sent, up to the last step that was committed.
    pub fn residual(&self) -> &[f32] {
        &self.residual
    }

    /// The velocity after the last step that was committed, with momentum correction.
    pub(crate) fn velocity(&self) -> Option<&[f32]> {
        self.momentum.as_ref().map(|momentum| momentum.velocity.as_slice())
    }

    /// Replaces the residual, and the velocity if there is one.
    ///
    /// # Panics
    /// When a length differs.
    pub fn set(&mut self, residual: &[f32], velocity: &[f32]) {
        self.residual.copy_from_slice(residual);
        if let Some(momentum) = &mut self.momentum {
            momentum.velocity.copy_from_slice(velocity);
        }
    }

    /// Begins a step for the elements `range`, whose gradient is given: prepares `scale`·gradient
    /// (or the velocity that comes of it) + residual, and tells whether all of it is finite. Every
    /// element has to be in one range of a step before [`commit`](Self::commit).
    ///
    /// # Panics
    /// When the range goes beyond the residual, or the gradient is of another length.
    #[must_use]
    pub fn begin(&mut self, range: Range<usize>, gradient: &[f32], scale: f32) -> bool {
        assert_eq!(gradient.len(), range.len(), "a gradient of other elements");
        let (new, scale) = match &mut self.momentum {
            None => (gradient, scale),
            Some(Momentum { factor, velocity, next }) => {
                let (next, velocity) = (&mut next[range.clone()], &velocity[range.clone()]);
                for ((next, velocity), gradient) in next.iter_mut().zip(velocity).zip(gradient) {
                    *next = *factor * *velocity + scale * gradient;
                }
                (&*next, 1.0)
            }
        };
        let old = new.chunks(BLOCK).zip(self.residual[range.clone()].chunks(BLOCK));
        self.next[range].chunks_mut(BLOCK).zip(old).fold(true, |finite, (next, (new, residual))| {
            for ((next, new), residual) in next.iter_mut().zip(new).zip(residual) {
                *next = scale * new + residual;
            }
            finite & floats::all_finite(next)
        })
    }

    /// Leaves the elements `range` out of a step: their residual stays what it is.
    pub(crate) fn skip(&mut self, range: Range<usize>) {
        self.next[range.clone()].copy_from_slice(&self.residual[range.clone()]);
        if let Some(momentum) = &mut self.momentum {
            momentum.next[range.clone()].copy_from_slice(&momentum.velocity[range]);
        }
    }

    /// Multiplies the residual, and the velocity if there is one, by `factor`.
    pub(crate) fn rescale(&mut self, factor: f32) {
        self.residual.iter_mut().for_each(|value| *value *= factor);
        if let Some(momentum) = &mut self.momentum {
            momentum.velocity.iter_mut().for_each(|value| *value *= factor);
        }
    }

    /// Puts `residual`, and with momentum correction `velocity`, into `state`, in name order.
    pub(crate) fn save(&self, layout: &Layout, state: &mut State) {
        state.insert("residual", Entry::F32(layout.to_name_order(&self.residual)));
        if let Some(velocity) = self.velocity() {
            state.insert("velocity", Entry::F32(layout.to_name_order(velocity)));
        }
    }

    /// Takes up what [`save`](Self::save) put there.
    pub(crate) fn restore(
        feedback: Option<&mut Self>,
        layout: &Layout,
        state: &State,
    ) -> Result<()> {
        let corrects = feedback.as_ref().is_some_and(|feedback| feedback.momentum.is_some());
        for (entry, kept, without) in [
            ("residual", feedback.is_some(), "error feedback"),
            ("velocity", corrects, "momentum correction"),
        ] {
            if !kept && state.contains(entry) {
                return Err(Error::State {
                    entry: entry.to_string(),
                    problem: format!("would be lost: this exchange runs without {without}"),
                });
            }
        }
        let Some(feedback) = feedback else { return Ok(()) };
        let saved =
            |entry| Ok::<_, Error>(layout.from_name_order(state.f32s(entry, layout.len())?));
        let residual = saved("residual")?;
        let velocity = if corrects { saved("velocity")? } else { Vec::new() };
        feedback.set(&residual, &velocity);
        Ok(())
    }

    /// The corrected gradient, as far as the step has got: what is to be sent.
    pub fn with_residual(&self) -> &[f32] {
        &self.next
    }

    /// The corrected gradient, to be changed: the caller subtracts what was sent (by
    /// [`decode_add`](super::Compressor::decode_add) with weight −1), and what is left is the new
    /// residual.
    pub fn pending(&mut self) -> &mut [f32] {
        &mut self.next
    }

    /// Ends the momentum of an element that has been sent.
    pub(crate) fn mask(&mut self, position: usize) {
        if let Some(momentum) = &mut self.momentum {
            momentum.next[position] = 0.0;
        }
    }

    /// Ends a step: what remains is the residual now.
    pub fn commit(&mut self) {
        std::mem::swap(&mut self.residual, &mut self.next);
        if let Some(Momentum { velocity, next, .. }) = &mut self.momentum {
            std::mem::swap(velocity, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two steps by hand: v = ½v + g, u = u + v; what is sent leaves both.
    #[test]
    fn velocities_gather_until_they_are_sent() {
        let mut feedback = Feedback::new(2, 0.5);
        assert!(feedback.begin(0..2, &[4.0, 8.0], 1.0));
        assert_eq!(feedback.with_residual(), [4.0, 8.0]);
        feedback.pending()[1] = 0.0;
        feedback.mask(1);
        feedback.commit();
        assert!(feedback.begin(0..2, &[4.0, 8.0], 0.5));
        // Never sent: 4 + (½·4 + ½·4); sent and masked: ½·8.
        assert_eq!(feedback.with_residual(), [8.0, 4.0]);
        assert_eq!(feedback.velocity(), Some(&[4.0, 0.0][..]));
        feedback.commit();
        assert_eq!(feedback.velocity(), Some(&[4.0, 4.0][..]));
    }
}
