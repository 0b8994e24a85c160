//! Convolutions of 3×3 with padding 1 and stride 1 in bf16, as products over windows that are read where they lie.
//!
//! The images of a chunk are laid out as words of two channels, with the padding around them. Then a window is three
//! stretches of words, and those of the pixels beside each other start as far apart as the pixels: nothing is gathered.
//! Chunks do not depend on the number of threads and every sum runs in one order.

use super::bf16::{Neighbours, multiply, narrow, run};
use super::conv_sizes::Sizes;
use super::element::Element;
use super::gemm::{Gemm, Left, Right, panel};
use super::memory::{Scratch, Target};
use super::moments::Moments;
use super::parallel::each;
use super::simd::{Isa, Kernel, Simd};
use super::values::Values;

/// Words of a chunk's images, about: half of the second-level cache.
const CHUNK: usize = 96 << 10;

/// Lines of the result that are summed in f32, in the first-level cache, before they go where they are kept.
const ROWS: usize = 8;

/// Taps in a row, and in a column.
const TAPS: usize = 3;

/// See [`conv::forward`](super::conv::forward).
pub(super) fn forward<E: Element>(
    isa: Isa,
    sizes: &Sizes,
    xs: &Values<E>,
    weight: &[f32],
    ys: &mut [E],
) -> Moments {
    let sum = |ys: &[E]| Some(Moments::on_one_thread(isa, ys, sizes.outputs));
    Moments::merged(pass(isa, sizes, false, xs, weight, Target::Write(ys), sum))
}

/// See [`conv::input_gradient`](super::conv::input_gradient).
pub(super) fn input_gradient<E: Element>(
    isa: Isa,
    sizes: &Sizes,
    weight: &[f32],
    dy: &Values<E>,
    dx: Target<E>,
) {
    let sizes = Sizes { inputs: sizes.outputs, outputs: sizes.inputs, ..*sizes };
    pass(isa, &sizes, true, dy, weight, dx, |_| ());
}

/// The convolution of images of `sizes`, whose chunks `look` sees while they are in the cache. `reversed` says that the
/// weight is `[inputs, outputs, 3, 3]` and its taps count backwards.
///
/// The simple form: `y[r, c, o] = Σ x[r + i - 1, c + j - 1, k] · w[o, k, i, j]` over the rows i and columns j of a window
/// and the inputs k, for one pixel and output after another. Here a line of the result and a panel of outputs are one
/// product.
fn pass<M: Send, E: Element>(
    isa: Isa,
    sizes: &Sizes,
    reversed: bool,
    images: &Values<E>,
    weight: &[f32],
    to: Target<E>,
    look: impl Fn(&[E]) -> M + Sync,
) -> Vec<M> {
    let Sizes { batch, height, width, inputs, outputs, .. } = *sizes;
    let (pixel, panel) = (inputs.div_ceil(2), panel(isa.lanes()));
    let depth = TAPS * TAPS * pixel;
    let block = depth * panel;
    let mut taps = Scratch::new(outputs.div_ceil(panel) * block);
    let (of, rows) = if reversed { ((9, outputs * 9), inputs) } else { ((inputs * 9, 9), inputs) };
    each(taps.chunks_mut(block).enumerate().collect(), |(i, to): (usize, &mut [f32])| {
        let first = i * panel;
        let columns = panel.min(outputs - first);
        let from = &weight[first * of.0..];
        run(isa, TapsToWords { from, columns, rows, along: of, reversed, panel, to });
    });

    let images = images.for_jobs();
    let line = (width + TAPS - 1) * pixel;
    // Lines of the result in a chunk: whole images, or a part of one.
    let fit = CHUNK / line;
    let (some, all) = match fit / (height + TAPS - 1) {
        0 => (fit.clamp(TAPS.min(height), height), height),
        fit => (fit.min(batch) * height, batch * height),
    };
    let (mut chunks, mut rest, mut first) = (Vec::new(), Some(to), 0);
    while let Some(to) = rest.take().filter(|to| to.len() > 0) {
        let end = (first + some).min((first / all + 1) * all);
        let (part, others) = to.split_at((end - first) * width * outputs);
        chunks.push((first..end, part, None));
        (rest, first) = (Some(others), end);
    }
    each(chunks.iter_mut().collect(), |(rows, out, seen)| {
        let (top, bottom) = (rows.start % height, (rows.end - 1) % height + 1);
        // The lines of each image that the windows touch.
        let touched = top.saturating_sub(1)..height.min(bottom + 1);
        let (lines, tall) = (touched.len(), touched.len() + TAPS - 1);
        let pieces = rows.len().div_ceil(height);
        let start = (rows.start - top + touched.start) * width * inputs;
        let window = images.window(start..start + pieces * lines * width * inputs);
        let mut words = Scratch::new(pieces * tall * line);
        let pieces = window.chunks_exact(lines * width * inputs);
        for (piece, padded) in pieces.zip(words.chunks_exact_mut(tall * line)) {
            pad(isa, piece, [width, inputs], padded);
        }
        for begin in (0..rows.len()).step_by(ROWS) {
            let end = rows.len().min(begin + ROWS);
            narrow(isa, out.range(begin * width * outputs..end * width * outputs), |mut out| {
                for (first, taps) in (0..outputs).step_by(panel).zip(taps.chunks_exact(block)) {
                    for place in begin..end {
                        let row = rows.start + place;
                        let at = place / height * tall + row % height - touched.start;
                        let start = (place - begin) * width * outputs;
                        let windows = Left::Windows { row: pixel, run: TAPS * pixel, apart: line };
                        let sizes = [width, panel.min(outputs - first), depth];
                        let a = (&words[at * line..], windows);
                        let b = (taps, Right::Blocks { width: panel, stride: block });
                        let to = out.range(start + first..start + width * outputs);
                        multiply(isa, Gemm { sizes, a, b, c: (to, outputs), bias: &[] });
                    }
                }
            });
        }
        *seen = Some(look(out.range(0..out.len()).parts().0));
    });
    chunks.into_iter().filter_map(|(.., seen)| seen).collect()
}

