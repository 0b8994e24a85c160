//! What a person reads of an experiment, or of runs put together: one HTML file that needs nothing
//! beside it, the same as Markdown, and the figures as CSV and JSON.

mod claims;
mod csv;
mod curves;
mod document;
mod figures;
mod html;
mod latex;
mod markdown;
mod provenance;
mod reached;
mod rows;
mod settings;
mod tables;
mod tasks;
mod terminal;
mod words;

use crate::decision::{LOOKS, SIDE};
use crate::experiment;
use crate::plot::{FileFormat, Page};
use crate::results::{COLLECTED, Results, Ruling, Tuned};
use anyhow::{Context, Result, ensure};
use document::{Block, Cell, PageTable, Plot, Tone};
use gradwire::disk::Disk;
use gradwire::text::percent;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use tasks::Task;

pub use claims::claims;
pub use provenance::command_line;
pub use reached::{Reached, reached, reached_in_words};
pub use rows::rows;
pub use terminal::{table, terminal, verdicts};
pub use words::chance;

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
/// What a report consists of, besides [`JSON`].
pub const FILES: [&str; 6] = [HTML, MARKDOWN, RUNS, ARMS, CURVES, "plots"];

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
    let page = Page::default();
    let svg = |Plot { name, figure, .. }: &Plot| (format!("plots/{name}.svg"), figure.svg(&page));
    files.extend(plots(&blocks).map(svg));
    let before = disk.read(&folder.join(MARKDOWN), MAX_BYTES).unwrap_or_default();
    files.iter().try_for_each(|(name, text)| replace(disk, &folder.join(name), text.as_bytes()))?;
    // Plots that the earlier report had and this one has not, of other links, say.
    let before = String::from_utf8_lossy(&before);
    let linked = before.split("](").filter_map(|rest| rest.split_once(')').map(|(link, _)| link));
    let is_plot = |link: &&str| link.starts_with("plots/") && link.ends_with(".svg");
    let is_ours = |link: &str| files.iter().any(|(name, _)| name == link);
    for old in linked.filter(is_plot).filter(|link| !link.contains("..") && !is_ours(link)) {
        let old = folder.join(old);
        if old.is_file() {
            disk.remove_file(&old).with_context(|| format!("removing {}", old.display()))?;
        }
    }
    Ok(())
}

/// Writes every figure of the report of `results` into `folder`, in each of `formats`, for a page of its width;
/// how many they are.
///
/// # Errors
/// When a figure cannot be converted, or a file cannot be written.
pub fn write_figures(
    disk: &Disk,
    folder: &Path,
    results: &Results,
    formats: &[FileFormat],
    page: &Page,
) -> Result<usize> {
    let blocks = blocks(results, &tasks::tasks(results));
    for (Plot { name, figure, .. }, format) in
        plots(&blocks).flat_map(|plot| formats.iter().map(move |format| (plot, format)))
    {
        let path = folder.join(format!("{name}.{}", format.word()));
        let file = page.file(&figure.svg(page), *format);
        replace(disk, &path, &file.with_context(|| format!("converting {}", path.display()))?)?;
    }
    Ok(plots(&blocks).count())
}

/// Writes the arms of `results` as a table in LaTeX into `folder`; its path.
///
/// # Errors
/// When the file cannot be written.
pub fn write_latex(disk: &Disk, folder: &Path, results: &Results) -> Result<PathBuf> {
    let path = folder.join("table.tex");
    replace(disk, &path, latex::latex(results).as_bytes())?;
    Ok(path)
}

fn plots(blocks: &[Block]) -> impl Iterator<Item = &Plot> {
    blocks.iter().flat_map(|block| match block {
        Block::Plots(plots) => plots.as_slice(),
        _ => &[],
    })
}

/// The results in a report's folder; `None` where it holds none.
///
/// # Errors
/// When its `results.json` cannot be read, or has another form.
pub fn read(disk: &Disk, folder: &Path) -> Result<Option<Results>> {
    let path = folder.join(JSON);
    match disk.read(&path, MAX_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).with_context(|| {
            format!("{} is damaged, or of another version: make the report again", path.display())
        }),
    }
}

/// Writes the report of runs that somebody put together, or of results that lie elsewhere, as [`write()`] does, but not over
/// other results: the `results.json` of an experiment or a sweep keeps its runs. A report of the same, without a run that
/// these results lack, is replaced.
///
/// # Errors
/// When the folder holds other results, or a file cannot be read or written.
pub fn write_collected(disk: &Disk, folder: &Path, results: &Results) -> Result<()> {
    let is_experiment = folder.join(experiment::FILE).exists();
    let all = |results: &Results| {
        let runs = results.runs.iter().chain(&results.others);
        runs.map(|run| (run.task.clone(), run.arm.clone(), run.seed)).collect::<BTreeSet<_>>()
    };
    let other = || format!("{} is left as it is: name another folder with --out", folder.display());
    let is_ours = match read(disk, folder).with_context(other)? {
        Some(there) if there.experiment == COLLECTED => true,
        Some(there) => {
            let same = there.experiment == results.experiment;
            !is_experiment && same && all(&there).is_subset(&all(results))
        }
        None => !is_experiment,
    };
    ensure!(
        is_ours,
        "{} holds the results of an experiment or a sweep, in its {JSON}: name another folder with --out",
        folder.display()
    );
    write(disk, folder, results)
}

