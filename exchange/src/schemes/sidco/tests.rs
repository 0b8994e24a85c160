use super::fit::tests::{fit_of, naive, number, numbers, vectors};
use super::*;
use crate::compress::StepEnd;
use crate::compress::testing::laplaces;

fn compressor(config: &Config) -> Sparsifier<Sidco> {
    let select = Sidco {
        config: config.clone(),
        controller: Controller::default(),
        exceedances: Exceedances::new(0),
        wanted: 1.0,
        stages: 0,
        kept_ratio: None,
    };
    Sparsifier::new(select, config.values, config.feedback, &Seat::alone(0, 0))
}

fn selected(config: &Config, gradient: &[f32], share: f64) -> Vec<u32> {
    let mut sidco = compressor(config).choice;
    sidco.find(gradient, share);
    sidco.exceedances.positions().to_vec()
}

#[test]
fn selections_equal_the_vectors() {
    let mut compared = 0;
    for case in vectors()["cases"].as_array().unwrap() {
        let gradient: Vec<f32> = numbers(&case["g"]).iter().map(|g| *g as f32).collect();
        for row in case["thresholds"].as_array().unwrap() {
            let stages = match row["stages"].as_u64().unwrap() {
                0 => Stages::By(Rule::Chain),
                count => Stages::Fixed(count as u32),
            };
            let config = Config { fit: fit_of(row), stages, ..Config::default() };
            let mut expected: Vec<u32> =
                numbers(&row["selected"]).iter().map(|at| *at as u32).collect();
            if expected.is_empty() {
                // Where the records select nothing, the largest is sent.
                let most = moments::largest(&gradient);
                expected.extend(gradient.iter().position(|g| g.abs() == most).map(|at| at as u32));
            }
            assert_eq!(selected(&config, &gradient, number(row, "delta")), expected, "{row}");
            compared += 1;
        }
    }
    assert_eq!(compared, 162);
    let vectors = vectors();
    let zeros = &vectors["zeros"];
    let gradient: Vec<f32> = numbers(&zeros["g"]).iter().map(|g| *g as f32).collect();
    for row in zeros["cases"].as_array().unwrap() {
        for (nonzero, key) in [(false, "sel_plain"), (true, "sel_nz")] {
            let stages = Stages::Fixed(1);
            let config = Config { fit: fit_of(row), stages, nonzero, ..Config::default() };
            let mut expected: Vec<u32> = numbers(&row[key]).iter().map(|at| *at as u32).collect();
            if expected.is_empty() {
                expected.push(17);
            }
            assert_eq!(selected(&config, &gradient, number(row, "delta")), expected, "{row}");
        }
    }
}

#[test]
fn selections_equal_those_by_the_book() {
    for length in [30, 1000, 40_000] {
        for seed in 0..3 {
            let gradient = laplaces(length, seed);
            let magnitudes: Vec<f64> = gradient.iter().map(|g| f64::from(g.abs())).collect();
            let norm = magnitudes.iter().map(|a| a * a).sum::<f64>().sqrt();
            for fit in [Fit::Exponential, Fit::Pareto, Fit::Gamma] {
                for (share, stages) in [(0.3, 2), (0.1, 1), (0.1, 3), (0.01, 2), (0.001, 4)] {
                    let plan = Plan::of(share, stages);
                    let threshold = naive(fit, &magnitudes, plan, f64::EPSILON * norm);
                    let stages = Stages::Fixed(stages);
                    let config = Config { fit, stages, ..Config::default() };
                    let found = selected(&config, &gradient, share);
                    let mut expected: Vec<u32> = (0..length as u32)
                        .filter(|at| magnitudes[*at as usize] > threshold)
                        .collect();
                    if expected.is_empty() {
                        expected = found.clone();
                        assert_eq!(found.len(), 1);
                    }
                    assert_eq!(found, expected, "{config:?} at {share} on {length}");
                }
            }
        }
    }
}

#[test]
fn the_scale_of_the_gradient_does_not_matter() {
    let mut gradient = laplaces(5000, 9);
    gradient[..500].fill(0.0);
    for fit in [Fit::Exponential, Fit::Pareto, Fit::Gamma] {
        let config = Config { fit, stages: Stages::Fixed(2), ..Config::default() };
        let expected = selected(&config, &gradient, 0.01);
        for exponent in [-100, -60, 60, 100] {
            let scale = 2f32.powi(exponent);
            let scaled: Vec<f32> = gradient.iter().map(|g| g * scale).collect();
            assert_eq!(selected(&config, &scaled, 0.01), expected, "{fit:?}, 2^{exponent}");
        }
    }
}

#[test]
fn stages_follow_what_was_kept_once_the_step_is_done() {
    // Constant magnitudes: the exponential law overestimates, and only the largest is sent.
    let mut sidco = compressor(&Config::default());
    let gradient = [1.0f32; 1000];
    for step in 1..=10 {
        for _ in 0..2 {
            // A step that is made again counts once.
            sidco.encode(&gradient, step, &mut Vec::new());
        }
        assert_eq!(sidco.gauges()[4].value, 0.1);
        sidco.settle(&StepEnd { step, ranks: 1, mean: &gradient });
    }
    assert_eq!(sidco.choice.controller.stages(), 3);
}
