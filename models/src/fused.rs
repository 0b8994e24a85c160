//! What GPUs compute otherwise than [`composed`](crate::composed), which would take ten to twenty passes over memory, or
//! one thread where there is work for thousands.
//!
//! Windows of a convolution are laid out as rows by one kernel, and matrix products do the rest, forward and backward.
//! candle's own convolutions are not used in training: the gradient of their input is a `conv_transpose2d`, which is no
//! matrix product. Batch norm with its residual and ReLU is one pass forward after the statistics. The gradient of a table
//! is summed row by row, where candle has one thread for each column.
//!
//! Each operation is written twice: as a CUDA kernel (`kernels.cu`), compiled by NVRTC when first used, and in plain Rust.
//! The Rust is what says what the kernel does, and tests run it in the kernel's place, with the same gradients around it.

mod convolution;
#[cfg(feature = "cuda")]
mod launch;
mod norm;
mod operation;
mod rows;

use candle_core::{Result, Tensor, Var};

use crate::activations;
use crate::kernels::conv::Sizes;
use crate::parameters::{Activation, Affine, Running};

/// Whether tensors of this device are computed with here.
pub(crate) fn takes(xs: &Tensor) -> bool {
    xs.device().is_cuda()
}

/// See [`ops::conv2d`](crate::ops::conv2d).
pub(crate) fn conv2d(
    xs: &Tensor,
    weight: &Tensor,
    stride: usize,
    padding: usize,
    input_gradient: bool,
) -> Result<Tensor> {
    let sizes = Sizes::new(xs.dims4()?, weight.dims4()?, stride, padding)?;
    let (rows, columns) = sizes.kernel;
    let xs = if input_gradient { xs.clone() } else { xs.detach() };
    let weight = weight.permute((2, 3, 1, 0))?;
    let weight = weight.reshape((rows * columns * sizes.inputs, sizes.outputs))?;
    convolution::convolve(&xs, &weight, sizes, input_gradient)
}

/// The rows of `table [R, D]` with these numbers: `[numbers.len(), D]`. Gradient flows back from the picks at the places
/// `giving` alone. What [`composed`](crate::composed) takes on the processor too.
///
/// # Errors
/// A number that no row has, and a place that no pick has.
pub(crate) fn picked(table: &Tensor, numbers: Vec<u32>, giving: Vec<u32>) -> Result<Tensor> {
    rows::picked(table, numbers, giving)
}

/// See [`ops::batch_norm`](crate::ops::batch_norm).
pub(crate) fn batch_norm(
    xs: &Tensor,
    affine: Affine,
    running: &Running,
    residual: Option<&Tensor>,
    activation: Activation,
    train: bool,
) -> Result<Tensor> {
    let Affine { shift, gamma, beta } = affine;
    let (xs, beta) = match shift {
        // The batch's mean takes the shift out again; its gradient is zero, and there is one. (candle has none for what
        // is multiplied by zero.)
        Some(shift) if train => (xs.clone(), (beta + shift.sub(shift)?)?),
        Some(shift) => (xs.broadcast_add(shift)?, beta.clone()),
        None => (xs.clone(), beta.clone()),
    };
    let gamma = match gamma {
        Some(gamma) => gamma.clone(),
        None => beta.ones_like()?.detach(),
    };
    let (mean, variance) = if train {
        let moments = norm::moments(&xs)?;
        let (mean, variance) = (moments.get(0)?, moments.get(1)?);
        let count = (xs.elem_count() / mean.elem_count()) as f64;
        let weight = running.count_on_device()?;
        let of_outputs = match shift {
            Some(shift) => (&mean + shift.detach())?,
            None => mean.clone(),
        };
        track(&running.mean, &of_outputs, &weight)?;
        let unbiased = (&variance * (count / (count - 1.)))?;
        track(&running.variance, &unbiased, &weight)?;
        (mean, variance)
    } else {
        (running.mean.as_detached_tensor(), running.variance.as_detached_tensor())
    };
    let per_deviation = (variance + running.epsilon)?.sqrt()?.recip()?;
    let table = Tensor::stack(&[gamma, beta, mean, per_deviation], 0)?;
    let relu = activation == Activation::Relu;
    let ys = norm::normalise(&xs, &table, residual, relu, train)?;
    match activation {
        Activation::Gelu(form) => activations::gelu(&ys, form),
        Activation::Identity | Activation::Relu => Ok(ys),
    }
}

/// Moves a running statistic towards the batch's, which gets that weight.
fn track(running: &Var, batch: &Tensor, weight: &Tensor) -> Result<()> {
    let before = running.as_detached_tensor();
    running.set(&(&before + (batch - &before)?.broadcast_mul(weight)?)?)
}

#[cfg(test)]
mod tests;
