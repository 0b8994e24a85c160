//! Optimizers: the mean gradient in, weights updated in place, one pass and no temporaries.
//!
//! The recipe chooses the rule and its settings ([`crate::recipe::optimizer`]). State
//! lives in flat named vectors beside the flat gradient, in the same order. Of an embedding table SGD
//! updates the rows that have a gradient, and the others when somebody [reads](Optimizer::catch_up) them.
//! On a GPU that has a kernel for the rule, the state lies there beside the weights.

mod table;

use crate::recipe::optimizer::{Coasting, Definition, MOMENTUM, Now, Piece, Rule, Slices};
use crate::train::beside::{self, Vector};
use crate::train::params::{Param, Params};
use anyhow::{Context, Result};
use gradwire_exchange::{State, Support};
use gradwire_models::kernels::optimizer::{BLOCK, SgdStep, sum_of_squares};
use std::borrow::Cow;
use std::ops::Range;
use table::EmbeddingTable;

/// A vector of an optimizer's state with its name.
pub type NamedVector<'a> = (&'static str, Cow<'a, [f32]>);

/// An optimizer with its state for one replica.
pub struct Optimizer {
    rule: Box<dyn Rule>,
    /// The rule's vectors, in the order that it names them in; none where they lie beside the weights.
    vectors: Vec<Vec<f32>>,
    /// The same on a GPU, whose kernels know the rule.
    on_device: Option<Vec<Vector>>,
    steps: u64,
    /// The table whose rows may wait.
    table: Option<EmbeddingTable>,
}

impl Optimizer {
    /// An optimizer for `params`, its state zero, of gradients that have a momentum of the factor
    /// `correction` in them, 0 for none. `table` names the one of them, `[rows, width]`, that is never
    /// read but in rows that [`catch_up`](Self::catch_up) was called for before.
    ///
    /// # Errors
    /// When a GPU has no memory for the state.
    pub fn new(
        optimizer: &dyn Definition,
        correction: f64,
        params: &Params,
        table: Option<&str>,
    ) -> Result<Self> {
        Self::on(!params.on_host(), optimizer.rule(correction), params, table)
    }

    /// The same, its state beside the weights if `there`, and if kernels know the rule.
    fn on(there: bool, rule: Box<dyn Rule>, params: &Params, table: Option<&str>) -> Result<Self> {
        let names = rule.vectors();
        let there = there && params.iter().all(|param| rule.kernel(&now(param, 0.0, 1)).is_some());
        let on_device = there.then(|| names.iter().map(|_| params.zeros()).collect());
        let names = if there { &[] } else { names };
        let vectors = names.iter().map(|_| vec![0.0; params.len()]).collect();
        let rows = |param: &&Param| Some(param.name.as_str()) == table;
        let table = params.iter().find(rows).and_then(|param| match param.var.dims() {
            [_, width] if *width > 0 && param.var.device().is_cpu() => {
                Some(EmbeddingTable::new(param.range.clone(), *width))
            }
            _ => None,
        });
        Ok(Self { rule, vectors, on_device: on_device.transpose()?, steps: 0, table })
    }

    /// Where the rule keeps its momentum, if it has any.
    fn momentum(&self) -> Option<usize> {
        self.rule.vectors().iter().position(|name| *name == MOMENTUM)
    }

    /// Brings these rows of the table to where they would be if none had waited, or all rows; to be
    /// called before they are read. Leaves no trace in what comes later.
    ///
    /// # Errors
    /// When the table does not lie in memory as one contiguous `f32` slice.
    pub fn catch_up(&mut self, params: &Params, rows: Option<&[u32]>) -> Result<()> {
        self.on_table(params, |table, weights, momentum| table.catch_up(weights, momentum, rows))?;
        Ok(())
    }

    /// Brings all rows of the table up to date for good, so that none waits any more; to be called before
    /// somebody else than [`step`](Self::step) changes them.
    ///
    /// # Errors
    /// As [`catch_up`](Self::catch_up).
    pub fn settle(&mut self, params: &Params) -> Result<()> {
        self.on_table(params, EmbeddingTable::settle)?;
        Ok(())
    }

