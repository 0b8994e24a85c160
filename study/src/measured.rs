//! One run as its record tells it: what tables, plots and verdicts are made of.

use crate::network::replay::{self, Assumptions, Replayed};
use crate::network::report::NamedLink;
use crate::runs;
use crate::statistics::{SampleMoments, mean, median};
use anyhow::{Context, Result};
use gradwire::disk::Disk;
use gradwire::recipe::Recipe;
use gradwire::record::network::{self, Row};
use gradwire::record::{Event, Kind, Provenance, RECIPE, RunLog, Started, Step, Summary};
use gradwire_exchange::Scheme;
use gradwire_exchange::network::Link;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// The most points of a curve.
pub const POINTS: usize = 100;

/// The word of a link on which nothing waits: the fast end of all links.
pub const INFINITE: &str = "infinite bandwidth";

/// Points to each side over which a loss is smoothed.
const AROUND: usize = 3;

/// One run as its record tells it. Curves have at most [`POINTS`] points, each the mean over the
/// recorded steps since the point before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// What the run is called, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The model's name.
    pub model: String,
    /// The data set's name.
    pub dataset: String,
    /// The scheme's name.
    pub scheme: String,
    /// The scheme with its settings, such as `topk(ratio=0.01)`.
    pub settings: String,
    /// How messages travelled: `allgather`, `server`, `sharded`.
    pub topology: String,
    /// World size.
    pub workers: usize,
    /// What every random stream of the run derives from.
    pub seed: u64,
    /// Trainable parameters of one replica.
    pub parameters: u64,
    /// Samples of one step over all ranks.
    pub batch: u64,
    /// Steps that the recipe asks for.
    pub planned_steps: u64,
    /// Steps over which the learning rate rises at the beginning; 0 in results of earlier versions.
    #[serde(default)]
    pub warmup_steps: u64,
    /// Steps at the beginning that cross uncompressed; 0 in results of earlier versions.
    #[serde(default)]
    pub uncompressed_steps: u64,
    /// The run in figures.
    pub summary: Summary,
    /// Bytes one rank has sent in all, however many ranks there were.
    #[serde(default)]
    pub sent: f64,
    /// The training loss.
    pub losses: Vec<Loss>,
    /// Whether they are of training samples that are held out, in the test set's place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held_out: bool,
    /// Evaluations on the test set, in order.
    pub evaluations: Vec<Evaluation>,
    /// What the scheme and the exchange report about themselves, by name: the step and the mean
    /// over the recorded steps since the point before. `bits_per_parameter` is among them.
    pub gauges: BTreeMap<String, Vec<(u64, f64)>>,
    /// Of each gauge, mean and sample deviation over all recorded steps.
    pub gauge_means: BTreeMap<String, SampleMoments>,
    /// Seconds per step of one rank on its own processor clock, medians over steps of the mean
    /// over ranks; in rounds of local steps means over steps.
    pub work: Work,
    /// Bytes that one step sent back to all ranks together, on average, where anything was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downlink_bytes: Option<f64>,
    /// Bytes that one step sent within the groups of all ranks together, on average, where anything was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_bytes: Option<f64>,
    /// The run on each link asked for.
    pub links: Vec<OnLink>,
    /// The run where nothing waits; absent in records of before it was replayed so, and where there are no links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<OnLink>,
    /// What produced it.
    pub provenance: Provenance,
}

/// The mean over steps of bytes that some of them had, if any had.
fn over_all(steps: impl Iterator<Item = Option<u64>> + Clone) -> Option<f64> {
    steps.clone().flatten().next()?;
    mean(steps.map(|bytes| bytes.unwrap_or(0) as f64))
}

/// A point of the training loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// The last step it covers.
    pub step: u64,
    /// Mean over the recorded steps since the point before.
    pub loss: f64,
    /// Bytes one rank has sent by then.
    pub bytes: f64,
}

/// An evaluation on the test set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The step it followed.
    pub step: u64,
    /// Fraction of right answers, 0 to 1.
    pub accuracy: f64,
    /// Mean loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Bytes one rank has sent by then.
    pub bytes: f64,
    /// Seconds of all steps and evaluations by then; absent in results of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

/// Seconds of a step on a rank's own processor clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Data, forward and backward pass, update.
    pub compute: f64,
    /// Encoding.
    pub encode: f64,
    /// Decoding and averaging.
    pub decode: f64,
}

