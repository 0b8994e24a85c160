//! The logistic function and the hyperbolic tangent in plain arithmetic without branches, so that
//! a loop over either is vectorised; without fused operations, so that every instruction set
//! gives the same bits.

/// `1 / (1 + e^-x)`, to 3 units in the last place where the result is a normal number; below
/// `x = -87` it stays at e^-87. NaN stays NaN.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// e^x for x clamped to ±87: `2^n · e^r` with `|r| <= ln 2 / 2`, the second by the polynomial of
/// the Cephes library's `expf`.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    /// 1.5 · 2^23: added to a small number, the sum's lowest bits are the number's nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 87.0);
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    // ln 2 in two parts, the first with so few digits that its product with n is exact.
    let r = x - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5] {
        p = p * r + coefficient;
    }
    let p = p * r * r + r + 1.0;
    // n into the exponent's place, by what it left in the lowest bits.
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(127 << 23));
    p * power
}

/// The hyperbolic tangent, to 2 units in the last place. NaN stays NaN.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let magnitude = x.abs();
    // Near zero `1 - 2 / (e^2x + 1)` would cancel: there x plus x³ times a polynomial of x², as in
    // Cephes' `tanhf`.
    let square = x * x;
    let mut p = -5.704_988_7e-3;
    for coefficient in [2.063_908_8e-2, -5.373_971_5e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = p * square + coefficient;
    }
    let near = p * square * magnitude + magnitude;
    let far = 1.0 - 2.0 / (exp(2.0 * magnitude) + 1.0);
    let value = if magnitude < 0.625 { near } else { far };
    value.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest gap to `exact` over f32 arguments between `from` and `to`, in units of the last
    /// place of the exact result.
    fn error(f: fn(f32) -> f32, exact: fn(f64) -> f64, from: f32, to: f32) -> f64 {
        let steps = 200_000;
        let arguments = (0..=steps).map(|i| from + (to - from) * (i as f32 / steps as f32));
        let gaps = arguments.map(|x| {
            let exact = exact(f64::from(x));
            let unit = f64::from(f32::EPSILON) * 2f64.powi(exact.abs().log2().floor() as i32);
            (f64::from(f(x)) - exact).abs() / unit.max(f64::from(f32::MIN_POSITIVE))
        });
        gaps.fold(0.0, f64::max)
    }

    #[test]
    fn errors_are_a_few_units_in_the_last_place() {
        for (from, to) in [(-86.0, -10.0), (-10.0, 10.0), (-0.01, 0.01), (10.0, 90.0)] {
            let error = error(sigmoid, |x| 1.0 / (1.0 + (-x).exp()), from, to);

            assert!(error <= 3.0, "sigmoid on {from}..{to}: {error} ulp");
        }
        for (from, to) in [(-12.0, 12.0), (-0.5, 0.5), (1e-20, 1e-3), (8.0, 1e4)] {
            let error = error(tanh, f64::tanh, from, to);

            assert!(error <= 2.0, "tanh on {from}..{to}: {error} ulp");
        }
    }

    #[test]
    fn the_ends_and_nan_are_what_they_should_be() {
        assert_eq!((tanh(0.0), tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)), (0.0, 1.0, -1.0));
        assert_eq!((sigmoid(0.0), sigmoid(f32::INFINITY)), (0.5, 1.0));
        assert!(sigmoid(f32::NEG_INFINITY) < 1e-37);
        assert!(sigmoid(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
    }
}
