//! A group of threads joined by a mesh; what every topology does alike is in `topologies.rs`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::{Random, bits, each_rank, half};
use gradwire_exchange::wire::Fault;
use gradwire_exchange::wire::frame::Kind;
use gradwire_exchange::{
    Awaited, Bucketing, Collective, Error, Exchange, Layout, Result, SchemeConfig, mesh,
};

const PATIENT: Duration = Duration::from_secs(20);

fn layout(length: usize) -> Layout {
    let parts = [("bias", length / 10), ("weight", length - length / 10)];
    Layout::new(parts.map(|(name, length)| (name.to_string(), length))).unwrap()
}

fn exchange(scheme: &SchemeConfig, length: usize, end: impl Collective + 'static) -> Exchange {
    Exchange::new(scheme, Bucketing::Parameter, layout(length), 9, Box::new(end)).unwrap()
}

#[test]
fn the_mean_of_plain_gradients_is_their_sum_in_rank_order_over_their_number() {
    const LENGTH: usize = 5003;
    for world_size in [1, 2, 3, 4, 8] {
        let of_rank = |rank: usize| Random(rank as u64).laplaces(LENGTH);
        let mut expected = of_rank(0);
        for rank in 1..world_size {
            expected.iter_mut().zip(of_rank(rank)).for_each(|(sum, value)| *sum += value);
        }
        expected.iter_mut().for_each(|sum| *sum *= 1.0 / world_size as f32);
        let ranks = each_rank(mesh(world_size, PATIENT), |rank, end| {
            let mut gradient = of_rank(rank);
            exchange(&SchemeConfig::default(), LENGTH, end).allreduce(1, &mut gradient).unwrap();
            bits(&gradient)
        });
        assert_eq!(ranks, vec![bits(&expected); world_size]);
    }
}

#[test]
fn a_rank_keeps_its_own_cause_when_its_peers_are_gone() {
    let mut ends = mesh(2, PATIENT).into_iter();
    let mut alone = exchange(&half(), 100, ends.next().unwrap());
    drop(ends);
    let mut gradient = [0.0; 100];
    gradient[99] = f32::NAN;
    let error = alone.allreduce(3, &mut gradient).unwrap_err();
    assert!(matches!(error, Error::NonFinite { rank: 0, step: 3, index: 89, .. }), "{error}");
    assert!(matches!(alone.abort(3, "enough"), Error::Aborted { rank: 0, .. }));
    let error = alone.allreduce(3, &mut [0.0; 100]).unwrap_err();
    assert!(matches!(error, Error::PeerLost { rank: 1, .. }), "{error}");
}

#[test]
fn an_abort_reaches_everybody_whatever_they_are_in() {
    let calls: [fn(&mut Exchange) -> Result<()>; 6] = [
        |exchange| exchange.allreduce(7, &mut [1.0; 10]).map(|_| ()),
        |exchange| exchange.collective().barrier(),
        |exchange| exchange.collective().broadcast(0, &mut vec![1, 2]),
        |exchange| exchange.collective().sum_f64(&mut [1.0]),
        |exchange| exchange.collective().mean_f32(&mut [1.0]),
        |exchange| exchange.collective().compare(&[1]).map(|_| ()),
    ];
    for call in calls {
        let ranks = each_rank(mesh(3, PATIENT), |rank, end| {
            let mut exchange = exchange(&half(), 10, end);
            if rank == 1 {
                // Leaves at once: its last words must arrive all the same.
                return exchange.abort(7, "the loss is NaN");
            }
            std::thread::sleep(Duration::from_millis(20 * rank as u64));
            call(&mut exchange).unwrap_err()
        });
        let reason = "the loss is NaN".to_string();
        assert_eq!(ranks, vec![Error::Aborted { rank: 1, step: 7, reason }; 3]);
    }
}

#[test]
fn of_two_aborts_the_lowest_rank_is_heard() {
    let ranks = each_rank(mesh(3, PATIENT), |rank, end| {
        exchange(&half(), 10, end).abort(1, &format!("reason {rank}"))
    });
    let reason = "reason 0".to_string();
    assert_eq!(ranks, vec![Error::Aborted { rank: 0, step: 1, reason }; 3]);
}

