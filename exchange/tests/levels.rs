//! Ranks that speak in groups: what each group says is what one rank with the group's mean would say.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod common;

use common::{PATIENT, Trial, bits, each_rank, half, parameters};
use gradwire_exchange::schemes::topk;
use gradwire_exchange::{
    Awaited, Bucketing, Error, Exchange, FeedbackRule, Policy, Scheme, SchemeConfig, Topology,
    Traffic, mesh,
};

const LENGTH: usize = Trial::LENGTH;

fn two_level(scheme: &SchemeConfig, group: usize) -> Trial {
    let mut trial = Trial::new(scheme, Topology::TwoLevel { group });
    trial.policy.momentum_correction = Some(0.0);
    trial
}

/// A group's mean as ranks come to it.
fn group_mean(first: usize, group: usize, step: u64) -> Vec<f32> {
    let mut mean = Trial::gradient(first, step);
    for rank in first + 1..first + group {
        mean.iter_mut().zip(Trial::gradient(rank, step)).for_each(|(sum, value)| *sum += value);
    }
    mean.iter_mut().for_each(|value| *value *= 1.0 / group as f32);
    mean
}

/// Every scheme, in groups of buckets or not, between threads and between processes: the same bits on all
/// ranks; without feedback those of as many ranks as there are groups, each with its group's mean; with
/// it nothing is lost, and ranks of a group keep the same.
#[test]
fn a_group_is_one_rank_with_its_mean() {
    let two = [vec![3, 0], vec![4, 2, 1]];
    for (number, scheme) in SchemeConfig::specimens().into_iter().enumerate() {
        let (ranks, group) = [(4, 2), (6, 3), (6, 2), (2, 2)][number % 4];
        let groups = if number % 3 == 0 { &two[..] } else { &[] };
        let trial = two_level(&scheme, group).groups(groups);
        let found =
            trial.everywhere(ranks, |rank, mut exchange| trial.steps(rank, &mut exchange, 1..=4));
        for ran in found.iter().flatten() {
            assert_eq!(ran.means, found[0][0].means, "{trial:?} × {ranks}");
        }
        for ranks in &found {
            for (ran, first) in
                ranks.iter().zip((0..ranks.len()).map(|rank| &ranks[rank / group * group]))
            {
                assert!(ran.state == first.state, "{trial:?}");
            }
        }
        let mut flat = trial.clone();
        flat.wiring = Topology::Allgather.into();
        let expected = flat.over(ranks / group, |rank, mut exchange| {
            let step = |step| {
                let mut gradient = group_mean(rank * group, group, step);
                exchange.allreduce(step, &mut gradient).unwrap();
                gradient
            };
            let means: Vec<_> = (1..=4).map(step).collect();
            (means, exchange.save())
        });
        if scheme.feedback() {
            trial.loses_nothing(ranks, 5, 1e-3);
            continue;
        }
        let means: Vec<_> = expected[0].0.iter().map(|mean| bits(mean)).collect();
        assert_eq!(found[0][0].means, means, "{trial:?}");
        for (rank, ran) in found[0].iter().enumerate() {
            assert!(ran.state == expected[rank / group].1, "{trial:?}");
        }
    }
}

/// With every form of feedback a group is one rank with its mean, but for rounding: what each rank keeps of its own
/// gradient (a velocity, EF21's running mean) is in the mean over the group what that one rank would keep.
#[test]
fn every_form_of_feedback_is_that_of_the_groups_mean() {
    let config = topk::Config { ratio: 0.1.into(), ..Default::default() };
    let scheme = SchemeConfig::Topk(config);
    let forms = [
        (Some(FeedbackRule::Decay(0.75)), 0.0),
        (Some(FeedbackRule::Efsgdm(0.25)), 0.0),
        (Some(FeedbackRule::Momentum(0.75)), 0.0),
        (None, 0.75),
    ];
    for (feedback, correction) in forms {
        let mut trial = two_level(&scheme, 2);
        trial.policy.measure_every = Some(0);
        trial.policy.feedback = feedback;
        trial.policy.momentum_correction = Some(correction);
        let grouped = trial.over(6, |rank, mut exchange| {
            let step = |step| {
                let mut gradient = Trial::gradient(rank, step);
                exchange.allreduce(step, &mut gradient).unwrap();
                gradient
            };
            (1..=6).map(step).collect::<Vec<_>>()
        });
        trial.wiring = Topology::Allgather.into();
        let flat = trial.over(3, |rank, mut exchange| {
            let step = |step| {
                let mut gradient = group_mean(2 * rank, 2, step);
                exchange.allreduce(step, &mut gradient).unwrap();
                gradient
            };
            (1..=6).map(step).collect::<Vec<_>>()
        });
        assert!(grouped.iter().all(|means| *means == grouped[0]), "{feedback:?}");
        for (step, (found, expected)) in grouped[0].iter().zip(&flat[0]).enumerate() {
            for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                let near = (found - expected).abs() < 1e-4;
                assert!(near, "{feedback:?} {step} {i}: {found} {expected}");
            }
        }
    }
}

