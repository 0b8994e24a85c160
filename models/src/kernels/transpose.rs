//! The transpose of a matrix, a vector of rows and four columns at a time: value by value most of the time would go into
//! addresses.

use super::simd::{Kernel, Simd};

/// Writes the transpose of a matrix: value `[row, column]`, which is `from[row * apart + column]`, goes to
/// `to[column * to_apart + row]`. The simple form is the last loop, which takes what fills no vector.
pub(super) struct Transpose<'a> {
    pub rows: usize,
    pub columns: usize,
    pub from: &'a [f32],
    pub apart: usize,
    pub to: &'a mut [f32],
    pub to_apart: usize,
}

impl Kernel for Transpose<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        const FOUR: usize = 4;
        let Self { rows, columns, from, apart, to, to_apart } = self;
        let (whole, fours) = (rows / S::LANES * S::LANES, columns / FOUR * FOUR);
        for row in (0..whole).step_by(S::LANES) {
            for column in (0..fours).step_by(FOUR) {
                let end = (row + S::LANES - 1).saturating_mul(apart).saturating_add(column + FOUR);
                assert!(end <= from.len(), "the matrix ends within a row");
                // SAFETY: four elements of each of `LANES` rows, the last of which ends where was just checked.
                let vectors =
                    unsafe { s.load_fours(from.as_ptr().add(row * apart + column), apart) };
                for (column, vector) in (column..).zip(vectors) {
                    s.store(&mut to[column * to_apart + row..], vector);
                }
            }
        }
        for row in 0..rows {
            let left = if row < whole { fours..columns } else { 0..columns };
            for column in left {
                to[column * to_apart + row] = from[row * apart + column];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::simd::Isa;

    #[test]
    fn rows_become_columns_and_nothing_else_is_written() {
        for isa in Isa::available() {
            for (rows, columns) in [(1, 1), (8, 4), (16, 16), (17, 5), (33, 30), (48, 3), (3, 64)] {
                for more in [0, 3] {
                    let (apart, to_apart) = (columns + more, rows + more);
                    let from: Vec<f32> =
                        (0..(rows - 1) * apart + columns).map(|i| i as f32).collect();
                    let mut to = vec![-1.0; columns * to_apart];
                    isa.run(Transpose { rows, columns, from: &from, apart, to: &mut to, to_apart });
                    for (at, x) in to.iter().enumerate() {
                        let (column, row) = (at / to_apart, at % to_apart);
                        let expected = if row < rows { from[row * apart + column] } else { -1.0 };
                        assert_eq!(*x, expected, "{isa}: row {row}, column {column}");
                    }
                }
            }
        }
    }
}
