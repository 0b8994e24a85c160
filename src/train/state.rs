//! A worker's state: copied for a checkpoint, restored from one.

use crate::checkpoint::{Checkpoint, Manifest, Part, Score, Shared, Tensor, Tensors};
use crate::train::average::Average;
use crate::train::inspect::shown;
use crate::train::local::Local;
use crate::train::optim::Optimizer;
use crate::train::replica::Replica;
use crate::train::session::Session;
use crate::train::worker::{Worker, exchange, optimizer};
use anyhow::{Context, Result, ensure};
use gradwire_exchange::{Entry, Exchange, Layout, mesh};
use gradwire_models::kernels::flat::update_in_place;
use std::time::Duration;

/// What of the optimizer's state is of rows that wait.
const WAITING: &str = "waiting";

/// What of the optimizer's state is of the average of the weights.
const AVERAGE: &str = "average";

/// A rank's weights within a round.
const LOCAL_WEIGHTS: &str = "local/weights";

/// The mean progress of a fragment, between its exchange and the update by it.
const RECEIVED: &str = "outer/received";

/// A rank's average of batch norm's statistics, all in one.
const AVERAGE_BUFFERS: &str = "average/buffers";

impl Worker {
    /// This rank's state after `step`.
    pub(super) fn snapshot(&self, step: u64, test: Option<Score>) -> Result<Part> {
        let mut own = Tensors::default();
        for (name, var) in self.replica.store.buffers() {
            let values = update_in_place(&var, |values| values.to_vec())?;
            let tensor = Tensor { shape: var.dims().to_vec(), values: Entry::F32(values) };
            own.0.insert(format!("buffers/{name}"), tensor);
        }
        if let Some(average) = &self.average {
            own.insert_flat(AVERAGE_BUFFERS, &average.buffers.vector.to_host()?);
        }
        own.insert_state("exchange", self.gradient.exchange().save());
        if self.local.is_some() {
            own.insert_state("local", self.named(&self.optimizer)?);
            if !self.session.steps.is_whole(step) {
                let weights = self.flat_weights()?;
                own.insert_flat(LOCAL_WEIGHTS, &self.to_name_order(&weights));
            }
        }
        let shared = if self.position.rank() == 0 { Some(self.shared(step, test)?) } else { None };
        Ok(Part { rank: self.position.rank(), step, own, shared, stall: 0.0 })
    }

    /// An optimizer's vectors by name.
    fn named(&self, optimizer: &Optimizer) -> Result<gradwire_exchange::State> {
        let mut state = gradwire_exchange::State::default();
        for (name, values) in optimizer.vectors()? {
            state.insert(name, Entry::F32(self.to_name_order(&values)));
        }
        Ok(state)
    }

    fn to_name_order(&self, values: &[f32]) -> Vec<f32> {
        self.gradient.exchange().layout().to_name_order(values)
    }

    /// The weights as they are, in the flat gradient's layout.
    fn flat_weights(&self) -> Result<Vec<f32>> {
        let mut flat = vec![0.0; self.replica.params.len()];
        let params = &self.replica.params;
        params.update(|param, now| flat[param.range.clone()].copy_from_slice(now))?;
        Ok(flat)
    }

    fn shared(&self, step: u64, test: Option<Score>) -> Result<Shared> {
        let mut weights = Tensors::default();
        for param in self.replica.params.iter() {
            let values = match &self.local {
                Some(local) if !self.session.steps.is_whole(step) => {
                    local.weights[param.range.clone()].to_vec()
                }
                _ => param.update(|values| values.to_vec())?,
            };
            let (shape, values) = (param.var.dims().to_vec(), Entry::F32(values));
            weights.0.insert(param.name.clone(), Tensor { shape, values });
        }
        for (name, var) in self.replica.store.fixed() {
            let values = Entry::F32(update_in_place(&var, |values| values.to_vec())?);
            weights.0.insert(name, Tensor { shape: var.dims().to_vec(), values });
        }
        let mut optimizer = Tensors::default();
        match &self.local {
            None => {
                for (name, values) in self.optimizer.vectors()? {
                    optimizer.insert_flat(name, &self.to_name_order(&values));
                }
            }
            Some(local) => {
                let mut outer = self.named(&local.outer)?;
                outer.insert("updates", Entry::U64(vec![local.outer.steps()]));
                if let Some(mean) = &local.received {
                    outer.insert("received", Entry::F32(self.to_name_order(mean)));
                }
                optimizer.insert_state("outer", outer);
            }
        }
        if let Some(waiting) = self.optimizer.waiting(&self.replica.params)? {
            optimizer.insert_state(WAITING, waiting);
        }
        if let Some(average) = &self.average {
            let mut state = gradwire_exchange::State::default();
            state.insert(
                "weights",
                Entry::F32(self.to_name_order(&average.weights.vector.to_host()?)),
            );
            state.insert("updates", Entry::U64(vec![average.updates]));
            optimizer.insert_state(AVERAGE, state);
        }
        let manifest = Manifest {
            updates: self.optimizer.steps(),
            learning_rate: self.schedule.at(self.session.steps.scheduled(step)),
            best: self.save_policy.saved,
            test_accuracy: test.map(|test| test.accuracy()),
            merit: test.map(|test| self.merit(test)),
            ..Manifest::default()
        };
        let normalisation = self.session.data.normalisation;
        Ok(Shared { weights, optimizer, manifest, normalisation })
    }

    /// Takes up the state of this rank in `checkpoint`.
    pub(super) fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let rank = self.position.rank();
        let state = State {
            replica: &self.replica,
            optimizer: &mut self.optimizer,
            local: self.local.as_mut(),
            average: self.average.as_mut(),
            exchange: self.gradient.exchange_mut(),
        };
        state.restore(checkpoint, rank)?;
        (self.save_policy.best, self.save_policy.saved) =
            (checkpoint.manifest.best, checkpoint.manifest.best);
        Ok(())
    }
}

