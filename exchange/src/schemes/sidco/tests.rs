use super::fit::tests::{fit_of, number, vectors};
use super::*;
use crate::compress::moments;
use crate::compress::special::gamma_quantile;
use crate::compress::{Compressor, StepEnd};
use crate::schemes::tests::recorded;

fn selected(config: &Config, gradient: &[f32], share: f64) -> Vec<u32> {
    let mut sidco = config.sparsifier(&Seat::alone(0, 0)).choice;
    sidco.find(gradient, share);
    sidco.positions().to_vec()
}

/// Compares what is selected with the record at `key`; where that has nothing, the largest is sent.
fn compare(config: &Config, gradient: &[f32], row: &serde_json::Value, key: &str) {
    let mut expected: Vec<u32> = recorded(&row[key]);
    if expected.is_empty() {
        let most = moments::largest(gradient);
        expected.extend(gradient.iter().position(|g| g.abs() == most).map(|at| at as u32));
    }
    assert_eq!(selected(config, gradient, number(row, "delta")), expected, "{row}");
}

#[test]
fn selections_equal_the_vectors() {
    let vectors = vectors();
    let mut compared = 0;
    for case in vectors["cases"].as_array().unwrap() {
        let gradient: Vec<f32> = recorded(&case["g"]);
        for row in case["thresholds"].as_array().unwrap() {
            let stages = match row["stages"].as_u64().unwrap() {
                0 => Stages::By(StageRule::Chain),
                count => Stages::Fixed(count as u32),
            };
            let config = Config { fit: fit_of(row), stages, ..Config::default() };
            compare(&config, &gradient, row, "selected");
            compared += 1;
        }
    }
    assert_eq!(compared, 162);
    let zeros = &vectors["zeros"];
    let gradient: Vec<f32> = recorded(&zeros["g"]);
    for row in zeros["cases"].as_array().unwrap() {
        for (nonzero, key) in [(false, "sel_plain"), (true, "sel_nz")] {
            let stages = Stages::Fixed(1);
            let config = Config { fit: fit_of(row), stages, nonzero, ..Config::default() };
            compare(&config, &gradient, row, key);
        }
    }
}

/// How many of 100,000 magnitudes that lie at the quantiles of a law are kept in one stage, by fit and
/// at 0.1, 0.01 and 0.001: computed with NumPy 2 and SciPy 1.17 (`isf` of the fitted law). A law
/// fits its own draws; the exponential keeps up to 20 times too many of heavier tails.
#[test]
fn laws_keep_what_was_asked_for_of_their_own_draws() {
    const COUNT: u32 = 100_000;
    type Quantile = fn(f64) -> f64;
    let laws: [(Quantile, [[i64; 3]; 3]); 4] = [
        (|p| -p.ln(), [[10_000, 1000, 100], [10_000, 1000, 100], [9949, 979, 96]]),
        (|p| gamma_quantile(0.3, p), [[13_512, 4938, 2011], [13_526, 1641, 30], [9979, 976, 95]]),
        (|p| gamma_quantile(0.7, p), [[11_779, 2008, 362], [11_456, 926, 30], [9944, 974, 95]]),
        (
            |p| (p.powf(-0.3) - 1.0) / 0.3,
            [[10_145, 2646, 1018], [9992, 1016, 104], [9065, 1923, 655]],
        ),
    ];
    for (number, (quantile, expected)) in laws.into_iter().enumerate() {
        let at = |i: u32| quantile((f64::from(i) + 0.5) / f64::from(COUNT)) as f32;
        let magnitudes: Vec<f32> = (0..COUNT).map(at).collect();
        let fits = [Fit::Exponential, Fit::Pareto, Fit::Gamma];
        for (fit, expected) in fits.into_iter().zip(expected) {
            let config = Config { fit, stages: Stages::Fixed(1), ..Config::default() };
            for (share, expected) in [0.1, 0.01, 0.001].into_iter().zip(expected) {
                let found = selected(&config, &magnitudes, share).len() as i64;
                // An element on the threshold may fall on either side of it.
                assert!((found - expected).abs() <= 1, "law {number}, {fit:?} {share}: {found}");
            }
        }
    }
}

#[test]
fn stages_follow_what_was_kept_once_the_step_is_done() {
    // Constant magnitudes: the exponential law overestimates, and only the largest is sent.
    let mut sidco = Config::default().sparsifier(&Seat::alone(0, 0));
    let gradient = [1.0f32; 1000];
    for step in 1..=10 {
        for _ in 0..2 {
            // A step that is made again counts once.
            sidco.encode(&gradient, step, &mut Vec::new());
        }
        assert_eq!(sidco.gauges()[4].value, 0.1);
        sidco.commit(&StepEnd { step, ranks: 1, mean: &gradient });
    }
    assert_eq!(sidco.choice.controller.stages(), 3);
}
