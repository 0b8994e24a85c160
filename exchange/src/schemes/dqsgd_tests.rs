//! The quantiser and the controller against the vectors, and the budget they keep.

use super::*;
use crate::compress::bit_schedule::tests::{number, vectors};
use crate::compress::ladder::Ladder;

fn numbers(value: &serde_json::Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(number).collect()
}

#[test]
fn levels_and_values_are_those_of_the_vectors() {
    let vectors = vectors();
    let quantiser = &vectors["quantiser"];
    let gradient: Vec<f32> = numbers(&quantiser["g"]).iter().map(|g| *g as f32).collect();
    let random: Vec<u32> =
        numbers(&quantiser["u"]).iter().map(|u| (u * 2f64.powi(32)) as u32).collect();
    for case in quantiser["cases"].as_array().unwrap() {
        let norm = if case["p"] == "2" { Norm::L2 } else { Norm::Linf };
        let scale = norm.of(&gradient);
        assert!((f64::from(scale) - number(&case["norm"])).abs() < 1e-6);
        let bits = case["B"].as_u64().unwrap() as u8;
        let ladder = ladder(bits);
        assert_eq!(u64::from(ladder.top()), case["s"].as_u64().unwrap());
        let mut variance = 0.0;
        for (i, (level, value)) in
            numbers(&case["level"]).into_iter().zip(numbers(&case["value"])).enumerate()
        {
            let rung = ladder.rung(gradient[i].abs() / scale, random[i]);
            assert_eq!(f64::from(rung), level, "{bits} bits, element {i}");
            let said = f64::from((ladder.share(rung as u8) * scale).copysign(gradient[i]));
            assert!((said - value).abs() < 1e-6, "{said} {value}");
            let s = f64::from(ladder.top());
            let f = (f64::from(gradient[i].abs()) / number(&case["norm"]) * s).fract();
            variance += (number(&case["norm"]) / s).powi(2) * f * (1.0 - f);
        }
        let expected = number(&case["exact_var"]);
        assert!((variance - expected).abs() < 2e-5 * expected.max(1.0), "{variance} {expected}");
        let seat = Seat::alone(gradient.len(), 1);
        let config = Config { norm, min_bits: bits, max_bits: bits, ..Config::default() };
        let mut wire = Vec::new();
        config.build(&seat).encode(&gradient, 1, &mut wire);
        assert_eq!(8 * wire.len() as u64, 8 + case["payload_bits"].as_u64().unwrap());
    }
}

#[test]
fn the_controller_plans_as_in_the_vectors() {
    let vectors = vectors();
    let norms = numbers(&vectors["controller"]["norms"]);
    for case in vectors["controller"]["cases"].as_array().unwrap() {
        let config = Config {
            alpha: number(&case["alpha"]),
            horizon: 400,
            gap: case["gap"].as_u64().unwrap(),
            window: case["window"].as_u64().unwrap() as usize,
            target: Target::K(number(&case["k"])),
            ..Config::default()
        };
        let mut plan = Plan::new(&config);
        let mut trace = case["trace"].as_array().unwrap().iter().skip(1);
        for (step, norm) in (1..).zip(&norms) {
            plan.observe(step, *norm, 0.0);
            if step < 400 && step.is_multiple_of(config.gap) {
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

/// Mean bits of a whole run over a path of norms.
fn run(config: &Config, norm: impl Fn(f64) -> f64) -> f64 {
    let mut plan = Plan::new(config);
    let mut spent = 0.0;
    for step in 1..=config.horizon {
        let dither = Stream::of(&[step]).uniform(0);
        let bits = f64::from(plan.whole_bits(f64::from(dither)));
        spent += bits;
        plan.observe(step, norm(step as f64 - 1.0), bits);
    }
    spent / config.horizon as f64
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
                let mean = run(&config, path);
                assert!((mean - bits).abs() < 0.05, "{rounding:?}, {bits}, path {number}: {mean}");
            }
        }
    }
}

#[test]
fn a_zero_gradient_asks_for_the_fewest_bits_and_a_broken_state_is_refused() {
    let config = Config { gap: 2, window: 2, ..Config::default() };
    let mut plan = Plan::new(&config);
    assert_eq!(plan.whole_bits(0.0), 8);
    (1..=2).for_each(|step| plan.observe(step, 0.0, 8.0));
    assert_eq!(plan.whole_bits(0.9), 2);
    let mut state = State::default();
    plan.save(&mut state);
    let mut other = Plan::new(&config);
    other.restore(&state).unwrap();
    assert_eq!(other, plan);
    state.insert("norms", Entry::U64(vec![0, f64::NAN.to_bits()]));
    assert!(matches!(other.restore(&state), Err(Error::State { .. })));
    assert_eq!(other, plan);
}

#[test]
fn settings_without_meaning_are_refused() {
    let base = Config::default;
    for broken in [
        Config { alpha: 0.0, ..base() },
        Config { alpha: f64::NAN, ..base() },
        Config { gap: 0, ..base() },
        Config { horizon: 0, ..base() },
        Config { window: 0, ..base() },
        Config { min_bits: 1, ..base() },
        Config { min_bits: 5, max_bits: 4, ..base() },
        Config { max_bits: 9, ..base() },
        Config { target: Target::Bits(1.0), ..base() },
        Config { target: Target::K(0.0), ..base() },
        Config { target: Target::Error(f64::INFINITY), ..base() },
    ] {
        assert!(matches!(broken.validate(), Err(Error::Config { .. })), "{broken:?}");
    }
}
