//! Convolutions over time of one or several widths, ReLU and the maximum over time as one
//! operation.
//!
//! A text's windows are its words read with a stride of one word, so a convolution is a matrix
//! product on the text as it lies in memory, and only the maxima leave it. Backward, one window
//! per text and filter has a gradient, and no other is touched.

use std::ops::Range;
use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

use super::gemm::{Gemm, Right, Target, panel};
use super::memory::Scratch;
use super::operand::{f32s, with_f32s};
use super::parallel;
use super::simd::{Isa, Kernel, Simd};

/// `max_t relu(Σ_k xs[b, t + k] · weight[f, :, k] + bias[f])` for `xs [B, L, D]` and every pair of
/// `weight [F, D, K]` and `bias [F]` in `filters`, side by side: `[B, ΣF]`. No size is 0, no
/// width `K` exceeds `L`, and every `D` is that of `xs`.
///
/// The first position of a maximum receives its gradient. NaN in a text gives NaN.
///
/// # Errors
/// Operands that are not `f32` on the CPU.
pub(crate) fn conv1d_relu_max(
    isa: Isa,
    xs: &Tensor,
    filters: &[(&Tensor, &Tensor)],
) -> Result<Tensor> {
    let dim = xs.dim(2)?;
    let (mut banks, mut parts) = (Vec::new(), Vec::new());
    let (mut first, mut start) = (0, 0);
    for (weight, bias) in filters {
        let (filters, _, width) = weight.dims3()?;
        banks.push(Bank { first, filters, width, start });
        first += filters;
        start += filters * (dim * width + 1);
        parts.extend([weight.flatten_all()?, bias.flatten_all()?]);
    }
    // candle's ops take at most three operands: all filters travel as one.
    let parameters = Tensor::cat(&parts, 0)?;
    xs.contiguous()?.apply_op2(&parameters, ConvMax { isa, banks, peaks: OnceLock::new() })
}

/// Filters of one width.
#[derive(Clone, Copy)]
struct Bank {
    /// The column of the first among those of all banks.
    first: usize,
    filters: usize,
    width: usize,
    /// Where the weights begin among the parameters; the biases follow.
    start: usize,
}

impl Bank {
    /// Its columns in the result.
    fn columns(&self) -> Range<usize> {
        self.first..self.first + self.filters
    }

    /// Where its weights `[F, D, K]` lie among the parameters.
    fn weight(&self, dim: usize) -> Range<usize> {
        self.start..self.start + self.filters * dim * self.width
    }

    /// Where its biases lie among the parameters.
    fn bias(&self, dim: usize) -> Range<usize> {
        let start = self.weight(dim).end;
        start..start + self.filters
    }
}

struct ConvMax {
    isa: Isa,
    banks: Vec<Bank>,
    /// The window of each maximum, `[B, ΣF]`, from the forward pass.
    peaks: OnceLock<Vec<u32>>,
}

/// The sizes of the input, and of all banks together.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    length: usize,
    dim: usize,
    columns: usize,
}

impl ConvMax {
    fn sizes(&self, xs: &Shape) -> Result<Sizes> {
        let (batch, length, dim) = xs.dims3()?;
        let columns = self.banks.iter().map(|bank| bank.filters).sum();
        Ok(Sizes { batch, length, dim, columns })
    }
}

impl Sizes {
    /// Texts of each thread.
    fn texts_per_thread(&self) -> usize {
        self.batch.div_ceil(parallel::threads()).max(1)
    }
}

