//! From a recipe to a finished run: data, workers, records.
//!
//! The launching thread starts the workers, collects their reports in rank order and passes the
//! run's events on to its observers.

use crate::checkpoint::{self, Checkpoint, Progress, Sums};
use crate::cluster::Job;
use crate::recipe::Device;
use crate::record::network::{Header, Meter};
use crate::record::{
    Console, Event, Mode, Provenance, Record, RuleParameters, Started, Summary, Warning,
    create_given, create_stamped,
};
use crate::train::collector::Collector;
use crate::train::failure;
use crate::train::notes;
use crate::train::observer::{Checkpoints, Observer, Receivers, show};
use crate::train::parts::Parts;
use crate::train::resume::{Recovery, Resume};
use crate::train::session::Session;
use crate::train::state;
use crate::train::steps::Steps;
use crate::train::workers::run_workers;
use anyhow::{Context, Result};
use gradwire_models::InputKind;
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

/// Trains the run of `session`, whose `job` this process leads, to its end, and shows progress as
/// `mode` says.
///
/// # Errors
/// As [`train_observed`].
pub fn train(job: &Job, session: Session, mode: Mode, start: Start) -> Result<Outcome> {
    let mut console = Console::new(mode);
    let mut show = |event: &Event| console.record(event);
    train_observed(job, session, &mut [&mut show], start)
}

