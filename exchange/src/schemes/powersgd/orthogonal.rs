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
    wide!({
        for (value, part) in column.iter_mut().zip(direction) {
            *value -= share * part;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    const ROWS: usize = 37;

    fn uniform(seed: u64) -> Vec<f32> {
        let stream = Stream::new(&[seed]);
        (0..ROWS as u32).map(|i| 2.0 * stream.uniform(i) - 1.0).collect()
    }

    fn inner(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    }

    /// Makes the columns orthonormal, checks that they are (or zero, where `zero` says so), and
    /// that those given lie in their span, to `share` of each one's length.
    fn check(name: &str, given: &[Vec<f32>], zero: &[usize], share: f64) -> Vec<f32> {
        let mut p = given.concat();
        let independent = orthogonalise(&mut p, ROWS, &mut Vec::new());
        assert_eq!(independent, given.len() - zero.len(), "{name}");
        let columns: Vec<&[f32]> = p.chunks(ROWS).collect();
        for (i, a) in columns.iter().enumerate() {
            for (j, b) in columns.iter().enumerate() {
                let expected = if i == j && !zero.contains(&i) { 1.0 } else { 0.0 };
                assert!((inner(a, b) - expected).abs() < 1e-6, "{name}: {i}, {j}: {}", inner(a, b));
            }
        }
        for (number, column) in given.iter().enumerate() {
            let mut left: Vec<f64> = column.iter().map(|value| f64::from(*value)).collect();
            for direction in &columns {
                let along = inner(direction, column);
                left.iter_mut().zip(*direction).for_each(|(l, d)| *l -= along * f64::from(*d));
            }
            let (left, length) = (dot(&left, &left).sqrt(), inner(column, column).sqrt());
            assert!(left <= share * length, "{name}: {left} of column {number}, of {length}");
        }
        p
    }

    #[test]
    fn columns_become_orthonormal_and_span_what_they_spanned() {
        let columns = |count: u64| (0..count).map(uniform).collect::<Vec<_>>();
        check("four", &columns(4), &[], 1e-6);
        check("thirty-two", &columns(32), &[], 1e-6);
        check("as many as there are rows", &columns(ROWS as u64), &[], 1e-6);
        let scaled = |factor: f32| {
            let times = |column: Vec<f32>| column.iter().map(|value| value * factor).collect();
            columns(4).into_iter().map(times).collect::<Vec<Vec<f32>>>()
        };
        check("huge", &scaled(3e38), &[], 1e-6);
        check("small", &scaled(1e-36), &[], 1e-6);
        check("subnormal", &scaled(1e-43), &[], 1e-6);
        let mut mixed = scaled(1.0);
        mixed[0] = scaled(1e38).remove(0);
        mixed[3] = scaled(1e-38).remove(3);
        check("of all magnitudes", &mixed, &[], 1e-6);
    }

    /// Projected once, columns of which 4·10⁻⁹ are left would be orthogonal to 10⁻⁸ only.
    #[test]
    fn the_basis_is_orthonormal_to_the_precision_of_f64() {
        // The same in the upper rows; in the lower ones nothing is too small for f32.
        let near = |seed| {
            let (upper, lower) = (uniform(1), uniform(seed));
            (0..ROWS).map(|i| if i < 20 { upper[i] } else { 4e-9 * lower[i] }).collect::<Vec<_>>()
        };
        let given: Vec<f32> = (2..6).flat_map(near).collect();
        let mut basis = Vec::new();
        assert_eq!(orthogonalise(&mut given.clone(), ROWS, &mut basis), 4);
        for (i, a) in basis.chunks(ROWS).enumerate() {
            for (j, b) in basis.chunks(ROWS).enumerate() {
                let expected = if i == j { 1.0 } else { 0.0 };
                assert!((dot(a, b) - expected).abs() < 1e-13, "{i}, {j}: {}", dot(a, b));
            }
        }
    }

    #[test]
    fn dependent_and_zero_columns_become_zero() {
        let (a, b, zeros) = (uniform(1), uniform(2), vec![0.0; ROWS]);
        let twice: Vec<f32> = a.iter().map(|value| -2.0 * value).collect();
        check("duplicates", &[a.clone(), a.clone(), twice, b.clone(), b.clone()], &[1, 2, 4], 1e-6);
        check("zeros between", &[zeros.clone(), a.clone(), zeros.clone(), b], &[0, 2], 1e-6);
        let p = check("zeros", &[zeros.clone(), zeros], &[0, 1], 1e-6);
        assert!(p.iter().all(|value| *value == 0.0));
        // A column that is sums of others, each exact in f32.
        let half = |column: Vec<f32>| column.iter().map(|v| (v * 64.0).round() / 64.0).collect();
        let (a, b): (Vec<f32>, Vec<f32>) = (half(a), half(uniform(3)));
        let sum = a.iter().zip(&b).map(|(a, b)| a - 2.0 * b).collect();
        check("a sum", &[a, b, sum], &[2], 1e-6);
    }
}
