//! The end of an epoch: evaluation, the best and the last model.

use super::Worker;
use crate::checkpoint::{self, Score};
use crate::record::Warning;
use crate::train::evaluate::evaluate_share;
use crate::train::post::Phase;
use crate::train::report::{Epoch, Report};
use crate::train::session::Session;
use anyhow::{Context, Result};
use gradwire_datasets::Dataset;
use std::time::Instant;

impl Worker {
    /// Evaluates if it is time, saves models, tells of the epoch. Returns the test set's score, and
    /// whether it is the best so far.
    pub(super) fn finish_epoch(&mut self, step: u64, last: bool) -> Result<(Option<Score>, bool)> {
        let epoch = self.session.course.epoch_of(step);
        let began = Instant::now();
        let due = last || epoch.is_multiple_of(self.session.recipe.train.evaluate_every);
        self.optimizer.catch_up(&self.replica.params, None)?;
        self.swap_average()?;
        self.post.phase(Phase::Evaluation);
        let kept = if due { self.recalibrate(epoch)? } else { None };
        let test = if due { Some(self.evaluate()?) } else { None };
        let evaluation_seconds = began.elapsed().as_secs_f64();
        self.post.phase(Phase::SavingModel);
        let accuracy = test.map(|test| test.accuracy());
        let best = accuracy.is_some_and(|now| self.saving.best.is_none_or(|best| now > best));
        if best {
            self.saving.best = accuracy;
        }
        if self.post.rank() == 0 {
            if self.saving.is_best(accuracy) {
                match self.save_as(checkpoint::BEST, step, accuracy) {
                    Ok(()) => self.saving.saved = accuracy,
                    Err(error) => {
                        let place =
                            self.session.folder.as_ref().map(|run| run.join(checkpoint::BEST));
                        let found = place.map(|place| checkpoint::find(&place));
                        // What failed may have been the last thing, after which the file was there.
                        let stands =
                            found.is_some_and(|found| found.is_ok_and(|it| it.step == step));
                        let then = if stands {
                            self.saving.saved = accuracy;
                            "it is in its place, but a power cut may take it back"
                        } else {
                            "the best model before stays"
                        };
                        let message = format!("{error:#}; training goes on, and {then}");
                        self.report(Report::Warning(Warning { step: Some(step), message }))?;
                    }
                }
            }
            if last {
                self.save_as(checkpoint::LAST, step, accuracy)?;
            }
            self.report(Report::Epoch(Epoch { epoch, step, test, evaluation_seconds }))?;
        }
        if let Some(kept) = kept {
            self.set_statistics(&kept)?;
        }
        self.swap_average()?;
        Ok((test, best))
    }

    /// The test set's score: every rank takes its share, the sums are added in rank order.
    fn evaluate(&mut self) -> Result<Score> {
        self.settle_batch_norm()?;
        let test: &dyn Dataset = &*self.session.data.test;
        let world_size = self.exchange.collective().world_size();
        let size = self.session.recipe.evaluation_batch();
        let beat = || self.post.beat();
        let mine = evaluate_share(&self.replica, test, world_size, self.post.rank(), size, beat)?;
        let mut sums = [mine.loss, mine.correct as f64, mine.samples as f64];
        self.exchange.collective().sum_f64(&mut sums)?;
        Ok(Score { loss: sums[0], correct: sums[1] as u64, samples: sums[2] as u64 })
    }

    fn save_as(&self, which: &str, step: u64, accuracy: Option<f64>) -> Result<()> {
        let Some(folder) = &self.session.folder else { return Ok(()) };
        let (folder, store) = (folder.join(which), &self.replica.store);
        let Session { disk, recipe, data, .. } = &*self.session;
        checkpoint::save(disk, &folder, store, recipe, step, accuracy, data.normalisation)
            .with_context(|| format!("saving the {which} model"))
    }
}
