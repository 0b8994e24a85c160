//! The processes that train one run, from one of them.

use super::messages::{ControlMessage, decode, encode};
use crate::machine::{self, Machine};
use crate::recipe::{OnWorkerLoss, Recipe};
use anyhow::{Context, Result, bail, ensure};
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, never, unbounded};
use gradwire_exchange::cluster::{Cluster, Notes, OnControl};
use gradwire_exchange::{Collective, Topology, mesh};
use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long processes wait for each other before the run begins, where one may be reading its data
/// from a slow disk; and at the end, where one may be writing.
pub const SLOWEST: Duration = Duration::from_secs(600);

/// How long a process waits to be ended with the others when the run has failed.
const GRACE: Duration = Duration::from_secs(20);

/// The processes that train one run, from one of them.
pub struct Job {
    /// This process's number, from 0.
    pub process: usize,
    /// The number of processes.
    pub processes: usize,
    cluster: Option<Cluster>,
    /// Where messages arrive; nowhere in a process by itself.
    pub inbox: Receiver<(usize, Vec<u8>)>,
    /// By process; known once all have agreed.
    pub(super) machines: OnceLock<Vec<Machine>>,
    /// Compute threads of each worker, where the recipe leaves them open.
    pub(super) threads: OnceLock<usize>,
    /// This process's number among those on this machine.
    pub place: usize,
    /// Whether the run has begun.
    pub(super) begun: AtomicBool,
}

impl Job {
    /// A process by itself.
    pub fn alone() -> Self {
        Self {
            process: 0,
            processes: 1,
            cluster: None,
            inbox: never(),
            machines: OnceLock::new(),
            threads: OnceLock::new(),
            place: 0,
            begun: AtomicBool::new(false),
        }
    }

    /// The job that this process has been started in, if a launcher has started several.
    ///
    /// # Errors
    /// When this program cannot reach the others: it is built without MPI, or with another than the
    /// launcher's.
    pub fn join() -> Result<Self> {
        let launched = launched();
        if launched > 1 { Self::join_launched(launched) } else { Ok(Self::alone()) }
    }

    #[cfg(not(feature = "mpi"))]
    fn join_launched(launched: usize) -> Result<Self> {
        bail!(
            "a launcher has started {launched} processes, and each would train a run of its own: \
             this program is built without MPI; build it with `--features mpi`, or start it once"
        )
    }

    #[cfg(feature = "mpi")]
    fn join_launched(launched: usize) -> Result<Self> {
        use gradwire_exchange::mpi;
        let (messages, inbox) = control_channel();
        let (cluster, here) = mpi::join(SLOWEST, messages)?;
        ensure!(
            cluster.world_size() == launched,
            "the launcher has started {launched} processes, but MPI knows of {}: the launcher and \
             this program use different MPI libraries; start it with the mpirun of the library \
             that it was built with, or with `srun --mpi=pmix` (see `srun --mpi=list`)",
            cluster.world_size()
        );
        Ok(Self { place: here.index, ..Self::over(cluster, inbox) })
    }

    /// One process of several that `cluster` joins; `inbox` is where its messages arrive
    /// ([`control_channel`]). All are taken to be on this machine, unless its `place` is set.
    pub fn over(cluster: Cluster, inbox: Receiver<(usize, Vec<u8>)>) -> Self {
        let (process, processes) = (cluster.rank(), cluster.world_size());
        Self { process, processes, place: process, cluster: Some(cluster), inbox, ..Self::alone() }
    }

    /// Whether this process leads: it is the first, or the only one.
    pub fn leads(&self) -> bool {
        self.process == 0
    }

    /// Whether there are others.
    pub fn is_shared(&self) -> bool {
        self.processes > 1
    }

    /// The workers of this process: all, or, where there are other processes, one.
    ///
    /// # Errors
    /// When the recipe's workers are not as many as the processes, or the recipe asks for what several
    /// processes cannot do.
    pub fn workers(&self, recipe: &Recipe) -> Result<usize> {
        if !self.is_shared() {
            return Ok(recipe.workers);
        }
        let (workers, processes) = (recipe.workers, self.processes);
        ensure!(
            workers == processes,
            "workers = {workers}, but the launcher has started {processes} processes, and each is one \
             worker; leave `workers` out, or start {workers} processes (`mpirun -n {workers}`)"
        );
        ensure!(
            recipe.exchange.topology != Topology::Sharded || recipe.exchange.downlink.is_some(),
            "exchange.topology = \"sharded\" divides messages among workers that share memory, and \
             there are {processes} processes; write exchange.topology = \"allgather\", which comes to \
             the same weights, or \"server\", or exchange.downlink = \"compressed\" beside it"
        );
        if let Topology::TwoLevel { group } = recipe.exchange.topology {
            // Where all groups before are whole, the first of this one has a multiple of `group` processes before it
            // on its host, and each other one more than its neighbour just when it is on the same host.
            ensure!(
                self.process % group.max(1) == self.place % group.max(1),
                "exchange.topology.group = {group} averages consecutive ranks within a host, and process {} is not on \
                 the host of the others of its group; let the launcher fill one host after the other, with a multiple \
                 of {group} processes on each (`mpirun --map-by slot`, `srun --distribution=block`)",
                self.process
            );
        }
        ensure!(
            recipe.faults.on_worker_loss == OnWorkerLoss::Stop,
            "faults.on_worker_loss restarts workers within one process, and there are {}: their \
             job ends when one is lost; write faults.on_worker_loss = \"stop\", and let the job's \
             script go on with --resume",
            self.processes
        );
        Ok(1)
    }

