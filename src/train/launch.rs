//! From a recipe to a finished run: data, workers, records.
//!
//! The launching thread starts the workers, gathers their reports in rank order and writes them
//! down.

use crate::checkpoint::{self, Checkpoint, Progress, Sums};
use crate::cluster::Job;
use crate::recipe::{Device, Recipe};
use crate::record::network::{Header, Meter};
use crate::record::{
    Console, Destination, Event, Mode, Provenance, Record, Started, Summary, Warning,
};
use crate::train::checkpoints::CheckpointDriver;
use crate::train::course::Course;
use crate::train::crew::{Crew, run_workers};
use crate::train::loss;
use crate::train::notes;
use crate::train::recover::Recovery;
use crate::train::report::Report;
use crate::train::resume::Resume;
use crate::train::session::Session;
use crate::train::tally::Tally;
use crate::train::worker::state;
use anyhow::{Context, Result};
use gradwire_exchange::Scheme;
use std::path::PathBuf;
use std::sync::Arc;

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

/// How a run starts.
pub enum Start {
    /// It begins, in a folder of its own.
    Fresh,
    /// It begins, in this folder, which does not exist.
    In(PathBuf),
    /// It goes on from a checkpoint, in the folder that it has.
    Resume(Box<Resume>),
}

/// Trains the run of `session`, whose `job` this process leads, to its end, writing records and
/// showing progress as `mode` says. When a worker is lost, goes on from the last checkpoint if the
/// recipe says so.
///
/// # Errors
/// When [`Recipe::may_run`] refuses a run that begins, the records cannot be written, or a worker fails: then the first cause, with rank, step and
/// phase.
pub fn train(job: &Job, mut session: Session, mode: Mode, mut start: Start) -> Result<Outcome> {
    let mut console = Console::new(mode);
    let progress = match &start {
        Start::Fresh | Start::In(_) => {
            session.recipe.may_run()?;
            Progress::START
        }
        Start::Resume(resume) => resume.checkpoint.manifest.progress,
    };
    let course = Course::new(&session.recipe, session.data.train.len(), progress)?;
    session.faults.check(session.recipe.workers, course.last_step())?;
    job.agree(&session.provenance(0))?;
    let mut recovery = Recovery::new(&session.recipe);
    let mut notes: Vec<String> = session.faults.announcement().into_iter().collect();
    loop {
        let error = match attempt(job, &mut session, start, &notes, &mut console) {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        if session.flags.stopping() {
            return Err(error);
        }
        let Some(folder) = session.folder.take() else { return Err(error) };
        let next = recovery.next(error, &session, &folder)?;
        start = Start::Resume(Box::new(next.resume));
        session.recipe = next.recipe;
        notes = vec![next.note];
        session.flags = Arc::new(session.flags.again());
    }
}

/// One attempt to train a run to its end, after `notes` have been told as warnings. Leaves the run's
/// folder in `session` once workers have been at work in it.
fn attempt(
    job: &Job,
    session: &mut Session,
    start: Start,
    notes: &[String],
    console: &mut Console,
) -> Result<Outcome> {
    let threads = job.threads(&session.recipe);
    let parameters = session.parameters()?;
    let careful = notes::of(session, parameters, job.workers(&session.recipe)?)?;
    let provenance = session.provenance(threads);
    let Ready { mut record, course, sums, from, events } = make_ready(session, start, &provenance)?;
    let folder = record.folder().to_path_buf();
    let shared = Arc::new(Session { course, folder: Some(folder.clone()), ..session.clone() });
    let began = begin(job, &shared, &mut record, from.as_deref(), threads, parameters)
        .and_then(|()| CheckpointDriver::new(shared.clone(), provenance));
    let mut driver = match began {
        Ok(driver) => driver,
        Err(error) => {
            // The error itself is what the person must see.
            let _ = record.fail(&error, false);
            return Err(error);
        }
    };
    let mut tally = Tally::new(&shared.recipe, course, sums);
    let warning = |message: &String| {
        Event::from(Warning { step: Some(course.first_step()), message: message.clone() })
    };
    let announced = [started(&shared, &folder.display().to_string(), threads, parameters)]
        .into_iter()
        .chain(events)
        .chain(careful.iter().chain(notes).map(warning))
        .try_for_each(|event| keep(&mut record, console, &event));
    let crew = Crew { job, session: shared, threads, from };
    let trained = announced.and_then(|()| {
        run_workers(crew, |report| {
            if let Report::Part(part) = report {
                driver.add(*part, &tally, record.summary());
            } else {
                let events = tally.add(report);
                // First: a step without its row could not be replayed.
                tally.rows().iter().try_for_each(|row| record.network(row))?;
                for (event, recorded) in events {
                    if recorded {
                        keep(&mut record, console, &event)?;
                    } else {
                        record.pass_over(&event);
                        console.record(&event)?;
                    }
                }
            }
            driver.news().iter().try_for_each(|event| keep(&mut record, console, event))
        })
    });
    // Whatever has happened: what is being written is finished, so that it can be gone on from.
    let kept = driver
        .finish()
        .and_then(|events| events.iter().try_for_each(|event| keep(&mut record, console, event)));
    let stopped = session.flags.stopping() && record.summary().step < course.last_step();
    session.folder = Some(folder.clone());
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

/// Writes what belongs to a run beside its record, and lets the other processes begin.
fn begin(
    job: &Job,
    session: &Session,
    record: &mut Record,
    from: Option<&Checkpoint>,
    threads: usize,
    parameters: u64,
) -> Result<()> {
    let Session { recipe, data, disk, course, .. } = session;
    let folder = record.folder().to_path_buf();
    if let Some(vocabulary) = &data.vocabulary {
        checkpoint::save_vocabulary(disk, &folder, vocabulary)?;
    }
    if let Some(header) = network_header(recipe, threads, parameters) {
        record.begin_network(disk, &header)?;
    }
    job.begin(recipe, &folder, course.from(), from)
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
fn make_ready(session: &Session, start: Start, provenance: &Provenance) -> Result<Ready> {
    let Session { recipe, data, disk, .. } = session;
    let toml = recipe.to_toml()?;
    let samples = data.train.len();
    let fresh = |destination: Destination<'_>| {
        let course = Course::new(recipe, samples, Progress::START)?;
        let record = Record::create(disk, destination, &toml, provenance)?;
        Ok(Ready { record, course, sums: Sums::default(), from: None, events: vec![] })
    };
    let mut resume = match start {
        Start::Resume(resume) => *resume,
        Start::Fresh => {
            let (out, name) = (&recipe.record.out, recipe.record.name.as_deref());
            return fresh(Destination::Stamped { out, recipe: &recipe.name, name });
        }
        Start::In(folder) => return fresh(Destination::Given(&folder)),
    };
    let changes = resume.accept(recipe)?;
    resume.accept_data(&provenance.data)?;
    resume.accept_vocabulary(data.vocabulary.as_deref())?;
    let progress = resume.checkpoint.manifest.progress;
    let course = Course::new(recipe, samples, progress)
        .with_context(|| format!("going on from {}", resume.checkpoint.folder.display()))?;
    let mut resharded = None;
    if resume.checkpoint.manifest.world_size != recipe.workers {
        let words = resume.checkpoint.reshard(recipe.workers, recipe.train.batch_norm)?;
        resharded = Some(format!("{words}; {}", course.in_words()));
    }
    if course.first_step() > course.last_step() {
        resume.nothing_left(&changes, course.last_step())?;
    }
    state::try_all(recipe, &*data.train, &resume.checkpoint)?;
    // From here on the run's folder changes. Whatever stops this, the checkpoint stays, and the
    // same can be done again.
    if !checkpoint::rewind(disk, &resume.run, progress.step)? {
        resume.checkpoint.manifest.best = None;
    }
    let warnings = resume.warnings(recipe, provenance, resharded.as_deref());
    let mut note = resume.note(&changes, provenance);
    let Resume { run, checkpoint, lock, .. } = resume;
    let summary = checkpoint.manifest.summary.clone();
    let first = course.first_step();
    let (record, cut) = Record::resume(disk, &run, lock, first, summary, &toml, provenance)?;
    note.text += &cut.in_words();
    let warnings = warnings.into_iter().map(Event::from);
    let events = [Event::from(note)].into_iter().chain(warnings).collect();
    let sums = checkpoint.manifest.sums;
    Ok(Ready { record, course, sums, from: Some(Arc::new(checkpoint)), events })
}

fn keep(record: &mut Record, console: &mut Console, event: &Event) -> Result<()> {
    if let Some(warning) = record.record(event)? {
        console.record(&warning)?;
    }
    console.record(event)
}

/// What holds for the whole run, for its network record; `None` when the recipe wants none.
fn network_header(recipe: &Recipe, threads: usize, parameters: u64) -> Option<Header> {
    recipe.record.network.then(|| Header {
        network: 1,
        ranks: recipe.workers,
        threads,
        clock: if threads == 1 && recipe.device == Device::Cpu { Meter::Cpu } else { Meter::Wall },
        scheme: recipe.scheme_in_words(),
        summable: recipe.scheme.plain(),
        topology: recipe.exchange.topology.name().into(),
        parameters,
        seed: recipe.seed,
    })
}

fn started(session: &Session, folder: &str, threads: usize, parameters: u64) -> Event {
    let Session { recipe, data, course, .. } = session;
    Event::from(Started {
        recipe: recipe.name.clone(),
        folder: folder.into(),
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
