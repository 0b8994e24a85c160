//! `gradwire runs`: which runs there are.

use anyhow::Result;
use clap::Args;
use console::Term;
use gradwire::disk::Disk;
use gradwire::record::RunStatus;
use gradwire::text::{Column, Table, percent_column};
use gradwire_study::runs::{Glance, glance, under};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Which runs to show. In the table N is the number of workers.
#[derive(Debug, Args)]
pub(super) struct Runs {
    /// The folder to look through
    #[arg(default_value = "runs/out")]
    folder: PathBuf,
    /// Only runs with this tag; may be repeated, for runs that have all
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Only runs with this scheme
    #[arg(long)]
    scheme: Option<String>,
    /// Only runs of this recipe
    #[arg(long)]
    recipe: Option<String>,
    /// Only runs that stand so
    #[arg(long, value_delimiter = ',', value_name = "STATE,…", value_parser = STATES)]
    state: Vec<String>,
    /// Print each run as a line of JSON
    #[arg(long)]
    json: bool,
}

/// The states that can be asked for.
const STATES: [&str; 6] = ["finished", "stopped", "failed", "diverged", "running", "damaged"];

impl Runs {
    pub(super) fn run(&self) -> Result<()> {
        let disk = Disk::default();
        let folders = under(&disk, &self.folder)?;
        let mut runs: Vec<Glance> = folders.iter().map(|folder| glance(&disk, folder)).collect();
        runs.retain(|run| self.wants(run));
        runs.sort_by(|a, b| b.began.total_cmp(&a.began));
        if self.json {
            for run in &runs {
                println!("{}", serde_json::to_string(run)?);
            }
            return Ok(());
        }
        if runs.is_empty() {
            let which = if folders.is_empty() { "no run" } else { "no such run" };
            println!("{which} under {}", self.folder.display());
            return Ok(());
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64());
        let width = Term::stdout().size_checked().map_or(usize::MAX, |(_, columns)| columns.into());
        print!("{}", table(&runs, &self.folder, now).fit(width));
        Ok(())
    }

    fn wants(&self, run: &Glance) -> bool {
        let is = |wanted: &Option<String>, value: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == value)
        };
        self.tag.iter().all(|tag| run.tags.contains(tag))
            && is(&self.scheme, &run.scheme)
            && is(&self.recipe, &run.recipe)
            && (self.state.is_empty() || self.state.iter().any(|state| state == run.status.word()))
    }
}

/// The runs in `place`, as they stand `now`.
fn table(runs: &[Glance], place: &Path, now: f64) -> Table {
    let mut table = Table::new([
        Column::left("run").shrinks_to(11).keeps_end(),
        Column::left("model").shrinks_to(8),
        Column::left("data").shrinks_to(7),
        Column::left("scheme").shrinks_to(8),
        Column::right("N"),
        Column::right("seed"),
        Column::left("state"),
        Column::right("test"),
        Column::right("ago"),
    ]);
    runs.iter().for_each(|run| table.row(cells(run, place, now)));
    table
}

fn cells(run: &Glance, place: &Path, now: f64) -> [String; 9] {
    let folder = run.folder.strip_prefix(place).unwrap_or(&run.folder);
    let state = match run.status {
        RunStatus::Finished | RunStatus::Damaged { .. } => run.status.word().to_string(),
        _ if run.steps > 0 => format!("{} {}%", run.status.word(), 100 * run.step / run.steps),
        _ => run.status.word().to_string(),
    };
    [
        run.name.clone().unwrap_or_else(|| folder.display().to_string()),
        run.model.clone(),
        run.dataset.clone(),
        run.scheme.clone(),
        run.workers.to_string(),
        run.seed.to_string(),
        state,
        run.test_accuracy.map_or_else(|| "–".into(), percent_column),
        ago(now - run.began),
    ]
}

/// How long ago something was, to its first unit.
fn ago(seconds: f64) -> String {
    let minutes = (seconds / 60.0).max(0.0) as u64;
    match minutes {
        0..60 => format!("{minutes} min"),
        60..2880 => format!("{} h", minutes / 60),
        _ => format!("{} d", minutes / 1440),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: Option<&str>, folder: &str, recipe: &str, scheme: &str) -> Glance {
        Glance {
            folder: Path::new("runs/out").join(folder),
            name: name.map(String::from),
            tags: vec!["paper".into()],
            recipe: recipe.into(),
            model: "resnet20".into(),
            dataset: "cifar10".into(),
            scheme: scheme.into(),
            workers: 16,
            seed: 1,
            status: RunStatus::Stopped,
            step: 1480,
            steps: 1500,
            test_accuracy: Some(0.9134),
            began: 1000.0,
        }
    }

    #[test]
    fn the_table_fits_a_terminal() {
        let runs = [
            run(
                Some("dense-8"),
                "cifar10-dense/2026-11-22T22-20-19Z-dense-8",
                "cifar10-dense",
                "dense",
            ),
            run(None, "cifar10-topk/2026-11-22T22-20-19Z", "cifar10-topk", "aggregation-aware"),
            run(None, "grace-quick/resnet20/topk-0.01/seed-3", "grace", "topk"),
        ];
        let shown = |width| table(&runs, "runs/out".as_ref(), 4600.0).fit(width);
        let text = shown(80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for part in [
            "dense-8",
            "T22-20-19Z",
            "seed-3",
            "stopped 98%",
            "91.3%",
            "1 h",
            "resnet20",
            "cifar10",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let wide = shown(200);
        assert!(wide.contains("grace-quick/resnet20/topk-0.01/seed-3"), "{wide}");
        assert!(wide.contains("aggregation-aware"), "{wide}");
        assert_eq!([60.0 * 59.0, 3.0 * 86_400.0].map(ago), ["59 min", "3 d"]);
    }

    #[test]
    fn filters_are_all_to_be_met() {
        let list = |tag: &[&str], scheme: Option<&str>, state: &[&str]| Runs {
            folder: "runs/out".into(),
            tag: tag.iter().map(|tag| tag.to_string()).collect(),
            scheme: scheme.map(String::from),
            recipe: None,
            state: state.iter().map(|state| state.to_string()).collect(),
            json: false,
        };
        let run = run(None, "a/b", "a", "topk");
        for (list, wanted) in [
            (list(&[], None, &[]), true),
            (list(&["paper"], Some("topk"), &["finished", "stopped"]), true),
            (list(&["paper", "draft"], None, &[]), false),
            (list(&[], Some("dense"), &[]), false),
            (list(&[], None, &["running"]), false),
        ] {
            assert_eq!(list.wants(&run), wanted, "{list:?}");
        }
    }
}
