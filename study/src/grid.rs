//! From an experiment and a scale to the recipes of its runs.

use crate::definition::{Choice, Experiment, Setting, replace};
use crate::results::Run;
use crate::scale::Scale;
use anyhow::{Context, Result, ensure};
use gradwire::checkpoint::Progress;
use gradwire::recipe::Recipe;
use gradwire::record::{FileSum, Provenance};
use gradwire::train::course::Course;
use gradwire::train::session::{file_sums, load};
use gradwire_datasets as datasets;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// What the command line asks of an experiment.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// How many seeds, from 1; absent for the scale's own.
    pub seeds: Option<u64>,
    /// Tasks and arms, by name with or without values: those arms on those tasks. `task/arm` adds
    /// this one. Empty for all.
    pub only: Vec<String>,
    /// Where data sets are, if not where the recipes say.
    pub dir: Option<String>,
    /// `path=value` pairs that change every recipe.
    pub sets: Vec<String>,
}

/// The runs of an experiment at a scale.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Every task of the scale.
    pub tasks: Vec<Choice>,
    /// Every arm of the scale.
    pub arms: Vec<Choice>,
    /// In the order of seeds, tasks and arms: what is cut short has compared something.
    pub runs: Vec<Planned>,
}

impl Grid {
    /// The runs that were asked for.
    pub fn wanted(&self) -> impl Iterator<Item = &Planned> {
        self.runs.iter().filter(|planned| planned.wanted)
    }

    /// What is planned in the place of a run, if the grid has one for it.
    pub(super) fn planned(&self, run: &Run) -> Option<&Planned> {
        self.runs.iter().find(|planned| planned.has_place_of(run))
    }
}

/// A run that is to be made.
#[derive(Clone, Debug)]
pub struct Planned {
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
    /// The files of its data set.
    pub data: Vec<FileSum>,
}

impl Planned {
    /// Whether a run is of this task, arm and seed, whatever else it is.
    pub(super) fn has_place_of(&self, run: &Run) -> bool {
        (&self.task, &self.arm, self.recipe.seed) == (&run.task, &run.arm, run.seed)
    }

