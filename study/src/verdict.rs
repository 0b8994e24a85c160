//! What follows for each claim from what was measured. A claim is reproduced when the whole interval
//! over seeds lies within its bounds, contradicted at this scale when it lies wholly outside of them,
//! and undecided when it straddles one: nothing is rounded in its favour.

use crate::claim::{Claim, Compare, Measure};
use crate::decision::{Average, Bounds, Decision, Estimated, Look, MOST_SEEDS, Sample, looks};
use crate::experiment::{self, Choice, Experiment};
use crate::measured::Measured;
use crate::results::{Outcome, Part, Results, Ruling, Run, Test, Timing, Verdict};
use crate::scale::Scale;
use crate::statistics::Interval;
use anyhow::Result;
use gradwire::text::percent;
use gradwire_exchange::network::Link;
use std::path::Path;

/// Judges results by their experiment as it is now, and gives it back: that of the `experiment.toml` in
/// `folder`, or else the built-in one of that name. Results of neither keep what they hold.
///
/// # Errors
/// When the experiment cannot be read, or has no such scale.
pub fn judge_again(folder: &Path, results: &mut Results) -> Result<Option<Experiment>> {
    let file = folder.join(experiment::FILE);
    let is_built_in = || Experiment::built_in().iter().any(|(name, _)| *name == results.experiment);
    let name = match file.is_file() {
        true => file.display().to_string(),
        false if is_built_in() => results.experiment.clone(),
        false => return Ok(None),
    };
    let (_, experiment) = Experiment::load(&name)?;
    let scale = experiment.scale(results.scale.as_deref())?;
    judge_by(&experiment, &scale, results);
    Ok(Some(experiment))
}

/// Puts what an experiment says into results: title, paper, what the scale is about, and a verdict on each claim.
pub(super) fn judge_by(experiment: &Experiment, scale: &Scale, results: &mut Results) {
    let about = experiment.scales.get(scale).map(|setting| setting.about.clone());
    results.about = about.unwrap_or_default();
    results.title.clone_from(&experiment.title);
    results.paper.clone_from(&experiment.paper);
    let choices = [experiment.task_choices(), experiment.arm_choices()];
    let claims = experiment.claims.iter();
    results.verdicts = claims.map(|claim| judge(claim, &choices, scale, results)).collect();
}

