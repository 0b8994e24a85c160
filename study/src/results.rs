//! What an experiment has found so far: every run of its grid, those that are missing or went
//! wrong too, and a verdict on every claim. Reports are made from this and nothing else.

use crate::bench::codecs::Spread;
use crate::decision::SIDE;
use crate::measured::Measured;
use crate::statistics::Interval;
use gradwire::record::Provenance;
pub use gradwire::record::RunStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The name of results that are of no experiment: of runs that somebody put together.
pub const COLLECTED: &str = "runs";

/// Several runs that belong together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The experiment's name, or [`COLLECTED`].
    pub experiment: String,
    /// What it is about, in one line.
    pub title: String,
    /// The paper: authors, year, title, venue. Empty where there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub paper: String,
    /// What was done at this scale, and where it differs from the paper, in sentences.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// `smoke`, `quick`, `standard` or `full`; absent for runs that somebody put together.
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
    pub runs: Vec<RunResult>,
    /// Runs that earlier results held and this grid has no place for, such as those of more seeds. No
    /// table, plot or verdict shows them; they are there for whoever asks for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<RunResult>,
    /// How fast schemes encode and decode gradients that runs recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timings: Vec<Timing>,
    /// The setting that was chosen for each arm before, if one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuned: Option<Tuned>,
    /// How many times the verdicts are looked at: 1, or as many as `--until-decided` may look.
    #[serde(default = "once")]
    pub looks: usize,
    /// What is claimed, and what was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<Verdict>,
}

fn once() -> usize {
    1
}

impl Results {
    /// Whether nobody has claimed what is tested: it is a question of one's own.
    pub fn is_own_question(&self) -> bool {
        self.paper.is_empty()
    }

    /// A ruling in words: what became of a paper's claim, or the answer to a question.
    pub fn in_words(&self, ruling: Ruling) -> &'static str {
        let [verdict, answer] = match ruling {
            Ruling::Reproduced => ["reproduced", "yes"],
            Ruling::Contradicted => ["contradicted at this scale", "no"],
            Ruling::DependsOnLink => ["dependent on the link"; 2],
            Ruling::Undecided => ["undecided"; 2],
            Ruling::NotTestable => ["not testable at this scale", "no answer"],
        };
        if self.is_own_question() { answer } else { verdict }
    }
}

/// How fast an arm's scheme is on a gradient that a run recorded: one thread, in turns with the
/// schemes that it is compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// The task of the run.
    pub task: String,
    /// The arm of the run whose gradient it is.
    #[serde(rename = "of")]
    pub gradient_of: String,
    /// The run's seed.
    pub seed: u64,
    /// When the run began, in seconds since 1970: another run has another gradient.
    pub started: f64,
    /// The arm whose scheme was timed.
    pub arm: String,
    /// That scheme with its settings, in words.
    #[serde(default)]
    pub scheme: String,
    /// Seconds of encoding.
    pub encode: Spread,
    /// Seconds of decoding one message and adding it up.
    pub decode: Spread,
    /// The program and the machine that timed it; nothing was kept of them until November 2026.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
}

/// A setting whose value was chosen for each arm on samples of the training set that were held out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuned {
    /// Its path in the recipe.
    pub path: String,
    /// The share of the training set that was held out.
    pub share: f64,
    /// The seed of the runs that it was chosen by.
    pub seed: u64,
    /// What each arm of each task chose.
    pub arms: Vec<TunedArm>,
}

/// What an arm chose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedArm {
    /// The task's name.
    pub task: String,
    /// The arm's name.
    pub arm: String,
    /// What it chose from.
    pub tried: Vec<Tried>,
    /// The value; none where no run finished, and the recipe's own stays.
    pub chosen: Option<String>,
}

/// A value that was tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// As a recipe has it.
    pub value: String,
    /// Accuracy on what was held out, as a fraction, or minus the loss where a text is continued; none where the run did
    /// not finish.
    pub found: Option<f64>,
}

/// A name for folders and files, and a label for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// Letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// In words.
    pub label: String,
    /// What it is one of several values of; empty where it stands for itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub member: String,
}

impl Label {
    /// The place of the first of `others` that is another value of the same member.
    pub(super) fn of_same_member(&self, others: &[Self]) -> Option<usize> {
        let is_same = |other: &Self| !self.member.is_empty() && self.member == other.member;
        others.iter().position(is_same)
    }
}

/// One run of a grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// The name of what was trained.
    pub task: String,
    /// The name of what it was trained with.
    pub arm: String,
    /// What every random stream derived from.
    pub seed: u64,
    /// The run's folder, within the experiment's.
    pub folder: PathBuf,
    /// Its recipe as TOML; empty where it was not made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub recipe: String,
    /// How it ended.
    pub outcome: RunStatus,
    /// What its record says; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

impl RunResult {
    /// Sorts runs by their places in `tasks` and `arms`, then by seed.
    pub(super) fn sort(runs: &mut [Self], tasks: &[Label], arms: &[Label]) {
        let place = |labels: &[Label], name: &str| labels.iter().position(|of| of.name == name);
        runs.sort_by_key(|run| (place(tasks, &run.task), place(arms, &run.arm), run.seed));
    }

