//! `gradwire network`: what recorded runs would have taken on other networks.

use crate::named::RunsDir;
use crate::refused::Failure;
use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use gradwire::disk::Disk;
use gradwire::text::{Column, Table};
use gradwire_exchange::network::{Link, presets};
use gradwire_study::network::replay::{Assumptions, RecordedRun};
use gradwire_study::network::report::{NamedLink, ReplayReport};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// What to do.
#[derive(Debug, Subcommand)]
pub(super) enum NetworkCommand {
    /// Tell how long recorded runs would have taken on given links
    Replay(Box<Replay>),
    /// Show the links that have names
    Links,
}

/// Which runs, on which links, assuming what.
#[derive(Debug, Args)]
pub(super) struct Replay {
    /// Runs by their folders, their names, or `last`
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    #[command(flatten)]
    runs_dir: RunsDir,
    /// Links by name (`gradwire network links`) or bandwidth, with changes after commas:
    /// 100mbit,wan,2.5gbit,latency=1ms,stragglers=0.05,slowdown=3
    #[arg(long, value_name = "LINK,…", allow_hyphen_values = true)]
    links: Option<String>,
    /// One more link, also as a table: '{ preset = "1gbit", ranks = [{ rank = 3, slowdown = 2.0 }] }';
    /// may be repeated
    #[arg(long = "link", value_name = "LINK", allow_hyphen_values = true)]
    tables: Vec<String>,
    /// Seconds that every rank computes in a step, in place of what was measured: to stand for a
    /// faster machine
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    compute: Option<f64>,
    /// How many times as fast as measured encoding and decoding are
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    codec_speed: Option<f64>,
    /// Accuracies to tell the time to, as fractions; three that all runs reached, if absent
    #[arg(long, value_name = "ACCURACY,…", value_delimiter = ',')]
    to: Vec<f64>,
    /// What delays and stragglers derive from, if not from the run's seed
    #[arg(long)]
    seed: Option<u64>,
    /// Print the figures as lines of JSON
    #[arg(long)]
    json: bool,
}

/// Links that are compared when nobody says which.
const USUAL: &str = "100mbit,1gbit,10gbit";

impl NetworkCommand {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self {
            Self::Links => links(),
            Self::Replay(replay) => {
                let assumptions = replay.assumptions().map_err(Failure::refused)?;
                let links = replay.named_links().map_err(Failure::refused)?;
                let runs = replay.runs_dir.all(&replay.runs)?;
                replay.run(&runs, &assumptions, links)?;
            }
        }
        Ok(())
    }
}

fn links() {
    let mut table =
        Table::new([Column::left(""), Column::left(""), Column::right(""), Column::left("")]);
    for (name, line, link) in presets() {
        let jitter = match link.jitter > 0.0 {
            true => format!(", jitter {} us", (link.jitter * 1e6).round()),
            false => String::new(),
        };
        let (latency, mtu) = ((link.latency * 1e6).round(), link.mtu);
        table.row([
            String::new(),
            name.into(),
            format!("{} Mbit/s,", link.bandwidth / 1e6),
            format!("latency {latency} us, MTU {mtu}{jitter}: {line}"),
        ]);
    }
    print!("{table}");
}

/// The words of the links in lists: `wan,2.5gbit,latency=1ms` has two.
///
/// # Errors
/// When one of them is no link, or stands there twice.
pub(super) fn words_of_links(lists: &[String]) -> Result<Vec<String>> {
    if lists.is_empty() {
        return Ok(Vec::new());
    }
    let list = lists.join(",");
    let links = Link::parse_list(&list).with_context(|| format!("--links {list}"))?;
    let words: Vec<String> = links.into_iter().map(|(word, _)| word).collect();
    once_each(words.iter())?;
    Ok(words)
}

fn once_each<'a>(words: impl Iterator<Item = &'a String>) -> Result<()> {
    let mut known = BTreeSet::new();
    for word in words {
        ensure!(known.insert(word), "{word} is given twice: write each link once");
    }
    Ok(())
}

impl Replay {
    fn assumptions(&self) -> Result<Assumptions> {
        let within = |value: Option<f64>, low: f64, high: f64| {
            value.is_none_or(|value| (low..=high).contains(&value))
        };
        ensure!(
            within(self.compute, 0.0, 86_400.0),
            "--compute {}: write 0 to 86400 seconds",
            self.compute.unwrap_or(0.0)
        );
        ensure!(
            within(self.codec_speed, 1e-6, 1e9),
            "--codec-speed {}: write a factor above 0, such as 10",
            self.codec_speed.unwrap_or(0.0)
        );
        for target in &self.to {
            ensure!(
                *target > 0.0 && *target <= 1.0,
                "--to {target}: write a fraction, such as 0.9 for 90 %"
            );
        }
        let (compute, codec_speed, seed) = (self.compute, self.codec_speed, self.seed);
        Ok(Assumptions { compute, codec_speed, seed })
    }

    /// The links asked for; empty when none are.
    fn named_links(&self) -> Result<Vec<NamedLink>> {
        let mut named = match &self.links {
            Some(list) => Link::parse_list(list)?,
            None => Vec::new(),
        };
        for text in &self.tables {
            let link = match text.trim_start().starts_with('{') {
                true => table(text).with_context(|| format!("--link {text}"))?,
                false => Link::parse(text)?,
            };
            named.push((text.trim().to_string(), link));
        }
        once_each(named.iter().map(|(word, _)| word))?;
        Ok(named)
    }

    fn run(
        &self,
        folders: &[PathBuf],
        assumptions: &Assumptions,
        mut links: Vec<NamedLink>,
    ) -> Result<()> {
        let disk = Disk::default();
        let runs: Vec<RecordedRun> =
            folders.iter().map(|folder| RecordedRun::read(&disk, folder)).collect::<Result<_>>()?;
        if links.is_empty() {
            links.extend(Link::parse_list(USUAL)?);
        }
        for run in &runs {
            for (word, link) in &links {
                let highest = link.highest_rank().unwrap_or(0);
                let ranks = run.fewest_ranks();
                ensure!(
                    highest < ranks,
                    "link {word} speaks of rank {highest}, but {} has, or went on with, {ranks} ranks",
                    run.name(),
                );
            }
        }
        let replays = runs.iter().map(|run| {
            links.iter().map(|(_, link)| run.replay(link, assumptions)).collect::<Result<Vec<_>>>()
        });
        let report =
            ReplayReport::new(&runs, &links, replays.collect::<Result<_>>()?, self.to.clone());
        if self.json {
            for row in report.figures() {
                println!("{}", serde_json::to_string(&row)?);
            }
        } else {
            print!("{}", report.table());
        }
        Ok(())
    }
}

/// A link written as an inline table.
fn table(text: &str) -> Result<Link> {
    #[derive(serde::Deserialize)]
    struct Document {
        link: Link,
    }
    Ok(toml::from_str::<Document>(&format!("link = {text}"))?.link)
}
