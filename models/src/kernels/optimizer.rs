//! Parameter updates in place: SGD and AdamW on raw slices, one pass, no temporaries, and the two
//! bridges between candle's tensors and flat `f32` slices that a training step needs.
//!
//! The updates follow PyTorch's `torch.optim.SGD` and `torch.optim.AdamW` term for term. They
//! multiply and add without fusing, so every instruction set gives the same bits.

mod rows;

use std::cell::Cell;

use super::simd::{Isa, Kernel, Simd};
use super::{Kernels, active};
use candle_core::{
    CpuStorage, DType, Device, InplaceOp1, Layout, Result, Storage, Tensor, Var, bail,
};

pub use rows::{Late, SgdRows};

/// What one SGD update needs to know beside the slices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdStep {
    /// Learning rate of this step.
    pub lr: f64,
    /// Momentum factor μ; 0 leaves the momentum slice untouched, which may then be empty.
    pub momentum: f64,
    /// Nesterov's look-ahead: the parameter moves by `g + μ·m` instead of `m`.
    pub nesterov: bool,
    /// L2 penalty λ, added to the gradient before the momentum sees it.
    pub weight_decay: f64,
    /// First update of this parameter: the momentum becomes the gradient, whatever it held.
    pub first: bool,
}

/// One step of stochastic gradient descent with momentum, without dampening:
/// `g += λp; m = μm + g` (`m = g` at the first step)`; p -= lr·m` (`lr·(g + μm)` with Nesterov).
///
/// # Panics
/// When `grad`, or `momentum` while its factor is not 0, differs from `param` in length.
pub fn sgd(param: &mut [f32], grad: &[f32], momentum: &mut [f32], step: &SgdStep) {
    assert_eq!(param.len(), grad.len(), "sgd: one gradient per parameter");
    if step.momentum != 0.0 {
        assert_eq!(param.len(), momentum.len(), "sgd: one momentum per parameter");
    }
    isa().run(Sgd { param, grad, momentum, step });
}

struct Sgd<'a> {
    param: &'a mut [f32],
    grad: &'a [f32],
    momentum: &'a mut [f32],
    step: &'a SgdStep,
}

impl Kernel for Sgd<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        if self.step.momentum == 0.0 {
            return self.plain();
        }
        match (self.step.first, self.step.nesterov) {
            (true, false) => self.with_momentum::<true, false>(),
            (true, true) => self.with_momentum::<true, true>(),
            (false, false) => self.with_momentum::<false, false>(),
            (false, true) => self.with_momentum::<false, true>(),
        }
    }
}

/// Whether all are 0, with a plus sign.
#[inline(always)]
pub fn is_zero(values: &[f32]) -> bool {
    values.iter().fold(0, |any, value| any | value.to_bits()) == 0
}

/// The sum of the squares of not too many values: in f32 for each sixteenth of them, in f64 over these.
pub fn sum_of_squares(values: &[f32]) -> f64 {
    isa().run(Squares { values })
}

struct Squares<'a> {
    values: &'a [f32],
}

impl Kernel for Squares<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f64 {
        squares(self.values)
    }
}

#[inline(always)]
fn squares(values: &[f32]) -> f64 {
    let mut lanes = [0f32; 16];
    let (chunks, rest) = values.as_chunks::<16>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, v)| *lane += v * v);
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, v)| *lane += v * v);
    lanes.iter().map(|&lane| f64::from(lane)).sum()
}

impl Sgd<'_> {
    #[inline(always)]
    fn plain(self) {
        let (lr, decay) = (self.step.lr as f32, self.step.weight_decay as f32);
        for (p, &g) in self.param.iter_mut().zip(self.grad) {
            *p -= lr * (g + decay * *p);
        }
    }

    #[inline(always)]
    fn with_momentum<const FIRST: bool, const NESTEROV: bool>(self) {
        let (lr, decay) = (self.step.lr as f32, self.step.weight_decay as f32);
        let factor = self.step.momentum as f32;
        for ((p, &g), m) in self.param.iter_mut().zip(self.grad).zip(self.momentum) {
            let g = g + decay * *p;
            *m = if FIRST { g } else { factor * *m + g };
            *p -= lr * if NESTEROV { g + factor * *m } else { *m };
        }
    }
}

