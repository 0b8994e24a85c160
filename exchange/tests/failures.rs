//! Whatever goes wrong in a step, over every topology: the same error on every rank, by name, in bounded
//! time, and nothing that lasts has changed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::{PATIENT, Random, Tampered, Trial, bits, each_rank, echo, half, wirings};
use gradwire_exchange::schemes::{aggregation_aware, casq, optquant};
use gradwire_exchange::wire::Fault;
use gradwire_exchange::{
    Awaited, Bucketing, Collective, Error, Exchange, Layout, Payload, Policy, Result, SchemeConfig,
    Solo, Topology, mesh,
};

const LENGTH: usize = Trial::LENGTH;

/// Every topology with each of these schemes that it can carry.
fn trials(schemes: &[SchemeConfig]) -> Vec<Trial> {
    Trial::each(schemes, &wirings())
}

/// A NaN in the second group, an abort before it: every rank fails with the same error, nothing of the
/// first group lasts but its mean, and the group of ranks goes on.
#[test]
fn a_refusal_reaches_everybody_leaves_no_trace_and_the_group_goes_on() {
    let all = SchemeConfig::specimens();
    let over_mesh = all.iter().map(|scheme| Trial::new(scheme, Topology::Allgather));
    for trial in over_mesh.chain(trials(&[SchemeConfig::default(), half()])) {
        let trial = trial.groups(&[vec![1, 3], vec![4, 0, 2]]);
        for aborts in [true, false] {
            let found = trial.everywhere(4, |rank, mut exchange| {
                let before = trial.steps(rank, &mut exchange, 1..=2).state;
                let mut gradient = Trial::gradient(rank, 3);
                exchange.begin(3);
                exchange.exchange_group(0, &mut gradient).unwrap();
                match rank {
                    2 => gradient[57] = f32::NAN,
                    3 => gradient[3] = f32::INFINITY,
                    _ => {}
                }
                let error = match (rank, aborts) {
                    (2, true) => exchange.abort(3, "enough"),
                    _ => exchange.exchange_group(1, &mut gradient).unwrap_err(),
                };
                assert_eq!(exchange.save(), before, "{trial:?}");
                let unbegun = exchange.exchange_group(1, &mut gradient).unwrap_err();
                assert!(matches!(unbegun, Error::Input { .. }), "{unbegun}");
                let mut again = Trial::gradient(rank, 3);
                exchange.allreduce(3, &mut again).unwrap();
                // The mean of bucket 3 had come, and comes again.
                assert_eq!(bits(&gradient[1964..4012]), bits(&again[1964..4012]), "{trial:?}");
                // Control traffic finds its way too.
                let mut sums = [rank as f64];
                exchange.collective().sum_f64(&mut sums).unwrap();
                assert_eq!(sums, [6.0]);
                assert_eq!(exchange.collective().compare(&[7]).unwrap(), None);
                error
            });
            let (corrected, parameter) = (false, "p0".to_string());
            let named = match aborts {
                true => Error::Aborted { rank: 2, step: 3, reason: "enough".to_string() },
                false => Error::NonFinite { rank: 2, step: 3, corrected, parameter, index: 57 },
            };
            found.iter().for_each(|ranks| assert_eq!(*ranks, vec![named.clone(); 4], "{trial:?}"));
        }
    }
}

#[test]
fn an_overflowing_mean_is_everybodys_same_error() {
    for trial in trials(&[SchemeConfig::default(), half()]) {
        let found = trial.everywhere(3, |_, mut exchange| {
            let mut gradient = vec![0.0; LENGTH];
            gradient[700 + 500] = 3e38;
            exchange.allreduce(5, &mut gradient).unwrap_err()
        });
        let parameter = "p2".to_string();
        let named = Error::NonFiniteMean { step: 5, parameter, index: 500 };
        found.iter().for_each(|ranks| assert_eq!(*ranks, vec![named.clone(); 3], "{trial:?}"));
    }
}

