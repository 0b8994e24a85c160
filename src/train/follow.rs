//! The life of a process that follows.

use crate::cluster::{Go, Hello, Job, Letter, SLOWEST, accept};
use crate::recipe::Recipe;
use crate::train::failure::{Failure, RunFailure};
use crate::train::memory;
use crate::train::position::Position;
use crate::train::relay::{Account, Relayed};
use crate::train::session::{Session, load};
use crate::train::steps::Steps;
use crate::train::workers::{Workers, run_workers};
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
pub fn join(job: &Job, own: Option<Result<Recipe>>) -> Result<Option<(Session, Box<Go>)>> {
    let recipe = match hear(job)? {
        Letter::Recipe(recipe) => accept(&recipe, own),
        Letter::Refused => return Ok(None),
        _ => bail!("process 0 does not say what is to be trained"),
    };
    let ready = recipe.and_then(|recipe| {
        let data = load(&recipe, None)?;
        let session = Session::new(recipe, data)?;
        // Process 0 looks after the memory of its own machine only.
        let (recipe, parameters) = (&session.recipe, session.parameters()?);
        memory::check(recipe, &session.parts(), parameters, job.workers(recipe)?)?;
        Ok((Hello::new(&session.provenance(0)), session))
    });
    let (hello, session) = match ready {
        Ok((hello, session)) => (hello, Some(session)),
        Err(error) => (Hello::failed(Some(format!("{error:#}"))), None),
    };
    job.write(0, &Letter::Hello(Box::new(hello)))?;
    match (hear(job)?, session) {
        (Letter::Go(go), Some(session)) => Ok(Some((session, go))),
        (Letter::Refused, _) => Ok(None),
        _ => bail!("process 0 does not say how it goes on"),
    }
}

/// The next letter of process 0.
fn hear(job: &Job) -> Result<Letter> {
    match job.read(Instant::now() + SLOWEST)? {
        Some((0, letter)) => Ok(letter),
        Some((from, _)) => bail!("process {from} writes where process 0 should"),
        None => bail!("process 0 has said nothing for {SLOWEST:?}"),
    }
}

/// Trains this process's worker as process 0 says, and takes leave.
///
/// # Errors
/// A [`RunFailure`] when a worker fails, here or elsewhere; process 0 has been told. Any other error when this
/// process cannot begin, which process 0 is told, or when process 0 does not take leave.
pub fn train(job: &Job, session: Session, go: Go) -> Result<()> {
    work(job, session, go).map_err(|error| told(job, error))?;
    let deadline = Instant::now() + SLOWEST;
    loop {
        let letter = job.read(deadline)?;
        ensure!(letter.is_some(), "process 0 has not taken leave within {SLOWEST:?}");
        if matches!(letter, Some((0, Letter::Bye))) {
            return Ok(());
        }
    }
}

/// Trains this process's worker to its end.
fn work(job: &Job, mut session: Session, go: Go) -> Result<()> {
    let Go { folder, progress, threads, machines, state } = go;
    job.take_up(machines, threads)?;
    session.steps = Steps::new(&session.recipe, session.data.train.len(), progress)?;
    session.folder = Some(PathBuf::from(folder));
    let from = state.map(|state| state.checkpoint()).transpose()?.map(Arc::new);
    let workers = Workers { job, session: Arc::new(session), threads, from };
    run_workers(workers, |report| job.write(0, &Relayed::of(report)?.letter()?))
}

/// Tells process 0 of an error, unless the worker's own account has told it; gives the error back.
fn told(job: &Job, error: Error) -> Error {
    if error.is::<RunFailure>() {
        return error;
    }
    let failure = Failure::new(job.process(), Position::start(), error);
    let account = Relayed::Failed(vec![Account::from(&failure)]);
    // Whether or not it can be written down, the error itself is what counts.
    let _ = account.letter().and_then(|letter| job.write(0, &letter));
    failure.error
}
