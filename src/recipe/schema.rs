//! What a file may say, as a JSON schema made of the definitions: for editors, for the reference of
//! keys, and for what a file leaves out.

use super::optimizer;
use super::settings::Recipe;
use gradwire_datasets as datasets;
use gradwire_exchange::Scheme;
use gradwire_exchange::SchemeConfig;
use gradwire_models as models;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// The parts of a recipe that are chosen by name: `scheme = "topk"` is short for
/// `[scheme] kind = "topk"`.
pub(super) const CHOSEN_BY_NAME: [&str; 6] =
    ["dataset", "model", "scheme", "optimizer", "schedule", "average"];

/// [`Recipe::schema`], made once.
pub(super) static SCHEMA: LazyLock<Value> = LazyLock::new(Recipe::schema);

/// The schema of a file that serde reads as a `T`. It has no references, so that each key has
/// everything about it in one place, and nothing is null, which TOML has not.
pub fn of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let settings = settings.with_transform(RecursiveTransform(as_toml_has_it));
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

impl Recipe {
    /// The schema of a recipe's file: it may do without a name, and choose by name.
    pub fn schema() -> Value {
        let mut schema = of::<Self>();
        if let Some(required) = schema["required"].as_array_mut() {
            required.retain(|key| key != "name");
        }
        for part in CHOSEN_BY_NAME {
            choose_by_name(&mut schema["properties"][part], &lines(part));
        }
        let rule = &mut schema["properties"]["policy"]["properties"]["rules"]["items"];
        rule["required"] = json!(["match"]);
        rule["properties"]["ratio"] = json!({
            "type": ["number", "object"],
            "description": "In place of `scheme`: the recipe's scheme with this ratio.",
        });
        schema
    }
}

/// The schema of what an experiment changes in a recipe, which may be any of its keys: their values
/// may be places of an arm's values, and what is left out is in another layer.
pub fn layer(_: &mut SchemaGenerator) -> Schema {
    let schema = of::<Recipe>();
    let about = |key: &Value| json!({ "description": key["description"] });
    let keys = schema["properties"].as_object().into_iter().flatten();
    let keys: Map<String, Value> = keys.map(|(key, of)| (key.clone(), about(of))).collect();
    json_schema!({ "type": "object", "properties": keys, "additionalProperties": false })
}

/// The schema of such layers by name.
pub fn layers(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": layer(generator) })
}

/// An error of reading `found`; in the place of one that names a missing key, one that names all of
/// them. `what` it is that was read has a schema, and a file to start from in `gradwire new`.
pub fn all_that_is_missing(
    error: anyhow::Error,
    what: &str,
    schema: &Value,
    found: toml::Table,
) -> anyhow::Error {
    let found = toml::Value::Table(found);
    let all = match format!("{error:#}").contains("missing field") {
        true => look(schema, &found).missing,
        false => Vec::new(),
    };
    if all.is_empty() {
        return error;
    }
    let are = if all.len() > 1 { "are" } else { "is" };
    anyhow::anyhow!(
        "{what}: {} {are} missing; `gradwire list keys {what}` tells what each key may be, and `gradwire new \
         {what}` prints a file to start from",
        all.join(", ")
    )
}

/// The schemas of which a value fits one.
pub(super) fn alternatives(schema: &Value) -> Vec<&Value> {
    match schema.get("anyOf").or(schema.get("oneOf")).and_then(Value::as_array) {
        Some(several) => several.iter().flat_map(alternatives).collect(),
        None => vec![schema],
    }
}

/// The keys of a table, with their schemas, in the order of the definition.
pub(super) fn properties(table: &Value) -> impl Iterator<Item = (&String, &Value)> {
    table.get("properties").and_then(Value::as_object).into_iter().flatten()
}

/// The key of a table that says which of several it is, and its value.
pub(super) fn tag(table: &Value) -> Option<(&str, &str)> {
    properties(table).find_map(|(key, of)| Some((key.as_str(), of.get("const")?.as_str()?)))
}

/// Whether a table must have a key.
pub(super) fn requires(table: &Value, key: &str) -> bool {
    let required = table.get("required").and_then(Value::as_array);
    required.is_some_and(|required| required.iter().any(|one| one == key))
}

