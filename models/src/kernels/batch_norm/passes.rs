//! The passes of batch normalisation over memory: what [sums](super::sums) per channel and maps per element share,
//! and the maps.
//!
//! All of them walk NHWC pixels block by block, and within a block channel group by channel group, with what belongs
//! to the channels in registers.

use std::ops::Range;

use crate::kernels::simd::{Kernel, Simd};

/// Pixels summed in f32 before the sum goes on in f64.
pub(super) const BLOCK: usize = 128;

/// Vectors of what belongs to a group of channels, as a pass needs them.
pub(super) type Constants<V> = [V; 3];

/// Loads a vector of channels, or the first `lanes` of one if partial.
///
/// # Safety
/// `xs` holds so many elements from `at`.
#[inline(always)]
pub(super) unsafe fn load<S: Simd, const PARTIAL: bool>(
    s: S,
    xs: &[f32],
    at: usize,
    lanes: usize,
) -> S::V {
    debug_assert!(at + lanes <= xs.len());
    // SAFETY: the caller's promise.
    unsafe {
        let p = xs.as_ptr().add(at);
        if PARTIAL { s.load_ptr_first(p, lanes) } else { s.load_ptr(p) }
    }
}

/// Writes a vector of channels, or the first `lanes` of one if partial.
///
/// # Safety
/// `out` has room for so many elements from `at`.
#[inline(always)]
pub(super) unsafe fn store<S: Simd, const PARTIAL: bool>(
    s: S,
    out: &mut [f32],
    at: usize,
    v: S::V,
    lanes: usize,
) {
    debug_assert!(at + lanes <= out.len());
    // SAFETY: the caller's promise.
    unsafe {
        let p = out.as_mut_ptr().add(at);
        if PARTIAL { s.store_ptr_first(p, v, lanes) } else { s.store_ptr(p, v) }
    }
}

/// Where the gradient of the result passes ReLU.
#[derive(Clone, Copy)]
pub(super) enum Gate<'a> {
    /// Everywhere: there is none.
    Open,
    /// Where this result is positive.
    Result(&'a [f32]),
    /// Where `x · scale + shift` is positive: the result itself, which need not be read.
    Affine { scale: &'a [f32], shift: &'a [f32] },
}

impl<'a> Gate<'a> {
    /// That of the elements of `range`, whole pixels.
    pub(super) fn range(self, range: Range<usize>) -> Self {
        match self {
            Gate::Result(z) => Gate::Result(&z[range]),
            other => other,
        }
    }

    /// # Safety
    /// As [`Summand::constants`].
    #[inline(always)]
    pub(super) unsafe fn constants<S: Simd, const PARTIAL: bool>(
        &self,
        s: S,
        channel: usize,
        lanes: usize,
    ) -> [S::V; 2] {
        match self {
            // SAFETY: the caller's promise.
            Gate::Affine { scale, shift } => unsafe {
                [
                    load::<S, PARTIAL>(s, scale, channel, lanes),
                    load::<S, PARTIAL>(s, shift, channel, lanes),
                ]
            },
            _ => [s.zero(); 2],
        }
    }

    /// `d` where the gate is open, else zero.
    ///
    /// # Safety
    /// As [`Summand::terms`].
    #[inline(always)]
    pub(super) unsafe fn pass<S: Simd, const PARTIAL: bool>(
        &self,
        s: S,
        [scale, shift]: [S::V; 2],
        x: S::V,
        d: S::V,
        at: usize,
        lanes: usize,
    ) -> S::V {
        match self {
            Gate::Open => d,
            // SAFETY: the caller's promise.
            Gate::Result(z) => s.where_positive(unsafe { load::<S, PARTIAL>(s, z, at, lanes) }, d),
            Gate::Affine { .. } => s.where_positive(s.fma(x, scale, shift), d),
        }
    }
}

/// A map per element, to one or two images.
pub(super) trait Mapping {
    /// Elements of each image it reads and writes.
    fn len(&self) -> usize;

    /// As [`Summand::constants`], for what it multiplies and adds.
    ///
    /// # Safety
    /// As [`Summand::constants`].
    unsafe fn constants<S: Simd, const PARTIAL: bool>(
        &self,
        s: S,
        channel: usize,
        lanes: usize,
    ) -> [S::V; 5];

    /// Maps the elements from `at`.
    ///
    /// # Safety
    /// As [`Summand::terms`].
    unsafe fn map<S: Simd, const PARTIAL: bool>(
        &mut self,
        s: S,
        k: &[S::V; 5],
        at: usize,
        lanes: usize,
    );
}