#[test]
fn a_loss_is_noticed_before_slower_ranks_of_lower_number_answer() {
    let slow = Duration::from_millis(600);
    let start = Instant::now();
    let ranks = each_rank(mesh(3, PATIENT), |rank, mut end| {
        match rank {
            0 => std::thread::sleep(slow),
            2 => return None,
            _ => {}
        }
        Some((end.barrier().unwrap_err(), start.elapsed()))
    });
    let (error, elapsed) = ranks[1].clone().unwrap();
    assert_eq!(error, Error::PeerLost { rank: 2, by: 1, awaited: Awaited::Barrier });
    assert!(elapsed < slow, "{elapsed:?}");
}

#[test]
fn peers_that_are_elsewhere_are_named_with_both_places() {
    let ranks = each_rank(mesh(2, PATIENT), |rank, end| {
        let step = rank as u64 + 4;
        exchange(&half(), 10, end).allreduce(step, &mut [1.0; 10]).unwrap_err()
    });
    for (rank, error) in ranks.iter().enumerate() {
        match error {
            Error::OutOfStep { by, expected, found } => {
                let other = 1 - rank;
                assert_eq!((*by, usize::from(found.rank)), (rank, other));
                assert_eq!((expected.step, found.step), (rank as u64 + 4, other as u64 + 4));
            }
            other => panic!("{other}"),
        }
    }

    let ranks = each_rank(mesh(2, PATIENT), |rank, end| {
        let mut exchange = exchange(&SchemeConfig::default(), 10, end);
        match rank {
            0 => exchange.allreduce(1, &mut [1.0; 10]).unwrap_err(),
            _ => exchange.collective().barrier().unwrap_err(),
        }
    });
    let kinds = ranks.iter().map(|error| match error {
        Error::OutOfStep { expected, found, .. } => (expected.kind, found.kind),
        other => panic!("{other}"),
    });
    assert_eq!(
        kinds.collect::<Vec<_>>(),
        [(Kind::Dense, Kind::Barrier), (Kind::Barrier, Kind::Dense)]
    );
}

#[test]
fn ranks_with_different_schemes_find_out() {
    let ranks = each_rank(mesh(2, PATIENT), |rank, end| {
        let scheme = if rank == 0 { SchemeConfig::default() } else { half() };
        exchange(&scheme, 100, end).allreduce(1, &mut Random(1).laplaces(100)).map(|_| ())
    });
    assert!(matches!(ranks[0], Err(Error::OutOfStep { by: 0, .. })), "{:?}", ranks[0]);
}

#[test]
fn another_number_of_values_is_refused() {
    let ranks = each_rank(mesh(2, PATIENT), |rank, mut end| {
        let mut values = vec![1.0; rank + 1];
        end.sum_f64(&mut values).unwrap_err()
    });
    let fault = Fault::Length { expected: 8, found: 16 };
    assert_eq!(ranks[0], Error::Message { rank: 1, awaited: Awaited::Sum, fault });
    let fault = Fault::Length { expected: 16, found: 8 };
    assert_eq!(ranks[1], Error::Message { rank: 0, awaited: Awaited::Sum, fault });
}

#[test]
fn a_gradient_of_another_length_and_an_empty_one() {
    let mut solo = exchange(&half(), 10, gradwire_exchange::Solo);
    let error = solo.allreduce(1, &mut [0.0; 9]).unwrap_err();
    assert_eq!(error.to_string(), "the gradient has 9 elements, the layout 10");
    assert!(matches!(error, Error::Input { .. }));
    let ranks = each_rank(mesh(2, PATIENT), |_, end| {
        let mut exchange =
            Exchange::new(&half(), Bucketing::Whole, Layout::default(), 0, Box::new(end)).unwrap();
        exchange.allreduce(1, &mut []).unwrap()
    });
    assert!(ranks.iter().all(|traffic| traffic.wire_bytes == 24 && traffic.dense_fallbacks == 0));
}

/// What arrives after a call has given up is not taken for what the next call awaits.
#[test]
fn an_end_that_has_given_up_stays_given_up() {
    let ends = mesh(2, Duration::from_millis(50)).try_into();
    let [mut first, mut second]: [gradwire_exchange::Mesh; 2] = ends.unwrap();
    let silent = first.sum_f64(&mut [1.0]).unwrap_err();
    assert!(matches!(silent, Error::Timeout { rank: 1, .. }), "{silent}");
    // The other comes late: for it the call succeeds.
    let mut sum = [100.0];
    second.sum_f64(&mut sum).unwrap();
    assert_eq!(sum, [101.0]);
    assert_eq!(first.sum_f64(&mut [10.0]).unwrap_err(), silent);
    let beyond = second.broadcast(2, &mut vec![1]).unwrap_err();
    assert!(matches!(beyond, Error::Transport { .. }), "{beyond}");
}
