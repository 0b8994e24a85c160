//! What the tests of several kernels share.

use candle_core::{Device, Tensor, Var};

use super::simd::Isa;
use crate::packing::Packing;

/// The elements, row-major.
pub(super) fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// The sines of 1, 2, 3, … times `frequency`.
pub(super) fn wave(shape: &[usize], frequency: f64) -> Var {
    let count = shape.iter().product::<usize>();
    let values = (1..=count).map(|i| (i as f64 * frequency).sin() as f32).collect();
    Var::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// The packing of texts of so many ids each.
pub(super) fn packing(ids: Vec<u32>, length: usize) -> Packing {
    let shape = (ids.len() / length, length);
    Packing::new(&Tensor::from_vec(ids, shape, &Device::Cpu).unwrap()).unwrap()
}

/// What `work` returns in a pool of so many threads.
pub(super) fn on_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

/// `ys`, and for each of `vars` the gradient of `Σ sin(factor · ys)`.
pub(super) fn value_and_gradients(ys: &Tensor, factor: f64, vars: &[Var]) -> Vec<Vec<f32>> {
    let loss = (ys * factor).unwrap().sin().unwrap().sum_all().unwrap();
    let grads = loss.backward().unwrap();
    let gradients = vars.iter().map(|var| flat(grads.get(var).unwrap()));
    std::iter::once(flat(ys)).chain(gradients).collect()
}

/// The elements of each variable in f64.
pub(super) fn widened(vars: &[Var]) -> Vec<Vec<f64>> {
    vars.iter().map(|var| flat(var).iter().map(|&x| f64::from(x)).collect()).collect()
}

/// Panics unless each of `gradients` is the slope of `loss` at its place in `values`, to within `bound` of the slope.
pub(super) fn are_slopes(
    isa: Isa,
    gradients: &[Vec<f32>],
    values: &mut [Vec<f64>],
    loss: impl Fn(&[Vec<f64>]) -> f64,
    bound: impl Fn(f64) -> f64,
) {
    for (which, gradient) in gradients.iter().enumerate() {
        for (i, &ours) in gradient.iter().enumerate() {
            let held = values[which][i];
            let mut side = |x: f64| {
                values[which][i] = x;
                loss(values)
            };
            let slope = (side(held + 1e-6) - side(held - 1e-6)) / 2e-6;
            values[which][i] = held;
            let off = (f64::from(ours) - slope).abs();
            assert!(off < bound(slope), "{isa} {which} {i}: {ours} {slope}");
        }
    }
}
