//! From a recipe to a finished run: data, threads, records.
//!
//! The launching thread starts one worker per rank, each on an OS thread of its own inside its
//! own compute pool, gathers their reports in rank order and writes them down. When a worker
//! fails, its end of the exchange drops, the others notice and stop, and the first cause is told.

use crate::checkpoint::{self, Checkpoint};
use crate::course::{Course, Progress};
use crate::disk::Disk;
use crate::keeper::Keeper;
use crate::network::{self, Pace};
use crate::orders::Orders;
use crate::params::Params;
use crate::recipe::Recipe;
use crate::record::{self, Console, Event, FileSum, Mode, Provenance, Record, Started, Summary};
use crate::replica::Replica;
use crate::resume::Resume;
use crate::tally::{Sums, Tally};
use crate::worker::{Place, Report, Seat, Worker};
use anyhow::{Context, Error, Result, anyhow, bail};
use crossbeam::channel::unbounded;
use gradwire_datasets::Data;
use gradwire_exchange::{self as exchange, Collective};
use gradwire_models::kernels;
use rayon::ThreadPoolBuilder;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// A run that has ended well.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The run's folder.
    pub folder: PathBuf,
    /// The run in figures.
    pub summary: Summary,
    /// Whether it was stopped on request before its last step.
    pub stopped: bool,
}

/// What is to be trained, and how.
pub struct Run<'a> {
    /// Everything that decides the result.
    pub recipe: &'a Recipe,
    /// What the person sees.
    pub mode: Mode,
    /// What records and checkpoints are written through.
    pub disk: Disk,
    /// Whether it begins or goes on.
    pub start: Start,
    /// Through which checkpoints and an early end can be asked for while it goes.
    pub orders: Arc<Orders>,
}

/// How a run starts.
pub enum Start {
    /// It begins, in a folder of its own.
    Fresh,
    /// It goes on from a checkpoint, in the folder that it has.
    Resume(Box<Resume>),
}

/// Trains a run's recipe to its end, writing records and showing progress.
///
/// # Errors
/// When the data cannot be read, the records cannot be written, or a worker fails: then the first
/// cause, with rank, step and phase.
pub fn train(run: Run<'_>) -> Result<Outcome> {
    let Run { recipe, mode, disk, start, orders } = run;
    let disk = &disk;
    let mut console = Console::new(mode);
    let data = load(recipe, None)?;
    if data.train.len() < recipe.workers {
        bail!(
            "{} workers share {} training samples: take at most one worker per sample",
            recipe.workers,
            data.train.len()
        );
    }
    let threads = recipe.threads_per_worker(cores());
    let parameters = parameters(recipe, &data)?;
    let pace = Pace::new(recipe, parameters)?;
    let provenance = provenance(recipe, &data, threads)?;
    let Ready { mut record, course, sums, from, events } =
        make_ready(disk, recipe, start, &data, &provenance)?;
    let folder = record.folder().to_path_buf();
    if let Some(vocabulary) = &data.vocabulary {
        checkpoint::save_vocabulary(disk, &folder, vocabulary)?;
    }

    if let Some(header) = network::header(recipe, threads, parameters) {
        record.begin_network(disk, &header)?;
    }
    let mut tally = Tally::new(recipe, course, sums);
    let mut keeper = Keeper::new(disk, recipe, &folder, &orders, course, provenance)?;
    let started = started(recipe, &data, threads, course, &folder, parameters);
    let announced = [started]
        .into_iter()
        .chain(events)
        .try_for_each(|event| keep(&mut record, &mut console, &event));
    let crew = Crew {
        recipe,
        data: &data,
        threads,
        pace: &pace,
        folder: Some(&folder),
        disk,
        course,
        orders: Arc::clone(&orders),
        from,
    };
    let trained = announced.and_then(|()| {
        run_workers(crew, |report| {
            if let Report::Part(part) = report {
                keeper.add(*part, &tally, record.summary());
            } else {
                for (event, recorded) in tally.add(report) {
                    if recorded {
                        keep(&mut record, &mut console, &event)?;
                    } else {
                        record.pass_over(&event);
                        console.record(&event)?;
                    }
                }
                tally.rows().iter().try_for_each(|row| record.network(row))?;
            }
            keeper.news().iter().try_for_each(|event| keep(&mut record, &mut console, event))
        })
    });
    // Whatever has happened: what is being written is finished, so that it can be gone on from.
    let kept = keeper.finish().and_then(|events| {
        events.iter().try_for_each(|event| keep(&mut record, &mut console, event))
    });
    match trained.and(kept) {
        Ok(()) => {
            let summary = record.summary().clone();
            let stopped = orders.stopping() && summary.step < course.last_step();
            console.record(&record.finish()?)?;
            Ok(Outcome { folder, summary, stopped })
        }
        Err(error) => {
            // The error itself is what the person must see; whether record and console can still
            // take it changes nothing about that.
            if let Ok(failed) = record.fail(&error) {
                let _ = console.record(&failed);
            }
            Err(error)
        }
    }
}

