//! From a recipe to a finished run: data, threads, records.
//!
//! The launching thread starts one worker per rank, each on an OS thread of its own inside its
//! own compute pool, gathers their reports in rank order and writes them down. When a worker
//! fails, its end of the exchange drops, the others notice and stop, and the first cause is told.

use crate::checkpoint;
use crate::disk::Disk;
use crate::network::{self, Pace};
use crate::params::Params;
use crate::recipe::Recipe;
use crate::record::{Console, Event, FileSum, Mode, Provenance, Record, Started, Summary};
use crate::replica::Replica;
use crate::tally::Tally;
use crate::worker::{Place, Report, Seat, Worker, total_steps};
use anyhow::{Context, Error, Result, anyhow, bail};
use crossbeam::channel::unbounded;
use gradwire_datasets::{Data, Sampler};
use gradwire_exchange::{self as exchange, Collective};
use gradwire_models::kernels;
use rayon::ThreadPoolBuilder;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// A run that has ended well.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The run's folder.
    pub folder: PathBuf,
    /// The run in figures.
    pub summary: Summary,
}

/// What is to be trained, and how.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// Everything that decides the result.
    pub recipe: &'a Recipe,
    /// What the person sees.
    pub mode: Mode,
    /// What records and checkpoints are written through.
    pub disk: Disk,
}

/// Trains a run's recipe to its end, writing records and showing progress.
///
/// # Errors
/// When the data cannot be read, the records cannot be written, or a worker fails: then the first
/// cause, with rank, step and phase.
pub fn train(run: &Run<'_>) -> Result<Outcome> {
    let Run { recipe, mode, ref disk } = *run;
    let mut console = Console::new(mode);
    let data = load(recipe, None)?;
    let plan =
        Sampler::new(recipe.seed, data.train.len(), recipe.workers, 0, recipe.local_batch())?;
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
    let out = &recipe.record.out;
    let mut record = Record::create(disk, out, &recipe.name, &recipe.to_toml()?, &provenance)?;
    let folder = record.folder().to_path_buf();
    if let Some(vocabulary) = &data.vocabulary {
        checkpoint::save_vocabulary(disk, &folder, vocabulary)?;
    }

    let steps_per_epoch = plan.steps_per_epoch();
    let mut tally = Tally::new(recipe, steps_per_epoch);
    if let Some(header) = network::header(recipe, threads, parameters) {
        record.begin_network(disk, &header)?;
    }
    let started = started(recipe, &data, threads, steps_per_epoch, &folder, parameters);
    let crew = Crew { recipe, data: &data, threads, pace: &pace, folder: Some(&folder), disk };
    let result = keep(&mut record, &mut console, &started).and_then(|()| {
        run_workers(&crew, |report| {
            for (event, recorded) in tally.add(report) {
                if recorded {
                    keep(&mut record, &mut console, &event)?;
                } else {
                    record.pass_over(&event);
                    console.record(&event)?;
                }
            }
            tally.rows().iter().try_for_each(|row| record.network(row))
        })
    });
    match result {
        Ok(()) => {
            let summary = record.summary().clone();
            console.record(&record.finish()?)?;
            Ok(Outcome { folder, summary })
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

/// What all workers of a run share.
#[derive(Clone, Copy)]
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
}

/// Runs one worker per rank to the end, each on a thread of its own, and hands their reports to
/// `take` on this thread.
///
/// # Errors
/// What `take` fails with, which ends the workers; else the first cause of a worker's failure.
pub fn run_workers(crew: &Crew<'_>, mut take: impl FnMut(Report) -> Result<()>) -> Result<()> {
    let Crew { recipe, data, threads, pace, folder, disk } = *crew;
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
            };
            let worker = thread::Builder::new()
                .name(format!("worker-{rank}"))
                .spawn_scoped(scope, move || work(seat, threads))
                .with_context(|| format!("starting the thread of worker {rank}"))?;
            workers.push((rank, worker));
        }
        drop(reports);
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
    steps_per_epoch: u64,
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
        epochs: total_steps(recipe, steps_per_epoch).div_ceil(steps_per_epoch),
        steps_per_epoch,
        steps: total_steps(recipe, steps_per_epoch),
        first_step: 1,
    })
}

/// Trainable parameters of one replica.
///
/// # Errors
/// When the recipe does not fit the data.
pub fn parameters(recipe: &Recipe, data: &Data) -> Result<u64> {
    Ok(Params::new(&Replica::new(recipe, &*data.train)?.store).len() as u64)
}