    /// What about a run of this recipe, made by this program on these data, is not as planned.
    pub(super) fn change(
        &self,
        recipe: &Recipe,
        provenance: &Provenance,
    ) -> Result<Option<String>> {
        let changes = recipe.changes(&self.recipe)?;
        let decisive =
            |key: &str| key == "workers" || key == "train.epochs" || key == "train.max_steps";
        let change = changes.iter().find(|c| c.objection.is_some() || decisive(&c.key));
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
    pub fn plan(experiment: &Experiment, scale: &Scale, wish: &Wish, out: &Path) -> Result<Self> {
        let mut sizes = Sizes::default();
        Self::plan_with(experiment, scale, wish, out, &mut |recipe| sizes.of(recipe))
    }

    /// Plans the runs over data sets of the sizes that `size` tells.
    fn plan_with(
        experiment: &Experiment,
        scale: &Scale,
        wish: &Wish,
        out: &Path,
        size: &mut dyn FnMut(&Recipe) -> Result<Size>,
    ) -> Result<Self> {
        ensure!(
            !wish.sets.iter().any(|set| names_seed(set)),
            "--set seed: every run has a seed of its own; --seeds N makes runs with seeds 1 to N"
        );
        let setting = experiment.scales.get(scale).with_context(|| {
            let there: Vec<&str> = experiment.scales.keys().map(Scale::name).collect();
            format!("it has no scale {}, but {}", scale.name(), there.join(", "))
        })?;
        let chosen = |task: &Choice| {
            setting.tasks.as_ref().is_none_or(|names| names.iter().any(|name| task.is(name)))
        };
        let mut tasks = experiment.task_choices();
        tasks.retain(chosen);
        let mut arms = experiment.arm_choices();
        arms.retain(|arm| tasks.iter().any(|task| setting.trains(task, arm)));
        let some = |of: &dyn Fn(&Choice, &Choice) -> bool| {
            let mut pairs = tasks.iter().flat_map(|task| arms.iter().map(move |arm| (task, arm)));
            pairs.any(|(task, arm)| setting.trains(task, arm) && of(task, arm))
        };
        for name in &wish.only {
            ensure!(
                some(&|task, arm| task.is(name) || arm.is_named(name, task)),
                "--only {name:?} is no task and no arm of this scale; tasks: {}; arms: {}; or \
                 task/arm",
                names(&tasks),
                names(&arms)
            );
        }
        ensure!(
            some(&|task, arm| asked(&wish.only, &tasks, task, arm)),
            "--only {}: this scale trains none of these arms on any of these tasks",
            wish.only.join(",")
        );
        let seeds = wish.seeds.map_or_else(|| setting.seeds.clone(), |n| (1..=n).collect());
        let wanted = |task: &Choice, arm: &Choice, seed: u64| {
            seeds.contains(&seed) && asked(&wish.only, &tasks, task, arm)
        };
        let more = setting.seeds.iter().copied().filter(|seed| !seeds.contains(seed));
        let all_seeds: Vec<u64> = seeds.iter().copied().chain(more).collect();
        let mut runs = Vec::new();
        for seed in &all_seeds {
            for task in &tasks {
                for arm in arms.iter().filter(|arm| setting.trains(task, arm)) {
                    let wanted = wanted(task, arm, *seed);
                    let plan =
                        Plan { experiment, setting, wish, task, arm, seed: *seed, wanted, out };
                    let planned = plan.planned(size);
                    let planned = planned.with_context(|| {
                        format!("{} with {}, seed {seed}", task.label.name, arm.label.name)
                    });
                    runs.push(planned?);
                }
            }
        }
        let grid = Self { tasks, arms, runs };
        grid.can_be_timed(experiment, scale)?;
        Ok(grid)
    }

    /// Whether the runs will leave what claims about speed are measured on.
    fn can_be_timed(&self, experiment: &Experiment, scale: &Scale) -> Result<()> {
        let timed = experiment.claims.iter().filter(|claim| claim.measure.is_timed());
        for claim in timed.filter(|claim| claim.is_for(scale)) {
            let silent = |run: &Planned| {
                claim.is_of(&run.task, &run.arm) && run.recipe.record.gradients == 0
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
    /// Whether `only`, the names of a wish, speaks of an arm on a task; no names speak of all.
    pub fn is_asked(&self, only: &[String], task: &str, arm: &str) -> bool {
        let (tasks, arms) = (self.task_choices(), self.arm_choices());
        let task = tasks.iter().find(|choice| choice.label.name == task);
        let arm = arms.iter().find(|choice| choice.label.name == arm);
        task.zip(arm).is_some_and(|(task, arm)| asked(only, &tasks, task, arm))
    }
}

/// Whether `only`, the names of a wish, speaks of an arm on one of the `tasks`.
fn asked(only: &[String], tasks: &[Choice], task: &Choice, arm: &Choice) -> bool {
    let (pairs, names): (Vec<&String>, Vec<_>) = only.iter().partition(|name| name.contains('/'));
    let is_task = |name: &&String| tasks.iter().any(|task| task.is(name));
    let (of_tasks, of_arms): (Vec<&String>, Vec<_>) = names.into_iter().partition(is_task);
    let task_is_asked = of_tasks.is_empty() || of_tasks.iter().any(|name| task.is(name));
    let arm_is_asked = of_arms.is_empty() || of_arms.iter().any(|name| arm.is(name));
    let only_pairs = !pairs.is_empty() && of_tasks.is_empty() && of_arms.is_empty();
    let is_pair = pairs.iter().any(|name| arm.is_named(name, task));
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

/// What a run's recipe is made of.
struct Plan<'a> {
    experiment: &'a Experiment,
    setting: &'a Setting,
    wish: &'a Wish,
    task: &'a Choice,
    arm: &'a Choice,
    seed: u64,
    wanted: bool,
    out: &'a Path,
}

impl Plan<'_> {
    fn planned(&self, size: &mut dyn FnMut(&Recipe) -> Result<Size>) -> Result<Planned> {
        let (task, arm) = (&self.task.label.name, &self.arm.label.name);
        let mut own = Table::new();
        own.insert("name".into(), format!("{task}-{arm}").into());
        own.insert("seed".into(), Value::Integer(i64::try_from(self.seed)?));
        let record = Table::from_iter([("out".into(), self.out.to_string_lossy().as_ref().into())]);
        own.insert("record".into(), record.into());
        let setting = self.setting;
        let mut layers = vec![&self.experiment.recipe, &self.task.recipe, &self.arm.recipe];
        layers.push(&setting.recipe);
        layers.extend(own_layers(&setting.task, self.task));
        layers.extend(own_layers(&setting.arm, self.arm));
        let on_the_task = |name: &str| name.contains('/') && self.arm.is_named(name, self.task);
        layers.extend(setting.arm.iter().filter(|(name, _)| on_the_task(name)).map(|(_, own)| own));
        layers.push(&own);
        let table = Recipe::layered(layers, &self.wish.sets)?;
        // The number of steps does not depend on what stands in its place.
        let draft = self.recipe(&table, 1)?;
        let Size { samples, data } = size(&draft)?;
        let steps = Course::new(&draft, samples[0], Progress::START)?.last_step();
        let folder = Path::new(task).join(arm).join(format!("seed-{}", self.seed));
        let mut recipe = self.recipe(&table, i64::try_from(steps)?)?;
        // A short run has histograms too.
        let every = &mut recipe.record.histograms_every;
        *every = (*every).min((steps / HISTOGRAMS).max(1));
        Ok(Planned {
            task: task.clone(),
            arm: arm.clone(),
            wanted: self.wanted,
            folder,
            recipe,
            steps,
            samples,
            data,
        })
    }

    fn recipe(&self, table: &Table, steps: i64) -> Result<Recipe> {
        let mut table = table.clone();
        replace(&mut table, STEPS, &Value::Integer(steps.max(1)));
        let recipe = Recipe::from_table(table)?;
        recipe.may_run()?;
        match &self.wish.dir {
            Some(dir) if reads_files(&recipe) => recipe.with("dataset.dir", dir.as_str()),
            _ => Ok(recipe),
        }
    }
}

/// What is said of a task or an arm, first by its name without values.
fn own_layers<'t>(tables: &'t BTreeMap<String, Table>, choice: &Choice) -> Vec<&'t Table> {
    let names = [&choice.member, &choice.label.name];
    let mut layers: Vec<&Table> = names.iter().filter_map(|name| tables.get(*name)).collect();
    layers.dedup();
    layers
}

/// Whether the data set comes from files in a folder.
fn reads_files(recipe: &Recipe) -> bool {
    Table::try_from(&recipe.dataset).is_ok_and(|table| table.contains_key("dir"))
}

/// The sizes of data sets, each read once.
#[derive(Default)]
struct Sizes {
    known: Vec<(datasets::Config, Size)>,
}

#[derive(Clone)]
struct Size {
    /// Training and test samples.
    samples: [usize; 2],
    data: Vec<FileSum>,
}

impl Sizes {
    fn of(&mut self, recipe: &Recipe) -> Result<Size> {
        if let Some((_, size)) = self.known.iter().find(|(config, _)| *config == recipe.dataset) {
            return Ok(size.clone());
        }
        let data = load(recipe, None)?;
        let size = Size { samples: [data.train.len(), data.test.len()], data: file_sums(&data) };
        self.known.push((recipe.dataset.clone(), size.clone()));
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(experiment: &Experiment, scale: &str, wish: &Wish) -> Result<Grid> {
        let size = Size { samples: [50_000, 10_000], data: Vec::new() };
        Grid::plan_with(
            experiment,
            &scale.into(),
            wish,
            Path::new("out"),
            &mut |_| Ok(size.clone()),
        )
    }

    #[test]
    fn every_built_in_experiment_can_be_run_at_every_scale() {
        let all = Experiment::built_in();
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["aggregation", "casq", "dqsgd", "grace", "optquant", "sidco"]);
        for (name, _) in all {
            let (_, experiment) = Experiment::load(&name).unwrap_or_else(|e| panic!("{e:#}"));
            for scale in Scale::USUAL {
                let grid = plan(&experiment, scale, &Wish::default());
                let grid = grid.unwrap_or_else(|e| panic!("{name}, {scale}: {e:#}"));
                let seeds = experiment.scales[&scale.into()].seeds.len();
                assert_eq!(grid.runs.len() % seeds, 0);
                for task in &grid.tasks {
                    let baseline =
                        |r: &Planned| r.task == task.label.name && r.arm == experiment.baseline;
                    assert!(grid.runs.iter().any(baseline), "{name}, {scale}");
                }
                for run in &grid.runs {
                    assert!(run.recipe.record.histograms_every <= (run.steps / 4).max(1));
                    assert!(scale != "smoke" || run.steps <= 4, "{name}: {}", run.steps);
                    let least = match scale {
                        "smoke" => 1,
                        // What is only timed need not converge.
                        "standard" => 60,
                        _ => 150,
                    };
                    assert!(run.steps >= least, "{name}: {}", run.steps);
                }
            }
            // A claim that no scale can test is no claim.
            for claim in &experiment.claims {
                assert!(claim.scales.iter().flatten().next().is_some(), "{name}: {}", claim.claim);
                for scale in claim.scales.iter().flatten() {
                    let grid = plan(&experiment, scale.name(), &Wish::default()).unwrap();
                    for arm in [Some(&claim.arm), claim.against.as_ref()].into_iter().flatten() {
                        let of = |run: &Planned| {
                            claim.tasks().any(|t| *t == run.task) && run.arm == *arm
                        };
                        assert!(grid.runs.iter().any(of), "{name}: {}", claim.claim);
                    }
                }
            }
        }
    }