/// The first paragraph of what a definition says of a key, a table or a value.
pub(super) fn about(schema: &Value) -> &str {
    let text = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    text.split("\n\n").next().unwrap_or_default()
}

/// The path of a key in a table at `path`.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_string() } else { format!("{path}.{key}") }
}

/// What there is to say of a file by its schema.
#[derive(Default)]
pub(super) struct Seen<'a> {
    /// The keys that it must have and has not, each with what it is.
    pub(super) missing: Vec<String>,
    /// The numbers in it, each with its path and its schema.
    pub(super) numbers: Vec<(String, &'a toml::Value, &'a Value)>,
}

/// Looks through a file along its schema.
pub(super) fn look<'a>(schema: &'a Value, found: &'a toml::Value) -> Seen<'a> {
    let mut seen = Seen::default();
    seen.add(schema, found, "");
    seen
}

impl<'a> Seen<'a> {
    fn add(&mut self, schema: &'a Value, found: &'a toml::Value, path: &str) {
        let alternatives = alternatives(schema);
        match found {
            toml::Value::Table(found) => {
                let said = |key: &str| found.get(key).and_then(toml::Value::as_str);
                let is_it =
                    |table: &&Value| tag(table).is_none_or(|(key, of)| said(key) == Some(of));
                let mut tables = alternatives.iter().filter(|of| of["type"] == "object");
                let Some(table) = tables.clone().copied().find(is_it) else {
                    let untold = tables.find_map(|table| tag(table));
                    if let Some((key, _)) = untold.filter(|(key, _)| !found.contains_key(*key)) {
                        self.missing.push(format!("`{}`", join(path, key)));
                    }
                    return;
                };
                for (key, of) in properties(table) {
                    match found.get(key) {
                        Some(value) => self.add(of, value, &join(path, key)),
                        None if requires(table, key) => {
                            self.missing.push(in_brackets(&join(path, key), about(of)));
                        }
                        None => {}
                    }
                }
                if let Some(of) = table.get("additionalProperties").filter(|of| of.is_object()) {
                    found.iter().for_each(|(key, value)| self.add(of, value, &join(path, key)));
                }
            }
            toml::Value::Array(found) => {
                let Some(of) = alternatives.iter().find_map(|of| of.get("items")) else { return };
                for (i, value) in found.iter().enumerate() {
                    self.add(of, value, &format!("{path}[{i}]"));
                }
            }
            toml::Value::Integer(_) | toml::Value::Float(_) => {
                self.numbers.push((path.into(), found, schema));
            }
            _ => {}
        }
    }
}

/// A key with what it is, as a remark.
fn in_brackets(path: &str, about: &str) -> String {
    let mut letters = about.trim_end_matches('.').chars();
    let about: String =
        letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect();
    if about.is_empty() { format!("`{path}`") } else { format!("`{path}` ({about})") }
}

/// Lets a name stand for a table with that `kind`, and says in `lines` what the kinds are.
fn choose_by_name(part: &mut Value, lines: &[(&str, &str)]) {
    let Some(mut kinds) = part.as_object_mut().and_then(|part| part.shift_remove("oneOf")) else {
        return;
    };
    let mut names = Vec::new();
    for kind in kinds.as_array_mut().into_iter().flatten() {
        let Some(name) = tag(kind).map(|(_, name)| name.to_string()) else { continue };
        if let Some((_, line)) = lines.iter().find(|(of, _)| *of == name) {
            kind["description"] = json!(line);
        }
        kind["title"] = json!(name);
        if kind["required"].as_array().is_some_and(|required| required.len() == 1) {
            names.push(name);
        }
    }
    let name = json!({ "description": "One with its defaults.", "type": "string", "enum": names });
    let kinds = kinds.as_array_mut().map(std::mem::take).unwrap_or_default();
    part["anyOf"] = std::iter::once(name).chain(kinds).collect();
}

