//! Products of a matrix and a slim one, on one thread.
//!
//! A matrix lies row by row; a slim factor (P, Q) lies column by column, so that all inner loops run
//! along memory. The matrix is far larger than any cache while the factors fit into one: every
//! product reads the matrix once, a few rows at a time, and all columns of the factor meet these
//! rows while they are near. The loops are written in vectors, because compilers make scalar code
//! or worse of tiles that are written in arrays.
//!
//! The order of every sum is part of the definitions below. It depends neither on the width of the
//! vectors that a processor has nor on how many rows and columns make a tile, and a multiplication
//! and an addition are never fused, so the results are the same bits on every machine.

use std::array::from_fn;

use pulp::{Arch, Simd, WithSimd};

/// Partial sums of a scalar product: element i goes to the sum i mod 16.
const LANES: usize = 16;
/// Rows whose products are added up before they join the sum of all rows.
const GROUP: usize = 8;

/// The vectors of a slice of a multiple of their length.
#[inline(always)]
fn vectors<S: Simd>(values: &[f32]) -> &[S::f32s] {
    S::as_simd_f32s(values).0
}

/// `sum` and the product of `a` and `b`, rounded twice.
#[inline(always)]
fn add_product<S: Simd>(simd: S, sum: S::f32s, a: S::f32s, b: S::f32s) -> S::f32s {
    simd.add_f32s(sum, simd.mul_f32s(a, b))
}

/// P = M·Q: `p` of length rank·rows, `matrix` of rows·columns, `q` of rank·columns.
///
/// Simply: p\[j\]\[i\] = Σ_k matrix\[i\]\[k\]·q\[j\]\[k\], in 16 partial sums of which the upper
/// half is added to the lower until one is left. A tile of rows by columns keeps all their sums in
/// registers, and every vector that is loaded is used for a whole row or column of the tile.
pub(super) fn times(matrix: &[f32], columns: usize, q: &[f32], p: &mut [f32]) {
    Arch::new().dispatch(Times { matrix, columns, q, p });
}

struct Times<'a> {
    matrix: &'a [f32],
    columns: usize,
    q: &'a [f32],
    p: &'a mut [f32],
}

impl WithSimd for Times<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // As many sums as registers hold: 32 of them with 16 lanes, 16 otherwise.
        match S::F32_LANES {
            16 => self.all::<S, 1, 4, 4>(simd),
            8 => self.all::<S, 2, 2, 2>(simd),
            4 => self.all::<S, 4, 1, 2>(simd),
            _ => self.all::<S, LANES, 1, 1>(simd),
        }
    }
}

impl Times<'_> {
    /// With `PER` vectors of sums for each of the `ROWS` by `COLUMNS` numbers of a tile.
    #[inline(always)]
    fn all<S: Simd, const PER: usize, const ROWS: usize, const COLUMNS: usize>(self, simd: S) {
        let Self { matrix, columns, q, p } = self;
        let rows = matrix.len() / columns;
        let mut blocks = matrix.chunks_exact(ROWS * columns);
        for (block, some) in blocks.by_ref().enumerate() {
            let p = &mut p[block * ROWS..];
            let factors = q.chunks(COLUMNS * columns).zip(p.chunks_mut(COLUMNS * rows));
            for (q, p) in factors {
                match q.len() == COLUMNS * columns {
                    true => tile::<S, PER, ROWS, COLUMNS>(simd, some, columns, q, p, rows),
                    false => strips::<S, PER, ROWS>(simd, some, columns, q, p, rows),
                }
            }
        }
        let last = rows - rows % ROWS;
        for (row, some) in blocks.remainder().chunks_exact(columns).enumerate() {
            strips::<S, PER, 1>(simd, some, columns, q, &mut p[last + row..], rows);
        }
    }
}

/// [`tile`]s of one column.
#[inline(always)]
fn strips<S: Simd, const PER: usize, const ROWS: usize>(
    simd: S,
    some: &[f32],
    columns: usize,
    q: &[f32],
    p: &mut [f32],
    rows: usize,
) {
    for (q, p) in q.chunks_exact(columns).zip(p.chunks_mut(rows)) {
        tile::<S, PER, ROWS, 1>(simd, some, columns, q, p, rows);
    }
}

