//! The matrix product every convolution is made of.
//!
//! A register tile of the result, some rows of two vectors, is summed over the inner dimension
//! before it is written. The left operand is read one scalar at a time, the right operand in vectors along its rows.
//!
//! Operands may lie in blocks of columns, each row after row. Then the scalars of a tile lie at distances that are known
//! when this is compiled, so that one pointer reaches all of them: on today's processors additions to pointers take the
//! ports that multiply. Nor do rows a power of two apart then fall into few sets of the cache.

pub(crate) use super::memory::Target;
use super::simd::{Kernel, Simd};

/// Vectors of the result's columns held in registers at once.
const VECTORS: usize = 2;

/// Columns of the result in one panel of the right operand, for vectors of `lanes`.
pub(crate) const fn panel(lanes: usize) -> usize {
    VECTORS * lanes
}

/// Inner dimension summed in registers before the result is written: so much of a panel of the right operand stays
/// in the first-level cache together with the rows of the left one.
const DEPTH: usize = 512;

/// How the left operand, `[rows, depth]`, lies in memory.
#[derive(Clone, Copy)]
pub(crate) enum Left {
    /// Row after row, this many elements apart.
    Rows(usize),
    /// Column after column, this many elements apart.
    Columns(usize),
    /// Blocks of as many columns as a vector has lanes, this many elements apart.
    Blocks(usize),
    /// The transpose of such blocks.
    Transposed(usize),
}

/// How the right operand, `[depth, columns]`, lies in memory.
#[derive(Clone, Copy)]
pub(crate) enum Right {
    /// Row after row, this many elements apart.
    Rows(usize),
    /// Blocks of [`panel`] columns, one behind the other; the last block as wide as the columns left.
    Panels,
    /// Blocks of `width` columns, `stride` elements apart. The width divides [`panel`], or is at least the columns.
    Blocks { width: usize, stride: usize },
}

/// `c[i, j] = Σ_k a[i, k] · b[k, j]`.
///
/// Row `i` of the result starts at `c[i * c_row]`.
pub(crate) struct Gemm<'a> {
    pub rows: usize,
    pub columns: usize,
    pub depth: usize,
    pub a: &'a [f32],
    pub left: Left,
    pub b: &'a [f32],
    pub right: Right,
    pub c: Target<'a>,
    pub c_row: usize,
}

impl Gemm<'_> {
    /// Panics unless every element the product touches lies inside its slice.
    #[inline(always)]
    fn check(&self, lanes: usize) {
        let (m, n, k) = (self.rows - 1, self.columns - 1, self.depth - 1);
        let a = match self.left {
            Left::Rows(stride) => last([(m, stride), (k, 1)]),
            Left::Columns(stride) => last([(k, stride), (m, 1)]),
            Left::Blocks(stride) => last([(k / lanes, stride), (m, lanes), (lanes - 1, 1)]),
            Left::Transposed(stride) => last([(m / lanes, stride), (k, lanes), (lanes - 1, 1)]),
        };
        let b = match self.right {
            Right::Rows(stride) => last([(k, stride), (n, 1)]),
            Right::Panels => last([(k, self.columns), (n, 1)]),
            Right::Blocks { width, stride } => {
                let whole = width > n || panel(lanes).is_multiple_of(width);
                assert!(whole, "a panel of the right operand reaches over a block's end");
                last([(n / width, stride), (k, width), (width - 1, 1)])
            }
        };
        assert!(a < self.a.len(), "left operand too short");
        assert!(b < self.b.len(), "right operand too short");
        assert!(last([(m, self.c_row), (n, 1)]) < self.c.len(), "result too short");
    }
}

/// The sum of some products, or if it wraps the largest number there is, which lies in no slice.
#[inline(always)]
fn last<const N: usize>(products: [(usize, usize); N]) -> usize {
    let mut sum = 0_usize;
    for (factor, stride) in products {
        sum = sum.saturating_add(factor.saturating_mul(stride));
    }
    sum
}

