//! Real processes, joined by MPI: run by itself it starts `mpirun` on itself; each process then
//! sends what the others can foretell. Messages are cut into small pieces, so that many of them are
//! met with little memory, or into pieces so long that MPI sends none before its receiver asks for
//! it: then whoever sends depends on whoever receives.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use gradwire_exchange::cluster::{Cluster, NOTES, Notes};
use gradwire_exchange::{Collective, Topology, mpi};

const PATIENT: Duration = Duration::from_secs(30);
const ROUNDS: usize = 60;

/// How often each process writes five letters to all others.
const LETTERS: usize = 12;

/// Processes, how their ranks meet, and the longest message in bytes.
const JOBS: [[&str; 3]; 6] = [
    ["1", "allgather", "1000"],
    ["2", "server", "1000"],
    ["3", "allgather", "1000"],
    ["2", "allgather", "50000"],
    ["3", "server", "50000"],
    ["4", "allgather", "50000"],
];

fn main() -> ExitCode {
    if std::env::var_os("OMPI_COMM_WORLD_SIZE").or(std::env::var_os("PMI_SIZE")).is_some() {
        return worker();
    }
    let program = std::env::current_exe().unwrap();
    for job @ [processes, topology, longest] in JOBS {
        let began = Instant::now();
        let mut command = Command::new("mpirun");
        command.args(["--allow-run-as-root", "--oversubscribe", "-n", processes]);
        match command.arg(&program).args([topology, longest]).status() {
            Ok(status) if status.success() => println!("{job:?}: {:.1?}", began.elapsed()),
            Ok(status) => {
                eprintln!("{job:?}: {status}");
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
    let mut told = std::env::args().skip(1);
    let central = told.next().unwrap() == "server";
    let longest = told.next().unwrap().parse().unwrap();
    let (cluster, here) = mpi::join_in_pieces(PATIENT, longest, letters).unwrap();
    assert!(here.index < here.processes && here.processes == cluster.processes());
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
    let lengths = [250_000, 1, 5_500, 0, 1_000].repeat(LETTERS);
    let others = || (0..cluster.processes()).filter(|other| *other != cluster.process());
    for length in &lengths {
        others().for_each(|to| cluster.send(to, vec![cluster.process() as u8; *length]));
        std::thread::sleep(Duration::from_micros(50));
    }
    let mut found = vec![Vec::new(); cluster.processes()];
    for _ in others().flat_map(|_| &lengths) {
        let (from, letter) = inbox.recv_timeout(PATIENT).unwrap();
        assert!(letter.iter().all(|byte| usize::from(*byte) == from));
        found[from].push(letter.len());
    }
    others().for_each(|from| assert_eq!(found[from], lengths, "from {from}"));
}
