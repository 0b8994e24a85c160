//! Parameter updates in place: SGD and AdamW on raw slices, one pass, no temporaries.
//!
//! The updates follow PyTorch's `torch.optim.SGD` and `torch.optim.AdamW` term for term. They
//! multiply and add without fusing, so every instruction set gives the same bits.

mod orthogonal;
mod rows;

use super::simd::{Isa, Kernel, Simd};
use super::{Kernels, active};

pub use orthogonal::orthogonalize;
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
/// `g += λp; m = μm + g` (`m = g` at the first step)`;` `p -= lr·m` (`lr·(g + μm)` with Nesterov).
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

/// Values whose squares are summed up in f32, in sixteen sums: 16 KiB, which the first cache holds.
pub const BLOCK: usize = 4096;

/// Whether all are 0, with a plus sign.
#[inline(always)]
pub fn is_zero(values: &[f32]) -> bool {
    values.iter().fold(0, |any, value| any | value.to_bits()) == 0
}

/// The sum of squares: in f32 over each sixteenth of a [block](BLOCK), in f64 over these.
pub fn sum_of_squares(values: &[f32]) -> f64 {
    let mut sum = 0.0;
    isa().run(Squares { values, sum: &mut sum });
    sum
}

struct Squares<'a> {
    values: &'a [f32],
    sum: &'a mut f64,
}

impl Kernel for Squares<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        *self.sum = self.values.chunks(BLOCK).fold(0.0, |sum, block| sum + squares(block));
    }
}

/// The simple form: `Σ v²`. Sixteen sums side by side do not wait for each other.
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

/// The numbers of a step as its elements are multiplied with them.
pub(crate) struct AdamWFactors {
    /// What is kept of a weight.
    pub(crate) keep: f32,
    /// The learning rate over the correction of the first moment.
    pub(crate) size: f32,
    /// The root of the correction of the second moment.
    pub(crate) root: f32,
    pub(crate) eps: f32,
    /// The share that the first moment moves towards the gradient by.
    pub(crate) toward: f32,
    /// What is kept of the second moment, and what comes of the squared gradient.
    pub(crate) held: f32,
    pub(crate) fresh: f32,
}

impl AdamWStep {
    /// Computed in f64, as PyTorch does: early on 1 - β₂ᵗ would lose half its digits in f32.
    pub(crate) fn factors(&self) -> AdamWFactors {
        let Self { lr, beta1, beta2, eps, weight_decay, step } = *self;
        let t = step.min(i32::MAX as u64) as i32;
        AdamWFactors {
            keep: (1.0 - lr * weight_decay) as f32,
            size: (lr / (1.0 - beta1.powi(t))) as f32,
            root: (1.0 - beta2.powi(t)).sqrt() as f32,
            eps: eps as f32,
            toward: (1.0 - beta1) as f32,
            held: beta2 as f32,
            fresh: (1.0 - beta2) as f32,
        }
    }
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
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let AdamWFactors { keep, size, root, eps, toward, held, fresh } = self.step.factors();
        let moments = self.first.iter_mut().zip(self.second);
        for ((p, &g), (m, v)) in self.param.iter_mut().zip(self.grad).zip(moments) {
            *m += toward * (g - *m);
            *v = held * *v + fresh * g * g;
            *p = keep * *p - size * (*m / (v.sqrt() / root + eps));
        }
    }
}

/// The instruction set to update with, in f32 whatever products are in. Where the choice is not among our kernels the
/// best will do.
fn isa() -> Isa {
    match active() {
        Ok(Kernels::Native(native)) => native.isa.in_f32(),
        _ => Isa::best(),
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
    fn the_sum_of_squares_is_that_of_f64() {
        for length in [0, 1, 15, 17, BLOCK, 3 * BLOCK + 5] {
            let values: Vec<f32> = (0..length).map(|i| (i as f32 * 0.37).sin()).collect();
            let expected: f64 = values.iter().map(|v| f64::from(*v).powi(2)).sum();
            assert!((sum_of_squares(&values) - expected).abs() <= 1e-6 * expected, "{length}");
        }
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
}
