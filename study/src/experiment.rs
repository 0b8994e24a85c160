//! An experiment as TOML: what is trained, what is compared, at which scales, and what is claimed.

use crate::claim::{Claim, Margin, Measure, Sentence};
use crate::names;
use crate::results::Label;
use crate::scale::Scale;
use anyhow::{Context, Result, bail, ensure};
use gradwire::recipe::{Recipes, nearest, schema};
use gradwire_exchange::network::Link;
use include_dir::{Dir, include_dir};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use toml::{Table, Value};

static BUILT_IN: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../runs/reproduce");

/// An experiment: every task is trained with every arm and seed.
///
/// A run's recipe is made of layers, each of which changes those before it: the
/// experiment's, the task's, the arm's, the scale's, the scale's for the task, the scale's for the
/// arm, the scale's for the arm on the task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// What it is about, in one line.
    pub title: String,
    /// The paper: authors, year, title, venue. Empty for a question of one's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub paper: String,
    /// The arm that the others are compared with.
    pub baseline: String,
    /// Links that runs are replayed on (`gradwire network links`).
    #[serde(default)]
    pub links: Vec<String>,
    /// What all runs have in common.
    #[serde(default)]
    #[schemars(schema_with = "schema::layer")]
    pub recipe: Table,
    /// What is trained.
    pub tasks: Vec<Member>,
    /// What is compared.
    pub arms: Vec<Member>,
    /// The scales that it can be run at.
    pub scales: BTreeMap<Scale, Setting>,
    /// How much worse than another an arm may be and still count as being as good, by what is measured.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub margins: BTreeMap<Measure, Margin>,
    /// The paper's abstract, sentence by sentence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sentences: Vec<Sentence>,
    /// What is claimed.
    #[serde(default)]
    pub claims: Vec<Claim>,
}

/// The file in an experiment's folder that holds its definition.
pub const FILE: &str = "experiment.toml";

/// Bytes of the largest such file.
pub(super) const MAX_BYTES: u64 = 1 << 20;

/// The scale that is run when none is named.
const USUAL: &str = "standard";

/// A task or an arm, or several that differ in a few values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its name, which becomes a folder; where there is something to go `over`, the values follow.
    pub name: String,
    /// What it is called in front of people. `{ratio}` is the value of `ratio`.
    pub label: String,
    /// Values to go over: one member for each combination. Where the recipe says `"{ratio}"`, the
    /// value of `ratio` stands.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, Vec<serde_json::Value>>")]
    pub over: BTreeMap<String, Vec<Value>>,
    /// What it changes in the recipe.
    #[serde(default)]
    #[schemars(schema_with = "schema::layer")]
    pub recipe: Table,
}

/// What is done at a scale.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// What is done, and where it differs from the paper, in sentences.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// What every random stream derives from, for each repetition.
    pub seeds: Vec<u64>,
    /// Tasks, by name with or without their values; absent for all.
    pub tasks: Option<Vec<String>>,
    /// Arms, by name with or without their values, on every task or as `task/arm` on that one;
    /// absent for all.
    pub arms: Option<Vec<String>>,
    /// What it changes in every recipe.
    #[serde(default)]
    #[schemars(schema_with = "schema::layer")]
    pub recipe: Table,
    /// What it changes in the recipes of a task, by name with or without its values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::layers")]
    pub task: BTreeMap<String, Table>,
    /// What it changes in the recipes of an arm, by name with or without its values, on every task or
    /// as `task/arm` on that one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::layers")]
    pub arm: BTreeMap<String, Table>,
}

/// A task or an arm of a grid: a [`Member`] with its values put in.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Name and label, and the member's name where it is one of several values.
    pub label: Label,
    /// What it changes in the recipe.
    pub recipe: Table,
}

impl Choice {
    /// Whether a name, with or without values, is the name of this.
    pub fn matches(&self, name: &str) -> bool {
        name == self.label.name || (!name.is_empty() && name == self.label.member)
    }

