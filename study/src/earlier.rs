//! What the `results.json` of an earlier invocation holds, here or on another machine.

use crate::grid::{Grid, PlannedRun};
use crate::network::report::NamedLink;
use crate::report;
use crate::results::{RunResult, Timing};
use anyhow::{Context, Result, bail};
use gradwire::disk::Disk;
use gradwire::recipe::Recipe;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// What is in the file that is needed again.
#[derive(Default)]
pub(super) struct EarlierResults {
    /// The file as it is; empty where there is none.
    pub(super) bytes: Vec<u8>,
    /// The runs in it that ended, of whatever grid.
    runs: Vec<RunResult>,
    /// How fast schemes are on gradients of its runs.
    pub(super) timings: Vec<Timing>,
    /// How many times its verdicts may be looked at.
    looks: usize,
    /// Why it could not be read, if so: it has another form.
    unread: Option<String>,
}

/// What of the file is read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StoredResults {
    runs: Vec<RunResult>,
    others: Vec<RunResult>,
    timings: Vec<Timing>,
    looks: usize,
}

impl EarlierResults {
    /// From the experiment's folder; nothing where there is no such file.
    ///
    /// # Errors
    /// When there is one, and it cannot be read.
    pub(super) fn read(disk: &Disk, folder: &Path) -> Result<Self> {
        let path = folder.join(report::JSON);
        let bytes = match disk.read(&path, report::MAX_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            read => read.with_context(|| {
                format!("cannot read {}: move it away to go on without it", path.display())
            })?,
        };
        Ok(Self::parse(bytes))
    }

    /// From the bytes of such a file.
    fn parse(bytes: Vec<u8>) -> Self {
        let form: serde_json::Result<StoredResults> = serde_json::from_slice(&bytes);
        let unread = form.as_ref().err().map(ToString::to_string);
        let StoredResults { mut runs, others, timings, looks } = form.unwrap_or_default();
        runs.extend(others);
        runs.retain(|run| run.outcome.is_final());
        Self { bytes, runs, timings, looks, unread }
    }

    /// How many times the verdicts may be looked at, and the seeds of all runs.
    pub(super) fn looked(&self) -> (usize, Vec<u64>) {
        let seeds: BTreeSet<u64> = self.runs.iter().map(|run| run.seed).collect();
        (self.looks, seeds.into_iter().collect())
    }

    /// The run that is planned, if it is there and was made of the same recipe and data by the same
    /// version.
    ///
    /// # Errors
    /// When it was replayed on other links, but not on one of `links`: that takes its record.
    pub(super) fn run(
        &self,
        planned: &PlannedRun,
        links: &[NamedLink],
    ) -> Result<Option<RunResult>> {
        let same =
            |run: &&RunResult| planned.is_of_run(run) && matches!(change(run, planned), Ok(None));
        let Some(run) = self.runs.iter().find(same) else { return Ok(None) };
        let replayed = run.measured.iter().flat_map(|measured| &measured.links);
        let replayed: Vec<&str> = replayed.map(|on| on.link.as_str()).collect();
        let missing = links.iter().find(|(word, _)| !replayed.contains(&word.as_str()));
        match missing {
            // What was replayed nowhere, such as a run that diverged at once, has no times.
            Some((word, _)) if !replayed.is_empty() => bail!(
                "{} is known by results.json alone, which has it replayed on {}: without its record it \
                 cannot be replayed on {word}; ask for those links, copy the run's folder here, or \
                 choose another --out to train it again",
                run.folder.display(),
                replayed.join(", ")
            ),
            _ => Ok(Some(run.clone())),
        }
    }

    /// The runs that the grid has no place for.
    pub(super) fn others(&self, grid: &Grid) -> Vec<RunResult> {
        self.runs.iter().filter(|run| grid.planned(run).is_none()).cloned().collect()
    }

    /// What would be lost if `runs`, which are those of the grid, took the file's place: a run that is
    /// none of them, or what could not be read.
    pub(super) fn lost(&self, grid: &Grid, runs: &[RunResult]) -> Option<String> {
        let is_lost = |run: &RunResult| !runs.iter().any(|found| found.is(run));
        let mut placed = self.runs.iter().filter_map(|run| Some((run, grid.planned(run)?)));
        let Some((run, planned)) = placed.find(|(run, _)| is_lost(run)) else {
            return self.unread.clone();
        };
        let why = match change(run, planned) {
            Ok(Some(difference)) => difference,
            Ok(None) => "another record of it is here".into(),
            Err(error) => format!("{error:#}"),
        };
        Some(format!("{}: {why}", run.folder.display()))
    }
}

/// What about a run is not as planned; `None` when it is the planned run.
fn change(run: &RunResult, planned: &PlannedRun) -> Result<Option<String>> {
    let measured = run.measured.as_ref().context("it has no record")?;
    planned.change(&Recipe::from_toml(&run.recipe)?, &measured.provenance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_would_be_lost() {
        let grid = Grid { tasks: Vec::new(), arms: Vec::new(), runs: Vec::new(), tuned: None };
        let lost = |text: &str| EarlierResults::parse(text.into()).lost(&grid, &[]);
        assert_eq!(lost("{}"), None);
        assert_eq!(lost(r#"{"title": "nothing yet", "runs": []}"#), None);
        for text in ["", "no JSON", r#"{"runs": 3}"#, r#"{"runs": [{"task": "of old"}]}"#] {
            assert!(lost(text).is_some(), "{text}");
        }
    }

    #[test]
    fn what_is_not_there_holds_nothing_and_what_is_no_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let found = EarlierResults::read(&Disk::default(), folder.path()).unwrap();
        assert!(found.bytes.is_empty() && found.unread.is_none());
        std::fs::create_dir(folder.path().join(report::JSON)).unwrap();
        let error = EarlierResults::read(&Disk::default(), folder.path()).err().unwrap();
        assert!(format!("{error:#}").contains("move it away"), "{error:#}");
    }
}
