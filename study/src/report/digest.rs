//! Runs in their places: tasks, on each the arms, of each the seeds, and means over those.

use crate::measured::{Measured, OnLink};
use crate::plot::{Style, say};
use crate::results::{Label, Outcome, Results, Run};
use crate::statistics::{self, Comparison, Interval, Moments};
use gradwire_exchange::Scheme;
use std::collections::BTreeMap;

/// One thing that is trained, by several arms.
pub(super) struct Task<'a> {
    /// Its name.
    pub(super) label: &'a Label,
    /// What it was trained with, in order: those that have a place in the grid.
    pub(super) arms: Vec<Arm<'a>>,
    /// The arm that the others are compared with, by its place among them.
    pub(super) baseline: Option<usize>,
    /// The words of the links, from the slowest to the fastest.
    pub(super) links: Vec<String>,
}

/// One way of training it.
pub(super) struct Arm<'a> {
    /// Its name.
    pub(super) label: &'a Label,
    /// How plots show it.
    pub(super) style: Style,
    /// Its runs, by seed.
    pub(super) runs: Vec<&'a Run>,
}

/// A mean over the seeds that finished.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Over {
    /// Mean, sample deviation and number.
    pub(super) moments: Moments,
    /// The mean with its confidence interval.
    pub(super) interval: Interval,
}

/// An accuracy that is timed, and what it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Target {
    /// As a fraction.
    pub(super) accuracy: f64,
    /// Why this one.
    pub(super) why: String,
}

/// Seconds to a target over the seeds that finished.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reached {
    /// The mean over those that reached it; absent where none did.
    pub(super) seconds: Option<f64>,
    /// How many did.
    pub(super) seeds: usize,
    /// Of how many.
    pub(super) of: usize,
}

/// The tasks of a grid, in order.
pub(super) fn tasks<'a>(results: &'a Results) -> Vec<Task<'a>> {
    let styles = styles(results);
    let task = |label: &'a Label| {
        let arms = results.arms.iter().zip(&styles).map(|(arm, style)| {
            let of = |run: &&Run| run.task == label.name && run.arm == arm.name;
            Arm { label: arm, style: *style, runs: results.runs.iter().filter(of).collect() }
        });
        let arms: Vec<Arm<'_>> = arms.filter(|arm| !arm.runs.is_empty()).collect();
        let baseline = results.baseline.as_ref();
        let baseline = baseline.and_then(|name| arms.iter().position(|a| a.label.name == *name));
        Task { label, links: links(&arms), arms, baseline }
    };
    results.tasks.iter().map(task).filter(|task: &Task<'_>| !task.arms.is_empty()).collect()
}

/// How each arm looks: as its scheme does, and among those of the same scheme each its own way.
fn styles(results: &Results) -> Vec<Style> {
    let mut met: BTreeMap<String, usize> = BTreeMap::new();
    let style = |arm: &Label| {
        let scheme = scheme(results, arm);
        let variant = met.entry(scheme.clone()).or_default();
        *variant += 1;
        Style::of_scheme(&scheme, *variant - 1)
    };
    results.arms.iter().map(style).collect()
}