/// One message of each group; within it the shards of what is due and of their means, and from the first to
/// each other one all messages: between threads as between processes.
#[test]
fn bytes_are_those_of_the_two_levels() {
    let (ranks, group) = (6usize, 3u64);
    for scheme in [half(), SchemeConfig::default()] {
        let mut trial = two_level(&scheme, group as usize).bucketing(Bucketing::Whole);
        (trial.policy.dense_below, trial.policy.warmup_steps) = (None, None);
        let found = trial.everywhere(ranks, |rank, mut exchange| {
            exchange.allreduce(1, &mut Trial::gradient(rank, 1)).unwrap()
        });
        let length = 4 * LENGTH as u64;
        for (rank, Traffic { wire_bytes, local_bytes, dense_bytes, .. }) in
            found[0].iter().enumerate()
        {
            // To each other one a frame of its shard, and one of the mean of one's own.
            let own = [1341, 1341, 1342][rank % 3];
            assert_eq!(*dense_bytes, 24 + length);
            if rank % 3 > 0 {
                let shards = 4 * 24 + (length - 4 * own) + 2 * 4 * own;
                assert_eq!((*wire_bytes, *local_bytes), (0, shards));
            }
        }
        let bytes = |ranks: &[Traffic]| -> Vec<_> {
            ranks.iter().map(|traffic| (traffic.wire_bytes, traffic.local_bytes)).collect()
        };
        assert_eq!(bytes(&found[0]), bytes(&found[1]));
        if scheme == half() {
            let [first, other] = [0, 1].map(|rank| &found[0][rank]);
            let message = first.wire_bytes;
            assert_eq!(first.local_bytes - other.local_bytes, (group - 1) * 2 * (8 + message));
            assert!(message < 24 + length / 2 + 24 + length / 8, "{message}");
        }
    }
}

/// A rank that has to refuse is heard by all, whichever it is, and the step can be made again.
#[test]
fn a_refusal_is_everybodys() {
    for scheme in [half(), SchemeConfig::default()] {
        let trial = two_level(&scheme, 2);
        for culprit in [0, 1, 3] {
            let found = trial.everywhere(4, |rank, mut exchange| {
                let before = exchange.save();
                let mut gradient = Trial::gradient(rank, 2);
                if rank == culprit {
                    gradient[5] = f32::NAN;
                }
                let given = bits(&gradient);
                let refused = exchange.allreduce(2, &mut gradient).unwrap_err();
                let is_culprits =
                    matches!(refused, Error::NonFinite { rank, .. } if rank == culprit);
                assert!(is_culprits, "{trial:?}: {refused}");
                assert!(exchange.save() == before && bits(&gradient) == given, "{trial:?}");
                // Of two ranks of a group the sum overflows.
                let mut huge = vec![if rank < 2 { f32::MAX } else { 0.0 }; LENGTH];
                let overflow = exchange.allreduce(2, &mut huge).unwrap_err();
                assert!(matches!(overflow, Error::NonFiniteMean { step: 2, .. }), "{overflow}");
                if rank == culprit {
                    exchange.abort(2, "enough");
                } else {
                    let aborted = exchange.allreduce(2, &mut Trial::gradient(rank, 2)).unwrap_err();
                    let (rank, reason) = (culprit, "enough".to_string());
                    assert_eq!(aborted, Error::Aborted { rank, step: 2, reason });
                }
                trial.steps(rank, &mut exchange, 2..=3).means
            });
            let all: Vec<_> = found.iter().flatten().collect();
            assert!(all.iter().all(|means| *means == all[0]), "{trial:?}");
        }
    }
}

/// Saved in the middle and taken up, all ranks go on the same; what other ranks, not in groups, left unsent
/// is taken up whole.
#[test]
fn residuals_go_on_in_groups_and_out_of_them() {
    for scheme in SchemeConfig::specimens() {
        two_level(&scheme, 2).goes_on_the_same(4);
    }
    let mut flat = two_level(&half(), 2);
    flat.wiring = Topology::Allgather.into();
    let states = flat.run(4);
    let mut all_sent = two_level(&half(), 2);
    all_sent.policy.warmup_steps = Some(100);
    let arrived = all_sent.over(4, |rank, mut exchange| {
        exchange.restore(&states[rank].state).unwrap();
        let left = exchange.residual().unwrap().to_vec();
        let mut mean = vec![0.0; LENGTH];
        exchange.allreduce(9, &mut mean).unwrap();
        assert!(exchange.residual().unwrap().iter().all(|left| *left == 0.0));
        (left, mean)
    });
    for i in 0..LENGTH {
        let due = arrived.iter().map(|(left, _)| f64::from(left[i])).sum::<f64>() / 4.0;
        assert!((due - f64::from(arrived[0].1[i])).abs() < 1e-5, "element {i}");
    }
}

#[test]
fn groups_that_do_not_divide_the_ranks_are_refused_and_a_lost_rank_is_named() {
    let build = |group, end| {
        let (layout, policy) = (parameters(&[9]), Policy::default());
        let topology = Topology::TwoLevel { group };
        Exchange::with(&half(), topology, policy, layout, 1, end)
    };
    let end = mesh(6, PATIENT).swap_remove(0);
    let refused = build(4, end).err().unwrap().to_string();
    assert!(refused.contains("6 ranks do not divide into groups of 4"), "{refused}");
    let alone = mesh(2, PATIENT).swap_remove(0);
    assert!(build(1, alone).err().unwrap().to_string().contains("at least two ranks"));
    each_rank(mesh(4, PATIENT), |rank, end| {
        if rank == 3 {
            return drop(end);
        }
        let mut exchange = build(2, end).unwrap();
        let lost = exchange.allreduce(1, &mut [1.0; 9]).unwrap_err();
        let awaited = Awaited::Gradient { step: 1 };
        assert_eq!(lost, Error::PeerLost { rank: 3, by: rank, awaited });
    });
}
