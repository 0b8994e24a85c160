//! Two recipes, key by key: whether a run begun with one may go on with the other.

use super::schema::join;
use super::settings::Recipe;
use anyhow::Result;
use std::collections::BTreeMap;
use toml::Value;

/// Keys, or tables of keys, that no later step's weights depend on.
const FREE: [&str; 17] = [
    "name",
    "threads",
    "dataset.dir",
    "dataset.file",
    "dataset.path",
    "dataset.test_file",
    "dataset.tokenizer",
    "exchange.timeout",
    "exchange.compare_replicas_every",
    "exchange.overlap",
    "exchange.overlap_bytes",
    "policy.measure_every",
    "policy.force",
    "train.evaluate_every",
    "record",
    "checkpoint",
    "faults",
];

/// Keys that only say when the run ends.
const LENGTH: [&str; 2] = ["train.epochs", "train.max_steps"];

/// The key that says whether the sizes of messages are recorded.
const NETWORK: &str = "record.network";

/// A key that two recipes say different things about.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The key, such as `train.batch`.
    pub key: String,
    /// What the run was begun with; `None` where it was left out.
    pub old: Option<Value>,
    /// What it is to go on with.
    pub new: Option<Value>,
    /// Why the run would not be the same any more; `None` when it would.
    pub objection: Option<&'static str>,
}

impl Change {
    /// Whether some step's weights depend on the key, or on how long the run is.
    pub fn decides(&self) -> bool {
        !is_one_of(&self.key, &FREE)
    }

    /// Whether a run that goes on with it would have a record of the network that no one can read, because
    /// it is of a part of the steps.
    pub fn parts_the_record(&self) -> bool {
        self.key == NETWORK && self.objection.is_some()
    }
}

impl Recipe {
    /// What `new` says differently from this recipe, by which a run was begun.
    ///
    /// # Errors
    /// When a recipe does not fit TOML.
    pub fn changes(&self, new: &Self) -> Result<Vec<Change>> {
        let (old_keys, new_keys) = (keys(self)?, keys(new)?);
        let all = old_keys.keys().chain(new_keys.keys()).collect::<std::collections::BTreeSet<_>>();
        let changed = all.into_iter().filter(|key| old_keys.get(*key) != new_keys.get(*key));
        let change = |key: &String| Change {
            key: key.clone(),
            old: old_keys.get(key).cloned(),
            new: new_keys.get(key).cloned(),
            objection: objection(key, new),
        };
        Ok(changed.map(change).collect())
    }
}

impl Recipe {
    /// Every key that some step's weights depend on, with its value; where data lies is none.
    ///
    /// # Errors
    /// When the recipe does not fit TOML.
    pub fn decisive_keys(&self) -> Result<BTreeMap<String, Value>> {
        let mut keys = keys(self)?;
        keys.retain(|key, _| !is_one_of(key, &FREE));
        Ok(keys)
    }
}

/// Whether a key is in the list, or in a table of the list.
pub fn is_one_of(key: &str, list: &[&str]) -> bool {
    let is =
        |name: &&str| key == *name || key.strip_prefix(*name).is_some_and(|k| k.starts_with('.'));
    list.iter().any(is)
}

/// Why a change of this key makes another run of it.
fn objection(key: &str, new: &Recipe) -> Option<&'static str> {
    if key == NETWORK {
        return Some(
            "network.jsonl tells of all steps of a run or of none: go on with record.network as it was, \
             or begin a run of its own",
        );
    }
    if is_one_of(key, &FREE) || key == "workers" {
        return None;
    }
    if LENGTH.contains(&key) {
        if new.is_local() {
            return Some(
                "the last step of a run ends a round of local steps: in a longer run that round would \
                 have been longer",
            );
        }
        if new.schedule.spans_the_run() {
            return Some(
                "the schedule spans the whole run: another length changes the learning rate of every \
                 step that is left",
            );
        }
        if new.policy().schemes(&new.scheme).any(gradwire_exchange::Scheme::spans_the_run) {
            return Some(
                "the scheme spreads its bits over the whole run: in a longer run every step would have had others; \
                 with scheme.horizon as it was the length may change",
            );
        }
        return new.average.spans_the_run().then_some(
            "the ramp of the slow weights' decay spans the whole run: another length changes every \
             step that is left",
        );
    }
    let measures = is_one_of(key, &["train.test_views", "train.recalibrate"]);
    Some(if measures { "it changes what is measured" } else { "it changes what is trained" })
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = |value: &Option<Value>| {
            value.as_ref().map_or_else(|| "left out".into(), ToString::to_string)
        };
        write!(f, "{} was {}, is {}", self.key, word(&self.old), word(&self.new))
    }
}

