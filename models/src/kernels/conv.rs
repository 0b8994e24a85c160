//! Convolution of NHWC images: which algorithm computes what.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

use super::memory::{Out, written};
use super::operand::{f32s, with_f32s};
use super::profile::{Kind, timed};
use super::{Native, direct, winograd};

/// A convolution's sizes. Images are `[batch, height, width, channels]`, weights `[outputs, inputs, kernel, kernel]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub batch: usize,
    pub height: usize,
    pub width: usize,
    pub inputs: usize,
    pub outputs: usize,
    /// Rows and columns of the kernel.
    pub kernel: (usize, usize),
    pub stride: usize,
    pub padding: usize,
}

impl Sizes {
    /// Height of the result.
    pub(crate) fn out_height(&self) -> usize {
        (self.height + 2 * self.padding - self.kernel.0) / self.stride + 1
    }

    /// Width of the result.
    pub(crate) fn out_width(&self) -> usize {
        (self.width + 2 * self.padding - self.kernel.1) / self.stride + 1
    }

    /// Elements of the input.
    pub(crate) fn input_len(&self) -> usize {
        self.batch * self.height * self.width * self.inputs
    }

    /// Elements of the result.
    pub(crate) fn output_len(&self) -> usize {
        self.batch * self.out_height() * self.out_width() * self.outputs
    }

    /// Elements of the weight.
    pub(crate) fn weight_len(&self) -> usize {
        self.outputs * self.inputs * self.kernel.0 * self.kernel.1
    }

    /// Whether minimal filtering computes it: it must apply, and there must be enough channels for the transforms to
    /// cost less than they save.
    fn minimal(&self, native: Native) -> bool {
        !native.precise
            && self.kernel == (3, 3)
            && self.padding == 1
            && self.stride <= 2
            && self.inputs.min(self.outputs) >= 12
    }
}

/// The result of the convolution of `xs` with `weight`: writes all of `ys`.
pub(crate) fn forward(native: Native, sizes: &Sizes, xs: &[f32], weight: &[f32], ys: Out) {
    assert_eq!((xs.len(), weight.len()), (sizes.input_len(), sizes.weight_len()));
    assert_eq!(ys.len(), sizes.output_len());
    if sizes.minimal(native) {
        winograd::forward(native.isa, sizes, xs, weight, ys);
    } else {
        direct::forward(native.isa, sizes, xs, weight, ys);
    }
}

/// The gradient of the input from that of the result: writes all of `dx`.
pub(crate) fn input_gradient(native: Native, sizes: &Sizes, weight: &[f32], dy: &[f32], dx: Out) {
    assert_eq!((dy.len(), weight.len()), (sizes.output_len(), sizes.weight_len()));
    assert_eq!(dx.len(), sizes.input_len());
    if sizes.minimal(native) {
        winograd::input_gradient(native.isa, sizes, weight, dy, dx);
    } else {
        direct::input_gradient(native.isa, sizes, weight, dy, dx);
    }
}

/// The gradient of the weight from that of the result: writes all of `dw`.
pub(crate) fn weight_gradient(native: Native, sizes: &Sizes, xs: &[f32], dy: &[f32], dw: Out) {
    assert_eq!((xs.len(), dy.len()), (sizes.input_len(), sizes.output_len()));
    assert_eq!(dw.len(), sizes.weight_len());
    if sizes.minimal(native) {
        winograd::weight_gradient(native.isa, sizes, xs, dy, dw);
    } else {
        direct::weight_gradient(native.isa, sizes, xs, dy, dw);
    }
}

/// See [`ops::conv2d`](crate::ops::conv2d); both operands are f32 on the CPU.
pub(crate) fn conv2d(
    native: Native,
    xs: &Tensor,
    weight: &Tensor,
    stride: usize,
    padding: usize,
    input_gradient: bool,
) -> Result<Tensor> {
    let op = Conv { native, stride, padding, input_gradient };
    xs.contiguous()?.apply_op2(&weight.contiguous()?, op)
}

struct Conv {
    native: Native,
    stride: usize,
    padding: usize,
    input_gradient: bool,
}

impl Conv {
    fn sizes(&self, xs: &Shape, weight: &Shape) -> Result<Sizes> {
        let (batch, height, width, inputs) = xs.dims4()?;
        let (outputs, _, rows, columns) = weight.dims4()?;
        let Self { stride, padding, .. } = *self;
        Ok(Sizes {
            batch,
            height,
            width,
            inputs,
            outputs,
            kernel: (rows, columns),
            stride,
            padding,
        })
    }
}

impl CustomOp2 for Conv {
    fn name(&self) -> &'static str {
        "conv"
    }

    fn cpu_fwd(
        &self,
        xs: &CpuStorage,
        lx: &Layout,
        weight: &CpuStorage,
        lw: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let sizes = self.sizes(lx.shape(), lw.shape())?;
        let (xs, weight) = (f32s(xs, lx)?, f32s(weight, lw)?);
        // SAFETY: `forward` writes all of the result.
        let ys = unsafe {
            written(sizes.output_len(), |ys| {
                timed(Kind::Convolution, || forward(self.native, &sizes, xs, weight, ys));
            })
        };
        let shape = (sizes.batch, sizes.out_height(), sizes.out_width(), sizes.outputs);
        Ok((CpuStorage::F32(ys), shape.into()))
    }

    fn bwd(
        &self,
        xs: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let native = self.native;
        let sizes = self.sizes(xs.shape(), weight.shape())?;
        with_f32s(dy, |dy| {
            // SAFETY: `weight_gradient` writes all of its result.
            let dw = with_f32s(xs, |xs| unsafe {
                Ok(written(sizes.weight_len(), |dw| {
                    timed(Kind::ConvolutionWeight, || weight_gradient(native, &sizes, xs, dy, dw));
                }))
            })?;
            let dw = Tensor::from_vec(dw, weight.shape(), weight.device())?;
            if !self.input_gradient {
                return Ok((None, Some(dw)));
            }
            // SAFETY: `input_gradient` writes all of its result.
            let dx = with_f32s(weight, |weight| unsafe {
                Ok(written(sizes.input_len(), |dx| {
                    timed(Kind::ConvolutionInput, || {
                        input_gradient(native, &sizes, weight, dy, dx);
                    });
                }))
            })?;
            Ok((Some(Tensor::from_vec(dx, xs.shape(), xs.device())?), Some(dw)))
        })
    }
}

#[cfg(test)]
mod tests;
