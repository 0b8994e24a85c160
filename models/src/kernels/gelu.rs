//! GELU and its derivative, on vectors and on slices. The simple form is `x · Φ(x)`, or
//! `x · (1 + tanh(√(2/π) · (x + 0.044715 · x³))) / 2`; as written it takes an exponential function and a division.
//!
//! Both forms are `max(0, x)` less a bump that dies away on either side, and both derivatives are a step less a ripple
//! that does. With `b = −|x|`, which is what keeps the two sides alike,
//!
//! ```text
//! gelu(x)  = max(0, x) + b · D(b)          D(b) = Φ(b), or the logistic function that stands for it
//! gelu′(x) = E(b), or 1 − E(b) where x > 0  E(b) = D(b) + b · D′(b)
//! ```
//!
//! and D and E are each `(b + c)¹⁶ · P(b)` where `b > −c`, and zero beyond: the power has the steep part of the descent,
//! and the polynomial P (degree 9 or 11, fitted for the least largest error) what is left of it. So there are only
//! multiplications and additions: 20 and 23 instructions for a vector, about half as many as the simple form takes.
//!
//! In f32 the value is off by at most 5e-7 and the derivative by at most 1e-6, beside what a vector without fused
//! multiply-add rounds. NaN stays NaN, and the ends are those of the definition: ∞ gives ∞, −∞ gives zero.

use super::simd::{Kernel, Simd};
use crate::parameters::Gelu;

/// `(b + cut)¹⁶ · (p₀ + p₁ b + p₂ b² + …)` for `b` in `[−cut, 0]`.
struct Descent<const N: usize> {
    cut: f32,
    polynomial: [f32; N],
}

/// Φ.
static EXACT: Descent<10> = Descent {
    cut: 7.625,
    polynomial: [
        3.829_366_5e-15,
        -4.981_287_7e-15,
        2.536_058e-15,
        -4.503_555e-16,
        -2.495_988e-16,
        -2.297_960_4e-17,
        -8.724_082e-17,
        -4.527_311_7e-17,
        -8.283_488e-18,
        -5.389_152_5e-19,
    ],
};

/// The derivative of `b · Φ(b)`.
static EXACT_SLOPE: Descent<12> = Descent {
    cut: 7.625,
    polynomial: [
        3.829_415e-15,
        -1.924_662_6e-15,
        -3.865_454e-15,
        5.209_385e-15,
        -2.569_474_7e-15,
        4.515_166e-16,
        2.808_818e-16,
        4.866_169_5e-17,
        1.008_215e-16,
        4.968_607_6e-17,
        9.048_473e-18,
        5.927_911e-19,
    ],
};

/// `(1 + tanh(√(2/π) · (b + 0.044715 · b³))) / 2`.
static TANH: Descent<10> = Descent {
    cut: 6.75,
    polynomial: [
        2.692_171_2e-14,
        -4.234_501_3e-14,
        2.936_208_5e-14,
        -1.121_114_7e-14,
        1.174_768_2e-15,
        -6.732_269e-16,
        -7.401_407e-16,
        -3.641_591_6e-16,
        -1.027_078_6e-16,
        -1.169_213_3e-17,
    ],
};

/// The derivative of `b` times that.
static TANH_SLOPE: Descent<12> = Descent {
    cut: 6.875,
    polynomial: [
        2.007_274_5e-14,
        -1.468_371_6e-14,
        -1.680_266e-14,
        3.090_168_3e-14,
        -2.121_950_5e-14,
        5.483_937e-15,
        -2.763_282_8e-15,
        -1.794_667e-15,
        -6.483_533e-16,
        -6.020_259e-17,
        2.548_940_7e-17,
        4.834_658_5e-18,
    ],
};