/// Writes a file, at once in place of what was there; one that is the same already is left alone.
fn replace(disk: &Disk, path: &Path, content: &[u8]) -> Result<()> {
    if disk.read(path, content.len() as u64).is_ok_and(|there| there == content) {
        return Ok(());
    }
    disk.create_folders(path.parent().unwrap_or(path))
        .and_then(|()| disk.replace(path, content))
        .with_context(|| format!("cannot write {}: make room or permission there", path.display()))
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
        blocks.push(Block::Table(verdict_table(results)));
    }
    if let Some(tuned) = &results.tuned {
        blocks.push(Block::Heading(2, "Chosen on held-out samples".into()));
        blocks.push(Block::Table(tuned_table(tuned)));
    }
    for task in tasks {
        blocks.push(Block::Heading(2, task.label.label.clone()));
        blocks.push(Block::Facts(settings::facts(task)));
        blocks.extend(tables::troubles(task));
        blocks.extend(provenance::warnings(task));
        blocks.push(Block::Table(tables::reached(task)));
        let target = task.target();
        let on_link = |link: &String| {
            let table = tables::on_link(task, link, target.as_ref());
            (link.clone(), vec![Block::Table(table)])
        };
        if !task.links.is_empty() {
            let links = task.links.iter().map(on_link).collect();
            blocks.push(Block::Choice("On a link of".into(), links));
            blocks.push(Block::Note(tables::about_links(target.as_ref())));
        }
        for (heading, table) in [
            ("What a rank does in a step", tables::work(task)),
            ("What the schemes report", tables::gauges(task)),
            ("Coding of a recorded gradient", tables::coding(task, &results.timings)),
        ] {
            let both = |table| [Block::Heading(3, heading.into()), Block::Table(table)];
            blocks.extend(table.into_iter().flat_map(both));
        }
        let plots = figures::plots(task);
        if !plots.is_empty() {
            blocks.extend(plots);
            blocks.push(Block::Note(figures::READING.into()));
        }
    }
    blocks.extend(provenance::section(results));
    blocks
}

/// What each arm chose, and from what.
fn tuned_table(tuned: &Tuned) -> PageTable {
    let values = tuned.arms.iter().flat_map(|arm| &arm.tried).map(|tried| &tried.value);
    let values: Vec<&String> = words::counted(values).into_iter().map(|(value, _)| value).collect();
    let columns = ["task".into(), "arm".into()].into_iter();
    let columns = columns.chain(values.iter().map(|value| format!("#{value}")));
    let columns: Vec<String> = columns.chain(["chosen".into()]).collect();
    let mut table = PageTable::new(&columns.iter().map(String::as_str).collect::<Vec<_>>());
    for arm in &tuned.arms {
        let found = |value: &&String| {
            let found = arm.tried.iter().find(|tried| tried.value == **value)?.found?;
            Some(if found < 0.0 { format!("{:.4}", -found) } else { percent(found) })
        };
        let chosen = match (&arm.chosen, arm.is_at_the_edge()) {
            (None, _) => Cell::from("none trains: the recipe's own"),
            (Some(value), false) => Cell::from(value.as_str()),
            (Some(value), true) => {
                Cell { badge: Some("edge".into()), ..Cell::from(value.as_str()) }
            }
        };
        let row = [arm.task.as_str(), &arm.arm].map(Cell::from).into_iter();
        let row = row.chain(values.iter().map(|value| Cell::or_none(found(value))));
        table.rows.push(row.chain([chosen]).collect());
    }
    table.note = format!(
        "Accuracy, or the loss where a text is continued, of one run for each {} with {} of the training set held out, \
         which it was tested on, and seed {}, which no run below has. What is below was trained on the whole training \
         set, and looked at the test set once. Edge: the best may lie beyond what was tried.",
        tuned.path,
        percent(tuned.share),
        tuned.seed
    );
    table
}

/// What is claimed beside what was measured.
fn verdict_table(results: &Results) -> PageTable {
    let [claim, verdict, claimed] = match results.is_own_question() {
        true => ["question", "answer", "#asked for"],
        false => ["claim", "verdict", "#claimed"],
    };
    let columns = [claim, verdict, claimed, "#counts", "#measured", "what is measured", "why"];
    let mut table = PageTable::new(&columns);
    for verdict in &results.verdicts {
        let tone = match verdict.ruling {
            Ruling::Reproduced => Tone::Good,
            Ruling::Contradicted => Tone::Bad,
            Ruling::DependsOnLink | Ruling::Undecided => Tone::Plain,
            Ruling::NotTestable => Tone::Faint,
        };
        let claimed = verdict.claimed.map(|value| words::in_unit(value, verdict.unit));
        table.rows.push(vec![
            Cell { below: verdict.source.clone(), ..Cell::from(verdict.claim.as_str()) },
            Cell { tone, ..Cell::from(results.in_words(verdict.ruling)) },
            Cell::or_none(claimed),
            words::bounds(verdict).into(),
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
         outside; undecided: it straddles an edge; dependent on the link: it holds on one link, the \
         opposite on another. The interval errs with {} at most on each side: one \
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
