//! One worker: a thread that trains its replica on its share of the data, step by step.
//!
//! Workers meet nowhere but in the exchange. What happens is told upwards as [`Report`]s; nobody
//! calls into a worker.

mod epoch;
mod gradient;
mod norms;
mod shown;
pub(crate) mod state;

use crate::checkpoint::{Checkpoint, Score};
use crate::recipe::{BatchNorm, Recipe};
use crate::record::Phases;
use crate::train::average::Average;
use crate::train::optim::{Optimizer, norm};
use crate::train::overlap::{Overlapped, Plan as OverlapPlan};
use crate::train::post::{Phase, Post};
use crate::train::replica::Replica;
use crate::train::report::{Report, Step};
use crate::train::saving::Saving;
use crate::train::schedule::Schedule;
use crate::train::session::Session;
use crate::train::spent::Spent;
use anyhow::{Context, Result, anyhow, bail};
use candle_core::Tensor;
use crossbeam::channel::Sender;
use gradwire_datasets::{Batch, Features, Loader, Plan};
use gradwire_exchange::{Collective, Exchange, Gradient, Run, Support, Traffic};
use gradwire_models::kernels::gradients::{Gradients, backward, backward_in_place, backward_into};
use gradwire_models::kernels::profile;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a worker is made of, before it is on its thread.
pub struct Seat {
    /// The run.
    pub session: Arc<Session>,
    /// Which of this machine's workers it is, counted from 0.
    pub seat_on_machine: usize,
    /// This rank's end of the exchange.
    pub collective: Box<dyn Collective>,
    /// Where reports go.
    pub reports: Sender<Report>,
    /// What the run goes on from; absent for one that begins.
    pub from: Option<Arc<Checkpoint>>,
    /// Where it tells where it is.
    pub post: Post,
}

/// A worker on its thread.
pub struct Worker {
    session: Arc<Session>,
    replica: Replica,
    exchange: Exchange,
    optimizer: Optimizer,
    /// Of the weights over the steps, if the recipe asks for one.
    average: Option<Average>,
    schedule: Schedule,
    loader: Loader,
    reports: Sender<Report>,
    gradient: Local,
    overlap: Overlap,
    saving: Saving,
    /// Where it is, for whoever watches.
    post: Post,
}

/// This rank's gradient, which becomes the mean gradient in place.
struct Local {
    /// One value for each parameter; between steps zero where the optimizer says.
    flat: Vec<f32>,
    /// Outside of which `flat` is zero.
    support: Support,
    /// The gradient of one forward pass when several make an update.
    part: Vec<f32>,
}

/// Whether buckets leave while the backward pass still runs.
enum Overlap {
    Off,
    /// From the second step on, by a plan that the gradients of the first teach.
    Learning(Option<Gradients>),
    Planned(OverlapPlan),
}

/// The exchange of a rank, in a run of so many steps; without them its schemes take what is usual.
/// The replica's parameters take their places in the flat gradient from it.
fn exchange(
    recipe: &Recipe,
    steps: Option<u64>,
    replica: &mut Replica,
    end: Box<dyn Collective>,
) -> Result<Exchange> {
    let exchange = Exchange::with(
        &recipe.scheme,
        recipe.exchange.wiring(),
        recipe.policy(),
        replica.params.layout()?,
        Run { seed: recipe.seed, steps },
        end,
    )?;
    replica.params.arrange(exchange.layout())?;
    Ok(exchange)
}

fn optimizer(recipe: &Recipe, replica: &Replica) -> Optimizer {
    Optimizer::new(
        recipe.optimizer.definition(),
        recipe.policy().momentum(),
        &replica.params,
        recipe.model.table(),
    )
}

