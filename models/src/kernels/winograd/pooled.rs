//! A convolution of stride 1 whose result is pooled chunk by chunk, while that is in the cache: the maps between are never
//! in memory as a whole. The simple form: `max_pool(conv2d(xs, weight, 1, padding), 2)`. Chunks begin at even rows, so that
//! no window of 2×2 pixels lies in two.

use super::algorithm::unit;
use super::tiles::Tiling;
use super::weights::Side;
use super::{Pass, inputs, outputs};
use crate::kernels::conv_sizes::Sizes;
use crate::kernels::element::Element;
use crate::kernels::max_pool::{self, Maxima};
use crate::kernels::simd::Isa;
use crate::kernels::values::Values;

/// Rows and columns of a window.
pub(in crate::kernels) const WINDOW: usize = 2;

/// Where the maxima of a chunk go, and which of their windows they are.
struct ChunkOutput<'a, E> {
    ys: &'a mut [E],
    winners: &'a mut [u16],
}

/// Writes all of `ys`, the maxima of each 2×2 pixels of the convolution of `xs` with `weight`, and of `winners`, as
/// [`Maxima`] does for each image.
pub(in crate::kernels) fn forward<E: Element>(
    isa: Isa,
    sizes: &Sizes,
    xs: &Values<E>,
    weight: &[f32],
    ys: &mut [E],
    winners: &mut [u16],
) {
    let pass = Pass { isa, sizes, side: Side::Forward, from: inputs(sizes), to: outputs(sizes) };
    let tiling = pass.to;
    let image = max_pool::PoolSizes {
        height: tiling.height,
        width: tiling.width,
        channels: tiling.channels,
        window: WINDOW,
    };
    let (mut ys, mut winners) = (ys, winners);
    let mut parts = Vec::new();
    for (first, rows) in pass.chunks::<6>() {
        let lines = pooled_rows(&tiling, first + rows) - pooled_rows(&tiling, first);
        let (mine, rest) = ys.split_at_mut(lines * image.line());
        let (bits, others) = winners.split_at_mut(lines * image.line_winners(isa));
        parts.push(ChunkOutput { ys: mine, winners: bits });
        (ys, winners) = (rest, others);
    }
    pass.run::<unit::Input, unit::Weight, unit::Output, _, _, 6, 6, 4>(
        &unit::PRODUCTS,
        xs,
        weight,
        None,
        parts,
        |mut row, mut pixels, part| {
            let ChunkOutput { ys, winners } = part;
            let (mut ys, mut winners) = (std::mem::take(ys), std::mem::take(winners));
            let line = tiling.width * tiling.channels;
            while !pixels.is_empty() {
                // What the chunk has of one image.
                let left = tiling.height - tiling.top(row);
                let height = left.min(pixels.len() / line);
                let (xs, behind) = pixels.split_at(height * line);
                let sizes = max_pool::PoolSizes { height, ..image };
                let lines = height / WINDOW;
                let (mine, rest) = ys.split_at_mut(lines * image.line());
                let (bits, others) = winners.split_at_mut(lines * image.line_winners(isa));
                E::run(isa, Maxima { sizes, xs, ys: mine, winners: bits });
                (pixels, ys, winners) = (behind, rest, others);
                row += tiling.rows - row % tiling.rows;
            }
        },
    );
}

/// Rows of the pooled images above the row of tiles `row`, counted through all images.
fn pooled_rows(tiling: &Tiling, row: usize) -> usize {
    let height = tiling.height / WINDOW;
    row / tiling.rows * height + (tiling.top(row) / WINDOW).min(height)
}
