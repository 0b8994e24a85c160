//! The same laws over every transport: everybody gets everybody's message, a rank that goes or is
//! silent is named in bounded time, and no patience is too long. Real processes: `mpi.rs`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::each_rank;
use common::transports::{TRANSPORTS, talk};
use gradwire_exchange::{Awaited, Collective, Error, Topology};

const PATIENT: Duration = Duration::from_secs(20);

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
            let timeout = if goes { PATIENT } else { Duration::from_millis(500) };
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
    for (name, connect) in &TRANSPORTS[1..5] {
        let losses = lose(connect(3, Duration::MAX), Duration::MAX, true);
        assert_eq!(losses.len(), 2, "{name}");
        let named = |(error, _): &(Error, _)| matches!(error, Error::PeerLost { rank: 2, .. });
        assert!(losses.iter().all(named), "{name}: {losses:?}");
    }
    for topology in Topology::ALL {
        let ends = topology.connect(2, Duration::MAX).unwrap();
        each_rank(ends, |_, mut end| end.barrier().unwrap());
    }
}
