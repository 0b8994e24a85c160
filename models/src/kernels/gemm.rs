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
    /// Rows `row` elements apart, each in stretches of `run` elements, `apart` elements from one to the next: windows of an
    /// image are such, a stretch for each line.
    Windows { row: usize, run: usize, apart: usize },
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

/// `c[i, j] = Σ_k a[i, k] · b[k, j]`, plus `bias[j]` where the result is written and there is a bias.
pub(crate) struct Gemm<'a> {
    /// Rows, columns, and the inner dimension.
    pub sizes: [usize; 3],
    /// The operands, and how they lie.
    pub a: (&'a [f32], Left),
    pub b: (&'a [f32], Right),
    /// Where the result goes, and how far its rows are apart.
    pub c: (Target<'a>, usize),
    /// As many elements as there are columns, or none at all.
    pub bias: &'a [f32],
}

impl Gemm<'_> {
    /// Panics unless every element the product touches lies inside its slice.
    #[inline(always)]
    fn check(&self, lanes: usize) {
        let ([m, n, k], columns) = (self.sizes.map(|size| size - 1), self.sizes[1]);
        let a = match self.a.1 {
            Left::Rows(stride) => last([(m, stride), (k, 1)]),
            Left::Columns(stride) => last([(k, stride), (m, 1)]),
            Left::Blocks(stride) => last([(k / lanes, stride), (m, lanes), (lanes - 1, 1)]),
            Left::Transposed(stride) => last([(m / lanes, stride), (k, lanes), (lanes - 1, 1)]),
            Left::Windows { row, run, apart } => last([(m, row), (k / run, apart), (run - 1, 1)]),
        };
        let b = match self.b.1 {
            Right::Rows(stride) => last([(k, stride), (n, 1)]),
            Right::Panels => last([(k, columns), (n, 1)]),
            Right::Blocks { width, stride } => {
                let whole = width > n || panel(lanes).is_multiple_of(width);
                assert!(whole, "a panel of the right operand reaches over a block's end");
                last([(n / width, stride), (k, width), (width - 1, 1)])
            }
        };
        assert!(a < self.a.0.len(), "left operand too short");
        assert!(b < self.b.0.len(), "right operand too short");
        assert!(last([(m, self.c.1), (n, 1)]) < self.c.0.len(), "result too short");
        assert!(self.bias.is_empty() || n < self.bias.len(), "bias too short");
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
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.multiply::<S, false>(simd);
    }
}

/// The product of which both operands are words of two bf16 values, neighbours along the inner dimension, which counts
/// words: sums and result are f32.
pub(crate) struct Words<'a>(pub Gemm<'a>);

impl Kernel for Words<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.0.multiply::<S, true>(simd);
    }
}

