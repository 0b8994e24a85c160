use candle_core::{Device, Tensor, Var};

use super::*;
use crate::compare::{distance, floats};
use crate::composed;
use crate::golden::formula::uniform;
use crate::parameters::Gelu;

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
fn convolutions_are_those_composed() {
    let shapes = [
        ([2, 6, 5, 3], [4, 3, 3, 3], 1, 1),
        ([2, 7, 6, 3], [4, 3, 3, 3], 2, 1),
        ([2, 6, 6, 5], [3, 5, 1, 1], 1, 0),
        ([2, 7, 7, 5], [3, 5, 1, 1], 2, 0),
        ([1, 5, 9, 2], [3, 2, 2, 5], 3, 2),
        ([3, 4, 4, 2], [2, 2, 2, 2], 1, 0),
    ];
    for (images, weight, stride, padding) in shapes {
        let (xs, weight) = (var("xs", &images), var("weight", &weight));
        let what = format!("{images:?} {:?} {stride} {padding}", weight.dims());
        let [fused, composed] = [conv2d, composed::conv2d]
            .map(|conv2d| conv2d(&xs, &weight, stride, padding, true).unwrap());
        same(&[&xs, &weight], &fused, &composed, &what);
        let first = conv2d(&xs, &weight, stride, padding, false).unwrap().sum_all().unwrap();
        assert!(first.backward().unwrap().get(&xs).is_none(), "nobody needs it: {what}");
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
fn batch_norms_are_those_composed() {
    let channels = 5;
    let activations = [Activation::Identity, Activation::Relu, Activation::Gelu(Gelu::Exact)];
    for (activation, bits) in activations.into_iter().flat_map(|a| (0..16).map(move |b| (a, b))) {
        let [train, shifted, scaled, added] = [1, 2, 4, 8].map(|bit| bits & bit > 0);
        let what =
            format!("{activation:?} train {train} shift {shifted} gamma {scaled} residual {added}");
        let xs = (var("xs", &[3, 4, 2, channels]).as_tensor() + 3.).unwrap();
        let xs = Var::from_tensor(&xs).unwrap();
        let [gamma, beta, shift] = ["gamma", "beta", "shift"].map(|name| var(name, &[channels]));
        let residual = var("residual", xs.dims());
        let [fused, composed] = [batch_norm, composed::batch_norm].map(|batch_norm| {
            let variance = (var("variance", &[channels]).sqr().unwrap() + 0.5).unwrap();
            let running = Running::new(&var("mean", &[channels]), &variance).unwrap();
            let affine = Affine {
                shift: shifted.then_some(shift.as_tensor()),
                gamma: scaled.then_some(gamma.as_tensor()),
                beta: &beta,
            };
            let residual = added.then_some(residual.as_tensor());
            // Twice: the second pass has another weight.
            batch_norm(&xs, affine, &running, residual, activation, train).unwrap();
            let ys = batch_norm(&xs, affine, &running, residual, activation, train).unwrap();
            (ys, running)
        });
        let statistics = |running: &Running| {
            [&running.mean, &running.variance, &running.passes].map(|v| floats(v).unwrap())
        };
        for (ours, theirs) in statistics(&fused.1).iter().zip(statistics(&composed.1)) {
            assert!(distance(ours, &theirs, 1e-3) <= 1e-6, "{what}: {ours:?} {theirs:?}");
        }
        let mut vars = vec![&xs, &beta];
        vars.extend(scaled.then_some(&gamma));
        vars.extend(added.then_some(&residual));
        // While training, rounding is all that a composed gradient of the shift has.
        vars.extend((shifted && !train).then_some(&shift));
        same(&vars, &fused.0, &composed.0, &what);
        if shifted && train {
            let gradients = fused.0.sum_all().unwrap().backward().unwrap();
            assert_eq!(floats(gradients.get(&shift).unwrap()).unwrap(), [0.; 5], "{what}");
        }
    }
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
