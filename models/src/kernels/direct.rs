//! Convolutions of any shape as matrix products over windows laid out as rows.
//!
//! A chunk of windows, small enough to stay in the cache, is gathered and multiplied; nothing of the size of all
//! windows is ever in memory. Chunks do not depend on the number of threads and every sum runs in one order.

use super::conv::Sizes;
use super::gemm::{Gemm, Left, Right};
use super::memory::{Scratch, Target};
use super::parallel::{each, threads};
use super::projection::Panels;
use super::simd::Isa;
use super::values::Window;

/// Elements of gathered windows in one chunk.
const CHUNK: usize = 96 << 10;

/// Images in NHWC that windows are gathered from.
struct Images<'a> {
    pixels: &'a [f32],
    height: usize,
    width: usize,
    channels: usize,
}

impl Images<'_> {
    /// Copies the channels at row `y` and column `x` of `image` to `to`: zeros outside.
    #[inline]
    fn gather(&self, image: usize, y: isize, x: isize, to: &mut [f32]) {
        if (0..self.height as isize).contains(&y) && (0..self.width as isize).contains(&x) {
            let pixel = (image * self.height + y as usize) * self.width + x as usize;
            to.copy_from_slice(&self.pixels[pixel * self.channels..][..self.channels]);
        } else {
            to.fill(0.0);
        }
    }
}

/// See [`conv::forward`](super::conv::forward).
pub(super) fn forward(isa: Isa, sizes: &Sizes, xs: &[f32], weight: &[f32], ys: &mut [f32]) {
    let (kh, kw) = sizes.kernel;
    let depth = kh * kw * sizes.inputs;
    let packed = Panels::pack(isa, [depth, sizes.outputs], |k, column| {
        let (tap, input) = (k / sizes.inputs, k % sizes.inputs);
        weight[(column * sizes.inputs + input) * kh * kw + tap]
    });
    let per_row = sizes.out_width() * sizes.outputs;
    let chunk = rows(sizes);
    let padded = padded(sizes, xs);
    each(ys.chunks_mut(chunk * per_row).enumerate().collect(), |(i, out): (usize, &mut [f32])| {
        let (first, count) = (i * chunk, out.len() / per_row);
        let mut windows = Scratch::new(count * sizes.out_width() * depth);
        lay_out(sizes, &padded, first, count, &mut windows);
        packed.product(&windows, Target::Write(out));
    });
}

/// See [`conv::weight_gradient`](super::conv::weight_gradient).
pub(super) fn weight_gradient(isa: Isa, sizes: &Sizes, xs: &[f32], dy: &[f32], dw: &mut [f32]) {
    let (kh, kw) = sizes.kernel;
    let taps = kh * kw;
    let depth = taps * sizes.inputs;
    let mut sums = Scratch::new(sizes.outputs * depth);
    let total = sizes.batch * sizes.out_height();
    let chunk = rows(sizes).min(total);
    let firsts: Vec<usize> = (0..total).step_by(chunk).collect();
    let block = sizes.outputs.div_ceil(threads());
    let padded = padded(sizes, xs);
    for group in firsts.chunks(threads()) {
        let mut windows: Vec<(usize, usize, Scratch)> = group
            .iter()
            .map(|&first| {
                let pixels = chunk.min(total - first) * sizes.out_width();
                (first, pixels, Scratch::new(pixels * depth))
            })
            .collect();
        each(windows.iter_mut().collect(), |(first, pixels, windows)| {
            lay_out(sizes, &padded, *first, *pixels / sizes.out_width(), windows);
        });
        let windows = &windows;
        each(
            sums.chunks_mut(block * depth).enumerate().collect(),
            |(i, sums): (usize, &mut [f32])| {
                for (first, pixels, windows) in windows {
                    isa.run(Gemm {
                        rows: sums.len() / depth,
                        columns: depth,
                        depth: *pixels,
                        a: &dy[first * sizes.out_width() * sizes.outputs + i * block..],
                        left: Left::Columns(sizes.outputs),
                        b: windows,
                        right: Right::Rows(depth),
                        c: match first {
                            0 => Target::Write(sums),
                            _ => Target::Add(sums),
                        },
                        c_row: depth,
                        bias: &[],
                    });
                }
            },
        );
    }
    for (dw, sums) in dw.chunks_exact_mut(depth).zip(sums.chunks_exact(depth)) {
        for (tap, sums) in sums.chunks_exact(sizes.inputs).enumerate() {
            for (input, sum) in sums.iter().enumerate() {
                dw[input * taps + tap] = *sum;
            }
        }
    }
}