    const TINY: &str = r#"
        title = "t"
        paper = "p"
        baseline = "dense"
        links = ["1gbit"]
        claims = []
        [recipe]
        dataset = "synthetic-cifar10"
        model = "resnet20"
        [[tasks]]
        name = "few"
        label = "{n} workers"
        over = { n = [2, 4] }
        recipe = { workers = "{n}", train.batch = 50 }
        [[arms]]
        name = "dense"
        label = "dense"
        recipe.scheme = "dense"
        [[arms]]
        name = "dqsgd"
        label = "DQ-SGD"
        recipe.scheme = { kind = "dqsgd", horizon = "{steps}" }
        [scales.quick]
        about = "a"
        seeds = [1, 2]
        recipe.train.epochs = 3
        task.few-4.train.batch = 25
        arm.dqsgd.scheme = { gap = 7, window = 3 }
        arm."few-4/dqsgd".scheme.gap = 9
    "#;

    #[test]
    fn layers_are_laid_in_order_and_the_steps_are_known() {
        let experiment = Experiment::parse(TINY).unwrap();
        let grid = plan(&experiment, "quick", &Wish::default()).unwrap();
        assert_eq!(grid.runs.len(), 8);
        let run = |task: &str, arm: &str| {
            grid.runs.iter().find(|run| run.task == task && run.arm == arm).unwrap()
        };
        let (two, four) = (run("few-2", "dqsgd"), run("few-4", "dqsgd"));
        assert_eq!((two.recipe.workers, two.recipe.train.batch, two.steps), (2, 50, 1500));
        assert_eq!((four.recipe.workers, four.recipe.train.batch, four.steps), (4, 25, 1500));
        assert!(two.recipe.scheme_in_words().contains("horizon=1500"));
        for (run, gap) in [(two, "gap=7"), (four, "gap=9")] {
            let words = run.recipe.scheme_in_words();
            assert!(words.contains(gap) && words.contains("window=3"), "{words}");
        }
        assert_eq!(grid.tasks[1].label.label, "4 workers");
        assert_eq!(four.folder, Path::new("few-4/dqsgd/seed-1"));
        assert_eq!(grid.runs[4].recipe.seed, 2, "all of one seed come before the next");
    }