fn keys(recipe: &Recipe) -> Result<BTreeMap<String, Value>> {
    Ok(flat(toml::Table::try_from(recipe)?))
}

/// A table as one value for each key, by path.
pub fn flat(table: toml::Table) -> BTreeMap<String, Value> {
    let mut keys = BTreeMap::new();
    let mut open = vec![(String::new(), Value::Table(table))];
    while let Some((path, value)) = open.pop() {
        match value {
            Value::Table(table) => {
                open.extend(table.into_iter().map(|(key, value)| (join(&path, &key), value)));
            }
            value => drop(keys.insert(path, value)),
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::super::Source;
    use super::*;

    fn recipe(sets: &[&str]) -> Recipe {
        Source::of(sets.iter().copied()).load().unwrap()
    }

    fn objections(old: &[&str], new: &[&str]) -> Vec<String> {
        let changes = recipe(old).changes(&recipe(new)).unwrap();
        changes.into_iter().filter(|c| c.objection.is_some()).map(|c| c.to_string()).collect()
    }

    #[test]
    fn what_decides_nothing_may_change() {
        let new = [
            "record.every=3",
            "record.out=elsewhere",
            "checkpoint.every_steps=7",
            "exchange.timeout=9",
            "threads=2",
            "workers=3",
            "name=other",
        ];
        let old = recipe(&[]);
        let changes = old.changes(&recipe(&new)).unwrap();
        assert_eq!(changes.len(), new.len());
        assert_eq!(objections(&[], &new), [""; 0]);
        assert!(old.changes(&old.clone()).unwrap().is_empty());
    }

    #[test]
    fn what_decides_the_weights_is_named_with_both_values() {
        assert_eq!(
            objections(&["train.batch=8"], &["train.batch=16", "train.clip_norm=1.5"]),
            ["train.batch was 8, is 16", "train.clip_norm was left out, is 1.5"]
        );
        assert_eq!(objections(&["seed=1"], &["seed=2"]), ["seed was 1, is 2"]);
        // Another kind of anything is told by its kind and by the settings that came and went.
        let scheme = objections(&["scheme=topk"], &["scheme=qsgd"]);
        assert!(scheme.contains(&r#"scheme.kind was "topk", is "qsgd""#.to_string()), "{scheme:?}");
    }

    #[test]
    fn the_network_is_recorded_all_the_time_or_never() {
        let [off, on] = ["record.network=false", "record.network=true"];
        assert_eq!(objections(&[off], &[on]), ["record.network was false, is true"]);
        assert_eq!(objections(&[on], &[off]).len(), 1);
    }

    #[test]
    fn a_longer_run_is_the_same_run_unless_its_schedule_spans_it() {
        let constant = "schedule={kind=\"constant\"}";
        assert_eq!(
            objections(&[constant, "train.epochs=2"], &[constant, "train.epochs=5"]),
            [""; 0]
        );
        let cosine = objections(&["train.epochs=2"], &["train.epochs=5", "train.max_steps=3"]);
        assert_eq!(cosine.len(), 2, "{cosine:?}");
        let longer = |set: &str| objections(&[constant, set], &[constant, set, "train.epochs=5"]);
        assert_eq!(longer("average={kind=\"lookahead\"}"), [""; 0]);
        assert_eq!(longer("average={kind=\"lookahead\",ramp=3}").len(), 1);
        assert_eq!(longer("scheme=\"dqsgd\"").len(), 1);
        assert_eq!(longer("scheme={kind=\"dqsgd\",horizon=100}"), [""; 0]);
        assert_eq!(longer("policy={rules=[{match=\"*\",scheme=\"dqsgd\"}]}").len(), 1);
        let triangular = "schedule={kind=\"triangular\"}";
        assert_eq!(objections(&[triangular], &[triangular, "train.epochs=5"]).len(), 1);
    }
}
