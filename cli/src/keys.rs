//! `gradwire list keys` and `gradwire list schema`: what a recipe or an experiment may say.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use gradwire::recipe::keys::{Key, KeyTable, named, parts};
use gradwire::recipe::{Recipe, elsewhere, nearest, schema};
use gradwire::text;
use gradwire_study::experiment::Experiment;
use serde_json::Value;

/// Columns of a line.
const WIDTH: usize = 80;

/// Which keys, and how.
#[derive(Debug, Args)]
pub(super) struct Keys {
    /// A part or a key: `train`, `scheme.sidco`, `train.batch`; of an experiment `experiment` or
    /// `experiment.claims`; without it every key of a recipe
    of: Option<String>,
    /// Print them as JSON
    #[arg(long)]
    json: bool,
}

/// Of which file.
#[derive(Debug, Args)]
pub(super) struct Schema {
    /// What the file is
    of: File,
}

/// A file that a command takes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum File {
    /// A run: `gradwire train FILE`
    Recipe,
    /// A grid of runs and what they are to show: `gradwire reproduce FILE`
    Experiment,
}

impl File {
    /// Its kind in a word.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Recipe => "recipe",
            Self::Experiment => "experiment",
        }
    }

    fn schema(self) -> Value {
        match self {
            Self::Recipe => Recipe::schema(),
            Self::Experiment => schema::of::<Experiment>(),
        }
    }
}

impl Schema {
    pub(super) fn run(&self) -> Result<()> {
        println!("{}", serde_json::to_string_pretty(&self.of.schema())?);
        Ok(())
    }
}

impl Keys {
    /// Prints them.
    ///
    /// # Errors
    /// When there is no such key, with the nearest one.
    pub(super) fn run(&self) -> Result<()> {
        let shown = match &self.of {
            None => parts(&Recipe::schema()),
            Some(name) => find(name)?,
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&shown)?);
            return Ok(());
        }
        let texts: Vec<String> = shown.iter().map(in_columns).collect();
        print!("{}", texts.join("\n"));
        Ok(())
    }
}

fn find(name: &str) -> Result<Vec<KeyTable>> {
    let rest =
        name.strip_prefix("experiment").filter(|rest| rest.is_empty() || rest.starts_with('.'));
    let (file, word, rest) = match rest {
        Some(rest) => (File::Experiment, "an experiment", rest.trim_start_matches('.')),
        None => (File::Recipe, "a recipe", if name == "recipe" { "" } else { name }),
    };
    let all = parts(&file.schema());
    if rest.is_empty() {
        return Ok(all);
    }
    let found = named(&all, rest);
    if found.is_empty() {
        let keys = all.iter().flat_map(|part| &part.keys).map(|key| key.path.as_str());
        let names: Vec<&str> = all.iter().map(|part| part.name.as_str()).chain(keys).collect();
        let mut meant = elsewhere(rest);
        if meant.is_empty() {
            meant.extend(nearest(rest, &names));
        }
        let near = match meant.as_slice() {
            [] => ".".into(),
            near => format!("; did you mean `{}`?", near.join("` or `")),
        };
        bail!("{word} has no key {rest:?}{near} All of them: `gradwire list keys {}`", file.word());
    }
    Ok(found)
}

/// A part for a terminal.
fn in_columns(part: &KeyTable) -> String {
    let mut text = String::new();
    if !part.written.is_empty() {
        text.push_str(&format!("{}\n", part.written));
    }
    text.push_str(&indented(&part.about, 2));
    if part.keys.is_empty() {
        text.push_str(&indented("No settings.", 2));
    }
    for key in &part.keys {
        text.push_str(&format!("\n  {}\n", key.path));
        text.push_str(&indented(&facts(key), 4));
        text.push_str(&indented(&key.about, 4));
        for word in &key.words {
            text.push_str(&indented(&format!("{:?}: {}", word.word, word.about), 6));
        }
    }
    text
}

/// The values of a key, its default, and what else there is to know but its meaning.
fn facts(key: &Key) -> String {
    let mut facts = vec![key.values.clone()];
    match &key.default {
        Some(default) => facts.push(format!("default {default}")),
        None if key.required => facts.push("required".into()),
        None => {}
    }
    if !key.beside.is_empty() {
        facts.push(format!("with {}", key.beside));
    }
    facts.join("; ")
}

/// A text on lines that begin with so many spaces.
fn indented(text: &str, indent: usize) -> String {
    let lines = text::wrapped(text, WIDTH - indent).into_iter();
    lines.map(|line| format!("{:indent$}{line}\n", "")).collect()
}
