//! From files, flags and `--set` to a typed [`Recipe`].

use super::schema::{CHOSEN_BY_NAME, SCHEMA, all_that_is_missing};
use super::settings::Recipe;
use super::typed::{check_bounds, did_you_mean, typed};
use crate::text::three_digits;
use anyhow::{Context, Result, bail, ensure};
use gradwire_exchange::Scheme;
use gradwire_exchange::SchemeConfig;
use include_dir::{Dir, include_dir};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

static BUILT_IN: Dir<'_> = include_dir!("$OUT_DIR/runs");

/// The recipe that `train` runs when none is named.
const FIRST_LOOK: &str = "first-look";

/// The recipes built into the program: every TOML file in `runs/`.
pub struct Recipes;

impl Recipes {
    /// Name and text of each built-in recipe, by name.
    pub fn all() -> Vec<(String, &'static str)> {
        let mut all: Vec<_> = BUILT_IN
            .files()
            .filter(|f| f.path().extension().is_some_and(|e| e == "toml"))
            .filter_map(|f| Some((f.path().file_stem()?.to_str()?.to_string(), f.contents_utf8()?)))
            .collect();
        all.sort();
        all
    }

    /// Whether a built-in experiment has this name.
    fn is_experiment(name: &str) -> bool {
        BUILT_IN.get_file(format!("reproduce/{name}.toml")).is_some()
    }

    /// The comment at the head of a recipe's text: its first line, without the `#`.
    pub fn headline(text: &str) -> &str {
        text.lines().next().unwrap_or("").trim_start_matches(['#', ' '])
    }
}

impl Recipe {
    /// A note where a step takes another number of samples than one of `before`, which is in words `there`, and the
    /// learning rate, which belongs to that number, is the same.
    pub(crate) fn batch_note(&self, before: &Self, there: &str) -> Option<String> {
        let [was, now] = [before, self].map(|recipe| recipe.workers * recipe.local_batch());
        let [rate, same] =
            [before, self].map(|recipe| recipe.optimizer.definition().learning_rate());
        (was != now && rate == same).then(|| {
            let factor = now as f64 / was as f64;
            let (rule, factor) = match self.optimizer.definition().follows_magnitude() {
                true => ("for SGD (Goyal et al. 2017) is a rate in proportion, with a warm-up", factor),
                false => {
                    ("for AdamW (Malladi et al. 2022) is a rate in proportion to the square root", factor.sqrt())
                }
            };
            format!(
                "a step takes {now} samples, and {was} {there}; the learning rate stays at {rate}. The usual rule \
                 {rule}: optimizer.learning_rate = {}",
                three_digits(rate * factor)
            )
        })
    }
}

/// Where a recipe comes from and what the command line changes in it.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// A TOML file, or the name of a built-in recipe; absent for the first-look recipe.
    pub recipe: Option<String>,
    /// Flags, as (path, value), applied in order before `sets`; but what names another kind (of scheme, model, data
    /// set), which replaces the whole part, is applied before either.
    pub flags: Vec<(&'static str, Value)>,
    /// `path=value` pairs, applied in order, with the same exception.
    pub sets: Vec<String>,
}

