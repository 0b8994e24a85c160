//! Batch normalisation with the addition of a residual and an activation in one operation. The convolution before it has summed
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

mod passes;
mod statistics;

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Result, Tensor};

use self::passes::{
    Activate, Curve, Derivative, Floor, Gate, GradientSums, NormInputGradient, NormaliseMaps,
};
use self::statistics::Statistics;
use super::channels::{Walk, span};
use super::element::Element;
use super::handover::Linked;
use super::maps::{self, Maps, Slot};
use super::memory::{Scratch, Target};
use super::moments::Moments;
use super::parallel::each;
use super::profile::{Timed, timed};
use super::simd::Isa;
use super::values::{Compute, Values};
use crate::parameters::{Activation, Affine, Running};

/// Spans from the last one to the first: what was written last, by an operation that went forwards, is in the cache
/// still. No bit depends on it: each span is computed for itself, and what is summed of spans is added in their order.
fn backwards<T>(spans: impl DoubleEndedIterator<Item = T>) -> Vec<T> {
    spans.rev().collect()
}

/// See [`ops::batch_norm`](crate::ops::batch_norm).
pub(crate) fn batch_norm<E: Element>(
    xs: &Maps<E>,
    affine: Affine,
    running: &Running,
    residual: Option<&Maps<E>>,
    activation: Activation,
    train: bool,
) -> Result<Maps<E>> {
    // GELU's derivative needs what goes into it, and of a sum with a residual nothing keeps that: so it becomes an
    // operation of its own.
    if let (Some(_), Activation::Gelu(_)) = (residual, activation) {
        let sum = batch_norm(xs, affine, running, residual, Activation::Identity, train)?;
        return bias(&sum, &affine.beta.zeros_like()?.detach(), activation);
    }
    let statistics = if train {
        let own;
        let moments = match xs.moments() {
            Some(moments) => moments,
            None => {
                let (isa, channels) = (xs.native.isa, affine.beta.dim(0)?);
                let sum = || Moments::on_all_threads(isa, xs.pixels(), channels);
                own = timed(Timed::BatchNorm, 0, sum);
                &own
            }
        };
        let statistics = Statistics::of_batch(moments, running.epsilon);
        statistics.track(moments.pixels() as f64, affine.shift, running)?;
        statistics
    } else {
        Statistics::running(affine.shift, running)?
    };
    normalise(xs, affine, statistics, residual, activation, train)
}

/// See [`ops::bias`](crate::ops::bias): a normalisation by statistics that change nothing.
pub(crate) fn bias<E: Element>(
    xs: &Maps<E>,
    bias: &Tensor,
    activation: Activation,
) -> Result<Maps<E>> {
    let affine = Affine { shift: None, gamma: None, beta: bias };
    normalise(xs, affine, Statistics::neutral(bias.dim(0)?), None, activation, false)
}

/// Normalises by these statistics, which depend on the input if `train`.
fn normalise<E: Element>(
    xs: &Maps<E>,
    Affine { shift, gamma, beta }: Affine,
    statistics: Statistics,
    residual: Option<&Maps<E>>,
    activation: Activation,
    train: bool,
) -> Result<Maps<E>> {
    let isa = xs.native.isa;
    let channels = beta.dim(0)?;
    // A normalisation behind another one, without a convolution between: see [`Compute`].
    xs.pixels();
    let (scaled, shifted) = (gamma.is_some(), shift.is_some());
    let parameters = Parameters {
        linked: Linked::new(gamma.into_iter().chain([beta]).chain(shift))?,
        scaled,
        shifted,
    };
    let (scale, shift) = parameters.with(|gamma, beta| statistics.affine(gamma, beta))?;
    let kept = xs.values();
    let normalised = Normalised { isa, xs: kept.clone(), scale, shift, activation };
    let (z, positive) = match residual {
        None => (Values::computed(xs.len(), channels, normalised), None),
        // What is added would have to be read again by everyone who computes the sum.
        Some(residual) => {
            let mut z = Scratch::of(xs.len());
            let mut positive = Scratch::of(xs.len() / channels * channels.div_ceil(isa.lanes()));
            let sum = || normalised.sum(residual.pixels(), &mut z, &mut positive);
            timed(Timed::BatchNorm, 0, sum);
            (z.into(), (activation == Activation::Relu).then(|| Arc::new(positive)))
        }
    };
    let link = parameters.linked.link()?;
    xs.derive(Some(&link), residual, xs.shape, z, || BatchNormBackward {
        isa,
        parameters,
        statistics,
        activation,
        train,
        xs: kept,
        positive,
        gradient: xs.wants_gradient().then(|| xs.gradient()),
        residual: residual.map(Maps::gradient),
    })
}