/// A run on the virtual clock of a link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OnLink {
    /// The link's word, such as `100mbit`.
    pub link: String,
    /// Bits per second; absent where they are without end.
    #[serde(default = "endless", skip_serializing_if = "is_endless")]
    pub bandwidth: f64,
    /// Median seconds of a step; in rounds of local steps the mean.
    pub step_seconds: f64,
    /// The same of what the link cost.
    pub exposed_seconds: f64,
    /// Seconds of all steps; evaluations are not charged.
    pub seconds: f64,
    /// Seconds from the beginning to each point of [`Measured::losses`].
    pub at_losses: Vec<f64>,
    /// Seconds from the beginning to each of [`Measured::evaluations`].
    pub at_evaluations: Vec<f64>,
}

fn endless() -> f64 {
    f64::INFINITY
}

fn is_endless(bandwidth: &f64) -> bool {
    bandwidth.is_infinite()
}

impl Measured {
    /// Whether this run and another of the same seed have the same start, and the same data in the same
    /// order.
    pub fn begins_like(&self, other: &Self) -> bool {
        let of = |run: &Self| (run.model.clone(), run.dataset.clone(), run.workers, run.batch);
        of(self) == of(other)
    }

    /// Reads the record of a run and replays it on `links`. A run that failed or was stopped is
    /// read as far as it went.
    ///
    /// # Errors
    /// When `folder` is no run's, or its record is damaged: with file and line.
    pub fn read(disk: &Disk, folder: &Path, links: &[NamedLink]) -> Result<Self> {
        Self::with(disk, &RunLog::read(disk, folder)?, links)
    }

    /// The run whose `metrics.jsonl` has been read, likewise.
    ///
    /// # Errors
    /// When its recipe or its other records cannot be read: with file and line.
    pub fn with(disk: &Disk, log: &RunLog, links: &[NamedLink]) -> Result<Self> {
        let folder = log.folder();
        let recipe = Recipe::from_toml(&runs::recipe_text(disk, folder)?)
            .with_context(|| folder.join(RECIPE).display().to_string())?;
        let mut notes = Notes::default();
        log.events().iter().for_each(|event| notes.take(event));
        let Notes { started, steps, sent, before, evaluations, summary, .. } = notes;
        let each_alike = || steps.iter().filter(|_| !recipe.is_local());
        let mut measured = Self {
            name: recipe.record.name.clone(),
            model: recipe.model.name().into(),
            dataset: recipe.dataset.name().into(),
            scheme: recipe.scheme.about().name.into(),
            settings: recipe.scheme_in_words(),
            topology: recipe.exchange.topology.to_string(),
            workers: recipe.workers,
            seed: recipe.seed,
            parameters: started.parameters,
            batch: started.batch,
            planned_steps: started.steps,
            warmup_steps: (recipe.schedule.warmup() * started.steps_per_epoch as f64).ceil() as u64,
            uncompressed_steps: recipe.policy().warmup_steps.unwrap_or(0),
            sent: before.sent(summary.wire_bytes),
            losses: losses(&steps, &sent),
            gauges: gauges(&steps),
            gauge_means: gauge_means(&steps),
            held_out: started.held_out,
            // Of a run in rounds the steps that are recorded are those that exchange.
            downlink_bytes: over_all(each_alike().map(|s| s.downlink_bytes)),
            local_bytes: over_all(each_alike().map(|s| s.local_bytes)),
            evaluations,
            summary,
            provenance: runs::provenance(disk, folder)?,
            ..Self::default()
        };
        if folder.join(network::FILE).exists() && measured.summary.steps > 0 {
            let run = replay::RecordedRun::with(disk, log)?;
            let rows: Vec<&Row> = run.stretches.iter().flat_map(|part| &part.rows).collect();
            measured.work = work(&rows, run.in_rounds());
            // Of every step, where the events are of some.
            let total = |of: fn(&Row) -> &Vec<Vec<u64>>| {
                let bytes = |row: &&Row| of(row).iter().flatten().sum();
                over_all(rows.iter().map(|row| (!of(row).is_empty()).then(|| bytes(row))))
            };
            measured.downlink_bytes = total(|row| &row.down);
            measured.local_bytes = total(|row| &row.local);
            let evaluated = measured.evaluations.last().map(|evaluation| evaluation.step);
            let last = measured.losses.last().map(|point| point.step).max(evaluated).unwrap_or(0);
            // What links make of a record that is cut short nobody knows; the rest of the run is known.
            if rows.len() as u64 >= last && !links.is_empty() {
                let on = |word: &str, link: &Link| {
                    run.replay(link, &Assumptions::default()).map(|of| measured.on(word, &of))
                };
                let all = links.iter().map(|(word, link)| on(word, link));
                let (all, free) = (all.collect::<Result<_>>()?, on(INFINITE, &Link::free())?);
                (measured.links, measured.free) = (all, Some(free));
            }
        }
        Ok(measured)
    }