impl<const N: usize> Descent<N> {
    /// `b = −|x|`, but not below the cut, the power and the polynomial there.
    #[inline(always)]
    fn at<S: Simd>(&self, s: S, x: S::V) -> [S::V; 3] {
        // In this order of the operands a NaN stays one.
        let b = s.max(s.splat(-self.cut), s.min(x, s.sub(s.zero(), x)));
        let mut power = s.add(b, s.splat(self.cut));
        for _ in 0..4 {
            power = s.mul(power, power);
        }
        let mut p = s.splat(self.polynomial[N - 1]);
        for coefficient in self.polynomial[..N - 1].iter().rev() {
            p = s.fma(p, b, s.splat(*coefficient));
        }
        [b, power, p]
    }
}

/// GELU of each lane.
#[inline(always)]
pub(crate) fn value<S: Simd>(s: S, form: Gelu, x: S::V) -> S::V {
    let [b, power, p] = match form {
        Gelu::Exact => EXACT.at(s, x),
        Gelu::Tanh => TANH.at(s, x),
    };
    s.fma(s.mul(b, power), p, s.max(s.zero(), x))
}

/// The derivative of GELU at each lane.
#[inline(always)]
pub(crate) fn slope<S: Simd>(s: S, form: Gelu, x: S::V) -> S::V {
    let [_, power, p] = match form {
        Gelu::Exact => EXACT_SLOPE.at(s, x),
        Gelu::Tanh => TANH_SLOPE.at(s, x),
    };
    let below = s.mul(power, p);
    s.add(below, s.where_positive(x, s.nfma(s.splat(2.0), below, s.splat(1.0))))
}

/// Writes GELU of each of `xs` to `ys`.
pub(super) struct Forward<'a> {
    pub form: Gelu,
    pub xs: &'a [f32],
    pub ys: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        assert_eq!(self.xs.len(), self.ys.len());
        for (xs, ys) in self.xs.chunks(S::LANES).zip(self.ys.chunks_mut(S::LANES)) {
            s.store_first(ys, value(s, self.form, s.load_first(xs)));
        }
    }
}

/// Writes to `dx` the products of `dy`, the gradient of GELU of `xs`, and the derivatives at `xs`.
pub(super) struct GeluBackward<'a> {
    pub form: Gelu,
    pub xs: &'a [f32],
    pub dy: &'a [f32],
    pub dx: &'a mut [f32],
}

