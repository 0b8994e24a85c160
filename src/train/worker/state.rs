//! A worker's state: handed in for a checkpoint, taken up from one.

use super::shown::shown;
use super::{Worker, exchange, optimizer};
use crate::checkpoint::{Checkpoint, MOST_UPDATES, Part, Shared, Tensor, Tensors};
use crate::recipe::Recipe;
use crate::record::Warning;
use crate::train::average::Average;
use crate::train::flags::Decision;
use crate::train::optim::{Optimizer, Waiting};
use crate::train::params::PASSES;
use crate::train::post::Phase;
use crate::train::replica::Replica;
use crate::train::report::Report;
use anyhow::{Context, Result, bail, ensure};
use gradwire_datasets::Dataset;
use gradwire_exchange::{Entry, Exchange, Layout};
use gradwire_models::kernels::flat::update_in_place;
use gradwire_models::ops::Running;
use std::time::{Duration, Instant};

/// What of the optimizer's state is of rows that wait.
const WAITING: &str = "waiting";

/// What of the optimizer's state is of the average of the weights.
const AVERAGE: &str = "average";

/// A rank's average of batch norm's statistics, all in one.
const AVERAGE_BUFFERS: &str = "average/buffers";

impl Worker {
    /// Before a step: rank 0 decides what all ranks do at its end.
    pub(super) fn decide(&mut self, step: u64) {
        if self.post.rank() == 0 {
            self.saving.decide(step, &self.session.recipe.checkpoint, &self.session.flags);
        }
    }

    /// After a step: hands in this rank's state, if a checkpoint is ordered, the run is at its end
    /// or the model at its `best`.
    pub(super) fn keep(
        &mut self,
        step: u64,
        decision: Decision,
        test_accuracy: Option<f64>,
        best: bool,
    ) -> Result<()> {
        let settings = &self.session.recipe.checkpoint;
        let last = step == self.session.course.last_step();
        let wanted = decision.save || last || (best && settings.keep_best);
        if !wanted || settings.keep_last == 0 {
            return Ok(());
        }
        let began = Instant::now();
        if self.post.rank() == 0 {
            self.post.phase(Phase::WaitingForWriter);
            let patience = Duration::from_secs_f64(self.session.recipe.exchange.timeout);
            self.saving.reserve(step, &self.session.flags, patience)?;
        }
        self.post.phase(Phase::CopyingState);
        self.optimizer.catch_up(&self.replica.params, None)?;
        let mut part = self.snapshot(step, test_accuracy)?;
        part.stall = began.elapsed().as_secs_f64();
        self.report(Report::Part(Box::new(part)))
    }

    /// This rank's state after `step`.
    fn snapshot(&self, step: u64, test_accuracy: Option<f64>) -> Result<Part> {
        let mut own = Tensors::default();
        for (name, var) in self.replica.store.buffers() {
            let values = update_in_place(&var, |values| values.to_vec())?;
            let tensor = Tensor { shape: var.dims().to_vec(), values: Entry::F32(values) };
            own.0.insert(format!("buffers/{name}"), tensor);
        }
        if let Some(average) = &self.average {
            own.insert_flat(AVERAGE_BUFFERS, &average.buffers);
        }
        own.insert_state("exchange", self.exchange.save());
        let shared =
            if self.post.rank() == 0 { Some(self.shared(step, test_accuracy)?) } else { None };
        Ok(Part { rank: self.post.rank(), step, own, shared, stall: 0.0 })
    }