    /// Whether a name, `task/arm` or that of an arm alone, is the name of this arm on that task.
    pub fn matches_on(&self, task: &Self, name: &str) -> bool {
        match name.split_once('/') {
            Some((task_name, arm_name)) => task.matches(task_name) && self.matches(arm_name),
            None => self.matches(name),
        }
    }
}

impl Setting {
    /// Whether an arm is trained on a task.
    pub fn trains(&self, task: &Choice, arm: &Choice) -> bool {
        self.arms.as_ref().is_none_or(|names| names.iter().any(|name| arm.matches_on(task, name)))
    }
}

impl Setting {
    /// Whether the scale has a task.
    pub fn has(&self, task: &Choice) -> bool {
        self.tasks.as_ref().is_none_or(|names| names.iter().any(|name| task.matches(name)))
    }
}

impl Member {
    /// One choice for each combination of the values that it goes over.
    pub fn choices(&self) -> Vec<Choice> {
        let mut rows: Vec<Vec<(&String, &Value)>> = vec![Vec::new()];
        for (key, values) in &self.over {
            let mut longer = Vec::new();
            for row in &rows {
                longer.extend(values.iter().map(|value| [&row[..], &[(key, value)]].concat()));
            }
            rows = longer;
        }
        rows.iter().map(|row| self.choice(row)).collect()
    }

    fn choice(&self, values: &[(&String, &Value)]) -> Choice {
        let (mut name, mut label) = (self.name.clone(), self.label.clone());
        let mut recipe = self.recipe.clone();
        for (key, value) in values {
            let (placeholder, text) = (format!("{{{key}}}"), plain(value));
            let in_folder = text.replace(|c: char| !c.is_alphanumeric() && c != '.', "-");
            name += &format!("-{in_folder}");
            label = label.replace(&placeholder, &text);
            replace(&mut recipe, &placeholder, value);
        }
        let member = if values.is_empty() { String::new() } else { self.name.clone() };
        Choice { label: Label { name, label, member }, recipe }
    }
}

/// A value as people write it: text without quotation marks.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Puts `value` wherever a text is exactly `placeholder`.
pub(super) fn replace(table: &mut Table, placeholder: &str, value: &Value) {
    table.iter_mut().for_each(|(_, at)| replace_in(at, placeholder, value));
}

fn replace_in(at: &mut Value, placeholder: &str, value: &Value) {
    match at {
        Value::String(text) if text == placeholder => *at = value.clone(),
        Value::Table(table) => replace(table, placeholder, value),
        Value::Array(array) => array.iter_mut().for_each(|at| replace_in(at, placeholder, value)),
        _ => {}
    }
}

const FOLDER: &str = "becomes a folder: use letters, digits, '-', '_' and '.'";

/// Whether a name can be that of a folder.
fn is_folder(name: &str) -> bool {
    !name.is_empty() && name.chars().all(names::is_plain) && !name.starts_with('.')
}

impl Experiment {
    /// Name and text of each experiment built into the program, by name.
    pub fn built_in() -> Vec<(String, &'static str)> {
        let texts = BUILT_IN.files().filter_map(|file| {
            Some((file.path().file_stem()?.to_str()?.to_string(), file.contents_utf8()?))
        });
        let mut all: Vec<_> = texts.collect();
        all.sort();
        all
    }

    /// The experiment of a name, or in a TOML file, and its name.
    ///
    /// # Errors
    /// When there is none (with the nearest name), or it says what cannot be.
    pub fn load(name: &str) -> Result<(String, Self)> {
        let all = Self::built_in();
        let parse = |text: &str| Self::parse(text).with_context(|| format!("experiment {name}"));
        if let Some((_, text)) = all.iter().find(|(built_in, _)| built_in == name) {
            return Ok((name.into(), parse(text)?));
        }
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        let path = Path::new(name);
        if !path.is_file() {
            if Recipes::all().iter().any(|(recipe, _)| recipe == name) {
                bail!("{name} is a recipe, not an experiment: gradwire train {name}");
            }
            let near = nearest(name, &names);
            let near = near.map_or_else(|| ".".into(), |near| format!("; did you mean `{near}`?"));
            bail!(
                "there is no experiment {name:?}{near} Built in are {}; a file is named with its .toml",
                names.join(", ")
            );
        }
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        let experiment = parse(&text)?;
        Ok((experiment.name_in(path), experiment))
    }