#[test]
fn ranks_at_different_places_find_out() {
    for trial in trials(&[half()]) {
        let grouped = trial.clone().groups(&[vec![0, 1], vec![2, 3, 4]]);
        let ranks = grouped.over(3, |rank, mut exchange| {
            exchange.begin(1);
            let group = usize::from(rank == 1);
            exchange.exchange_group(group, &mut Random(1).laplaces(LENGTH)).unwrap_err()
        });
        for (rank, error) in ranks.iter().enumerate() {
            let Error::OutOfStep { by, expected, found } = error else { panic!("{error}") };
            if trial.wiring.topology == Topology::Allgather {
                let buckets = if rank == 1 { (2, 0) } else { (0, 2) };
                assert_eq!((*by, (expected.bucket, found.bucket)), (rank, buckets));
            }
        }
        let found = trial.everywhere(2, |rank, mut exchange| match rank {
            0 => exchange.allreduce(1, &mut vec![1.0; LENGTH]).unwrap_err(),
            _ => exchange.collective().barrier().unwrap_err(),
        });
        let out_of_step = |error: &Error| matches!(error, Error::OutOfStep { .. });
        assert!(found[0].iter().all(out_of_step), "{trial:?}: {found:?}");
        // Between processes the second to find out may be told by the first, or find it gone.
        let named = |error: &Error| {
            out_of_step(error) || matches!(error, Error::Aborted { .. } | Error::PeerLost { .. })
        };
        assert!(found.iter().flatten().all(named), "{trial:?}: {found:?}");
    }
    // Other groups altogether.
    let trial = Trial::new(&half(), Topology::Allgather);
    let ranks = trial.over(2, |rank, mut exchange| {
        let groups =
            if rank == 0 { vec![vec![0], (1..5).collect()] } else { vec![(0..5).collect()] };
        exchange.set_groups(groups).unwrap();
        exchange.allreduce(1, &mut Random(1).laplaces(LENGTH)).unwrap_err()
    });
    assert!(
        ranks.iter().any(|error| matches!(error, Error::OutOfStep { .. } | Error::Message { .. })),
        "{ranks:?}"
    );
}

/// Hostile bytes from a rank or from the server: an error that names the sender, or numbers, the
/// same on every rank that was sent the same; never a panic.
#[test]
fn spoilt_messages_are_errors_or_numbers() {
    let schemes = [
        SchemeConfig::default(),
        half(),
        SchemeConfig::Casq(casq::Config::default()),
        SchemeConfig::AggregationAware(aggregation_aware::Config::default()),
        SchemeConfig::Optquant(optquant::Config::default()),
    ];
    for mut trial in trials(&schemes) {
        trial.policy.warmup_steps = Some(0);
        let topology = trial.wiring.topology;
        for (at, up) in (0..60).flat_map(|at| [(at, true), (at, false)]) {
            if !up && topology != Topology::Server {
                continue;
            }
            let ranks = each_rank(mesh(2, PATIENT), |rank, end| {
                let mut random = Random(at as u64);
                let tamper =
                    move |round: usize, goes_up: bool, bytes: &mut Vec<u8>| -> Result<()> {
                        // All of a rank's own messages, or of the server's its answer.
                        let here = goes_up == up && (up || round == 1);
                        match at {
                            _ if !here => {}
                            0 => bytes.clear(),
                            1 => bytes.push(0),
                            // Of a server that another rank is, there is nothing to say.
                            _ if bytes.is_empty() => {}
                            _ if at % 2 == 0 => bytes.truncate(random.below(bytes.len())),
                            _ => {
                                let at = random.below(bytes.len());
                                bytes[at] ^= 1 << random.below(8);
                            }
                        }
                        Ok(())
                    };
                let end: Box<dyn Collective> = match rank {
                    1 => Box::new(Tampered { end, shares: true, rounds: 0, tamper }),
                    _ => end,
                };
                let mut exchange = trial.exchange(end);
                let mut gradient = Random(3).laplaces(LENGTH);
                exchange.allreduce(1, &mut gradient).map(|_| bits(&gradient))
            });
            let case = format!("{trial:?}, {at}, up {up}: {:?}", ranks[1]);
            let broken = at < 2 || at % 2 == 0;
            if up {
                assert_eq!(ranks[0].is_ok(), ranks[1].is_ok(), "{case}");
                assert!(ranks[0].is_err() || ranks[0] == ranks[1], "{case}");
                if topology == Topology::Allgather {
                    let named = |o: &Result<_>| matches!(o, Err(Error::Message { rank: 1, .. }));
                    assert!(ranks.iter().all(named), "{case}");
                }
                if broken {
                    let named = |by: usize| match &ranks[by] {
                        Err(Error::Message { rank: 1, .. }) => true,
                        // The second phase's own message was spoilt, which only others read.
                        Err(Error::PeerLost { .. } | Error::Aborted { .. }) => {
                            topology == Topology::Sharded
                        }
                        _ => false,
                    };
                    assert!(named(0), "{case}");
                }
            } else {
                assert!(ranks[0].is_ok(), "{case}");
                let named = matches!(ranks[1], Err(Error::Message { rank: 0, .. }));
                assert!(!broken || named, "{case}");
            }
        }
    }
}

