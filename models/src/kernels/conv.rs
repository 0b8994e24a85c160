//! Convolution of NHWC images: which algorithm computes what.
//!
//! What that means for the rounding error, as the norm of the difference from f64 over the norm, for 3×3 convolutions
//! of 256 to 64 channels, 8×8 pixels, uniform values (no instruction set is off by more; a test sees to it):
//!
//! | algorithm | result | input gradient | weight gradient |
//! |---|---|---|---|
//! | F(4×4, 3×3), stride 1 | 9.5e-7 | 9.0e-7 | 6.2e-7 |
//! | its nested relative, stride 2 | 8.0e-7 | 8.0e-7 | 4.0e-7 |
//! | direct, stride 1 | 4.2e-7 | 1.7e-7 | 1.3e-7 |
//! | direct, stride 2 | 4.2e-7 | 1.7e-7 | 1.2e-7 |
//!
//! That is of four images. Of so many that several chunks of them share the points of the weights a sum runs over all
//! channels at once, and the two results are off by about twice as much.
//!
//! In bf16 direct products are off by 2.7e-3, with the result rounded too, and those of minimal filtering by 1.2e-2.
//!
//! `GRADWIRE_KERNELS=precise` computes everything directly.

use candle_core::{Result, Tensor};

use super::conv_sizes::Sizes;
use super::element::Element;
use super::maps::{Backward, Maps, Slot};
use super::max_pool::{self, Pooled};
use super::memory::{Scratch, Target};
use super::moments::Moments;
use super::operand::with_values;
use super::profile::{Timed, timed};
use super::values::Values;
use super::{Native, direct, lines, winograd};

/// Whether passes over lines of words compute the result and the input gradient: of few channels they are faster than
/// minimal filtering in bf16 (see the table in `docs/design/kernels.md`).
fn lines(sizes: &Sizes, native: Native) -> bool {
    native.isa.bf16().is_some()
        && (sizes.kernel, sizes.padding, sizes.stride) == ((3, 3), 1, 1)
        && sizes.inputs.min(sizes.outputs) >= 12
        && (native.precise || sizes.inputs.max(sizes.outputs) <= 16)
}

/// Whether minimal filtering computes it: it must apply, and there must be enough channels for the transforms to cost less
/// than they save.
fn minimal(sizes: &Sizes, native: Native) -> bool {
    !native.precise
        && sizes.kernel == (3, 3)
        && sizes.padding == 1
        && sizes.stride <= 2
        && sizes.inputs.min(sizes.outputs) >= 12
}

/// The result of the convolution of `xs` with `weight`: writes all of `ys`, and sums its moments while it is in the
/// cache, for the batch norm that follows in every network here.
pub(crate) fn forward<E: Element>(
    native: Native,
    sizes: &Sizes,
    xs: &Values<E>,
    weight: &[f32],
    ys: &mut [E],
) -> Moments {
    assert_eq!((xs.len(), weight.len()), (sizes.input_len(), sizes.weight_len()));
    assert_eq!(ys.len(), sizes.output_len());
    if lines(sizes, native) {
        lines::forward(native.isa, sizes, xs, weight, ys)
    } else if minimal(sizes, native) {
        winograd::forward(native.isa, sizes, xs, weight, ys)
    } else {
        direct::forward(native.isa, sizes, xs.whole(), weight, ys);
        Moments::on_all_threads(native.isa, ys, sizes.outputs)
    }
}

/// The gradient of the input from that of the result.
pub(crate) fn input_gradient<E: Element>(
    native: Native,
    sizes: &Sizes,
    weight: &[f32],
    dy: &Values<E>,
    dx: Target<E>,
) {
    assert_eq!((dy.len(), weight.len()), (sizes.output_len(), sizes.weight_len()));
    assert_eq!(dx.len(), sizes.input_len());
    if lines(sizes, native) {
        lines::input_gradient(native.isa, sizes, weight, dy, dx);
    } else if minimal(sizes, native) {
        winograd::input_gradient(native.isa, sizes, weight, dy, dx);
    } else {
        direct::input_gradient(native.isa, sizes, weight, dy.whole(), dx);
    }
}

