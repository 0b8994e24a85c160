//! Minimal filtering in one dimension: A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks"
//! (CVPR 2016), after S. Winograd.
//!
//! The outputs `y` of a filter with the three taps `g` on the inputs `d` are `y = Aᵀ((G g) ⊙ (Bᵀ d))`. The simple form:
//! `y[i] = Σ_j g[j] · d[i + j]`, twelve products for four outputs, where F(4, 3) has six. Transposing the whole gives the
//! gradient of the taps from the same points: `dg = Gᵀ((A dy) ⊙ (Bᵀ d))`.
//!
//! A short tile, of three quarters of the outputs, takes the same points of the taps. Its products are [`short`], the
//! others come last: only outputs (or their gradients) that it lacks depend on them, and only they on its last inputs.

use crate::kernels::simd::Simd;

/// Points of the taps, in one dimension.
pub(super) const TAPS: usize = 6;

/// Of so many products in one dimension those that a short tile takes: F(3, 3) five of six, all but that at ∞.
pub(super) const fn short(products: usize) -> usize {
    products - products / 4
}

/// A linear map of `IN` vectors to `OUT`, lane by lane.
pub(super) trait Map<const IN: usize, const OUT: usize> {
    /// The map of `x`.
    fn apply<S: Simd>(s: S, x: [S::V; IN]) -> [S::V; OUT];
}