/// Trains the run of `session`, whose `job` this process leads, to its end, writes its records and
/// passes its events on to the `observers`. When a worker is lost, goes on from the last checkpoint if the recipe says so.
///
/// # Errors
/// When [`Recipe::may_run`](crate::recipe::Recipe::may_run) refuses a run that begins, the records cannot be written, an observer fails,
/// or a worker does: then the first cause, with rank, step and phase.
pub fn train_observed(
    job: &Job,
    mut session: Session,
    observers: &mut [&mut Observer<'_>],
    mut start: Start,
) -> Result<Outcome> {
    let progress = match &start {
        Start::Fresh | Start::In(_) => {
            let Parts { optimizer, scheme, policy, .. } = session.parts();
            session.recipe.may_run_with(&policy, optimizer, scheme)?;
            Progress::START
        }
        Start::Resume(resume) => {
            // Of other data neither steps nor epochs mean anything.
            let provenance = session.provenance(0);
            resume.accept_own(&provenance.own)?;
            resume.accept_data(&provenance.data)?;
            resume.checkpoint.manifest.progress
        }
    };
    let steps = Steps::new(&session.recipe, session.data.train.len(), progress)?;
    let to_come = steps.first_step()..=steps.last_step;
    let (sends, is_whole) = (|step| steps.sends(step), |step| steps.is_whole(step));
    session.faults.check(session.recipe.workers, to_come, sends, is_whole)?;
    job.agree(&session.provenance(0))?;
    let mut recovery = Recovery::new(&session.recipe);
    let mut notes: Vec<String> = session.faults.announcement().into_iter().collect();
    loop {
        let error = match attempt(job, &mut session, start, &notes, observers) {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        if session.requests.stopping() {
            return Err(error);
        }
        let Some(folder) = session.folder.take() else { return Err(error) };
        let (resume, recipe, note) = recovery.next(error, &session, &folder)?;
        (start, session.recipe, notes) = (Start::Resume(Box::new(resume)), recipe, vec![note]);
        session.requests = Arc::new(session.requests.again());
    }
}

/// One attempt to train a run to its end, after `notes` have been given as warnings. Leaves the run's
/// folder in `session` once workers have been at work in it.
fn attempt(
    job: &Job,
    session: &mut Session,
    start: Start,
    notes: &[String],
    observers: &mut [&mut Observer<'_>],
) -> Result<Outcome> {
    let threads = job.threads(&session.recipe);
    let (parameters, rules) = (session.parameters()?, session.rules()?);
    let cautions = notes::warnings(session, parameters, job.workers(&session.recipe)?)?;
    let provenance = session.provenance(threads);
    let Ready { mut record, steps, sums, from, events } = make_ready(session, start, &provenance)?;
    let folder = record.folder().to_path_buf();
    let shared = Arc::new(Session { steps, folder: Some(folder.clone()), ..session.clone() });
    let began = begin(job, &shared, &mut record, from.as_deref(), threads, parameters)
        .and_then(|()| Checkpoints::new(shared.clone(), provenance));
    let checkpoints = match began {
        Ok(checkpoints) => checkpoints,
        Err(error) => {
            // The error itself is what the person must see.
            let _ = record.fail(&error, false);
            return Err(error);
        }
    };
    let mut receivers = Receivers { record, checkpoints, observers };
    let warning = |message: &String| {
        Event::from(Warning { step: Some(steps.first_step()), message: message.clone() })
    };
    let announced = [started(
        &shared,
        &folder.display().to_string(),
        threads,
        parameters,
        sums.wire_bytes_total,
        rules,
    )]
    .into_iter()
    .chain(events)
    .chain(cautions.iter().chain(notes).map(warning))
    .try_for_each(|event| receivers.record(&event));
    let mut collector =
        Collector::new(&shared.recipe, steps, sums, shared.data.test.bytes_per_token());
    let trained = announced.and_then(|()| {
        run_workers(job, &shared, threads, from, |report| {
            collector.add(report).into_iter().try_for_each(|event| receivers.take(event))?;
            receivers.take_news()
        })
    });
    // Whatever has happened: what is being written is finished, so that the run can be resumed from it.
    let kept = receivers.finish_checkpoints();
    let Receivers { record, observers, .. } = receivers;
    let stopped = session.requests.stopping() && record.summary().step < steps.last_step;
    session.folder = Some(folder.clone());
    let ended = match (trained, kept) {
        // No attempt follows, because what is left behind may still write.
        (Err(error), Err(disk)) => Err(disk.context(format!("{error:#}"))),
        (trained, kept) => trained.and(kept),
    };
    match ended {
        Ok(()) => {
            let summary = record.summary().clone();
            show(observers, &record.finish()?)?;
            Ok(Outcome { folder, summary, stopped })
        }
        Err(error) => {
            // The error itself is what the person must see; whether record and observers can
            // still take it changes nothing about that.
            if let Ok(failed) = record.fail(&error, failure::diverged(&error)) {
                let _ = show(observers, &failed);
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
    let Session { recipe, data, disk, steps, .. } = session;
    let folder = record.folder().to_path_buf();
    if let Some(vocabulary) = &data.vocabulary {
        checkpoint::save_vocabulary(disk, &folder, vocabulary)?;
    }
    if let Some(header) = network_header(session, threads, parameters) {
        record.begin_network(disk, &header)?;
    }
    job.begin(recipe, &folder, steps.from, from)
}

/// A run that can take its first step.
struct Ready {
    record: Record,
    steps: Steps,
    sums: Sums,
    from: Option<Arc<Checkpoint>>,
    /// What has happened before the first step.
    events: Vec<Event>,
}

/// Makes a run's folder, or goes back in it to the checkpoint that the run goes on from.
fn make_ready(session: &Session, start: Start, provenance: &Provenance) -> Result<Ready> {
    let Session { recipe, data, disk, .. } = session;
    let toml = recipe.to_toml()?;
    let samples = data.train.len();
    let mut resume = match start {
        Start::Resume(resume) => *resume,
        Start::Fresh | Start::In(_) => {
            let steps = Steps::new(recipe, samples, Progress::START)?;
            let (out, name) = (&recipe.record.out, recipe.record.name.as_deref());
            let folder = match start {
                Start::In(folder) => create_given(disk, &folder).map(|()| folder)?,
                _ => create_stamped(disk, out, &recipe.name, name)?,
            };
            let record = Record::create(disk, folder, &toml, provenance)?;
            return Ok(Ready { record, steps, sums: Sums::default(), from: None, events: vec![] });
        }
    };
    let changes = resume.accept(recipe)?;
    resume.accept_vocabulary(data.vocabulary.as_deref())?;
    let progress = resume.checkpoint.manifest.progress;
    let steps = Steps::new(recipe, samples, progress)
        .with_context(|| format!("going on from {}", resume.checkpoint.folder.display()))?;
    let mut resharded = None;
    if resume.checkpoint.manifest.world_size != recipe.workers {
        let words = resume.checkpoint.reshard(recipe.workers, recipe.train.batch_norm)?;
        resharded = Some(format!("{words}; {}", steps.in_words()));
    }
    if steps.first_step() > steps.last_step {
        resume.nothing_left(&changes, steps.last_step)?;
    }
    state::try_all(session, &resume.checkpoint)?;
    // From here on the run's folder changes. Whatever stops this, the checkpoint stays, and the
    // same can be done again.
    if !checkpoint::rewind(disk, &resume.run, progress.step)? {
        resume.checkpoint.manifest.best = None;
    }
    let warnings = resume.warnings(recipe, provenance, resharded.as_deref());
    let mut note = resume.note(&changes, provenance);
    let Resume { run, checkpoint, lock, .. } = resume;
    let summary = checkpoint.manifest.summary.clone();
    let first = steps.first_step();
    let (record, cut) = Record::resume(disk, &run, lock, first, summary, &toml, provenance)?;
    note.text += &cut.in_words();
    let warnings = warnings.into_iter().map(Event::from);
    let events = [Event::from(note)].into_iter().chain(warnings).collect();
    let sums = checkpoint.manifest.sums.clone();
    Ok(Ready { record, steps, sums, from: Some(Arc::new(checkpoint)), events })
}

/// What holds for the whole run, for its network record; `None` when the recipe wants none.
fn network_header(session: &Session, threads: usize, parameters: u64) -> Option<Header> {
    let (recipe, parts) = (&session.recipe, session.parts());
    recipe.record.network.then(|| Header {
        network: 1,
        ranks: recipe.workers,
        threads,
        clock: if threads == 1 && recipe.device == Device::Cpu { Meter::Cpu } else { Meter::Wall },
        scheme: parts.scheme_in_words,
        summable: parts.policy.schemes(parts.scheme).all(|scheme| scheme.plain()),
        topology: recipe.exchange.topology.to_string(),
        parameters,
        seed: recipe.seed,
    })
}

fn started(
    session: &Session,
    folder: &str,
    threads: usize,
    parameters: u64,
    wire_bytes_total: u64,
    rules: Vec<RuleParameters>,
) -> Event {
    let Session { recipe, data, steps, own, .. } = session;
    let parts = session.parts();
    // Each token of a text to continue is a prediction, and counts as one.
    let each = data.train.shape().labels();
    let samples = |count: usize| (count * each) as u64;
    Event::from(Started {
        recipe: recipe.name.clone(),
        folder: folder.into(),
        model: parts.model.about().name.into(),
        dataset: if own.data { "own samples" } else { recipe.dataset.name() }.into(),
        scheme: parts.scheme_in_words,
        workers: recipe.workers,
        threads,
        parameters,
        unit: match parts.model.reads() {
            InputKind::Sequence => "tokens".into(),
            other => other.to_string(),
        },
        train_samples: samples(data.train.len()),
        test_samples: samples(data.test.len()),
        held_out: recipe.samples.validation.is_some(),
        batch: samples(recipe.workers * recipe.local_batch()),
        epochs: steps.epoch_of(steps.last_step),
        steps_per_epoch: steps.steps_per_epoch,
        steps: steps.last_step,
        first_step: steps.first_step(),
        steps_ahead: steps.ahead,
        wire_bytes_total: Some(wire_bytes_total),
        rules,
    })
}
