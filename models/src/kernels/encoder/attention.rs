//! Scaled dot-product attention of each head within one text.
//!
//! The weights of a text, `[rows, rows]` for each head, are never kept: of each of their rows remain the largest score
//! and one over the sum of exponentials, from which the backward pass computes the same weights again (Dao et al.,
//! "FlashAttention", 2022, section 3.1). Texts are short enough for the scores of a head to stay in the cache, so they
//! are not tiled.

use super::block::Middle;
use crate::kernels::activation::exp;
use crate::kernels::gemm::{Gemm, Left, Right, Target};
use crate::kernels::memory::Scratch;
use crate::kernels::simd::{Isa, Kernel, Simd};
use crate::parameters::{SelfAttention, turns};

/// Columns of scores, a row's start to the next one's, are a multiple of this: as many lanes as any vector has.
const LANES: usize = 16;

/// Values that a row of scores keeps: its largest score and one over the sum of exponentials.
const KEPT: usize = 2;

/// Attention of so many heads side by side in rows of queries, keys and values.
pub(super) struct Attention {
    isa: Isa,
    dim: usize,
    heads: usize,
    causal: bool,
    /// Sines and cosines by which queries and keys are turned, if they are.
    turns: Option<(Vec<f32>, Vec<f32>)>,
}

impl Attention {
    /// That of `of`, on rows of `dim` values of texts of at most `length`.
    pub(super) fn new(isa: Isa, dim: usize, length: usize, of: &SelfAttention) -> Self {
        let (heads, reach) = (of.heads, of.reach);
        let turns = reach.rotary().then(|| turns(length, dim / heads));
        Self { isa, dim, heads, causal: reach.causal(), turns }
    }

    /// Turns the queries and keys of a text's rows `xs` by their positions, or back.
    fn turn(&self, xs: &mut [f32], back: bool) {
        let Some((sines, cosines)) = &self.turns else { return };
        let half = self.width() / 2;
        let positions = sines.chunks_exact(half).zip(cosines.chunks_exact(half));
        for (row, (sines, cosines)) in xs.chunks_exact_mut(self.takes()).zip(positions) {
            for head in row[..2 * self.dim].chunks_exact_mut(2 * half) {
                let (first, second) = head.split_at_mut(half);
                for (((x, y), sine), cosine) in first.iter_mut().zip(second).zip(sines).zip(cosines)
                {
                    let sine = if back { -sine } else { *sine };
                    (*x, *y) = (*x * cosine - *y * sine, *y * cosine + *x * sine);
                }
            }
        }
    }

    /// The rows `xs` with their queries and keys turned, in memory of their own where they are.
    fn turned<'a>(&self, xs: &'a [f32], copy: &'a mut Option<Scratch>) -> &'a [f32] {
        if self.turns.is_none() {
            return xs;
        }
        let copy = copy.insert(Scratch::new(xs.len()));
        copy.copy_from_slice(xs);
        self.turn(copy, false);
        copy
    }

    /// Values of a head.
    fn width(&self) -> usize {
        self.dim / self.heads
    }

    /// What scores are multiplied with.
    fn scale(&self) -> f32 {
        1.0 / (self.width() as f32).sqrt()
    }

    /// `c [rows, columns]` of a product over `depth` with the right operand's rows as far apart as those of `xs`.
    fn product(
        &self,
        sizes: [usize; 3],
        a: (&[f32], Left),
        b: &[f32],
        b_row: usize,
        c: &mut [f32],
        c_row: usize,
    ) {
        let ([rows, columns, depth], (a, left)) = (sizes, a);
        let (right, c) = (Right::Rows(b_row), Target::Write(c));
        self.isa.run(Gemm { rows, columns, depth, a, left, b, right, c, c_row });
    }
}

impl Middle for Attention {
    const NAME: &'static str = "attention";

    fn takes(&self) -> usize {
        3 * self.dim
    }

    fn gives(&self) -> usize {
        self.dim
    }

    fn keeps(&self) -> usize {
        KEPT * self.heads
    }

    fn products(&self, rows: usize) -> usize {
        2 * rows * rows * self.dim
    }

    fn forward(&self, xs: &[f32], kept: &mut [f32], ys: &mut [f32]) {
        let (dim, width, apart) = (self.dim, self.width(), self.takes());
        let rows = xs.len() / apart;
        if rows == 0 {
            return;
        }
        let mut copy = None;
        let xs = self.turned(xs, &mut copy);
        let stride = rows.next_multiple_of(LANES);
        let mut keys = Scratch::new(width * rows);
        let mut scores = Scratch::new(rows * stride);
        for (head, kept) in kept.chunks_exact_mut(KEPT * rows).enumerate() {
            let query = &xs[head * width..];
            let (key, value) = (&query[dim..], &query[2 * dim..]);
            transpose(key, apart, width, &mut keys);
            let queries = (query, Left::Rows(apart));
            self.product([rows, rows, width], queries, &keys, rows, &mut scores, stride);
            let (columns, scale, causal) = (rows, self.scale(), self.causal);
            self.isa.run(Softmax { columns, scale, causal, scores: &mut scores, kept });
            let weights = (&*scores, Left::Rows(stride));
            self.product([rows, width, rows], weights, value, apart, &mut ys[head * width..], dim);
        }
    }

