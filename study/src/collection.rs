//! Runs that somebody made one by one, put together: what was trained with what is read off their
//! recipes.

use crate::experiment;
use crate::measured::Measured;
use crate::names;
use crate::network::report::NamedLink;
use crate::report;
use crate::results::{COLLECTED, Label, Results, RunResult, RunStatus};
use crate::runs;
use anyhow::{Result, bail};
use gradwire::disk::Disk;
use gradwire::recipe::Recipe;
use gradwire::record::{RECIPE, RunLog};
use gradwire::text::plural;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use toml::Value;

/// A recipe as one value for each key.
type Keys = BTreeMap<String, Value>;

/// Runs put together.
#[derive(Clone, Debug)]
pub struct Collection {
    /// The runs as an experiment's, without claims.
    pub results: Results,
    /// What the recipes differ in.
    pub differences: Vec<Difference>,
    /// Runs that were left out, and why.
    pub left_out: Vec<String>,
}

/// A key that has different values in the recipes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The key, such as `train.batch`.
    pub key: String,
    /// Each value, as TOML has it, and the arms that have it.
    pub values: Vec<(String, Vec<String>)>,
}

/// A run that has been read.
struct FoundRun {
    folder: PathBuf,
    task: Keys,
    arm: Keys,
    recipe: String,
    outcome: RunStatus,
    measured: Measured,
}

/// Reads the runs in `folders`, replays them on `links`, and puts together those that train the
/// same (model, data set, number of workers: a task) and of these those that differ in nothing but
/// their seed (an arm). `baseline` is an arm's label, the name of one of its runs, or its scheme; if absent, the arm that
/// exchanges dense gradients, or else the first.
///
/// # Errors
/// When no folder is a run's, a record is damaged, or there is no such baseline.
pub fn collect(
    disk: &Disk,
    folders: &[PathBuf],
    links: &[NamedLink],
    baseline: Option<&str>,
) -> Result<Collection> {
    // A run that is named twice is one run.
    let once = folders.iter().enumerate().filter(|(at, folder)| !folders[..*at].contains(folder));
    let (runs, others): (Vec<&PathBuf>, Vec<&PathBuf>) =
        once.map(|(_, folder)| folder).partition(|folder| folder.join(RECIPE).exists());
    if runs.is_empty() {
        bail!("{}", others.iter().map(|folder| no_run(folder)).collect::<Vec<_>>().join("; "));
    }
    // `runs/out/recipe/*` also finds the report that was written there.
    let is_report = |folder: &Path| {
        folder.join(report::HTML).exists() && !folder.join(experiment::FILE).exists()
    };
    let others = others.into_iter().filter(|folder| !is_report(folder));
    let others = others.map(|folder| no_run(folder));
    let found: Vec<FoundRun> =
        runs.into_iter().map(|folder| read(disk, folder, links)).collect::<Result<_>>()?;
    let mut groups = Groups { left_out: others.collect(), ..Groups::default() };
    found.iter().for_each(|run| groups.add(run, &found));
    let Groups { mut tasks, arms, mut runs, left_out } = groups;
    let workers = |task: &Label| {
        let run = runs.iter().find(|run| run.task == task.name);
        run.and_then(|run| run.measured.as_ref()).map(|measured| measured.workers)
    };
    tasks.sort_by_key(|task| (task.label.split(',').next().map(String::from), workers(task)));
    RunResult::sort(&mut runs, &tasks, &arms);
    let baseline = baseline_among(&arms, &runs, baseline)?;
    let differences = differences(&found);
    let title = match &tasks[..] {
        [task] => task.label.clone(),
        tasks => format!("{} tasks compared", tasks.len()),
    };
    let about = left_out.iter().map(|line| format!("{line}.")).chain(in_sentences(&differences));
    let results = Results {
        experiment: COLLECTED.into(),
        title,
        about: about.collect::<Vec<_>>().join("\n\n"),
        tasks,
        arms,
        baseline,
        links: links.iter().map(|(word, _)| word.clone()).collect(),
        runs,
        ..Results::default()
    };
    Ok(Collection { results, differences, left_out })
}

