//! Every key of a file, read off its [schema](super::schema).

use super::schema::{about, alternatives, join, properties, requires, tag};
use serde::Serialize;
use serde_json::Value;

/// A table of a file, and the keys in it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyTable {
    /// What it is asked for by: `train`, `scheme.sidco`; empty for the file itself.
    pub name: String,
    /// How a file has it: `[train]`, `scheme = "sidco"`; empty for the file itself.
    pub written: String,
    /// What it is.
    pub about: String,
    /// Its keys, in the order of the definition.
    pub keys: Vec<Key>,
}

/// A key, and all that its definition says of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Key {
    /// Where a file has it, and `--set`: `scheme.ratio`. `[]` stands for each table of a list, `*` for
    /// a name of one's own.
    pub path: String,
    /// The values that it may have.
    pub values: String,
    /// The value that it has unless a file says otherwise, as TOML; absent where that is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// Whether a file must have it.
    pub required: bool,
    /// What has to be beside it, such as `kind = "qsgd"`; empty for a key that goes alone.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub beside: String,
    /// What it is.
    pub about: String,
    /// Those of its values that are words, and what each means.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<Word>,
}

/// A word that a key may have as its value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Word {
    /// The word.
    pub word: String,
    /// What it means.
    pub about: String,
}

/// All parts of a file, the file itself first.
pub fn parts(schema: &Value) -> Vec<KeyTable> {
    let mut parts = Vec::new();
    add_part(
        schema,
        "",
        KeyTable { about: about(schema).into(), ..KeyTable::at("", "") },
        &mut parts,
    );
    parts
}

/// Of these parts what has this name: parts, keys, or keys within; empty when nothing has.
pub fn named(parts: &[KeyTable], name: &str) -> Vec<KeyTable> {
    let within = |path: &str| {
        path == name || path.strip_prefix(name).is_some_and(|rest| rest.starts_with(['.', '[']))
    };
    let mut found = Vec::new();
    for part in parts {
        if within(&part.name) {
            found.push(part.clone());
            continue;
        }
        // The settings of a kind are also named after it: `scheme.sidco.ratio`.
        let in_kind = |key: &Key| {
            key.path.split_once('.').is_some_and(|(_, rest)| within(&join(&part.name, rest)))
        };
        let keys: Vec<Key> =
            part.keys.iter().filter(|key| within(&key.path) || in_kind(key)).cloned().collect();
        if !keys.is_empty() {
            found.push(KeyTable { keys, ..part.clone() });
        }
    }
    found
}

impl KeyTable {
    fn at(name: &str, written: &str) -> Self {
        Self { name: name.into(), written: written.into(), about: String::new(), keys: Vec::new() }
    }
}

/// Adds a table and the tables in it. `path` is where its keys are.
fn add_part(holder: &Value, path: &str, part: KeyTable, parts: &mut Vec<KeyTable>) {
    let (place, is_file) = (parts.len(), path.is_empty());
    parts.push(part);
    for (name, of) in properties(holder).filter(|(_, of)| of.get("const").is_none()) {
        let path = join(path, name);
        let part = |written: &str, table: &Value| {
            let said = if about(of).is_empty() { about(table) } else { about(of) };
            let must_be = if requires(holder, name) { " Required." } else { "" };
            KeyTable { about: format!("{said}{must_be}"), ..KeyTable::at(&path, written) }
        };
        let tables: Vec<&Value> = alternatives(of).into_iter().filter(|of| has_keys(of)).collect();
        let items = of.get("items").filter(|of| has_keys(of));
        let entries = of.get("additionalProperties").filter(|of| has_keys(of));
        match (tables.as_slice(), items, entries) {
            ([table], ..) if alternatives(of).len() == 1 => {
                add_part(table, &path, part(&format!("[{path}]"), table), parts);
            }
            (_, Some(table), _) => {
                let each = format!("{path}[]");
                add_part(table, &each, part(&format!("[[{path}]]"), table), parts);
            }
            (_, _, Some(table)) => {
                let each = format!("{path}.*");
                add_part(table, &each, part(&format!("[{each}]"), table), parts);
            }
            (kinds, ..)
                if is_file && !kinds.is_empty() && kinds.iter().all(|kind| is_kind(kind)) =>
            {
                let mut key = Key { path: path.clone(), ..key(of, requires(holder, name)) };
                key.words = kinds.iter().filter_map(|kind| word(kind)).collect();
                key.values = String::from("one of these names, or a table with it as `kind`");
                parts[place].keys.push(key);
                for kind in kinds {
                    let Some((_, name)) = tag(kind) else { continue };
                    let written = format!("{path} = {name:?}");
                    let part = KeyTable {
                        about: about(kind).into(),
                        ..KeyTable::at(&join(&path, name), &written)
                    };
                    add_part(kind, &path, part, parts);
                }
            }
            _ => add_key(of, &path, requires(holder, name), "", &mut parts[place].keys),
        }
    }
}