/// Defines maps `Name, IN => OUT, |s, x| { … }`, each a type that nobody has a value of.
macro_rules! maps {
    ($($(#[$doc:meta])* $name:ident, $from:literal => $to:literal, |$s:ident, $x:ident| $map:block)*) => {$(
        $(#[$doc])*
        pub(in crate::kernels::winograd) struct $name;

        impl Map<$from, $to> for $name {
            #[inline(always)]
            fn apply<S: Simd>($s: S, $x: [S::V; $from]) -> [S::V; $to] $map
        }
    )*};
}

/// F(4, 3) at 0, ±2/3, ±3/2, ∞: stride 1. Its own input gradient, with the taps reversed. At the usual ±1 and ±2 the
/// rounding error would be twice as large.
pub(super) mod unit {
    use super::{Map, Simd};

    /// The point of the taps that each product takes.
    pub(in crate::kernels::winograd) const PRODUCTS: [usize; 6] = [0, 1, 2, 3, 4, 5];

    const NEAR: f32 = 2.0 / 3.0;
    const NEAR_2: f32 = 4.0 / 9.0;
    const NEAR_3: f32 = 8.0 / 27.0;
    const FAR: f32 = 3.0 / 2.0;
    const FAR_2: f32 = 9.0 / 4.0;
    const FAR_3: f32 = 27.0 / 8.0;
    /// What Lagrange's polynomials of the points are divided by.
    const BY_NEAR: f32 = -81.0 / 130.0;
    const BY_FAR: f32 = 8.0 / 65.0;

    maps! {
        /// `Bᵀ d`
        Input, 6 => 6, |s, d| {
            let both = s.splat(97.0 / 36.0);
            let [near, far] = [NEAR, FAR].map(|x| s.splat(x));
            let [near_2, far_2] = [NEAR_2, FAR_2].map(|x| s.splat(x));
            let (near_even, near_odd) = (s.nfma(far_2, d[2], d[4]), s.nfma(far_2, d[1], d[3]));
            let (far_even, far_odd) = (s.nfma(near_2, d[2], d[4]), s.nfma(near_2, d[1], d[3]));
            [
                s.nfma(both, d[2], s.add(d[0], d[4])),
                s.fma(near, near_odd, near_even),
                s.nfma(near, near_odd, near_even),
                s.fma(far, far_odd, far_even),
                s.nfma(far, far_odd, far_even),
                s.nfma(both, d[3], s.add(d[1], d[5])),
            ]
        }

        /// `G g`
        Weight, 3 => 6, |s, g| {
            let near_odd = s.splat(BY_NEAR * NEAR);
            let far_odd = s.splat(BY_FAR * FAR);
            let near = s.fma(s.splat(BY_NEAR * NEAR_2), g[2], s.mul(s.splat(BY_NEAR), g[0]));
            let far = s.fma(s.splat(BY_FAR * FAR_2), g[2], s.mul(s.splat(BY_FAR), g[0]));
            [
                g[0],
                s.fma(near_odd, g[1], near),
                s.nfma(near_odd, g[1], near),
                s.fma(far_odd, g[1], far),
                s.nfma(far_odd, g[1], far),
                g[2],
            ]
        }

        /// `Aᵀ m`
        Output, 6 => 4, |s, m| {
            let (near, near_odd) = (s.add(m[1], m[2]), s.sub(m[1], m[2]));
            let (far, far_odd) = (s.add(m[3], m[4]), s.sub(m[3], m[4]));
            [
                s.add(s.add(m[0], near), far),
                s.fma(s.splat(FAR), far_odd, s.mul(s.splat(NEAR), near_odd)),
                s.fma(s.splat(FAR_2), far, s.mul(s.splat(NEAR_2), near)),
                s.fma(s.splat(FAR_3), far_odd, s.fma(s.splat(NEAR_3), near_odd, m[5])),
            ]
        }

        /// `A y`
        OutputTransposed, 4 => 6, |s, y| {
            let [near, far] = [NEAR, FAR].map(|x| s.splat(x));
            let [near_2, far_2] = [NEAR_2, FAR_2].map(|x| s.splat(x));
            let (near_even, near_odd) = (s.fma(near_2, y[2], y[0]), s.fma(near_2, y[3], y[1]));
            let (far_even, far_odd) = (s.fma(far_2, y[2], y[0]), s.fma(far_2, y[3], y[1]));
            [
                y[0],
                s.fma(near, near_odd, near_even),
                s.nfma(near, near_odd, near_even),
                s.fma(far, far_odd, far_even),
                s.nfma(far, far_odd, far_even),
                y[3],
            ]
        }

        /// `Gᵀ m`
        WeightTransposed, 6 => 3, |s, m| {
            let (near, near_odd) = (s.add(m[1], m[2]), s.sub(m[1], m[2]));
            let (far, far_odd) = (s.add(m[3], m[4]), s.sub(m[3], m[4]));
            let [by_near, by_far] = [BY_NEAR, BY_FAR].map(|x| s.splat(x));
            [
                s.fma(by_near, near, s.fma(by_far, far, m[0])),
                s.fma(s.splat(BY_NEAR * NEAR), near_odd, s.mul(s.splat(BY_FAR * FAR), far_odd)),
                s.fma(s.splat(BY_NEAR * NEAR_2), near, s.fma(s.splat(BY_FAR * FAR_2), far, m[5])),
            ]
        }
    }
}

/// F(4, 2) at 0, ±1, 2, ∞: what is left of a strided filter on the odd inputs.
mod pair {
    use super::{Map, Simd};

    maps! {
        /// `Bᵀ d`
        Input, 5 => 5, |s, d| {
            let two = s.splat(2.0);
            let t = s.sub(d[3], d[1]);
            [
                s.fma(two, s.sub(d[0], d[2]), t),
                s.sub(t, s.add(d[1], d[2])),
                s.fma(s.splat(3.0), s.sub(d[1], d[2]), t),
                t,
                s.nfma(two, t, s.sub(d[4], d[2])),
            ]
        }

        /// `G g`
        Weight, 2 => 5, |s, g| {
            let sixth = s.splat(1.0 / 6.0);
            [
                s.mul(s.splat(0.5), g[0]),
                s.mul(s.splat(-0.5), s.add(g[0], g[1])),
                s.mul(sixth, s.sub(g[1], g[0])),
                s.mul(sixth, s.fma(s.splat(2.0), g[1], g[0])),
                g[1],
            ]
        }

        /// `Aᵀ m`
        Output, 5 => 4, |s, m| {
            let (sum, difference) = (s.add(m[1], m[2]), s.sub(m[1], m[2]));
            [
                s.add(s.add(m[0], sum), m[3]),
                s.fma(s.splat(2.0), m[3], difference),
                s.fma(s.splat(4.0), m[3], sum),
                s.add(s.fma(s.splat(8.0), m[3], difference), m[4]),
            ]
        }

        /// `A y`
        OutputTransposed, 4 => 5, |s, y| {
            let (even, odd) = (s.add(y[0], y[2]), s.add(y[1], y[3]));
            let four = s.splat(4.0);
            let (far_even, far_odd) = (s.fma(four, y[2], y[0]), s.fma(four, y[3], y[1]));
            [y[0], s.add(even, odd), s.sub(even, odd), s.fma(s.splat(2.0), far_odd, far_even), y[3]]
        }

        /// `Gᵀ m`
        WeightTransposed, 5 => 2, |s, m| {
            let half = s.splat(0.5);
            let sixth = s.splat(1.0 / 6.0);
            [
                s.fma(half, s.sub(m[0], m[1]), s.mul(sixth, s.sub(m[3], m[2]))),
                s.fma(sixth, s.fma(s.splat(2.0), m[3], m[2]), s.nfma(half, m[1], m[4])),
            ]
        }
    }
}

/// Stride 2: the middle tap falls on every other input, four products as they are; the outer two on the inputs
/// between, [`pair`]. Nine products for four outputs instead of twelve, so 81 instead of 144 in two dimensions.
pub(super) mod halving {
    use super::{Map, Simd, pair};

    /// The point of the taps that each product takes.
    pub(in crate::kernels::winograd) const PRODUCTS: [usize; 9] = [0, 0, 0, 1, 2, 3, 4, 0, 5];

    maps! {
        /// `Bᵀ d`
        Input, 9 => 9, |s, d| {
            let p = pair::Input::apply(s, [d[0], d[2], d[4], d[6], d[8]]);
            [d[1], d[3], d[5], p[0], p[1], p[2], p[3], d[7], p[4]]
        }

        /// `G g`
        Weight, 3 => 6, |s, g| {
            let p = pair::Weight::apply(s, [g[0], g[2]]);
            [g[1], p[0], p[1], p[2], p[3], p[4]]
        }

        /// `Aᵀ m`
        Output, 9 => 4, |s, m| {
            let p = pair::Output::apply(s, [m[3], m[4], m[5], m[6], m[8]]);
            [s.add(m[0], p[0]), s.add(m[1], p[1]), s.add(m[2], p[2]), s.add(m[7], p[3])]
        }

        /// `A y`
        OutputTransposed, 4 => 9, |s, y| {
            let p = pair::OutputTransposed::apply(s, y);
            [y[0], y[1], y[2], p[0], p[1], p[2], p[3], y[3], p[4]]
        }

        /// `Gᵀ m`
        WeightTransposed, 6 => 3, |s, m| {
            let p = pair::WeightTransposed::apply(s, [m[1], m[2], m[3], m[4], m[5]]);
            [p[0], m[0], p[1]]
        }
    }
}

/// The input gradient of [`halving`]: from five gradients the eight inputs between them. The points of the weights
/// are [`halving::Weight`] of the taps reversed.
pub(super) mod doubling {
    use super::{Map, Simd, pair};

    maps! {
        /// `Bᵀ d`
        Input, 5 => 9, |s, d| {
            let p = pair::Input::apply(s, d);
            [d[0], d[1], d[2], p[0], p[1], p[2], p[3], d[3], p[4]]
        }

        /// `Aᵀ m`
        Output, 9 => 8, |s, m| {
            let p = pair::Output::apply(s, [m[3], m[4], m[5], m[6], m[8]]);
            [m[0], p[0], m[1], p[1], m[2], p[2], m[7], p[3]]
        }
    }
}
