//! Convolutions over time of one or several widths, ReLU and the maximum over time as one
//! operation.
//!
//! The simple form: a window's value is the sum, over its words, of the product of the word and the
//! filter's tap at its place:
//!
//! ```text
//! value[t, f] = Σ_k words[id[t + k]] · weight[f, :, k]
//! ```
//!
//! Texts repeat their words, and padding is one word too. So the products of each word of a batch
//! with all taps are computed once, as a matrix product, and each window adds up what its words
//! have; only the maxima are kept. Backward, one window per text and filter has a gradient, and no
//! other is touched.

use candle_core::{Result, Shape, Tensor};

use self::words::{Bank, DistinctWords, FilterGroup, Peaks};
use super::gemm::panel;
use super::handover::Linked;
use super::memory::Scratch;
use super::operand::{Borrowed, Operand, borrow};
use super::parallel;
use super::profile::{Timed, timed};
use super::simd::{Isa, Kernel, Simd};
use crate::kernels::custom_op::{Backprop, CustomOp, Saved, apply};

/// See [`ops::convs1d_relu_max`](crate::ops::convs1d_relu_max). Without `ids` no two rows are taken to be equal. NaN in a
/// text gives NaN.
pub(crate) fn conv1d_relu_max(
    isa: Isa,
    xs: &Tensor,
    ids: Option<&Tensor>,
    filters: &[(&Tensor, &Tensor)],
) -> Result<Tensor> {
    let (batch, length, _) = xs.dims3()?;
    let ids = match ids {
        Some(ids) => ids.flatten_all()?.to_vec1()?,
        None => (0..).take(batch * length).collect(),
    };
    let (mut banks, mut first, mut products) = (Vec::new(), 0, 0);
    for (weight, _) in filters {
        let (filters, _, width) = weight.dims3()?;
        banks.push(Bank { first, filters, width });
        first += filters;
        products += batch * (length + 1 - width) * weight.elem_count();
    }
    let parameters = Linked::new(filters.iter().flat_map(|(weight, bias)| [*weight, *bias]))?;
    let link = parameters.link()?;
    let op = ConvMax { isa, ids, banks, parameters, peaks: Saved::nothing() };
    timed(Timed::TextConvolution, products, || apply(op, [xs, &link]))
}

struct ConvMax {
    isa: Isa,
    /// Which rows of the input are equal, `[B, L]`.
    ids: Vec<u32>,
    banks: Vec<Bank>,
    /// Weight and bias of each bank in turn.
    parameters: Linked,
    /// The window of each maximum, `[B, ΣF]`, from the forward pass.
    peaks: Saved<Vec<u32>>,
}

/// The sizes of the input, and of all banks together.
#[derive(Clone, Copy)]
struct TextConvSizes {
    batch: usize,
    length: usize,
    dim: usize,
    columns: usize,
}

impl TextConvSizes {
    /// Texts of each thread.
    fn texts_per_thread(&self) -> usize {
        self.batch.div_ceil(parallel::threads()).max(1)
    }
}

impl CustomOp<2> for ConvMax {
    const NAME: &'static str = "conv1d-relu-max";

    fn forward(&self, [xs, _]: [Operand; 2]) -> Result<(Vec<f32>, Shape)> {
        let sizes = self.sizes(xs.shape())?;
        let TextConvSizes { batch, length, dim, columns } = sizes;
        let (xs, parameters) = (xs.values()?, self.parameters.values()?);
        let groups = self.groups(dim, &parameters);
        let (mut ys, mut peaks) = (vec![0.0; batch * columns], vec![0; batch * columns]);
        let texts = sizes.texts_per_thread();
        let inputs = xs.chunks(texts * length * dim).zip(self.ids.chunks(texts * length));
        let outputs = ys.chunks_mut(texts * columns).zip(peaks.chunks_mut(texts * columns));
        parallel::each(inputs.zip(outputs).collect(), |((xs, ids), (ys, peaks))| {
            let words = DistinctWords::new(ids, xs, dim);
            for group in &groups {
                let products = words.products(group);
                let outputs = ys.chunks_exact_mut(columns).zip(peaks.chunks_exact_mut(columns));
                for (text, (ys, peaks)) in words.rows.chunks_exact(length).zip(outputs) {
                    self.isa.run(Peaks {
                        text,
                        products: &products,
                        width: group.bank.width,
                        bias: group.bias,
                        ys: &mut ys[group.bank.columns()][group.filters.clone()],
                        peaks: &mut peaks[group.bank.columns()][group.filters.clone()],
                    });
                }
            }
        });
        self.peaks.set(peaks);
        Ok((ys, (batch, columns).into()))
    }

