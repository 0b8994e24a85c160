//! The life of a process that follows.

use crate::cluster::{Begin, ControlMessage, Hello, Job, SLOWEST, accept};
use crate::recipe::Recipe;
use crate::train::failure::{Failure, RunFailure};
use crate::train::memory;
use crate::train::position::Position;
use crate::train::relay::{FailureReport, WorkerMessage};
use crate::train::session::{Session, load};
use crate::train::steps::Steps;
use crate::train::workers::run_workers;
use anyhow::{Error, Result, bail, ensure};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Hears from process 0 what is to be trained, and tells it what this process would train with.
/// `own` is the recipe as this process reads it; process 0's when it goes on with a run. What
/// process 0 lets it begin with; `None` when it does not let it begin, and says why itself.
///
/// # Errors
/// When process 0 is silent.
pub fn join(job: &Job, own: Option<Result<Recipe>>) -> Result<Option<(Session, Box<Begin>)>> {
    let recipe = match hear(job)? {
        ControlMessage::Recipe(recipe) => accept(&recipe, own),
        ControlMessage::Refused => return Ok(None),
        _ => bail!("process 0 does not say what is to be trained"),
    };
    let ready = recipe.and_then(|recipe| {
        let data = load(&recipe, None)?;
        let session = Session::new(recipe, data)?;
        // Process 0 looks after the memory of its own machine only.
        let (recipe, parameters) = (&session.recipe, session.parameters()?);
        memory::check(&session, parameters, job.workers(recipe)?)?;
        Ok((Hello::new(&session.provenance(0)), session))
    });
    let (hello, session) = match ready {
        Ok((hello, session)) => (hello, Some(session)),
        Err(error) => (Hello::failed(Some(format!("{error:#}"))), None),
    };
    job.write(0, &ControlMessage::Hello(Box::new(hello)))?;
    match (hear(job)?, session) {
        (ControlMessage::Begin(start), Some(session)) => Ok(Some((session, start))),
        (ControlMessage::Refused, _) => Ok(None),
        _ => bail!("process 0 does not say how it goes on"),
    }
}

/// The next message of process 0.
fn hear(job: &Job) -> Result<ControlMessage> {
    match job.read(Instant::now() + SLOWEST)? {
        Some((0, message)) => Ok(message),
        Some((from, _)) => bail!("process {from} writes where process 0 should"),
        None => bail!("process 0 has said nothing for {SLOWEST:?}"),
    }
}

/// Trains this process's worker as process 0 says, and takes leave.
///
/// # Errors
/// A [`RunFailure`] when a worker fails, here or elsewhere; process 0 has been told. Any other error when this
/// process cannot begin, which process 0 is told, or when process 0 does not take leave.
pub fn train(job: &Job, session: Session, start: Begin) -> Result<()> {
    work(job, session, start).map_err(|error| told(job, error))?;
    let deadline = Instant::now() + SLOWEST;
    loop {
        let message = job.read(deadline)?;
        ensure!(message.is_some(), "process 0 has not taken leave within {SLOWEST:?}");
        if matches!(message, Some((0, ControlMessage::Finished))) {
            return Ok(());
        }
    }
}

/// Trains this process's worker to its end.
fn work(job: &Job, mut session: Session, start: Begin) -> Result<()> {
    let Begin { folder, progress, threads, machines, from } = start;
    job.take_up(machines, threads)?;
    session.steps = Steps::new(&session.recipe, session.data.train.len(), progress)?;
    session.folder = Some(PathBuf::from(folder));
    run_workers(job, &Arc::new(session), threads, from.map(Arc::new), |report| {
        job.write(0, &WorkerMessage::Report(report).message()?)
    })
}

/// Tells process 0 of an error, unless the worker's own report has told it; gives the error back.
fn told(job: &Job, error: Error) -> Error {
    if error.is::<RunFailure>() {
        return error;
    }
    let failure = Failure::new(job.process, Position::start(), error);
    let report = WorkerMessage::Failed(vec![FailureReport::from(&failure)]);
    // Whether or not it can be written down, the error itself is what counts.
    let _ = report.message().and_then(|message| job.write(0, &message));
    failure.error
}
