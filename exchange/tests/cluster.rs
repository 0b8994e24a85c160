//! Ranks that are processes: control messages, notes; that they come to the bits of threads is in
//! `topologies.rs`. The processes are
//! threads here; `mpi.rs` has real ones, `transports.rs` and `topologies.rs` what all transports share.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use common::PATIENT;
use common::transports::clusters;
use gradwire_exchange::Topology;
use gradwire_exchange::cluster::{NOTES, Notes, OnControl, in_memory};

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
