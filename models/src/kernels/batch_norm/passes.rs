//! The passes of batch normalisation over memory: the result, the two sums of the gradient, and the gradient of the input.
//! What the activation is, is told by types: the polynomials of GELU need the registers in which ReLU keeps what belongs
//! to the channels.

use std::ops::Range;

use crate::kernels::channels::{At, Pass, load, store};
use crate::kernels::element::Element;
use crate::kernels::gelu;
use crate::kernels::memory::Target;
use crate::kernels::simd::Simd;
use crate::parameters::Gelu;

/// What an activation makes of a value.
pub(super) trait Activate {
    /// The activation of `x`.
    fn value<S: Simd>(&self, s: S, x: S::V) -> S::V;
}

/// The larger of a value and this: ReLU with 0, nothing with -∞.
pub(super) struct Floor(pub f32);

impl Activate for Floor {
    #[inline(always)]
    fn value<S: Simd>(&self, s: S, x: S::V) -> S::V {
        // In this order a NaN stays one.
        s.max(s.splat(self.0), x)
    }
}

impl Activate for Gelu {
    #[inline(always)]
    fn value<S: Simd>(&self, s: S, x: S::V) -> S::V {
        gelu::value(s, *self, x)
    }
}

/// The simple form: `z = activation(x · scale + shift + residual)`, one element after another.
pub(super) struct NormaliseMaps<'a, A, E> {
    pub xs: &'a [E],
    pub scale: &'a [f32],
    pub shift: &'a [f32],
    pub residual: Option<&'a [E]>,
    pub activation: A,
    pub z: &'a mut [E],
    /// Where the result is positive, as [`Gate::Bits`] has it, for who wants to know.
    pub positive: Option<&'a mut [u16]>,
}

impl<A: Activate, E: Element> Pass for NormaliseMaps<'_, A, E> {
    const SUMS: bool = false;

    fn len(&self, channels: usize, vectors: usize) -> usize {
        assert!(self.residual.is_none_or(|residual| residual.len() == self.xs.len()));
        assert_eq!(self.z.len(), self.xs.len());
        assert_eq!([self.scale.len(), self.shift.len()], [channels; 2]);
        if let Some(positive) = &self.positive {
            assert_eq!(positive.len(), self.xs.len() / channels * vectors);
        }
        self.xs.len()
    }

    #[inline(always)]
    unsafe fn constants<S: Simd, const PARTIAL: bool>(&self, s: S, at: At) -> [S::V; 5] {
        // SAFETY: the caller's promise.
        unsafe { affine::<S, PARTIAL>(s, self.scale, self.shift, at) }
    }

    #[inline(always)]
    unsafe fn visit<S: Simd, const PARTIAL: bool>(
        &mut self,
        s: S,
        [scale, shift, ..]: &[S::V; 5],
        at: At,
    ) -> (S::V, S::V) {
        // SAFETY: the caller's promise.
        unsafe {
            let x = load::<S, _, PARTIAL>(s, self.xs, at);
            let mut z = s.fma(x, *scale, *shift);
            if let Some(residual) = self.residual {
                z = s.add(z, load::<S, _, PARTIAL>(s, residual, at));
            }
            let z = self.activation.value(s, z);
            store::<S, _, PARTIAL>(s, self.z, at, z);
            if let Some(positive) = &mut self.positive {
                *positive.get_unchecked_mut(at.vector) = s.positive(z);
            }
            (z, z)
        }
    }
}

/// A scale and a shift, and zeros.
///
/// # Safety
/// As [`Pass::constants`].
#[inline(always)]
unsafe fn affine<S: Simd, const PARTIAL: bool>(
    s: S,
    scale: &[f32],
    shift: &[f32],
    at: At,
) -> [S::V; 5] {
    // SAFETY: the caller's promise.
    let [scale, shift] = unsafe { [scale, shift].map(|xs| load::<S, _, PARTIAL>(s, xs, at)) };
    [scale, shift, s.zero(), s.zero(), s.zero()]
}

/// What the activation behind a normalisation makes of the gradient of the result.
pub(super) trait Derivative: Copy + Send + Sync {
    /// That of the pixels of `range`, of so many vectors each.
    fn range(self, range: Range<usize>, vectors: usize) -> Self;

