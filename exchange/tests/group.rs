//! Groups of threads: the same mean everywhere, and every failure named everywhere.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::{Random, bits};
use gradwire_exchange::schemes::topk;
use gradwire_exchange::wire::Fault;
use gradwire_exchange::wire::frame::Kind;
use gradwire_exchange::{
    Awaited, Bucketing, Collective, Difference, Error, Exchange, Layout, Mesh, Payload, Quantity,
    Result, Scheme, mesh,
};

const PATIENT: Duration = Duration::from_secs(20);

/// Runs one thread for each rank and returns what they return, in order of rank.
fn each_rank<T: Send>(ends: Vec<Mesh>, work: impl Fn(Mesh) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let workers: Vec<_> = ends.into_iter().map(|end| scope.spawn(|| work(end))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

fn layout(length: usize) -> Layout {
    let parts = [("bias", length / 10), ("weight", length - length / 10)];
    Layout::new(parts.map(|(name, length)| (name.to_string(), length))).unwrap()
}

fn exchange(scheme: &Scheme, length: usize, end: impl Collective + 'static) -> Exchange {
    Exchange::new(scheme, Bucketing::Parameter, layout(length), 9, Box::new(end)).unwrap()
}

fn half() -> Scheme {
    Scheme::Topk(topk::Config { ratio: 0.5.into(), ..Default::default() })
}

#[test]
fn replicas_stay_bit_identical_whatever_the_timing() {
    const LENGTH: usize = 5003;
    for world_size in [1, 2, 3, 4, 8] {
        for scheme in Scheme::specimens() {
            let ranks = each_rank(mesh(world_size, PATIENT), |end| {
                let mut sleeps = Random(end.rank() as u64 + 1000);
                let mut exchange = exchange(&scheme, LENGTH, end);
                let mut means = Vec::new();
                for step in 1..=3 {
                    std::thread::sleep(Duration::from_micros(sleeps.below(2000) as u64));
                    let rank = exchange.collective().rank() as u64;
                    let mut gradient = Random(10 * step + rank).laplaces(LENGTH);
                    exchange.allreduce(step, &mut gradient).unwrap();
                    means.push(bits(&gradient));
                }
                means
            });
            assert!(ranks.iter().all(|means| *means == ranks[0]), "{scheme:?} × {world_size}");
            if scheme == Scheme::default() {
                let of_rank = |rank| Random(10 + rank).laplaces(LENGTH);
                let mut mean = of_rank(0);
                for rank in 1..world_size as u64 {
                    mean.iter_mut().zip(of_rank(rank)).for_each(|(sum, value)| *sum += value);
                }
                mean.iter_mut().for_each(|sum| *sum *= 1.0 / world_size as f32);
                assert_eq!(ranks[0][0], bits(&mean), "× {world_size}");
            }
        }
    }
}

#[test]
fn nothing_is_lost_under_feedback_over_many_steps_and_ranks() {
    const LENGTH: usize = 400;
    const STEPS: u64 = 20;
    let scheme = Scheme::Topk(topk::Config { ratio: 0.05.into(), ..Default::default() });
    let ranks = each_rank(mesh(3, PATIENT), |end| {
        let mut exchange = exchange(&scheme, LENGTH, end);
        let (mut given, mut taken) = (vec![0f64; LENGTH], vec![0f64; LENGTH]);
        for step in 1..=STEPS {
            let rank = exchange.collective().rank() as u64;
            let mut gradient = Random(100 * step + rank).laplaces(LENGTH);
            given.iter_mut().zip(&gradient).for_each(|(sum, value)| *sum += f64::from(*value));
            exchange.allreduce(step, &mut gradient).unwrap();
            taken.iter_mut().zip(&gradient).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        let residual = exchange.residual().unwrap();
        given.iter_mut().zip(residual).for_each(|(sum, value)| *sum -= f64::from(*value));
        (given, taken)
    });
    for i in 0..LENGTH {
        let said = ranks.iter().map(|(said, _)| said[i]).sum::<f64>() / 3.0;
        assert!((said - ranks[0].1[i]).abs() < 1e-4, "element {i}");
    }
}

#[test]
fn a_non_finite_gradient_on_one_rank_is_everybodys_same_error() {
    for scheme in [Scheme::default(), half()] {
        let ranks = each_rank(mesh(4, PATIENT), |end| {
            let rank = end.rank();
            let mut exchange = exchange(&scheme, 100, end);
            exchange.allreduce(1, &mut Random(rank as u64).laplaces(100)).unwrap();
            let before = exchange.save();
            let mut gradient = vec![1.0; 100];
            match rank {
                2 => gradient[57] = f32::NAN,
                3 => gradient[3] = f32::INFINITY,
                _ => {}
            }
            let copy = bits(&gradient);
            let error = exchange.allreduce(2, &mut gradient).unwrap_err();
            assert_eq!(bits(&gradient), copy);
            assert_eq!(exchange.save(), before);
            // The group is whole: the step can be made again.
            exchange.allreduce(2, &mut vec![1.0; 100]).unwrap();
            error
        });
        let (quantity, parameter) = (Quantity::Gradient, "weight".to_string());
        let named = Error::NonFinite { rank: 2, step: 2, quantity, parameter, index: 47 };
        assert_eq!(ranks, vec![named; 4]);
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
fn an_overflowing_mean_is_everybodys_same_error() {
    for scheme in [Scheme::default(), half()] {
        let ranks = each_rank(mesh(2, PATIENT), |end| {
            let mut gradient = vec![0.0; 100];
            gradient[11] = 3e38;
            exchange(&scheme, 100, end).allreduce(5, &mut gradient).unwrap_err()
        });
        let parameter = "weight".to_string();
        assert_eq!(ranks, vec![Error::NonFiniteMean { step: 5, parameter, index: 1 }; 2]);
    }
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
        let ranks = each_rank(mesh(3, PATIENT), |end| {
            let rank = end.rank();
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
    let ranks = each_rank(mesh(3, PATIENT), |end| {
        let rank = end.rank();
        exchange(&half(), 10, end).abort(1, &format!("reason {rank}"))
    });
    let reason = "reason 0".to_string();
    assert_eq!(ranks, vec![Error::Aborted { rank: 0, step: 1, reason }; 3]);
}

#[test]
fn a_peer_that_goes_is_named_by_all_who_wait() {
    let ranks = each_rank(mesh(3, PATIENT), |end| {
        let rank = end.rank();
        let mut exchange = exchange(&half(), 10, end);
        exchange.allreduce(1, &mut [1.0; 10]).unwrap();
        (rank != 2).then(|| exchange.allreduce(2, &mut [1.0; 10]).unwrap_err())
    });
    let awaited = Awaited::Gradient { step: 2 };
    for (by, error) in ranks.into_iter().take(2).enumerate() {
        let error = error.unwrap();
        assert_eq!(error, Error::PeerLost { rank: 2, by, awaited });
        assert!(error.to_string().contains("the gradient of step 2"), "{error}");
    }
}

#[test]
fn a_loss_is_noticed_before_slower_ranks_of_lower_number_answer() {
    let slow = Duration::from_millis(600);
    let start = Instant::now();
    let ranks = each_rank(mesh(3, PATIENT), |mut end| {
        match end.rank() {
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
fn a_silent_peer_is_named_within_the_timeout() {
    let timeout = Duration::from_millis(300);
    let start = Instant::now();
    let ranks = each_rank(mesh(3, timeout), |mut end| {
        if end.rank() == 1 {
            std::thread::sleep(4 * timeout);
            return None;
        }
        Some((end.sum_f64(&mut [1.0]).unwrap_err(), start.elapsed()))
    });
    for (by, outcome) in ranks.into_iter().enumerate().filter(|(by, _)| *by != 1) {
        let (error, elapsed) = outcome.unwrap();
        let awaited = Awaited::Sum;
        assert_eq!(error, Error::Timeout { rank: 1, by, awaited, after: timeout });
        assert!(elapsed < 3 * timeout, "{elapsed:?}");
    }
}

#[test]
fn peers_that_are_elsewhere_are_named_with_both_places() {
    let ranks = each_rank(mesh(2, PATIENT), |end| {
        let step = end.rank() as u64 + 4;
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

    let ranks = each_rank(mesh(2, PATIENT), |end| {
        let mut exchange = exchange(&Scheme::default(), 10, end);
        match exchange.collective().rank() {
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
    let ranks = each_rank(mesh(2, PATIENT), |end| {
        let scheme = if end.rank() == 0 { Scheme::default() } else { half() };
        exchange(&scheme, 100, end).allreduce(1, &mut Random(1).laplaces(100)).map(|_| ())
    });
    assert!(matches!(ranks[0], Err(Error::OutOfStep { by: 0, .. })), "{:?}", ranks[0]);
}

#[test]
fn derived_collectives_give_everybody_the_same() {
    let ranks = each_rank(mesh(3, PATIENT), |mut end| {
        let rank = end.rank();
        let mut sums = [rank as f64 + 0.1, 1.0];
        end.sum_f64(&mut sums).unwrap();
        let mut means = [rank as f32, -1.5];
        end.mean_f32(&mut means).unwrap();
        let mut text = vec![rank as u8; rank + 1];
        end.broadcast(2, &mut text).unwrap();
        end.barrier().unwrap();
        let same = end.compare(&[1, 2, 3]).unwrap();
        let differ = end.compare(&[1, rank as u64 / 2, rank as u64]).unwrap();
        (sums.map(f64::to_bits), means, text, same, differ)
    });
    assert_eq!(ranks[1..], [ranks[0].clone(), ranks[0].clone()]);
    let (sums, means, text, same, differ) = &ranks[0];
    assert_eq!(*sums, [0.1 + 1.1 + 2.1, 3.0].map(f64::to_bits));
    assert_eq!(*means, [3.0 * (1.0 / 3.0f32), -4.5 * (1.0 / 3.0f32)]);
    assert_eq!((text.as_slice(), *same), ([2u8; 3].as_slice(), None));
    assert_eq!(*differ, Some(Difference { index: 1, rank: 2 }));
}

#[test]
fn another_number_of_values_is_refused() {
    let ranks = each_rank(mesh(2, PATIENT), |mut end| {
        let mut values = vec![1.0; end.rank() + 1];
        end.sum_f64(&mut values).unwrap_err()
    });
    let fault = Fault::Length { expected: 8, found: 16 };
    assert_eq!(ranks[0], Error::Message { rank: 1, awaited: Awaited::Sum, fault });
    let fault = Fault::Length { expected: 16, found: 8 };
    assert_eq!(ranks[1], Error::Message { rank: 0, awaited: Awaited::Sum, fault });
}

/// A mesh whose messages are spoilt on the way.
struct Spoilt<F>(Mesh, F);

impl<F: FnMut(&mut Vec<u8>) + Send> Collective for Spoilt<F> {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn world_size(&self) -> usize {
        self.0.world_size()
    }

    fn allgather(&mut self, mut mine: Vec<u8>) -> Result<Vec<Payload>> {
        (self.1)(&mut mine);
        self.0.allgather(mine)
    }
}

#[test]
fn a_spoilt_message_is_an_error_that_names_its_sender() {
    for scheme in [Scheme::default(), half()] {
        for at in 0..250 {
            let ranks = each_rank(mesh(2, PATIENT), |end| {
                let spoils = end.rank() == 1;
                let mut random = Random(at as u64);
                let spoilt = Spoilt(end, move |bytes: &mut Vec<u8>| match at {
                    _ if !spoils => {}
                    0 => bytes.clear(),
                    1 => bytes.push(0),
                    _ if at % 2 == 0 => bytes.truncate(random.below(bytes.len())),
                    _ => {
                        let at = random.below(bytes.len());
                        bytes[at] ^= 1 << random.below(8);
                    }
                });
                let mut exchange = exchange(&scheme, 60, spoilt);
                exchange.allreduce(1, &mut Random(3).laplaces(60)).map(|_| ())
            });
            for (rank, outcome) in ranks.iter().enumerate() {
                let named = matches!(outcome, Err(Error::Message { rank: 1, .. }));
                assert!(named, "{scheme:?}, {at}, rank {rank}: {outcome:?}");
            }
        }
    }
}

#[test]
fn a_gradient_of_another_length_and_an_empty_one() {
    let mut solo = exchange(&half(), 10, gradwire_exchange::Solo);
    let error = solo.allreduce(1, &mut [0.0; 9]).unwrap_err();
    assert_eq!(error, Error::GradientLength { expected: 10, found: 9 });
    let ranks = each_rank(mesh(2, PATIENT), |end| {
        let mut exchange =
            Exchange::new(&half(), Bucketing::Whole, Layout::default(), 0, Box::new(end)).unwrap();
        exchange.allreduce(1, &mut []).unwrap()
    });
    assert!(ranks.iter().all(|traffic| traffic.wire_bytes == 24 && traffic.dense_fallbacks == 0));
}
