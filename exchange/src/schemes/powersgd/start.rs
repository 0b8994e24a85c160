//! The factor Q that a step starts from.

use super::sums::norm;
use crate::rng::Stream;

/// Fills `column` with numbers of the standard normal distribution.
pub(super) fn draw(column: &mut [f32], stream: Stream) {
    for (i, value) in column.iter_mut().enumerate() {
        // The middle of one of 2²⁴ equal parts of (0, 1).
        let middle = f64::from(stream.bits(i as u32) >> 8) + 0.5;
        *value = quantile(middle / f64::from(1 << 24)) as f32;
    }
}

/// Divides `column` by the power of two that leaves it a norm of ½ to 1, which changes no bit of its
/// direction, so that M·Q is of M's magnitude however small or large that is. Returns `false` when
/// it is zero and has no direction.
pub(super) fn scale(column: &mut [f32]) -> bool {
    let length = norm(column);
    if length == 0.0 {
        return false;
    }
    // The exponent of a norm of f32 numbers is far within that of f64.
    let exponent = length.to_bits() >> 52;
    let factor = f64::from_bits((2 * 1023 - 1 - exponent) << 52);
    column.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
    true
}

/// The number that a standard normal one is below with probability `p`, for `p` of 2⁻²⁵ and more
/// from 0 and from 1, to seven digits: Wichura 1988, algorithm AS 241 (PPND7).
///
/// Only operations that are exactly rounded everywhere: the numbers are the same bits on all ranks.
fn quantile(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180_625 - q * q;
        let above =
            ((59.109_374_720 * r + 159.291_132_02) * r + 50.434_271_938) * r + 3.387_132_717_9;
        let below = ((67.187_563_600 * r + 78.757_757_664) * r + 17.895_169_469) * r + 1.0;
        return q * above / below;
    }
    let tail = if q < 0.0 { p } else { 1.0 - p };
    let r = (-ln(tail)).sqrt() - 1.6;
    let above = ((0.170_238_211_03 * r + 1.306_728_481_6) * r + 2.756_815_39) * r + 1.423_437_277_7;
    let below = (0.120_211_329_75 * r + 0.737_001_642_5) * r + 1.0;
    (above / below).copysign(q)
}

/// ln x for a normal x above 0, to 14 digits, by 2·artanh((m − 1)/(m + 1)) of its mantissa. The
/// standard library's is the platform's, whose last bit may differ from one machine to the next.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    let (mantissa, exponent) = if mantissa > std::f64::consts::SQRT_2 {
        (0.5 * mantissa, exponent + 1)
    } else {
        (mantissa, exponent)
    };
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let series = (0..9).rev().fold(0.0, |sum, k| sum * s * s + 1.0 / f64::from(2 * k + 1));
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * s * series
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tabulated quantiles of the standard normal distribution.
    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (p, expected) in [
            (0.5, 0.0),
            (0.6, 0.253_347_103_135_799_7),
            (0.9, 1.281_551_565_544_600_4),
            (0.975, 1.959_963_984_540_054),
            (0.001, -3.090_232_306_167_813_5),
            (1e-6, -4.753_424_308_822_899),
        ] {
            assert!((quantile(p) - expected).abs() < 2e-6, "{p}: {}", quantile(p));
            assert!((quantile(1.0 - p) + expected).abs() < 2e-6, "{p}");
        }
    }

    #[test]
    fn columns_of_any_magnitude_are_scaled_without_changing_their_direction() {
        for magnitude in [1e-45f32, 1e-30, 0.3, 1.0, 1e30, f32::MAX] {
            let mut column = [magnitude, -0.5 * magnitude, 0.0];
            let ratio = f64::from(column[1]) / f64::from(column[0]);
            assert!(scale(&mut column));
            assert!((0.5..1.0).contains(&norm(&column)), "{magnitude}: {column:?}");
            assert_eq!(f64::from(column[1]) / f64::from(column[0]), ratio);
        }
        assert!(!scale(&mut [0.0, -0.0]));
    }
}
