//! Orthonormal columns that span what given columns span.

use super::sums::dot;
use crate::simd::wide;

/// A column is taken to depend on those before it when less than this share of its length is left
/// of it: f32 numbers do not say more about its direction.
const SHARE: f64 = 1.0 / (1u64 << 30) as f64;

/// Makes the columns of `p`, of `rows` elements each, orthonormal from the first on, and returns how
/// many are not zero: a column that depends on those before it (or is zero) becomes zero.
///
/// Gram and Schmidt's procedure with every column projected twice, which is enough (Giraud, Langou,
/// Rozložník & van den Eshof 2005), in f64: f32 numbers of any size, squared and added up, neither
/// overflow nor vanish there. `basis` is memory for the columns in f64; it grows to `p`'s length.
///
/// Sums run in a fixed order ([`dot`]) and square root and division are exactly rounded everywhere,
/// so the result is the same bits on every rank and machine.
pub(super) fn orthogonalise(p: &mut [f32], rows: usize, basis: &mut Vec<f64>) -> usize {
    if basis.len() < p.len() {
        basis.resize(p.len(), 0.0);
    }
    let mut independent = 0;
    for (number, column) in p.chunks_exact_mut(rows).enumerate() {
        let (before, rest) = basis.split_at_mut(number * rows);
        let candidate = &mut rest[..rows];
        for (wide, value) in candidate.iter_mut().zip(column.iter()) {
            *wide = f64::from(*value);
        }
        let length = dot(candidate, candidate).sqrt();
        for _ in 0..2 {
            for earlier in before.chunks_exact(rows) {
                project(earlier, candidate);
            }
        }
        let left = dot(candidate, candidate).sqrt();
        if left > SHARE * length {
            independent += 1;
            for (wide, value) in candidate.iter_mut().zip(column) {
                *wide /= left;
                *value = *wide as f32;
            }
        } else {
            // Also what NaN comes to.
            candidate.fill(0.0);
            column.fill(0.0);
        }
    }
    independent
}

/// Takes the part along the unit vector `direction` off `column`.
fn project(direction: &[f64], column: &mut [f64]) {
    let share = dot(direction, column);
    wide(
        #[inline(always)]
        || {
            for (value, part) in column.iter_mut().zip(direction) {
                *value -= share * part;
            }
        },
    );
}