    /// Does `work` on the table, its weights and its momentum, if there is a table.
    fn on_table<T>(
        &mut self,
        params: &Params,
        work: impl FnOnce(&mut EmbeddingTable, &mut [f32], &mut [f32]) -> T,
    ) -> Result<Option<T>> {
        let momentum = self.momentum();
        let Some(table) = &mut self.table else { return Ok(None) };
        let momentum = stretch(&mut self.vectors, momentum, &table.range);
        let param = table_of(table, params)?;
        param.update(|weights| work(table, weights, momentum)).map(Some)
    }

    /// What the table's rows wait with, if any do.
    ///
    /// # Errors
    /// As [`catch_up`](Self::catch_up).
    pub fn waiting(&self, params: &Params) -> Result<Option<State>> {
        let Some(table) = &self.table else { return Ok(None) };
        table_of(table, params)?.update(|weights| table.save(weights))
    }

    /// Takes up what [`waiting`](Self::waiting) gave, after [`set`](Self::set). With settings under
    /// which no row may wait, none does any more; a rule that never lets one wait leaves the rows
    /// as they were [shown](Self::catch_up).
    ///
    /// # Errors
    /// When it is not of this table.
    pub fn resume(&mut self, params: &Params, waiting: &State) -> Result<()> {
        let may_wait = self.rule.coasting().is_some();
        if !may_wait && self.momentum().is_none() {
            return Ok(());
        }
        let resumed = self.on_table(params, |table, weights, momentum| {
            table.restore(waiting, weights)?;
            if !may_wait {
                table.settle(weights, momentum);
            }
            Ok(())
        })?;
        resumed.unwrap_or(Ok(()))
    }

    /// The part of the flat gradient that [`step`](Self::step) leaves all zeros: the place of a table
    /// whose rows may wait. So the next gradient's rows need no pass over the whole of it.
    pub fn zeros(&self) -> Option<&Range<usize>> {
        self.table.as_ref().filter(|_| self.rule.coasting().is_some()).map(|table| &table.range)
    }

    /// The names of the state's vectors.
    pub fn names(&self) -> &'static [&'static str] {
        self.rule.vectors()
    }

    /// The state's vectors with their names, in the flat gradient's layout.
    ///
    /// # Errors
    /// When a GPU does not give them.
    pub fn vectors(&self) -> Result<Vec<NamedVector<'_>>> {
        let host = self.vectors.iter().map(|vector| Ok(Cow::Borrowed(vector.as_slice())));
        let device = self.on_device.iter().flatten();
        let brought = device.map(|vector| vector.to_host().map(Cow::Owned));
        self.names()
            .iter()
            .copied()
            .zip(host.chain(brought))
            .map(|(name, v)| Ok((name, v?)))
            .collect()
    }

    /// Calls `change` with each of the state's vectors, and keeps what it leaves.
    ///
    /// # Errors
    /// Those of `change`, and when a GPU does not give them or take them.
    pub(super) fn change(
        &mut self,
        mut change: impl FnMut(&mut [f32]) -> Result<()>,
    ) -> Result<()> {
        self.vectors.iter_mut().try_for_each(|vector| change(vector))?;
        for vector in self.on_device.iter_mut().flatten() {
            let mut values = vector.to_host()?;
            change(&mut values)?;
            vector.set(&values)?;
        }
        Ok(())
    }

    /// The updates made.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Replaces the state by these vectors, in the order of [`names`](Self::names).
    ///
    /// # Errors
    /// When a GPU does not take them.
    ///
    /// # Panics
    /// When there are fewer or more of them, or one is not as long as the one it replaces.
    pub fn set(&mut self, vectors: &[&[f32]], steps: u64) -> Result<()> {
        assert_eq!(self.names().len(), vectors.len(), "optimizer: one vector for each name");
        for (own, given) in self.vectors.iter_mut().zip(vectors) {
            own.copy_from_slice(given);
        }
        self.steps = steps;
        let mut there = self.on_device.iter_mut().flatten().zip(vectors);
        there.try_for_each(|(own, given)| own.set(given))
    }

    /// One update of `params` by the mean gradient `flat` at the learning rate `rate`, scaled down to a
    /// norm of `limit` if its norm is larger. Returns the norm that it had, which without a limit
    /// is summed up while the update has the gradient in the cache. Leaves `flat` all
    /// [zeros](Self::zeros) in the table's place. Outside `support` it is zero already.
    ///
    /// # Errors
    /// When a parameter does not lie in memory as one contiguous `f32` slice.
    pub fn step(
        &mut self,
        params: &Params,
        flat: &mut [f32],
        support: &Support,
        rate: f64,
        limit: Option<f64>,
    ) -> Result<f64> {
        self.step_within(params, flat, support, rate, limit, 0..params.len())
    }

    /// As [`step`](Self::step), of the parameters that lie in this part of the flat gradient alone.
    pub(super) fn step_within(
        &mut self,
        params: &Params,
        flat: &mut [f32],
        support: &Support,
        rate: f64,
        limit: Option<f64>,
        within: Range<usize>,
    ) -> Result<f64> {
        self.steps += 1;
        if let Some(vectors) = &self.on_device {
            let mut gradient = params.send(flat)?;
            let norm = gradient.norm(&within)?;
            factor(norm, limit).map_or(Ok(()), |factor| gradient.scale(factor))?;
            for param in params.iter().filter(|param| lies_in(&param.range, &within)) {
                let update = self.rule.kernel(&now(param, rate, self.steps));
                let update = update.context("invariant: a rule that has a kernel always has it")?;
                beside::update((&param.var, &param.range), &update, vectors, &gradient)
                    .with_context(|| format!("updating {}", param.name))?;
            }
            return Ok(norm);
        }
        let before = limit.map(|_| norm(&flat[within.clone()]));
        if let Some(factor) = before.and_then(|norm| factor(norm, limit)) {
            flat[within.clone()].iter_mut().for_each(|g| *g *= factor);
        }
        let (mut squares, coasting, momentum) = (0.0, self.rule.coasting(), self.momentum());
        params.update(|param, weights| {
            if !lies_in(&param.range, &within) {
                return;
            }
            let now = now(param, rate, self.steps);
            let table = self.table.as_mut().filter(|table| table.range == param.range);
            if let (Some(table), Some(coasting)) = (table, coasting) {
                let momentum = stretch(&mut self.vectors, momentum, &param.range);
                let grad = &mut flat[param.range.clone()];
                let step = sgd_step(coasting, &now);
                squares += table.update(weights, grad, support, momentum, &step);
                return;
            }
            // A block stays in the first cache from the sum of its squares to its update.
            let piece = if self.rule.whole() { weights.len().max(1) } else { BLOCK };
            for (start, weights) in (0..).step_by(piece).zip(weights.chunks_mut(piece)) {
                let start = param.range.start + start;
                let range = start..start + weights.len();
                let gradient = &flat[range.clone()];
                squares += sum_of_squares(gradient);
                let state = Slices::new(&mut self.vectors, range);
                self.rule.update(Piece { weights, gradient, state }, &now);
            }
        })?;
        Ok(before.unwrap_or(squares.sqrt()))
    }
}

