//! The passes of batch normalisation over memory: what [sums](super::sums) per channel and maps per element share,
//! and the maps.
//!
//! All of them walk NHWC pixels block by block, and within a block channel group by channel group, with what belongs
//! to the channels in registers.

use std::ops::Range;

use crate::kernels::simd::{Kernel, Simd};

/// Pixels summed in f32 before the sum goes on in f64.
pub(super) const BLOCK: usize = 128;

/// Elements between what is read or written and what is asked for meanwhile: a pass waits for memory, not for its
/// arithmetic.
const AHEAD: usize = 512;

/// Vectors of what belongs to a group of channels, as a pass needs them.
pub(super) type Constants<V> = [V; 3];

/// A vector of channels of one pixel.
#[derive(Clone, Copy)]
pub(super) struct At {
    /// Its first element.
    pub element: usize,
    /// Its number.
    pub vector: usize,
    /// Its channels: as many as a vector has lanes, or those left.
    pub lanes: usize,
}

impl At {
    /// That which begins with `channel` of `channels`, a multiple of the lanes.
    #[inline(always)]
    pub(super) fn new<S: Simd>(channels: usize, pixel: usize, channel: usize) -> Self {
        Self {
            element: pixel * channels + channel,
            vector: pixel * channels.div_ceil(S::LANES) + channel / S::LANES,
            lanes: S::LANES.min(channels - channel),
        }
    }
}

/// Loads a vector of channels, or the first lanes of one if partial.
///
/// # Safety
/// `xs` holds the elements at `at`, a whole vector unless `PARTIAL`.
#[inline(always)]
pub(super) unsafe fn load<S: Simd, const PARTIAL: bool>(s: S, xs: &[f32], at: At) -> S::V {
    debug_assert!(at.element + at.lanes <= xs.len());
    s.prefetch(xs.as_ptr().wrapping_add(at.element + AHEAD));
    // SAFETY: the caller's promise.
    unsafe {
        let p = xs.as_ptr().add(at.element);
        if PARTIAL { s.load_ptr_first(p, at.lanes) } else { s.load_ptr(p) }
    }
}

/// Writes a vector of channels, or the first lanes of one if partial.
///
/// # Safety
/// `out` has room for the elements at `at`, a whole vector unless `PARTIAL`.
#[inline(always)]
pub(super) unsafe fn store<S: Simd, const PARTIAL: bool>(s: S, out: &mut [f32], at: At, v: S::V) {
    debug_assert!(at.element + at.lanes <= out.len());
    s.prefetch(out.as_ptr().wrapping_add(at.element + AHEAD));
    // SAFETY: the caller's promise.
    unsafe {
        let p = out.as_mut_ptr().add(at.element);
        if PARTIAL { s.store_ptr_first(p, v, at.lanes) } else { s.store_ptr(p, v) }
    }
}

/// What the activation behind a normalisation makes of the gradient of the result.
pub(super) trait Derivative: Copy + Send + Sync {
    /// That of the pixels of `range`, of so many vectors each.
    fn range(self, range: Range<usize>, vectors: usize) -> Self;

    /// Panics if it is not one of so many channels and, of all pixels, vectors.
    fn check(&self, channels: usize, vectors: usize);

    /// What it keeps in registers for the channels at `at`.
    ///
    /// # Safety
    /// As [`Mapping::constants`].
    unsafe fn constants<S: Simd, const PARTIAL: bool>(&self, s: S, at: At) -> [S::V; 2];

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
    unsafe fn constants<S: Simd, const PARTIAL: bool>(&self, s: S, at: At) -> [S::V; 2] {
        match self {
            // SAFETY: the caller's promise.
            Gate::Affine { scale, shift } => unsafe {
                [load::<S, PARTIAL>(s, scale, at), load::<S, PARTIAL>(s, shift, at)]
            },
            _ => [s.zero(); 2],
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

/// A map per element, to one or two images.
pub(super) trait Mapping {
    /// Elements of each image it reads and writes. Panics if they are not as many, if what belongs to the channels has
    /// not one element for each of `channels`, or if what has bits has not those of `vectors` vectors for each pixel.
    fn len(&self, channels: usize, vectors: usize) -> usize;

    /// What it keeps in registers for the channels at `at`, a vector of the first pixel.
    ///
    /// # Safety
    /// There are these channels; they are a whole vector unless `PARTIAL`.
    unsafe fn constants<S: Simd, const PARTIAL: bool>(&self, s: S, at: At) -> [S::V; 5];

    /// Maps the elements at `at`.
    ///
    /// # Safety
    /// There are these elements; they are a whole vector unless `PARTIAL`.
    unsafe fn map<S: Simd, const PARTIAL: bool>(&mut self, s: S, k: &[S::V; 5], at: At);
}

/// `z = x · scale + shift`, plus a residual, through ReLU.
pub(super) struct Normalise<'a> {
    pub xs: &'a [f32],
    pub scale: &'a [f32],
    pub shift: &'a [f32],
    pub residual: Option<&'a [f32]>,
    pub relu: bool,
    pub z: &'a mut [f32],
    /// Where the result is positive, as [`Gate::Bits`] has it, for who wants to know.
    pub positive: Option<&'a mut [u16]>,
}

impl Mapping for Normalise<'_> {
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
        let floor = s.splat(if self.relu { 0.0 } else { f32::NEG_INFINITY });
        // SAFETY: the caller's promise.
        unsafe {
            let scale = load::<S, PARTIAL>(s, self.scale, at);
            let shift = load::<S, PARTIAL>(s, self.shift, at);
            [scale, shift, floor, s.zero(), s.zero()]
        }
    }

