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

/// F(4, 3) at 0, ±1, ±2, ∞: stride 1. Its own input gradient, with the taps reversed.
pub(super) mod unit {
    use super::{Map, Simd};

    /// The point of the taps that each product takes.
    pub(in crate::kernels::winograd) const PRODUCTS: [usize; 6] = [0, 1, 2, 3, 4, 5];

    /// `Bᵀ d`
    pub(in crate::kernels::winograd) struct Input;
    impl Map<6, 6> for Input {
        #[inline(always)]
        fn apply<S: Simd>(s: S, d: [S::V; 6]) -> [S::V; 6] {
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
    }

    /// `G g`
    pub(in crate::kernels::winograd) struct Weight;
    impl Map<3, 6> for Weight {
        #[inline(always)]
        fn apply<S: Simd>(s: S, g: [S::V; 3]) -> [S::V; 6] {
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
    }

    /// `Aᵀ m`
    pub(in crate::kernels::winograd) struct Output;
    impl Map<6, 4> for Output {
        #[inline(always)]
        fn apply<S: Simd>(s: S, m: [S::V; 6]) -> [S::V; 4] {
            let (s1, d1) = (s.add(m[1], m[2]), s.sub(m[1], m[2]));
            let (s2, d2) = (s.add(m[3], m[4]), s.sub(m[3], m[4]));
            [
                s.add(s.add(m[0], s1), s2),
                s.fma(s.splat(2.0), d2, d1),
                s.fma(s.splat(4.0), s2, s1),
                s.add(s.fma(s.splat(8.0), d2, d1), m[5]),
            ]
        }
    }

    /// `A y`
    pub(in crate::kernels::winograd) struct OutputTransposed;
    impl Map<4, 6> for OutputTransposed {
        #[inline(always)]
        fn apply<S: Simd>(s: S, y: [S::V; 4]) -> [S::V; 6] {
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
    }

