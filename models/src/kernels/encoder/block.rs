//! What both halves of an encoder layer are: `xs + second(middle(first(norm(xs))))`.
//!
//! One operation, because the passes between the products would otherwise go through memory, and candle adds each
//! operand's gradient to zeros made for it. Work is done group by group of texts: what a group's product has written is
//! in the cache when the next one reads it. Groups do not depend on the number of threads, and sums over groups run in
//! their order, so neither does any bit of a result.

use std::ops::Range;

use candle_core::{Result, Shape, Tensor};

use crate::kernels::custom_op::{self, Backprop, CustomOp, apply};
use crate::kernels::gemm::Target;
use crate::kernels::handover::Linked;
use crate::kernels::layer_norm::{KEPT, LayerNormBackward, NormaliseRows, Renormalise};
use crate::kernels::memory::Scratch;
use crate::kernels::operand::{Operand, borrow};
use crate::kernels::parallel;
use crate::kernels::profile::{Timed, timed};
use crate::kernels::projection::{ColumnSums, Panels, weight_gradient};
use crate::kernels::simd::Isa;
use crate::packing::Packing;

/// Rows of a group, or as many more as its last text has: few enough to stay in the second-level cache between one
/// product and the next, enough to read the weights seldom.
const ROWS: usize = 128;

/// What stands between the two projections.
pub(super) trait Middle: Send + Sync + 'static {
    /// The name of the whole, for messages.
    const NAME: &'static str;
    /// Values of a row that it takes.
    fn takes(&self) -> usize;
    /// Values of a row that it gives.
    fn gives(&self) -> usize;
    /// Values of a row that it keeps for the way back.
    fn keeps(&self) -> usize;
    /// Products with a text of so many rows.
    fn products(&self, rows: usize) -> usize;
    /// Writes `ys` and `kept` of the rows of one text, `xs`.
    fn forward(&self, xs: &[f32], kept: &mut [f32], ys: &mut [f32]);
    /// Writes the gradient of `xs` from that of the result.
    fn backward(&self, xs: &[f32], kept: &[f32], dys: &[f32], dxs: &mut [f32]);
}

/// `xs + second(middle(first(norm(xs))))` for packed rows `xs [rows, D]`; timed as the two `kinds`, forward and backward. The
/// parameters are the weights and biases of the norm, the first and the second projection.
pub(super) fn block(
    isa: Isa,
    xs: &Tensor,
    packing: &Packing,
    parameters: Linked,
    middle: impl Middle,
    kinds: [Timed; 2],
) -> Result<Tensor> {
    let saved = custom_op::Saved::nothing();
    let link = parameters.link()?;
    let op = Block { isa, packing: packing.clone(), parameters, middle, kinds, saved };
    timed(kinds[0], op.products(xs.dim(1)?), || apply(op, [xs, &link]))
}

struct Block<M> {
    isa: Isa,
    packing: Packing,
    parameters: Linked,
    middle: M,
    kinds: [Timed; 2],
    saved: custom_op::Saved<SavedRows>,
}

/// What the forward pass leaves to the backward pass.
struct SavedRows {
    /// What each row's norm keeps.
    norm: Scratch,
    /// What the middle takes, `[rows, takes]`.
    taken: Scratch,
    /// What the middle keeps, `[rows, keeps]`.
    kept: Scratch,
    /// What the middle gives, `[rows, gives]`.
    given: Scratch,
}

/// Consecutive texts whose rows one job takes.
struct TextGroup<'a> {
    /// The first row of each text, and the end of the last, among all rows.
    starts: &'a [usize],
}

impl TextGroup<'_> {
    /// Its rows among all.
    fn rows(&self) -> Range<usize> {
        self.starts[0]..self.starts[self.starts.len() - 1]
    }

    /// The rows of each text among the group's.
    fn texts(&self) -> impl Iterator<Item = Range<usize>> {
        let first = self.starts[0];
        self.starts.windows(2).map(move |ends| ends[0] - first..ends[1] - first)
    }
}

