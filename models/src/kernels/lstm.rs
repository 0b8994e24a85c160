//! A bidirectional LSTM, averaged over each text's tokens.
//!
//! Only tokens are computed: texts are ordered by their last token, latest first, so that the
//! texts still running at a time step are the first ones, and all steps lie behind one another
//! without padding. Each step is one matrix product, of the inputs and hidden states beside each
//! other, and the gates. Backward, each step has one product again, and the gradient of the weights
//! one for some steps together.

mod direction;
mod time_steps;

use candle_core::{Result, Shape, Tensor};

use super::handover::Linked;
use super::memory::Scratch;
use super::operand::{Operand, borrow, with_values};
use super::parallel;
use super::profile::{Timed, timed};
use super::simd::Isa;
use crate::kernels::custom_op::{self, Backprop, CustomOp, apply};
use crate::parameters::Lstm;
use direction::{Direction, States};
use time_steps::TimeSteps;

/// See [`ops::bilstm`](crate::ops::bilstm). No size but the texts' lengths is 0.
pub(crate) fn bilstm(
    isa: Isa,
    xs: &Tensor,
    ids: &Tensor,
    forward: &Lstm,
    reverse: &Lstm,
) -> Result<Tensor> {
    let hidden = forward.weight_hh.dim(1)?;
    let steps = with_values(ids, |tokens| Ok(TimeSteps::new(tokens, ids.dim(1)?)))?;
    let dim = xs.dim(2)?;
    let parameters = Linked::new(
        [forward, reverse]
            .into_iter()
            .flat_map(|lstm| [&lstm.weight_ih, &lstm.weight_hh, &lstm.bias_ih, &lstm.bias_hh]),
    )?;
    let link = parameters.link()?;
    let op = Bilstm { isa, hidden, steps, parameters, saved: custom_op::Saved::nothing() };
    timed(Timed::Lstm, op.products(dim), || apply(op, [xs, &link]))
}

struct Bilstm {
    isa: Isa,
    hidden: usize,
    steps: TimeSteps,
    /// The four of each direction.
    parameters: Linked,
    /// What both directions' forward passes leave to the backward pass.
    saved: custom_op::Saved<[States; 2]>,
}

impl CustomOp<2> for Bilstm {
    const NAME: &'static str = "bilstm";

    fn forward(&self, [xs, _]: [Operand; 2]) -> Result<(Vec<f32>, Shape)> {
        let (batch, _, dim) = xs.shape().dims3()?;
        let (hidden, steps) = (self.hidden, &self.steps);
        let parameters = self.parameters.values()?;
        // All scratch that outlives this call comes from this thread, which also drops it.
        let xs = xs.values()?;
        let mut states = [(); 2].map(|()| States::new(steps.rows(), [dim, hidden]));
        let mut sums = [vec![0.0; batch * hidden], vec![0.0; batch * hidden]];
        let directions = [false, true].into_iter().zip(parameters.chunks_exact(4));
        let jobs = directions.zip(states.iter_mut().zip(&mut sums));
        parallel::each(jobs.collect(), |((reverse, parameters), (states, sums))| {
            let direction = Direction::new(self.isa, steps, dim, hidden, reverse, parameters);
            direction.forward(xs, states, sums);
        });
        let mut means = vec![0.0; batch * 2 * hidden];
        for (row, &text) in steps.texts().iter().enumerate() {
            let mean = &mut means[text * 2 * hidden..][..2 * hidden];
            for (mean, sums) in mean.chunks_exact_mut(hidden).zip(&sums) {
                for (mean, sum) in mean.iter_mut().zip(&sums[row * hidden..]) {
                    *mean = sum * steps.weight(row);
                }
            }
        }
        self.saved.set(states);
        Ok((means, (batch, 2 * hidden).into()))
    }

    fn backward(&self, [xs, link]: [&Tensor; 2], _: &Tensor, upstream: &Tensor) -> Backprop<2> {
        timed(Timed::LstmBackward, 2 * self.products(xs.dim(2)?), || {
            Ok([Some(self.gradients(xs, upstream)?), Some(link.zeros_like()?)])
        })
    }
}

impl Bilstm {
    /// Products of the forward pass on inputs of width `dim`, in both directions.
    fn products(&self, dim: usize) -> usize {
        2 * self.steps.rows() * 4 * self.hidden * (dim + self.hidden)
    }

