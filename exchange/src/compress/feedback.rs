//! Error feedback: what a message leaves pending is added to the next gradient.
//!
//! Stich, Cordonnier & Jaggi 2018 ("Sparsified SGD with Memory"); Karimireddy et al. 2019 ("Error
//! Feedback Fixes SignSGD"); first used by Seide et al. 2014. One identity, for every scheme:
//!
//! > sent + residual′ = gradient + residual
//!
//! so that nothing is lost, only late. [`FeedbackRule`] has three other forms:
//!
//! * The residual fades: sent + residual′ = gradient + decay·residual. Sarfi et al. 2025 ("Communication
//!   Efficient LLM Pre-training with SparseLoCo", arXiv 2508.15706), algorithm 1, e ← βe + Δ; Δ̂ = C(e);
//!   e ← e − Δ̂. What is long not sent gathers as a momentum of Δ.
//! * EF21-SGDM (Fatkhullin, Tyurin & Richtárik 2023, "Momentum Provably Improves Error Feedback!", arXiv
//!   2305.15155, algorithm 1): v ← (1 − η)v + ηg; c = C(v − h); h ← h + c; what ranks take is the mean of
//!   h. η = 1 is EF21 (Richtárik, Sokolov & Fatkhullin 2021). The residual is v − h: sent + residual′ =
//!   residual + (v′ − v). h itself is kept as its mean over ranks, which is the same on all of them. Where we
//!   differ: v and h begin at 0 and not at a first gradient that all send. During `warmup_steps` everything is
//!   sent, so that h is v, as at the paper's start.
//! * A momentum that all ranks share (Tang et al. 2021, "1-bit Adam: Communication Efficient Large-Scale
//!   Training with Adam's Convergence Speed", arXiv 2102.02888, algorithm 1): sent + residual′ = βm + (1 − β)g +
//!   residual, and all ranks take the mean m in the end; where the way back is compressed too, m is compressed again.
//!   With a β of 0 it is the usual form.
//!
//! Where we differ: the memory holds gradients, not gradients
//! times the learning rate, because the learning rate belongs to the optimizer, which comes after
//! the exchange; with a changing rate the two differ by the rate's change during the delay.
//!
//! # State
//! One f32 for each element of the gradient, saved in the order of the parameters' names: another
//! bucketing, or another scheme, can take the residual over. EF21-SGDM keeps v (`average`) and the mean of h
//! (`estimate`) beside it, a shared momentum m (`momentum`), the same on all ranks. The new residual is prepared beside the old one
//! and takes its place only when the step's messages have all arrived.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::wire::floats;
use crate::{Entry, Error, Layout, Result, State};

/// A form of error feedback other than the usual; [`Feedback`] has the laws.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FeedbackRule {
    /// The residual fades: what is left of it from step to step, above 0 and at most 1, is added to the
    /// gradient (Sarfi et al. 2025, SparseLoCo: 0.95).
    Decay(
        #[cfg_attr(feature = "schema", schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0)))]
         f64,
    ),
    /// EF21 with momentum (Fatkhullin et al. 2023): every rank keeps v ← (1 − η)v + ηg, and sends the compressed
    /// difference between v and what it has sent so far. This is η, above 0 and at most 1. For schemes that are
    /// contractions; 1 is EF21.
    Efsgdm(
        #[cfg_attr(feature = "schema", schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0)))]
         f64,
    ),
    /// Ranks send a momentum that they share in place of gradients (Tang et al. 2021, 1-bit Adam: 0.9): this
    /// share, at least 0 and below 1, of the last mean, and the rest of the new gradient. For any scheme.
    Momentum(
        #[cfg_attr(feature = "schema", schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0)))]
         f64,
    ),
}

/// What one rank remembers of its gradients, and the corrected gradient of the step under way.
#[derive(Debug, Clone)]
#[doc(hidden)]
pub struct Feedback {
    residual: Vec<f32>,
    /// gradient + residual at first; then, bucket by bucket, what remains after sending.
    due: Vec<f32>,
    momentum: Option<MomentumCorrection>,
    /// What is left of the residual from step to step; 1 for all.
    decay: f32,
    estimate: Option<Estimate>,
    shared: Option<SharedMomentum>,
}