impl CustomOp2 for ConvMax {
    fn name(&self) -> &'static str {
        "conv1d-relu-max"
    }

    fn cpu_fwd(
        &self,
        xs: &CpuStorage,
        xs_layout: &Layout,
        parameters: &CpuStorage,
        parameters_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let sizes = self.sizes(xs_layout.shape())?;
        let Sizes { batch, length, dim, columns } = sizes;
        let (xs, parameters) = (f32s(xs, xs_layout)?, f32s(parameters, parameters_layout)?);
        let packed = self.banks.iter().map(|bank| {
            let mut packed = Scratch::new(bank.filters * bank.width * dim);
            pack(self.isa, *bank, dim, &parameters[bank.weight(dim)], &mut packed);
            (bank, packed)
        });
        let packed: Vec<(&Bank, Scratch)> = packed.collect();
        let (mut ys, mut peaks) = (vec![0.0; batch * columns], vec![0; batch * columns]);
        let texts = sizes.texts_per_thread();
        let outputs = ys.chunks_mut(texts * columns).zip(peaks.chunks_mut(texts * columns));
        let jobs = xs.chunks(texts * length * dim).zip(outputs).collect();
        parallel::each(jobs, |(xs, (ys, peaks))| {
            for (bank, packed) in &packed {
                let positions = length + 1 - bank.width;
                let mut convolved = Scratch::new(positions * bank.filters);
                let outputs = ys.chunks_exact_mut(columns).zip(peaks.chunks_exact_mut(columns));
                for (text, (ys, peaks)) in xs.chunks_exact(length * dim).zip(outputs) {
                    self.isa.run(Gemm {
                        rows: positions,
                        columns: bank.filters,
                        depth: bank.width * dim,
                        a: text,
                        a_row: dim,
                        a_depth: 1,
                        b: packed,
                        right: Right::Panels,
                        c: Target::Write(&mut convolved),
                        c_row: bank.filters,
                    });
                    self.isa.run(Peaks {
                        convolved: &convolved,
                        bias: &parameters[bank.bias(dim)],
                        ys: &mut ys[bank.columns()],
                        peaks: &mut peaks[bank.columns()],
                    });
                }
            }
        });
        self.peaks.set(peaks).expect("invariant: candle runs an op's forward pass once");
        Ok((CpuStorage::F32(ys), (batch, columns).into()))
    }

    fn bwd(
        &self,
        xs: &Tensor,
        parameters: &Tensor,
        ys: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let sizes = self.sizes(xs.shape())?;
        let peaks = self.peaks.get().expect("invariant: the forward pass came first");
        // The gradient past the ReLU.
        let mut dy = dy.flatten_all()?.to_vec1::<f32>()?;
        with_f32s(ys, |ys| {
            for (dy, &y) in dy.iter_mut().zip(ys) {
                *dy = if y > 0.0 { *dy } else { 0.0 };
            }
            Ok(())
        })?;
        let backward = Backward { isa: self.isa, sizes, banks: &self.banks, dy: &dy, peaks };
        let mut dparameters = vec![0.0; parameters.elem_count()];
        with_f32s(xs, |xs| {
            backward.parameter_gradient(xs, &mut dparameters);
            Ok(())
        })?;
        let dx = with_f32s(parameters, |parameters| Ok(backward.input_gradient(parameters)))?;
        Ok((
            Some(Tensor::from_vec(dx, xs.shape(), xs.device())?),
            Some(Tensor::from_vec(dparameters, parameters.shape(), xs.device())?),
        ))
    }
}

/// Lays a bank's `weight [F, D, K]` out as the right operand `[K·D, F]` of the product.
fn pack(isa: Isa, bank: Bank, dim: usize, weight: &[f32], packed: &mut [f32]) {
    let (panel, taps) = (panel(isa.lanes()), bank.width * dim);
    for (first, packed) in (0..bank.filters).step_by(panel).zip(packed.chunks_mut(panel * taps)) {
        let columns = panel.min(bank.filters - first);
        for (tap, row) in packed.chunks_exact_mut(columns).enumerate() {
            let at = tap % dim * bank.width + tap / dim;
            for (filter, value) in (first..).zip(row) {
                *value = weight[filter * taps + at];
            }
        }
    }
}

/// The maximum of each column of `convolved [positions, F]` and its first row, then bias and ReLU.
struct Peaks<'a> {
    convolved: &'a [f32],
    bias: &'a [f32],
    ys: &'a mut [f32],
    peaks: &'a mut [u32],
}

impl Kernel for Peaks<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.ys.fill(f32::NEG_INFINITY);
        self.peaks.fill(0);
        for (row, position) in self.convolved.chunks_exact(self.ys.len()).zip(0u32..) {
            let bests = self.ys.iter_mut().zip(self.peaks.iter_mut());
            for (&x, (best, peak)) in row.iter().zip(bests) {
                // NaN wins over every number and then stays.
                let higher = (x > *best) | (x.is_nan() & !best.is_nan());
                *best = if higher { x } else { *best };
                *peak = if higher { position } else { *peak };
            }
        }
        for (y, bias) in self.ys.iter_mut().zip(self.bias) {
            let sum = *y + bias;
            *y = if sum <= 0.0 { 0.0 } else { sum };
        }
    }
}