/// See [`conv::input_gradient`](super::conv::input_gradient).
///
/// Input pixels whose coordinates leave the same remainders by the stride meet the same taps: each such phase is a
/// product of its own.
pub(super) fn input_gradient(isa: Isa, sizes: &Sizes, weight: &[f32], dy: &[f32], dx: Target) {
    let (kh, kw) = sizes.kernel;
    let (inputs, outputs, stride) = (sizes.inputs, sizes.outputs, sizes.stride);
    let phases: Vec<Phase> = (0..stride.min(sizes.height))
        .flat_map(|y| (0..stride.min(sizes.width)).map(move |x| (y, x)))
        .map(|(y, x)| {
            let taps: Vec<Tap> = taps(y, kh, sizes)
                .flat_map(|(row, dy)| {
                    taps(x, kw, sizes).map(move |(column, dx)| Tap {
                        at: row * kw + column,
                        dy,
                        dx,
                    })
                })
                .collect();
            let weights = Panels::pack(isa, [taps.len() * outputs, inputs], |k, column| {
                let (tap, output) = (taps[k / outputs].at, k % outputs);
                weight[(output * inputs + column) * kh * kw + tap]
            });
            Phase { y, x, taps, weights }
        })
        .collect();
    let gradient = Images {
        pixels: dy,
        height: sizes.out_height(),
        width: sizes.out_width(),
        channels: outputs,
    };
    // A band is `stride` input rows, from a multiple of the stride in its image; chunks are runs of bands through
    // all images.
    let per_image = sizes.height.div_ceil(stride);
    let row = |band: usize| {
        let (image, band) = (band / per_image, band % per_image);
        image * sizes.height + (band * stride).min(sizes.height)
    };
    let deepest = phases.iter().map(|phase| phase.taps.len()).max().unwrap_or(0) * outputs;
    let count = (CHUNK / (sizes.width.div_ceil(stride) * deepest).max(1)).max(1);
    let bands = sizes.batch * per_image;
    let mut chunks = Vec::with_capacity(bands.div_ceil(count));
    let mut rest = dx;
    for first in (0..bands).step_by(count) {
        let end = bands.min(first + count);
        let (out, tail) = rest.split_at((row(end) - row(first)) * sizes.width * inputs);
        chunks.push((first..end, out));
        rest = tail;
    }
    each(chunks, |(bands, mut out)| {
        let start = row(bands.start);
        for phase in &phases {
            let columns = (sizes.width - phase.x).div_ceil(stride);
            let lines: Vec<usize> = bands
                .clone()
                .filter(|band| band % per_image * stride + phase.y < sizes.height)
                .collect();
            let pixels = lines.len() * columns;
            if pixels == 0 {
                continue;
            }
            let depth = phase.taps.len() * outputs;
            let mut result = Scratch::new(pixels * inputs);
            if depth == 0 {
                result.fill(0.0);
            } else {
                let mut windows = Scratch::new(pixels * depth);
                let mut to = windows.chunks_exact_mut(outputs);
                for band in &lines {
                    let (image, band) = (band / per_image, band % per_image);
                    for column in 0..columns {
                        for (tap, to) in phase.taps.iter().zip(&mut to) {
                            let (y, x) = (band as isize + tap.dy, column as isize + tap.dx);
                            gradient.gather(image, y, x, to);
                        }
                    }
                }
                phase.weights.product(&windows, Target::Write(&mut result));
            }
            let mut pixels = result.chunks_exact(inputs);
            for band in &lines {
                let line = (row(*band) + phase.y - start) * sizes.width;
                for (column, pixel) in (0..columns).zip(&mut pixels) {
                    let at = (line + column * stride + phase.x) * inputs;
                    out.range(at..at + inputs).take(pixel);
                }
            }
        }
    });
}

