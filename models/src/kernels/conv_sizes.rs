//! The sizes of a convolution.

use candle_core::{Result, bail};

use super::counts;

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
    /// Those of a convolution of images `[batch, height, width, channels]` with a weight `[outputs, inputs, rows,
    /// columns]`. None of the numbers of elements that follow from them wraps.
    ///
    /// # Errors
    /// Channels that differ, no window that fits, and sizes of which one is 0 or whose product no memory has.
    pub(crate) fn new(
        (batch, height, width, inputs): (usize, usize, usize, usize),
        (outputs, expected, rows, columns): (usize, usize, usize, usize),
        stride: usize,
        padding: usize,
    ) -> Result<Self> {
        let (images, weight) = ([batch, height, width, inputs], [outputs, expected, rows, columns]);
        if inputs != expected {
            bail!("conv2d: the input has {inputs} channels, the weight expects {expected}");
        }
        for (what, sizes) in [("input", images), ("weight", weight)] {
            if sizes.contains(&0) {
                bail!("conv2d: the {what} is {sizes:?}: it has no elements");
            }
        }
        let padded = |size: usize| padding.checked_mul(2)?.checked_add(size);
        let (Some(tall), Some(wide)) = (padded(height), padded(width)) else {
            bail!("conv2d: a padding of {padding} is more than can be counted");
        };
        if stride == 0 || tall < rows || wide < columns {
            bail!(
                "conv2d: no {rows}x{columns} window of stride {stride} fits a {height}x{width} input padded by {padding}"
            );
        }
        let kernel = (rows, columns);
        let sizes = Self { batch, height, width, inputs, outputs, kernel, stride, padding };
        let (out_height, out_width) = (sizes.out_height(), sizes.out_width());
        let counted = [
            images,
            weight,
            [batch, tall, wide, inputs],
            [batch, out_height, out_width, outputs],
            // The windows of one row of the result, and those of a row of the input's gradient.
            [out_width, rows, columns, inputs],
            [width, rows, columns, outputs],
        ];
        if counted.iter().any(|sizes| counts::elements(sizes).is_none()) {
            bail!(
                "conv2d: an input {images:?} padded by {padding}, a weight {weight:?} and a stride of {stride} make more elements than any memory has"
            );
        }
        Ok(sizes)
    }

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
    pub(crate) fn products(&self) -> usize {
        let taps = [self.inputs, self.kernel.0, self.kernel.1];
        taps.into_iter().fold(self.output_len(), usize::saturating_mul)
    }
}
