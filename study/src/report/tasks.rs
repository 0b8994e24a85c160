//! Runs by task and arm, and means over their seeds.

use crate::decision::looks;
use crate::measured::{Measured, OnLink};
use crate::plot::Style;
use crate::results::{Label, Results, RunResult, RunStatus};
use crate::statistics::{Estimate, LEVEL, SeedMean};
use gradwire::text;
use gradwire_exchange::{Scheme, SchemeConfig};
use std::collections::BTreeSet;

/// The outcomes of runs that are in no mean, in words.
pub(super) const NOT_FINISHED: [&str; 6] =
    ["diverged", "failed", "stopped", "running", "damaged", "missing"];

/// A task with the runs of its arms.
pub(super) struct Task<'a> {
    /// Its name.
    pub(super) label: &'a Label,
    /// The arms that have a place in the grid, in order.
    pub(super) arms: Vec<Arm<'a>>,
    /// The index of the arm that the others are compared with.
    baseline: Option<usize>,
    /// The words of the links, from the slowest to the fastest.
    pub(super) links: Vec<String>,
    /// How many times verdicts may be looked at, where there are any.
    looked: Option<usize>,
}

/// An arm on a task.
pub(super) struct Arm<'a> {
    /// Its name.
    pub(super) label: &'a Label,
    /// How plots show it.
    pub(super) style: Style,
    /// Its runs, by seed.
    pub(super) runs: Vec<&'a RunResult>,
}

/// The accuracy that is timed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AimedAccuracy {
    /// As a fraction.
    pub(super) accuracy: f64,
    /// Why this one.
    pub(super) why: String,
}

/// Seconds to a target over the seeds that finished.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TimeToTarget {
    /// The mean where all of them reached it: a mean of the fast ones is no time of an arm.
    pub(super) seconds: Option<f64>,
    /// How many did.
    pub(super) seeds: usize,
    /// How many there are.
    pub(super) all: usize,
}

/// The tasks of a grid that have runs, in order.
pub(super) fn tasks<'a>(results: &'a Results) -> Vec<Task<'a>> {
    let styles = styles(results);
    let task = |label: &'a Label| {
        let arms = results.arms.iter().zip(&styles).map(|(arm, style)| {
            let is_here = |run: &&RunResult| run.task == label.name && run.arm == arm.name;
            let runs = results.runs.iter().filter(is_here).collect();
            Arm { label: arm, style: *style, runs }
        });
        let arms: Vec<Arm<'_>> = arms.filter(|arm| !arm.runs.is_empty()).collect();
        let baseline = results.baseline.as_ref();
        let baseline = baseline.and_then(|name| arms.iter().position(|a| a.label.name == *name));
        let looked = results.verdicts.first().map(|_| results.looks);
        Task { label, links: links(&arms), arms, baseline, looked }
    };
    results.tasks.iter().map(task).filter(|task: &Task<'_>| !task.arms.is_empty()).collect()
}

impl Task<'_> {
    /// How probable it is that an interval over so many seeds holds the truth: as in the verdicts, where there are any.
    pub(super) fn confidence(&self, seeds: usize) -> f64 {
        let Some(times) = self.looked else { return 1.0 - LEVEL };
        let looks = looks(times);
        let look = looks.iter().rfind(|look| look.seeds <= seeds).unwrap_or(&looks[0]);
        1.0 - 2.0 * look.side
    }
}

/// The style of each arm: the values of one member have one hue, and marks of their own.
fn styles(results: &Results) -> Vec<Style> {
    let arms = &results.arms;
    let is_first = |place: &usize| arms[*place].of_same_member(&arms[..*place]).is_none();
    let firsts: Vec<usize> = (0..arms.len()).filter(is_first).collect();
    let schemes: Vec<String> = firsts.iter().map(|place| scheme(results, &arms[*place])).collect();
    let styles = Style::of_schemes(&schemes);
    let style = |(place, arm): (usize, &Label)| {
        let first = arm.of_same_member(&arms[..place]).unwrap_or(place);
        let at = firsts.partition_point(|known| *known < first);
        styles[at].with_mark(place - first)
    };
    arms.iter().enumerate().map(style).collect()
}

