//! From a recipe to a finished run: data, workers, records.
//!
//! The launching thread starts the workers, gathers their reports in rank order and writes them
//! down.

use crate::checkpoint::{self, Checkpoint};
use crate::course::{Course, Progress};
use crate::crew::{Crew, run_workers};
use crate::disk::Disk;
use crate::keeper::Keeper;
use crate::orders::Orders;
use crate::params::Params;
use crate::recipe::Recipe;
use crate::record::{self, Console, Event, FileSum, Mode, Provenance, Record, Started, Summary};
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
    let provenance = provenance(recipe, &data, threads)?;
    let Ready { mut record, course, sums, from, events } =
        make_ready(disk, recipe, start, &data, &provenance)?;
    let folder = record.folder().to_path_buf();
    if let Some(vocabulary) = &data.vocabulary {
        checkpoint::save_vocabulary(disk, &folder, vocabulary)?;
    }

    let mut tally = Tally::new(recipe, course, sums);
    let mut keeper = Keeper::new(disk, recipe, &folder, &orders, course, provenance)?;
    let started = started(recipe, &data, threads, course, &folder)?;
    let announced = [started]
        .into_iter()
        .chain(events)
        .try_for_each(|event| keep(&mut record, &mut console, &event));
    let crew = Crew {
        recipe,
        data: &data,
        threads,
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
) -> Result<Event> {
    let parameters = Params::new(&Replica::new(recipe, &*data.train)?.store).len();
    Ok(Event::from(Started {
        recipe: recipe.name.clone(),
        folder: folder.display().to_string(),
        model: recipe.model.name().into(),
        dataset: recipe.dataset.name().into(),
        scheme: recipe.scheme_in_words(),
        workers: recipe.workers,
        threads,
        parameters: parameters as u64,
        unit: recipe.model.input_kind().to_string(),
        train_samples: data.train.len() as u64,
        test_samples: data.test.len() as u64,
        batch: (recipe.workers * recipe.local_batch()) as u64,
        epochs: course.epoch_of(course.last_step()),
        steps_per_epoch: course.steps_per_epoch(),
        steps: course.last_step(),
        first_step: course.first_step(),
        steps_ahead: course.ahead(),
    }))
}
