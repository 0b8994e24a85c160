//! Trials that find what is wrong, and that there are enough of them.

use super::*;

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

#[test]
fn every_set_of_kernels_computes_what_the_composed_path_does() {
    for kernels in Kernels::available() {
        for trial in TRIALS {
            let compared = with(kernels, || trial.compare(&Device::Cpu)).unwrap();
            assert_eq!(compared.len(), 1 + trial.floats.len());
            println!("{kernels} {}: {:?}", trial.name(), Comparison::worst(&compared));
            for one in compared {
                assert!(one.holds(), "{} on {kernels}: {one:?}", trial.name());
            }
        }
    }
}

/// Whatever part of an outcome is off by a thousandth, or missing, is found and named.
#[test]
fn a_wrong_outcome_is_found() {
    for trial in TRIALS {
        let right = trial.outcome(&Device::Cpu).unwrap();
        let wrong = |spoil: &dyn Fn(&mut Computed)| {
            let mut found = trial.outcome(&Device::Cpu).unwrap();
            spoil(&mut found);
            let compared = trial.differences(&found, &right);
            compared.into_iter().filter(|one| !one.holds()).map(|one| one.what).collect()
        };
        let off = |values: &mut Vec<f32>| values.iter_mut().for_each(|v| *v = *v * 1.001 + 0.001);
        let none: Vec<String> = wrong(&|_| {});
        assert!(none.is_empty(), "{none:?}");
        assert_eq!(wrong(&|found| off(&mut found.output)), ["output"], "{}", trial.name());
        for (i, (name, _)) in trial.floats.iter().enumerate() {
            let of_gradient = right.gradients[i].is_some();
            let named = if of_gradient { format!("gradient of {name}") } else { (*name).into() };
            let spoilt = wrong(&|found| match &mut found.gradients[i] {
                Some(gradient) => off(gradient),
                None => off(&mut found.after[i]),
            });
            assert_eq!(spoilt, [named.as_str()], "{}", trial.name());
            if right.gradients[i].as_ref().is_some_and(|g| norm(g) > 0.1) {
                let severed = wrong(&|found| found.gradients[i] = None);
                assert_eq!(severed, [named.as_str()], "{}", trial.name());
            }
        }
    }
}
