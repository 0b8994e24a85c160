//! Products of rows with a weight, and the gradient of the weight: what dense layers are made of.

use super::gemm::{Gemm, Left, Right, Target, panel};
use super::memory::Scratch;
use super::parallel;
use super::simd::{Isa, Kernel, Simd};

/// Rows of a weight's gradient that one job takes.
const BLOCK: usize = 64;

/// A right operand `[depth, columns]` laid out in panels for one instruction set.
pub(super) struct Panels {
    isa: Isa,
    depth: usize,
    columns: usize,
    values: Scratch,
}

impl Panels {
    /// The transpose of `weight [columns, depth]`.
    pub(super) fn transposed(isa: Isa, weight: &[f32], depth: usize) -> Self {
        let columns = weight.len() / depth;
        let mut values = Scratch::new(weight.len());
        pack(isa, columns, &mut values, |k, column| weight[column * depth + k]);
        Self { isa, depth, columns, values }
    }

    /// `weight [depth, columns]` as it is.
    pub(super) fn new(isa: Isa, weight: &[f32], columns: usize) -> Self {
        let mut values = Scratch::new(weight.len());
        pack(isa, columns, &mut values, |k, column| weight[k * columns + column]);
        Self { isa, depth: weight.len() / columns, columns, values }
    }

    /// `xs [rows, depth]` times the operand, `[rows, columns]`.
    pub(super) fn product(&self, xs: &[f32], ys: Target) {
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
        });
    }
}

/// Lays a right operand of `columns` columns, given element by element as `(depth, column)`, out
/// in panels.
pub(super) fn pack(
    isa: Isa,
    columns: usize,
    packed: &mut [f32],
    element: impl Fn(usize, usize) -> f32,
) {
    let (panel, depth) = (panel(isa.lanes()), packed.len() / columns);
    for (first, packed) in (0..columns).step_by(panel).zip(packed.chunks_mut(panel * depth)) {
        for (k, row) in packed.chunks_exact_mut(panel.min(columns - first)).enumerate() {
            for (column, value) in (first..).zip(row) {
                *value = element(k, column);
            }
        }
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

/// Writes `row` into every row of `rows`.
pub(super) fn fill(rows: &mut [f32], row: &[f32]) {
    rows.chunks_exact_mut(row.len()).for_each(|to| to.copy_from_slice(row));
}
