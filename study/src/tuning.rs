//! A setting whose value is chosen for each arm by itself, on samples of the training set that are held out.

use crate::grid::Selection;
use crate::measured::Measured;
use crate::results::{Results, RunStatus, Tried, Tuned, TunedArm};
use crate::sweep::Over;
use anyhow::{Result, ensure};

/// The share of the training set that is held out.
const SHARE: f64 = 0.1;
/// The seed of the runs that a value is chosen by; experiments and sweeps begin with seed 1.
const SEED: u64 = 0;

/// A path of a recipe, and the values that each arm chooses from.
#[derive(Clone, Debug)]
pub struct Tuning(Over);

impl Tuning {
    /// Reads `optimizer.learning_rate=0.05,0.1,0.2`.
    ///
    /// # Errors
    /// When there is no `=`, or only one value.
    pub fn parse(text: &str) -> Result<Self> {
        let over = Over::parse("--tune", text)?;
        ensure!(
            over.values.len() > 1,
            "--tune {text:?} names one value: there is nothing to choose"
        );
        Ok(Self(over))
    }

    /// The path.
    pub fn path(&self) -> &str {
        &self.0.path
    }

    /// What is run for each value, and before it the name of its folder: every arm once, tested on what is held out.
    pub fn selections(&self, all: &Selection) -> impl Iterator<Item = (String, Selection)> {
        self.0.values.iter().map(|value| {
            let set = format!("{}={value}", self.0.path);
            let own = [set.clone(), format!("samples.validation={SHARE}")];
            let sets = all.sets.iter().cloned().chain(own).collect();
            (
                set.replace('/', "-"),
                Selection { seeds: Some(vec![SEED]), known: Vec::new(), sets, ..all.clone() },
            )
        })
    }

    /// What each arm chooses, by the results of the runs with each value, in that order.
    pub fn chosen(&self, results: &[Results]) -> Tuned {
        let mut arms = Vec::new();
        for run in results.iter().take(1).flat_map(|results| &results.runs) {
            let (task, arm) = (&run.task, &run.arm);
            let tried = results.iter().zip(&self.0.values).map(|(results, value)| {
                let is = |run: &&crate::results::RunResult| run.task == *task && run.arm == *arm;
                let run = results.runs.iter().find(is);
                let done = run.filter(|run| run.outcome == RunStatus::Finished);
                let found = done.and_then(|run| run.measured.as_ref()).and_then(figure);
                Tried { value: value.to_string(), found }
            });
            let tried: Vec<Tried> = tried.collect();
            let better = |a: &&Tried, b: &&Tried| score(a).total_cmp(&score(b));
            // Of equals the first.
            let best = tried.iter().rev().filter(|tried| tried.found.is_some()).max_by(better);
            let chosen = best.map(|tried| tried.value.clone());
            arms.push(TunedArm { task: task.clone(), arm: arm.clone(), tried, chosen });
        }
        Tuned { path: self.0.path.clone(), share: SHARE, seed: SEED, arms }
    }
}

/// By what values are compared: accuracy, or where a text is continued minus the loss.
fn figure(measured: &Measured) -> Option<f64> {
    let figure = match measured.summary.unit.as_str() {
        "tokens" => measured.summary.test_loss.map(|loss| -loss),
        _ => measured.summary.test_accuracy,
    };
    figure.filter(|figure| figure.is_finite())
}

fn score(tried: &Tried) -> f64 {
    tried.found.unwrap_or(f64::NEG_INFINITY)
}

impl TunedArm {
    /// Whether the value chosen is the smallest or the largest of several numbers: the best may lie beyond it.
    pub fn is_at_the_edge(&self) -> bool {
        let numbers: Option<Vec<f64>> =
            self.tried.iter().map(|tried| tried.value.parse().ok()).collect();
        let chosen = self.chosen.as_ref().and_then(|chosen| chosen.parse::<f64>().ok());
        let Some((numbers, chosen)) = numbers.zip(chosen) else { return false };
        !numbers.iter().any(|n| *n < chosen) || !numbers.iter().any(|n| *n > chosen)
    }
}

impl Tuned {
    /// What an arm on a task chose, as an assignment to the path.
    pub(super) fn set(&self, task: &str, arm: &str) -> Option<String> {
        let own = self.arms.iter().find(|own| own.task == task && own.arm == arm)?;
        own.chosen.as_ref().map(|value| format!("{}={value}", self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::RunResult;
    use gradwire::record::Summary;

    fn results(unit: &str, arms: &[(&str, Option<f64>)]) -> Results {
        let run = |(arm, found): &(&str, Option<f64>)| RunResult {
            task: "t".into(),
            arm: (*arm).into(),
            seed: SEED,
            folder: Default::default(),
            recipe: String::new(),
            outcome: match found {
                Some(_) => RunStatus::Finished,
                None => RunStatus::Diverged { error: "the loss is NaN".into() },
            },
            measured: found.map(|found| Measured {
                summary: Summary {
                    unit: unit.into(),
                    test_accuracy: Some(found),
                    test_loss: Some(found),
                    ..Summary::default()
                },
                ..Measured::default()
            }),
        };
        Results { runs: arms.iter().map(run).collect(), ..Results::default() }
    }

    #[test]
    fn each_arm_chooses_the_value_that_is_best_on_what_is_held_out() {
        let tuning = Tuning::parse("optimizer.learning_rate=0.1,0.2,0.4").unwrap();
        let tried = |unit| {
            [
                results(unit, &[("a", Some(0.5)), ("b", Some(0.7)), ("c", None)]),
                results(unit, &[("a", Some(0.6)), ("b", Some(0.7)), ("c", None)]),
                results(unit, &[("a", Some(0.55)), ("b", None), ("c", None)]),
            ]
        };
        let tuned = tuning.chosen(&tried("images"));
        assert_eq!(tuned.set("t", "a").unwrap(), "optimizer.learning_rate=0.2");
        assert_eq!(tuned.set("t", "b").unwrap(), "optimizer.learning_rate=0.1");
        // The recipe's own stays where none trains.
        assert_eq!((tuned.set("t", "c"), tuned.set("other", "a")), (None, None));
        let edges: Vec<bool> = tuned.arms.iter().map(TunedArm::is_at_the_edge).collect();
        assert_eq!(edges, [false, true, false]);
        // A loss is to be low.
        let of_a_text = tuning.chosen(&tried("tokens"));
        assert_eq!(of_a_text.set("t", "a").unwrap(), "optimizer.learning_rate=0.1");
    }

    #[test]
    fn runs_that_choose_are_tested_on_what_is_held_out_with_a_seed_of_their_own() {
        let tuning = Tuning::parse("optimizer.learning_rate=0.1,0.2").unwrap();
        let all = Selection { sets: vec!["train.epochs=2".into()], ..Selection::default() };
        let of: Vec<(String, Selection)> = tuning.selections(&all).collect();
        assert_eq!(of.len(), 2);
        assert_eq!(of[1].0, "optimizer.learning_rate=0.2");
        assert_eq!(of[1].1.seeds, Some(vec![0]));
        let sets = ["train.epochs=2", "optimizer.learning_rate=0.2", "samples.validation=0.1"];
        assert_eq!(of[1].1.sets, sets);
        for refused in ["optimizer.learning_rate", "optimizer.learning_rate=0.1", "seed=1,2"] {
            Tuning::parse(refused).unwrap_err();
        }
    }
}
