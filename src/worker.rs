//! One worker: a thread that trains its replica on its share of the data, step by step.
//!
//! Workers meet nowhere but in the exchange. What happens is told upwards as [`Report`]s; nobody
//! calls into a worker.

mod epoch;
mod gradient;
mod state;

use crate::checkpoint::{Checkpoint, Part};
use crate::course::Course;
use crate::disk::Disk;
use crate::inject::Faults;
use crate::optim::{Optimizer, norm};
use crate::orders::Orders;
use crate::overlap::{Overlapped, Plan as OverlapPlan};
use crate::params::Params;
use crate::post::Post;
use crate::recipe::{BatchNorm, Recipe};
use crate::record::{Histograms, Phases, Warning};
use crate::replica::{Replica, Score};
use crate::schedule::Schedule;
use crate::spent::Spent;
use anyhow::{Context, Result, anyhow, bail};
use candle_core::Tensor;
use crossbeam::channel::Sender;
use gradwire_datasets::{Batch, Data, Features, Loader, Plan};
use gradwire_exchange::{Collective, Exchange, Gradient, Support, Traffic};
use gradwire_models::kernels::gradients::{Gradients, backward, backward_in_place, backward_into};
use gradwire_models::kernels::profile::{self, Profile};
use serde::{Deserialize, Serialize};
use state::Timing;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use epoch::evaluate_share;

/// What a worker tells the launching thread.
pub enum Report {
    /// It has taken a step.
    Step(Box<Step>),
    /// Distributions on this rank.
    Histograms(Histograms),
    /// All ranks have finished an epoch; rank 0 tells.
    Epoch(Epoch),
    /// Something that does not stop the run.
    Warning(Warning),
    /// A rank's part of a checkpoint, after everything else that it has to tell of the step.
    Part(Box<Part>),
}

/// One rank's part in a step.
#[derive(Default, Serialize, Deserialize)]
pub struct Step {
    /// Who.
    pub rank: usize,
    /// The step, 1-based.
    pub step: u64,
    /// The epoch, 1-based.
    pub epoch: u64,
    /// What came of the rank's samples.
    pub score: Score,
    /// The learning rate.
    pub learning_rate: f64,
    /// From the step's beginning to its end.
    pub seconds: f64,
    /// Where they went.
    pub phases: Phases,
    /// What this worker computed in each phase but those of the exchange ([`Spent::own`]).
    pub own: Phases,
    /// How much of the backward pass was over when the gradient of each group of buckets was
    /// final, 0 to 1, in the order of the traffic's legs; empty when the exchange followed it.
    pub ready: Vec<f64>,
    /// What the model's kernels did meanwhile; not told to other processes.
    #[serde(skip)]
    pub profile: Profile,
    /// What crossed the wire.
    pub traffic: Traffic,
    /// Seconds of the exchange that the backward pass did not hide.
    pub exposed: f64,
    /// Euclidean norm of the mean gradient before clipping.
    pub gradient_norm: f64,
}

/// The end of an epoch.
pub struct Epoch {
    /// The epoch, 1-based.
    pub epoch: u64,
    /// Its last step.
    pub step: u64,
    /// The test set's score over all ranks, if this epoch was evaluated.
    pub test: Option<Score>,
    /// Seconds that the evaluation took.
    pub evaluation_seconds: f64,
}

/// What a worker is made of, before it is on its thread.
pub struct Seat {
    /// The run.
    pub recipe: Arc<Recipe>,
    /// What is trained and tested on.
    pub data: Arc<Data>,
    /// Which of this machine's workers it is, counted from 0.
    pub seat_on_machine: usize,
    /// This rank's end of the exchange.
    pub collective: Box<dyn Collective>,
    /// Where reports go.
    pub reports: Sender<Report>,
    /// The run's folder, for the models that rank 0 saves; absent when none are to be.
    pub folder: Option<PathBuf>,
    /// What it is written through.
    pub disk: Disk,
    /// The steps to take.
    pub course: Course,
    /// What is asked of all ranks beside training.
    pub orders: Arc<Orders>,
    /// What the run goes on from; absent for one that begins.
    pub from: Option<Arc<Checkpoint>>,
    /// Where it tells where it is.
    pub post: Post,
    /// What is to go wrong.
    pub faults: Arc<Faults>,
}

