//! Convolutions of 3×3 with padding 1 by minimal filtering: Winograd's F(4×4, 3×3) for stride 1, and its nested
//! relative for stride 2, see [`algorithm`].
//!
//! Rows of tiles are taken in chunks small enough for their points to stay in the cache: images to points, one matrix
//! product per point, points to images. The weight gradient sums the products of all chunks first and transforms the
//! sum. Chunks do not depend on the number of threads and every sum runs in one order, so neither does any bit of the
//! result.

mod algorithm;
mod transform;

use std::marker::PhantomData;

use self::algorithm::{Map, doubling, halving, unit};
use self::transform::{FromPoints, PointsToWeight, Side, Tiling, ToPoints, WeightToPoints, stride};
use super::conv::Sizes;
use super::gemm::{Gemm, Right, Target};
use super::memory::{Out, Scratch};
use super::parallel::{each, threads};
use super::simd::Isa;

/// Bytes of points that one chunk of tiles may fill.
const CHUNK_BYTES: usize = 384 << 10;

/// Tiles in a chunk at least, so that weights read from beyond the cache are used often enough.
const CHUNK_TILES: usize = 28;

/// See [`conv::forward`](super::conv::forward).
pub(super) fn forward(isa: Isa, sizes: &Sizes, xs: &[f32], weight: &[f32], ys: Out) {
    let pass = Pass { isa, sizes, side: Side::Forward, from: inputs(sizes), to: outputs(sizes) };
    if sizes.stride == 1 {
        pass.run::<unit::Input, unit::Weight, unit::Output, 6, 6, 4>(xs, weight, ys);
    } else {
        pass.run::<halving::Input, halving::Weight, halving::Output, 9, 9, 4>(xs, weight, ys);
    }
}

/// See [`conv::input_gradient`](super::conv::input_gradient).
pub(super) fn input_gradient(isa: Isa, sizes: &Sizes, weight: &[f32], dy: &[f32], dx: Out) {
    let out = 4 * sizes.stride;
    let (rows, columns) = (sizes.height.div_ceil(out), sizes.width.div_ceil(out));
    let from = Tiling { rows, columns, margin: 2 - sizes.stride, ..outputs(sizes) };
    let to = Tiling { rows, columns, step: out, margin: 0, ..inputs(sizes) };
    let pass = Pass { isa, sizes, side: Side::Reversed, from, to };
    if sizes.stride == 1 {
        pass.run::<unit::Input, unit::Weight, unit::Output, 6, 6, 4>(dy, weight, dx);
    } else {
        pass.run::<doubling::Input, halving::Weight, doubling::Output, 5, 9, 8>(dy, weight, dx);
    }
}

/// See [`conv::weight_gradient`](super::conv::weight_gradient).
pub(super) fn weight_gradient(isa: Isa, sizes: &Sizes, xs: &[f32], dy: &[f32], dw: Out) {
    if sizes.stride == 1 {
        sum_products::<unit::Input, unit::OutputTransposed, unit::WeightTransposed, 6, 6>(
            isa, sizes, xs, dy, dw,
        );
    } else {
        sum_products::<halving::Input, halving::OutputTransposed, halving::WeightTransposed, 9, 9>(
            isa, sizes, xs, dy, dw,
        );
    }
}

/// The tiles of the result, 4×4 each.
fn outputs(sizes: &Sizes) -> Tiling {
    let (height, width) = (sizes.out_height(), sizes.out_width());
    let (rows, columns) = (height.div_ceil(4), width.div_ceil(4));
    Tiling { height, width, channels: sizes.outputs, rows, columns, step: 4, margin: 0 }
}

/// The tiles of the input, one for each of the result, with the one row and column of padding above and left.
fn inputs(sizes: &Sizes) -> Tiling {
    let Tiling { rows, columns, .. } = outputs(sizes);
    let (height, width, channels) = (sizes.height, sizes.width, sizes.inputs);
    Tiling { height, width, channels, rows, columns, step: 4 * sizes.stride, margin: 1 }
}

/// Rows of tiles in one chunk: whole rows, in `CHUNK_BYTES` if that makes `CHUNK_TILES`.
fn chunk_rows(columns: usize, points: usize, channels: usize) -> usize {
    let tiles = (CHUNK_BYTES / (4 * points * channels)).max(CHUNK_TILES);
    (tiles / columns).max(1)
}

/// A convolution of images with the taps of a weight: the forward pass, and the input gradient.
struct Pass<'a> {
    isa: Isa,
    sizes: &'a Sizes,
    side: Side,
    from: Tiling,
    to: Tiling,
}

