//! From an experiment and a scale to the recipes of its runs.

use crate::experiment::{Choice, Experiment, Setting, replace};
use crate::results::{RunResult, Tuned};
use crate::scale::Scale;
use anyhow::{Result, bail, ensure};
use gradwire::checkpoint::Progress;
use gradwire::recipe::{Change, Recipe, is_one_of};
use gradwire::record::{FileSum, Provenance};
use gradwire::train::session::load;
use gradwire::train::steps::Steps;
use gradwire_datasets::{self as datasets, Shape};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// What of an experiment is run, and with which changes.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The seeds; absent for the scale's own.
    pub seeds: Option<Vec<u64>>,
    /// Tasks and arms, by name with or without values: those arms on those tasks. `task/arm` adds
    /// this one. Empty for all.
    pub only: Vec<String>,
    /// Where data sets are, if not where the recipes have them.
    pub dir: Option<String>,
    /// `path=value` pairs that change every recipe.
    pub sets: Vec<String>,
    /// What has been chosen for each arm.
    pub tuned: Option<Tuned>,
    /// Seeds that were asked for before: runs with them, as far as there are any, are among the results.
    pub known: Vec<u64>,
}

impl Selection {
    /// Checks that every name is that of a task or an arm, and that all together select a run.
    fn check(&self, setting: &Setting, tasks: &[Choice], arms: &[Choice]) -> Result<()> {
        let any = |is: &dyn Fn(&Choice, &Choice) -> bool| {
            let mut pairs = tasks.iter().flat_map(|task| arms.iter().map(move |arm| (task, arm)));
            pairs.any(|(task, arm)| setting.trains(task, arm) && is(task, arm))
        };
        for name in &self.only {
            ensure!(
                any(&|task, arm| task.matches(name) || arm.matches_on(task, name)),
                "--only {name:?} is no task and no arm of this scale; tasks: {}; arms: {}; or \
                 task/arm",
                names(tasks),
                names(arms)
            );
        }
        ensure!(
            any(&|task, arm| is_selected(&self.only, tasks, task, arm)),
            "--only {}: this scale trains none of these arms on any of these tasks",
            self.only.join(",")
        );
        Ok(())
    }
}

/// The runs of an experiment at a scale.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Every task of the scale.
    pub tasks: Vec<Choice>,
    /// Every arm of the scale.
    pub arms: Vec<Choice>,
    /// In the order of seeds, tasks and arms: what is cut short has compared something.
    pub runs: Vec<PlannedRun>,
    /// What had been chosen for each arm.
    pub(super) tuned: Option<Tuned>,
}

impl Grid {
    /// The runs that were asked for.
    pub fn wanted(&self) -> impl Iterator<Item = &PlannedRun> {
        self.runs.iter().filter(|planned| planned.wanted)
    }

    /// Two arms of a task that were asked for, and whose recipes differ in nothing but their names.
    pub fn twins(&self) -> Option<[&str; 2]> {
        let mut seen: Vec<(&PlannedRun, Recipe)> = Vec::new();
        for run in self.wanted() {
            let unnamed = Recipe { name: String::new(), ..run.recipe.clone() };
            let is_twin = |(other, recipe): &&(&PlannedRun, Recipe)| {
                run.task == other.task && run.arm != other.arm && *recipe == unnamed
            };
            if let Some((other, _)) = seen.iter().find(is_twin) {
                return Some([&other.arm, &run.arm]);
            }
            seen.push((run, unnamed));
        }
        None
    }

    /// What is planned in the place of a run, if the grid has one for it.
    pub(super) fn planned(&self, run: &RunResult) -> Option<&PlannedRun> {
        self.runs.iter().find(|planned| planned.is_of_run(run))
    }
}

