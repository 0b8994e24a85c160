//! The same laws over every transport: everybody gets everybody's message, a rank that goes or is
//! silent is named in bounded time, and no patience is too long; between processes also control
//! messages and notes. The processes are threads here: `mpi.rs` has real ones.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::transports::{TRANSPORTS, clusters, talk};
use common::{PATIENT, each_rank};
use gradwire_exchange::cluster::{Notes, OnControl, in_memory};
use gradwire_exchange::{Awaited, Collective, Error};

#[test]
fn everybody_gets_what_everybody_sends() {
    for (name, connect) in TRANSPORTS {
        let mut groups = 0;
        for ranks in [1, 2, 3, 5] {
            let ends = connect(ranks, PATIENT);
            groups += usize::from(!ends.is_empty());
            each_rank(ends, |rank, mut end| {
                assert_eq!((end.rank(), end.world_size()), (rank, ranks), "{name}");
                talk(&mut *end, 12);
            });
        }
        assert!(groups > 0, "{name}");
    }
}

/// The last rank goes, or sleeps, where the others await its message.
fn lose(ends: Vec<Box<dyn Collective>>, timeout: Duration, goes: bool) -> Vec<(Error, Duration)> {
    let last = ends.len() - 1;
    let losses = each_rank(ends, |rank, mut end| {
        talk(&mut *end, 1);
        if rank == last {
            if !goes {
                std::thread::sleep(3 * timeout);
            }
            return None;
        }
        let began = Instant::now();
        let error = end.barrier().unwrap_err();
        let took = began.elapsed();
        let again = end.barrier().unwrap_err();
        let stays = matches!(again, Error::PeerLost { .. } | Error::Timeout { .. });
        assert!(stays, "{again}");
        Some((error, took))
    });
    losses.into_iter().flatten().collect()
}

#[test]
fn a_rank_that_goes_and_one_that_is_silent_are_named_in_time() {
    for (name, connect) in TRANSPORTS {
        for (ranks, goes) in [(2, true), (2, false), (4, true), (4, false)] {
            let timeout = if goes { PATIENT } else { Duration::from_secs(2) };
            let ends = connect(ranks, timeout);
            if ends.is_empty() {
                continue;
            }
            for (by, (error, took)) in lose(ends, timeout, goes).into_iter().enumerate() {
                let case = format!("{name}, {ranks}, goes {goes}: {error}");
                let (rank, awaited) = (ranks - 1, Awaited::Barrier);
                match goes {
                    true => assert_eq!(error, Error::PeerLost { rank, by, awaited }, "{case}"),
                    false => {
                        let after = timeout;
                        assert_eq!(error, Error::Timeout { rank, by, awaited, after }, "{case}");
                        assert!(
                            took > timeout.mul_f64(0.5) && took < 3 * timeout,
                            "{took:?} {case}"
                        );
                    }
                }
                assert!(took < PATIENT, "{took:?} {case}");
            }
        }
    }
}

/// A deadline that no clock can hold is none.
#[test]
fn ranks_may_wait_for_ever() {
    for (name, connect) in &TRANSPORTS[..2] {
        let losses = lose(connect(3, Duration::MAX), Duration::MAX, true);
        assert_eq!(losses.len(), 2, "{name}");
        let named = |(error, _): &(Error, _)| matches!(error, Error::PeerLost { rank: 2, .. });
        assert!(losses.iter().all(named), "{name}: {losses:?}");
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
        fn tell(&self) -> [u64; 3] {
            [self.0.load(Ordering::SeqCst), 0, 0]
        }
        fn hear(&self, from: usize, notes: [u64; 3]) {
            self.1.lock().unwrap().push((from, notes[0]));
        }
    }
    let clusters = clusters(2);
    let words: Vec<_> =
        (0..2).map(|_| Arc::new(Word(AtomicU64::new(0), Mutex::default()))).collect();
    std::thread::scope(|scope| {
        for (cluster, word) in clusters.iter().zip(&words) {
            scope.spawn(move || {
                let mut end = cluster.connect(PATIENT, word.clone()).unwrap();
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