/// A run that can take its first step.
struct Ready {
    record: Record,
    course: Course,
    sums: Sums,
    from: Option<Arc<Checkpoint>>,
    /// What is to be told before the first step.
    events: Vec<Event>,
}

/// Makes a run's folder, or goes back in it to the checkpoint that the run goes on from.
fn make_ready(
    disk: &Disk,
    recipe: &Recipe,
    start: Start,
    data: &Data,
    provenance: &Provenance,
) -> Result<Ready> {
    let toml = recipe.to_toml()?;
    let samples = data.train.len();
    let mut resume = match start {
        Start::Resume(resume) => *resume,
        Start::Fresh => {
            let course = Course::new(recipe, samples, Progress::START)?;
            let record = Record::create(disk, &recipe.record.out, &recipe.name, &toml, provenance)?;
            return Ok(Ready { record, course, sums: Sums::default(), from: None, events: vec![] });
        }
    };
    let changes = resume.accept(recipe)?;
    resume.accept_data(&provenance.data)?;
    let progress = resume.checkpoint.manifest.progress;
    let course = Course::new(recipe, samples, progress)
        .with_context(|| format!("going on from {}", resume.checkpoint.folder.display()))?;
    let mut resharded = None;
    if resume.checkpoint.manifest.world_size != recipe.workers {
        let words = resume.checkpoint.reshard(recipe.workers, recipe.train.batch_norm)?;
        resharded = Some(format!("{words}; {}", course.in_words()));
    }
    // From here on the run's folder changes. Whatever stops this, the checkpoint stays, and the
    // same can be done again.
    if !checkpoint::rewind(disk, &resume.run, progress.step)? {
        resume.checkpoint.manifest.best = None;
    }
    let cut = record::cut(disk, &resume.run, progress.step)?;
    let warnings = resume.warnings(provenance, resharded.as_deref());
    let note = Event::from(resume.note(&changes, &cut, provenance));
    let events = [note].into_iter().chain(warnings.into_iter().map(Event::from)).collect();
    let Resume { run, checkpoint, lock, .. } = resume;
    let summary = checkpoint.manifest.summary.clone();
    let first = course.first_step();
    let record = Record::resume(disk, &run, lock, first, summary, &toml, provenance)?;
    let sums = checkpoint.manifest.sums;
    Ok(Ready { record, course, sums, from: Some(Arc::new(checkpoint)), events })
}

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
}

/// Runs one worker per rank to the end, each on a thread of its own, and hands their reports to
/// `take` on this thread.
///
/// # Errors
/// What `take` fails with, which ends the workers; else the first cause of a worker's failure.
pub fn run_workers(crew: Crew<'_>, mut take: impl FnMut(Report) -> Result<()>) -> Result<()> {
    let Crew { recipe, data, threads, pace, folder, disk, course, orders, from } = crew;
    let (reports, inbox) = unbounded();
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for collective in pace.keep(collectives(recipe)?) {
            let rank = collective.rank();
            let reports = reports.clone();
            let seat = Seat {
                recipe,
                data,
                collective,
                reports,
                folder: folder.map(Into::into),
                disk: disk.clone(),
                course,
                orders: Arc::clone(&orders),
                from: from.clone(),
            };
            let worker = thread::Builder::new()
                .name(format!("worker-{rank}"))
                .spawn_scoped(scope, move || work(seat, threads))
                .with_context(|| format!("starting the thread of worker {rank}"))?;
            workers.push((rank, worker));
        }
        drop(reports);
        // As large as the state of all ranks; each lets go of it when it has taken its own.
        drop(from);
        // Ends when the last worker does, or on the first report that cannot be taken: then
        // nobody listens any more, and that ends the workers.
        let taken = inbox.iter().try_for_each(&mut take);
        drop(inbox);
        let failures = workers.into_iter().filter_map(|(rank, worker)| {
            worker.join().unwrap_or_else(|panic| Some(Failure::panic(rank, &*panic)))
        });
        let failures = failures.collect();
        taken?;
        first_cause(failures)
    })
}

