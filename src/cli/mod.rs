//! The command line: the one place that knows clap.
//!
//! Exit codes: 0 done; 1 the run or the command failed; 2 the command line or the recipe was
//! refused, and nothing was started; 130 and 143 the run was stopped by SIGINT or SIGTERM after a
//! whole step. After a second signal the process ends by that signal, at once.

mod advise;
mod bench;
mod codecs;
mod data;
mod list;
mod network;
mod report;
mod reproduce;

use crate::checkpoint;
use crate::disk::Disk;
use crate::evaluate;
use crate::inject::Faults;
use crate::job::{self, Followed, Job};
use crate::launch::{self, Outcome, Run, Start};
use crate::orders::Orders;
use crate::recipe::{Recipe, Source};
use crate::record::Mode;
use crate::resume::Resume;
use crate::signals::Signals;
use anyhow::{Context, Result, anyhow};
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use toml::Value;

/// Data-parallel training with compressed gradient exchange.
#[derive(Debug, Parser)]
#[command(name = "gradwire", version, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a model. Without arguments: a first look in under a minute
    Train(Box<Train>),
    /// Reproduce a paper's experiment: claimed beside measured, with tables and plots
    Reproduce(Box<reproduce::Reproduce>),
    /// Show runs side by side: accuracy, volume, times, and whether differences may be chance
    Compare(report::Compare),
    /// Make a report of runs: one HTML file, the same as Markdown, tables and plots
    Report(report::Report),
    /// Evaluate a trained model on its test set
    Eval(Eval),
    /// Tell which scheme is worth it on which link, for a recipe on this machine
    Advise(Box<advise::Advise>),
    /// Measure how fast this machine trains
    #[command(subcommand)]
    Bench(bench::Command),
    /// Tell what recorded runs would have taken on other networks
    #[command(subcommand)]
    Network(network::Command),
    /// Fetch, check or make data sets
    #[command(subcommand)]
    Data(data::Command),
    /// Show schemes, models, data sets and recipes
    List(list::List),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(Debug, Args)]
