//! An experiment from a question: a recipe, values to go over, and what is to be answered.

use crate::experiment::{Choice, Experiment, Member, Setting, plain};
use crate::names;
use crate::question::Question;
use crate::results::Label;
use crate::scale::Scale;
use anyhow::{Context, Result, ensure};
use gradwire::recipe::{Recipe, split_values};
use gradwire_exchange::Scheme;
use std::collections::BTreeMap;
use toml::{Table, Value};

/// The only scale of a sweep.
pub const SCALE: &str = "sweep";

/// What a sweep is made of.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The recipe as it is written, with the command line's changes.
    pub recipe: Table,
    /// Paths of recipe values, each with the values that it takes in turn.
    pub over: Vec<Over>,
    /// What is to be answered.
    pub questions: Vec<Question>,
    /// The arm that tables compare the others with; absent for dense, or else the first.
    pub baseline: Option<String>,
    /// Links for times, besides those that questions name.
    pub links: Vec<String>,
    /// Every run is made with seeds 1 to this.
    pub seeds: u64,
}

/// A path of a recipe and the values that it takes in turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Over {
    pub(crate) path: String,
    pub(crate) values: Vec<Value>,
}

impl Over {
    /// Reads `scheme=dense,topk` or `scheme.ratio=0.1,0.01`, given to `flag`.
    ///
    /// # Errors
    /// When there is no `=`, or no value.
    pub fn parse(flag: &str, text: &str) -> Result<Self> {
        let (path, values) = text.split_once('=').with_context(|| {
            format!("{flag} {text:?} has no '='; write {flag} optimizer.learning_rate=0.1,0.2")
        })?;
        let values = split_values(values);
        ensure!(!values.is_empty(), "{flag} {text:?} names no value");
        let path = path.trim();
        ensure!(
            path != "seed",
            "{flag} seed: runs of an arm differ in nothing else; write --seeds N"
        );
        Ok(Self { path: path.strip_suffix(".kind").unwrap_or(path).to_string(), values })
    }

    /// The path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether runs that differ in it are tasks of their own: what is trained, on what, by how many.
    fn is_of_task(&self) -> bool {
        let root = self.path.split('.').next().unwrap_or_default();
        matches!(root, "workers" | "model" | "dataset" | "samples")
    }
}

/// One combination of values.
type Combination<'a> = Vec<(&'a str, &'a Value)>;

impl Sweep {
    /// The experiment: one arm for each combination of values, and one task for each combination of
    /// those of `workers`, `model` and `dataset`. A setting that a scheme (model, data set, optimizer,
    /// schedule) does not have is left out for it.
    ///
    /// # Errors
    /// When a value cannot be, no scheme has a setting, or a question names what is not there.
    pub fn experiment(&self) -> Result<Experiment> {
        let mut recipe = self.base();
        let (of_tasks, of_arms): (Vec<&Over>, Vec<&Over>) =
            self.in_order().into_iter().partition(|over| over.is_of_task());
        let tasks = rows(&recipe, &of_tasks)?;
        let first = tasks.first().map(|row| table(row)).transpose()?.unwrap_or_default();
        let under = Recipe::layered([&recipe, &first], &[])?;
        let tasks = tasks.iter().map(|row| task(&recipe, row)).collect::<Result<Vec<_>>>()?;
        let arms = rows(&under, &of_arms)?;
        let arms = arms.iter().map(|row| arm(&under, row)).collect::<Result<Vec<_>>>()?;
        let choices = |members: &[Member]| -> Vec<Choice> {
            members.iter().flat_map(Member::choices).collect()
        };
        let (task_choices, arm_choices) = (choices(&tasks), kinds(&under, &choices(&arms))?);
        let mut claims = Vec::new();
        for question in &self.questions {
            claims.extend(question.claims(&task_choices, &arm_choices)?);
        }
        let mut links = self.links.clone();
        for link in self.questions.iter().filter_map(Question::link) {
            if !links.iter().any(|known| known == link) {
                links.push(link.to_string());
            }
        }
        let named = |name: &str| arms.iter().any(|arm| arm.name == name);
        let baseline = match &self.baseline {
            Some(name) => name.clone(),
            None if named("dense") => "dense".into(),
            None => arms.first().map(|arm| arm.name.clone()).unwrap_or_default(),
        };
        if self.questions.iter().any(Question::is_timed) {
            // No recipe by itself: a scale fills the number in.
            let record = recipe.entry("record").or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(record) = record {
                record.insert("gradients".into(), "{steps}".into());
            }
        }
        let paths: Vec<&str> = self.over.iter().map(|over| over.path.as_str()).collect();
        let setting = Setting { seeds: (1..=self.seeds).collect(), ..Setting::default() };
        let experiment = Experiment {
            title: format!("Sweep over {}", paths.join(", ")),
            baseline,
            links,
            recipe,
            tasks,
            arms,
            scales: BTreeMap::from([(Scale::from(SCALE), setting)]),
            claims,
            ..Experiment::default()
        };
        experiment.validate()?;
        Ok(experiment)
    }

