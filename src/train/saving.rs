//! What a worker saves: the best and the last model, its part of a checkpoint.

use crate::checkpoint::{self, Score};
use crate::train::position::Phase;
use crate::train::report::Report;
use crate::train::requests::Decision;
use crate::train::session::Session;
use crate::train::worker::Worker;
use anyhow::{Context, Result};
use gradwire_datasets::Shape;
use std::time::{Duration, Instant};

/// The longest that rank 0 waits, after the last step, for an earlier checkpoint to be written: no other rank waits for it then.
const SLOWEST: Duration = Duration::from_secs(600);

/// What the end of an epoch has shown.
#[derive(Clone, Copy, Default)]
pub(super) struct Evaluated {
    /// The test set's score, if it was evaluated.
    pub(super) test: Option<Score>,
    /// Whether it is the best so far.
    pub(super) best: bool,
}

impl Worker {
    /// Before a step: rank 0 decides for all ranks whether they save and stop at its end, or at that of the step
    /// in which what now leaves arrives.
    pub(super) fn decide(&mut self, step: u64) {
        let Session { recipe, steps, requests, .. } = &*self.session;
        // Who has been left behind decides nothing, and takes no request away from the next attempt.
        let decides = self.position.rank() == 0 && !self.position.is_abandoned();
        if let Some(then) = steps.agrees_on(step).filter(|_| decides) {
            self.save_policy.decide(then, &recipe.checkpoint, steps, requests);
        }
    }

    /// After a step: hands in this rank's state if a checkpoint was agreed on, the run is at its end
    /// or the model at its best.
    pub(super) fn save(&mut self, step: u64, agreed: Decision, evaluated: Evaluated) -> Result<()> {
        let settings = &self.session.recipe.checkpoint;
        let last = step == self.session.steps.last_step;
        let wanted = agreed.save || last || (evaluated.best && settings.keep_best);
        if !wanted || settings.keep_last == 0 {
            return Ok(());
        }
        let began = Instant::now();
        self.land()?;
        if self.position.rank() == 0 {
            self.position.enter(Phase::WaitingForWriter);
            let patience = match agreed.stop || last {
                true => SLOWEST,
                // The others go on, and wait for this rank in their next exchange.
                false => Duration::from_secs_f64(self.session.recipe.exchange.timeout),
            };
            self.save_policy.reserve(&self.session.requests, patience, &self.position)?;
        }
        self.position.enter(Phase::CopyingState);
        self.optimizer.catch_up(&self.replica.params, None)?;
        let mut part = self.snapshot(step, evaluated.test)?;
        part.stall = began.elapsed().as_secs_f64();
        self.report(Report::Part(Box::new(part)))
    }

    /// Rank 0 saves the model as the best one if it is, and as the last one at the run's end. Whether
    /// it is the best, on every rank.
    pub(super) fn save_models(
        &mut self,
        step: u64,
        test: Option<Score>,
        last: bool,
    ) -> Result<bool> {
        let merit = test.map(|test| self.merit(test)).filter(|merit| !merit.is_nan());
        let policy = &mut self.save_policy;
        let best = merit.is_some_and(|now| policy.best.is_none_or(|best| now > best));
        if best {
            policy.best = merit;
        }
        if self.position.rank() == 0 && !self.position.is_abandoned() {
            if policy.beats_saved(merit) {
                self.save_best(step, test, merit)?;
            }
            if last {
                // When this fails, no checkpoint of this step is made: one would hide that the model is missing.
                self.save_model(checkpoint::LAST, step, test)?;
            }
        }
        Ok(best)
    }

    /// How good a model of this score is: its accuracy, or where a text is continued its loss, negated.
    pub(super) fn merit(&self, test: Score) -> f64 {
        match self.session.data.test.shape() {
            Shape::Sequence { .. } => -test.mean_loss(),
            _ => test.accuracy(),
        }
    }

    /// Saves the best model; when that fails, training goes on with a warning.
    fn save_best(&mut self, step: u64, test: Option<Score>, merit: Option<f64>) -> Result<()> {
        let Err(error) = self.save_model(checkpoint::BEST, step, test) else {
            self.save_policy.saved = merit;
            return Ok(());
        };
        let file = self.session.folder.as_ref().map(|run| run.join(checkpoint::BEST));
        let found = file.map(|file| checkpoint::find(&file));
        // What failed may have been the last operation, after which the file was there.
        let then = if found.is_some_and(|found| found.is_ok_and(|it| it.step == step)) {
            self.save_policy.saved = merit;
            "it is in its place, but a power cut may take it back"
        } else {
            "the best model before stays"
        };
        let message = format!("{error:#}; training goes on, and {then}");
        self.report(Report::Warning(Some(step), message))
    }

    fn save_model(&self, which: &str, step: u64, test: Option<Score>) -> Result<()> {
        let Some(folder) = &self.session.folder else { return Ok(()) };
        let (folder, store) = (folder.join(which), &self.replica.store);
        let accuracy = test.map(|test| test.accuracy());
        let Session { disk, recipe, data, .. } = &*self.session;
        checkpoint::save(disk, &folder, store, recipe, step, accuracy, data.normalisation)
            .with_context(|| format!("saving the {which} model"))
    }
}
