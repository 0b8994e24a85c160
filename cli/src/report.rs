//! `gradwire report` and `gradwire compare`: people's own runs, put together.

use crate::named::RunsDir;
use crate::refused::Failure;
use anyhow::{Context, Result};
use clap::Args;
use gradwire::disk::Disk;
use gradwire::record::Provenance;
use gradwire_exchange::network::Link;
use gradwire_study::collection::{self, Collection};
use gradwire_study::report;
use std::path::{Path, PathBuf};

/// Which runs, and how they are looked at.
#[derive(Debug, Args)]
struct Runs {
    /// Runs by their folders, their names, or `last`; those that train the same with nothing but another seed belong together
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    #[command(flatten)]
    runs_dir: RunsDir,
    /// Links to tell the times on, by name (`gradwire network links`) or bandwidth
    #[arg(long, value_name = "LINK,…", default_value = "100mbit,1gbit,10gbit")]
    links: String,
    /// What the others are compared with: a scheme, an arm as the table names it, or a run's name; if absent,
    /// dense, or else the first run's
    #[arg(long, value_name = "ARM")]
    baseline: Option<String>,
}

/// A report of runs.
#[derive(Debug, Args)]
pub(super) struct Report {
    #[command(flatten)]
    runs: Runs,
    /// The folder for the report; `report` beside the first run, if absent
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// The folders are reports of experiments: print the claims of all of them as one Markdown table,
    /// and write nothing
    #[arg(long, conflicts_with_all = ["out", "baseline", "links"])]
    claims: bool,
}

/// Runs side by side.
#[derive(Debug, Args)]
pub(super) struct Compare {
    #[command(flatten)]
    runs: Runs,
    /// Print each arm, and each difference between the recipes, as a line of JSON, and nothing else
    #[arg(long)]
    json: bool,
}

impl Runs {
    /// The same with the folders that names mean.
    fn found(self) -> Result<Self, Failure> {
        Ok(Self { runs: self.runs_dir.all(&self.runs)?, ..self })
    }

    fn collect(&self, disk: &Disk) -> Result<Collection, Failure> {
        let links = Link::parse_list(&self.links);
        let links = links.with_context(|| format!("--links {}", self.links));
        let (links, baseline) = (links.map_err(Failure::refused)?, self.baseline.as_deref());
        let mut collection = collection::collect(disk, &self.runs, &links, baseline)?;
        collection.results.command = report::command_line(&Provenance::here().command);
        Ok(collection)
    }
}

impl Report {
    /// Does it.
    pub(super) fn run(mut self) -> Result<(), Failure> {
        let disk = Disk::default();
        self.runs = self.runs.found()?;
        if self.claims {
            print!("{}", report::claims(&disk, &self.runs.runs)?);
            return Ok(());
        }
        let collection = self.runs.collect(&disk)?;
        let folder = self.out.unwrap_or_else(|| beside(&self.runs.runs[0]).join("report"));
        report::write_collected(&disk, &folder, &collection.results)?;
        show(&collection);
        println!("\nreport in {}", folder.join(report::HTML).display());
        Ok(())
    }
}

impl Compare {
    /// Does it.
    pub(super) fn run(self) -> Result<(), Failure> {
        let collection = self.runs.found()?.collect(&Disk::default())?;
        if self.json {
            json(&collection)?;
        } else {
            show(&collection);
        }
        Ok(())
    }
}

/// The folder that a run's folder is in.
fn beside(run: &Path) -> PathBuf {
    match run.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => {
            let whole = run.canonicalize().unwrap_or_else(|_| run.to_path_buf());
            whole.parent().map_or_else(|| PathBuf::from("."), PathBuf::from)
        }
    }
}

fn show(collection: &Collection) {
    print!("{}", report::terminal(&collection.results));
    collection.left_out.iter().for_each(|line| println!("{line}"));
    differences(collection);
}

/// What else than the scheme may be the reason for a difference comes first.
fn differences(collection: &Collection) {
    let (of_scheme, others): (Vec<_>, Vec<_>) =
        collection.differences.iter().partition(|difference| difference.is_of_scheme());
    let titles = ["careful: the runs differ in more than the scheme", "settings of the schemes"];
    for (title, differences) in titles.iter().zip([others, of_scheme]) {
        if !differences.is_empty() {
            println!("\n{title}");
        }
        for difference in differences {
            println!("  {difference}");
        }
    }
}

fn json(collection: &Collection) -> Result<()> {
    for row in report::rows(&collection.results) {
        println!("{}", serde_json::to_string(&row)?);
    }
    for difference in &collection.differences {
        println!("{}", serde_json::to_string(difference)?);
    }
    for line in &collection.left_out {
        println!("{}", serde_json::json!({ "left_out": line }));
    }
    Ok(())
}