/// Momentum correction (Lin et al. 2018, "Deep Gradient Compression", sections 3.1 and 3.2): the
/// residual gathers velocities m·v + g instead of gradients, so that an element that is sent late
/// has moved by as much as if it had been sent at once.
#[derive(Debug, Clone)]
struct MomentumCorrection {
    /// What is left of the velocity from step to step.
    factor: f32,
    /// What a gradient adds to it: 1, or 1 − factor where velocities are means of gradients.
    share: f32,
    velocity: Vec<f32>,
    next: Vec<f32>,
}

/// The mean over ranks of what EF21 has of each rank's gradient.
#[derive(Debug, Clone)]
struct Estimate {
    mean: Vec<f32>,
    /// The mean of the step's messages, which is added to it.
    sent: Vec<f32>,
}

/// The momentum that ranks share: what they took in the last step.
#[derive(Debug, Clone)]
struct SharedMomentum {
    /// What is left of it from step to step.
    factor: f32,
    mean: Vec<f32>,
    /// What they take in this one.
    next: Vec<f32>,
}

/// Elements that stay in the first cache.
const BLOCK: usize = 4096;

impl Feedback {
    /// A residual of zeros; with a momentum factor above 0 a velocity of zeros too.
    pub fn new(length: usize, momentum: f64) -> Self {
        let momentum = (momentum > 0.0).then(|| MomentumCorrection {
            factor: momentum as f32,
            share: 1.0,
            velocity: vec![0.0; length],
            next: vec![0.0; length],
        });
        let (residual, due) = (vec![0.0; length], vec![0.0; length]);
        Self { residual, due, momentum, decay: 1.0, estimate: None, shared: None }
    }

