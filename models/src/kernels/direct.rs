//! Convolutions of any shape as matrix products over windows laid out as rows.
//!
//! A chunk of windows, small enough to stay in the cache, is gathered and multiplied; nothing of the size of all
//! windows is ever in memory. Chunks do not depend on the number of threads and every sum runs in one order.

use super::bf16::{narrow, widen};
use super::conv_sizes::Sizes;
use super::element::Element;
use super::memory::{Scratch, Target};
use super::parallel::each;
use super::projection::{self, Panels};
use super::simd::Isa;
use super::values::Window;

/// Elements of gathered windows in one chunk.
const CHUNK: usize = 96 << 10;

/// See [`conv::forward`](super::conv::forward). The simple form: `ys[p, o] = Σ xs[s·p + t, i] · w[o, i, t]` over the inputs
/// i and the taps t of the window at pixel p, for a stride of s; here windows are rows of a matrix product.
pub(super) fn forward<E: Element>(isa: Isa, sizes: &Sizes, xs: &[E], weight: &[f32], ys: &mut [E]) {
    let (kh, kw) = sizes.kernel;
    let depth = kh * kw * sizes.inputs;
    let packed = Panels::pack(isa, [depth, sizes.outputs], |k, column| {
        let (tap, input) = (k / sizes.inputs, k % sizes.inputs);
        weight[(column * sizes.inputs + input) * kh * kw + tap]
    });
    let per_row = sizes.out_width() * sizes.outputs;
    let chunk = rows(sizes);
    let padded = padded(sizes, xs);
    each(ys.chunks_mut(chunk * per_row).enumerate().collect(), |(i, out): (usize, &mut [E])| {
        let (first, count) = (i * chunk, out.len() / per_row);
        let mut windows = Scratch::new(count * sizes.out_width() * depth);
        lay_out(sizes, &padded, first, count, &mut windows);
        narrow(isa, Target::Write(out), |out| packed.product(&windows, out));
    });
}

/// See [`conv::weight_gradient`](super::conv::weight_gradient). The simple form:
/// `dw[o, i, t] = Σ dy[p, o] · xs[s·p + t, i]` over all pixels p; here chunks of them are the inner dimension of a product.
pub(super) fn weight_gradient<E: Element>(
    isa: Isa,
    sizes: &Sizes,
    xs: &[E],
    dy: &[E],
    dw: &mut [f32],
) {
    let (kh, kw) = sizes.kernel;
    let taps = kh * kw;
    let depth = taps * sizes.inputs;
    let mut sums = Scratch::new(sizes.outputs * depth);
    let total = sizes.batch * sizes.out_height();
    let (chunk, width) = (rows(sizes).min(total), sizes.out_width());
    let padded = padded(sizes, xs);
    for first in (0..total).step_by(chunk) {
        let count = chunk.min(total - first);
        let mut windows = Scratch::new(count * width * depth);
        let lines = windows.chunks_exact_mut(width * depth).zip(first..);
        each(lines.collect(), |(line, row)| lay_out(sizes, &padded, row, 1, line));
        let dy = &dy[first * width * sizes.outputs..][..count * width * sizes.outputs];
        let to = match first {
            0 => Target::Write(&mut sums),
            _ => Target::Add(&mut sums),
        };
        projection::weight_gradient(isa, &widen(isa, dy), &windows, depth, to);
    }
    for (dw, sums) in dw.chunks_exact_mut(depth).zip(sums.chunks_exact(depth)) {
        for (tap, sums) in sums.chunks_exact(sizes.inputs).enumerate() {
            for (input, sum) in sums.iter().enumerate() {
                dw[input * taps + tap] = *sum;
            }
        }
    }
}

/// See [`conv::input_gradient`](super::conv::input_gradient). The simple form: `dx[s·p + t, i] += Σ dy[p, o] · w[o, i, t]`
/// over the outputs o, for each pixel p and tap t.
///
/// The gradient of the windows of one row of the result at a time, of which each pixel adds up its places.
pub(super) fn input_gradient<E: Element>(
    isa: Isa,
    sizes: &Sizes,
    weight: &[f32],
    dy: &[E],
    dx: Target<E>,
) {
    let Sizes { height, width, inputs, outputs, stride, padding, kernel, .. } = *sizes;
    let (taps, out_width) = (kernel.0 * kernel.1, sizes.out_width());
    let weights = Panels::pack(isa, [outputs, taps * inputs], |output, column| {
        weight[(output * inputs + column % inputs) * taps + column / inputs]
    });
    let images = dy.chunks_exact(sizes.out_height() * out_width * outputs);
    each(dx.chunks(height * width * inputs).zip(images).collect(), |(dx, dy)| {
        let dy = widen(isa, dy);
        let mut windows = Scratch::new(out_width * taps * inputs);
        narrow(isa, dx, |mut dx| {
            if let Target::Write(dx) = &mut dx {
                dx.fill(0.0);
            }
            let (dx, _) = dx.parts();
            for (row, dy) in dy.chunks_exact(out_width * outputs).enumerate() {
                weights.product(dy, Target::Write(&mut windows));
                for (place, window) in windows.chunks_exact(inputs).enumerate() {
                    let (column, tap) = (place / taps, place % taps);
                    let y = (row * stride + tap / kernel.1).wrapping_sub(padding);
                    let x = (column * stride + tap % kernel.1).wrapping_sub(padding);
                    if y < height && x < width {
                        let at = (y * width + x) * inputs;
                        Target::Add(&mut dx[at..at + inputs]).take(window);
                    }
                }
            }
        });
    });
}

/// Rows of the result in one chunk.
fn rows(sizes: &Sizes) -> usize {
    let per_row = sizes.out_width() * sizes.kernel.0 * sizes.kernel.1 * sizes.inputs;
    (CHUNK / per_row).max(1)
}

/// Images with their padding, so that no window needs to look where it lies.
fn padded<'a, E: Element>(sizes: &Sizes, xs: &'a [E]) -> Window<'a, E> {
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
fn lay_out<E: Element>(
    sizes: &Sizes,
    images: &[E],
    first: usize,
    count: usize,
    windows: &mut [f32],
) {
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
fn copy_ahead<E: Element>(to: &mut [f32], from: &[E], len: usize) {
    const BLOCK: usize = 16;
    let whole = len.next_multiple_of(BLOCK);
    if whole <= to.len().min(from.len()) {
        let to = to[..whole].as_chunks_mut::<BLOCK>().0;
        let from = from[..whole].as_chunks::<BLOCK>().0;
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.map(E::get);
        }
    } else {
        to[..len].iter_mut().zip(&from[..len]).for_each(|(to, from)| *to = from.get());
    }
}
