//! The quantiser and the controller against the vectors, and the budget they keep.

use std::ops::Range;

use super::*;
use crate::Error;
use crate::compress::bit_schedule::tests::{number, vectors};
use crate::compress::ladder::Ladder;
use crate::schemes::tests::recorded;
use crate::state::Entry;

#[test]
fn levels_and_values_are_those_of_the_vectors() {
    let vectors = vectors();
    let quantiser = &vectors["quantiser"];
    let gradient: Vec<f32> = recorded(&quantiser["g"]);
    let random: Vec<f64> = recorded(&quantiser["u"]);
    for case in quantiser["cases"].as_array().unwrap() {
        let norm = if case["p"] == "2" { Norm::L2 } else { Norm::Linf };
        let scale = norm.scale(&gradient);
        assert!((f64::from(scale) - number(&case["norm"])).abs() < 1e-6);
        let bits = case["B"].as_u64().unwrap() as u8;
        let ladder = ladder(bits);
        assert_eq!(u64::from(ladder.top()), case["s"].as_u64().unwrap());
        let mut variance = 0.0;
        let (levels, values): (Vec<f64>, Vec<f64>) =
            (recorded(&case["level"]), recorded(&case["value"]));
        for (i, (level, value)) in levels.into_iter().zip(values).enumerate() {
            let random = (random[i] * 2f64.powi(32)) as u32;
            let rung = ladder.rung(gradient[i].abs() / scale, random);
            assert_eq!(f64::from(rung), level, "{bits} bits, element {i}");
            let decoded = f64::from((ladder.share(rung as u8) * scale).copysign(gradient[i]));
            assert!((decoded - value).abs() < 1e-6, "{decoded} {value}");
            let s = f64::from(ladder.top());
            let f = (f64::from(gradient[i].abs()) / number(&case["norm"]) * s).fract();
            variance += (number(&case["norm"]) / s).powi(2) * f * (1.0 - f);
        }
        let expected = number(&case["exact_var"]);
        assert!((variance - expected).abs() < 2e-5 * expected.max(1.0), "{variance} {expected}");
        let seat = Seat::alone(gradient.len(), 1);
        let config = Config { norm, min_bits: bits, max_bits: bits, ..Config::default() };
        let mut wire = Vec::new();
        config.codec(&seat).unwrap().encode(&gradient, 1, &mut wire);
        assert_eq!(8 * wire.len() as u64, 8 + case["payload_bits"].as_u64().unwrap());
    }
}

#[test]
fn the_controller_plans_as_in_the_vectors() {
    let vectors = vectors();
    let norms: Vec<f64> = recorded(&vectors["controller"]["norms"]);
    for case in vectors["controller"]["cases"].as_array().unwrap() {
        let config = Config {
            alpha: Some(number(&case["alpha"])),
            horizon: Some(400),
            gap: case["gap"].as_u64(),
            window: case["window"].as_u64().map(|steps| steps as usize),
            target: Target::K(number(&case["k"])),
            ..Config::default()
        };
        let mut plan = planned(&config);
        let mut trace = case["trace"].as_array().unwrap().iter().skip(1);
        for (step, norm) in (1..).zip(&norms) {
            plan.note(step, *norm, 0.0);
            if step < 400 && step.is_multiple_of(config.gap(400)) {
                let expected = trace.next().unwrap();
                assert_eq!(expected["n"].as_u64(), Some(step));
                assert!((plan.norm - number(&expected["norm_used"])).abs() < 1e-8);
                let bits = number(&expected["B_real"]).clamp(2.0, 8.0);
                assert!((plan.bits - bits).abs() < 1e-8, "{} {bits}", plan.bits);
                if case["rounding"] == "ceil" {
                    assert_eq!(u64::from(plan.whole_bits(0.5)), expected["B"].as_u64().unwrap());
                }
            }
        }
        assert!(trace.next().is_none());
    }
}

/// The plan of a run whose length nobody told.
fn planned(config: &Config) -> Controller {
    Controller::new(config, config.course(None))
}

/// The bits of every step of a run over a path of norms, which steps from 0 index.
fn run(config: &Config, norm: impl Fn(f64) -> f64) -> Vec<u8> {
    let mut plan = planned(config);
    let bits = |step: u64| {
        let dither = Stream::new(&[step]).uniform(0);
        let bits = plan.whole_bits(f64::from(dither));
        plan.note(step, norm(step as f64 - 1.0), f64::from(bits));
        bits
    };
    (1..=config.course(None).horizon).map(bits).collect()
}