/// `ROWS` rows of a matrix times `COLUMNS` columns of Q, to the begin of as many columns of P.
#[inline(always)]
fn tile<S: Simd, const PER: usize, const ROWS: usize, const COLUMNS: usize>(
    simd: S,
    some: &[f32],
    columns: usize,
    q: &[f32],
    p: &mut [f32],
    rows: usize,
) {
    let whole = columns - columns % LANES;
    let mut sums = [[[simd.splat_f32s(0.0); PER]; COLUMNS]; ROWS];
    {
        let some: [_; ROWS] = from_fn(|r| vectors::<S>(&some[r * columns..][..whole]));
        let q: [_; COLUMNS] = from_fn(|c| vectors::<S>(&q[c * columns..][..whole]));
        for at in 0..whole / LANES {
            for part in 0..PER {
                let at = PER * at + part;
                let mut factors = [simd.splat_f32s(0.0); COLUMNS];
                for c in 0..COLUMNS {
                    factors[c] = q[c][at];
                }
                for r in 0..ROWS {
                    let value = some[r][at];
                    for c in 0..COLUMNS {
                        sums[r][c][part] = add_product(simd, sums[r][c][part], value, factors[c]);
                    }
                }
            }
        }
    }
    for r in 0..ROWS {
        for c in 0..COLUMNS {
            let mut lanes = [0f32; LANES];
            for (lanes, sum) in S::as_mut_simd_f32s(&mut lanes).0.iter_mut().zip(sums[r][c]) {
                *lanes = sum;
            }
            let left = &some[r * columns + whole..(r + 1) * columns];
            let factors = &q[c * columns + whole..(c + 1) * columns];
            for (lane, (value, factor)) in lanes.iter_mut().zip(left.iter().zip(factors)) {
                *lane += value * factor;
            }
            let mut width = LANES / 2;
            while width > 0 {
                for lane in 0..width {
                    lanes[lane] += lanes[lane + width];
                }
                width /= 2;
            }
            p[c * rows + r] = lanes[0];
        }
    }
}

/// Q = Mᵀ·P: `q` of length rank·columns, `matrix` of rows·columns, `p` of rank·rows.
///
/// Simply: q\[j\]\[k\] = Σ_i p\[j\]\[i\]·matrix\[i\]\[k\], where each group of 8 rows is added up by
/// itself, first to last, before it joins the sum; rows that fill no group join it one by one. The
/// sums are loaded and stored once for 8 rows, and their rounding is that of an eighth of the rows.
pub(super) fn transposed_times(matrix: &[f32], columns: usize, p: &[f32], q: &mut [f32]) {
    Arch::new().dispatch(TransposedTimes { matrix, columns, p, q });
}

struct TransposedTimes<'a> {
    matrix: &'a [f32],
    columns: usize,
    p: &'a [f32],
    q: &'a mut [f32],
}

impl WithSimd for TransposedTimes<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { matrix, columns, p, q } = self;
        let rows = matrix.len() / columns;
        q.fill(0.0);
        let mut groups = matrix.chunks_exact(GROUP * columns);
        for (group, some) in groups.by_ref().enumerate() {
            let p = &p[group * GROUP..];
            let factors = q.chunks_mut(4 * columns).zip(p.chunks(4 * rows));
            for (q, p) in factors {
                match q.len() == 4 * columns {
                    true => gather::<S, GROUP, 4>(simd, some, columns, p, rows, q),
                    false => {
                        for (q, p) in q.chunks_exact_mut(columns).zip(p.chunks(rows)) {
                            gather::<S, GROUP, 1>(simd, some, columns, p, rows, q);
                        }
                    }
                }
            }
        }
        let last = rows - rows % GROUP;
        for (row, some) in groups.remainder().chunks_exact(columns).enumerate() {
            for (q, p) in q.chunks_exact_mut(columns).zip(p[last + row..].chunks(rows)) {
                gather::<S, 1, 1>(simd, some, columns, p, rows, q);
            }
        }
    }
}

