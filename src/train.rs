//! Training: the loop that every rank runs, and what makes a run of it.
//!
//! `Worker::train` below is training from top to bottom. All that ranks exchange goes through the collective that `gradient`
//! holds: gradients there, progress in `rounds`, sums and comparisons in `evaluate`, `batch_norm` and `worker`. What rank 0 decides for all, to save or to stop, they share in [`requests`]. They [report] what happens; [`launch`] collects the ranks' reports into
//! the run's events and hands them to the [observers](observer): the record with TensorBoard's file,
//! the console, the checkpoints, and whatever a program adds. Faults that are injected
//! ([`faults`]) are wrapped round what the loop uses.

mod average;
mod batch_norm;
mod beside;
mod collector;
pub mod evaluate;
pub mod failure;
pub mod faults;
pub mod follow;
mod gradient;
mod inspect;
pub mod launch;
mod local;
pub mod memory;
mod notes;
pub mod observer;
pub mod optim;
mod overlap;
mod params;
pub mod parts;
mod position;
mod relay;
pub mod replica;
pub mod report;
pub mod requests;
pub mod resume;
mod rounds;
pub mod sample;
mod saving;
mod schedule;
pub mod session;
mod state;
pub mod steps;
pub mod timer;
pub mod views;
mod watch;
mod worker;
pub mod workers;

use crate::checkpoint::Score;
use anyhow::Result;
use gradient::GradientExchange;
use gradwire_datasets::Features;
use gradwire_models::kernels::profile;
use position::Phase;
use report::{EndOfEpoch, RankStep, Report};
use saving::Evaluated;
use std::time::Instant;
use timer::StepTimer;
use worker::Worker;

impl Worker {
    /// Trains to the run's last step, or until the run is asked to stop.
    fn train(&mut self) -> Result<()> {
        let last = self.session.steps.last_step;
        for step in self.session.steps.first_step()..=last {
            self.position.begin(step);
            self.decide(step);
            self.step(step)?;
            let evaluated = if self.session.steps.ends_epoch(step) || step == last {
                self.end_epoch(step)?
            } else {
                Evaluated::default()
            };
            let agreed = self.session.requests.decision(step);
            self.save(step, agreed, evaluated)?;
            if agreed.stop {
                break;
            }
        }
        Ok(())
    }