/// A worker on its thread.
pub struct Worker {
    recipe: Arc<Recipe>,
    data: Arc<Data>,
    rank: usize,
    replica: Replica,
    params: Params,
    exchange: Exchange,
    optimizer: Optimizer,
    schedule: Schedule,
    loader: Loader,
    reports: Sender<Report>,
    folder: Option<PathBuf>,
    disk: Disk,
    course: Course,
    orders: Arc<Orders>,
    timing: Timing,
    /// The flat gradient: this rank's, then the mean; between steps zero where the optimizer says.
    flat: Vec<f32>,
    /// Outside of which `flat` is zero.
    support: Support,
    /// The gradient of one forward pass when several make an update.
    part: Vec<f32>,
    /// With overlap, from the second step on.
    overlap: Option<OverlapPlan>,
    /// The gradients of the first step, from which the plan is learnt.
    first: Option<Gradients>,
    best: Option<f64>,
    /// Where it is, for whoever watches.
    post: Post,
    faults: Arc<Faults>,
}

impl Worker {
    /// Takes its seat: builds the replica, the loader, the exchange.
    ///
    /// # Errors
    /// When the recipe does not fit the data.
    pub fn new(seat: Seat) -> Result<Self> {
        let Seat {
            recipe,
            data,
            seat_on_machine,
            collective,
            reports,
            folder,
            disk,
            course,
            orders,
            from,
            post,
            faults,
        } = seat;
        let rank = collective.rank();
        let replica = Replica::new(&recipe, &*data.train, seat_on_machine)?;
        let params = Params::new(&replica.store);
        let (sampler, first_place) = course.sampler(&recipe, rank)?;
        let last_place = course.place(course.last_step());
        let exchange = Exchange::with(
            &recipe.scheme,
            recipe.exchange.wiring(),
            recipe.policy(),
            params.layout()?,
            recipe.seed,
            collective,
        )?;
        let plan = Plan {
            augment: recipe.train.augment,
            seed: recipe.seed,
            first_step: first_place,
            last_step: Some(last_place),
            patience: Duration::from_secs_f64(recipe.exchange.timeout),
            ..Plan::default()
        };
        let mut worker = Self {
            recipe: recipe.clone(),
            data: data.clone(),
            rank,
            exchange,
            optimizer: Optimizer::new(recipe.optimizer.definition(), &params, recipe.model.table()),
            schedule: Schedule::new(
                recipe.schedule.clone(),
                recipe.optimizer.learning_rate(),
                course.steps_per_epoch(),
                last_place,
            ),
            loader: Loader::new(data.train.clone(), sampler, plan)?,
            reports,
            folder,
            disk,
            course,
            orders,
            timing: Timing::new(),
            flat: vec![0.0; params.len()],
            support: Support::nothing(params.len()),
            part: Vec::new(),
            overlap: None,
            first: None,
            best: None,
            post,
            faults,
            replica,
            params,
        };
        if let Some(checkpoint) = from {
            worker
                .restore(&checkpoint)
                .with_context(|| format!("taking up {}", checkpoint.folder.display()))?;
        }
        Ok(worker)
    }

    /// Trains to the end, or until the end is ordered.
    ///
    /// # Errors
    /// The first thing that goes wrong, here or on another rank.
    pub fn run(&mut self) -> Result<()> {
        let last = self.course.last_step();
        for step in self.course.first_step()..=last {
            self.post.step(step);
            self.faults.strike(self.rank, step, &self.post);
            self.decide(step);
            self.step(step)?;
            let (test, best) = if self.course.ends_epoch(step) || step == last {
                self.finish_epoch(step, step == last)?
            } else {
                (None, false)
            };
            let order = self.orders.of(step);
            self.keep(step, order, test.map(|test| test.accuracy()), best)?;
            if order.stop {
                break;
            }
        }
        Ok(())
    }