/// The texts that begin at `starts` in groups of [`ROWS`] rows or a few more.
fn groups(starts: &[usize]) -> Vec<TextGroup<'_>> {
    let (mut groups, mut first) = (Vec::new(), 0);
    for text in 1..starts.len() {
        if starts[text] - starts[first] >= ROWS || text + 1 == starts.len() {
            groups.push(TextGroup { starts: &starts[first..=text] });
            first = text;
        }
    }
    groups
}

/// The rows of `range` in rows of `width` values.
fn span(values: &[f32], range: Range<usize>, width: usize) -> &[f32] {
    &values[range.start * width..range.end * width]
}

/// As [`span`], for writing.
fn span_mut(values: &mut [f32], range: Range<usize>, width: usize) -> &mut [f32] {
    &mut values[range.start * width..range.end * width]
}

/// Takes the first `rows` rows of `width` values off `rest`.
fn take<'a>(rest: &mut &'a mut [f32], rows: usize, width: usize) -> &'a mut [f32] {
    rest.split_off_mut(..rows * width).expect("invariant: as many rows as all groups have")
}

impl<M: Middle> CustomOp<2> for Block<M> {
    const NAME: &'static str = M::NAME;

    fn forward(&self, [xs, _]: [Operand; 2]) -> Result<(Vec<f32>, Shape)> {
        let (rows, dim) = xs.shape().dims2()?;
        let xs: &[f32] = xs.values()?;
        let values = self.parameters.values()?;
        let [gamma, beta, first, first_bias, second, second_bias]: [&[f32]; 6] =
            std::array::from_fn(|i| &*values[i]);
        let (takes, keeps, gives) = (self.middle.takes(), self.middle.keeps(), self.middle.gives());
        let first = Panels::transposed(self.isa, first, dim);
        let second = Panels::transposed(self.isa, second, gives);
        // All scratch that outlives this call comes from this thread, which also drops it.
        let mut saved = SavedRows {
            norm: Scratch::new(rows * KEPT),
            taken: Scratch::new(rows * takes),
            kept: Scratch::new(rows * keeps),
            given: Scratch::new(rows * gives),
        };
        let mut ys = vec![0.0; rows * dim];
        let (mut norm, mut taken) = (&mut *saved.norm, &mut *saved.taken);
        let (mut kept, mut given) = (&mut *saved.kept, &mut *saved.given);
        let mut rest = &mut *ys;
        let jobs = groups(self.packing.starts()).into_iter().map(|group| {
            let rows = group.rows().len();
            let (norm, taken) = (take(&mut norm, rows, KEPT), take(&mut taken, rows, takes));
            let (kept, given) = (take(&mut kept, rows, keeps), take(&mut given, rows, gives));
            (group, norm, taken, kept, given, take(&mut rest, rows, dim))
        });
        parallel::each(jobs.collect(), |(group, norm, taken, kept, given, ys)| {
            let xs = span(xs, group.rows(), dim);
            let mut normal = Scratch::new(xs.len());
            self.isa.run(NormaliseRows { xs, gamma, beta, kept: norm, ys: &mut normal });
            first.affine(&normal, first_bias, taken);
            for text in group.texts() {
                self.middle.forward(
                    span(taken, text.clone(), takes),
                    span_mut(kept, text.clone(), keeps),
                    span_mut(given, text, gives),
                );
            }
            second.affine(given, second_bias, ys);
            ys.iter_mut().zip(xs).for_each(|(y, x)| *y += x);
        });
        self.saved.set(saved);
        Ok((ys, (rows, dim).into()))
    }

    fn backward(&self, [xs, link]: [&Tensor; 2], _: &Tensor, dys: &Tensor) -> Backprop<2> {
        let (_, dim) = xs.dims2()?;
        timed(self.kinds[1], 2 * self.products(dim), || {
            let mut dxs = vec![0.0; xs.elem_count()];
            self.gradients(dim, &borrow(xs)?, &borrow(dys)?, &mut dxs)?;
            let dxs = Tensor::from_vec(dxs, xs.shape(), xs.device())?;
            Ok([Some(dxs), Some(link.zeros_like()?)])
        })
    }
}

impl<M: Middle> Block<M> {
    /// Products of the forward pass on rows of width `dim`.
    fn products(&self, dim: usize) -> usize {
        let texts: usize =
            self.packing.texts().map(|(rows, _)| self.middle.products(rows.len())).sum();
        self.packing.rows() * dim * (self.middle.takes() + self.middle.gives()) + texts
    }