/// The verdict on a claim, with the labels of tasks and of arms. A claim on a time that names no link is asked on every
/// one that runs were replayed on: it is reproduced, or contradicted, where it is so on all of them, which makes no link
/// a second chance, depends on the link where it holds on one and the opposite does on another, and is undecided otherwise.
fn judge(claim: &Claim, choices: &[Vec<Choice>; 2], scale: &Scale, results: &Results) -> Verdict {
    let links = results.links.as_slice();
    if claim.link.is_some() || !claim.measure.needs_link() || links.is_empty() {
        return on_link(claim, choices, scale, results);
    }
    let on = |link: &String| {
        let claim = Claim { link: Some(link.clone()), ..claim.clone() };
        on_link(&claim, choices, scale, results)
    };
    let verdicts: Vec<Verdict> = links.iter().map(on).collect();
    let with = |ruling| links.iter().zip(&verdicts).filter(move |(_, of)| of.ruling == ruling);
    let at = |ruling| with(ruling).map(|(link, _)| link.as_str()).collect::<Vec<_>>();
    let [holds, fails, open] =
        [Ruling::Reproduced, Ruling::Contradicted, Ruling::Undecided].map(at);
    let first = &verdicts[0];
    let untested = verdicts.iter().find(|of| of.ruling == Ruling::NotTestable);
    let one =
        untested.or_else(|| verdicts.iter().all(|of| of.ruling == first.ruling).then_some(first));
    let ruling = match one {
        Some(of) => of.ruling,
        None if holds.is_empty() || fails.is_empty() => Ruling::Undecided,
        None => Ruling::DependsOnLink,
    };
    let by_link = one.is_none().then(|| {
        let said = [("it holds at", holds), ("the opposite at", fails), ("undecided at", open)];
        let said = said.into_iter().filter(|(_, links)| !links.is_empty());
        let said = said.map(|(words, links)| format!("{words} {}", links.join(" and ")));
        said.collect::<Vec<_>>().join(", ")
    });
    // The link that needs the most seeds decides, and one that needs more than anybody makes needs the most.
    let needs = |(_, of): &(&String, &Verdict)| (of.more_seeds.is_none(), of.more_seeds);
    let most = with(Ruling::Undecided).max_by_key(needs).filter(|_| ruling == Ruling::Undecided);
    let why = match (most, one) {
        (Some((link, of)), _) => {
            by_link.iter().map(|on| format!("{on}; ")).collect::<String>()
                + &format!("at {link} {}", of.why)
        }
        (None, Some(of)) => of.why.clone(),
        (None, None) => by_link.clone().unwrap_or_default(),
    };
    let parts = links.iter().zip(&verdicts).flat_map(|(link, of)| match of.parts.as_slice() {
        [] => vec![Part { on: link.clone(), measured: of.measured }],
        tasks => {
            let on = |task: &Part| Part { on: format!("{} at {link}", task.on), ..task.clone() };
            tasks.iter().map(on).collect()
        }
    });
    Verdict {
        parts: parts.collect(),
        measure: first.measure.clone() + ", the first link",
        dirty: verdicts.iter().map(|of| of.dirty).max().unwrap_or_default(),
        more_seeds: most.and_then(|(_, of)| of.more_seeds),
        ruling,
        why,
        by_link,
        ..first.clone()
    }
}

/// The verdict on a claim on one link, or on none: that of the first look that decides it, or else of the last one for
/// which both arms have runs.
fn on_link(claim: &Claim, choices: &[Vec<Choice>; 2], scale: &Scale, results: &Results) -> Verdict {
    let of = |look: &Look| look_at(claim, choices, scale, results, *look);
    let fewer = |task: &String| {
        let count =
            |arm: &String| results.runs.iter().filter(|r| r.task == *task && r.arm == *arm).count();
        std::iter::once(&claim.arm).chain(&claim.against).map(count).min()
    };
    let there = claim.tasks().filter_map(fewer).max().unwrap_or(0);
    let looks = looks(results.looks);
    let last = looks.iter().position(|look| look.seeds >= there).unwrap_or(looks.len() - 1);
    let decided = |verdict: &Verdict| verdict.ruling != Ruling::Undecided;
    looks[..last].iter().map(of).find(decided).unwrap_or_else(|| of(&looks[last]))
}

/// The verdict of one look on a claim on one link, or on none. Of several tasks the best counts: the claim holds
/// where one of them reaches it, and is contradicted where none does.
fn look_at(
    claim: &Claim,
    choices: &[Vec<Choice>; 2],
    scale: &Scale,
    results: &Results,
    look: Look,
) -> Verdict {
    let side = look.side;
    let is_here = |task: &&str| results.runs.iter().any(|r| r.task == **task && r.arm == claim.arm);
    let names = || claim.tasks().map(String::as_str);
    let mut tasks: Vec<&str> = names().filter(is_here).collect();
    if tasks.is_empty() {
        tasks.extend(names().next());
    }
    let on =
        |task: &str, side| on_task(claim, task, choices, scale, results, Look { side, ..look });
    let mut verdicts: Vec<(&str, Verdict)> =
        tasks.into_iter().map(|task| (task, on(task, side))).collect();
    // Each task that may still reach the claim is one more chance to do so by luck: they share the
    // error. A task that is contradicted by itself is none.
    let may_reach =
        |verdict: &Verdict| matches!(verdict.ruling, Ruling::Reproduced | Ruling::Undecided);
    let chances = verdicts.iter().filter(|(_, verdict)| may_reach(verdict)).count();
    for (task, verdict) in verdicts.iter_mut().filter(|(_, verdict)| may_reach(verdict)) {
        *verdict = on(task, side / chances as f64);
    }
    let order = [Ruling::Reproduced, Ruling::Undecided, Ruling::NotTestable, Ruling::Contradicted];
    let place = |verdict: &Verdict| order.iter().position(|ruling| *ruling == verdict.ruling);
    let mean = |verdict: &Verdict| verdict.measured.map_or(f64::NEG_INFINITY, |of| of.mean);
    verdicts.sort_by(|(_, a), (_, b)| place(a).cmp(&place(b)).then(mean(b).total_cmp(&mean(a))));
    let best = verdicts[0].1.clone();
    if verdicts.len() == 1 {
        return best;
    }
    let measure = best.measure + &format!(" (the best of {} tasks)", verdicts.len());
    let parts = verdicts
        .iter()
        .map(|(task, verdict)| Part { on: label(&choices[0], task), measured: verdict.measured });
    Verdict { parts: parts.collect(), measure, ..best }
}

