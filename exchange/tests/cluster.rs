//! Ranks of several processes: the same bits as in one, and every failure named in bounded time.
//! The processes are groups of threads here, their couriers joined by channels; `mpi.rs` has real
//! ones.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Random, bits, each_rank, half, parameters};
use gradwire_exchange::cluster::{Cluster, Letters, NOTES, Notes, channels};
use gradwire_exchange::{
    Bucketing, Collective, Downlink, Error, Exchange, Operation, Policy, Result, SchemeConfig,
    State, Topology, Wiring,
};

const PATIENT: Duration = Duration::from_secs(20);
const LENGTHS: [usize; 5] = [700, 3, 3200, 2048, 9];
const LENGTH: usize = 5960;

/// Nobody tells anything.
struct Silence;

impl Notes for Silence {
    fn tell(&self) -> [u64; NOTES] {
        [0; NOTES]
    }

    fn hear(&self, _from: usize, _notes: [u64; NOTES]) {}
}

fn clusters(processes: usize) -> Vec<Cluster> {
    let deaf = |_| Box::new(|_, _| ()) as Letters;
    channels((0..processes).map(deaf).collect()).unwrap()
}

/// Runs one thread for each rank of `processes` × `seats` and returns what they return, in order of
/// rank.
fn across<T: Send>(
    topology: Topology,
    (processes, seats): (usize, usize),
    timeout: Duration,
    work: impl Fn(usize, Box<dyn Collective>) -> T + Sync,
) -> Vec<T> {
    let clusters = clusters(processes);
    let connect = |cluster: &Cluster| {
        topology.connect_across(cluster, seats, timeout, Arc::new(Silence)).unwrap()
    };
    let ends: Vec<Box<dyn Collective>> = clusters.iter().flat_map(connect).collect();
    let results = each_rank(ends, |rank, end| {
        assert_eq!((end.rank(), end.world_size()), (rank, processes * seats));
        work(rank, end)
    });
    clusters.iter().for_each(|cluster| cluster.leave(PATIENT).unwrap());
    results
}

type Ran = (Vec<Vec<u32>>, State, Vec<u64>);

/// Means, state and uplink bytes of three steps on one rank, with random delays.
fn train(
    wiring: Wiring,
    scheme: &SchemeConfig,
    bucketing: &Bucketing,
    rank: usize,
    end: Box<dyn Collective>,
) -> Ran {
    let mut sleeps = Random(rank as u64 + 1000);
    let policy =
        Policy { dense_below: Some(10), warmup_steps: Some(1), ..Policy::from(bucketing.clone()) };
    let mut exchange =
        Exchange::with(scheme, wiring, policy, parameters(&LENGTHS), 9, end).unwrap();
    let (mut means, mut bytes) = (Vec::new(), Vec::new());
    for step in 1..=3 {
        std::thread::sleep(Duration::from_micros(sleeps.below(300) as u64));
        let mut gradient = Random(10 * step + rank as u64).laplaces(LENGTH);
        bytes.push(exchange.allreduce(step, &mut gradient).unwrap().wire_bytes);
        means.push(bits(&gradient));
        let mut values = [rank as f64, 1.0];
        exchange.collective().sum_f64(&mut values).unwrap();
        let n = exchange.collective().world_size() as f64;
        assert_eq!(values, [n * (n - 1.0) / 2.0, n]);
    }
    (means, exchange.save(), bytes)
}

/// However ranks are spread over processes, they come to the bits of one process: means, residuals,
/// what compressors have learnt, the server's own state, uplink bytes.
#[test]
fn processes_come_to_the_bits_of_one() {
    let compressed = Wiring { topology: Topology::Server, downlink: Some(Downlink::Compressed) };
    let wirings = Topology::ALL.iter().map(|topology| Wiring::from(*topology));
    for wiring in wirings.chain([compressed]) {
        for scheme in SchemeConfig::specimens() {
            for bucketing in [Bucketing::Whole, Bucketing::Parameter] {
                if wiring.validate(&scheme, &Policy::from(bucketing.clone())).is_err() {
                    continue;
                }
                let ends = wiring.topology.connect(4, PATIENT).unwrap();
                let train = |rank, end| train(wiring, &scheme, &bucketing, rank, end);
                let expected: Vec<Ran> = each_rank(ends, train);
                for spread in [(4, 1), (2, 2), (1, 4)] {
                    let found = across(wiring.topology, spread, PATIENT, train);
                    for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        let case = format!("{scheme:?} over {wiring:?} × {spread:?}, rank {rank}");
                        assert_eq!(found.0, expected.0, "means: {case}");
                        assert_eq!(found.1, expected.1, "state: {case}");
                        assert_eq!(found.2, expected.2, "bytes: {case}");
                    }
                }
            }
        }
    }
}

