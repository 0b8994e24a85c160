//! Convolutions of 3×3 with padding 1 by minimal filtering: Winograd's F(4×4, 3×3) for stride 1, and its nested
//! relative for stride 2, see [`algorithm`].
//!
//! Rows of tiles are taken in chunks small enough for their points to stay in the cache: images to points, one matrix
//! product per point, points to images. The weight gradient sums the products of all chunks first and transforms the
//! sum. Chunks do not depend on the number of threads and every sum runs in one order, so neither does any bit of the
//! result.

mod algorithm;
pub(super) mod pooled;
mod sum;
mod tiles;
mod transforms;
mod weights;

use std::marker::PhantomData;

use self::algorithm::{Map, TAPS, doubling, halving, unit};
use self::sum::Sum;
use self::tiles::{Layout, MATRICES, SMALL_BLOCK, Tiling, chunk_rows, stride};
use self::transforms::{FromPoints, to_points};
use self::weights::{Side, WeightToPoints};
use super::bf16::{elements, multiply};
use super::conv_sizes::Sizes;
use super::element::Element;
use super::gemm::{Gemm, Left, Right};
use super::memory::{Scratch, Target};
use super::moments::Moments;
use super::parallel::each;
use super::simd::Isa;
use super::values::Values;

/// Columns and rows of the weights' points that are made at a time, and used by all chunks.
const WIDE_BLOCK: (usize, usize) = (128, usize::MAX);

/// See [`conv::forward`](super::conv::forward).
pub(super) fn forward<E: Element>(
    isa: Isa,
    sizes: &Sizes,
    xs: &Values<E>,
    weight: &[f32],
    ys: &mut [E],
) -> Moments {
    let pass = Pass { isa, sizes, side: Side::Forward, from: inputs(sizes), to: outputs(sizes) };
    let sum = |_, part: &[E], moments: &mut Option<Moments>| {
        *moments = Some(Moments::on_one_thread(isa, part, sizes.outputs));
    };
    let none = |chunks: Vec<_>| chunks.into_iter().map(|_| None).collect();
    let ys = Some(Target::Write(ys));
    let parts = if sizes.stride == 1 {
        pass.run::<unit::Input, unit::Weight, unit::Output, _, _, 6, 6, 4>(
            &unit::PRODUCTS,
            xs,
            weight,
            ys,
            none(pass.chunks::<6>()),
            sum,
        )
    } else {
        pass.run::<halving::Input, halving::Weight, halving::Output, _, _, 9, 9, 4>(
            &halving::PRODUCTS,
            xs,
            weight,
            ys,
            none(pass.chunks::<9>()),
            sum,
        )
    };
    Moments::merged(parts)
}

/// See [`conv::input_gradient`](super::conv::input_gradient).
pub(super) fn input_gradient<E: Element>(
    isa: Isa,
    sizes: &Sizes,
    weight: &[f32],
    dy: &Values<E>,
    dx: Target<E>,
) {
    let out = 4 * sizes.stride;
    let [(rows, tall), (columns, wide)] =
        [sizes.height, sizes.width].map(|size| Tiling::over(size, out));
    let whole = [tall, wide];
    let from = Tiling { rows, columns, whole, margin: 2 - sizes.stride, ..outputs(sizes) };
    let to = Tiling { rows, columns, whole, step: out, margin: 0, ..inputs(sizes) };
    let pass = Pass { isa, sizes, side: Side::Reversed, from, to };
    if sizes.stride == 1 {
        pass.run::<unit::Input, unit::Weight, unit::Output, _, _, 6, 6, 4>(
            &unit::PRODUCTS,
            dy,
            weight,
            Some(dx),
            vec![(); pass.chunks::<6>().len()],
            |_, _, ()| (),
        );
    } else {
        pass.run::<doubling::Input, halving::Weight, doubling::Output, _, _, 5, 9, 8>(
            &halving::PRODUCTS,
            dy,
            weight,
            Some(dx),
            vec![(); pass.chunks::<9>().len()],
            |_, _, ()| (),
        );
    }
}

