//! The workers of a run: their threads, their reports, and a watch over them.
//!
//! No wait is unbounded. A worker that fails drops its end of the exchange, which ends the others;
//! one that is silent is given up by the others after `exchange.timeout`; one that shows no
//! progress where nobody waits for it is given up here. After the first failure the rest have a
//! short grace to stop by themselves. A thread that still has not stopped then is left behind: it
//! holds nothing that anybody waits for, and ends with the process at the latest.

use crate::checkpoint::Checkpoint;
use crate::course::Course;
use crate::disk::Disk;
use crate::inject::Faults;
use crate::loss::{Failure, Loss};
use crate::network::Pace;
use crate::orders::Orders;
use crate::post::{Place, Post};
use crate::recipe::Recipe;
use crate::record::Warning;
use crate::worker::{Report, Seat, Worker};
use anyhow::{Context, Result};
use crossbeam::channel::{never, select, unbounded};
use gradwire_datasets::Data;
use gradwire_exchange::Collective;
use rayon::ThreadPoolBuilder;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often the watch looks.
const TICK: Duration = Duration::from_millis(50);

/// The longest that workers have to stop by themselves after the first failure.
const GRACE: Duration = Duration::from_secs(10);

/// What all workers of a run share.
#[derive(Clone)]
pub struct Crew<'a> {
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

/// Runs one worker per rank to the end, each on a thread of its own, and hands their reports to
/// `take` on this thread.
///
/// # Errors
/// What `take` fails with, which ends the workers; else, as a [`Loss`], the first cause of a
/// worker's failure.
pub fn run_workers(crew: Crew<'_>, mut take: impl FnMut(Report) -> Result<()>) -> Result<()> {
    let recipe = Arc::new(crew.recipe.clone());
    let data = Arc::new(crew.data.clone());
    let (reports, mut inbox) = unbounded();
    let (ends, ended) = unbounded();
    let mut watch = Watch::new(Duration::from_secs_f64(recipe.exchange.timeout));
    for collective in crew.pace.keep(collectives(&recipe)?) {
        let (rank, post, ends) = (collective.rank(), Post::default(), ends.clone());
        let seat = Seat {
            recipe: recipe.clone(),
            data: data.clone(),
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
        watch.workers.push(Watched { post, thread: Some(thread), warned: false });
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
    match watch.loss() {
        Some(loss) => Err(loss.into()),
        None => Ok(()),
    }
}

/// One end of the exchange per rank.
fn collectives(recipe: &Recipe) -> Result<Vec<Box<dyn Collective>>> {
    let patience = Duration::from_secs_f64(recipe.exchange.timeout);
    Ok(recipe.exchange.topology.connect(recipe.workers, patience)?)
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

/// Watches over the workers.
struct Watch {
    patience: Duration,
    /// By rank.
    workers: Vec<Watched>,
    failures: Vec<Failure>,
    /// Where all were when the first failure was heard of.
    places: Vec<Place>,
    /// Until when those that are still at work may stop by themselves.
    deadline: Option<Instant>,
}

struct Watched {
    post: Post,
    /// Absent when it has ended.
    thread: Option<JoinHandle<()>>,
    /// Whether its silence has been told of.
    warned: bool,
}

impl Watch {
    fn new(patience: Duration) -> Self {
        Self {
            patience,
            workers: Vec::new(),
            failures: Vec::new(),
            places: Vec::new(),
            deadline: None,
        }
    }

    /// Whether somebody is at work who may still be waited for.
    fn goes_on(&self) -> bool {
        self.workers.iter().any(|worker| worker.thread.is_some())
            && self.deadline.is_none_or(|deadline| Instant::now() < deadline)
    }

    /// A worker has ended.
    fn end(&mut self, rank: usize, failure: Option<Failure>) {
        if let Some(thread) = self.workers[rank].thread.take() {
            // It has nothing left to do but to end; and it cannot panic any more.
            let _ = thread.join();
        }
        if let Some(failure) = failure {
            self.fail(failure);
        }
    }

    fn fail(&mut self, failure: Failure) {
        if self.failures.is_empty() {
            self.places = self.workers.iter().map(|worker| worker.post.place()).collect();
        }
        self.failures.push(failure);
        self.last_call();
    }

    /// From now on those at work have only a short while.
    fn last_call(&mut self) {
        let grace = self.patience.min(GRACE);
        self.deadline.get_or_insert_with(|| Instant::now() + grace);
    }

    /// Looks after those at work: tells of one that others have waited for half their patience,
    /// and gives up one that shows no progress for longer than anybody would wait in an exchange.
    fn look(&mut self) -> Option<Report> {
        if self.deadline.is_some() {
            return None;
        }
        let places: Vec<_> = self.workers.iter().map(|worker| worker.post.place()).collect();
        let at_work = |rank: &usize| self.workers[*rank].thread.is_some();
        let silent = (0..places.len()).filter(at_work);
        let rank = silent.max_by_key(|rank| {
            // Those in an exchange wait for another, unless all do.
            (places[*rank].phase != "exchange", places[*rank].elapsed())
        })?;
        let place = places[rank];
        let limit = self.patience.mul_f64(1.5);
        if place.elapsed() > limit {
            self.fail(Failure::stall(rank, place, limit));
            return None;
        }
        let worker = &mut self.workers[rank];
        if place.elapsed() < self.patience / 2 {
            worker.warned = false;
            return None;
        }
        if std::mem::replace(&mut worker.warned, true) {
            return None;
        }
        let message = format!(
            "worker {rank} shows no progress: {place}, for {:.1?}; the others: {}",
            place.elapsed(),
            others(&places, rank)
        );
        Some(Report::Warning(Warning { step: Some(place.step), message }))
    }

    /// Leaves behind those whose threads have not stopped; a warning for each.
    fn left_behind(&self) -> Vec<Report> {
        let at_work = self.workers.iter().enumerate().filter(|(_, w)| w.thread.is_some());
        at_work
            .map(|(rank, worker)| {
                worker.post.leave();
                let place = worker.post.place();
                let since = place.elapsed();
                let message =
                    format!("worker {rank} has not stopped: {place}, for {since:.1?}; left behind");
                Report::Warning(Warning { step: Some(place.step), message })
            })
            .collect()
    }

    fn loss(self) -> Option<Loss> {
        Loss::first(self.failures, &self.places)
    }
}

/// Where all but one are.
fn others(places: &[Place], but: usize) -> String {
    let others = places.iter().enumerate().filter(|(rank, _)| *rank != but);
    let words: Vec<_> = others
        .map(|(rank, place)| format!("worker {rank} in {place} for {:.1?}", place.elapsed()))
        .collect();
    if words.is_empty() { "none".into() } else { words.join("; ") }
}
