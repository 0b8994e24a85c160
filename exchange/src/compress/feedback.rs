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
    /// share, at least 0 and below 1, of the last mean, and the rest of the new gradient. For any scheme;
    /// around one that scales up what it draws (`randomk` with `unbiased`) it has ever heavier tails.
    Momentum(
        #[cfg_attr(feature = "schema", schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0)))]
         f64,
    ),
}

/// A vector that lasts from step to step, and what it is once the step under way has ended.
#[derive(Debug, Clone)]
struct Lasting {
    /// What it is called in a saved state.
    entry: &'static str,
    now: Vec<f32>,
    next: Vec<f32>,
}

impl Lasting {
    fn zeros(entry: &'static str, length: usize) -> Self {
        Self { entry, now: vec![0.0; length], next: vec![0.0; length] }
    }
}

/// What one rank remembers of its gradients, and the corrected gradient of the step under way.
#[derive(Debug, Clone)]
#[doc(hidden)]
pub struct Feedback {
    /// What has not been sent. Its next is gradient + residual at first; then, bucket by bucket, what remains after sending.
    residual: Lasting,
    /// What is left of the residual from step to step; 1 for all.
    decay: f32,
    /// With momentum correction (Lin et al. 2018, "Deep Gradient Compression", sections 3.1 and 3.2) the velocity: the
    /// residual gathers velocities m·v + g instead of gradients, so that an element that is sent late has moved by as
    /// much as if it had been sent at once. With EF21 the average of this rank's gradients.
    velocity: Option<Lasting>,
    /// What ranks took in the last step, where it is more than the mean of its messages: with EF21 the mean over ranks of what
    /// it has of each one's gradient, else the momentum that ranks share.
    mean: Option<Lasting>,
    /// With EF21 the mean of the step's messages.
    sent: Option<Vec<f32>>,
    /// What is left of the velocity, or of the shared momentum, from step to step.
    factor: f32,
    /// What a gradient adds to the velocity: 1, or 1 − factor where it is an average.
    share: f32,
}

/// Elements that stay in the first cache.
const BLOCK: usize = 4096;

impl Feedback {
    /// Everything at zero, in the form that `rule` asks for; with a momentum factor above 0 momentum correction.
    pub fn of(rule: Option<FeedbackRule>, momentum: f64, length: usize) -> Self {
        let mut feedback = Self {
            residual: Lasting::zeros("residual", length),
            decay: 1.0,
            velocity: (momentum > 0.0).then(|| Lasting::zeros("velocity", length)),
            mean: None,
            sent: None,
            factor: momentum as f32,
            share: 1.0,
        };
        match rule {
            Some(FeedbackRule::Decay(decay)) => feedback.decay = decay as f32,
            Some(FeedbackRule::Efsgdm(share)) => {
                feedback.velocity = Some(Lasting::zeros("average", length));
                feedback.mean = Some(Lasting::zeros("estimate", length));
                feedback.sent = Some(vec![0.0; length]);
                feedback.share = share as f32;
                feedback.factor = 1.0 - feedback.share;
            }
            Some(FeedbackRule::Momentum(factor)) => {
                feedback.mean = Some(Lasting::zeros("momentum", length));
                feedback.factor = factor as f32;
            }
            None => {}
        }
        feedback
    }

    /// All that lasts.
    fn lasting(&mut self) -> impl Iterator<Item = &mut Lasting> {
        std::iter::once(&mut self.residual).chain(&mut self.velocity).chain(&mut self.mean)
    }

    /// What has not been sent, up to the last step that was committed.
    pub fn residual(&self) -> &[f32] {
        &self.residual.now
    }

