//! Every scheme over every topology: the same mean everywhere, whatever the timing, and every
//! failure named everywhere, in bounded time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use gradwire_exchange::Scheme;
use std::time::{Duration, Instant};

use common::transports::processes;
use common::{Echo, Random, bits, each_rank, half, parameters};
use gradwire_exchange::schemes::{casq, signsgd, topk};
use gradwire_exchange::{
    Aggregate, Bucketing, Collective, Downlink, Error, Exchange, Gradient, Layout, Leg, Operation,
    Payload, Policy, Quantity, Reply, Result, SchemeConfig, Server, State, Support, Topology,
    Wiring, mesh, star,
};

const PATIENT: Duration = Duration::from_secs(20);
const LENGTHS: [usize; 5] = [700, 3, 3200, 2048, 9];
const LENGTH: usize = 5960;

const COMPRESSED: Wiring =
    Wiring { topology: Topology::Server, downlink: Some(Downlink::Compressed) };

fn policy(bucketing: Bucketing) -> Policy {
    Policy { dense_below: Some(10), warmup_steps: Some(1), ..Policy::from(bucketing) }
}

/// Every topology as it is by default, and the server that compresses.
fn wirings() -> Vec<Wiring> {
    let plain = Topology::ALL.iter().map(|topology| Wiring::from(*topology));
    plain.chain([COMPRESSED]).collect()
}

/// Of these, those that can carry `scheme`.
fn wirings_of(scheme: &SchemeConfig) -> Vec<Wiring> {
    let policy = policy(Bucketing::Parameter);
    wirings().into_iter().filter(|wiring| wiring.validate(scheme, &policy).is_ok()).collect()
}

/// Every wiring with each of two schemes that it can carry.
fn wired() -> impl Iterator<Item = (Wiring, SchemeConfig)> {
    let schemes = [SchemeConfig::default(), half()].into_iter();
    schemes.flat_map(|scheme| wirings_of(&scheme).into_iter().map(move |w| (w, scheme.clone())))
}

/// Runs one thread for each rank over a topology and returns what they return.
fn over_each<T: Send>(
    wiring: Wiring,
    world_size: usize,
    timeout: Duration,
    work: impl Fn(usize, Box<dyn Collective>) -> T + Sync,
) -> Vec<T> {
    each_rank(wiring.topology.connect(world_size, timeout).unwrap(), work)
}

/// The same over threads and, where they can use it, over processes; what the ranks return of each.
fn everywhere<T: Send>(
    wiring: Wiring,
    world_size: usize,
    timeout: Duration,
    work: impl Fn(usize, Box<dyn Collective>) -> T + Sync,
) -> Vec<Vec<T>> {
    let mut found = vec![over_each(wiring, world_size, timeout, &work)];
    if wiring.topology != Topology::Sharded {
        found.push(each_rank(processes(wiring.topology, world_size, timeout), &work));
    }
    found
}

type Ran = (Vec<Vec<u32>>, State, Vec<u64>);

/// Means, state and uplink bytes of some steps on each rank, with random delays.
fn run(
    wiring: Wiring,
    scheme: &SchemeConfig,
    bucketing: &Bucketing,
    world_size: usize,
    groups: &[Vec<usize>],
) -> Vec<Ran> {
    over_each(wiring, world_size, PATIENT, |rank, end| {
        let mut sleeps = Random(rank as u64 + 1000);
        let policy = policy(bucketing.clone());
        let mut exchange =
            Exchange::with(scheme, wiring, policy, parameters(&LENGTHS), 9, end).unwrap();
        if !groups.is_empty() {
            exchange.set_groups(groups.to_vec()).unwrap();
        }
        let (mut means, mut bytes) = (Vec::new(), Vec::new());
        for step in 1..=4 {
            std::thread::sleep(Duration::from_micros(sleeps.below(300) as u64));
            let mut gradient = Random(10 * step + rank as u64).laplaces(LENGTH);
            let traffic = exchange.allreduce(step, &mut gradient).unwrap();
            means.push(bits(&gradient));
            bytes.push(traffic.wire_bytes);
            let down = traffic.legs.iter().map(|leg| leg.downlink_bytes).sum::<u64>();
            assert_eq!(traffic.downlink_bytes, down);
            let sharded = |leg: &Leg| leg.operation == Operation::ReduceScatter;
            let whole = wiring.topology == Topology::Allgather && !traffic.legs.iter().any(sharded);
            assert!(down == 0 || !whole);
            let alone = world_size == 1 && *scheme == SchemeConfig::default();
            assert!(down > 0 || alone || wiring.topology != Topology::Server);
        }
        let mut state = exchange.save();
        if wiring == COMPRESSED && rank == 0 {
            assert!(!scheme.feedback() || state.contains("server/residual"));
        } else {
            assert!(state.scope("server").is_empty());
        }
        state.retain(|name| !name.starts_with("server/"));
        (means, state, bytes)
    })
}