const SPREADS: [(usize, usize); 2] = [(4, 1), (2, 2)];

/// Means of shards come back within a process, where all ranks are in one; between processes only messages
/// travel.
#[test]
fn what_stays_in_a_process_does_not_count_as_sent_back() {
    let returned = |_, end| {
        let mut exchange = over(Topology::Sharded, &half(), end);
        let traffic = exchange.allreduce(1, &mut vec![1.0; LENGTH]).unwrap();
        (traffic.downlink_bytes > 0, traffic.legs[0].operation)
    };
    let one = each_rank(Topology::Sharded.connect(4, PATIENT).unwrap(), returned);
    assert_eq!(one, [(true, Operation::Messages); 4]);
    for spread in SPREADS {
        let several = across(Topology::Sharded, spread, PATIENT, returned);
        assert_eq!(several, [(false, Operation::Allgather); 4], "{spread:?}");
    }
}

fn over(topology: Topology, scheme: &SchemeConfig, end: Box<dyn Collective>) -> Exchange {
    Exchange::with(scheme, topology, Bucketing::Parameter, parameters(&LENGTHS), 9, end).unwrap()
}

#[test]
fn a_refusal_reaches_everybody_and_the_group_goes_on() {
    for (topology, spread) in Topology::ALL.iter().flat_map(|t| SPREADS.map(|s| (*t, s))) {
        for scheme in [SchemeConfig::default(), half()] {
            let ranks = across(topology, spread, PATIENT, |rank, end| {
                let mut exchange = over(topology, &scheme, end);
                let mut gradient = vec![1.0; LENGTH];
                if rank == 2 {
                    gradient[703 + 5] = f32::NAN;
                }
                let refused = exchange.allreduce(1, &mut gradient).unwrap_err();
                let given_up = match rank {
                    1 => exchange.abort(2, "no more"),
                    _ => exchange.allreduce(2, &mut vec![1.0; LENGTH]).unwrap_err(),
                };
                let mut gradient = vec![1.0; LENGTH];
                exchange.allreduce(2, &mut gradient).unwrap();
                (refused, given_up, gradient[700])
            });
            for (refused, given_up, mean) in ranks {
                let case = format!("{topology:?} {spread:?} {refused:?} {given_up:?}");
                let named = matches!(&refused, Error::NonFinite { rank: 2, step: 1, index: 5, parameter, .. }
                    if parameter == "p2");
                assert!(named, "{case}");
                let named = matches!(&given_up, Error::Aborted { rank: 1, step: 2, reason }
                    if reason == "no more");
                assert!(named, "{case}");
                assert_eq!(mean, 1.0);
            }
        }
    }
}

#[test]
fn an_overflowing_mean_is_everybodys_same_error() {
    for (topology, spread) in Topology::ALL.iter().flat_map(|t| SPREADS.map(|s| (*t, s))) {
        for scheme in [SchemeConfig::default(), half()] {
            let ranks = across(topology, spread, PATIENT, |_, end| {
                let mut gradient = vec![0.0; LENGTH];
                gradient[703 + 1500] = 3e38;
                over(topology, &scheme, end).allreduce(5, &mut gradient).unwrap_err()
            });
            let parameter = "p2".to_string();
            let named = Error::NonFiniteMean { step: 5, parameter, index: 1500 };
            assert_eq!(ranks, vec![named; 4], "{topology:?} {spread:?} {scheme:?}");
        }
    }
}

#[test]
fn ranks_at_different_places_find_out() {
    for (topology, spread) in Topology::ALL.iter().flat_map(|t| SPREADS.map(|s| (*t, s))) {
        for scheme in [SchemeConfig::default(), half()] {
            let ranks = across(topology, spread, Duration::from_secs(2), |rank, end| {
                let mut exchange = over(topology, &scheme, end);
                match rank {
                    3 => exchange.collective().barrier().unwrap_err(),
                    _ => exchange.allreduce(1, &mut [0.5; LENGTH]).unwrap_err(),
                }
            });
            let out = |error: &Error| {
                matches!(
                    error,
                    Error::OutOfStep { .. } | Error::Aborted { .. } | Error::PeerLost { .. }
                )
            };
            assert!(ranks.iter().all(out), "{topology:?} {spread:?}: {ranks:?}");
        }
    }
}

