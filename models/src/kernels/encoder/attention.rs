//! Scaled dot-product attention of each head within one text. The simple form: `y = softmax(Q Kᵀ / √width) V`, and backward
//! `dV = Wᵀ dy`, `dQ = dS K` and `dK = dSᵀ Q`, with the weights W and the gradient dS of the scores.
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
use crate::kernels::transpose::Transpose;
use crate::parameters::{SelfAttention, turns};

/// Columns of scores, a row's start to the next one's, are a multiple of this: as many lanes as any vector has.
const LANES: usize = 16;

/// Rows of queries, and of keys, that are taken at a time where rows attend to none behind them: later scores than those
/// of a block are not computed.
const BLOCK: usize = 32;

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

    /// The blocks of so many rows: the first of each, and the end.
    fn blocks(&self, rows: usize) -> impl Iterator<Item = [usize; 2]> {
        let block = if self.causal { BLOCK } else { rows };
        (0..rows).step_by(block).map(move |first| [first, rows.min(first + block)])
    }

    /// The columns that rows before `end` attend to, of so many.
    fn columns(&self, end: usize, rows: usize) -> usize {
        if self.causal { end } else { rows }
    }

    /// Values of a head.
    fn width(&self) -> usize {
        self.dim / self.heads
    }

    /// What scores are multiplied with.
    fn scale(&self) -> f32 {
        1.0 / (self.width() as f32).sqrt()
    }

    /// Writes the transpose of one head of a text's keys or values.
    fn transpose(&self, from: &[f32], to: &mut [f32]) {
        let (columns, apart) = (self.width(), self.takes());
        let rows = to.len() / columns;
        self.isa.run(Transpose { rows, columns, from, apart, to, to_apart: rows });
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
        let (b, c) = ((b, Right::Rows(b_row)), (Target::Write(c), c_row));
        self.isa.run(Gemm { sizes, a, b, c, bias: &[] });
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
            self.transpose(key, &mut keys);
            for [first, end] in self.blocks(rows) {
                let (count, columns) = (end - first, self.columns(end, rows));
                let queries = (&query[first * apart..], Left::Rows(apart));
                let scores = &mut scores[first * stride..end * stride];
                self.product([count, columns, width], queries, &keys, rows, scores, stride);
                let kept = &mut kept[KEPT * first..KEPT * end];
                let (scale, causal) = (self.scale(), self.causal.then_some(first));
                self.isa.run(Softmax { columns, stride, scale, causal, scores, kept });
                let weights = (&*scores, Left::Rows(stride));
                let ys = &mut ys[first * dim + head * width..];
                self.product([count, width, columns], weights, value, apart, ys, dim);
            }
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
        let (mut across, mut values) = (Scratch::new(width * rows), Scratch::new(width * rows));
        let mut weights = Scratch::new(rows * stride);
        let mut dscores = Scratch::new(rows * stride);
        for (head, kept) in kept.chunks_exact(KEPT * rows).enumerate() {
            let query = &xs[head * width..];
            let (key, value) = (&query[dim..], &query[2 * dim..]);
            let dy = &dys[head * width..];
            self.transpose(key, &mut across);
            self.transpose(value, &mut values);
            let dx = &mut dxs[head * width..];
            for [first, end] in self.blocks(rows) {
                let (count, columns) = (end - first, self.columns(end, rows));
                let here = first * stride..end * stride;
                let (weights, ds) = (&mut weights[here.clone()], &mut dscores[here]);
                let queries = (&query[first * apart..], Left::Rows(apart));
                self.product([count, columns, width], queries, &across, rows, weights, stride);
                let upstream = (&dy[first * dim..], Left::Rows(dim));
                self.product([count, columns, width], upstream, &values, rows, ds, stride);
                let kept = &kept[KEPT * first..KEPT * end];
                let (scale, causal) = (self.scale(), self.causal.then_some(first));
                let dscores = &mut *ds;
                let both =
                    SoftmaxBackward { columns, stride, scale, causal, kept, weights, dscores };
                self.isa.run(both);
                let (by_row, dquery) = (Left::Rows(stride), &mut dx[first * apart..]);
                self.product([count, width, columns], (&*ds, by_row), key, apart, dquery, apart);
            }
            for [first, end] in self.blocks(rows) {
                // The rows that attend to this block of keys and values.
                let from = if self.causal { first } else { 0 };
                let (at, sizes) = (from * stride + first, [end - first, width, rows - from]);
                let (query, dy) = (&query[from * apart..], &dy[from * dim..]);
                let (dkey, by_column) = (first * apart + dim, Left::Columns(stride));
                let dscores = (&dscores[at..], by_column);
                self.product(sizes, dscores, query, apart, &mut dx[dkey..], apart);
                let weights = (&weights[at..], by_column);
                self.product(sizes, weights, dy, dim, &mut dx[dkey + dim..], apart);
            }
        }
        self.turn(dxs, true);
    }
}

/// Softmax of `scale` times the first `columns` of each row of scores, in their place: `x[c] = e^(scale · x[c]) / Σ_c
/// e^(scale · x[c])`, with the largest score taken off before. What lies behind these is used up.
struct Softmax<'a> {
    columns: usize,
    /// A row's start to the next one's, a multiple of [`LANES`].
    stride: usize,
    scale: f32,
    /// If of row `r` only the first `r + 1` columns count, the number of the first row.
    causal: Option<usize>,
    scores: &'a mut [f32],
    kept: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.scores.chunks_exact_mut(self.stride).zip(self.kept.chunks_exact_mut(KEPT));
        for (number, (row, kept)) in rows.enumerate() {
            let columns = self.causal.map_or(self.columns, |first| first + number + 1);
            let (row, later) = row.split_at_mut(columns.next_multiple_of(LANES));
            later.fill(0.0);
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

/// Makes weights of scores again, and gradients of scores of those of weights. The simple form:
/// `scale · weight · (dweight − Σ weight · dweight)`.
struct SoftmaxBackward<'a> {
    columns: usize,
    stride: usize,
    scale: f32,
    causal: Option<usize>,
    kept: &'a [f32],
    weights: &'a mut [f32],
    dscores: &'a mut [f32],
}

impl Kernel for SoftmaxBackward<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let weights = self.weights.chunks_exact_mut(self.stride);
        let rows = weights.zip(self.dscores.chunks_exact_mut(self.stride));
        let rows = rows.zip(self.kept.chunks_exact(KEPT));
        for (number, ((weights, dscores), kept)) in rows.enumerate() {
            let (largest, inverse) = (kept[0], kept[1]);
            let columns = self.causal.map_or(self.columns, |first| first + number + 1);
            let whole = columns.next_multiple_of(LANES);
            weights[whole..].fill(0.0);
            dscores[columns..].fill(0.0);
            let (weights, dscores) = (&mut weights[..whole], &mut dscores[..whole]);
            for x in weights.iter_mut() {
                *x = exp((*x - largest) * self.scale) * inverse;
            }
            // What lies behind the last column counts for nothing.
            weights[columns..].fill(0.0);
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