/// Server and shards end where the allgather ends, bit for bit: means, residuals, what compressors
/// have learnt, uplink bytes.
#[test]
fn exact_topologies_are_bit_identical_to_the_allgather() {
    let two = [vec![3, 0], vec![2, 1]];
    for scheme in SchemeConfig::specimens() {
        for (bucketing, world_size, groups) in [
            (Bucketing::Whole, 1, &[][..]),
            (Bucketing::Whole, 3, &[]),
            (Bucketing::Parameter, 4, &[]),
            (Bucketing::Parameter, 3, &two),
        ] {
            let expected = run(Topology::Allgather.into(), &scheme, &bucketing, world_size, groups);
            let same = |ranks: &[Ran]| ranks.iter().all(|(means, ..)| *means == ranks[0].0);
            assert!(same(&expected));
            for topology in [Topology::Server, Topology::Sharded] {
                let wiring = Wiring::from(topology);
                if wiring.validate(&scheme, &policy(bucketing.clone())).is_err() {
                    continue;
                }
                let found = run(wiring, &scheme, &bucketing, world_size, groups);
                for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let case = format!("{scheme:?} over {topology:?} × {world_size}, rank {rank}");
                    assert_eq!(found.0, expected.0, "means: {case}");
                    assert_eq!(found.1, expected.1, "state: {case}");
                    assert_eq!(found.2, expected.2, "bytes: {case}");
                }
            }
        }
    }
}

/// Knowing where a gradient is zero changes no bit, and the mean's support holds all of the mean.
#[test]
fn a_known_support_changes_no_bit() {
    let policy = |bucketing| Policy { warmup_steps: Some(1), ..Policy::from(bucketing) };
    for wiring in wirings() {
        for (scheme, bucketing) in SchemeConfig::specimens()
            .into_iter()
            .flat_map(|scheme| [(scheme.clone(), Bucketing::Whole), (scheme, Bucketing::Parameter)])
            .filter(|(scheme, bucketing)| {
                wiring.validate(scheme, &policy(bucketing.clone())).is_ok()
            })
        {
            let run = |within: bool| {
                over_each(wiring, 3, PATIENT, |rank, end| {
                    let policy = policy(bucketing.clone());
                    let mut exchange =
                        Exchange::with(&scheme, wiring, policy, parameters(&LENGTHS), 9, end)
                            .unwrap();
                    let (mut means, mut support) = (Vec::new(), Support::nothing(LENGTH));
                    for step in 1..=4 {
                        let mut random = Random(10 * step + rank as u64);
                        let mut gradient = vec![0.0; LENGTH];
                        support.clear();
                        for _ in 0..6 {
                            let start = random.below(LENGTH - 5);
                            gradient[start..start + 5].fill_with(|| random.laplace());
                            support.add(start..start + 5);
                        }
                        if within {
                            let within = Gradient::within(&mut gradient, &mut support);
                            exchange.allreduce(step, within).unwrap();
                            let outside = |i: &usize| !support.meets(*i..i + 1);
                            let zero = |i: usize| gradient[i].to_bits() == 0;
                            assert!((0..LENGTH).filter(outside).all(zero), "{scheme:?} {wiring:?}");
                        } else {
                            exchange.allreduce(step, &mut gradient).unwrap();
                        }
                        means.push(bits(&gradient));
                    }
                    let everything = (0..LENGTH).all(|i| support.meets(i..i + 1));
                    (means, exchange.save(), everything)
                })
            };
            let found = run(true);
            for (found, expected) in found.iter().zip(run(false)) {
                assert_eq!(
                    (&found.0, &found.1),
                    (&expected.0, &expected.1),
                    "{scheme:?} {wiring:?}"
                );
            }
            let known = ["dense", "nonzero"].contains(&scheme.about().name)
                && wiring.topology != Topology::Server;
            assert!(!(known && found[0].2), "{scheme:?} {wiring:?}");
        }
    }
}