/// What of a worker a checkpoint holds.
struct State<'a> {
    replica: &'a Replica,
    optimizer: &'a mut Optimizer,
    local: Option<&'a mut Local>,
    average: Option<&'a mut Average>,
    exchange: &'a mut Exchange,
}

impl State<'_> {
    /// Takes up the state of a rank.
    fn restore(self, checkpoint: &Checkpoint, rank: usize) -> Result<()> {
        let model = &checkpoint.model;
        for param in self.replica.params.iter() {
            let values =
                model.f32s(&param.name, param.var.dims()).context("the model's weights")?;
            param.update(|weights| weights.copy_from_slice(values))?;
        }
        let (fixed, buffers) = (self.replica.store.fixed(), self.replica.store.buffers());
        for (name, var) in &fixed {
            let values = model.f32s(name, var.dims()).context("the model's fixed variables")?;
            update_in_place(var, |variable| variable.copy_from_slice(values))?;
        }
        let own = checkpoint.ranks.get(rank).with_context(|| format!("no state of rank {rank}"))?;
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
        let layout = self.exchange.layout();
        let (held, scope) = match &self.local {
            None => (&checkpoint.optimizer, ""),
            Some(_) => (own, "local/"),
        };
        set_vectors(self.optimizer, (held, scope), layout, checkpoint.manifest.updates)
            .context("the optimizer's state")?;
        if let Some(local) = self.local {
            let outer = &checkpoint.optimizer;
            let updates = outer.updates("outer/updates")?;
            set_vectors(&mut local.outer, (outer, "outer/"), layout, updates)
                .context("the outer optimizer's state")?;
            local.begin(&self.replica.params)?;
            if outer.0.contains_key(RECEIVED) {
                let mean = outer.f32s(RECEIVED, &[layout.len()])?;
                local.received = Some(layout.from_name_order(mean));
            }
            if own.0.contains_key(LOCAL_WEIGHTS) {
                let values = own.f32s(LOCAL_WEIGHTS, &[layout.len()])?;
                let values = layout.from_name_order(values);
                let params = &self.replica.params;
                params.update(|param, now| now.copy_from_slice(&values[param.range.clone()]))?;
            }
        }
        let waiting = checkpoint.optimizer.state(WAITING);
        if !waiting.is_empty() {
            let resumed = self.optimizer.resume(&self.replica.params, &waiting);
            resumed.context("the rows of the embedding table that wait")?;
        }
        if let Some(average) = self.average {
            restore_average(average, checkpoint, own, layout).context(
                "the average of the weights; average.kind must be what the run was begun with",
            )?;
        }
        let state = own.state("exchange");
        self.exchange.restore(&state).context("the exchange's state")?;
        Ok(())
    }
}

fn restore_average(
    average: &mut Average,
    checkpoint: &Checkpoint,
    own: &Tensors,
    layout: &Layout,
) -> Result<()> {
    let weights = format!("{AVERAGE}/weights");
    let weights = checkpoint.optimizer.f32s(&weights, &[average.weights.vector.len()])?;
    let buffers = own.f32s(AVERAGE_BUFFERS, &[average.buffers.vector.len()])?;
    average.weights.vector.set(&layout.from_name_order(weights))?;
    average.buffers.vector.set(buffers)?;
    average.updates = checkpoint.optimizer.updates(&format!("{AVERAGE}/updates"))?;
    Ok(())
}

/// Gives an optimizer the vectors that are `held` under `scope`.
fn set_vectors(
    optimizer: &mut Optimizer,
    (held, scope): (&Tensors, &str),
    layout: &Layout,
    updates: u64,
) -> Result<()> {
    let vectors = held.vectors(scope, optimizer.names(), layout.len())?;
    let placed: Vec<_> = vectors.iter().map(|sorted| layout.from_name_order(sorted)).collect();
    let borrowed: Vec<&[f32]> = placed.iter().map(Vec::as_slice).collect();
    optimizer.set(&borrowed, updates)
}

/// Takes up the state of every rank for trial, so that a checkpoint which does not fit is known before
/// anything in the run's folder changes.
pub(super) fn try_all(session: &Session, checkpoint: &Checkpoint) -> Result<()> {
    let (recipe, parts) = (&session.recipe, session.parts());
    let mut replica = {
        let data = &session.data.train;
        Replica::of(parts.model, recipe, (data.shape(), data.classes().len()), 0)?
    };
    if recipe.record.histograms_every > 0 {
        let params: Vec<_> = replica.params.iter().collect();
        let about: Vec<_> = params.iter().map(|p| (p.name.as_str(), p.var.dims())).collect();
        shown(recipe.record.histograms.as_deref(), &about)?;
    }
    let timeout = Duration::from_secs_f64(recipe.exchange.timeout);
    let ends = mesh(recipe.workers, timeout);
    for (rank, end) in ends.into_iter().enumerate() {
        let mut exchange = exchange(recipe, &parts, session.steps.last_step, &mut replica, end)?;
        let mut average = Average::new(recipe.average, &replica)?;
        let (mut optimizer, mut local) = optimizer(recipe, &parts, &replica, &exchange)?;
        let state = State {
            replica: &replica,
            optimizer: &mut optimizer,
            local: local.as_mut(),
            average: average.as_mut(),
            exchange: &mut exchange,
        };
        state
            .restore(checkpoint, rank)
            .with_context(|| format!("taking up {}", checkpoint.folder.display()))?;
    }
    Ok(())
}