fn mean(bits: &[u8]) -> f64 {
    bits.iter().map(|bits| f64::from(*bits)).sum::<f64>() / bits.len() as f64
}

#[test]
fn a_target_of_mean_bits_is_met_whatever_the_norms_do() {
    for rounding in [Rounding::Dither, Rounding::Ceil] {
        for bits in [3.0, 4.5, 6.0] {
            let config = Config { rounding, target: Target::Bits(bits), ..Config::default() };
            let paths: [&dyn Fn(f64) -> f64; 4] = [
                &|n| 5.0 * 0.999f64.powf(n / 2.0),
                &|n| (5.0 * 0.999f64.powf(n / 2.0)).max(1.0),
                &|_| 2.0,
                &|n| if n < 1500.0 { 5.0 - 3.8 * n / 1500.0 } else { 0.5 },
            ];
            for (number, path) in paths.into_iter().enumerate() {
                let mean = mean(&run(&config, path));
                assert!((mean - bits).abs() < 0.05, "{rounding:?}, {bits}, path {number}: {mean}");
            }
        }
    }
}

/// A run of the length of one pass over CIFAR-10 with 128 images a step.
fn short() -> Config {
    let (horizon, gap, window) = (Some(391), Some(20), Some(10));
    Config { horizon, gap, window, rounding: Rounding::Dither, ..Config::default() }
}

/// Whatever the length of a run, a norm that falls or rises has other bits than one that stays, and the budget is kept all
/// the same. With a gap of 100 steps the first correction of a run of 600 would be a whole one, and the four the same.
#[test]
fn bits_follow_the_norm_in_runs_of_any_length() {
    let paths: [&dyn Fn(f64, f64) -> f64; 4] = [
        &|_, _| 2.0,
        &|n, _| if n < 200.0 { 2.0 } else { 0.2 },
        &|n, _| if n < 100.0 { 2.0 } else { 60.0 },
        &|n, last| 2.0 * 0.01f64.powf(n / last),
    ];
    let of_length = |steps| Config { horizon: Some(steps), ..Config::default() };
    let defaults = [300, 600, 6000].map(|steps| (of_length(steps), 0.1));
    for (config, tolerance) in [(short(), 0.05)].into_iter().chain(defaults) {
        for rounding in [Rounding::Dither, Rounding::Ceil] {
            let config = Config { rounding, ..config.clone() };
            let horizon = config.course(None).horizon;
            let runs = paths.map(|path| run(&config, |n| path(n, horizon as f64 - 1.0)));
            let at = format!("{horizon} steps, {rounding:?}");
            for (number, one) in runs.iter().enumerate() {
                let off = (mean(one) - 4.5).abs();
                assert!(off < tolerance, "{at}, path {number}: {}", mean(one));
                let same = runs[..number].iter().any(|other| one == other);
                assert!(!same, "{at}, path {number}: as another path");
            }
            // Over the first gap after a change, of a norm that is known by then.
            let gap = config.gap(horizon) as usize;
            let after = |run: usize, step: usize| mean(&runs[run][step + gap..step + 2 * gap]);
            let fewest = f64::from(config.min_bits);
            assert!(after(1, 200) <= (after(0, 200) - 1.0).max(fewest), "{at}: a tenfold fall");
            assert!(after(2, 100) > after(0, 100) + 1.0, "{at}: a thirtyfold rise");
            // A norm that falls for good has fewer bits than a steady one, and then those that it saved.
            let more = |steps: Range<usize>| mean(&runs[3][steps.clone()]) - mean(&runs[0][steps]);
            if config.horizon == short().horizon {
                assert!(more(60..140) < -0.2 && more(280..380) > 0.2, "{at}: a fall for good");
            }
        }
    }
    let of = |horizon: u64| {
        let config = Config::default();
        (config.gap(horizon), config.window(horizon))
    };
    assert_eq!([6000, 600, 300, 1].map(of), [(100, 50), (10, 5), (5, 3), (1, 1)]);
}

/// What the paper's one k for all steps, found when only the first norms are known, makes of a
/// budget.
#[test]
fn a_k_that_is_held_misses_the_budget() {
    let mut plan = planned(&short());
    (1..=20).for_each(|step| plan.note(step, 2.0, plan.bits));
    let held = Config { target: Target::K(plan.k), ..short() };
    let steady = mean(&run(&held, |_| 2.0));
    assert!((steady - 4.5).abs() < 0.05, "{steady}");
    let tenfold = mean(&run(&held, |n| if n < 200.0 { 2.0 } else { 0.2 }));
    assert!((tenfold - 3.3).abs() < 0.05, "{tenfold}");
    let hundredfold = mean(&run(&held, |n| 2.0 * 0.01f64.powf(n / 390.0)));
    assert!((hundredfold - 2.45).abs() < 0.05, "{hundredfold}");
}