/// The verdict of a look on a claim as if this were its only task.
fn on_task(
    claim: &Claim,
    task: &str,
    choices: &[Vec<Choice>; 2],
    scale: &Scale,
    results: &Results,
    Look { seeds, side }: Look,
) -> Verdict {
    let found = SeedNumbers::new(claim, task, results, seeds);
    let estimated = found.sample().and_then(|sample| Estimated::new(average(claim), &sample));
    let measured = estimated.map(|estimated| Interval {
        mean: in_terms_of(claim, [estimated.mean(); 2])[0],
        ends: estimated.ends(side).map(|ends| in_terms_of(claim, ends)),
        seeds: estimated.seeds(),
    });
    let Ruled { ruling, more_seeds, why } = rule(claim, scale, &found, estimated, side);
    Verdict {
        claim: claim.claim.clone(),
        source: claim.source.clone(),
        kind: claim.kind,
        sentence: claim.sentence.clone(),
        group: claim.group.clone(),
        dirty: found.dirty,
        measure: in_words(claim, task, choices),
        unit: claim.unit,
        claimed: claim.claimed,
        bounds: [claim.at_least, claim.at_most],
        measured,
        confidence: 1.0 - 2.0 * side,
        test: found.test(),
        correlation: estimated.and_then(|estimated| estimated.correlation),
        welch: estimated
            .and_then(|estimated| estimated.welch(side))
            .map(|ends| in_terms_of(claim, ends)),
        parts: Vec::new(),
        by_link: None,
        ruling,
        more_seeds,
        why,
    }
}

/// How the numbers of a claim are averaged: factors, savings and seconds by their logarithms.
fn average(claim: &Claim) -> Average {
    match claim.compare {
        Compare::SpeedUp | Compare::Ratio | Compare::Saving => Average::Geometric,
        Compare::Value if claim.measure.is_seconds() => Average::Geometric,
        Compare::Value | Compare::Difference => Average::Arithmetic,
    }
}

/// Both ends of an interval in the claim's terms: what is saved is what the ratio leaves.
fn in_terms_of(claim: &Claim, [low, high]: [f64; 2]) -> [f64; 2] {
    match claim.compare {
        Compare::Saving => [1.0 - high, 1.0 - low],
        _ => [low, high],
    }
}

/// The bounds of a claim on what is estimated.
fn bounds(claim: &Claim) -> Bounds {
    let left = |saved: Option<f64>| saved.map(|saved| 1.0 - saved);
    match claim.compare {
        Compare::Saving => Bounds(left(claim.at_most), left(claim.at_least)),
        _ => Bounds(claim.at_least, claim.at_most),
    }
}