/// The scheme of an arm: what its runs say, or while there are none the scheme that its name
/// begins with.
fn scheme(results: &Results, arm: &Label) -> String {
    let of = results.runs.iter().filter(|run| run.arm == arm.name);
    let said = of.filter_map(|run| run.measured.as_ref()).map(|m| m.scheme.clone()).next();
    said.unwrap_or_else(|| {
        let all = gradwire_exchange::SchemeConfig::all();
        let names = all.iter().map(|scheme| scheme.about().name);
        let fitting = names.filter(|name| arm.name.starts_with(name));
        fitting.max_by_key(|name| name.len()).unwrap_or_default().into()
    })
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
        self.baseline.and_then(|place| self.arms.get(place))
    }

    /// An arm's figure against the baseline's, as verdicts compare: seed by seed where two or more seeds
    /// are in both and begin alike, else as two groups. `None` for the baseline itself, and where one of
    /// them has none.
    pub(super) fn against_baseline(
        &self,
        arm: &Arm<'a>,
        of: impl Fn(&Measured) -> Option<f64>,
    ) -> Option<Comparison> {
        let baseline = self.baseline().filter(|baseline| baseline.label != arm.label)?;
        let runs = |arm: &Arm<'a>| -> Vec<(u64, &'a Measured)> {
            arm.finished().map(|(run, measured)| (run.seed, measured)).collect()
        };
        let (own, other) = (runs(arm), runs(baseline));
        let partner = |seed: u64| other.iter().find(|(known, _)| *known == seed);
        let pairs: Vec<_> = own.iter().filter_map(|run| Some((run.1, partner(run.0)?.1))).collect();
        if pairs.len() > 1 && pairs.iter().all(|(own, other)| own.begins_like(other)) {
            let figures = |runs: &[(u64, &Measured)]| -> Vec<(u64, f64)> {
                runs.iter().filter_map(|(seed, run)| Some((*seed, of(run)?))).collect()
            };
            return statistics::paired(&figures(&own), &figures(&other));
        }
        statistics::welch(&arm.values(&of), &baseline.values(&of))
    }

    /// The accuracy that is timed: 95 % of what the baseline reached on average, or where there is
    /// none the best arm, a whole percentage.
    pub(super) fn target(&self) -> Option<Target> {
        let best = |arm: &Arm<'_>| Some(arm.over(|m| m.summary.best_accuracy)?.moments.mean);
        let (reached, who) = match self.baseline().and_then(|arm| Some((best(arm)?, arm))) {
            Some(found) => found,
            None => {
                let all = self.arms.iter().filter_map(|arm| Some((best(arm)?, arm)));
                all.max_by(|a, b| a.0.total_cmp(&b.0))?
            }
        };
        let accuracy = (reached * 95.0 + 1e-9).floor() / 100.0;
        let why = format!(
            "{} is 95 % of what {} reached, rounded down",
            say::percent(accuracy),
            who.label.label
        );
        (accuracy > 0.0).then_some(Target { accuracy, why })
    }
}

impl<'a> Arm<'a> {
    /// The runs that took all their steps.
    pub(super) fn finished(&self) -> impl Iterator<Item = (&'a Run, &'a Measured)> {
        let finished = self.runs.iter().filter(|run| run.outcome.is_finished());
        finished.filter_map(|run| Some((*run, run.measured.as_ref()?)))
    }

    /// What did not finish but has a record.
    pub(super) fn stopped(&self) -> impl Iterator<Item = &'a Measured> {
        self.runs.iter().filter(|r| !r.outcome.is_finished()).filter_map(|r| r.measured.as_ref())
    }

    /// A figure of each finished run that has it.
    pub(super) fn values(&self, of: impl Fn(&Measured) -> Option<f64>) -> Vec<f64> {
        let values = self.finished().filter_map(|(_, measured)| of(measured));
        values.filter(|value| value.is_finite()).collect()
    }

    /// Its mean over the finished runs.
    pub(super) fn over(&self, of: impl Fn(&Measured) -> Option<f64>) -> Option<Over> {
        let values = self.values(of);
        let interval = statistics::interval(&values)?;
        Some(Over { moments: Moments::of(&values), interval })
    }

    /// Its mean on a link.
    pub(super) fn on_link(&self, word: &str, of: impl Fn(&OnLink) -> f64) -> Option<Over> {
        self.over(|measured| measured.link(word).map(&of))
    }

    /// Seconds to a target on a link.
    pub(super) fn reached(&self, word: &str, target: &Target) -> Reached {
        let seconds = |measured: &Measured| {
            let at = measured.reaches_accuracy(target.accuracy)?;
            measured.link(word)?.at_evaluations.get(at).copied()
        };
        let on_link = |m: &Measured| m.link(word).map(|_| 0.0);
        let (times, of) = (self.values(seconds), self.values(on_link).len());
        let mean = Moments::of(&times).mean;
        Reached { seconds: (!times.is_empty()).then_some(mean), seeds: times.len(), of }
    }

    /// What must stand beside every mean over its seeds: of how many it is not, such as
    /// `diverged 1/3`. `None` where all finished.
    pub(super) fn badge(&self) -> Option<String> {
        let of = self.runs.len();
        let words = ["diverged", "failed", "unfinished", "missing"];
        let told = words.iter().filter_map(|word| {
            let count = self.runs.iter().filter(|run| run.outcome.word() == *word).count();
            (count > 0).then(|| format!("{word} {count}/{of}"))
        });
        let told: Vec<String> = told.collect();
        (!told.is_empty()).then(|| told.join(", "))
    }

    /// Seeds that finished, of all.
    pub(super) fn seeds(&self) -> String {
        let (finished, of) = (self.finished().count(), self.runs.len());
        if finished == of { of.to_string() } else { format!("{finished} of {of}") }
    }

    /// Its name in plots, with what did not finish.
    pub(super) fn name(&self) -> String {
        match self.badge() {
            Some(badge) => format!("{} ({badge})", self.label.label),
            None => self.label.label.clone(),
        }
    }
}

