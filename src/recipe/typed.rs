//! From a TOML value to its type; what does not fit is refused in words for people who write recipes.

use anyhow::Result;
use serde::de::DeserializeOwned;
use toml::Value;

/// The typed form of a TOML value.
///
/// # Errors
/// When a key is unknown or a value of the wrong type: with its path, and the nearest valid name.
pub(super) fn typed<T: DeserializeOwned>(value: impl Into<Value>) -> Result<T> {
    let result: Result<T, _> = serde_path_to_error::deserialize(value.into());
    result.map_err(|error| {
        let path = error.path().to_string();
        // toml repeats the path on lines of its own.
        let message = error.into_inner().to_string();
        let message = message.lines().next().unwrap_or_default();
        let at = if path == "." { String::new() } else { format!(" in `{path}`") };
        if is_table_for_word(message) {
            let elsewhere = match path.as_str() {
                "exchange.topology" => "; what a server sends back is `exchange.downlink`",
                _ => "",
            };
            return anyhow::anyhow!("recipe{at}: expected a word, not a table{elsewhere}");
        }
        let elsewhere = match path.as_str() {
            "model" | "model.kind" if message.starts_with("unknown variant") => {
                "; a model of your own is a program on the library gradwire (docs/library.md)"
            }
            _ => "",
        };
        anyhow::anyhow!("recipe{at}: {}{}{elsewhere}", in_plain_words(message), hint(message))
    })
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
    let elsewhere: Vec<&str> = KEYS.iter().filter(|(key, _)| key == wrong).map(|k| k.1).collect();
    match (did_you_mean(wrong, valid), elsewhere.as_slice()) {
        (near, []) => near,
        (_, paths) => format!("; did you mean `{}`?", paths.join("` or `")),
    }
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