/// A run that is to be made.
#[derive(Clone, Debug)]
pub struct PlannedRun {
    /// Its task's name.
    pub task: String,
    /// Its arm's name.
    pub arm: String,
    /// Whether it was asked for. What was not is part of the results if it has been made before.
    pub wanted: bool,
    /// Its folder, within the experiment's.
    pub folder: PathBuf,
    /// Everything that decides its result.
    pub recipe: Recipe,
    /// Its last step.
    pub steps: u64,
    /// Samples in the training and in the test set.
    pub samples: [usize; 2],
    /// The shape of a sample, and how many classes there are.
    pub sample: (Shape, usize),
    /// The files of its data set.
    pub data: Vec<FileSum>,
    /// The keys, or tables of keys, that were set for all runs of the grid.
    pub set: Vec<String>,
}

impl PlannedRun {
    /// Whether a run is of this task, arm and seed, whatever else it is.
    pub(super) fn is_of_run(&self, run: &RunResult) -> bool {
        (&self.task, &self.arm, self.recipe.seed) == (&run.task, &run.arm, run.seed)
    }

    /// What about a run of this recipe, made by this program on these data, is not as planned.
    pub(super) fn change(
        &self,
        recipe: &Recipe,
        provenance: &Provenance,
    ) -> Result<Option<String>> {
        let changes = recipe.changes(&self.recipe)?;
        // A resumed run may change them.
        const DECISIVE: [&str; 3] = ["workers", "train.epochs", "train.max_steps"];
        // They decide what a run takes, or what is known of it, and count where they were asked for.
        const ASKED: [&str; 6] = [
            "threads",
            "train.evaluate_every",
            "record.every",
            "policy.measure_every",
            "exchange.overlap",
            "exchange.overlap_bytes",
        ];
        let set: Vec<&str> = self.set.iter().map(String::as_str).collect();
        let is_asked = |key: &str| ASKED.contains(&key) && is_one_of(key, &set);
        // Gradients that were not recorded cannot be timed.
        let none_before =
            |c: &Change| c.key == "record.gradients" && c.old == Some(Value::Integer(0));
        let is_decisive = |c: &&Change| {
            let key = c.key.as_str();
            c.objection.is_some() || DECISIVE.contains(&key) || is_asked(key) || none_before(c)
        };
        let change = changes.iter().find(is_decisive);
        if let Some(change) = change {
            return Ok(Some(change.to_string()));
        }
        let here = Provenance::here();
        if provenance.version != here.version {
            return Ok(Some(format!("version was {}, is {}", provenance.version, here.version)));
        }
        if provenance.data != self.data {
            return Ok(Some("the data files are others".into()));
        }
        Ok(None)
    }
}

/// Stands where the number of the run's steps is to be.
const STEPS: &str = "{steps}";

/// The fewest histograms that a run with as many steps has of every gradient and residual, if any.
const HISTOGRAMS: u64 = 4;

impl Grid {
    /// Plans the runs. Data sets are read, because their sizes decide how many steps there are.
    ///
    /// # Errors
    /// When the experiment has no such scale, a recipe cannot be, nothing is chosen, or a data set
    /// cannot be read.
    pub fn plan(
        experiment: &Experiment,
        scale: &Scale,
        selection: &Selection,
        out: &Path,
    ) -> Result<Self> {
        let mut sizes = DataSizes::default();
        Self::plan_with(experiment, scale, selection, out, &mut |recipe| sizes.get(recipe))
    }

