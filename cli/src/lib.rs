//! The command line: the one place that knows clap.
//!
//! Exit codes: 0 done; 1 the run or the command failed; 2 the command line or the recipe was
//! refused, and nothing was started; 130 and 143 the run was stopped by SIGINT or SIGTERM after a
//! whole step. After a second signal the process ends by that signal, at once.

mod advise;
mod bench;
mod changes;
mod codecs;
mod completions;
mod data;
mod doctor;
mod grid;
mod keys;
mod list;
mod making;
mod named;
mod network;
mod new;
mod refused;
mod report;
mod reproduce;
mod runs;
mod sample;
mod signals;
mod spinner;
mod sweep;
mod time_to_accuracy;
mod train;

use anyhow::{Result, anyhow, ensure};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use gradwire::checkpoint;
use gradwire::cluster;
use gradwire::recipe::Recipe;
use gradwire::text::{percent_to, three_digits};
use gradwire::train::evaluate::Evaluation;
use named::RunsDir;
use refused::{Failure, tell};
use spinner::Spinner;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Data-parallel training with compressed gradient exchange.
#[derive(Debug, Parser)]
#[command(name = "gradwire", version, about, max_term_width = 100, args_override_self = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a model. Without arguments: a first look in under a minute
    Train(Box<train::Train>),
    /// Reproduce a paper's experiment: claimed beside measured, with tables and plots
    Reproduce(Box<reproduce::Reproduce>),
    /// Answer a question of your own: all combinations of a recipe's values, with several seeds
    Sweep(Box<sweep::Sweep>),
    /// Show runs side by side: accuracy, volume, times, and whether differences may be chance
    Compare(report::Compare),
    /// Make a report of runs: one HTML file, the same as Markdown, tables and plots
    Report(report::ReportArgs),
    /// List runs, with how they stand
    Runs(runs::Runs),
    /// Evaluate a trained model on its test set
    Eval(Eval),
    /// Continue a text by a trained model
    Sample(sample::SampleArgs),
    /// Tell which scheme is worth it on which link, for a recipe on this machine
    Advise(Box<advise::Advise>),
    /// Measure how fast this machine trains
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Tell what this machine has, and test that this build computes right on it
    Doctor(doctor::Doctor),
    /// Tell what recorded runs would have taken on other networks
    #[command(subcommand)]
    Network(network::NetworkCommand),
    /// Fetch, check or make data sets
    #[command(subcommand)]
    Data(data::DataCommand),
    /// Print a commented recipe or experiment to start from
    New(new::New),
    /// Show schemes, models, data sets, recipes, and every key of a recipe
    List(list::List),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(Debug, Args)]
struct Eval {
    /// A model.safetensors, or a run by its folder, its name, or `last` (its best model)
    checkpoint: PathBuf,
    #[command(flatten)]
    runs_dir: RunsDir,
    /// The folder, or the file, that holds the data set, if it has moved
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Print the result as a line of JSON
    #[arg(long)]
    json: bool,
}

impl Cli {
    /// The arguments of this process. What they should be is told, and the process ends, if they are no command line.
    pub fn from_arguments() -> Self {
        Self::try_parse().unwrap_or_else(|mut refused| {
            let changes_recipes = ["train", "sweep", "advise", "reproduce"];
            let command = std::env::args_os().nth(1);
            let command = command.as_ref().and_then(|word| word.to_str()).unwrap_or_default();
            let is_near = refused.get(ContextKind::SuggestedArg).is_some();
            let is_option = matches!(refused.get(ContextKind::InvalidArg), Some(ContextValue::String(word)) if word.starts_with("--"));
            if refused.kind() == ErrorKind::UnknownArgument
                && changes_recipes.contains(&command)
                && is_option
                && !is_near
            {
                let tip = "any value of a recipe is changed by --set, such as --set optimizer=adamw; `gradwire list keys` \
                           shows them all";
                let tips = ContextValue::StyledStrs(vec![tip.into()]);
                refused.insert(ContextKind::Suggested, tips);
            }
            refused.exit()
        })
    }

    /// Does what the command line says; errors go to standard error.
    pub fn run(self) -> ExitCode {
        signals::end_with_the_output();
        if let Err(error) = gradwire_models::kernels::active() {
            return tell(&anyhow!(error), ExitCode::from(2));
        }
        let trains = matches!(self.command, Command::Train(_));
        if let (false, processes @ 2..) = (trains, cluster::launched()) {
            let error = anyhow!(
                "a launcher has started {processes} processes, and each would do this by itself: \
                 only `gradwire train` runs over several"
            );
            return tell(&error, ExitCode::from(2));
        }
        if let Err(error) = signals::end_with_the_reader() {
            return tell(&anyhow!(error).context("listening to SIGPIPE"), ExitCode::FAILURE);
        }
        let plain = |done: Result<(), Failure>| done.map(|()| ExitCode::SUCCESS);
        let done = match self.command {
            Command::Train(train) => train.run(),
            Command::Reproduce(reproduce) => reproduce.run(),
            Command::Sweep(sweep) => sweep.run(),
            Command::Bench(bench) => bench.run(),
            Command::Doctor(doctor) => doctor.run(),
            Command::Runs(runs) => plain(runs.run().map_err(Failure::from)),
            Command::Eval(eval) => {
                plain(eval.runs_dir.one(&eval.checkpoint).and_then(|run| Ok(eval.run(&run)?)))
            }
            Command::Sample(of) => {
                plain(of.runs_dir.one(&of.run).and_then(|run| Ok(of.run(&run)?)))
            }
            Command::Advise(advise) => plain(advise.run()),
            Command::Compare(compare) => plain(compare.run()),
            Command::Report(report) => plain(report.run()),
            Command::Network(network) => plain(network.run()),
            Command::Data(data) => plain(data.run().map_err(Failure::from)),
            Command::New(new) => plain(new.run().map_err(Failure::refused)),
            Command::List(list) => plain(list.run().map_err(Failure::refused)),
            Command::Completions { shell } => {
                completions::print(shell, Self::command());
                return ExitCode::SUCCESS;
            }
        };
        done.unwrap_or_else(|Failure { error, code }| tell(&error, code))
    }
}

