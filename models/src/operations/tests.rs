//! Trials that find what is wrong, and that there are enough of them.

use std::collections::BTreeSet;

use super::*;
use crate::fused;

#[test]
fn every_operation_is_tried() {
    let sources = [include_str!("../ops.rs"), include_str!("../ops/encoder.rs")];
    let lines = sources.into_iter().flat_map(str::lines);
    let functions = lines.filter_map(|line| line.strip_prefix("pub fn ")?.split(['(', '<']).next());
    let functions: Vec<&str> = functions.collect();
    assert!(functions.contains(&"layer_norm") && functions.len() >= 17, "{functions:?}");
    for name in functions {
        assert!(
            TRIALS.iter().any(|trial| trial.operation == name),
            "ops::{name} has no entry in operations::TRIALS"
        );
    }
}

/// Calls `test` with the name of every way to compute an operation on the processor but the composed one, and with what
/// computes a trial that way: the kernels of each instruction set, those in bf16, and the Rust that stands for those of GPUs.
fn on_every_path(test: impl Fn(&str, &dyn Fn(&Trial, Resize) -> Result<Computed>)) {
    let of = |trial: &Trial, size: Resize| trial.outcome(size, &Device::Cpu);
    let native = Kernels::available().filter(|one| *one != Kernels::Candle);
    for kernels in native.chain(active().unwrap().in_bf16()) {
        test(&kernels.to_string(), &|trial, size| with(kernels, || of(trial, size)));
    }
    test("fused", &|trial, size| fused::tests::by_twins(|| of(trial, size)));
}

fn composed(trial: &Trial, size: Resize) -> Result<Computed> {
    with(Kernels::Candle, || trial.outcome(size, &Device::Cpu))
}

fn same(trial: &Trial, found: &Computed, right: &Computed, what: &str) {
    for one in trial.differences(found, right, what.contains("bf16")) {
        assert!(one.holds(), "{} {what}: {one:?}", trial.name());
    }
}

#[test]
fn every_path_computes_what_the_composed_one_does() {
    for trial in TRIALS {
        let right = composed(trial, AS_THEY_ARE).unwrap();
        on_every_path(|path, run| {
            same(trial, &run(trial, AS_THEY_ARE).unwrap(), &right, &format!("on {path}"));
        });
    }
}

/// Each size of a trial, wherever it stands in its arguments, becomes others: those of one vector, of several, and of a part
/// of one. What comes of it is the same on every path, or refused by all.
#[test]
fn other_sizes_are_computed_alike_and_those_without_elements_refused() {
    let mut computed = 0;
    for trial in TRIALS {
        let shapes = trial.floats.iter().map(|(_, shape)| *shape);
        let shapes = shapes.chain(trial.ids.map(|(shape, _)| shape));
        let sizes: BTreeSet<usize> = shapes.flatten().copied().collect();
        for (from, to) in
            sizes.into_iter().flat_map(|from| [0, 1, 2, 7, 17, 33, 40].map(|to| (from, to)))
        {
            let size: Resize = &|_, _, size| if size == from { to } else { size };
            let right = composed(trial, size);
            computed += usize::from(right.is_ok());
            on_every_path(|path, run| match (run(trial, size), &right) {
                // Of nothing dropout leaves nothing.
                (Ok(found), Ok(right)) if to > 0 || trial.operation == "dropout" => {
                    same(trial, &found, right, &format!("on {path} with {to} for {from}"));
                }
                (Err(_), Err(_)) => {}
                _ => panic!("{} on {path}: {to} for {from} is not refused by all", trial.name()),
            });
        }
    }
    assert!(computed > 300, "{computed}");
}

