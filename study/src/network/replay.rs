//! The time that a recorded run would have taken on other networks.

use crate::statistics::median;
use anyhow::{Context, Result, bail};
use gradwire::disk::Disk;
use gradwire::record::network::{self, Header, Row, Stretch, pattern};
use gradwire::record::{Epoch, Kind, RunLog};
use gradwire_exchange::Operation;
use gradwire_exchange::network::{Clock, GroupWork, Link, Pattern, Sent, StepTime, StepWork};
use std::path::{Path, PathBuf};

/// A run, as far as its time on a network is concerned.
#[derive(Clone, Debug)]
pub struct RecordedRun {
    /// Its folder.
    pub folder: PathBuf,
    /// What held when it began.
    pub header: Header,
    /// Its steps, from the first: several stretches if it was gone on with.
    pub stretches: Vec<Stretch>,
    /// Its evaluations on the test set, in order.
    pub evaluations: Vec<TestScore>,
    /// Training losses as they were recorded: step and loss.
    pub losses: Vec<(u64, f64)>,
}

/// An evaluation on the test set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TestScore {
    /// The step it followed.
    pub step: u64,
    /// Fraction of right answers, 0 to 1.
    pub accuracy: f64,
}

/// What is assumed instead of what was measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Assumptions {
    /// Seconds of computing in each step, for every rank: data, forward and backward pass, and
    /// the optimizer, shared among them as measured over all ranks.
    pub compute: Option<f64>,
    /// How many times as fast encoding and decoding are.
    pub codec_speed: Option<f64>,
    /// What delays and stragglers derive from, if not from the run's seed.
    pub seed: Option<u64>,
}

/// A run on one link.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The link.
    pub link: Link,
    /// How messages travelled.
    pub pattern: Pattern,
    /// What each step took.
    pub steps: Vec<StepTime>,
    /// Seconds from the run's beginning to the end of each step; no evaluation in it.
    pub ends: Vec<f64>,
    /// Whether some steps send nothing, because they are of a round of local steps.
    pub in_rounds: bool,
}

impl RecordedRun {
    /// Reads the record of a run.
    ///
    /// # Errors
    /// When `folder` is none, or a line of its record is damaged: with file and line.
    pub fn read(disk: &Disk, folder: &Path) -> Result<Self> {
        Self::with(disk, &RunLog::read(disk, folder)?)
    }

    /// The run whose `metrics.jsonl` has been read.
    ///
    /// # Errors
    /// When it has no record of the network, or a line of it is damaged: with file and line.
    pub fn with(disk: &Disk, log: &RunLog) -> Result<Self> {
        let folder = log.folder();
        let stretches = network::read(disk, folder)?;
        let Some(header) = stretches.first().map(|stretch| stretch.header.clone()) else {
            bail!("{}: no step is recorded yet", folder.join(network::FILE).display());
        };
        let (mut evaluations, mut losses) = (Vec::new(), Vec::new());
        let last = stretches.iter().map(|stretch| stretch.rows.len() as u64).sum();
        for event in log.events() {
            match &event.kind {
                Kind::Step(step) if step.step <= last => losses.push((step.step, step.loss)),
                Kind::Epoch(epoch) if epoch.step <= last => {
                    let Epoch { step, test_accuracy, .. } = *epoch;
                    evaluations.extend(test_accuracy.map(|accuracy| TestScore { step, accuracy }));
                }
                _ => {}
            }
        }
        Ok(Self { folder: folder.to_path_buf(), header, stretches, evaluations, losses })
    }

    /// Its name: the last parts of its folder.
    pub fn name(&self) -> String {
        let folder = self.folder.canonicalize().unwrap_or_else(|_| self.folder.clone());
        let parts: Vec<_> = folder.components().rev().take(2).collect();
        let words = parts.iter().rev().map(|part| part.as_os_str().to_string_lossy());
        words.collect::<Vec<_>>().join("/")
    }

    /// The ranks of the stretch that has the fewest.
    pub fn fewest_ranks(&self) -> usize {
        self.stretches.iter().map(|stretch| stretch.header.ranks).min().unwrap_or_default()
    }

    /// The best accuracy reached on the test set.
    pub fn best_accuracy(&self) -> Option<f64> {
        self.evaluations.iter().map(|evaluation| evaluation.accuracy).reduce(f64::max)
    }

    /// Runs the clocks of all ranks over a link.
    ///
    /// # Errors
    /// When the record names a topology that this program does not know.
    pub fn replay(&self, link: &Link, assumptions: &Assumptions) -> Result<Replayed> {
        let pattern_of = |Header { topology, .. }: &Header| {
            pattern(topology)
                .with_context(|| format!("{}: topology {topology:?}", self.folder.display()))
        };
        let (mut steps, mut ends) = (Vec::new(), Vec::new());
        for Stretch { header, rows } in &self.stretches {
            let (pattern, before) = (pattern_of(header)?, ends.last().copied().unwrap_or(0.0));
            let seed = assumptions.seed.unwrap_or(header.seed);
            let mut clock = Clock::new(link, pattern, header.ranks, seed);
            for row in rows {
                steps.push(clock.step(row.step, &works(row, pattern, assumptions)));
                ends.push(before + clock.now());
            }
        }
        let pattern = self.shown_pattern(pattern_of(&self.header)?);
        let in_rounds = self.in_rounds();
        Ok(Replayed { link: link.clone(), pattern, steps, ends, in_rounds })
    }