    fn backward(&self, [xs, link]: [&Tensor; 2], ys: &Tensor, dy: &Tensor) -> Backprop<2> {
        // Of each text and filter one window, in both gradients.
        let values: usize = self.banks.iter().map(|bank| bank.filters * bank.width).sum();
        let (batch, _, dim) = xs.dims3()?;
        timed(Timed::TextConvolutionBackward, 2 * batch * values * dim, || {
            Ok([Some(self.gradients(xs, ys, dy)?), Some(link.zeros_like()?)])
        })
    }
}

impl ConvMax {
    /// The filters in groups of as many as a panel of the product has columns.
    fn groups<'a>(
        &'a self,
        dim: usize,
        parameters: &'a [Borrowed<'_, f32>],
    ) -> Vec<FilterGroup<'a>> {
        let most = panel(self.isa.lanes());
        let groups = self.banks.iter().zip(parameters.chunks_exact(2)).flat_map(|(bank, of)| {
            (0..bank.filters).step_by(most).map(move |first| {
                let filters = first..bank.filters.min(first + most);
                FilterGroup::new(self.isa, bank, filters, dim, [&of[0], &of[1]])
            })
        });
        groups.collect()
    }

    fn sizes(&self, xs: &Shape) -> Result<TextConvSizes> {
        let (batch, length, dim) = xs.dims3()?;
        let columns = self.banks.iter().map(|bank| bank.filters).sum();
        Ok(TextConvSizes { batch, length, dim, columns })
    }

    /// The gradient of the texts; gives the parameters theirs.
    fn gradients(&self, xs: &Tensor, ys: &Tensor, dy: &Tensor) -> Result<Tensor> {
        let sizes = self.sizes(xs.shape())?;
        let (ys, dy) = (borrow::<f32>(ys)?, borrow::<f32>(dy)?);
        // The gradient past the ReLU.
        let past = |(dy, y): (&f32, &f32)| if *y > 0.0 { *dy } else { 0.0 };
        let dy: Vec<f32> = dy.iter().zip(&*ys).map(past).collect();
        let (isa, banks, peaks) = (self.isa, &self.banks, self.peaks.get());
        let backward = WindowGradients { isa, sizes, banks, dy: &dy, peaks };
        for (number, gradient) in backward.parameter_gradients(&borrow(xs)?).iter().enumerate() {
            self.parameters.give(number, |to| to.copy_from_slice(gradient))?;
        }
        let dx = backward.input_gradient(&self.parameters.values()?);
        Tensor::from_vec(dx, xs.shape(), xs.device())
    }
}

/// Values of the texts that the weight gradient takes at a time: half a megabyte stays in the
/// second-level cache while all filters pass over it.
const BLOCK: usize = 1 << 17;

/// The two gradients that visit each text's and filter's one window.
struct WindowGradients<'a> {
    isa: Isa,
    sizes: TextConvSizes,
    banks: &'a [Bank],
    /// `[B, ΣF]`, zero where the ReLU was.
    dy: &'a [f32],
    /// `[B, ΣF]`.
    peaks: &'a [u32],
}

