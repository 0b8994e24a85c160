//! Convolutions of 3×3 with padding 1 by minimal filtering: Winograd's F(4×4, 3×3) for stride 1, and its nested
//! relative for stride 2, see [`algorithm`].
//!
//! Rows of tiles are taken in chunks small enough for their points to stay in the cache: images to points, one matrix
//! product per point, points to images. The weight gradient sums the products of all chunks first and transforms the
//! sum. Chunks do not depend on the number of threads and every sum runs in one order, so neither does any bit of the
//! result.

mod algorithm;
mod tiles;
mod weights;

use std::marker::PhantomData;

use self::algorithm::{Map, TAPS, doubling, halving, unit};
use self::tiles::{FromPoints, Layout, MATRICES, Tiling, ToPoints, stride};
use self::weights::{PointsToWeight, Side, WeightToPoints};
use super::batch_norm::Moments;
use super::conv::Sizes;
use super::gemm::{Gemm, Left, Right, panel};
use super::memory::{Scratch, Target};
use super::parallel::{each, threads};
use super::simd::Isa;
use super::values::{Part, Source};

/// Bytes of points that one chunk of tiles may fill while they stay in the second-level cache.
const CHUNK_BYTES: usize = 512 << 10;

/// Tiles in a chunk at least when its weights do not fit beside it, so that each weight read is used often enough.
const WIDE_TILES: usize = 128;

/// Bytes of weights' points that stay in the second-level cache beside a chunk.
const NARROW_BYTES: usize = 640 << 10;

/// Channels up to which the matrices of the weight gradient lie row after row: the rows of more fall into too few sets
/// of the cache, unless they are divided into blocks.
const NARROW: usize = 64;

/// Columns and rows of the weights' points that are made at a time, and used by all chunks.
const WIDE_BLOCK: (usize, usize) = (128, usize::MAX);

/// Columns and rows of the weights' points, or of their gradient's, that one chunk alone makes and uses: they stay in the
/// second-level cache meanwhile, which all of them would not. Multiples of any vector's lanes.
const SMALL_BLOCK: (usize, usize) = (64, 64);

/// See [`conv::forward`](super::conv::forward).
pub(super) fn forward(
    isa: Isa,
    sizes: &Sizes,
    xs: Source,
    weight: &[f32],
    ys: &mut [f32],
) -> Moments {
    let pass = Pass { isa, sizes, side: Side::Forward, from: inputs(sizes), to: outputs(sizes) };
    let sum = |part: &[f32]| Some(Moments::of_part(isa, part, sizes.outputs));
    let parts = if sizes.stride == 1 {
        pass.run::<unit::Input, unit::Weight, unit::Output, _, 6, 6, 4>(
            &unit::PRODUCTS,
            xs,
            weight,
            Target::Write(ys),
            sum,
        )
    } else {
        pass.run::<halving::Input, halving::Weight, halving::Output, _, 9, 9, 4>(
            &halving::PRODUCTS,
            xs,
            weight,
            Target::Write(ys),
            sum,
        )
    };
    Moments::merged(parts)
}

/// See [`conv::input_gradient`](super::conv::input_gradient).
pub(super) fn input_gradient(isa: Isa, sizes: &Sizes, weight: &[f32], dy: Source, dx: Target) {
    let out = 4 * sizes.stride;
    let (rows, columns) = (sizes.height.div_ceil(out), sizes.width.div_ceil(out));
    let from = Tiling { rows, columns, margin: 2 - sizes.stride, ..outputs(sizes) };
    let to = Tiling { rows, columns, step: out, margin: 0, ..inputs(sizes) };
    let pass = Pass { isa, sizes, side: Side::Reversed, from, to };
    if sizes.stride == 1 {
        pass.run::<unit::Input, unit::Weight, unit::Output, _, 6, 6, 4>(
            &unit::PRODUCTS,
            dy,
            weight,
            dx,
            |_| (),
        );
    } else {
        pass.run::<doubling::Input, halving::Weight, doubling::Output, _, 5, 9, 8>(
            &halving::PRODUCTS,
            dy,
            weight,
            dx,
            |_| (),
        );
    }
}

