//! Products of rows with a weight, and the gradient of the weight: dense layers, and convolutions whose windows are rows.

use super::bf16::{Across, Blocks, elements, multiply, neighbours, product};
use super::gemm::{Gemm, Left, Right, Target, panel};
use super::memory::Scratch;
use super::parallel;
use super::simd::{Isa, Kernel, Simd};
use super::transpose::Transpose;

/// Rows of a weight's gradient that one job takes.
const BLOCK: usize = 64;

/// A right operand `[depth, columns]` laid out in panels for one instruction set, as [`Right::Panels`] has it; in bf16, as words.
pub(super) struct Panels {
    isa: Isa,
    depth: usize,
    columns: usize,
    values: Scratch,
}

impl Panels {
    /// The operand of these sizes, of which `element` says what lies at a step of the depth and a column.
    pub(super) fn pack(isa: Isa, sizes: [usize; 2], element: impl Fn(usize, usize) -> f32) -> Self {
        Self::written(isa, sizes, |first, width, packed| {
            for (k, row) in packed.chunks_exact_mut(width).enumerate() {
                for (column, value) in (first..).zip(row) {
                    *value = element(k, column);
                }
            }
        })
    }

    /// The operand of these sizes, of which `write` writes each panel, given its first column and how many it has.
    fn written(
        isa: Isa,
        [depth, columns]: [usize; 2],
        write: impl Fn(usize, usize, &mut [f32]),
    ) -> Self {
        let (panel, words) = (panel(isa.lanes()), elements(isa, depth));
        let mut values = Scratch::new(words * columns);
        let panels = values.chunks_mut((panel * words).max(1));
        for (first, to) in (0..columns).step_by(panel).zip(panels) {
            let width = panel.min(columns - first);
            let Some(bf16) = isa.bf16() else {
                write(first, width, to);
                continue;
            };
            let mut from = Scratch::new(depth * width);
            write(first, width, &mut from);
            let (rows, columns, apart, stride) = (depth, width, width, 0);
            bf16.run(Across { rows, columns, from: &from, apart, to, width, stride });
        }
        Self { isa, depth, columns, values }
    }

    /// The transpose of `weight [columns, depth]`.
    pub(super) fn transposed(isa: Isa, weight: &[f32], depth: usize) -> Self {
        Self::written(isa, [depth, weight.len() / depth], |first, width, packed| {
            let from = &weight[first * depth..];
            let (rows, columns) = (width, depth);
            isa.run(Transpose { rows, columns, from, apart: depth, to: packed, to_apart: width });
        })
    }

    /// `weight [depth, columns]` as it is.
    pub(super) fn new(isa: Isa, weight: &[f32], columns: usize) -> Self {
        Self::written(isa, [weight.len() / columns, columns], |first, width, packed| {
            let rows = weight.chunks_exact(columns);
            for (to, row) in packed.chunks_exact_mut(width).zip(rows) {
                to.copy_from_slice(&row[first..first + width]);
            }
        })
    }

    /// `xs [rows, depth]` times the operand, `[rows, columns]`.
    pub(super) fn product(&self, xs: &[f32], ys: Target) {
        self.multiply(xs, &[], ys);
    }

    /// Writes `xs [rows, depth]` times the operand plus `bias [columns]`.
    pub(super) fn affine(&self, xs: &[f32], bias: &[f32], ys: &mut [f32]) {
        self.multiply(xs, bias, Target::Write(ys));
    }

    fn multiply(&self, xs: &[f32], bias: &[f32], ys: Target) {
        let rows = xs.len() / self.depth;
        let words =
            self.isa.bf16().map(|_| neighbours(self.isa, xs, self.depth, [rows, self.depth]));
        let depth = elements(self.isa, self.depth);
        let sizes = [rows, self.columns, depth];
        let a = (words.as_deref().unwrap_or(xs), Left::Rows(depth));
        let (b, c) = ((&self.values[..], Right::Panels), (ys, self.columns));
        multiply(self.isa, Gemm { sizes, a, b, c, bias });
    }
}

/// The sum over rows of the products of `dys [rows, outputs]` and `xs [rows, inputs]`, `[outputs, inputs]`.
pub(super) fn weight_gradient(isa: Isa, dys: &[f32], xs: &[f32], inputs: usize, dw: Target) {
    let (rows, outputs) = (xs.len() / inputs, dw.len() / inputs);
    let words = isa.bf16().map(|_| Blocks::new(isa, xs, inputs, [rows, inputs], 2));
    let b = match &words {
        Some(words) => (&*words.words, words.right()),
        None => (xs, Right::Rows(inputs)),
    };
    let blocks = dw.chunks(BLOCK * inputs).enumerate().collect();
    parallel::each(blocks, |(block, dw): (usize, Target)| {
        let sizes = [dw.len() / inputs, inputs, rows];
        let a = (&dys[block * BLOCK..], Left::Columns(outputs));
        product(isa, Gemm { sizes, a, b, c: (dw, inputs), bias: &[] });
    });
}

/// Adds up the columns of `rows` in `sums`. This loop is the simple form: compiled for an instruction set, it is vectors.
pub(super) struct ColumnSums<'a> {
    pub rows: &'a [f32],
    pub sums: &'a mut [f32],
}

impl Kernel for ColumnSums<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for row in self.rows.chunks_exact(self.sums.len()) {
            for (sum, x) in self.sums.iter_mut().zip(row) {
                *sum += x;
            }
        }
    }
}