    /// Whether it is this very run: in the same place, begun at the same moment, ended alike.
    pub(super) fn is(&self, other: &Self) -> bool {
        let began = |run: &Self| run.measured.as_ref().map(|measured| measured.summary.started);
        (&self.task, &self.arm, self.seed) == (&other.task, &other.arm, other.seed)
            && began(self) == began(other)
            && self.outcome == other.outcome
    }
}

/// A claim, what was measured, and what follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The claim in words.
    pub claim: String,
    /// Where it is made: paper, table or section; who publishes it.
    pub source: String,
    /// What kind of sentence it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ClaimKind>,
    /// The sentence of the abstract that it tests, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentence: Option<String>,
    /// Verdicts of one group count once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Runs that it rests on whose program was built with changes that no commit holds.
    #[serde(default)]
    pub dirty: usize,
    /// Of a time on a link, the kinds of machine that its runs were made on: times of several are hardly one population.
    #[serde(default)]
    pub machines: usize,
    /// What was measured, in words: of what, against what, on which task and link.
    pub measure: String,
    /// How its numbers are written.
    pub unit: Unit,
    /// The number claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed: Option<f64>,
    /// The least and the most that count as reproduced; absent where that side is open.
    pub bounds: [Option<f64>; 2],
    /// What was measured over the seeds, with the interval at `confidence`; absent where nothing could
    /// be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Interval>,
    /// How probable it is that the interval holds the truth: 0.9 for one look, more for several.
    pub confidence: f64,
    /// How it was tested.
    pub test: Test,
    /// How the numbers of both arms vary together from seed to seed (Pearson's r).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation: Option<f64>,
    /// The interval by Welch, as if runs with the same seed had nothing in common.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub welch: Option<[f64; 2]>,
    /// Of a claim of which the best of several tasks counts: all of them, the best first. Of one that is asked on
    /// every link: the links, each with these tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<VerdictPart>,
    /// On how many links it was asked: each has an error of its own, and a wrong word on any of them may make the
    /// verdict wrong; 0 where it is asked on none.
    #[serde(default, skip_serializing_if = "is_at_most_one")]
    pub links_asked: usize,
    /// Where not all links say the same: what each says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_link: Option<String>,
    /// What follows.
    pub ruling: Ruling,
    /// How many seeds more would decide what is undecided, if mean and deviation stayed as they are;
    /// absent too where a thousand would not do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more_seeds: Option<usize>,
    /// Why.
    pub why: String,
}

fn is_at_most_one(count: &usize) -> bool {
    *count <= 1
}

impl Verdict {
    /// How probable it is at most that what follows is wrong. A claim on a time that is asked on several links is
    /// called reproduced, contradicted or dependent on the link wrongly only where the word on one of them is wrong.
    pub fn error(&self) -> f64 {
        match self.ruling {
            Ruling::NotTestable => 0.0,
            _ => (SIDE * self.links_asked.max(1) as f64).min(1.0),
        }
    }
}

/// What was measured for a claim on one of its tasks or links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerdictPart {
    /// The task or the link in words.
    pub on: String,
    /// What was measured there; absent where nothing could be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Interval>,
    /// How probable it is that this interval holds the truth; 0 where that was not stored: as of the verdict.
    #[serde(default)]
    pub confidence: f64,
}

/// How a claim was tested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Student's t over the numbers of one arm.
    #[default]
    OneArm,
    /// Student's t over the differences, or the logarithms of ratios, of runs with the same seed.
    Paired,
    /// Welch's t over runs that have nothing in common.
    Welch,
}

/// What kind of sentence a claim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimKind {
    /// The paper says it of its own method, in its abstract or its main table.
    Headline,
    /// It follows from what the paper says of its own method, in our words.
    Implied,
    /// It is about what the paper compares with, or of a benchmark of others' methods.
    Baseline,
    /// A replay under an assumption that no run tests.
    Hypothesis,
}

impl ClaimKind {
    /// All, in the order in which they are counted.
    pub const ALL: [Self; 4] = [Self::Headline, Self::Implied, Self::Baseline, Self::Hypothesis];

    /// Claims of this kind in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Headline => "what the papers say of their methods",
            Self::Implied => "what follows from it",
            Self::Baseline => "about other methods",
            Self::Hypothesis => "replays of a hypothesis",
        }
    }
}

/// How numbers are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// As a plain number.
    #[default]
    Number,
    /// A fraction, in percent.
    Percent,
    /// A difference of two fractions, in percentage points.
    Points,
    /// A factor, with ×.
    Factor,
}

/// What follows from what was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ruling {
    /// The whole interval lies within the claim's bounds.
    Reproduced,
    /// The whole interval lies outside of them: the opposite was seen, at this scale.
    Contradicted,
    /// It holds on one link, and the opposite on another.
    DependsOnLink,
    /// The interval straddles a bound, on one link at least: there are too few seeds to decide.
    Undecided,
    /// This scale cannot test it, or the runs that would are not there.
    NotTestable,
}

impl Ruling {
    /// All, in the order in which they are counted.
    pub const ALL: [Self; 5] = [
        Self::Reproduced,
        Self::Contradicted,
        Self::DependsOnLink,
        Self::Undecided,
        Self::NotTestable,
    ];
}
