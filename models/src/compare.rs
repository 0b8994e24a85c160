//! The outcome of comparing what was computed with what is known to be right.

use candle_core::{Result, Tensor};

/// One quantity, computed in two ways or stored and computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The quantity, such as `gradient of weight`.
    pub what: String,
    /// How far the two are from each other, relative to the size of the right one.
    pub error: f64,
    /// The largest error that passes.
    pub tolerance: f64,
}

impl Comparison {
    /// A comparison of that outcome.
    pub fn new(what: impl Into<String>, error: f64, tolerance: f64) -> Self {
        Self { what: what.into(), error, tolerance }
    }

    /// Whether the error is within the tolerance; one that is no number is not.
    pub fn holds(&self) -> bool {
        self.error <= self.tolerance
    }

    /// The error in units of the tolerance; infinite where nothing else passes than no error at all.
    fn share(&self) -> f64 {
        match self.error {
            0. => 0.,
            error if error.is_nan() => f64::INFINITY,
            error => error / self.tolerance,
        }
    }

    /// The one of several that is nearest to its tolerance, or furthest beyond; the first of equal ones.
    pub fn worst(all: &[Self]) -> Option<&Self> {
        // `max_by` gives the last.
        all.iter().rev().max_by(|a, b| a.share().total_cmp(&b.share()))
    }
}

/// The Euclidean norm of `found − right` relative to that of `right`, or to `least` where that is
/// larger; infinite when there are not as many of both.
pub fn distance(found: &[f32], right: &[f32], least: f64) -> f64 {
    if found.len() != right.len() {
        return f64::INFINITY;
    }
    let pairs = found.iter().zip(right).map(|(a, b)| f64::from(*a) - f64::from(*b));
    let error = pairs.map(|difference| difference * difference).sum::<f64>().sqrt();
    let of = norm(right).max(least);
    if error == 0. { 0. } else { error / of }
}

/// The Euclidean norm, in f64.
pub fn norm(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()
}

/// The elements of an f32 tensor of any rank, row-major, wherever it lies.
pub(crate) fn floats(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.flatten_all()?.to_vec1()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_or_too_far_does_not_hold() {
        let of = |error| Comparison::new("x", error, 1e-3);
        assert!(of(0.).holds() && of(1e-3).holds());
        assert!(!of(1.1e-3).holds() && !of(f64::NAN).holds() && !of(f64::INFINITY).holds());
        assert!(Comparison::new("bytes", 0., 0.).holds());
        assert!(!Comparison::new("bytes", 1., 0.).holds());
    }

    #[test]
    fn the_worst_is_nearest_to_its_own_tolerance() {
        let all = [
            Comparison::new("bytes", 0., 0.),
            Comparison::new("small but strict", 2e-6, 1e-6),
            Comparison::new("large", 1e-3, 1e-2),
        ];
        assert_eq!(Comparison::worst(&all).unwrap().what, "small but strict");
        let with_nan = [all[1].clone(), Comparison::new("lost", f64::NAN, 1.)];
        assert_eq!(Comparison::worst(&with_nan).unwrap().what, "lost");
        let exact = ["output", "gradient"].map(|what| Comparison::new(what, 0., 1e-6));
        assert_eq!(Comparison::worst(&exact).unwrap().what, "output");
        assert_eq!(Comparison::worst(&[]), None);
    }

    #[test]
    fn distances_are_relative_and_see_what_is_missing() {
        assert_eq!(distance(&[3., 4.], &[3., 4.], 0.), 0.);
        assert_eq!(distance(&[0., 0.], &[0., 0.], 0.), 0.);
        assert!((distance(&[3., 4.5], &[3., 4.], 0.) - 0.1).abs() < 1e-9);
        assert!((distance(&[3., 4.5], &[3., 4.], 50.) - 0.01).abs() < 1e-9);
        assert_eq!(distance(&[1.], &[0.], 0.), f64::INFINITY);
        assert_eq!(distance(&[1.], &[1., 0.], 0.), f64::INFINITY);
        assert!(distance(&[f32::NAN], &[1.], 0.).is_nan());
    }
}
