//! From the ranks' reports to the run's events: summed in rank order, so that the record does not
//! depend on which rank happened to report first.

use crate::checkpoint::{Score, Sums};
use crate::recipe::Recipe;
use crate::record::network::Row;
use crate::record::{self, Event, Phases};
use crate::train::observer::RunEvent;
use crate::train::report::{EndOfEpoch, RankStep, Report};
use crate::train::steps::Steps;
use crate::train::timer::{nanoseconds, nanoseconds_of};
use gradwire_exchange::{Leg, Operation};
use std::collections::{BTreeMap, VecDeque};
use std::f64::consts::LN_2;

/// Collects reports until all ranks have reported a step.
pub(super) struct Collector {
    workers: usize,
    /// Every how many steps one is recorded.
    every: u64,
    steps: Steps,
    /// Steps that some ranks have reported.
    open: BTreeMap<u64, Vec<Option<RankStep>>>,
    /// Epochs that rank 0 has reported before the others had reported their last steps.
    pending: VecDeque<EndOfEpoch>,
    sums: Sums,
    /// Bytes of each token of the test set, where a text is continued.
    bytes_per_token: Option<f64>,
    /// The patterns of the policy's rules.
    rules: Vec<String>,
}

impl Collector {
    /// A collector of a run that has come to `sums` when it begins these `steps`.
    pub(super) fn new(
        recipe: &Recipe,
        steps: Steps,
        sums: Sums,
        bytes_per_token: Option<f64>,
    ) -> Self {
        Self {
            bytes_per_token,
            workers: recipe.workers,
            every: recipe.record.every,
            steps,
            open: BTreeMap::new(),
            pending: VecDeque::new(),
            sums,
            rules: recipe.policy.rules.iter().map(|rule| rule.pattern.clone()).collect(),
        }
    }

    /// Takes a report; the events that it completes.
    pub(super) fn add(&mut self, report: Report) -> Vec<RunEvent> {
        match report {
            Report::Histograms(histograms) => vec![RunEvent::Recorded(Event::from(histograms))],
            Report::Warning(step, message) => {
                vec![RunEvent::Recorded(Event::from(record::Warning { step, message }))]
            }
            Report::Part(part) => vec![RunEvent::Part(part, self.sums.clone())],
            Report::Epoch(epoch) => {
                self.pending.push_back(epoch);
                self.ended_epoch().into_iter().collect()
            }
            Report::Step(step) => {
                let mut events = self.ended_step(*step);
                if !events.is_empty() {
                    events.extend(self.ended_epoch());
                }
                events
            }
        }
    }

    /// The step's events, if this was the last rank to report it.
    fn ended_step(&mut self, step: RankStep) -> Vec<RunEvent> {
        let (number, rank) = (step.step, step.rank);
        let workers = self.workers;
        let slots = self.open.entry(number).or_insert_with(|| (0..workers).map(|_| None).collect());
        slots[rank] = Some(step);
        if slots.iter().any(Option::is_none) {
            return Vec::new();
        }
        let ranks = self.open.remove(&number).unwrap_or_default();
        let ranks: Vec<RankStep> = ranks.into_iter().flatten().collect();
        let recorded = number == 1
            || number.is_multiple_of(self.every)
            || self.steps.is_told(self.every, number)
            || self.steps.ends_epoch(number)
            || number == self.steps.last_step;
        let event = self.step(&ranks);
        let event = if recorded { RunEvent::Recorded(event) } else { RunEvent::Unrecorded(event) };
        // First: a step without its row could not be replayed.
        let delay = self.steps.delay(number);
        vec![RunEvent::Network(Row { delay, ..row(&ranks) }), event]
    }

    /// The first pending epoch's event, once all ranks have reported its last step.
    fn ended_epoch(&mut self) -> Option<RunEvent> {
        let last = self.pending.front()?.step;
        if self.open.keys().any(|step| *step <= last) {
            return None;
        }
        let epoch = self.pending.pop_front()?;
        Some(RunEvent::Recorded(self.epoch(&epoch)))
    }