    /// Plans the runs over data sets whose sizes `size` looks up.
    fn plan_with(
        experiment: &Experiment,
        scale: &Scale,
        selection: &Selection,
        out: &Path,
        size: &mut Lookup<'_>,
    ) -> Result<Self> {
        ensure!(
            !selection.sets.iter().any(|set| names_seed(set)),
            "--set seed: every run has a seed of its own; --seeds N makes runs with seeds 1 to N"
        );
        let setting = experiment.setting(scale)?;
        let mut tasks = experiment.task_choices();
        tasks.retain(|task| setting.has(task));
        let mut arms = experiment.arm_choices();
        arms.retain(|arm| tasks.iter().any(|task| setting.trains(task, arm)));
        selection.check(setting, &tasks, &arms)?;
        let seeds = selection.seeds.as_ref().unwrap_or(&setting.seeds).clone();
        let more: BTreeSet<u64> = setting.seeds.iter().chain(&selection.known).copied().collect();
        let more = more.into_iter().filter(|seed| !seeds.contains(seed));
        let planner = Planner { experiment, setting, selection, out };
        let mut runs = Vec::new();
        // Of each task the first, with those that it is also of: whoever mends one should know the others.
        let mut refused: Vec<(Vec<&str>, anyhow::Error)> = Vec::new();
        for seed in seeds.iter().copied().chain(more) {
            for task in &tasks {
                for arm in arms.iter().filter(|arm| setting.trains(task, arm)) {
                    let wanted =
                        seeds.contains(&seed) && is_selected(&selection.only, &tasks, task, arm);
                    let task_name = task.label.name.as_str();
                    if refused.iter().any(|(tasks, _)| tasks.contains(&task_name)) {
                        continue;
                    }
                    let run = planner.run((task, arm, seed), wanted, size);
                    let Err(error) = run.map(|run| runs.push(run)) else { continue };
                    let is_asked = |arm| {
                        setting.trains(task, arm) && is_selected(&selection.only, &tasks, task, arm)
                    };
                    // A task that is neither asked for nor has runs needs no data here.
                    if !out.join(task_name).exists() && !arms.iter().any(is_asked) {
                        continue;
                    }
                    let cause = error.root_cause().to_string();
                    let same = |other: &&mut (Vec<&str>, anyhow::Error)| {
                        other.1.root_cause().to_string() == cause
                    };
                    match refused.iter_mut().find(same) {
                        Some((tasks, _)) => tasks.push(task_name),
                        None => {
                            let which = format!("{task_name} with {}, seed {seed}", arm.label.name);
                            refused.push((vec![task_name], error.context(which)));
                        }
                    }
                }
            }
        }
        if refused.len() > 1 {
            let line = |(tasks, error): &(Vec<&str>, anyhow::Error)| {
                format!("\n  {}: {}", tasks.join(", "), error.root_cause())
            };
            bail!("some tasks cannot be planned:{}", refused.iter().map(line).collect::<String>());
        }
        if let Some((_, error)) = refused.pop() {
            return Err(error);
        }
        let grid = Self { tasks, arms, runs, tuned: selection.tuned.clone() };
        grid.can_be_timed(experiment, scale)?;
        Ok(grid)
    }

    /// Whether the runs will leave what claims about speed are measured on.
    fn can_be_timed(&self, experiment: &Experiment, scale: &Scale) -> Result<()> {
        let timed = experiment.claims.iter().filter(|claim| claim.measure.is_timed());
        for claim in timed.filter(|claim| claim.applies_at(scale)) {
            let silent = |run: &PlannedRun| {
                claim.is_about(&run.task, &run.arm) && run.recipe.record.gradients == 0
            };
            ensure!(
                !self.runs.iter().any(silent),
                "claim {:?}: {} records no gradient to be timed on: set record.gradients = \
                 \"{STEPS}\" in its recipe",
                claim.claim,
                claim.arm
            );
        }
        Ok(())
    }
}

impl Experiment {
    /// Whether `only`, the names of a selection, select an arm on a task; no names select all.
    pub fn is_selected(&self, only: &[String], task: &str, arm: &str) -> bool {
        let (tasks, arms) = (self.task_choices(), self.arm_choices());
        let task = tasks.iter().find(|choice| choice.label.name == task);
        let arm = arms.iter().find(|choice| choice.label.name == arm);
        task.zip(arm).is_some_and(|(task, arm)| is_selected(only, &tasks, task, arm))
    }
}