/// See [`conv::weight_gradient`](super::conv::weight_gradient).
pub(super) fn weight_gradient<E: Element>(
    isa: Isa,
    sizes: &Sizes,
    xs: &Values<E>,
    dy: &Values<E>,
    dw: &mut [f32],
) {
    let sum = Sum { isa, sizes, from: inputs(sizes), to: outputs(sizes) };
    if sizes.stride == 1 {
        sum.run::<unit::Input, unit::OutputTransposed, unit::WeightTransposed, _, 6, 6>(
            &unit::PRODUCTS,
            xs,
            dy,
            dw,
        );
    } else {
        sum.run::<halving::Input, halving::OutputTransposed, halving::WeightTransposed, _, 9, 9>(
            &halving::PRODUCTS,
            xs,
            dy,
            dw,
        );
    }
}

/// The tiles of the result, 4×4 each, or 3 where that is enough.
fn outputs(sizes: &Sizes) -> Tiling {
    let (height, width) = (sizes.out_height(), sizes.out_width());
    let [(rows, tall), (columns, wide)] = [height, width].map(|size| Tiling::over(size, 4));
    let (channels, whole) = (sizes.outputs, [tall, wide]);
    Tiling { height, width, channels, rows, columns, whole, step: 4, margin: 0 }
}

/// The tiles of the input, one for each of the result, with the one row and column of padding above and left.
fn inputs(sizes: &Sizes) -> Tiling {
    let (height, width, channels) = (sizes.height, sizes.width, sizes.inputs);
    Tiling { height, width, channels, step: 4 * sizes.stride, margin: 1, ..outputs(sizes) }
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
    /// The chunks of the result for so many points: the first row of tiles of each, counted through all images, and how
    /// many it has.
    fn chunks<const POINTS: usize>(&self) -> Vec<(usize, usize)> {
        let (depth, columns) = (self.from.channels, self.to.channels);
        let total = self.sizes.batch * self.from.rows;
        let chunk = chunk_rows(total, self.from.columns, POINTS * POINTS, depth, columns);
        // Each begins at an even row of pixels, so that no pooled window of 2×2 lies in two.
        let first = |row| row + self.to.top(row) % 2;
        let mut firsts: Vec<_> = (0..total).step_by(chunk).map(first).chain([total]).collect();
        firsts.dedup();
        firsts.windows(2).map(|pair| (pair[0], pair[1] - pair[0])).collect()
    }

    /// The simple form, of each tile t and output o: `Aᵀ [Σ_i (G w[o, i] Gᵀ) ⊙ (Bᵀ x[t, i] B)] A`. Here tiles and channels
    /// are the rows and columns of one matrix product for each point, and its chunks stay in the cache.
    ///
    /// Shows each chunk of the result to `look` as it is done, with its first row of tiles and what belongs to it of
    /// `seen`, which is returned. Without a target a chunk is nowhere else.
    fn run<I, W, O, T, E, const IN: usize, const POINTS: usize, const OUT: usize>(
        &self,
        taps: &[usize; POINTS],
        images: &Values<E>,
        weight: &[f32],
        mut to: Option<Target<E>>,
        mut seen: Vec<T>,
        look: impl Fn(usize, &[E], &mut T) + Sync,
    ) -> Vec<T>
    where
        I: Map<IN, POINTS>,
        W: Map<3, TAPS>,
        O: Map<POINTS, OUT>,
        T: Send,
        E: Element,
    {
        let (isa, lanes) = (self.isa, self.isa.lanes());
        let (depth, columns) = (self.from.channels, self.to.channels);

        let images = images.for_jobs();
        let bounds = self.chunks::<POINTS>();
        assert_eq!(bounds.len(), seen.len());
        let mut chunks = Vec::with_capacity(bounds.len());
        for ((first, rows), seen) in bounds.into_iter().zip(&mut seen) {
            let len = self.to.covered(first, rows).len();
            let (out, rest) = to.map(|to| to.split_at(len)).unzip();
            chunks.push((first, rows, out, seen));
            to = rest;
        }

        // One chunk alone needs each block of weights once: it makes them as it goes, in one place in the cache.
        let alone = chunks.len() == 1;
        let size = if alone { SMALL_BLOCK } else { WIDE_BLOCK };
        let blocks: Vec<WeightBlock> = WeightBlock::all(columns, depth, size).collect();
        let fill = |block: &WeightBlock, points: &mut [f32]| {
            block.weights::<W>(isa, self.sizes, self.side, weight, points);
        };
        // Scratch that outlives a job is this thread's, who drops it.
        let made = |block: &WeightBlock| (!alone).then(|| Scratch::new(block.len(isa)));
        let mut made: Vec<Option<Scratch>> = blocks.iter().map(made).collect();
        each(made.iter_mut().flatten().zip(&blocks).collect(), |(made, block)| fill(block, made));

        each(chunks, |(first, rows, out, seen)| {
            let mut own = None;
            let mut out: Target<E> = out.unwrap_or_else(|| {
                let len = self.to.covered(first, rows).len();
                Target::Write(own.insert(Scratch::of(len)))
            });
            let tiles = self.from.kinds(first, rows);
            let layout = Layout::new(taps, tiles, elements(isa, depth), lanes, lanes);
            let mut points = Scratch::new(layout.len());
            let into = (&layout, &mut points[..]);
            to_points::<I, _, IN, POINTS>(isa, images, &self.from, (first, rows), into, false);
            let width = blocks[0].columns;
            let results = Layout::new(taps, tiles, width, usize::MAX, lanes);
            let mut products = Scratch::new(results.len());
            for (block, made) in blocks.iter().zip(&made) {
                let mut fresh;
                let weights = match made {
                    Some(weights) => weights,
                    None => {
                        fresh = Scratch::new(block.len(isa));
                        fill(block, &mut fresh);
                        &fresh
                    }
                };
                let results = Layout::new(taps, tiles, block.columns, usize::MAX, lanes);
                let stride = block.stride(isa);
                let matrices =
                    layout.matrices().zip(results.matrices()).zip(weights.chunks_exact(stride));
                for ((from, to), weights) in matrices {
                    let to = &mut products[to.start..];
                    let to = if block.top == 0 { Target::Write(to) } else { Target::Add(to) };
                    let sizes = [from.rows, results.width, elements(isa, block.depth)];
                    let start = elements(isa, block.top) / lanes * layout.block + from.start;
                    let a = (&points[start..], Left::Blocks(layout.block));
                    let (b, c) = ((weights, Right::Panels), (to, results.width));
                    multiply(isa, Gemm { sizes, a, b, c, bias: &[] });
                }
                if block.top + block.depth < depth {
                    continue;
                }
                let points = FromPoints::<O, E, POINTS, OUT> {
                    map: PhantomData,
                    layout: &results,
                    points: &products,
                    tiling: self.to,
                    first,
                    rows,
                    channel: block.first,
                    channels: block.columns,
                    images: out.range(0..out.len()),
                };
                E::run(isa, points);
            }
            look(first, out.parts().0, seen);
        });
        seen
    }
}