    fn step(&mut self, ranks: &[RankStep]) -> Event {
        let first = &ranks[0];
        let n = ranks.len() as f64;
        let mut score = Score::default();
        let mut phases = Phases::default();
        let (mut sent, mut returned, mut within) = (0, 0, 0);
        for rank in ranks {
            score.add(&rank.score);
            phases.add(&rank.phases);
            sent += rank.traffic.wire_bytes;
            returned += rank.traffic.downlink_bytes;
            within += rank.traffic.local_bytes;
        }
        self.sums.train.add(&score);
        self.sums.wire_bytes_total += sent;
        let mean = |of: &dyn Fn(&RankStep) -> f64| ranks.iter().map(of).sum::<f64>() / n;
        let seconds = mean(&|s| s.seconds);
        self.sums.seconds += seconds;
        let wire_bytes = sent as f64 / n;
        self.sums.rules.resize(self.rules.len(), [0, 0]);
        let dense = first.traffic.dense_bytes;
        // What is sent at the end of a round of local steps is for all of them.
        let steps = first.step - self.steps.sent_before(first.step);
        let rule = |(number, (pattern, total)): (usize, (&String, &mut [u64; 2]))| {
            let of_ranks = ranks.iter().filter_map(|rank| rank.traffic.rules.get(number));
            let [wire, dense] = of_ranks.fold([0, 0], |sum, [w, d]| [sum[0] + w, sum[1] + d]);
            *total = [total[0] + wire, total[1] + dense];
            record::RuleTraffic::new(pattern, [wire, dense * steps], *total)
        };
        let rules = self.rules.iter().zip(&mut self.sums.rules).enumerate().map(rule).collect();
        let compression_ratio = wire_bytes / (dense * steps).max(1) as f64;
        let gauges = first.traffic.gauges.iter().map(|gauge| {
            let of = |step: &RankStep| {
                let mut same = step.traffic.gauges.iter().filter(|g| g.name == gauge.name);
                same.next().map_or(f64::NAN, |g| g.value)
            };
            (gauge.name.to_string(), mean(&of))
        });
        let gauges: Vec<(String, f64)> = gauges.collect();
        let residual = gauges.iter().find(|(name, _)| name == RESIDUAL_NORM).map(|(_, v)| *v);
        Event::from(record::Step {
            step: first.step,
            epoch: first.epoch,
            loss: score.mean_loss(),
            accuracy: Some(self.sums.train.accuracy()),
            learning_rate: first.learning_rate,
            samples: score.samples,
            seconds,
            phases: phases.over(n),
            exchange_seconds: mean(&|s| s.traffic.total().as_secs_f64()),
            exposed_seconds: mean(&|s| s.exposed),
            wire_bytes,
            wire_bytes_total: self.sums.wire_bytes_total,
            uplink_bytes: (returned > 0).then_some(sent),
            downlink_bytes: (returned > 0).then_some(returned),
            local_bytes: (within > 0).then_some(within),
            dense_bytes: dense,
            bits_per_parameter: 32.0 * compression_ratio,
            compression_ratio,
            residual_norm: residual,
            gradient_norm: Some(first.gradient_norm),
            gauges: gauges.into_iter().filter(|(name, _)| name != RESIDUAL_NORM).collect(),
            rules,
        })
    }

    fn epoch(&mut self, epoch: &EndOfEpoch) -> Event {
        let (train, seconds) = (self.sums.train, self.sums.seconds);
        // A run that ends within an epoch may go on with it, when it is prolonged.
        if self.steps.ends_epoch(epoch.step) {
            (self.sums.train, self.sums.seconds) = Default::default();
        }
        Event::from(record::Epoch {
            epoch: epoch.epoch,
            step: epoch.step,
            train_loss: train.mean_loss(),
            train_accuracy: Some(train.accuracy()),
            test_loss: epoch.test.map(|t| t.mean_loss()),
            test_accuracy: epoch.test.map(|t| t.accuracy()),
            test_top5_accuracy: epoch.test.and_then(|t| t.top5_accuracy()),
            bits_per_byte: self
                .bytes_per_token
                .zip(epoch.test)
                .map(|(bytes, test)| test.mean_loss() / LN_2 / bytes),
            seconds,
            evaluation_seconds: epoch.evaluation_seconds,
            samples_per_second: train.samples as f64 / seconds,
        })
    }
}

/// A step for the network's record.
fn row(ranks: &[RankStep]) -> Row {
    let of_legs = |of: fn(&Leg) -> u64| {
        ranks.iter().map(|step| step.traffic.legs.iter().map(of).collect()).collect()
    };
    let compute = |step: &RankStep| {
        let own = &step.own;
        [own.data, own.forward, own.backward, own.optimizer].map(nanoseconds)
    };
    let learn = |step: &RankStep| nanoseconds_of(step.traffic.finish_cpu);
    let legs = &ranks[0].traffic.legs;
    let returns = legs.iter().any(|leg| leg.downlink_bytes > 0);
    let in_groups = legs.iter().any(|leg| leg.local_bytes > 0);
    let aggregates = legs.iter().any(|leg| !leg.aggregate_cpu.is_zero());
    let aggregate = legs.iter().map(|leg| nanoseconds_of(leg.aggregate_cpu));
    Row {
        step: ranks[0].step,
        compute: ranks.iter().map(compute).collect(),
        encode: ranks.iter().map(encode_of_legs).collect(),
        decode: of_legs(|leg| nanoseconds_of(leg.decode_cpu)),
        up: of_legs(|leg| leg.wire_bytes),
        down: if returns { of_legs(|leg| leg.downlink_bytes) } else { Vec::new() },
        local: if in_groups { of_legs(|leg| leg.local_bytes) } else { Vec::new() },
        aggregate: if aggregates { aggregate.collect() } else { Vec::new() },
        learn: ranks.iter().map(learn).collect(),
        dense: match legs.len() {
            0 | 1 => Vec::new(),
            _ => legs.iter().map(|leg| leg.dense_bytes).collect(),
        },
        operations: match legs.iter().all(|leg| leg.operation == Operation::Messages) {
            true => Vec::new(),
            false => legs.iter().map(|leg| leg.operation).collect(),
        },
        ready: ready_of_legs(&ranks[0]),
        delay: 0,
    }
}