/// Adds a key, and the keys of the tables that may be its value.
fn add_key(of: &Value, path: &str, required: bool, beside: &str, keys: &mut Vec<Key>) {
    keys.push(Key { path: path.into(), beside: beside.into(), ..key(of, required) });
    let within = |of: &Value| of.get("items").filter(|of| has_keys(of)).cloned();
    if let Some(items) = within(of) {
        add_keys(&items, &format!("{path}[]"), false, keys);
    }
    let several = alternatives(of);
    for table in &several {
        // A table of one key, as `{ bits = 4.5 }`, is chosen by having it.
        let is_chosen = several.len() > 1 && properties(table).count() == 1;
        add_keys(table, path, is_chosen, keys);
    }
}

fn add_keys(table: &Value, path: &str, is_one_of_several: bool, keys: &mut Vec<Key>) {
    if !has_keys(table) {
        return;
    }
    let beside = tag(table).map_or_else(String::new, |(key, of)| format!("{key} = {of:?}"));
    let required = |name: &str| requires(table, name) && !is_one_of_several;
    for (name, of) in properties(table).filter(|(_, of)| of.get("const").is_none()) {
        let at = keys.len();
        add_key(of, &join(path, name), required(name), &beside, keys);
        // What it chooses is then described in its place.
        if keys[at].about.is_empty() {
            keys[at].about = about(table).into();
        }
    }
}

/// A key without its path.
fn key(of: &Value, required: bool) -> Key {
    let default = of.get("default").and_then(in_toml);
    let said = about(of);
    Key {
        path: String::new(),
        values: values(of),
        about: without_default(said, default.as_deref()).into(),
        default,
        required,
        beside: String::new(),
        words: alternatives(of)
            .into_iter()
            .filter_map(word)
            .filter(|word| !word.about.is_empty())
            .collect(),
    }
}

/// The text without a last sentence that says the default once more.
fn without_default<'a>(text: &'a str, default: Option<&str>) -> &'a str {
    let said = text.rsplit_once("Default ").filter(|(_, said)| {
        let said = said.trim_end_matches('.').trim_matches('`');
        default.is_some_and(|default| default.trim_matches('"') == said)
    });
    said.map_or(text, |(before, _)| before.trim_end())
}

/// Whether a schema is that of a table with keys of its own.
fn has_keys(of: &Value) -> bool {
    let is_known =
        |of: &Value| ["type", "anyOf", "oneOf", "const"].iter().any(|key| of.get(key).is_some());
    of.get("properties")
        .is_some_and(|keys| keys.as_object().is_some_and(|keys| keys.values().any(is_known)))
}

/// Whether a table is one of several that `kind` tells apart.
fn is_kind(of: &Value) -> bool {
    tag(of).is_some_and(|(key, _)| key == "kind")
}

/// The word that a schema is, or that tells a table from others.
fn word(of: &Value) -> Option<Word> {
    let word = of.get("const").and_then(Value::as_str).or_else(|| tag(of).map(|(_, name)| name))?;
    Some(Word { word: word.into(), about: about(of).into() })
}