impl Gemm<'_> {
    #[inline(always)]
    fn multiply<S: Simd, const WORDS: bool>(self, simd: S) {
        let [rows, all_columns, all_depth] = self.sizes;
        if rows == 0 || all_columns == 0 {
            return;
        }
        assert!(all_depth > 0, "a product over nothing");
        self.check(S::LANES);
        let Self { a: (a_values, left), b: (b_values, right), c: (c, c_row), bias, .. } = self;
        let (c, accumulate) = c.parts();
        let c = c.as_mut_ptr();
        let bias = (!bias.is_empty()).then_some(bias.as_ptr());
        let width = match right {
            Right::Blocks { width, .. } => panel(S::LANES).min(width),
            _ => panel(S::LANES),
        };
        // Whole stretches of windows at a time.
        let (run, apart, most) = match left {
            Left::Windows { run, apart, .. } => (run, apart, (DEPTH / run).max(1) * run),
            _ => (1, 0, DEPTH),
        };
        let mut k = 0;
        while k < all_depth {
            let depth = most.min(all_depth - k);
            let (a, a_stride) = match left {
                Left::Rows(stride) => (k, stride),
                Left::Columns(stride) => (k * stride, stride),
                Left::Blocks(stride) => (k / S::LANES * stride, stride),
                Left::Transposed(stride) => (k * S::LANES, stride),
                Left::Windows { row, .. } => (k / run * apart, row),
            };
            let mut j = 0;
            while j < all_columns {
                let columns = width.min(all_columns - j);
                let (b, b_row) = match right {
                    Right::Rows(stride) => (k * stride + j, stride),
                    Right::Panels => (j * all_depth + k * columns, columns),
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
                        a: a_values.as_ptr().add(a),
                        a_stride,
                        run,
                        run_apart: apart,
                        b: b_values.as_ptr().add(b),
                        b_row,
                        c: c.add(j),
                        c_row,
                        last: 0,
                        old: match bias {
                            _ if accumulate || k > 0 => Some((c.add(j).cast_const(), c_row)),
                            Some(bias) => Some((bias.add(j), 0)),
                            None => None,
                        },
                    };
                    match left {
                        Left::Rows(_) => strip.columns::<WORDS, ROWS>(rows, columns),
                        Left::Columns(_) => strip.columns::<WORDS, COLUMNS>(rows, columns),
                        Left::Blocks(_) => strip.columns::<WORDS, BLOCKS>(rows, columns),
                        Left::Transposed(_) => {
                            strip.columns::<WORDS, TRANSPOSED>(rows, columns);
                        }
                        Left::Windows { .. } => {
                            strip.columns::<WORDS, WINDOWS>(rows, columns);
                        }
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
const WINDOWS: u8 = 4;

/// All rows of the result in one panel of columns.
#[derive(Clone, Copy)]
struct Strip<S> {
    simd: S,
    depth: usize,
    a: *const f32,
    a_stride: usize,
    /// Of windows: a stretch, and how far two of them are apart.
    run: usize,
    run_apart: usize,
    b: *const f32,
    b_row: usize,
    c: *mut f32,
    c_row: usize,
    /// Lanes in the last vector of columns, when it is not full.
    last: usize,
    /// What the products are added to, and how far its rows are apart.
    old: Option<(*const f32, usize)>,
}

/// The rows of a strip of `V` vectors of columns, the last vector not full if `PARTIAL`. Each such kind of strip is a
/// function of its own: with all kinds inlined into one function, this crate took the compiler four times as long.
struct Rows<S, const WORDS: bool, const LEFT: u8, const V: usize, const PARTIAL: bool>(
    Strip<S>,
    usize,
);

impl<S: Simd, const WORDS: bool, const LEFT: u8, const V: usize, const PARTIAL: bool> Kernel
    for Rows<S, WORDS, LEFT, V, PARTIAL>
{
    #[inline(always)]
    fn run<T: Simd>(self, _: T) {
        // The strip brings its own token, which is of the same set: `apart` was called on it.
        let Self(strip, rows) = self;
        // SAFETY: only `Strip::columns` makes such a value, under its caller's promise.
        unsafe { strip.rows::<WORDS, LEFT, V, PARTIAL>(rows) }
    }
}

impl<S: Simd> Strip<S> {
    /// # Safety
    /// The operands hold `rows` × `columns` × `depth` as they are said to lie.
    #[inline(always)]
    unsafe fn columns<const WORDS: bool, const LEFT: u8>(mut self, rows: usize, columns: usize) {
        let full = columns.is_multiple_of(S::LANES);
        self.last = if full { S::LANES } else { columns % S::LANES };
        // `last` covers what the last vector has of the columns.
        match (columns.div_ceil(S::LANES), full) {
            (2, true) => self.simd.apart(Rows::<S, WORDS, LEFT, 2, false>(self, rows)),
            (2, false) => self.simd.apart(Rows::<S, WORDS, LEFT, 2, true>(self, rows)),
            (_, true) => self.simd.apart(Rows::<S, WORDS, LEFT, 1, false>(self, rows)),
            (_, false) => self.simd.apart(Rows::<S, WORDS, LEFT, 1, true>(self, rows)),
        }
    }

    /// # Safety
    /// As [`Strip::columns`], for `V` vectors of columns.
    #[inline(always)]
    unsafe fn rows<const WORDS: bool, const LEFT: u8, const V: usize, const PARTIAL: bool>(
        mut self,
        rows: usize,
    ) {
        let mut row = 0;
        // SAFETY: the caller's promise, for rows below `rows`. Tiles of transposed blocks end where a block does.
        unsafe {
            if S::LANES == 16 && V == 1 {
                while rows - row >= 16 {
                    row += self.tile::<WORDS, LEFT, 16, V, PARTIAL>(row);
                }
            } else if S::LANES == 16 && LEFT != TRANSPOSED && LEFT != WINDOWS {
                // Of sixteen the two left over would cost as much as four. Lines of images are mostly of whole eights.
                while rows - row >= 14 && rows - row != 16 {
                    row += self.tile::<WORDS, LEFT, 14, V, PARTIAL>(row);
                }
            }
            while S::LANES == 16 && rows - row >= 8 {
                row += self.tile::<WORDS, LEFT, 8, V, PARTIAL>(row);
            }
            while (S::LANES == 16 || LEFT != TRANSPOSED) && rows - row >= 6 {
                row += self.tile::<WORDS, LEFT, 6, V, PARTIAL>(row);
            }
            while rows - row >= 4 {
                row += self.tile::<WORDS, LEFT, 4, V, PARTIAL>(row);
            }
            if rows - row >= 2 {
                row += self.tile::<WORDS, LEFT, 2, V, PARTIAL>(row);
            }
            if rows - row >= 1 {
                self.tile::<WORDS, LEFT, 1, V, PARTIAL>(row);
            }
        }
    }

    /// Computes `M` rows from `row` on and returns `M`. The simple form:
    /// `for k { for i { for j { c[i, j] += a[i, k] · b[k, j] } } }`. Here all of `c` that the tile has stays in registers
    /// for the whole depth, and a vector of `b` serves `M` rows.
    ///
    /// # Safety
    /// As [`Strip::columns`], for `M` rows and `V` vectors of columns; of transposed blocks, rows of one block.
    #[inline(always)]
    unsafe fn tile<
        const WORDS: bool,
        const LEFT: u8,
        const M: usize,
        const V: usize,
        const PARTIAL: bool,
    >(
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
                        for k in 0..STEPS {
                            let a = a.wrapping_add(k);
                            b = self.step::<WORDS, M, V, PARTIAL>(&mut sums, a, S::LANES, b);
                        }
                        a = a.wrapping_add(STEPS);
                        here -= STEPS;
                    }
                    while here > 0 {
                        b = self.step::<WORDS, M, V, PARTIAL>(&mut sums, a, S::LANES, b);
                        a = a.wrapping_add(1);
                        here -= 1;
                    }
                }
            } else if LEFT == WINDOWS {
                let mut start = self.a.wrapping_add(row * stride);
                let mut left = self.depth;
                while left > 0 {
                    let here = left.min(self.run);
                    left -= here;
                    let mut a = start;
                    start = start.wrapping_add(self.run_apart);
                    for _ in 0..here {
                        b = self.step::<WORDS, M, V, PARTIAL>(&mut sums, a, stride, b);
                        a = a.wrapping_add(1);
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
                    b = self.step::<WORDS, M, V, PARTIAL>(&mut sums, a, apart, b);
                    a = a.wrapping_add(next);
                }
            }
            for (i, sums) in sums.iter().enumerate() {
                let c = self.c.add((row + i) * self.c_row);
                // The sum of this stretch of the depth is finished before it is added to what is there: fewer
                // roundings lie between any product and the result than in one long chain.
                let sums = match self.old {
                    Some((old, apart)) => {
                        let old = self.load::<V, PARTIAL>(old.add((row + i) * apart));
                        std::array::from_fn(|j| s.add(old[j], sums[j]))
                    }
                    None => *sums,
                };
                for (j, v) in sums.into_iter().enumerate() {
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
    /// Of words, `a · b` is `a[1] · b[1] + a[0] · b[0]`: see [`Simd::dot`].
    ///
    /// # Safety
    /// All these may be read.
    #[inline(always)]
    unsafe fn step<const WORDS: bool, const M: usize, const V: usize, const PARTIAL: bool>(
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
                    sums[j] = if WORDS {
                        s.dot(left, right[j], sums[j])
                    } else {
                        s.fma(left, right[j], sums[j])
                    };
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
mod tests;