    /// The name of the experiment in a file: the file's, or, where the file is the
    /// [`experiment.toml`](FILE) in a folder of results, the one that the folder begins with.
    fn name_in(&self, path: &Path) -> String {
        let text = |part: Option<&std::ffi::OsStr>| {
            part.unwrap_or_default().to_string_lossy().into_owned()
        };
        let folder = path.canonicalize().unwrap_or_default();
        let folder = text(folder.parent().and_then(Path::file_name));
        let begins = |scale: &Scale| folder.strip_suffix(&format!("-{}", scale.name()));
        let named =
            self.scales.keys().find_map(begins).filter(|_| path.file_name() == Some(FILE.as_ref()));
        named.map_or_else(|| text(path.file_stem()), Into::into)
    }

    /// The scale of a name; without one `standard`, or the only one that there is.
    ///
    /// # Errors
    /// When there is no such scale, or several and none is named.
    pub fn scale(&self, name: Option<&str>) -> Result<Scale> {
        let mut all = self.scales.keys();
        let scale = match (name, all.next(), all.next()) {
            (Some(name), ..) => Scale::from(name),
            (None, Some(only), None) => only.clone(),
            (None, ..) => Scale::from(USUAL),
        };
        self.setting(&scale)?;
        Ok(scale)
    }

    /// What is done at a scale.
    ///
    /// # Errors
    /// When there is no such scale.
    pub(super) fn setting(&self, scale: &Scale) -> Result<&Setting> {
        self.scales.get(scale).with_context(|| {
            let all: Vec<&str> = self.scales.keys().map(Scale::name).collect();
            let (name, all) = (scale.name(), all.join(", "));
            format!("it has no scale {name}, but {all}: name one with --scale")
        })
    }

    /// An experiment's TOML, typed and checked.
    ///
    /// # Errors
    /// Names the key and what to write instead.
    pub fn parse(text: &str) -> Result<Self> {
        let mut experiment: Self = toml::from_str(text).map_err(|error| {
            let found: Table = toml::from_str(text).unwrap_or_default();
            schema::all_that_is_missing(error.into(), "experiment", &schema::of::<Self>(), found)
        })?;
        let Self { margins, claims, .. } = &mut experiment;
        for claim in claims {
            let filled = claim.fill_in(margins);
            filled.with_context(|| format!("claim {:?}", claim.claim))?;
        }
        experiment.validate()?;
        Ok(experiment)
    }

    /// Every task.
    pub fn task_choices(&self) -> Vec<Choice> {
        self.tasks.iter().flat_map(Member::choices).collect()
    }

    /// Every arm.
    pub fn arm_choices(&self) -> Vec<Choice> {
        self.arms.iter().flat_map(Member::choices).collect()
    }