    /// Panics if it is not one of so many channels and, of all pixels, vectors.
    fn check(&self, channels: usize, vectors: usize);

    /// What it keeps in registers for the channels at `at`: two vectors, and zeros.
    ///
    /// # Safety
    /// As [`Pass::constants`].
    unsafe fn constants<S: Simd, const PARTIAL: bool>(&self, s: S, at: At) -> [S::V; 5];

    /// The gradient of what goes into the activation, where the input is `x` and the gradient of the result `d`.
    ///
    /// # Safety
    /// There are elements at `at`.
    unsafe fn pass<S: Simd>(&self, s: S, k: [S::V; 2], x: S::V, d: S::V, at: At) -> S::V;
}

/// Where the gradient of the result passes ReLU.
#[derive(Clone, Copy)]
pub(super) enum Gate<'a> {
    /// Everywhere: there is none.
    Open,
    /// Where a bit is set, of as many for each vector as it has lanes; a pixel's vectors begin with its first channel.
    Bits(&'a [u16]),
    /// Where `x · scale + shift` is positive: the result itself, which need not be read.
    Affine { scale: &'a [f32], shift: &'a [f32] },
}

impl Derivative for Gate<'_> {
    fn range(self, range: Range<usize>, vectors: usize) -> Self {
        match self {
            Gate::Bits(bits) => Gate::Bits(&bits[range.start * vectors..range.end * vectors]),
            other => other,
        }
    }

    fn check(&self, channels: usize, vectors: usize) {
        match self {
            Gate::Open => {}
            Gate::Bits(bits) => assert_eq!(bits.len(), vectors),
            Gate::Affine { scale, shift } => assert_eq!([scale.len(), shift.len()], [channels; 2]),
        }
    }

    #[inline(always)]
    unsafe fn constants<S: Simd, const PARTIAL: bool>(&self, s: S, at: At) -> [S::V; 5] {
        match self {
            // SAFETY: the caller's promise.
            Gate::Affine { scale, shift } => unsafe { affine::<S, PARTIAL>(s, scale, shift, at) },
            _ => [s.zero(); 5],
        }
    }

    /// `d` where the gate is open, else zero.
    #[inline(always)]
    unsafe fn pass<S: Simd>(&self, s: S, k: [S::V; 2], x: S::V, d: S::V, at: At) -> S::V {
        match self {
            Gate::Open => d,
            // SAFETY: the caller's promise.
            Gate::Bits(bits) => s.where_set(unsafe { *bits.get_unchecked(at.vector) }, d),
            Gate::Affine { .. } => s.where_positive(s.fma(x, k[0], k[1]), d),
        }
    }
}

/// The derivative of GELU at `x · scale + shift`, which is computed again: to keep it would be to write as much as is
/// read.
#[derive(Clone, Copy)]
pub(super) struct Curve<'a> {
    pub form: Gelu,
    pub scale: &'a [f32],
    pub shift: &'a [f32],
}

impl Derivative for Curve<'_> {
    fn range(self, _: Range<usize>, _: usize) -> Self {
        self
    }

    fn check(&self, channels: usize, _: usize) {
        assert_eq!([self.scale.len(), self.shift.len()], [channels; 2]);
    }

    #[inline(always)]
    unsafe fn constants<S: Simd, const PARTIAL: bool>(&self, s: S, at: At) -> [S::V; 5] {
        // SAFETY: the caller's promise.
        unsafe { affine::<S, PARTIAL>(s, self.scale, self.shift, at) }
    }

    #[inline(always)]
    unsafe fn pass<S: Simd>(&self, s: S, k: [S::V; 2], x: S::V, d: S::V, _: At) -> S::V {
        s.mul(d, gelu::slope(s, self.form, s.fma(x, k[0], k[1])))
    }
}

/// The gradient that the activation leaves: its sum, and the sum of its products with the deviations from the mean; it
/// goes to the residual as well. The simple form: `d = dz · activation′`, `Σ d` and `Σ d · (x - mean)`.
pub(super) struct GradientSums<'a, D, E> {
    pub xs: &'a [E],
    pub dz: &'a [E],
    pub gate: D,
    pub mean: &'a [f32],
    pub residual: Option<Target<'a, E>>,
}