    fn on(&self, word: &str, replayed: &Replayed) -> OnLink {
        let typical = replayed.typical();
        OnLink {
            link: word.into(),
            bandwidth: replayed.link.bandwidth,
            step_seconds: typical.seconds,
            exposed_seconds: typical.exposed,
            seconds: replayed.seconds(),
            at_losses: self.losses.iter().map(|point| replayed.at(point.step)).collect(),
            at_evaluations: self.evaluations.iter().map(|e| replayed.at(e.step)).collect(),
        }
    }

    /// The mean of a gauge over all recorded steps.
    pub fn gauge(&self, name: &str) -> Option<f64> {
        Some(self.gauge_means.get(name)?.mean)
    }

    /// The run on the link of this word.
    pub fn link(&self, word: &str) -> Option<&OnLink> {
        self.links.iter().find(|on| on.link == word)
    }

    /// Where the record has no [`free`](Self::free), about the same: every step takes what the typical one takes on the
    /// fastest link, less what that link cost. What a scheme does in some of its steps only is not in it. `None` of a
    /// run that was replayed on no link.
    pub fn nearly_free(&self) -> Option<OnLink> {
        let fastest = self.links.iter().max_by(|a, b| a.bandwidth.total_cmp(&b.bandwidth))?;
        let step_seconds = fastest.step_seconds - fastest.exposed_seconds;
        let at = |step: u64| step as f64 * step_seconds;
        Some(OnLink {
            link: INFINITE.into(),
            bandwidth: f64::INFINITY,
            step_seconds,
            exposed_seconds: 0.0,
            seconds: at(self.planned_steps),
            at_losses: self.losses.iter().map(|point| at(point.step)).collect(),
            at_evaluations: self.evaluations.iter().map(|e| at(e.step)).collect(),
        })
    }

    /// The training loss, a running mean over the points around each: on either side as many at most as lie before
    /// it, for at the beginning the loss falls fast. One batch's loss is no loss of a run.
    pub fn smooth_losses(&self) -> impl Iterator<Item = f64> {
        let last = self.losses.len().saturating_sub(1);
        (0..self.losses.len()).map(move |i| {
            let around = AROUND.min(i);
            self.mean_loss(i - around..(i + around).min(last) + 1)
        })
    }

    /// The training loss over the last tenth of the points.
    pub fn last_loss(&self) -> Option<f64> {
        let count = self.losses.len();
        (count > 0).then(|| self.mean_loss(count - count.div_ceil(10)..count))
    }

    /// The mean loss of these points, each weighted by the steps since the one before it: the last point of a run may
    /// be a single step, whose batch may be the short rest of an epoch.
    fn mean_loss(&self, points: Range<usize>) -> f64 {
        let (mut sum, mut steps) = (0.0, 0.0);
        for i in points {
            let before = i.checked_sub(1).map_or(0, |before| self.losses[before].step);
            let since = self.losses[i].step.saturating_sub(before) as f64;
            sum += since * self.losses[i].loss;
            steps += since;
        }
        sum / steps
    }

    /// The first evaluation that found at least `accuracy`.
    pub fn reaches_accuracy(&self, accuracy: f64) -> Option<usize> {
        self.evaluations.iter().position(|e| e.accuracy >= accuracy)
    }
}

/// What a record's events say, until they are sorted out.
#[derive(Default)]
struct Notes {
    started: Started,
    steps: Vec<Step>,
    /// Bytes one rank has sent by the end of each of the steps.
    sent: Vec<f64>,
    /// What one rank, and all ranks, had sent before the present number of workers, and that number.
    before: Before,
    evaluations: Vec<Evaluation>,
    /// Seconds of the steps and evaluations of the epochs so far.
    seconds: f64,
    summary: Summary,
}

/// What had been sent when a process began, and by how many workers it went on.
#[derive(Clone, Copy, Default)]
struct Before {
    one: f64,
    all: f64,
    workers: usize,
}

impl Before {
    /// Bytes one rank has sent when all ranks have sent so many.
    fn sent(self, all: u64) -> f64 {
        self.one + (all as f64 - self.all) / self.workers.max(1) as f64
    }
}

