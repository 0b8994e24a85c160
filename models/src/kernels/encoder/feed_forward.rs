//! The middle of a feed-forward network: GELU of each value.

use super::block::Middle;
use crate::kernels::gelu::{Forward, GeluBackward};
use crate::kernels::simd::Isa;
use crate::parameters::Gelu;

/// GELU of rows of so many values.
pub(super) struct Activation {
    isa: Isa,
    width: usize,
    form: Gelu,
}

impl Activation {
    pub(super) fn new(isa: Isa, width: usize, form: Gelu) -> Self {
        Self { isa, width, form }
    }
}

impl Middle for Activation {
    const NAME: &'static str = "feed-forward";

    fn takes(&self) -> usize {
        self.width
    }

    fn gives(&self) -> usize {
        self.width
    }

    fn keeps(&self) -> usize {
        0
    }

    fn products(&self, _rows: usize) -> usize {
        0
    }

    fn forward(&self, xs: &[f32], _kept: &mut [f32], ys: &mut [f32]) {
        self.isa.run(Forward { form: self.form, xs, ys });
    }

    fn backward(&self, xs: &[f32], _kept: &[f32], dys: &[f32], dxs: &mut [f32]) {
        self.isa.run(GeluBackward { form: self.form, xs, dy: dys, dx: dxs });
    }
}
