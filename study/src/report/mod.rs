//! What a person reads of an experiment, or of runs put together: one HTML file that needs nothing
//! beside it, the same as Markdown, and the figures as CSV and JSON.

mod claims;
mod csv;
mod curves;
mod document;
mod figures;
mod html;
mod markdown;
mod provenance;
mod reached;
mod rows;
mod tables;
mod tasks;
mod terminal;
mod words;
mod workers;

use crate::decision::{LOOKS, SIDE};
use crate::experiment;
use crate::results::{COLLECTED, Results, Ruling};
use anyhow::{Context, Result, ensure};
use document::{Block, Cell, Plot, Table, Tone};
use gradwire::disk::Disk;
use gradwire::text::percent;
use serde::Deserialize;
use std::io;
use std::path::Path;
use tasks::Task;

pub use claims::claims;
pub use provenance::command_line;
pub use reached::{Reached, reached, reached_in_words};
pub use rows::rows;
pub use terminal::{table, terminal};
pub use words::{chance, verdict};

/// The page.
pub const HTML: &str = "report.html";
/// The same for pages beside code; its plots are in `plots/`.
pub const MARKDOWN: &str = "report.md";
/// [`Results`] as JSON.
pub const JSON: &str = "results.json";
/// A line for each run.
pub const RUNS: &str = "runs.csv";
/// A line for each arm of each task.
pub const ARMS: &str = "arms.csv";
/// A line for each value of each run's curves.
pub const CURVES: &str = "curves.csv";

/// No file of results is as long.
pub(super) const MAX_BYTES: u64 = 1 << 28;

/// Writes the report of `results` into `folder`: the page, the same as Markdown with its plots,
/// tables as CSV, all as JSON. What is there of an earlier report is replaced, each file at once;
/// what has not changed is left alone. Runs that are missing or went wrong are no hindrance.
///
/// # Errors
/// When a file cannot be written.
pub fn write(disk: &Disk, folder: &Path, results: &Results) -> Result<()> {
    let tasks = tasks::tasks(results);
    let blocks = blocks(results, &tasks);
    let title = title(results);
    let json = serde_json::to_string(results).context("writing results as JSON")? + "\n";
    let mut files = vec![
        (HTML.to_string(), html::page(&title, &blocks)),
        (MARKDOWN.to_string(), markdown::page(&title, &blocks)),
        (RUNS.to_string(), csv::runs(results)?),
        (ARMS.to_string(), csv::arms(&tasks)?),
        (CURVES.to_string(), csv::curves(results)?),
        (JSON.to_string(), json),
    ];
    files.extend(blocks.into_iter().filter_map(|block| match block {
        Block::Plot(Plot { name, svg, .. }) => Some((format!("plots/{name}.svg"), svg)),
        _ => None,
    }));
    replace(disk, folder, &files)
}

/// Writes the report of runs that somebody put together, as [`write()`] does, but not over results of
/// another kind: the `results.json` of an experiment or a sweep keeps its runs.
///
/// # Errors
/// When the folder is an experiment's or a sweep's, or a file cannot be read or written.
pub fn write_collected(disk: &Disk, folder: &Path, results: &Results) -> Result<()> {
    #[derive(Deserialize)]
    struct Head {
        experiment: String,
    }
    let path = folder.join(JSON);
    let is_ours = match disk.read(&path, MAX_BYTES) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).is_ok_and(|head: Head| head.experiment == COLLECTED)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            !folder.join(experiment::FILE).exists()
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    ensure!(
        is_ours,
        "{} is the folder of an experiment or a sweep, whose results are kept in its {JSON}: name another \
         folder with --out",
        folder.display()
    );
    write(disk, folder, results)
}

/// Writes files, by path within `folder` and content, each at once in place of what was there; those
/// that are the same already are left alone.
fn replace(disk: &Disk, folder: &Path, files: &[(String, String)]) -> Result<()> {
    for (name, content) in files {
        let path = folder.join(name);
        if disk.read(&path, content.len() as u64).is_ok_and(|there| there == content.as_bytes()) {
            continue;
        }
        let above = path.parent().unwrap_or(folder);
        disk.create_folders(above)
            .and_then(|()| disk.replace(&path, content.as_bytes()))
            .with_context(|| {
                format!("cannot write {}: make room or permission there", path.display())
            })?;
    }
    Ok(())
}

fn title(results: &Results) -> String {
    match &results.scale {
        Some(scale) => format!("{} ({}, scale {scale})", results.title, results.experiment),
        None => results.title.clone(),
    }
}

