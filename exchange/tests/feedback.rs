//! The forms of error feedback: what fades, EF21 with momentum, and a momentum that ranks share.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod common;

use common::{Trial, bits, each_rank, half, parameters, wirings};
use gradwire_exchange::schemes::{demo, powersgd, topk};
use gradwire_exchange::{
    Bucketing, Exchange, FeedbackRule, Layout, Policy, Rule, Scheme, SchemeConfig, mesh,
};

/// A form with its numbers as published code computes them (feedback.py).
#[derive(serde::Deserialize)]
struct Expected {
    means: Vec<Vec<f64>>,
    residuals: Vec<Vec<f64>>,
}

#[derive(serde::Deserialize)]
struct Recorded {
    gradients: Vec<Vec<Vec<f32>>>,
    decay: Expected,
    efsgdm: Expected,
    momentum: Expected,
}

/// Fails unless three ranks that are given these gradients take these means, and are left with these residuals.
fn computes(
    scheme: &SchemeConfig,
    policy: &Policy,
    layout: &Layout,
    gradients: &[Vec<Vec<f32>>],
    expected: &Expected,
) {
    let near = |found: &[f32], expected: &[f64]| {
        for (found, expected) in found.iter().zip(expected) {
            let near = (f64::from(*found) - expected).abs() < 1e-5;
            assert!(near, "{policy:?}: {found} {expected}");
        }
    };
    each_rank(mesh(3, common::PATIENT), |rank, end| {
        let (policy, layout) = (policy.clone(), layout.clone());
        let mut exchange = Exchange::new(scheme, policy, layout, 0, end).unwrap();
        for (step, (gradients, mean)) in (1..).zip(gradients.iter().zip(&expected.means)) {
            let mut gradient = gradients[rank].clone();
            exchange.allreduce(step, &mut gradient).unwrap();
            near(&gradient, mean);
        }
        near(exchange.residual().unwrap(), &expected.residuals[rank]);
    });
}

#[test]
fn all_forms_are_what_published_code_computes() {
    let recorded: Recorded = serde_json::from_str(include_str!("vectors/feedback.json")).unwrap();
    let config = topk::Config { ratio: 0.25.into(), chunk: 8, ..Default::default() };
    let scheme = SchemeConfig::Topk(config);
    for (rule, expected) in [
        (FeedbackRule::Decay(0.9), &recorded.decay),
        (FeedbackRule::Efsgdm(0.25), &recorded.efsgdm),
        (FeedbackRule::Momentum(0.8), &recorded.momentum),
    ] {
        let policy = Policy { feedback: Some(rule), ..Policy::from(Bucketing::Whole) };
        computes(&scheme, &policy, &parameters(&[24]), &recorded.gradients, expected);
    }
}

fn with(trial: &Trial, rule: FeedbackRule) -> Trial {
    let mut trial = trial.clone();
    trial.policy.feedback = Some(rule);
    trial
}

/// Every scheme with feedback of the usual form, and no momentum, over every topology, with exact means and with compressed
/// ones.
fn fed_back() -> impl Iterator<Item = Trial> {
    let schemes = SchemeConfig::specimens()
        .into_iter()
        .filter(|scheme| scheme.feedback() && scheme.default_policy().feedback.is_none());
    let trials = schemes.flat_map(move |scheme| {
        wirings().into_iter().map(move |wiring| {
            let mut trial = Trial::new(&scheme, wiring);
            trial.policy.momentum_correction = Some(0.0);
            trial
        })
    });
    trials.filter(Trial::is_valid)
}

/// In each step, over all ranks: mean taken + residual′ = gradient + decay · residual, where a compressed way back has a
/// residual, too, which fades alike; a decay of 1 is the usual feedback, bit for bit.
#[test]
fn what_fades_is_what_the_rule_says() {
    for trial in fed_back() {
        with(&trial, FeedbackRule::Decay(0.75)).loses_nothing(3, 4, 1e-3);
        if trial.wiring == gradwire_exchange::Topology::Allgather.into() {
            let whole = with(&trial, FeedbackRule::Decay(1.0)).run(2);
            assert!(whole == trial.run(2), "{trial:?}");
        }
    }
}