    fn shared(&self, step: u64, test_accuracy: Option<f64>) -> Result<Shared> {
        let mut weights = Tensors::default();
        for param in self.replica.params.iter() {
            let values = Entry::F32(param.update(|values| values.to_vec())?);
            let shape = param.var.dims().to_vec();
            weights.0.insert(param.name.clone(), Tensor { shape, values });
        }
        for (name, var) in self.replica.store.fixed() {
            let values = Entry::F32(update_in_place(&var, |values| values.to_vec())?);
            weights.0.insert(name, Tensor { shape: var.dims().to_vec(), values });
        }
        let mut optimizer = Tensors::default();
        for (name, values) in self.optimizer.vectors() {
            optimizer.insert_flat(name, &self.exchange.layout().to_name_order(values));
        }
        if let Some(waiting) = self.optimizer.waiting(&self.replica.params)? {
            optimizer.insert_state(WAITING, waiting.into_state());
        }
        if let Some(average) = &self.average {
            let mut state = gradwire_exchange::State::default();
            state.insert(
                "weights",
                Entry::F32(self.exchange.layout().to_name_order(&average.weights)),
            );
            state.insert("updates", Entry::U64(vec![average.updates]));
            optimizer.insert_state(AVERAGE, state);
        }
        Ok(Shared {
            weights,
            optimizer,
            updates: self.optimizer.steps(),
            learning_rate: self.schedule.at(self.session.course.place(step)),
            best: self.saving.saved,
            test_accuracy,
            normalisation: self.session.data.normalisation,
        })
    }

    /// Takes up the state of this rank in `checkpoint`.
    ///
    /// # Errors
    /// When it is not of this model, optimizer and scheme: which tensor, and how it differs.
    pub(super) fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let rank = self.post.rank();
        let taken = State {
            replica: &self.replica,
            optimizer: &mut self.optimizer,
            average: self.average.as_mut(),
            exchange: &mut self.exchange,
        };
        if taken.take_up(checkpoint, rank)? == Decay::Begins && rank == 0 {
            let message = "the checkpoint has no momentum of weight decay, which momentum correction \
                           did without in earlier versions: it begins at zero, and from here on decay \
                           acts as strongly as with optimizer.momentum"
                .into();
            let step = Some(checkpoint.manifest.progress.step + 1);
            self.report(Report::Warning(Warning { step, message }))?;
        }
        (self.saving.best, self.saving.saved) =
            (checkpoint.manifest.best, checkpoint.manifest.best);
        Ok(())
    }
}

/// What of a worker a checkpoint holds.
struct State<'a> {
    replica: &'a Replica,
    optimizer: &'a mut Optimizer,
    average: Option<&'a mut Average>,
    exchange: &'a mut Exchange,
}

/// What becomes of the momentum of weight decay under momentum correction.
#[derive(PartialEq, Eq)]
enum Decay {
    /// The checkpoint has it, or there is none.
    GoesOn,
    /// The checkpoint is older than it is.
    Begins,
}