    #[test]
    fn what_is_asked_for_is_what_is_run() {
        let experiment = Experiment::parse(TINY).unwrap();
        let only = |names: &[&str]| {
            let only = names.iter().map(ToString::to_string).collect();
            let sets = vec!["train.epochs=1".to_string()];
            plan(&experiment, "quick", &Wish { seeds: Some(3), only, dir: None, sets })
        };
        let wanted = |names: &[&str]| only(names).unwrap().wanted().count();
        assert_eq!(wanted(&["few-4/dense"]), 3);
        assert_eq!(wanted(&["dqsgd"]), 6);
        assert_eq!(wanted(&["few"]), 12);
        assert_eq!(wanted(&["few-4", "dqsgd"]), 3, "that arm on that task");
        assert_eq!(wanted(&["few-4", "dqsgd", "few-2/dense"]), 6);
        assert_eq!(
            only(&["dqsgd"]).unwrap().runs.len(),
            12,
            "the others may have been made before"
        );
        assert_eq!(only(&["few"]).unwrap().runs[0].steps, 500);
        let refusal = format!("{:#}", only(&["fwe"]).unwrap_err());
        assert!(refusal.contains("few-2, few-4") && refusal.contains("dqsgd"), "{refusal}");
        let refusal = plan(&experiment, "full", &Wish::default()).unwrap_err();
        assert!(format!("{refusal:#}").contains("quick"), "{refusal:#}");
    }

