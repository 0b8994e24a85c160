//! From a recipe to a finished run: data, workers, records.
//!
//! The launching thread starts the workers, gathers their reports in rank order and writes them
//! down.

use crate::checkpoint::{self, Checkpoint};
use crate::course::{Course, Progress};
use crate::crew::{Crew, run_workers};
use crate::disk::Disk;
use crate::inject::Faults;
use crate::job::Job;
use crate::keeper::Keeper;
use crate::loss;
use crate::network::{self, Pace};
use crate::orders::Orders;
use crate::params::Params;
use crate::recipe::Recipe;
use crate::record::{
    self, Console, Event, FileSum, Mode, Place, Provenance, Record, Started, Summary, Warning,
};
use crate::recover::Recovery;
use crate::replica::Replica;
use crate::resume::Resume;
use crate::tally::{Sums, Tally};
use crate::worker::Report;
use anyhow::{Context, Result, bail};
use gradwire_datasets::Data;
use gradwire_models::kernels;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

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
    /// The processes that train it; this one leads them.
    pub job: &'a Job,
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
    /// What is to go wrong.
    pub faults: Arc<Faults>,
}

/// How a run starts.
pub enum Start {
    /// It begins, in a folder of its own.
    Fresh,
    /// It begins, in this folder, which does not exist.
    In(PathBuf),
    /// It goes on from a checkpoint, in the folder that it has.
    Resume(Box<Resume>),
}

/// Trains a run's recipe to its end, writing records and showing progress. When a worker is lost,
/// goes on from the last checkpoint if the recipe says so.
///
/// # Errors
/// When the data cannot be read, the records cannot be written, or a worker fails: then the first
/// cause, with rank, step and phase.
pub fn train(run: Run<'_>) -> Result<Outcome> {
    let Run { job, recipe, mode, disk, mut start, orders, faults } = run;
    let mut console = Console::new(mode);
    job.workers(recipe)?;
    job.announce(recipe)?;
    let data = load(recipe, None)?;
    if data.train.len() < recipe.workers {
        bail!(
            "{} workers share {} training samples: take at most one worker per sample",
            recipe.workers,
            data.train.len()
        );
    }
    let progress = match &start {
        Start::Fresh | Start::In(_) => Progress::START,
        Start::Resume(resume) => resume.checkpoint.manifest.progress,
    };
    faults.check(recipe.workers, Course::new(recipe, data.train.len(), progress)?.last_step())?;
    job.agree(recipe, &provenance(recipe, &data, 0)?)?;
    let mut recovery = Recovery::new(recipe);
    let mut attempt = Attempt {
        job,
        recipe: recipe.clone(),
        data: &data,
        disk: &disk,
        orders,
        faults: &faults,
        notes: faults.announcement().into_iter().collect(),
        folder: None,
    };
    loop {
        let error = match attempt.make(start, &mut console) {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        if attempt.orders.stopping() {
            return Err(error);
        }
        let Some(folder) = attempt.folder.take() else { return Err(error) };
        let next = recovery.next(error, &attempt.recipe, &disk, &folder)?;
        start = Start::Resume(Box::new(next.resume));
        attempt.recipe = next.recipe;
        attempt.notes = vec![next.note];
        attempt.orders = Arc::new(attempt.orders.again());
    }
}

/// One attempt to train a run to its end.
struct Attempt<'a> {
    job: &'a Job,
    recipe: Recipe,
    data: &'a Data,
    disk: &'a Disk,
    orders: Arc<Orders>,
    faults: &'a Arc<Faults>,
    /// What is to be told, as warnings, before the first step.
    notes: Vec<String>,
    /// The run's folder, once there is one.
    folder: Option<PathBuf>,
}

