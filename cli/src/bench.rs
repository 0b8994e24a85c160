//! `gradwire bench`: how fast this machine is.

use crate::codecs::Codecs;
use crate::refused::Failure;
use crate::spinner::Spinner;
use crate::time_to_accuracy::TimeToAccuracy;
use anyhow::Result;
use clap::{Args, Subcommand};
use gradwire::machine;
use gradwire::recipe::{self, Source};
use gradwire::record::Phases;
use gradwire::text::{Column, Table, milliseconds, percent_column, percent_to};
use gradwire_models::kernels::Precision;
use gradwire_models::kernels::profile::Timed;
use gradwire_study::bench::training::{self, TrainingSpeed};
use std::process::ExitCode;
use toml::Value;

/// What to measure.
#[derive(Debug, Subcommand)]
pub(super) enum BenchCommand {
    /// Training steps on random samples
    Train(TrainBench),
    /// Compression schemes on one gradient
    Codecs(Codecs),
    /// Whole runs of a recipe, and the seconds in which they reach a test accuracy
    TimeToAccuracy(Box<TimeToAccuracy>),
}

/// What to train, and how many steps to measure.
#[derive(Debug, Args)]
pub(super) struct TrainBench {
    /// The model
    #[arg(long, default_value = "resnet20")]
    model: String,
    /// The compression scheme
    #[arg(long, default_value = "dense")]
    scheme: String,
    /// World size
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// Compute threads per worker; 0 for its share of the cores
    #[arg(long, default_value_t = 0)]
    threads: u32,
    /// Samples per rank and step
    #[arg(long, default_value_t = 64)]
    batch: u32,
    /// Steps to measure
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    steps: u64,
    /// Change any other value of the recipe but how long it trains and what it records; may be
    /// repeated
    #[arg(long = "set", value_name = "PATH=VALUE")]
    sets: Vec<String>,
    /// Print the result as a line of JSON
    #[arg(long)]
    json: bool,
}

impl BenchCommand {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Self::Train(train) => train.run()?,
            Self::Codecs(codecs) => codecs.run()?,
            Self::TimeToAccuracy(runs) => return runs.run(),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl TrainBench {
    fn run(self) -> Result<(), Failure> {
        let (threads, steps, json) = (self.threads, self.steps, self.json);
        let recipe = self.source().load().map_err(Failure::refused)?;
        let threads = match threads {
            0 => recipe.threads_per_worker(machine::cores()),
            threads => threads as usize,
        };
        let spinner =
            Spinner::unmeasured(&format!("taking {steps} steps of {}", recipe.model.name()));
        let measured = training::measure(&recipe, threads, steps, None);
        drop(spinner);
        Ok(show(&measured?, json)?)
    }

    fn source(self) -> Source {
        // Any data set that the model can read will do; its samples are replaced by random ones.
        let dataset = recipe::synthetic_for(&self.model).unwrap_or("synthetic-cifar10");
        let text = |path, value: &str| (path, Value::String(value.into()));
        let number = |path, value: u32| (path, Value::Integer(value.into()));
        let flags = vec![
            text("dataset", dataset),
            text("model", &self.model),
            text("scheme", &self.scheme),
            number("workers", self.workers),
            number("train.batch", self.batch),
        ];
        Source { recipe: None, flags, sets: self.sets }
    }
}

fn show(measured: &TrainingSpeed, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(measured)?);
        return Ok(());
    }
    let TrainingSpeed { model, scheme, workers, threads, batch, parameters, steps, .. } = measured;
    println!("{model}, {parameters} parameters, {scheme}");
    println!("{workers} workers × {threads} threads, batch {batch} each, median of {steps} steps");
    let step = milliseconds(1e-3 * measured.step_ms, 2);
    println!("{:.1} samples/s  {step} per step", measured.samples_per_s);
    let phases = Phases::NAMES.into_iter().map(|name| (name, measured.phases_ms[name]));
    print!("{}", shares(phases, measured.step_ms));
    if !measured.kernels_ms.is_empty() {
        println!("of forward and backward, by kind of kernel:");
    }
    let kernels = Timed::ALL.iter().map(|kind| kind.name());
    let kernels = kernels.filter_map(|name| Some((name, *measured.kernels_ms.get(name)?)));
    print!("{}", shares(kernels, measured.step_ms));
    let peak = measured.peak_gflops;
    if let (Some(gflops), Some(share)) = (measured.gflops, measured.share_of_peak) {
        let products = if measured.precision == Precision::Bf16 {
            "products of bf16 reach"
        } else {
            "sgemm reaches"
        };
        let share = percent_to(share, 0);
        println!("{gflops:.1} effective GFLOP/s, {share} of the {peak:.1} that {products}");
    }
    if let Some(memory) = measured.memory_mb {
        println!("{memory:.0} MB of memory at most");
    }
    Ok(())
}

/// Parts of a step by name, each with its milliseconds and their share of the step.
fn shares<'a>(parts: impl IntoIterator<Item = (&'a str, f64)>, step_ms: f64) -> Table {
    let mut table = Table::new([""; 3].map(Column::right));
    for (name, ms) in parts {
        table.row([name.into(), milliseconds(1e-3 * ms, 2), percent_column(ms / step_ms)]);
    }
    table
}
