//! The verdict on a claim on one link, or on none: by the first look that decides it, on the best of its tasks.

use super::numbers::{SeedNumbers, average};
use crate::claim::{Claim, Compare, Measure};
use crate::decision::{Bounds, Decision, Estimated, Look, MOST_SEEDS, looks};
use crate::experiment::Choice;
use crate::results::{Results, Ruling, RunResult, Verdict, VerdictPart};
use crate::scale::Scale;
use crate::statistics::Interval;
use gradwire::text::percent;
use std::collections::BTreeSet;

/// The verdict on a claim on one link, or on none: that of the first look that decides it, or else of the last one whose
/// seeds both arms have.
pub(super) fn on_link(
    claim: &Claim,
    choices: &[Vec<Choice>; 2],
    scale: &Scale,
    results: &Results,
) -> Verdict {
    let of = |look: &Look| look_at(claim, choices, scale, results, *look);
    let fewer = |task: &String| {
        let is_of = |run: &&RunResult, arm: &String| run.task == *task && run.arm == *arm;
        let count = |arm: &String| {
            let seeds = results.runs.iter().filter(|run| is_of(run, arm)).map(|run| run.seed);
            seeds.collect::<BTreeSet<u64>>().len()
        };
        std::iter::once(&claim.arm).chain(&claim.against).map(count).min()
    };
    let there = claim.tasks().filter_map(fewer).max().unwrap_or(0);
    let looks = looks(results.looks);
    let last = looks.iter().rposition(|look| look.seeds <= there).unwrap_or(0);
    // What cannot be tested with few seeds may be with more.
    let decided = |verdict: &Verdict| {
        matches!(verdict.ruling, Ruling::Reproduced | Ruling::Contradicted | Ruling::DependsOnLink)
    };
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
    // error. A task that is contradicted by itself is none: with it, two or three tasks err with up to 5.2 %.
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
    let parts = verdicts.iter().map(|(task, verdict)| VerdictPart {
        on: label(&choices[0], task),
        measured: verdict.measured,
        confidence: verdict.confidence,
    });
    let dirty = verdicts.iter().map(|(_, verdict)| verdict.dirty).sum();
    let machines = verdicts.iter().map(|(_, verdict)| verdict.machines).max().unwrap_or_default();
    Verdict { parts: parts.collect(), measure, dirty, machines, ..best }
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
    let all = looks(results.looks);
    // Several tasks share the error of a look.
    let tasks = all.iter().find(|look| look.seeds == seeds).map_or(1.0, |look| look.side / side);
    let coming = (&all[..], tasks);
    let Ruled { ruling, more_seeds, why } = rule(claim, scale, &found, estimated, side, coming);
    Verdict {
        claim: claim.claim.clone(),
        source: claim.source.clone(),
        kind: claim.kind,
        sentence: claim.sentence.clone(),
        group: claim.group.clone(),
        dirty: found.dirty,
        machines: if claim.measure.needs_link() { found.machines.len() } else { 0 },
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
        links_asked: 1,
        ruling,
        more_seeds,
        why,
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
    looks: (&[Look], f64),
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
            _ if claim.measure.is_to_loss() => {
                format!("{} of {of} have no loss that both runs fell to", found.unmeasured)
            }
            Some(_) => format!("{} of {of} have no finite value", found.unmeasured),
            None => "no run has measured this".into(),
        });
    }
    if found.apart > 0 {
        return untestable(format!(
            "with {} the runs of {} and of {against} were made on different kinds of machine, and their times compare \
             these: make both on one",
            seeds(found.apart),
            claim.arm
        ));
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
            "runs of an arm end inside the first steps that cross uncompressed, after {steps} steps: train longer, or set \
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
    if found.ties(claim) {
        return untestable(
            "both have the same number with every seed: nothing tells them apart".into(),
        );
    }
    let varies = estimated.ends(side).is_none_or(|[low, high]| low < high);
    if claim.measure.is_fraction() && !varies {
        return Ruled {
            ruling: Ruling::Undecided,
            more_seeds: Some(1),
            why: "an accuracy counts samples, and here the same number with every seed, which tells nothing of chance: take \
                  more seeds, or test on more samples"
                .into(),
        };
    }
    decide(&estimated, bounds(claim), side, looks)
}

/// The ruling by where the interval lies. `looks` are all looks, and how many tasks share their error.
fn decide(
    estimated: &Estimated,
    bounds: Bounds,
    side: f64,
    (looks, tasks): (&[Look], f64),
) -> Ruled {
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
            let several = looks.len() > 1;
            let more_seeds = match several {
                true => estimated.more_seeds_of_looks(bounds, looks, tasks),
                false => estimated.more_seeds(bounds, side),
            };
            let more = match more_seeds {
                None if several => "no look that is still to come would decide".into(),
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
pub(super) fn in_words(claim: &Claim, task: &str, [tasks, arms]: &[Vec<Choice>; 2]) -> String {
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