/// The numbers that runs have for a claim, and what is wrong with the others.
#[derive(Default)]
struct SeedNumbers {
    /// Of each seed that both arms have finished with: the arm's number, and of a comparison the
    /// number of the other arm.
    values: Vec<(f64, Option<f64>)>,
    /// Whether a seed makes both arms begin alike and see the same data in the same order.
    pairs: bool,
    /// Runs of the arm, and of the one that it stands against, that diverged.
    diverged: [usize; 2],
    /// Runs of both that have not been made, not to their end, or that failed.
    missing: usize,
    /// Seeds that both arms have finished with, but for which there is no finite number.
    unmeasured: usize,
    /// Runs that were planned of the arm.
    planned: usize,
    /// Runs among those that the numbers are of whose build had changes that no commit holds.
    dirty: usize,
    /// Steps of the runs, where none of them has left the warm-up of its learning rate.
    warmup: Option<u64>,
    /// Steps of the arm's runs, where none of them compressed anything.
    uncompressed: Option<u64>,
}

/// The steps of these runs, if all of them end within the first steps that `first` counts.
fn within<'a>(runs: impl Iterator<Item = &'a Run>, first: fn(&Measured) -> u64) -> Option<u64> {
    let mut steps = None;
    for measured in runs.filter_map(|run| run.measured.as_ref()) {
        if measured.planned_steps > first(measured) || first(measured) == 0 {
            return None;
        }
        steps = Some(measured.planned_steps);
    }
    steps
}

/// What fraction of right answers leaves no room for a difference between arms.
const CEILING: f64 = 0.999;

impl SeedNumbers {
    /// Of the first `seeds` seeds of the claim's own arm.
    fn new(claim: &Claim, task: &str, results: &Results, seeds: usize) -> Self {
        let on_task = || results.runs.iter().filter(|run| run.task == task);
        let mut own: Vec<u64> = on_task().filter(|r| r.arm == claim.arm).map(|r| r.seed).collect();
        own.sort_unstable();
        let last = own.get(seeds.saturating_sub(1)).copied().unwrap_or(u64::MAX);
        let of = |arm: &str| -> Vec<&Run> {
            on_task().filter(|run| run.arm == arm && run.seed <= last).collect()
        };
        let own = of(&claim.arm);
        let others = claim.against.as_deref().map(of);
        let mut found = Self { planned: own.len(), pairs: true, ..Self::default() };
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
        let both = own.iter().chain(others.iter().flatten()).copied();
        found.warmup = within(both, |run| run.warmup_steps);
        found.uncompressed = within(own.iter().copied(), |run| run.uncompressed_steps);
        let timings: Vec<&Timing> = results.timings.iter().filter(|t| t.task == task).collect();
        for run in own.iter().filter(|run| run.outcome.is_finished()) {
            let other = others.as_ref().map(|others| {
                others.iter().find(|o| o.seed == run.seed && o.outcome.is_finished())
            });
            if other == Some(None) {
                continue;
            }
            let other = other.flatten().map(|other| other.measured.as_ref());
            let numbers = match (&run.measured, other) {
                (Some(own), None) => numbers(claim, &timings, own, None),
                (Some(own), Some(Some(other))) => {
                    found.pairs &= own.begins_like(other);
                    numbers(claim, &timings, own, Some(other))
                }
                _ => None,
            };
            let sound = |number: &f64| {
                number.is_finite() && (average(claim) == Average::Arithmetic || *number > 0.0)
            };
            match numbers.filter(|(own, other)| sound(own) && other.as_ref().is_none_or(sound)) {
                Some(numbers) => {
                    found.values.push(numbers);
                    let both = run.measured.iter().chain(other.flatten());
                    found.dirty += both.filter(|run| run.provenance.is_dirty()).count();
                }
                None => found.unmeasured += 1,
            }
        }
        // Two runs to the same loss, or two schemes on the same gradient, are a pair by themselves.
        found.pairs |= claim.measure.is_measured_in_pairs();
        found
    }

