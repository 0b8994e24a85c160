//! `gradwire reproduce`: a paper's experiment, claimed beside measured.

use crate::changes::tagged;
use crate::grid::GridArgs;
use crate::making::AskedExperiment;
use crate::network::words_of_links;
use crate::refused::Failure;
use anyhow::{Context, Result};
use clap::Args;
use gradwire::text::{Column, Table};
use gradwire_study::experiment::Experiment;
use std::path::PathBuf;
use std::process::ExitCode;

/// Which experiment, how much of it, and where.
#[derive(Debug, Args)]
pub(super) struct Reproduce {
    /// An experiment's name (see --list) or a TOML file
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// Show the experiments, or the one that is named, with scales and claims
    #[arg(long)]
    list: bool,
    /// How much to train: smoke (made-up data, a few steps), quick (one pass, about an hour on two
    /// cores), standard (converged enough to tell schemes apart, some hours), full (as in the paper),
    /// or what the experiment calls it; standard, or the only one there is, if left out
    #[arg(long, value_name = "SCALE")]
    scale: Option<String>,
    #[command(flatten)]
    running: GridArgs,
    /// Links to replay runs on, in place of the experiment's
    #[arg(long, value_name = "LINK,…")]
    links: Vec<String>,
    /// Change any value of every recipe, such as train.epochs=1; may be repeated
    #[arg(long = "set", value_name = "PATH=VALUE")]
    sets: Vec<String>,
    /// A word to find the runs by (`gradwire runs --tag TAG`): record.tags; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// The folder that the experiment's folder is in
    #[arg(long, default_value = "runs/out")]
    out: PathBuf,
    /// The folder that holds the data sets: dataset.dir
    #[arg(long)]
    dir: Option<String>,
}

impl Reproduce {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        if self.list {
            return list(self.name);
        }
        let name = self.name.as_deref().unwrap_or_default();
        let (name, experiment) = Experiment::load(name).map_err(Failure::refused)?;
        let scale = experiment.scale(self.scale.as_deref());
        let scale =
            scale.with_context(|| format!("experiment {name}")).map_err(Failure::refused)?;
        let links = words_of_links(&self.links).map_err(Failure::refused)?;
        let tags = tagged(self.tags).map(|(key, words)| format!("{key}={words}"));
        self.running.run(&AskedExperiment {
            name,
            experiment,
            scale,
            links,
            sets: self.sets.into_iter().chain(tags).collect(),
            out: self.out,
            dir: self.dir,
            announced: false,
            target: None,
        })
    }
}

/// Prints the experiment that is named, or every one, with its scales and claims.
fn list(named: Option<String>) -> Result<ExitCode, Failure> {
    let built_in = || Experiment::built_in().into_iter().map(|(name, _)| name).collect();
    for name in named.map_or_else(built_in, |name| vec![name]) {
        let (name, experiment) = Experiment::load(&name).map_err(Failure::refused)?;
        println!("{name}: {}\n  {}", experiment.title, experiment.paper);
        let mut scales = Table::new([""; 3].map(Column::left));
        let rows = experiment.scales.iter();
        rows.for_each(|(scale, setting)| scales.row(["", scale.name(), &setting.about]));
        print!("{scales}");
        for claim in &experiment.claims {
            println!("  claim: {} ({})", claim.claim, claim.source);
        }
        println!();
    }
    println!(
        "gradwire reproduce NAME --scale smoke|quick|standard|full; --dry-run tells how long it takes"
    );
    Ok(ExitCode::SUCCESS)
}