#[test]
fn groups_that_are_no_partition_and_groups_out_of_turn_are_refused() {
    let trial = Trial::new(&half(), Topology::Allgather);
    let mut exchange = trial.exchange(Box::new(Solo));
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
        assert!(matches!(error, Error::Input { .. }), "{groups:?}: {error}");
    }
    assert_eq!(exchange.groups(), [vec![0, 1, 2, 3, 4]]);
    exchange.set_groups(vec![vec![0, 1], vec![2, 3, 4]]).unwrap();
    let mut gradient = vec![1.0; LENGTH];
    let groups_error = |result: Result<(), Error>| matches!(result, Err(Error::Input { .. }));
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

    let policy = Policy { clip_norm: Some(1.0), ..trial.policy.clone() };
    let mut clipped = Trial { policy, ..trial }.exchange(Box::new(Solo));
    let error = clipped.set_groups(vec![vec![0, 1], vec![2, 3, 4]]).unwrap_err();
    assert!(error.to_string().contains("`clip_norm` to 0"), "{error}");
    clipped.set_groups(vec![vec![4, 3, 2, 1, 0]]).unwrap();
}

/// A group of threads joined by a mesh.
fn two_parameters(length: usize) -> Layout {
    let parts = [("bias", length / 10), ("weight", length - length / 10)];
    Layout::new(parts.map(|(name, length)| (name.to_string(), length))).unwrap()
}

fn exchange(scheme: &SchemeConfig, length: usize, end: Box<dyn Collective>) -> Exchange {
    Exchange::new(scheme, Bucketing::Parameter, two_parameters(length), 9, end).unwrap()
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
    let slow = Duration::from_secs(5);
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
    let mut solo = exchange(&half(), 10, Box::new(Solo));
    let error = solo.allreduce(1, &mut [0.0; 9]).unwrap_err();
    assert_eq!(error.to_string(), "the gradient has 9 elements, the layout 10");
    assert!(matches!(error, Error::Input { .. }));
    let ranks = each_rank(mesh(2, PATIENT), |_, end| {
        let mut exchange =
            Exchange::new(&half(), Bucketing::Whole, Layout::default(), 0, end).unwrap();
        exchange.allreduce(1, &mut []).unwrap()
    });
    assert!(ranks.iter().all(|traffic| traffic.wire_bytes == 24 && traffic.dense_fallbacks == 0));
}

/// Rank 0 of two that divide messages. Its peer sends what it sends, and in the shard that it averages `first` is the first
/// mean.
struct Dividing {
    first: f32,
}

impl Collective for Dividing {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        2
    }

    fn divides(&self) -> bool {
        true
    }

    fn alltoall(&mut self, mut mine: Vec<Vec<u8>>) -> Result<Vec<Payload>> {
        let own = mine.swap_remove(0);
        let theirs = echo(&own, |_| ())?;
        Ok(vec![own.into(), theirs])
    }

    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        let first = self.first.to_le_bytes();
        let theirs = echo(&mine, |payload| payload[..4].copy_from_slice(&first))?;
        Ok(vec![mine.into(), theirs])
    }
}

#[test]
fn a_mean_of_a_peers_shard_that_is_not_finite_is_refused() {
    // Two shards of one length.
    const LENGTH: usize = 1 << 15;
    for first in [3.0, f32::NAN, f32::INFINITY] {
        let layout = Layout::new([("weight".to_string(), LENGTH)]).unwrap();
        let end = Box::new(Dividing { first });
        let scheme = SchemeConfig::default();
        let mut exchange = Exchange::new(&scheme, Bucketing::Whole, layout, 9, end).unwrap();
        let mut gradient = vec![2.0; LENGTH];
        match exchange.allreduce(1, &mut gradient) {
            Ok(_) => assert_eq!([gradient[0], gradient[LENGTH / 2]], [2.0, first]),
            Err(error) => {
                let found = first.to_bits().into();
                let (awaited, fault) =
                    (Awaited::Gradient { step: 1 }, Fault::Field { field: "mean", found });
                assert_eq!(error, Error::Message { rank: 1, awaited, fault });
                assert!(!first.is_finite());
            }
        }
    }
}

/// What arrives after a call has given up is not taken for what the next call awaits.
#[test]
fn an_end_that_has_given_up_stays_given_up() {
    let ends = mesh(2, Duration::from_millis(50)).try_into();
    let [mut first, mut second]: [Box<dyn Collective>; 2] = ends.ok().unwrap();
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
