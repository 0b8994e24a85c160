//! The weight gradient: products of points, summed over the chunks of tiles before the sum is transformed.

use std::marker::PhantomData;

use super::algorithm::{Map, TAPS};
use super::tiles::{Layout, MATRICES, SMALL_BLOCK, Tiling, chunk_rows, stride};
use super::transforms::{ToPoints, to_points};
use super::weights::PointsToWeight;
use crate::kernels::bf16::{Take, elements, multiply};
use crate::kernels::conv_sizes::Sizes;
use crate::kernels::element::Element;
use crate::kernels::gemm::{Gemm, Left, Right, panel};
use crate::kernels::memory::{Scratch, Target};
use crate::kernels::parallel::{each, threads};
use crate::kernels::simd::Isa;
use crate::kernels::values::{LentPart, Values};

/// Channels up to which the matrices of the weight gradient lie row after row: the rows of more fall into too few sets
/// of the cache, unless they are divided into blocks.
const NARROW: usize = 64;

/// Chains of chunks whose sums are added up apart, so that threads need not share points: as many as have these elements of
/// sums together, and at most so many. They do not depend on the number of threads, nor do the bits.
const CHAINED: usize = 5 << 16;
const MOST_CHAINS: usize = 8;

/// Runs `work` on every job, on all threads or on this one.
fn spread<J: Send>(wide: bool, jobs: Vec<J>, work: impl Fn(J) + Sync + Send) {
    if wide { each(jobs, work) } else { jobs.into_iter().for_each(work) }
}

/// The weight gradient: the points of the input times those of the result's gradient, summed over all tiles.
pub(super) struct Sum<'a> {
    pub isa: Isa,
    pub sizes: &'a Sizes,
    pub from: Tiling,
    pub to: Tiling,
}