/// Values of the texts that the weight gradient takes at a time: half a megabyte stays in the
/// second-level cache while all filters pass over it.
const BLOCK: usize = 1 << 17;

/// The two gradients that visit each text's and filter's one window.
struct Backward<'a> {
    isa: Isa,
    sizes: Sizes,
    banks: &'a [Bank],
    /// `[B, ΣF]`, zero where the ReLU was.
    dy: &'a [f32],
    /// `[B, ΣF]`.
    peaks: &'a [u32],
}

impl Backward<'_> {
    /// Adds every filter's windows over the texts, in their order, to its zeros in `dparameters`.
    fn parameter_gradient(&self, xs: &[f32], dparameters: &mut [f32]) {
        let Sizes { length, dim, columns, .. } = self.sizes;
        let (mut jobs, mut rest) = (Vec::new(), dparameters);
        for bank in self.banks {
            let taps = bank.width * dim;
            let (dw, others) = rest.split_at_mut(bank.filters * taps);
            let (db, others) = others.split_at_mut(bank.filters);
            rest = others;
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
    }

    /// `[B, L, D]`, text by text: each adds its filters at their windows.
    fn input_gradient(&self, parameters: &[f32]) -> Vec<f32> {
        let Sizes { batch, length, dim, .. } = self.sizes;
        // As the windows lie: [F, K, D].
        let banks = self.banks.iter().map(|bank| {
            let (weight, taps) = (&parameters[bank.weight(dim)], bank.width * dim);
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
    type Output = ();

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

/// `sum += Σ factor · window`, in the windows' order, all of one length.
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

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use proptest::prelude::*;

    use super::*;
    use crate::composed;

    fn flat(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn wave(shape: &[usize], frequency: f64) -> Var {
        let count = shape.iter().product::<usize>();
        let values: Vec<f32> = (0..count).map(|i| (i as f64 * frequency).sin() as f32).collect();
        Var::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    /// The gradients of `Σ sin(ys · 3)`, in the order of `vars`.
    fn gradients(ys: &Tensor, vars: &[Var]) -> Vec<Vec<f32>> {
        let loss = (ys * 3.0).unwrap().sin().unwrap().sum_all().unwrap();
        let grads = loss.backward().unwrap();
        vars.iter().map(|var| flat(grads.get(var).unwrap())).collect()
    }

    /// Weights and biases, by twos.
    fn pairs(vars: &[Var]) -> Vec<(&Tensor, &Tensor)> {
        vars.chunks_exact(2).map(|pair| (pair[0].as_tensor(), pair[1].as_tensor())).collect()
    }

    /// Multiples of 1/4 in ±2: sums of their products are exact, so that no rounding decides
    /// between two equal maxima.
    fn quarters(shape: &[usize], seed: u64) -> Var {
        let count = shape.iter().product::<usize>() as u64;
        let draw = |i: u64| seed.wrapping_add(i).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60;
        let values: Vec<f32> = (0..count).map(|i| draw(i) as f32 / 4.0 - 2.0).collect();
        Var::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    proptest! {
        #[test]
        fn maxima_and_gradients_agree_with_the_composition(
            batch in 1usize..5,
            length in 5usize..12,
            dim in prop::sample::select(vec![1usize, 3, 17]),
            sizes in prop::collection::vec((prop::sample::select(vec![1usize, 5, 33, 40]), 1usize..6), 1..4),
            seed: u64,
        ) {
            let mut vars = vec![quarters(&[batch, length, dim], seed)];
            for &(filters, width) in &sizes {
                vars.push(quarters(&[filters, dim, width], seed ^ (vars.len() as u64) << 32));
                vars.push(quarters(&[filters], seed ^ (vars.len() as u64) << 32));
            }
            let (xs, filters) = (&vars[0], pairs(&vars[1..]));
            let theirs = filters.iter().map(|(w, b)| composed::conv1d_relu_max(xs, w, b).unwrap());
            let theirs = Tensor::cat(&theirs.collect::<Vec<_>>(), 1).unwrap();
            let their_gradients = gradients(&theirs, &vars);
            for isa in Isa::available() {
                let ours = conv1d_relu_max(isa, xs, &filters).unwrap();
                prop_assert_eq!(flat(&ours), flat(&theirs));
                for (ours, theirs) in gradients(&ours, &vars).iter().zip(&their_gradients) {
                    let scale = theirs.iter().fold(1.0f32, |scale, x| scale.max(x.abs()));
                    for (a, b) in ours.iter().zip(theirs) {
                        prop_assert!((a - b).abs() <= 1e-5 * scale, "{isa}: {a} {b}");
                    }
                }
            }
        }
    }

    #[test]
    fn gradients_follow_finite_differences_in_f64() {
        let (sizes, taps) = ([3usize, 7, 4], 3);
        let vars = [wave(&sizes, 0.9), wave(&[5, 4, taps], 1.3), wave(&[5], 0.5)];
        let loss = |x: &[f64], w: &[f64], b: &[f64]| -> f64 {
            let value = |text: usize, filter: usize, start: usize| {
                let at = |k: usize, d: usize| {
                    x[(text * 7 + start + k) * 4 + d] * w[(filter * 4 + d) * taps + k]
                };
                b[filter] + (0..taps).flat_map(|k| (0..4).map(move |d| at(k, d))).sum::<f64>()
            };
            let peak = |text, filter| (0..5).map(|t| value(text, filter, t)).fold(0.0, f64::max);
            (0..3)
                .flat_map(|t| (0..5).map(move |f| (t, f)))
                .map(|(t, f)| (3.0 * peak(t, f)).sin())
                .sum()
        };
        let mut values =
            vars.each_ref().map(|var| flat(var).iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
        for isa in Isa::available() {
            let ys = conv1d_relu_max(isa, &vars[0], &pairs(&vars[1..])).unwrap();
            let ours = gradients(&ys, &vars);
            for (which, ours) in ours.iter().enumerate() {
                for (i, &ours) in ours.iter().enumerate() {
                    let held = values[which][i];
                    let mut side = |x: f64| {
                        values[which][i] = x;
                        loss(&values[0], &values[1], &values[2])
                    };
                    let slope = (side(held + 1e-6) - side(held - 1e-6)) / 2e-6;
                    values[which][i] = held;
                    assert!(
                        (f64::from(ours) - slope).abs() < 1e-4,
                        "{isa} {which} {i}: {ours} {slope}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_first_of_equal_maxima_receives_the_gradient() {
        let xs =
            Var::new(&[[[1f32], [2.0], [2.0]], [[-1.0], [-2.0], [-1.0]]], &Device::Cpu).unwrap();
        let (weight, bias) = (wave(&[1, 1, 1], 0.0), wave(&[1], 0.0));
        weight.set(&Tensor::new(&[[[1f32]]], &Device::Cpu).unwrap()).unwrap();
        for isa in Isa::available() {
            let ys = conv1d_relu_max(isa, &xs, &[(&weight, &bias)]).unwrap();
            assert_eq!(flat(&ys), [2.0, 0.0]);
            let grads = ys.sum_all().unwrap().backward().unwrap();
            assert_eq!(flat(grads.get(&xs).unwrap()), [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        }
    }

    #[test]
    fn nan_shows_wherever_it_stands() {
        let (weight, bias) = (wave(&[1, 1, 1], 0.0), wave(&[1], 0.0));
        weight.set(&Tensor::new(&[[[1f32]]], &Device::Cpu).unwrap()).unwrap();
        for isa in Isa::available() {
            for at in 0..3 {
                let mut values = [1.0, 2.0, 3.0];
                values[at] = f32::NAN;
                let xs = Tensor::from_slice(&values, (1, 3, 1), &Device::Cpu).unwrap();
                let ys = conv1d_relu_max(isa, &xs, &[(&weight, &bias)]).unwrap();
                assert!(flat(&ys)[0].is_nan(), "{isa} {at}");
            }
        }
    }
}