/// When an update is, and of which parameter.
fn now(param: &Param, rate: f64, step: u64) -> Now<'_> {
    let (name, shape) = (param.name.as_str(), param.var.dims());
    Now { rate, step, name, shape, is_norm_bias: param.is_norm_bias }
}

/// What a gradient of this norm is multiplied by, to be no longer than `limit`.
fn factor(norm: f64, limit: Option<f64>) -> Option<f32> {
    limit.filter(|limit| norm > *limit).map(|limit| (limit / (norm + 1e-6)) as f32)
}

/// Whether a parameter's place is part of this range.
pub(super) fn lies_in(place: &Range<usize>, within: &Range<usize>) -> bool {
    within.start <= place.start && place.end <= within.end
}

/// The step of SGD for rows that coast.
fn sgd_step(coasting: Coasting, now: &Now) -> SgdStep {
    let Coasting { momentum, nesterov } = coasting;
    SgdStep { lr: now.rate, momentum, nesterov, weight_decay: 0.0, first: now.step == 1 }
}

/// The elements `range` of the vector of that number; empty without one.
fn stretch<'v>(
    vectors: &'v mut [Vec<f32>],
    number: Option<usize>,
    range: &Range<usize>,
) -> &'v mut [f32] {
    let vector = number.and_then(|number| vectors.get_mut(number));
    vector.and_then(|vector| vector.get_mut(range.clone())).unwrap_or_default()
}

/// The table's parameter.
fn table_of<'p>(table: &EmbeddingTable, params: &'p Params) -> Result<&'p Param> {
    let param = params.iter().find(|param| param.range == table.range);
    param.context("invariant: the table is one of the parameters")
}

/// The Euclidean norm.
pub fn norm(vector: &[f32]) -> f64 {
    sum_of_squares(vector).sqrt()
}

#[cfg(test)]
mod tests;
