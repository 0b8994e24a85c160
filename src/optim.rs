//! Optimizers: the mean gradient in, weights updated in place, one pass and no temporaries.
//!
//! Both rules are PyTorch's to the letter (`torch.optim.SGD` with dampening 0, `torch.optim.AdamW`),
//! because the experiments that are repeated here were defined in them. State lives in flat
//! vectors beside the flat gradient, in the same order. Of an embedding table SGD updates the rows
//! that have a gradient, and the others when somebody [reads](Optimizer::show) them.

mod table;

use crate::params::{Param, Params};
use anyhow::{Context, Result};
use gradwire_exchange::Support;
use gradwire_models::kernels::optimizer::{AdamWStep, SgdStep, adamw, sgd, sum_of_squares};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use table::Table;

pub use table::Waiting;

/// Which optimizer, with its settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Config {
    /// Stochastic gradient descent with momentum (Sutskever et al. 2013).
    Sgd(Sgd),
    /// Adam with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2).
    Adamw(Adamw),
}

/// Settings of [`Config::Sgd`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sgd {
    /// The base learning rate, which the schedule multiplies.
    pub learning_rate: f64,
    /// Momentum, 0 to below 1; 0 for none.
    pub momentum: f64,
    /// Nesterov's form of momentum.
    pub nesterov: bool,
    /// Weight decay added to the gradient (L2).
    pub weight_decay: f64,
    /// Whether batch norm's scales and shifts, and biases, decay as well.
    pub decay_norms_and_biases: bool,
}

impl Default for Sgd {
    fn default() -> Self {
        Self {
            learning_rate: 0.1,
            momentum: 0.9,
            nesterov: false,
            weight_decay: 0.0,
            decay_norms_and_biases: true,
        }
    }
}

/// Settings of [`Config::Adamw`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Adamw {
    /// The base learning rate, which the schedule multiplies.
    pub learning_rate: f64,
    /// Decay of the gradient's running mean.
    pub beta1: f64,
    /// Decay of the squared gradient's running mean.
    pub beta2: f64,
    /// Added to the denominator.
    pub epsilon: f64,
    /// Weight decay, decoupled from the gradient.
    pub weight_decay: f64,
    /// Whether batch norm's scales and shifts, and biases, decay as well.
    pub decay_norms_and_biases: bool,
}

impl Default for Adamw {
    fn default() -> Self {
        Self {
            learning_rate: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
            decay_norms_and_biases: true,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::Sgd(Sgd::default())
    }
}

impl Config {
    /// The base learning rate.
    pub fn learning_rate(&self) -> f64 {
        match self {
            Self::Sgd(c) => c.learning_rate,
            Self::Adamw(c) => c.learning_rate,
        }
    }