/// Adds `ROWS` rows of a matrix, weighted by `COLUMNS` columns of P, to as many columns of Q.
#[inline(always)]
fn gather<S: Simd, const ROWS: usize, const COLUMNS: usize>(
    simd: S,
    some: &[f32],
    columns: usize,
    p: &[f32],
    rows: usize,
    q: &mut [f32],
) {
    let weights: [[f32; ROWS]; COLUMNS] = from_fn(|c| from_fn(|r| p[c * rows + r]));
    let whole = columns - columns % S::F32_LANES;
    for at in whole..columns {
        for c in 0..COLUMNS {
            let product = |r: usize| weights[c][r] * some[r * columns + at];
            q[c * columns + at] += (1..ROWS).fold(product(0), |sum, r| sum + product(r));
        }
    }
    let some: [_; ROWS] = from_fn(|r| vectors::<S>(&some[r * columns..][..whole]));
    let mut totals = q.chunks_exact_mut(columns).map(|column| &mut column[..whole]);
    let totals: [_; COLUMNS] =
        from_fn(|_| totals.next().map_or(Default::default(), |t| S::as_mut_simd_f32s(t).0));
    for at in 0..whole / S::F32_LANES {
        let mut sums = [simd.splat_f32s(0.0); COLUMNS];
        for r in 0..ROWS {
            let value = some[r][at];
            for c in 0..COLUMNS {
                let weight = simd.splat_f32s(weights[c][r]);
                sums[c] = match r {
                    0 => simd.mul_f32s(weight, value),
                    _ => add_product(simd, sums[c], weight, value),
                };
            }
        }
        for c in 0..COLUMNS {
            totals[c][at] = simd.add_f32s(totals[c][at], sums[c]);
        }
    }
}

/// M̂ = P·Qᵀ to `matrix`, and M̂ taken off `residual`: `p` of length rank·rows, `q` of rank·columns.
///
/// Simply: matrix\[i\]\[k\] = Σ_j p\[j\]\[i\]·q\[j\]\[k\], first to last. Taking it off the residual in
/// the same pass saves reading all of M̂ again.
pub(super) fn outer(
    p: &[f32],
    q: &[f32],
    columns: usize,
    matrix: &mut [f32],
    residual: Option<&mut [f32]>,
) {
    Arch::new().dispatch(Outer { p, q, columns, matrix, residual });
}

struct Outer<'a> {
    p: &'a [f32],
    q: &'a [f32],
    columns: usize,
    matrix: &'a mut [f32],
    residual: Option<&'a mut [f32]>,
}

impl WithSimd for Outer<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { p, q, columns, matrix, mut residual } = self;
        let rows = matrix.len() / columns;
        for first in (0..rows).step_by(4) {
            let many = if rows - first < 4 { 1 } else { 4 };
            for first in (first..rows.min(first + 4)).step_by(many) {
                let range = first * columns..(first + many) * columns;
                let some = &mut matrix[range.clone()];
                let residual = residual.as_mut().map(|residual| &mut residual[range]);
                match many {
                    4 => spread::<S, 4>(simd, &p[first..], rows, q, columns, some, residual),
                    _ => spread::<S, 1>(simd, &p[first..], rows, q, columns, some, residual),
                }
            }
        }
    }
}

