//! The workers of a run: their threads, their reports, and a watch over them.
//!
//! No wait is unbounded. A worker that fails drops its end of the exchange, which ends the others;
//! one that is silent is given up by the others after `exchange.timeout`; one that shows no
//! progress where nobody waits for it is given up here. After the first failure the rest have a
//! short grace to stop by themselves. A thread that still has not stopped then is left behind: it
//! holds nothing that anybody waits for, and ends with the process at the latest.
//!
//! Of several processes each runs its own workers so, and process 0 hears what the others report
//! (`job::Letter`).

mod watch;

use crate::checkpoint::Checkpoint;
use crate::course::Course;
use crate::disk::Disk;
use crate::inject::Faults;
use crate::job::Job;
use crate::loss::Failure;
use crate::network::Pace;
use crate::orders::Orders;
use crate::post::Post;
use crate::recipe::Recipe;
use crate::worker::{Report, Seat, Worker};
use anyhow::{Context, Result};
use crossbeam::channel::{never, select, unbounded};
use gradwire_datasets::Data;
use rayon::ThreadPoolBuilder;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use watch::Watch;

/// How often the watch looks.
const TICK: Duration = Duration::from_millis(50);

/// What all workers of a run share.
#[derive(Clone)]
pub struct Crew<'a> {
    /// The processes that train the run.
    pub job: &'a Job,
    /// The run.
    pub recipe: &'a Recipe,
    /// What is trained and tested on.
    pub data: &'a Data,
    /// Compute threads per worker.
    pub threads: usize,
    /// The pace of the recipe's network.
    pub pace: &'a Pace,
    /// The folder that models are saved in; absent when none are to be.
    pub folder: Option<&'a Path>,
    /// What they are written through.
    pub disk: &'a Disk,
    /// The steps to take.
    pub course: Course,
    /// What is asked of all ranks beside training.
    pub orders: Arc<Orders>,
    /// What they go on from; absent for a run that begins.
    pub from: Option<Arc<Checkpoint>>,
    /// What is to go wrong.
    pub faults: Arc<Faults>,
}

/// Runs one worker per rank of this process to the end, each on a thread of its own, and hands their
/// reports to `take` on this thread; in process 0 those of all processes. The others tell it
/// how it went.
///
/// # Errors
/// What `take` fails with, which ends the workers; else, as a [`Loss`](crate::loss::Loss), the first cause of a
/// worker's failure.
pub fn run_workers(crew: Crew<'_>, mut take: impl FnMut(Report) -> Result<()>) -> Result<()> {
    let recipe = Arc::new(crew.recipe.clone());
    let data = Arc::new(crew.data.clone());
    let (reports, mut inbox) = unbounded();
    let (ends, ended) = unbounded();
    let job = crew.job;
    let mut watch = Watch::new(job, &recipe, crew.orders.clone())?;
    let collectives = crew.pace.keep(job.connect(&recipe, &crew.orders)?);
    let first_on_machine = job.first_on_machine(collectives.len());
    for (seat, collective) in collectives.into_iter().enumerate() {
        let (rank, post, ends) = (collective.rank(), Post::default(), ends.clone());
        let seat = Seat {
            recipe: recipe.clone(),
            data: data.clone(),
            seat_on_machine: first_on_machine + seat,
            collective: Faults::on_the_wire(&crew.faults, collective, &post),
            reports: reports.clone(),
            folder: crew.folder.map(Into::into),
            disk: crew.disk.clone(),
            course: crew.course,
            orders: crew.orders.clone(),
            from: crew.from.clone(),
            post: post.clone(),
            faults: crew.faults.clone(),
        };
        let threads = crew.threads;
        let thread = thread::Builder::new()
            .name(format!("worker-{rank}"))
            .spawn(move || {
                let failure = work(seat, threads);
                // Nobody listens any more when this thread has been left behind.
                let _ = ends.send((rank, failure));
            })
            .with_context(|| format!("starting the thread of worker {rank}"))?;
        watch.add(post, thread);
    }
    drop(reports);
    // As large as the state of all ranks; each lets go of it when it has taken its own.
    drop(crew.from);

    let mut taken = Ok(());
    while watch.goes_on() {
        let mut told = Vec::new();
        select! {
            recv(inbox) -> report => match report {
                Ok(report) => told.push(report),
                // All have told everything; their ends are on their way.
                Err(_) => inbox = never(),
            },
            recv(ended) -> end => if let Ok((rank, failure)) = end {
                watch.end(rank, failure);
            },
            recv(job.inbox()) -> letter => if let Ok((from, letter)) = letter {
                told.extend(watch.hear(from, &letter));
            },
            default(TICK) => told.extend(watch.look()),
        }
        if let Err(error) = told.into_iter().try_for_each(&mut take) {
            // Without a listener the workers' next reports fail, and that ends them.
            inbox = never();
            watch.last_call();
            taken = taken.and(Err(error));
        }
    }
    taken?;
    inbox.try_iter().try_for_each(&mut take)?;
    watch.left_behind().into_iter().try_for_each(&mut take)?;
    if !job.leads() {
        job.write(0, &watch.account())?;
    }
    match watch.loss() {
        Some(loss) => Err(loss.into()),
        None => Ok(()),
    }
}

/// A worker's life, on its own thread and in its own compute pool.
fn work(seat: Seat, threads: usize) -> Option<Failure> {
    let (rank, post) = (seat.collective.rank(), seat.post.clone());
    let life = || -> Result<()> {
        // candle and the kernels ask the current pool for its size; without a pool of its own
        // every worker would use all cores.
        let _pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .use_current_thread()
            .thread_name(move |i| format!("worker-{rank}.{i}"))
            .build()?;
        Worker::new(seat)?.run()
    };
    // Nothing that a panic has left half-done is looked at again.
    match catch_unwind(AssertUnwindSafe(life)) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(Failure::new(rank, post.place(), error)),
        Err(panic) => Some(Failure::panic(rank, post.place(), &*panic)),
    }
}