    /// The recipe of each combination of values.
    ///
    /// # Errors
    /// When a value cannot be, or no scheme has a setting.
    pub fn recipes(&self) -> Result<Vec<Recipe>> {
        let base = self.base();
        rows(&base, &self.in_order())?.iter().map(|row| typed(&base, &table(row)?)).collect()
    }

    /// The paths in the order in which they are set: a part is chosen before its settings.
    fn in_order(&self) -> Vec<&Over> {
        let mut over: Vec<&Over> = self.over.iter().collect();
        over.sort_by_key(|over| over.path.contains('.'));
        over
    }

    /// What all runs have in common.
    fn base(&self) -> Table {
        let mut recipe = self.recipe.clone();
        // Each run has its own.
        for key in ["name", "seed"] {
            recipe.remove(key);
        }
        if let Some(Value::Table(record)) = recipe.get_mut("record") {
            record.remove("out");
            record.remove("name");
        }
        recipe
    }
}

/// Every combination, in order, without the settings that its parts do not have; each once.
fn rows<'a>(recipe: &Table, over: &[&'a Over]) -> Result<Vec<Combination<'a>>> {
    let mut rows: Vec<Combination<'a>> = vec![Vec::new()];
    for Over { path, values } in over {
        let mut longer: Vec<Combination<'a>> = Vec::new();
        let mut unknown = None;
        for row in &rows {
            for value in values {
                let with = [row.as_slice(), &[(path.as_str(), value)]].concat();
                let under = Recipe::layered([recipe, &table(&with)?], &[])?;
                match Recipe::unknown_key(&under, path) {
                    None => longer.push(with),
                    Some(error) => {
                        unknown = Some(error);
                        if !longer.contains(row) {
                            longer.push(row.clone());
                        }
                    }
                }
            }
        }
        if let (Some(error), false) =
            (unknown, longer.iter().flatten().any(|(known, _)| known == path))
        {
            return Err(error.context(format!("--over {path}")));
        }
        rows = longer;
    }
    Ok(rows)
}

/// What a combination changes in the recipe.
fn table(row: &Combination<'_>) -> Result<Table> {
    let sets: Vec<String> = row.iter().map(|(path, value)| format!("{path}={value}")).collect();
    Recipe::layered([], &sets)
}

fn task(recipe: &Table, row: &Combination<'_>) -> Result<Member> {
    let own = table(row)?;
    let whole = typed(recipe, &own)?;
    let settings = row.iter().filter(|(path, _)| path.contains('.') || *path == "workers");
    let mut parts = vec![whole.model.name().to_string()];
    if row.iter().any(|(path, _)| *path == "dataset") {
        parts.push(whole.dataset.name().to_string());
    }
    let mut label = format!("{} on {}", whole.model.name(), whole.dataset.name());
    for (path, value) in settings {
        let (part, words) = match (*path, plain(value)) {
            ("workers", one) if one == "1" => (one, "1 worker".into()),
            ("workers", number) => (number.clone(), format!("{number} workers")),
            (path, value) => (format!("{}-{value}", last(path)), format!("{} {value}", last(path))),
        };
        parts.push(part);
        label += &format!(", {words}");
    }
    Ok(member(&parts, label, own))
}

fn arm(recipe: &Table, row: &Combination<'_>) -> Result<Member> {
    let own = table(row)?;
    let kind = typed(recipe, &own)?.scheme.about().name;
    let of_scheme = |path: &str| path.starts_with("scheme");
    let mut parts = vec![kind.to_string()];
    // A table that names the scheme has its settings in it.
    let inline = row.iter().filter_map(|(path, value)| match value {
        Value::Table(table) if *path == "scheme" => Some(table),
        _ => None,
    });
    let inline = inline.flatten().filter(|(key, _)| *key != "kind");
    let settings = row.iter().filter(|(path, _)| of_scheme(path) && path.contains('.'));
    let settings: Vec<(&str, &Value)> = inline
        .map(|(key, value)| (key.as_str(), value))
        .chain(settings.map(|(path, value)| (path.trim_start_matches("scheme."), *value)))
        .collect();
    match settings.as_slice() {
        [(_, value)] => parts.push(plain(value)),
        several => {
            parts.extend(several.iter().map(|(key, value)| format!("{key}-{}", plain(value))));
        }
    }
    let words: Vec<String> =
        settings.iter().map(|(key, value)| format!("{key}={}", plain(value))).collect();
    let mut label = match words.as_slice() {
        [] => kind.to_string(),
        words => format!("{kind}({})", words.join(", ")),
    };
    for (path, value) in row.iter().filter(|(path, _)| !of_scheme(path)) {
        parts.push(format!("{}-{}", last(path), plain(value)));
        label += &format!(", {} {}", last(path), plain(value));
    }
    Ok(member(&parts, label, own))
}

