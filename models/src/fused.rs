//! What GPUs compute otherwise than [`composed`](crate::composed), which would take ten to twenty passes over memory, or
//! one thread where there is work for thousands.
//!
//! Windows of a convolution are laid out as rows by one kernel, and matrix products do the rest, forward and backward.
//! candle's own convolutions are not used in training: the gradient of their input is a `conv_transpose2d`, which is no
//! matrix product. Batch norm with its residual and ReLU reads its input twice forward and twice backward; three more
//! launches count the pass and move the running statistics. The gradient of a table is summed row by row, where candle
//! has one thread for each column.
//!
//! Each operation is written twice: as a CUDA kernel (`kernels.cu`), compiled by NVRTC when first used, and in plain Rust.
//! The Rust is what says what the kernel does, and tests run it in the kernel's place, with the same gradients around it.

mod columns;
mod convolution;
#[cfg(feature = "cuda")]
pub(crate) mod launch;
mod norm;
mod operation;
mod rows;

use candle_core::{Result, Tensor};

pub(crate) use self::rows::picked;

use crate::activations;
use crate::kernels::conv_sizes::Sizes;
use crate::parameters::{Activation, Affine, Running};

/// Whether tensors of this device are computed with here.
pub(crate) fn takes(xs: &Tensor) -> bool {
    #[cfg(test)]
    if tests::TWINS.get() {
        return true;
    }
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
    let table = if train {
        let table = norm::batch_table(&xs, &gamma, &beta, running.epsilon)?;
        let of_batch = table.detach();
        let mean = match shift {
            Some(shift) => (of_batch.get(2)? + shift.detach())?,
            None => of_batch.get(2)?,
        };
        norm::track(running, &mean, &of_batch.get(4)?)?;
        table
    } else {
        norm::running_table(running, &gamma, &beta)?
    };
    let relu = activation == Activation::Relu;
    let ys = norm::normalise(&xs, &table, residual, relu, train)?;
    match activation {
        Activation::Gelu(form) => activations::gelu(&ys, form),
        Activation::Identity | Activation::Relu => Ok(ys),
    }
}

#[cfg(test)]
pub(crate) mod tests;