/// Characters of the longest command at a report's head; longer ones are under its provenance.
const LONG: usize = 160;

/// The whole report.
fn blocks(results: &Results, tasks: &[Task<'_>]) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut facts = Vec::new();
    if !results.paper.is_empty() {
        facts.push(("Paper".to_string(), results.paper.clone()));
    }
    facts.push(("Runs".to_string(), words::progress(results)));
    if (1..=LONG).contains(&results.command.len()) {
        facts.push(("Command".to_string(), results.command.clone()));
    }
    blocks.push(Block::Facts(facts));
    let paragraphs = results.about.split("\n\n").filter(|text| !text.trim().is_empty());
    blocks.extend(paragraphs.map(|text| Block::Text(text.into())));
    if !results.verdicts.is_empty() {
        let asked = results.is_own_question();
        let heading = if asked { "Asked and measured" } else { "Claimed and measured" };
        blocks.push(Block::Heading(2, heading.into()));
        blocks.push(Block::Table(verdicts(results)));
    }
    for task in tasks {
        blocks.push(Block::Heading(2, task.label.label.clone()));
        blocks.extend(tables::troubles(task));
        blocks.extend(provenance::warnings(task));
        blocks.push(Block::Table(tables::reached(task)));
        let target = task.target();
        for link in &task.links {
            blocks.push(Block::Heading(3, format!("On a link of {link}")));
            blocks.push(Block::Table(tables::on_link(task, link, target.as_ref())));
        }
        if !task.links.is_empty() {
            blocks.push(Block::Note(tables::about_links(target.as_ref())));
        }
        if let Some(gauges) = tables::gauges(task) {
            blocks.push(Block::Heading(3, "What the schemes report".into()));
            blocks.push(Block::Table(gauges));
        }
        if let Some(coding) = tables::coding(task, &results.timings) {
            blocks.push(Block::Heading(3, "Coding of a recorded gradient".into()));
            blocks.push(Block::Table(coding));
        }
        blocks.extend(figures::plots(task).into_iter().map(Block::Plot));
    }
    let by_workers = workers::by_workers(tasks);
    if !by_workers.is_empty() {
        blocks.push(Block::Heading(2, "Against the number of workers".into()));
        blocks.extend(by_workers.into_iter().map(Block::Plot));
    }
    blocks.extend(provenance::section(results));
    blocks
}

/// What is claimed beside what was measured.
fn verdicts(results: &Results) -> Table {
    let [claim, verdict, claimed] = match results.is_own_question() {
        true => ["question", "answer", "#asked for"],
        false => ["claim", "verdict", "#claimed"],
    };
    let mut table = Table::new(&[claim, verdict, claimed, "#measured", "what is measured", "why"]);
    for verdict in &results.verdicts {
        let tone = match verdict.ruling {
            Ruling::Reproduced => Tone::Good,
            Ruling::Contradicted => Tone::Bad,
            Ruling::Undecided => Tone::Plain,
            Ruling::NotTestable => Tone::Faint,
        };
        let claimed = verdict.claimed.map(|value| words::in_unit(value, verdict.unit));
        table.rows.push(vec![
            Cell { below: verdict.source.clone(), ..Cell::from(verdict.claim.as_str()) },
            Cell { tone, ..Cell::from(results.in_words(verdict.ruling)) },
            Cell { below: words::bounds(verdict), ..claimed.map_or_else(Cell::none, Cell::from) },
            words::measured(verdict),
            verdict.measure.as_str().into(),
            verdict.why.as_str().into(),
        ]);
    }
    let looks = match results.looks {
        0 | 1 => String::new(),
        _ => {
            let [first, second, last] = LOOKS;
            format!(
                " There were looks after {first}, {second} and {last} seeds, and more seeds only for what was \
                 undecided: the error is spent over the looks (Lan & DeMets 1983, like Pocock), and what one \
                 look decided stays so."
            )
        }
    };
    let [yes, no] = match results.is_own_question() {
        true => ["Yes", "no"],
        false => ["Reproduced", "contradicted"],
    };
    table.note = format!(
        "{yes}: the whole interval over seeds lies where it counts; {no}: it lies wholly \
         outside; undecided: it straddles an edge. The interval errs with {} at most on each side: one \
         one-sided t-test for a claim with one bound, two (equivalence) for a claim with two, whose \
         opposite must be seen with half the error on each side. Factors, savings and times are averaged \
         as logarithms. Seeds are paired where they give both arms the same start and the same \
         data.{looks} {}",
        percent(SIDE),
        chance(results)
    );
    table
}

#[cfg(test)]
mod tests;
