//! From a recipe to a finished run: data, workers, records.
//!
//! The launching thread starts the workers, gathers their reports in rank order and writes them
//! down.

use crate::checkpoint;
use crate::crew::{Crew, run_workers};
use crate::disk::Disk;
use crate::params::Params;
use crate::recipe::Recipe;
use crate::record::{Console, Event, FileSum, Mode, Provenance, Record, Started, Summary};
use crate::replica::Replica;
use crate::tally::Tally;
use crate::worker::total_steps;
use anyhow::{Context, Result, bail};
use gradwire_datasets::{Data, Sampler};
use gradwire_models::kernels;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread;

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
    let provenance = provenance(recipe, &data, threads)?;
    let out = &recipe.record.out;
    let mut record = Record::create(disk, out, &recipe.name, &recipe.to_toml()?, &provenance)?;
    let folder = record.folder().to_path_buf();
    if let Some(vocabulary) = &data.vocabulary {
        checkpoint::save_vocabulary(disk, &folder, vocabulary)?;
    }

    let steps_per_epoch = plan.steps_per_epoch();
    let mut tally = Tally::new(recipe, steps_per_epoch);
    let started = started(recipe, &data, threads, steps_per_epoch, &folder)?;
    let crew = Crew { recipe, data: &data, threads, folder: Some(&folder), disk };
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
            Ok(())
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
    steps_per_epoch: u64,
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
        epochs: total_steps(recipe, steps_per_epoch).div_ceil(steps_per_epoch),
        steps_per_epoch,
        steps: total_steps(recipe, steps_per_epoch),
        first_step: 1,
    }))
}