/// Between two gaps k moves as far as the rule says, and not at all where the norm and the spending
/// are what was planned.
#[test]
fn k_is_solved_for_once_and_corrected_slowly() {
    let mut plan = planned(&short());
    let mut observe = |steps: std::ops::RangeInclusive<u64>, norm: f64| {
        for step in steps {
            let bits = plan.bits;
            plan.note(step, norm, bits);
        }
        plan.k
    };
    let (first, later) = (observe(1..=20, 2.0), observe(21..=100, 2.0));
    assert!((later / first).log2().abs() < 0.1, "{first} {later}");
    // At step 120 the norm has been a tenth for a gap, so that as much as the plan had given to
    // it, tenfold, is asked for: 4·20/271 of the way.
    let fallen = observe(101..=120, 0.2);
    let moved = (fallen / later).ln() / (80.0f64 / 271.0) / 10f64.ln();
    assert!((moved - 1.0).abs() < 0.05, "{moved}");
}

#[test]
fn alpha_is_that_of_a_run_of_the_authors_length() {
    for (horizon, expected) in [(6000, 0.999), (391, 0.984_764_4), (12_000, 0.999_499_875)] {
        let course = Config { horizon: Some(horizon), ..Config::default() }.course(None);
        assert_eq!(Config::default().course(Some(horizon)), course, "told by the run");
        assert!((course.alpha - expected).abs() < 1e-7, "{horizon}: {}", course.alpha);
        // A constant norm sweeps log2(0.999^-3000) bits.
        let sweep = course.bits(1e9, horizon, 1.0) - course.bits(1e9, 0, 1.0);
        assert!((sweep - 4.330_3).abs() < 1e-3, "{horizon}: {sweep}");
    }
    assert_eq!(Config::default().course(None).horizon, 6000, "a length that nobody told");
    let set: Config = toml::from_str("alpha = 0.999\nhorizon = 391").unwrap();
    assert_eq!(set.course(Some(77)).alpha.to_bits(), 0.999f64.to_bits());
    assert_eq!(toml::from_str::<Config>(&toml::to_string(&set).unwrap()).unwrap(), set);
    assert_eq!(set.course(Some(77)).horizon, 391, "what is set counts");
    let silent = toml::to_string(&Config::default()).unwrap();
    assert!(!silent.contains("alpha") && !silent.contains("horizon"), "{silent}");
}

#[test]
fn a_zero_gradient_asks_for_the_fewest_bits_and_a_broken_state_is_refused() {
    let config = Config { gap: Some(2), window: Some(2), ..Config::default() };
    let mut plan = planned(&config);
    assert_eq!(plan.whole_bits(0.0), 8);
    (1..=2).for_each(|step| plan.note(step, 0.0, 8.0));
    assert_eq!(plan.whole_bits(0.9), 2);
    // It says nothing about k: the first norm does.
    (3..=4).for_each(|step| plan.note(step, 1.0, 2.0));
    let mut other = planned(&config);
    (1..=4).for_each(|step| other.note(step, 1.0, if step < 3 { 8.0 } else { 2.0 }));
    assert!(plan.k > 0.0 && (plan.k / other.k).log2().abs() < 0.1, "{} {}", plan.k, other.k);
    let mut state = State::default();
    plan.save(&mut state);
    let mut other = planned(&config);
    other.restore(&state).unwrap();
    assert_eq!(other, plan);
    for (entry, nonsense) in [
        ("norms", vec![0, f64::NAN.to_bits()]),
        // Their sum is infinite, and so would the mean be that bits follow.
        ("norms", vec![f64::MAX.to_bits(); 2]),
        ("rounds", vec![u64::MAX]),
    ] {
        let mut state = state.clone();
        state.insert(entry, Entry::U64(nonsense));
        assert!(matches!(other.restore(&state), Err(Error::State { .. })), "{entry}");
        assert_eq!(other, plan);
    }
}

#[test]
fn a_mean_that_its_bits_cannot_have_is_refused() {
    for (min_bits, max_bits, good) in [(2, 8, true), (4, 5, true), (6, 8, false), (2, 4, false)] {
        let config = Config { min_bits, max_bits, ..Config::default() };
        assert_eq!(config.validate().is_ok(), good, "4.5 of {min_bits} to {max_bits}");
    }
}