/// The recipe whose data lies at `place`: a folder or a file, as its own is. Of files in a folder each keeps its name.
fn moved(mut recipe: Recipe, place: &Path) -> Result<Recipe> {
    let own = toml::Table::try_from(&recipe.dataset)?;
    let has_place = ["dir", "path", "file"].iter().any(|key| own.contains_key(*key));
    ensure!(has_place, "{} is made, and lies nowhere; leave --dir out", recipe.dataset.name());
    for key in ["dir", "path", "file", "test_file"] {
        let Some(old) = own.get(key).and_then(toml::Value::as_str) else { continue };
        let old = Path::new(old);
        let is_file = key.ends_with("file")
            || old.extension().is_some_and(|ending| ending == "npz" || ending == "parquet");
        let name = old.file_name().filter(|_| is_file && place.is_dir());
        if key == "test_file" && name.is_none() {
            continue;
        }
        let new = name.map_or_else(|| place.to_owned(), |name| place.join(name));
        recipe = recipe.with(&format!("dataset.{key}"), new.to_string_lossy().into_owned())?;
    }
    Ok(recipe)
}

/// The recipe of a saved model for this machine, with a note where that has not its device or kernels.
pub(crate) fn fitted(recipe: &Recipe) -> Recipe {
    let here = recipe.clone().fitted();
    if here != *recipe {
        eprintln!(
            "note: this program or machine has not device = \"{}\" with precision = \"{}\"; the model is computed with \
             device = \"{}\" and precision = \"{}\"",
            recipe.device, recipe.precision, here.device, here.precision
        );
    }
    here
}

impl Eval {
    fn run(self, run: &Path) -> Result<()> {
        let mut saved = checkpoint::find(run).map_err(|error| {
            let best = run.join(checkpoint::BEST).join(checkpoint::MODEL);
            match checkpoint::newest(run) {
                Some(newest) if !best.is_file() => anyhow!(
                    "the run in {} has no model yet; evaluate its newest checkpoint: gradwire eval {}",
                    run.display(),
                    newest.display()
                ),
                _ => error,
            }
        })?;
        if let Some(place) = self.dir {
            saved.recipe = moved(saved.recipe, &place)?;
        }
        saved.recipe = fitted(&saved.recipe);
        let spinner = Spinner::unmeasured(&format!("reading {}", saved.recipe.dataset.name()));
        let evaluation = Evaluation::prepare(&saved)?;
        drop(spinner);
        for note in evaluation.notes()? {
            eprintln!("note: {note}");
        }
        let what = format!("evaluating {}", saved.recipe.model.name());
        let spinner = Spinner::of(evaluation.batches(), &what);
        let score = evaluation.run(|| spinner.part())?;
        drop(spinner);
        let (accuracy, loss) = (score.accuracy(), score.mean_loss());
        ensure!(
            loss.is_finite(),
            "the loss of {} on {} is {loss}: its weights are not those of a trained network",
            saved.file.display(),
            saved.recipe.dataset.name()
        );
        let bits_per_byte = evaluation.bits_per_byte(loss);
        if self.json {
            let mut line = serde_json::json!({
                "checkpoint": saved.file, "step": saved.step, "samples": score.samples,
                "test_accuracy": accuracy, "test_loss": loss,
            });
            if let Some(top5) = score.top5_accuracy() {
                line["test_top5_accuracy"] = top5.into();
            }
            if let Some(bits) = bits_per_byte {
                line["perplexity"] = loss.exp().into();
                line["bits_per_byte"] = bits.into();
            }
            println!("{line}");
        } else {
            let continued = bits_per_byte.map(|bits| {
                format!(
                    ", perplexity {}, {} bits per byte",
                    three_digits(loss.exp()),
                    three_digits(bits)
                )
            });
            let top5 = score.top5_accuracy();
            let top5 = top5.map(|top5| format!(" ({} among the first five)", percent_to(top5, 2)));
            println!(
                "{} on {}: {} of {} right{}, loss {loss:.4}{} ({}, step {})",
                saved.recipe.model.name(),
                saved.recipe.dataset.name(),
                percent_to(accuracy, 2),
                score.samples,
                top5.unwrap_or_default(),
                continued.unwrap_or_default(),
                saved.file.display(),
                saved.step
            );
        }
        Ok(())
    }
}