/// Whether `only`, the names of a selection, select an arm on one of the `tasks`.
fn is_selected(only: &[String], tasks: &[Choice], task: &Choice, arm: &Choice) -> bool {
    let (pairs, names): (Vec<&String>, Vec<_>) = only.iter().partition(|name| name.contains('/'));
    let is_task = |name: &&String| tasks.iter().any(|task| task.matches(name));
    let (of_tasks, of_arms): (Vec<&String>, Vec<_>) = names.into_iter().partition(is_task);
    let task_is_asked = of_tasks.is_empty() || of_tasks.iter().any(|name| task.matches(name));
    let arm_is_asked = of_arms.is_empty() || of_arms.iter().any(|name| arm.matches(name));
    let only_pairs = !pairs.is_empty() && of_tasks.is_empty() && of_arms.is_empty();
    let is_pair = pairs.iter().any(|name| arm.matches_on(task, name));
    is_pair || (!only_pairs && task_is_asked && arm_is_asked)
}

fn names(choices: &[Choice]) -> String {
    let names: Vec<&str> = choices.iter().map(|c| c.label.name.as_str()).collect();
    names.join(", ")
}

/// Whether an assignment such as `seed=3` is to the seed.
pub fn names_seed(assignment: &str) -> bool {
    assignment.split('=').next().is_some_and(|path| path.trim() == "seed")
}

/// What the runs of a grid have in common.
struct Planner<'a> {
    experiment: &'a Experiment,
    setting: &'a Setting,
    selection: &'a Selection,
    out: &'a Path,
}

impl Planner<'_> {
    /// The run of an arm on a task with a seed.
    fn run(
        &self,
        (task, arm, seed): (&Choice, &Choice, u64),
        wanted: bool,
        size: &mut Lookup<'_>,
    ) -> Result<PlannedRun> {
        let table = self.layers(task, arm, seed)?;
        // The number of steps does not depend on what stands in its place.
        let draft = self.recipe(&table, 1)?;
        let Size { samples, sample, data } = size(&draft)?;
        let steps = Steps::new(&draft, samples[0], Progress::START)?.last_step;
        let mut recipe = self.recipe(&table, i64::try_from(steps)?)?;
        // A short run has histograms too.
        let every = &mut recipe.record.histograms_every;
        *every = (*every).min((steps / HISTOGRAMS).max(1));
        let (task, arm) = (task.label.name.clone(), arm.label.name.clone());
        let folder = Path::new(&task).join(&arm).join(format!("seed-{seed}"));
        let sets = self.selection.sets.iter().filter_map(|set| set.split_once('='));
        let set = sets.map(|(path, _)| path.trim().to_string()).collect();
        Ok(PlannedRun { task, arm, wanted, folder, recipe, steps, samples, sample, data, set })
    }

    /// The recipe of a run, before the number of its steps is known.
    fn layers(&self, task: &Choice, arm: &Choice, seed: u64) -> Result<Table> {
        let mut own = Table::new();
        own.insert("name".into(), format!("{}-{}", task.label.name, arm.label.name).into());
        own.insert("seed".into(), Value::Integer(i64::try_from(seed)?));
        let record = Table::from_iter([("out".into(), self.out.to_string_lossy().as_ref().into())]);
        own.insert("record".into(), record.into());
        let (experiment, setting) = (self.experiment, self.setting);
        let mut layers = vec![&experiment.recipe, &task.recipe, &arm.recipe, &setting.recipe];
        layers.extend(own_layers(&setting.task, task));
        layers.extend(own_layers(&setting.arm, arm));
        let on_the_task = |name: &str| name.contains('/') && arm.matches_on(task, name);
        let mut both: Vec<_> = setting.arm.iter().filter(|(name, _)| on_the_task(name)).collect();
        // A member's name is the beginning of those with its values, which say more.
        both.sort_by_key(|(name, _)| name.len());
        layers.extend(both.into_iter().map(|(_, own)| own));
        layers.push(&own);
        let mut sets = self.selection.sets.clone();
        let tuned = self.selection.tuned.as_ref();
        sets.extend(tuned.and_then(|tuned| tuned.set(&task.label.name, &arm.label.name)));
        Recipe::layered(layers, &sets)
    }

    fn recipe(&self, table: &Table, steps: i64) -> Result<Recipe> {
        let mut table = table.clone();
        replace(&mut table, STEPS, &Value::Integer(steps.max(1)));
        let recipe = Recipe::from_table(table)?;
        recipe.fits_machine()?;
        recipe.may_run()?;
        match &self.selection.dir {
            Some(dir) if reads_files(&recipe) => recipe.with("dataset.dir", dir.as_str()),
            _ => Ok(recipe),
        }
    }
}

