//! The gamma distribution's special functions, for thresholds that a fitted law implies.
//!
//! ln Γ by Lanczos' approximation (g = 7, nine terms); the regularised incomplete gamma function
//! by its series below the mean and by its continued fraction (Lentz) above, as in Press et al.,
//! "Numerical Recipes", section 6.2; its inverse by Newton steps kept inside a bracket.

/// ln Γ(a), for a above 0, to about 14 digits.
pub(crate) fn ln_gamma(a: f64) -> f64 {
    const G: f64 = 7.0;
    const TERMS: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if a < 0.5 {
        // Γ(a)·a = Γ(a + 1): the approximation is for the right half.
        return ln_gamma(a + 1.0) - a.ln();
    }
    let x = a - 1.0;
    let series = TERMS[1..]
        .iter()
        .enumerate()
        .fold(TERMS[0], |sum, (i, term)| sum + term / (x + 1.0 + i as f64));
    let t = x + G + 0.5;
    0.5 * std::f64::consts::TAU.ln() + (x + 0.5) * t.ln() - t + series.ln()
}

/// Q(a, x) = Γ(a, x)/Γ(a): the share of a gamma law of shape a and scale 1 that lies above x.
fn upper_gamma(a: f64, x: f64) -> f64 {
    /// Enough for shapes up to some millions: the sums take a few √a terms.
    const MOST: usize = 100_000;
    if x <= 0.0 {
        return 1.0;
    }
    let front = (a * x.ln() - x - ln_gamma(a)).exp();
    if x < a + 1.0 {
        let (mut term, mut sum) = (1.0 / a, 1.0 / a);
        for n in 1..MOST {
            term *= x / (a + n as f64);
            sum += term;
            if term < sum * f64::EPSILON {
                break;
            }
        }
        return 1.0 - front * sum;
    }
    let mut b = x + 1.0 - a;
    let mut c = 1.0 / f64::MIN_POSITIVE;
    let mut d = 1.0 / b;
    let mut fraction = d;
    for n in 1..MOST {
        let an = -(n as f64) * (n as f64 - a);
        b += 2.0;
        d = 1.0 / nonzero(an * d + b);
        c = nonzero(b + an / c);
        fraction *= d * c;
        if (d * c - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    front * fraction
}

fn nonzero(value: f64) -> f64 {
    if value.abs() < f64::MIN_POSITIVE { f64::MIN_POSITIVE } else { value }
}

/// The x above which `share` of a gamma law of shape `a` and scale 1 lies: Q(a, x) = `share`, to
/// about 12 digits. `a` is above 0, `share` in (0, 1].
pub(crate) fn gamma_quantile(a: f64, share: f64) -> f64 {
    if share >= 1.0 {
        return 0.0;
    }
    let mut low = 0.0;
    let mut high = a.max(1.0);
    while upper_gamma(a, high) > share && high < f64::MAX / 2.0 {
        low = high;
        high *= 2.0;
    }
    let mut x = 0.5 * (low + high);
    for _ in 0..200 {
        let off = upper_gamma(a, x) - share;
        if off > 0.0 {
            low = x;
        } else {
            high = x;
        }
        let density = ((a - 1.0) * x.ln() - x - ln_gamma(a)).exp();
        let newton = x + off / density;
        let next = if newton > low && newton < high { newton } else { 0.5 * (low + high) };
        if (next - x).abs() <= 1e-15 * next {
            return next;
        }
        x = next;
    }
    x
}

/// The t above which `share` of the magnitudes of a standard normal law lies: P(|Z| > t) = `share`.
pub(crate) fn normal_quantile(share: f64) -> f64 {
    (2.0 * gamma_quantile(0.5, share)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(key: &str) -> Vec<serde_json::Value> {
        let all: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/vectors/sidco.json")).unwrap();
        all[key].as_array().unwrap().clone()
    }

    fn close(found: f64, expected: f64, digits: f64) {
        assert!((found - expected).abs() <= digits * expected.abs(), "{found} for {expected}");
    }

    #[test]
    fn ln_gamma_equals_the_table() {
        for row in vectors("ln_gamma") {
            let (a, v) = (row["a"].as_f64().unwrap(), row["v"].as_f64().unwrap());
            assert!((ln_gamma(a) - v).abs() < 1e-9, "{a}");
        }
        close(ln_gamma(10.0), 362_880f64.ln(), 1e-14);
        close(ln_gamma(0.01), 4.599_479_878_042_022, 1e-13);
    }

    #[test]
    fn quantiles_equal_the_table_and_invert() {
        for row in vectors("inv_reg_lower_gamma") {
            let of = |key: &str| row[key].as_f64().unwrap();
            close(gamma_quantile(of("a"), 1.0 - of("p")), of("x"), 1e-9);
        }
        for a in [0.02, 0.3, 1.0, 7.0, 400.0, 1e5] {
            for share in [0.9, 0.25, 0.01, 1e-4] {
                close(upper_gamma(a, gamma_quantile(a, share)), share, 1e-9);
            }
        }
        close(gamma_quantile(1.0, 0.001), 1000f64.ln(), 1e-13);
        assert_eq!(gamma_quantile(0.4, 1.0), 0.0);
        // Two-sided, from the normal table.
        close(normal_quantile(0.01), 2.575_829_303_548_9, 1e-12);
        close(normal_quantile(0.05), 1.959_963_984_540_054, 1e-12);
    }
}