/// What ranks take is the mean over ranks of their running means, but for what their residuals hold, and that of a compressed
/// way back: of every contraction, through warm-ups, groups and all topologies.
#[test]
fn ef21_takes_the_mean_of_running_means_less_the_residuals() {
    const SHARE: f64 = 0.25;
    let (mut contractions, mut kept_of_means) = (0, 0);
    for trial in fed_back().map(|trial| with(&trial, FeedbackRule::Efsgdm(SHARE))) {
        if trial.policy.validate(&trial.scheme).is_err() {
            continue;
        }
        contractions += 1;
        let trial = trial.groups(&[vec![1, 3], vec![0, 2], vec![4]]);
        let ranks = trial.over(3, |rank, mut exchange| {
            let (mut average, mut taken) = (vec![0f64; Trial::LENGTH], Vec::new());
            for step in 1..=5 {
                let mut gradient = Trial::gradient(rank, step);
                let news = average.iter_mut().zip(&gradient);
                news.for_each(|(v, g)| *v += SHARE * (f64::from(*g) - *v));
                exchange.allreduce(step, &mut gradient).unwrap();
                taken = gradient;
            }
            let of_means = trial.residual_of_means(rank, &exchange);
            (average, exchange.residual().unwrap().to_vec(), taken, of_means)
        });
        assert!(ranks.iter().all(|rank| bits(&rank.2) == bits(&ranks[0].2)), "{trial:?}");
        for i in 0..Trial::LENGTH {
            let due = ranks.iter().map(|rank| rank.0[i] - f64::from(rank.1[i])).sum::<f64>() / 3.0;
            let of_mean = ranks.iter().map(|rank| f64::from(rank.3[i])).sum::<f64>();
            kept_of_means += usize::from(of_mean != 0.0);
            let lost = due - f64::from(ranks[0].2[i]) - of_mean;
            assert!(lost.abs() < 1e-4, "{trial:?}, element {i}: {due} {of_mean} {lost}");
        }
    }
    assert!(contractions > 30, "{contractions}");
    assert!(kept_of_means > 1000, "{kept_of_means}");
}

/// Saved in the middle and taken up, all go on the same; what would be lost is refused by name.
#[test]
fn all_forms_go_on_where_they_were() {
    for rule in [FeedbackRule::Decay(0.9), FeedbackRule::Efsgdm(0.25), FeedbackRule::Momentum(0.8)]
    {
        for wiring in wirings() {
            let trial = with(&Trial::new(&half(), wiring), rule);
            let saved = trial.goes_on_the_same(3);
            Trial::new(&half(), wiring).over(3, |rank, mut exchange| {
                let restored = exchange.restore(&saved[rank]);
                assert_eq!(restored.is_err(), !matches!(rule, FeedbackRule::Decay(_)), "{trial:?}");
            });
        }
    }
}

#[derive(serde::Deserialize)]
struct Demo {
    gradients: Vec<Vec<Vec<f32>>>,
    means: Vec<Vec<f64>>,
    momenta: Vec<Vec<f64>>,
}

/// DeMo's momentum is the residual of its scheme: algorithm 1, step by step, on matrices, vectors and a kernel.
#[test]
fn demo_is_what_its_paper_writes() {
    let recorded: Demo = serde_json::from_str(include_str!("vectors/demo.json")).unwrap();
    let Demo { gradients, means, momenta: residuals } = recorded;
    let expected = Expected { means, residuals };
    let config = demo::Config { chunk: 4, k: 3, decay: 0.9, ..Default::default() };
    let scheme = SchemeConfig::Demo(config);
    let shapes = [vec![6, 10], vec![7], vec![8], vec![4, 3, 2]];
    let named = (0..).zip(shapes).map(|(i, shape): (usize, _)| (format!("p{i}"), shape));
    let layout = Layout::shaped(named).unwrap();
    for bucketing in [Bucketing::Whole, Bucketing::Parameter] {
        computes(&scheme, &bucketing.into(), &layout, &gradients, &expected);
    }
}

/// A scheme whose residual is its momentum takes no other form, nor a momentum correction, around it.
#[test]
fn demo_keeps_its_own_form_of_feedback() {
    let demo = SchemeConfig::Demo(demo::Config::default());
    let topk = SchemeConfig::Topk(topk::Config::default());
    let own = FeedbackRule::Decay(0.999);
    let rule = Rule { pattern: "p0".into(), scheme: demo.clone() };
    let with = |feedback, rules: &[Rule], momentum_correction| Policy {
        feedback,
        rules: rules.to_vec(),
        momentum_correction,
        ..Policy::default()
    };
    let ruled = [rule];
    for (policy, scheme, good) in [
        (with(None, &[], None), &demo, true),
        (with(Some(own), &[], None), &demo, true),
        (with(Some(FeedbackRule::Decay(0.9)), &[], None), &demo, false),
        (with(Some(FeedbackRule::Efsgdm(0.1)), &[], None), &demo, false),
        (with(Some(FeedbackRule::Momentum(0.9)), &[], None), &demo, false),
        (with(None, &[], Some(0.9)), &demo, false),
        (with(None, &ruled, None), &topk, false),
        (with(Some(own), &ruled, None), &topk, true),
    ] {
        let found = policy.validate(scheme);
        assert_eq!(found.is_ok(), good, "{policy:?}: {found:?}");
        if let Err(error) = found {
            assert!(error.to_string().contains("leave `feedback` and"), "{error}");
        }
    }
}

