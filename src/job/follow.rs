//! The life of a process that follows.

use super::agree::{Go, Hello, accept, provenance};
use super::{Job, Letter, Machine, SLOWEST};
use crate::course::Course;
use crate::crew::{Crew, run_workers};
use crate::disk::Disk;
use crate::inject::Faults;
use crate::launch;
use crate::network::Pace;
use crate::orders::Orders;
use crate::recipe::Recipe;
use anyhow::{Result, bail, ensure};
use gradwire_datasets::Data;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Whether a follower's run has begun.
pub enum Followed {
    /// It has, and has come to its end.
    Trained,
    /// Process 0 has not let it begin, and says why.
    Refused,
}

/// Trains this process's workers as process 0 says. `own` is the recipe as this process reads it;
/// process 0's when it goes on with a run.
///
/// # Errors
/// When process 0 is silent, or a worker fails, here or elsewhere; process 0 has been told.
pub fn follow(
    job: &Job,
    own: Option<Result<Recipe>>,
    disk: &Disk,
    orders: Arc<Orders>,
    faults: Arc<Faults>,
) -> Result<Followed> {
    let recipe = match hear(job)? {
        Letter::Recipe(recipe) => accept(&recipe, own),
        Letter::Refused => return Ok(Followed::Refused),
        _ => bail!("process 0 does not say what is to be trained"),
    };
    let ready = recipe.and_then(|recipe| {
        let data = launch::load(&recipe, None)?;
        Ok((Hello::new(&provenance(&recipe, &data)?), recipe, data))
    });
    let (hello, ready) = match ready {
        Ok((hello, recipe, data)) => (hello, Some((recipe, data))),
        Err(error) => (Hello::failed(Some(format!("{error:#}"))), None),
    };
    job.write(0, &Letter::Hello(Box::new(hello)))?;
    match (hear(job)?, ready) {
        (Letter::Go(go), Some((recipe, data))) => {
            train(job, &recipe, &data, disk, orders, faults, *go)
        }
        (Letter::Refused, _) => Ok(Followed::Refused),
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

fn train(
    job: &Job,
    recipe: &Recipe,
    data: &Data,
    disk: &Disk,
    orders: Arc<Orders>,
    faults: Arc<Faults>,
    go: Go,
) -> Result<Followed> {
    let Go { folder, progress, threads, machines, state } = go;
    let machines = machines.into_iter().map(|(host, processors)| Machine { host, processors });
    job.settle(machines.collect(), threads)?;
    job.begun.store(true, Ordering::SeqCst);
    let course = Course::new(recipe, data.train.len(), progress)?;
    let from = state.map(|state| state.checkpoint()).transpose()?.map(Arc::new);
    let pace = Pace::new(recipe, launch::parameters(recipe, data)?)?;
    let crew = Crew {
        job,
        recipe,
        data,
        threads,
        pace: &pace,
        folder: Some(Path::new(&folder)),
        disk,
        course,
        orders,
        from,
        faults,
    };
    run_workers(crew, |report| job.write(0, &Letter::report(report)?))?;
    let deadline = Instant::now() + SLOWEST;
    loop {
        let letter = job.read(deadline)?;
        ensure!(letter.is_some(), "process 0 has not taken leave within {SLOWEST:?}");
        if matches!(letter, Some((0, Letter::Bye))) {
            return Ok(Followed::Trained);
        }
    }
}
