//! What follows for each claim from what was measured. A claim is reproduced when the whole
//! confidence interval lies within its bounds, and otherwise it is not: nothing is rounded in its
//! favour.

use super::definition::{Choice, Claim, Compare, Experiment, Measure, Scale};
use super::measured::Measured;
use super::results::{Outcome, Results, Ruling, Run, Verdict};
use super::statistics::{self, Interval};

/// A verdict on each claim of an experiment.
pub fn of(experiment: &Experiment, scale: Scale, results: &Results) -> Vec<Verdict> {
    let words =
        |claim: &Claim| in_words(claim, &experiment.task_choices(), &experiment.arm_choices());
    let judged = experiment.claims.iter().map(|claim| judge(claim, words(claim), scale, results));
    judged.collect()
}

fn judge(claim: &Claim, measure: String, scale: Scale, results: &Results) -> Verdict {
    let found = Found::of(claim, results);
    let measured = statistics::interval(&found.values);
    let (ruling, why) = rule(claim, scale, &found, measured);
    Verdict {
        claim: claim.claim.clone(),
        source: claim.source.clone(),
        measure,
        unit: claim.unit,
        claimed: claim.claimed,
        bounds: [claim.at_least, claim.at_most],
        measured,
        ruling,
        why,
    }
}

/// What the runs say about a claim.
#[derive(Default)]
struct Found {
    /// The number of each seed that both arms have finished with.
    values: Vec<f64>,
    /// Runs of the arm, and of the one that it stands against, that diverged.
    diverged: [usize; 2],
    /// Runs of both that have not been made, not to their end, or that failed.
    missing: usize,
    /// Seeds that both arms have finished with, but for which there is no finite number.
    unmeasured: usize,
    /// Runs that were planned of the arm.
    planned: usize,
}

impl Found {
    fn of(claim: &Claim, results: &Results) -> Self {
        let of = |arm: &str| -> Vec<&Run> {
            results.runs.iter().filter(|run| run.task == claim.task && run.arm == arm).collect()
        };
        let own = of(&claim.arm);
        let others = claim.against.as_deref().map(of);
        let mut found = Self { planned: own.len(), ..Self::default() };
        let sides = [Some(&own), others.as_ref()];
        for (diverged, runs) in found.diverged.iter_mut().zip(sides) {
            for run in runs.into_iter().flatten() {
                match run.outcome {
                    Outcome::Finished => {}
                    Outcome::Diverged { .. } => *diverged += 1,
                    _ => found.missing += 1,
                }
            }
        }
        if others.as_ref().is_some_and(Vec::is_empty) {
            found.planned = 0;
        }
        for run in own.iter().filter(|run| run.outcome.is_finished()) {
            let other = others.as_ref().map(|others| {
                others.iter().find(|o| o.seed == run.seed && o.outcome.is_finished())
            });
            if other == Some(None) {
                continue;
            }
            let other = other.flatten().map(|other| other.measured.as_ref());
            let number = match (&run.measured, other) {
                (Some(own), None) => value(claim, own, None),
                (Some(own), Some(Some(other))) => value(claim, own, Some(other)),
                _ => None,
            };
            match number.filter(|number| number.is_finite()) {
                Some(number) => found.values.push(number),
                None => found.unmeasured += 1,
            }
        }
        found
    }
}

/// The number of one seed.
fn value(claim: &Claim, own: &Measured, other: Option<&Measured>) -> Option<f64> {
    if claim.measure == Measure::SecondsToLoss {
        let (other, link) = (other?, claim.link.as_deref()?);
        let last = |run: &Measured| run.losses.last().map(|point| point.loss);
        let goal = last(own)?.max(last(other)?);
        let seconds = |run: &Measured| {
            let point = run.reaches_loss(goal)?;
            run.link(link)?.at_losses.get(point).copied()
        };
        return claim.compare.of(seconds(own)?, Some(seconds(other)?));
    }
    let of = |run: &Measured| measure(claim, run);
    claim.compare.of(of(own)?, other.and_then(of))
}

/// What is measured of one run.
fn measure(claim: &Claim, run: &Measured) -> Option<f64> {
    let on = || run.link(claim.link.as_deref()?);
    match claim.measure {
        Measure::Accuracy => run.summary.test_accuracy,
        Measure::BestAccuracy => run.summary.best_accuracy,
        Measure::Loss => run.losses.last().map(|point| point.loss),
        Measure::BitsPerParameter => Some(run.summary.bits_per_parameter),
        Measure::Reduction => run.summary.compression_ratio().map(f64::recip),
        Measure::StepSeconds => on().map(|on| on.step_seconds),
        Measure::SecondsToLoss => None,
        Measure::EncodeSeconds => Some(run.work.encode),
        Measure::Gauge => run.gauge_means.get(claim.gauge.as_deref()?).map(|moments| moments.mean),
        Measure::DownlinkBytes => run.downlink_bytes,
    }
}