#[test]
fn a_rank_that_goes_and_one_that_is_silent_are_named_in_time() {
    let timeout = Duration::from_millis(600);
    for (topology, spread) in Topology::ALL.iter().flat_map(|t| SPREADS.map(|s| (*t, s))) {
        for silent in [false, true] {
            let ranks = across(topology, spread, timeout, |rank, end| -> Result<Duration> {
                let mut exchange = over(topology, &half(), end);
                exchange.allreduce(1, &mut [0.5; LENGTH])?;
                if rank == 3 {
                    if silent {
                        std::thread::sleep(3 * timeout);
                    }
                    return Ok(Duration::ZERO);
                }
                let began = Instant::now();
                let error = exchange.allreduce(2, &mut [0.5; LENGTH]).unwrap_err();
                let took = began.elapsed();
                assert!(took < 3 * timeout, "{took:?}");
                assert!(!silent || took >= timeout.mul_f64(0.9), "{took:?}");
                // And so does whatever comes next, at once.
                let again = exchange.collective().barrier().unwrap_err();
                assert_eq!(error.clone().awaiting(gradwire_exchange::Awaited::Barrier), again);
                Err(error)
            });
            for error in ranks.into_iter().filter_map(std::result::Result::err) {
                let named = match error {
                    Error::PeerLost { rank, .. } => !silent && rank == 3,
                    // Of a process with several ranks others know the first.
                    Error::Timeout { rank, .. } => silent && (rank == 3 || rank == 2),
                    _ => false,
                };
                assert!(named, "{topology:?} {spread:?} {silent}: {error:?}");
            }
        }
    }
}

type Letterbox = Receiver<(usize, Vec<u8>)>;

#[test]
fn letters_arrive_in_order_beside_the_rounds() {
    let (letters, boxes): (Vec<Letters>, Vec<Letterbox>) = (0..3)
        .map(|_| {
            let (outbox, inbox) = channel();
            let take = move |from, letter| drop(outbox.send((from, letter)));
            (Box::new(take) as Letters, inbox)
        })
        .unzip();
    let clusters = channels(letters).unwrap();
    for number in 0..50u8 {
        clusters[1].send(0, vec![number]);
        clusters[2].send(0, vec![number, 2]);
    }
    clusters[0].send(2, Vec::new());
    let mut next = [0, 0, 0];
    for _ in 0..100 {
        let (from, letter) = boxes[0].recv_timeout(PATIENT).unwrap();
        assert_eq!((letter[0], letter.len()), (next[from], from));
        next[from] += 1;
    }
    assert_eq!(boxes[2].recv_timeout(PATIENT).unwrap(), (0, Vec::new()));
    clusters.iter().for_each(|cluster| cluster.leave(PATIENT).unwrap());
}

/// What process 0 tells before its part in a round, the others know after it.
#[test]
fn notes_are_heard_before_the_round_they_travel_with_is_handed_out() {
    struct Word(AtomicU64, Mutex<Vec<(usize, u64)>>);
    impl Notes for Word {
        fn tell(&self) -> [u64; NOTES] {
            [self.0.load(Ordering::SeqCst), 0, 0]
        }
        fn hear(&self, from: usize, notes: [u64; NOTES]) {
            self.1.lock().unwrap().push((from, notes[0]));
        }
    }
    for topology in Topology::ALL {
        let clusters = clusters(2);
        let words: Vec<_> =
            (0..2).map(|_| Arc::new(Word(AtomicU64::new(0), Mutex::default()))).collect();
        std::thread::scope(|scope| {
            for (cluster, word) in clusters.iter().zip(&words) {
                scope.spawn(move || {
                    let ends = topology.connect_across(cluster, 1, PATIENT, word.clone()).unwrap();
                    let mut end = ends.into_iter().next().unwrap();
                    for round in 1..=100 {
                        word.0.store(round * 2 + cluster.process() as u64, Ordering::SeqCst);
                        end.barrier().unwrap();
                        // A quick process may be one round further.
                        let heard = word.1.lock().unwrap();
                        let told = heard.iter().filter(|(from, _)| *from == 1 - cluster.process());
                        let newest = told.map(|(_, word)| *word).max().unwrap();
                        assert!(newest >= round * 2, "{newest} in round {round}");
                    }
                });
            }
        });
    }
}
