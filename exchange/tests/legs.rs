//! Which collective carries what in one process, and what each is about: what the network model charges.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{PATIENT, each_rank, topk};
use gradwire_exchange::Operation::{Allreduce, Messages, ReduceScatter};
use gradwire_exchange::schemes::{half, powersgd};
use gradwire_exchange::{
    Exchange, Layout, Leg, Operation, Policy, SchemeConfig, Solo, Topology, Traffic, mesh,
};

/// Bytes of a frame's header.
const HEADER: u64 = 24;
/// A matrix of 64 rows and columns, and a bias.
const PARTS: [u64; 2] = [4096, 64];

/// What rank 0 of `ranks` notes of each of two steps.
fn traffic(
    scheme: &SchemeConfig,
    policy: &Policy,
    topology: Topology,
    ranks: usize,
) -> Vec<Traffic> {
    let all = each_rank(mesh(ranks, PATIENT), |_, end| {
        let parts = [("b".to_string(), vec![64]), ("w".to_string(), vec![64, 64])];
        let layout = Layout::shaped(parts).unwrap();
        let mut exchange =
            Exchange::with(scheme, topology, policy.clone(), layout, 1, end).unwrap();
        let step = |step| {
            let mut gradient: Vec<f32> = (0..4160).map(|i| (i as f32).sin()).collect();
            exchange.allreduce(step, &mut gradient[..]).unwrap()
        };
        (1..=2).map(step).collect::<Vec<_>>()
    });
    all.into_iter().next().unwrap()
}

fn operations(traffic: &Traffic) -> Vec<Operation> {
    traffic.legs.iter().map(|leg| leg.operation).collect()
}

fn dense_bytes(traffic: &Traffic) -> Vec<u64> {
    let each: Vec<u64> = traffic.legs.iter().map(|leg: &Leg| leg.dense_bytes).collect();
    assert_eq!(each.iter().sum::<u64>(), traffic.dense_bytes, "the legs are about all of it");
    each
}

/// No rank of a process decodes N plain messages: they are averaged in shards, as an allreduce does.
#[test]
fn plain_values_are_an_allreduce_in_one_process() {
    let none = Policy::default();
    let whole = HEADER + 4 * (PARTS[0] + PARTS[1]);
    for topology in [Topology::Allgather, Topology::Sharded] {
        let dense = traffic(&SchemeConfig::default(), &none, topology, 4);
        assert_eq!(operations(&dense[0]), [Allreduce]);
        assert_eq!(dense_bytes(&dense[0]), [whole]);
        // Uncompressed first steps, and small parameters beside compressed ones.
        let topk = topk(0.01);
        let first = Policy { warmup_steps: Some(1), ..Policy::default() };
        let steps = traffic(&topk, &first, topology, 4);
        assert_eq!(operations(&steps[0]), [Allreduce]);
        assert_eq!(operations(&steps[1]), [Messages]);
        // What came back beside messages: of shards what this rank shared, of an allgather nothing.
        assert_eq!(steps[1].downlink_bytes > 0, topology == Topology::Sharded);
        let small = Policy { dense_below: Some(100), ..Policy::default() };
        let steps = traffic(&topk, &small, topology, 4);
        assert_eq!(operations(&steps[0]), [Messages, Allreduce]);
        assert_eq!(dense_bytes(&steps[0]), PARTS.map(|part| HEADER + 4 * part));
    }
    // A server reads everything itself.
    let served = traffic(&SchemeConfig::default(), &none, Topology::Server, 4);
    assert_eq!(operations(&served[0]), [Messages]);
    assert!(served[0].legs[0].aggregate_cpu > Duration::ZERO && served[0].downlink_bytes > 0);
}

/// Headers count on both sides: what is sent as plain f32 takes exactly 32 bits per parameter.
#[test]
fn dense_takes_exactly_32_bits_per_parameter() {
    let small = Policy { dense_below: Some(100), ..Policy::default() };
    for topology in Topology::ALL.iter().filter(|topology| topology.name() != "two-level") {
        for ranks in [1, 3] {
            let steps = traffic(&SchemeConfig::default(), &small, *topology, ranks);
            let ratios = steps.iter().map(Traffic::compression_ratio);
            assert!(ratios.eq([1.0, 1.0]), "{topology:?} × {ranks}");
            let bits = steps.iter().map(Traffic::bits_per_parameter);
            assert!(bits.eq([32.0, 32.0]), "{topology:?} × {ranks}");
        }
    }
}

#[test]
fn half_is_reduced_in_shards_where_that_sends_less() {
    let half = SchemeConfig::Half(half::Config::default());
    let at = |ranks| traffic(&half, &Policy::default(), Topology::Allgather, ranks);
    assert_eq!(operations(&at(2)[0]), [Messages]);
    assert_eq!(operations(&at(4)[0]), [ReduceScatter]);
}

/// The factors of PowerSGD are means of values in two rounds, about the same matrix; the vector
/// beside it is sent as it is.
#[test]
fn rounds_are_about_their_gradient_once() {
    let powersgd = SchemeConfig::Powersgd(powersgd::Config::default());
    let policy = Policy { dense_below: Some(100), ..Policy::default() };
    let steps = traffic(&powersgd, &policy, Topology::Allgather, 4);
    assert!(operations(&steps[1]).iter().all(|operation| *operation == Allreduce));
    let [vector, matrix] = [HEADER + 4 * PARTS[1], HEADER + 4 * PARTS[0]];
    assert_eq!(dense_bytes(&steps[1]), [vector, matrix, 0]);
}

/// One rank alone, all of whose parameters are small: what it sends is its velocity all the same.
#[test]
fn a_rank_alone_has_its_momentum_where_everything_is_plain() {
    let layout = Layout::new([("w".to_string(), 3)]).unwrap();
    let policy =
        Policy { dense_below: Some(100), momentum_correction: Some(0.5), ..Policy::default() };
    let end = Box::new(Solo);
    let mut exchange = Exchange::new(&topk(0.01), policy, layout, 1, end).unwrap();
    for (step, velocity) in [(1, 4.0), (2, 6.0), (3, 7.0)] {
        let mut gradient = [4.0; 3];
        exchange.allreduce(step, &mut gradient[..]).unwrap();
        assert_eq!(gradient, [velocity; 3]);
    }
}
