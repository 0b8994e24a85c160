//! Eigenvalues and eigenvectors of small symmetric matrices, in f64.

/// Sweeps over all pairs, at most. Convergence is quadratic: matrices of some dozens of rows need six to ten.
const SWEEPS: usize = 64;

/// The eigenvalues of a symmetric matrix in falling order, and their eigenvectors as rows.
#[derive(Debug)]
pub(crate) struct Eigen {
    pub values: Vec<f64>,
    /// Orthonormal. The element of each that is largest in size (the first of equal ones) is positive.
    pub vectors: Vec<Vec<f64>>,
}

/// The decomposition of the symmetric matrix with these rows, by the cyclic Jacobi method (Golub and Van Loan, "Matrix
/// Computations", 4th edition, section 8.5.3). What it does depends on the matrix alone, so the same matrix gives the
/// same bits everywhere: its arithmetic is of operations that IEEE 754 defines to the last bit.
///
/// Nothing if an element is not finite.
///
/// # Panics
/// When the rows are not as long as there are rows.
pub(crate) fn symmetric(mut rows: Vec<Vec<f64>>) -> Option<Eigen> {
    let n = rows.len();
    assert!(rows.iter().all(|row| row.len() == n), "the matrix is not square");
    if !rows.iter().flatten().all(|x| x.is_finite()) {
        return None;
    }
    let mut vectors: Vec<Vec<f64>> =
        (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect()).collect();
    for _ in 0..SWEEPS {
        let mut rotated = false;
        for p in 0..n {
            for q in p + 1..n {
                rotated |= rotate(&mut rows, &mut vectors, p, q);
            }
        }
        if !rotated {
            break;
        }
    }
    let mut pairs: Vec<(f64, Vec<f64>)> =
        vectors.into_iter().enumerate().map(|(i, vector)| (rows[i][i], vector)).collect();
    // Stable: equal eigenvalues stay in the order of their rows.
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (_, vector) in &mut pairs {
        let largest = vector.iter().fold(0.0_f64, |a, b| if b.abs() > a.abs() { *b } else { a });
        if largest < 0.0 {
            vector.iter_mut().for_each(|x| *x = -*x);
        }
    }
    let (values, vectors) = pairs.into_iter().unzip();
    Some(Eigen { values, vectors })
}

/// Turns the plane of the axes `p` and `q` so that the element of both is zero, in the matrix and in the rows of what
/// has been turned so far. Says whether there was anything to turn: not if the element is nothing beside the diagonal's.
fn rotate(rows: &mut [Vec<f64>], turned: &mut [Vec<f64>], p: usize, q: usize) -> bool {
    let off = rows[p][q];
    if off.abs() <= f64::EPSILON * 0.5 * (rows[p][p].abs() * rows[q][q].abs()).sqrt() {
        return false;
    }
    // The smaller of the two angles: it leaves what is nearly diagonal nearly as it is.
    let half = (rows[q][q] - rows[p][p]) / (2.0 * off);
    let tangent = half.signum() / (half.abs() + (half * half + 1.0).sqrt());
    let cosine = (tangent * tangent + 1.0).sqrt().recip();
    let sine = tangent * cosine;
    let turn = |a: f64, b: f64| (cosine * a - sine * b, sine * a + cosine * b);
    for row in rows.iter_mut() {
        (row[p], row[q]) = turn(row[p], row[q]);
    }
    for matrix in [rows, turned] {
        let (above, below) = matrix.split_at_mut(q);
        for (a, b) in above[p].iter_mut().zip(&mut below[0]) {
            (*a, *b) = turn(*a, *b);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The matrix that the decomposition stands for, element by element.
    fn product(eigen: &Eigen, i: usize, j: usize) -> f64 {
        let pairs = eigen.values.iter().zip(&eigen.vectors);
        pairs.map(|(value, vector)| value * vector[i] * vector[j]).sum()
    }

    #[test]
    fn zeros_and_what_is_not_finite() {
        let zeros = symmetric(vec![vec![0.0; 4]; 4]).unwrap();
        assert_eq!(zeros.values, [0.0; 4]);
        assert!(symmetric(vec![vec![1.0, f64::NAN], vec![f64::NAN, 1.0]]).is_none());
        assert!(symmetric(vec![vec![f64::INFINITY]]).is_none());
    }

    proptest! {
        /// Of any symmetric matrix, also of low rank, the decomposition multiplies to it, its vectors are orthonormal and
        /// its order falls.
        #[test]
        fn a_decomposition_gives_back_its_matrix(
            n in 1usize..14,
            rank in 1usize..14,
            seed in prop::collection::vec(-2f64..2.0, 13 * 13),
            shift in -3f64..3.0,
        ) {
            let column = |k: usize, i: usize| seed[k * 13 + i];
            let element = |i: usize, j: usize| {
                let sum: f64 = (0..rank.min(13)).map(|k| column(k, i) * column(k, j)).sum();
                sum + if i == j { shift } else { 0.0 }
            };
            let rows: Vec<Vec<f64>> =
                (0..n).map(|i| (0..n).map(|j| element(i, j)).collect()).collect();
            let scale = rows.iter().flatten().fold(1.0_f64, |a, b| a.max(b.abs()));
            let eigen = symmetric(rows.clone()).unwrap();
            prop_assert!(eigen.values.is_sorted_by(|a, b| a >= b));
            for i in 0..n {
                let vector = &eigen.vectors[i];
                let largest = vector.iter().fold(0.0_f64, |a, b| if b.abs() > a.abs() { *b } else { a });
                prop_assert!(largest > 0.0);
                for j in 0..n {
                    prop_assert!((product(&eigen, i, j) - rows[i][j]).abs() < 1e-12 * scale);
                    let dot: f64 = vector.iter().zip(&eigen.vectors[j]).map(|(a, b)| a * b).sum();
                    prop_assert!((dot - f64::from(u8::from(i == j))).abs() < 1e-13);
                }
            }
        }
    }
}