    /// Where a rank runs, in words, when not all run in one process.
    pub fn whereabouts(&self, rank: usize) -> Option<String> {
        if !self.is_shared() {
            return None;
        }
        let host = self.machines.get().and_then(|machines| machines.get(rank));
        let host = host.map(|machine| format!(" on {}", machine.host)).unwrap_or_default();
        Some(format!("process {rank}{host}"))
    }

    /// Compute threads of each worker.
    pub fn threads(&self, recipe: &Recipe) -> usize {
        let agreed = self.threads.get().copied().filter(|_| recipe.threads == 0);
        agreed.unwrap_or_else(|| recipe.threads_per_worker(machine::cores()))
    }

    /// The ends of the exchange of this process's workers, in order of rank. The
    /// `notes` travel with the rounds.
    ///
    /// # Errors
    /// As [`Cluster::connect`].
    pub fn connect(
        &self,
        recipe: &Recipe,
        notes: Arc<dyn Notes>,
    ) -> Result<Vec<Box<dyn Collective>>> {
        let patience = Duration::from_secs_f64(recipe.exchange.timeout);
        Ok(match &self.cluster {
            None => mesh(recipe.workers, patience),
            Some(cluster) => vec![cluster.connect(patience, notes)?],
        })
    }

    /// The process that this one waits for in an exchange, if there is one.
    pub fn awaited(&self) -> Option<usize> {
        self.cluster.as_ref().and_then(Cluster::awaited)
    }

    /// Writes to another process.
    ///
    /// # Errors
    /// When the message cannot be written down, such as a path that is no text.
    pub fn write(&self, to: usize, message: &ControlMessage) -> Result<()> {
        if let Some(cluster) = &self.cluster {
            cluster.send(to, encode(message)?);
        }
        Ok(())
    }

    /// Writes to all others.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_all(&self, message: &ControlMessage) -> Result<()> {
        (0..self.processes)
            .filter(|to| *to != self.process)
            .try_for_each(|to| self.write(to, message))
    }

    /// The next message, waited for until `deadline`.
    ///
    /// # Errors
    /// When one cannot be read, or none can come any more.
    pub fn read(&self, deadline: Instant) -> Result<Option<(usize, ControlMessage)>> {
        match self.inbox.recv_deadline(deadline) {
            Ok((from, bytes)) => {
                let message = decode(&bytes);
                Ok(Some((from, message.with_context(|| format!("a message of process {from}"))?)))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("this process is no longer joined with the others")
            }
        }
    }

    /// Ends the job: with all others when it has gone `well` or not begun; else at once, whatever the
    /// others do, after a moment for process 0 to say why.
    pub fn end(self, well: bool) {
        let Some(cluster) = &self.cluster else { return };
        if well || !self.begun.load(Ordering::SeqCst) {
            if self.leads() {
                // A message without a path can be written.
                let _ = self.write_all(if well {
                    &ControlMessage::Finished
                } else {
                    &ControlMessage::Refused
                });
            }
            if cluster.leave(if well { SLOWEST } else { GRACE }).is_ok() {
                return;
            }
        } else if !self.leads() {
            // Process 0 ends all; this is for one that cannot.
            let deadline = Instant::now() + GRACE;
            while let Ok(Some((_, message))) = self.read(deadline) {
                if matches!(message, ControlMessage::Finished) {
                    break;
                }
            }
        }
        cluster.abort(1, GRACE);
    }
}

/// What takes the messages of a cluster, and where they are read.
pub fn control_channel() -> (OnControl, Receiver<(usize, Vec<u8>)>) {
    let (outbox, inbox): (Sender<(usize, Vec<u8>)>, _) = unbounded();
    (Box::new(move |from, message| drop(outbox.send((from, message)))), inbox)
}

/// How many processes the launcher has started together, by what it leaves in the environment: that
/// of Open MPI, of MPICH and its relatives, of Slurm's `srun`.
pub fn launched() -> usize {
    let number = |name: &str| env::var(name).ok()?.parse::<usize>().ok();
    let known = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"];
    known.into_iter().filter_map(number).max().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Source;

    /// Each process looks at its own place alone; one of them refuses where any group lies on several hosts.
    #[test]
    fn groups_lie_on_one_host() {
        let problem = |group: usize, hosts: &str| {
            let processes = hosts.len();
            let topology = format!("exchange.topology={{ kind = 'two-level', group = {group} }}");
            let recipe = Source::of([format!("workers={processes}"), topology]).load().unwrap();
            hosts.chars().enumerate().find_map(|(process, host)| {
                let place = hosts.chars().take(process).filter(|other| *other == host).count();
                let job = Job { process, processes, place, ..Job::alone() };
                job.workers(&recipe).err().map(|error| error.to_string())
            })
        };
        for (group, hosts) in
            [(2, "aabb"), (2, "aaaa"), (2, "aabbaabb"), (3, "aaabbb"), (4, "aaaa")]
        {
            assert_eq!(problem(group, hosts), None, "{hosts}");
        }
        for (group, hosts, process) in
            [(2, "abab", 1), (2, "abba", 1), (2, "aaabbb", 3), (3, "aaaabb", 4), (4, "aabb", 2)]
        {
            let said = problem(group, hosts).unwrap_or_else(|| panic!("{hosts}"));
            assert!(said.contains(&format!("process {process} is not on")), "{hosts}: {said}");
            assert!(said.contains("--map-by slot"), "{said}");
        }
    }
}