/// A default as a file would have it; of a table that is told by its kind, the kind.
fn in_toml(value: &Value) -> Option<String> {
    let value = value.get("kind").unwrap_or(value);
    match toml::Value::try_from(value).ok()? {
        toml::Value::Array(none) if none.is_empty() => None,
        toml::Value::String(none) if none.is_empty() => None,
        toml::Value::Table(none) if none.is_empty() => None,
        toml::Value::Float(number) => Some(number.to_string()),
        value => Some(value.to_string()),
    }
}

/// The values that a schema allows, in words.
pub(super) fn values(of: &Value) -> String {
    let several = alternatives(of);
    if let (Some((key, _)), 2..) = (several.first().and_then(|one| tag(one)), several.len())
        && several.iter().all(|one| tag(one).is_some())
    {
        return format!("table with one of these as `{key}`");
    }
    let mut all: Vec<String> = Vec::new();
    for one in several {
        let words = match one.get("enum").and_then(Value::as_array) {
            Some(words) => words.iter().map(Value::to_string).collect(),
            None => vec![kind_of_value(one, of)],
        };
        all.extend(words.into_iter().filter(|words| !all.contains(words)).collect::<Vec<_>>());
    }
    match all.as_slice() {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// The values of a schema that is not several. `outer` may bound them.
fn kind_of_value(of: &Value, outer: &Value) -> String {
    if let Some(word) = of.get("const") {
        return word.to_string();
    }
    let kinds: Vec<&str> = match of.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => return "any value".into(),
    };
    let in_words = |kind: &str| match kind {
        "boolean" => "true or false".to_string(),
        "integer" => format!("whole number{}", bounds(of, outer)),
        "number" => format!("number{}", bounds(of, outer)),
        "string" => match of["examples"].get(0) {
            Some(example) => format!("text such as {example}"),
            None => "text".to_string(),
        },
        "array" => match of.get("items") {
            Some(items) if has_keys(items) => "list of tables".into(),
            Some(items) if items["type"] == "string" => "list of text".into(),
            Some(items) => format!("list, each a {}", values(items)),
            None => "list".into(),
        },
        _ => match tag(of) {
            Some((key, name)) => format!("{{ {key} = {name:?}, … }}"),
            None if has_keys(of) => {
                let keys: Vec<&str> = properties(of).map(|(key, _)| key.as_str()).collect();
                match keys.as_slice() {
                    [only] => format!("{{ {only} = … }}"),
                    [first, ..] if requires(of, first) => format!("{{ {} }}", keys.join(", ")),
                    _ => "table".into(),
                }
            }
            None => "table".into(),
        },
    };
    kinds.into_iter().map(in_words).collect::<Vec<_>>().join(" or ")
}

/// The bounds of a number, in words.
fn bounds(of: &Value, outer: &Value) -> String {
    let bound = |key: &str| of.get(key).or(outer.get(key)).map(plain_number);
    let (least, above) = (bound("minimum"), bound("exclusiveMinimum"));
    let (most, below) = (bound("maximum"), bound("exclusiveMaximum"));
    let mut words = match (least, above, most, below) {
        (Some(least), _, Some(most), _) => format!(" from {least} to {most}"),
        (Some(least), _, None, Some(below)) => format!(" from {least}, below {below}"),
        (Some(least), _, None, None) => format!(" of at least {least}"),
        (None, Some(above), Some(most), _) => format!(" above {above}, at most {most}"),
        (None, Some(above), None, Some(below)) => format!(" above {above}, below {below}"),
        (None, Some(above), None, None) => format!(" above {above}"),
        (None, None, Some(most), _) => format!(" of at most {most}"),
        (None, None, None, Some(below)) => format!(" below {below}"),
        (None, None, None, None) => String::new(),
    };
    if let Some(of) = bound("multipleOf") {
        words.push_str(&format!(", a multiple of {of}"));
    }
    words
}

/// A number without the `.0` of a whole one.
fn plain_number(number: &Value) -> String {
    let text = number.to_string();
    text.strip_suffix(".0").map_or(text.clone(), str::to_string)
}
