//! Tables that were measured before these schemes were built, measured again on them: how many
//! elements SIDCo keeps of independent draws from known laws, and how large the union of several
//! ranks' selections is. The figures come from the design document on SIDCo and Wang, Liu & Wu
//! (its sections 2.5 and 3.4; for the unions the script `wang_union.py`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::Random;
use gradwire_exchange::schemes::aggregation_aware::{self, Rule};
use gradwire_exchange::schemes::sidco::{self, Fit, Stages};
use gradwire_exchange::{Compressor, Scheme, Seat, StepMessages};

/// Gamma of scale 1 (Marsaglia & Tsang 2000), for shapes below 1 by raising the shape.
fn gamma(random: &mut Random, shape: f64) -> f64 {
    let d = shape + 1.0 - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = random.normal();
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && random.uniform().ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v * random.uniform().powf(1.0 / shape);
        }
    }
}

/// Generalised Pareto of scale 1.
fn pareto(random: &mut Random, xi: f64) -> f64 {
    (random.uniform().powf(-xi) - 1.0) / xi
}

fn gauge(compressor: &dyn Compressor, name: &str) -> f64 {
    compressor.gauges().iter().find(|gauge| gauge.name == name).unwrap().value
}

/// A law's name, its draws, and k̂/k for 1 to 4 stages with the three fits.
type Row = (&'static str, fn(&mut Random) -> f64, [[f64; 4]; 3]);

#[test]
fn sidco_keeps_what_the_table_says() {
    const LENGTH: usize = 1 << 19;
    const DRAWS: u64 = 4;
    // At a ratio of 0.001.
    let rows: [Row; 7] = [
        (
            "Laplace",
            |random| -random.uniform().ln(),
            [[1.0, 1.0, 0.99, 1.0], [1.0, 1.0, 0.99, 1.0], [0.96, 1.0, 0.99, 1.0]],
        ),
        (
            "double gamma 0.3",
            |random| gamma(random, 0.3),
            [[20.1, 1.83, 1.06, 0.88], [0.30, 0.84, 1.09, 1.04], [0.94, 0.85, 1.10, 1.06]],
        ),
        (
            "double gamma 0.7",
            |random| gamma(random, 0.7),
            [[3.6, 1.24, 1.04, 0.99], [0.30, 1.0, 1.07, 1.07], [0.95, 0.95, 1.01, 1.01]],
        ),
        (
            "double Pareto 0.1",
            |random| pareto(random, 0.1),
            [[3.4, 2.0, 1.13, 0.90], [0.99, 1.0, 1.0, 1.0], [2.6, 0.95, 0.96, 0.96]],
        ),
        (
            "double Pareto 0.3",
            |random| pareto(random, 0.3),
            [[10.2, 3.7, 1.16, 0.64], [1.02, 1.02, 1.0, 0.98], [6.5, 0.86, 0.85, 0.84]],
        ),
        (
            "double Pareto 0.45",
            |random| pareto(random, 0.45),
            [[14.8, 4.2, 0.98, 0.41], [1.13, 1.08, 0.97, 0.91], [8.7, 0.84, 0.75, 0.70]],
        ),
        (
            "Gaussian",
            Random::normal,
            [[0.0, 0.10, 0.70, 1.06], [6.9, 1.23, 0.90, 0.91], [0.004, 1.46, 1.04, 1.05]],
        ),
    ];
    for (law, draw, expected) in rows {
        let mut found = [[0.0; 4]; 3];
        for seed in 0..DRAWS {
            let mut random = Random(1000 + seed);
            let gradient: Vec<f32> = (0..LENGTH).map(|_| draw(&mut random) as f32).collect();
            for (fit, found) in
                [Fit::Exponential, Fit::Pareto, Fit::Gamma].into_iter().zip(&mut found)
            {
                for (stages, found) in (1..).zip(found) {
                    let stages = Stages::Fixed(stages);
                    let ratio = 0.001.into();
                    let config = sidco::Config { fit, stages, ratio, ..Default::default() };
                    let mut compressor = config.codec(&Seat::alone(LENGTH, 0)).unwrap();
                    compressor.encode(&gradient, 1, &mut Vec::new());
                    *found += gauge(&*compressor, "kept_ratio") / DRAWS as f64;
                }
            }
        }
        println!("{law:20} {found:.2?}");
        for (found, expected) in found.as_flattened().iter().zip(expected.as_flattened()) {
            // Some 2000 elements are kept, and the fits have a spread of their own.
            let allowed = 0.11 * expected + 0.01;
            assert!((found - expected).abs() <= allowed, "{law}: {found} for {expected}");
        }
    }
}

/// The ranges that the document gives for larger ratios, over the same laws.
#[test]
fn sidco_stays_within_the_documents_ranges_at_larger_ratios() {
    const LENGTH: usize = 1 << 19;
    let laws: [fn(&mut Random) -> f64; 7] = [
        |random| -random.uniform().ln(),
        |random| gamma(random, 0.3),
        |random| gamma(random, 0.7),
        |random| pareto(random, 0.1),
        |random| pareto(random, 0.3),
        |random| pareto(random, 0.45),
        Random::normal,
    ];
    for (number, draw) in laws.into_iter().enumerate() {
        let mut random = Random(2000 + number as u64);
        let gradient: Vec<f32> = (0..LENGTH).map(|_| draw(&mut random) as f32).collect();
        let kept = |fit, stages, ratio: f64| {
            let stages = Stages::Fixed(stages);
            let config = sidco::Config { fit, stages, ratio: ratio.into(), ..Default::default() };
            let mut compressor = config.codec(&Seat::alone(LENGTH, 0)).unwrap();
            compressor.encode(&gradient, 1, &mut Vec::new());
            gauge(&*compressor, "kept_ratio")
        };
        let check = |what: &str, kept: f64, low: f64, high: f64| {
            // The ends are given to two digits, and draws differ.
            assert!((0.97 * low..=1.03 * high).contains(&kept), "law {number}, {what}: {kept}");
        };
        for stages in 1..=4 {
            check("exponential at 0.1", kept(Fit::Exponential, stages, 0.1), 0.42, 1.35);
            check("Pareto at 0.1", kept(Fit::Pareto, stages, 0.1), 0.42, 1.35);
        }
        check("Pareto of two stages at 0.1", kept(Fit::Pareto, 2, 0.1), 0.93, 1.05);
        for stages in 2..=3 {
            check("Pareto at 0.01", kept(Fit::Pareto, stages, 0.01), 0.89, 1.20);
        }
        check("one exponential stage at 0.01", kept(Fit::Exponential, 1, 0.01), 0.02, 4.9);
    }
}

/// Gradients with short-lived hot coordinates: each becomes hot at random, stays hot for ten
/// rounds on average, and is then eight times as large, with a sign that all ranks share.
struct HotCoordinates {
    random: Random,
    base: Vec<f64>,
    hot: Vec<bool>,
    sign: Vec<f64>,
}

impl HotCoordinates {
    const SHARE: f64 = 0.01;
    const ROUNDS: f64 = 10.0;

    fn new(length: usize) -> Self {
        let mut random = Random(7);
        let base = (0..length).map(|_| (0.5 * random.normal()).exp()).collect();
        let hot = (0..length).map(|_| random.uniform() < Self::SHARE).collect();
        let sign = (0..length).map(|_| if random.uniform() < 0.5 { -1.0 } else { 1.0 });
        let sign = sign.collect();
        Self { random, base, hot, sign }
    }

    /// Adds the next round's gradients to each rank's.
    fn add(&mut self, ranks: &mut [Vec<f32>]) {
        let random = &mut self.random;
        for at in 0..self.base.len() {
            let stays = random.uniform() > 1.0 / Self::ROUNDS;
            let born = random.uniform() < Self::SHARE / Self::ROUNDS;
            if born && !self.hot[at] {
                self.sign[at] = if random.uniform() < 0.5 { -1.0 } else { 1.0 };
            }
            self.hot[at] = self.hot[at] && stays || born;
            let (scale, shared) = if self.hot[at] {
                (8.0 * self.base[at], self.sign[at])
            } else {
                (self.base[at], 0.0)
            };
            let common = shared + 0.3 * random.normal();
            for rank in ranks.iter_mut() {
                let own = 0.7 * f64::from(random.laplace());
                rank[at] += (scale * 0.5f64.sqrt() * (common + own)) as f32;
            }
        }
    }
}

/// The mean of union/k over the later rounds, for each rule.
fn unions(rules: &[Rule], ranks: usize) -> Vec<f64> {
    const LENGTH: usize = 40_000;
    const ROUNDS: u64 = 40;
    const SETTLING: u64 = 10;
    let config = |rule| aggregation_aware::Config { rule, ..Default::default() };
    let seat = |rank| {
        let mut seat = Seat::alone(LENGTH, 0);
        seat.rank = rank;
        seat
    };
    let mut groups: Vec<Vec<_>> = rules
        .iter()
        .map(|rule| (0..ranks).map(|rank| config(*rule).codec(&seat(rank)).unwrap()).collect())
        .collect();
    let mut residuals = vec![vec![vec![0.0f32; LENGTH]; ranks]; rules.len()];
    let mut model = HotCoordinates::new(LENGTH);
    let mut means = vec![0.0; rules.len()];
    for step in 1..=ROUNDS {
        let mut gradients = vec![vec![0.0f32; LENGTH]; ranks];
        model.add(&mut gradients);
        for ((group, residuals), mean_size) in groups.iter_mut().zip(&mut residuals).zip(&mut means)
        {
            let mut messages = vec![Vec::new(); ranks];
            let mut mean = vec![0.0; LENGTH];
            for rank in 0..ranks {
                let due = &mut residuals[rank];
                due.iter_mut().zip(&gradients[rank]).for_each(|(due, g)| *due += g);
                group[rank].encode(due, step, &mut messages[rank]);
                group[rank].decode_add(&messages[rank], 0..due.len(), -1.0, due).unwrap();
                group[rank]
                    .decode_add(&messages[rank], 0..mean.len(), 1.0 / ranks as f32, &mut mean)
                    .unwrap();
            }
            let messages: Vec<_> = messages.iter().map(|message| Some(&message[..])).collect();
            let round = StepMessages { step, messages: &messages, mean: &mean };
            group.iter_mut().for_each(|compressor| compressor.learn_and_commit(&round).unwrap());
            if step > SETTLING {
                *mean_size += gauge(&*group[0], "union_ratio") / (ROUNDS - SETTLING) as f64;
            }
        }
    }
    means
}

#[test]
fn unions_are_as_large_as_the_table_says() {
    for (ranks, expected) in [
        (4, [3.05, 2.36, 1.73, 1.42, 2.49]),
        (8, [5.21, 4.14, 2.66, 1.91, 3.54]),
        (16, [9.06, 7.66, 4.84, 3.11, 5.11]),
    ] {
        let rules = [
            Rule::Topk,
            Rule::PrevUnion { p: 0.75 },
            Rule::PrevUnion { p: 0.9 },
            Rule::Mix { lambda: 4.0 / ranks as f64 },
            Rule::Hysteresis { h: 2.0 },
        ];
        let found = unions(&rules, ranks);
        println!("{ranks} ranks: {found:.2?}");
        for ((found, expected), rule) in found.iter().zip(expected).zip(rules) {
            let off = (found / expected - 1.0).abs();
            assert!(off < 0.06, "{ranks} ranks, {rule:?}: {found} for {expected}");
        }
    }
}