/// What one AdamW update needs to know beside the slices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWStep {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay β₁ of the first moment.
    pub beta1: f64,
    /// Decay β₂ of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment, against division by zero.
    pub eps: f64,
    /// Decoupled decay λ: the parameter shrinks by `1 - lr·λ` before it moves.
    pub weight_decay: f64,
    /// The number of this update of the parameter, from 1: the bias corrections depend on it.
    pub step: u64,
}

/// One step of AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019), with
/// t the step's number:
/// `p *= 1 - lr·λ; m += (1-β₁)(g - m); v = β₂v + (1-β₂)g²; p -= lr/(1-β₁ᵗ) · m / (√v/√(1-β₂ᵗ) + ε)`.
///
/// # Panics
/// When the four slices differ in length, or the step's number is 0.
pub fn adamw(
    param: &mut [f32],
    grad: &[f32],
    first: &mut [f32],
    second: &mut [f32],
    step: &AdamWStep,
) {
    assert_eq!(param.len(), grad.len(), "adamw: one gradient per parameter");
    assert_eq!(param.len(), first.len(), "adamw: one first moment per parameter");
    assert_eq!(param.len(), second.len(), "adamw: one second moment per parameter");
    assert!(step.step > 0, "adamw: steps count from 1");
    isa().run(AdamW { param, grad, first, second, step });
}

struct AdamW<'a> {
    param: &'a mut [f32],
    grad: &'a [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    step: &'a AdamWStep,
}

impl Kernel for AdamW<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let AdamWStep { lr, beta1, beta2, eps, weight_decay, step } = *self.step;
        // In f64, as PyTorch has them: early on 1 - β₂ᵗ would lose half its digits in f32.
        let t = step.min(i32::MAX as u64) as i32;
        let size = (lr / (1.0 - beta1.powi(t))) as f32;
        let root = (1.0 - beta2.powi(t)).sqrt() as f32;
        let keep = (1.0 - lr * weight_decay) as f32;
        let (toward, held, fresh) = ((1.0 - beta1) as f32, beta2 as f32, (1.0 - beta2) as f32);
        let eps = eps as f32;
        let moments = self.first.iter_mut().zip(self.second);
        for ((p, &g), (m, v)) in self.param.iter_mut().zip(self.grad).zip(moments) {
            *m += toward * (g - *m);
            *v = held * *v + fresh * g * g;
            *p = keep * *p - size * (*m / (v.sqrt() / root + eps));
        }
    }
}

/// The instruction set to update with. Any gives the same bits, so where the choice is not among
/// our kernels the best will do.
fn isa() -> Isa {
    match active() {
        Ok(Kernels::Native(native)) => native.isa,
        _ => Isa::best(),
    }
}

/// Lends a variable's values to `update` as one flat slice in the variable's own storage, row
/// after row, and returns what `update` returns. Variables away from the CPU are brought to the
/// host, updated and set.
///
/// The variable's lock is held meanwhile: `update` must not read the variable itself.
///
/// # Errors
/// When the variable is not `f32`, or its storage is not contiguous.
pub fn update_in_place<T>(var: &Var, update: impl FnOnce(&mut [f32]) -> T) -> Result<T> {
    if var.dtype() != DType::F32 {
        bail!("only f32 variables are updated in place, this one is {:?}", var.dtype());
    }
    if !var.device().is_cpu() {
        let mut values = var.flatten_all()?.to_vec1::<f32>()?;
        let out = update(&mut values);
        var.set(&Tensor::from_vec(values, var.shape(), var.device())?)?;
        return Ok(out);
    }
    let lend = Lend { update: Cell::new(Some(update)), out: Cell::new(None) };
    var.inplace_op1(&lend)?;
    Ok(lend.out.take().expect("invariant: the op ran once, so the update did"))
}

