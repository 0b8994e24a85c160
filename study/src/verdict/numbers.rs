//! The numbers that the runs of each seed have for a claim on one link, or on none.

use crate::claim::{Claim, Compare, Measure};
use crate::decision::{Average, Sample};
use crate::measured::{INFINITE, Measured, OnLink};
use crate::results::{Results, RunResult, RunStatus, Test, Timing};
use gradwire::record::Provenance;
use gradwire_exchange::network::Link;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// How the numbers of a claim are averaged: factors, savings, reductions and seconds by their logarithms.
pub(super) fn average(claim: &Claim) -> Average {
    match claim.compare {
        Compare::SpeedUp | Compare::Ratio | Compare::Saving => Average::Geometric,
        Compare::Value if claim.measure.is_seconds() || claim.measure == Measure::Reduction => {
            Average::Geometric
        }
        Compare::Value | Compare::Difference => Average::Arithmetic,
    }
}

/// The numbers that runs have for a claim, and what is wrong with the others.
#[derive(Default)]
pub(super) struct SeedNumbers {
    /// Of each seed that both arms have finished with: the arm's number, and of a comparison the
    /// number of the other arm.
    pub(super) values: Vec<(f64, Option<f64>)>,
    /// Whether a seed makes both arms begin alike and see the same data in the same order.
    pub(super) pairs: bool,
    /// Runs of the arm, and of the one that it stands against, that diverged.
    pub(super) diverged: [usize; 2],
    /// Runs of both that have not been made, not to their end, or that failed.
    pub(super) missing: usize,
    /// Seeds that both arms have finished with, but for which there is no finite number.
    pub(super) unmeasured: usize,
    /// Runs that were planned of the arm.
    pub(super) planned: usize,
    /// Runs among those that the numbers are of whose build had changes that no commit holds.
    pub(super) dirty: usize,
    /// The kinds of machine that those runs were made on.
    pub(super) machines: BTreeSet<[String; 3]>,
    /// Seeds for whose time on a link there are two numbers, but of different kinds of machine, which is what these would
    /// compare; they are not among the values.
    pub(super) apart: usize,
    /// Steps of the runs, where none of them has left the warm-up of its learning rate.
    pub(super) warmup: Option<u64>,
    /// Steps of an arm's runs, where none of them compressed anything, though its scheme would.
    pub(super) uncompressed: Option<u64>,
}

/// Processor and kernels in use; and the system where the record has no family and model of the processor, for then
/// several are named alike.
fn kind_of_machine(Provenance { cpu, kernels, os, .. }: &Provenance) -> [String; 3] {
    let system = if cpu.contains("(family ") { String::new() } else { os.clone() };
    [cpu.clone(), kernels.clone(), system]
}