/// The sums of what `gate` leaves of the gradient `dz`, and of its products with the deviations of `xs` from `mean`, per
/// channel; what it leaves goes to `residual` as well.
fn sums<E: Element>(
    isa: Isa,
    xs: &[E],
    dz: &[E],
    gate: impl Derivative,
    mean: &[f32],
    residual: Option<Target<E>>,
) -> [Vec<f64>; 2] {
    let channels = mean.len();
    let (total, span) = (xs.len() / channels, span(channels));
    let mut spans = vec![0.0; total.div_ceil(span) * 2 * channels];
    let mut residuals: Vec<Option<Target<E>>> = match residual {
        Some(residual) => residual.chunks(span * channels).map(Some).collect(),
        None => Vec::new(),
    };
    residuals.resize_with(total.div_ceil(span), || None);
    let parts = spans.chunks_exact_mut(2 * channels).zip(residuals).enumerate();
    each(backwards(parts), |(i, (to, residual)): (usize, (&mut [f64], Option<Target<E>>))| {
        let pixels = span.min(total - i * span);
        let here = i * span * channels..(i * span + pixels) * channels;
        let (a, b) = to.split_at_mut(channels);
        let gate = gate.range(i * span..i * span + pixels, channels.div_ceil(isa.lanes()));
        let pass = GradientSums { xs: &xs[here.clone()], dz: &dz[here], gate, mean, residual };
        E::run(isa, Walk { pass, channels, sums: [a, b] });
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
struct Normalised<E: Element> {
    isa: Isa,
    xs: Values<E>,
    scale: Vec<f32>,
    shift: Vec<f32>,
    activation: Activation,
}

impl<E: Element> Normalised<E> {
    /// Writes the elements of `range` to `z`: with the residual if there is one, and then where the sum is positive.
    fn run(
        &self,
        range: Range<usize>,
        residual: Option<&[E]>,
        activation: impl Activate,
        z: &mut [E],
        positive: Option<&mut [u16]>,
    ) {
        let (xs, scale, shift) = (&self.xs.whole()[range], &self.scale, &self.shift);
        let pass = NormaliseMaps { xs, scale, shift, residual, activation, z, positive };
        E::run(self.isa, Walk::without_sums(pass, scale.len()));
    }

    /// ReLU, or nothing.
    fn floor(&self) -> Floor {
        Floor(if self.activation == Activation::Relu { 0.0 } else { f32::NEG_INFINITY })
    }

    /// All of it with the residual, and where the sum is positive.
    fn sum(&self, residual: &[E], z: &mut [E], positive: &mut [u16]) {
        let channels = self.scale.len();
        let span = span(channels);
        let bits = positive.chunks_mut(span * channels.div_ceil(self.isa.lanes()));
        let parts = z.chunks_mut(span * channels).zip(bits).enumerate();
        each(backwards(parts), |(i, (z, positive)): (usize, (&mut [E], &mut [u16]))| {
            let start = i * span * channels;
            let here = start..start + z.len();
            self.run(here.clone(), Some(&residual[here]), self.floor(), z, Some(positive));
        });
    }
}

impl<E: Element> Compute<E> for Normalised<E> {
    fn compute(&self, range: Range<usize>, z: &mut [E]) {
        match self.activation {
            Activation::Gelu(form) => self.run(range, None, form, z, None),
            _ => self.run(range, None, self.floor(), z, None),
        }
    }
}

/// The gradient of the input, in place of that of the result.
struct Differentiated<E: Element> {
    isa: Isa,
    xs: Values<E>,
    activation: Activation,
    positive: Option<Arc<Scratch<u16>>>,
    /// Those of the forward pass.
    scale: Vec<f32>,
    shift: Vec<f32>,
    by_input: Vec<f32>,
    constant: Vec<f32>,
}

impl<E: Element> Compute<E> for Differentiated<E> {
    fn compute(&self, range: Range<usize>, gradient: &mut [E]) {
        let (scale, shift) = (&self.scale[..], &self.shift[..]);
        match self.activation {
            Activation::Gelu(form) => self.run(range, gradient, Curve { form, scale, shift }),
            _ => {
                let gate = gate(
                    self.activation,
                    self.positive.as_ref().map(|bits| &bits[..]),
                    scale,
                    shift,
                );
                self.run(range, gradient, gate);
            }
        }
    }
}

impl<E: Element> Differentiated<E> {
    fn run(&self, range: Range<usize>, gradient: &mut [E], gate: impl Derivative) {
        let channels = self.scale.len();
        let pixels = range.start / channels..range.end / channels;
        let pass = NormInputGradient {
            xs: &self.xs.whole()[range],
            gate: gate.range(pixels, channels.div_ceil(self.isa.lanes())),
            by_gradient: &self.scale,
            by_input: &self.by_input,
            constant: &self.constant,
            gradient,
        };
        E::run(self.isa, Walk::without_sums(pass, channels));
    }
}

/// Where the gradient passes ReLU, or everywhere without it: what is known of the result, or else the result of the affine map alone.
fn gate<'a>(
    activation: Activation,
    positive: Option<&'a [u16]>,
    scale: &'a [f32],
    shift: &'a [f32],
) -> Gate<'a> {
    match (activation, positive) {
        (Activation::Relu, Some(positive)) => Gate::Bits(positive),
        (Activation::Relu, None) => Gate::Affine { scale, shift },
        _ => Gate::Open,
    }
}

/// γ where there is one, β and, where there is one, the shift.
struct Parameters {
    linked: Linked,
    scaled: bool,
    shifted: bool,
}

impl Parameters {
    /// What `f` makes of γ, which may be empty, and β.
    fn with<R>(&self, f: impl FnOnce(&[f32], &[f32]) -> R) -> Result<R> {
        let values = self.linked.values()?;
        let gamma: &[f32] = if self.scaled { &values[0] } else { &[] };
        Ok(f(gamma, &values[usize::from(self.scaled)]))
    }
}

/// What the backward pass needs.
struct BatchNormBackward<E: Element> {
    isa: Isa,
    parameters: Parameters,
    statistics: Statistics,
    activation: Activation,
    /// Whether the statistics came from the input itself, and so depend on it.
    train: bool,
    xs: Values<E>,
    /// Where the result is positive, if `xs` alone does not tell what ReLU let pass.
    positive: Option<Arc<Scratch<u16>>>,
    /// Where the gradient of the input goes, if anywhere.
    gradient: Option<Slot<E>>,
    residual: Option<Slot<E>>,
}

impl<E: Element> maps::Backward<E> for BatchNormBackward<E> {
    const NAME: &'static str = "batch_norm";

    /// The parameter is the link.
    fn backward(&self, dz: Values<E>, _: &[f32], _: &mut [f32]) -> Result<()> {
        let dz = dz.into_memory();
        let recipe = timed(Timed::BatchNormBackward, 0, || match &self.residual {
            None => self.run(&dz, None),
            Some(residual) => {
                residual.receive(self.xs.len(), |residual| self.run(&dz, Some(residual)))
            }
        })?;
        if let Some(gradient) = &self.gradient {
            gradient.receive_values(Values::mapped(dz, recipe.scale.len(), recipe));
        }
        Ok(())
    }
}

impl<E: Element> BatchNormBackward<E> {
    /// How the gradient of the input comes from that of the result; sends `residual` what the activation leaves, and gives
    /// the parameters their gradients.
    fn run(&self, dz: &[E], residual: Option<Target<E>>) -> Result<Differentiated<E>> {
        let (isa, statistics, xs) = (self.isa, &self.statistics, self.xs.whole());
        let channels = statistics.mean.len();
        let inverse = statistics.inverse_deviation();
        let ((scale, shift), by_gradient) = self.parameters.with(|gamma, beta| {
            let gammas = gamma.iter().copied().chain(std::iter::repeat(1.0)).map(f64::from);
            let by_gradient = gammas.zip(&inverse).map(|(gamma, inverse)| gamma * inverse);
            (statistics.affine(gamma, beta), by_gradient.collect::<Vec<f64>>())
        })?;
        let mean: Vec<f32> = statistics.mean.iter().map(|mean| *mean as f32).collect();
        let [sum, product] = match self.activation {
            Activation::Gelu(form) => {
                let curve = Curve { form, scale: &scale, shift: &shift };
                sums(isa, xs, dz, curve, &mean, residual)
            }
            _ => {
                let gate = gate(
                    self.activation,
                    self.positive.as_ref().map(|bits| &bits[..]),
                    &scale,
                    &shift,
                );
                sums(isa, xs, dz, gate, &mean, residual)
            }
        };

        let count = (xs.len() / channels) as f64;
        let mut by_input = vec![0.0; channels];
        let mut constant = vec![0.0; channels];
        for c in (0..channels).filter(|_| self.train) {
            let slope = -by_gradient[c] * inverse[c] * inverse[c] * product[c] / count;
            by_input[c] = slope as f32;
            constant[c] = (-by_gradient[c] * sum[c] / count - slope * statistics.mean[c]) as f32;
        }
        let Parameters { linked, scaled, shifted } = &self.parameters;
        let give = |number, value: &dyn Fn(usize) -> f64| {
            linked.give(number, |to| {
                to.iter_mut().enumerate().for_each(|(c, to)| *to = value(c) as f32);
            })
        };
        if *scaled {
            give(0, &|c| product[c] * inverse[c])?;
        }
        give(usize::from(*scaled), &|c| sum[c])?;
        if *shifted {
            // The batch's own mean takes a shift out again.
            let value = |c: usize| if self.train { 0.0 } else { by_gradient[c] * sum[c] };
            give(1 + usize::from(*scaled), &value)?;
        }
        let (xs, positive, activation) = (self.xs.clone(), self.positive.clone(), self.activation);
        Ok(Differentiated { isa, xs, activation, positive, scale, shift, by_input, constant })
    }
}

#[cfg(test)]
mod tests;
