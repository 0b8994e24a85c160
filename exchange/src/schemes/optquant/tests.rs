use super::*;
use crate::compress::moments::largest;
use crate::compress::rounding::{are_levels, uniform};
use crate::compress::testing::laplaces;
use crate::rng::Stream;
use crate::wire::Fault;
use crate::{Compressor, State, StepMessages};

fn seat(rank: usize, length: usize) -> Seat {
    Seat { rank, ..Seat::alone(length, 11) }
}

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

/// Exact expected squared error of unbiased rounding, over every element.
fn variance(gradient: &[f32], levels: &[f64]) -> f64 {
    let block = |block: &[f32]| {
        let scale = f64::from(largest(block));
        let element = |value: &f32| {
            let u = f64::from(*value) / scale;
            let above = levels.partition_point(|l| *l <= u).clamp(1, levels.len() - 1);
            (u - levels[above - 1]) * (levels[above] - u) * scale * scale
        };
        block.iter().map(element).sum::<f64>()
    };
    gradient.chunks(512).map(block).sum()
}

#[test]
fn optimised_levels_beat_every_static_family() {
    let gradient = gradient(1, 1 << 16);
    for bits in [2, 3, 4] {
        let count = 1usize << bits;
        let (histogram, levels) = histogram(Aim::Unbiased, count, &gradient);
        let mut even = vec![0f32; count];
        uniform(&mut even);
        let even: Vec<f64> = even.iter().map(|level| f64::from(*level)).collect();
        let half = 1 << (bits - 1);
        let lower = (0..half).map(|j| -0.5f64.powi(j));
        let exponential: Vec<f64> = lower.chain((0..half).rev().map(|j| 0.5f64.powi(j))).collect();
        let best = variance(&gradient, &levels);
        // The histogram's error is exact for levels on its edges.
        assert!((histogram.distribution.variance(&levels) / best - 1.0).abs() < 1e-5);
        for (name, other) in [("uniform", &even), ("exponential", &exponential)] {
            let other = variance(&gradient, other);
            assert!(best <= other * 1.001, "{bits} bits: {best} against {name} {other}");
        }
        assert!(best < variance(&gradient, &[-1.0, 0.0, 1.0]), "{bits} bits against ternary");
        assert!(bits < 3 || best < 0.6 * variance(&gradient, &even));
    }
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

fn message(compressor: &mut dyn Compressor, gradient: &[f32], step: u64) -> Vec<u8> {
    let mut wire = Vec::new();
    compressor.encode(gradient, step, &mut wire);
    wire
}

#[test]
fn all_ranks_come_to_the_same_levels_and_keep_them() {
    const LENGTH: usize = 20_000;
    for statistics in [Statistics::Pooled, Statistics::Aggregate] {
        let config = Config { statistics, ..Config::default() };
        let mut ranks: Vec<_> =
            (0..3).map(|rank| config.codec(&seat(rank, LENGTH)).unwrap()).collect();
        let levels = |wire: &[u8]| {
            let floats = wire[1..33].as_chunks().0.iter();
            floats.map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<_>>()
        };
        for step in 1..=10 {
            let wires: Vec<_> = ranks
                .iter_mut()
                .enumerate()
                .map(|(rank, compressor)| {
                    let gradient = gradient(10 + rank as u64, LENGTH);
                    message(&mut **compressor, &gradient, step)
                })
                .collect();
            let rides = statistics == Statistics::Pooled && (step == 1 || step == 10);
            let statistic = if rides { 8 + 4 * 2 * BINS } else { 0 };
            for wire in &wires {
                assert_eq!(wire.len(), 1 + 32 + 4 * 40 + LENGTH * 3 / 8 + statistic);
                assert!(are_levels(&levels(wire)));
                assert_eq!(levels(wire) == levels(&wires[0]), step > 1 || *wire == wires[0]);
            }
            let mean = gradient(10, LENGTH);
            let messages: Vec<_> = wires.iter().map(|wire| Some(&wire[..])).collect();
            for compressor in &mut ranks {
                compressor
                    .learn_and_commit(&StepMessages { step, messages: &messages, mean: &mean })
                    .unwrap();
            }
        }
        let mut states = [State::default(), State::default(), State::default()];
        ranks.iter().zip(&mut states).for_each(|(rank, state)| rank.save(state));
        assert!(states[0] == states[1] && states[1] == states[2]);
    }
}

#[test]
fn a_statistic_that_does_not_fit_is_left_out_and_the_mean_takes_its_place() {
    let mut small = Config::default().codec(&seat(0, 100)).unwrap();
    let gradient = gradient(5, 100);
    let before = message(&mut *small, &gradient, 1);
    assert_eq!((before[0], before.len()), (0, 1 + 32 + 4 + 38));
    let round = StepMessages { step: 1, messages: &[None, Some(&before)], mean: &gradient };
    small.learn_and_commit(&round).unwrap();
    let mut state = State::default();
    small.save(&mut state);
    assert_eq!(state.f32s("levels", 8).unwrap()[7], 1.0);
}

#[test]
fn a_statistic_without_meaning_is_refused() {
    const LENGTH: usize = 5000;
    let mut compressor = Config::default().codec(&seat(0, LENGTH)).unwrap();
    let gradient = gradient(6, LENGTH);
    let wire = message(&mut *compressor, &gradient, 1);
    let weight = wire.len() - 8 * BINS - 8;
    for (at, bytes) in [
        (0, &[2u8][..]),
        (weight, &(-1f64).to_le_bytes()),
        (weight, &f64::NAN.to_le_bytes()),
        (weight + 8, &2f32.to_le_bytes()),
        (wire.len() - 4, &f32::NAN.to_le_bytes()),
    ] {
        let mut spoilt = wire.clone();
        spoilt[at..at + bytes.len()].copy_from_slice(bytes);
        let round = StepMessages { step: 1, messages: &[Some(&spoilt)], mean: &gradient };
        let error = compressor.learn_from_messages(&round).unwrap_err();
        assert!(matches!(error, crate::Error::Wire(Fault::Field { .. })), "{error}");
    }
}

#[test]
fn feedback_is_sound_with_a_bias_alone() {
    let unsound = Config { feedback: true, ..Config::default() };
    assert!(unsound.soundness().check("optquant", true).is_err());
    let biased = Config { lambda: Some(2.0), ..unsound };
    assert_eq!(biased.soundness(), Soundness::Sound);
}