impl Worker {
    /// Takes its seat: builds the replica, the loader, the exchange.
    ///
    /// # Errors
    /// When the recipe does not fit the data.
    pub fn new(seat: Seat) -> Result<Self> {
        let Seat { session, seat_on_machine, collective, reports, from, post } = seat;
        let Session { recipe, data, course, .. } = &*session;
        let rank = collective.rank();
        let mut replica = Replica::new(recipe, &*data.train, seat_on_machine)?;
        if from.is_none() {
            replica.prepare(recipe, &*data.train)?;
        }
        let (sampler, first_place) = course.sampler(recipe, rank)?;
        let last_place = course.place(course.last_step());
        let exchange = exchange(recipe, Some(course.last_step()), &mut replica, collective)?;
        let plan = Plan {
            augment: recipe.augmentation(),
            seed: recipe.seed,
            first_step: first_place,
            last_step: Some(last_place),
            patience: Duration::from_secs_f64(recipe.exchange.timeout),
            ..Plan::default()
        };
        let gradient = Local {
            flat: vec![0.0; replica.params.len()],
            support: Support::nothing(replica.params.len()),
            part: Vec::new(),
        };
        let mut worker = Self {
            exchange,
            optimizer: optimizer(recipe, &replica),
            average: Average::new(recipe.average, &replica)?,
            schedule: Schedule::new(
                recipe.schedule.clone(),
                recipe.optimizer.learning_rate(),
                course.steps_per_epoch(),
                last_place,
            ),
            loader: Loader::new(data.train.clone(), sampler, plan)?,
            reports,
            gradient,
            overlap: if recipe.exchange.overlap { Overlap::Learning(None) } else { Overlap::Off },
            saving: Saving::new(),
            post,
            session,
            replica,
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
        let last = self.session.course.last_step();
        for step in self.session.course.first_step()..=last {
            self.post.step(step);
            self.session.faults.strike(self.post.rank(), step, &self.post);
            self.decide(step);
            self.step(step)?;
            let (test, best) = if self.session.course.ends_epoch(step) || step == last {
                self.finish_epoch(step, step == last)?
            } else {
                (None, false)
            };
            let decision = self.session.flags.of(step);
            self.keep(step, decision, test.map(|test| test.accuracy()), best)?;
            if decision.stop {
                break;
            }
        }
        Ok(())
    }

    /// One update: forward, backward, exchange, optimizer.
    fn step(&mut self, step: u64) -> Result<()> {
        let began = Instant::now();
        let mut spent = Spent::on(self.session.recipe.device);
        // An evaluation's work is none of this step's.
        profile::take();

        self.post.phase(Phase::Data);
        let loaded = spent.timed(|p| &mut p.data, || self.loader.next())?;
        let epoch = loaded.epoch;
        let samples = loaded.global_samples;
        let (score, overlapped) = self.local_gradient(&loaded.batch, samples, &mut spent)?;
        self.loader.recycle(loaded.batch);
        let Overlapped { traffic, exposed, ready, laid } = match overlapped {
            Some(overlapped) => overlapped,
            None => self.exchange_after(step, samples)?,
        };
        let exposed = exposed.as_secs_f64();
        add_exchange(&mut spent.wall, &traffic, exposed);

        self.post.phase(Phase::Optimizer);
        let learning_rate = self.schedule.at(self.session.course.place(step));
        let gradient_norm = spent.timed(
            |p| &mut p.optimizer,
            || {
                let norm = self.update(learning_rate)?;
                self.update_average(step)?;
                Ok::<_, anyhow::Error>(norm)
            },
        )?;

        self.post.phase(Phase::Replicas);
        let every = self.session.recipe.exchange.compare_replicas_every;
        if every > 0 && step.is_multiple_of(every) {
            self.compare_replicas(step)?;
        }
        if self.session.recipe.train.batch_norm == BatchNorm::Synchronised {
            self.settle_batch_norm()?;
        }
        let seconds = began.elapsed().as_secs_f64();
        let rank = self.post.rank();
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
            laid,
            profile: profile::take(),
            traffic,
            exposed,
            gradient_norm,
        })))
    }

    /// The exchange after the backward pass, nothing of it hidden.
    fn exchange_after(&mut self, step: u64, samples: usize) -> Result<Overlapped> {
        if let Some(histograms) = self.histograms(step)? {
            self.report(Report::Histograms(histograms))?;
        }
        self.keep_gradient(step)?;
        self.post.phase(Phase::Exchange);
        let began = Instant::now();
        let gradient = Gradient::within(&mut self.gradient.flat, &mut self.gradient.support);
        let traffic = self.exchange.allreduce(step, gradient)?;
        let exposed = began.elapsed();
        // A rank without samples would learn that nothing is ever early: all wait for a step in which
        // each has some.
        let all_had_some = samples >= self.exchange.collective().world_size();
        if let (true, Overlap::Learning(first)) = (all_had_some, &mut self.overlap) {
            let (params, bytes) =
                (&self.replica.params, self.session.recipe.exchange.overlap_bytes);
            let plan = OverlapPlan::learn(params, first.as_ref(), &mut self.exchange, bytes)?;
            self.overlap = Overlap::Planned(plan);
        }
        Ok(Overlapped { traffic, exposed, ready: Vec::new(), laid: Vec::new() })
    }

    /// True if there is a plan, and nothing records this step's local gradient, of which an exchange
    /// beside the backward pass leaves no trace.
    fn may_overlap(&self) -> bool {
        let step = self.post.place().step;
        matches!(self.overlap, Overlap::Planned(_))
            && !self.histograms_due(step)
            && !self.gradient_due(step)
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
        let size = self.session.recipe.train.batch;
        let world_size = self.exchange.collective().world_size();
        if batch.is_empty() {
            self.gradient.flat.fill(0.0);
            self.gradient.support.clear();
            if self.session.faults.spoils_gradient(self.post.rank(), self.post.place().step) {
                self.gradient.flat.fill(f32::NAN);
                self.gradient.support.fill();
            }
        }
        if let Features::Tokens { ids, .. } = &batch.features {
            let catch_up = || self.optimizer.catch_up(&self.replica.params, Some(ids));
            spent.timed(|p| &mut p.forward, catch_up)?;
        }
        for start in (0..batch.len()).step_by(size) {
            let part = start..(start + size).min(batch.len());
            let mut weight = (part.len() * world_size) as f64 / global_samples as f64;
            if self.session.faults.spoils_gradient(self.post.rank(), self.post.place().step) {
                weight = f64::NAN;
            }
            self.post.phase(Phase::Forward);
            let (loss, score) =
                spent.timed(|p| &mut p.forward, || self.replica.forward(batch, part.clone()))?;
            if !score.loss.is_finite() {
                return Err(self.give_up(&score));
            }
            total.add(&score);
            self.post.phase(Phase::Backward);
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
            self.gradient.part.resize(self.gradient.flat.len(), 0.0);
            (&mut self.gradient.part, &mut self.gradient.support)
        } else {
            self.gradient.support.clear();
            (&mut self.gradient.flat, &mut self.gradient.support)
        };
        // What becomes final when is learnt from contributions, of which none lies in place.
        let learns = matches!(self.overlap, Overlap::Learning(_));
        let gradients = if learns {
            backward(&weighed)?
        } else {
            backward_in_place(&weighed, flat, self.replica.params.places())?
        };
        if self.post.place().step == 1 && !accumulate {
            self.replica.params.audit(&gradients)?;
        }
        let zeros = if accumulate { None } else { self.optimizer.zeros() };
        self.replica.params.gather(&gradients, flat, zeros, support)?;
        if accumulate {
            self.gradient
                .flat
                .iter_mut()
                .zip(&self.gradient.part)
                .for_each(|(sum, part)| *sum += part);
        }
        if learns {
            self.overlap = Overlap::Learning(Some(gradients));
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
        self.post.phase(Phase::OverlappedExchange);
        let Overlap::Planned(plan) = &self.overlap else { bail!("invariant: there is a plan") };
        let loss = if weight == 1.0 { loss.clone() } else { (loss * weight)? };
        let exchange =
            (&self.replica.params, &mut self.exchange, self.gradient.flat.as_mut_slice());
        self.gradient.support.fill();
        plan.run(self.post.place().step, exchange, accumulate, spent, |listener| {
            Ok(backward_into(&loss, listener)?)
        })
    }

    /// Clips the mean gradient and updates the weights; the norm before clipping.
    fn update(&mut self, learning_rate: f64) -> Result<f64> {
        let Some(limit) = self.session.recipe.train.clip_norm.filter(|limit| *limit > 0.0) else {
            return self.optimizer.step(
                &self.replica.params,
                &mut self.gradient.flat,
                &self.gradient.support,
                learning_rate,
            );
        };
        let norm = norm(&self.gradient.flat);
        if norm > limit {
            let factor = (limit / (norm + 1e-6)) as f32;
            self.gradient.flat.iter_mut().for_each(|g| *g *= factor);
        }
        self.optimizer.step(
            &self.replica.params,
            &mut self.gradient.flat,
            &self.gradient.support,
            learning_rate,
        )?;
        Ok(norm)
    }

    /// Takes up the step's weights into their average, if there is one and it is time.
    fn update_average(&mut self, step: u64) -> Result<()> {
        let course = &self.session.course;
        let place = course.place(step);
        let Some(average) = self.average.as_mut().filter(|average| average.is_due(place)) else {
            return Ok(());
        };
        if average.changes_weights() {
            self.optimizer.settle(&self.replica.params)?;
        } else {
            self.optimizer.catch_up(&self.replica.params, None)?;
        }
        average.after_step(&self.replica, place, course.place(course.last_step()))
    }

    /// Puts what is evaluated and saved in the weights' place, and the weights back when called again.
    fn swap_average(&mut self) -> Result<()> {
        self.average.as_mut().map_or(Ok(()), |average| average.swap(&self.replica))
    }

    /// Compares the replicas' weights; they are equal bit for bit, or something is broken.
    fn compare_replicas(&mut self, step: u64) -> Result<()> {
        self.optimizer.catch_up(&self.replica.params, None)?;
        let hashes = self.replica.params.hashes()?;
        if let Some(differs) = self.exchange.collective().compare(&hashes)? {
            let name =
                self.replica.params.iter().nth(differs.index).map_or("?", |p| p.name.as_str());
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
