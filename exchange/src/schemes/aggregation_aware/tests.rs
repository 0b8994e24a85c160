use super::*;
use crate::schemes::tests::recorded;

fn build(config: &Config, length: usize, rank: usize) -> Box<dyn Compressor> {
    config.codec(&Seat { rank, ..Seat::alone(length, 0) }).unwrap()
}

/// What every rank selected in a round, the mean, and the gauges.
type Step = (Vec<Vec<u32>>, Vec<f32>, Vec<Gauge>);

/// Rounds of several ranks with feedback.
fn simulate(config: &Config, gradients: &[Vec<Vec<f32>>]) -> Vec<Step> {
    let (ranks, length) = (gradients[0].len(), gradients[0][0].len());
    let mut compressors: Vec<_> = (0..ranks).map(|rank| build(config, length, rank)).collect();
    let mut due = vec![vec![0.0f32; length]; ranks];
    let round = |(at, gradients): (usize, &Vec<Vec<f32>>)| {
        let step = at as u64 + 1;
        let mut wires = vec![Vec::new(); ranks];
        let mut sum = vec![0.0; length];
        for rank in 0..ranks {
            due[rank].iter_mut().zip(&gradients[rank]).for_each(|(due, g)| *due += g);
            compressors[rank].encode(&due[rank], step, &mut wires[rank]);
            compressors[rank].decode_add(&wires[rank], 0, -1.0, &mut due[rank]).unwrap();
            compressors[rank].decode_add(&wires[rank], 0, 1.0, &mut sum).unwrap();
        }
        let mean: Vec<f32> = sum.iter().map(|sum| sum / ranks as f32).collect();
        let messages: Vec<_> = wires.iter().map(|wire| Some(&wire[..])).collect();
        let round = StepMessages { step, messages: &messages, mean: &mean };
        compressors.iter_mut().for_each(|compressor| compressor.learn_and_commit(&round).unwrap());
        let selected = compressors.iter().map(|c| c.sent().unwrap().to_vec()).collect();
        (selected, mean, compressors[0].gauges().to_vec())
    };
    gradients.iter().enumerate().map(round).collect()
}

fn gauge(gauges: &[Gauge], name: &str) -> f64 {
    gauges.iter().find(|gauge| gauge.name == name).unwrap().value
}

/// What every rank selected in a round, and the sum over ranks.
type Outcome = (Vec<Vec<u32>>, Vec<f64>);

/// The same rounds by sorting, in f64.
fn simulate_naively(rule: SelectionRule, k: usize, gradients: &[Vec<Vec<f64>>]) -> Vec<Outcome> {
    let mut due = vec![vec![0.0; gradients[0][0].len()]; gradients[0].len()];
    let mut history: Vec<Outcome> = Vec::new();
    for gradients in gradients {
        let mut sum = vec![0.0; due[0].len()];
        let mut selections = Vec::new();
        for (due, gradient) in due.iter_mut().zip(gradients) {
            due.iter_mut().zip(gradient).for_each(|(due, g)| *due += g);
            let selected = naive(rule, due, k, &history);
            for at in &selected {
                sum[*at as usize] += std::mem::take(&mut due[*at as usize]);
            }
            selections.push(selected);
        }
        history.push((selections, sum));
    }
    history
}

fn union(selections: &[Vec<u32>]) -> Vec<u32> {
    let mut union = selections.concat();
    union.sort_unstable();
    union.dedup();
    union
}

/// The recorded rounds have ties that the rounding of f64 decides, and so the rules by sorting
/// are held against them in f64, and the fast ones against those by sorting, on numbers that f32
/// adds exactly.
#[test]
fn selections_unions_and_means_equal_the_vectors() {
    let vectors: serde_json::Value =
        serde_json::from_str(include_str!("../../../tests/vectors/wang_selection.json")).unwrap();
    let gradients: Vec<Vec<Vec<f64>>> = recorded(&vectors["gradients"]);
    for case in vectors["cases"].as_array().unwrap() {
        let parameter = |key: &str| case["params"][key].as_f64().unwrap();
        let rule = match case["rule"].as_str().unwrap() {
            "topk" => SelectionRule::Topk,
            "prev_union" => SelectionRule::PrevUnion { p: parameter("p") },
            "mix_magnitude" => SelectionRule::Mix { lambda: parameter("lambda") },
            _ => SelectionRule::Hysteresis { h: parameter("h") },
        };
        let found = simulate_naively(rule, 4, &gradients);
        for ((selections, sum), round) in found.iter().zip(case["rounds"].as_array().unwrap()) {
            assert_eq!(*selections, recorded::<Vec<Vec<u32>>>(&round["selected"]), "{rule:?}");
            let union = union(selections);
            assert_eq!(union, recorded::<Vec<u32>>(&round["union"]), "{rule:?}");
            for (position, mean) in union.iter().zip(recorded::<Vec<f64>>(&round["mean"])) {
                assert!((sum[*position as usize] / 3.0 - mean).abs() < 1e-9, "{rule:?}");
            }
            assert_eq!(8 * union.len() as u64, round["server_bytes_per_worker"].as_u64().unwrap());
        }
    }
}