/// What became of a run that did not finish, in a sentence; `None` for one that did.
pub(super) fn trouble(run: &Run) -> Option<String> {
    let after = match &run.measured {
        Some(Measured { summary, planned_steps, .. }) if summary.step > 0 => {
            format!("after step {} of {planned_steps}", summary.step)
        }
        _ => "before its first step".to_string(),
    };
    let what = match &run.outcome {
        Outcome::Finished => return None,
        Outcome::Diverged { error } => format!("diverged {after}: {error}"),
        Outcome::Failed { error } => format!("failed {after}: {error}"),
        Outcome::Unfinished => format!("is unfinished, {after}"),
        Outcome::Missing => "is missing: it has not begun".into(),
    };
    Some(format!("seed {} {what}", run.seed))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::measured::{Evaluation, Loss, Work};
    use crate::results::{Ruling, Test, Unit, Verdict};
    use gradwire::record::Summary;
    use std::path::PathBuf;

    /// A run on two links that found this accuracy.
    pub(in super::super) fn run(arm: &str, seed: u64, accuracy: f64) -> Run {
        let points = 1..=20u64;
        let bits = if arm == "dense" { 32.0 } else { 0.5 + arm.len() as f64 / 10.0 };
        let link = |word: &str, bandwidth: f64| {
            let step = 0.05 + bits * 1e6 / bandwidth;
            let at = |step_number: u64| step_number as f64 * step;
            OnLink {
                link: word.into(),
                bandwidth,
                step_seconds: step,
                exposed_seconds: step - 0.05,
                seconds: at(200),
                at_losses: points.clone().map(|n| at(10 * n)).collect(),
                at_evaluations: vec![at(100), at(200)],
            }
        };
        let summary = Summary {
            step: 200,
            steps: 200,
            workers: 4,
            wire_bytes: (bits * 1e6) as u64,
            dense_bytes: 32_000_000,
            bits_per_parameter: bits,
            test_accuracy: Some(accuracy),
            best_accuracy: Some(accuracy + 0.01),
            ..Summary::default()
        };
        let gauge = points.clone().map(|n| (10 * n, 1.0 + 0.1 / n as f64)).collect();
        let loss = |n: u64| Loss {
            step: 10 * n,
            loss: 2.0 / n as f64 + seed as f64 / 100.0,
            bytes: n as f64 * bits * 1e4,
        };
        let evaluation = |step: u64, accuracy, loss, seconds| {
            let bytes = step as f64 * 1e3;
            Evaluation { step, accuracy, loss, bytes, seconds: Some(seconds) }
        };
        let kept = Moments { count: 200, mean: 1.02, deviation: 0.05 };
        let measured = Measured {
            model: "textcnn".into(),
            dataset: "synthetic".into(),
            scheme: arm.split(' ').next().unwrap_or_default().into(),
            workers: 4,
            seed,
            planned_steps: 200,
            parameters: 1000,
            summary,
            sent: bits * 1e6 / 4.0,
            losses: points.clone().map(loss).collect(),
            evaluations: vec![
                evaluation(100, 0.8 * accuracy, None, 5.0),
                evaluation(200, accuracy, Some(0.5), 12.0),
            ],
            gauges: [("kept_ratio".to_string(), gauge)].into(),
            gauge_means: [("kept_ratio".to_string(), kept)].into(),
            work: Work { compute: 0.05, encode: 0.002, decode: 0.001 },
            links: vec![link("1gbit", 1e9), link("100mbit", 1e8)],
            ..Measured::default()
        };
        Run {
            task: "text".into(),
            arm: arm.replace(' ', "-"),
            seed,
            folder: PathBuf::from(format!("runs/text/{arm}/{seed}")),
            recipe: String::new(),
            outcome: Outcome::Finished,
            measured: Some(measured),
        }
    }

    /// Two arms over three seeds; of one, a seed diverged, and a third arm has not begun.
    pub(in super::super) fn results() -> Results {
        let label = |name: &str, label: &str| Label { name: name.into(), label: label.into() };
        let mut runs: Vec<Run> = [("dense", 0.9), ("topk", 0.88)]
            .into_iter()
            .flat_map(|(arm, a)| (1..=3).map(move |seed| run(arm, seed, a + seed as f64 / 1e3)))
            .collect();
        runs[5].outcome = Outcome::Diverged { error: "step 121: non-finite gradient".into() };
        if let Some(measured) = &mut runs[5].measured {
            measured.summary.step = 120;
            measured.losses.truncate(12);
        }
        runs.push(Run {
            arm: "sidco".into(),
            outcome: Outcome::Missing,
            measured: None,
            ..run("sidco", 1, 0.5)
        });
        Results {
            experiment: "test".into(),
            title: "A test".into(),
            tasks: vec![label("text", "TextCNN on texts, 4 workers"), label("none", "nothing")],
            arms: vec![
                label("dense", "dense"),
                label("topk", "top-k 1 %"),
                label("sidco", "SIDCo"),
            ],
            baseline: Some("dense".into()),
            links: vec!["1gbit".into(), "100mbit".into()],
            runs,
            ..Results::default()
        }
    }

    /// What was measured of the claim that something is twice as fast.
    pub(in super::super) fn verdict(ruling: Ruling) -> Verdict {
        Verdict {
            claim: "twice | as fast".into(),
            source: "Table 1".into(),
            measure: "seconds".into(),
            unit: Unit::Factor,
            claimed: Some(2.0),
            bounds: [Some(2.0), None],
            measured: Some(Interval { mean: 1.9, ends: Some([1.5, 2.4]), seeds: 3 }),
            confidence: 0.9,
            test: Test::Paired,
            correlation: None,
            welch: None,
            tasks: Vec::new(),
            ruling,
            more_seeds: None,
            why: "it is what was measured".into(),
        }
    }

    #[test]
    fn means_are_over_what_finished_and_say_so() {
        let results = results();
        let tasks = tasks(&results);
        assert_eq!(tasks.len(), 1);
        let task = &tasks[0];
        assert_eq!(task.links, ["100mbit", "1gbit"]);
        let [dense, topk, sidco] = &task.arms[..] else { panic!("three arms") };
        let accuracy = |m: &Measured| m.summary.test_accuracy;
        let over = topk.over(accuracy).unwrap();
        assert_eq!(over.moments.count, 2);
        assert!((over.moments.mean - 0.8815).abs() < 1e-12);
        assert_eq!(
            (topk.badge().unwrap().as_str(), topk.seeds().as_str()),
            ("diverged 1/3", "2 of 3")
        );
        assert_eq!((dense.badge(), dense.seeds().as_str()), (None, "3"));
        assert_eq!(sidco.badge().unwrap(), "missing 1/1");
        assert_eq!(sidco.over(accuracy), None);
        assert_eq!(task.against_baseline(dense, accuracy), None);
        let p = task.against_baseline(topk, accuracy).unwrap();
        assert!(p.difference < -0.015 && p.is_significant());
        assert_eq!(sidco.style, Style::of_scheme("sidco", 0));
        let trouble: Vec<_> =
            task.arms.iter().flat_map(|a| &a.runs).filter_map(|r| trouble(r)).collect();
        assert_eq!(
            trouble,
            [
                "seed 3 diverged after step 120 of 200: step 121: non-finite gradient",
                "seed 1 is missing: it has not begun",
            ]
        );
    }

    #[test]
    fn a_target_is_what_the_baseline_nearly_reached() {
        let results = results();
        let tasks = tasks(&results);
        let target = tasks[0].target().unwrap();
        // 95 % of 0.912.
        assert_eq!(target.accuracy, 0.86);
        let topk = &tasks[0].arms[1];
        let reached = topk.reached("1gbit", &target);
        assert_eq!((reached.seeds, reached.of), (2, 2));
        assert!(reached.seconds.unwrap() > 10.0);
        let high = Target { accuracy: 0.8815, why: String::new() };
        let reached = topk.reached("1gbit", &high);
        assert_eq!((reached.seeds, reached.of), (1, 2));
        assert_eq!(topk.reached("wan", &high), Reached { seconds: None, seeds: 0, of: 0 });
    }
}
