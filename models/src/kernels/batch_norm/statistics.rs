//! The mean and the variance that normalise, and what they make of γ and β.

use candle_core::{Result, Tensor, Var};

use crate::kernels::moments::Moments;
use crate::kernels::operand::with_values;
use crate::parameters::Running;

/// The mean and the variance that normalise what comes in, before any shift, per channel.
pub(super) struct Statistics {
    pub mean: Vec<f64>,
    /// Biased.
    pub variance: Vec<f64>,
    /// Added to the variance.
    pub epsilon: f64,
}

impl Statistics {
    /// Those of a batch.
    pub(super) fn of_batch(moments: &Moments, epsilon: f64) -> Self {
        let (mean, variance) = moments.mean_and_variance();
        Self { mean, variance, epsilon }
    }

    /// Those that were tracked, of shifted pixels.
    pub(super) fn running(shift: Option<&Tensor>, running: &Running) -> Result<Self> {
        let mean = widened(&running.mean)?.into_iter();
        let mean = mean.zip(shifts(shift, running.mean.elem_count())?);
        let mean = mean.map(|(mean, shift)| mean - shift).collect();
        Ok(Self { mean, variance: widened(&running.variance)?, epsilon: running.epsilon })
    }

    /// Those that change nothing.
    pub(super) fn neutral(channels: usize) -> Self {
        Self { mean: vec![0.0; channels], variance: vec![1.0; channels], epsilon: 0.0 }
    }

    /// Moves the running statistics towards these, of `count` pixels and shifted.
    pub(super) fn track(
        &self,
        count: f64,
        shift: Option<&Tensor>,
        running: &Running,
    ) -> Result<()> {
        let weight = running.count()?;
        let moved = |running: &Var, batch: &[f64], unbias: f64| -> Result<()> {
            let moved: Vec<f32> = with_values(running, |running| {
                let pairs = running.iter().zip(batch);
                let towards = |old: f32, new: f64| {
                    (f64::from(old) * (1. - weight) + new * unbias * weight) as f32
                };
                Ok(pairs.map(|(old, new)| towards(*old, *new)).collect())
            })?;
            running.set(&Tensor::from_vec(moved, running.shape(), running.device())?)
        };
        let mean = self.mean.iter().zip(shifts(shift, self.mean.len())?);
        let mean: Vec<f64> = mean.map(|(mean, shift)| mean + shift).collect();
        moved(&running.mean, &mean, 1.)?;
        moved(&running.variance, &self.variance, count / (count - 1.))
    }

    pub(super) fn inverse_deviation(&self) -> Vec<f64> {
        self.variance.iter().map(|variance| (variance + self.epsilon).sqrt().recip()).collect()
    }

    /// The factor and the summand that normalise and then apply γ, of ones if it is empty, and β.
    pub(super) fn affine(&self, gamma: &[f32], beta: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let gamma = gamma.iter().copied().chain(std::iter::repeat(1.0)).map(f64::from);
        let factors = self.inverse_deviation().into_iter().zip(gamma);
        factors
            .zip(self.mean.iter().zip(beta))
            .map(|((inverse, gamma), (mean, beta))| {
                let scale = inverse * gamma;
                (scale as f32, (f64::from(*beta) - mean * scale) as f32)
            })
            .unzip()
    }
}

fn widened(xs: &Tensor) -> Result<Vec<f64>> {
    with_values(xs, |xs: &[f32]| Ok(xs.iter().map(|x| f64::from(*x)).collect()))
}

/// The shift of each of `channels` channels.
fn shifts(shift: Option<&Tensor>, channels: usize) -> Result<Vec<f64>> {
    shift.map_or_else(|| Ok(vec![0.0; channels]), widened)
}
