//! Convolution as a matrix product: its windows are laid out as the rows of a matrix.
//!
//! The windows of a 3×3 convolution take nine times the memory of its input. They live for one product only: the
//! backward pass lays them out again, which is one pass over them more than keeping them would take.

use candle_core::{Result, Shape, Tensor};

#[cfg(feature = "cuda")]
use super::launch::{Array, Gpu, View};
use super::operation::{FusedOperation, apply};
use crate::kernels::conv_sizes::Sizes;
use crate::kernels::custom_op::Backprop;

/// The convolution of `xs [B, H, W, I]` with `weight [KH · KW · I, O]`: `[B, H', W', O]`. The gradient of the weight flows
/// back, and with `input_gradient` that of `xs`.
pub(super) fn convolve(
    xs: &Tensor,
    weight: &Tensor,
    sizes: Sizes,
    input_gradient: bool,
) -> Result<Tensor> {
    apply(Convolve { sizes, input_gradient }, [xs, weight])
}

/// See [`convolve`].
struct Convolve {
    sizes: Sizes,
    input_gradient: bool,
}

impl Convolve {
    /// Whether the windows of an image are its pixels.
    fn is_one_pixel(&self) -> bool {
        self.sizes.kernel == (1, 1) && self.sizes.stride == 1 && self.sizes.padding == 0
    }
}

impl FusedOperation<2> for Convolve {
    const NAME: &'static str = "convolution";

    fn shape(&self) -> Shape {
        let sizes = &self.sizes;
        (sizes.batch, sizes.out_height(), sizes.out_width(), sizes.outputs).into()
    }

    fn cpu(&self, operands: &[&[f32]]) -> Vec<f32> {
        let (windows, weight) = (Windows(self.sizes).cpu(operands), operands[1]);
        let (rows, taps) = rows(&self.sizes);
        let product = |row: usize, output: usize| {
            let each =
                |tap: usize| windows[row * taps + tap] * weight[tap * self.sizes.outputs + output];
            (0..taps).map(each).sum()
        };
        let outputs = self.sizes.outputs;
        (0..rows * outputs).map(|place| product(place / outputs, place % outputs)).collect()
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &Gpu, operands: &[View]) -> Result<Array> {
        let (xs, weight) = (&operands[0], &operands[1]);
        let (rows, taps) = rows(&self.sizes);
        let sizes = (rows, taps, self.sizes.outputs);
        if self.is_one_pixel() {
            return gpu.product(xs, weight, sizes);
        }
        let windows = gpu.windows(&self.sizes, xs)?;
        gpu.product(&windows.as_view(), weight, sizes)
    }

    fn gradients(&self, [xs, weight]: [Tensor; 2], _: Tensor, gradient: Tensor) -> Backprop<2> {
        let gradient = gradient.contiguous()?.reshape(((), self.sizes.outputs))?;
        let windows = if self.is_one_pixel() {
            xs.contiguous()?.reshape(((), self.sizes.inputs))?
        } else {
            apply(Windows(self.sizes), [&xs])?
        };
        let of_weight = windows.t()?.matmul(&gradient)?;
        drop(windows);
        if !self.input_gradient {
            return Ok([None, Some(of_weight)]);
        }
        let of_windows = gradient.matmul(&weight.t()?)?;
        let of_xs = if self.is_one_pixel() {
            of_windows.reshape(xs.shape())?
        } else {
            apply(Fold(self.sizes), [&of_windows])?
        };
        Ok([Some(of_xs), Some(of_weight)])
    }
}

/// How many windows there are, and the elements of each.
fn rows(sizes: &Sizes) -> (usize, usize) {
    let windows = sizes.batch * sizes.out_height() * sizes.out_width();
    (windows, sizes.kernel.0 * sizes.kernel.1 * sizes.inputs)
}

/// Calls `visit` with the place of each pixel's first channel in the rows of windows, and in the images, row by row; places
/// outside of the image are left out.
fn each_pixel(sizes: &Sizes, mut visit: impl FnMut(usize, usize)) {
    let (out_height, out_width) = (sizes.out_height(), sizes.out_width());
    let mut place = 0;
    for image in 0..sizes.batch {
        for (out_y, out_x) in (0..out_height).flat_map(|y| (0..out_width).map(move |x| (y, x))) {
            for (row, column) in
                (0..sizes.kernel.0).flat_map(|y| (0..sizes.kernel.1).map(move |x| (y, x)))
            {
                let y = (out_y * sizes.stride + row).checked_sub(sizes.padding);
                let x = (out_x * sizes.stride + column).checked_sub(sizes.padding);
                if let (Some(y), Some(x)) = (y, x)
                    && y < sizes.height
                    && x < sizes.width
                {
                    visit(place, ((image * sizes.height + y) * sizes.width + x) * sizes.inputs);
                }
                place += sizes.inputs;
            }
        }
    }
}

/// The windows of `xs [B, H, W, I]`: `[B · H' · W', KH · KW · I]`, zeros outside of the image.
struct Windows(Sizes);

impl FusedOperation<1> for Windows {
    const NAME: &'static str = "windows";

    fn shape(&self) -> Shape {
        rows(&self.0).into()
    }

    fn cpu(&self, operands: &[&[f32]]) -> Vec<f32> {
        let (xs, channels) = (operands[0], self.0.inputs);
        let mut to = vec![0.; self.shape().elem_count()];
        each_pixel(&self.0, |window, image| {
            to[window..][..channels].copy_from_slice(&xs[image..][..channels]);
        });
        to
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &Gpu, operands: &[View]) -> Result<Array> {
        gpu.windows(&self.0, &operands[0])
    }
}

/// The gradient of [`Windows`]: the sum of each pixel's places in all windows.
struct Fold(Sizes);

impl FusedOperation<1> for Fold {
    const NAME: &'static str = "fold";

    fn shape(&self) -> Shape {
        (self.0.batch, self.0.height, self.0.width, self.0.inputs).into()
    }

    fn cpu(&self, operands: &[&[f32]]) -> Vec<f32> {
        let (windows, channels) = (operands[0], self.0.inputs);
        let mut to = vec![0.; self.shape().elem_count()];
        each_pixel(&self.0, |window, image| {
            let windows = &windows[window..][..channels];
            to[image..][..channels].iter_mut().zip(windows).for_each(|(to, x)| *to += x);
        });
        to
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &Gpu, operands: &[View]) -> Result<Array> {
        gpu.fold(&self.0, &operands[0])
    }
}
