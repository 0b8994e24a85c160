//! The windows of a convolution as rows of a matrix, and back.

use candle_core::{Result, Shape, Tensor};

#[cfg(feature = "cuda")]
use super::launch::{Array, Gpu, View};
use super::operation::{Operation, apply};
use crate::kernels::conv::Sizes;

/// The windows of `xs [B, H, W, I]`: `[B · H' · W', KH · KW · I]`, zeros outside of the image. Its gradient flows back.
pub(super) fn windows(xs: &Tensor, sizes: Sizes) -> Result<Tensor> {
    apply(Windows(sizes), &[xs])
}

/// Rows of windows.
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

/// Lays windows out.
struct Windows(Sizes);

impl Operation for Windows {
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
        gpu.windows("windows", &self.0, &operands[0], self.shape().elem_count())
    }

    fn gradients(&self, _: &[Tensor], _: &Tensor, gradient: &Tensor) -> Result<Vec<Tensor>> {
        Ok(vec![apply(Fold(self.0), &[gradient])?])
    }
}

/// Adds each pixel's places in all windows.
struct Fold(Sizes);

impl Operation for Fold {
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
        gpu.windows("fold", &self.0, &operands[0], self.shape().elem_count())
    }
}
