//! `gradwire train`.

use crate::changes::{TrainingChanges, refuse_two_values};
use crate::named::meant;
use crate::refused::{Failure, Told, tell};
use crate::signals::Signals;
use anyhow::{Context, Result};
use clap::Args;
use gradwire::checkpoint;
use gradwire::cluster::Job;
use gradwire::disk::{Disk, Lock};
use gradwire::recipe::{Recipe, Source};
use gradwire::record::{self, Mode, RunLog, RunStatus};
use gradwire::train::failure::RunFailure;
use gradwire::train::faults::Faults;
use gradwire::train::follow;
use gradwire::train::launch::{Outcome, Start, train};
use gradwire::train::memory;
use gradwire::train::requests::Requests;
use gradwire::train::resume::Resume;
use gradwire::train::session::Session;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use toml::Value;

/// What to train.
#[derive(Debug, Args)]
pub(super) struct Train {
    /// A built-in recipe's name (see `gradwire list recipes`) or a TOML file; first-look if left
    /// out, or with --resume the run's own
    recipe: Option<String>,
    /// What the run is called wherever its folder can stand: record.name
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    changes: TrainingChanges,
    /// Inject faults, such as "panic:worker=2,step=40; kill:step=80"; also stall,
    /// corrupt, nan, flip, disk-full (docs/faults.md, "Inject faults")
    #[arg(long, value_name = "FAULTS")]
    inject: Option<String>,
    /// Go on with a run, by its folder, its name, or `last` for the newest, from its newest whole
    /// checkpoint; or from the checkpoint in this folder
    #[arg(long, value_name = "RUN", conflicts_with = "data")]
    resume: Option<PathBuf>,
    /// Go on although the recipe or the data make another run of it
    #[arg(long, requires = "resume")]
    force: bool,
    /// Show nothing but the result
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
    /// Print every event as a line of JSON, and nothing else
    #[arg(long)]
    json: bool,
    /// Print the resolved recipe and stop
    #[arg(long)]
    dry_run: bool,
}

impl Train {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let faults = Faults::parse(self.inject.as_deref().unwrap_or_default());
        let faults = faults.map_err(Failure::refused)?;
        let disk = faults.disk().map_or_else(Disk::default, Disk::failing);
        let named = self.recipe.is_some();
        let mut source = self.changes.source(self.recipe).map_err(Failure::refused)?;
        let out = out_of(&source);
        let name = self.name.map(|name| ("record.name", Value::String(name)));
        refuse_two_values(name.as_slice(), &source.sets).map_err(Failure::refused)?;
        source.flags.extend(name);
        let job = if self.dry_run { Ok(Job::alone()) } else { Job::join() };
        let job = job.map_err(Failure::refused)?;
        if job.is_shared() {
            // The launcher's number takes the place of the recipe's; flags and --set come after it.
            source.flags.insert(0, ("workers", Value::Integer(job.processes as i64)));
        }
        if !job.leads() {
            // Whether and where the run goes on is process 0's business.
            let own = (named || self.resume.is_none()).then(|| source.load());
            return Ok(follow(job, own, disk, faults));
        }
        let ready = || -> Result<Option<(Start, Recipe)>, Failure> {
            let resume = self.resume.map(|word| meant(&out, &word)).transpose();
            let start = match resume.map_err(Failure::refused)? {
                None => AskedStart::Fresh,
                Some(path) => AskedStart::again(&disk, &path, self.force, self.dry_run)?,
            };
            let recipe = match start.recipe() {
                Some(recipe) if !named => source.load_on(recipe),
                _ => source.load(),
            };
            let accepted = recipe.and_then(|recipe| {
                recipe.fits_machine()?;
                match &start {
                    AskedStart::Resume(resume) => resume.accept(&recipe).map(drop)?,
                    AskedStart::Fresh | AskedStart::InPlace(..) => recipe.may_run()?,
                }
                let steps = 1..=recipe.train.max_steps.unwrap_or(u64::MAX);
                // Which steps are to come, and which send something, is known with the data.
                faults.check(recipe.workers, steps, |_| true, |_| true)?;
                job.workers(&recipe)?;
                Ok(recipe)
            });
            let recipe = accepted.map_err(Failure::refused)?;
            let is_new = matches!(start, AskedStart::Fresh) && !self.quiet && !self.json;
            if let Some(note) = source.batch_note(&recipe).filter(|_| is_new) {
                eprintln!("note: {note}");
            }
            if self.dry_run {
                show(&recipe)?;
                return Ok(None);
            }
            Ok(Some((start.into_start(&disk)?, recipe)))
        };
        let (start, recipe) = match ready() {
            Ok(Some(ready)) => ready,
            Ok(None) => return Ok(ExitCode::SUCCESS),
            Err(Failure { error, code }) => {
                return Err(Failure { error: dissolved(job, error), code });
            }
        };
        let mode = match (self.quiet, self.json) {
            (true, _) => Mode::Quiet,
            (_, true) => Mode::Json,
            _ => Mode::default(),
        };
        let requests = Arc::new(Requests::default());
        let faults = Arc::new(faults);
        let keeps = recipe.checkpoint.keep_last > 0;
        let then = if keeps { ", with a checkpoint" } else { "" };
        let signals = Signals::listen(&requests.stop_flag(), job.is_shared(), Some(then))?;
        let trained = Session::lead(&job, recipe).and_then(|session| {
            train(&job, Session { disk, requests, faults, ..session }, mode, start)
        });
        let code = match trained {
            Ok(outcome) => stopped_by(&signals, &outcome, keeps),
            Err(error) => tell(&error, ExitCode::FAILURE),
        };
        job.end(code != ExitCode::FAILURE);
        Ok(code)
    }
}

