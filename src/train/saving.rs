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
}

impl Saving {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), owed: false, reserved: None, best: None }
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
