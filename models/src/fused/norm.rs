//! Batch norm with its residual and ReLU, and its running statistics.
//!
//! A *table* holds five rows of channels: γ, β, the mean, 1 / deviation, and the unbiased variance. The normalisation
//! reads the first four rows; the running statistics follow the third and the last.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, InplaceOp1, InplaceOp3, Layout, Result, Shape, Tensor, bail};

use super::columns::{Columns, ROWS};
#[cfg(feature = "cuda")]
use super::launch::{Array, Gpu, View};
use super::operation::{FusedOperation, apply};
use crate::kernels::custom_op::Backprop;
use crate::kernels::operand::{f32s_mut, slice};
use crate::parameters::Running;

/// The table of a batch `xs [.., C]`: `[5, C]`. Gradient flows back to γ and β; that of `xs` is part of [`normalise`]'s.
pub(super) fn batch_table(
    xs: &Tensor,
    gamma: &Tensor,
    beta: &Tensor,
    epsilon: f64,
) -> Result<Tensor> {
    apply(BatchTable { columns: Columns::new(xs)?, epsilon }, [&xs.detach(), gamma, beta])
}

/// The table of running statistics.
pub(super) fn running_table(running: &Running, gamma: &Tensor, beta: &Tensor) -> Result<Tensor> {
    let mean = running.mean.as_detached_tensor();
    let variance = running.variance.as_detached_tensor();
    let per_deviation = (&variance + running.epsilon)?.sqrt()?.recip()?;
    Tensor::stack(&[gamma, beta, &mean, &per_deviation, &variance], 0)
}

/// Counts a training pass and moves the running statistics towards those of its batch, `[C]` each.
pub(super) fn track(running: &Running, mean: &Tensor, variance: &Tensor) -> Result<()> {
    running.passes.inplace_op1(&CountPass)?;
    let track = Track { momentum: running.momentum };
    running.mean.inplace_op3(mean, &running.passes, &track)?;
    running.variance.inplace_op3(variance, &running.passes, &track)
}

/// `xs [.., C]` normalised with the table, plus the residual, then ReLU if `relu`. With `train` the table's mean and
/// deviation are those of `xs`, and so is their part in the gradient.
pub(super) fn normalise(
    xs: &Tensor,
    table: &Tensor,
    residual: Option<&Tensor>,
    relu: bool,
    train: bool,
) -> Result<Tensor> {
    let shape = xs.shape().clone();
    let normalise = Normalise { shape, columns: Columns::new(xs)?, relu, train };
    match residual {
        Some(residual) => apply(normalise, [xs, table, residual]),
        None => apply(normalise, [xs, table]),
    }
}

/// See [`batch_table`].
struct BatchTable {
    columns: Columns,
    epsilon: f64,
}

impl FusedOperation<3> for BatchTable {
    const NAME: &'static str = "batch table";

    fn shape(&self) -> Shape {
        (ROWS, self.columns.channels).into()
    }

    fn cpu(&self, operands: &[&[f32]]) -> Vec<f32> {
        let (xs, count) = (operands[0], self.columns.rows as f64);
        let sums = self.columns.sums(|_, i| xs[i].into());
        let mean: Vec<f64> = sums.into_iter().map(|sum| sum / count).collect();
        let squares = self.columns.sums(|channel, i| (f64::from(xs[i]) - mean[channel]).powi(2));
        let per_deviation = squares.iter().map(|sum| 1. / (sum / count + self.epsilon).sqrt());
        let unbiased = squares.iter().map(|sum| sum / (count - 1.));
        let of_batch = mean.iter().copied().chain(per_deviation).chain(unbiased);
        let given = operands[1].iter().chain(operands[2]).copied();
        given.chain(of_batch.map(|value| value as f32)).collect()
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &Gpu, operands: &[View]) -> Result<Array> {
        gpu.batch_table(self.columns, self.epsilon, operands)
    }

    fn gradients(&self, _: [Tensor; 3], _: Tensor, gradient: Tensor) -> Backprop<3> {
        Ok([None, Some(gradient.get(0)?), Some(gradient.get(1)?)])
    }
}

/// One more training pass; see [`Running::count`].
struct CountPass;

impl InplaceOp1 for CountPass {
    fn name(&self) -> &'static str {
        "count pass"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let [passes] = f32s_mut(storage, layout)? else { bail!("one number of passes is counted") };
        *passes = Running::next(*passes);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        Gpu::count_pass(storage, layout)
    }
}

/// Moves a running statistic towards the batch's, the second operand, by the passes so far, the third.
struct Track {
    momentum: f64,
}

impl InplaceOp3 for Track {
    fn name(&self) -> &'static str {
        "track"
    }

    fn cpu_fwd(
        &self,
        running: &mut CpuStorage,
        place: &Layout,
        batch: &CpuStorage,
        of_batch: &Layout,
        passes: &CpuStorage,
        of_passes: &Layout,
    ) -> Result<()> {
        let (running, batch) = (f32s_mut(running, place)?, slice::<f32>(batch, of_batch)?);
        let &[passes] = slice(passes, of_passes)? else { bail!("one number of passes is taken") };
        let weight = Running::weight(self.momentum, passes);
        let (kept, taken) = ((1. - weight) as f32, weight as f32);
        running.iter_mut().zip(batch).for_each(|(to, x)| *to = *to * kept + x * taken);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        running: &mut CudaStorage,
        place: &Layout,
        batch: &CudaStorage,
        of_batch: &Layout,
        passes: &CudaStorage,
        of_passes: &Layout,
    ) -> Result<()> {
        let batch = Gpu::view(batch, of_batch)?;
        Gpu::track((running, place), &batch, &Gpu::view(passes, of_passes)?, self.momentum)
    }
}

