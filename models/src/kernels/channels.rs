//! Passes over the pixels of images with what belongs to each channel in registers: sums per channel, and maps per element.
//!
//! NHWC pixels are walked block by block, and within a block channel group by channel group. The simple form of a walk is
//! to visit every vector of every pixel in turn and to add what it gives to the sums of its channels; the order here makes
//! of it that the constants of a group are loaded once for a block, and that sums run in f32 within a block alone.

use super::element::Element;
use super::simd::{Kernel, Simd};

/// Pixels summed in f32 before the sum goes on in f64.
pub(super) const BLOCK: usize = 128;

/// Elements of a span, about: what one thread takes at a time.
const SPAN: usize = 128 << 10;

/// Elements between what is read or written and what is asked for meanwhile: a pass waits for memory, not for its
/// arithmetic.
const AHEAD: usize = 512;

/// Pixels of a span of images with so many channels: whole blocks.
pub(super) fn span(channels: usize) -> usize {
    (SPAN / channels).max(1).next_multiple_of(BLOCK)
}

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

/// Loads a vector of channels, or the first lanes of one if partial.
///
/// # Safety
/// `xs` holds the elements at `at`, a whole vector unless `PARTIAL`.
#[inline(always)]
pub(super) unsafe fn load<S: Simd, E: Element, const PARTIAL: bool>(
    s: S,
    xs: &[E],
    at: At,
) -> S::V {
    debug_assert!(at.element + at.lanes <= xs.len());
    s.prefetch(xs.as_ptr().wrapping_add(at.element + AHEAD).cast());
    // SAFETY: the caller's promise.
    unsafe { E::load::<S, PARTIAL>(s, xs.as_ptr().add(at.element), at.lanes) }
}

/// Writes a vector of channels, or the first lanes of one if partial.
///
/// # Safety
/// `out` has room for the elements at `at`, a whole vector unless `PARTIAL`.
#[inline(always)]
pub(super) unsafe fn store<S: Simd, E: Element, const PARTIAL: bool>(
    s: S,
    out: &mut [E],
    at: At,
    v: S::V,
) {
    debug_assert!(at.element + at.lanes <= out.len());
    s.prefetch(out.as_ptr().wrapping_add(at.element + AHEAD).cast());
    // SAFETY: the caller's promise.
    unsafe { E::store::<S, PARTIAL>(s, out.as_mut_ptr().add(at.element), v, at.lanes) }
}

/// What is done with each vector of channels of each pixel.
pub(super) trait Pass {
    /// Whether what [`visit`](Self::visit) gives is summed.
    const SUMS: bool;

    /// Elements of each image it reads and writes. Panics if they are not as many, if what belongs to the channels has
    /// not one element for each of `channels`, or if what has bits has not those of `vectors` vectors for each pixel.
    fn len(&self, channels: usize, vectors: usize) -> usize;

    /// What it keeps in registers for the channels at `at`, a vector of the first pixel.
    ///
    /// # Safety
    /// There are these channels; they are a whole vector unless `PARTIAL`.
    unsafe fn constants<S: Simd, const PARTIAL: bool>(&self, s: S, at: At) -> [S::V; 5];

    /// Reads and writes the elements at `at`. Of `a` and `b`, which it returns, `Σ a` and `Σ a·b` are summed.
    ///
    /// # Safety
    /// There are these elements; they are a whole vector unless `PARTIAL`.
    unsafe fn visit<S: Simd, const PARTIAL: bool>(
        &mut self,
        s: S,
        k: &[S::V; 5],
        at: At,
    ) -> (S::V, S::V);
}

/// Runs a pass over all its pixels, and adds its sums per channel to `sums`, which are empty for a pass without.
pub(super) struct Walk<'a, P> {
    pub pass: P,
    pub channels: usize,
    pub sums: [&'a mut [f64]; 2],
}

impl<P: Pass> Walk<'_, P> {
    /// A walk that sums nothing.
    pub(super) fn without_sums(pass: P, channels: usize) -> Self {
        Self { pass, channels, sums: [&mut [], &mut []] }
    }
}

