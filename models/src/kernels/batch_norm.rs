//! Batch normalisation with the addition of a residual and ReLU in one operation: one pass over memory forward, where
//! the convolution before it has summed the [moments](Moments) of what it wrote, else two; and two backward.
//!
//! A shift before it costs no pass at all: the batch's own mean takes it out again, so that only the running mean ever
//! sees it, and its gradient while training is exactly zero.
//!
//! Sums run in f32 over a block of pixels, then in f64: over the blocks of a span, then over the spans. The division
//! does not depend on the number of threads, so neither does any bit of the result.

mod moments;
mod passes;
mod sums;

use std::sync::Arc;

use candle_core::{Result, Tensor, Var};

pub(crate) use self::moments::Moments;
use self::passes::{BLOCK, Backward, Each, Gate, Normalise};
use self::sums::{Gradients, Sums};
use super::handover::Parts;
use super::maps::{self, Maps, Slot};
use super::memory::{Scratch, Target};
use super::operand::with_f32s;
use super::parallel::each;
use super::profile::{Kind, timed};
use super::simd::Isa;
use crate::ops::{BATCH_NORM_EPSILON, BATCH_NORM_MOMENTUM};

/// Elements of a span, about: what one thread takes at a time.
const SPAN: usize = 128 << 10;

/// Pixels of a span of images with so many channels: whole blocks.
fn span(channels: usize) -> usize {
    (SPAN / channels).max(1).next_multiple_of(BLOCK)
}

/// Spans from the last one to the first: what was written last, by an operation that went forwards, is in the cache
/// still. No bit depends on it: each span is computed for itself, and what is summed of spans is added in their order.
fn backwards<T>(spans: impl DoubleEndedIterator<Item = T>) -> Vec<T> {
    spans.rev().collect()
}

/// See [`ops::batch_norm`](crate::ops::batch_norm).
#[expect(clippy::too_many_arguments, reason = "one fused operation with its whole state")]
pub(crate) fn batch_norm(
    xs: &Maps,
    shift: Option<&Tensor>,
    gamma: &Tensor,
    beta: &Tensor,
    (running_mean, running_var): (&Var, &Var),
    residual: Option<&Maps>,
    relu: bool,
    train: bool,
) -> Result<Maps> {
    let isa = xs.native.isa;
    let channels = gamma.dim(0)?;
    let statistics = if train {
        let own;
        let moments = match xs.moments() {
            Some(moments) => moments,
            None => {
                let sum = || Moments::of(isa, xs.pixels(), channels);
                own = timed(Kind::BatchNorm, 0, sum);
                &own
            }
        };
        let statistics = Statistics::of(moments);
        statistics.track(moments.pixels() as f64, shift, running_mean, running_var)?;
        statistics
    } else {
        Statistics::running(shift, running_mean, running_var)?
    };
    let parts = Parts::new([gamma, beta].into_iter().chain(shift));
    let parameters = parts.operand()?;
    let mut z = Scratch::new(xs.len());
    with_f32s(&parameters, |parameters| {
        let residual = residual.map(Maps::pixels);
        timed(Kind::BatchNorm, 0, || {
            normalise(isa, &statistics, xs.pixels(), parameters, residual, relu, &mut z);
        });
        Ok(())
    })?;
    let z = Arc::new(z);
    xs.derive(Some(&parameters), residual, xs.shape, z.clone(), || BatchNorm {
        isa,
        parts,
        statistics,
        relu,
        train,
        xs: xs.keep(),
        z: (relu && residual.is_some()).then_some(z),
        gradient: xs.gradient(),
        residual: residual.map(Maps::gradient),
    })
}

/// The mean and the variance that normalise what comes in, before any shift, per channel.
struct Statistics {
    mean: Vec<f64>,
    /// Biased.
    variance: Vec<f64>,
}

impl Statistics {
    fn of(moments: &Moments) -> Self {
        let (mean, variance) = moments.mean_and_variance();
        Self { mean, variance }
    }

    /// Those that were tracked, of shifted pixels.
    fn running(shift: Option<&Tensor>, mean: &Var, variance: &Var) -> Result<Self> {
        let mean = widened(mean)?.into_iter().zip(shifts(shift, mean.elem_count())?);
        let mean = mean.map(|(mean, shift)| mean - shift).collect();
        Ok(Self { mean, variance: widened(variance)? })
    }