/// What a report holds, as it is: compared with another `baseline` where one is given.
///
/// # Errors
/// When there is no such baseline.
pub fn opened(mut results: Results, baseline: Option<&str>) -> Result<Collection> {
    if baseline.is_some() {
        results.baseline = baseline_among(&results.arms, &results.runs, baseline)?;
    }
    Ok(Collection { results, differences: Vec::new(), left_out: Vec::new() })
}

/// Runs by task and arm, as they are put together.
#[derive(Default)]
struct Groups {
    tasks: Vec<Label>,
    arms: Vec<Label>,
    runs: Vec<RunResult>,
    left_out: Vec<String>,
}

impl Groups {
    /// Adds one of `all` runs, unless it is left out for another of the same task, arm and seed.
    fn add(&mut self, found: &FoundRun, all: &[FoundRun]) {
        let mut run = RunResult {
            task: named(&mut self.tasks, &task_label(found, all)),
            arm: named(&mut self.arms, &arm_label(found, all)),
            seed: found.measured.seed,
            folder: found.folder.clone(),
            recipe: found.recipe.clone(),
            outcome: found.outcome.clone(),
            measured: Some(found.measured.clone()),
        };
        let is_same =
            |r: &&mut RunResult| (&r.task, &r.arm, r.seed) == (&run.task, &run.arm, run.seed);
        let Some(other) = self.runs.iter_mut().find(is_same) else { return self.runs.push(run) };
        if worth(&run) > worth(other) {
            std::mem::swap(&mut run, other);
        }
        let only_one_finished = other.outcome.is_finished() && !run.outcome.is_finished();
        self.left_out.push(format!(
            "{} is left out: it has recipe and seed of {}, which {}",
            run.folder.display(),
            other.folder.display(),
            if only_one_finished { "finished" } else { "is newer" }
        ));
    }
}

/// Why a folder is left out, and what to name in its place.
fn no_run(folder: &Path) -> String {
    let is_experiment = folder.join(experiment::FILE).exists();
    let folder = folder.display();
    match is_experiment {
        true => format!(
            "{folder} is an experiment's folder, not a run's: its report is {folder}/{}, its runs are \
             {folder}/*/*/seed-*",
            report::HTML
        ),
        false => format!(
            "{folder} is not a run's folder: it has no {RECIPE}; `gradwire runs` lists runs"
        ),
    }
}

fn read(disk: &Disk, folder: &Path, links: &[NamedLink]) -> Result<FoundRun> {
    let log = RunLog::read(disk, folder)?;
    let (outcome, measured) = (log.status(), Measured::with(disk, &log, links)?);
    let text = runs::recipe_text(disk, folder)?;
    let mut arm = Recipe::from_toml(&text)?.decisive_keys()?;
    arm.remove("seed");
    // Files of the same name may hold other data.
    for file in &measured.provenance.data {
        let sum: String = file.sha256.chars().take(12).collect();
        arm.insert(format!("data.{}", file.name), Value::String(sum));
    }
    let is_task = |key: &String| {
        key == "workers" || ["model.", "dataset.", "samples."].iter().any(|of| key.starts_with(of))
    };
    let task: Keys = arm.extract_if(.., |key, _| is_task(key)).collect();
    Ok(FoundRun { folder: folder.into(), task, arm, recipe: text, outcome, measured })
}

/// The order in which one of two runs with the same recipe and seed is kept: the one that finished, then
/// the newer.
fn worth(run: &RunResult) -> (bool, u64) {
    let started = run.measured.as_ref().map_or(0.0, |measured| measured.summary.started);
    (run.outcome.is_finished(), (started.max(0.0) * 1e3) as u64)
}

/// A task in words; what another of the same words differs in, too.
fn task_label(run: &FoundRun, all: &[FoundRun]) -> String {
    let words = |run: &FoundRun| {
        let m = &run.measured;
        format!("{} on {}, {}", m.model, m.dataset, plural(m.workers as u64, "worker"))
    };
    let alike = all.iter().filter(|other| words(other) == words(run));
    words(run) + &varied(&run.task, alike.map(|other| &other.task))
}

/// An arm in words: its scheme, and what the arms of the same scheme on the same task differ in.
fn arm_label(run: &FoundRun, all: &[FoundRun]) -> String {
    let scheme = |run: &FoundRun| run.measured.scheme.clone();
    let alike = all.iter().filter(|other| other.task == run.task && scheme(other) == scheme(run));
    scheme(run) + &varied(&run.arm, alike.map(|other| &other.arm))
}

