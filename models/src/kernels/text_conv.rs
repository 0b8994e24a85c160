//! Convolution over time, ReLU and the maximum over time as one operation.
//!
//! A text's windows are its words read with a stride of one word, so the convolution is a matrix
//! product on the text as it lies in memory, and only the maxima leave it. Backward, one window
//! per text and filter has a gradient, and no other is touched.

use std::ops::Range;
use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};

use super::gemm::{Gemm, Right, Target, panel};
use super::memory::Scratch;
use super::operand::{f32s, with_f32s};
use super::parallel;
use super::simd::{Isa, Kernel, Simd};

/// `max_t relu(Σ_k xs[b, t + k] · weight[f, :, k] + bias[f])` for `xs [B, L, D]`,
/// `weight [F, D, K]`, `bias [F]` and `K <= L`: `[B, F]`. No size is 0.
///
/// The first position of a maximum receives its gradient. NaN in a text gives NaN.
///
/// # Errors
/// Operands that are not `f32` on the CPU.
pub(crate) fn conv1d_relu_max(
    isa: Isa,
    xs: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
) -> Result<Tensor> {
    let op = ConvMax { isa, peaks: OnceLock::new() };
    xs.contiguous()?.apply_op3(&weight.contiguous()?, &bias.contiguous()?, op)
}

struct ConvMax {
    isa: Isa,
    /// The window of each maximum, `[B, F]`, from the forward pass.
    peaks: OnceLock<Vec<u32>>,
}

/// The sizes of one convolution.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    length: usize,
    dim: usize,
    filters: usize,
    width: usize,
}

impl Sizes {
    fn new(xs: &Shape, weight: &Shape) -> Result<Self> {
        let (batch, length, dim) = xs.dims3()?;
        let (filters, _, width) = weight.dims3()?;
        Ok(Self { batch, length, dim, filters, width })
    }

    /// Values of one window, and of one filter.
    fn taps(&self) -> usize {
        self.width * self.dim
    }

    /// The batch in one part per thread.
    fn texts_per_thread(&self) -> usize {
        self.batch.div_ceil(parallel::threads()).max(1)
    }
}

impl CustomOp3 for ConvMax {
    fn name(&self) -> &'static str {
        "conv1d-relu-max"
    }

    fn cpu_fwd(
        &self,
        xs: &CpuStorage,
        xs_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let sizes = Sizes::new(xs_layout.shape(), weight_layout.shape())?;
        let Sizes { batch, length, dim, filters, .. } = sizes;
        let (xs, bias) = (f32s(xs, xs_layout)?, f32s(bias, bias_layout)?);
        let mut packed = Scratch::new(sizes.taps() * filters);
        pack(self.isa, sizes, f32s(weight, weight_layout)?, &mut packed);
        let (mut ys, mut peaks) = (vec![0.0; batch * filters], vec![0; batch * filters]);
        let texts = sizes.texts_per_thread();
        let outputs = ys.chunks_mut(texts * filters).zip(peaks.chunks_mut(texts * filters));
        let jobs = xs.chunks(texts * length * dim).zip(outputs).collect();
        parallel::each(jobs, |(xs, (ys, peaks))| {
            let positions = length + 1 - sizes.width;
            let mut convolved = Scratch::new(positions * filters);
            let outputs = ys.chunks_exact_mut(filters).zip(peaks.chunks_exact_mut(filters));
            for (text, (ys, peaks)) in xs.chunks_exact(length * dim).zip(outputs) {
                self.isa.run(Gemm {
                    rows: positions,
                    columns: filters,
                    depth: sizes.taps(),
                    a: text,
                    a_row: dim,
                    a_depth: 1,
                    b: &packed,
                    right: Right::Panels,
                    c: Target::Write((&mut *convolved).into()),
                    c_row: filters,
                });
                self.isa.run(Peaks { convolved: &convolved, bias, ys, peaks });
            }
        });
        self.peaks.set(peaks).expect("invariant: candle runs an op's forward pass once");
        Ok((CpuStorage::F32(ys), (batch, filters).into()))
    }

    fn bwd(
        &self,
        xs: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        ys: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let sizes = Sizes::new(xs.shape(), weight.shape())?;
        let peaks = self.peaks.get().expect("invariant: the forward pass came first");
        // The gradient past the ReLU.
        let mut dy = dy.flatten_all()?.to_vec1::<f32>()?;
        with_f32s(ys, |ys| {
            for (dy, &y) in dy.iter_mut().zip(ys) {
                *dy = if y > 0.0 { *dy } else { 0.0 };
            }
            Ok(())
        })?;
        let mut db = vec![0.0; sizes.filters];
        for row in dy.chunks_exact(sizes.filters) {
            for (sum, dy) in db.iter_mut().zip(row) {
                *sum += dy;
            }
        }
        let backward = Backward { isa: self.isa, sizes, dy: &dy, peaks };
        let dw = with_f32s(xs, |xs| Ok(backward.weight_gradient(xs)))?;
        let dx = with_f32s(weight, |weight| Ok(backward.input_gradient(weight)))?;
        Ok((
            Some(Tensor::from_vec(dx, xs.shape(), xs.device())?),
            Some(Tensor::from_vec(dw, weight.shape(), xs.device())?),
            Some(Tensor::from_vec(db, bias.shape(), xs.device())?),
        ))
    }
}