    /// Checks what no type can express.
    ///
    /// # Errors
    /// Names the key and what to write instead.
    pub(super) fn validate(&self) -> Result<()> {
        let (tasks, arms) = (self.task_choices(), self.arm_choices());
        for (what, choices) in [("tasks", &tasks), ("arms", &arms)] {
            ensure!(!choices.is_empty(), "{what}: there must be at least one");
            let mut names = BTreeSet::new();
            for Choice { label, .. } in choices {
                ensure!(is_folder(&label.name), "{what}: the name {:?} {FOLDER}", label.name);
                ensure!(names.insert(&label.name), "{what}: {:?} is there twice", label.name);
            }
        }
        let known = |what: &str, choices: &[Choice], name: &str| {
            ensure!(choices.iter().any(|c| c.matches(name)), "{what}: there is no {name:?}");
            Ok(())
        };
        known("baseline", &arms, &self.baseline)?;
        for link in &self.links {
            Link::parse(link).with_context(|| format!("links: {link:?}"))?;
        }
        for (scale, setting) in &self.scales {
            let at = |key: &str| format!("scales.{}.{key}", scale.name());
            ensure!(is_folder(scale.name()), "scales: the name {:?} {FOLDER}", scale.name());
            ensure!(!setting.seeds.is_empty(), "{}: at least one is needed", at("seeds"));
            let mut seeds = BTreeSet::new();
            for seed in &setting.seeds {
                ensure!(seeds.insert(seed), "{}: {seed} is there twice", at("seeds"));
            }
            let mut some_tasks = setting.tasks.iter().flatten().chain(setting.task.keys());
            some_tasks.try_for_each(|name| known(&at("task"), &tasks, name))?;
            let trained = setting.arms.iter().flatten().map(|name| ("arms", name));
            let changed = setting.arm.keys().map(|name| ("arm", name));
            for (key, name) in trained.chain(changed) {
                let is_there = |task: &Choice| arms.iter().any(|arm| arm.matches_on(task, name));
                ensure!(tasks.iter().any(is_there), "{}: there is no {name:?}", at(key));
            }
        }
        let names = |choices: &[Choice]| choices.iter().map(|c| c.label.name.clone()).collect();
        let (tasks, arms): (Vec<_>, Vec<_>) = (names(&tasks), names(&arms));
        self.claims.iter().try_for_each(|claim| {
            let at = || format!("claim {:?}", claim.claim);
            claim.validate(&tasks, &arms, &self.links).with_context(at)?;
            for scale in claim.scales.iter().flatten() {
                let names: Vec<&str> = self.scales.keys().map(Scale::name).collect();
                let known = self.scales.contains_key(scale);
                let problem = || {
                    format!(
                        "{}: scales: there is no {:?}; there are {}",
                        at(),
                        scale.name(),
                        names.join(", ")
                    )
                };
                ensure!(known, problem());
            }
            Ok(())
        })?;
        for (measure, margin) in &self.margins {
            let size = margin.size;
            ensure!(size > 0.0, "margins: {} = {size} must be above 0", measure.words());
        }
        self.validate_sentences()
    }

