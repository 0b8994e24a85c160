//! Layer normalisation of rows, forward and backward.
//!
//! What remains of a row for the way back are its mean and the inverse of its deviation: the normalised row is computed
//! again from these, so that no memory is held for it.

use candle_core::{Result, Shape, Tensor};

use super::handover::copied_gradient;
use super::memory::Scratch;
use super::operand::{Operand, borrow};
use super::parallel;
use super::profile::{Timed, timed};
use super::simd::{Isa, Kernel, Simd};
use crate::kernels::custom_op::{Backprop, CustomOp, Saved, apply};
use crate::parameters::LAYER_NORM_EPSILON;

/// Values that each row keeps: its mean and one over its deviation.
pub(super) const KEPT: usize = 2;

/// Rows that one job takes.
const ROWS: usize = 128;

/// See [`ops::layer_norm`](crate::ops::layer_norm).
pub(crate) fn layer_norm(isa: Isa, xs: &Tensor, gamma: &Tensor, beta: &Tensor) -> Result<Tensor> {
    let op = LayerNorm { isa, kept: Saved::nothing() };
    timed(Timed::LayerNorm, 0, || apply(op, [xs, gamma, beta]))
}

struct LayerNorm {
    isa: Isa,
    /// See [`KEPT`], from the forward pass.
    kept: Saved<Scratch>,
}

impl CustomOp<3> for LayerNorm {
    const NAME: &'static str = "layer-norm";

    fn forward(&self, [xs, gamma, beta]: [Operand; 3]) -> Result<(Vec<f32>, Shape)> {
        let shape = xs.shape().clone();
        let (xs, gamma, beta) = (xs.values()?, gamma.values()?, beta.values()?);
        let dim = gamma.len();
        let mut kept = Scratch::new(xs.len() / dim * KEPT);
        let mut ys = vec![0.0; xs.len()];
        let outputs = ys.chunks_mut(ROWS * dim).zip(kept.chunks_mut(ROWS * KEPT));
        let jobs = xs.chunks(ROWS * dim).zip(outputs).collect();
        parallel::each(jobs, |(xs, (ys, kept))| {
            self.isa.run(NormaliseRows { xs, gamma, beta, kept, ys });
        });
        self.kept.set(kept);
        Ok((ys, shape))
    }

    fn backward(&self, [xs, gamma, beta]: [&Tensor; 3], _: &Tensor, dys: &Tensor) -> Backprop<3> {
        timed(Timed::LayerNormBackward, 0, || {
            let (dim, kept) = (gamma.elem_count(), self.kept.get());
            let mut dxs = vec![0.0; xs.elem_count()];
            // The sums of each job, added up in the order of the rows: no bit depends on the number of threads.
            let jobs = dxs.len().div_ceil(ROWS * dim);
            let mut sums = Scratch::zeroed(jobs * 2 * dim);
            let (values, scale, dys) = (borrow(xs)?, borrow(gamma)?, borrow(dys)?);
            let inputs = values.chunks(ROWS * dim).zip(dys.chunks(ROWS * dim));
            let outputs = dxs.chunks_mut(ROWS * dim).zip(sums.chunks_mut(2 * dim));
            let jobs = inputs.zip(kept.chunks(ROWS * KEPT)).zip(outputs).collect();
            parallel::each(jobs, |(((xs, dys), kept), (dxs, sums))| {
                let (dgamma, dbeta) = sums.split_at_mut(dim);
                self.isa.run(LayerNormBackward {
                    xs,
                    gamma: &scale,
                    kept,
                    dys,
                    dxs,
                    dgamma,
                    dbeta,
                });
            });
            let (first, others) = sums.split_at_mut(2 * dim);
            for sums in others.chunks_exact(2 * dim) {
                first.iter_mut().zip(sums).for_each(|(sum, x)| *sum += x);
            }
            let (dgamma, dbeta) = first.split_at(dim);
            let dxs = Tensor::from_vec(dxs, xs.shape(), xs.device())?;
            Ok([Some(dxs), copied_gradient(gamma, dgamma)?, copied_gradient(beta, dbeta)?])
        })
    }
}

/// The sum over `xs` of what `vector` says of whole vectors and `scalar` of the elements left over.
#[inline(always)]
pub(super) fn sum<S: Simd, const N: usize>(
    s: S,
    xs: [&[f32]; N],
    vector: impl Fn([S::V; N]) -> S::V,
    scalar: impl Fn([f32; N]) -> f32,
) -> f32 {
    let len = xs[0].len();
    let whole = len / S::LANES * S::LANES;
    let mut sums = s.zero();
    for at in (0..whole).step_by(S::LANES) {
        sums = s.add(sums, vector(xs.map(|xs| s.load(&xs[at..]))));
    }
    let left = (whole..len).fold(0.0, |sum, at| sum + scalar(xs.map(|xs| xs[at])));
    s.sum(sums) + left
}

/// The rows of `xs` normalised, and what they [keep](KEPT). The simple form:
/// `y = (x - mean) / √(variance + ε) · gamma + beta`.
pub(super) struct NormaliseRows<'a> {
    pub xs: &'a [f32],
    pub gamma: &'a [f32],
    pub beta: &'a [f32],
    pub kept: &'a mut [f32],
    pub ys: &'a mut [f32],
}

