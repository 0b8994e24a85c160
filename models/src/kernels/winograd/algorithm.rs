//! Minimal filtering in one dimension: A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks"
//! (CVPR 2016), after S. Winograd.
//!
//! `y = Aᵀ((G g) ⊙ (Bᵀ d))` are the outputs `y` of a filter with the three taps `g` on the inputs `d`. Transposing
//! the whole gives the gradient of the taps from the same points: `dg = Gᵀ((A dy) ⊙ (Bᵀ d))`.

use crate::kernels::simd::Simd;

/// Points of the taps, in one dimension.
pub(super) const TAPS: usize = 6;

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

/// F(4, 3) at 0, ±1, ±2, ∞: stride 1. Its own input gradient, with the taps reversed.
pub(super) mod unit {
    use super::{Map, Simd};

    /// The point of the taps that each product takes.
    pub(in crate::kernels::winograd) const PRODUCTS: [usize; 6] = [0, 1, 2, 3, 4, 5];

    maps! {
        /// `Bᵀ d`
        Input, 6 => 6, |s, d| {
            let four = s.splat(4.0);
            let five = s.splat(5.0);
            let two = s.splat(2.0);
            let a = s.nfma(four, d[2], d[4]);
            let b = s.nfma(four, d[1], d[3]);
            let c = s.sub(d[4], d[2]);
            let e = s.sub(d[3], d[1]);
            [
                s.fma(four, d[0], s.nfma(five, d[2], d[4])),
                s.add(a, b),
                s.sub(a, b),
                s.fma(two, e, c),
                s.nfma(two, e, c),
                s.fma(four, d[1], s.nfma(five, d[3], d[5])),
            ]
        }

        /// `G g`
        Weight, 3 => 6, |s, g| {
            let sixth = s.splat(1.0 / 6.0);
            let twelfth = s.splat(1.0 / 12.0);
            let outer = s.mul(sixth, s.add(g[0], g[2]));
            let far = s.fma(sixth, g[2], s.mul(s.splat(1.0 / 24.0), g[0]));
            let minus = s.sub(s.zero(), outer);
            [
                s.mul(s.splat(0.25), g[0]),
                s.nfma(sixth, g[1], minus),
                s.fma(sixth, g[1], minus),
                s.fma(twelfth, g[1], far),
                s.nfma(twelfth, g[1], far),
                g[2],
            ]
        }

        /// `Aᵀ m`
        Output, 6 => 4, |s, m| {
            let (s1, d1) = (s.add(m[1], m[2]), s.sub(m[1], m[2]));
            let (s2, d2) = (s.add(m[3], m[4]), s.sub(m[3], m[4]));
            [
                s.add(s.add(m[0], s1), s2),
                s.fma(s.splat(2.0), d2, d1),
                s.fma(s.splat(4.0), s2, s1),
                s.add(s.fma(s.splat(8.0), d2, d1), m[5]),
            ]
        }

        /// `A y`
        OutputTransposed, 4 => 6, |s, y| {
            let (even, odd) = (s.add(y[0], y[2]), s.add(y[1], y[3]));
            let four = s.splat(4.0);
            let two = s.splat(2.0);
            let far_even = s.fma(four, y[2], y[0]);
            let far_odd = s.fma(four, y[3], y[1]);
            [
                y[0],
                s.add(even, odd),
                s.sub(even, odd),
                s.fma(two, far_odd, far_even),
                s.nfma(two, far_odd, far_even),
                y[3],
            ]
        }

        /// `Gᵀ m`
        WeightTransposed, 6 => 3, |s, m| {
            let sixth = s.splat(1.0 / 6.0);
            let (near, near_odd) = (s.add(m[1], m[2]), s.sub(m[2], m[1]));
            let (far, far_odd) = (s.add(m[3], m[4]), s.sub(m[3], m[4]));
            [
                s.fma(s.splat(0.25), m[0], s.nfma(sixth, near, s.mul(s.splat(1.0 / 24.0), far))),
                s.fma(sixth, near_odd, s.mul(s.splat(1.0 / 12.0), far_odd)),
                s.nfma(sixth, near, s.fma(sixth, far, m[5])),
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
    pub(in crate::kernels::winograd) const PRODUCTS: [usize; 9] = [0, 0, 0, 0, 1, 2, 3, 4, 5];

    maps! {
        /// `Bᵀ d`
        Input, 9 => 9, |s, d| {
            let p = pair::Input::apply(s, [d[0], d[2], d[4], d[6], d[8]]);
            [d[1], d[3], d[5], d[7], p[0], p[1], p[2], p[3], p[4]]
        }

        /// `G g`
        Weight, 3 => 6, |s, g| {
            let p = pair::Weight::apply(s, [g[0], g[2]]);
            [g[1], p[0], p[1], p[2], p[3], p[4]]
        }

        /// `Aᵀ m`
        Output, 9 => 4, |s, m| {
            let p = pair::Output::apply(s, [m[4], m[5], m[6], m[7], m[8]]);
            [s.add(m[0], p[0]), s.add(m[1], p[1]), s.add(m[2], p[2]), s.add(m[3], p[3])]
        }

        /// `A y`
        OutputTransposed, 4 => 9, |s, y| {
            let p = pair::OutputTransposed::apply(s, y);
            [y[0], y[1], y[2], y[3], p[0], p[1], p[2], p[3], p[4]]
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
            [d[0], d[1], d[2], d[3], p[0], p[1], p[2], p[3], p[4]]
        }

        /// `Aᵀ m`
        Output, 9 => 8, |s, m| {
            let p = pair::Output::apply(s, [m[4], m[5], m[6], m[7], m[8]]);
            [m[0], p[0], m[1], p[1], m[2], p[2], m[3], p[3]]
        }
    }
}
