//! A worker's state: handed in for a checkpoint, taken up from one.

use super::{Report, Worker};
use crate::checkpoint::{Checkpoint, Part, Shared, Tensor, Tensors};
use crate::optim::Waiting;
use crate::orders::{Order, Orders};
use crate::recipe;
use anyhow::{Context, Result, ensure};
use gradwire_exchange::Entry;
use gradwire_models::kernels::optimizer::update_in_place;
use std::thread;
use std::time::{Duration, Instant};

/// What of the optimizer's state is of rows that wait.
const WAITING: &str = "waiting";

/// When rank 0 wants a checkpoint.
pub(super) struct Timing {
    /// Since the last one was ordered, or the run began.
    since: Instant,
    /// One has been due, and the writer was not free.
    owed: bool,
    /// The step whose checkpoint the writer has been kept free for.
    reserved: Option<u64>,
}

impl Timing {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), owed: false, reserved: None }
    }

    /// Decides, on rank 0 and for all ranks, whether to save after `step`.
    fn decide(&mut self, step: u64, settings: &recipe::Checkpoint, orders: &Orders) {
        let by_steps = settings.every_steps > 0 && step.is_multiple_of(settings.every_steps);
        let minutes = self.since.elapsed().as_secs_f64() / 60.0;
        let by_time = settings.every_minutes > 0.0 && minutes >= settings.every_minutes;
        let due = settings.keep_last > 0 && (self.owed || by_steps || by_time);
        let free = !orders.is_writing();
        let order = orders.decide(step, due, free);
        self.owed = due && !order.save;
        if order.save {
            self.since = Instant::now();
        }
        if order.save && free {
            orders.set_writing(true);
            self.reserved = Some(step);
        }
    }

    /// Waits until the writer is free for the checkpoint of `step`, if it has not been kept free.
    fn reserve(&mut self, step: u64, orders: &Orders, patience: Duration) -> Result<()> {
        if self.reserved.take() == Some(step) {
            return Ok(());
        }
        let began = Instant::now();
        while orders.is_writing() {
            ensure!(
                began.elapsed() < patience,
                "an earlier checkpoint has been written for more than {patience:?}: the disk does \
                 not answer"
            );
            thread::sleep(Duration::from_millis(1));
        }
        orders.set_writing(true);
        Ok(())
    }
}

impl Worker {
    /// Before a step: rank 0 decides what all ranks do at its end.
    pub(super) fn decide(&mut self, step: u64) {
        if self.rank == 0 {
            self.timing.decide(step, &self.recipe.checkpoint, &self.orders);
        }
    }

    /// After a step: hands in this rank's state, if a checkpoint is ordered, the run is at its end
    /// or the model at its `best`.
    pub(super) fn keep(
        &mut self,
        step: u64,
        order: Order,
        test_accuracy: Option<f64>,
        best: bool,
    ) -> Result<()> {
        let settings = &self.recipe.checkpoint;
        let last = step == self.course.last_step();
        let wanted = order.save || last || (best && settings.keep_best);
        if !wanted || settings.keep_last == 0 || self.folder.is_none() {
            return Ok(());
        }
        let began = Instant::now();
        if self.rank == 0 {
            self.post.phase("waiting for the last checkpoint to be written");
            let patience = Duration::from_secs_f64(self.recipe.exchange.timeout);
            self.timing.reserve(step, &self.orders, patience)?;
        }
        self.post.phase("copying the state for a checkpoint");
        self.optimizer.show(&self.params, None)?;
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
        own.insert_state("exchange", self.exchange.save());
        let shared = if self.rank == 0 { Some(self.shared(step, test_accuracy)?) } else { None };
        Ok(Part { rank: self.rank, step, own, shared, stall: 0.0 })
    }

    fn shared(&self, step: u64, test_accuracy: Option<f64>) -> Result<Shared> {
        let mut weights = Tensors::default();
        for param in self.params.iter() {
            let values = Entry::F32(param.update(|values| values.to_vec())?);
            let shape = param.var.dims().to_vec();
            weights.0.insert(param.name.clone(), Tensor { shape, values });
        }
        let mut optimizer = Tensors::default();
        for (name, values) in self.optimizer.vectors() {
            optimizer.insert_flat(name, values);
        }
        if let Some(waiting) = self.optimizer.waiting(&self.params)? {
            optimizer.insert_state(WAITING, waiting.into_state());
        }
        Ok(Shared {
            weights,
            optimizer,
            updates: self.optimizer.steps(),
            learning_rate: self.schedule.at(self.course.place(step)),
            best: self.best,
            test_accuracy,
        })
    }

    /// Takes up the state of this rank in `checkpoint`.
    ///
    /// # Errors
    /// When it is not of this model, optimizer and scheme: which tensor, and how it differs.
    pub(super) fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let model = &checkpoint.model;
        for param in self.params.iter() {
            let values =
                model.f32s(&param.name, param.var.dims()).context("the model's weights")?;
            param.update(|weights| weights.copy_from_slice(values))?;
        }
        let buffers = self.replica.store.buffers();
        let known = self.params.iter().count() + buffers.len();
        ensure!(
            model.0.len() == known,
            "the model's weights: {} tensors where this model has {known}",
            model.0.len()
        );
        let own = checkpoint
            .ranks
            .get(self.rank)
            .with_context(|| format!("no state of rank {}", self.rank))?;
        for (name, var) in buffers {
            let values = own
                .f32s(&format!("buffers/{name}"), var.dims())
                .context("batch norm's statistics")?;
            update_in_place(&var, |buffer| buffer.copy_from_slice(values))?;
        }
        let vectors = checkpoint.optimizer_vectors(self.optimizer.names(), self.params.len());
        let vectors = vectors.context("the optimizer's state")?;
        self.optimizer.set(&vectors, checkpoint.manifest.updates);
        let waiting = checkpoint.optimizer.state(WAITING);
        if !waiting.is_empty() {
            let resumed = Waiting::from_state(waiting)
                .and_then(|waiting| self.optimizer.resume(&self.params, &waiting));
            resumed.context("the rows of the embedding table that wait")?;
        }
        let state = own.state("exchange");
        self.exchange.restore(&state).context("the exchange's state")?;
        self.best = checkpoint.manifest.best;
        Ok(())
    }
}