    /// The gradient of the texts; gives both directions' parameters theirs.
    fn gradients(&self, xs: &Tensor, upstream: &Tensor) -> Result<Tensor> {
        let (batch, length, dim) = xs.dims3()?;
        let (hidden, steps) = (self.hidden, &self.steps);
        let saved = self.saved.get();
        // What every hidden state of a text receives, in the order of the steps.
        let mut dys = [Scratch::zeroed(batch * hidden), Scratch::zeroed(batch * hidden)];
        let upstream = borrow::<f32>(upstream)?;
        for (row, &text) in steps.texts().iter().enumerate() {
            let upstream = upstream[text * 2 * hidden..].chunks_exact(hidden);
            for (dy, upstream) in dys.iter_mut().zip(upstream) {
                for (dy, g) in dy[row * hidden..][..hidden].iter_mut().zip(upstream) {
                    *dy = g * steps.weight(row);
                }
            }
        }
        let mut dxs = [vec![0.0; batch * length * dim], vec![0.0; batch * length * dim]];
        let (gates, inputs) = (4 * hidden, dim + hidden);
        // As a direction has them: both weights beside each other, then the sum of both biases.
        let mut dparameters = [(); 2].map(|()| Scratch::zeroed(gates * (inputs + 1)));
        let operands = [false, true].into_iter().zip(saved);
        let parameters = self.parameters.values()?;
        let outputs = dys.iter().zip(dxs.iter_mut().zip(&mut dparameters));
        let jobs = operands.zip(parameters.chunks_exact(4)).zip(outputs).collect();
        parallel::each(jobs, |(((reverse, states), parameters), (dy, (dx, dparameters)))| {
            let direction = Direction::new(self.isa, steps, dim, hidden, reverse, parameters);
            direction.backward(states, dy, dx, dparameters);
        });
        for (first, dparameters) in [0, 4].into_iter().zip(&dparameters) {
            let (dweight, dbias) = dparameters.split_at(gates * inputs);
            for (weight, columns) in [0..dim, dim..inputs].into_iter().enumerate() {
                self.parameters.give(first + weight, |to| {
                    let rows = to.chunks_exact_mut(columns.len()).zip(dweight.chunks_exact(inputs));
                    rows.for_each(|(to, row)| to.copy_from_slice(&row[columns.clone()]));
                })?;
            }
            for bias in [2, 3] {
                self.parameters.give(first + bias, |to| to.copy_from_slice(dbias))?;
            }
        }
        let [mut dx, other] = dxs;
        for (sum, other) in dx.iter_mut().zip(&other) {
            *sum += other;
        }
        Tensor::from_vec(dx, xs.shape(), xs.device())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::kernels::testing::{flat, value_and_gradients, wave};

    /// xs and both directions' parameters, in PyTorch's order.
    fn operands(batch: usize, length: usize, dim: usize, hidden: usize, seed: f64) -> Vec<Var> {
        let gates = 4 * hidden;
        let direction = [vec![gates, dim], vec![gates, hidden], vec![gates], vec![gates]];
        let shapes =
            std::iter::once(vec![batch, length, dim]).chain(direction.clone()).chain(direction);
        shapes.enumerate().map(|(i, shape)| wave(&shape, seed + 0.37 * i as f64)).collect()
    }

    fn lstm(vars: &[Var]) -> Lstm {
        let [weight_ih, weight_hh, bias_ih, bias_hh] =
            [0, 1, 2, 3].map(|i| vars[i].as_tensor().clone());
        Lstm { weight_ih, weight_hh, bias_ih, bias_hh }
    }

    #[test]
    fn the_same_bits_whatever_the_padding_and_in_every_run() {
        let vars = operands(3, 5, 7, 9, 0.6);
        let (forward, reverse) = (lstm(&vars[1..]), lstm(&vars[5..]));
        let longer = vars[0].as_detached_tensor().pad_with_zeros(1, 0, 3).unwrap();
        let ids =
            Tensor::new(&[[1u32, 2, 3, 0, 0], [4, 0, 0, 0, 0], [5, 6, 7, 8, 9]], &Device::Cpu)
                .unwrap();
        let more_ids = ids.pad_with_zeros(1, 0, 3).unwrap();
        for isa in Isa::available() {
            let ys = || bilstm(isa, &vars[0], &ids, &forward, &reverse).unwrap();
            let padded = bilstm(isa, &longer, &more_ids, &forward, &reverse).unwrap();
            assert_eq!(flat(&ys()), flat(&padded));
            let run = || value_and_gradients(&ys(), 3.0, &vars);
            assert_eq!(run(), run());
        }
    }
}
