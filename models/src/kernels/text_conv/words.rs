//! The forward pass: each word times all taps once, then sums along the texts, and their maxima.

use std::ops::Range;

use crate::kernels::memory::{Scratch, Target};
use crate::kernels::projection::Panels;
use crate::kernels::simd::{Isa, Kernel, Simd};

/// Words that are multiplied at a time: their rows stay in the second-level cache while all taps of
/// a group pass over them.
const BLOCK: usize = 256;

/// Filters of one width.
#[derive(Clone, Copy)]
pub(super) struct Bank {
    /// The column of the first among those of all banks.
    pub(super) first: usize,
    pub(super) filters: usize,
    pub(super) width: usize,
}

impl Bank {
    /// Its columns in the result.
    pub(super) fn columns(&self) -> Range<usize> {
        self.first..self.first + self.filters
    }
}

/// Each word of some texts once.
pub(super) struct DistinctWords {
    /// The words, `[words, D]`.
    words: Scratch,
    dim: usize,
    /// Which of them stands at each place of the texts.
    pub(super) rows: Vec<u32>,
}

impl DistinctWords {
    /// Of the texts `xs [places, D]`, whose rows of equal `ids` are equal.
    pub(super) fn new(ids: &[u32], xs: &[f32], dim: usize) -> Self {
        // Id and place in one integer: sorted by id.
        let places = ids.iter().zip(0u32..);
        let mut order: Vec<u64> =
            places.map(|(&id, at)| u64::from(id) << 32 | u64::from(at)).collect();
        order.sort_unstable();
        let same = |a: &u64, b: &u64| a >> 32 == b >> 32;
        let mut words = Scratch::new(order.chunk_by(same).count() * dim);
        let mut rows = vec![0; ids.len()];
        let numbered = order.chunk_by(same).zip(words.chunks_exact_mut(dim)).zip(0u32..);
        for ((places, word), number) in numbered {
            word.copy_from_slice(&xs[places[0] as u32 as usize * dim..][..dim]);
            for place in places {
                rows[*place as u32 as usize] = number;
            }
        }
        Self { words, dim, rows }
    }

    /// The product of every word with every tap of the group's filters: `[words, K, filters]`. The simple form:
    /// `products[w, k, f] = Σ_d words[w, d] · weight[f, d, k]`; here a block of words is one matrix product.
    pub(super) fn products(&self, group: &FilterGroup<'_>) -> Scratch {
        let (dim, columns) = (self.dim, group.bank.width * group.filters.len());
        let mut products = Scratch::new(self.words.len() / dim * columns);
        let blocks = self.words.chunks(BLOCK * dim).zip(products.chunks_mut(BLOCK * columns));
        for (words, products) in blocks {
            group.taps.product(words, Target::Write(products));
        }
        products
    }
}

/// Filters of a bank that are computed together: the products of all words with them stay in a
/// cache until they are added up.
pub(super) struct FilterGroup<'a> {
    pub(super) bank: &'a Bank,
    /// Which of the bank's filters.
    pub(super) filters: Range<usize>,
    /// Their biases.
    pub(super) bias: &'a [f32],
    /// `[D, K · filters]`, tap after tap.
    taps: Panels,
}

impl<'a> FilterGroup<'a> {
    /// Some filters of a bank with this `weight [F, D, K]` and these biases.
    pub(super) fn new(
        isa: Isa,
        bank: &'a Bank,
        filters: Range<usize>,
        dim: usize,
        [weight, bias]: [&'a [f32]; 2],
    ) -> Self {
        let (width, count) = (bank.width, filters.len());
        let taps = Panels::pack(isa, [dim, width * count], |at, column| {
            let (tap, filter) = (column / count, filters.start + column % count);
            weight[(filter * dim + at) * width + tap]
        });
        Self { bank, bias: &bias[filters.clone()], filters, taps }
    }
}

/// For one text and each filter of a group: the greatest value of a window and the first window that has it; then bias and
/// ReLU. The simple form: `value[t, f] = Σ_k products[text[t + k], k, f]`, and the maximum over t.
pub(super) struct Peaks<'a> {
    /// Which words stand in the text.
    pub(super) text: &'a [u32],
    /// `[words, K, filters]`.
    pub(super) products: &'a [f32],
    pub(super) width: usize,
    pub(super) bias: &'a [f32],
    pub(super) ys: &'a mut [f32],
    pub(super) peaks: &'a mut [u32],
}

impl Kernel for Peaks<'_> {
    /// Filters are taken as many at a time as registers hold, and what is left by fours and ones.
    #[inline(always)]
    fn run<S: Simd>(mut self, _: S) {
        let filters = self.ys.len();
        let mut at = 0;
        while filters - at >= 16 {
            at += self.scan::<16>(at);
        }
        while filters - at >= 4 {
            at += self.scan::<4>(at);
        }
        while filters > at {
            at += self.scan::<1>(at);
        }
        for (y, bias) in self.ys.iter_mut().zip(self.bias) {
            let sum = *y + bias;
            *y = if sum <= 0.0 { 0.0 } else { sum };
        }
    }
}

impl Peaks<'_> {
    /// The maxima of `N` filters from `at` on; returns `N`.
    #[inline(always)]
    fn scan<const N: usize>(&mut self, at: usize) -> usize {
        let filters = self.ys.len();
        let (mut best, mut peak) = ([f32::NEG_INFINITY; N], [0; N]);
        for (window, position) in self.text.windows(self.width).zip(0u32..) {
            let mut sums = [0.0; N];
            for (tap, &word) in window.iter().enumerate() {
                let start = (word as usize * self.width + tap) * filters + at;
                for (sum, product) in sums.iter_mut().zip(&self.products[start..start + N]) {
                    *sum += product;
                }
            }
            for i in 0..N {
                // NaN wins over every number and then stays.
                let higher = (sums[i] > best[i]) | (sums[i].is_nan() & !best[i].is_nan());
                best[i] = if higher { sums[i] } else { best[i] };
                peak[i] = if higher { position } else { peak[i] };
            }
        }
        self.ys[at..at + N].copy_from_slice(&best);
        self.peaks[at..at + N].copy_from_slice(&peak);
        N
    }
}