    /// Everything at zero, in the form that `rule` asks for.
    pub fn of(rule: Option<FeedbackRule>, momentum: f64, length: usize) -> Self {
        let mut feedback = Self::new(length, momentum);
        match rule {
            Some(FeedbackRule::Decay(decay)) => feedback.decay = decay as f32,
            Some(FeedbackRule::Efsgdm(share)) => {
                let zeros = || vec![0.0; length];
                let (velocity, next, share) = (zeros(), zeros(), share as f32);
                feedback.momentum =
                    Some(MomentumCorrection { factor: 1.0 - share, share, velocity, next });
                feedback.estimate = Some(Estimate { mean: zeros(), sent: zeros() });
            }
            Some(FeedbackRule::Momentum(factor)) => {
                let (mean, next, factor) = (vec![0.0; length], vec![0.0; length], factor as f32);
                feedback.shared = Some(SharedMomentum { factor, mean, next });
            }
            None => {}
        }
        feedback
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
    /// (or the velocity that comes of it, or by how much that changes) + what is left of the residual,
    /// and tells whether all of it is finite. Every element has to be in one range of a step before [`commit`](Self::commit).
    ///
    /// # Panics
    /// When the range goes beyond the residual, or the gradient is of another length.
    #[must_use]
    pub fn begin(&mut self, range: Range<usize>, gradient: &[f32], scale: f32) -> bool {
        assert_eq!(gradient.len(), range.len(), "a gradient of other elements");
        if let Some(SharedMomentum { factor, mean, .. }) = &self.shared {
            let (due, share) = (&mut self.due[range.clone()], (1.0 - factor) * scale);
            let before = mean[range.clone()].iter().zip(&self.residual[range]);
            for ((due, new), (mean, residual)) in due.iter_mut().zip(gradient).zip(before) {
                *due = share * new + factor * mean + residual;
            }
            return floats::all_finite(due);
        }
        let (decay, averages) = (self.decay, self.estimate.is_some());
        let (new, scale) = match &mut self.momentum {
            None => (gradient, scale),
            Some(MomentumCorrection { factor, share, velocity, next }) => {
                let (next, velocity) = (&mut next[range.clone()], &velocity[range.clone()]);
                let scale = *share * scale;
                for ((next, velocity), gradient) in next.iter_mut().zip(velocity).zip(gradient) {
                    *next = *factor * *velocity + scale * gradient;
                }
                if averages {
                    let due = &mut self.due[range.clone()];
                    let change = next.iter().zip(velocity).map(|(next, before)| next - before);
                    let both = due.iter_mut().zip(change).zip(&self.residual[range]);
                    both.for_each(|((due, change), residual)| *due = change + residual);
                    return floats::all_finite(due);
                }
                (&*next, 1.0)
            }
        };
        let old = new.chunks(BLOCK).zip(self.residual[range.clone()].chunks(BLOCK));
        self.due[range].chunks_mut(BLOCK).zip(old).fold(true, |finite, (next, (new, residual))| {
            for ((next, new), residual) in next.iter_mut().zip(new).zip(residual) {
                *next = scale * new + decay * residual;
            }
            finite & floats::all_finite(next)
        })
    }

    /// Takes up the mean of the messages about the elements `range`. With EF21, overwrites it by what all ranks
    /// have of their gradients; the first element that is not finite, if one is not.
    pub(crate) fn take_mean(&mut self, range: Range<usize>, mean: &mut [f32]) -> Option<usize> {
        if let Some(shared) = &mut self.shared {
            shared.next[range.clone()].copy_from_slice(mean);
        }
        let Estimate { mean: before, sent } = self.estimate.as_mut()?;
        sent[range.clone()].copy_from_slice(mean);
        mean.iter_mut().zip(&before[range]).for_each(|(mean, before)| *mean += before);
        floats::first_non_finite(mean)
    }

    /// Whether ranks take something else than the mean of the messages.
    pub(crate) fn estimates(&self) -> bool {
        self.estimate.is_some()
    }

    /// Whether it has to be told the mean of the messages.
    pub(crate) fn takes_means(&self) -> bool {
        self.estimates() || self.shared.is_some()
    }

    /// The mean of the step's messages, where ranks take something else.
    pub(crate) fn mean_sent(&self) -> Option<&[f32]> {
        self.estimate.as_ref().map(|estimate| estimate.sent.as_slice())
    }

    /// Leaves the elements `range` out of a step: their residual stays what it is.
    pub(crate) fn skip(&mut self, range: Range<usize>) {
        self.due[range.clone()].copy_from_slice(&self.residual[range.clone()]);
        if let Some(momentum) = &mut self.momentum {
            momentum.next[range.clone()].copy_from_slice(&momentum.velocity[range.clone()]);
        }
        if let Some(estimate) = &mut self.estimate {
            estimate.sent[range.clone()].fill(0.0);
        }
        if let Some(shared) = &mut self.shared {
            shared.next[range.clone()].copy_from_slice(&shared.mean[range]);
        }
    }

    /// Multiplies the residual, and the velocity if there is one, by `factor`.
    pub(crate) fn rescale(&mut self, factor: f32) {
        self.residual.iter_mut().for_each(|value| *value *= factor);
        if let Some(momentum) = &mut self.momentum {
            momentum.velocity.iter_mut().for_each(|value| *value *= factor);
        }
        if let Some(estimate) = &mut self.estimate {
            estimate.mean.iter_mut().for_each(|value| *value *= factor);
        }
        if let Some(shared) = &mut self.shared {
            shared.mean.iter_mut().for_each(|value| *value *= factor);
        }
    }

    /// Gives up what is left of the elements `range`.
    pub(crate) fn forget(&mut self, range: Range<usize>) {
        self.residual[range].fill(0.0);
    }

    /// Puts `residual`, and with momentum correction `velocity`, into `state`, in name order.
    pub(crate) fn save(&self, layout: &Layout, state: &mut State) {
        state.insert("residual", Entry::F32(layout.to_name_order(&self.residual)));
        if let Some(velocity) = self.velocity() {
            let entry = if self.estimates() { "average" } else { "velocity" };
            state.insert(entry, Entry::F32(layout.to_name_order(velocity)));
        }
        if let Some(estimate) = &self.estimate {
            state.insert("estimate", Entry::F32(layout.to_name_order(&estimate.mean)));
        }
        if let Some(shared) = &self.shared {
            state.insert("momentum", Entry::F32(layout.to_name_order(&shared.mean)));
        }
    }

    /// Takes up what [`save`](Self::save) put there.
    pub(crate) fn restore(
        feedback: Option<&mut Self>,
        layout: &Layout,
        state: &State,
    ) -> Result<()> {
        let has_velocity = feedback.as_ref().is_some_and(|feedback| feedback.momentum.is_some());
        let estimates = feedback.as_ref().is_some_and(|feedback| feedback.estimates());
        let shares = feedback.as_ref().is_some_and(|feedback| feedback.shared.is_some());
        for (entry, kept, without) in [
            ("residual", feedback.is_some(), "error feedback"),
            ("velocity", has_velocity && !estimates, "momentum correction"),
            ("average", estimates, "feedback of the form `efsgdm`"),
            ("estimate", estimates, "feedback of the form `efsgdm`"),
            ("momentum", shares, "feedback of the form `momentum`"),
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
        let velocity = match (has_velocity, estimates) {
            (false, _) => Vec::new(),
            (true, false) => saved("velocity")?,
            (true, true) => saved("average")?,
        };
        if let Some(estimate) = &mut feedback.estimate {
            estimate.mean = saved("estimate")?;
        }
        if let Some(shared) = &mut feedback.shared {
            shared.mean = saved("momentum")?;
        }
        feedback.set(&residual, &velocity);
        Ok(())
    }

    /// The corrected gradient, as far as the step has got: what is to be sent.
    pub fn due(&self) -> &[f32] {
        &self.due
    }

    /// The corrected gradient, to be changed: the caller subtracts what was sent (by
    /// [`decode_add`](super::Compressor::decode_add) with weight −1), and what is left is the new
    /// residual.
    pub fn due_mut(&mut self) -> &mut [f32] {
        &mut self.due
    }

    /// Ends the momentum of an element that has been sent.
    pub(crate) fn mask(&mut self, position: usize) {
        if let Some(momentum) = &mut self.momentum {
            momentum.next[position] = 0.0;
        }
    }

    /// Ends a step: what remains is the residual now.
    pub fn commit(&mut self) {
        std::mem::swap(&mut self.residual, &mut self.due);
        if let Some(MomentumCorrection { velocity, next, .. }) = &mut self.momentum {
            std::mem::swap(velocity, next);
        }
        if let Some(Estimate { mean, sent }) = &mut self.estimate {
            mean.iter_mut().zip(sent).for_each(|(mean, sent)| *mean += *sent);
        }
        if let Some(SharedMomentum { mean, next, .. }) = &mut self.shared {
            std::mem::swap(mean, next);
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
        assert_eq!(feedback.due(), [4.0, 8.0]);
        feedback.due_mut()[1] = 0.0;
        feedback.mask(1);
        feedback.commit();
        assert!(feedback.begin(0..2, &[4.0, 8.0], 0.5));
        // Never sent: 4 + (½·4 + ½·4); sent and masked: ½·8.
        assert_eq!(feedback.due(), [8.0, 4.0]);
        assert_eq!(feedback.velocity(), Some(&[4.0, 0.0][..]));
        feedback.commit();
        assert_eq!(feedback.velocity(), Some(&[4.0, 4.0][..]));
    }

    /// At the switch to local steps: what was not sent of gradients is due as so many steps of the learning rate.
    #[test]
    fn what_is_left_is_due_in_another_unit() {
        let mut feedback = Feedback::new(2, 0.5);
        assert!(feedback.begin(0..2, &[4.0, -8.0], 1.0));
        feedback.due_mut()[1] = 0.0;
        feedback.commit();
        feedback.rescale(0.25);
        assert_eq!(feedback.velocity(), Some(&[1.0, -2.0][..]));
        assert!(feedback.begin(0..2, &[0.5, 0.5], 1.0));
        // ¼·4 + (½·¼·4 + ½); sent: ½·¼·(−8) + ½.
        assert_eq!(feedback.due(), [2.0, -0.5]);
    }
}
