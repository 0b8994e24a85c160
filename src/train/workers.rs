//! The workers of a run: their threads, their reports, and a watch over them.
//!
//! No wait is unbounded. A worker that fails drops its end of the exchange, which ends the others;
//! one that is silent is given up by the others after `exchange.timeout`; one that shows no
//! progress where nobody waits for it is given up here. After the first failure the rest have a
//! short grace to stop by themselves. A thread that still has not stopped then is left behind: it
//! holds nothing that anybody waits for, and ends with the process at the latest.
//!
//! Of several processes each runs its own workers so, and process 0 hears what the others report
//! (`relay`).

use crate::checkpoint::Checkpoint;
use crate::cluster::Job;
use crate::train::failure::Failure;
use crate::train::faults::Faults;
use crate::train::position::LivePosition;
use crate::train::report::Report;
use crate::train::session::Session;
use crate::train::watch::Watch;
use crate::train::worker::{Worker, WorkerParts};
use anyhow::{Context, Result};
use crossbeam::channel::{never, select, unbounded};
use gradwire_models::kernels;
use rayon::ThreadPoolBuilder;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How often the watch looks.
const TICK: Duration = Duration::from_millis(50);

/// Runs one worker per rank of this process to the end, each on a thread of its own with `threads` compute threads, and
/// hands their reports to `take` on this thread; in process 0 those of all processes. The others tell it how it went.
/// They go on `from` a checkpoint, or begin.
///
/// # Errors
/// What `take` fails with, which ends the workers; else, as a [`RunFailure`](crate::train::failure::RunFailure), the first cause of a
/// worker's failure.
pub fn run_workers(
    job: &Job,
    session: &Arc<Session>,
    threads: usize,
    from: Option<Arc<Checkpoint>>,
    mut take: impl FnMut(Report) -> Result<()>,
) -> Result<()> {
    let (reports, mut inbox) = unbounded();
    let (ends, ended) = unbounded();
    let mut watch = Watch::new(job, session.clone())?;
    let collectives = job.connect(&session.recipe, session.requests.clone())?;
    for (number, collective) in collectives.into_iter().enumerate() {
        let (rank, ends) = (collective.rank(), ends.clone());
        let position = LivePosition::new(rank);
        let parts = WorkerParts {
            session: session.clone(),
            number_on_machine: job.place + number,
            collective: Faults::on_the_wire(&session.faults, collective, &position),
            reports: reports.clone(),
            from: from.clone(),
            position: Faults::at_steps(&session.faults, &position),
        };
        let thread = thread::Builder::new()
            .name(format!("worker-{rank}"))
            .spawn(move || {
                let failure = work(parts, threads);
                // Nobody listens any more when this thread has been left behind.
                let _ = ends.send((rank, failure));
            })
            .with_context(|| format!("starting the thread of worker {rank}"))?;
        watch.add(position, thread);
    }
    drop(reports);
    // As large as the state of all ranks; each lets go of it when it has taken its own.
    drop(from);

    let mut taken = Ok(());
    while watch.goes_on() {
        let mut received = Vec::new();
        select! {
            recv(inbox) -> report => match report {
                Ok(report) => received.push(report),
                // All have told everything; their ends are on their way.
                Err(_) => inbox = never(),
            },
            recv(ended) -> end => if let Ok((rank, failure)) = end {
                watch.end(rank, failure);
            },
            recv(job.inbox) -> message => if let Ok((from, message)) = message {
                received.extend(watch.hear(from, &message));
            },
            default(TICK) => received.extend(watch.look()),
        }
        // Nothing is taken after what could not be: no checkpoint is to be whole whose step has no record.
        if taken.is_ok()
            && let Err(error) = received.into_iter().try_for_each(&mut take)
        {
            // Without a listener the workers' next reports fail, and that ends them.
            inbox = never();
            watch.last_call();
            taken = Err(error);
        }
    }
    taken?;
    inbox.try_iter().try_for_each(&mut take)?;
    watch.left_behind().into_iter().try_for_each(&mut take)?;
    if !job.leads() {
        job.write(0, &watch.report().message()?)?;
    }
    match watch.first_cause() {
        Some(failure) => Err(failure.into()),
        None => Ok(()),
    }
}

/// Trains on the worker's own thread and in its own compute pool.
fn work(parts: WorkerParts, threads: usize) -> Option<Failure> {
    let (rank, position) = (parts.collective.rank(), parts.position.clone());
    let arithmetic = parts.session.kernels;
    let train = || -> Result<()> {
        // candle and the kernels ask the current pool for its size; without a pool of its own
        // every worker would use all cores.
        let _pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .use_current_thread()
            .thread_name(move |i| format!("worker-{rank}.{i}"))
            .build()?;
        Worker::new(parts)?.train()
    };
    // Nothing that a panic has left half-done is looked at again.
    match catch_unwind(AssertUnwindSafe(|| kernels::with(arithmetic, train))) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(Failure::new(rank, position.get(), error)),
        Err(panic) => Some(Failure::panic(rank, position.get(), &*panic)),
    }
}