/// `z = x · scale + shift`, plus a residual, through ReLU.
pub(super) struct Normalise<'a> {
    pub xs: &'a [f32],
    pub scale: &'a [f32],
    pub shift: &'a [f32],
    pub residual: Option<&'a [f32]>,
    pub relu: bool,
    pub z: &'a mut [f32],
}

impl Mapping for Normalise<'_> {
    fn len(&self) -> usize {
        assert!(self.residual.is_none_or(|residual| residual.len() == self.xs.len()));
        assert_eq!(self.z.len(), self.xs.len());
        self.xs.len()
    }

    #[inline(always)]
    unsafe fn constants<S: Simd, const PARTIAL: bool>(
        &self,
        s: S,
        channel: usize,
        lanes: usize,
    ) -> [S::V; 5] {
        let floor = s.splat(if self.relu { 0.0 } else { f32::NEG_INFINITY });
        // SAFETY: the caller's promise.
        unsafe {
            let scale = load::<S, PARTIAL>(s, self.scale, channel, lanes);
            let shift = load::<S, PARTIAL>(s, self.shift, channel, lanes);
            [scale, shift, floor, s.zero(), s.zero()]
        }
    }

    #[inline(always)]
    unsafe fn map<S: Simd, const PARTIAL: bool>(
        &mut self,
        s: S,
        [scale, shift, floor, ..]: &[S::V; 5],
        at: usize,
        lanes: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let x = load::<S, PARTIAL>(s, self.xs, at, lanes);
            let mut z = s.fma(x, *scale, *shift);
            if let Some(residual) = self.residual {
                z = s.add(z, load::<S, PARTIAL>(s, residual, at, lanes));
            }
            // In this order a NaN stays one.
            store::<S, PARTIAL>(s, self.z, at, s.max(*floor, z), lanes);
        }
    }
}

/// `dx = d · by_gradient + x · by_input + constant` for the gradient `d` that passes the gate, in place.
pub(super) struct Backward<'a> {
    pub xs: &'a [f32],
    pub gate: Gate<'a>,
    pub by_gradient: &'a [f32],
    pub by_input: &'a [f32],
    pub constant: &'a [f32],
    /// The result's gradient, which becomes the input's.
    pub gradient: &'a mut [f32],
}

impl Mapping for Backward<'_> {
    fn len(&self) -> usize {
        assert_eq!(self.gradient.len(), self.xs.len());
        if let Gate::Result(z) = self.gate {
            assert_eq!(z.len(), self.xs.len());
        }
        self.xs.len()
    }

    #[inline(always)]
    unsafe fn constants<S: Simd, const PARTIAL: bool>(
        &self,
        s: S,
        channel: usize,
        lanes: usize,
    ) -> [S::V; 5] {
        // SAFETY: the caller's promise.
        unsafe {
            let [scale, shift] = self.gate.constants::<S, PARTIAL>(s, channel, lanes);
            [
                load::<S, PARTIAL>(s, self.by_gradient, channel, lanes),
                load::<S, PARTIAL>(s, self.by_input, channel, lanes),
                load::<S, PARTIAL>(s, self.constant, channel, lanes),
                scale,
                shift,
            ]
        }
    }

    #[inline(always)]
    unsafe fn map<S: Simd, const PARTIAL: bool>(
        &mut self,
        s: S,
        [by_gradient, by_input, constant, scale, shift]: &[S::V; 5],
        at: usize,
        lanes: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let x = load::<S, PARTIAL>(s, self.xs, at, lanes);
            let d = load::<S, PARTIAL>(s, self.gradient, at, lanes);
            let d = self.gate.pass::<S, PARTIAL>(s, [*scale, *shift], x, d, at, lanes);
            let dx = s.fma(d, *by_gradient, s.fma(x, *by_input, *constant));
            store::<S, PARTIAL>(s, self.gradient, at, dx, lanes);
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
        let (channels, total) = (self.channels, self.mapping.len() / self.channels);
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
        let lanes = S::LANES.min(self.channels - channel);
        let mut k = [[s.zero(); 5]; V];
        for (v, k) in k.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *k = unsafe { self.mapping.constants::<S, PARTIAL>(s, channel + v * S::LANES, lanes) };
        }
        for pixel in first..first + pixels {
            for (v, k) in k.iter().enumerate() {
                let at = pixel * self.channels + channel + v * S::LANES;
                // SAFETY: the caller's promise.
                unsafe { self.mapping.map::<S, PARTIAL>(s, k, at, lanes) };
            }
        }
    }
}