/// See [`normalise`].
struct Normalise {
    shape: Shape,
    columns: Columns,
    relu: bool,
    train: bool,
}

impl<const N: usize> FusedOperation<N> for Normalise {
    const NAME: &'static str = "normalise";

    fn shape(&self) -> Shape {
        self.shape.clone()
    }

    fn cpu(&self, operands: &[&[f32]]) -> Vec<f32> {
        let (xs, table, residual) = (operands[0], operands[1], operands.get(2));
        let row =
            |row: usize, i: usize| table[row * self.columns.channels + i % self.columns.channels];
        let value = |i: usize| {
            let y = (xs[i] - row(2, i)) * (row(0, i) * row(3, i)) + row(1, i);
            let y = residual.map_or(y, |residual| y + residual[i]);
            if self.relu && y <= 0. { 0. } else { y }
        };
        (0..xs.len()).map(value).collect()
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &Gpu, operands: &[View]) -> Result<Array> {
        gpu.normalise(self.columns, self.relu, operands)
    }

    fn gradients(&self, operands: [Tensor; N], result: Tensor, gradient: Tensor) -> Backprop<N> {
        let (xs, table) = (&operands[0], &operands[1]);
        let gradient = if self.relu {
            apply(Gate(self.shape.clone()), [&result, &gradient])?
        } else {
            gradient
        };
        let table = apply(WithGradient(self.columns), [xs, &gradient, table])?;
        let of_table = table.narrow(0, ROWS, ROWS)?;
        let share = if self.train { 1. / self.columns.rows as f32 } else { 0. };
        let back = InputGradient { shape: self.shape.clone(), columns: self.columns, share };
        let of_xs = apply(back, [xs, &gradient, &table])?;
        let mut gradients = [of_xs, of_table, gradient].into_iter();
        Ok(std::array::from_fn(|_| gradients.next()))
    }
}

/// What ReLU leaves of a gradient: operands are its result and the gradient.
struct Gate(Shape);

impl FusedOperation<2> for Gate {
    const NAME: &'static str = "gate";

    fn shape(&self) -> Shape {
        self.0.clone()
    }

    fn cpu(&self, operands: &[&[f32]]) -> Vec<f32> {
        let gate = |(z, g): (&f32, &f32)| if *z <= 0. { 0. } else { *g };
        operands[0].iter().zip(operands[1]).map(gate).collect()
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &Gpu, operands: &[View]) -> Result<Array> {
        gpu.gate(self.0.elem_count(), operands)
    }
}

/// The table, and below it its gradient, `[10, C]`: that of γ, per channel the sum of the gradients times the normalised
/// values, that of β, the sum of the gradients, and zeros for what follows from the batch. Operands are the input, the
/// gradient and the table.
struct WithGradient(Columns);

impl FusedOperation<3> for WithGradient {
    const NAME: &'static str = "table with gradient";

    fn shape(&self) -> Shape {
        (2 * ROWS, self.0.channels).into()
    }

    fn cpu(&self, operands: &[&[f32]]) -> Vec<f32> {
        let (xs, gs, table) = (operands[0], operands[1], operands[2]);
        let (mean, per_deviation) = table[2 * self.0.channels..].split_at(self.0.channels);
        let product = |c: usize, i: usize| gs[i] * ((xs[i] - mean[c]) * per_deviation[c]);
        let products = self.0.sums(|channel, i| product(channel, i).into());
        let sums = products.into_iter().chain(self.0.sums(|_, i| gs[i].into()));
        let mut to: Vec<f32> = table.iter().copied().chain(sums.map(|sum| sum as f32)).collect();
        to.resize(2 * ROWS * self.0.channels, 0.);
        to
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &Gpu, operands: &[View]) -> Result<Array> {
        gpu.with_gradient(self.0, operands)
    }
}

/// The gradient of the input. Operands are the input, the gradient, and the table with its gradient below it.
struct InputGradient {
    shape: Shape,
    columns: Columns,
    /// 1 / rows if the table's mean and deviation are the input's, 0 if they are constants.
    share: f32,
}

impl FusedOperation<3> for InputGradient {
    const NAME: &'static str = "input gradient";

    fn shape(&self) -> Shape {
        self.shape.clone()
    }

    fn cpu(&self, operands: &[&[f32]]) -> Vec<f32> {
        let (xs, gs, table) = (operands[0], operands[1], operands[2]);
        let row =
            |row: usize, i: usize| table[row * self.columns.channels + i % self.columns.channels];
        let value = |i: usize| {
            let normal = (xs[i] - row(2, i)) * row(3, i);
            let (of_mean, of_deviation) = (self.share * row(6, i), self.share * row(5, i));
            row(0, i) * row(3, i) * (gs[i] - of_mean - normal * of_deviation)
        };
        (0..xs.len()).map(value).collect()
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &Gpu, operands: &[View]) -> Result<Array> {
        gpu.input_gradient(self.columns, self.share, operands)
    }
}
