//! `gradwire report` and `gradwire compare`: people's own runs, put together.

use crate::named::RunsDir;
use crate::refused::Failure;
use anyhow::{Context, Result, anyhow};
use clap::Args;
use gradwire::disk::Disk;
use gradwire::record::{Provenance, is_run, is_written};
use gradwire_exchange::network::Link;
use gradwire_study::collection::{self, Collection};
use gradwire_study::plot::{FileFormat, Page};
use gradwire_study::{report, runs, verdict};
use std::path::{Path, PathBuf};

/// Which runs, and how they are looked at.
#[derive(Debug, Args)]
struct Runs {
    /// Runs by their folders, their names, or `last`; those that train the same with nothing but another seed belong
    /// together. A folder of runs means all of them, that of a sweep or an experiment its results
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    #[command(flatten)]
    runs_dir: RunsDir,
    /// Links to tell the times on, by name (`gradwire network links`) or bandwidth; if absent, those of a sweep, of
    /// runs 100mbit,1gbit,10gbit
    #[arg(long, value_name = "LINK,…")]
    links: Option<String>,
    /// What the others are compared with: a scheme, an arm as the table names it, or a run's name; if absent,
    /// dense, or else the first run's
    #[arg(long, value_name = "ARM")]
    baseline: Option<String>,
}

/// A report of runs.
#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    #[command(flatten)]
    runs: Runs,
    /// The folder for the report; if absent, that of the sweep, or `report` beside the first run
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// The folders are reports of experiments: print the claims of all of them as one Markdown table,
    /// and write nothing
    #[arg(long, conflicts_with_all = ["out", "baseline", "links", "figures", "table"])]
    claims: bool,
    /// Write every figure for a paper, in each of these formats, into `figures/` of the report
    #[arg(long, value_name = "FORMAT,…", value_delimiter = ',', value_parser = format)]
    figures: Vec<FileFormat>,
    /// How wide those figures are
    #[arg(long, value_name = "MILLIMETRES", default_value = "84mm", requires = "figures", value_parser = page)]
    width: Page,
    /// Write a table for a paper into the report: its arms with mean ± deviation, the best in bold
    #[arg(long, value_name = "FORMAT", value_parser = ["latex"])]
    table: Option<String>,
}

fn format(word: &str) -> Result<FileFormat, String> {
    let found = FileFormat::ALL.iter().find(|(known, _)| *known == word);
    found.map(|(_, format)| *format).ok_or_else(|| "write some of: pdf, svg, png".into())
}

fn page(width: &str) -> Result<Page, String> {
    let number = width.strip_suffix("mm").and_then(|number| number.trim().parse().ok());
    let millimetres = number.ok_or("write it in millimetres, such as 84mm")?;
    Page::column(millimetres).map_err(|error| error.to_string())
}

/// Links of runs that nobody has asked links for.
const LINKS: &str = "100mbit,1gbit,10gbit";

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
    /// The same with the folders that names mean, and the runs in those that are none themselves.
    fn found(self, disk: &Disk) -> Result<Self, Failure> {
        let mut found = Vec::new();
        for folder in self.runs_dir.all(&self.runs)? {
            let below = if is_run(&folder) { Vec::new() } else { runs::under(disk, &folder)? };
            match below.is_empty() || self.is_report(disk, &folder)? {
                true => found.push(folder),
                false => found.extend(below),
            }
        }
        Ok(Self { runs: found, ..self })
    }

    /// Whether it is a folder of results that are taken as they are: on other links only records can tell.
    fn is_report(&self, disk: &Disk, folder: &Path) -> Result<bool> {
        let is_alone = self.runs.len() == 1 && self.links.is_none() && !is_run(folder);
        Ok(is_alone && report::read(disk, folder)?.is_some())
    }

    fn collect(&self, disk: &Disk) -> Result<Collection, Failure> {
        let words = self.links.as_deref().unwrap_or(LINKS);
        let links = Link::parse_list(words).with_context(|| format!("--links {words}"));
        let (links, baseline) = (links.map_err(Failure::refused)?, self.baseline.as_deref());
        if self.is_report(disk, &self.runs[0])?
            && let Some(mut results) = report::read(disk, &self.runs[0])?
        {
            verdict::judge_again(&self.runs[0], &mut results)?;
            return Ok(collection::opened(results, baseline)?);
        }
        let mut collection = collection::collect(disk, &self.runs, &links, baseline)?;
        collection.results.command = report::command_line(&Provenance::here().command);
        Ok(collection)
    }
}

impl ReportArgs {
    pub(super) fn run(mut self) -> Result<(), Failure> {
        let disk = Disk::default();
        if self.claims {
            print!("{}", report::claims(&disk, &self.runs.runs_dir.all(&self.runs.runs)?)?);
            return Ok(());
        }
        self.runs = self.runs.found(&disk)?;
        let collection = self.runs.collect(&disk)?;
        let (results, first) = (&collection.results, &self.runs.runs[0]);
        let folder = match self.out {
            Some(folder) => folder,
            None if self.runs.is_report(&disk, first)? && self.runs.baseline.is_none() => {
                // It would put what has been read in the place of what is written meanwhile.
                if is_written(&disk, first) {
                    return Err(Failure::refused(anyhow!(
                        "another process is making runs in {}: wait for its end, or write the report elsewhere with --out",
                        first.display()
                    )));
                }
                first.clone()
            }
            None => beside(first).join("report"),
        };
        match folder == *first {
            true => report::write(&disk, &folder, results)?,
            false => report::write_collected(&disk, &folder, results)?,
        }
        show(&collection);
        println!("\nreport in {}", folder.join(report::HTML).display());
        if !self.figures.is_empty() {
            let place = folder.join("figures");
            let written =
                report::write_figures(&disk, &place, results, &self.figures, &self.width)?;
            println!("{written} figures in {}", place.display());
        }
        if self.table.is_some() {
            println!("table in {}", report::write_latex(&disk, &folder, results)?.display());
        }
        Ok(())
    }
}

impl Compare {
    pub(super) fn run(self) -> Result<(), Failure> {
        let disk = Disk::default();
        let collection = self.runs.found(&disk)?.collect(&disk)?;
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