impl Notes {
    fn take(&mut self, event: &Event) {
        self.summary.observe(event);
        match &event.kind {
            Kind::Started(started) => {
                self.go_on(started);
                if self.started.steps == 0 {
                    self.started = started.clone();
                }
            }
            // What is not finite is left out: JSON has no number for it, and results that have it could not be read again.
            Kind::Step(step) if step.loss.is_finite() => {
                self.sent.push(self.before.sent(step.wire_bytes_total));
                self.steps.push(step.clone());
            }
            Kind::Epoch(epoch) => {
                let bytes = self.sent.last().copied().unwrap_or(0.0);
                self.seconds += epoch.seconds + epoch.evaluation_seconds;
                let accuracy = epoch.test_accuracy.filter(|accuracy| accuracy.is_finite());
                self.evaluations.extend(accuracy.map(|accuracy| Evaluation {
                    step: epoch.step,
                    accuracy,
                    loss: epoch.test_loss,
                    bytes,
                    seconds: Some(self.seconds),
                }));
            }
            // The summary of a whole run knows the steps that were not recorded, too.
            Kind::Finished(finished) => self.summary = finished.summary.clone(),
            _ => {}
        }
    }

    /// A process begins. What all ranks have sent until then, in older records until the last recorded step, is shared by
    /// the former ranks, and the rest by as many as it has.
    fn go_on(&mut self, started: &Started) {
        let recorded = || self.steps.last().map_or(0, |last| last.wire_bytes_total);
        let all = started.wire_bytes_total.unwrap_or_else(recorded);
        let one = self.before.sent(all);
        self.before = Before { one, all: all as f64, workers: started.workers };
    }
}

/// Consecutive recorded steps, in at most [`POINTS`] groups.
fn groups(steps: &[Step]) -> impl Iterator<Item = &[Step]> {
    steps.chunks(steps.len().div_ceil(POINTS).max(1))
}

fn losses(steps: &[Step], sent: &[f64]) -> Vec<Loss> {
    let mut end = 0;
    let point = |group: &[Step]| {
        end += group.len();
        let (last, loss) = (group.last()?, mean(group.iter().map(|step| step.loss))?);
        Some(Loss { step: last.step, loss, bytes: *sent.get(end - 1)? })
    };
    groups(steps).filter_map(point).collect()
}

/// The gauges of a step, the bits per parameter among them.
fn gauges_of(step: &Step) -> impl Iterator<Item = (&str, f64)> {
    let gauges = step.gauges.iter().map(|(name, value)| (name.as_str(), *value));
    // Steps of a round that send nothing have none: the one at its end has the mean over the round.
    let bits = (step.wire_bytes > 0.0).then_some(("bits_per_parameter", step.bits_per_parameter));
    gauges.chain(bits).chain(step.residual_norm.map(|norm| ("residual_norm", norm)))
}

/// The values of each gauge over these steps.
fn by_gauge(steps: &[Step]) -> BTreeMap<&str, Vec<f64>> {
    let mut values: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (name, value) in steps.iter().flat_map(gauges_of) {
        values.entry(name).or_default().push(value);
    }
    values
}

/// The curves of the gauges. What is not finite is left out: JSON has no number for it, and a run that
/// has it could not be read again.
fn gauges(steps: &[Step]) -> BTreeMap<String, Vec<(u64, f64)>> {
    let mut gauges: BTreeMap<String, Vec<(u64, f64)>> = BTreeMap::new();
    for group in groups(steps) {
        let last = group.last().map_or(0, |step| step.step);
        for (name, values) in by_gauge(group) {
            if let Some(value) = mean(values.into_iter()).filter(|value| value.is_finite()) {
                gauges.entry(name.into()).or_default().push((last, value));
            }
        }
    }
    gauges
}

/// Mean and deviation of each gauge that has them, likewise.
fn gauge_means(steps: &[Step]) -> BTreeMap<String, SampleMoments> {
    let values = by_gauge(steps).into_iter();
    let means = values.map(|(name, values)| (name.to_string(), SampleMoments::new(&values)));
    means.filter(|(_, of)| of.mean.is_finite() && of.deviation.is_finite()).collect()
}

