//! Convolution of NHWC images: which algorithm computes what.
//!
//! What that means for the rounding error, as the norm of the difference from f64 over the norm, for 3×3 convolutions
//! of 256 to 64 channels, 8×8 pixels, uniform values (no instruction set is off by more; a test sees to it):
//!
//! | algorithm | result | input gradient | weight gradient |
//! |---|---|---|---|
//! | F(4×4, 3×3), stride 1 | 2.1e-6 | 1.9e-6 | 1.3e-6 |
//! | its nested relative, stride 2 | 8.0e-7 | 8.0e-7 | 4.0e-7 |
//! | direct, stride 1 | 4.2e-7 | 3.9e-7 | 1.3e-7 |
//! | direct, stride 2 | 4.2e-7 | 2.4e-7 | 1.2e-7 |
//!
//! That is of four images. Of so many that several chunks of them share the points of the weights a sum runs over all
//! channels at once, and the two results are off by 3.6e-6 and 1.5e-6.
//!
//! `GRADWIRE_KERNELS=precise` computes everything directly.

use candle_core::{Result, Tensor};

use super::batch_norm::Moments;
use super::maps::{Backward, Maps, Slot};
use super::memory::{Scratch, Target};
use super::operand::with_f32s;
use super::profile::{Kind, timed};
use super::values::{Source, Values};
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

    /// Products of a value and a weight in the definition of the result, those with padding included; either gradient
    /// has as many.
    fn products(&self) -> usize {
        self.output_len() * self.inputs * self.kernel.0 * self.kernel.1
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

/// The result of the convolution of `xs` with `weight`: writes all of `ys`, and sums its moments while it is in the
/// cache, for the batch norm that follows in every network here.
pub(crate) fn forward(
    native: Native,
    sizes: &Sizes,
    xs: Source,
    weight: &[f32],
    ys: &mut [f32],
) -> Moments {
    assert_eq!((xs.len(), weight.len()), (sizes.input_len(), sizes.weight_len()));
    assert_eq!(ys.len(), sizes.output_len());
    if sizes.minimal(native) {
        winograd::forward(native.isa, sizes, xs, weight, ys)
    } else {
        direct::forward(native.isa, sizes, xs.whole(), weight, ys);
        Moments::of(native.isa, ys, sizes.outputs)
    }
}

/// The gradient of the input from that of the result.
pub(crate) fn input_gradient(
    native: Native,
    sizes: &Sizes,
    weight: &[f32],
    dy: Source,
    dx: Target,
) {
    assert_eq!((dy.len(), weight.len()), (sizes.output_len(), sizes.weight_len()));
    assert_eq!(dx.len(), sizes.input_len());
    if sizes.minimal(native) {
        winograd::input_gradient(native.isa, sizes, weight, dy, dx);
    } else {
        direct::input_gradient(native.isa, sizes, weight, dy.whole(), dx);
    }
}

/// The gradient of the weight from that of the result: writes all of `dw`.
pub(crate) fn weight_gradient(
    native: Native,
    sizes: &Sizes,
    xs: Source,
    dy: Source,
    dw: &mut [f32],
) {
    assert_eq!((xs.len(), dy.len()), (sizes.input_len(), sizes.output_len()));
    assert_eq!(dw.len(), sizes.weight_len());
    if sizes.minimal(native) {
        winograd::weight_gradient(native.isa, sizes, xs, dy, dw);
    } else {
        direct::weight_gradient(native.isa, sizes, xs.whole(), dy.whole(), dw);
    }
}

/// See [`ops::conv2d`](crate::ops::conv2d).
pub(crate) fn conv2d(
    xs: &Maps,
    weight: &Tensor,
    stride: usize,
    padding: usize,
    input_gradient: bool,
) -> Result<Maps> {
    let [batch, height, width, inputs] = xs.shape;
    let (outputs, _, rows, columns) = weight.dims4()?;
    let kernel = (rows, columns);
    let sizes = Sizes { batch, height, width, inputs, outputs, kernel, stride, padding };
    let values = xs.values();
    let mut ys = Scratch::new(sizes.output_len());
    let moments = with_f32s(weight, |weight| {
        let run = || forward(xs.native, &sizes, (&values).into(), weight, &mut ys);
        Ok(timed(Kind::Convolution, sizes.products(), run))
    })?;
    let shape = [batch, sizes.out_height(), sizes.out_width(), outputs];
    let from = if input_gradient { xs.clone() } else { xs.detached() };
    let ys = from.derive(Some(weight), None, shape, ys, || Conv {
        native: xs.native,
        sizes,
        xs: values,
        gradient: input_gradient.then(|| xs.gradient()),
    })?;
    Ok(ys.with_moments(moments))
}

/// What the backward pass of a convolution needs.
struct Conv {
    native: Native,
    sizes: Sizes,
    xs: Values,
    /// Where the gradient of the input goes, if anywhere.
    gradient: Option<Slot>,
}

impl Backward for Conv {
    const NAME: &'static str = "conv2d";

    fn backward(&self, dy: Values, weight: &[f32], dw: &mut [f32]) -> Result<()> {
        let Self { native, sizes, xs, gradient } = self;
        timed(Kind::ConvolutionWeight, sizes.products(), || {
            weight_gradient(*native, sizes, xs.into(), (&dy).into(), dw);
        });
        if let Some(gradient) = gradient {
            gradient.receive(sizes.input_len(), |dx| {
                timed(Kind::ConvolutionInput, sizes.products(), || {
                    input_gradient(*native, sizes, weight, (&dy).into(), dx);
                });
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