    /// Moves the running statistics towards these, of `count` pixels and shifted.
    fn track(
        &self,
        count: f64,
        shift: Option<&Tensor>,
        running_mean: &Var,
        running_var: &Var,
    ) -> Result<()> {
        let moved = |running: &Var, batch: &[f64], unbias: f64| -> Result<()> {
            let moved: Vec<f32> = with_f32s(running, |running| {
                let pairs = running.iter().zip(batch);
                let towards = |old: f32, new: f64| {
                    (f64::from(old) * (1. - BATCH_NORM_MOMENTUM)
                        + new * unbias * BATCH_NORM_MOMENTUM) as f32
                };
                Ok(pairs.map(|(old, new)| towards(*old, *new)).collect())
            })?;
            running.set(&Tensor::from_vec(moved, running.shape(), running.device())?)
        };
        let mean = self.mean.iter().zip(shifts(shift, self.mean.len())?);
        let mean: Vec<f64> = mean.map(|(mean, shift)| mean + shift).collect();
        moved(running_mean, &mean, 1.)?;
        moved(running_var, &self.variance, count / (count - 1.))
    }

    fn inverse_deviation(&self) -> Vec<f64> {
        self.variance
            .iter()
            .map(|variance| (variance + BATCH_NORM_EPSILON).sqrt().recip())
            .collect()
    }

    /// The factor and the summand that normalise and then apply γ and β.
    fn affine(&self, gamma: &[f32], beta: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let factors = self
            .inverse_deviation()
            .into_iter()
            .zip(gamma)
            .map(|(inverse, gamma)| inverse * f64::from(*gamma));
        factors
            .zip(self.mean.iter().zip(beta))
            .map(|(scale, (mean, beta))| (scale as f32, (f64::from(*beta) - mean * scale) as f32))
            .unzip()
    }
}

fn widened(xs: &Tensor) -> Result<Vec<f64>> {
    with_f32s(xs, |xs| Ok(xs.iter().map(|x| f64::from(*x)).collect()))
}

/// The shift of each of `channels` channels.
fn shifts(shift: Option<&Tensor>, channels: usize) -> Result<Vec<f64>> {
    shift.map_or_else(|| Ok(vec![0.0; channels]), widened)
}

/// The sums of what `summand` says over all pixels, per channel.
fn sums(isa: Isa, summand: &Gradients, channels: usize) -> [Vec<f64>; 2] {
    let total = summand.xs.len() / channels;
    let span = span(channels);
    let mut spans = vec![0.0; total.div_ceil(span) * 2 * channels];
    each(
        backwards(spans.chunks_exact_mut(2 * channels).enumerate()),
        |(i, to): (usize, &mut [f64])| {
            let (first, to) = (i * span, to.split_at_mut(channels));
            let pixels = span.min(total - first);
            isa.run(Sums { summand: *summand, channels, first, pixels, to: [to.0, to.1] });
        },
    );
    let mut sums = [vec![0.0; channels], vec![0.0; channels]];
    for part in spans.chunks_exact(2 * channels) {
        for (sum, part) in sums.iter_mut().zip(part.chunks_exact(channels)) {
            for (sum, part) in sum.iter_mut().zip(part) {
                *sum += part;
            }
        }
    }
    sums
}

/// The result from the input, under `[γ, β, …]`.
fn normalise(
    isa: Isa,
    statistics: &Statistics,
    xs: &[f32],
    parameters: &[f32],
    residual: Option<&[f32]>,
    relu: bool,
    z: &mut [f32],
) {
    let channels = statistics.mean.len();
    let (gamma, beta) = (&parameters[..channels], &parameters[channels..2 * channels]);
    let (scale, shift) = statistics.affine(gamma, beta);
    let span = span(channels) * channels;
    each(backwards(z.chunks_mut(span).enumerate()), |(i, z): (usize, &mut [f32])| {
        let here = i * span..i * span + z.len();
        let residual = residual.map(|residual| &residual[here.clone()]);
        let (scale, shift) = (&scale[..], &shift[..]);
        let mapping = Normalise { xs: &xs[here], scale, shift, residual, relu, z };
        isa.run(Each { mapping, channels });
    });
}