/// The folder that runs are written under, by a flag, by `--set` or by the recipe itself.
fn out_of(source: &Source) -> PathBuf {
    let table = source.table().unwrap_or_default();
    let out = table.get("record").and_then(|record| record.get("out")).and_then(Value::as_str);
    PathBuf::from(out.unwrap_or("runs/out"))
}

/// Prints a recipe with everything that is in force, and what it needs.
fn show(recipe: &Recipe) -> Result<()> {
    let toml = recipe.to_toml()?;
    print!("{toml}\n# {}\n", memory::in_words(recipe, recipe.workers)?);
    Ok(())
}

/// How a run begins, as the command line asks for it.
enum AskedStart {
    Fresh,
    Resume(Box<Resume>),
    /// From its first step, in the folder of a run that was cut off before its first checkpoint; the lock
    /// keeps others away until that folder has been set aside.
    InPlace(PathBuf, Box<Recipe>, Lock),
}

impl AskedStart {
    /// What `--resume` finds at `path`. `only_looks` is whether nothing will be trained.
    fn again(disk: &Disk, path: &Path, force: bool, only_looks: bool) -> Result<Self> {
        let error = match Resume::find(disk, path, force) {
            Ok(resume) => return Ok(Self::Resume(Box::new(resume))),
            Err(error) => error,
        };
        // The first one may have been being written, under another name.
        let nothing = match fs::read_dir(path.join(checkpoint::FOLDER)) {
            Ok(mut entries) => entries.all(|entry| {
                entry.is_ok_and(|entry| entry.file_name().as_encoded_bytes().ends_with(b".partial"))
            }),
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        let cut_off =
            || RunLog::skim(disk, path).is_ok_and(|log| log.status() == RunStatus::Stopped);
        let recipe = fs::read_to_string(path.join("recipe.toml"));
        match recipe {
            Ok(text) if nothing && cut_off() => {
                // Another process may be at work in it, or may be about to begin it again.
                let lock = record::lock(disk, path)?;
                if !only_looks {
                    eprintln!("the run was cut off before its first checkpoint: it begins again");
                }
                let recipe = Recipe::from_toml(&text)
                    .with_context(|| format!("the recipe of {}", path.display()))?;
                Ok(Self::InPlace(path.to_path_buf(), Box::new(recipe), lock))
            }
            _ => Err(error),
        }
    }

    /// The recipe of the run that goes on.
    fn recipe(&self) -> Option<&Recipe> {
        match self {
            Self::Fresh => None,
            Self::Resume(resume) => Some(&resume.recipe),
            Self::InPlace(_, recipe, _) => Some(recipe),
        }
    }

    /// Makes room for a run that begins in the place of another; what that one had is kept beside it.
    fn into_start(self, disk: &Disk) -> Result<Start> {
        match self {
            Self::Fresh => Ok(Start::Fresh),
            Self::Resume(resume) => Ok(Start::Resume(resume)),
            Self::InPlace(folder, _, lock) => {
                record::set_aside(disk, &folder)?;
                drop(lock);
                Ok(Start::In(folder))
            }
        }
    }
}

/// The error for which a job does not begin, after the other processes have been told.
fn dissolved(job: Job, error: anyhow::Error) -> anyhow::Error {
    if !job.is_shared() {
        return error;
    }
    // Before the others leave: a launcher that sees one of them fail ends this process at once.
    tell(&error, ExitCode::FAILURE);
    job.end(false);
    error.context(Told)
}

/// Trains as process 0 says.
fn follow(job: Job, own: Option<Result<Recipe>>, disk: Disk, faults: Faults) -> ExitCode {
    let requests = Arc::new(Requests::default());
    let faults = Arc::new(faults);
    // Whether process 0 has let this one begin.
    let followed = || -> Result<bool> {
        Signals::listen(&requests.stop_flag(), true, None)?;
        let Some((session, go)) = follow::join(&job, own)? else { return Ok(false) };
        follow::train(&job, Session { disk, requests, faults, ..session }, *go).map(|()| true)
    };
    let (well, code) = match followed() {
        Ok(true) => (true, ExitCode::SUCCESS),
        Ok(false) => (false, ExitCode::from(2)),
        // Process 0 has been told, and tells which of all causes was the first.
        Err(error) if error.is::<RunFailure>() => (false, ExitCode::FAILURE),
        // Process 0 may never hear of anything else.
        Err(error) => {
            let named = error.context(format!("process {}", job.process));
            (false, tell(&named, ExitCode::FAILURE))
        }
    };
    job.end(well);
    code
}

/// The exit code of a run that has ended well, perhaps because a signal asked for it; `keeps` is
/// whether it can be gone on with.
fn stopped_by(signals: &Signals, outcome: &Outcome, keeps: bool) -> ExitCode {
    let Some(signal) = signals.heard().filter(|_| outcome.stopped) else {
        return ExitCode::SUCCESS;
    };
    let then = if keeps {
        format!("go on with: gradwire train --resume {}", outcome.folder.display())
    } else {
        "its recipe keeps no checkpoints to go on from".to_string()
    };
    eprintln!("Stopped by {} after step {}; {then}", signal.name, outcome.summary.step);
    ExitCode::from(signal.exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradwire::recipe::Source;

    /// Of two processes that are to begin the same run again, one does.
    #[test]
    fn what_begins_again_is_kept_from_others_until_it_is_set_aside() {
        let out = tempfile::tempdir().unwrap();
        let (disk, run) = (Disk::default(), out.path().join("run"));
        // It was cut off while its first checkpoint was being written.
        let partial = run.join(checkpoint::FOLDER).join(".step-00000003.partial");
        fs::create_dir_all(&partial).unwrap();
        let recipe = Source::default().load().unwrap();
        fs::write(run.join("recipe.toml"), recipe.to_toml().unwrap()).unwrap();
        fs::write(run.join(record::METRICS), "").unwrap();

        // A checkpoint that is damaged is told, and no reason to begin again.
        let damaged = run.join(checkpoint::FOLDER).join("step-00000003");
        fs::create_dir(&damaged).unwrap();
        let refused = AskedStart::again(&disk, &run, false, true).err().unwrap().to_string();
        assert!(refused.contains("start the run anew"), "{refused}");
        fs::remove_dir(&damaged).unwrap();

        let first = AskedStart::again(&disk, &run, false, true).unwrap();
        let second = AskedStart::again(&disk, &run, false, true).err().unwrap().to_string();
        assert!(second.contains("another process is training in"), "{second}");
        assert!(matches!(first.into_start(&disk).unwrap(), Start::In(folder) if folder == run));
        let aside = out.path().join("run-cut-off-1");
        assert!(!run.exists() && aside.join("recipe.toml").is_file());
        record::lock(&disk, &aside).unwrap();
    }
}