/// What is below 1 and is not as f32, or not 0 and is as f32, is refused; so are first steps of one rule alone.
#[test]
fn settings_that_would_do_nothing_are_refused() {
    let topk = SchemeConfig::Topk(topk::Config::default());
    let with = |feedback, momentum_correction| Policy {
        feedback,
        momentum_correction,
        ..Policy::default()
    };
    for (policy, good) in [
        (with(Some(FeedbackRule::Momentum(0.99)), None), true),
        (with(Some(FeedbackRule::Momentum(0.999_999_999)), None), false),
        (with(Some(FeedbackRule::Efsgdm(1e-3)), None), true),
        (with(Some(FeedbackRule::Efsgdm(1e-50)), None), false),
        (with(None, Some(0.99)), true),
        (with(None, Some(0.999_999_999)), false),
    ] {
        assert_eq!(policy.validate(&topk).is_ok(), good, "{policy:?}");
    }
    let late = powersgd::Config { start_step: 11, ..Default::default() };
    let rules = vec![Rule { pattern: "p0".into(), scheme: SchemeConfig::Powersgd(late) }];
    for (warmup_steps, good) in [(None, false), (Some(9), false), (Some(10), true)] {
        let policy = Policy { rules: rules.clone(), warmup_steps, ..Policy::default() };
        let found = policy.validate(&topk);
        assert_eq!(found.is_ok(), good, "{found:?}");
    }
}

/// The momentum that ranks share is what they took last, the same bits on all of them, and nothing else is lost:
/// of every scheme, through warm-ups, groups and all topologies, those that compress the way back too.
#[test]
fn a_shared_momentum_is_what_ranks_took_and_nothing_is_lost() {
    const FACTOR: f64 = 0.75;
    let mut cases = 0;
    for trial in Trial::each(&SchemeConfig::specimens(), &wirings()) {
        let mut trial = with(&trial, FeedbackRule::Momentum(FACTOR));
        let scheme = trial.scheme.clone();
        trial.policy.momentum_correction = Some(0.0);
        if trial.policy.validate(&scheme).is_err() {
            continue;
        }
        cases += 1;
        let trial = trial.groups(&[vec![1, 3], vec![0, 2], vec![4]]);
        let ranks = trial.over(3, |rank, mut exchange| {
            let (mut lost, mut last) = (vec![0f64; Trial::LENGTH], vec![0f32; Trial::LENGTH]);
            for step in 1..=5 {
                let mut gradient = Trial::gradient(rank, step);
                let due = lost.iter_mut().zip(&gradient).zip(&last);
                due.for_each(|((lost, g), m)| {
                    *lost += FACTOR * f64::from(*m) + (1.0 - FACTOR) * f64::from(*g);
                });
                exchange.allreduce(step, &mut gradient).unwrap();
                lost.iter_mut().zip(&gradient).for_each(|(lost, m)| *lost -= f64::from(*m));
                last = gradient;
            }
            let residual = exchange.residual().unwrap();
            lost.iter_mut().zip(residual).for_each(|(lost, left)| *lost -= f64::from(*left));
            if scheme.feedback() {
                // The residual of the mean belongs to all ranks.
                let of_mean = trial.residual_of_means(rank, &exchange);
                lost.iter_mut()
                    .zip(of_mean)
                    .for_each(|(lost, left)| *lost -= 3.0 * f64::from(left));
            }
            let kept = exchange.save();
            let kept =
                exchange.layout().from_name_order(kept.f32s("momentum", Trial::LENGTH).unwrap());
            assert_eq!(bits(&kept), bits(&last), "{trial:?}");
            (lost, bits(&last))
        });
        assert!(ranks.iter().all(|rank| rank.1 == ranks[0].1), "{trial:?}");
        if scheme.feedback() {
            for i in 0..Trial::LENGTH {
                let lost: f64 = ranks.iter().map(|rank| rank.0[i]).sum();
                assert!(lost.abs() < 1e-3, "{trial:?}, element {i}: {lost}");
            }
        }
    }
    assert!(cases > 150, "{cases}");
}
