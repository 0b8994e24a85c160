//! The semi-orthogonal matrix next to a matrix, by products alone.

use super::super::memory::{Scratch, Target};
use super::super::projection::Panels;
use super::super::simd::Isa;
use super::super::transpose::Transpose;
use super::{isa, sum_of_squares};

/// Added to the norm that a matrix is divided by, as in Jordan's code; `torch.optim.Muon` takes the larger of both, which
/// differs for norms near it alone.
const EPSILON: f64 = 1e-7;

/// The coefficients a, b and c of `X ← aX + bAX + cA²X`, where `A = XXᵀ`: so steep at 0 as is possible where all
/// singular values are to end between about 0.7 and 1.2.
const COEFFICIENTS: [f32; 3] = [3.4445, -4.775, 2.0315];

/// Replaces `matrix`, of `rows` rows one after another, by one of the same singular vectors whose singular values are
/// near 1, as far as they were not next to 0: so many iterations of Newton and Schulz's method with the coefficients
/// of Jordan et al. 2024 ("Muon"). Zeros stay zeros.
///
/// # Panics
/// When the elements do not fill the rows.
pub fn orthogonalize(matrix: &mut [f32], rows: usize, iterations: u32) {
    let columns = matrix.len().checked_div(rows).unwrap_or(0);
    assert_eq!(rows * columns, matrix.len(), "orthogonalize: whole rows");
    if matrix.is_empty() {
        return;
    }
    let scale = (1.0 / (sum_of_squares(matrix).sqrt() + EPSILON)) as f32;
    matrix.iter_mut().for_each(|x| *x *= scale);
    // XXᵀ is the smaller, the fewer rows there are.
    if rows <= columns {
        return iterate(isa(), matrix, rows, iterations);
    }
    let mut turned = Scratch::new(matrix.len());
    transpose(matrix, columns, &mut turned);
    iterate(isa(), &mut turned, columns, iterations);
    transpose(&turned, rows, matrix);
}

/// Iterations from one `XXᵀ`. The rounding of values next to 0, which may be below it, grows twelvefold in each, and
/// would come to something after ten.
const REUSES: u32 = 5;

/// The simple form is `X ← BX` with `B = aI + bA + cA²`, `A = XXᵀ` in each iteration. But A becomes `BXXᵀBᵀ = BAB`, so
/// that only the first A and the last X are products over the columns: `X ← (B₅B₄B₃B₂B₁)X`. For nine times as many
/// columns as rows, as a 3×3 convolution has, this is a third of the arithmetic.
fn iterate(isa: Isa, xs: &mut [f32], rows: usize, iterations: u32) {
    let columns = xs.len() / rows;
    let product = |left: &[f32], right: &[f32], columns: usize, to: &mut [f32]| {
        Panels::new(isa, right, columns).product(left, Target::Write(to));
    };
    let [mut gram, mut factor, mut factors, mut spare] = [0; 4].map(|_| Scratch::new(rows * rows));
    let mut next = Scratch::new(xs.len());
    for left in (1..=iterations).rev() {
        let (done, [a, b, c]) = (iterations - left, COEFFICIENTS);
        let (first, last) = (done % REUSES == 0, left == 1 || (done + 1) % REUSES == 0);
        if first {
            Panels::transposed(isa, xs, columns).product(xs, Target::Write(&mut gram));
        }
        product(&gram, &gram, rows, &mut factor);
        factor.iter_mut().zip(&*gram).for_each(|(f, g)| *f = c * *f + b * g);
        factor.iter_mut().step_by(rows + 1).for_each(|f| *f += a);
        if first {
            factors.copy_from_slice(&factor);
        } else {
            product(&factor, &factors, rows, &mut spare);
            factors.copy_from_slice(&spare);
        }
        if last {
            product(&factors, xs, columns, &mut next);
            xs.copy_from_slice(&next);
        } else {
            product(&factor, &gram, rows, &mut spare);
            product(&spare, &factor, rows, &mut gram);
        }
    }
}