/// The recipe's data set, its texts tokenised by `vocabulary` where one is given.
///
/// # Errors
/// When it is missing or damaged, with file, record and byte offset.
pub fn load(recipe: &Recipe, vocabulary: Option<&str>) -> Result<Data> {
    let scratch = recipe.record.out.join("synthetic");
    recipe
        .dataset
        .load_with(&scratch, vocabulary)
        .with_context(|| format!("loading data set {}", recipe.dataset.name()))
}

/// The cores this process may use.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// One end of the exchange per rank.
fn collectives(recipe: &Recipe) -> Result<Vec<Box<dyn Collective>>> {
    let patience = Duration::from_secs_f64(recipe.exchange.timeout);
    Ok(recipe.exchange.topology.connect(recipe.workers, patience)?)
}

/// Why and when a worker stopped.
struct Failure {
    rank: usize,
    at: Instant,
    place: Place,
    error: Error,
}

impl Failure {
    fn panic(rank: usize, panic: &(dyn std::any::Any + Send)) -> Self {
        let words = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        let error = anyhow!("panicked: {words}");
        Self { rank, at: Instant::now(), place: Place::default(), error }
    }

    /// Whether this rank stopped only because another one had.
    fn is_echo(&self) -> bool {
        matches!(
            self.error.downcast_ref::<exchange::Error>(),
            Some(
                exchange::Error::PeerLost { .. }
                    | exchange::Error::Timeout { .. }
                    | exchange::Error::ServerLost { .. }
                    | exchange::Error::ServerSilent { .. }
            )
        )
    }
}

/// A worker's life, on its own thread and in its own compute pool.
fn work(seat: Seat<'_>, threads: usize) -> Option<Failure> {
    let rank = seat.collective.rank();
    let mut place = Place::default();
    let life = || -> Result<()> {
        // candle and the kernels ask the current pool for its size; without a pool of its own
        // every worker would use all cores.
        let _pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .use_current_thread()
            .thread_name(move |i| format!("worker-{rank}.{i}"))
            .build()?;
        let mut worker = Worker::new(seat)?;
        let result = worker.run();
        place = worker.place;
        result
    };
    let error = life().err()?;
    Some(Failure { rank, at: Instant::now(), place, error })
}

/// The failure that caused the others, as one error.
fn first_cause(mut failures: Vec<Failure>) -> Result<()> {
    failures.sort_by_key(|f| (f.is_echo(), f.at));
    let Some(Failure { rank, place, error, .. }) = failures.into_iter().next() else {
        return Ok(());
    };
    Err(match place {
        Place { step: 0, .. } => error.context(format!("worker {rank}, before the first step")),
        Place { step, phase } => error.context(format!("worker {rank}, step {step}, {phase}")),
    })
}

fn keep(record: &mut Record, console: &mut Console, event: &Event) -> Result<()> {
    if let Some(warning) = record.record(event)? {
        console.record(&warning)?;
    }
    console.record(event)
}

fn provenance(recipe: &Recipe, data: &Data, threads: usize) -> Result<Provenance> {
    let sums = data.files.iter().map(|f| FileSum {
        name: f.name.clone(),
        bytes: f.bytes,
        sha256: f.sha256.clone(),
    });
    Ok(Provenance {
        kernels: kernels::active()?.to_string(),
        workers: recipe.workers,
        threads,
        data: sums.collect(),
        ..Provenance::here()
    })
}

fn started(
    recipe: &Recipe,
    data: &Data,
    threads: usize,
    course: Course,
    folder: &Path,
    parameters: u64,
) -> Event {
    Event::from(Started {
        recipe: recipe.name.clone(),
        folder: folder.display().to_string(),
        model: recipe.model.name().into(),
        dataset: recipe.dataset.name().into(),
        scheme: recipe.scheme_in_words(),
        workers: recipe.workers,
        threads,
        parameters,
        unit: recipe.model.input_kind().to_string(),
        train_samples: data.train.len() as u64,
        test_samples: data.test.len() as u64,
        batch: (recipe.workers * recipe.local_batch()) as u64,
        epochs: course.epoch_of(course.last_step()),
        steps_per_epoch: course.steps_per_epoch(),
        steps: course.last_step(),
        first_step: course.first_step(),
        steps_ahead: course.ahead(),
    })
}

/// Trainable parameters of one replica.
///
/// # Errors
/// When the recipe does not fit the data.
pub fn parameters(recipe: &Recipe, data: &Data) -> Result<u64> {
    Ok(Params::new(&Replica::new(recipe, &*data.train)?.store).len() as u64)
}