/// See [`conv::weight_gradient`](super::conv::weight_gradient).
pub(super) fn weight_gradient(isa: Isa, sizes: &Sizes, xs: Source, dy: Source, dw: &mut [f32]) {
    let sum = Sum { isa, sizes, from: inputs(sizes), to: outputs(sizes) };
    if sizes.stride == 1 {
        sum.run::<unit::Input, unit::OutputTransposed, unit::WeightTransposed, 6, 6>(
            &unit::PRODUCTS,
            xs,
            dy,
            dw,
        );
    } else {
        sum.run::<halving::Input, halving::OutputTransposed, halving::WeightTransposed, 9, 9>(
            &halving::PRODUCTS,
            xs,
            dy,
            dw,
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

/// Rows of tiles in one chunk, for so many tiles in a row, products per tile, and channels on the two sides.
fn chunk_rows(columns: usize, products: usize, from: usize, to: usize) -> usize {
    let mut tiles = CHUNK_BYTES / (4 * products * (from + to));
    if 4 * MATRICES * from * to > NARROW_BYTES {
        tiles = tiles.max(WIDE_TILES);
    }
    (tiles / columns).max(1)
}

/// Some rows of tiles, from a first one counted through all images, to points.
fn to_points<M: Map<IN, POINTS>, const IN: usize, const POINTS: usize>(
    isa: Isa,
    images: Source,
    tiling: &Tiling,
    (first, rows): (usize, usize),
    (layout, points): (&Layout<POINTS>, &mut [f32]),
) {
    let touched = tiling.touched(first, rows, IN);
    isa.run(ToPoints::<M, IN, POINTS> {
        map: PhantomData,
        start: touched.start,
        images: &images.window(touched),
        tiling: *tiling,
        first,
        rows,
        layout,
        points,
    });
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
    /// Returns what `look` says of each chunk of the result as it is done, in their order.
    fn run<I, W, O, T, const IN: usize, const POINTS: usize, const OUT: usize>(
        &self,
        taps: &[usize; POINTS],
        images: Source,
        weight: &[f32],
        mut to: Target,
        look: impl Fn(&[f32]) -> T + Sync,
    ) -> Vec<T>
    where
        I: Map<IN, POINTS>,
        W: Map<3, TAPS>,
        O: Map<POINTS, OUT>,
        T: Default + Send,
    {
        let (isa, lanes) = (self.isa, self.isa.lanes());
        let (depth, columns) = (self.from.channels, self.to.channels);

        let total = self.sizes.batch * self.from.rows;
        let chunk = chunk_rows(self.from.columns, POINTS * POINTS, depth, columns).min(total);
        let firsts = (0..total).step_by(chunk);
        let mut seen: Vec<T> = firsts.clone().map(|_| T::default()).collect();
        let mut chunks = Vec::with_capacity(firsts.len());
        for (first, seen) in firsts.zip(&mut seen) {
            let rows = chunk.min(total - first);
            let (out, rest) = to.split_at(self.to.covered(first, rows).len());
            chunks.push((first, rows, out, seen));
            to = rest;
        }

        // One chunk alone needs each block of weights once: it makes them as it goes, in one place in the cache.
        let alone = chunks.len() == 1;
        let size = if alone { SMALL_BLOCK } else { WIDE_BLOCK };
        let blocks: Vec<Block> = Block::all(columns, depth, size).collect();
        let weights = |block: Block| block.weights::<W>(isa, self.sizes, self.side, weight);
        let mut made: Vec<Option<Scratch>> = blocks.iter().map(|_| None).collect();
        if !alone {
            each(made.iter_mut().zip(&blocks).collect(), |(made, block)| {
                *made = Some(weights(*block));
            });
        }

        each(chunks, |(first, rows, mut out, seen)| {
            let tiles = rows * self.from.columns;
            let layout = Layout::new(taps, tiles, depth, lanes, lanes);
            let mut points = Scratch::new(layout.len());
            let into = (&layout, &mut points[..]);
            to_points::<I, IN, POINTS>(isa, images, &self.from, (first, rows), into);
            let width = blocks[0].columns;
            let results = Layout::new(taps, tiles, width, usize::MAX, lanes);
            let mut products = Scratch::new(results.len());
            for (block, made) in blocks.iter().zip(&made) {
                let fresh;
                let weights = match made {
                    Some(weights) => weights,
                    None => {
                        fresh = weights(*block);
                        &fresh
                    }
                };
                let results = Layout::new(taps, tiles, block.columns, usize::MAX, lanes);
                let stride = block.stride(lanes);
                let matrices =
                    layout.matrices().zip(results.matrices()).zip(weights.chunks_exact(stride));
                for ((from, to), weights) in matrices {
                    let to = &mut products[to.start..];
                    isa.run(Gemm {
                        rows: from.rows,
                        columns: results.width,
                        depth: block.depth,
                        a: &points[block.top / lanes * layout.block + from.start..],
                        left: Left::Blocks(layout.block),
                        b: weights,
                        right: Right::Panels,
                        c: if block.top == 0 { Target::Write(to) } else { Target::Add(to) },
                        c_row: results.width,
                    });
                }
                if block.top + block.depth < depth {
                    continue;
                }
                isa.run(FromPoints::<O, POINTS, OUT> {
                    map: PhantomData,
                    layout: &results,
                    points: &products,
                    tiling: self.to,
                    first,
                    rows,
                    channel: block.first,
                    channels: block.columns,
                    images: out.range(0..out.len()),
                });
            }
            *seen = look(out.parts().0);
        });
        seen
    }
}

/// Some columns, and of these some rows, of the weights' points.
#[derive(Clone, Copy)]
struct Block {
    first: usize,
    columns: usize,
    top: usize,
    depth: usize,
}

impl Block {
    /// All blocks of so many columns and rows, those of the same columns one after the other.
    fn all(
        columns: usize,
        depth: usize,
        (width, height): (usize, usize),
    ) -> impl Iterator<Item = Self> {
        (0..columns).step_by(width).flat_map(move |first| {
            (0..depth).step_by(height).map(move |top| Self {
                first,
                columns: width.min(columns - first),
                top,
                depth: height.min(depth - top),
            })
        })
    }

    /// Elements from one matrix to the next one.
    fn stride(self, lanes: usize) -> usize {
        stride(self.depth * self.columns.next_multiple_of(lanes))
    }

    /// The points of these columns and rows.
    fn weights<W: Map<3, TAPS>>(
        self,
        isa: Isa,
        sizes: &Sizes,
        side: Side,
        weight: &[f32],
    ) -> Scratch {
        let stride = self.stride(isa.lanes());
        let mut points = Scratch::new(MATRICES * stride);
        isa.run(WeightToPoints::<W> {
            map: PhantomData,
            weight,
            inputs: sizes.inputs,
            outputs: sizes.outputs,
            side,
            first: self.first,
            columns: self.columns,
            top: self.top,
            depth: self.depth,
            points: &mut points,
            stride,
        });
        points
    }
}

/// The weight gradient: the points of the input times those of the result's gradient, summed over all tiles.
struct Sum<'a> {
    isa: Isa,
    sizes: &'a Sizes,
    from: Tiling,
    to: Tiling,
}

impl Sum<'_> {
    fn run<I, O, W, const IN: usize, const POINTS: usize>(
        &self,
        taps: &[usize; POINTS],
        xs: Source,
        dy: Source,
        dw: &mut [f32],
    ) where
        I: Map<IN, POINTS>,
        O: Map<4, POINTS>,
        W: Map<TAPS, 3>,
    {
        let (isa, lanes) = (self.isa, self.isa.lanes());
        let (inputs, outputs) = (self.sizes.inputs, self.sizes.outputs);
        let total = self.sizes.batch * self.from.rows;
        let chunk = chunk_rows(self.from.columns, POINTS * POINTS, inputs, outputs).min(total);
        let rows = |first: usize| chunk.min(total - first);
        let firsts = (0..total).step_by(chunk);
        let ends = firsts.clone().map(|first| self.to.covered(first, rows(first)).end);
        if chunk == total {
            dy.in_parts(ends, |mut parts| {
                if let Some(dy) = parts.pop() {
                    let mut chunk = Chunk::new(taps, 0, total, dy, self, lanes);
                    chunk.fill::<I, O, IN>(self, xs);
                    self.alone::<W, POINTS>(&chunk, dw);
                }
            });
            return;
        }
        let padded = inputs.next_multiple_of(lanes);
        let sum_stride = stride(outputs * padded);
        let mut sums = Scratch::new(MATRICES * sum_stride);
        dy.in_parts(ends, |parts| {
            let mut parts = firsts.zip(parts);
            // As many chunks as there are threads become points side by side; then each matrix of sums takes them in,
            // in their order.
            loop {
                let group = parts.by_ref().take(threads());
                let mut chunks: Vec<Chunk<POINTS>> = group
                    .map(|(first, dy)| Chunk::new(taps, first, rows(first), dy, self, lanes))
                    .collect();
                if chunks.is_empty() {
                    break;
                }
                each(chunks.iter_mut().collect(), |chunk| chunk.fill::<I, O, IN>(self, xs));
                let chunks = &chunks;
                each(
                    sums.chunks_exact_mut(sum_stride).enumerate().collect(),
                    |(i, sum): (usize, &mut [f32])| {
                        for chunk in chunks {
                            let (input, output) = (chunk.input.matrix(i), chunk.output.matrix(i));
                            isa.run(Gemm {
                                rows: outputs,
                                columns: padded,
                                depth: input.rows,
                                a: &chunk.output_points[output.start..],
                                left: match chunk.output.width {
                                    width if width == lanes => Left::Transposed(chunk.output.block),
                                    width => Left::Columns(width),
                                },
                                b: &chunk.input_points[input.start..],
                                right: Right::Blocks {
                                    width: chunk.input.width,
                                    stride: chunk.input.block,
                                },
                                c: match chunk.first {
                                    0 => Target::Write(sum),
                                    _ => Target::Add(sum),
                                },
                                c_row: padded,
                            });
                        }
                    },
                );
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

    /// The gradient from one chunk that is all there is: block by block, none of which leaves the cache before it has been
    /// transformed.
    fn alone<W: Map<TAPS, 3>, const POINTS: usize>(&self, chunk: &Chunk<POINTS>, dw: &mut [f32]) {
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
struct Chunk<'a, const POINTS: usize> {
    first: usize,
    rows: usize,
    /// The gradient of what the tiles cover, until it has been transformed.
    gradient: Option<Part<'a>>,
    input: Layout<POINTS>,
    output: Layout<POINTS>,
    input_points: Scratch,
    output_points: Scratch,
}

impl<'a, const POINTS: usize> Chunk<'a, POINTS> {
    fn new(
        taps: &[usize; POINTS],
        first: usize,
        rows: usize,
        gradient: Part<'a>,
        sum: &Sum,
        lanes: usize,
    ) -> Self {
        let tiles = rows * sum.from.columns;
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
        let left =
            if a.width == isa.lanes() { Left::Transposed(a.block) } else { Left::Columns(a.width) };
        isa.run(Gemm {
            rows,
            columns,
            depth: b.matrix(i).rows,
            a: &self.output_points[a.matrix(i).start + a.at(0, output)..],
            left,
            b: &self.input_points[b.matrix(i).start + b.at(0, input)..],
            right: Right::Blocks { width: b.width, stride: b.block },
            c: to,
            c_row: columns,
        });
    }

    /// Transforms the tiles.
    fn fill<I, O, const IN: usize>(&mut self, sum: &Sum, xs: Source)
    where
        I: Map<IN, POINTS>,
        O: Map<4, POINTS>,
    {
        let rows = (self.first, self.rows);
        let to = (&self.input, &mut self.input_points[..]);
        to_points::<I, IN, POINTS>(sum.isa, xs, &sum.from, rows, to);
        if let Some(gradient) = self.gradient.take() {
            sum.isa.run(ToPoints::<O, 4, POINTS> {
                map: PhantomData,
                images: gradient.make(),
                start: sum.to.covered(self.first, self.rows).start,
                tiling: sum.to,
                first: self.first,
                rows: self.rows,
                layout: &self.output,
                points: &mut self.output_points,
            });
        }
    }
}