impl Kernel for Gemm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if self.rows == 0 || self.columns == 0 {
            return;
        }
        assert!(self.depth > 0, "a product over nothing");
        self.check(S::LANES);
        let (c, accumulate) = self.c.parts();
        let c = c.as_mut_ptr();
        let width = match self.right {
            Right::Blocks { width, .. } => panel(S::LANES).min(width),
            _ => panel(S::LANES),
        };
        let mut k = 0;
        while k < self.depth {
            let depth = DEPTH.min(self.depth - k);
            let (a, a_stride) = match self.left {
                Left::Rows(stride) => (k, stride),
                Left::Columns(stride) => (k * stride, stride),
                Left::Blocks(stride) => (k / S::LANES * stride, stride),
                Left::Transposed(stride) => (k * S::LANES, stride),
            };
            let mut j = 0;
            while j < self.columns {
                let columns = width.min(self.columns - j);
                let (b, b_row) = match self.right {
                    Right::Rows(stride) => (k * stride + j, stride),
                    Right::Panels => (j * self.depth + k * columns, columns),
                    Right::Blocks { width, stride } => {
                        (j / width * stride + k * width + j % width, width)
                    }
                };
                // SAFETY: `check` has bounded the last element of all three operands, and every offset here is that
                // of an element inside.
                unsafe {
                    let strip = Strip {
                        simd,
                        depth,
                        a: self.a.as_ptr().add(a),
                        a_stride,
                        b: self.b.as_ptr().add(b),
                        b_row,
                        c: c.add(j),
                        c_row: self.c_row,
                        last: 0,
                        accumulate: accumulate || k > 0,
                    };
                    match self.left {
                        Left::Rows(_) => strip.columns::<ROWS>(self.rows, columns),
                        Left::Columns(_) => strip.columns::<COLUMNS>(self.rows, columns),
                        Left::Blocks(_) => strip.columns::<BLOCKS>(self.rows, columns),
                        Left::Transposed(_) => strip.columns::<TRANSPOSED>(self.rows, columns),
                    }
                }
                j += columns;
            }
            k += depth;
        }
    }
}

/// [`Left`], where a function is compiled for one of them.
const ROWS: u8 = 0;
const COLUMNS: u8 = 1;
const BLOCKS: u8 = 2;
const TRANSPOSED: u8 = 3;

/// All rows of the result in one panel of columns.
#[derive(Clone, Copy)]
struct Strip<S> {
    simd: S,
    depth: usize,
    a: *const f32,
    a_stride: usize,
    b: *const f32,
    b_row: usize,
    c: *mut f32,
    c_row: usize,
    /// Lanes in the last vector of columns, when it is not full.
    last: usize,
    accumulate: bool,
}

impl<S: Simd> Strip<S> {
    /// # Safety
    /// The operands hold `rows` × `columns` × `depth` as they are said to lie.
    #[inline(always)]
    unsafe fn columns<const LEFT: u8>(mut self, rows: usize, columns: usize) {
        let full = columns.is_multiple_of(S::LANES);
        self.last = if full { S::LANES } else { columns % S::LANES };
        // SAFETY: the caller's promise; `last` covers what the last vector has of the columns.
        unsafe {
            match (columns.div_ceil(S::LANES), full) {
                (2, true) => self.rows::<LEFT, 2, false>(rows),
                (2, false) => self.rows::<LEFT, 2, true>(rows),
                (_, true) => self.rows::<LEFT, 1, false>(rows),
                (_, false) => self.rows::<LEFT, 1, true>(rows),
            }
        }
    }