/// Writes the transpose of `from`, whose rows have `columns` elements.
fn transpose(from: &[f32], columns: usize, to: &mut [f32]) {
    let rows = from.len() / columns;
    isa().run(Transpose { rows, columns, from, apart: columns, to, to_apart: rows });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Kernels, with};

    /// Values without a pattern.
    fn noise(len: usize) -> Vec<f32> {
        let hash = |i: usize| (i as u32).wrapping_mul(0x9e37_79b1).rotate_left(13);
        (0..len).map(|i| hash(i).wrapping_mul(0x85eb_ca6b) as i32 as f32 / 1e9).collect()
    }

    /// The same as it is written, in f64.
    fn reference(matrix: &[f32], rows: usize, iterations: u32) -> Vec<f64> {
        let columns = matrix.len() / rows;
        let norm = matrix.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt() + EPSILON;
        let mut xs: Vec<f64> = matrix.iter().map(|&x| f64::from(x) / norm).collect();
        let [a, b, c] = COEFFICIENTS.map(f64::from);
        for _ in 0..iterations {
            let product = |left: &dyn Fn(usize, usize) -> f64,
                           right: &dyn Fn(usize, usize) -> f64,
                           [rows, depth, columns]: [usize; 3]| {
                let element = |i, j| (0..depth).map(|k| left(i, k) * right(k, j)).sum::<f64>();
                let row = |i| (0..columns).map(move |j| (i, j));
                (0..rows).flat_map(row).map(|(i, j)| element(i, j)).collect::<Vec<f64>>()
            };
            let x = |i: usize, j: usize| xs[i * columns + j];
            let gram = product(&x, &|k, j| x(j, k), [rows, columns, rows]);
            let g = |i: usize, j: usize| gram[i * rows + j];
            let square = product(&g, &g, [rows, rows, rows]);
            let factor = |i: usize, j: usize| {
                b * g(i, j) + c * square[i * rows + j] + if i == j { a } else { 0.0 }
            };
            xs = product(&factor, &x, [rows, rows, columns]);
        }
        xs
    }

    /// Whatever the products of the model are in.
    #[test]
    fn in_bf16_it_stays_in_f32() {
        for isa in Isa::with_bf16() {
            let [rounded, plain] = [isa, isa.in_f32()].map(|isa| {
                let mut matrix = noise(24 * 40);
                with(Kernels::native(isa, false), || orthogonalize(&mut matrix, 24, 5));
                matrix
            });
            assert_eq!(rounded, plain);
        }
    }

    #[test]
    fn iterations_are_those_of_the_definition() {
        for kernels in Kernels::available() {
            for (rows, columns) in [(1, 1), (1, 9), (16, 27), (33, 20), (64, 70), (40, 1)] {
                let matrix = noise(rows * columns);
                for iterations in [1, 5, 12] {
                    let mut found = matrix.clone();
                    with(kernels, || orthogonalize(&mut found, rows, iterations));
                    for (found, expected) in found.iter().zip(reference(&matrix, rows, iterations))
                    {
                        let far = (f64::from(*found) - expected).abs();
                        assert!(far < 1e-4, "{rows} x {columns}: {found} {expected}");
                    }
                }
            }
        }
    }

    /// Of an orthogonal matrix whose rows are stretched by 1 to 30 the rows come to about one length again.
    #[test]
    fn what_was_stretched_has_about_one_length() {
        let rows = 16;
        let mut matrix = vec![0.0; rows * 2 * rows];
        for (i, row) in matrix.chunks_exact_mut(2 * rows).enumerate() {
            row[(7 * i) % 32] = 1.0 + 2.0 * i as f32;
        }
        orthogonalize(&mut matrix, rows, 5);
        for row in matrix.chunks_exact(2 * rows) {
            let length = sum_of_squares(row).sqrt();
            assert!((0.6..1.3).contains(&length), "{length}");
        }
    }

    #[test]
    fn nothing_and_zeros_stay() {
        orthogonalize(&mut [], 0, 5);
        orthogonalize(&mut [], 3, 5);
        let mut zeros = [0.0; 6];
        orthogonalize(&mut zeros, 2, 5);
        assert_eq!(zeros, [0.0; 6]);
    }

    #[test]
    #[should_panic(expected = "whole rows")]
    fn rows_that_are_not_whole_are_refused() {
        orthogonalize(&mut [1.0; 7], 2, 5);
    }
}