    /// Why the numbers of both arms cannot differ, if they cannot: all are at the ceiling, or one number.
    fn saturated(&self, claim: &Claim) -> Option<String> {
        let both = self.values.iter().map(|(own, other)| Some([*own, (*other)?]));
        let all: Vec<f64> = both.collect::<Option<Vec<_>>>()?.concat();
        let first = *all.first().filter(|_| claim.measure.is_fraction())?;
        if all.iter().all(|number| *number >= CEILING) {
            return Some(
                "all at the ceiling: every run of both has all but everything right".into(),
            );
        }
        let same = all.iter().all(|number| (number - first).abs() < 1e-9);
        same.then(|| format!("every run of both has the same accuracy, {}", percent(first)))
    }

    fn test(&self) -> Test {
        match self.values.first() {
            Some((_, Some(_))) if self.pairs => Test::Paired,
            Some((_, Some(_))) => Test::Welch,
            _ => Test::OneArm,
        }
    }

    /// The numbers, in the order that the comparison wants.
    fn sample(&self) -> Option<Sample> {
        let own = self.values.iter().map(|(own, _)| *own);
        let both = self.values.iter().filter_map(|(own, other)| Some((*own, (*other)?)));
        match self.test() {
            _ if self.values.is_empty() => None,
            Test::OneArm => Some(Sample::One(own.collect())),
            Test::Paired => Some(Sample::Paired(both.collect())),
            Test::Welch => {
                let (own, other) = both.unzip();
                Some(Sample::Apart(own, other))
            }
        }
    }
}

/// The numbers of one seed, the first over or less the second: of the arm and of the other. The timings
/// are those of the task.
fn numbers(
    claim: &Claim,
    timings: &[&Timing],
    own: &Measured,
    other: Option<&Measured>,
) -> Option<(f64, Option<f64>)> {
    let pair = if claim.measure.is_to_loss() {
        to_the_same_loss(claim, own, other?)?
    } else {
        let timing = |arm: &str| timings.iter().find(|t| t.is_for(claim, own) && t.arm == arm);
        let number = |arm: &str, run: &Measured| match claim.measure {
            Measure::EncodeSeconds => Some(timing(arm)?.encode.median),
            Measure::DecodeSeconds => Some(timing(arm)?.decode.median),
            _ => measure(claim, run),
        };
        let other = match claim.against.as_deref().zip(other) {
            Some((arm, run)) => Some(number(arm, run)?),
            None => None,
        };
        (number(&claim.arm, own)?, other)
    };
    Some(match (claim.compare, pair) {
        (Compare::SpeedUp, (own, Some(other))) => (other, Some(own)),
        (Compare::Value, (own, _)) => (own, None),
        (_, pair) => pair,
    })
}

impl Timing {
    /// Whether it was measured on the gradient of this run for this claim.
    fn is_for(&self, claim: &Claim, run: &Measured) -> bool {
        self.gradient_of == claim.arm
            && self.seed == run.seed
            && self.started == run.summary.started
    }
}

/// Seconds or steps of both to the training loss that both end below, smoothed as plots show it.
fn to_the_same_loss(claim: &Claim, own: &Measured, other: &Measured) -> Option<(f64, Option<f64>)> {
    let last = |run: &Measured| run.smooth_losses().last();
    let goal = last(own)?.max(last(other)?);
    let reached = |run: &Measured| run.smooth_losses().position(|loss| loss <= goal);
    let number = |run: &Measured, point: usize| match claim.measure {
        Measure::StepsToLoss => Some(run.losses.get(point)?.step as f64),
        _ => run.link(claim.link.as_deref()?)?.at_losses.get(point).copied(),
    };
    let (own_point, other_point) = (reached(own)?, reached(other)?);
    let more = match claim.charged_bits {
        Some(bits) => {
            let steps = other.losses.get(other_point)?.step as f64;
            steps * more_seconds(other, claim.link.as_deref()?, bits)?
        }
        None => 0.0,
    };
    Some((number(own, own_point)?, Some(number(other, other_point)? + more)))
}