/// The layers for a task or an arm, first those for its name without values.
fn own_layers<'t>(tables: &'t BTreeMap<String, Table>, choice: &Choice) -> Vec<&'t Table> {
    let names = [&choice.label.member, &choice.label.name];
    let mut layers: Vec<&Table> = names.iter().filter_map(|name| tables.get(*name)).collect();
    layers.dedup();
    layers
}

/// Whether the data set comes from files in a folder.
fn reads_files(recipe: &Recipe) -> bool {
    Table::try_from(&recipe.dataset).is_ok_and(|table| table.contains_key("dir"))
}

/// Looks up the size of a recipe's data set.
type Lookup<'a> = dyn FnMut(&Recipe) -> Result<Size> + 'a;

/// The sizes of data sets, each read once.
#[derive(Default)]
struct DataSizes {
    known: Vec<((datasets::Config, datasets::Selection), Size)>,
}

#[derive(Clone)]
struct Size {
    /// Training and test samples.
    samples: [usize; 2],
    /// The shape of a sample, and how many classes there are.
    sample: (Shape, usize),
    data: Vec<FileSum>,
}

impl DataSizes {
    fn get(&mut self, recipe: &Recipe) -> Result<Size> {
        let which = (recipe.dataset.clone(), recipe.samples);
        if let Some((_, size)) = self.known.iter().find(|(known, _)| *known == which) {
            return Ok(size.clone());
        }
        let data = load(recipe, None)?;
        let size = Size {
            samples: [data.train.len(), data.test.len()],
            sample: (data.train.shape(), data.train.classes().len()),
            data: data.files,
        };
        self.known.push((which, size.clone()));
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::tests::TINY;

    fn cifar10() -> Size {
        let shape = Shape::Image { height: 32, width: 32, channels: 3 };
        Size { samples: [50_000, 10_000], sample: (shape, 10), data: Vec::new() }
    }

    fn plan(experiment: &Experiment, scale: &str, selection: &Selection) -> Result<Grid> {
        let size = cifar10();
        let out = Path::new("out");
        Grid::plan_with(experiment, &scale.into(), selection, out, &mut |_| Ok(size.clone()))
    }

    fn only(names: &[&str]) -> Selection {
        let only = names.iter().map(ToString::to_string).collect();
        Selection { only, ..Selection::default() }
    }

    #[test]
    fn all_data_that_is_missing_is_told_at_once() {
        let (_, experiment) = Experiment::load("sidco").unwrap();
        let (scale, selection) = ("standard".into(), Selection::default());
        let mut size = |recipe: &Recipe| bail!("{} is partial", recipe.dataset.name());
        let told = Grid::plan_with(&experiment, &scale, &selection, Path::new("out"), &mut size);
        let told = told.unwrap_err().to_string();
        assert!(told.contains("cifar10-resnet20, cifar10-vgg16: cifar10 is partial"), "{told}");
        assert!(told.contains("ag-news-bilstm, ag-news-textcnn: ag-news is partial"), "{told}");
    }

    #[test]
    fn a_task_that_is_not_asked_for_needs_no_data() {
        let (_, experiment) = Experiment::load("sidco").unwrap();
        let out = tempfile::tempdir().unwrap();
        let plan = |names: &[&str]| {
            let mut size = |recipe: &Recipe| match recipe.dataset.name() {
                "cifar10" => Ok(cifar10()),
                name => bail!("{name} is partial"),
            };
            Grid::plan_with(&experiment, &"standard".into(), &only(names), out.path(), &mut size)
        };
        let grid = plan(&["cifar10-resnet20"]).unwrap();
        assert!(grid.wanted().all(|run| run.task == "cifar10-resnet20"));
        let missing = |names| plan(names).unwrap_err().to_string().contains("ag-news-textcnn");
        assert!(missing(&["ag-news-textcnn"]));
        // Of runs that are there the results go on telling.
        std::fs::create_dir(out.path().join("ag-news-textcnn")).unwrap();
        assert!(missing(&["cifar10-resnet20"]));
    }

    #[test]
    fn of_an_arm_on_a_task_the_one_with_values_says_more() {
        let both = "arm.\"few/dqsgd\".scheme.gap = 11\n        arm.\"few-4/dqsgd\".scheme.gap = 9";
        let text = TINY.replace("arm.\"few-4/dqsgd\".scheme.gap = 9", both);
        assert_ne!(text, TINY);
        let experiment = Experiment::parse(&text).unwrap();
        let grid = plan(&experiment, "quick", &only(&["dqsgd"])).unwrap();
        let gap = |task: &str| {
            let run = grid.wanted().find(|run| run.task == task).unwrap();
            run.recipe.to_toml().unwrap().contains(if task == "few-4" {
                "gap = 9"
            } else {
                "gap = 11"
            })
        };
        assert!(gap("few-2") && gap("few-4"));
    }

    /// A resumed run may record as often as it likes; of one that was asked to record otherwise it is another record.
    #[test]
    fn what_is_known_of_a_run_counts_where_it_is_asked_for() {
        let experiment = Experiment::parse(TINY).unwrap();
        let first = |sets: &[&str]| {
            let sets = sets.iter().map(ToString::to_string).collect();
            let selection = Selection { sets, known: vec![1, 9], ..Selection::default() };
            plan(&experiment, "quick", &selection).unwrap().runs
        };
        let (before, other) = (first(&[]), first(&["record.every=3"]));
        let wanted = before.iter().map(|run| (run.recipe.seed, run.wanted));
        assert!(wanted.clone().all(|(seed, wanted)| wanted == (seed != 9)));
        assert!(wanted.clone().any(|(seed, _)| seed == 9));
        let provenance = Provenance { data: before[0].data.clone(), ..Provenance::here() };
        let changes =
            |run: &PlannedRun, of: &PlannedRun| run.change(&of.recipe, &provenance).unwrap();
        assert!(changes(&other[0], &before[0]).unwrap().contains("record.every"));
        assert_eq!(changes(&before[0], &other[0]), None);
    }

    #[test]
    fn every_built_in_experiment_can_be_run_at_every_scale() {
        let all = Experiment::built_in();
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["aggregation", "casq", "dqsgd", "grace", "local", "optquant", "sidco"]);
        for (name, _) in all {
            let (_, experiment) = Experiment::load(&name).unwrap_or_else(|e| panic!("{e:#}"));
            let mut grids = BTreeMap::new();
            for scale in Scale::USUAL {
                let grid = plan(&experiment, scale, &Selection::default());
                let grid = grid.unwrap_or_else(|e| panic!("{name}, {scale}: {e:#}"));
                let seeds = experiment.scales[&scale.into()].seeds.len();
                assert_eq!(grid.runs.len() % seeds, 0);
                for task in &grid.tasks {
                    let is_baseline =
                        |r: &PlannedRun| r.task == task.label.name && r.arm == experiment.baseline;
                    assert!(grid.runs.iter().any(is_baseline), "{name}, {scale}");
                }
                // At scale standard, what is only timed need not converge.
                let steps = match scale {
                    "smoke" => 1..=4,
                    "standard" => 60..=u64::MAX,
                    _ => 150..=u64::MAX,
                };
                for run in &grid.runs {
                    assert!(run.recipe.record.histograms_every <= (run.steps / 4).max(1));
                    assert!(steps.contains(&run.steps), "{name}, {scale}: {}", run.steps);
                }
                grids.insert(Scale::from(scale), grid);
            }
            // A claim that no scale can test says why.
            for claim in &experiment.claims {
                let is_tested = claim.scales.iter().flatten().next().is_some();
                assert!(is_tested || !claim.otherwise.is_empty(), "{name}: {}", claim.claim);
                for scale in claim.scales.iter().flatten() {
                    for arm in std::iter::once(&claim.arm).chain(&claim.against) {
                        let is_made = |run: &PlannedRun| {
                            claim.tasks().any(|t| *t == run.task) && run.arm == *arm
                        };
                        assert!(grids[scale].runs.iter().any(is_made), "{name}: {}", claim.claim);
                    }
                }
            }
        }
    }