/// Lays the lines of an image out as words of two channels, with a pixel of zeros on either side and a line above and
/// below. The simple form: `padded[1 + y, 1 + x, k] = [lines[y, x, 2k], lines[y, x, 2k + 1]]`; lines of pairs are one row
/// of words.
fn pad<E: Element>(isa: Isa, lines: &[E], [width, channels]: [usize; 2], padded: &mut [f32]) {
    let pixel = channels.div_ceil(2);
    let line = (width + TAPS - 1) * pixel;
    let (above, rest) = padded.split_at_mut(line);
    let (inner, below) = rest.split_at_mut(rest.len() - line);
    above.fill(0.0);
    below.fill(0.0);
    for (from, to) in lines.chunks_exact(width * channels).zip(inner.chunks_exact_mut(line)) {
        to[..pixel].fill(0.0);
        to[line - pixel..].fill(0.0);
        let to = &mut to[pixel..line - pixel];
        let (rows, width) =
            if channels.is_multiple_of(2) { (1, width * channels) } else { (width, channels) };
        run(isa, Neighbours { rows, width, from, apart: channels, to, to_apart: pixel });
    }
}

/// The taps of some columns of a weight as one block of words of two rows: `[tap, row / 2, column]`. The simple form:
/// `to[tap, k, c] = [from[c, 2k, tap], from[c, 2k + 1, tap]]`; here nine taps of a vector of columns come at once.
struct TapsToWords<'a> {
    from: &'a [f32],
    columns: usize,
    rows: usize,
    /// Elements from the taps of one column to those of the next one, and of one row.
    along: (usize, usize),
    reversed: bool,
    panel: usize,
    to: &'a mut [f32],
}

impl Kernel for TapsToWords<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { from, columns, rows, along, .. } = self;
        let pairs = rows.div_ceil(2);
        assert!(self.panel.is_multiple_of(S::LANES) && columns <= self.panel);
        assert!((columns - 1) * along.0 + (rows - 1) * along.1 + 9 <= from.len());
        assert!(9 * pairs * self.panel <= self.to.len());
        for column in (0..columns).step_by(S::LANES) {
            let lanes = S::LANES.min(columns - column);
            for pair in 0..pairs {
                let at = column * along.0 + 2 * pair * along.1;
                // SAFETY: the taps of the last of so many lanes, of the row after it if there is one, end inside the
                // weight, as was just checked.
                let (low, high) = unsafe {
                    let at = from.as_ptr().add(at);
                    let low = s.load_nines(at, along.0, lanes);
                    match 2 * pair + 1 < rows {
                        true => (low, s.load_nines(at.add(along.1), along.0, lanes)),
                        false => (low, [s.zero(); 9]),
                    }
                };
                for tap in 0..9 {
                    let at = if self.reversed { 8 - tap } else { tap };
                    let to = (at * pairs + pair) * self.panel + column;
                    s.store(&mut self.to[to..], s.pack(low[tap], high[tap]));
                }
            }
        }
    }
}