impl<P: Pass> Kernel for Walk<'_, P> {
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let channels = self.channels;
        let total = self.pass.len(channels, channels.div_ceil(S::LANES)) / channels;
        assert!(!P::SUMS || self.sums.iter().all(|sums| sums.len() == channels));
        for first in (0..total).step_by(BLOCK) {
            let pixels = BLOCK.min(total - first);
            let mut channel = 0;
            // SAFETY: the block's pixels and the groups of channels lie inside every image, whose lengths `len` has
            // compared.
            unsafe {
                while channel + 4 * S::LANES <= channels {
                    self.group::<S, 4, 1, false>(s, first, pixels, channel);
                    channel += 4 * S::LANES;
                }
                while channel + S::LANES <= channels {
                    self.group::<S, 1, 4, false>(s, first, pixels, channel);
                    channel += S::LANES;
                }
                if channel < channels {
                    self.group::<S, 1, 4, true>(s, first, pixels, channel);
                }
            }
        }
    }
}

impl<P: Pass> Walk<'_, P> {
    /// The vector of number `v` of a pixel's channels from `channel` on.
    #[inline(always)]
    fn at<S: Simd>(&self, pixel: usize, channel: usize, v: usize) -> At {
        let channel = channel + v * S::LANES;
        At {
            element: pixel * self.channels + channel,
            vector: pixel * self.channels.div_ceil(S::LANES) + channel / S::LANES,
            lanes: S::LANES.min(self.channels - channel),
        }
    }

    /// Visits `V` vectors of a pixel.
    ///
    /// # Safety
    /// As [`group`](Self::group).
    #[inline(always)]
    unsafe fn pixel<S: Simd, const V: usize, const PARTIAL: bool>(
        &mut self,
        s: S,
        k: &[[S::V; 5]; V],
        pixel: usize,
        channel: usize,
        sums: &mut [[S::V; 2]; V],
    ) {
        for (v, sums) in sums.iter_mut().enumerate() {
            let at = self.at::<S>(pixel, channel, v);
            // SAFETY: the caller's promise.
            let (a, b) = unsafe { self.pass.visit::<S, PARTIAL>(s, &k[v], at) };
            if P::SUMS {
                *sums = [s.add(sums[0], a), s.fma(a, b, sums[1])];
            }
        }
    }

    /// A block's `V` vectors of channels, with `U` sums of each that take pixels in turn.
    ///
    /// # Safety
    /// The pixels and channels exist; `PARTIAL` if the last vector is not full.
    #[inline(always)]
    unsafe fn group<S: Simd, const V: usize, const U: usize, const PARTIAL: bool>(
        &mut self,
        s: S,
        first: usize,
        pixels: usize,
        channel: usize,
    ) {
        let mut k = [[s.zero(); 5]; V];
        for (v, k) in k.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *k = unsafe { self.pass.constants::<S, PARTIAL>(s, self.at::<S>(0, channel, v)) };
        }
        let mut sums = [[[s.zero(); 2]; V]; U];
        let whole = pixels / U * U;
        for pixel in (first..first + whole).step_by(U) {
            for (u, sums) in sums.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { self.pixel::<S, V, PARTIAL>(s, &k, pixel + u, channel, sums) };
            }
        }
        for (pixel, sums) in (first + whole..first + pixels).zip(&mut sums) {
            // SAFETY: the caller's promise.
            unsafe { self.pixel::<S, V, PARTIAL>(s, &k, pixel, channel, sums) };
        }
        if !P::SUMS {
            return;
        }
        for v in 0..V {
            for (which, to) in self.sums.iter_mut().enumerate() {
                let sum = (1..U).fold(sums[0][v][which], |sum, u| s.add(sum, sums[u][v][which]));
                let mut values = [0.0; 16];
                s.store(&mut values, sum);
                let start = channel + v * S::LANES;
                let end = (start + S::LANES).min(self.channels);
                for (to, value) in to[start..end].iter_mut().zip(values) {
                    *to += f64::from(value);
                }
            }
        }
    }
}