impl Source {
    /// The first-look recipe with these `path=value` pairs.
    pub fn of<S: Into<String>>(sets: impl IntoIterator<Item = S>) -> Self {
        Self { sets: sets.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Reads, changes, types and checks the recipe.
    ///
    /// # Errors
    /// When the file cannot be read or is no TOML (with line and column), when a key or a value
    /// is unknown (with the nearest valid one), or when the recipe contradicts itself; of a file with
    /// its name.
    pub fn load(&self) -> Result<Recipe> {
        let recipe = Recipe::from_table(self.table()?);
        let built_in = |name: &str| Recipes::all().iter().any(|(built_in, _)| built_in == name);
        match self.recipe.as_deref().filter(|name| !built_in(name)) {
            Some(file) => recipe.with_context(|| file.to_string()),
            None => recipe,
        }
    }

    /// The paths that flags and `sets` give a value.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        let sets = self.sets.iter().filter_map(|set| Some(set.split_once('=')?.0.trim()));
        self.flags.iter().map(|(path, _)| *path).chain(sets)
    }

    /// A note where the command line changes how many samples a step of `changed`, which this loads, takes and not the learning
    /// rate, which belongs to that number.
    pub fn batch_note(&self, changed: &Recipe) -> Option<String> {
        let own = Self { flags: Vec::new(), sets: Vec::new(), ..self.clone() }.load().ok()?;
        changed.batch_note(&own, &format!("in the recipe {} as it is written", own.name))
    }

    /// Changes a recipe, instead of reading one.
    ///
    /// # Errors
    /// As [`Source::load`].
    pub fn load_on(&self, base: &Recipe) -> Result<Recipe> {
        self.change(Table::try_from(base)?)
    }

    /// The recipe as it is written, with the command line's changes, neither typed nor checked. What a
    /// whole recipe says only as it is usual is left out, as in [`Source::load_on`].
    ///
    /// # Errors
    /// When the file cannot be read or is no TOML, or a change is none.
    pub fn table(&self) -> Result<Table> {
        let mut table = self.read()?;
        expand_names(&mut table);
        self.changed(without_defaults(table)?)
    }

    /// Applies the command line's changes, types and checks.
    fn change(&self, table: Table) -> Result<Recipe> {
        Recipe::from_table(self.changed(table)?)
    }

    fn changed(&self, mut table: Table) -> Result<Table> {
        let before = table.clone();
        let flags = self.flags.iter().map(|(path, value)| (*path, value.clone()));
        apply(&mut table, flags.chain(pairs(&self.sets)?))?;
        name_after(&mut table, &before);
        Ok(table)
    }

    fn read(&self) -> Result<Table> {
        let name = self.recipe.as_deref().unwrap_or(FIRST_LOOK);
        let all = Recipes::all();
        let built_in = all.iter().find(|(n, _)| n == name).map(|(_, text)| *text);
        let looks_like_a_file = name.contains(['/', '\\']) || name.ends_with(".toml");
        let (text, origin) = match built_in {
            Some(text) => (text.to_string(), format!("built-in recipe {name}")),
            None if looks_like_a_file || Path::new(name).is_file() => {
                let text = std::fs::read_to_string(name)
                    .with_context(|| format!("cannot read the recipe {name} (`gradwire list recipes` shows those that are built in)"))?;
                (text, format!("recipe {name}"))
            }
            None if Recipes::is_experiment(name) => {
                bail!("{name} is an experiment, not a recipe: gradwire reproduce {name}")
            }
            None => {
                let names: Vec<&str> = all.iter().map(|(n, _)| n.as_str()).collect();
                bail!(
                    "there is no recipe {name:?}{}; built in are {}; a file is named with its \
                     .toml",
                    did_you_mean(name, &names),
                    names.join(", ")
                );
            }
        };
        let mut table: Table = toml::from_str(&text).with_context(|| origin.clone())?;
        let stem = PathBuf::from(name);
        if let Some(stem) = stem.file_stem().and_then(|s| s.to_str()) {
            table.entry("name").or_insert_with(|| Value::String(stem.to_string()));
        }
        Ok(table)
    }
}

impl Recipe {
    /// The recipe that [`Recipe::to_toml`] wrote.
    ///
    /// # Errors
    /// When the text is not TOML or not a valid recipe.
    pub fn from_toml(text: &str) -> Result<Self> {
        let mut table: Table = toml::from_str(text)?;
        expand_names(&mut table);
        Self::from_table(table)
    }

    /// This recipe with another value at `path`, such as `dataset.dir`.
    ///
    /// # Errors
    /// As [`Source::load`].
    pub fn with(&self, path: &str, value: impl Into<Value>) -> Result<Self> {
        let mut table = Table::try_from(self)?;
        set(&mut table, path, value.into())?;
        Self::from_table(table)
    }

    /// The TOML of a recipe in layers, each of which changes what those before it say; then
    /// `path=value` pairs. A layer that names another kind (of scheme, model, data set) replaces
    /// the whole part.
    ///
    /// # Errors
    /// When a pair is none.
    pub fn layered<'a>(
        layers: impl IntoIterator<Item = &'a Table>,
        sets: &[String],
    ) -> Result<Table> {
        let mut table = Table::new();
        for layer in layers {
            let mut layer = layer.clone();
            expand_names(&mut layer);
            for part in CHOSEN_BY_NAME {
                if let Some(kind) = layer.get(part).and_then(|part| part.get("kind")).cloned() {
                    choose(&mut table, part, &kind);
                }
            }
            merge(&mut table, layer);
        }
        apply(&mut table, pairs(sets)?)?;
        Ok(table)
    }

    /// The error for a key at `path` that its part (a scheme, a model) does not have; `None` when it
    /// does have it, whatever else may be wrong.
    pub fn unknown_key(table: &Table, path: &str) -> Option<anyhow::Error> {
        let (_, key) = path.rsplit_once('.')?;
        let error = with_rules(table.clone()).err()?;
        format!("{error:#}").contains(&format!("unknown field `{key}`")).then_some(error)
    }

    /// Types and checks a recipe.
    ///
    /// # Errors
    /// As [`Source::load`].
    pub fn from_table(table: Table) -> Result<Self> {
        let found = table.clone();
        let recipe: Self = with_rules(table)
            .map_err(|error| all_that_is_missing(error, "recipe", &SCHEMA, found.clone()))?;
        check_bounds(&Value::Table(found))?;
        recipe.validate()?;
        recipe.without_defaults()
    }
}