/// How much of the backward pass was over when the gradient of each leg's group was final.
fn ready_of_legs(step: &RankStep) -> Vec<f64> {
    groups(step).filter_map(|(_, place)| step.ready.get(place)).copied().collect()
}

/// What encoding each leg took; with overlap, the first leg of a group also has what it took the
/// exchanging thread to lay the group's gradient into the flat one.
fn encode_of_legs(step: &RankStep) -> Vec<u64> {
    let mut laid = step.laid.clone();
    let of_leg = |(leg, place): (&Leg, usize)| {
        let laid = laid.get_mut(place).map_or(0.0, std::mem::take);
        nanoseconds_of(leg.encode_cpu) + nanoseconds(laid)
    };
    groups(step).map(of_leg).collect()
}

/// The legs of a step, each with the number of its group in the order of the exchange.
fn groups(step: &RankStep) -> impl Iterator<Item = (&Leg, usize)> {
    let mut groups: Vec<usize> = step.traffic.legs.iter().map(|leg| leg.group).collect();
    groups.dedup();
    let place = move |leg: &Leg| groups.iter().position(|group| *group == leg.group);
    step.traffic.legs.iter().map(move |leg| (leg, place(leg).unwrap_or(0)))
}

const RESIDUAL_NORM: &str = "residual_norm";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Progress;
    use crate::recipe::Source;
    use gradwire_exchange::Traffic;
    use std::time::Duration;

    /// A leg of a group about so many bytes, whose encoding took 100 ns.
    fn leg(group: usize, dense_bytes: u64) -> Leg {
        let mut leg = Leg::default();
        (leg.group, leg.dense_bytes) = (group, dense_bytes);
        leg.encode_cpu = Duration::from_nanos(100);
        leg
    }

    fn step(legs: Vec<Leg>) -> RankStep {
        let mut traffic = Traffic::default();
        traffic.finish_cpu = Duration::from_nanos(7000);
        traffic.legs = legs;
        let own = Phases { optimizer: 2e-6, ..Phases::default() };
        let (ready, laid) = (vec![0.25, 1.0], vec![3e-6, 4e-6]);
        RankStep { traffic, own, ready, laid, ..RankStep::default() }
    }

    /// Learning is no computing of the model's, and laying a group's gradient is paid once a group.
    #[test]
    fn learning_and_laying_are_charged_to_the_codec() {
        let row = row(&[step(vec![leg(4, 400), leg(4, 0), leg(9, 800)])]);
        assert_eq!(row.compute, [[0, 0, 0, 2000]]);
        assert_eq!(row.learn, [7000]);
        assert_eq!(row.encode, [[3100, 100, 4100]]);
        assert_eq!(row.dense, [400, 0, 800]);
        assert_eq!(row.ready, [0.25, 0.25, 1.0]);
    }

    /// Rank 0 may be epochs ahead in what it reports: each epoch has the steps that are its own.
    #[test]
    fn epochs_that_one_rank_is_ahead_by_are_events_one_after_the_other() {
        let sets = ["workers=2", "train.batch=8", "samples.train=16"];
        let recipe = Source::of(sets).load().unwrap();
        let steps = Steps::new(&recipe, 16, Progress::START).unwrap();
        assert!(steps.ends_epoch(1) && steps.ends_epoch(2));
        let mut collector = Collector::new(&recipe, steps, Sums::default(), None);
        let step = |step, rank| {
            let score = Score { loss: step as f64, samples: 8, ..Score::default() };
            let traffic = Traffic::default();
            Report::Step(Box::new(RankStep { step, rank, score, traffic, ..RankStep::default() }))
        };
        let epoch = |step| {
            let (test, evaluation_seconds) = (None, 0.0);
            Report::Epoch(EndOfEpoch { epoch: step, step, test, evaluation_seconds })
        };
        let mut ended = Vec::new();
        for report in [step(1, 0), epoch(1), step(2, 0), epoch(2), step(1, 1), step(2, 1)] {
            let events = collector.add(report);
            ended.extend(events.into_iter().filter_map(|event| match event {
                RunEvent::Recorded(Event { kind: record::Kind::Epoch(epoch), .. }) => {
                    Some((epoch.epoch, epoch.train_loss))
                }
                _ => None,
            }));
        }
        assert_eq!(ended, [(1, 0.125), (2, 0.25)]);
    }

    #[test]
    fn a_single_leg_has_no_list_of_sizes() {
        let mut step = step(vec![leg(0, 400)]);
        step.laid.clear();
        let row = row(&[step]);
        assert_eq!((row.dense, row.encode), (vec![], vec![vec![100]]));
    }
}
