//! Which arms are not beaten in both respects.

/// The places of those points `(cost, gain)` that no other has at most the cost of and at least the
/// gain of, and is better in one; by ascending cost.
pub(super) fn front(points: &[(f64, f64)]) -> Vec<usize> {
    let beaten = |&(cost, gain): &(f64, f64)| {
        let beats = |&(other_cost, other_gain): &(f64, f64)| {
            other_cost <= cost && other_gain >= gain && (other_cost < cost || other_gain > gain)
        };
        points.iter().any(beats)
    };
    let finite = |(cost, gain): &(f64, f64)| cost.is_finite() && gain.is_finite();
    let mut front: Vec<usize> =
        (0..points.len()).filter(|&i| finite(&points[i]) && !beaten(&points[i])).collect();
    front.sort_by(|&a, &b| points[a].0.total_cmp(&points[b].0));
    front
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_unbeaten_are_on_the_front() {
        let points =
            [(32.0, 0.92), (1.0, 0.90), (2.0, 0.89), (0.3, 0.85), (4.0, 0.93), (9.0, 0.93)];
        assert_eq!(front(&points), [3, 1, 4]);
        assert_eq!(front(&[(1.0, 0.5), (1.0, 0.5)]), [0, 1], "equals do not beat one another");
        assert_eq!(front(&[(1.0, f64::NAN), (2.0, 0.5)]), [1]);
        assert_eq!(front(&[]), [0; 0]);
    }
}