impl<D: Derivative, E: Element> Pass for GradientSums<'_, D, E> {
    const SUMS: bool = true;

    fn len(&self, channels: usize, vectors: usize) -> usize {
        assert_eq!(self.dz.len(), self.xs.len());
        assert!(self.residual.as_ref().is_none_or(|residual| residual.len() == self.xs.len()));
        assert_eq!(self.mean.len(), channels);
        self.gate.check(channels, self.xs.len() / channels * vectors);
        self.xs.len()
    }

    #[inline(always)]
    unsafe fn constants<S: Simd, const PARTIAL: bool>(&self, s: S, at: At) -> [S::V; 5] {
        // SAFETY: the caller's promise.
        unsafe {
            let [scale, shift, ..] = self.gate.constants::<S, PARTIAL>(s, at);
            [scale, shift, load::<S, _, PARTIAL>(s, self.mean, at), s.zero(), s.zero()]
        }
    }

    #[inline(always)]
    unsafe fn visit<S: Simd, const PARTIAL: bool>(
        &mut self,
        s: S,
        [scale, shift, mean, ..]: &[S::V; 5],
        at: At,
    ) -> (S::V, S::V) {
        // SAFETY: the caller's promise.
        unsafe {
            let x = load::<S, _, PARTIAL>(s, self.xs, at);
            let d = load::<S, _, PARTIAL>(s, self.dz, at);
            let d = self.gate.pass(s, [*scale, *shift], x, d, at);
            match &mut self.residual {
                None => {}
                Some(Target::Write(residual)) => store::<S, _, PARTIAL>(s, residual, at, d),
                Some(Target::Add(residual)) => {
                    let sum = s.add(load::<S, _, PARTIAL>(s, residual, at), d);
                    store::<S, _, PARTIAL>(s, residual, at, sum);
                }
            }
            (d, s.sub(x, *mean))
        }
    }
}

/// The simple form: `dx = d · by_gradient + x · by_input + constant` for the gradient `d` that the activation leaves, in
/// place.
pub(super) struct NormInputGradient<'a, D, E> {
    pub xs: &'a [E],
    pub gate: D,
    pub by_gradient: &'a [f32],
    pub by_input: &'a [f32],
    pub constant: &'a [f32],
    /// The result's gradient, which becomes the input's.
    pub gradient: &'a mut [E],
}

impl<D: Derivative, E: Element> Pass for NormInputGradient<'_, D, E> {
    const SUMS: bool = false;

    fn len(&self, channels: usize, vectors: usize) -> usize {
        assert_eq!(self.gradient.len(), self.xs.len());
        let constants = [self.by_gradient, self.by_input, self.constant];
        assert!(constants.iter().all(|constant| constant.len() == channels));
        self.gate.check(channels, self.xs.len() / channels * vectors);
        self.xs.len()
    }

    #[inline(always)]
    unsafe fn constants<S: Simd, const PARTIAL: bool>(&self, s: S, at: At) -> [S::V; 5] {
        // SAFETY: the caller's promise.
        unsafe {
            let [scale, shift, ..] = self.gate.constants::<S, PARTIAL>(s, at);
            let constants = [self.by_gradient, self.by_input, self.constant];
            let [by_gradient, by_input, constant] =
                constants.map(|xs| load::<S, _, PARTIAL>(s, xs, at));
            [scale, shift, by_gradient, by_input, constant]
        }
    }

    #[inline(always)]
    unsafe fn visit<S: Simd, const PARTIAL: bool>(
        &mut self,
        s: S,
        [scale, shift, by_gradient, by_input, constant]: &[S::V; 5],
        at: At,
    ) -> (S::V, S::V) {
        // SAFETY: the caller's promise.
        unsafe {
            let x = load::<S, _, PARTIAL>(s, self.xs, at);
            let d = load::<S, _, PARTIAL>(s, self.gradient, at);
            let d = self.gate.pass(s, [*scale, *shift], x, d, at);
            let dx = s.fma(d, *by_gradient, s.fma(x, *by_input, *constant));
            store::<S, _, PARTIAL>(s, self.gradient, at, dx);
            (dx, dx)
        }
    }
}
