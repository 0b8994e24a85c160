//! Real processes, joined by MPI: run by itself it starts `mpirun` on itself; each process then
//! sends what the others can foretell. Messages are cut into small pieces, so that many of them are
//! met with little memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use gradwire_exchange::cluster::{Cluster, NOTES, Notes};
use gradwire_exchange::{Collective, Topology, mpi};

const PATIENT: Duration = Duration::from_secs(30);
const ROUNDS: usize = 60;

fn main() -> ExitCode {
    if std::env::var_os("OMPI_COMM_WORLD_SIZE").or(std::env::var_os("PMI_SIZE")).is_some() {
        return worker();
    }
    let program = std::env::current_exe().unwrap();
    for (processes, topology) in [("1", "allgather"), ("2", "server"), ("3", "allgather")] {
        let began = Instant::now();
        let mut command = Command::new("mpirun");
        command.args(["--allow-run-as-root", "--oversubscribe", "-n", processes]);
        match command.arg(&program).arg(topology).status() {
            Ok(status) if status.success() => {
                println!("{processes} processes, {topology}: {:.1?}", began.elapsed());
            }
            Ok(status) => {
                eprintln!("{processes} processes, {topology}: {status}");
                return ExitCode::FAILURE;
            }
            Err(error) => {
                eprintln!("mpirun cannot be started: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

struct Told;

impl Notes for Told {
    fn tell(&self) -> [u64; NOTES] {
        [7, 8, 9]
    }

    fn hear(&self, _from: usize, notes: [u64; NOTES]) {
        assert_eq!(notes, [7, 8, 9]);
    }
}

/// What `from` says to `to` in a round.
fn message(round: usize, from: usize, to: usize) -> Vec<u8> {
    // Empty ones, some of a piece exactly, and some of many pieces.
    let length = [0, 1, 999, 1000, 1001, 4000, 100_000][(round + 3 * from + to) % 7];
    (0..length).map(|i| (i * 31 + round * 7 + from * 3 + to) as u8).collect()
}

fn worker() -> ExitCode {
    let (outbox, inbox) = channel();
    let letters = Box::new(move |from, letter| drop(outbox.send((from, letter))));
    let (cluster, here) = mpi::join_in_pieces(PATIENT, 1000, letters).unwrap();
    assert!(here.index < here.processes && here.processes == cluster.processes());
    let central = std::env::args().any(|word| word == "server");
    let topology = if central { Topology::Server } else { Topology::Allgather };
    let ends = topology.connect_across(&cluster, 2, PATIENT, Arc::new(Told)).unwrap();
    std::thread::scope(|scope| {
        ends.into_iter().for_each(|end| drop(scope.spawn(move || rounds(end))));
        correspond(&cluster, &inbox);
    });
    cluster.leave(PATIENT).unwrap();
    ExitCode::SUCCESS
}

fn rounds(mut end: Box<dyn Collective>) {
    let (rank, ranks) = (end.rank(), end.world_size());
    for round in 0..ROUNDS {
        let all = end.allgather(message(round, rank, 0)).unwrap();
        for (from, found) in all.iter().enumerate() {
            assert!(**found == message(round, from, 0), "round {round} from {from} to {rank}");
        }
        if let Some(alltoall) = end.alltoall() {
            let parts = (0..ranks).map(|to| message(round, rank, to)).collect();
            let each = alltoall.alltoall(parts).unwrap();
            for (from, found) in each.iter().enumerate() {
                assert!(**found == message(round, from, rank), "round {round} {from} to {rank}");
            }
        }
        let mut values = [rank as f32, 1.0];
        end.mean_f32(&mut values).unwrap();
        assert_eq!(values, [(ranks as f32 - 1.0) / 2.0, 1.0]);
    }
}

/// Letters between all, long ones and short ones at the same time, while rounds go on.
fn correspond(cluster: &Cluster, inbox: &std::sync::mpsc::Receiver<(usize, Vec<u8>)>) {
    let lengths = [250_000, 1, 5_500, 0, 1_000];
    let others = || (0..cluster.processes()).filter(|other| *other != cluster.process());
    for length in lengths {
        others().for_each(|to| cluster.send(to, vec![cluster.process() as u8; length]));
    }
    let mut found = vec![Vec::new(); cluster.processes()];
    for _ in others().flat_map(|_| lengths) {
        let (from, letter) = inbox.recv_timeout(PATIENT).unwrap();
        assert!(letter.iter().all(|byte| usize::from(*byte) == from));
        found[from].push(letter.len());
    }
    others().for_each(|from| assert_eq!(found[from], lengths, "from {from}"));
}