/// What the backward pass needs.
struct BatchNorm {
    isa: Isa,
    /// γ, β and, where there is one, the shift.
    parts: Parts,
    statistics: Statistics,
    relu: bool,
    /// Whether the statistics came from the input itself, and so depend on it.
    train: bool,
    xs: Arc<Scratch>,
    /// The result, where that alone tells what ReLU let pass.
    z: Option<Arc<Scratch>>,
    gradient: Slot,
    residual: Option<Slot>,
}

impl maps::Backward for BatchNorm {
    const NAME: &'static str = "batch_norm";

    fn gradient(
        &self,
        parameters: &Tensor,
        write: impl FnOnce(&mut [f32]) -> Result<()>,
    ) -> Result<Option<Tensor>> {
        let mut values = vec![0.0; parameters.elem_count()];
        write(&mut values)?;
        self.parts.gradient(parameters, values).map(Some)
    }

    fn backward(&self, mut dz: Scratch, parameters: &[f32], to: &mut [f32]) -> Result<()> {
        timed(Kind::BatchNormBackward, 0, || match &self.residual {
            None => self.run(&mut dz, parameters, None, to),
            Some(residual) => residual.receive(self.xs.len(), |residual| {
                self.run(&mut dz, parameters, Some(residual), to);
            }),
        });
        self.gradient.receive_all(dz);
        Ok(())
    }
}

impl BatchNorm {
    /// Turns the gradient of the result into that of the input, in place; sends `residual` what passes ReLU, and
    /// writes the gradient of the parameters to `gradients`.
    fn run(
        &self,
        gradient: &mut [f32],
        parameters: &[f32],
        residual: Option<Target>,
        gradients: &mut [f32],
    ) {
        let (isa, statistics, xs) = (self.isa, &self.statistics, &self.xs[..]);
        let channels = statistics.mean.len();
        let (gamma, beta) = (&parameters[..channels], &parameters[channels..2 * channels]);
        let (scale, shift) = statistics.affine(gamma, beta);
        let mean: Vec<f32> = statistics.mean.iter().map(|mean| *mean as f32).collect();
        let gate = match (self.relu, &self.z) {
            (false, _) => Gate::Open,
            (true, Some(z)) => Gate::Result(z),
            (true, None) => Gate::Affine { scale: &scale, shift: &shift },
        };
        let [sum, product] =
            sums(isa, &Gradients { xs, dz: gradient, gate, mean: &mean }, channels);

        let count = (xs.len() / channels) as f64;
        let inverse = statistics.inverse_deviation();
        let mut by_input = vec![0.0; channels];
        let mut constant = vec![0.0; channels];
        for c in 0..channels {
            gradients[c] = (product[c] * inverse[c]) as f32;
            gradients[channels + c] = sum[c] as f32;
            let by_gradient = f64::from(gamma[c]) * inverse[c];
            if self.train {
                let slope = -by_gradient * inverse[c] * inverse[c] * product[c] / count;
                by_input[c] = slope as f32;
                constant[c] = (-by_gradient * sum[c] / count - slope * statistics.mean[c]) as f32;
            }
            if let Some(shift) = gradients.get_mut(2 * channels + c) {
                // The batch's own mean takes a shift out again.
                *shift = if self.train { 0.0 } else { (by_gradient * sum[c]) as f32 };
            }
        }

        let span = span(channels) * channels;
        let mut residuals: Vec<Option<Target>> = match residual {
            Some(residual) => residual.chunks(span).map(Some).collect(),
            None => Vec::new(),
        };
        residuals.resize_with(xs.len().div_ceil(span), || None);
        let spans = gradient.chunks_mut(span).zip(residuals).enumerate().collect();
        each(spans, |(i, (gradient, residual)): (usize, (&mut [f32], Option<Target>))| {
            let here = i * span..i * span + gradient.len();
            let gate = match gate {
                Gate::Result(z) => Gate::Result(&z[here.clone()]),
                other => other,
            };
            let mapping = Backward {
                xs: &xs[here],
                gate,
                by_gradient: &scale,
                by_input: &by_input,
                constant: &constant,
                gradient,
                residual,
            };
            isa.run(Each { mapping, channels });
        });
    }
}

#[cfg(test)]
mod tests;