struct Train {
    /// A built-in recipe's name (see `gradwire list recipes`) or a TOML file; first-look if left
    /// out, or with --resume the run's own
    recipe: Option<String>,
    #[command(flatten)]
    changes: Changes,
    /// Do harm at chosen places, such as "panic:worker=2,step=40; kill:step=80"; also stall,
    /// corrupt, nan, disk-full (docs/faults.md, "What a run survives")
    #[arg(long, value_name = "FAULTS")]
    inject: Option<String>,
    /// Go on with the run in this folder, from its newest whole checkpoint, or from the checkpoint
    /// in this folder
    #[arg(long, value_name = "RUN")]
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

/// What the command line changes in a recipe.
#[derive(Debug, Args)]
struct Changes {
    /// Change any value of the recipe, such as scheme.ratio=0.001; may be repeated
    #[arg(long = "set", value_name = "PATH=VALUE")]
    sets: Vec<String>,
    /// The data set: dataset.kind
    #[arg(long)]
    dataset: Option<String>,
    /// The model: model.kind
    #[arg(long)]
    model: Option<String>,
    /// The compression scheme: scheme.kind
    #[arg(long)]
    scheme: Option<String>,
    /// World size: workers
    #[arg(long)]
    workers: Option<u32>,
    /// Passes over the training set: train.epochs
    #[arg(long)]
    epochs: Option<u32>,
    /// What every random stream derives from: seed
    #[arg(long)]
    seed: Option<i64>,
    /// The folder that runs are written under: record.out
    #[arg(long)]
    out: Option<String>,
    /// The folder that holds the data set: dataset.dir
    #[arg(long)]
    dir: Option<String>,
}

impl Changes {
    fn source(self, recipe: Option<String>) -> Source {
        let text = |path, value: Option<String>| Some((path, Value::String(value?)));
        let number = |path, value: Option<i64>| Some((path, Value::Integer(value?)));
        let flags = [
            text("dataset", self.dataset),
            text("model", self.model),
            text("scheme", self.scheme),
            number("workers", self.workers.map(i64::from)),
            number("train.epochs", self.epochs.map(i64::from)),
            number("seed", self.seed),
            text("record.out", self.out),
            text("dataset.dir", self.dir),
        ];
        Source { recipe, flags: flags.into_iter().flatten().collect(), sets: self.sets }
    }
}

#[derive(Debug, Args)]
struct Eval {
    /// A model.safetensors, or the folder of a run (its best model)
    checkpoint: PathBuf,
    /// The folder that holds the data set, if it has moved
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Print the result as a line of JSON
    #[arg(long)]
    json: bool,
}

/// A refusal of what was asked, before anything was started.
struct Refused(anyhow::Error);

impl Cli {
    /// Does what the command line says; errors go to standard error.
    pub fn run(self) -> ExitCode {
        let trains = matches!(self.command, Command::Train(_));
        if let (false, processes @ 2..) = (trains, job::launched()) {
            let error = anyhow!(
                "a launcher has started {processes} processes, and each would do this by itself: \
                 only `gradwire train` runs over several"
            );
            return tell(&error, ExitCode::from(2));
        }
        let done = match self.command {
            Command::Train(train) => match train.run() {
                Ok(Ok(code)) => return code,
                Ok(Err(error)) => Ok(Err(error)),
                Err(refused) => Err(refused),
            },
            Command::Reproduce(reproduce) => match reproduce.run() {
                Ok(Ok(code)) => return code,
                Ok(Err(error)) => Ok(Err(error)),
                Err(refused) => Err(refused),
            },
            Command::Eval(eval) => Ok(eval.run()),
            Command::Advise(advise) => advise.run(),
            Command::Compare(compare) => compare.run(),
            Command::Report(report) => report.run(),
            Command::Bench(bench) => bench.run(),
            Command::Network(network) => network.run(),
            Command::Data(data) => Ok(data.run()),
            Command::List(list) => Ok(list.run()),
            Command::Completions { shell } => {
                let mut command = Self::command();
                clap_complete::generate(shell, &mut command, "gradwire", &mut io::stdout());
                Ok(Ok(()))
            }
        };
        match done {
            Ok(Ok(())) => ExitCode::SUCCESS,
            Ok(Err(error)) => tell(&error, ExitCode::FAILURE),
            Err(Refused(error)) => tell(&error, ExitCode::from(2)),
        }
    }
}

fn tell(error: &anyhow::Error, code: ExitCode) -> ExitCode {
    if error.downcast_ref::<Told>().is_none() {
        eprintln!("Error: {error:#}");
    }
    code
}

impl Train {
    fn run(self) -> Result<Result<ExitCode>, Refused> {
        let faults = Faults::parse(self.inject.as_deref().unwrap_or_default()).map_err(Refused)?;
        let disk = faults.disk().map_or_else(Disk::default, Disk::failing);
        let named = self.recipe.is_some();
        let source = self.changes.source(self.recipe);
        let job = if self.dry_run { Job::alone() } else { Job::join().map_err(Refused)? };
        if !job.leads() {
            // Whether and where the run goes on is process 0's business.
            let own = (named || self.resume.is_none()).then(|| source.load());
            return Ok(Ok(follow(job, own, &disk, faults)));
        }
        let resume = self.resume.map(|path| Resume::find(&disk, &path, self.force)).transpose();
        let resume = match resume {
            Ok(resume) => resume,
            Err(error) => return Ok(Err(dissolved(job, error))),
        };
        let recipe = match &resume {
            Some(resume) if !named => source.load_on(&resume.recipe),
            _ => source.load(),
        };
        let accepted = recipe.and_then(|recipe| {
            resume.as_ref().map_or(Ok(()), |resume| resume.accept(&recipe).map(drop))?;
            let steps = recipe.train.max_steps.unwrap_or(u64::MAX);
            faults.check(recipe.workers, steps)?;
            job.workers(&recipe)?;
            Ok(recipe)
        });
        let recipe = match accepted {
            Ok(recipe) => recipe,
            Err(error) => return Err(Refused(dissolved(job, error))),
        };
        if self.dry_run {
            return Ok(recipe.to_toml().map(|toml| print!("{toml}")).map(|()| ExitCode::SUCCESS));
        }
        let mode = match (self.quiet, self.json) {
            (true, _) => Mode::Quiet,
            (_, true) => Mode::Json,
            _ => Mode::default(),
        };
        let start = resume.map_or(Start::Fresh, |resume| Start::Resume(Box::new(resume)));
        let orders = Arc::new(Orders::default());
        let signals = match Signals::listen(&orders.stop_flag(), job.is_shared()) {
            Ok(signals) => signals,
            Err(error) => return Ok(Err(error).context("listening to SIGINT and SIGTERM")),
        };
        let faults = Arc::new(faults);
        let run = Run { job: &job, recipe: &recipe, mode, disk, start, orders, faults };
        let keeps = recipe.checkpoint.keep_last > 0;
        let code = match launch::train(run) {
            Ok(outcome) => stopped_by(&signals, &outcome, keeps),
            Err(error) => tell(&error, ExitCode::FAILURE),
        };
        job.end(code != ExitCode::FAILURE);
        Ok(Ok(code))
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

/// On an error that has been told already.
#[derive(Debug)]
struct Told;

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("told before")
    }
}

/// Trains as process 0 says.
fn follow(job: Job, own: Option<Result<Recipe>>, disk: &Disk, faults: Faults) -> ExitCode {
    let orders = Arc::new(Orders::default());
    let listening = Signals::listen(&orders.stop_flag(), true);
    let followed = listening
        .context("listening to SIGINT and SIGTERM")
        .and_then(|_| job::follow(&job, own, disk, orders, Arc::new(faults)));
    match followed {
        Ok(Followed::Trained) => {
            job.end(true);
            ExitCode::SUCCESS
        }
        Ok(Followed::Refused) => {
            job.end(false);
            ExitCode::from(2)
        }
        Err(_) => {
            // Process 0 has been told, and tells which of all causes was the first.
            job.end(false);
            ExitCode::FAILURE
        }
    }
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

impl Eval {
    fn run(self) -> Result<()> {
        let mut saved = checkpoint::find(&self.checkpoint)?;
        if let Some(dir) = self.dir {
            saved.recipe = saved.recipe.with("dataset.dir", dir.to_string_lossy().into_owned())?;
        }
        let score = evaluate::evaluate(&saved)?;
        let (accuracy, loss) = (score.accuracy(), score.mean_loss());
        if self.json {
            let line = serde_json::json!({
                "checkpoint": saved.file, "step": saved.step, "samples": score.samples,
                "test_accuracy": accuracy, "test_loss": loss,
            });
            println!("{line}");
        } else {
            println!(
                "{} on {}: {:.2} % of {} right, loss {loss:.4} ({}, step {})",
                saved.recipe.model.name(),
                saved.recipe.dataset.name(),
                100.0 * accuracy,
                score.samples,
                saved.file.display(),
                saved.step
            );
        }
        Ok(())
    }
}
