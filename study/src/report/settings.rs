//! What runs are trained with, as their recipes say it.

use super::tasks::Task;
use super::words::counted;
use crate::experiment::plain;
use crate::results::RunResult;
use toml::Table;

/// What of a recipe a reader wants to know first: the section, and of a long one the keys.
const SHOWN: [(&str, &str, &[&str]); 4] = [
    ("Optimizer", "optimizer", &["kind", "learning_rate", "momentum", "nesterov", "weight_decay"]),
    ("Schedule", "schedule", &[]),
    ("Training", "train", &["epochs", "max_steps", "batch", "accumulate", "augment"]),
    ("Policy", "policy", &["warmup_steps", "dense_below", "momentum_correction", "clip_norm"]),
];

/// The settings of a task's runs; what arms differ in is said of each.
pub(super) fn facts(task: &Task<'_>) -> Vec<(String, String)> {
    let first = |runs: &[&RunResult]| runs.iter().find_map(|run| run.recipe.parse::<Table>().ok());
    let recipes = task.arms.iter().filter_map(|arm| Some((&arm.label.label, first(&arm.runs)?)));
    let recipes: Vec<(&String, Table)> = recipes.collect();
    let of = |recipe: &Table, section: &str, key: &str| -> String {
        let value = recipe.get(section).and_then(|table| table.get(key));
        value.map_or_else(|| "none".into(), plain)
    };
    let word = |section: &str, key: &str| -> String {
        let mut values = counted(recipes.iter().map(|(_, recipe)| of(recipe, section, key)));
        values.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let others = recipes.iter().map(|(arm, recipe)| (arm, of(recipe, section, key)));
        let others = others.filter(|(_, value)| *value != values[0].0);
        let others: Vec<String> = others.map(|(arm, value)| format!("{arm}: {value}")).collect();
        let key = if key == "kind" { String::new() } else { key.replace('_', " ") + " " };
        let others =
            if others.is_empty() { String::new() } else { format!(" ({})", others.join("; ")) };
        format!("{key}{}{others}", values[0].0)
    };
    let fact = |(name, section, wanted): &(&str, &str, &[&str])| {
        let tables = recipes.iter().filter_map(|(_, recipe)| recipe.get(*section)?.as_table());
        let keys = counted(tables.flat_map(Table::keys)).into_iter().map(|(key, _)| key);
        let place = |key: &&String| wanted.iter().position(|wanted| wanted == key);
        let mut keys: Vec<&String> =
            keys.filter(|key| wanted.is_empty() || place(key).is_some()).collect();
        keys.sort_by_key(|key| (key.as_str() != "kind", place(key)));
        let words: Vec<String> = keys.into_iter().map(|key| word(section, key)).collect();
        (!words.is_empty()).then(|| (name.to_string(), words.join(", ")))
    };
    let mut facts: Vec<(String, String)> = SHOWN.iter().filter_map(fact).collect();
    let measured =
        task.arms.iter().flat_map(|arm| &arm.runs).filter_map(|run| run.measured.as_ref());
    let batches =
        counted(measured.map(|m| format!("{} samples of {} workers", m.batch, m.workers)));
    let batches: Vec<String> = batches.into_iter().map(|(batch, _)| batch).collect();
    if !batches.is_empty() {
        facts.push(("A step".into(), batches.join(" or ")));
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::super::{tasks, tests::results};
    use super::*;

    #[test]
    fn what_arms_differ_in_is_said_of_each() {
        let mut results = results();
        for run in &mut results.runs {
            let rate = if run.arm == "dense" { 0.1 } else { 0.05 };
            run.recipe = format!(
                "[optimizer]\nkind = \"sgd\"\nlearning_rate = {rate}\nmomentum = 0.9\n\
                 [train]\nbatch = 32\naugment = true\nevaluate_every = 1\n[record]\nout = \"runs/out/x\"\n"
            );
        }
        let facts = facts(&tasks::tasks(&results)[0]);
        assert_eq!(facts[0].0, "Optimizer");
        let rates = "sgd, learning rate 0.05 (dense: 0.1), momentum 0.9";
        assert_eq!(facts[0].1, rates);
        assert_eq!(facts[1].1, "batch 32, augment true");
    }
}