/// Some columns, and of these some rows, of the weights' points.
#[derive(Clone, Copy)]
struct WeightBlock {
    first: usize,
    columns: usize,
    top: usize,
    depth: usize,
}

impl WeightBlock {
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
    fn stride(self, isa: Isa) -> usize {
        stride(elements(isa, self.depth) * self.columns.next_multiple_of(isa.lanes()))
    }

    /// Elements of all matrices.
    fn len(self, isa: Isa) -> usize {
        MATRICES * self.stride(isa)
    }

    /// Writes the points of these columns and rows.
    fn weights<W: Map<3, TAPS>>(
        self,
        isa: Isa,
        sizes: &Sizes,
        side: Side,
        weight: &[f32],
        points: &mut [f32],
    ) {
        match isa.bf16() {
            Some(bf16) => bf16.run(self.to_points::<W, true>(isa, sizes, side, weight, points)),
            None => isa.run(self.to_points::<W, false>(isa, sizes, side, weight, points)),
        }
    }

    fn to_points<'a, W: Map<3, TAPS>, const WORDS: bool>(
        self,
        isa: Isa,
        sizes: &Sizes,
        side: Side,
        weight: &'a [f32],
        points: &'a mut [f32],
    ) -> WeightToPoints<'a, W, WORDS> {
        WeightToPoints {
            map: PhantomData,
            weight,
            inputs: sizes.inputs,
            outputs: sizes.outputs,
            side,
            first: self.first,
            columns: self.columns,
            top: self.top,
            depth: self.depth,
            points,
            stride: self.stride(isa),
        }
    }
}