/// The arms as choices that a question may also name by their scheme alone.
fn kinds(recipe: &Table, arms: &[Choice]) -> Result<Vec<Choice>> {
    let of_kind = |arm: &Choice| {
        let member = typed(recipe, &arm.recipe)?.scheme.about().name.to_string();
        Ok(Choice { label: Label { member, ..arm.label.clone() }, recipe: arm.recipe.clone() })
    };
    arms.iter().map(of_kind).collect()
}

fn member(parts: &[String], label: String, recipe: Table) -> Member {
    let name = names::plain(&parts.join("-"));
    Member { name, label, over: BTreeMap::new(), recipe }
}

fn typed(recipe: &Table, own: &Table) -> Result<Recipe> {
    let mut table = Recipe::layered([recipe, own], &[])?;
    table.insert("name".into(), SCALE.into());
    // The number of steps is known when the data are.
    if let Some(Value::Table(record)) = table.get_mut("record") {
        record.remove("gradients");
    }
    Recipe::from_table(table)
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradwire::recipe::Source;

    fn sweep(over: &[&str], questions: &[&str]) -> Result<Experiment> {
        let source = Source { recipe: Some("ag-news-dense".into()), ..Source::default() };
        let sweep = Sweep {
            recipe: source.table()?,
            over: over.iter().map(|over| Over::parse("--over", over)).collect::<Result<_>>()?,
            questions: questions.iter().map(|ask| Question::parse(ask)).collect::<Result<_>>()?,
            baseline: None,
            links: vec!["100mbit".into()],
            seeds: 3,
        };
        sweep.experiment()
    }

    fn names(members: &[Member]) -> Vec<&str> {
        members.iter().map(|member| member.name.as_str()).collect()
    }

    #[test]
    fn a_setting_is_for_the_schemes_that_have_it() {
        let experiment = sweep(
            &["scheme=dense,topk,sidco", "scheme.ratio=0.1,0.01"],
            &["accuracy within 1 point of dense"],
        )
        .unwrap();
        let arms = ["dense", "topk-0.1", "topk-0.01", "sidco-0.1", "sidco-0.01"];
        assert_eq!(names(&experiment.arms), arms);
        assert_eq!(experiment.arms[1].label, "topk(ratio=0.1)");
        assert_eq!((experiment.baseline.as_str(), experiment.claims.len()), ("dense", 4));
        assert_eq!(experiment.task_choices().len(), 1);
        let text = toml::to_string(&experiment).unwrap();
        assert_eq!(
            Experiment::parse(&text).unwrap(),
            experiment,
            "what is left can be edited\n{text}"
        );
    }

    #[test]
    fn what_is_trained_becomes_tasks_and_how_becomes_arms() {
        let experiment = sweep(
            &["optimizer.learning_rate=0.1,0.5", "workers=2,4", "model=fasttext,textcnn"],
            &["step seconds at 1gbit at most 1"],
        )
        .unwrap();
        assert_eq!(
            names(&experiment.tasks),
            ["fasttext-2", "textcnn-2", "fasttext-4", "textcnn-4"]
        );
        assert_eq!(names(&experiment.arms), ["dense-learning_rate-0.1", "dense-learning_rate-0.5"]);
        assert_eq!(experiment.links, ["100mbit", "1gbit"]);
        assert_eq!(experiment.claims.len(), 8);
        let both = "{ kind = \"topk\", ratio = 0.1, values = \"f16\" }";
        let experiment = sweep(&[&format!("scheme=dense,{both}")], &[]).unwrap();
        assert_eq!(names(&experiment.arms), ["dense", "topk-ratio-0.1-values-f16"]);
        let experiment = sweep(&["scheme=topk,dense"], &["encode seconds at most 1"]).unwrap();
        assert_eq!(experiment.recipe["record"]["gradients"].as_str(), Some("{steps}"));
        // A setting that a scheme does not have is left out for it here, too.
        let over = ["scheme=dense,topk", "scheme.ratio=0.1,0.01"];
        let timed = sweep(&over, &["encode seconds 3 times as fast as topk-0.01"]).unwrap();
        assert_eq!(names(&timed.arms), ["dense", "topk-0.1", "topk-0.01"]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (over, asked, part) in [
            ("scheme", "", "no '='"),
            ("scheme=", "", "no value"),
            ("scheme=dense,topkk", "", "did you mean `topk`"),
            ("scheme.ratoi=0.1,0.2", "", "ratoi"),
            ("scheme=dense,topk", "accuracy within 1 point of sidco", "arms: dense, topk"),
        ] {
            let asked: Vec<&str> =
                Some(asked).filter(|text| !text.is_empty()).into_iter().collect();
            let error = format!("{:#}", sweep(&[over], &asked).unwrap_err());
            assert!(error.contains(part), "{over}: {error}");
        }
    }
}