/// The work of a step: medians over all steps, or in rounds of local steps means.
fn work(rows: &[&Row], in_rounds: bool) -> Work {
    const SECOND: f64 = 1e-9;
    fn sum<'a>(nanoseconds: impl Iterator<Item = &'a u64>) -> f64 {
        nanoseconds.map(|spent| *spent as f64).sum()
    }
    let typical = |of: fn(&Row) -> f64| {
        let seconds = rows.iter().map(|row| of(row) * SECOND / row.compute.len().max(1) as f64);
        if in_rounds { mean(seconds) } else { median(seconds) }.unwrap_or(0.0)
    };
    Work {
        compute: typical(|row| sum(row.compute.iter().flatten())),
        encode: typical(|row| sum(row.encode.iter().flatten())),
        decode: typical(|row| sum(row.decode.iter().flatten().chain(&row.learn))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(workers: usize, wire_bytes_total: Option<u64>) -> Event {
        Event::from(Started { workers, wire_bytes_total, steps: 40, ..Started::default() })
    }

    fn step(step: u64, wire_bytes: f64, wire_bytes_total: u64) -> Event {
        Event::from(Step { step, wire_bytes, wire_bytes_total, ..Step::default() })
    }

    /// Eight ranks send 100 bytes a step each, then two do. Steps are recorded by tens; the run goes on
    /// after step 15.
    #[test]
    fn bytes_of_a_rank_add_up_over_numbers_of_workers() {
        let mut notes = Notes::default();
        let epoch = Event::from(gradwire::record::Epoch {
            step: 30,
            test_accuracy: Some(0.5),
            ..Default::default()
        });
        for event in [
            started(8, Some(0)),
            step(10, 100.0, 8_000),
            started(2, Some(12_000)),
            step(20, 100.0, 12_000 + 1_000),
            step(30, 100.0, 12_000 + 3_000),
            epoch,
        ] {
            notes.take(&event);
        }
        assert_eq!(notes.sent, [1000.0, 2000.0, 3000.0]);
        assert_eq!(notes.evaluations[0].bytes, 3000.0);
        let points = losses(&notes.steps, &notes.sent);
        assert_eq!(points.iter().map(|point| point.bytes).collect::<Vec<_>>(), notes.sent);

        // An older record does not say what was sent after the last recorded step: the new ranks are charged with it.
        let mut notes = Notes::default();
        for event in
            [started(8, None), step(10, 100.0, 8_000), started(2, None), step(20, 100.0, 13_000)]
        {
            notes.take(&event);
        }
        assert_eq!(notes.sent, [1000.0, 1000.0 + 2500.0]);
    }

    /// Of 401 recorded steps the last is a point of its own: one batch, where the others are of five.
    #[test]
    fn a_point_counts_by_its_steps() {
        let loss = |(step, loss)| Loss { step, loss, bytes: 0.0 };
        let points = [(50, 4.0), (100, 2.0), (150, 1.0), (160, 7.0)];
        let measured = Measured { losses: points.map(loss).to_vec(), ..Measured::default() };
        let smooth: Vec<f64> = measured.smooth_losses().collect();
        assert_eq!(smooth[..2], [4.0, 7.0 / 3.0]);
        assert_eq!(smooth[2..], [(350.0 + 70.0) / 160.0; 2]);
        assert_eq!(measured.last_loss(), Some(7.0));
        assert_eq!(Measured::default().last_loss(), None);
    }

    /// In rounds of two steps one of them encodes, for both.
    #[test]
    fn in_rounds_the_work_is_a_mean_and_silent_steps_have_no_bits() {
        let row = |up: &[u64]| Row {
            compute: vec![[1, 2, 3, 4]; 2],
            encode: vec![up.iter().map(|_| 6_000_000_000).collect(); 2],
            up: vec![up.to_vec(); 2],
            ..Row::default()
        };
        let (silent, sends) = (row(&[]), row(&[8]));
        let rows = [&silent, &sends, &silent];
        assert_eq!([false, true].map(|in_rounds| work(&rows, in_rounds).encode), [0.0, 2.0]);
        let step = |wire_bytes, bits_per_parameter| Step {
            wire_bytes,
            bits_per_parameter,
            ..Step::default()
        };
        let means = gauge_means(&[step(0.0, 0.0), step(8.0, 2.0), step(0.0, 0.0)]);
        assert_eq!(means["bits_per_parameter"].mean, 2.0);
    }

    /// A residual may overflow before the run diverges.
    #[test]
    fn what_was_measured_can_be_read_again() {
        let step = |step: u64, norm: f64| Step {
            step,
            residual_norm: Some(norm),
            gauges: vec![("kept_ratio".into(), 1.0)],
            ..Step::default()
        };
        let steps = [step(1, 2.0), step(2, f64::INFINITY), step(3, f64::NAN)];
        let measured = Measured {
            gauges: gauges(&steps),
            gauge_means: gauge_means(&steps),
            ..Measured::default()
        };
        assert_eq!(measured.gauges["residual_norm"], [(1, 2.0)]);
        assert_eq!(measured.gauges["kept_ratio"].len(), 3);
        assert_eq!(
            (measured.gauge("residual_norm"), measured.gauge("kept_ratio")),
            (None, Some(1.0))
        );
        let json = serde_json::to_string(&measured).unwrap();
        assert_eq!(serde_json::from_str::<Measured>(&json).unwrap(), measured);
    }
}