    /// # Safety
    /// As [`Strip::columns`], for `V` vectors of columns.
    #[inline(always)]
    unsafe fn rows<const LEFT: u8, const V: usize, const PARTIAL: bool>(mut self, rows: usize) {
        let mut row = 0;
        // SAFETY: the caller's promise, for rows below `rows`. Tiles of transposed blocks end where a block does.
        unsafe {
            if S::LANES == 16 && V == 1 {
                while rows - row >= 16 {
                    row += self.tile::<LEFT, 16, V, PARTIAL>(row);
                }
            } else if S::LANES == 16 && LEFT != TRANSPOSED {
                // Of sixteen the two left over would cost as much as four.
                while rows - row >= 14 && rows - row != 16 {
                    row += self.tile::<LEFT, 14, V, PARTIAL>(row);
                }
            }
            while S::LANES == 16 && rows - row >= 8 {
                row += self.tile::<LEFT, 8, V, PARTIAL>(row);
            }
            while (S::LANES == 16 || LEFT != TRANSPOSED) && rows - row >= 6 {
                row += self.tile::<LEFT, 6, V, PARTIAL>(row);
            }
            while rows - row >= 4 {
                row += self.tile::<LEFT, 4, V, PARTIAL>(row);
            }
            if rows - row >= 2 {
                row += self.tile::<LEFT, 2, V, PARTIAL>(row);
            }
            if rows - row >= 1 {
                self.tile::<LEFT, 1, V, PARTIAL>(row);
            }
        }
    }

    /// Computes `M` rows from `row` on and returns `M`.
    ///
    /// # Safety
    /// As [`Strip::columns`], for `M` rows and `V` vectors of columns; of transposed blocks, rows of one block.
    #[inline(always)]
    unsafe fn tile<const LEFT: u8, const M: usize, const V: usize, const PARTIAL: bool>(
        &mut self,
        row: usize,
    ) -> usize {
        /// Steps of the depth from one addition to a pointer to the next one.
        const STEPS: usize = 4;
        let (s, stride) = (self.simd, self.a_stride);
        let mut sums = [[s.zero(); V]; M];
        // SAFETY: every pointer is that of an element the caller has promised: row `row + i`, `i < M`, vector `j < V` (the
        // last one cut to `last` lanes if partial), step `k < depth`.
        unsafe {
            let mut b = self.b;
            if LEFT == BLOCKS {
                let mut block = self.a.wrapping_add(row * S::LANES);
                let mut left = self.depth;
                while left > 0 {
                    let mut here = left.min(S::LANES);
                    left -= here;
                    let mut a = block;
                    block = block.wrapping_add(stride);
                    while here >= STEPS {
                        b = self.step::<M, V, PARTIAL>(&mut sums, a, S::LANES, b);
                        b = self.step::<M, V, PARTIAL>(&mut sums, a.wrapping_add(1), S::LANES, b);
                        b = self.step::<M, V, PARTIAL>(&mut sums, a.wrapping_add(2), S::LANES, b);
                        b = self.step::<M, V, PARTIAL>(&mut sums, a.wrapping_add(3), S::LANES, b);
                        a = a.wrapping_add(STEPS);
                        here -= STEPS;
                    }
                    while here > 0 {
                        b = self.step::<M, V, PARTIAL>(&mut sums, a, S::LANES, b);
                        a = a.wrapping_add(1);
                        here -= 1;
                    }
                }
            } else {
                let (mut a, apart, next) = match LEFT {
                    ROWS => (self.a.wrapping_add(row * stride), stride, 1),
                    COLUMNS => (self.a.wrapping_add(row), 1, stride),
                    _ => {
                        let block = row / S::LANES * stride;
                        (self.a.wrapping_add(block + row % S::LANES), 1, S::LANES)
                    }
                };
                for _ in 0..self.depth {
                    b = self.step::<M, V, PARTIAL>(&mut sums, a, apart, b);
                    a = a.wrapping_add(next);
                }
            }
            for (i, sums) in sums.iter().enumerate() {
                let c = self.c.add((row + i) * self.c_row);
                // The sum of this stretch of the depth is finished before it is added to what is there: fewer
                // roundings lie between any product and the result than in one long chain.
                let old = if self.accumulate { self.load::<V, PARTIAL>(c) } else { [s.zero(); V] };
                for j in 0..V {
                    let v = if self.accumulate { s.add(old[j], sums[j]) } else { sums[j] };
                    if PARTIAL && j == V - 1 {
                        s.store_ptr_first(c.add(j * S::LANES), v, self.last);
                    } else {
                        s.store_ptr(c.add(j * S::LANES), v);
                    }
                }
            }
        }
        M
    }