impl Kernel for NormaliseRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let dim = self.gamma.len();
        for (xs, kept) in self.xs.chunks_exact(dim).zip(self.kept.chunks_exact_mut(KEPT)) {
            let mean = sum(s, [xs], |[x]| x, |[x]| x) / dim as f32;
            let means = s.splat(mean);
            let square = |[x]: [S::V; 1]| {
                let centred = s.sub(x, means);
                s.mul(centred, centred)
            };
            let squares = sum(s, [xs], square, |[x]| (x - mean) * (x - mean));
            let deviation = (squares / dim as f32 + LAYER_NORM_EPSILON as f32).sqrt();
            kept.copy_from_slice(&[mean, 1.0 / deviation]);
        }
        let Self { xs, gamma, beta, kept, ys } = self;
        Renormalise { xs, gamma, beta, kept, ys }.run(s);
    }
}

/// The same rows from what they have kept.
pub(super) struct Renormalise<'a> {
    pub xs: &'a [f32],
    pub gamma: &'a [f32],
    pub beta: &'a [f32],
    pub kept: &'a [f32],
    pub ys: &'a mut [f32],
}

impl Kernel for Renormalise<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let dim = self.gamma.len();
        let rows = self.xs.chunks_exact(dim).zip(self.ys.chunks_exact_mut(dim));
        for ((xs, ys), kept) in rows.zip(self.kept.chunks_exact(KEPT)) {
            let (mean, inverse) = (kept[0], kept[1]);
            let parameters = self.gamma.iter().zip(self.beta);
            for ((y, x), (gamma, beta)) in ys.iter_mut().zip(xs).zip(parameters) {
                *y = (x - mean) * inverse * gamma + beta;
            }
        }
    }
}

/// The gradients, each added to what is there.
///
/// The simple form, with `x̂` the row before `gamma` and `beta`, and `g = dy · gamma`:
/// `dx = (g − mean(g) − x̂ · mean(g · x̂)) / deviation`.
pub(super) struct LayerNormBackward<'a> {
    pub xs: &'a [f32],
    pub gamma: &'a [f32],
    pub kept: &'a [f32],
    pub dys: &'a [f32],
    pub dxs: &'a mut [f32],
    pub dgamma: &'a mut [f32],
    pub dbeta: &'a mut [f32],
}

impl Kernel for LayerNormBackward<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let dim = self.gamma.len();
        let rows = self.xs.chunks_exact(dim).zip(self.dys.chunks_exact(dim));
        let outputs = self.kept.chunks_exact(KEPT).zip(self.dxs.chunks_exact_mut(dim));
        for ((xs, dys), (kept, dxs)) in rows.zip(outputs) {
            let (mean, inverse) = (kept[0], kept[1]);
            let means = s.splat(mean);
            let all = sum(s, [dys, self.gamma], |[dy, g]| s.mul(dy, g), |[dy, g]| dy * g);
            let along = sum(
                s,
                [xs, dys, self.gamma],
                |[x, dy, g]| s.mul(s.mul(s.sub(x, means), dy), g),
                |[x, dy, g]| (x - mean) * dy * g,
            );
            let (all, along) = (all / dim as f32, along * inverse / dim as f32);
            let sums = self.dgamma.iter_mut().zip(&mut *self.dbeta);
            let parameters = sums.zip(self.gamma);
            for (((dx, x), dy), ((dgamma, dbeta), gamma)) in
                dxs.iter_mut().zip(xs).zip(dys).zip(parameters)
            {
                let normal = (x - mean) * inverse;
                *dx += (dy * gamma - all - normal * along) * inverse;
                *dgamma += dy * normal;
                *dbeta += dy;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::kernels::testing::{flat, wave};

    #[test]
    fn a_row_is_centred_and_scaled_and_one_without_spread_is_its_beta() {
        let gamma = Tensor::new(&[1f32; 4], &Device::Cpu).unwrap();
        let beta = Tensor::new(&[0f32, 0.0, 0.0, 1.0], &Device::Cpu).unwrap();
        let xs = Tensor::new(&[[1f32, 3.0, 1.0, 3.0], [7.0; 4]], &Device::Cpu).unwrap();
        for isa in Isa::available() {
            let ys = flat(&layer_norm(isa, &xs, &gamma, &beta).unwrap());
            let expected = [-1.0, 1.0, -1.0, 2.0, 0.0, 0.0, 0.0, 1.0];
            for (y, expected) in ys.iter().zip(expected) {
                assert!((y - expected).abs() < 1e-5, "{isa}: {ys:?}");
            }
        }
    }

    #[test]
    fn a_value_that_is_no_number_shows_in_its_row_alone() {
        let (gamma, beta) = (wave(&[19], 0.7), wave(&[19], 0.9));
        for value in [f32::NAN, f32::INFINITY] {
            let mut xs = flat(&wave(&[3, 19], 0.3));
            xs[19 + 18] = value;
            let xs = Tensor::from_vec(xs, (3, 19), &Device::Cpu).unwrap();
            for isa in Isa::available() {
                let ys = flat(&layer_norm(isa, &xs, &gamma, &beta).unwrap());
                assert!(ys.iter().enumerate().all(|(i, y)| y.is_nan() == (i / 19 == 1)), "{isa}");
            }
        }
    }
}