    /// One step: from a batch of samples to an update of the weights.
    fn step(&mut self, step: u64) -> Result<()> {
        let began = Instant::now();
        let mut timer = StepTimer::on(self.session.recipe.device);
        // An evaluation's work is not this step's.
        profile::take();

        self.position.enter(Phase::Data);
        let loaded = timer.time(|p| &mut p.data, || self.batches.next())?;
        let (batch, epoch) = (loaded.batch, loaded.epoch);
        let inspected = self.is_inspected(step);
        let local_step = self.session.steps.is_local(step);
        // The mean of weights after one step each, by plain SGD, weighs samples as the mean of gradients does.
        let alone = local_step && !self.session.steps.in_rounds_of_one();
        self.gradient.begin(step, alone, batch.len(), loaded.global_samples, inspected);
        // An embedding table is updated lazily: the rows that this batch reads have to be what they would be by now.
        if let Features::Tokens { ids, .. } | Features::Sequences { ids, .. } = &batch.features {
            let catch_up = || self.optimizer.catch_up(&self.replica.params, Some(ids));
            timer.time(|p| &mut p.forward, catch_up)?;
        }

        let (size, mut score) = (self.session.recipe.train.batch, Score::default());
        let rank = self.position.rank() as u64;
        for start in (0..batch.len()).step_by(size) {
            let samples = start..(start + size).min(batch.len());
            self.position.enter(Phase::Forward);
            let pass = [step, rank, start as u64];
            let forward = || self.replica.forward(&batch, samples.clone(), pass);
            let (loss, part) = timer.time(|p| &mut p.forward, forward)?;
            self.refuse_unless_loss_is_finite(&part)?;
            score.add(&part);
            let (params, zeros) = (&self.replica.params, self.optimizer.zeros());
            self.gradient.backward(&loss, &samples, params, zeros, &mut timer)?;
        }
        self.batches.recycle(batch);

        self.inspect_gradient(step)?;
        let learning_rate = self.schedule.at(self.session.steps.scheduled(step));
        let mut exchanged = if local_step {
            self.refuse_unless_gradient_is_finite()?;
            self.begin_local_steps(step, learning_rate)?;
            self.gradient.nothing_sent()
        } else {
            let exchanged = self.gradient.finish(&self.replica.params)?;
            timer.add_exchange(&exchanged.traffic, exchanged.exposed);
            exchanged
        };

        self.position.enter(Phase::Optimizer);
        let gradient_norm = timer.time(|p| &mut p.optimizer, || self.update(learning_rate))?;
        if local_step {
            exchanged = self.end_local_step(step, &mut timer)?;
        }
        timer.time(|p| &mut p.optimizer, || self.update_average(step))?;

        self.position.enter(Phase::Replicas);
        self.compare_replicas(step)?;
        if self.synchronises_batch_norm(step) {
            self.average_batch_norm()?;
        }
        let step = RankStep {
            rank: self.position.rank(),
            step,
            epoch,
            score,
            learning_rate,
            seconds: began.elapsed().as_secs_f64(),
            phases: timer.wall,
            own: timer.own,
            ready: exchanged.ready,
            laid: exchanged.laid,
            profile: profile::take(),
            traffic: exchanged.traffic,
            exposed: exchanged.exposed.as_secs_f64(),
            gradient_norm,
        };
        // What is under way is counted in this step's report, which waits until it has landed.
        if self.gradient.is_away() {
            self.held.push(step);
            return Ok(());
        }
        self.report(Report::Step(Box::new(step)))
    }

    /// Stops every rank before the update if this rank's loss is not finite.
    fn refuse_unless_loss_is_finite(&mut self, score: &Score) -> Result<()> {
        if score.loss.is_finite() {
            return Ok(());
        }
        self.land()?;
        Err(self.gradient.abort(&format!(
            "the training loss is {}; a lower learning rate, a longer warm-up or clipping \
             (train.clip_norm) may help",
            score.mean_loss()
        )))
    }

    /// Clips the gradient and updates the weights; the norm before clipping.
    fn update(&mut self, learning_rate: f64) -> Result<f64> {
        let limit = self.session.recipe.train.clip_norm.filter(|limit| *limit > 0.0);
        let GradientExchange { flat, support, .. } = &mut self.gradient;
        self.optimizer.step(&self.replica.params, flat, support, learning_rate, limit)
    }

    /// The end of an epoch, or of the run within one: evaluates if it is due, saves the best and the
    /// last model, and reports the epoch.
    fn end_epoch(&mut self, step: u64) -> Result<Evaluated> {
        let began = Instant::now();
        let epoch = self.session.steps.epoch_of(step);
        let last = step == self.session.steps.last_step;
        let due = last || epoch.is_multiple_of(self.session.recipe.train.evaluate_every);
        self.land()?;
        self.optimizer.catch_up(&self.replica.params, None)?;
        self.swap_evaluated_weights(step)?;
        self.position.enter(Phase::Evaluation);
        let running = if due { self.recalibrate(epoch)? } else { None };
        let test = if due { Some(self.evaluate()?) } else { None };
        let evaluation_seconds = began.elapsed().as_secs_f64();
        self.position.enter(Phase::SavingModel);
        let best = self.save_models(step, test, last)?;
        if self.position.rank() == 0 {
            self.report(Report::Epoch(EndOfEpoch { epoch, step, test, evaluation_seconds }))?;
        }
        if let Some(running) = running {
            self.set_statistics(&running)?;
        }
        self.swap_evaluated_weights(step)?;
        Ok(Evaluated { test, best })
    }
}