/// After a refusal the gradient and its support are as given, so that the step can be made again.
#[test]
fn a_refused_step_leaves_the_support_as_it_was() {
    for (wiring, name) in wirings().into_iter().flat_map(|w| ["dense", "nonzero"].map(|n| (w, n))) {
        let named = |scheme: &SchemeConfig| scheme.about().name == name;
        let scheme = SchemeConfig::specimens().into_iter().find(named).unwrap();
        if wiring.validate(&scheme, &policy(Bucketing::Whole)).is_err() {
            continue;
        }
        let means = over_each(wiring, 3, PATIENT, |rank, end| {
            let bucketing = Bucketing::Whole;
            let mut exchange =
                Exchange::with(&scheme, wiring, bucketing, parameters(&LENGTHS), 9, end).unwrap();
            let place = 1000 * rank;
            let mut given = Support::nothing(LENGTH);
            given.add(place..place + 1);
            let (mut gradient, mut support) = (vec![0.0; LENGTH], given.clone());
            gradient[place] = if rank == 1 { f32::NAN } else { 3.0 };
            let refused = exchange.allreduce(1, Gradient::within(&mut gradient, &mut support));
            assert!(matches!(refused, Err(Error::NonFinite { rank: 1, .. })), "{refused:?}");
            assert_eq!(support, given, "{name} {wiring:?}");
            gradient[place] = 3.0;
            exchange.allreduce(1, Gradient::within(&mut gradient, &mut support)).unwrap();
            gradient
        });
        for mean in means {
            let places: Vec<usize> = (0..LENGTH).filter(|i| mean[*i] != 0.0).collect();
            assert_eq!(places, [0, 1000, 2000], "{name} {wiring:?}");
            assert!(places.iter().all(|place| (mean[*place] - 1.0).abs() < 1e-6));
        }
    }
}

/// After any failure the gradient is zero outside of its support, also where means of other ranks
/// had come before the failure: in an earlier group, or in an earlier bucket of the same group.
#[test]
fn a_support_covers_what_a_failed_step_leaves_behind() {
    let policy = |_| Policy::from(Bucketing::Parameter);
    let later_bucket = LENGTH - 1;
    for (wiring, name) in wirings().into_iter().flat_map(|w| ["dense", "nonzero"].map(|n| (w, n))) {
        let named = |scheme: &SchemeConfig| scheme.about().name == name;
        let scheme = SchemeConfig::specimens().into_iter().find(named).unwrap();
        if wiring.validate(&scheme, &policy(())).is_err() {
            continue;
        }
        for (groups, poison) in [
            (vec![vec![0, 1], vec![2, 3, 4]], f32::NAN),
            (vec![vec![0, 1], vec![2, 3, 4]], f32::MAX),
            (vec![vec![0, 1, 2, 3, 4]], f32::MAX),
        ] {
            over_each(wiring, 3, PATIENT, |rank, end| {
                let mut exchange =
                    Exchange::with(&scheme, wiring, policy(()), parameters(&LENGTHS), 9, end)
                        .unwrap();
                exchange.set_groups(groups.clone()).unwrap();
                let (mut gradient, mut support) = (vec![0.0; LENGTH], Support::nothing(LENGTH));
                let own = [200 * rank, later_bucket];
                own.iter().for_each(|place| support.add(*place..place + 1));
                (gradient[own[0]], gradient[own[1]]) = (3.0, poison);
                let within = Gradient::within(&mut gradient, &mut support);
                let failed = exchange.allreduce(1, within).unwrap_err();
                let case = format!("{name} {wiring:?} {groups:?}: {failed}");
                let step = match failed {
                    Error::NonFinite { step, .. } | Error::NonFiniteMean { step, .. } => step,
                    _ => panic!("{case}"),
                };
                assert_eq!(step, 1, "{case}");
                let mut outside = (0..LENGTH).filter(|i| !support.meets(*i..i + 1));
                assert_eq!(outside.find(|i| gradient[*i] != 0.0), None, "{case}");
            });
        }
    }
}