/// Lays `weight [F, D, K]` out as the right operand `[K·D, F]` of the product.
fn pack(isa: Isa, sizes: Sizes, weight: &[f32], packed: &mut [f32]) {
    let Sizes { dim, filters, width, .. } = sizes;
    let panel = panel(isa.lanes());
    for (first, packed) in (0..filters).step_by(panel).zip(packed.chunks_mut(panel * sizes.taps()))
    {
        let columns = panel.min(filters - first);
        for (tap, row) in packed.chunks_exact_mut(columns).enumerate() {
            for (filter, value) in row.iter_mut().enumerate() {
                *value = weight[(first + filter) * dim * width + tap % dim * width + tap / dim];
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

/// The two gradients that visit each text's and filter's one window.
struct Backward<'a> {
    isa: Isa,
    sizes: Sizes,
    /// `[B, F]`, zero where the ReLU was.
    dy: &'a [f32],
    /// `[B, F]`.
    peaks: &'a [u32],
}

impl Backward<'_> {
    /// `[F, D, K]`, filter by filter: each sums its windows over the texts, in their order.
    fn weight_gradient(&self, xs: &[f32]) -> Vec<f32> {
        let Sizes { dim, filters, width, .. } = self.sizes;
        let taps = self.sizes.taps();
        let mut dw = vec![0.0; filters * taps];
        let some = filters.div_ceil(parallel::threads());
        let jobs = dw.chunks_mut(some * taps).enumerate().collect();
        parallel::each(jobs, |(job, dw): (usize, &mut [f32])| {
            let mut sum = Scratch::new(taps);
            for (filter, dw) in (job * some..).zip(dw.chunks_exact_mut(taps)) {
                sum.fill(0.0);
                self.isa.run(Windows { of: self, filter, xs, sum: &mut sum });
                for (tap, &value) in sum.iter().enumerate() {
                    dw[tap % dim * width + tap / dim] = value;
                }
            }
        });
        dw
    }

    /// `[B, L, D]`, text by text: each adds its filters at their windows.
    fn input_gradient(&self, weight: &[f32]) -> Vec<f32> {
        let Sizes { batch, length, dim, width, .. } = self.sizes;
        let taps = self.sizes.taps();
        // As the windows lie: [F, K, D].
        let mut filters = Scratch::new(weight.len());
        for (filter, weight) in filters.chunks_exact_mut(taps).zip(weight.chunks_exact(taps)) {
            for (tap, value) in filter.iter_mut().enumerate() {
                *value = weight[tap % dim * width + tap / dim];
            }
        }
        let mut dx = vec![0.0; batch * length * dim];
        let texts = self.sizes.texts_per_thread();
        let jobs = dx.chunks_mut(texts * length * dim).enumerate().collect();
        let filters = &*filters;
        parallel::each(jobs, |(job, dx): (usize, &mut [f32])| {
            for (text, dx) in (job * texts..).zip(dx.chunks_exact_mut(length * dim)) {
                self.isa.run(Filters { of: self, text, filters, dx });
            }
        });
        dx
    }

    /// The gradient of one maximum, and its window's place in the text's values.
    #[inline(always)]
    fn at(&self, text: usize, filter: usize) -> (f32, Range<usize>) {
        let index = text * self.sizes.filters + filter;
        let start = self.peaks[index] as usize * self.sizes.dim;
        (self.dy[index], start..start + self.sizes.taps())
    }
}

/// Adds one filter's windows, each times its gradient, to `sum`.
struct Windows<'a> {
    of: &'a Backward<'a>,
    filter: usize,
    xs: &'a [f32],
    sum: &'a mut [f32],
}

impl Kernel for Windows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let text_len = self.of.sizes.length * self.of.sizes.dim;
        for (text, values) in self.xs.chunks_exact(text_len).enumerate() {
            let (dy, window) = self.of.at(text, self.filter);
            add_scaled(s, dy, &values[window], self.sum);
        }
    }
}