impl Sum<'_> {
    /// Writes all of `dw`. The simple form: `dw[o, i] = Gᵀ [Σ_t (A dy[t, o] Aᵀ) ⊙ (Bᵀ x[t, i] B)] G` over all tiles t. Here
    /// the sum at each point is a matrix product over the tiles of a chunk, added to that of its chain's chunks before.
    pub(super) fn run<I, O, W, E, const IN: usize, const POINTS: usize>(
        &self,
        taps: &[usize; POINTS],
        xs: &Values<E>,
        dy: &Values<E>,
        dw: &mut [f32],
    ) where
        I: Map<IN, POINTS>,
        O: Map<4, POINTS>,
        W: Map<TAPS, 3>,
        E: Element,
    {
        let (isa, lanes) = (self.isa, self.isa.lanes());
        let (inputs, outputs) = (self.sizes.inputs, self.sizes.outputs);
        let xs = xs.for_jobs();
        let total = self.sizes.batch * self.from.rows;
        let chunk = chunk_rows(total, self.from.columns, POINTS * POINTS, inputs, outputs);
        let rows = |first: usize| chunk.min(total - first);
        let firsts = (0..total).step_by(chunk);
        let ends = firsts.clone().map(|first| self.to.covered(first, rows(first)).end);
        if chunk == total {
            dy.in_parts(ends, |mut parts| {
                if let Some(dy) = parts.pop() {
                    let mut chunk = Chunk::new(taps, (0, total), dy, self, lanes);
                    chunk.fill::<I, O, IN>(self, xs);
                    self.alone::<W, POINTS>(&chunk, dw);
                }
            });
            return;
        }
        let padded = inputs.next_multiple_of(lanes);
        let sum_stride = stride(outputs * padded);
        let of_chain = MATRICES * sum_stride;
        let chains = (CHAINED / of_chain).clamp(1, MOST_CHAINS);
        let length = firsts.len().div_ceil(chains).max(2);
        let chains = firsts.len().div_ceil(length);
        let wide = threads() > chains;
        let at_once = if wide { 1 } else { threads() };
        // The sum of all, first in the place of the first chain's, and those of the chains that are added up at once: the
        // next ones take their places, which are still in the cache.
        let mut sums = Scratch::new((1 + at_once).min(chains) * of_chain);
        dy.in_parts(ends, |parts| {
            let mut parts = firsts.map(|first| (first, rows(first))).zip(parts);
            for first in (0..chains).step_by(at_once) {
                let (taken, count) = (usize::from(first > 0), at_once.min(chains - first));
                let places = sums.chunks_exact_mut(of_chain).skip(taken).take(count);
                let jobs = places.map(|sums| (parts.by_ref().take(length).collect(), sums));
                let jobs: Vec<(Vec<_>, &mut [f32])> = jobs.collect();
                spread(!wide, jobs, |(parts, sums)| {
                    self.add_up::<I, O, E, IN, POINTS>(taps, xs, parts, (sums, sum_stride), wide);
                });
                let (sum, others) = sums.split_at_mut(of_chain);
                for other in others.chunks_exact(of_chain).take(taken + count - 1) {
                    isa.run(Take { from: other, to: Target::Add(sum) });
                }
            }
        });

        let sums: &[f32] = &sums;
        let block = outputs.div_ceil(threads());
        each(
            dw.chunks_mut(block * inputs * 9).enumerate().collect(),
            |(i, weight): (usize, &mut [f32])| {
                isa.run(PointsToWeight::<W> {
                    map: PhantomData,
                    points: &sums[i * block * padded..],
                    stride: sum_stride,
                    inputs,
                    first: 0,
                    columns: inputs,
                    weight,
                });
            },
        );
    }

    /// Writes the sums of a chain, over its chunks in their order: `wide`, on all threads, as many chunks as there are of
    /// them become points side by side, and then each matrix of sums takes them in.
    fn add_up<I, O, E, const IN: usize, const POINTS: usize>(
        &self,
        taps: &[usize; POINTS],
        xs: &Values<E>,
        parts: Vec<((usize, usize), LentPart<E>)>,
        (sums, stride): (&mut [f32], usize),
        wide: bool,
    ) where
        I: Map<IN, POINTS>,
        O: Map<4, POINTS>,
        E: Element,
    {
        let (isa, lanes) = (self.isa, self.isa.lanes());
        let (padded, outputs) = (self.sizes.inputs.next_multiple_of(lanes), self.sizes.outputs);
        let (mut parts, mut first) = (parts.into_iter(), true);
        while parts.len() > 0 {
            let group = parts.by_ref().take(if wide { threads() } else { 1 });
            let chunks = group.map(|(rows, dy)| Chunk::new(taps, rows, dy, self, lanes));
            let mut chunks: Vec<Chunk<E, POINTS>> = chunks.collect();
            spread(wide, chunks.iter_mut().collect(), |chunk| chunk.fill::<I, O, IN>(self, xs));
            spread(wide, sums.chunks_exact_mut(stride).enumerate().collect(), |(i, sum)| {
                for (at, chunk) in chunks.iter().enumerate() {
                    let to = if first && at == 0 {
                        Target::Write(&mut *sum)
                    } else {
                        Target::Add(&mut *sum)
                    };
                    chunk.product(isa, i, (0, outputs), (0, padded), to);
                }
            });
            first = false;
        }
    }

    /// The gradient from one chunk that is all there is: block by block, none of which leaves the cache before it has been
    /// transformed.
    fn alone<W: Map<TAPS, 3>, const POINTS: usize>(
        &self,
        chunk: &Chunk<impl Element, POINTS>,
        dw: &mut [f32],
    ) {
        let (isa, inputs, (width, height)) = (self.isa, self.sizes.inputs, SMALL_BLOCK);
        each(
            dw.chunks_mut(height * inputs * 9).enumerate().collect(),
            |(i, weight): (usize, &mut [f32])| {
                let outputs = weight.len() / (inputs * 9);
                for first in (0..inputs).step_by(width) {
                    let columns = width.min(inputs - first);
                    let padded = columns.next_multiple_of(isa.lanes());
                    let stride = stride(outputs * padded);
                    let mut sums = Scratch::new(MATRICES * stride);
                    for (matrix, sum) in sums.chunks_exact_mut(stride).enumerate() {
                        let rows = (i * height, outputs);
                        chunk.product(isa, matrix, rows, (first, padded), Target::Write(sum));
                    }
                    isa.run(PointsToWeight::<W> {
                        map: PhantomData,
                        points: &sums,
                        stride,
                        inputs,
                        first,
                        columns,
                        weight,
                    });
                }
            },
        );
    }
}

