//! Ranks that are processes: the same bits as threads, control messages, notes. The processes are
//! threads here; `mpi.rs` has real ones, `transports.rs` and `topologies.rs` what all transports share.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::transports::{clusters, processes};
use common::{Random, bits, each_rank, parameters};
use gradwire_exchange::cluster::{NOTES, Notes, OnControl, in_memory};
use gradwire_exchange::{
    Bucketing, Collective, Downlink, Exchange, Policy, SchemeConfig, State, Topology, Wiring,
};

const PATIENT: Duration = Duration::from_secs(20);
const LENGTHS: [usize; 5] = [700, 3, 3200, 2048, 9];
const LENGTH: usize = 5960;

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

/// Processes come to the bits of threads: means, residuals, what compressors have learnt, the server's
/// own state, uplink bytes.
#[test]
fn processes_come_to_the_bits_of_one() {
    let compressed = Wiring { topology: Topology::Server, downlink: Some(Downlink::Compressed) };
    for wiring in [Topology::Allgather.into(), Topology::Server.into(), compressed] {
        for scheme in SchemeConfig::specimens() {
            for bucketing in [Bucketing::Whole, Bucketing::Parameter] {
                if wiring.validate(&scheme, &Policy::from(bucketing.clone())).is_err() {
                    continue;
                }
                let ends = wiring.topology.connect(3, PATIENT).unwrap();
                let train = |rank, end| train(wiring, &scheme, &bucketing, rank, end);
                let expected: Vec<Ran> = each_rank(ends, train);
                let found = each_rank(processes(wiring.topology, 3, PATIENT), train);
                for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let case = format!("{scheme:?} over {wiring:?}, rank {rank}");
                    assert_eq!(found.0, expected.0, "means: {case}");
                    assert_eq!(found.1, expected.1, "state: {case}");
                    assert_eq!(found.2, expected.2, "bytes: {case}");
                }
            }
        }
    }
}

type Received = Receiver<(usize, Vec<u8>)>;

#[test]
fn control_messages_arrive_in_order_beside_the_rounds() {
    let (handlers, boxes): (Vec<OnControl>, Vec<Received>) = (0..3)
        .map(|_| {
            let (outbox, inbox) = channel();
            let take = move |from, message| drop(outbox.send((from, message)));
            (Box::new(take) as OnControl, inbox)
        })
        .unzip();
    let clusters = in_memory(handlers);
    for number in 0..50u8 {
        clusters[1].send(0, vec![number]);
        clusters[2].send(0, vec![number, 2]);
    }
    clusters[0].send(2, Vec::new());
    let mut next = [0, 0, 0];
    for _ in 0..100 {
        let (from, message) = boxes[0].recv_timeout(PATIENT).unwrap();
        assert_eq!((message[0], message.len()), (next[from], from));
        next[from] += 1;
    }
    assert_eq!(boxes[2].recv_timeout(PATIENT).unwrap(), (0, Vec::new()));
    clusters.iter().for_each(|cluster| cluster.leave(PATIENT).unwrap());
}

/// What process 0 tells before its part in a round, the others know after it.
#[test]
fn notes_arrive_before_the_round_they_travel_with() {
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
                    let mut end = topology.connect_across(cluster, PATIENT, word.clone()).unwrap();
                    for round in 1..=100 {
                        word.0.store(round * 2 + cluster.rank() as u64, Ordering::SeqCst);
                        end.barrier().unwrap();
                        // A quick process may be one round further.
                        let heard = word.1.lock().unwrap();
                        let told = heard.iter().filter(|(from, _)| *from == 1 - cluster.rank());
                        let newest = told.map(|(_, word)| *word).max().unwrap();
                        assert!(newest >= round * 2, "{newest} in round {round}");
                    }
                });
            }
        });
    }
}