/// Every rule by sorting, from the last rounds.
fn naive(rule: SelectionRule, u: &[f64], k: usize, history: &[Outcome]) -> Vec<u32> {
    let all: Vec<u32> = (0..u.len() as u32).collect();
    let best = |score: &dyn Fn(u32) -> f64, of: &[u32], k: usize| -> Vec<u32> {
        let mut order = of.to_vec();
        order.sort_by(|a, b| score(*b).total_cmp(&score(*a)).then(a.cmp(b)));
        order.truncate(k);
        order
    };
    let size = |at: u32| u[at as usize].abs();
    let inside = |round: &Vec<Vec<u32>>, at: u32| round.iter().any(|list| list.contains(&at));
    let with_places = |first: Vec<u32>| {
        let rest: Vec<u32> = all.iter().copied().filter(|at| !first.contains(at)).collect();
        let others = best(&size, &rest, k - first.len());
        [first, others].concat()
    };
    let Some((last, sum)) = history.last() else {
        let mut top = best(&size, &all, k);
        top.sort_unstable();
        return top;
    };
    let union = union(last);
    let mut selected = match rule {
        SelectionRule::PrevUnion { p } => {
            with_places(best(&size, &union, SelectionRule::places(p, k)))
        }
        SelectionRule::Mix { lambda } => {
            best(&|at| size(at) + lambda * sum[at as usize].abs(), &all, k)
        }
        SelectionRule::Hysteresis { h } => {
            best(&|at| size(at) * if inside(last, at) { h } else { 1.0 }, &all, k)
        }
        SelectionRule::Topk => best(&size, &all, k),
    };
    selected.sort_unstable();
    selected
}

#[test]
fn rules_equal_those_by_sorting() {
    const LENGTH: usize = 200;
    let stream = crate::rng::Stream::new(&[5]);
    // Whole numbers: ties abound, and sums are exact in any order.
    let gradients: Vec<Vec<Vec<f32>>> = (0..9u32)
        .map(|round| {
            let value = |rank: u32, at: u32| {
                let draw = stream.below((round * 3 + rank) * 1000 + at, 41) as f32 - 20.0;
                if (at + round / 3).is_multiple_of(9) { 4.0 * draw } else { draw }
            };
            (0..3).map(|rank| (0..LENGTH as u32).map(|at| value(rank, at)).collect()).collect()
        })
        .collect();
    let mut rules: Vec<SelectionRule> =
        Config::examples().iter().map(|config| config.rule).collect();
    rules.extend([
        SelectionRule::default(),
        SelectionRule::PrevUnion { p: 0.5 },
        SelectionRule::Topk,
    ]);
    let exact: Vec<Vec<Vec<f64>>> = gradients
        .iter()
        .map(|round| {
            round.iter().map(|rank| rank.iter().copied().map(f64::from).collect()).collect()
        })
        .collect();
    for rule in rules {
        let config = Config { rule, ratio: 0.1.into(), ..Config::default() };
        let rounds = simulate(&config, &gradients);
        for ((selected, mean, gauges), (expected, sum)) in
            rounds.iter().zip(simulate_naively(rule, 20, &exact))
        {
            assert_eq!(*selected, expected, "{rule:?}");
            for (mean, sum) in mean.iter().zip(sum) {
                assert!((f64::from(*mean) - sum / 3.0).abs() <= 1e-5, "{rule:?}");
            }
            let union = union(selected).len() as f64;
            assert_eq!(gauge(gauges, "union"), union);
            assert_eq!(gauge(gauges, "union_ratio"), union / 20.0);
            assert_eq!(gauge(gauges, "server_bytes"), 8.0 * union);
            assert_eq!(gauge(gauges, "server_bytes_bound"), 8.0 * 60.0);
        }
    }
}