/// Rows of tiles on their way into the weight gradient.
struct Chunk<'a, E: Element, const POINTS: usize> {
    first: usize,
    rows: usize,
    /// The gradient of what the tiles cover, until it has been transformed.
    gradient: Option<LentPart<'a, E>>,
    input: Layout<POINTS>,
    output: Layout<POINTS>,
    input_points: Scratch,
    output_points: Scratch,
}

impl<'a, E: Element, const POINTS: usize> Chunk<'a, E, POINTS> {
    fn new(
        taps: &[usize; POINTS],
        (first, rows): (usize, usize),
        gradient: LentPart<'a, E>,
        sum: &Sum,
        lanes: usize,
    ) -> Self {
        let tiles = sum.from.kinds(first, rows).in_groups(|tiles| elements(sum.isa, tiles));
        let blocks = |channels: usize, width: usize| {
            let width = if channels <= NARROW { usize::MAX } else { width };
            Layout::new(taps, tiles, channels, width, lanes)
        };
        let input = blocks(sum.from.channels, panel(lanes));
        let output = blocks(sum.to.channels, lanes);
        let input_points = Scratch::new(input.len());
        let output_points = Scratch::new(output.len());
        let gradient = Some(gradient);
        Self { first, rows, gradient, input, output, input_points, output_points }
    }

    /// Of matrix `i` the products of outputs and inputs, from a first one so many, padded to whole vectors.
    fn product(
        &self,
        isa: Isa,
        i: usize,
        (output, rows): (usize, usize),
        (input, columns): (usize, usize),
        to: Target,
    ) {
        let (a, b) = (&self.output, &self.input);
        let tiles = b.matrix(i).rows;
        if tiles == 0 {
            // All are too short for this product.
            if let Target::Write(to) = to {
                to.fill(0.0);
            }
            return;
        }
        let left =
            if a.width == isa.lanes() { Left::Transposed(a.block) } else { Left::Columns(a.width) };
        let right = Right::Blocks { width: b.width, stride: b.block };
        let a = (&self.output_points[a.matrix(i).start + a.at(0, output)..], left);
        let b = (&self.input_points[b.matrix(i).start + b.at(0, input)..], right);
        let sizes = [rows, columns, tiles];
        multiply(isa, Gemm { sizes, a, b, c: (to, columns), bias: &[] });
    }

    /// Transforms the tiles.
    fn fill<I, O, const IN: usize>(&mut self, sum: &Sum, xs: &Values<E>)
    where
        I: Map<IN, POINTS>,
        O: Map<4, POINTS>,
    {
        let rows = (self.first, self.rows);
        let to = (&self.input, &mut self.input_points[..]);
        to_points::<I, _, IN, POINTS>(sum.isa, xs, &sum.from, rows, to, true);
        if let Some(gradient) = self.gradient.take() {
            let kernel = ToPoints::<O, E, 4, POINTS> {
                map: PhantomData,
                images: &gradient.make(),
                start: sum.to.covered(self.first, self.rows).start,
                tiling: sum.to,
                first: self.first,
                rows: self.rows,
                layout: &self.output,
                points: &mut self.output_points,
            };
            kernel.run_on(sum.isa, true);
        }
    }
}
