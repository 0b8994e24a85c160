//! What `operations.rs` does not try of the twins of the GPUs' kernels.

use std::cell::Cell;

use candle_core::{Device, Tensor, Var};

use super::*;
use crate::compare::{distance, floats};
use crate::golden::formula::uniform;
use crate::kernels::{Kernels, with};

thread_local! {
    /// Whether this thread computes on the processor what GPUs compute here.
    pub(crate) static TWINS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` with the twins in place of the composed operations.
pub(crate) fn by_twins<R>(work: impl FnOnce() -> R) -> R {
    TWINS.set(true);
    let result = with(Kernels::Candle, work);
    TWINS.set(false);
    result
}

fn var(name: &str, shape: &[usize]) -> Var {
    let values = uniform(name, shape.iter().product()).map(|x| 2. * x as f32).collect();
    Var::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// That both results and the gradients of all `vars` are the same but for rounding.
fn same(vars: &[&Var], fused: &Tensor, composed: &Tensor, what: &str) {
    assert_eq!(fused.dims(), composed.dims(), "{what}");
    let near = |ours: &Tensor, theirs: &Tensor, of: &str| {
        let (ours, theirs) = (floats(ours).unwrap(), floats(theirs).unwrap());
        let gap = distance(&ours, &theirs, 1e-3);
        assert!(gap <= 2e-6, "{what}, {of}: {gap}");
    };
    near(fused, composed, "result");
    // Weights that differ, so that no gradient is zero by symmetry.
    let weights = var("weights", fused.dims());
    let back = |ys: &Tensor| (ys * weights.as_tensor()).unwrap().sum_all().unwrap().backward();
    let (ours, theirs) = (back(fused).unwrap(), back(composed).unwrap());
    for (i, var) in vars.iter().enumerate() {
        let (ours, theirs) = (ours.get(var).unwrap(), theirs.get(var).unwrap());
        near(ours, theirs, &format!("gradient {i}"));
    }
}

#[test]
fn rows_are_those_composed() {
    let table = var("table", &[6, 5]);
    let numbers = vec![4u32, 0, 2, 4, 4, 0, 5, 1];
    let picks = Tensor::new(numbers.as_slice(), &Device::Cpu).unwrap();
    let composed = table.index_select(&picks, 0).unwrap();
    let fused = picked(&table, numbers.clone(), (0..8).collect()).unwrap();
    same(&[&table], &fused, &composed, "all picks");
    // One of three picks of row 4, and none of row 5.
    let giving = vec![0u32, 1, 2, 5, 7];
    let fused = picked(&table, numbers.clone(), giving.clone()).unwrap();
    let gives = |place| f32::from(giving.contains(&place));
    let gives = Tensor::from_iter((0..8).map(gives), &Device::Cpu).unwrap().unsqueeze(1).unwrap();
    let kept = composed.broadcast_mul(&gives).unwrap();
    let silent = composed.detach().broadcast_mul(&(1. - gives).unwrap()).unwrap();
    same(&[&table], &fused, &(kept + silent).unwrap(), "some picks");
    let none = picked(&table, numbers.clone(), Vec::new()).unwrap().sum_all().unwrap();
    assert_eq!(floats(none.backward().unwrap().get(&table).unwrap()).unwrap(), [0.; 30]);
    let error = picked(&table, vec![6], Vec::new()).unwrap_err().to_string();
    assert!(error.contains("row 6") && error.contains("table of 6"), "{error}");
    let error = picked(&table, numbers, vec![8]).unwrap_err().to_string();
    assert!(error.contains("pick 8"), "{error}");
}

#[test]
fn the_first_pass_leaves_nothing_of_what_was_there() {
    let tensor = |values: &[f32]| Tensor::new(values, &Device::Cpu).unwrap();
    let (mean, variance) = (tensor(&[0.3, -7.1]), tensor(&[1.7, 0.1]));
    let running = Running::new(&tensor(&[1e3, -1e30]), &tensor(&[1e3, 1e30])).unwrap();
    norm::track(&running, &mean, &variance).unwrap();
    assert_eq!(floats(&running.mean).unwrap(), [0.3, -7.1]);
    assert_eq!(floats(&running.variance).unwrap(), [1.7, 0.1]);
    // A mean over ranks may have left a fraction, and a file anything.
    for (before, after) in [(2.75, 4.), (-3., 1.), (1e12, Running::SETTLED)] {
        running.passes.set(&Tensor::new(before as f32, &Device::Cpu).unwrap()).unwrap();
        norm::track(&running, &mean, &variance).unwrap();
        assert_eq!(floats(&running.passes).unwrap(), [after]);
    }
}

#[test]
fn relu_leaves_nothing_at_zero_and_what_is_no_number() {
    let xs = Var::new(&[[-1f32, 1., f32::NAN, 3.]], &Device::Cpu).unwrap();
    let table =
        Tensor::new(&[[1f32; 4], [0.; 4], [1.; 4], [1.; 4], [1.; 4]], &Device::Cpu).unwrap();
    let ys = norm::normalise(&xs, &table, None, true, false).unwrap();
    let values = floats(&ys).unwrap();
    assert_eq!((values[0], values[1], values[3]), (0., 0., 2.));
    assert!(values[2].is_nan());
    let gradients = ys.sum_all().unwrap().backward().unwrap();
    let values = floats(gradients.get(&xs).unwrap()).unwrap();
    assert_eq!((values[0], values[1], values[3]), (0., 0., 1.));
    assert!(values[2].is_nan());
}

#[test]
fn an_operation_of_other_operands_is_refused() {
    let xs = Tensor::new(&[[1f64]], &Device::Cpu).unwrap();
    let error = norm::batch_table(&xs, &xs, &xs, 1e-5).unwrap_err().to_string();
    assert!(error.contains("f32"), "{error}");
}
