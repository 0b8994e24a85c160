//! Products of rows with a weight, and the gradient of the weight: dense layers, and convolutions whose windows are rows.

use super::gemm::{Gemm, Left, Right, Target, panel};
use super::memory::Scratch;
use super::parallel;
use super::simd::{Isa, Kernel, Simd};
use super::transpose::Transpose;

/// Rows of a weight's gradient that one job takes.
const BLOCK: usize = 64;

/// A right operand `[depth, columns]` laid out in panels for one instruction set, as [`Right::Panels`] has it.
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
        let panel = panel(isa.lanes());
        let mut values = Scratch::new(depth * columns);
        let panels = values.chunks_mut((panel * depth).max(1));
        for (first, packed) in (0..columns).step_by(panel).zip(panels) {
            write(first, panel.min(columns - first), packed);
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
        self.isa.run(Gemm {
            rows: xs.len() / self.depth,
            columns: self.columns,
            depth: self.depth,
            a: xs,
            left: Left::Rows(self.depth),
            b: &self.values,
            right: Right::Panels,
            c: ys,
            c_row: self.columns,
            bias,
        });
    }
}

/// Writes `dw [outputs, inputs]`, the sum over rows of the products of `dys [rows, outputs]` and `xs [rows, inputs]`.
pub(super) fn weight_gradient(isa: Isa, dys: &[f32], xs: &[f32], inputs: usize, dw: &mut [f32]) {
    let outputs = dw.len() / inputs;
    let jobs = dw.chunks_mut(BLOCK * inputs).enumerate().collect();
    parallel::each(jobs, |(block, dw): (usize, &mut [f32])| {
        isa.run(Gemm {
            rows: dw.len() / inputs,
            columns: inputs,
            depth: xs.len() / inputs,
            a: &dys[block * BLOCK..],
            left: Left::Columns(outputs),
            b: xs,
            right: Right::Rows(inputs),
            c: Target::Write(dw),
            c_row: inputs,
            bias: &[],
        });
    });
}

/// Adds up the columns of `rows` in `sums`.
pub(super) struct ColumnSums<'a> {
    pub rows: &'a [f32],
    pub sums: &'a mut [f32],
}

impl Kernel for ColumnSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for row in self.rows.chunks_exact(self.sums.len()) {
            for (sum, x) in self.sums.iter_mut().zip(row) {
                *sum += x;
            }
        }
    }
}
