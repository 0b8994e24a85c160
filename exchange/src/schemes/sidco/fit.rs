//! Thresholds from fitted laws: moments in, the magnitude that a share lies above out.

use serde::{Deserialize, Serialize};

use crate::compress::moments::{self, Moments, Tail};
use crate::compress::special::gamma_quantile;

/// The law that magnitudes are taken to follow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Fit {
    /// Exponential in every stage (SIDCo-E).
    #[default]
    Exponential,
    /// Generalised Pareto in every stage (SIDCo-P).
    Pareto,
    /// Gamma in the first stage, generalised Pareto afterwards (SIDCo-GP).
    Gamma,
}

/// What keeps the logarithm of a zero finite, in units of the gradient's norm.
const LOG_FLOOR: f64 = f64::EPSILON;

/// Below this distance of mean logarithm and logarithm of the mean, magnitudes are all but equal.
const LEAST_LOG_SPREAD: f64 = 1e-6;

/// The threshold above which a share of an exponential law lies: −scale·ln share.
fn exponential(mean: f64, share: f64) -> f64 {
    -mean * share.ln()
}

/// The threshold above which a share of the generalised Pareto law of this mean and variance lies;
/// `None` where there is no such law.
fn pareto(mean: f64, variance: f64, share: f64) -> Option<f64> {
    if !(variance > 0.0 && mean > 0.0) {
        return None;
    }
    let r = mean * mean / variance;
    let (sigma, xi) = (0.5 * mean * (r + 1.0), 0.5 * (1.0 - r));
    let threshold = if xi.abs() < 1e-8 {
        -sigma * share.ln()
    } else {
        sigma / xi * (-xi * share.ln()).exp_m1()
    };
    threshold.is_finite().then_some(threshold)
}

/// The threshold above which a share of the gamma law of this mean and mean logarithm lies; `None`
/// where there is no such law.
fn gamma(mean: f64, mean_log: f64, share: f64) -> Option<f64> {
    let s = mean.ln() - mean_log;
    if !(s.is_finite() && s > LEAST_LOG_SPREAD) {
        return None;
    }
    let shape = (3.0 - s + ((s - 3.0) * (s - 3.0) + 24.0 * s).sqrt()) / (12.0 * s);
    Some(mean / shape * gamma_quantile(shape, share))
}

impl Fit {
    /// The threshold above which `share` of the first stage's `count` magnitudes should lie:
    /// all of `values`, or, where `count` says so, those that are not zero. There is at least one
    /// that is not zero. Where the law has no fit, the exponential one's.
    pub(crate) fn first(self, values: &[f32], count: usize, share: f64) -> f64 {
        if self == Fit::Exponential {
            return exponential(moments::magnitude_sum(values) / count as f64, share);
        }
        let moments = Moments { count, ..moments::moments(values) };
        let mean = moments.mean();
        let fitted = match self {
            Fit::Exponential => None,
            Fit::Pareto => pareto(mean, moments.variance(), share),
            Fit::Gamma => {
                let floor = LOG_FLOOR * moments.squares.sqrt();
                gamma(mean, mean_log(values, count, floor), share)
            }
        };
        fitted.unwrap_or_else(|| exponential(mean, share))
    }

    /// What a later stage must know of the magnitudes above the threshold before it.
    pub(crate) fn tail(self, magnitudes: &[f32], threshold: f32) -> Tail {
        match self {
            Fit::Exponential => moments::tail::<false>(magnitudes, threshold),
            Fit::Pareto | Fit::Gamma => moments::tail::<true>(magnitudes, threshold),
        }
    }

    /// The threshold for a later stage, given its [`tail`](Self::tail); `None` where
    /// that does not say.
    pub(crate) fn later(self, tail: Tail, share: f64) -> Option<f64> {
        if tail.moments.count < 2 {
            return None;
        }
        let location = f64::from(tail.smallest);
        let mean = tail.moments.mean() - location;
        // Equal magnitudes have a mean that differs from them by rounding only.
        if mean <= 1e-12 * location {
            return None;
        }
        let above = match self {
            Fit::Exponential => Some(exponential(mean, share)),
            Fit::Pareto | Fit::Gamma => pareto(mean, tail.moments.variance(), share),
        };
        above.map(|above| location + above)
    }
}

/// The mean of ln(magnitude + `floor`): over all values, or without as many zeros as `count`
/// leaves out.
fn mean_log(values: &[f32], count: usize, floor: f64) -> f64 {
    let left_out = (values.len() - count) as f64;
    (moments::log_sum(values, floor) - left_out * floor.ln()) / count as f64
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The recorded vectors; their origin is in the file.
    pub(crate) fn vectors() -> serde_json::Value {
        serde_json::from_str(include_str!("../../../tests/vectors/sidco.json")).unwrap()
    }

    pub(crate) fn number(row: &serde_json::Value, key: &str) -> f64 {
        row[key].as_f64().unwrap()
    }

    pub(crate) fn fit_of(row: &serde_json::Value) -> Fit {
        match row["sid"].as_str().unwrap() {
            "exp" => Fit::Exponential,
            "gp" => Fit::Pareto,
            _ => Fit::Gamma,
        }
    }

    /// Against SciPy 1.17: `expon`, `genpareto` and `gamma` of the parameters that SIDCo's moments
    /// give, `isf` of the share. By mean, variance, mean logarithm and share.
    #[test]
    fn thresholds_are_the_inverse_survival_functions_of_the_laws() {
        for (mean, variance, mean_log, share, expected) in [
            (0.8, 1.1, -1.2, 0.25, [1.1090354889, 1.01749895296, 1.08847229203]),
            (0.8, 1.1, -1.2, 0.01, [3.68413614879, 4.90008010431, 4.72390391157]),
            (0.8, 1.1, -1.2, 0.001, [5.52620422319, 9.80177066168, 7.50137617869]),
            (0.02, 0.0001, -4.2, 0.25, [0.0277258872224, 0.0291666666667, 0.0270377691419]),
            (0.02, 0.0001, -4.2, 0.01, [0.0921034037198, 0.0333, 0.068260338896]),
            (0.02, 0.0001, -4.2, 0.001, [0.13815510558, 0.0333322792408, 0.095567268455]),
            (3.0, 40.0, 0.1, 0.25, [4.15888308336, 3.37241734034, 4.07405495093]),
            (3.0, 40.0, 0.1, 0.01, [13.815510558, 23.5039790641, 17.8993549868]),
            (3.0, 40.0, 0.1, 0.001, [20.7232658369, 64.1955821562, 28.4919758306]),
        ] {
            let found = [
                exponential(mean, share),
                pareto(mean, variance, share).unwrap(),
                gamma(mean, mean_log, share).unwrap(),
            ];
            for (found, expected) in found.into_iter().zip(expected) {
                assert!((found / expected - 1.0f64).abs() < 1e-11, "{found} {expected}");
            }
        }
    }

    #[test]
    fn magnitudes_that_follow_no_law_have_the_exponential_threshold() {
        for fit in [Fit::Exponential, Fit::Pareto, Fit::Gamma] {
            let threshold = fit.first(&[-2.0; 50], 50, 0.25);
            assert!((threshold - 2.0 * 4f64.ln()).abs() < 1e-12, "{fit:?}: {threshold}");
            assert!(fit.first(&[3.0], 1, 0.1).is_finite());
            assert_eq!(fit.later(fit.tail(&[2.0; 50], 1.0), 0.5), None);
            assert_eq!(fit.later(fit.tail(&[2.0, 0.5], 1.0), 0.5), None);
        }
    }
}