    #[test]
    fn a_scale_may_train_an_arm_on_one_task_only() {
        let some =
            TINY.replace("seeds = [1, 2]", "seeds = [1]\narms = [\"dense\", \"few-4/dqsgd\"]");
        let experiment = Experiment::parse(&some).unwrap();
        let grid = plan(&experiment, "quick", &Wish::default()).unwrap();
        let runs: Vec<[&str; 2]> = grid.runs.iter().map(|r| [&*r.task, &*r.arm]).collect();
        assert_eq!(runs, [["few-2", "dense"], ["few-4", "dense"], ["few-4", "dqsgd"]]);
        let only = vec!["few-2/dqsgd".to_string()];
        let refusal = plan(&experiment, "quick", &Wish { only, ..Wish::default() }).unwrap_err();
        assert!(format!("{refusal:#}").contains("few-2/dqsgd"), "{refusal:#}");
        let only = vec!["few-2".to_string(), "dqsgd".into()];
        let refusal = plan(&experiment, "quick", &Wish { only, ..Wish::default() }).unwrap_err();
        assert!(format!("{refusal:#}").contains("none of these arms"), "{refusal:#}");
    }

    #[test]
    fn experiments_that_cannot_be_are_refused() {
        for (from, to, part) in [
            ("baseline = \"dense\"", "baseline = \"dnse\"", "baseline"),
            ("links = [\"1gbit\"]", "links = [\"1gbat\"]", "links"),
            ("seeds = [1, 2]", "seeds = []", "seeds"),
            ("seeds = [1, 2]", "seeds = [1]\narms = [\"few-3/dense\"]", "few-3/dense"),
            ("seeds = [1, 2]", "seeds = [1]\narms = [\"few-4/dnse\"]", "few-4/dnse"),
            ("task.few-4", "task.few-5", "few-5"),
            ("name = \"dqsgd\"", "name = \"dense\"", "twice"),
            ("name = \"few\"", "name = \"../few\"", "folder"),
            ("title =", "titel =", "titel"),
        ] {
            let error = Experiment::parse(&TINY.replace(from, to)).unwrap_err();
            assert!(format!("{error:#}").contains(part), "{to}: {error:#}");
        }
    }
}