/// What a step of the run would take longer on the link if each of its messages had so many bits for a
/// parameter: in a ring allgather N − 1 messages cross every rank's interface. `None` where messages
/// travel in another way, as those of dense gradients do.
fn more_seconds(run: &Measured, link: &str, bits: f64) -> Option<f64> {
    let link = Link::parse(link).ok()?;
    let message = |bits: f64| link.wire_bytes((bits * run.parameters as f64 / 8.0) as u64);
    let more = message(bits) - message(run.summary.bits_per_parameter);
    let messages = run.workers.saturating_sub(1) as f64;
    let is_gathered = run.topology == "allgather" && run.scheme != "dense";
    is_gathered.then_some(messages * more * 8.0 / link.bandwidth)
}

/// What is measured of one run.
fn measure(claim: &Claim, run: &Measured) -> Option<f64> {
    let on = || run.link(claim.link.as_deref()?);
    match claim.measure {
        Measure::Accuracy => run.summary.test_accuracy,
        Measure::BestAccuracy => run.summary.best_accuracy,
        Measure::Loss => run.last_loss(),
        Measure::TestLoss => run.summary.test_loss,
        Measure::BitsPerParameter => Some(run.summary.bits_per_parameter),
        Measure::Reduction => run.summary.compression_ratio().map(f64::recip),
        Measure::StepSeconds => on().map(|on| on.step_seconds),
        Measure::SecondsToLoss
        | Measure::StepsToLoss
        | Measure::EncodeSeconds
        | Measure::DecodeSeconds => None,
        Measure::Gauge => run.gauge(claim.gauge.as_deref()?),
        Measure::DownlinkBytes => run.downlink_bytes,
    }
}

/// A ruling and its reason.
struct Ruled {
    ruling: Ruling,
    more_seeds: Option<usize>,
    why: String,
}

impl Ruled {
    fn new(ruling: Ruling, why: impl Into<String>) -> Self {
        Self { ruling, more_seeds: None, why: why.into() }
    }
}

fn rule(
    claim: &Claim,
    scale: &Scale,
    found: &SeedNumbers,
    estimated: Option<Estimated>,
    side: f64,
) -> Ruled {
    let against = claim.against.as_deref().unwrap_or("the other");
    let untestable = |why: String| Ruled::new(Ruling::NotTestable, why);
    if !claim.applies_at(scale) {
        return untestable(match claim.otherwise.as_str() {
            "" => format!("it is not asked at scale {}", scale.name()),
            why => why.to_string(),
        });
    }
    if found.planned == 0 {
        return untestable("its task or one of its arms is not in this grid".into());
    }
    if found.diverged[1] > 0 {
        return untestable(format!("{against} diverged with {}", seeds(found.diverged[1])));
    }
    if found.diverged[0] > 0
        && let Some(ruled) = rule_on_divergence(claim, found)
    {
        return ruled;
    }
    if found.missing > 0 {
        let runs = if found.missing == 1 { "run is" } else { "runs are" };
        return untestable(format!("{} {runs} missing or failed", found.missing));
    }
    if found.unmeasured > 0 {
        let of = seeds(found.unmeasured + found.values.len());
        return untestable(match estimated {
            Some(_) => format!("{} of {of} have no finite value", found.unmeasured),
            None => "no run has measured this".into(),
        });
    }
    let Some(estimated) = estimated else {
        return untestable("no run has measured this".into());
    };
    if estimated.seeds() < claim.seeds {
        return untestable(format!(
            "{} cannot tell it from chance: at least {} are needed",
            seeds(estimated.seeds()),
            claim.seeds
        ));
    }
    if let Some(steps) = found.uncompressed {
        return untestable(format!(
            "its runs end inside the first steps that cross uncompressed, after {steps} steps: train longer, or set \
             policy.warmup_steps"
        ));
    }
    if let Some(steps) = found.warmup.filter(|_| claim.measure.is_of_learning()) {
        return untestable(format!(
            "its runs end inside the warm-up of the learning rate, after {steps} steps: train longer, or set \
             schedule.warmup"
        ));
    }
    if let Some(why) = found.saturated(claim) {
        return untestable(why);
    }
    decide(&estimated, bounds(claim), side)
}