/// Input pixels of one remainder by the stride, and what reaches them.
struct Phase {
    y: usize,
    x: usize,
    taps: Vec<Tap>,
    /// `[taps · outputs, inputs]`.
    weights: Panels,
}

/// A tap of the kernel, and the pixel of the result it comes from, relative to the input pixel's over the stride.
#[derive(Clone, Copy)]
struct Tap {
    at: usize,
    dy: isize,
    dx: isize,
}

/// The taps of one axis that meet inputs of remainder `phase`, with the offset of the result they come from.
fn taps(
    phase: usize,
    kernel: usize,
    sizes: &Sizes,
) -> impl Iterator<Item = (usize, isize)> + Clone {
    let (padding, stride) = (sizes.padding, sizes.stride as isize);
    (0..kernel).filter_map(move |tap| {
        let from = (phase + padding) as isize - tap as isize;
        (from.rem_euclid(stride) == 0).then(|| (tap, from.div_euclid(stride)))
    })
}

/// Rows of the result in one chunk.
fn rows(sizes: &Sizes) -> usize {
    let per_row = sizes.out_width() * sizes.kernel.0 * sizes.kernel.1 * sizes.inputs;
    (CHUNK / per_row).max(1)
}

/// Images with their padding, so that no window needs to look where it lies.
fn padded<'a>(sizes: &Sizes, xs: &'a [f32]) -> Window<'a> {
    let Sizes { batch, height, width, inputs, padding, .. } = *sizes;
    if padding == 0 {
        return Window::Memory(xs);
    }
    let line = (width + 2 * padding) * inputs;
    let mut padded = Scratch::zeroed(batch * (height + 2 * padding) * line);
    let images = padded.chunks_exact_mut((height + 2 * padding) * line);
    for (image, xs) in images.zip(xs.chunks_exact(height * width * inputs)) {
        let lines = image[padding * line..].chunks_exact_mut(line);
        for (line, xs) in lines.zip(xs.chunks_exact(width * inputs)) {
            line[padding * inputs..][..xs.len()].copy_from_slice(xs);
        }
    }
    Window::Computed(padded)
}

/// Writes the windows of `count` rows of the result from row `first`, counted through all [padded] images:
/// `[pixels, taps, inputs]`.
fn lay_out(sizes: &Sizes, images: &[f32], first: usize, count: usize, windows: &mut [f32]) {
    let Sizes { inputs, stride, padding, kernel: (rows, columns), .. } = *sizes;
    let (height, line) = (sizes.out_height(), (sizes.width + 2 * padding) * inputs);
    let mut at = 0;
    for row in first..first + count {
        let (image, row) = (row / height, row % height);
        let top = (image * (sizes.height + 2 * padding) + row * stride) * line;
        for column in 0..sizes.out_width() {
            let left = top + column * stride * inputs;
            for y in 0..rows {
                copy_ahead(&mut windows[at..], &images[left + y * line..], columns * inputs);
                at += columns * inputs;
            }
        }
    }
}

/// Copies `len` elements from the start of `from` to the start of `to`: in whole blocks where both have room, so that
/// elements behind may change, which are yet to be written.
#[inline]
fn copy_ahead(to: &mut [f32], from: &[f32], len: usize) {
    const BLOCK: usize = 16;
    let whole = len.next_multiple_of(BLOCK);
    if whole <= to.len().min(from.len()) {
        let to = to[..whole].as_chunks_mut::<BLOCK>().0;
        let from = from[..whole].as_chunks::<BLOCK>().0;
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    } else {
        to[..len].copy_from_slice(&from[..len]);
    }
}