/// The keys of `own` that are not the same in all of `others`, with their values.
fn varied<'a>(own: &Keys, others: impl Iterator<Item = &'a Keys>) -> String {
    let others: Vec<&Keys> = others.collect();
    let mut words = String::new();
    for (key, value) in own {
        if others.iter().any(|other| other.get(key) != Some(value)) {
            let key = key.strip_prefix("scheme.").unwrap_or(key);
            words += &match value {
                Value::Boolean(true) => format!(" {key}"),
                Value::Boolean(false) => format!(" no {key}"),
                value => format!(" {key} {}", experiment::plain(value)),
            };
        }
    }
    let missing = |key: &&String| !own.contains_key(*key);
    let mut absent: Vec<&String> =
        others.iter().flat_map(|other| other.keys()).filter(missing).collect();
    absent.sort();
    absent.dedup();
    words + &absent.iter().map(|key| format!(" no {key}")).collect::<String>()
}

/// The name, fit for files, of the label of these words, which is added where there is none.
fn named(labels: &mut Vec<Label>, text: &str) -> String {
    if let Some(known) = labels.iter().find(|label| label.label == text) {
        return known.name.clone();
    }
    let mut name = names::plain(text);
    while name.contains("--") {
        name = name.replace("--", "-");
    }
    let name = names::free(&name, |name| labels.iter().any(|label| label.name == name));
    labels.push(Label { name: name.clone(), label: text.into(), ..Label::default() });
    name
}

fn baseline_among(
    arms: &[Label],
    runs: &[RunResult],
    wanted: Option<&str>,
) -> Result<Option<String>> {
    let scheme = |arm: &Label| {
        let run = runs.iter().find(|run| run.arm == arm.name);
        run.and_then(|run| run.measured.as_ref()).map_or("", |measured| measured.scheme.as_str())
    };
    let find = |word: &str| {
        let exact = arms.iter().find(|arm| arm.label == word || arm.name == word);
        let has_run_named = |arm: &&Label| {
            let mut runs = runs.iter().filter(|run| run.arm == arm.name);
            runs.any(|run| run.measured.as_ref().is_some_and(|m| m.name.as_deref() == Some(word)))
        };
        let by_name = || arms.iter().find(has_run_named);
        exact.or_else(by_name).or_else(|| arms.iter().find(|arm| scheme(arm) == word))
    };
    let found = match wanted {
        None => find("dense").or(arms.first()),
        Some(word) => match find(word) {
            Some(arm) => Some(arm),
            None => {
                let names: Vec<&str> = arms.iter().map(|arm| arm.label.as_str()).collect();
                bail!("--baseline {word}: there is no such arm; write one of: {}", names.join(", "))
            }
        },
    };
    Ok(found.map(|arm| arm.name.clone()))
}

/// What the recipes of arms differ in on the same task.
fn differences(found: &[FoundRun]) -> Vec<Difference> {
    let mut keys: Vec<&String> = found.iter().flat_map(|run| run.arm.keys()).collect();
    keys.sort();
    keys.dedup();
    let labels: BTreeSet<String> = found.iter().map(|run| arm_label(run, found)).collect();
    let count = labels.len();
    let difference = |key: &String| {
        let mut values: Vec<(String, Vec<String>)> = Vec::new();
        for run in found {
            let value = match run.arm.get(key) {
                Some(value) => value.to_string(),
                // Other schemes have other settings.
                None if key.starts_with("scheme.") || key.starts_with("data.") => continue,
                None => "left out".into(),
            };
            let label = arm_label(run, found);
            match values.iter_mut().find(|(known, _)| *known == value) {
                Some((_, arms)) if arms.contains(&label) => {}
                Some((_, arms)) => arms.push(label),
                None => values.push((value, vec![label])),
            }
        }
        let own = key.starts_with("scheme.") && values.iter().any(|(_, arms)| arms.len() < count);
        (values.len() > 1 || own).then(|| Difference { key: key.clone(), values })
    };
    keys.into_iter().filter_map(difference).collect()
}