fn rule(
    claim: &Claim,
    scale: Scale,
    found: &Found,
    measured: Option<Interval>,
) -> (Ruling, String) {
    let against = claim.against.as_deref().unwrap_or("the other");
    if !claim.scales.contains(&scale) {
        return (Ruling::NotTestable, claim.otherwise.clone());
    }
    if found.planned == 0 {
        return (Ruling::NotTestable, "its task or one of its arms is not in this grid".into());
    }
    if found.diverged[1] > 0 {
        let why = format!("{against} diverged with {}", seeds(found.diverged[1]));
        return (Ruling::NotTestable, why);
    }
    if found.diverged[0] > 0 {
        let why = format!(
            "{} diverged with {} of {}",
            claim.arm,
            found.diverged[0],
            seeds(found.planned)
        );
        return (Ruling::NotReproduced, why);
    }
    if found.missing > 0 {
        let runs = if found.missing == 1 { "run is" } else { "runs are" };
        return (Ruling::NotTestable, format!("{} {runs} missing or failed", found.missing));
    }
    let Some(measured) = measured else {
        return (Ruling::NotTestable, "no run has measured this".into());
    };
    if found.unmeasured > 0 {
        let why = format!(
            "{} of {} have no finite value",
            found.unmeasured,
            seeds(found.unmeasured + found.values.len())
        );
        return (Ruling::NotTestable, why);
    }
    if measured.seeds < claim.seeds {
        let why = format!(
            "{} cannot tell it from chance: at least {} are needed",
            seeds(measured.seeds),
            claim.seeds
        );
        return (Ruling::NotTestable, why);
    }
    let [low, high] = measured.ends.unwrap_or([measured.mean; 2]);
    let (floor, ceiling) =
        (claim.at_least.unwrap_or(f64::NEG_INFINITY), claim.at_most.unwrap_or(f64::INFINITY));
    let what = if measured.ends.is_some() { "the 95 % interval" } else { "the measured value" };
    if floor <= low && high <= ceiling {
        (Ruling::Reproduced, format!("{what} lies within what was asked for"))
    } else if high < floor || low > ceiling {
        (Ruling::NotReproduced, format!("{what} lies outside what was asked for"))
    } else if (floor..=ceiling).contains(&measured.mean) {
        let why = format!(
            "the mean lies within what was asked for, but the 95 % interval over {} reaches beyond it",
            seeds(measured.seeds)
        );
        (Ruling::NotReproduced, why)
    } else {
        let why = format!(
            "the mean lies outside what was asked for, though the 95 % interval over {} reaches \
             into it",
            seeds(measured.seeds)
        );
        (Ruling::NotReproduced, why)
    }
}

fn seeds(count: usize) -> String {
    if count == 1 { "one seed".into() } else { format!("{count} seeds") }
}