impl State<'_> {
    /// Takes up the state of a rank.
    ///
    /// # Errors
    /// When it is not of this model, optimizer and scheme: which tensor, and how it differs.
    fn take_up(self, checkpoint: &Checkpoint, rank: usize) -> Result<Decay> {
        let model = &checkpoint.model;
        for param in self.replica.params.iter() {
            let values =
                model.f32s(&param.name, param.var.dims()).context("the model's weights")?;
            param.update(|weights| weights.copy_from_slice(values))?;
        }
        let (fixed, mut buffers) = (self.replica.store.fixed(), self.replica.store.buffers());
        for (name, var) in &fixed {
            let values = model.f32s(name, var.dims()).context("the model's fixed variables")?;
            update_in_place(var, |variable| variable.copy_from_slice(values))?;
        }
        let own = checkpoint.ranks.get(rank).with_context(|| format!("no state of rank {rank}"))?;
        // Earlier versions did not count the passes of batch norms, whose statistics had settled or not.
        let uncounted = |name: &str| name.ends_with(PASSES) && !model.0.contains_key(name);
        for (_, var) in buffers.extract_if(.., |(name, _)| uncounted(name)) {
            update_in_place(&var, |passes| passes.fill(Running::SETTLED))?;
        }
        let known = self.replica.params.iter().count() + buffers.len() + fixed.len();
        ensure!(
            model.0.len() == known,
            "the model's weights: {} tensors where this model has {known}",
            model.0.len()
        );
        for (name, var) in buffers {
            let values = own
                .f32s(&format!("buffers/{name}"), var.dims())
                .context("batch norm's statistics")?;
            update_in_place(&var, |buffer| buffer.copy_from_slice(values))?;
        }
        let vectors =
            checkpoint.optimizer_vectors(self.optimizer.names(), self.replica.params.len());
        let vectors = vectors.context("the optimizer's state")?;
        let layout = self.exchange.layout();
        let placed = |vector: &Option<&[f32]>| vector.map(|sorted| layout.from_name_order(sorted));
        let placed: Vec<_> = vectors.iter().map(placed).collect();
        let borrowed: Vec<_> = placed.iter().map(Option::as_deref).collect();
        self.optimizer.set(&borrowed, checkpoint.manifest.updates);
        let waiting = checkpoint.optimizer.state(WAITING);
        if !waiting.is_empty() {
            let resumed = Waiting::from_state(waiting)
                .and_then(|waiting| self.optimizer.resume(&self.replica.params, &waiting));
            resumed.context("the rows of the embedding table that wait")?;
        }
        if let Some(average) = self.average {
            take_up_average(average, checkpoint, own, layout).context(
                "the average of the weights; average.kind must be what the run was begun with",
            )?;
        }
        let state = own.state("exchange");
        self.exchange.restore(&state).context("the exchange's state")?;
        Ok(if vectors.contains(&None) { Decay::Begins } else { Decay::GoesOn })
    }
}

/// # Errors
/// When the checkpoint has none, or one of another model.
fn take_up_average(
    average: &mut Average,
    checkpoint: &Checkpoint,
    own: &Tensors,
    layout: &Layout,
) -> Result<()> {
    let weights = format!("{AVERAGE}/weights");
    let weights = checkpoint.optimizer.f32s(&weights, &[average.weights.len()])?;
    let buffers = own.f32s(AVERAGE_BUFFERS, &[average.buffers.len()])?;
    average.weights = layout.from_name_order(weights);
    average.buffers.copy_from_slice(buffers);
    average.updates = match checkpoint.optimizer.0.get(&format!("{AVERAGE}/updates")) {
        Some(Tensor { values: Entry::U64(updates), .. }) if updates.len() == 1 => updates[0],
        _ => bail!("it does not say how often it was updated"),
    };
    ensure!(average.updates < MOST_UPDATES, "{} updates are not possible", average.updates);
    Ok(())
}

/// Takes up the state of every rank for trial, so that a checkpoint which does not fit is known before
/// anything in the run's folder changes.
///
/// # Errors
/// When it is not of this model, optimizer and scheme: which tensor, and how it differs.
pub(crate) fn try_all(recipe: &Recipe, data: &dyn Dataset, checkpoint: &Checkpoint) -> Result<()> {
    let mut replica = Replica::new(recipe, data, 0)?;
    if recipe.record.histograms_every > 0 {
        let params: Vec<_> = replica.params.iter().collect();
        let about: Vec<_> = params.iter().map(|p| (p.name.as_str(), p.var.dims())).collect();
        shown(recipe.record.histograms.as_deref(), &about)?;
    }
    let timeout = Duration::from_secs_f64(recipe.exchange.timeout);
    let ends = recipe.exchange.topology.connect(recipe.workers, timeout)?;
    for (rank, end) in ends.into_iter().enumerate() {
        let mut exchange = exchange(recipe, None, &mut replica, end)?;
        let mut average = Average::new(recipe.average, &replica)?;
        let state = State {
            replica: &replica,
            optimizer: &mut optimizer(recipe, &replica),
            average: average.as_mut(),
            exchange: &mut exchange,
        };
        state
            .take_up(checkpoint, rank)
            .with_context(|| format!("taking up {}", checkpoint.folder.display()))?;
    }
    Ok(())
}
