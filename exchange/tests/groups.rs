//! Groups of buckets: a step in several messages comes to what it comes to in one, and fails as a
//! whole.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{Random, bits, each_rank, half, parameters};
use gradwire_exchange::{
    Bucketing, Collective, Error, Exchange, Gauge, Policy, SchemeConfig, Solo, State, mesh,
};

const PATIENT: Duration = Duration::from_secs(20);
const LENGTHS: [usize; 6] = [700, 3, 1200, 64, 9, 2048];
const LENGTH: usize = 4024;

fn policy() -> Policy {
    Policy {
        dense_below: Some(10),
        warmup_steps: Some(1),
        measure_every: Some(2),
        ..Policy::from(Bucketing::Parameter)
    }
}

/// Four compressed buckets (parameters 0, 2, 3, 5), and behind them one of the two small parameters.
fn exchange(scheme: &SchemeConfig, end: impl Collective + 'static) -> Exchange {
    Exchange::new(scheme, policy(), parameters(&LENGTHS), 9, Box::new(end)).unwrap()
}

type Outcome = (Vec<Vec<u32>>, State, Vec<u64>, Vec<Vec<Gauge>>);

/// Means, state, bytes and gauges of four steps in these groups, exchanged in this order.
fn run(
    scheme: &SchemeConfig,
    world_size: usize,
    groups: &[Vec<usize>],
    order: &[usize],
) -> Vec<Outcome> {
    each_rank(mesh(world_size, PATIENT), |rank, end| {
        let rank = rank as u64;
        let mut sleeps = Random(rank + 1000);
        let mut exchange = exchange(scheme, end);
        exchange.set_groups(groups.to_vec()).unwrap();
        let (mut means, mut bytes, mut gauges) = (Vec::new(), Vec::new(), Vec::new());
        for step in 1..=4 {
            let mut gradient = Random(10 * step + rank).laplaces(LENGTH);
            exchange.begin(step);
            for group in order {
                std::thread::sleep(Duration::from_micros(sleeps.below(300) as u64));
                exchange.exchange_group(*group, &mut gradient).unwrap();
            }
            let traffic = exchange.finish(&gradient).unwrap();
            means.push(bits(&gradient));
            // A group has a leg for each kind of message: plain values travel by themselves.
            let mut legs: Vec<usize> = traffic.legs.iter().map(|leg| leg.group).collect();
            legs.dedup();
            assert_eq!(legs, order);
            let sum = traffic.legs.iter().map(|leg| leg.wire_bytes).sum::<u64>();
            assert_eq!(sum, traffic.wire_bytes);
            bytes.push(traffic.wire_bytes);
            bytes.push(traffic.dense_bytes);
            gauges.push(traffic.gauges);
        }
        (means, exchange.save(), bytes, gauges)
    })
}

#[test]
fn the_groups_and_their_order_change_nothing() {
    let all = [(0..5).collect::<Vec<usize>>()];
    let each: Vec<Vec<usize>> = (0..5).map(|bucket| vec![bucket]).collect();
    let mixed = [vec![4, 2], vec![0], vec![3, 1]];
    for scheme in SchemeConfig::specimens() {
        for world_size in [1, 3] {
            let expected = run(&scheme, world_size, &all, &[0]);
            let backwards: Vec<usize> = (0..5).rev().collect();
            for (groups, order) in [(&each[..], &backwards[..]), (&mixed, &[1, 2, 0])] {
                let found = run(&scheme, world_size, groups, order);
                assert_eq!(found, expected, "{scheme:?} × {world_size} in {groups:?}");
            }
        }
    }
}

#[test]
fn allreduce_takes_every_group_in_order() {
    let ranks = each_rank(mesh(2, PATIENT), |_, end| {
        let mut exchange = exchange(&half(), end);
        exchange.set_groups(vec![vec![1, 4], vec![0, 2, 3]]).unwrap();
        let mut gradient = Random(1).laplaces(LENGTH);
        let traffic = exchange.allreduce(1, &mut gradient).unwrap();
        (bits(&gradient), traffic.legs.len())
    });
    let whole = each_rank(mesh(2, PATIENT), |_, end| {
        let mut gradient = Random(1).laplaces(LENGTH);
        let traffic = exchange(&half(), end).allreduce(1, &mut gradient).unwrap();
        (bits(&gradient), traffic.legs.len())
    });
    assert_eq!((ranks[0].1, whole[0].1), (2, 1));
    assert_eq!(ranks[0].0, whole[0].0);
}