    /// Adds the products of `M` scalars, `apart` from `a` on, and `V` vectors at `b`; returns where the next vectors are.
    ///
    /// # Safety
    /// All these may be read.
    #[inline(always)]
    unsafe fn step<const M: usize, const V: usize, const PARTIAL: bool>(
        &self,
        sums: &mut [[S::V; V]; M],
        a: *const f32,
        apart: usize,
        b: *const f32,
    ) -> *const f32 {
        let s = self.simd;
        // SAFETY: the caller's promise.
        unsafe {
            let right = self.load::<V, PARTIAL>(b);
            for (i, sums) in sums.iter_mut().enumerate() {
                let left = s.splat(*a.add(i * apart));
                for j in 0..V {
                    sums[j] = s.fma(left, right[j], sums[j]);
                }
            }
        }
        b.wrapping_add(self.b_row)
    }

    /// `V` vectors at `p`, the last one cut to `last` lanes if partial.
    ///
    /// # Safety
    /// `p` is valid for reading so many elements.
    #[inline(always)]
    unsafe fn load<const V: usize, const PARTIAL: bool>(&self, p: *const f32) -> [S::V; V] {
        let s = self.simd;
        let mut v = [s.zero(); V];
        for (j, v) in v.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *v = unsafe {
                let p = p.add(j * S::LANES);
                if PARTIAL && j == V - 1 { s.load_ptr_first(p, self.last) } else { s.load_ptr(p) }
            };
        }
        v
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::simd::Isa;

    fn value(i: usize) -> f32 {
        (i as f32 * 0.37).sin()
    }

