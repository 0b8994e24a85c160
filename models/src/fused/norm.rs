//! Batch norm with its residual and ReLU.
//!
//! A *table* holds what a channel is normalised with, four rows of channels: γ, β, the mean, and 1 / deviation.

use candle_core::{Result, Shape, Tensor};

#[cfg(feature = "cuda")]
use super::launch::{Array, Gpu, Summand, View};
use super::operation::{Operation, apply};

/// The mean and the biased variance of each channel of `xs [.., C]`: `[2, C]`. No gradient flows back.
pub(super) fn moments(xs: &Tensor) -> Result<Tensor> {
    apply(Moments(Columns::of(xs)?), &[&xs.detach()])
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
    let normalise = Normalise { shape, columns: Columns::of(xs)?, relu, train };
    match residual {
        Some(residual) => apply(normalise, &[xs, table, residual]),
        None => apply(normalise, &[xs, table]),
    }
}

/// Rows of channels.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub(super) rows: usize,
    pub(super) channels: usize,
}

impl Columns {
    fn of(xs: &Tensor) -> Result<Self> {
        let channels = xs.dim(xs.rank() - 1)?;
        Ok(Self { rows: xs.elem_count() / channels, channels })
    }

    /// Σ over the rows of what `summand` makes of a channel and the place of its element.
    fn sums(self, summand: impl Fn(usize, usize) -> f32) -> Vec<f64> {
        let sum = |channel: usize| {
            let places = (0..self.rows).map(|row| row * self.channels + channel);
            places.map(|place| f64::from(summand(channel, place))).sum()
        };
        (0..self.channels).map(sum).collect()
    }
}

/// See [`moments`].
struct Moments(Columns);

impl Operation for Moments {
    const NAME: &'static str = "moments";

    fn shape(&self) -> Shape {
        (2, self.0.channels).into()
    }

    fn cpu(&self, operands: &[&[f32]]) -> Vec<f32> {
        let (xs, share) = (operands[0], 1. / self.0.rows as f64);
        let mean: Vec<f32> =
            self.0.sums(|_, i| xs[i]).into_iter().map(|sum| (sum * share) as f32).collect();
        let squares = self.0.sums(|channel, i| (xs[i] - mean[channel]).powi(2));
        mean.iter().copied().chain(squares.into_iter().map(|sum| (sum * share) as f32)).collect()
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &Gpu, operands: &[View]) -> Result<Array> {
        let (xs, share) = (&operands[0], 1. / self.0.rows as f64);
        let mut mean = gpu.array(self.0.channels)?;
        gpu.column_sums(self.0, Summand::Value, [xs; 3], share, &mut mean, 0)?;
        let mut to = gpu.array(2 * self.0.channels)?;
        gpu.put(&mean, &mut to)?;
        let table = [xs, xs, &mean.as_view()];
        gpu.column_sums(self.0, Summand::Square, table, share, &mut to, 1)?;
        Ok(to)
    }
}

/// See [`normalise`].
struct Normalise {
    shape: Shape,
    columns: Columns,
    relu: bool,
    train: bool,
}

impl Operation for Normalise {
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

    fn gradients(
        &self,
        operands: &[Tensor],
        result: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let (xs, table) = (&operands[0], &operands[1]);
        let gradient = if self.relu {
            apply(Gate(self.shape.clone()), &[result, gradient])?
        } else {
            gradient.clone()
        };
        let sums = apply(Sums(self.columns), &[xs, &gradient, table])?;
        let of_table = Tensor::cat(&[&sums, &sums.zeros_like()?], 0)?;
        let table = Tensor::cat(&[table, &sums], 0)?;
        let share = if self.train { 1. / self.columns.rows as f32 } else { 0. };
        let back = InputGradient { shape: self.shape.clone(), columns: self.columns, share };
        let of_xs = apply(back, &[xs, &gradient, &table])?;
        Ok(vec![Some(of_xs), Some(of_table), Some(gradient)])
    }
}

/// What ReLU leaves of a gradient: operands are its result and the gradient.
struct Gate(Shape);

impl Operation for Gate {
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

/// Per channel the sum of the gradients times the normalised values, and that of the gradients: the gradients of γ and β.
/// Operands are the input, the gradient and the table.
struct Sums(Columns);

impl Operation for Sums {
    const NAME: &'static str = "gradient sums";

    fn shape(&self) -> Shape {
        (2, self.0.channels).into()
    }

    fn cpu(&self, operands: &[&[f32]]) -> Vec<f32> {
        let (xs, gs, table) = (operands[0], operands[1], operands[2]);
        let (mean, per_deviation) = table[2 * self.0.channels..].split_at(self.0.channels);
        let products = self.0.sums(|c, i| gs[i] * ((xs[i] - mean[c]) * per_deviation[c]));
        products.into_iter().chain(self.0.sums(|_, i| gs[i])).map(|sum| sum as f32).collect()
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &Gpu, operands: &[View]) -> Result<Array> {
        let arrays = [&operands[0], &operands[1], &operands[2]];
        let mut to = gpu.array(2 * self.0.channels)?;
        gpu.column_sums(self.0, Summand::Product, arrays, 1., &mut to, 0)?;
        gpu.column_sums(self.0, Summand::Gradient, arrays, 1., &mut to, 1)?;
        Ok(to)
    }
}

/// The gradient of the input. Operands are the input, the gradient, and the table with the two [`Sums`] below it.
struct InputGradient {
    shape: Shape,
    columns: Columns,
    /// 1 / rows if the table's mean and deviation are the input's, 0 if they are constants.
    share: f32,
}

impl Operation for InputGradient {
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
            let (of_mean, of_deviation) = (self.share * row(5, i), self.share * row(4, i));
            row(0, i) * row(3, i) * (gs[i] - of_mean - normal * of_deviation)
        };
        (0..xs.len()).map(value).collect()
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &Gpu, operands: &[View]) -> Result<Array> {
        gpu.input_gradient(self.columns, self.share, operands)
    }
}
