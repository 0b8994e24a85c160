//! Batch normalisation with the addition of a residual and ReLU in one operation: two passes over memory forward and
//! two backward.
//!
//! Sums run in f32 over a block of pixels, then in f64: over the blocks of a span, then over the spans. The division
//! does not depend on the number of threads, so neither does any bit of the result.

mod passes;

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, Var};

use self::passes::{BLOCK, Backward, Each, Gate, Gradients, Moments, Normalise, Summand, Sums};
use super::memory::{Out, written};
use super::operand::{f32s, with_f32s};
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

/// See [`ops::batch_norm`](crate::ops::batch_norm); `xs` and `residual` are f32 on the CPU.
#[expect(clippy::too_many_arguments, reason = "the signature of the operation it computes")]
pub(crate) fn batch_norm(
    isa: Isa,
    xs: &Tensor,
    gamma: &Tensor,
    beta: &Tensor,
    running_mean: &Var,
    running_var: &Var,
    residual: Option<&Tensor>,
    relu: bool,
    train: bool,
) -> Result<Tensor> {
    let xs = xs.contiguous()?;
    let channels = gamma.dim(0)?;
    let statistics = if train {
        let statistics =
            with_f32s(&xs, |xs| Ok(timed(Kind::BatchNorm, || Statistics::of(isa, xs, channels))))?;
        statistics.track((xs.elem_count() / channels) as f64, running_mean, running_var)?;
        statistics
    } else {
        Statistics::running(running_mean, running_var)?
    };
    let parameters = Tensor::stack(&[gamma, beta], 0)?;
    let op = BatchNorm { isa, statistics, relu, train };
    match residual {
        None => xs.apply_op2(&parameters, op),
        Some(residual) => xs.apply_op3(&parameters, &residual.contiguous()?, op),
    }
}

/// The mean and the variance that normalise, per channel.
struct Statistics {
    mean: Vec<f64>,
    /// Biased.
    variance: Vec<f64>,
}

impl Statistics {
    /// Of all pixels. Deviations are taken from the first pixel, so that a mean far from zero costs no digits.
    fn of(isa: Isa, xs: &[f32], channels: usize) -> Self {
        let pivot = &xs[..channels];
        let count = (xs.len() / channels) as f64;
        let [sum, square] = sums(isa, &Moments { xs, pivot }, channels);
        let mean: Vec<f64> = sum.iter().map(|sum| sum / count).collect();
        let variance = square.iter().zip(&mean).map(|(square, mean)| square / count - mean * mean);
        let variance = variance.map(|variance| variance.max(0.0)).collect();
        let mean = mean.iter().zip(pivot).map(|(mean, pivot)| mean + f64::from(*pivot)).collect();
        Self { mean, variance }
    }

    fn running(mean: &Var, variance: &Var) -> Result<Self> {
        let widened = |xs: &Var| with_f32s(xs, |xs| Ok(xs.iter().map(|x| f64::from(*x)).collect()));
        Ok(Self { mean: widened(mean)?, variance: widened(variance)? })
    }

