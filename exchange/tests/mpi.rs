//! Real processes, joined by MPI: run by itself it starts `mpirun` on itself; each process then
//! sends what the others can foretell. Messages are cut into small pieces, so that many of them are
//! met with little memory, or into pieces so long that MPI sends none before its receiver asks for
//! it: then whoever sends depends on whoever receives.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::transports::talk;
use gradwire_exchange::cluster::{Cluster, Notes};
use gradwire_exchange::mpi;

const PATIENT: Duration = Duration::from_secs(30);
const ROUNDS: usize = 60;

/// How often each process sends five control messages to all others.
const CONTROL: usize = 12;

/// Processes, and the longest message in bytes.
const JOBS: [[&str; 2]; 6] =
    [["1", "1000"], ["2", "1000"], ["3", "1000"], ["2", "50000"], ["3", "50000"], ["6", "50000"]];

fn main() -> ExitCode {
    if std::env::var_os("OMPI_COMM_WORLD_SIZE").or(std::env::var_os("PMI_SIZE")).is_some() {
        return worker();
    }
    let program = std::env::current_exe().unwrap();
    for job @ [processes, longest] in JOBS {
        let began = Instant::now();
        let mut command = Command::new("mpirun");
        command.args(["--allow-run-as-root", "--oversubscribe", "-n", processes]);
        match command.arg(&program).arg(longest).status() {
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
    fn tell(&self) -> [u64; 3] {
        [7, 8, 9]
    }

    fn hear(&self, _from: usize, notes: [u64; 3]) {
        assert_eq!(notes, [7, 8, 9]);
    }
}

fn worker() -> ExitCode {
    let (outbox, inbox) = channel();
    let on_control = Box::new(move |from, message| drop(outbox.send((from, message))));
    let longest = std::env::args().nth(1).unwrap().parse().unwrap();
    let (cluster, here) = mpi::join_in_pieces(PATIENT, longest, on_control).unwrap();
    assert!(here.index < here.processes && here.processes == cluster.world_size());
    let mut end = cluster.connect(PATIENT, Arc::new(Told)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || talk(&mut *end, ROUNDS));
        correspond(&cluster, &inbox);
    });
    cluster.leave(PATIENT).unwrap();
    ExitCode::SUCCESS
}

/// Control messages between all, long ones and short ones at the same time, while rounds go on.
fn correspond(cluster: &Cluster, inbox: &std::sync::mpsc::Receiver<(usize, Vec<u8>)>) {
    let lengths = [250_000, 1, 5_500, 0, 1_000].repeat(CONTROL);
    let others = || (0..cluster.world_size()).filter(|other| *other != cluster.rank());
    for length in &lengths {
        others().for_each(|to| cluster.send(to, vec![cluster.rank() as u8; *length]));
        std::thread::sleep(Duration::from_micros(50));
    }
    let mut found = vec![Vec::new(); cluster.world_size()];
    for _ in others().flat_map(|_| &lengths) {
        let (from, message) = inbox.recv_timeout(PATIENT).unwrap();
        assert!(message.iter().all(|byte| usize::from(*byte) == from));
        found[from].push(message.len());
    }
    others().for_each(|from| assert_eq!(found[from], lengths, "from {from}"));
}