/// The ruling by where the interval lies.
fn decide(estimated: &Estimated, bounds: Bounds, side: f64) -> Ruled {
    let interval = |side: f64| match estimated.ends(side) {
        Some(_) => format!("the {} interval", percent(1.0 - 2.0 * side)),
        None => "the measured value".into(),
    };
    // What is undecided straddles a bound with this one, too, which is never the narrower.
    let outside = interval(bounds.side_outside(side));
    match estimated.decide(bounds, side) {
        Decision::Within => {
            let why = format!("{} lies within what was asked for", interval(side));
            Ruled::new(Ruling::Reproduced, why)
        }
        Decision::Outside => {
            let why = format!("{outside} lies wholly outside of what was asked for");
            Ruled::new(Ruling::Contradicted, why)
        }
        Decision::Straddles => {
            let more_seeds = estimated.more_seeds(bounds, side);
            let more = match more_seeds {
                Some(1) => "one seed more would decide".into(),
                Some(more) => format!("{more} seeds more would decide"),
                None => format!("more than {MOST_SEEDS} seeds would be needed"),
            };
            let why = format!(
                "{outside} over {} reaches over the edge of what was asked for; at the deviation \
                 seen, {more}",
                seeds(estimated.seeds())
            );
            Ruled { ruling: Ruling::Undecided, more_seeds, why }
        }
    }
}

/// What follows where runs of the claim's own arm diverged: such a run's accuracy is worse, and its
/// loss higher, than any number. What else would have been measured of it nobody knows. `None` where
/// the other runs are needed to decide, and are not there.
fn rule_on_divergence(claim: &Claim, found: &SeedNumbers) -> Option<Ruled> {
    let diverged = found.diverged[0];
    let why = format!("{} diverged with {diverged} of {}", claim.arm, seeds(found.planned));
    // The more is saved, or the more times as fast it is, the less is the arm's own number.
    let [least, most] = match claim.compare {
        Compare::SpeedUp | Compare::Saving => [claim.at_most, claim.at_least],
        Compare::Value | Compare::Difference | Compare::Ratio => [claim.at_least, claim.at_most],
    };
    let missed = match claim.measure {
        Measure::Accuracy => least,
        Measure::Loss | Measure::TestLoss => most,
        _ => return Some(Ruled::new(Ruling::NotTestable, why)),
    };
    if missed.is_some() {
        return Some(Ruled::new(Ruling::Contradicted, why));
    }
    if found.missing > 0 {
        return None;
    }
    // It is asked whether the arm breaks down, and one seed may do so by chance.
    Some(if diverged == found.planned && diverged >= claim.seeds {
        Ruled::new(Ruling::Reproduced, format!("{why}, which is worse than any number"))
    } else {
        let why = format!("{why}; it counts where all do, at least {}", claim.seeds);
        Ruled::new(Ruling::Undecided, why)
    })
}

fn seeds(count: usize) -> String {
    if count == 1 { "one seed".into() } else { format!("{count} seeds") }
}

/// The label of the choice of this name.
fn label(choices: &[Choice], name: &str) -> String {
    let found = choices.iter().find(|choice| choice.label.name == name);
    found.map_or_else(|| name.to_string(), |choice| choice.label.label.clone())
}

/// What is measured on a task, in words.
fn in_words(claim: &Claim, task: &str, [tasks, arms]: &[Vec<Choice>; 2]) -> String {
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
    words += &format!("; {}", label(tasks, task));
    match &claim.link {
        Some(link) => words + &format!(" at {link}"),
        None => words,
    }
}

#[cfg(test)]
mod tests;