/// An answer that comes after a rank has given the server up is none to that rank's next question.
#[test]
fn who_has_given_up_a_server_does_not_hear_it_any_more() {
    struct Slow;
    impl Aggregate for Slow {
        fn aggregate(&mut self, _messages: &[Payload], answer: &mut Vec<u8>) -> bool {
            std::thread::sleep(Duration::from_millis(400));
            answer.push(1);
            true
        }
    }
    each_rank(star(2, Duration::from_millis(50)).unwrap(), |rank, mut end| {
        if rank == 0 {
            end.install(Box::new(Slow));
        }
        let first = end.ask(vec![0]).unwrap_err();
        assert!(matches!(first, Error::ServerSilent { .. }), "{first:?}");
        std::thread::sleep(Duration::from_millis(600));
        assert_eq!(end.ask(vec![0]).unwrap_err(), first);
        assert_eq!(end.allgather(vec![0]).unwrap_err(), first);
    });
}

#[test]
fn a_compressed_downlink_is_the_same_on_every_rank_and_every_time() {
    for scheme in
        SchemeConfig::codecs().into_iter().filter(|scheme| *scheme != SchemeConfig::default())
    {
        let once = run(COMPRESSED, &scheme, &Bucketing::Parameter, 3, &[]);
        assert!(once.iter().all(|(means, ..)| *means == once[0].0), "{scheme:?}");
        let again = run(COMPRESSED, &scheme, &Bucketing::Parameter, 3, &[vec![1, 0], vec![2, 3]]);
        assert_eq!(once, again, "{scheme:?}");
    }
}

/// With feedback on both ways nothing is lost: what ranks were given is what they took, and what
/// ranks and server still hold.
#[test]
fn nothing_is_lost_when_both_ways_are_compressed() {
    const STEPS: u64 = 12;
    let scheme = SchemeConfig::Topk(topk::Config { ratio: 0.05.into(), ..Default::default() });
    let ranks = over_each(COMPRESSED, 3, PATIENT, |rank, end| {
        let policy = policy(Bucketing::Parameter);
        let mut exchange =
            Exchange::with(&scheme, COMPRESSED, policy, parameters(&LENGTHS), 9, end).unwrap();
        let (mut given, mut taken) = (vec![0f64; LENGTH], vec![0f64; LENGTH]);
        let mut downlink = 0;
        for step in 1..=STEPS {
            let mut gradient = Random(100 * step + rank as u64).laplaces(LENGTH);
            given.iter_mut().zip(&gradient).for_each(|(sum, value)| *sum += f64::from(*value));
            let traffic = exchange.allreduce(step, &mut gradient).unwrap();
            taken.iter_mut().zip(&gradient).for_each(|(sum, value)| *sum += f64::from(*value));
            downlink = traffic.downlink_bytes;
        }
        // 5 % of values and positions, where the union of three ranks would be nearly 15 %.
        assert!(downlink < 8 * LENGTH as u64 / 15, "{downlink}");
        let residual = exchange.residual().unwrap();
        given.iter_mut().zip(residual).for_each(|(sum, value)| *sum -= f64::from(*value));
        let servers = exchange.save().scope("server");
        let servers = (rank == 0).then(|| {
            let by_name = servers.f32s("residual", LENGTH).unwrap();
            exchange.layout().from_name_order(by_name)
        });
        (given, taken, servers)
    });
    let servers = ranks[0].2.as_ref().unwrap();
    assert!(servers.iter().any(|value| *value != 0.0));
    for i in 0..LENGTH {
        let decoded = ranks.iter().map(|(decoded, ..)| decoded[i]).sum::<f64>() / 3.0;
        assert!((decoded - ranks[0].1[i] - f64::from(servers[i])).abs() < 1e-4, "element {i}");
    }
}