    /// Whether some steps send nothing, because they are of a round of local steps.
    pub fn in_rounds(&self) -> bool {
        let mut rows = self.stretches.iter().flat_map(|stretch| &stretch.rows);
        rows.any(|row| row.up.first().is_some_and(Vec::is_empty))
    }

    /// How the run's collectives travelled: as its messages, unless all of them were another
    /// operation.
    fn shown_pattern(&self, messages: Pattern) -> Pattern {
        let rows = self.stretches.iter().flat_map(|stretch| &stretch.rows);
        let mut all = rows.flat_map(|row| {
            (0..row.up.first().map_or(0, Vec::len)).map(|group| operation(row, group))
        });
        match all.next() {
            Some(first) if all.all(|other| other == first) => messages.carrying(first),
            _ => messages,
        }
    }
}

/// Which operation a collective of a step was.
fn operation(row: &Row, group: usize) -> Operation {
    row.operations.get(group).copied().unwrap_or_default()
}

impl Replayed {
    /// Seconds of the whole run.
    pub fn seconds(&self) -> f64 {
        self.ends.last().copied().unwrap_or(0.0)
    }

    /// Median seconds of a step, and of the part of it that the link cost: a run's first step warms
    /// caches up and would spoil a mean. In rounds of local steps, most of which send nothing, the mean.
    pub fn typical(&self) -> StepTime {
        if self.in_rounds {
            let steps = self.steps.len().max(1) as f64;
            let seconds = self.steps.iter().map(|took| took.seconds).sum::<f64>() / steps;
            return StepTime { seconds, exposed: self.exposed() / steps };
        }
        let median = |of: fn(&StepTime) -> f64| median(self.steps.iter().map(of)).unwrap_or(0.0);
        let exposed = median(|took| took.exposed).max(0.0);
        StepTime { seconds: median(|took| took.seconds), exposed }
    }

    /// Seconds that the link cost in all steps together.
    pub fn exposed(&self) -> f64 {
        self.steps.iter().map(|took| took.exposed).sum::<f64>().max(0.0)
    }

    /// Seconds from the run's beginning to the end of a step, 1-based.
    pub fn at(&self, step: u64) -> f64 {
        let index = usize::try_from(step).unwrap_or(usize::MAX).saturating_sub(1);
        self.ends.get(index).copied().unwrap_or(f64::NAN)
    }

    /// Seconds until an evaluation found at least this accuracy; `None` if none did.
    pub fn seconds_to(&self, run: &RecordedRun, accuracy: f64) -> Option<f64> {
        let reached = run.evaluations.iter().find(|e| e.accuracy >= accuracy)?;
        Some(self.at(reached.step))
    }
}

/// Each rank's part in a step.
fn works(row: &Row, pattern: Pattern, assumptions: &Assumptions) -> Vec<StepWork> {
    const SECOND: f64 = 1e-9;
    let speed = assumptions.codec_speed.unwrap_or(1.0);
    let codec = |nanoseconds: u64| nanoseconds as f64 * SECOND / speed;
    let given = assumptions.compute.map(|seconds| shares(row).map(|share| share * seconds));
    let rank_work = |rank: usize| {
        let compute = given.unwrap_or_else(|| row.compute[rank].map(|ns| ns as f64 * SECOND));
        let [data, forward, backward, optimizer] = compute;
        let groups = row.up[rank].iter().enumerate().map(|(group, up)| GroupWork {
            ready: row.ready.get(group).copied().unwrap_or(1.0),
            encode: codec(row.encode[rank][group]),
            decode: codec(row.decode[rank][group]),
            sent: Sent {
                up: *up,
                down: row.down.get(rank).map_or(0, |down| down[group]),
                local: row.local.get(rank).map_or(0, |local| local[group]),
                aggregate: row.aggregate.get(group).copied().map_or(0.0, codec),
            },
            pattern: Some(pattern.carrying(operation(row, group))),
        });
        let learn = row.learn.get(rank).copied().map_or(0.0, codec);
        let (before, after) = (data + forward, learn + optimizer);
        StepWork { before, backward, after, groups: groups.collect(), delay: row.delay }
    };
    (0..row.compute.len()).map(rank_work).collect()
}

/// How the ranks' computing in a step is shared among data, forward pass, backward pass and what
/// follows the exchange; the usual thirds when nothing was measured.
fn shares(row: &Row) -> [f64; 4] {
    let mut sums = [0.0; 4];
    for rank in &row.compute {
        sums.iter_mut().zip(rank).for_each(|(sum, ns)| *sum += *ns as f64);
    }
    let all: f64 = sums.iter().sum();
    if all > 0.0 { sums.map(|sum| sum / all) } else { [0.0, 1.0 / 3.0, 2.0 / 3.0, 0.0] }
}

#[cfg(test)]
mod tests;
