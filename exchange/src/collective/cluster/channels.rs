//! Couriers that reach each other by channels: several "processes" as groups of threads of one, so
//! that what is carried between processes can be tested without any.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Thread};
use std::time::Duration;

use super::desk::{Desk, Lane, Next};
use super::{Cluster, Letters, courier};
use crate::error::{Error, Result};

/// What moves between couriers: from whom, on which lane.
type Moved = (usize, Lane, Vec<u8>);

/// How long a courier sleeps while somebody waits for its clock, and nobody wakes it.
const NAP: Duration = Duration::from_millis(2);

/// Joins as many processes as there are `letters`, each with a courier of its own, within this
/// process. One that [`abort`](Cluster::abort)s ends its own courier only.
///
/// # Errors
/// [`Error::Transport`] when a courier's thread cannot be started.
pub fn channels(letters: Vec<Letters>) -> Result<Vec<Cluster>> {
    let processes = letters.len();
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..processes).map(|_| channel()).unzip();
    let (ready, made) = channel();
    let mut threads: Vec<Thread> = Vec::with_capacity(processes);
    let mut starts = Vec::with_capacity(processes);
    for (process, (letters, inbox)) in letters.into_iter().zip(receivers).enumerate() {
        let (senders, ready) = (senders.clone(), ready.clone());
        let (start, started) = channel::<Vec<Thread>>();
        let thread = thread::Builder::new()
            .name(format!("courier-{process}"))
            .spawn(move || {
                let (desk, cluster) = courier(process, processes, letters);
                // If nobody takes it, nobody will ever call.
                let _ = ready.send(cluster);
                if let Ok(threads) = started.recv() {
                    run(process, desk, &inbox, &senders, &threads);
                }
            })
            .map_err(|error| Error::Transport { problem: error.to_string() })?;
        threads.push(thread.thread().clone());
        starts.push(start);
    }
    drop(ready);
    starts.into_iter().for_each(|start| drop(start.send(threads.clone())));
    let mut clusters: Vec<Cluster> = made.iter().take(processes).collect();
    clusters.sort_by_key(Cluster::process);
    Ok(clusters)
}

fn run(
    process: usize,
    mut desk: Desk,
    inbox: &Receiver<Moved>,
    senders: &[Sender<Moved>],
    threads: &[Thread],
) {
    loop {
        inbox.try_iter().for_each(|(from, lane, bytes)| desk.arrived(from, lane, bytes));
        let next = desk.look();
        for shipment in desk.outgoing() {
            // A process that is gone need not be told.
            let _ = senders[shipment.to].send((process, shipment.lane, shipment.bytes.to_vec()));
            threads[shipment.to].unpark();
        }
        if next != Next::GoOn {
            return;
        }
        thread::park_timeout(if desk.is_waiting() { NAP } else { 5 * NAP });
    }
}