impl Pass<'_> {
    fn run<I, W, O, const IN: usize, const POINTS: usize, const OUT: usize>(
        &self,
        images: &[f32],
        weight: &[f32],
        mut to: Out,
    ) where
        I: Map<IN, POINTS>,
        W: Map<3, POINTS>,
        O: Map<POINTS, OUT>,
    {
        let isa = self.isa;
        let (depth, columns) = (self.from.channels, self.to.channels);
        let lanes = isa.lanes();
        let (padded_depth, padded_columns) =
            (depth.next_multiple_of(lanes), columns.next_multiple_of(lanes));
        let matrices = POINTS * POINTS;

        let weight_stride = stride(depth * padded_columns);
        let mut weights = Scratch::new(matrices * weight_stride);
        isa.run(WeightToPoints::<W, POINTS> {
            map: PhantomData,
            weight,
            inputs: self.sizes.inputs,
            outputs: self.sizes.outputs,
            side: self.side,
            points: &mut weights,
            stride: weight_stride,
        });
        let weights: &[f32] = &weights;

        let total = self.sizes.batch * self.from.rows;
        let chunk =
            chunk_rows(self.from.columns, matrices, padded_depth + padded_columns).min(total);
        let mut chunks = Vec::with_capacity(total.div_ceil(chunk));
        for first in (0..total).step_by(chunk) {
            let rows = chunk.min(total - first);
            let (out, rest) = to.split_at(self.to.covered(first, rows).len());
            chunks.push((first, rows, out));
            to = rest;
        }
        each(chunks, |(first, rows, out)| {
            let tiles = rows * self.from.columns;
            let from_stride = stride(tiles * padded_depth);
            let to_stride = stride(tiles * padded_columns);
            let mut from = Scratch::new(matrices * from_stride);
            let mut products = Scratch::new(matrices * to_stride);
            isa.run(ToPoints::<I, IN, POINTS> {
                map: PhantomData,
                images,
                tiling: self.from,
                first,
                rows,
                points: &mut from,
                padded: padded_depth,
                stride: from_stride,
            });
            for p in 0..matrices {
                isa.run(Gemm {
                    rows: tiles,
                    columns: padded_columns,
                    depth,
                    a: &from[p * from_stride..],
                    a_row: padded_depth,
                    a_depth: 1,
                    b: &weights[p * weight_stride..],
                    right: Right::Panels,
                    c: Target::Write((&mut products[p * to_stride..]).into()),
                    c_row: padded_columns,
                });
            }
            isa.run(FromPoints::<O, POINTS, OUT> {
                map: PhantomData,
                points: &products,
                padded: padded_columns,
                stride: to_stride,
                tiling: self.to,
                first,
                rows,
                images: out,
            });
        });
    }
}

/// The weight gradient: the points of the input times those of the result's gradient, summed over all tiles.
fn sum_products<I, O, W, const IN: usize, const POINTS: usize>(
    isa: Isa,
    sizes: &Sizes,
    xs: &[f32],
    dy: &[f32],
    dw: Out,
) where
    I: Map<IN, POINTS>,
    O: Map<4, POINTS>,
    W: Map<POINTS, 3>,
{
    let (from, to) = (inputs(sizes), outputs(sizes));
    let lanes = isa.lanes();
    let (padded_inputs, padded_outputs) =
        (sizes.inputs.next_multiple_of(lanes), sizes.outputs.next_multiple_of(lanes));
    let matrices = POINTS * POINTS;
    let sum_stride = stride(sizes.outputs * padded_inputs);
    let mut sums = Scratch::new(matrices * sum_stride);

    let total = sizes.batch * from.rows;
    let chunk = chunk_rows(from.columns, matrices, padded_inputs + padded_outputs).min(total);
    let firsts: Vec<usize> = (0..total).step_by(chunk).collect();
    // As many chunks as there are threads become points side by side; then each matrix of sums takes them in, in
    // order.
    for group in firsts.chunks(threads()) {
        let mut points: Vec<(usize, usize, Scratch, Scratch)> = group
            .iter()
            .map(|&first| {
                let rows = chunk.min(total - first);
                let tiles = rows * from.columns;
                let input = Scratch::new(matrices * stride(tiles * padded_inputs));
                let output = Scratch::new(matrices * stride(tiles * padded_outputs));
                (first, rows, input, output)
            })
            .collect();
        each(points.iter_mut().collect(), |(first, rows, input, output)| {
            let tiles = *rows * from.columns;
            isa.run(ToPoints::<I, IN, POINTS> {
                map: PhantomData,
                images: xs,
                tiling: from,
                first: *first,
                rows: *rows,
                points: input,
                padded: padded_inputs,
                stride: stride(tiles * padded_inputs),
            });
            isa.run(ToPoints::<O, 4, POINTS> {
                map: PhantomData,
                images: dy,
                tiling: to,
                first: *first,
                rows: *rows,
                points: output,
                padded: padded_outputs,
                stride: stride(tiles * padded_outputs),
            });
        });
        let points = &points;
        each(
            sums.chunks_exact_mut(sum_stride).enumerate().collect(),
            |(p, sum): (usize, &mut [f32])| {
                for (first, rows, input, output) in points {
                    let tiles = rows * from.columns;
                    isa.run(Gemm {
                        rows: sizes.outputs,
                        columns: padded_inputs,
                        depth: tiles,
                        a: &output[p * stride(tiles * padded_outputs)..],
                        a_row: 1,
                        a_depth: padded_outputs,
                        b: &input[p * stride(tiles * padded_inputs)..],
                        right: Right::Rows(padded_inputs),
                        c: if *first == 0 { Target::Write(sum.into()) } else { Target::Add(sum) },
                        c_row: padded_inputs,
                    });
                }
            },
        );
    }

    let per_output = sizes.inputs * 9;
    let block = sizes.outputs.div_ceil(threads()).max(1);
    let mut blocks = Vec::new();
    let mut rest = dw;
    for first in (0..sizes.outputs).step_by(block) {
        let count = block.min(sizes.outputs - first);
        let (out, tail) = rest.split_at(count * per_output);
        blocks.push((first, count, out));
        rest = tail;
    }
    let sums: &[f32] = &sums;
    each(blocks, |(first, outputs, weight)| {
        isa.run(PointsToWeight::<W, POINTS> {
            map: PhantomData,
            points: &sums[first * padded_inputs..],
            stride: sum_stride,
            inputs: sizes.inputs,
            outputs,
            weight,
        });
    });
}
