//! What a worker is made of, and what it does beside the loop.

use crate::checkpoint::Checkpoint;
use crate::recipe::Recipe;
use crate::train::average::Average;
use crate::train::failure::ReplicasDiffer;
use crate::train::gradient::GradientExchange;
use crate::train::local::{self, Local};
use crate::train::optim::Optimizer;
use crate::train::parts::Parts;
use crate::train::position::LivePosition;
use crate::train::replica::Replica;
use crate::train::report::{RankStep, Report};
use crate::train::requests::SavePolicy;
use crate::train::schedule::Schedule;
use crate::train::session::Session;
use anyhow::{Context, Result, anyhow};
use crossbeam::channel::Sender;
use gradwire_datasets::{Loader, Plan};
use gradwire_exchange::{Collective, Exchange, Run};
use std::sync::Arc;
use std::time::Duration;

/// What a worker is made of, before it is on its thread.
pub(super) struct WorkerParts {
    pub(super) session: Arc<Session>,
    /// Which of this machine's workers it is, counted from 0.
    pub(super) number_on_machine: usize,
    /// This rank's end of the exchange.
    pub(super) collective: Box<dyn Collective>,
    pub(super) reports: Sender<Report>,
    /// What the run goes on from; absent for one that begins.
    pub(super) from: Option<Arc<Checkpoint>>,
    /// Where it publishes its position.
    pub(super) position: LivePosition,
}

/// One rank: a thread that trains its replica on its share of the data.
pub(super) struct Worker {
    pub(super) session: Arc<Session>,
    pub(super) replica: Replica,
    /// Dropped before the loader, which may wait for its thread: the others hear at once that this rank has ended.
    pub(super) gradient: GradientExchange,
    pub(super) batches: Loader,
    pub(super) optimizer: Optimizer,
    pub(super) local: Option<Local>,
    /// Reports of steps since the one whose exchange is on its way, from that on.
    pub(super) held: Vec<RankStep>,
    /// Of the weights over the steps, if the recipe asks for one.
    pub(super) average: Option<Average>,
    pub(super) schedule: Schedule,
    pub(super) save_policy: SavePolicy,
    pub(super) reports: Sender<Report>,
    pub(super) position: LivePosition,
}

/// The exchange of a rank, in a run of so many exchanges.
/// The replica's parameters take their places in the flat gradient from it.
pub(super) fn exchange(
    recipe: &Recipe,
    parts: &Parts<'_>,
    exchanges: u64,
    replica: &mut Replica,
    collective: Box<dyn Collective>,
) -> Result<Exchange> {
    let mut exchange = Exchange::with(
        parts.scheme,
        recipe.exchange.wiring(),
        parts.policy.clone(),
        replica.params.layout()?,
        Run { seed: recipe.seed, steps: Some(exchanges) },
        collective,
    )?;
    if let Some(outer) = recipe.outer.filter(|outer| outer.fragments > 1) {
        local::divide(&mut exchange, outer.fragments)?;
    }
    replica.params.arrange(exchange.layout())?;
    Ok(exchange)
}

/// The optimizer of a rank, and with local steps what they need.
pub(super) fn optimizer(
    recipe: &Recipe,
    parts: &Parts<'_>,
    replica: &Replica,
    exchange: &Exchange,
) -> Result<(Optimizer, Option<Local>)> {
    let correction = parts.policy.momentum();
    let local = Local::new(recipe, correction, replica, exchange)?;
    // Whoever exchanges weights needs all rows of a table as they are: none waits.
    let (correction, table) = match local {
        Some(_) => (0.0, None),
        None => (correction, parts.model.table()),
    };
    Ok((Optimizer::new(parts.optimizer, correction, &replica.params, table)?, local))
}