/// The steps of these runs, if all of them end within the first steps that `first` counts.
fn within<'a>(
    runs: impl Iterator<Item = &'a RunResult>,
    first: fn(&Measured) -> u64,
) -> Option<u64> {
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
    pub(super) fn new(claim: &Claim, task: &str, results: &Results, seeds: usize) -> Self {
        let on_task = || results.runs.iter().filter(|run| run.task == task);
        let mut own: Vec<u64> = on_task().filter(|r| r.arm == claim.arm).map(|r| r.seed).collect();
        own.sort_unstable();
        let last = own.get(seeds.saturating_sub(1)).copied().unwrap_or(u64::MAX);
        let of = |arm: &str| -> Vec<&RunResult> {
            on_task().filter(|run| run.arm == arm && run.seed <= last).collect()
        };
        let own = of(&claim.arm);
        let others = claim.against.as_deref().map(of);
        let mut found = Self { planned: own.len(), pairs: true, ..Self::default() };
        let sides = [Some(&own), others.as_ref()];
        for (diverged, runs) in found.diverged.iter_mut().zip(sides) {
            for run in runs.into_iter().flatten() {
                match run.outcome {
                    RunStatus::Finished => {}
                    RunStatus::Diverged { .. } => *diverged += 1,
                    _ => found.missing += 1,
                }
            }
        }
        if others.as_ref().is_some_and(Vec::is_empty) {
            found.planned = 0;
        }
        let both = own.iter().chain(others.iter().flatten()).copied();
        found.warmup = within(both, |run| run.warmup_steps);
        let first = |run: &Measured| match run.scheme.as_str() {
            "dense" => 0,
            _ => run.uncompressed_steps,
        };
        let mut sides = sides.into_iter().flatten();
        found.uncompressed = sides.find_map(|runs| within(runs.iter().copied(), first));
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
            let both = || run.measured.iter().chain(other.flatten()).map(|of| &of.provenance);
            let machines: BTreeSet<[String; 3]> = both().map(kind_of_machine).collect();
            match numbers.filter(|(own, other)| sound(own) && other.as_ref().is_none_or(sound)) {
                Some(_) if claim.measure.needs_link() && machines.len() > 1 => found.apart += 1,
                Some(numbers) => {
                    found.values.push(numbers);
                    found.dirty += both().filter(|made| made.is_dirty()).count();
                    found.machines.extend(machines);
                }
                None => found.unmeasured += 1,
            }
        }
        // Two runs to the same loss, or two schemes on the same gradient, are a pair by themselves.
        found.pairs |= claim.measure.is_measured_in_pairs();
        found
    }

    /// Why the accuracies of both arms tell nothing of a difference, if so: all are at the ceiling, or they are the same
    /// with every seed.
    pub(super) fn saturated(&self, claim: &Claim) -> Option<String> {
        let both = self.values.iter().map(|(own, other)| Some([*own, (*other)?]));
        let both: Vec<[f64; 2]> = both.collect::<Option<_>>()?;
        if both.is_empty() || !claim.measure.is_fraction() {
            return None;
        }
        if both.iter().flatten().all(|number| *number >= CEILING) {
            return Some(
                "all at the ceiling: every run of both has all but everything right".into(),
            );
        }
        let same = both.iter().all(|[own, other]| (own - other).abs() < 1e-9);
        same.then(|| "both have the same accuracy with every seed: nothing tells them apart".into())
    }

    /// Whether it is asked which arm is ahead, if either, and both have the same number with every seed.
    pub(super) fn ties(&self, claim: &Claim) -> bool {
        let level = match claim.compare {
            Compare::Difference | Compare::Saving => 0.0,
            Compare::SpeedUp | Compare::Ratio => 1.0,
            Compare::Value => return false,
        };
        let to_be_ahead = [claim.at_least, claim.at_most].contains(&Some(level));
        to_be_ahead && self.values.iter().all(|(own, other)| *other == Some(*own))
    }

    pub(super) fn test(&self) -> Test {
        match self.values.first() {
            Some((_, Some(_))) if self.pairs => Test::Paired,
            Some((_, Some(_))) => Test::Welch,
            _ => Test::OneArm,
        }
    }

    /// The numbers, in the order that the comparison wants.
    pub(super) fn sample(&self) -> Option<Sample> {
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
pub(super) fn numbers(
    claim: &Claim,
    timings: &[&Timing],
    own: &Measured,
    other: Option<&Measured>,
) -> Option<(f64, Option<f64>)> {
    let pair = if claim.measure.is_to_loss() {
        to_the_same_loss(claim, own, other?)?
    } else {
        let replayed = own.free.is_some() && other.is_none_or(|other| other.free.is_some());
        let timing = |arm: &str| timings.iter().find(|t| t.is_for(claim, own) && t.arm == arm);
        let number = |arm: &str, run: &Measured| match claim.measure {
            Measure::EncodeSeconds => Some(timing(arm)?.encode.median),
            Measure::DecodeSeconds => Some(timing(arm)?.decode.median),
            _ => measure(claim, run, replayed),
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

/// Seconds or steps of both to the training loss that both end below, smoothed as plots show it; `None` where that is no
/// lower than where one of them began.
fn to_the_same_loss(claim: &Claim, own: &Measured, other: &Measured) -> Option<(f64, Option<f64>)> {
    let replayed = own.free.is_some() && other.free.is_some();
    let last = |run: &Measured| run.smooth_losses().last();
    let goal = last(own)?.max(last(other)?);
    let reached = |run: &Measured| run.smooth_losses().position(|loss| loss <= goal);
    let number = |run: &Measured, point: usize| match claim.measure {
        Measure::StepsToLoss => Some(run.losses.get(point)?.step as f64),
        _ => on_its_link(claim, run, replayed)?.at_losses.get(point).copied(),
    };
    let (own_point, other_point) = (reached(own)?, reached(other)?);
    if own_point == 0 || other_point == 0 {
        return None;
    }
    let more = match claim.charged_bits {
        Some(bits) => {
            let steps = other.losses.get(other_point)?.step as f64;
            steps * more_seconds(other, claim.link.as_deref()?, bits)?
        }
        None => 0.0,
    };
    Some((number(own, own_point)?, Some(number(other, other_point)? + more)))
}

/// The run on the link of the claim; at infinite bandwidth as it was replayed there, if both of a pair were.
fn on_its_link<'a>(claim: &Claim, run: &'a Measured, replayed: bool) -> Option<Cow<'a, OnLink>> {
    match claim.link.as_deref()? {
        INFINITE if replayed => run.free.as_ref().map(Cow::Borrowed),
        INFINITE => run.nearly_free().map(Cow::Owned),
        word => run.link(word).map(Cow::Borrowed),
    }
}

/// What a step of the run would take longer on the link if each of its messages had so many bits for a
/// parameter: in a ring allgather N − 1 messages cross every rank's interface. `None` where messages
/// travel in another way, as those of dense gradients do; nothing where bandwidth is infinite.
fn more_seconds(run: &Measured, link: &str, bits: f64) -> Option<f64> {
    if link == INFINITE {
        return Some(0.0);
    }
    let link = Link::parse(link).ok()?;
    let message = |bits: f64| link.wire_bytes((bits * run.parameters as f64 / 8.0) as u64);
    let more = message(bits) - message(run.summary.bits_per_parameter);
    let messages = run.workers.saturating_sub(1) as f64;
    let is_gathered = run.topology == "allgather" && run.scheme != "dense";
    is_gathered.then_some(messages * more * 8.0 / link.bandwidth)
}

/// What is measured of one run, which at infinite bandwidth was `replayed`.
fn measure(claim: &Claim, run: &Measured, replayed: bool) -> Option<f64> {
    match claim.measure {
        Measure::Accuracy => run.summary.test_accuracy,
        Measure::BestAccuracy => run.summary.best_accuracy,
        Measure::Loss => run.last_loss(),
        Measure::TestLoss => run.summary.test_loss,
        Measure::BitsPerParameter => Some(run.summary.bits_per_parameter),
        Measure::Reduction => run.summary.compression_ratio().map(f64::recip),
        Measure::StepSeconds => on_its_link(claim, run, replayed).map(|on| on.step_seconds),
        Measure::SecondsToLoss
        | Measure::StepsToLoss
        | Measure::EncodeSeconds
        | Measure::DecodeSeconds => None,
        Measure::Gauge => run.gauge(claim.gauge.as_deref()?),
        Measure::DownlinkBytes => run.downlink_bytes,
    }
}