/// A NaN in the second group, an abort before it: every rank fails with the same error, nothing of
/// the first group lasts but its mean, and the step can be made again.
#[test]
fn a_step_that_fails_in_a_later_group_leaves_no_trace() {
    for scheme in SchemeConfig::specimens() {
        for aborts in [false, true] {
            let ranks = each_rank(mesh(3, PATIENT), |rank, end| {
                let mut exchange = exchange(&scheme, end);
                exchange.set_groups(vec![vec![3, 4], vec![0, 1, 2]]).unwrap();
                for step in 1..=2 {
                    let mut gradient = Random(10 * step + rank as u64).laplaces(LENGTH);
                    exchange.allreduce(step, &mut gradient).unwrap();
                }
                let before = exchange.save();
                let mut gradient = Random(rank as u64).laplaces(LENGTH);
                exchange.begin(3);
                exchange.exchange_group(0, &mut gradient).unwrap();
                let error = match rank {
                    1 if aborts => exchange.abort(3, "enough"),
                    1 => {
                        gradient[1800] = f32::NAN;
                        exchange.exchange_group(1, &mut gradient).unwrap_err()
                    }
                    _ => exchange.exchange_group(1, &mut gradient).unwrap_err(),
                };
                assert_eq!(exchange.save(), before, "{scheme:?}");
                let unbegun = exchange.exchange_group(1, &mut gradient).unwrap_err();
                assert!(matches!(unbegun, Error::Groups { .. }), "{unbegun}");
                let mut again = Random(rank as u64).laplaces(LENGTH);
                exchange.allreduce(3, &mut again).unwrap();
                (error, bits(&gradient[1964..]), bits(&again[1964..]))
            });
            for (error, first, again) in &ranks {
                assert_eq!(*error, ranks[0].0);
                assert_eq!(first, again, "{scheme:?}: the first group's mean");
            }
            match (&ranks[0].0, aborts) {
                (Error::Aborted { rank: 1, step: 3, .. }, true) => {}
                (Error::NonFinite { rank: 1, step: 3, parameter, index, .. }, false) => {
                    assert_eq!((parameter.as_str(), *index), ("p2", 1800 - 700));
                }
                (other, _) => panic!("{other}"),
            }
        }
    }
}

#[test]
fn ranks_in_different_groups_find_out() {
    let ranks = each_rank(mesh(2, PATIENT), |rank, end| {
        let mut exchange = exchange(&half(), end);
        exchange.set_groups(vec![vec![0, 1], vec![2, 3, 4]]).unwrap();
        exchange.begin(1);
        exchange.exchange_group(rank, &mut Random(1).laplaces(LENGTH)).unwrap_err()
    });
    for (rank, error) in ranks.iter().enumerate() {
        let Error::OutOfStep { by, expected, found } = error else { panic!("{error}") };
        assert_eq!((*by, expected.bucket, found.bucket), (rank, [0, 2][rank], [2, 0][rank]));
    }
    // Other groups altogether.
    let ranks = each_rank(mesh(2, PATIENT), |rank, end| {
        let mut exchange = exchange(&half(), end);
        let rest = (1..5).collect();
        let groups = if rank == 0 { vec![vec![0], rest] } else { vec![(0..5).collect()] };
        exchange.set_groups(groups).unwrap();
        exchange.allreduce(1, &mut Random(1).laplaces(LENGTH)).unwrap_err()
    });
    assert!(ranks.iter().any(|error| matches!(error, Error::Message { .. })), "{ranks:?}");
}

#[test]
fn groups_that_are_no_partition_and_groups_out_of_turn_are_refused() {
    let mut exchange = exchange(&half(), Solo);
    let lengths: Vec<usize> = exchange.buckets().iter().map(|bucket| bucket.range.len()).collect();
    assert_eq!(lengths, [700, 1200, 64, 2048, 12]);
    assert!(exchange.buckets()[4].dense);
    for groups in [
        vec![],
        vec![vec![0, 1, 2, 3]],
        vec![vec![0, 1, 2, 3, 4], vec![]],
        vec![vec![0, 1, 2, 3, 4], vec![2]],
        vec![vec![0, 1, 2, 3, 4, 5]],
    ] {
        let error = exchange.set_groups(groups.clone()).unwrap_err();
        assert!(matches!(error, Error::Groups { .. }), "{groups:?}: {error}");
    }
    assert_eq!(exchange.groups(), [vec![0, 1, 2, 3, 4]]);
    exchange.set_groups(vec![vec![0, 1], vec![2, 3, 4]]).unwrap();
    let mut gradient = vec![1.0; LENGTH];
    let groups_error = |result: Result<(), Error>| matches!(result, Err(Error::Groups { .. }));
    assert!(groups_error(exchange.exchange_group(0, &mut gradient)), "before a beginning");
    assert!(groups_error(exchange.finish(&gradient).map(|_| ())), "before a beginning");
    exchange.begin(1);
    exchange.exchange_group(1, &mut gradient).unwrap();
    assert!(groups_error(exchange.exchange_group(1, &mut gradient)), "twice");
    exchange.begin(1);
    assert!(groups_error(exchange.exchange_group(2, &mut gradient)), "no such group");
    exchange.begin(1);
    exchange.exchange_group(0, &mut gradient).unwrap();
    assert!(groups_error(exchange.finish(&gradient).map(|_| ())), "a group is missing");

    let policy = Policy { clip_norm: Some(1.0), ..policy() };
    let mut clipped =
        Exchange::new(&half(), policy, parameters(&LENGTHS), 0, Box::new(Solo)).unwrap();
    let error = clipped.set_groups(vec![vec![0, 1], vec![2, 3, 4]]).unwrap_err();
    assert!(error.to_string().contains("`clip_norm` to 0"), "{error}");
    clipped.set_groups(vec![vec![4, 3, 2, 1, 0]]).unwrap();
}
