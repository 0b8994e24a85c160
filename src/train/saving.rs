//! When a worker saves: what rank 0 decides for all, and what is the best so far.

use crate::recipe;
use crate::train::flags::StepFlags;
use anyhow::{Result, ensure};
use std::thread;
use std::time::{Duration, Instant};

/// When rank 0 wants a checkpoint, and which model is the best.
pub(crate) struct Saving {
    /// Since the last one was ordered, or the run began.
    since: Instant,
    /// One has been due, and the writer was not free.
    owed: bool,
    /// The step whose checkpoint the writer has been kept free for.
    reserved: Option<u64>,
    /// The best test accuracy so far, on every rank.
    pub(crate) best: Option<f64>,
    /// On rank 0 that of the best model that could be saved.
    pub(crate) saved: Option<f64>,
}

impl Saving {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), owed: false, reserved: None, best: None, saved: None }
    }

    /// Whether a model of this test accuracy is better than the one that is saved.
    pub(crate) fn is_best(&self, accuracy: Option<f64>) -> bool {
        accuracy.is_some_and(|now| self.saved.is_none_or(|saved| now > saved))
    }

    /// Decides, on rank 0 and for all ranks, whether to save after `step`.
    pub(crate) fn decide(&mut self, step: u64, settings: &recipe::Checkpoint, flags: &StepFlags) {
        let by_steps = settings.every_steps > 0 && step.is_multiple_of(settings.every_steps);
        let minutes = self.since.elapsed().as_secs_f64() / 60.0;
        let by_time = settings.every_minutes > 0.0 && minutes >= settings.every_minutes;
        let due = settings.keep_last > 0 && (self.owed || by_steps || by_time);
        let free = !flags.is_writing();
        let decision = flags.decide(step, due, free);
        self.owed = due && !decision.save;
        if decision.save {
            self.since = Instant::now();
        }
        if decision.save && free {
            flags.set_writing(true);
            self.reserved = Some(step);
        }
    }

    /// Waits until the writer is free for the checkpoint of `step`, if it has not been kept free.
    pub(crate) fn reserve(
        &mut self,
        step: u64,
        flags: &StepFlags,
        patience: Duration,
    ) -> Result<()> {
        if self.reserved.take() == Some(step) {
            return Ok(());
        }
        let began = Instant::now();
        while flags.is_writing() {
            ensure!(
                began.elapsed() < patience,
                "an earlier checkpoint has been written for more than {patience:?}: the disk does \
                 not answer"
            );
            thread::sleep(Duration::from_millis(1));
        }
        flags.set_writing(true);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_could_not_be_saved_is_no_bar_for_later_ones() {
        let mut saving = Saving::new();
        assert!(saving.is_best(Some(0.5)) && !saving.is_best(None));
        (saving.best, saving.saved) = (Some(0.9), Some(0.8));
        assert!(saving.is_best(Some(0.85)) && !saving.is_best(Some(0.8)));
    }
}