impl Worker {
    /// Builds the replica, the loader and the exchange, and restores what the run goes on from.
    pub(super) fn new(parts: WorkerParts) -> Result<Self> {
        let WorkerParts { session, number_on_machine, collective, reports, from, position } = parts;
        let Session { recipe, data, steps, .. } = &*session;
        let run_parts = session.parts();
        let rank = collective.rank();
        let samples = (data.train.shape(), data.train.classes().len());
        let mut replica = Replica::of(run_parts.model, recipe, samples, number_on_machine)?;
        if from.is_none() {
            replica.prepare(run_parts.model, &*data.train)?;
        }
        let (sampler, first_step) = steps.sampler(recipe, rank)?;
        let last_step = steps.scheduled(steps.last_step);
        let plan = Plan {
            augment: recipe.augmentation(),
            seed: recipe.seed,
            first_step,
            last_step: Some(last_step),
            patience: Duration::from_secs_f64(recipe.exchange.timeout),
            ..Plan::default()
        };
        let exchange = exchange(recipe, &run_parts, steps.exchanges(), &mut replica, collective)?;
        let (optimizer, local) = optimizer(recipe, &run_parts, &replica, &exchange)?;
        let mut worker = Self {
            gradient: GradientExchange::new(recipe, exchange, position.clone()),
            optimizer,
            local,
            held: Vec::new(),
            average: Average::new(recipe.average, &replica)?,
            schedule: Schedule::new(
                recipe.schedule.clone(),
                run_parts.optimizer.learning_rate(),
                steps.steps_per_epoch,
                steps.span(),
            ),
            batches: Loader::new(data.train.clone(), sampler, plan)?,
            save_policy: SavePolicy::new(),
            reports,
            position,
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

    /// Adds the step's weights to their average, if there is one and it is due.
    pub(super) fn update_average(&mut self, step: u64) -> Result<()> {
        let steps = &self.session.steps;
        let Some(average) = &mut self.average else { return Ok(()) };
        let [before, scheduled] = [steps.met_before(step), step].map(|step| steps.scheduled(step));
        if !steps.meets(step) || !average.is_due(before, scheduled) {
            return Ok(());
        }
        if average.changes_weights() {
            self.optimizer.settle(&self.replica.params)?;
        } else {
            self.optimizer.catch_up(&self.replica.params, None)?;
        }
        let (whole, span) = (steps.is_whole(step), steps.span());
        self.swap_outer(step)?;
        if let Some(average) = &mut self.average {
            average.after_step(span.count(scheduled as f64), span.total)?;
        }
        match &mut self.local {
            Some(local) if whole => local.begin(&self.replica.params),
            _ => self.swap_outer(step),
        }
    }

    /// Compares the replicas' weights if it is due; they are equal bit for bit, or something is broken.
    pub(super) fn compare_replicas(&mut self, step: u64) -> Result<()> {
        if self.session.faults.flips_weight(self.position.rank(), step) {
            let param = self.replica.params.iter().next().context("the model has no weights")?;
            param.update(|values| values[0] = f32::from_bits(values[0].to_bits() ^ 1))?;
        }
        let every = self.session.recipe.exchange.compare_replicas_every;
        if !self.session.steps.is_due(every, step) {
            return Ok(());
        }
        self.optimizer.catch_up(&self.replica.params, None)?;
        self.swap_outer(step)?;
        let hashes = self.replica.params.hashes()?;
        self.swap_outer(step)?;
        if let Some(differs) = self.gradient.exchange_mut().collective().compare(&hashes)? {
            let name =
                self.replica.params.iter().nth(differs.index).map_or("?", |p| p.name.as_str());
            let (parameter, rank) = (name.to_owned(), differs.rank);
            return Err(ReplicasDiffer { step, parameter, rank }.into());
        }
        Ok(())
    }

    /// Sends a report to the launching thread; if nobody receives it, the run is over.
    pub(super) fn report(&self, report: Report) -> Result<()> {
        self.reports.send(report).map_err(|_| anyhow!("the run's record has ended"))
    }
}