    /// Replaces the residual, and the velocity if there is one.
    ///
    /// # Panics
    /// When a length differs.
    pub fn set(&mut self, residual: &[f32], velocity: &[f32]) {
        self.residual.now.copy_from_slice(residual);
        if let Some(own) = &mut self.velocity {
            own.now.copy_from_slice(velocity);
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
        let Self { decay, factor, share, .. } = *self;
        let due = &mut self.residual.next[range.clone()];
        let residual = &self.residual.now[range.clone()];
        if let (Some(mean), None) = (&self.mean, &self.sent) {
            let (share, before) = ((1.0 - factor) * scale, mean.now[range].iter().zip(residual));
            for ((due, new), (mean, residual)) in due.iter_mut().zip(gradient).zip(before) {
                *due = share * new + factor * mean + residual;
            }
            return floats::all_finite(due);
        }
        let (new, scale) = match &mut self.velocity {
            None => (gradient, scale),
            Some(velocity) => {
                let (next, now) = (&mut velocity.next[range.clone()], &velocity.now[range]);
                let scale = share * scale;
                for ((next, now), gradient) in next.iter_mut().zip(now).zip(gradient) {
                    *next = factor * now + scale * gradient;
                }
                if self.sent.is_some() {
                    let change = next.iter().zip(now).map(|(next, before)| next - before);
                    let both = due.iter_mut().zip(change).zip(residual);
                    both.for_each(|((due, change), residual)| *due = change + residual);
                    return floats::all_finite(due);
                }
                (&*next, 1.0)
            }
        };
        let old = new.chunks(BLOCK).zip(residual.chunks(BLOCK));
        due.chunks_mut(BLOCK).zip(old).fold(true, |finite, (next, (new, residual))| {
            for ((next, new), residual) in next.iter_mut().zip(new).zip(residual) {
                *next = scale * new + decay * residual;
            }
            finite & floats::all_finite(next)
        })
    }

    /// Takes up the mean of the messages about the elements `range`. With EF21, overwrites it by what all ranks
    /// have of their gradients; the first element that is not finite, if one is not.
    pub(crate) fn take_mean(&mut self, range: Range<usize>, mean: &mut [f32]) -> Option<usize> {
        let own = self.mean.as_mut()?;
        let estimates = self.sent.as_mut().map(|sent| {
            sent[range.clone()].copy_from_slice(mean);
            mean.iter_mut().zip(&own.now[range.clone()]).for_each(|(mean, now)| *mean += now);
        });
        own.next[range].copy_from_slice(mean);
        estimates.and_then(|()| floats::first_non_finite(mean))
    }

    /// Whether it has to be told the mean of the messages.
    pub(crate) fn takes_means(&self) -> bool {
        self.mean.is_some()
    }

    /// The mean of the step's messages, where ranks take something else.
    pub(crate) fn mean_sent(&self) -> Option<&[f32]> {
        self.sent.as_deref()
    }

    /// Leaves the elements `range` out of a step: all that lasts stays what it is.
    pub(crate) fn skip(&mut self, range: Range<usize>) {
        for Lasting { now, next, .. } in self.lasting() {
            next[range.clone()].copy_from_slice(&now[range.clone()]);
        }
        if let Some(sent) = &mut self.sent {
            sent[range].fill(0.0);
        }
    }

    /// Multiplies all that lasts by `factor`.
    pub(crate) fn rescale(&mut self, factor: f32) {
        self.lasting().flat_map(|lasting| &mut lasting.now).for_each(|value| *value *= factor);
    }

    /// Gives up what is left of the elements `range`.
    pub(crate) fn forget(&mut self, range: Range<usize>) {
        self.residual.now[range].fill(0.0);
    }

    /// Puts all that lasts into `state`, in name order.
    pub(crate) fn save(&self, layout: &Layout, state: &mut State) {
        for lasting in [Some(&self.residual), self.velocity.as_ref(), self.mean.as_ref()] {
            let Some(Lasting { entry, now, .. }) = lasting else { continue };
            state.insert(*entry, Entry::F32(layout.to_name_order(now)));
        }
    }

    /// Takes up what [`save`](Self::save) put there.
    pub(crate) fn restore(
        feedback: Option<&mut Self>,
        layout: &Layout,
        state: &State,
    ) -> Result<()> {
        let mut kept: Vec<_> = feedback.into_iter().flat_map(Self::lasting).collect();
        for (entry, without) in [
            ("residual", "error feedback"),
            ("velocity", "momentum correction"),
            ("average", "feedback of the form `efsgdm`"),
            ("estimate", "feedback of the form `efsgdm`"),
            ("momentum", "feedback of the form `momentum`"),
        ] {
            if state.contains(entry) && !kept.iter().any(|lasting| lasting.entry == entry) {
                return Err(Error::State {
                    entry: entry.to_string(),
                    problem: format!("would be lost: this exchange runs without {without}"),
                });
            }
        }
        let saved = kept
            .iter()
            .map(|lasting| Ok(layout.from_name_order(state.f32s(lasting.entry, layout.len())?)));
        let saved: Vec<Vec<f32>> = saved.collect::<Result<_>>()?;
        kept.iter_mut().zip(saved).for_each(|(lasting, saved)| lasting.now = saved);
        Ok(())
    }

    /// The corrected gradient, as far as the step has got: what is to be sent.
    pub fn due(&self) -> &[f32] {
        &self.residual.next
    }

    /// The corrected gradient, to be changed: the caller subtracts what was sent (by
    /// [`decode_add`](super::Compressor::decode_add) with weight −1), and what is left is the new
    /// residual.
    pub fn due_mut(&mut self) -> &mut [f32] {
        &mut self.residual.next
    }

    /// Ends the momentum of an element that has been sent.
    pub(crate) fn mask(&mut self, position: usize) {
        if let Some(velocity) = &mut self.velocity {
            velocity.next[position] = 0.0;
        }
    }

    /// Ends a step: what remains is the residual now.
    pub fn commit(&mut self) {
        self.lasting().for_each(|Lasting { now, next, .. }| std::mem::swap(now, next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn velocity(feedback: &Feedback) -> &[f32] {
        &feedback.velocity.as_ref().unwrap().now
    }

    /// Two steps by hand: v = ½v + g, u = u + v; what is sent leaves both.
    #[test]
    fn velocities_gather_until_they_are_sent() {
        let mut feedback = Feedback::of(None, 0.5, 2);
        assert!(feedback.begin(0..2, &[4.0, 8.0], 1.0));
        assert_eq!(feedback.due(), [4.0, 8.0]);
        feedback.due_mut()[1] = 0.0;
        feedback.mask(1);
        feedback.commit();
        assert!(feedback.begin(0..2, &[4.0, 8.0], 0.5));
        // Never sent: 4 + (½·4 + ½·4); sent and masked: ½·8.
        assert_eq!(feedback.due(), [8.0, 4.0]);
        assert_eq!(velocity(&feedback), [4.0, 0.0]);
        feedback.commit();
        assert_eq!(velocity(&feedback), [4.0, 4.0]);
    }

    /// At the switch to local steps: what was not sent of gradients is due as so many steps of the learning rate.
    #[test]
    fn what_is_left_is_due_in_another_unit() {
        let mut feedback = Feedback::of(None, 0.5, 2);
        assert!(feedback.begin(0..2, &[4.0, -8.0], 1.0));
        feedback.due_mut()[1] = 0.0;
        feedback.commit();
        feedback.rescale(0.25);
        assert_eq!(velocity(&feedback), [1.0, -2.0]);
        assert!(feedback.begin(0..2, &[0.5, 0.5], 1.0));
        // ¼·4 + (½·¼·4 + ½); sent: ½·¼·(−8) + ½.
        assert_eq!(feedback.due(), [2.0, -0.5]);
    }
}