/// Signs up and signs down are a majority vote (Bernstein et al. 2018).
#[test]
fn signs_both_ways_are_a_majority_vote() {
    let scheme = SchemeConfig::Signsgd(signsgd::Config::default());
    let ranks = over_each(COMPRESSED, 3, PATIENT, |rank, end| {
        let layout = Layout::new([("w".to_string(), 64)]).unwrap();
        let mut exchange =
            Exchange::with(&scheme, COMPRESSED, Bucketing::Whole, layout, 9, end).unwrap();
        let mut gradient = Random(rank as u64 + 5).laplaces(64);
        let given = gradient.clone();
        exchange.allreduce(1, &mut gradient).unwrap();
        (given, gradient)
    });
    for i in 0..64 {
        let votes = ranks.iter().map(|(given, _)| given[i].signum()).sum::<f32>();
        assert_eq!(ranks[0].1[i].signum(), votes.signum(), "element {i}");
    }
}

/// The server's answer is no longer than dense, and for few elements the union.
#[test]
fn an_exact_downlink_is_the_union_or_dense_whichever_is_shorter() {
    for (ratio, most) in [(0.01, 24 + 5 + 8 * 200), (1.0, 24 + 5 + 4 * LENGTH)] {
        let scheme = SchemeConfig::Topk(topk::Config { ratio: ratio.into(), ..Default::default() });
        let bytes = over_each(Topology::Server.into(), 3, PATIENT, |rank, end| {
            let mut exchange = Exchange::with(
                &scheme,
                Topology::Server,
                Bucketing::Whole,
                parameters(&LENGTHS),
                9,
                end,
            )
            .unwrap();
            let mut gradient = Random(rank as u64).laplaces(LENGTH);
            exchange.allreduce(1, &mut gradient).unwrap().downlink_bytes
        });
        assert!(bytes.iter().all(|each| *each == bytes[0] && *each <= most as u64), "{bytes:?}");
        assert!(bytes[0] > 24 + 4 * 3 * 59 * u64::from(ratio < 1.0), "{bytes:?}");
    }
}

#[test]
fn sixty_four_ranks_share_two_cores() {
    for (wiring, scheme) in wired() {
        let ranks = run(wiring, &scheme, &Bucketing::Parameter, 64, &[]);
        assert!(ranks.iter().all(|(means, ..)| *means == ranks[0].0), "{wiring:?}");
    }
}

/// Saved and restored in the middle, every topology goes on as if nothing had been.
#[test]
fn a_run_that_is_taken_up_again_goes_on_the_same() {
    for scheme in SchemeConfig::specimens() {
        for wiring in wirings_of(&scheme) {
            let steps = |states: Option<&[State]>, range: std::ops::RangeInclusive<u64>| {
                over_each(wiring, 2, PATIENT, |rank, end| {
                    let policy = policy(Bucketing::Parameter);
                    let mut exchange =
                        Exchange::with(&scheme, wiring, policy, parameters(&LENGTHS), 9, end)
                            .unwrap();
                    if let Some(states) = states {
                        exchange.restore(&states[rank]).unwrap();
                    }
                    let mut gradient = Vec::new();
                    for step in range.clone() {
                        gradient = Random(10 * step + rank as u64).laplaces(LENGTH);
                        exchange.allreduce(step, &mut gradient).unwrap();
                    }
                    (exchange.save(), bits(&gradient))
                })
            };
            let through = steps(None, 1..=5);
            let saved: Vec<State> =
                steps(None, 1..=2).into_iter().map(|(state, _)| state).collect();
            assert!(steps(Some(&saved), 3..=5) == through, "{scheme:?} over {wiring:?}");
        }
    }
}

#[test]
fn a_servers_state_is_not_silently_lost() {
    let saved = over_each(COMPRESSED, 1, PATIENT, |_, end| {
        let mut exchange =
            Exchange::with(&half(), COMPRESSED, Bucketing::Whole, parameters(&LENGTHS), 9, end)
                .unwrap();
        exchange.allreduce(1, &mut Random(1).laplaces(LENGTH)).unwrap();
        exchange.save()
    });
    for topology in Topology::ALL {
        over_each((*topology).into(), 1, PATIENT, |_, end| {
            let mut exchange =
                Exchange::with(&half(), *topology, Bucketing::Whole, parameters(&LENGTHS), 9, end)
                    .unwrap();
            let error = exchange.restore(&saved[0]).unwrap_err();
            assert!(matches!(error, Error::State { .. }), "{error}");
            assert!(error.to_string().contains("server"), "{error}");
        });
    }
}