/// Adds the filters, each times its gradient, to their windows of one text.
struct Filters<'a> {
    of: &'a Backward<'a>,
    text: usize,
    filters: &'a [f32],
    dx: &'a mut [f32],
}

impl Kernel for Filters<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (filter, values) in self.filters.chunks_exact(self.of.sizes.taps()).enumerate() {
            let (dy, window) = self.of.at(self.text, filter);
            add_scaled(s, dy, values, &mut self.dx[window]);
        }
    }
}

/// `sum += factor · xs`, nothing for a factor of 0.
#[inline(always)]
fn add_scaled<S: Simd>(s: S, factor: f32, xs: &[f32], sum: &mut [f32]) {
    if factor == 0.0 {
        return;
    }
    let factor = s.splat(factor);
    for (sum, x) in sum.chunks_mut(S::LANES).zip(xs.chunks(S::LANES)) {
        if sum.len() == S::LANES {
            s.store(sum, s.fma(factor, s.load(x), s.load(sum)));
        } else {
            s.store_first(sum, s.fma(factor, s.load_first(x), s.load_first(sum)));
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use proptest::prelude::*;

    use super::*;

    fn flat(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn wave(shape: &[usize], frequency: f64) -> Var {
        let count = shape.iter().product::<usize>();
        let values: Vec<f32> = (0..count).map(|i| (i as f64 * frequency).sin() as f32).collect();
        Var::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    /// The gradients of `Σ sin(ys · 3)`, in the order of `vars`.
    fn gradients(ys: &Tensor, vars: [&Var; 3]) -> [Vec<f32>; 3] {
        let loss = (ys * 3.0).unwrap().sin().unwrap().sum_all().unwrap();
        let grads = loss.backward().unwrap();
        vars.map(|var| flat(grads.get(var).unwrap()))
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
            filters in prop::sample::select(vec![1usize, 5, 33, 40]),
            width in 1usize..6,
            seed: u64,
        ) {
            let xs = quarters(&[batch, length, dim], seed);
            let weight = quarters(&[filters, dim, width], seed ^ 0xABCD);
            let bias = quarters(&[filters], seed ^ 0x1234);
            let theirs = crate::composed::conv1d_relu_max(&xs, &weight, &bias).unwrap();
            let their_gradients = gradients(&theirs, [&xs, &weight, &bias]);
            for isa in Isa::available() {
                let ours = conv1d_relu_max(isa, &xs, &weight, &bias).unwrap();
                prop_assert_eq!(flat(&ours), flat(&theirs));
                for (ours, theirs) in gradients(&ours, [&xs, &weight, &bias]).iter().zip(&their_gradients) {
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
        let (xs, weight, bias) = (wave(&sizes, 0.9), wave(&[5, 4, taps], 1.3), wave(&[5], 0.5));
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
        let mut values = [&xs, &weight, &bias]
            .map(|var| flat(var).iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
        for isa in Isa::available() {
            let ys = conv1d_relu_max(isa, &xs, &weight, &bias).unwrap();
            let ours = gradients(&ys, [&xs, &weight, &bias]);
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
            let ys = conv1d_relu_max(isa, &xs, &weight, &bias).unwrap();
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
                let ys = conv1d_relu_max(isa, &xs, &weight, &bias).unwrap();
                assert!(flat(&ys)[0].is_nan(), "{isa} {at}");
            }
        }
    }
}