/// What the entries of a part are, in one line each; none of a part whose definition says it.
fn lines(part: &str) -> Vec<(&'static str, &'static str)> {
    let abouts: Vec<_> = match part {
        "dataset" => datasets::Config::all().iter().map(datasets::Config::about).collect(),
        "model" => models::Config::all().iter().map(models::Config::about).collect(),
        "scheme" => SchemeConfig::all().iter().map(|scheme| scheme.about()).collect(),
        "optimizer" => optimizer::Config::all().iter().map(optimizer::Config::about).collect(),
        _ => Vec::new(),
    };
    abouts.iter().map(|about| (about.name, about.line)).collect()
}

fn as_toml_has_it(schema: &mut Schema) {
    let Some(schema) = schema.as_object_mut() else { return };
    schema.shift_remove("format");
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [kind] = types.as_slice() {
            schema["type"] = kind.clone();
        }
    }
    if let Some(Value::Array(any)) = schema.get_mut("anyOf") {
        any.retain(|one| one["type"] != "null");
        if any.len() == 1
            && let Some(Value::Object(only)) = any.pop()
        {
            schema.shift_remove("anyOf");
            for (key, value) in only {
                schema.entry(key).or_insert(value);
            }
        }
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = plain(text);
    }
    if schema.get("default") == Some(&Value::Null) {
        schema.shift_remove("default");
    }
}