impl Attempt<'_> {
    fn make(&mut self, start: Start, console: &mut Console) -> Result<Outcome> {
        let Self { job, recipe, data, disk, orders, .. } = &*self;
        let threads = job.threads(recipe);
        let parameters = parameters(recipe, data)?;
        let pace = Pace::new(recipe, parameters)?;
        let provenance = provenance(recipe, data, threads)?;
        let Ready { mut record, course, sums, from, events } =
            make_ready(disk, recipe, start, data, &provenance)?;
        let folder = record.folder().to_path_buf();
        if let Some(vocabulary) = &data.vocabulary {
            checkpoint::save_vocabulary(disk, &folder, vocabulary)?;
        }

        if let Some(header) = network::header(recipe, threads, parameters) {
            record.begin_network(disk, &header)?;
        }
        job.begin(recipe, &folder, course.from(), from.as_deref())?;
        let mut tally = Tally::new(recipe, course, sums);
        let mut keeper = Keeper::new(disk, recipe, &folder, orders, course, provenance)?;
        let started = started(recipe, data, threads, course, &folder, parameters);
        let warning = |message: &String| {
            Event::from(Warning { step: Some(course.first_step()), message: message.clone() })
        };
        let announced = [started]
            .into_iter()
            .chain(events)
            .chain(self.notes.iter().map(warning))
            .try_for_each(|event| keep(&mut record, console, &event));
        let crew = Crew {
            job,
            recipe,
            data,
            threads,
            pace: &pace,
            folder: Some(&folder),
            disk,
            course,
            orders: Arc::clone(orders),
            from,
            faults: Arc::clone(self.faults),
        };
        let trained = announced.and_then(|()| {
            run_workers(crew, |report| {
                if let Report::Part(part) = report {
                    keeper.add(*part, &tally, record.summary());
                } else {
                    for (event, recorded) in tally.add(report) {
                        if recorded {
                            keep(&mut record, console, &event)?;
                        } else {
                            record.pass_over(&event);
                            console.record(&event)?;
                        }
                    }
                    tally.rows().iter().try_for_each(|row| record.network(row))?;
                }
                keeper.news().iter().try_for_each(|event| keep(&mut record, console, event))
            })
        });
        // Whatever has happened: what is being written is finished, so that it can be gone on from.
        let kept = keeper.finish().and_then(|events| {
            events.iter().try_for_each(|event| keep(&mut record, console, event))
        });
        let stopped = orders.stopping() && record.summary().step < course.last_step();
        self.folder = Some(folder.clone());
        match trained.and(kept) {
            Ok(()) => {
                let summary = record.summary().clone();
                console.record(&record.finish()?)?;
                Ok(Outcome { folder, summary, stopped })
            }
            Err(error) => {
                // The error itself is what the person must see; whether record and console can
                // still take it changes nothing about that.
                if let Ok(failed) = record.fail(&error, loss::diverged(&error)) {
                    let _ = console.record(&failed);
                }
                Err(error)
            }
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
    let fresh = |place: Place<'_>| {
        let course = Course::new(recipe, samples, Progress::START)?;
        let record = Record::create(disk, place, &toml, provenance)?;
        Ok(Ready { record, course, sums: Sums::default(), from: None, events: vec![] })
    };
    let mut resume = match start {
        Start::Resume(resume) => *resume,
        Start::Fresh => {
            return fresh(Place::New { out: &recipe.record.out, recipe: &recipe.name });
        }
        Start::In(folder) => return fresh(Place::Given(&folder)),
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

fn keep(record: &mut Record, console: &mut Console, event: &Event) -> Result<()> {
    if let Some(warning) = record.record(event)? {
        console.record(&warning)?;
    }
    console.record(event)
}

/// The files that a data set was read from.
pub fn file_sums(data: &Data) -> Vec<FileSum> {
    let sum = |file: &gradwire_datasets::FileSum| FileSum {
        name: file.name.clone(),
        bytes: file.bytes,
        sha256: file.sha256.clone(),
    };
    data.files.iter().map(sum).collect()
}

/// What a run of `recipe` on this machine is made with.
///
/// # Errors
/// When the environment asks for kernels that there are not.
pub(crate) fn provenance(recipe: &Recipe, data: &Data, threads: usize) -> Result<Provenance> {
    Ok(Provenance {
        kernels: kernels::active()?.to_string(),
        workers: recipe.workers,
        threads,
        data: file_sums(data),
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
    Ok(Params::new(&Replica::new(recipe, &*data.train, 0)?.store).len() as u64)
}
