//! Convolutions of any shape as matrix products over windows laid out as rows.
//!
//! A chunk of windows, small enough to stay in the cache, is gathered and multiplied; nothing of the size of all
//! windows is ever in memory. Chunks do not depend on the number of threads and every sum runs in one order.

use super::conv::Sizes;
use super::gemm::{Gemm, Right, Target, panel};
use super::memory::{Out, Scratch};
use super::parallel::{each, threads};
use super::simd::Isa;

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
pub(super) fn forward(isa: Isa, sizes: &Sizes, xs: &[f32], weight: &[f32], ys: Out) {
    let (kh, kw) = sizes.kernel;
    let depth = kh * kw * sizes.inputs;
    let packed = pack(isa, depth, sizes.outputs, |k, column| {
        let (tap, input) = (k / sizes.inputs, k % sizes.inputs);
        weight[(column * sizes.inputs + input) * kh * kw + tap]
    });
    let per_row = sizes.out_width() * sizes.outputs;
    each(ys.chunks(rows(sizes) * per_row), |(first, out)| {
        let (first, count) = (first / per_row, out.len() / per_row);
        let pixels = count * sizes.out_width();
        let mut windows = Scratch::new(pixels * depth);
        gather_windows(sizes, xs, first, count, &mut windows);
        isa.run(Gemm {
            rows: pixels,
            columns: sizes.outputs,
            depth,
            a: &windows,
            a_row: depth,
            a_depth: 1,
            b: &packed,
            right: Right::Panels,
            c: Target::Write(out),
            c_row: sizes.outputs,
        });
    });
}

/// See [`conv::weight_gradient`](super::conv::weight_gradient).
pub(super) fn weight_gradient(isa: Isa, sizes: &Sizes, xs: &[f32], dy: &[f32], mut dw: Out) {
    let (kh, kw) = sizes.kernel;
    let taps = kh * kw;
    let depth = taps * sizes.inputs;
    let mut sums = Scratch::new(sizes.outputs * depth);
    let total = sizes.batch * sizes.out_height();
    let chunk = rows(sizes).min(total);
    let firsts: Vec<usize> = (0..total).step_by(chunk).collect();
    let block = sizes.outputs.div_ceil(threads());
    for group in firsts.chunks(threads()) {
        let mut windows: Vec<(usize, usize, Scratch)> = group
            .iter()
            .map(|&first| {
                let pixels = chunk.min(total - first) * sizes.out_width();
                (first, pixels, Scratch::new(pixels * depth))
            })
            .collect();
        each(windows.iter_mut().collect(), |(first, pixels, windows)| {
            gather_windows(sizes, xs, *first, *pixels / sizes.out_width(), windows);
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
                        a_row: 1,
                        a_depth: sizes.outputs,
                        b: windows,
                        right: Right::Rows(depth),
                        c: if *first == 0 {
                            Target::Write((&mut *sums).into())
                        } else {
                            Target::Add(sums)
                        },
                        c_row: depth,
                    });
                }
            },
        );
    }
    let mut line = Scratch::new(depth);
    for (output, sums) in sums.chunks_exact(depth).enumerate() {
        for (tap, sums) in sums.chunks_exact(sizes.inputs).enumerate() {
            for (input, sum) in sums.iter().enumerate() {
                line[input * taps + tap] = *sum;
            }
        }
        dw.range(output * depth..(output + 1) * depth).copy_from(&line);
    }
}

/// See [`conv::input_gradient`](super::conv::input_gradient).
///
/// Input pixels whose coordinates leave the same remainders by the stride meet the same taps: each such phase is a
/// product of its own.
pub(super) fn input_gradient(isa: Isa, sizes: &Sizes, weight: &[f32], dy: &[f32], dx: Out) {
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
            let weights = pack(isa, taps.len() * outputs, inputs, |k, column| {
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
    // A chunk is a run of input rows that starts on a multiple of the stride in its image.
    let bands = sizes.height.div_ceil(stride);
    let deepest = phases.iter().map(|phase| phase.taps.len()).max().unwrap_or(0) * outputs;
    let per_band = sizes.width.div_ceil(stride) * deepest;
    let count = (CHUNK / per_band.max(1)).clamp(1, bands);
    let mut jobs = Vec::new();
    let mut rest = dx;
    for image in 0..sizes.batch {
        for band in (0..bands).step_by(count) {
            let rows = (count * stride).min(sizes.height - band * stride);
            let (out, tail) = rest.split_at(rows * sizes.width * inputs);
            jobs.push((image, band, rows, out));
            rest = tail;
        }
    }
    each(jobs, |(image, band, rows, mut out)| {
        for phase in &phases {
            let lines = (rows - phase.y.min(rows)).div_ceil(stride);
            let columns = (sizes.width - phase.x).div_ceil(stride);
            if lines == 0 {
                continue;
            }
            let depth = phase.taps.len() * outputs;
            let mut result = Scratch::new(lines * columns * inputs);
            if depth == 0 {
                result.fill(0.0);
            } else {
                let mut windows = Scratch::new(lines * columns * depth);
                let mut to = windows.chunks_exact_mut(outputs);
                for line in 0..lines {
                    for column in 0..columns {
                        for (tap, to) in phase.taps.iter().zip(&mut to) {
                            let (y, x) =
                                ((band + line) as isize + tap.dy, column as isize + tap.dx);
                            gradient.gather(image, y, x, to);
                        }
                    }
                }
                isa.run(Gemm {
                    rows: lines * columns,
                    columns: inputs,
                    depth,
                    a: &windows,
                    a_row: depth,
                    a_depth: 1,
                    b: &phase.weights,
                    right: Right::Panels,
                    c: Target::Write((&mut *result).into()),
                    c_row: inputs,
                });
            }
            let mut pixels = result.chunks_exact(inputs);
            for line in 0..lines {
                for (column, pixel) in (0..columns).zip(&mut pixels) {
                    let at = ((line * stride + phase.y) * sizes.width + column * stride + phase.x)
                        * inputs;
                    out.range(at..at + inputs).copy_from(pixel);
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
    /// Packed `[taps, outputs]` × inputs.
    weights: Scratch,
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

/// The windows of `count` rows of the result from row `first`, counted through all images: `[pixels, taps, inputs]`.
fn gather_windows(sizes: &Sizes, xs: &[f32], first: usize, count: usize, windows: &mut [f32]) {
    let images =
        Images { pixels: xs, height: sizes.height, width: sizes.width, channels: sizes.inputs };
    let (height, padding) = (sizes.out_height(), sizes.padding as isize);
    let mut to = windows.chunks_exact_mut(sizes.inputs);
    for row in first..first + count {
        let (image, row) = (row / height, row % height);
        let top = (row * sizes.stride) as isize - padding;
        for column in 0..sizes.out_width() {
            let left = (column * sizes.stride) as isize - padding;
            for y in 0..sizes.kernel.0 as isize {
                for (x, to) in (0..sizes.kernel.1 as isize).zip(&mut to) {
                    images.gather(image, top + y, left + x, to);
                }
            }
        }
    }
}

/// A matrix `[depth, columns]` in panels, as [`Right::Panels`] has it.
fn pack(isa: Isa, depth: usize, columns: usize, element: impl Fn(usize, usize) -> f32) -> Scratch {
    let mut packed = Scratch::new(depth * columns);
    let mut to = packed.iter_mut();
    for start in (0..columns).step_by(panel(isa.lanes())) {
        let end = columns.min(start + panel(isa.lanes()));
        for k in 0..depth {
            for (column, to) in (start..end).zip(&mut to) {
                *to = element(k, column);
            }
        }
    }
    packed
}