/// Differences that are not the scheme's own, in sentences.
fn in_sentences(differences: &[Difference]) -> Vec<String> {
    let others = differences.iter().filter(|difference| !difference.is_of_scheme());
    others.map(|difference| format!("The recipes differ in {difference}.")).collect()
}

impl Difference {
    /// Whether it is a setting of the schemes themselves, which are compared.
    pub fn is_of_scheme(&self) -> bool {
        self.key.starts_with("scheme.")
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let values = self.values.iter();
        let words = values.map(|(value, arms)| format!("{value} ({})", arms.join(", ")));
        write!(f, "{}: {}", self.key, words.collect::<Vec<_>>().join(" · "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sets: &[(&str, Value)], seed: u64, started: f64, outcome: RunStatus) -> FoundRun {
        let keys = |prefix: &str| -> Keys {
            let of = sets.iter().filter(|(key, _)| key.starts_with(prefix));
            of.map(|(key, value)| (key.to_string(), value.clone())).collect()
        };
        let mut arm = keys("");
        let task: Keys = arm.extract_if(.., |key, _| key.starts_with("dataset")).collect();
        let kind = sets[0].1.as_str().unwrap().to_string();
        let mut measured = Measured {
            model: "m".into(),
            dataset: "d".into(),
            scheme: kind.clone(),
            workers: 4,
            seed,
            ..Measured::default()
        };
        measured.summary.started = started;
        let folder = PathBuf::from(format!("{kind}-{seed}-{started}"));
        FoundRun { folder, task, arm, recipe: String::new(), outcome, measured }
    }

    fn text(word: &str) -> Value {
        Value::String(word.into())
    }

    #[test]
    fn labels_say_what_differs_and_nothing_else() {
        let topk = |ratio: f64, batch: i64| {
            let sets = [
                ("scheme.kind", text("topk")),
                ("scheme.ratio", ratio.into()),
                ("train.batch", batch.into()),
                ("dataset.kind", text("d")),
            ];
            found(&sets, 1, 0.0, RunStatus::Finished)
        };
        let dense = found(
            &[
                ("scheme.kind", text("dense")),
                ("train.batch", 8.into()),
                ("dataset.kind", text("d")),
            ],
            1,
            0.0,
            RunStatus::Finished,
        );
        let all = [topk(0.01, 16), topk(0.001, 16), dense];
        let labels: Vec<String> = all.iter().map(|run| arm_label(run, &all)).collect();
        assert_eq!(labels, ["topk ratio 0.01", "topk ratio 0.001", "dense"]);
        assert_eq!(task_label(&all[0], &all), "m on d, 4 workers");
        let differences = differences(&all);
        let keys: Vec<&str> = differences.iter().map(|d| d.key.as_str()).collect();
        assert_eq!(keys, ["scheme.kind", "scheme.ratio", "train.batch"]);
        assert_eq!(
            in_sentences(&differences),
            [
                "The recipes differ in train.batch: 16 (topk ratio 0.01, topk ratio 0.001) · 8 (dense)."
            ]
        );
        let all = [topk(0.01, 16), topk(0.01, 8)];
        let labels: Vec<String> = all.iter().map(|run| arm_label(run, &all)).collect();
        assert_eq!(labels, ["topk train.batch 16", "topk train.batch 8"]);
    }

    #[test]
    fn names_are_their_own_and_fit_files() {
        let mut labels = Vec::new();
        let names =
            ["topk a/b  c", "topk a b-c", "topk a/b  c"].map(|text| named(&mut labels, text));
        assert_eq!(names, ["topk-a-b-c", "topk-a-b-c-2", "topk-a-b-c"]);
    }

    #[test]
    fn the_better_of_two_of_the_same_run_is_kept() {
        let run = |started: f64, outcome: RunStatus| {
            let found = found(&[("scheme.kind", text("dense"))], 1, started, RunStatus::Finished);
            RunResult {
                task: "t".into(),
                arm: "a".into(),
                seed: 1,
                folder: found.folder,
                recipe: found.recipe,
                outcome,
                measured: Some(found.measured),
            }
        };
        assert!(worth(&run(1.0, RunStatus::Finished)) > worth(&run(2.0, RunStatus::Stopped)));
        assert!(worth(&run(2.0, RunStatus::Finished)) > worth(&run(1.0, RunStatus::Finished)));
    }
}