    /// A matrix `[rows, columns]` in blocks of `width` columns, and elements from one block to the next; what belongs to
    /// no element is NaN.
    fn blocks(
        rows: usize,
        columns: usize,
        width: usize,
        at: impl Fn(usize, usize) -> f32,
    ) -> (Vec<f32>, usize) {
        let stride = rows * width + 5;
        let mut blocks = vec![f32::NAN; columns.div_ceil(width) * stride];
        for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
            blocks[j / width * stride + i * width + j % width] = at(i, j);
        }
        (blocks, stride)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn every_way_to_lie_gives_the_definition(
            rows in 1..40_usize, columns in 1..70_usize, depth in 1..40_usize, deep in any::<bool>(),
            narrow in any::<bool>(), add in any::<bool>(),
        ) {
            let depth = if deep { depth + DEPTH } else { depth };
            check((rows, columns, depth), narrow, add);
        }
    }

    #[test]
    fn every_way_to_lie_at_small_sizes() {
        for (rows, columns, depth) in [(1, 1, 1), (5, 9, 3), (17, 33, 18)] {
            check((rows, columns, depth), false, true);
            check((rows, columns, depth), true, false);
        }
    }

    /// Every way to lie of both operands, against the definition in f64.
    fn check((rows, columns, depth): (usize, usize, usize), narrow: bool, add: bool) {
        let a = |i: usize, k: usize| value(i * depth + k);
        let b = |k: usize, j: usize| value(7 + k * columns + j);
        for isa in Isa::available() {
            let lanes = isa.lanes();
            let wide = panel(lanes);
            let (left_rows, _) = blocks(rows, depth, depth, a);
            let (left_blocks, a_blocks) = blocks(rows, depth, lanes, a);
            let (transposed, a_transposed) = blocks(depth, rows, lanes, |k, i| a(i, k));
            let (left_columns, _) = blocks(depth, rows, rows, |k, i| a(i, k));
            let lefts = [
                (&left_rows, Left::Rows(depth)),
                (&left_columns, Left::Columns(rows)),
                (&left_blocks, Left::Blocks(a_blocks)),
                (&transposed, Left::Transposed(a_transposed)),
            ];
            let width = if narrow { lanes } else { wide };
            let (right_rows, _) = blocks(depth, columns, columns, b);
            let (right_blocks, stride) = blocks(depth, columns, width, b);
            let mut panels = Vec::new();
            for start in (0..columns).step_by(wide) {
                let end = columns.min(start + wide);
                panels.extend((0..depth).flat_map(|k| (start..end).map(move |j| b(k, j))));
            }
            let rights = [
                (&right_rows, Right::Rows(columns)),
                (&right_blocks, Right::Blocks { width, stride }),
                (&panels, Right::Panels),
            ];
            for ((a_values, left), (b_values, right)) in
                lefts.iter().flat_map(|left| rights.iter().map(move |right| (*left, *right)))
            {
                let c_row = columns + 3;
                let mut c = vec![0.5; rows * c_row];
                let to = if add { Target::Add(&mut c) } else { Target::Write(&mut c) };
                isa.run(Gemm {
                    rows,
                    columns,
                    depth,
                    a: a_values,
                    left,
                    b: b_values,
                    right,
                    c: to,
                    c_row,
                });
                for (i, j) in (0..rows).flat_map(|i| (0..c_row).map(move |j| (i, j))) {
                    let products = (0..depth).map(|k| f64::from(a(i, k)) * f64::from(b(k, j)));
                    let size: f64 = products.clone().map(f64::abs).sum();
                    let product: f64 = products.sum();
                    let expected = match (j < columns, add) {
                        (false, _) => 0.5,
                        (true, false) => product,
                        (true, true) => 0.5 + product,
                    };
                    let found = f64::from(c[i * c_row + j]);
                    // What as many roundings may come to, in whatever order.
                    let off = (depth + 2) as f64 * f64::from(f32::EPSILON / 2.0) * (1.0 + size);
                    assert!(
                        (found - expected).abs() <= off,
                        "({i}, {j}) on {isa:?}: {found} and not {expected}"
                    );
                }
            }
        }
    }

    /// Operands of which an element lies `far` away, once the number of it has wrapped: none is in its slice.
    #[test]
    fn numbers_that_wrap_are_no_elements() {
        const FAR: usize = 1 << (usize::BITS - 4);
        let product = |isa: Isa, left, right, c_row, rows, columns, depth| {
            let (a, b, mut c) = (vec![1.0; 64], vec![1.0; 64], vec![0.0; 64]);
            let c = Target::Write(&mut c);
            isa.run(Gemm { rows, columns, depth, a: &a, left, b: &b, right, c, c_row });
        };
        let (rows, panels) = (Left::Rows(1), Right::Panels);
        let wide = Right::Blocks { width: 8, stride: FAR };
        let cases = [
            (rows, panels, 1, 1, 16, FAR + 1),
            (rows, Right::Rows(FAR), 1, 1, 1, 17),
            (rows, wide, 129, 1, 129, 1),
            (Left::Rows(FAR), panels, 1, 17, 1, 1),
            (Left::Columns(FAR), panels, 1, 1, 1, 17),
            (Left::Blocks(FAR), panels, 1, 1, 1, 16 * 16 + 1),
            (Left::Transposed(FAR), panels, 1, 16 * 16 + 1, 1, 1),
            (rows, panels, FAR, 17, 1, 1),
        ];
        for isa in Isa::available() {
            for (number, (left, right, c_row, rows, columns, depth)) in
                cases.into_iter().enumerate()
            {
                let run = || product(isa, left, right, c_row, rows, columns, depth);
                let panic = std::panic::catch_unwind(run).expect_err("it is refused");
                let message = panic.downcast_ref::<&str>().copied().unwrap_or_default();
                assert!(message.ends_with(" too short"), "case {number} on {isa}: {message:?}");
            }
        }
    }
}