/// Lends the values of all `vars` to `change`, one variable after the other with its number, as [`update_in_place`] does.
/// Those of a GPU come to the host in one transfer and go back in one: of a hundred variables each would otherwise wait
/// for two of its own.
///
/// # Errors
/// As [`update_in_place`], and for variables on several devices.
pub fn update_all(vars: &[&Var], mut change: impl FnMut(usize, &mut [f32])) -> Result<()> {
    if vars.iter().all(|var| var.device().is_cpu()) {
        let each = |(number, var): (usize, &&Var)| update_in_place(var, |xs| change(number, xs));
        return vars.iter().enumerate().try_for_each(each);
    }
    update_at_once(vars, change)
}

/// As [`update_all`], by way of one flat vector.
fn update_at_once(vars: &[&Var], mut change: impl FnMut(usize, &mut [f32])) -> Result<()> {
    let Some(first) = vars.first() else { return Ok(()) };
    let flat = vars.iter().map(|var| var.as_detached_tensor().flatten_all());
    let mut flat = Tensor::cat(&flat.collect::<Result<Vec<_>>>()?, 0)?.to_vec1::<f32>()?;
    let mut rest = flat.as_mut_slice();
    for (number, var) in vars.iter().enumerate() {
        let (mine, others) = rest.split_at_mut(var.elem_count());
        change(number, mine);
        rest = others;
    }
    let flat = Tensor::new(flat, first.device())?;
    let mut start = 0;
    for var in vars {
        var.set(&flat.narrow(0, start, var.elem_count())?.reshape(var.shape())?)?;
        start += var.elem_count();
    }
    Ok(())
}

/// Carries a closure through candle's in-place op, which only lends `&self`.
struct Lend<F, T> {
    update: Cell<Option<F>>,
    out: Cell<Option<T>>,
}

impl<T, F: FnOnce(&mut [f32]) -> T> InplaceOp1 for Lend<F, T> {
    fn name(&self) -> &'static str {
        "update-in-place"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (CpuStorage::F32(values), Some((start, end))) = (storage, layout.contiguous_offsets())
        else {
            bail!(
                "a variable updated in place must be contiguous f32, this one has layout {layout:?}"
            );
        };
        let update = self.update.take().expect("invariant: candle runs an in-place op once");
        self.out.set(Some(update(&mut values[start..end])));
        Ok(())
    }
}

/// Copies a gradient into its place in a flat slice, in row-major order and without a vector in
/// between; transposed and otherwise strided gradients are read through their layout.
///
/// # Errors
/// When `gradient` is not `f32`, or `into` does not have exactly its number of elements.
pub fn copy_gradient(gradient: &Tensor, into: &mut [f32]) -> Result<()> {
    if gradient.elem_count() != into.len() {
        bail!(
            "a gradient of shape {:?} does not fit a slice of {} values",
            gradient.shape(),
            into.len()
        );
    }
    if !gradient.device().is_cpu() {
        return copy_gradient(&gradient.to_device(&Device::Cpu)?, into);
    }
    let (storage, layout) = gradient.storage_and_layout();
    let Storage::Cpu(CpuStorage::F32(values)) = &*storage else {
        bail!("gradients are copied as f32, this one is {:?}", gradient.dtype());
    };
    if let Some((start, end)) = layout.contiguous_offsets() {
        into.copy_from_slice(&values[start..end]);
    } else {
        copy_strided(&values[layout.start_offset()..], layout.dims(), layout.stride(), into);
    }
    Ok(())
}

