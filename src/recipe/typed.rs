//! From a TOML value to its type; what does not fit is refused in words for people who write recipes.

use super::keys;
use super::schema::{SCHEMA, alternatives, look};
use anyhow::{Result, ensure};
use serde::de::DeserializeOwned;
use serde_json::Value as Schema;
use toml::Value;

/// The typed form of a TOML value.
pub(super) fn typed<T: DeserializeOwned>(value: impl Into<Value>) -> Result<T> {
    let value = value.into();
    let result: Result<T, _> = serde_path_to_error::deserialize(value.clone());
    result.map_err(|error| {
        let path = error.path().to_string();
        // toml repeats the path on lines of its own.
        let message = error.into_inner().to_string();
        let message = message.lines().next().unwrap_or_default();
        let at = if path == "." { String::new() } else { format!(" in `{path}`") };
        if let Some(words) = of_a_broken_table(message) {
            return anyhow::anyhow!("recipe{at}: {words}");
        }
        if is_table_for_word(message) {
            return anyhow::anyhow!("recipe{at}: expected a word, not a table");
        }
        let elsewhere = match path.as_str() {
            "model" | "model.kind" if message.starts_with("unknown variant") => {
                "; a model of your own is a program on the library gradwire (docs/library.md)"
            }
            _ => "",
        };
        if let Some(words) = of_another_kind(&value, &path, message) {
            return anyhow::anyhow!("recipe{at}: {words}");
        }
        let hint = hint(message) + &list_hint(message);
        anyhow::anyhow!("recipe{at}: {}{hint}{elsewhere}", in_plain_words(message))
    })
}

/// Parts of a recipe whose own checks have more to say than the bounds of their numbers.
const CHECK_THEMSELVES: [&str; 6] = ["dataset", "samples", "model", "scheme", "policy", "augment"];

/// Checks that the numbers of a recipe are within the bounds of its schema.
///
/// # Errors
/// The first that is not, and what it may be.
pub(super) fn check_bounds(recipe: &Value) -> Result<()> {
    for (path, found, schema) in look(&SCHEMA, recipe).numbers {
        if CHECK_THEMSELVES.iter().any(|part| path.starts_with(&format!("{part}."))) {
            continue;
        }
        let (number, shown) = match found {
            Value::Integer(number) => (*number as f64, number.to_string()),
            found => {
                found.as_float().map(|number| (number, format!("{number:?}"))).unwrap_or_default()
            }
        };
        let several = alternatives(schema);
        let is_number = |of: &&&Schema| of["type"] == "integer" || of["type"] == "number";
        let of = several.iter().find(is_number).copied().unwrap_or(schema);
        let bound = |key: &str| of.get(key).or(schema.get(key)).and_then(Schema::as_f64);
        let fits = bound("minimum").is_none_or(|least| number >= least)
            && bound("exclusiveMinimum").is_none_or(|least| number > least)
            && bound("maximum").is_none_or(|most| number <= most)
            && bound("exclusiveMaximum").is_none_or(|most| number < most);
        // An infinite limit limits nothing.
        let is_limit = path == "train.clip_norm" && !number.is_nan();
        ensure!(
            fits && (number.is_finite() || is_limit),
            "{path} = {shown} must be a {}; `gradwire list keys {}` tells what it is",
            keys::values(schema),
            path.split('[').next().unwrap_or_default()
        );
    }
    Ok(())
}

/// What to say of a setting that a part's kind does not have and other kinds do, such as a ratio of `dense`.
fn of_another_kind(value: &Value, path: &str, message: &str) -> Option<String> {
    let setting = message.strip_prefix("unknown field `")?.split('`').next()?;
    let kind = value.get(path)?.get("kind")?.as_str()?;
    let parts = keys::parts(&SCHEMA);
    let key = format!("{path}.{setting}");
    let having = parts.iter().filter(|part| part.keys.iter().any(|of| of.path == key));
    let having: Vec<&str> = having.filter_map(|part| part.name.split('.').nth(1)).collect();
    (!having.is_empty()).then(|| {
        let own = parts.iter().find(|part| part.name == format!("{path}.{kind}"));
        let own = own.map(|own| own.keys.iter().filter_map(|key| key.path.rsplit('.').next()).collect::<Vec<_>>());
        let own = match own {
            Some(own) if !own.is_empty() => format!("it has {}", own.join(", ")),
            _ => "it has none".to_string(),
        };
        let flag = if matches!(path, "scheme" | "model" | "dataset" | "schedule") { "--" } else { "--set " };
        let equals = if flag == "--" { " " } else { ".kind=" };
        format!(
            "unknown field `{setting}`: {kind} has no such setting, {own}. These have: {}. To take one of them in \
             place of {kind}, write {flag}{path}{equals}{}",
            having.join(", "),
            having.iter().find(|name| **name == "topk").unwrap_or(&having[0])
        )
    })
}