impl WindowGradients<'_> {
    /// Of each bank that of the weight and of the bias: every filter's windows over the texts are added, in their order.
    /// The simple form: `dweight[f, d, k] += dy[b, f] · xs[b, peak[b, f] + k, d]`; here blocks of texts stay in the cache
    /// for all filters.
    fn parameter_gradients(&self, xs: &[f32]) -> Vec<Scratch> {
        let TextConvSizes { length, dim, columns, .. } = self.sizes;
        let parts =
            self.banks.iter().flat_map(|bank| [bank.filters * bank.width * dim, bank.filters]);
        let mut gradients: Vec<Scratch> = parts.map(Scratch::zeroed).collect();
        let mut jobs = Vec::new();
        for (bank, parts) in self.banks.iter().zip(gradients.chunks_exact_mut(2)) {
            let taps = bank.width * dim;
            let [dw, db] = parts else { unreachable!("invariant: chunks of two") };
            for dy in self.dy.chunks_exact(columns) {
                for (sum, dy) in db.iter_mut().zip(&dy[bank.columns()]) {
                    *sum += dy;
                }
            }
            let some = bank.filters.div_ceil(parallel::threads());
            let parts = dw.chunks_mut(some * taps).enumerate();
            jobs.extend(parts.map(|(part, dw)| (bank.first + part * some, bank.width, dw)));
        }
        let block = (BLOCK / (length * dim)).max(1);
        parallel::each(jobs, |(first, width, dw)| {
            let taps = width * dim;
            // As the windows lie: [F, K, D].
            let mut sums = Scratch::zeroed(dw.len());
            let mut windows = Vec::with_capacity(block);
            for texts in (0..self.sizes.batch).step_by(block) {
                let texts = texts..(texts + block).min(self.sizes.batch);
                for (column, sum) in (first..).zip(sums.chunks_exact_mut(taps)) {
                    windows.clear();
                    for text in texts.clone() {
                        let (dy, start) = self.at(text, column);
                        if dy != 0.0 {
                            windows.push((dy, &xs[text * length * dim + start..][..taps]));
                        }
                    }
                    self.isa.run(AddScaled { windows: &windows, sum });
                }
            }
            for (dw, sum) in dw.chunks_exact_mut(taps).zip(sums.chunks_exact(taps)) {
                for (tap, &value) in sum.iter().enumerate() {
                    dw[tap % dim * width + tap / dim] = value;
                }
            }
        });
        gradients
    }

    /// `[B, L, D]`, text by text: each adds its filters at their windows. The simple form:
    /// `dx[b, peak[b, f] + k, d] += dy[b, f] · weight[f, d, k]`.
    fn input_gradient(&self, parameters: &[Borrowed<f32>]) -> Vec<f32> {
        let TextConvSizes { batch, length, dim, .. } = self.sizes;
        // As the windows lie: [F, K, D].
        let banks = self.banks.iter().zip(parameters.iter().step_by(2)).map(|(bank, weight)| {
            let taps = bank.width * dim;
            let mut filters = Scratch::new(weight.len());
            for (filter, weight) in filters.chunks_exact_mut(taps).zip(weight.chunks_exact(taps)) {
                for (tap, value) in filter.iter_mut().enumerate() {
                    *value = weight[tap % dim * bank.width + tap / dim];
                }
            }
            (bank, filters)
        });
        let banks: Vec<(&Bank, Scratch)> = banks.collect();
        let mut dx = vec![0.0; batch * length * dim];
        let texts = self.sizes.texts_per_thread();
        let jobs = dx.chunks_mut(texts * length * dim).enumerate().collect();
        parallel::each(jobs, |(job, dx): (usize, &mut [f32])| {
            for (text, dx) in (job * texts..).zip(dx.chunks_exact_mut(length * dim)) {
                for (bank, filters) in &banks {
                    let taps = bank.width * dim;
                    for (column, filter) in bank.columns().zip(filters.chunks_exact(taps)) {
                        let (dy, start) = self.at(text, column);
                        if dy != 0.0 {
                            let sum = &mut dx[start..start + taps];
                            self.isa.run(AddScaled { windows: &[(dy, filter)], sum });
                        }
                    }
                }
            }
        });
        dx
    }

    /// The gradient of one maximum, and where its window starts among the text's values.
    fn at(&self, text: usize, column: usize) -> (f32, usize) {
        let index = text * self.sizes.columns + column;
        (self.dy[index], self.peaks[index] as usize * self.sizes.dim)
    }
}

/// Adds the windows, each times its factor, to `sum`, which is as long as each of them.
struct AddScaled<'a> {
    windows: &'a [(f32, &'a [f32])],
    sum: &'a mut [f32],
}

impl Kernel for AddScaled<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (fours, rest) = self.windows.as_chunks::<4>();
        for four in fours {
            add_scaled(s, *four, self.sum);
        }
        for window in rest {
            add_scaled(s, [*window], self.sum);
        }
    }
}

/// `sum += Σ factor · window`, in the windows' order, all of one length. The simple form: `sum[i] += factor · window[i]`,
/// one window after another; here the sum is loaded and stored once for `N`.
#[inline(always)]
fn add_scaled<S: Simd, const N: usize>(s: S, windows: [(f32, &[f32]); N], sum: &mut [f32]) {
    let factors = windows.map(|(factor, _)| s.splat(factor));
    let windows = windows.map(|(_, window)| &window[..sum.len()]);
    let mut start = 0;
    while start + S::LANES <= sum.len() {
        let mut v = s.load(&sum[start..]);
        for (factor, window) in factors.iter().zip(windows) {
            v = s.fma(*factor, s.load(&window[start..]), v);
        }
        s.store(&mut sum[start..], v);
        start += S::LANES;
    }
    if start < sum.len() {
        let mut v = s.load_first(&sum[start..]);
        for (factor, window) in factors.iter().zip(windows) {
            v = s.fma(*factor, s.load_first(&window[start..]), v);
        }
        s.store_first(&mut sum[start..], v);
    }
}

mod words;

#[cfg(test)]
mod tests;