    /// One update: forward, backward, exchange, optimizer.
    fn step(&mut self, step: u64) -> Result<()> {
        let began = Instant::now();
        let mut spent = Spent::default();
        // An evaluation's work is none of this step's.
        profile::take();

        self.post.phase("data");
        let loaded = spent.timed(|p| &mut p.data, || self.loader.next())?;
        let epoch = loaded.epoch;
        let samples = loaded.global_samples;
        let (score, overlapped) = self.local_gradient(&loaded.batch, samples, &mut spent)?;
        self.loader.recycle(loaded.batch);
        let Overlapped { traffic, exposed, ready } = match overlapped {
            Some(overlapped) => overlapped,
            None => self.exchange_after(step)?,
        };
        let exposed = exposed.as_secs_f64();
        add_exchange(&mut spent.wall, &traffic, exposed);

        self.post.phase("optimizer");
        let learning_rate = self.schedule.at(self.course.place(step));
        let gradient_norm = spent.timed(|p| &mut p.optimizer, || self.update(learning_rate))?;

        self.post.phase("replicas");
        let every = self.recipe.exchange.compare_replicas_every;
        if every > 0 && step.is_multiple_of(every) {
            self.compare_replicas(step)?;
        }
        if self.recipe.train.batch_norm == BatchNorm::Synchronised {
            self.settle_batch_norm()?;
        }
        let seconds = began.elapsed().as_secs_f64();
        let rank = self.rank;
        self.report(Report::Step(Box::new(Step {
            rank,
            step,
            epoch,
            score,
            learning_rate,
            seconds,
            phases: spent.wall,
            own: spent.own,
            ready,
            profile: profile::take(),
            traffic,
            exposed,
            gradient_norm,
        })))
    }

    /// The exchange after the backward pass, nothing of it hidden.
    fn exchange_after(&mut self, step: u64) -> Result<Overlapped> {
        if let Some(histograms) = self.histograms(step) {
            self.report(Report::Histograms(histograms))?;
        }
        self.keep_gradient(step)?;
        self.post.phase("exchange");
        let began = Instant::now();
        let gradient = Gradient::within(&mut self.flat, &mut self.support);
        let traffic = self.exchange.allreduce(step, gradient)?;
        let exposed = began.elapsed();
        if self.recipe.exchange.overlap && self.overlap.is_none() {
            let (gradients, bytes) = (self.first.take(), self.recipe.exchange.overlap_bytes);
            let plan =
                OverlapPlan::learn(&self.params, gradients.as_ref(), &mut self.exchange, bytes)?;
            self.overlap = Some(plan);
        }
        Ok(Overlapped { traffic, exposed, ready: Vec::new() })
    }

    /// Whether nobody wants to see this rank's own gradient of this step, which an exchange beside
    /// the backward pass leaves no trace of.
    fn may_overlap(&self) -> bool {
        let step = self.post.place().step;
        self.overlap.is_some() && !self.histograms_due(step) && !self.gradient_due(step)
    }

    /// This rank's gradient into `flat`, weighed so that the plain mean over ranks is the mean
    /// over the global batch, whatever the ranks' shares. With overlap `flat` is the mean already.
    fn local_gradient(
        &mut self,
        batch: &Batch,
        global_samples: usize,
        spent: &mut Spent,
    ) -> Result<(Score, Option<Overlapped>)> {
        let (mut total, mut overlapped) = (Score::default(), None);
        let size = self.recipe.train.batch;
        let world_size = self.exchange.collective().world_size();
        if batch.is_empty() {
            self.flat.fill(0.0);
            self.support.clear();
        }
        if let Features::Tokens { ids, .. } = &batch.features {
            let show = || self.optimizer.show(&self.params, Some(ids));
            spent.timed(|p| &mut p.forward, show)?;
        }
        for start in (0..batch.len()).step_by(size) {
            let part = start..(start + size).min(batch.len());
            let mut weight = (part.len() * world_size) as f64 / global_samples as f64;
            if self.faults.spoils_gradient(self.rank, self.post.place().step) {
                weight = f64::NAN;
            }
            self.post.phase("forward");
            let (loss, score) =
                spent.timed(|p| &mut p.forward, || self.replica.forward(batch, part.clone()))?;
            if !score.loss.is_finite() {
                return Err(self.give_up(&score));
            }
            total.add(&score);
            self.post.phase("backward");
            if start + size >= batch.len() && self.may_overlap() {
                overlapped = Some(self.backward_overlapped(&loss, weight, start > 0, spent)?);
            } else {
                spent.timed(|p| &mut p.backward, || self.backward(&loss, weight, start > 0))?;
            }
        }
        Ok((total, overlapped))
    }

