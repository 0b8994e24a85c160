use super::*;
use crate::compress::StepMessages;
use crate::compress::moments::largest;
use crate::compress::testing::{laplaces, mean_square_error};
use crate::rng::Stream;

/// Laplace distributed values, each block of 512 with a scale of its own.
fn gradient(seed: u64, length: usize) -> Vec<f32> {
    let stream = Stream::new(&[seed]);
    let mut values = laplaces(length, seed);
    for (number, block) in values.chunks_mut(512).enumerate() {
        let scale = 1.0 + stream.uniform(1_000_000 + number as u32);
        block.iter_mut().for_each(|value| *value *= scale);
    }
    values
}

fn histogram(aim: Aim, levels: usize, gradient: &[f32]) -> (Histogram, Vec<f64>) {
    let mut histogram = Histogram::new(aim, levels);
    let mut terms = vec![0.0; 3 * BINS];
    let counted = Histogram::new(Aim::Biased(1.0), levels);
    for block in gradient.chunks(512) {
        counted.gather(block, largest(block), &mut terms);
    }
    let mut found = vec![0.0; levels];
    histogram.solve(&terms, &mut found);
    (histogram, found.iter().map(|level| f64::from(*level)).collect())
}

/// (O2): at a minimum, the pull of the elements below a level balances that of those above; it
/// changes sign within one step of the grid.
#[test]
fn levels_balance_to_one_step_of_the_grid() {
    let gradient = gradient(2, 1 << 15);
    let (histogram, levels) = histogram(Aim::Unbiased, 8, &gradient);
    let (edges, of) = (edges(), &histogram.distribution);
    for j in 1..7 {
        let (low, high) = (levels[j - 1], levels[j + 1]);
        let slope = |level: f64| {
            let (below, above) = (of.range(low, level), of.range(level, high));
            (below[1] - low * below[0]) - (high * above[0] - above[1])
        };
        // Levels are edges rounded to f32.
        let edge = (0..EDGES).find(|e| (edges[*e] - levels[j]).abs() < 1e-6).unwrap();
        assert!(slope(edges[edge - 1]) <= 0.0 && slope(edges[edge + 1]) >= 0.0, "level {j}");
    }
}

#[test]
fn much_weight_on_the_bias_is_no_bias_and_none_is_lloyd_max() {
    let gradient = gradient(3, 1 << 15);
    let (_, unbiased) = histogram(Aim::Unbiased, 4, &gradient);
    let (_, nearly) = histogram(Aim::Biased(1e9), 4, &gradient);
    assert!(unbiased.iter().zip(&nearly).all(|(a, b)| (a - b).abs() < 0.02), "{nearly:?}");
    let (histogram, nearest) = histogram(Aim::Biased(1.0), 4, &gradient);
    // Each level of Lloyd and Max is the mean of what is nearest to it.
    for j in 0..4 {
        let low = if j == 0 { -1.0 } else { (nearest[j - 1] + nearest[j]) / 2.0 };
        let high = if j == 3 { 1.0 } else { (nearest[j] + nearest[j + 1]) / 2.0 };
        let sums = histogram.distribution.range(low, high);
        assert!((sums[1] / sums[0] - nearest[j]).abs() < 0.02, "{nearest:?}");
    }
}

#[test]
fn feedback_is_sound_with_a_bias_alone() {
    let unsound = Config { feedback: true, ..Config::default() };
    assert!(unsound.properties().soundness.check("optquant", true).is_err());
    let biased = Config { lambda: Some(2.0), ..unsound };
    assert_eq!(biased.properties().soundness, Soundness::Sound);
    let largest = Config { lambda: Some(8.0), ..biased.clone() };
    assert_eq!(largest.properties().soundness, Soundness::Sound);
    let hardly = Config { lambda: Some(8.5), ..biased };
    assert!(hardly.properties().soundness.check("optquant", true).is_err());
}

/// What optimised levels are compared with: as many uniform ones, in every message of a run, which lose more.
#[test]
fn without_a_statistic_levels_stay_uniform_and_lose_more() {
    let uniform = Config { statistics: Statistics::None, ..Config::default() };
    let gradient = gradient(4, 1 << 14);
    let mut codec = uniform.codec(&Seat::alone(gradient.len(), 3)).unwrap();
    for step in 1..=31 {
        let mut wire = Vec::new();
        codec.encode(&gradient, step, &mut wire);
        let levels: Vec<u8> = (0..8u8)
            .flat_map(|j| ((2.0 * f64::from(j) / 7.0 - 1.0) as f32).to_le_bytes())
            .collect();
        assert_eq!(wire[0], 0, "step {step}");
        assert_eq!(wire[1..33], levels, "step {step}");
        let messages = &[Some(&wire[..])];
        codec.learn_and_commit(&StepMessages { step, messages, mean: &gradient }).unwrap();
    }
    let errors =
        [&uniform, &Config::default()].map(|config| mean_square_error(config, &gradient, 4));
    assert!(errors[0] > 1.5 * errors[1], "{errors:?}");
}