/// The table of a whole recipe, silent about what surrounds the scheme wherever it says what is usual:
/// another scheme then brings its own default policy, whether or not the recipe was written out. A table that
/// is no recipe before it is changed stays as it is.
fn without_defaults(mut table: Table) -> Result<Table> {
    let Ok(recipe) = with_rules(table.clone()) else { return Ok(table) };
    // Where there is no server, its answer is refused later on, and must not get lost here.
    let downlink_is_usual = recipe.exchange.downlink == recipe.usual_downlink();
    let own = Table::try_from(recipe.without_defaults()?.policy)?;
    if let Some(Value::Table(policy)) = table.get_mut("policy") {
        policy.retain(|key, _| own.contains_key(key));
    }
    if let Some(Value::Table(exchange)) = table.get_mut("exchange")
        && downlink_is_usual
    {
        exchange.remove("downlink");
    }
    Ok(table)
}

/// Names a recipe after what it trains now, if another model, data set or scheme than `before`: the folder of its runs
/// is called so.
fn name_after(table: &mut Table, before: &Table) {
    let kind = |of: &Table, part: &str| -> Option<String> {
        let part = of.get(part)?;
        part.as_str().or_else(|| part.get("kind")?.as_str()).map(String::from)
    };
    let parts = ["model", "dataset", "scheme"];
    let is_changed = parts.iter().any(|part| kind(table, part) != kind(before, part));
    let kinds: Option<Vec<String>> = parts.iter().map(|part| kind(table, part)).collect();
    if let Some(kinds) = kinds.filter(|_| is_changed && table.get("name") == before.get("name")) {
        table.insert("name".into(), Value::String(kinds.join("-")));
    }
}

/// The path and the value of `path=value` pairs.
fn pairs(sets: &[String]) -> Result<Vec<(&str, Value)>> {
    fn pair(set: &String) -> Result<(&str, Value)> {
        let (path, text) = set
            .split_once('=')
            .with_context(|| format!("--set {set:?} has no '='; write --set scheme.ratio=0.01"))?;
        Ok((path.trim(), parse_value(text.trim())))
    }
    sets.iter().map(pair).collect()
}

/// Applies changes in order. What chooses a part's kind comes first, so that what others say of the part is of its new
/// kind; the settings that come with the kind, in an inline table, count at their own place.
fn apply<'a>(table: &mut Table, changes: impl IntoIterator<Item = (&'a str, Value)>) -> Result<()> {
    let part_of = |path: &'a str| {
        let part = path.strip_suffix(".kind").unwrap_or(path);
        CHOSEN_BY_NAME.contains(&part).then_some(part)
    };
    let changes: Vec<(&str, Value)> = changes.into_iter().collect();
    let mut last = BTreeMap::new();
    for (place, (path, kind)) in changes.iter().enumerate() {
        if let Some(part) = part_of(path) {
            choose(table, part, kind);
            last.insert(part, place);
        }
    }
    for (place, (path, value)) in changes.into_iter().enumerate() {
        match (part_of(path), value) {
            (None, value) => set(table, path, value)?,
            (Some(part), Value::Table(settings)) if last[part] == place => {
                for (key, value) in settings.into_iter().filter(|(key, _)| key != "kind") {
                    set(table, &format!("{part}.{key}"), value)?;
                }
            }
            (Some(_), _) => {}
        }
    }
    Ok(())
}

/// Tables that are said whole: what one says of the link or the target is not completed by another.
const WHOLE: [&str; 2] = ["link", "target"];

/// Puts everything that `over` says in the place of what `table` says.
fn merge(table: &mut Table, over: Table) {
    for (key, value) in over {
        match (table.get_mut(&key), value) {
            (Some(Value::Table(under)), Value::Table(over)) if !WHOLE.contains(&key.as_str()) => {
                merge(under, over);
            }
            (_, value) => {
                table.insert(key, value);
            }
        }
    }
}

/// The scheme of a name, with its defaults, or of an inline table such as
/// `{ kind = "topk", ratio = 0.001 }`.
///
/// # Errors
/// When there is no such scheme (with the nearest name), or a setting is unknown or impossible.
pub fn scheme_of(text: &str) -> Result<SchemeConfig> {
    #[derive(serde::Deserialize)]
    struct Named {
        scheme: SchemeConfig,
    }
    let mut table = Table::from_iter([("scheme".to_string(), part_of(text))]);
    expand_names(&mut table);
    let Named { scheme } = typed(table)?;
    scheme.validate().map_err(super::words::in_a_recipe)?;
    Ok(scheme)
}