fn over(wiring: Wiring, scheme: &SchemeConfig, end: Box<dyn Collective>) -> Exchange {
    Exchange::with(scheme, wiring, policy(Bucketing::Parameter), parameters(&LENGTHS), 9, end)
        .unwrap()
}

#[test]
fn a_refusal_reaches_everybody_and_the_group_goes_on() {
    for (wiring, scheme) in wired() {
        for aborts in [true, false] {
            let found = everywhere(wiring, 4, PATIENT, |rank, end| {
                let mut exchange = over(wiring, &scheme, end);
                exchange.set_groups(vec![vec![1, 3], vec![0, 2]]).unwrap();
                exchange.allreduce(1, &mut Random(rank as u64).laplaces(LENGTH)).unwrap();
                exchange.allreduce(2, &mut Random(rank as u64).laplaces(LENGTH)).unwrap();
                let before = exchange.save();
                let mut gradient = vec![1.0; LENGTH];
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
                assert_eq!(exchange.save(), before);
                exchange.allreduce(3, &mut vec![1.0; LENGTH]).unwrap();
                // Control traffic finds its way too.
                let mut sums = [rank as f64];
                exchange.collective().sum_f64(&mut sums).unwrap();
                assert_eq!(sums, [6.0]);
                assert_eq!(exchange.collective().compare(&[7]).unwrap(), None);
                error
            });
            let (quantity, parameter) = (Quantity::Gradient, "p0".to_string());
            let named = match aborts {
                true => Error::Aborted { rank: 2, step: 3, reason: "enough".to_string() },
                false => Error::NonFinite { rank: 2, step: 3, quantity, parameter, index: 57 },
            };
            found.iter().for_each(|ranks| assert_eq!(*ranks, vec![named.clone(); 4], "{wiring:?}"));
        }
    }
}

#[test]
fn an_overflowing_mean_is_everybodys_same_error() {
    for (wiring, scheme) in wired() {
        let found = everywhere(wiring, 3, PATIENT, |_, end| {
            let mut gradient = vec![0.0; LENGTH];
            gradient[700 + 1500] = 3e38;
            over(wiring, &scheme, end).allreduce(5, &mut gradient).unwrap_err()
        });
        let parameter = "p2".to_string();
        let named = Error::NonFiniteMean { step: 5, parameter, index: 1500 };
        found.iter().for_each(|ranks| assert_eq!(*ranks, vec![named.clone(); 3], "{wiring:?}"));
    }
}

#[test]
fn ranks_at_different_places_find_out() {
    for wiring in wirings() {
        let ranks = over_each(wiring, 3, PATIENT, |rank, end| {
            let mut exchange = over(wiring, &half(), end);
            exchange.set_groups(vec![vec![0, 1], vec![2, 3]]).unwrap();
            exchange.begin(1);
            let group = usize::from(rank == 1);
            exchange.exchange_group(group, &mut Random(1).laplaces(LENGTH)).unwrap_err()
        });
        assert!(
            ranks.iter().all(|error| matches!(error, Error::OutOfStep { .. })),
            "{wiring:?}: {ranks:?}"
        );
        let found = everywhere(wiring, 2, PATIENT, |rank, end| {
            let mut exchange = over(wiring, &half(), end);
            match rank {
                0 => exchange.allreduce(1, &mut vec![1.0; LENGTH]).unwrap_err(),
                _ => exchange.collective().barrier().unwrap_err(),
            }
        });
        assert!(
            found[0].iter().all(|error| matches!(error, Error::OutOfStep { .. })),
            "{wiring:?}: {found:?}"
        );
        // Between processes the second to find out may be told by the first, or find it gone.
        let told = |error: &Error| {
            matches!(
                error,
                Error::OutOfStep { .. } | Error::Aborted { .. } | Error::PeerLost { .. }
            )
        };
        assert!(found.iter().flatten().all(told), "{wiring:?}: {found:?}");
    }
}

