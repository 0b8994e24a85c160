//! What an experiment has found so far: every run of its grid, those that are missing or went
//! wrong too, and a verdict on every claim. Reports are made from this and nothing else.

use super::measured::Measured;
use super::statistics::Interval;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Several runs that belong together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The experiment's name; `runs` for runs that somebody put together.
    pub experiment: String,
    /// What it is about, in one line.
    pub title: String,
    /// The paper: authors, year, title, venue. Empty where there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub paper: String,
    /// What was done at this scale, and where it differs from the paper, in sentences.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// `smoke`, `quick` or `full`; absent for runs that somebody put together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<String>,
    /// The command that makes all of this, as it can be typed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// What is trained, in order: a model on a data set by so many workers.
    pub tasks: Vec<Label>,
    /// What is compared on each task, in order: a scheme with its settings.
    pub arms: Vec<Label>,
    /// The arm that the others are compared with, if there is one among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<String>,
    /// The words of the links that runs were replayed on.
    pub links: Vec<String>,
    /// Every run of the grid, in the order of tasks, arms and seeds.
    pub runs: Vec<Run>,
    /// What is claimed, and what was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<Verdict>,
}

/// A name that stands in folders and files, and what it is called in front of people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// Letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// In words.
    pub label: String,
}

/// One run of a grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The name of what was trained.
    pub task: String,
    /// The name of what it was trained with.
    pub arm: String,
    /// What every random stream derived from.
    pub seed: u64,
    /// The run's folder, within the experiment's.
    pub folder: PathBuf,
    /// How it ended.
    pub outcome: Outcome,
    /// What its record says; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Outcome {
    /// It took all its steps.
    Finished,
    /// A gradient, the mean gradient or the loss was not finite any more.
    Diverged {
        /// The error with its causes.
        error: String,
    },
    /// Something else went wrong.
    Failed {
        /// The error with its causes.
        error: String,
    },
    /// It has begun and not ended: it is going on, or was stopped.
    Unfinished,
    /// It has not begun.
    Missing,
}

impl Outcome {
    /// Whether figures of the whole run may be taken from it.
    pub fn is_finished(&self) -> bool {
        *self == Self::Finished
    }

    /// In one word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Diverged { .. } => "diverged",
            Self::Failed { .. } => "failed",
            Self::Unfinished => "unfinished",
            Self::Missing => "missing",
        }
    }
}

/// A claim, what was measured, and what follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The claim in words.
    pub claim: String,
    /// Where it is made: paper, table or section; who publishes it.
    pub source: String,
    /// What was measured, in words: of what, against what, on which task and link.
    pub measure: String,
    /// How its numbers are said.
    pub unit: Unit,
    /// The number claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed: Option<f64>,
    /// The least and the most that count as reproduced; absent where that side is open.
    pub bounds: [Option<f64>; 2],
    /// What was measured over the seeds; absent where nothing could be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Interval>,
    /// What follows.
    pub ruling: Ruling,
    /// Why.
    pub why: String,
}

/// How numbers are said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// As a plain number.
    #[default]
    Number,
    /// A fraction, said in percent.
    Percent,
    /// A difference of two fractions, said in percentage points.
    Points,
    /// A factor, said with ×.
    Factor,
}

/// What follows from what was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ruling {
    /// The whole interval lies within the bounds.
    Reproduced,
    /// It does not.
    NotReproduced,
    /// This scale cannot tell.
    NotTestable,
}

impl Ruling {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::NotReproduced => "not reproduced",
            Self::NotTestable => "not testable at this scale",
        }
    }
}
