//! Every transport within one process, and what each rank must find over any of them.

use std::sync::Arc;
use std::time::Duration;

use gradwire_exchange::cluster::{Cluster, Notes, OnControl, in_memory};
use gradwire_exchange::{Collective, mesh};

/// Connects the ranks of a group; none when the transport has no group of that size.
pub type Connect = fn(usize, Duration) -> Vec<Box<dyn Collective>>;

/// The transports by name.
pub const TRANSPORTS: [(&str, Connect); 3] =
    [("mesh", mesh), ("processes", processes), ("the example's sockets", sockets)];

#[cfg(unix)]
fn sockets(ranks: usize, timeout: Duration) -> Vec<Box<dyn Collective>> {
    #[path = "../../examples/own_transport.rs"]
    #[allow(dead_code, reason = "the example's program is not run here")]
    mod own_transport;
    let ends = (ranks == 2).then(|| own_transport::pair::pair(timeout).unwrap());
    ends.into_iter().flatten().map(|end| Box::new(end) as _).collect()
}

#[cfg(not(unix))]
fn sockets(_ranks: usize, _timeout: Duration) -> Vec<Box<dyn Collective>> {
    vec![]
}

/// Notes that tell nothing.
pub struct Silence;

impl Notes for Silence {
    fn tell(&self) -> [u64; 3] {
        [0; 3]
    }

    fn hear(&self, _from: usize, _notes: [u64; 3]) {}
}

/// Processes whose control messages nobody reads.
pub fn clusters(processes: usize) -> Vec<Cluster> {
    in_memory((0..processes).map(|_| Box::new(|_, _| ()) as OnControl).collect())
}

/// As many processes, joined.
pub fn processes(ranks: usize, timeout: Duration) -> Vec<Box<dyn Collective>> {
    let connect = |cluster: &Cluster| cluster.connect(timeout, Arc::new(Silence));
    clusters(ranks).iter().map(|cluster| connect(cluster).unwrap()).collect()
}

/// What `from` sends to `to` in a round.
fn message(round: usize, from: usize, to: usize) -> Vec<u8> {
    // Empty ones, some of a piece of MPI's exactly, and some of many pieces.
    let length = [0, 1, 999, 1000, 1001, 4000, 100_000][(round + 3 * from + to) % 7];
    (0..length).map(|i| (i * 31 + round * 7 + from * 3 + to) as u8).collect()
}

/// Some rounds, in which every rank finds what the others have sent it.
pub fn talk(end: &mut dyn Collective, rounds: usize) {
    let (rank, ranks) = (end.rank(), end.world_size());
    for round in 0..rounds {
        let all = end.allgather(message(round, rank, 0)).unwrap();
        assert_eq!(all.len(), ranks);
        for (from, found) in all.iter().enumerate() {
            assert!(**found == message(round, from, 0), "round {round} from {from} to {rank}");
        }
        if end.divides() {
            let parts = (0..ranks).map(|to| message(round, rank, to)).collect();
            let each = end.alltoall(parts).unwrap();
            for (from, found) in each.iter().enumerate() {
                assert!(**found == message(round, from, rank), "round {round} {from} to {rank}");
            }
        }
        let mut sums = [rank as f64 + 0.1, 1.0];
        end.sum_f64(&mut sums).unwrap();
        let tenths = (0..ranks).map(|rank| rank as f64 + 0.1).reduce(|sum, next| sum + next);
        assert_eq!(sums, [tenths.unwrap(), ranks as f64]);
        let mut means = [rank as f32, 1.0];
        end.mean_f32(&mut means).unwrap();
        let sum = (0..ranks).map(|rank| rank as f32).sum::<f32>();
        assert_eq!(means, [sum * (1.0 / ranks as f32), ranks as f32 * (1.0 / ranks as f32)]);
        let mut bytes = vec![rank as u8; rank + 1];
        end.broadcast(ranks - 1, &mut bytes).unwrap();
        assert_eq!(bytes, vec![ranks as u8 - 1; ranks]);
        end.barrier().unwrap();
        assert_eq!(end.compare(&[1, 2, 3]).unwrap(), None);
        let differ = end.compare(&[1, rank as u64 / 2, rank as u64]).unwrap();
        match ranks {
            1 => assert_eq!(differ, None),
            2 => assert_eq!(differ.map(|differ| (differ.index, differ.rank)), Some((2, 1))),
            _ => assert_eq!(differ.map(|differ| (differ.index, differ.rank)), Some((1, 2))),
        }
    }
}
