//! Sums in f64 whose order does not depend on the machine.

use crate::simd::wide;

/// Partial sums: element i goes to the sum i mod 8.
const LANES: usize = 8;

/// Σ a·b, in eight partial sums that are added in pairs.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    wide(
        #[inline(always)]
        || {
            let mut sums = [0f64; LANES];
            let ((a, a_left), (b, b_left)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
            for (a, b) in a.iter().zip(b) {
                for lane in 0..LANES {
                    sums[lane] += a[lane] * b[lane];
                }
            }
            for (sum, (a, b)) in sums.iter_mut().zip(a_left.iter().zip(b_left)) {
                *sum += a * b;
            }
            add_up(sums)
        },
    )
}

/// √Σ x², as [`dot`] adds it up.
pub(super) fn norm(values: &[f32]) -> f64 {
    wide(
        #[inline(always)]
        || {
            let mut sums = [0f64; LANES];
            let (chunks, left) = values.as_chunks::<LANES>();
            for chunk in chunks {
                for lane in 0..LANES {
                    sums[lane] += f64::from(chunk[lane]) * f64::from(chunk[lane]);
                }
            }
            for (sum, value) in sums.iter_mut().zip(left) {
                *sum += f64::from(*value) * f64::from(*value);
            }
            add_up(sums)
        },
    )
    .sqrt()
}

#[inline(always)]
fn add_up(sums: [f64; LANES]) -> f64 {
    let four = [0, 1, 2, 3].map(|lane| sums[lane] + sums[lane + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}