/// A size that two arguments have is changed in one of them alone: then they do not fit. Positions may be more than texts
/// have, and windows of any size.
#[test]
fn one_argument_of_another_size_is_refused() {
    for trial in TRIALS {
        for (argument, shape) in trial.floats {
            for (dim, own) in shape.iter().enumerate() {
                let mut others = trial.floats.iter().filter(|(other, _)| other != argument);
                let shared = others.any(|(_, shape)| shape.contains(own));
                let free = (*argument, dim) == ("positions", 0)
                    || (argument.starts_with("weight") && dim >= 2);
                let size: Resize =
                    &|name, at, size| size + usize::from((name, at) == (*argument, dim));
                let right = composed(trial, size).is_ok();
                let what = format!("{}: {argument}, dimension {dim}", trial.name());
                assert!(!right || !shared || free, "{what} is accepted");
                on_every_path(|path, run| {
                    assert_eq!(run(trial, size).is_ok(), right, "{what} on {path}");
                });
            }
        }
    }
}

/// More pixels, rows and words of a text than one job, group or block takes, and heads of more values than a vector: each
/// operation with some of its sizes changed.
#[test]
fn many_pixels_rows_and_words_are_computed_as_composed() {
    let larger: [(&str, &[(usize, usize)]); 5] = [
        ("batch_norm", &[(4, 900)]),
        ("layer_norm", &[(7, 300)]),
        ("self_attention", &[(9, 140)]),
        ("self_attention", &[(20, 36), (60, 108)]),
        ("feed_forward", &[(9, 140)]),
    ];
    for (operation, sizes) in larger {
        let size: Resize =
            &|_, _, size| sizes.iter().find(|(from, _)| *from == size).map_or(size, |(_, to)| *to);
        for trial in TRIALS.iter().filter(|trial| trial.operation == operation) {
            // Of so many values some lie at ReLU's kink, where rounding decides.
            if trial.variant.contains("ReLU") {
                continue;
            }
            let right = composed(trial, size).unwrap();
            on_every_path(|path, run| same(trial, &run(trial, size).unwrap(), &right, path));
        }
    }
}

/// Whatever part of an outcome is off by a thousandth, in bf16 by as much as it is itself, or missing, is found and named.
#[test]
fn a_wrong_outcome_is_found() {
    let own = active().unwrap();
    for kernels in std::iter::once(own).chain(own.in_bf16()) {
        with(kernels, || {
            TRIALS.iter().for_each(|trial| finds_what_is_wrong(trial, kernels != own));
        });
    }
}

fn finds_what_is_wrong(trial: &Trial, bf16: bool) {
    let outcome = || trial.outcome(AS_THEY_ARE, &Device::Cpu).unwrap();
    let right = outcome();
    let wrong = |spoil: &dyn Fn(&mut Computed)| {
        let mut found = outcome();
        spoil(&mut found);
        let compared = trial.differences(&found, &right, bf16);
        compared.into_iter().filter(|one| !one.holds()).map(|one| one.what).collect()
    };
    let by = if bf16 { 1. } else { 0.001 };
    let off = |values: &mut Vec<f32>| values.iter_mut().for_each(|v| *v = *v * (1. + by) + by);
    let none: Vec<String> = wrong(&|_| {});
    assert!(none.is_empty(), "{none:?}");
    assert_eq!(wrong(&|found| off(&mut found.output)), ["output"], "{}", trial.name());
    // In bf16 what is left of a gradient that batch norm takes out is nothing but rounding.
    let norms: Vec<f64> =
        right.gradients.iter().map(|g| g.as_ref().map_or(0., |g| norm(g))).collect();
    let felt = if bf16 { norms.iter().fold(0., |a, b| f64::max(a, *b)) / 10. } else { 0.1 };
    for (i, (name, _)) in trial.floats.iter().enumerate() {
        let of_gradient = right.gradients[i].is_some();
        let named = if of_gradient { format!("gradient of {name}") } else { (*name).into() };
        let spoilt = wrong(&|found| match &mut found.gradients[i] {
            Some(gradient) => off(gradient),
            None => off(&mut found.after[i]),
        });
        assert_eq!(spoilt, [named.as_str()], "{}", trial.name());
        if norms[i] > felt {
            let severed = wrong(&|found| found.gradients[i] = None);
            assert_eq!(severed, [named.as_str()], "{}", trial.name());
        }
    }
}