/// What to say of an inline table that came as a text, because TOML cannot read it.
fn of_a_broken_table(message: &str) -> Option<String> {
    let text = message.strip_prefix("unknown variant `")?.split("`, expected").next()?;
    text.starts_with('{').then(|| {
        format!(
            "{text} is no inline table of TOML: commas stand between settings, and quotes around words, as in \
             {{ kind = \"topk\", ratio = 0.01 }}"
        )
    })
}

/// How a list is written, where a text such as `5,9` stands in its place.
fn list_hint(message: &str) -> String {
    let found = message.strip_prefix("invalid type: string \"");
    let found = found.and_then(|rest| rest.strip_suffix("\", expected a sequence"));
    found.map_or_else(String::new, |found| format!("; a list is written in brackets: [{found}]"))
}

/// Whether serde's message is about a table that stands where a word belongs.
fn is_table_for_word(message: &str) -> bool {
    message.starts_with("wanted exactly 1 element") || message.starts_with("unknown variant `kind`")
}

/// serde's message, which speaks of Rust's types, as one for people who write recipes.
fn in_plain_words(message: &str) -> String {
    if let Some((unknown, _)) = message.split_once(", there are no fields") {
        return format!("{unknown}: it has no settings");
    }
    let Some((found, expected)) = message.rsplit_once(", expected ") else { return message.into() };
    let words = match expected {
        "u8" => "a whole number from 0 to 255",
        "u32" | "u64" | "usize" => "a whole number, not below 0",
        "i64" => "a whole number",
        "a sequence" => "a list",
        "f32" | "f64" => "a number",
        other => other,
    };
    format!("{found}, expected {words}")
}

/// The nearest valid name, read off serde's own message: "unknown field `x`, expected `a` or `b`".
fn hint(message: &str) -> String {
    let Some(rest) = message.strip_prefix("unknown ") else { return String::new() };
    let names: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
    let Some((wrong, valid)) = names.split_first() else { return String::new() };
    let elsewhere = elsewhere(wrong);
    match (did_you_mean(wrong, valid), elsewhere.as_slice()) {
        (near, []) => near,
        (_, paths) => format!("; did you mean `{}`?", paths.join("` or `")),
    }
}

/// The keys of a recipe that are meant by a word that people know them by.
pub fn elsewhere(word: &str) -> Vec<&'static str> {
    KEYS.iter().filter(|(key, _)| *key == word).map(|(_, path)| *path).collect()
}

/// What keys are called elsewhere or looked for in another part, and where they are.
const KEYS: [(&str, &str); 18] = [
    ("lr", "optimizer.learning_rate"),
    ("learning_rate", "optimizer.learning_rate"),
    ("momentum", "optimizer.momentum"),
    ("weight_decay", "optimizer.weight_decay"),
    ("wd", "optimizer.weight_decay"),
    ("nesterov", "optimizer.nesterov"),
    ("warmup", "schedule.warmup"),
    ("batch", "train.batch"),
    ("batch_size", "train.batch"),
    ("epochs", "train.epochs"),
    ("steps", "train.max_steps"),
    ("max_steps", "train.max_steps"),
    ("clip_norm", "train.clip_norm"),
    ("clip_norm", "policy.clip_norm"),
    ("ratio", "scheme.ratio"),
    ("topology", "exchange.topology"),
    ("overlap", "exchange.overlap"),
    ("dir", "dataset.dir"),
];

pub(super) fn did_you_mean(wrong: &str, valid: &[&str]) -> String {
    nearest(wrong, valid).map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

/// The name in `valid` that `wrong` most resembles, if any resembles it at all.
pub fn nearest<'a>(wrong: &str, valid: &[&'a str]) -> Option<&'a str> {
    // Fewest slips of the finger first; among equals, the better beginning.
    let likeness = |name: &str| {
        let slips = strsim::normalized_damerau_levenshtein(wrong, name);
        (slips, strsim::jaro_winkler(wrong, name))
    };
    let scored = valid.iter().map(|name| (likeness(name), *name));
    let best = scored.max_by(|(a, _), (b, _)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)))?;
    (best.0.0 > 0.4).then_some(best.1)
}