/// Row-major copy of the elements that `dims` and `strides` name in `values`.
fn copy_strided(values: &[f32], dims: &[usize], strides: &[usize], into: &mut [f32]) {
    match (dims, strides) {
        (&[], _) => into[0] = values[0],
        (&[_], &[stride]) => {
            for (i, into) in into.iter_mut().enumerate() {
                *into = values[i * stride];
            }
        }
        // Row after row of a transposed matrix would touch a cache line per element: go through
        // it in square tiles, which read and write whole lines.
        (&[rows, columns], &[row_stride, column_stride]) => {
            const TILE: usize = 16;
            for row in (0..rows).step_by(TILE) {
                for column in (0..columns).step_by(TILE) {
                    for r in row..rows.min(row + TILE) {
                        for c in column..columns.min(column + TILE) {
                            into[r * columns + c] = values[r * row_stride + c * column_stride];
                        }
                    }
                }
            }
        }
        _ => {
            let block = dims[1..].iter().product::<usize>();
            if block > 0 {
                for (i, into) in into.chunks_exact_mut(block).enumerate() {
                    copy_strided(&values[i * strides[0]..], &dims[1..], &strides[1..], into);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::kernels::with;

    fn floats(value: &Value) -> Vec<f32> {
        let values = value.as_array().unwrap().iter();
        values.map(|v| v.as_f64().unwrap() as f32).collect()
    }

    #[test]
    fn updates_follow_pytorch_step_by_step() {
        let golden = include_str!("../../tests/golden/optimizers.json");
        let golden: Value = serde_json::from_str(golden).unwrap();
        for kernels in Kernels::available() {
            for case in golden["cases"].as_array().unwrap() {
                let mut param = floats(&golden["start"]);
                let (mut first, mut second) = (vec![0.0; param.len()], vec![0.0; param.len()]);
                let grads = golden["grads"].as_array().unwrap();
                for (i, (grad, after)) in
                    grads.iter().zip(case["after"].as_array().unwrap()).enumerate()
                {
                    let number = |key: &str| case[key].as_f64().unwrap();
                    let (lr, weight_decay) = (number("lr"), number("weight_decay"));
                    let grad = floats(grad);
                    with(kernels, || match case["kind"].as_str().unwrap() {
                        "sgd" => sgd(
                            &mut param,
                            &grad,
                            &mut first,
                            &SgdStep {
                                lr,
                                momentum: number("momentum"),
                                nesterov: case["nesterov"].as_bool().unwrap(),
                                weight_decay,
                                first: i == 0,
                            },
                        ),
                        _ => adamw(
                            &mut param,
                            &grad,
                            &mut first,
                            &mut second,
                            &AdamWStep {
                                lr,
                                beta1: case["betas"][0].as_f64().unwrap(),
                                beta2: case["betas"][1].as_f64().unwrap(),
                                eps: number("eps"),
                                weight_decay,
                                step: i as u64 + 1,
                            },
                        ),
                    });
                    for (ours, theirs) in param.iter().zip(floats(after)) {
                        let gap = (ours - theirs).abs();
                        assert!(
                            gap <= 4e-7 * theirs.abs().max(1.0),
                            "{case} step {i}: {ours} {theirs}"
                        );
                    }
                }
            }
        }
    }

    /// What variables of a GPU go through, on the processor.
    #[test]
    fn variables_changed_at_once_are_those_changed_one_by_one() {
        let var = |from: f32, shape: &[usize]| {
            let values = (0..shape.iter().product::<usize>()).map(|i| from + i as f32).collect();
            Var::from_vec(values, shape, &Device::Cpu).unwrap()
        };
        let change = |number: usize, values: &mut [f32]| {
            let start = values.len() as f32;
            values.iter_mut().for_each(|x| *x = *x * (number as f32 + 2.0) + start);
        };
        let all = || [var(1.0, &[2, 3]), var(-7.0, &[]), var(0.5, &[4])];
        let (one_by_one, at_once) = (all(), all());
        update_all(&one_by_one.each_ref(), change).unwrap();
        update_at_once(&at_once.each_ref(), change).unwrap();
        for (one, other) in one_by_one.iter().zip(&at_once) {
            let values = |var: &Var| var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!((one.dims(), values(one)), (other.dims(), values(other)));
        }
        assert_eq!(at_once[1].to_scalar::<f32>().unwrap(), -20.0);
        update_at_once(&[], |_, _| panic!("there is none")).unwrap();
    }

    proptest! {
        #[test]
        fn every_instruction_set_gives_the_same_bits(
            values in prop::collection::vec((-2f32..2.0, -2f32..2.0, -2f32..2.0, 0f32..2.0), 0..70),
            first: bool,
            nesterov: bool,
            momentum in prop::sample::select(vec![0.0, 0.9]),
        ) {
            let column = |f: fn(&(f32, f32, f32, f32)) -> f32| values.iter().map(f).collect::<Vec<f32>>();
            let (param, grad) = (column(|v| v.0), column(|v| v.1));
            let (one, two) = (column(|v| v.2), column(|v| v.3));
            let runs: Vec<_> = Isa::available().map(|isa| with(Kernels::native(isa, false), || {
                let (mut p, mut m) = (param.clone(), one.clone());
                sgd(&mut p, &grad, &mut m, &SgdStep { lr: 0.1, momentum, nesterov, weight_decay: 0.01, first });
                let (mut q, mut n, mut v) = (param.clone(), one.clone(), two.clone());
                adamw(&mut q, &grad, &mut n, &mut v, &AdamWStep {
                    lr: 0.1, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, step: 7,
                });
                [p, m, q, n, v].map(|x| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>())
            })).collect();
            prop_assert!(runs.windows(2).all(|pair| pair[0] == pair[1]));
        }

        #[test]
        fn a_gradient_is_copied_through_any_layout(
            dims in prop::collection::vec(1usize..6, 1..5),
            large in 1usize..40,
            seed: u64,
        ) {
            let dims: Vec<usize> = dims.iter().enumerate().map(|(i, &d)| if i == 0 { large } else { d }).collect();
            let count: usize = dims.iter().product();
            let values: Vec<f32> = (0..count).map(|i| i as f32).collect();
            let tensor = Tensor::from_vec(values, dims.clone(), &Device::Cpu).unwrap();
            // A permutation and a window, from the seed.
            let mut order: Vec<usize> = (0..dims.len()).collect();
            order.rotate_left(seed as usize % dims.len());
            order.swap(0, (seed >> 8) as usize % dims.len());
            let view = tensor.permute(order).unwrap();
            let dim = (seed >> 16) as usize % dims.len();
            let length = 1 + (seed >> 24) as usize % view.dims()[dim];
            let view = view.narrow(dim, view.dims()[dim] - length, length).unwrap();
            let mut copied = vec![f32::NAN; view.elem_count()];
            copy_gradient(&view, &mut copied).unwrap();
            prop_assert_eq!(copied, view.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        }
    }

    #[test]
    fn the_first_step_ignores_what_the_momentum_held() {
        let (mut param, mut momentum) = ([1.0, 2.0], [f32::NAN, 9.0]);
        let step =
            SgdStep { lr: 0.5, momentum: 0.9, nesterov: false, weight_decay: 0.0, first: true };
        sgd(&mut param, &[1.0, -1.0], &mut momentum, &step);
        assert_eq!((param, momentum), ([0.5, 2.5], [1.0, -1.0]));
    }

    #[test]
    fn without_momentum_none_is_needed() {
        let mut param = [1.0];
        let step =
            SgdStep { lr: 0.5, momentum: 0.0, nesterov: false, weight_decay: 0.0, first: false };
        sgd(&mut param, &[1.0], &mut [], &step);
        assert_eq!(param, [0.5]);
    }

    #[test]
    fn a_variable_changes_in_its_own_storage() {
        let var = Var::new(&[[1f32, 2.0], [3.0, 4.0]], &Device::Cpu).unwrap();
        let view = var.as_detached_tensor();
        let sum = update_in_place(&var, |values| {
            values[1] = 7.0;
            values.iter().sum::<f32>()
        });
        assert_eq!(sum.unwrap(), 15.0);
        assert_eq!(view.to_vec2::<f32>().unwrap(), [[1.0, 7.0], [3.0, 4.0]]);
    }

    #[test]
    fn what_cannot_be_lent_or_copied_is_an_error() {
        let double = Var::new(&[1f64], &Device::Cpu).unwrap();
        assert!(update_in_place(&double, |_| ()).is_err());
        assert!(copy_gradient(&double, &mut [0.0]).is_err());
        let single = Var::new(&[1f32, 2.0], &Device::Cpu).unwrap();
        assert!(copy_gradient(&single, &mut [0.0]).is_err());
    }
}