    #[test]
    fn layers_are_laid_in_order_and_the_steps_are_known() {
        let experiment = Experiment::parse(TINY).unwrap();
        let grid = plan(&experiment, "quick", &Selection::default()).unwrap();
        assert_eq!(grid.runs.len(), 8);
        for (task, workers, batch, gap) in [("few-2", 2, 50, "gap=7"), ("few-4", 4, 25, "gap=9")] {
            let is_here = |run: &&PlannedRun| run.task == task && run.arm == "dqsgd";
            let PlannedRun { recipe, steps, folder, .. } = grid.runs.iter().find(is_here).unwrap();
            assert_eq!((recipe.workers, recipe.train.batch, *steps), (workers, batch, 1500));
            let words = recipe.scheme_in_words();
            for part in [gap, "window=3", "horizon=1500"] {
                assert!(words.contains(part), "{words}");
            }
            assert_eq!(*folder, Path::new(task).join("dqsgd/seed-1"));
        }
        assert_eq!(grid.tasks[1].label.label, "4 workers");
        assert_eq!(grid.runs[4].recipe.seed, 2, "all of one seed come before the next");
    }

    #[test]
    fn what_is_selected_is_what_is_run() {
        let experiment = Experiment::parse(TINY).unwrap();
        let three = |names: &[&str]| {
            let sets = vec!["train.epochs=1".to_string()];
            plan(
                &experiment,
                "quick",
                &Selection { seeds: Some(vec![1, 2, 3]), sets, ..only(names) },
            )
        };
        for (names, wanted) in [
            (&["few-4/dense"][..], 3),
            (&["dqsgd"], 6),
            (&["few"], 12),
            (&["few-4", "dqsgd"], 3),
            (&["few-4", "dqsgd", "few-2/dense"], 6),
        ] {
            let grid = three(names).unwrap();
            assert_eq!(grid.wanted().count(), wanted, "{names:?}");
            assert_eq!(grid.runs.len(), 12, "the others may have been made before");
        }
        assert_eq!(three(&["few"]).unwrap().runs[0].steps, 500);
        let some =
            TINY.replace("seeds = [1, 2]", "seeds = [1]\narms = [\"dense\", \"few-4/dqsgd\"]");
        let one_task = Experiment::parse(&some).unwrap();
        let grid = plan(&one_task, "quick", &Selection::default()).unwrap();
        let runs: Vec<[&str; 2]> = grid.runs.iter().map(|r| [&*r.task, &*r.arm]).collect();
        assert_eq!(runs, [["few-2", "dense"], ["few-4", "dense"], ["few-4", "dqsgd"]]);
        for (experiment, scale, names, parts) in [
            (&experiment, "quick", &["fwe"][..], &["few-2, few-4", "dqsgd"][..]),
            (&experiment, "full", &[], &["quick"]),
            (&one_task, "quick", &["few-2/dqsgd"], &["few-2/dqsgd"]),
            (&one_task, "quick", &["few-2", "dqsgd"], &["none of these arms"]),
        ] {
            let refusal = format!("{:#}", plan(experiment, scale, &only(names)).unwrap_err());
            assert!(parts.iter().all(|part| refusal.contains(part)), "{refusal}");
        }
    }
}