/// What is measured, in words.
fn in_words(claim: &Claim, tasks: &[Choice], arms: &[Choice]) -> String {
    let label = |choices: &[Choice], name: &str| {
        let found = choices.iter().find(|choice| choice.label.name == name);
        found.map_or_else(|| name.to_string(), |choice| choice.label.label.clone())
    };
    let mut words = match &claim.gauge {
        Some(gauge) => format!("{gauge}, {}", claim.measure.words()),
        None => claim.measure.words().to_string(),
    };
    words += &format!(" of {}", label(arms, &claim.arm));
    if let Some(against) = &claim.against {
        let compared =
            if claim.compare == Compare::Value { "on the way of" } else { claim.compare.words() };
        words += &format!(", {compared} {}", label(arms, against));
    }
    words += &format!("; {}", label(tasks, &claim.task));
    match &claim.link {
        Some(link) => words + &format!(" at {link}"),
        None => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Summary;
    use crate::study::measured::{Loss, OnLink};
    use crate::study::results::Label;

    fn run(arm: &str, seed: u64, accuracy: f64, outcome: Outcome) -> Run {
        let summary = Summary { test_accuracy: Some(accuracy), ..Summary::default() };
        let measured = Measured { summary, seed, ..Measured::default() };
        Run {
            task: "t".into(),
            arm: arm.into(),
            seed,
            folder: "f".into(),
            outcome,
            measured: Some(measured),
        }
    }

    fn results(runs: Vec<Run>) -> Results {
        Results { runs, ..Results::default() }
    }

    fn claim(more: &str) -> Claim {
        let text = format!(
            "claim = 'c'\nsource = 's'\ntask = 't'\narm = 'a'\nagainst = 'b'\n\
             measure = 'accuracy'\ncompare = 'difference'\nat_least = -0.01\n\
             scales = ['quick']\notherwise = 'too small'\n{more}"
        );
        toml::from_str(&text).unwrap()
    }

    fn ruling(runs: Vec<Run>) -> (Ruling, String) {
        let verdict = judge(&claim(""), String::new(), Scale::Quick, &results(runs));
        (verdict.ruling, verdict.why)
    }

    /// Of arm `a` these accuracies, of `b` 0.9 with every seed.
    fn against(accuracies: &[f64]) -> Vec<Run> {
        let own = (1..).zip(accuracies).map(|(seed, a)| run("a", seed, *a, Outcome::Finished));
        let other = (1..).zip(accuracies).map(|(seed, _)| run("b", seed, 0.9, Outcome::Finished));
        own.chain(other).collect()
    }

    #[test]
    fn only_a_whole_interval_within_the_bounds_is_a_reproduction() {
        assert_eq!(ruling(against(&[0.9, 0.901, 0.899])).0, Ruling::Reproduced);
        assert_eq!(ruling(against(&[0.8, 0.801, 0.799])).0, Ruling::NotReproduced);
        let (rule, why) = ruling(against(&[0.88, 0.92, 0.90]));
        assert_eq!(rule, Ruling::NotReproduced, "the mean alone is no proof");
        assert!(why.contains("reaches beyond"), "{why}");
        let (rule, why) = ruling(against(&[0.86, 0.90, 0.88]));
        assert_eq!(rule, Ruling::NotReproduced);
        assert!(why.contains("reaches into it") || why.contains("reaches \u{20}"), "{why}");
        let (rule, why) = ruling(against(&[0.9]));
        assert_eq!(rule, Ruling::NotTestable);
        assert!(why.contains("one seed"), "{why}");
    }

    #[test]
    fn what_went_wrong_is_said_and_not_left_out() {
        let mut runs = against(&[0.9, 0.9, 0.9]);
        runs[1].outcome = Outcome::Diverged { error: "NaN".into() };
        assert_eq!(
            ruling(runs.clone()),
            (Ruling::NotReproduced, "a diverged with 1 of 3 seeds".into())
        );
        runs[1].outcome = Outcome::Missing;
        runs[1].measured = None;
        assert_eq!(ruling(runs).0, Ruling::NotTestable);
        let mut runs = against(&[0.9, 0.9, 0.9]);
        runs[4].outcome = Outcome::Diverged { error: "NaN".into() };
        assert_eq!(ruling(runs).0, Ruling::NotTestable);
        assert_eq!(ruling(vec![]).0, Ruling::NotTestable);
        let verdict =
            judge(&claim(""), String::new(), Scale::Smoke, &results(against(&[0.9, 0.9])));
        assert_eq!((verdict.ruling, verdict.why.as_str()), (Ruling::NotTestable, "too small"));
    }

    /// Enough seeds are left without it, and they agree: it must not be left out.
    #[test]
    fn a_seed_without_a_finite_number_is_not_left_out() {
        let whole = ruling(against(&[0.9, 0.901, 0.899, 0.9]));
        assert_eq!(whole.0, Ruling::Reproduced);
        for absent in [Some(f64::NAN), Some(f64::INFINITY), None] {
            for spoilt in [1, 5] {
                let mut runs = against(&[0.9, 0.901, 0.899, 0.9]);
                runs[spoilt].measured.as_mut().unwrap().summary.test_accuracy = absent;
                assert_eq!(
                    ruling(runs),
                    (Ruling::NotTestable, "1 of 4 seeds have no finite value".into())
                );
            }
        }
        let mut runs = against(&[0.9, 0.901, 0.899, 0.9]);
        runs[2].measured = None;
        assert_eq!(ruling(runs).1, "1 of 4 seeds have no finite value");
    }

    #[test]
    fn what_is_measured_is_said_in_labels() {
        let choice = |name: &str| Choice {
            member: name.into(),
            label: Label { name: name.into(), label: format!("the {name}") },
            recipe: toml::Table::new(),
        };
        let words = in_words(&claim(""), &[choice("t")], &[choice("a"), choice("b")]);
        assert_eq!(words, "test accuracy of the a, minus that of the b; the t");
    }

    #[test]
    fn time_to_the_same_loss_is_to_the_higher_of_both_ends() {
        let measured = |losses: &[f64], seconds: &[f64]| Measured {
            losses: losses.iter().map(|loss| Loss { loss: *loss, ..Loss::default() }).collect(),
            links: vec![OnLink {
                link: "1gbit".into(),
                at_losses: seconds.to_vec(),
                ..OnLink::default()
            }],
            ..Measured::default()
        };
        let own = measured(&[3.0, 2.0, 1.5], &[1.0, 2.0, 3.0]);
        let other = measured(&[3.0, 2.5, 1.9], &[4.0, 8.0, 12.0]);
        let mut claim = claim("link = '1gbit'");
        (claim.measure, claim.compare) = (Measure::SecondsToLoss, Compare::SpeedUp);
        assert_eq!(value(&claim, &own, Some(&other)), Some(4.0));
        claim.compare = Compare::Saving;
        assert_eq!(value(&claim, &own, Some(&other)), Some(0.75));
        assert_eq!(value(&claim, &own, None), None);
    }
}
