//! Batch normalisation with the addition of a residual and ReLU in one operation. The convolution before it has summed
//! the [moments](Moments) of what it wrote; the one behind it computes the result where it reads it, so that without a
//! residual there is no pass over memory forward. Backward there is one, over what the gradient's two sums are of, and
//! the gradient of the input is again computed by the convolution that takes it: see [`values`](super::values).
//!
//! A shift before it costs no pass at all: the batch's own mean takes it out again, so that only the running mean ever
//! sees it, and its gradient while training is exactly zero.
//!
//! The result is `x · scale + shift` in f32, so it is off by up to 2⁻²³ · ((|x| + |mean|) · |scale| + |β| + |z|): where the
//! mean is a thousand standard deviations from zero by up to 2.4e-4 of γ. To subtract the mean first would cost each
//! element one operation more, and a sixth vector for each group of channels on the way back.
//!
//! Sums run in f32 over a block of pixels, then in f64: over the blocks of a span, then over the spans. The division
//! does not depend on the number of threads, so neither does any bit of the result.

mod moments;
mod passes;
mod sums;

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Result, Tensor, Var};

pub(crate) use self::moments::Moments;
use self::passes::{BLOCK, Backward, Each, Gate, Normalise};
use self::sums::{Gradients, Sums};
use super::handover::Parts;
use super::maps::{self, Maps, Slot};
use super::memory::{Bits, Scratch, Target};
use super::operand::with_f32s;
use super::parallel::each;
use super::profile::{Kind, timed};
use super::simd::Isa;
use super::values::{Compute, Values};
use crate::parameters::{BATCH_NORM_EPSILON, BATCH_NORM_MOMENTUM};

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
    // A normalisation behind another one, without a convolution between: see [`Compute`].
    xs.pixels();
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
    let (scale, shift) = with_f32s(&parameters, |parameters| {
        let (gamma, rest) = parameters.split_at(channels);
        Ok(statistics.affine(gamma, &rest[..channels]))
    })?;
    let kept = xs.values();
    let normalised = Normalised { isa, xs: kept.clone(), scale, shift, relu };
    let (z, positive) = match residual {
        None => (Values::computed(xs.len(), normalised), None),
        // What is added would have to be read again by everyone who computes the sum.
        Some(residual) => {
            let mut z = Scratch::new(xs.len());
            let mut positive = Bits::new(xs.len() / channels * channels.div_ceil(isa.lanes()));
            let sum = || normalised.sum(residual.pixels(), &mut z, &mut positive);
            timed(Kind::BatchNorm, 0, sum);
            (z.into(), relu.then(|| Arc::new(positive)))
        }
    };
    xs.derive(Some(&parameters), residual, xs.shape, z, || BatchNorm {
        isa,
        parts,
        statistics,
        relu,
        train,
        xs: kept,
        positive,
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

/// The sums of what passes `gate` of the gradient `dz`, and of its products with the deviations of `xs` from `mean`, per
/// channel; what passes goes to `residual` as well.
fn sums(
    isa: Isa,
    xs: &[f32],
    dz: &[f32],
    gate: Gate,
    mean: &[f32],
    residual: Option<Target>,
) -> [Vec<f64>; 2] {
    let channels = mean.len();
    let (total, span) = (xs.len() / channels, span(channels));
    let mut spans = vec![0.0; total.div_ceil(span) * 2 * channels];
    let mut residuals: Vec<Option<Target>> = match residual {
        Some(residual) => residual.chunks(span * channels).map(Some).collect(),
        None => Vec::new(),
    };
    residuals.resize_with(total.div_ceil(span), || None);
    let parts = spans.chunks_exact_mut(2 * channels).zip(residuals).enumerate();
    each(backwards(parts), |(i, (to, residual)): (usize, (&mut [f64], Option<Target>))| {
        let pixels = span.min(total - i * span);
        let here = i * span * channels..(i * span + pixels) * channels;
        let (a, b) = to.split_at_mut(channels);
        let gate = gate.range(i * span..i * span + pixels, channels.div_ceil(isa.lanes()));
        let summand = Gradients { xs: &xs[here.clone()], dz: &dz[here], gate, mean, residual };
        isa.run(Sums { summand, channels, pixels, to: [a, b] });
    });
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

/// The result, but for what is added to it.
struct Normalised {
    isa: Isa,
    xs: Values,
    scale: Vec<f32>,
    shift: Vec<f32>,
    relu: bool,
}

impl Normalised {
    /// That of the elements of `range`.
    fn part<'a>(&'a self, range: Range<usize>, z: &'a mut [f32]) -> Normalise<'a> {
        let (scale, shift) = (&self.scale, &self.shift);
        let xs = &self.xs.whole()[range];
        Normalise { xs, scale, shift, residual: None, relu: self.relu, z, positive: None }
    }

    /// All of it with the residual, and where the sum is positive.
    fn sum(&self, residual: &[f32], z: &mut [f32], positive: &mut [u16]) {
        let channels = self.scale.len();
        let span = span(channels);
        let bits = positive.chunks_mut(span * channels.div_ceil(self.isa.lanes()));
        let parts = z.chunks_mut(span * channels).zip(bits).enumerate();
        each(backwards(parts), |(i, (z, positive)): (usize, (&mut [f32], &mut [u16]))| {
            let start = i * span * channels;
            let here = start..start + z.len();
            let residual = Some(&residual[here.clone()]);
            let mapping = Normalise { residual, positive: Some(positive), ..self.part(here, z) };
            self.isa.run(Each { mapping, channels });
        });
    }
}

impl Compute for Normalised {
    fn channels(&self) -> usize {
        self.scale.len()
    }

    fn compute(&self, range: Range<usize>, z: &mut [f32]) {
        self.isa.run(Each { mapping: self.part(range, z), channels: self.channels() });
    }
}

/// The gradient of the input, in place of that of the result.
struct Differentiated {
    isa: Isa,
    xs: Values,
    relu: bool,
    positive: Option<Arc<Bits>>,
    /// Those of the forward pass.
    scale: Vec<f32>,
    shift: Vec<f32>,
    by_input: Vec<f32>,
    constant: Vec<f32>,
}

impl Compute for Differentiated {
    fn channels(&self) -> usize {
        self.scale.len()
    }

    fn compute(&self, range: Range<usize>, gradient: &mut [f32]) {
        let channels = self.channels();
        let gate = gate(self.relu, self.positive.as_deref(), &self.scale, &self.shift);
        let pixels = range.start / channels..range.end / channels;
        let mapping = Backward {
            xs: &self.xs.whole()[range],
            gate: gate.range(pixels, channels.div_ceil(self.isa.lanes())),
            by_gradient: &self.scale,
            by_input: &self.by_input,
            constant: &self.constant,
            gradient,
        };
        self.isa.run(Each { mapping, channels });
    }
}

/// Where the gradient passes: what is known of the result, or else the result of the affine map alone.
fn gate<'a>(
    relu: bool,
    positive: Option<&'a Bits>,
    scale: &'a [f32],
    shift: &'a [f32],
) -> Gate<'a> {
    match (relu, positive) {
        (false, _) => Gate::Open,
        (true, Some(positive)) => Gate::Bits(positive),
        (true, None) => Gate::Affine { scale, shift },
    }
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
    xs: Values,
    /// Where the result is positive, if `xs` alone does not tell what ReLU let pass.
    positive: Option<Arc<Bits>>,
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

    fn backward(&self, dz: Values, parameters: &[f32], to: &mut [f32]) -> Result<()> {
        let dz = dz.into_memory();
        let recipe = timed(Kind::BatchNormBackward, 0, || match &self.residual {
            None => self.run(&dz, parameters, None, to),
            Some(residual) => residual
                .receive(self.xs.len(), |residual| self.run(&dz, parameters, Some(residual), to)),
        });
        self.gradient.receive_values(Values::mapped(dz, recipe));
        Ok(())
    }
}

impl BatchNorm {
    /// How the gradient of the input comes from that of the result; sends `residual` what passes ReLU, and writes the
    /// gradient of the parameters to `gradients`.
    fn run(
        &self,
        dz: &[f32],
        parameters: &[f32],
        residual: Option<Target>,
        gradients: &mut [f32],
    ) -> Differentiated {
        let (isa, statistics, xs) = (self.isa, &self.statistics, self.xs.whole());
        let channels = statistics.mean.len();
        let (gamma, beta) = (&parameters[..channels], &parameters[channels..2 * channels]);
        let (scale, shift) = statistics.affine(gamma, beta);
        let mean: Vec<f32> = statistics.mean.iter().map(|mean| *mean as f32).collect();
        let gate = gate(self.relu, self.positive.as_deref(), &scale, &shift);
        let [sum, product] = sums(isa, xs, dz, gate, &mean, residual);

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
        let (xs, positive, relu) = (self.xs.clone(), self.positive.clone(), self.relu);
        Differentiated { isa, xs, relu, positive, scale, shift, by_input, constant }
    }
}

#[cfg(test)]
mod tests;