    /// Stops every rank before the update, because this rank's loss means nothing.
    fn give_up(&mut self, score: &Score) -> anyhow::Error {
        let reason = format!(
            "the training loss is {}; a lower learning rate, a longer warm-up or clipping \
             (train.clip_norm) may help",
            score.mean_loss()
        );
        self.exchange.abort(self.post.place().step, &reason).into()
    }

    fn backward(&mut self, loss: &Tensor, weight: f64, accumulate: bool) -> Result<()> {
        let weighed = if weight == 1.0 { loss.clone() } else { (loss * weight)? };
        let (flat, support) = if accumulate {
            self.part.resize(self.flat.len(), 0.0);
            (&mut self.part, &mut self.support)
        } else {
            self.support.clear();
            (&mut self.flat, &mut self.support)
        };
        // What becomes final when is learnt from contributions, of which none lies in place.
        let learns = self.recipe.exchange.overlap && self.overlap.is_none();
        let gradients = if learns {
            backward(&weighed)?
        } else {
            backward_in_place(&weighed, flat, self.params.places())?
        };
        if self.post.place().step == 1 && !accumulate {
            self.params.audit(&gradients)?;
        }
        let zeros = if accumulate { None } else { self.optimizer.zeros() };
        self.params.gather(&gradients, flat, zeros, support)?;
        if accumulate {
            self.flat.iter_mut().zip(&self.part).for_each(|(sum, part)| *sum += part);
        }
        if learns {
            self.first = Some(gradients);
        }
        Ok(())
    }

    /// The backward pass and the exchange beside it.
    fn backward_overlapped(
        &mut self,
        loss: &Tensor,
        weight: f64,
        accumulate: bool,
        spent: &mut Spent,
    ) -> Result<Overlapped> {
        self.post.phase("backward and exchange");
        let plan = self.overlap.as_ref().context("invariant: there is a plan")?;
        let loss = if weight == 1.0 { loss.clone() } else { (loss * weight)? };
        let exchange = (&self.params, &mut self.exchange, self.flat.as_mut_slice());
        self.support.fill();
        plan.run(self.post.place().step, exchange, accumulate, spent, |listener| {
            Ok(backward_into(&loss, listener)?)
        })
    }

    /// Clips the mean gradient and updates the weights; the norm before clipping.
    fn update(&mut self, learning_rate: f64) -> Result<f64> {
        let Some(limit) = self.recipe.train.clip_norm else {
            return self.optimizer.step(&self.params, &mut self.flat, &self.support, learning_rate);
        };
        let norm = norm(&self.flat);
        if norm > limit {
            let factor = (limit / (norm + 1e-6)) as f32;
            self.flat.iter_mut().for_each(|g| *g *= factor);
        }
        self.optimizer.step(&self.params, &mut self.flat, &self.support, learning_rate)?;
        Ok(norm)
    }

    /// Compares the replicas' weights; they are equal bit for bit, or something is broken.
    fn compare_replicas(&mut self, step: u64) -> Result<()> {
        self.optimizer.show(&self.params, None)?;
        let hashes = self.params.hashes()?;
        if let Some(differs) = self.exchange.collective().compare(&hashes)? {
            let name = self.params.iter().nth(differs.index).map_or("?", |p| p.name.as_str());
            let rank = differs.rank;
            bail!(
                "replicas differ after step {step}: {name} is not the same on rank {rank} as on \
                 rank 0; this is a defect of the program or of the memory, not of the recipe"
            );
        }
        Ok(())
    }

    /// Tells the launching thread; if it no longer listens, the run is over.
    fn report(&self, report: Report) -> Result<()> {
        self.reports.send(report).map_err(|_| anyhow!("the run's record has ended"))
    }
}

/// Shares the exposed seconds of an exchange among its phases, in proportion to what they took.
fn add_exchange(phases: &mut Phases, traffic: &Traffic, exposed: f64) {
    let share = (exposed / traffic.total().as_secs_f64()).min(1.0);
    let exposed = |time: Duration| if share.is_nan() { 0.0 } else { time.as_secs_f64() * share };
    phases.encode += exposed(traffic.encode);
    phases.wait += exposed(traffic.wait);
    phases.decode += exposed(traffic.decode);
}