impl Kernel for GeluBackward<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        assert_eq!([self.dy.len(), self.dx.len()], [self.xs.len(); 2]);
        let operands = self.xs.chunks(S::LANES).zip(self.dy.chunks(S::LANES));
        for ((xs, dy), dx) in operands.zip(self.dx.chunks_mut(S::LANES)) {
            let slope = slope(s, self.form, s.load_first(xs));
            s.store_first(dx, s.mul(slope, s.load_first(dy)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::simd::Isa;

    const FORMS: [Gelu; 2] = [Gelu::Exact, Gelu::Tanh];

    /// Φ by the series `1/2 + φ(x) · (x + x³/3 + x⁵/15 + …)`, all of whose terms have one sign.
    fn distribution(x: f64) -> f64 {
        let (mut term, mut sum, mut odd) = (x, x, 1.0);
        while term.abs() > 1e-18 * sum.abs() {
            odd += 2.0;
            term *= x * x / odd;
            sum += term;
        }
        0.5 + density(x) * sum
    }

    fn density(x: f64) -> f64 {
        (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
    }

    /// The value and the derivative, as the definitions have them.
    fn simply(form: Gelu, x: f64) -> [f64; 2] {
        match form {
            Gelu::Exact => {
                let below = if x.abs() < 12.0 { distribution(x) } else { f64::from(x > 0.0) };
                [x * below, below + x * density(x)]
            }
            Gelu::Tanh => {
                let root = std::f64::consts::FRAC_2_PI.sqrt();
                let tanh = (root * (x + 0.044_715 * x * x * x)).tanh();
                let inner = root * (1.0 + 3.0 * 0.044_715 * x * x);
                [x / 2.0 * (1.0 + tanh), (1.0 + tanh) / 2.0 + x / 2.0 * (1.0 - tanh * tanh) * inner]
            }
        }
    }

    fn both(isa: Isa, form: Gelu, xs: &[f32]) -> [Vec<f32>; 2] {
        let (mut ys, mut slopes) = (vec![f32::NAN; xs.len()], vec![f32::NAN; xs.len()]);
        isa.run(Forward { form, xs, ys: &mut ys });
        isa.run(GeluBackward { form, xs, dy: &vec![1.0; xs.len()], dx: &mut slopes });
        [ys, slopes]
    }

    #[test]
    fn the_twin_is_the_definition() {
        assert!((distribution(1.0) - 0.841_344_746_068_543).abs() < 1e-14);
        assert!((distribution(-3.0) - 0.001_349_898_031_630_09).abs() < 1e-14);
        for form in FORMS {
            for x in [-3.0, -0.4, 0.0, 0.7, 2.5] {
                let [below, above] = [x - 1e-5, x + 1e-5].map(|x| simply(form, x)[0]);
                let [_, slope] = simply(form, x);
                assert!(((above - below) / 2e-5 - slope).abs() < 1e-8, "{form:?} at {x}");
            }
        }
    }

    #[test]
    fn errors_are_those_that_are_stated() {
        let dense = (0..=400_000).map(|i| -10.0 + i as f32 * 5e-5);
        let xs: Vec<f32> = dense.chain([1e-6, -1e-6, 1e-20, -0.0, 30.0, -30.0]).collect();
        for isa in Isa::available() {
            // Without fused multiply-add each step of the polynomials rounds twice.
            let least = if isa.name() == "portable" { 2.0 } else { 1.0 };
            for form in FORMS {
                let [ys, slopes] = both(isa, form, &xs);
                let (mut value_off, mut slope_off) = (0.0_f64, 0.0_f64);
                for (x, (y, slope)) in xs.iter().zip(ys.iter().zip(&slopes)) {
                    let exact = simply(form, f64::from(*x));
                    value_off = value_off.max((f64::from(*y) - exact[0]).abs());
                    slope_off = slope_off.max((f64::from(*slope) - exact[1]).abs());
                }
                let off = [value_off, slope_off];
                assert!(
                    off[0] <= 5e-7 * least && off[1] <= 1e-6 * least,
                    "{form:?}, {isa}: {off:?}"
                );
            }
        }
    }

    #[test]
    fn the_ends_and_nan_are_what_they_should_be() {
        let xs = [f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 0.0, f32::NAN];
        for (isa, form) in Isa::available().flat_map(|isa| FORMS.map(|form| (isa, form))) {
            let [ys, slopes] = both(isa, form, &xs);
            assert_eq!(ys[..5], [f32::INFINITY, 0.0, f32::MAX, 0.0, 0.0], "{form:?}, {isa}");
            assert_eq!(slopes[..4], [1.0, 0.0, 1.0, 0.0], "{form:?}, {isa}");
            assert!(ys[5].is_nan() && slopes[5].is_nan());
        }
    }

    proptest! {
        /// Any length; every element is the one at its place.
        #[test]
        fn gradients_are_products_with_the_derivative(
            pairs in prop::collection::vec((-8f32..8.0, -2f32..2.0), 1..70),
        ) {
            let (xs, dy): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            for (isa, form) in Isa::available().flat_map(|isa| FORMS.map(|form| (isa, form))) {
                let mut dx = vec![f32::NAN; xs.len()];
                isa.run(GeluBackward { form, xs: &xs, dy: &dy, dx: &mut dx });
                for ((x, dy), dx) in xs.iter().zip(&dy).zip(&dx) {
                    let expected = f64::from(*dy) * simply(form, f64::from(*x))[1];
                    prop_assert!((f64::from(*dx) - expected).abs() < 5e-6, "{form:?}, {isa}: {dx} {expected}");
                }
            }
        }
    }
}