    /// The momentum of plain SGD; 0 for what has none of that kind.
    pub fn momentum(&self) -> f64 {
        match self {
            Self::Sgd(c) => c.momentum,
            Self::Adamw(_) => 0.0,
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// A sentence that names the key and what to write instead.
    pub fn validate(&self) -> Result<(), String> {
        let below_one = |key: &str, value: f64| {
            let fine = (0.0..1.0).contains(&value);
            if fine {
                Ok(())
            } else {
                Err(format!("optimizer.{key} = {value} must be at least 0 and below 1"))
            }
        };
        let at_least_zero = |key: &str, value: f64| {
            let fine = value >= 0.0 && value.is_finite();
            if fine {
                Ok(())
            } else {
                Err(format!("optimizer.{key} = {value} must be a number of at least 0"))
            }
        };
        at_least_zero("learning_rate", self.learning_rate())?;
        match self {
            Self::Sgd(c) => {
                below_one("momentum", c.momentum)?;
                at_least_zero("weight_decay", c.weight_decay)?;
                if c.nesterov && c.momentum == 0.0 {
                    return Err(
                        "optimizer.nesterov = true needs optimizer.momentum above 0, such as 0.9"
                            .into(),
                    );
                }
                Ok(())
            }
            Self::Adamw(c) => {
                below_one("beta1", c.beta1)?;
                below_one("beta2", c.beta2)?;
                at_least_zero("weight_decay", c.weight_decay)?;
                at_least_zero("epsilon", c.epsilon)
            }
        }
    }
}

/// An optimizer with its state for one replica.
pub struct Optimizer {
    config: Config,
    /// SGD's momentum buffer, or Adam's running mean.
    first: Vec<f32>,
    /// Adam's running mean of squares; empty for SGD.
    second: Vec<f32>,
    steps: u64,
    /// The table whose rows may wait.
    table: Option<Table>,
}

impl Optimizer {
    /// An optimizer for `params`, its state zero. `table` names the one of them, `[rows, width]`,
    /// that is never read but in rows that [`show`](Self::show) was told of before.
    pub fn new(config: Config, params: &Params, table: Option<&str>) -> Self {
        let (first, second) = match &config {
            Config::Sgd(c) if c.momentum == 0.0 => (0, 0),
            Config::Sgd(_) => (params.len(), 0),
            Config::Adamw(_) => (params.len(), params.len()),
        };
        let rows = |param: &&Param| Some(param.name.as_str()) == table;
        let table = params.iter().find(rows).and_then(|param| match (&config, param.var.dims()) {
            (Config::Sgd(_), [_, width]) if *width > 0 && param.var.device().is_cpu() => {
                Some(Table::new(param.range.clone(), *width))
            }
            _ => None,
        });
        Self { config, first: vec![0.0; first], second: vec![0.0; second], steps: 0, table }
    }

    /// Brings these rows of the table to where they would be if none had waited, or all rows; to be
    /// called before they are read. Leaves no trace in what comes later.
    ///
    /// # Errors
    /// When the table does not lie in memory as one contiguous `f32` slice.
    pub fn show(&mut self, params: &Params, rows: Option<&[u32]>) -> Result<()> {
        let Some(table) = &mut self.table else { return Ok(()) };
        let momentum = self.first.get(table.range.clone()).unwrap_or_default();
        let param = table_of(table, params)?;
        param.update(|weights| table.show(weights, momentum, rows))
    }

    /// What the table's rows wait with, if any do.
    ///
    /// # Errors
    /// As [`show`](Self::show).
    pub fn waiting(&self, params: &Params) -> Result<Option<Waiting>> {
        let Some(table) = &self.table else { return Ok(None) };
        table_of(table, params)?.update(|weights| table.save(weights))
    }

    /// Takes up what [`waiting`](Self::waiting) gave, after [`set`](Self::set). With settings under
    /// which no row may wait, none does any more.
    ///
    /// # Errors
    /// When it is not of this table.
    pub fn resume(&mut self, params: &Params, waiting: &Waiting) -> Result<()> {
        let may_wait = self.may_wait();
        let Some(table) = &mut self.table else { return Ok(()) };
        let momentum = self.first.get_mut(table.range.clone()).unwrap_or_default();
        table_of(table, params)?.update(|weights| {
            table.restore(waiting, weights)?;
            if !may_wait {
                table.settle(weights, momentum);
            }
            Ok(())
        })?
    }

    /// The part of the flat gradient that [`step`](Self::step) leaves all zeros: the place of a table
    /// whose rows may wait. So the next gradient's rows need no pass over the whole of it.
    pub fn zeros(&self) -> Option<&Range<usize>> {
        self.table.as_ref().filter(|_| self.may_wait()).map(|table| &table.range)
    }

    /// Whether rows may wait: decay moves every row by what it is, not by its momentum alone.
    fn may_wait(&self) -> bool {
        matches!(&self.config, Config::Sgd(c) if c.weight_decay == 0.0)
    }

    /// The state's two vectors with their names, in the flat gradient's layout; empty where the
    /// rule has none.
    pub fn vectors(&self) -> [(&'static str, &[f32]); 2] {
        [("first", &self.first), ("second", &self.second)]
    }

    /// The updates made.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Replaces the state.
    ///
    /// # Panics
    /// When a vector is not as long as the one it replaces.
    pub fn set(&mut self, first: &[f32], second: &[f32], steps: u64) {
        self.first.copy_from_slice(first);
        self.second.copy_from_slice(second);
        self.steps = steps;
    }

    /// One update of `params` by the mean gradient `flat` at the learning rate `rate`. Returns the
    /// gradient's [norm], which is summed up while the update has the gradient in the cache. Leaves
    /// `flat` all [zeros](Self::zeros) in the table's place. Outside `support` it is zero already.
    ///
    /// # Errors
    /// When a parameter does not lie in memory as one contiguous `f32` slice.
    pub fn step(
        &mut self,
        params: &Params,
        flat: &mut [f32],
        support: &Support,
        rate: f64,
    ) -> Result<f64> {
        self.steps += 1;
        let (mut squares, may_wait) = (0.0, self.may_wait());
        for param in params.iter() {
            let is_matrix = param.var.rank() > 1;
            let update = self.update(rate, is_matrix);
            let (first, second) = (&mut self.first, &mut self.second);
            let table = self.table.as_mut().filter(|table| may_wait && table.range == param.range);
            if let (Some(table), Update::Sgd(step)) = (table, &update) {
                let momentum = first.get_mut(param.range.clone()).unwrap_or_default();
                let grad = &mut flat[param.range.clone()];
                squares +=
                    param.update(|weights| table.update(weights, grad, support, momentum, step))?;
                continue;
            }
            param.update(|weights| {
                for (start, weights) in (0..).step_by(PIECE).zip(weights.chunks_mut(PIECE)) {
                    let start = param.range.start + start;
                    let range = start..start + weights.len();
                    let grad = &flat[range.clone()];
                    squares += sum_of_squares(grad);
                    match &update {
                        Update::Sgd(step) => {
                            let momentum = first.get_mut(range).unwrap_or_default();
                            sgd(weights, grad, momentum, step);
                        }
                        Update::Adamw(step) => {
                            let (mean, square) = (&mut first[range.clone()], &mut second[range]);
                            adamw(weights, grad, mean, square, step);
                        }
                    }
                }
            })?;
        }
        Ok(squares.sqrt())
    }

    /// The present update of a parameter; only matrices are sure to decay.
    fn update(&self, rate: f64, is_matrix: bool) -> Update {
        match &self.config {
            Config::Sgd(c) => Update::Sgd(SgdStep {
                lr: rate,
                momentum: c.momentum,
                nesterov: c.nesterov,
                weight_decay: decay(c.weight_decay, c.decay_norms_and_biases || is_matrix),
                first: self.steps == 1,
            }),
            Config::Adamw(c) => Update::Adamw(AdamWStep {
                lr: rate,
                beta1: c.beta1,
                beta2: c.beta2,
                eps: c.epsilon,
                weight_decay: decay(c.weight_decay, c.decay_norms_and_biases || is_matrix),
                step: self.steps,
            }),
        }
    }
}

/// The table's parameter.
fn table_of<'p>(table: &Table, params: &'p Params) -> Result<&'p Param> {
    let param = params.iter().find(|param| param.range == table.range);
    param.context("invariant: the table is one of the parameters")
}

/// What a parameter's kernel is told.
enum Update {
    Sgd(SgdStep),
    Adamw(AdamWStep),
}

/// Elements that are summed up and then updated while the first cache holds them: 16 KiB.
const PIECE: usize = 4096;

/// The Euclidean norm, in f64 over blocks of f32 sums.
pub fn norm(vector: &[f32]) -> f64 {
    vector.chunks(PIECE).map(sum_of_squares).sum::<f64>().sqrt()
}

fn decay(weight_decay: f64, applies: bool) -> f64 {
    if applies { weight_decay } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use gradwire_models::{Input, Store, text};

    #[test]
    fn piece_by_piece_is_the_same_update_and_tells_the_norm() {
        let configs = [
            Config::default(),
            Config::Sgd(Sgd { momentum: 0.0, ..Sgd::default() }),
            Config::Adamw(Adamw::default()),
        ];
        let tables = [None, Some("embedding.weight")];
        for (config, table) in configs.into_iter().flat_map(|c| tables.map(|t| (c.clone(), t))) {
            let store = Store::new(5, &Device::Cpu);
            let input = Input::Text { vocabulary: 70, length: 4 };
            let model = gradwire_models::Config::Fasttext(text::fasttext::Config::default());
            model.build(&input, 3, store.var_builder()).unwrap();
            let params = Params::new(&store);
            let flat: Vec<f32> = (0..params.len()).map(|i| (i as f32 * 0.3).sin()).collect();
            let elements = |param: &Param| param.update(|v| v.to_vec()).unwrap();
            let before: Vec<Vec<f32>> = params.iter().map(elements).collect();
            let mut optimizer = Optimizer::new(config, &params, table);
            let mut support = Support::nothing(params.len());
            support.fill();
            let found = optimizer.step(&params, &mut flat.clone(), &support, 0.1).unwrap();
            assert!((found / norm(&flat) - 1.0).abs() < 1e-6);
            for (param, mut weights) in params.iter().zip(before) {
                let grad = &flat[param.range.clone()];
                let (mut first, mut second) = (vec![0.0; grad.len()], vec![0.0; grad.len()]);
                match optimizer.update(0.1, param.var.rank() > 1) {
                    Update::Sgd(step) => sgd(&mut weights, grad, &mut first, &step),
                    Update::Adamw(step) => {
                        adamw(&mut weights, grad, &mut first, &mut second, &step);
                    }
                }
                assert_eq!(weights, elements(param), "{}", param.name);
            }
        }
    }
}