    /// Whether every sentence of the abstract is tested, or says why not, and every claim names one that
    /// is there.
    fn validate_sentences(&self) -> Result<()> {
        let tests = |claim: &Claim, name: &String| claim.sentence.as_ref() == Some(name);
        for Sentence { name, like, untested, .. } in &self.sentences {
            let is_tested = |name| self.claims.iter().any(|claim| tests(claim, name));
            if let Some(like) = like {
                ensure!(
                    is_tested(like),
                    "sentences: {name:?} is like {like:?}, which no claim tests"
                );
            }
            ensure!(
                untested.is_some() || like.is_some() || is_tested(name),
                "sentences: {name:?} is tested by no claim: write why in `untested`"
            );
            let same = self.sentences.iter().filter(|other| other.name == *name);
            ensure!(same.count() == 1, "sentences: {name:?} is there twice");
        }
        for claim in self.claims.iter().filter(|claim| claim.sentence.is_some()) {
            let is_there = self.sentences.iter().any(|sentence| tests(claim, &sentence.name));
            ensure!(is_there, "claim {:?}: there is no sentence {:?}", claim.claim, claim.sentence);
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two tasks, two arms and a scale.
    pub(crate) const TINY: &str = r#"
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

    #[test]
    fn what_no_run_could_meet_is_refused() {
        let claim = "{ claim = 'c', task = 'few-2', arm = 'dense', measure = 'accuracy', MORE }";
        let with = |more: &str| {
            let claims = format!("claims = [{}]", claim.replace("MORE", more));
            Experiment::parse(&TINY.replace("claims = []", &claims))
        };
        assert!(with("at_least = 0.5, scales = ['quick']").is_ok());
        assert!(with("at_least = 0.5, at_most = 0.5").is_err());
        let error = format!("{:#}", with("at_least = 0.5, scales = ['quik']").unwrap_err());
        assert!(error.contains("\"quik\"") && error.contains("quick"), "{error}");
        assert!(Experiment::parse(&TINY.replace("[1, 2]", "[1, 1]")).is_err());
        let margin = "[margins.accuracy]\nsize = -0.01\nwhy = 'w'";
        assert!(Experiment::parse(&format!("{TINY}\n{margin}")).is_err());
    }

    /// A margin stands for the bound of every claim that says "as good as", and a sentence of the abstract
    /// is tested or says why not.
    #[test]
    fn margins_are_filled_in_and_sentences_are_covered() {
        let with = |margin: &str, claim: &str, sentence: &str| {
            let claim = format!(
                "[[claims]]\nclaim = 'c'\ntask = 'few-2'\narm = 'dqsgd'\nagainst = 'dense'\n\
                 compare = 'difference'\n{claim}"
            );
            let text =
                TINY.replace("claims = []", "") + "\n" + margin + "\n" + sentence + "\n" + &claim;
            Experiment::parse(&text)
        };
        let margin =
            "[margins.accuracy]\nsize = 0.01\nwhy = 'w'\n[margins.loss]\nsize = 0.05\nwhy = 'w'";
        let no_worse = "measure = 'accuracy'\nno_worse = true";
        let parsed = with(margin, no_worse, "").unwrap();
        assert_eq!((parsed.claims[0].at_least, parsed.claims[0].at_most), (Some(-0.01), None));
        let again = Experiment::parse(&toml::to_string(&parsed).unwrap()).unwrap();
        assert_eq!(again, parsed, "what is filled in stays so");
        let loss = with(margin, "measure = 'loss'\nno_worse = true", "").unwrap();
        assert_eq!((loss.claims[0].at_least, loss.claims[0].at_most), (None, Some(0.05)));
        let fewer =
            "[margins.reduction]\nsize = 5\nwhy = 'w'\n[margins.gauge]\nsize = 1\nwhy = 'w'";
        let reduction = with(fewer, "measure = 'reduction'\nno_worse = true", "").unwrap();
        assert_eq!((reduction.claims[0].at_least, reduction.claims[0].at_most), (Some(-5.0), None));
        let sentence = |more: &str| format!("[[sentences]]\nname = 's'\nsays = 't'\n{more}");
        assert!(with(margin, no_worse, &sentence("untested = 'u'")).is_ok());
        assert!(with(margin, &format!("{no_worse}\nsentence = 's'"), &sentence("")).is_ok());
        for (margin, claim, sentence, part) in [
            ("", no_worse.to_string(), String::new(), "needs a margin for test accuracy"),
            (margin, format!("{no_worse}\nat_least = -0.02"), String::new(), "leave at_least"),
            (
                fewer,
                "measure = 'gauge'\ngauge = 'kept_ratio'\nno_worse = true".to_string(),
                String::new(),
                "which way a gauge is better",
            ),
            (margin, no_worse.to_string(), sentence(""), "\"s\" is tested by no claim"),
            (margin, format!("{no_worse}\nsentence = 'r'"), String::new(), "there is no sentence"),
            (margin, no_worse.to_string(), sentence("like = 'r'"), "which no claim tests"),
        ] {
            let error = format!("{:#}", with(margin, &claim, &sentence).unwrap_err());
            assert!(error.contains(part), "{part}: {error}");
        }
        let itself = "[[claims]]\nclaim = 'c'\ntask = 'few-2'\narm = 'dqsgd'\nagainst = 'dqsgd'\nmeasure = 'accuracy'\n\
                      compare = 'difference'\nat_least = 0";
        let error = Experiment::parse(&(TINY.replace("claims = []", "") + "\n" + itself));
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.contains("names the arm itself"), "{error}");
    }
}