/// A part of a recipe as the command line says it: an inline table such as
/// `{ kind = "topk", ratio = 0.001 }`, or a name.
pub fn part_of(text: &str) -> Value {
    Some(parse_value(text))
        .filter(Value::is_table)
        .unwrap_or_else(|| Value::String(text.to_string()))
}

/// Spells `dataset = "name"` out as `[dataset] kind = "name"`.
fn expand_names(table: &mut Table) {
    for part in CHOSEN_BY_NAME {
        if let Some(value @ Value::String(_)) = table.get(part).cloned() {
            choose(table, part, &value);
        }
    }
}

/// The typed form of a recipe, whose rules may name a scheme, and may say the ratio alone that the recipe's scheme has
/// for their parameters.
fn with_rules(mut table: Table) -> Result<Recipe> {
    let own = table.get("scheme").cloned();
    let rules = table.get_mut("policy").and_then(|policy| policy.get_mut("rules"));
    let rules = rules.and_then(Value::as_array_mut).into_iter().flatten();
    for (number, rule) in rules.filter_map(Value::as_table_mut).enumerate() {
        if let Some(name @ Value::String(_)) = rule.get("scheme").cloned() {
            choose(rule, "scheme", &name);
        }
        let at = format!("recipe in `policy.rules[{number}]`");
        let Some(ratio) = rule.remove("ratio") else {
            ensure!(
                rule.contains_key("scheme"),
                "{at}: write a scheme, such as \"dense\", or a ratio"
            );
            continue;
        };
        if rule.contains_key("scheme") {
            bail!(
                "{at}: a ratio is that of the recipe's scheme; write it within the rule's scheme, or leave that out"
            );
        }
        let mut own = own.clone().and_then(|own| own.try_into::<Table>().ok()).unwrap_or_default();
        own.insert("ratio".into(), ratio);
        if let Err(error) = typed::<SchemeConfig>(own.clone()) {
            bail!(
                "{at}: scheme {} with this ratio: {error}",
                own.get("kind").unwrap_or(&Value::Boolean(false))
            );
        }
        rule.insert("scheme".into(), Value::Table(own));
    }
    typed(table)
}

/// Makes `kind` the kind of a part; the part's other keys stay only if the kind does.
fn choose(table: &mut Table, part: &str, kind: &Value) {
    if let Some(Value::Table(old)) = table.get(part)
        && old.get("kind") == Some(kind)
    {
        return;
    }
    let value = match kind {
        Value::String(_) => Value::Table(Table::from_iter([("kind".to_string(), kind.clone())])),
        other => other.clone(),
    };
    table.insert(part.to_string(), value);
}

/// Puts `value` at `path` (`train.batch`), making the tables on the way.
fn set(table: &mut Table, path: &str, value: Value) -> Result<()> {
    let mut at = table;
    let mut keys: Vec<&str> = path.split('.').collect();
    let last = keys.pop().unwrap_or_default();
    if last.is_empty() || keys.iter().any(|k| k.is_empty()) {
        bail!("--set {path:?}: a path is keys joined by dots, such as train.batch");
    }
    for key in keys {
        let next = at.entry(key).or_insert_with(|| Value::Table(Table::new()));
        at = match next {
            Value::Table(table) => table,
            other => bail!("--set {path}: `{key}` is {other}, not a table"),
        };
    }
    at.insert(last.to_string(), value);
    Ok(())
}

/// The values of a list such as `dense, topk, { kind = "qsgd", levels = 3 }`. A comma parts two where
/// what stands before it is a TOML value or a word: not within brackets or quotes of either kind.
pub fn split_values(text: &str) -> Vec<Value> {
    let (mut values, mut rest) = (Vec::new(), text.trim_start());
    while !rest.is_empty() {
        let commas = rest.match_indices(',').map(|(at, _)| at);
        let ends = || commas.clone().chain([rest.len()]);
        let is_word = !rest.starts_with(['{', '[', '"', '\'']);
        let end = match is_word {
            true => ends().next(),
            false => ends().find(|end| toml_value(&rest[..*end]).is_some()),
        };
        let end = end.unwrap_or(rest.len());
        let value = rest[..end].trim();
        if !value.is_empty() {
            values.push(parse_value(value));
        }
        rest = rest.get(end + 1..).unwrap_or_default().trim_start();
    }
    values
}

/// A TOML value where the text is one, else the text itself: `--set scheme.kind=topk` needs no
/// quotes.
fn parse_value(text: &str) -> Value {
    toml_value(text).unwrap_or_else(|| Value::String(text.to_string()))
}

fn toml_value(text: &str) -> Option<Value> {
    #[derive(serde::Deserialize)]
    struct Document {
        value: Value,
    }
    toml::from_str::<Document>(&format!("value = {text}")).ok().map(|document| document.value)
}

#[cfg(test)]
mod tests;
