//! How many bits a quantised gradient gets at each step of a run: the schedules of DQ-SGD, and
//! what solves them for a budget or an error.
//!
//! Steps count from 0 here, as in the paper.

/// The course of a run, by which later steps may get more bits than earlier ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Course {
    /// α of theorem 1, the factor by which the distance to the optimum falls per step: above 0, at
    /// most 1. 1 gives the schedule for non-convex objectives.
    pub alpha: f64,
    /// Steps of the run, N.
    pub horizon: u64,
}

impl Course {
    /// Equation 18: B_n = log2(k · α^((N − n)/2) · ‖g_n‖ + 1) + 1; with α = 1 equation 20.
    pub(crate) fn bits(self, k: f64, step: u64, norm: f64) -> f64 {
        let left = self.horizon.saturating_sub(step) as f64;
        (k * self.alpha.powf(left / 2.0) * norm + 1.0).log2() + 1.0
    }

    /// The k whose weighted error Σ α^(N−1−n) ‖g_n‖²/s_n² is `error`, whatever the norms are: every
    /// term of it is 1/(α k²).
    pub(crate) fn k_for_error(self, error: f64) -> f64 {
        (self.horizon as f64 / (self.alpha * error)).sqrt().min(f64::MAX)
    }
}

/// The largest k, between 2^−100 and 2^100, whose mean of `bits(k, point)` over `points` is at most
/// `mean`. `bits` does not fall with k.
pub(crate) fn k_for_mean(mean: f64, points: u64, bits: impl Fn(f64, u64) -> f64) -> f64 {
    let total = mean * points as f64;
    let (mut low, mut high) = (-100.0, 100.0);
    for _ in 0..60 {
        let middle: f64 = (low + high) / 2.0;
        let asked: f64 = (0..points).map(|point| bits(middle.exp2(), point)).sum();
        if asked <= total { low = middle } else { high = middle }
    }
    f64::exp2(low)
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::Value;

    use super::*;

    pub(crate) fn vectors() -> Value {
        serde_json::from_str(include_str!("../../tests/vectors/dqsgd.json")).unwrap()
    }

    pub(crate) fn number(value: &Value) -> f64 {
        value.as_f64().unwrap()
    }

    fn close(found: f64, expected: &Value) {
        let expected = number(expected);
        assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{found} {expected}");
    }

    #[test]
    fn both_schedules_are_those_of_the_vectors() {
        let vectors = vectors();
        for case in vectors["schedule_convex"].as_array().unwrap() {
            let horizon = case["N"].as_u64().unwrap();
            let course = Course { alpha: number(&case["alpha"]), horizon };
            let step = case["n"].as_u64().unwrap();
            let bits = course.bits(number(&case["k"]), step, number(&case["norm"]));
            close(bits, &case["B"]);
            close(2f64.powf(bits - 1.0) - 1.0, &case["s"]);
            close(bits.ceil().clamp(2.0, 8.0), &case["B_ceil"]);
            close(bits.floor().clamp(2.0, 8.0), &case["B_floor"]);
        }
        for case in vectors["schedule_nonconvex"].as_array().unwrap() {
            let course = Course { alpha: 1.0, horizon: 77 };
            close(course.bits(number(&case["t"]), 5, number(&case["norm"])), &case["B"]);
        }
    }

    #[test]
    fn k_is_solved_for_budgets_and_errors_as_in_the_vectors() {
        let course = Course { alpha: 0.99, horizon: 200 };
        let norm = |step: u64| 4.0 * 0.99f64.powi(step as i32) + 0.25;
        let bits = |k: f64, step: u64| course.bits(k, step, norm(step));
        let vectors = vectors();
        for case in vectors["k_from_budget"]["cases"].as_array().unwrap() {
            close(k_for_mean(number(&case["target_avg_bits"]), 200, bits), &case["k"]);
        }
        for case in vectors["k_from_error"]["cases"].as_array().unwrap() {
            let fixed = number(&case["fixed_bits"]);
            let weight = |step: u64| 0.99f64.powi(199 - step as i32) * norm(step).powi(2);
            let error = (0..200).map(weight).sum::<f64>() / (2f64.powf(fixed - 1.0) - 1.0).powi(2);
            close(error, &case["E"]);
            let k = course.k_for_error(error);
            close(k, &case["k"]);
            close((0..200).map(|step| bits(k, step)).sum::<f64>() / 200.0, &case["avg_bits"]);
            let of = |step: u64| weight(step) / (2f64.powf(bits(k, step) - 1.0) - 1.0).powi(2);
            close((0..200).map(of).sum::<f64>(), &case["E"]);
        }
    }
}
