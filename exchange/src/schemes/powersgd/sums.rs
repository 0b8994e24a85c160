//! Sums in f64 whose order does not depend on the machine.

use crate::simd::wide;

/// Partial sums: element i goes to the sum i mod 8.
const LANES: usize = 8;

/// Σ a·b, in eight partial sums that are added in pairs.
pub(super) fn dot<T: Copy + Into<f64>>(a: &[T], b: &[T]) -> f64 {
    wide!({
        let mut sums = [0f64; LANES];
        let ((a, a_left), (b, b_left)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        for (a, b) in a.iter().zip(b) {
            for lane in 0..LANES {
                sums[lane] += a[lane].into() * b[lane].into();
            }
        }
        for (sum, (a, b)) in sums.iter_mut().zip(a_left.iter().zip(b_left)) {
            *sum += (*a).into() * (*b).into();
        }
        let four = [0, 1, 2, 3].map(|lane| sums[lane] + sums[lane + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    })
}

/// √Σ x², as [`dot`] adds it up.
pub(super) fn norm(values: &[f32]) -> f64 {
    dot(values, values).sqrt()
}
