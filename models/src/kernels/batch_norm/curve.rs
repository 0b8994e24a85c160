//! The passes of batch normalisation with GELU behind it. They are apart from those with ReLU or nothing, because the
//! polynomials of a curve need the registers in which those keep what belongs to the channels.

use std::ops::Range;

use super::passes::{At, Derivative, Mapping, load, store};
use crate::kernels::gelu;
use crate::kernels::simd::Simd;
use crate::parameters::Gelu;

/// `z = gelu(x · scale + shift)`.
pub(super) struct Curved<'a> {
    pub form: Gelu,
    pub xs: &'a [f32],
    pub scale: &'a [f32],
    pub shift: &'a [f32],
    pub z: &'a mut [f32],
}

impl Mapping for Curved<'_> {
    fn len(&self, channels: usize, _: usize) -> usize {
        assert_eq!(self.z.len(), self.xs.len());
        assert_eq!([self.scale.len(), self.shift.len()], [channels; 2]);
        self.xs.len()
    }

    #[inline(always)]
    unsafe fn constants<S: Simd, const PARTIAL: bool>(&self, s: S, at: At) -> [S::V; 5] {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = load::<S, PARTIAL>(s, self.scale, at);
            let shift = load::<S, PARTIAL>(s, self.shift, at);
            [scale, shift, s.zero(), s.zero(), s.zero()]
        }
    }

    #[inline(always)]
    unsafe fn map<S: Simd, const PARTIAL: bool>(&mut self, s: S, k: &[S::V; 5], at: At) {
        let [scale, shift, ..] = *k;
        // SAFETY: the caller's promise.
        unsafe {
            let x = load::<S, PARTIAL>(s, self.xs, at);
            let z = gelu::value(s, self.form, s.fma(x, scale, shift));
            store::<S, PARTIAL>(s, self.z, at, z);
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
    unsafe fn constants<S: Simd, const PARTIAL: bool>(&self, s: S, at: At) -> [S::V; 2] {
        // SAFETY: the caller's promise.
        unsafe { [load::<S, PARTIAL>(s, self.scale, at), load::<S, PARTIAL>(s, self.shift, at)] }
    }

    #[inline(always)]
    unsafe fn pass<S: Simd>(&self, s: S, k: [S::V; 2], x: S::V, d: S::V, _: At) -> S::V {
        s.mul(d, gelu::slope(s, self.form, s.fma(x, k[0], k[1])))
    }
}