    /// Moves the running statistics towards these, of `count` pixels.
    fn track(&self, count: f64, running_mean: &Var, running_var: &Var) -> Result<()> {
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
        moved(running_mean, &self.mean, 1.)?;
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

/// The sums of `summand` over all pixels, per channel.
fn sums<T: Summand + Copy + Sync + Send>(isa: Isa, summand: &T, channels: usize) -> [Vec<f64>; 2] {
    let total = summand.len() / channels;
    let span = span(channels);
    let mut spans = vec![0.0; total.div_ceil(span) * 2 * channels];
    each(
        spans.chunks_exact_mut(2 * channels).enumerate().collect(),
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

/// The operation, its statistics known. Its second operand is `[γ, β]`, its third the residual.
struct BatchNorm {
    isa: Isa,
    statistics: Statistics,
    relu: bool,
    /// Whether the statistics came from the input itself, and so depend on it.
    train: bool,
}

impl BatchNorm {
    fn normalise(&self, xs: &[f32], parameters: &[f32], residual: Option<&[f32]>) -> Vec<f32> {
        let channels = self.statistics.mean.len();
        let (gamma, beta) = parameters.split_at(channels);
        let (scale, shift) = self.statistics.affine(gamma, beta);
        let span = span(channels) * channels;
        // SAFETY: the spans cover all elements, and each writes all of its own.
        unsafe {
            written(xs.len(), |out| {
                each(out.chunks(span), |(first, z)| {
                    let here = first..first + z.len();
                    let residual = residual.map(|residual| &residual[here.clone()]);
                    let (scale, shift, relu) = (&scale[..], &shift[..], self.relu);
                    let mapping = Normalise { xs: &xs[here], scale, shift, residual, relu, z };
                    self.isa.run(Each { mapping, channels });
                });
            })
        }
    }

    /// The gradients of the input, of `[γ, β]`, and of the residual where `residual` asks for it.
    fn backward(
        &self,
        xs: &[f32],
        parameters: &[f32],
        z: &[f32],
        dz: &[f32],
        residual: bool,
    ) -> Gradient {
        let statistics = &self.statistics;
        let channels = statistics.mean.len();
        let (gamma, beta) = parameters.split_at(channels);
        let (scale, shift) = statistics.affine(gamma, beta);
        let mean: Vec<f32> = statistics.mean.iter().map(|mean| *mean as f32).collect();
        let gate = match (self.relu, residual) {
            (false, _) => Gate::Open,
            (true, true) => Gate::Result(z),
            (true, false) => Gate::Affine { scale: &scale, shift: &shift },
        };
        let [sum, product] = sums(self.isa, &Gradients { xs, dz, gate, mean: &mean }, channels);

        let count = (xs.len() / channels) as f64;
        let inverse = statistics.inverse_deviation();
        let mut parameters = vec![0.0; 2 * channels];
        let mut by_input = vec![0.0; channels];
        let mut constant = vec![0.0; channels];
        for c in 0..channels {
            parameters[c] = (product[c] * inverse[c]) as f32;
            parameters[channels + c] = sum[c] as f32;
            if self.train {
                let by_gradient = f64::from(gamma[c]) * inverse[c];
                let slope = -by_gradient * inverse[c] * inverse[c] * product[c] / count;
                by_input[c] = slope as f32;
                constant[c] = (-by_gradient * sum[c] / count - slope * statistics.mean[c]) as f32;
            }
        }

        let span = span(channels) * channels;
        let map = |dx: Out, masked: Option<Out>| {
            let mut masked: Vec<Option<Out>> = match masked {
                Some(masked) => {
                    masked.chunks(span).into_iter().map(|(_, masked)| Some(masked)).collect()
                }
                None => Vec::new(),
            };
            masked.resize_with(xs.len().div_ceil(span), || None);
            let jobs = dx.chunks(span).into_iter().zip(masked).collect();
            each(jobs, |((first, dx), residual)| {
                let here = first..first + dx.len();
                let gate = match gate {
                    Gate::Result(z) => Gate::Result(&z[here.clone()]),
                    other => other,
                };
                let mapping = Backward {
                    xs: &xs[here.clone()],
                    dz: &dz[here],
                    gate,
                    by_gradient: &scale,
                    by_input: &by_input,
                    constant: &constant,
                    dx,
                    residual,
                };
                self.isa.run(Each { mapping, channels });
            });
        };
        // SAFETY: the spans cover all elements, and each writes all of its own, to both images if there are two.
        let (input, residual) = unsafe {
            if residual && self.relu {
                let mut input = Vec::new();
                let masked = written(xs.len(), |masked| {
                    input = written(xs.len(), |dx| map(dx, Some(masked)));
                });
                (input, Some(masked))
            } else {
                (written(xs.len(), |dx| map(dx, None)), None)
            }
        };
        Gradient { input, parameters, residual }
    }

    /// As [`BatchNorm::backward`], from and to tensors.
    fn backward_tensors(
        &self,
        xs: &Tensor,
        parameters: &Tensor,
        z: &Tensor,
        dz: &Tensor,
        residual: bool,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let gradient = with_f32s(xs, |xs| {
            with_f32s(parameters, |parameters| {
                with_f32s(z, |z| {
                    with_f32s(dz, |dz| {
                        Ok(timed(Kind::BatchNormBackward, || {
                            self.backward(xs, parameters, z, dz, residual)
                        }))
                    })
                })
            })
        })?;
        Ok((
            Tensor::from_vec(gradient.input, xs.shape(), xs.device())?,
            Tensor::from_vec(gradient.parameters, parameters.shape(), xs.device())?,
            match gradient.residual {
                Some(masked) => Tensor::from_vec(masked, xs.shape(), xs.device())?,
                // Nothing between the sum and the result: the residual's gradient is the result's.
                None => dz.clone(),
            },
        ))
    }
}

struct Gradient {
    input: Vec<f32>,
    parameters: Vec<f32>,
    /// What passed ReLU, if there is one and it was asked for.
    residual: Option<Vec<f32>>,
}

impl CustomOp2 for BatchNorm {
    fn name(&self) -> &'static str {
        "batch-norm"
    }

    fn cpu_fwd(
        &self,
        xs: &CpuStorage,
        lx: &Layout,
        p: &CpuStorage,
        lp: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (xs, p) = (f32s(xs, lx)?, f32s(p, lp)?);
        let z = timed(Kind::BatchNorm, || self.normalise(xs, p, None));
        Ok((CpuStorage::F32(z), lx.shape().clone()))
    }

    fn bwd(
        &self,
        xs: &Tensor,
        p: &Tensor,
        z: &Tensor,
        dz: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (dx, dp, _) = self.backward_tensors(xs, p, z, dz, false)?;
        Ok((Some(dx), Some(dp)))
    }
}

impl CustomOp3 for BatchNorm {
    fn name(&self) -> &'static str {
        "batch-norm-add"
    }

    fn cpu_fwd(
        &self,
        xs: &CpuStorage,
        lx: &Layout,
        p: &CpuStorage,
        lp: &Layout,
        residual: &CpuStorage,
        lr: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (xs, p, residual) = (f32s(xs, lx)?, f32s(p, lp)?, f32s(residual, lr)?);
        let z = timed(Kind::BatchNorm, || self.normalise(xs, p, Some(residual)));
        Ok((CpuStorage::F32(z), lx.shape().clone()))
    }

    fn bwd(
        &self,
        xs: &Tensor,
        p: &Tensor,
        _residual: &Tensor,
        z: &Tensor,
        dz: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (dx, dp, dr) = self.backward_tensors(xs, p, z, dz, true)?;
        Ok((Some(dx), Some(dp), Some(dr)))
    }
}

#[cfg(test)]
mod tests;
