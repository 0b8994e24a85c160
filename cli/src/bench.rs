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
use gradwire_models::kernels::Precision;
use gradwire_models::kernels::profile::Kind;
use gradwire_study::bench::training::{self, TrainingSpeed};
use std::process::ExitCode;
use toml::Value;

/// What to measure.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Training steps on random samples
    Train(Train),
    /// Compression schemes on one gradient
    Codecs(Codecs),
    /// Whole runs of a recipe, and the seconds in which they reach a test accuracy
    TimeToAccuracy(Box<TimeToAccuracy>),
}

/// What to train, and how many steps to measure.
#[derive(Debug, Args)]
pub(super) struct Train {
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

impl Command {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Self::Train(train) => train.run()?,
            Self::Codecs(codecs) => codecs.run()?,
            Self::TimeToAccuracy(runs) => return runs.run(),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Train {
    fn run(self) -> Result<(), Failure> {
        let (threads, steps, json) = (self.threads, self.steps, self.json);
        let recipe = self.source().load().map_err(Failure::refused)?;
        let threads = match threads {
            0 => recipe.threads_per_worker(machine::cores()),
            threads => threads as usize,
        };
        let spinner =
            Spinner::unmeasured(&format!("taking {steps} steps of {}", recipe.model.name()));
        let measured = training::measure(&recipe, threads, steps);
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
    println!("{:>10.1} samples/s  {:>9.2} ms per step", measured.samples_per_s, measured.step_ms);
    for name in Phases::NAMES {
        let ms = measured.phases_ms[name];
        println!("{name:>10} {ms:>9.2} ms {:>6.1} %", 100.0 * ms / measured.step_ms);
    }
    if !measured.kernels_ms.is_empty() {
        println!("of forward and backward, by kind of kernel:");
    }
    for name in Kind::ALL.iter().map(|kind| kind.name()) {
        let Some(ms) = measured.kernels_ms.get(name) else { continue };
        println!("{name:>28} {ms:>9.2} ms {:>6.1} %", 100.0 * ms / measured.step_ms);
    }
    let peak = measured.peak_gflops;
    if let (Some(gflops), Some(share)) = (measured.gflops, measured.share_of_peak) {
        let share = 100.0 * share;
        let products = if measured.precision == Precision::Bf16 {
            "products of bf16 reach"
        } else {
            "sgemm reaches"
        };
        println!("{gflops:.1} effective GFLOP/s, {share:.0} % of the {peak:.1} that {products}");
    }
    if let Some(memory) = measured.memory_mb {
        println!("{memory:.0} MB of memory at most");
    }
    Ok(())
}