/// `ROWS` rows of P·Qᵀ to `some`, and taken off `residual`.
#[inline(always)]
fn spread<S: Simd, const ROWS: usize>(
    simd: S,
    p: &[f32],
    rows: usize,
    q: &[f32],
    columns: usize,
    some: &mut [f32],
    residual: Option<&mut [f32]>,
) {
    let whole = columns - columns % S::F32_LANES;
    for (row, some) in some.chunks_exact_mut(columns).enumerate() {
        for (at, value) in some.iter_mut().enumerate().skip(whole) {
            let factors = q.iter().skip(at).step_by(columns);
            let products = factors.zip(p[row..].iter().step_by(rows)).map(|(q, p)| p * q);
            *value = products.fold(0.0, |sum, product| sum + product);
        }
    }
    for at in (0..whole).step_by(S::F32_LANES) {
        let mut sums = [simd.splat_f32s(0.0); ROWS];
        for (p, q) in p.chunks(rows).zip(q.chunks_exact(columns)) {
            let factors = vectors::<S>(&q[at..at + S::F32_LANES])[0];
            let weights = &p[..ROWS];
            for r in 0..ROWS {
                sums[r] = add_product(simd, sums[r], simd.splat_f32s(weights[r]), factors);
            }
        }
        for r in 0..ROWS {
            let at = r * columns + at;
            S::as_mut_simd_f32s(&mut some[at..at + S::F32_LANES]).0[0] = sums[r];
        }
    }
    if let Some(residual) = residual {
        for (left, value) in residual.iter_mut().zip(some.iter()) {
            *left -= value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::testing::bits;
    use crate::rng::Stream;
    use crate::simd::machines;

    /// Uniform in (−1, 1).
    fn numbers(length: usize, seed: u64) -> Vec<f32> {
        let stream = Stream::new(&[seed]);
        (0..length as u32).map(|i| 2.0 * stream.uniform(i) - 1.0).collect()
    }

    /// The simple forms, in the stated order of summation.
    mod simple {
        use super::{GROUP, LANES};

        pub(super) fn times(matrix: &[f32], columns: usize, q: &[f32], p: &mut [f32]) {
            let rows = matrix.len() / columns;
            for (j, factor) in q.chunks(columns).enumerate() {
                for (i, row) in matrix.chunks(columns).enumerate() {
                    let mut sums = vec![0f32; LANES];
                    for k in 0..columns {
                        sums[k % LANES] += row[k] * factor[k];
                    }
                    while sums.len() > 1 {
                        let upper = sums.split_off(sums.len() / 2);
                        sums.iter_mut().zip(upper).for_each(|(sum, other)| *sum += other);
                    }
                    p[j * rows + i] = sums[0];
                }
            }
        }

        pub(super) fn transposed_times(matrix: &[f32], columns: usize, p: &[f32], q: &mut [f32]) {
            let rows = matrix.len() / columns;
            let whole = rows - rows % GROUP;
            for (index, total) in q.iter_mut().enumerate() {
                let (j, k) = (index / columns, index % columns);
                let product = |i: usize| p[j * rows + i] * matrix[i * columns + k];
                *total = 0.0;
                for first in (0..whole).step_by(GROUP) {
                    let group =
                        (first + 1..first + GROUP).fold(product(first), |s, i| s + product(i));
                    *total += group;
                }
                (whole..rows).for_each(|i| *total += product(i));
            }
        }

        pub(super) fn outer(p: &[f32], q: &[f32], columns: usize, matrix: &mut [f32]) {
            let rows = matrix.len() / columns;
            for (index, value) in matrix.iter_mut().enumerate() {
                let (i, k) = (index / columns, index % columns);
                let rank = q.len() / columns;
                *value = (0..rank).fold(0.0, |sum, j| sum + p[j * rows + i] * q[j * columns + k]);
            }
        }
    }

    /// Every remainder of rows, columns and ranks by the blocks that they are taken in.
    #[test]
    fn products_have_the_bits_of_their_simple_forms_on_every_instruction_set() {
        for (rows, columns) in [(1, 1), (3, 16), (4, 17), (8, 15), (11, 33), (17, 64), (33, 100)] {
            for rank in [1, 2, 3, 4, 5, 8, 9, 32] {
                let seed = (rows * 1000 + columns * 40 + rank) as u64;
                let given = numbers(rows * columns, seed);
                let (p, q) = (numbers(rank * rows, seed + 1), numbers(rank * columns, seed + 2));
                let old = numbers(rows * columns, seed + 3);
                let mut product = vec![0.0; rank * rows];
                simple::times(&given, columns, &q, &mut product);
                let mut transposed = vec![0.0; rank * columns];
                simple::transposed_times(&given, columns, &p, &mut transposed);
                let mut spread = given.clone();
                simple::outer(&p, &q, columns, &mut spread);
                let left: Vec<f32> = old.iter().zip(&spread).map(|(old, new)| old - new).collect();
                for machine in machines() {
                    let case = format!("{rows} × {columns}, rank {rank}, {machine:?}");
                    let mut found = vec![f32::NAN; rank * rows];
                    machine.dispatch(Times { matrix: &given, columns, q: &q, p: &mut found });
                    assert_eq!(bits(&found), bits(&product), "M·Q, {case}");
                    let (mut found, matrix) = (vec![f32::NAN; rank * columns], &given[..]);
                    machine.dispatch(TransposedTimes { matrix, columns, p: &p, q: &mut found });
                    assert_eq!(bits(&found), bits(&transposed), "Mᵀ·P, {case}");
                    for with in [false, true] {
                        let (mut matrix, mut residual) = (given.clone(), old.clone());
                        let (p, q, taken) = (&p[..], &q[..], with.then_some(&mut residual[..]));
                        machine.dispatch(Outer {
                            p,
                            q,
                            columns,
                            matrix: &mut matrix,
                            residual: taken,
                        });
                        assert_eq!(bits(&matrix), bits(&spread), "P·Qᵀ, {case}");
                        let expected = if with { &left } else { &old };
                        assert_eq!(bits(&residual), bits(expected), "residual, {case}");
                    }
                }
            }
        }
    }
}