    /// `Gᵀ m`
    pub(in crate::kernels::winograd) struct WeightTransposed;
    impl Map<6, 3> for WeightTransposed {
        #[inline(always)]
        fn apply<S: Simd>(s: S, m: [S::V; 6]) -> [S::V; 3] {
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

    /// `Bᵀ d`
    pub(super) struct Input;
    impl Map<5, 5> for Input {
        #[inline(always)]
        fn apply<S: Simd>(s: S, d: [S::V; 5]) -> [S::V; 5] {
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
    }

    /// `G g`
    pub(super) struct Weight;
    impl Map<2, 5> for Weight {
        #[inline(always)]
        fn apply<S: Simd>(s: S, g: [S::V; 2]) -> [S::V; 5] {
            let sixth = s.splat(1.0 / 6.0);
            [
                s.mul(s.splat(0.5), g[0]),
                s.mul(s.splat(-0.5), s.add(g[0], g[1])),
                s.mul(sixth, s.sub(g[1], g[0])),
                s.mul(sixth, s.fma(s.splat(2.0), g[1], g[0])),
                g[1],
            ]
        }
    }

    /// `Aᵀ m`
    pub(super) struct Output;
    impl Map<5, 4> for Output {
        #[inline(always)]
        fn apply<S: Simd>(s: S, m: [S::V; 5]) -> [S::V; 4] {
            let (sum, difference) = (s.add(m[1], m[2]), s.sub(m[1], m[2]));
            [
                s.add(s.add(m[0], sum), m[3]),
                s.fma(s.splat(2.0), m[3], difference),
                s.fma(s.splat(4.0), m[3], sum),
                s.add(s.fma(s.splat(8.0), m[3], difference), m[4]),
            ]
        }
    }

    /// `A y`
    pub(super) struct OutputTransposed;
    impl Map<4, 5> for OutputTransposed {
        #[inline(always)]
        fn apply<S: Simd>(s: S, y: [S::V; 4]) -> [S::V; 5] {
            let (even, odd) = (s.add(y[0], y[2]), s.add(y[1], y[3]));
            let four = s.splat(4.0);
            let (far_even, far_odd) = (s.fma(four, y[2], y[0]), s.fma(four, y[3], y[1]));
            [y[0], s.add(even, odd), s.sub(even, odd), s.fma(s.splat(2.0), far_odd, far_even), y[3]]
        }
    }

    /// `Gᵀ m`
    pub(super) struct WeightTransposed;
    impl Map<5, 2> for WeightTransposed {
        #[inline(always)]
        fn apply<S: Simd>(s: S, m: [S::V; 5]) -> [S::V; 2] {
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

    /// `Bᵀ d`
    pub(in crate::kernels::winograd) struct Input;
    impl Map<9, 9> for Input {
        #[inline(always)]
        fn apply<S: Simd>(s: S, d: [S::V; 9]) -> [S::V; 9] {
            let p = pair::Input::apply(s, [d[0], d[2], d[4], d[6], d[8]]);
            [d[1], d[3], d[5], d[7], p[0], p[1], p[2], p[3], p[4]]
        }
    }

    /// `G g`
    pub(in crate::kernels::winograd) struct Weight;
    impl Map<3, 6> for Weight {
        #[inline(always)]
        fn apply<S: Simd>(s: S, g: [S::V; 3]) -> [S::V; 6] {
            let p = pair::Weight::apply(s, [g[0], g[2]]);
            [g[1], p[0], p[1], p[2], p[3], p[4]]
        }
    }

    /// `Aᵀ m`
    pub(in crate::kernels::winograd) struct Output;
    impl Map<9, 4> for Output {
        #[inline(always)]
        fn apply<S: Simd>(s: S, m: [S::V; 9]) -> [S::V; 4] {
            let p = pair::Output::apply(s, [m[4], m[5], m[6], m[7], m[8]]);
            [s.add(m[0], p[0]), s.add(m[1], p[1]), s.add(m[2], p[2]), s.add(m[3], p[3])]
        }
    }

    /// `A y`
    pub(in crate::kernels::winograd) struct OutputTransposed;
    impl Map<4, 9> for OutputTransposed {
        #[inline(always)]
        fn apply<S: Simd>(s: S, y: [S::V; 4]) -> [S::V; 9] {
            let p = pair::OutputTransposed::apply(s, y);
            [y[0], y[1], y[2], y[3], p[0], p[1], p[2], p[3], p[4]]
        }
    }

    /// `Gᵀ m`
    pub(in crate::kernels::winograd) struct WeightTransposed;
    impl Map<6, 3> for WeightTransposed {
        #[inline(always)]
        fn apply<S: Simd>(s: S, m: [S::V; 6]) -> [S::V; 3] {
            let p = pair::WeightTransposed::apply(s, [m[1], m[2], m[3], m[4], m[5]]);
            [p[0], m[0], p[1]]
        }
    }
}

/// The input gradient of [`halving`]: from five gradients the eight inputs between them. The points of the weights
/// are [`halving::Weight`] of the taps reversed.
pub(super) mod doubling {
    use super::{Map, Simd, pair};

    /// `Bᵀ d`
    pub(in crate::kernels::winograd) struct Input;
    impl Map<5, 9> for Input {
        #[inline(always)]
        fn apply<S: Simd>(s: S, d: [S::V; 5]) -> [S::V; 9] {
            let p = pair::Input::apply(s, d);
            [d[0], d[1], d[2], d[3], p[0], p[1], p[2], p[3], p[4]]
        }
    }

    /// `Aᵀ m`
    pub(in crate::kernels::winograd) struct Output;
    impl Map<9, 8> for Output {
        #[inline(always)]
        fn apply<S: Simd>(s: S, m: [S::V; 9]) -> [S::V; 8] {
            let p = pair::Output::apply(s, [m[4], m[5], m[6], m[7], m[8]]);
            [m[0], p[0], m[1], p[1], m[2], p[2], m[3], p[3]]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::simd::{Isa, Kernel};

    /// The transforms on one lane, against the filter written out.
    struct Check;

    fn broadcast<S: Simd, const N: usize>(s: S, x: [f32; N]) -> [S::V; N] {
        x.map(|x| s.splat(x))
    }

    fn first<S: Simd, const N: usize>(s: S, x: [S::V; N]) -> [f32; N] {
        x.map(|x| {
            let mut lanes = [0.0; 16];
            s.store(&mut lanes, x);
            lanes[0]
        })
    }

    fn close(a: &[f32], b: &[f32]) {
        assert_eq!(a.len(), b.len());
        for (a, b) in a.iter().zip(b) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }

    fn products<S: Simd, const N: usize>(s: S, a: [S::V; N], b: [S::V; N]) -> [S::V; N] {
        std::array::from_fn(|i| s.mul(a[i], b[i]))
    }

    /// What each product takes of the points of the taps.
    fn shared<V: Copy>(points: [V; TAPS]) -> [V; 9] {
        halving::PRODUCTS.map(|tap| points[tap])
    }

    impl Kernel for Check {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let g = [0.7, -0.4, 1.3];
            let weight = broadcast(s, g);

            let d = [0.3, -1.1, 0.8, 0.5, -0.2, 0.9];
            let points = unit::Input::apply(s, broadcast(s, d));
            let y = first(
                s,
                unit::Output::apply(s, products(s, points, unit::Weight::apply(s, weight))),
            );
            let expected: [f32; 4] = std::array::from_fn(|i| (0..3).map(|k| d[i + k] * g[k]).sum());
            close(&y, &expected);
            let dy = [0.6, -0.9, 0.1, 0.4];
            let transposed = unit::OutputTransposed::apply(s, broadcast(s, dy));
            let dg = first(s, unit::WeightTransposed::apply(s, products(s, points, transposed)));
            let expected: [f32; 3] =
                std::array::from_fn(|k| (0..4).map(|i| d[i + k] * dy[i]).sum());
            close(&dg, &expected);

            let d = [0.3, -1.1, 0.8, 0.5, -0.2, 0.9, 1.4, -0.6, 0.2];
            let points = halving::Input::apply(s, broadcast(s, d));
            let y = first(
                s,
                halving::Output::apply(
                    s,
                    products(s, points, shared(halving::Weight::apply(s, weight))),
                ),
            );
            let expected: [f32; 4] =
                std::array::from_fn(|i| (0..3).map(|k| d[2 * i + k] * g[k]).sum());
            close(&y, &expected);
            let transposed = halving::OutputTransposed::apply(s, broadcast(s, dy));
            let mut sums = [s.zero(); TAPS];
            for (product, tap) in products(s, points, transposed).into_iter().zip(halving::PRODUCTS)
            {
                sums[tap] = s.add(sums[tap], product);
            }
            let dg = first(s, halving::WeightTransposed::apply(s, sums));
            let expected: [f32; 3] =
                std::array::from_fn(|k| (0..4).map(|i| d[2 * i + k] * dy[i]).sum());
            close(&dg, &expected);

            let dy = [0.6, -0.9, 0.1, 0.4, -0.7];
            let reversed = broadcast(s, [g[2], g[1], g[0]]);
            let points = doubling::Input::apply(s, broadcast(s, dy));
            let dx = first(
                s,
                doubling::Output::apply(
                    s,
                    products(s, points, shared(halving::Weight::apply(s, reversed))),
                ),
            );
            let expected: [f32; 8] = std::array::from_fn(|i| match i % 2 {
                0 => dy[i / 2] * g[1],
                _ => dy[i / 2] * g[2] + dy[i / 2 + 1] * g[0],
            });
            close(&dx, &expected);
        }
    }

    #[test]
    fn transforms_compute_the_filter() {
        for isa in Isa::available() {
            isa.run(Check);
        }
    }
}