/// The scheme of an arm by its runs, or while there are none the scheme that its name begins with.
fn scheme(results: &Results, arm: &Label) -> String {
    let mut runs = results.runs.iter().filter(|run| run.arm == arm.name);
    if let Some(measured) = runs.find_map(|run| run.measured.as_ref()) {
        return measured.scheme.clone();
    }
    let all = SchemeConfig::all();
    let names = all.iter().map(|scheme| scheme.about().name);
    let fitting = names.filter(|name| arm.name.starts_with(name));
    fitting.max_by_key(|name| name.len()).unwrap_or_default().into()
}

fn links(arms: &[Arm<'_>]) -> Vec<String> {
    let measured = arms.iter().flat_map(|arm| &arm.runs).filter_map(|run| run.measured.as_ref());
    let mut links: Vec<&OnLink> = Vec::new();
    for link in measured.flat_map(|measured| &measured.links) {
        if links.iter().all(|known| known.link != link.link) {
            links.push(link);
        }
    }
    links.sort_by(|a, b| a.bandwidth.total_cmp(&b.bandwidth));
    links.into_iter().map(|link| link.link.clone()).collect()
}

impl<'a> Task<'a> {
    /// The arm that the others are compared with.
    pub(super) fn baseline(&self) -> Option<&Arm<'a>> {
        self.baseline.and_then(|index| self.arms.get(index))
    }

    /// An arm's figure against the baseline's, as verdicts compare: seed by seed where two or more seeds
    /// are in both and begin alike, else as two groups. `None` for the baseline itself, and where one of
    /// them has none.
    pub(super) fn against_baseline(
        &self,
        arm: &Arm<'a>,
        figure: impl Fn(&Measured) -> Option<f64>,
    ) -> Option<Estimate> {
        let baseline = self.baseline().filter(|baseline| baseline.label != arm.label)?;
        let partner =
            |run: &RunResult| baseline.finished().find(|(other, _)| other.seed == run.seed);
        let pairs: Vec<(&Measured, &Measured)> = arm
            .finished()
            .filter_map(|(run, measured)| Some((measured, partner(run)?.1)))
            .collect();
        if pairs.len() > 1 && pairs.iter().all(|(own, other)| own.begins_like(other)) {
            let figures =
                pairs.iter().filter_map(|(own, other)| Some((figure(own)?, figure(other)?)));
            return Estimate::paired(&figures.collect::<Vec<_>>());
        }
        Estimate::welch(&arm.values(&figure), &baseline.values(&figure))
    }

    /// The accuracy that is timed: 95 % of what the baseline reached on average, or where there is
    /// none the best arm, a whole percentage.
    pub(super) fn target(&self) -> Option<AimedAccuracy> {
        let best = |arm: &Arm<'_>| Some(arm.mean(|m| m.summary.best_accuracy)?.mean);
        let (reached, arm) = match self.baseline().and_then(|arm| Some((best(arm)?, arm))) {
            Some(found) => found,
            None => {
                let all = self.arms.iter().filter_map(|arm| Some((best(arm)?, arm)));
                all.max_by(|a, b| a.0.total_cmp(&b.0))?
            }
        };
        let accuracy = (reached * 95.0 + 1e-9).floor() / 100.0;
        let (percent, arm) = (text::percent(accuracy), &arm.label.label);
        let why = format!("{percent} is 95 % of what {arm} reached, rounded down");
        (accuracy > 0.0).then_some(AimedAccuracy { accuracy, why })
    }
}

impl<'a> Arm<'a> {
    /// The runs that took all their steps.
    pub(super) fn finished(&self) -> impl Iterator<Item = (&'a RunResult, &'a Measured)> {
        let finished = self.runs.iter().filter(|run| run.outcome.is_finished());
        finished.filter_map(|run| Some((*run, run.measured.as_ref()?)))
    }