/// The gradient of the weight from that of the result: writes all of `dw`.
pub(crate) fn weight_gradient<E: Element>(
    native: Native,
    sizes: &Sizes,
    xs: &Values<E>,
    dy: &Values<E>,
    dw: &mut [f32],
) {
    assert_eq!((xs.len(), dy.len()), (sizes.input_len(), sizes.output_len()));
    assert_eq!(dw.len(), sizes.weight_len());
    if minimal(sizes, native) {
        winograd::weight_gradient(native.isa, sizes, xs, dy, dw);
    } else {
        direct::weight_gradient(native.isa, sizes, xs.whole(), dy.whole(), dw);
    }
}

/// See [`ops::conv2d`](crate::ops::conv2d).
pub(crate) fn conv2d<E: Element>(
    xs: &Maps<E>,
    weight: &Tensor,
    stride: usize,
    padding: usize,
    input_gradient: bool,
) -> Result<Maps<E>> {
    let sizes = Sizes::new(xs.shape.into(), weight.dims4()?, stride, padding)?;
    let values = xs.values();
    let mut ys = Scratch::of(sizes.output_len());
    let moments = with_values(weight, |weight| {
        let run = || forward(xs.native, &sizes, &values, weight, &mut ys);
        Ok(timed(Timed::Convolution, sizes.products(), run))
    })?;
    let shape = [sizes.batch, sizes.out_height(), sizes.out_width(), sizes.outputs];
    let from = if input_gradient { xs.clone() } else { xs.detached() };
    let ys = from.derive(Some(weight), None, shape, ys, || Conv {
        native: xs.native,
        sizes,
        xs: values,
        gradient: input_gradient.then(|| xs.gradient()),
    })?;
    Ok(ys.with_moments(moments))
}

/// See [`ops::conv2d_max_pool`](crate::ops::conv2d_max_pool).
pub(crate) fn conv2d_max_pool<E: Element>(
    xs: &Maps<E>,
    weight: &Tensor,
    padding: usize,
    window: usize,
) -> Result<Maps<E>> {
    let native = xs.native;
    let sizes = Sizes::new(xs.shape.into(), weight.dims4()?, 1, padding)?;
    if !minimal(&sizes, native) || window != winograd::pooled::WINDOW {
        return max_pool::max_pool(&conv2d(xs, weight, 1, padding, true)?, window);
    }
    let shape = [sizes.batch, sizes.out_height(), sizes.out_width(), sizes.outputs];
    let of = max_pool::PoolSizes::new(shape, window);
    let (mut ys, mut winners) = Pooled::room(native.isa, of, sizes.batch);
    let values = xs.values();
    with_values(weight, |weight| {
        timed(Timed::Convolution, sizes.products(), || {
            winograd::pooled::forward(native.isa, &sizes, &values, weight, &mut ys, &mut winners);
        });
        Ok(())
    })?;
    let pooled = Pooled::new(native.isa, of, sizes.batch, winners);
    xs.derive(Some(weight), None, pooled.shape(), ys, || PooledConv {
        conv: Conv { native, sizes, xs: values, gradient: Some(xs.gradient()) },
        pooled,
    })
}

/// What the backward pass of a convolution with pooling needs.
struct PooledConv<E: Element> {
    conv: Conv<E>,
    pooled: Pooled,
}

impl<E: Element> Backward<E> for PooledConv<E> {
    const NAME: &'static str = "conv2d_max_pool";

    fn backward(&self, dy: Values<E>, weight: &[f32], dw: &mut [f32]) -> Result<()> {
        self.conv.backward(self.pooled.gradient(dy), weight, dw)
    }
}

/// What the backward pass of a convolution needs.
struct Conv<E: Element> {
    native: Native,
    sizes: Sizes,
    xs: Values<E>,
    /// Where the gradient of the input goes, if anywhere.
    gradient: Option<Slot<E>>,
}

impl<E: Element> Backward<E> for Conv<E> {
    const NAME: &'static str = "conv2d";

    fn backward(&self, dy: Values<E>, weight: &[f32], dw: &mut [f32]) -> Result<()> {
        let Self { native, sizes, xs, gradient } = self;
        timed(Timed::ConvolutionWeight, sizes.products(), || {
            weight_gradient(*native, sizes, xs, &dy, dw);
        });
        if let Some(gradient) = gradient {
            gradient.receive(sizes.input_len(), |dx| {
                timed(Timed::ConvolutionInput, sizes.products(), || {
                    input_gradient(*native, sizes, weight, &dy, dx);
                });
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
