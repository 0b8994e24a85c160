//! The two-dimensional transforms between weights and points: a one-dimensional [`Map`] over columns, then over
//! rows.

use std::marker::PhantomData;

use super::algorithm::{Map, TAPS};
use super::tiles::MATRICES;
use crate::kernels::counts::product;
use crate::kernels::gemm::panel;
use crate::kernels::simd::{Kernel, Simd};

/// How weights `[out, in, 3, 3]` are read as a matrix `[depth, columns]` of 3×3 taps.
#[derive(Clone, Copy)]
pub(super) enum Side {
    /// Columns are the outputs: the forward pass.
    Forward,
    /// Columns are the inputs and the taps reversed: the input gradient.
    Reversed,
}

/// Weights to points, `columns` columns from column `first` and `depth` rows from row `top`: matrix `i` starts at
/// `i * stride` and lies in panels, as [`Right::Panels`](crate::kernels::gemm::Right::Panels) has it, its columns padded
/// with zeros to whole vectors. With `WORDS` two rows are one row of words. The simple form: `G g Gᵀ` of the taps `g` of
/// one weight after another; here a lane has each.
pub(super) struct WeightToPoints<'a, M, const WORDS: bool> {
    pub map: PhantomData<M>,
    pub weight: &'a [f32],
    pub inputs: usize,
    pub outputs: usize,
    pub side: Side,
    pub first: usize,
    pub columns: usize,
    pub top: usize,
    pub depth: usize,
    pub points: &'a mut [f32],
    pub stride: usize,
}

impl<M: Map<3, TAPS>, const WORDS: bool> Kernel for WeightToPoints<'_, M, WORDS> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (inputs, outputs) = (self.inputs, self.outputs);
        let (rows, all, along_depth, along_columns) = match self.side {
            Side::Forward => (inputs, outputs, 9, inputs * 9),
            Side::Reversed => (outputs, inputs, inputs * 9, 9),
        };
        let (columns, depth) = (self.columns, self.depth);
        assert_eq!(self.weight.len(), product([inputs, outputs, 9]));
        assert!(columns <= all && self.first <= all - columns);
        assert!(depth <= rows && self.top <= rows - depth);
        let padded = columns.next_multiple_of(S::LANES);
        let (step, rows_of_points) = if WORDS { (2, depth.div_ceil(2)) } else { (1, depth) };
        assert!(product([rows_of_points, padded]) <= self.stride);
        assert!(product([MATRICES, self.stride]) <= self.points.len());
        let mut column = 0;
        while column < columns {
            let in_panel = column % panel(S::LANES);
            let start = column - in_panel;
            let width = panel(S::LANES).min(padded - start);
            let lanes = S::LANES.min(columns - column);
            for k in (0..depth).step_by(step) {
                let from = (self.top + k) * along_depth + (self.first + column) * along_columns;
                let low = self.half(s, from, along_columns, lanes);
                let mut high = [[s.zero(); 3]; TAPS];
                if WORDS && k + 1 < depth {
                    high = self.half(s, from + along_depth, along_columns, lanes);
                }
                let to = start * rows_of_points + k / step * width + in_panel;
                for (y, row) in low.into_iter().enumerate() {
                    let mut mapped = M::apply(s, row);
                    if WORDS {
                        let above = M::apply(s, high[y]);
                        for x in 0..TAPS {
                            mapped[x] = s.pack(mapped[x], above[x]);
                        }
                    }
                    for (x, v) in mapped.into_iter().enumerate() {
                        // SAFETY: row `k / step` of a panel `width` wide that starts `start` columns in: inside a
                        // matrix of `rows_of_points` × `padded`, which was checked to lie inside the points.
                        unsafe {
                            let matrix = self.points.as_mut_ptr().add((y * TAPS + x) * self.stride);
                            s.store_ptr(matrix.add(to), v);
                        }
                    }
                }
            }
            column += S::LANES;
        }
    }
}

impl<M: Map<3, TAPS>, const WORDS: bool> WeightToPoints<'_, M, WORDS> {
    /// The taps of so many lanes, the first one's at `from`, mapped along their columns.
    #[inline(always)]
    fn half<S: Simd>(&self, s: S, from: usize, apart: usize, lanes: usize) -> [[S::V; 3]; TAPS] {
        assert!(from + (lanes - 1) * apart + 9 <= self.weight.len());
        // SAFETY: the taps of the last of so many lanes end inside the weights, as was just checked.
        let mut taps = unsafe { s.load_nines(self.weight.as_ptr().add(from), apart, lanes) };
        if let Side::Reversed = self.side {
            taps.reverse();
        }
        let mut half = [[s.zero(); 3]; TAPS];
        for x in 0..3 {
            let mapped = M::apply(s, [taps[x], taps[3 + x], taps[6 + x]]);
            for y in 0..TAPS {
                half[y][x] = mapped[y];
            }
        }
        half
    }
}

/// Points `[outputs, columns padded to whole vectors]` to the gradient of weights `[outputs, inputs, 3, 3]`, of `columns`
/// inputs from input `first`. The simple form: `Gᵀ p G` of one weight's points `p` after another.
pub(super) struct PointsToWeight<'a, M> {
    pub map: PhantomData<M>,
    pub points: &'a [f32],
    pub stride: usize,
    pub inputs: usize,
    pub first: usize,
    pub columns: usize,
    pub weight: &'a mut [f32],
}

impl<M: Map<TAPS, 3>> Kernel for PointsToWeight<'_, M> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (first, columns) = (self.first, self.columns);
        let outputs = self.weight.len() / product([self.inputs, 9]);
        assert_eq!(self.weight.len(), product([self.inputs, outputs, 9]));
        assert!(columns <= self.inputs && first <= self.inputs - columns);
        let padded = columns.next_multiple_of(S::LANES);
        let last = product([MATRICES - 1, self.stride]);
        assert!(last + product([outputs, padded]) <= self.points.len());
        for output in 0..outputs {
            let mut input = 0;
            while input < columns {
                let mut half = [[s.zero(); TAPS]; 3];
                for x in 0..TAPS {
                    let mut column = [s.zero(); TAPS];
                    for (y, v) in column.iter_mut().enumerate() {
                        // SAFETY: a vector of a row inside the matrix, which was checked to lie inside the points.
                        *v = unsafe {
                            let matrix = self.points.as_ptr().add((y * TAPS + x) * self.stride);
                            s.load_ptr(matrix.add(output * padded + input))
                        };
                    }
                    let mapped = M::apply(s, column);
                    for y in 0..3 {
                        half[y][x] = mapped[y];
                    }
                }
                let mut taps = [s.zero(); 9];
                for (y, row) in half.into_iter().enumerate() {
                    taps[3 * y..3 * y + 3].copy_from_slice(&M::apply(s, row));
                }
                let lanes = S::LANES.min(columns - input);
                let start = (output * self.inputs + first + input) * 9;
                let to = &mut self.weight[start..start + lanes * 9];
                // SAFETY: nine elements for each of so many lanes, end to end.
                unsafe { s.store_nines(to.as_mut_ptr(), 9, lanes, taps) };
                input += S::LANES;
            }
        }
    }
}