    fn backward(&self, xs: &[f32], kept: &[f32], dys: &[f32], dxs: &mut [f32]) {
        let (dim, width, apart) = (self.dim, self.width(), self.takes());
        let rows = xs.len() / apart;
        if rows == 0 {
            return;
        }
        let mut copy = None;
        let xs = self.turned(xs, &mut copy);
        let stride = rows.next_multiple_of(LANES);
        let mut across = Scratch::new(width * rows);
        let mut weights = Scratch::new(rows * stride);
        let mut dscores = Scratch::new(rows * stride);
        for (head, kept) in kept.chunks_exact(KEPT * rows).enumerate() {
            let query = &xs[head * width..];
            let (key, value) = (&query[dim..], &query[2 * dim..]);
            let dy = &dys[head * width..];
            transpose(key, apart, width, &mut across);
            let queries = (query, Left::Rows(apart));
            self.product([rows, rows, width], queries, &across, rows, &mut weights, stride);
            transpose(value, apart, width, &mut across);
            let upstream = (dy, Left::Rows(dim));
            self.product([rows, rows, width], upstream, &across, rows, &mut dscores, stride);
            self.isa.run(SoftmaxBackward {
                columns: rows,
                scale: self.scale(),
                causal: self.causal,
                kept,
                weights: &mut weights,
                dscores: &mut dscores,
            });
            let dx = &mut dxs[head * width..];
            let by_row = (&*dscores, Left::Rows(stride));
            self.product([rows, width, rows], by_row, key, apart, dx, apart);
            let by_column = (&*dscores, Left::Columns(stride));
            self.product([rows, width, rows], by_column, query, apart, &mut dx[dim..], apart);
            let by_column = (&*weights, Left::Columns(stride));
            self.product([rows, width, rows], by_column, dy, dim, &mut dx[2 * dim..], apart);
        }
        self.turn(dxs, true);
    }
}

/// Writes the transpose of `xs`, rows of `width` values `apart` elements apart.
fn transpose(xs: &[f32], apart: usize, width: usize, to: &mut [f32]) {
    let rows = to.len() / width;
    for (row, xs) in xs.chunks(apart).enumerate() {
        for (column, x) in xs[..width].iter().enumerate() {
            to[column * rows + row] = *x;
        }
    }
}

/// Softmax of `scale` times the first `columns` of each row of scores, in their place. What lies behind these is used up.
struct Softmax<'a> {
    columns: usize,
    scale: f32,
    /// Whether of row `r` only the first `r + 1` columns count.
    causal: bool,
    /// Rows of a multiple of [`LANES`].
    scores: &'a mut [f32],
    kept: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let stride = self.columns.next_multiple_of(LANES);
        let rows = self.scores.chunks_exact_mut(stride).zip(self.kept.chunks_exact_mut(KEPT));
        for (number, (row, kept)) in rows.enumerate() {
            let columns = if self.causal { number + 1 } else { self.columns };
            // Nothing is smaller, and whole vectors are faster than columns left over.
            row[columns..].fill(f32::NEG_INFINITY);
            let mut largest = s.splat(f32::NEG_INFINITY);
            for x in row.chunks_exact(S::LANES) {
                largest = s.max(s.load(x), largest);
            }
            let mut lanes = [f32::NEG_INFINITY; LANES];
            s.store(&mut lanes, largest);
            let largest = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
            for x in row.iter_mut() {
                *x = exp((*x - largest) * self.scale);
            }
            row[columns..].fill(0.0);
            let mut sums = s.zero();
            for x in row.chunks_exact(S::LANES) {
                sums = s.add(sums, s.load(x));
            }
            let inverse = 1.0 / s.sum(sums);
            for x in row.iter_mut() {
                *x *= inverse;
            }
            kept.copy_from_slice(&[largest, inverse]);
        }
    }
}

/// Makes weights of scores again, and gradients of scores of those of weights: `scale · weight · (dweight − Σ weight ·
/// dweight)`.
struct SoftmaxBackward<'a> {
    columns: usize,
    scale: f32,
    causal: bool,
    kept: &'a [f32],
    weights: &'a mut [f32],
    dscores: &'a mut [f32],
}

impl Kernel for SoftmaxBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let stride = self.columns.next_multiple_of(LANES);
        let rows = self.weights.chunks_exact_mut(stride).zip(self.dscores.chunks_exact_mut(stride));
        for (number, ((weights, dscores), kept)) in
            rows.zip(self.kept.chunks_exact(KEPT)).enumerate()
        {
            let (largest, inverse) = (kept[0], kept[1]);
            let columns = if self.causal { number + 1 } else { self.columns };
            weights[columns..].fill(f32::NEG_INFINITY);
            dscores[columns..].fill(0.0);
            for x in weights.iter_mut() {
                *x = exp((*x - largest) * self.scale) * inverse;
            }
            let mut sums = s.zero();
            for (x, dx) in weights.chunks_exact(S::LANES).zip(dscores.chunks_exact(S::LANES)) {
                sums = s.fma(s.load(x), s.load(dx), sums);
            }
            let along = s.sum(sums);
            for (x, dx) in weights.iter().zip(dscores.iter_mut()) {
                *dx = x * (*dx - along) * self.scale;
            }
        }
    }
}