#[test]
fn a_rank_that_goes_and_one_that_is_silent_are_named_in_time() {
    let timeout = Duration::from_millis(400);
    for wiring in wirings() {
        for leaves in [true, false] {
            let found = everywhere(wiring, 3, timeout, |rank, end| {
                let mut exchange = over(wiring, &half(), end);
                exchange.allreduce(1, &mut vec![1.0; LENGTH]).unwrap();
                let start = Instant::now();
                match rank {
                    1 if leaves => return None,
                    1 => std::thread::sleep(3 * timeout),
                    _ => {}
                }
                if rank == 1 {
                    return None;
                }
                let error = exchange.allreduce(2, &mut vec![1.0; LENGTH]).unwrap_err();
                let elapsed = start.elapsed();
                let again = exchange.collective().barrier().unwrap_err();
                Some((error, again, elapsed))
            });
            let ranks = found.into_iter().flat_map(|ranks| ranks.into_iter().enumerate());
            for (by, outcome) in ranks.filter(|(by, _)| *by != 1) {
                let (error, again, elapsed) = outcome.unwrap();
                let named = match leaves {
                    true => matches!(error, Error::PeerLost { rank: 1, by: b, .. } if b == by),
                    false => matches!(error, Error::Timeout { rank: 1, by: b, .. } if b == by),
                };
                assert!(named, "{wiring:?}: {error}");
                assert!(error.to_string().contains("the gradient of step 2"), "{error}");
                let stays = matches!(again, Error::PeerLost { .. } | Error::Timeout { .. });
                assert!(stays, "{wiring:?}: {again}");
                assert!(elapsed < 3 * timeout, "{elapsed:?}");
            }
        }
    }
}

/// A server that dies of the first gradient.
struct Dies;

impl Aggregate for Dies {
    fn aggregate(&mut self, _messages: &[Payload], _answer: &mut Vec<u8>) -> bool {
        panic!("the server dies, as this test wants it to");
    }
}

/// A server that takes its time.
struct Sleeps(Duration);

impl Aggregate for Sleeps {
    fn aggregate(&mut self, _messages: &[Payload], _answer: &mut Vec<u8>) -> bool {
        std::thread::sleep(self.0);
        false
    }
}

#[test]
fn a_server_that_dies_or_sleeps_is_named_in_time() {
    // A death is known at once, however long the patience; on a busy machine it takes a while to die.
    for (dies, timeout) in [(true, 5000), (false, 200)] {
        let timeout = Duration::from_millis(timeout);
        let start = Instant::now();
        let ends = star(3, timeout).unwrap();
        let errors = each_rank(ends, |rank, mut end| {
            if rank == 0 {
                let sleeps = Sleeps(6 * timeout);
                end.install(if dies { Box::new(Dies) } else { Box::new(sleeps) });
            }
            end.barrier().unwrap();
            end.ask(vec![1]).unwrap_err()
        });
        for (rank, error) in errors.iter().enumerate() {
            let named = match dies {
                true => matches!(error, Error::ServerLost { by, .. } if *by == rank),
                false => matches!(error, Error::ServerSilent { by, .. } if *by == rank),
            };
            assert!(named, "{error}");
        }
        assert!(start.elapsed() < 5 * timeout, "{:?}", start.elapsed());
    }
}

/// An end whose messages are spoilt on the way up, or the server's on the way down.
struct Spoilt {
    end: Box<dyn Collective>,
    up: bool,
    spoil: Spoil,
}

type Spoil = Box<dyn FnMut(&mut Vec<u8>) + Send>;

impl Collective for Spoilt {
    fn rank(&self) -> usize {
        self.end.rank()
    }

    fn world_size(&self) -> usize {
        self.end.world_size()
    }

    fn allgather(&mut self, mut mine: Vec<u8>) -> Result<Vec<Payload>> {
        if self.up {
            (self.spoil)(&mut mine);
        }
        self.end.allgather(mine)
    }

    fn shares_memory(&self) -> bool {
        self.end.shares_memory()
    }

    fn server(&mut self) -> Option<&mut dyn Server> {
        self.end.server()?;
        Some(self)
    }
}

impl Server for Spoilt {
    fn install(&mut self, aggregate: Box<dyn Aggregate>) {
        self.end.server().unwrap().install(aggregate);
    }

    fn ask(&mut self, mut mine: Vec<u8>) -> Result<Reply> {
        if self.up {
            (self.spoil)(&mut mine);
        }
        let reply = self.end.server().unwrap().ask(mine)?;
        Ok(match reply {
            Reply::Answer { mine, answer } if !self.up => {
                let mut bytes = answer.to_vec();
                (self.spoil)(&mut bytes);
                Reply::Answer { mine, answer: Payload::from(bytes) }
            }
            other => other,
        })
    }
}

