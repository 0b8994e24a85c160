//! Sums per channel over memory.

use super::passes::{At, BLOCK, Constants, Derivative, load, store};
use crate::kernels::counts::product;
use crate::kernels::memory::Target;
use crate::kernels::simd::{Kernel, Simd};

/// What is summed per channel: `Σ a` and `Σ a·b`.
pub(super) trait Summand {
    /// Elements of each image it reads and writes. Panics if they are not as many, if what belongs to the channels has
    /// not one element for each of `channels`, or if what has bits has not those of `vectors` vectors for each pixel.
    fn len(&self, channels: usize, vectors: usize) -> usize;

    /// What it keeps in registers for the channels at `at`, a vector of the first pixel.
    ///
    /// # Safety
    /// There are these channels; they are a whole vector unless `PARTIAL`.
    unsafe fn constants<S: Simd, const PARTIAL: bool>(&self, s: S, at: At) -> Constants<S::V>;

    /// `a` and `b` of the elements at `at`.
    ///
    /// # Safety
    /// There are these elements; they are a whole vector unless `PARTIAL`.
    unsafe fn terms<S: Simd, const PARTIAL: bool>(
        &mut self,
        s: S,
        k: &Constants<S::V>,
        at: At,
    ) -> (S::V, S::V);
}

/// Deviations from a pivot: their sum and the sum of their squares.
pub(super) struct Deviations<'a> {
    pub xs: &'a [f32],
    pub pivot: &'a [f32],
}

impl Summand for Deviations<'_> {
    fn len(&self, channels: usize, _: usize) -> usize {
        assert_eq!(self.pivot.len(), channels);
        self.xs.len()
    }

    #[inline(always)]
    unsafe fn constants<S: Simd, const PARTIAL: bool>(&self, s: S, at: At) -> Constants<S::V> {
        // SAFETY: the caller's promise.
        unsafe { [load::<S, PARTIAL>(s, self.pivot, at), s.zero(), s.zero()] }
    }

    #[inline(always)]
    unsafe fn terms<S: Simd, const PARTIAL: bool>(
        &mut self,
        s: S,
        [pivot, ..]: &Constants<S::V>,
        at: At,
    ) -> (S::V, S::V) {
        // SAFETY: the caller's promise.
        let x = unsafe { load::<S, PARTIAL>(s, self.xs, at) };
        let deviation = s.sub(x, *pivot);
        (deviation, deviation)
    }
}

/// The gradient that the activation leaves: its sum, and the sum of its products with the deviations from the mean; it goes to
/// the residual as well.
pub(super) struct Gradients<'a, D> {
    pub xs: &'a [f32],
    pub dz: &'a [f32],
    pub gate: D,
    pub mean: &'a [f32],
    pub residual: Option<Target<'a>>,
}

impl<D: Derivative> Summand for Gradients<'_, D> {
    fn len(&self, channels: usize, vectors: usize) -> usize {
        assert_eq!(self.dz.len(), self.xs.len());
        assert!(self.residual.as_ref().is_none_or(|residual| residual.len() == self.xs.len()));
        assert_eq!(self.mean.len(), channels);
        self.gate.check(channels, self.xs.len() / channels * vectors);
        self.xs.len()
    }

    #[inline(always)]
    unsafe fn constants<S: Simd, const PARTIAL: bool>(&self, s: S, at: At) -> Constants<S::V> {
        // SAFETY: the caller's promise.
        unsafe {
            let [scale, shift] = self.gate.constants::<S, PARTIAL>(s, at);
            [load::<S, PARTIAL>(s, self.mean, at), scale, shift]
        }
    }

    #[inline(always)]
    unsafe fn terms<S: Simd, const PARTIAL: bool>(
        &mut self,
        s: S,
        [mean, scale, shift]: &Constants<S::V>,
        at: At,
    ) -> (S::V, S::V) {
        // SAFETY: the caller's promise.
        unsafe {
            let x = load::<S, PARTIAL>(s, self.xs, at);
            let d = load::<S, PARTIAL>(s, self.dz, at);
            let d = self.gate.pass(s, [*scale, *shift], x, d, at);
            match &mut self.residual {
                None => {}
                Some(Target::Write(residual)) => store::<S, PARTIAL>(s, residual, at, d),
                Some(Target::Add(residual)) => {
                    let sum = s.add(load::<S, PARTIAL>(s, residual, at), d);
                    store::<S, PARTIAL>(s, residual, at, sum);
                }
            }
            (d, s.sub(x, *mean))
        }
    }
}

/// Sums over `pixels` pixels: per channel `[Σ a, Σ a·b]`.
pub(super) struct Sums<'a, T> {
    pub summand: T,
    pub channels: usize,
    pub pixels: usize,
    pub to: [&'a mut [f64]; 2],
}

impl<T: Summand> Kernel for Sums<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let (channels, end) = (self.channels, self.pixels);
        let vectors = channels.div_ceil(S::LANES);
        assert!(product([end, channels]) <= self.summand.len(channels, vectors));
        assert!(self.to.iter().all(|to| to.len() == channels));
        let mut first = 0;
        while first < end {
            let pixels = BLOCK.min(end - first);
            let mut channel = 0;
            // SAFETY: the block's pixels and the groups of channels lie inside, as was checked.
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
            first += pixels;
        }
    }
}

impl<T: Summand> Sums<'_, T> {
    /// Adds a block's sums over `V` vectors of channels, `U` pixels at a time.
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
        let lanes = S::LANES.min(self.channels - channel);
        let mut k = [[s.zero(); 3]; V];
        for (v, k) in k.iter_mut().enumerate() {
            let at = At::new::<S>(self.channels, 0, channel + v * S::LANES);
            // SAFETY: the caller's promise.
            *k = unsafe { self.summand.constants::<S, PARTIAL>(s, at) };
        }
        let mut sums = [[[s.zero(); 2]; V]; U];
        let mut pixel = 0;
        while pixel < pixels {
            for (u, sums) in sums.iter_mut().enumerate() {
                if pixel + u < pixels {
                    for (v, sums) in sums.iter_mut().enumerate() {
                        let (pixel, channel) = (first + pixel + u, channel + v * S::LANES);
                        let at = At::new::<S>(self.channels, pixel, channel);
                        // SAFETY: the caller's promise.
                        let (a, b) = unsafe { self.summand.terms::<S, PARTIAL>(s, &k[v], at) };
                        *sums = [s.add(sums[0], a), s.fma(a, b, sums[1])];
                    }
                }
            }
            pixel += U;
        }
        for v in 0..V {
            for (which, to) in self.to.iter_mut().enumerate() {
                let sum = (1..U).fold(sums[0][v][which], |sum, u| s.add(sum, sums[u][v][which]));
                let mut values = [0.0; 16];
                s.store(&mut values, sum);
                let start = channel + v * S::LANES;
                for (to, value) in to[start..start + lanes].iter_mut().zip(values) {
                    *to += f64::from(value);
                }
            }
        }
    }
}