    /// What did not finish but has a record.
    pub(super) fn stopped(&self) -> impl Iterator<Item = &'a Measured> {
        self.runs.iter().filter(|r| !r.outcome.is_finished()).filter_map(|r| r.measured.as_ref())
    }

    /// A figure of each finished run that has it.
    pub(super) fn values(&self, figure: impl Fn(&Measured) -> Option<f64>) -> Vec<f64> {
        let values = self.finished().filter_map(|(_, measured)| figure(measured));
        values.filter(|value| value.is_finite()).collect()
    }

    /// Its mean over the finished runs.
    pub(super) fn mean(&self, figure: impl Fn(&Measured) -> Option<f64>) -> Option<SeedMean> {
        // Shares, losses, bytes, seconds: none is negative.
        Some(SeedMean::new(&self.values(figure))?.within(0.0, f64::INFINITY))
    }

    /// Its mean on a link.
    pub(super) fn on_link(&self, word: &str, figure: fn(&OnLink) -> f64) -> Option<SeedMean> {
        self.mean(|measured| measured.link(word).map(figure))
    }

    /// Seconds to a target on a link.
    pub(super) fn reached(&self, word: &str, target: &AimedAccuracy) -> TimeToTarget {
        let times = self.values(|measured| {
            let at = measured.reaches_accuracy(target.accuracy)?;
            measured.link(word)?.at_evaluations.get(at).copied()
        });
        let all = self.finished().filter(|(_, measured)| measured.link(word).is_some()).count();
        let seconds = SeedMean::new(&times).filter(|_| times.len() == all).map(|of| of.mean);
        TimeToTarget { seconds, seeds: times.len(), all }
    }

    /// What must stand beside every mean over its seeds: how many are not in it, such as
    /// `diverged 1/3`. `None` where all finished.
    pub(super) fn badge(&self) -> Option<String> {
        let all = self.runs.len();
        let count = |word: &&str| self.runs.iter().filter(|r| r.outcome.word() == *word).count();
        let missing = NOT_FINISHED.iter().map(|word| (word, count(word)));
        let missing = missing.filter(|(_, count)| *count > 0);
        let parts: Vec<String> = missing.map(|(word, n)| format!("{word} {n}/{all}")).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    /// Seeds that finished, of all.
    pub(super) fn seeds(&self) -> String {
        let (finished, all) = (self.finished().count(), self.runs.len());
        if finished == all { all.to_string() } else { format!("{finished} of {all}") }
    }

    /// Its name in plots, with what did not finish.
    pub(super) fn name(&self) -> String {
        let label = &self.label.label;
        self.badge().map_or_else(|| label.clone(), |badge| format!("{label} ({badge})"))
    }

    /// The names that people gave its runs, each once.
    pub(super) fn names(&self) -> BTreeSet<&'a str> {
        self.runs.iter().filter_map(|run| run.measured.as_ref()?.name.as_deref()).collect()
    }

    /// What became of each run that did not finish, in sentences without a full stop.
    pub(super) fn troubles(&self) -> Vec<String> {
        self.runs.iter().filter_map(|run| trouble(run)).collect()
    }
}

fn trouble(run: &RunResult) -> Option<String> {
    let after = match &run.measured {
        Some(Measured { summary, planned_steps, .. }) if summary.step > 0 => {
            format!("after step {} of {planned_steps}", summary.step)
        }
        _ => "before its first step".to_string(),
    };
    let what = match &run.outcome {
        RunStatus::Finished => return None,
        RunStatus::Diverged { error } => format!("diverged {after}: {error}"),
        RunStatus::Failed { error } => format!("failed {after}: {error}"),
        RunStatus::Stopped => format!("was stopped {after}"),
        RunStatus::Running => format!("is running, {after}"),
        RunStatus::Damaged { error } => format!("cannot be read: {error}"),
        RunStatus::Missing => "is missing: it has not begun".into(),
    };
    Some(format!("seed {} {what}", run.seed))
}

#[cfg(test)]
mod tests {
    use super::super::tests::results;
    use super::*;

    #[test]
    fn a_target_is_what_the_baseline_nearly_reached() {
        let results = results();
        let tasks = tasks(&results);
        assert_eq!(tasks.len(), 2, "a task without runs is left out");
        // 95 % of 0.912.
        assert_eq!(tasks[0].target().unwrap().accuracy, 0.86);
        let topk = &tasks[0].arms[1];
        for (accuracy, link, seeds, all) in
            [(0.86, "1gbit", 2, 2), (0.8815, "1gbit", 1, 2), (0.8815, "wan", 0, 0)]
        {
            let reached = topk.reached(link, &AimedAccuracy { accuracy, why: String::new() });
            assert_eq!((reached.seeds, reached.all), (seeds, all), "{accuracy} at {link}");
            assert_eq!(reached.seconds.is_some(), seeds > 0 && seeds == all);
        }
    }
}