/// Documentation as people read it: each paragraph on one line, and links, which lead into Rust's
/// documentation, without their destinations.
fn plain(text: &str) -> String {
    let paragraphs: Vec<String> = text
        .split("\n\n")
        .map(|lines| lines.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let text = paragraphs.join("\n\n");
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once('[') {
        let Some((shown, after)) = after.split_once(']') else { break };
        out.push_str(before);
        let linked = after.starts_with('(').then(|| after.split_once(')')).flatten();
        match linked.is_some() || shown.starts_with('`') {
            true => out.push_str(shown),
            false => out.push_str(&format!("[{shown}]")),
        }
        rest = linked.map_or(after, |(_, after)| after);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Source;

    /// A number that a recipe may say.
    struct Number {
        path: String,
        /// What must be said for it to be a key: `scheme.kind=qsgd`.
        with: Vec<String>,
        schema: Value,
    }

    fn numbers(schema: &Value, path: &str, with: &[String], all: &mut Vec<Number>) {
        for one in alternatives(schema) {
            let mut with = with.to_vec();
            with.extend(tag(one).map(|(key, name)| format!("{}={name}", join(path, key))));
            let kinds =
                one["type"].as_array().cloned().unwrap_or_else(|| vec![one["type"].clone()]);
            if kinds.iter().any(|kind| kind == "integer" || kind == "number") {
                all.push(Number { path: path.into(), with: with.clone(), schema: one.clone() });
            }
            for (key, of) in properties(one) {
                numbers(of, &join(path, key), &with, all);
            }
            if let Some(of) = one.get("items") {
                numbers(of, &format!("{path}[]"), &with, all);
            }
        }
    }

    impl Number {
        /// What else a recipe needs in which this number is the only thing that may be wrong.
        fn beside(&self) -> Vec<&'static str> {
            let path = self.path.as_str();
            let has = |word: &str| self.with.iter().any(|with| with == word);
            let mut beside = vec!["optimizer.momentum=0"];
            let texts = ["ag-news", "synthetic-ag-news", "table"];
            if texts.iter().any(|kind| has(&format!("dataset.kind={kind}"))) {
                beside.push("model=fasttext");
            }
            if has("optimizer.kind=adamw") || has("optimizer.kind=onebit-adam") {
                beside.clear();
            }
            if has("schedule.kind=step") {
                beside.push("schedule.every=1");
            }
            if has("schedule.kind=multi-step") {
                beside.push("schedule.at=[1]");
            }
            if path == "schedule.warmup" {
                beside.push("train.epochs=1000000000");
            }
            let continued =
                |with: &String| with.starts_with("dataset.kind=") && with.ends_with("text");
            if self.with.iter().any(continued) {
                beside.push("model.kind=gpt");
            }
            if path == "outer.fragments" || path == "outer.delay" {
                beside.push("local.steps=4294967296");
            }
            if path.starts_with("samples.") {
                // Data that has no test set and no least number of samples.
                beside.push("dataset=pictures");
            }
            if path.starts_with("scheme.ratio.") {
                beside.push("scheme.ratio={ start = 1.0, end = 5e-324, steps = 9 }");
            }
            if path == "scheme.min_bits" || path == "scheme.max_bits" {
                // A mean of bits has to lie between the two.
                beside.push("scheme.target={ error = 1.0 }");
            }
            beside
        }

        /// Whether a recipe may say that it is `value`.
        fn may_be(&self, value: &str) -> bool {
            let said = match self.path.split_once("[]") {
                None => format!("{}={value}", self.path),
                Some((list, "")) => format!("{list}=[{value}]"),
                Some((list, ".rank")) => format!("{list}=[{{ rank = {value} }}]"),
                Some((list, key)) => format!("{list}=[{{ rank = 0, {} = {value} }}]", &key[1..]),
            };
            let beside = self.beside().into_iter().map(str::to_string);
            Source::of(self.with.iter().cloned().chain(beside).chain([said])).load().is_ok()
        }

        /// Says of values within the bounds and just outside whether a recipe should take them.
        fn probes(&self) -> Vec<(String, bool)> {
            let bound = |key: &str| self.schema.get(key);
            let mut probes = Vec::new();
            if self.schema["type"] == "integer" {
                let whole = |key| bound(key).and_then(Value::as_i64);
                let least = whole("minimum").expect("no key counts below 0");
                let step = whole("multipleOf").unwrap_or(1);
                probes.extend([(least, true), (least - 1, false), (least + step, true)]);
                if step > 1 {
                    probes.push((least + 1, false));
                }
                match whole("maximum") {
                    Some(i64::MAX) => probes.push((i64::MAX, true)),
                    Some(most) => probes.extend([(most, true), (most + 1, false)]),
                    None => probes.push((1 << 31, true)),
                }
                return probes.into_iter().map(|(value, good)| (value.to_string(), good)).collect();
            }
            let number = |key| bound(key).and_then(Value::as_f64);
            let below = |value: f64| if value == 0.0 { -1e-30 } else { value.next_down() };
            // The nearest that is another number; of what vectors are multiplied by, another one as f32.
            let as_f32 = self.path.starts_with("policy.")
                || matches!(self.path.as_str(), "scheme.decay" | "optimizer.beta1");
            let above = |value: f64| match as_f32 {
                true => f64::from((value as f32).next_up()),
                false => value.next_up(),
            };
            let within = |value: f64| match as_f32 {
                true => f64::from((value as f32).next_down()),
                false => below(value),
            };
            let mut probes = vec![(f64::NAN, false)];
            match (number("minimum"), number("exclusiveMinimum")) {
                (Some(least), None) => probes.extend([(least, true), (below(least), false)]),
                (None, Some(least)) => probes.extend([(least, false), (above(least), true)]),
                _ => probes.push((-1e6, true)),
            }
            match (number("maximum"), number("exclusiveMaximum")) {
                (Some(most), None) => probes.extend([(most, true), (most.next_up(), false)]),
                (None, Some(most)) => probes.extend([(most, false), (within(most), true)]),
                _ => probes.push((1e6, true)),
            }
            probes
                .into_iter()
                .map(|(value, good)| (format!("{value:?}").to_lowercase(), good))
                .collect()
        }
    }

    /// Models check their settings when they are built, and have this test in their own crate. The
    /// sizes of `manual` have to be as many as there are clusters, there are 1 or 3 channels, and the ratio of a rule
    /// is the scheme's.
    #[test]
    fn bounds_are_those_of_the_checks() {
        let mut all = Vec::new();
        numbers(&Recipe::schema(), "", &[], &mut all);
        let listed = ["scheme.allocation.manual[]", "dataset.channels", "policy.rules[].ratio"];
        all.retain(|number| {
            !number.path.starts_with("model.") && !listed.contains(&number.path.as_str())
        });
        assert!(all.len() > 100, "{}", all.len());
        let mut wrong = Vec::new();
        for number in &all {
            for (value, good) in number.probes() {
                if number.may_be(&value) != good {
                    wrong.push(format!("{} = {value} ({:?})", number.path, number.with));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
