//! The matrix product every convolution is made of.
//!
//! A register tile of the result, some rows of two vectors, is summed over the inner dimension
//! before it is written. The left operand is read one scalar at a time and so may have any two
//! strides; the right operand is read in vectors along its rows.

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

/// How the right operand, `[depth, columns]`, lies in memory.
#[derive(Clone, Copy)]
pub(crate) enum Right {
    /// Row after row, this many elements apart.
    Rows(usize),
    /// Panel after panel of [`panel`] columns, each row after row; the last panel as wide as the columns left.
    Panels,
}

/// `c[i, j] = Σ_k a[i, k] · b[k, j]`.
///
/// Element `(i, k)` of the left operand is `a[i * a_row + k * a_depth]`; row `i` of the result starts at `c[i * c_row]`.
pub(crate) struct Gemm<'a> {
    pub rows: usize,
    pub columns: usize,
    pub depth: usize,
    pub a: &'a [f32],
    pub a_row: usize,
    pub a_depth: usize,
    pub b: &'a [f32],
    pub right: Right,
    pub c: Target<'a>,
    pub c_row: usize,
}

impl Gemm<'_> {
    /// Panics unless every element the product touches lies inside its slice.
    #[inline(always)]
    fn check(&self) {
        let (m, n, k) = (self.rows - 1, self.columns, self.depth - 1);
        let b = match self.right {
            Right::Rows(stride) => k * stride + n,
            Right::Panels => self.depth * n,
        };
        assert!(m * self.a_row + k * self.a_depth < self.a.len(), "left operand too short");
        assert!(b <= self.b.len(), "right operand too short");
        let c = self.c.len();
        assert!(m * self.c_row + n <= c, "result too short");
    }
}

impl Kernel for Gemm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if self.rows == 0 || self.columns == 0 {
            return;
        }
        assert!(self.depth > 0, "a product over nothing");
        self.check();
        let (c, accumulate) = self.c.parts();
        let c = c.as_mut_ptr();
        let width = panel(S::LANES);
        let mut k = 0;
        while k < self.depth {
            let depth = DEPTH.min(self.depth - k);
            let mut j = 0;
            while j < self.columns {
                let columns = width.min(self.columns - j);
                let (b, b_row) = match self.right {
                    Right::Rows(stride) => (k * stride + j, stride),
                    Right::Panels => (j * self.depth + k * columns, columns),
                };
                // SAFETY: `check` has bounded the last element of all three operands, and every offset here is that
                // of an element inside.
                unsafe {
                    let strip = Strip {
                        simd,
                        depth,
                        a: self.a.as_ptr().add(k * self.a_depth),
                        a_row: self.a_row,
                        a_depth: self.a_depth,
                        b: self.b.as_ptr().add(b),
                        b_row,
                        c: c.add(j),
                        c_row: self.c_row,
                        last: 0,
                        accumulate: accumulate || k > 0,
                    };
                    strip.columns(self.rows, columns);
                }
                j += columns;
            }
            k += depth;
        }
    }
}

/// All rows of the result in one panel of columns.
#[derive(Clone, Copy)]
struct Strip<S> {
    simd: S,
    depth: usize,
    a: *const f32,
    a_row: usize,
    a_depth: usize,
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
    /// The operands hold `rows` × `columns` × `depth` at their strides.
    #[inline(always)]
    unsafe fn columns(mut self, rows: usize, columns: usize) {
        let full = columns.is_multiple_of(S::LANES);
        self.last = if full { S::LANES } else { columns % S::LANES };
        // SAFETY: the caller's promise; `last` covers what the last vector has of the columns.
        unsafe {
            match (columns.div_ceil(S::LANES), full) {
                (2, true) => self.rows::<2, false>(rows),
                (2, false) => self.rows::<2, true>(rows),
                (_, true) => self.rows::<1, false>(rows),
                (_, false) => self.rows::<1, true>(rows),
            }
        }
    }

    /// # Safety
    /// As [`Strip::columns`], for `V` vectors of columns.
    #[inline(always)]
    unsafe fn rows<const V: usize, const PARTIAL: bool>(mut self, rows: usize) {
        let mut left = rows;
        // SAFETY: the caller's promise; the pointers advance by the rows done.
        unsafe {
            if S::LANES == 16 && V == 1 {
                while left >= 16 {
                    left -= self.tile::<16, V, PARTIAL>();
                }
            } else if S::LANES == 16 {
                // Of sixteen the two left over would cost as much as four.
                while left >= 14 && left != 16 {
                    left -= self.tile::<14, V, PARTIAL>();
                }
            }
            while S::LANES == 16 && left >= 8 {
                left -= self.tile::<8, V, PARTIAL>();
            }
            while left >= 6 {
                left -= self.tile::<6, V, PARTIAL>();
            }
            if left >= 4 {
                left -= self.tile::<4, V, PARTIAL>();
            }
            if left >= 2 {
                left -= self.tile::<2, V, PARTIAL>();
            }
            if left >= 1 {
                self.tile::<1, V, PARTIAL>();
            }
        }
    }

    /// Computes the next `M` rows, moves past them and returns `M`.
    ///
    /// # Safety
    /// As [`Strip::columns`], for `M` rows and `V` vectors of columns.
    #[inline(always)]
    unsafe fn tile<const M: usize, const V: usize, const PARTIAL: bool>(&mut self) -> usize {
        let s = self.simd;
        let mut sums = [[s.zero(); V]; M];
        // SAFETY: every pointer is that of an element the caller has promised: row `i < M`, vector `j < V` (the last
        // one cut to `last` lanes if partial), step `k < depth`.
        unsafe {
            let (mut a, mut b) = (self.a, self.b);
            for _ in 0..self.depth {
                let right = self.load::<V, PARTIAL>(b);
                for (i, row) in sums.iter_mut().enumerate() {
                    let left = s.splat(*a.add(i * self.a_row));
                    for j in 0..V {
                        row[j] = s.fma(left, right[j], row[j]);
                    }
                }
                a = a.wrapping_add(self.a_depth);
                b = b.wrapping_add(self.b_row);
            }
            for (i, row) in sums.iter().enumerate() {
                let c = self.c.add(i * self.c_row);
                // The sum of this stretch of the depth is finished before it is added to what is there: fewer
                // roundings lie between any product and the result than in one long chain.
                let old = if self.accumulate { self.load::<V, PARTIAL>(c) } else { [s.zero(); V] };
                for j in 0..V {
                    let v = if self.accumulate { s.add(old[j], row[j]) } else { row[j] };
                    if PARTIAL && j == V - 1 {
                        s.store_ptr_first(c.add(j * S::LANES), v, self.last);
                    } else {
                        s.store_ptr(c.add(j * S::LANES), v);
                    }
                }
            }
        }
        self.a = self.a.wrapping_add(M * self.a_row);
        self.c = self.c.wrapping_add(M * self.c_row);
        M
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
