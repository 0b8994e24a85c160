//! Error feedback: what a message leaves unsaid is added to the next gradient.
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
//! One f32 for each element of the flat gradient, whatever the bucketing: another bucketing, or
//! another scheme, can take the residual over. The new residual is prepared beside the old one
//! and takes its place only when the step's messages have all arrived.

use std::ops::Range;

use crate::wire::floats;

/// The residual of one rank, and the corrected gradient of the step under way.
#[derive(Debug, Clone)]
pub struct Feedback {
    residual: Vec<f32>,
    /// gradient + residual at first; then, bucket by bucket, what remains after sending.
    next: Vec<f32>,
}

impl Feedback {
    /// A residual of zeros.
    pub fn new(length: usize) -> Self {
        Self { residual: vec![0.0; length], next: vec![0.0; length] }
    }

    /// What has not been said, up to the last step that was committed.
    pub fn residual(&self) -> &[f32] {
        &self.residual
    }

    /// Replaces the residual.
    ///
    /// # Panics
    /// When the length differs.
    pub fn set_residual(&mut self, residual: &[f32]) {
        self.residual.copy_from_slice(residual);
    }

    /// Begins a step: prepares gradient + residual, and tells whether all of it is finite.
    #[must_use]
    pub fn correct(&mut self, gradient: &[f32]) -> bool {
        const BLOCK: usize = 4096;
        let old = gradient.chunks(BLOCK).zip(self.residual.chunks(BLOCK));
        self.next.chunks_mut(BLOCK).zip(old).fold(true, |finite, (next, (gradient, residual))| {
            for ((next, gradient), residual) in next.iter_mut().zip(gradient).zip(residual) {
                *next = gradient + residual;
            }
            finite & floats::all_finite(next)
        })
    }

    /// The corrected gradient of a bucket: what is to be sent.
    pub fn bucket(&self, range: Range<usize>) -> &[f32] {
        &self.next[range]
    }

    /// The same, for taking off what was sent (by
    /// [`decode_add`](super::Compressor::decode_add) with weight −1): what is left is the new
    /// residual.
    pub fn bucket_mut(&mut self, range: Range<usize>) -> &mut [f32] {
        &mut self.next[range]
    }

    /// Ends a step: what remains is the residual now.
    pub fn commit(&mut self) {
        std::mem::swap(&mut self.residual, &mut self.next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uncommitted_step_leaves_no_trace() {
        let mut feedback = Feedback::new(2);
        feedback.set_residual(&[1.0, 2.0]);
        assert!(feedback.correct(&[10.0, 20.0]));
        assert_eq!(feedback.bucket(0..2), [11.0, 22.0]);
        assert_eq!(feedback.residual(), [1.0, 2.0]);
        assert!(!feedback.correct(&[f32::NAN, 0.0]));
        assert_eq!(feedback.residual(), [1.0, 2.0]);
    }

    #[test]
    fn a_committed_step_keeps_what_was_not_sent() {
        let mut feedback = Feedback::new(3);
        for _ in 0..2 {
            assert!(feedback.correct(&[1.0, 2.0, 3.0]));
            feedback.bucket_mut(1..3).fill(0.0);
            feedback.commit();
        }
        assert_eq!(feedback.residual(), [2.0, 0.0, 0.0]);
    }

    #[test]
    fn a_sum_that_overflows_is_noticed() {
        let mut feedback = Feedback::new(1);
        feedback.set_residual(&[f32::MAX]);
        assert!(!feedback.correct(&[f32::MAX]));
    }
}