    /// Writes the gradients of the rows, and gives the parameters theirs.
    fn gradients(&self, dim: usize, xs: &[f32], dys: &[f32], dxs: &mut [f32]) -> Result<()> {
        let rows = xs.len() / dim;
        let values = self.parameters.values()?;
        let [gamma, beta, first, _, second, _]: [&[f32]; 6] = std::array::from_fn(|i| &*values[i]);
        let (takes, keeps, gives) = (self.middle.takes(), self.middle.keeps(), self.middle.gives());
        let saved = self.saved.get();
        let first = Panels::new(self.isa, first, dim);
        let second = Panels::new(self.isa, second, gives);
        // The normalised rows, and the gradient of what the middle takes: the first projection's weight needs both.
        let (mut normal, mut dtaken) = (Scratch::new(rows * dim), Scratch::new(rows * takes));
        let groups = groups(self.packing.starts());
        let width = 3 * dim + takes;
        // Each group's part of the gradients of everything but the weights of the projections.
        let mut sums = Scratch::zeroed(groups.len() * width);
        {
            let (mut normal, mut dtaken, mut dxs) = (&mut *normal, &mut *dtaken, dxs);
            let jobs = groups.into_iter().zip(sums.chunks_exact_mut(width)).map(|(group, sums)| {
                let rows = group.rows().len();
                let (normal, dtaken) =
                    (take(&mut normal, rows, dim), take(&mut dtaken, rows, takes));
                (group, normal, dtaken, take(&mut dxs, rows, dim), sums)
            });
            parallel::each(jobs.collect(), |(group, normal, dtaken, dxs, sums)| {
                let rows = group.rows();
                let (xs, dys) = (span(xs, rows.clone(), dim), span(dys, rows.clone(), dim));
                let (dgamma, sums) = sums.split_at_mut(dim);
                let (dbeta, sums) = sums.split_at_mut(dim);
                let (dfirst_bias, dsecond_bias) = sums.split_at_mut(takes);
                self.isa.run(ColumnSums { rows: dys, sums: dsecond_bias });
                let mut dgiven = Scratch::new(rows.len() * gives);
                second.product(dys, Target::Write(&mut dgiven));
                for text in group.texts() {
                    let all = text.start + rows.start..text.end + rows.start;
                    self.middle.backward(
                        span(&saved.taken, all.clone(), takes),
                        span(&saved.kept, all, keeps),
                        span(&dgiven, text.clone(), gives),
                        span_mut(dtaken, text, takes),
                    );
                }
                self.isa.run(ColumnSums { rows: dtaken, sums: dfirst_bias });
                let mut dnormal = Scratch::new(xs.len());
                first.product(dtaken, Target::Write(&mut dnormal));
                let kept = span(&saved.norm, rows, KEPT);
                self.isa.run(Renormalise { xs, gamma, beta, kept, ys: normal });
                dxs.copy_from_slice(dys);
                self.isa.run(LayerNormBackward {
                    xs,
                    gamma,
                    kept,
                    dys: &dnormal,
                    dxs,
                    dgamma,
                    dbeta,
                });
            });
        }
        // The sums of the groups, in their order, of as many columns from `first` on as the parameter has.
        let add_up = |first: usize, to: &mut [f32]| {
            to.fill(0.0);
            for sums in sums.chunks_exact(width) {
                to.iter_mut().zip(&sums[first..]).for_each(|(sum, x)| *sum += x);
            }
        };
        let of = &self.parameters;
        of.give(0, |to| add_up(0, to))?;
        of.give(1, |to| add_up(dim, to))?;
        let weight = |dys: &[f32], xs: &[f32], inputs, to: &mut [f32]| {
            weight_gradient(self.isa, dys, xs, inputs, Target::Write(to));
        };
        of.give(2, |to| weight(&dtaken, &normal, dim, to))?;
        of.give(3, |to| add_up(2 * dim, to))?;
        of.give(4, |to| weight(dys, &saved.given, gives, to))?;
        of.give(5, |to| add_up(2 * dim + takes, to))
    }
}