    #[inline(always)]
    unsafe fn map<S: Simd, const PARTIAL: bool>(&mut self, s: S, k: &[S::V; 5], at: At) {
        let [scale, shift, floor, ..] = *k;
        // SAFETY: the caller's promise.
        unsafe {
            let x = load::<S, PARTIAL>(s, self.xs, at);
            let mut z = s.fma(x, scale, shift);
            if let Some(residual) = self.residual {
                z = s.add(z, load::<S, PARTIAL>(s, residual, at));
            }
            // In this order a NaN stays one.
            let z = s.max(floor, z);
            store::<S, PARTIAL>(s, self.z, at, z);
            if let Some(positive) = &mut self.positive {
                *positive.get_unchecked_mut(at.vector) = s.positive(z);
            }
        }
    }
}

/// `dx = d · by_gradient + x · by_input + constant` for the gradient `d` that the activation leaves, in place.
pub(super) struct Backward<'a, D> {
    pub xs: &'a [f32],
    pub gate: D,
    pub by_gradient: &'a [f32],
    pub by_input: &'a [f32],
    pub constant: &'a [f32],
    /// The result's gradient, which becomes the input's.
    pub gradient: &'a mut [f32],
}

impl<D: Derivative> Mapping for Backward<'_, D> {
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
            let [scale, shift] = self.gate.constants::<S, PARTIAL>(s, at);
            let by_gradient = load::<S, PARTIAL>(s, self.by_gradient, at);
            let by_input = load::<S, PARTIAL>(s, self.by_input, at);
            [by_gradient, by_input, load::<S, PARTIAL>(s, self.constant, at), scale, shift]
        }
    }

    #[inline(always)]
    unsafe fn map<S: Simd, const PARTIAL: bool>(&mut self, s: S, k: &[S::V; 5], at: At) {
        let [by_gradient, by_input, constant, scale, shift] = *k;
        // SAFETY: the caller's promise.
        unsafe {
            let x = load::<S, PARTIAL>(s, self.xs, at);
            let d = load::<S, PARTIAL>(s, self.gradient, at);
            let d = self.gate.pass(s, [scale, shift], x, d, at);
            let dx = s.fma(d, by_gradient, s.fma(x, by_input, constant));
            store::<S, PARTIAL>(s, self.gradient, at, dx);
        }
    }
}

/// Runs a mapping over all its pixels.
pub(super) struct Each<M> {
    pub mapping: M,
    pub channels: usize,
}

impl<M: Mapping> Kernel for Each<M> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let (channels, vectors) = (self.channels, self.channels.div_ceil(S::LANES));
        let total = self.mapping.len(channels, vectors) / channels;
        let mut first = 0;
        while first < total {
            let pixels = BLOCK.min(total - first);
            let mut channel = 0;
            // SAFETY: the block's pixels and the groups of channels lie inside every image, whose lengths `len` has
            // compared.
            unsafe {
                while channel + 4 * S::LANES <= channels {
                    self.group::<S, 4, false>(s, first, pixels, channel);
                    channel += 4 * S::LANES;
                }
                while channel + S::LANES <= channels {
                    self.group::<S, 1, false>(s, first, pixels, channel);
                    channel += S::LANES;
                }
                if channel < channels {
                    self.group::<S, 1, true>(s, first, pixels, channel);
                }
            }
            first += pixels;
        }
    }
}

impl<M: Mapping> Each<M> {
    /// Maps a block's `V` vectors of channels.
    ///
    /// # Safety
    /// The pixels and channels exist; `PARTIAL` if the last vector is not full.
    #[inline(always)]
    unsafe fn group<S: Simd, const V: usize, const PARTIAL: bool>(
        &mut self,
        s: S,
        first: usize,
        pixels: usize,
        channel: usize,
    ) {
        let mut k = [[s.zero(); 5]; V];
        for (v, k) in k.iter_mut().enumerate() {
            let at = At::new::<S>(self.channels, 0, channel + v * S::LANES);
            // SAFETY: the caller's promise.
            *k = unsafe { self.mapping.constants::<S, PARTIAL>(s, at) };
        }
        for pixel in first..first + pixels {
            for (v, k) in k.iter().enumerate() {
                let at = At::new::<S>(self.channels, pixel, channel + v * S::LANES);
                // SAFETY: the caller's promise.
                unsafe { self.mapping.map::<S, PARTIAL>(s, k, at) };
            }
        }
    }
}