/// Hostile bytes from a rank or from the server: an error that names the sender, or numbers, the
/// same on every rank that was sent the same; never a panic.
#[test]
fn spoilt_messages_are_errors_or_numbers() {
    let learning = SchemeConfig::Casq(casq::Config::default());
    let leader = gradwire_exchange::schemes::aggregation_aware::Config {
        rule: gradwire_exchange::schemes::aggregation_aware::Rule::Leader { p: 0.5 },
        ..Default::default()
    };
    let adaptive = SchemeConfig::Optquant(gradwire_exchange::schemes::optquant::Config::default());
    let schemes = [
        SchemeConfig::default(),
        half(),
        learning,
        SchemeConfig::AggregationAware(leader),
        adaptive,
    ];
    for scheme in &schemes {
        for wiring in wirings_of(scheme) {
            for (at, up) in (0..60).flat_map(|at| [(at, true), (at, false)]) {
                if !up && wiring.topology != Topology::Server {
                    continue;
                }
                let ranks = over_each(wiring, 2, PATIENT, |rank, end| {
                    let mut random = Random(at as u64);
                    let spoil = move |bytes: &mut Vec<u8>| match at {
                        0 => bytes.clear(),
                        1 => bytes.push(0),
                        _ if at % 2 == 0 => bytes.truncate(random.below(bytes.len())),
                        _ => {
                            let at = random.below(bytes.len());
                            bytes[at] ^= 1 << random.below(8);
                        }
                    };
                    let end: Box<dyn Collective> = match rank {
                        1 => Box::new(Spoilt { end, up, spoil: Box::new(spoil) }),
                        _ => end,
                    };
                    let policy = Policy { warmup_steps: Some(0), ..policy(Bucketing::Parameter) };
                    let mut exchange =
                        Exchange::with(scheme, wiring, policy, parameters(&LENGTHS), 9, end)
                            .unwrap();
                    let mut gradient = Random(3).laplaces(LENGTH);
                    exchange.allreduce(1, &mut gradient).map(|_| bits(&gradient))
                });
                let case = format!("{scheme:?} over {wiring:?}, {at}, up {up}: {:?}", ranks[1]);
                let broken = at < 2 || at % 2 == 0;
                if up {
                    assert_eq!(ranks[0].is_ok(), ranks[1].is_ok(), "{case}");
                    assert!(ranks[0].is_err() || ranks[0] == ranks[1], "{case}");
                    if wiring.topology == Topology::Allgather {
                        let named =
                            |o: &Result<_>| matches!(o, Err(Error::Message { rank: 1, .. }));
                        assert!(ranks.iter().all(named), "{case}");
                    }
                    if broken {
                        let named = |by: usize| match &ranks[by] {
                            Err(Error::Message { rank: 1, .. }) => true,
                            // The second phase's own message was spoilt, which only others read.
                            Err(Error::PeerLost { .. } | Error::Aborted { .. }) => {
                                wiring.topology == Topology::Sharded
                            }
                            _ => false,
                        };
                        assert!(named(0), "{case}");
                    }
                } else {
                    assert!(ranks[0].is_ok(), "{case}");
                    assert!(
                        !broken || matches!(ranks[1], Err(Error::ServerMessage { .. })),
                        "{case}"
                    );
                }
            }
        }
    }
}

#[test]
fn collectives_that_do_not_offer_what_a_topology_needs_are_refused() {
    let build = |topology, end: Box<dyn Collective>| {
        Exchange::with(&half(), topology, Bucketing::Whole, parameters(&LENGTHS), 9, end).err()
    };
    let mut ends = mesh(1, PATIENT);
    let error = build(Topology::Server, Box::new(ends.remove(0))).unwrap();
    assert!(matches!(error, Error::Topology { topology: "server", .. }), "{error}");
    // A transport that really sends.
    let error = build(Topology::Sharded, Box::<Echo>::default()).unwrap();
    assert!(matches!(error, Error::Topology { topology: "sharded", .. }), "{error}");
    assert!(error.to_string().contains("plain f32"), "{error}");
    assert!(build(Topology::Allgather, Box::<Echo>::default()).is_none());
}
