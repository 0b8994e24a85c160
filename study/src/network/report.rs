//! What replays come to: figures, lines to be drawn, and curves for TensorBoard.

use super::replay::{Replayed, Run};
use gradwire::record::replay::{Curves, Point};
use gradwire_exchange::network::{Link, Pattern};
use serde::Serialize;

/// A link, and the word it was asked for by.
pub type Named = (String, Link);

/// Several runs on several links.
pub struct Report<'a> {
    /// The runs.
    pub runs: &'a [Run],
    /// The links.
    pub links: &'a [Named],
    /// Of each run, its replays by link.
    replayed: Vec<Vec<Replayed>>,
    /// Accuracies that all runs reached, in ascending order.
    pub targets: Vec<f64>,
}

/// A line to be drawn.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it is of.
    pub name: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// One run on one link, in figures.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// The run.
    pub run: String,
    /// Its scheme.
    pub scheme: String,
    /// The link's word.
    pub link: String,
    /// Bits per second.
    pub bandwidth: f64,
    /// How messages travelled.
    pub pattern: &'static str,
    /// World size.
    pub ranks: usize,
    /// Steps of the run.
    pub steps: usize,
    /// Median seconds of a step.
    pub step_seconds: f64,
    /// Median seconds of a step that the link cost.
    pub exposed_seconds: f64,
    /// Seconds of all steps; evaluations are not charged.
    pub total_seconds: f64,
    /// Seconds that the link cost in all steps.
    pub total_exposed_seconds: f64,
    /// Accuracy, and the seconds until an evaluation found it.
    pub to_accuracy: Vec<(f64, Option<f64>)>,
    /// Of each evaluation: seconds, step, accuracy.
    pub evaluations: Vec<(f64, u64, f64)>,
}

impl<'a> Report<'a> {
    /// A report over `runs`, each replayed over each of `links`, for the accuracies `targets`; if
    /// there are none, for three that all runs reached.
    pub fn new(
        runs: &'a [Run],
        links: &'a [Named],
        replayed: Vec<Vec<Replayed>>,
        targets: Vec<f64>,
    ) -> Self {
        let targets = if targets.is_empty() { reached_by_all(runs) } else { targets };
        Self { runs, links, replayed, targets }
    }

    /// Every run on every link.
    pub fn figures(&self) -> Vec<Figures> {
        let of = |run: &Run, replays: &[Replayed]| -> Vec<Figures> {
            let each = replays.iter().zip(self.links);
            each.map(|(replay, (word, _))| self.of(run, replay, word)).collect()
        };
        self.runs.iter().zip(&self.replayed).flat_map(|(run, replays)| of(run, replays)).collect()
    }

    fn of(&self, run: &Run, replay: &Replayed, word: &str) -> Figures {
        let median = replay.median();
        let evaluations = run.evaluations.iter();
        Figures {
            run: run.name(),
            scheme: run.header.scheme.clone(),
            link: word.to_string(),
            bandwidth: replay.link.bandwidth,
            pattern: name(replay.pattern),
            ranks: run.header.ranks,
            steps: replay.steps.len(),
            step_seconds: median.seconds,
            exposed_seconds: median.exposed,
            total_seconds: replay.seconds(),
            total_exposed_seconds: replay.exposed(),
            to_accuracy: self.targets.iter().map(|a| (*a, replay.seconds_to(run, *a))).collect(),
            evaluations: evaluations.map(|e| (replay.at(e.step), e.step, e.accuracy)).collect(),
        }
    }

    /// The runs by the names of their schemes, or by their folders where these are the same.
    pub fn names(&self) -> Vec<String> {
        let scheme =
            |run: &Run| run.header.scheme.split([' ', '(']).next().unwrap_or("").to_string();
        let name = |run: &Run| {
            let alike = self.runs.iter().filter(|other| scheme(other) == scheme(run)).count();
            if alike > 1 { run.name() } else { scheme(run) }
        };
        self.runs.iter().map(name).collect()
    }

    /// Accuracy against virtual seconds, a line for each link; of the run of this number.
    pub fn accuracies(&self, number: usize) -> Vec<Line> {
        let run = &self.runs[number];
        let line = |(replay, (word, _)): (&Replayed, &Named)| Line {
            name: word.clone(),
            points: run.evaluations.iter().map(|e| (replay.at(e.step), e.accuracy)).collect(),
        };
        self.replayed[number].iter().zip(self.links).map(line).collect()
    }

    /// Seconds to the accuracy `target` against bandwidth in bits per second, a line for each run.
    pub fn times_to(&self, target: f64) -> Vec<Line> {
        let line = |((run, replays), name): ((&Run, &Vec<Replayed>), String)| {
            let point =
                |replay: &Replayed| Some((replay.link.bandwidth, replay.seconds_to(run, target)?));
            let mut points: Vec<_> = replays.iter().filter_map(point).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Line { name, points }
        };
        self.runs.iter().zip(&self.replayed).zip(self.names()).map(line).collect()
    }

    /// Curves against virtual time for TensorBoard, one for each link; of the run of this number.
    pub fn curves(&self, number: usize) -> Vec<Curves> {
        let run = &self.runs[number];
        let curve = |(replay, name): (&Replayed, String)| {
            let mut points = Vec::new();
            for (step, loss) in &run.losses {
                add(&mut points, replay.at(*step), *step, [("Train", "loss", *loss)]);
            }
            if !run.evaluations.is_empty() {
                // TensorBoard's relative axis counts from a curve's first point: one at 0 s, of
                // which nothing is known.
                add(&mut points, 0.0, 0, [("Test", "accuracy", f64::NAN)]);
            }
            for e in &run.evaluations {
                let loss = e.loss.map(|loss| ("Test", "loss", loss));
                let values = [Some(("Test", "accuracy", e.accuracy)), loss];
                add(&mut points, replay.at(e.step), e.step, values.into_iter().flatten());
            }
            points.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
            Curves { name, began: run.started, points }
        };
        self.replayed[number].iter().zip(folders(self.links)).map(curve).collect()
    }
}

/// The most characters of a link's word in the name of a folder.
const LONGEST: usize = 60;

/// What the folders of the links' curves are called: by their words, in characters that file systems
/// take. A number tells words apart that would become the same.
fn folders(links: &[Named]) -> Vec<String> {
    let plain = |c: char| if c.is_alphanumeric() || c == '.' { c } else { '-' };
    let mut names: Vec<String> = Vec::new();
    for (word, _) in links {
        let name: String = word.chars().take(LONGEST).map(plain).collect();
        let mut free = name.clone();
        let mut number = 1;
        while names.contains(&free) {
            number += 1;
            free = format!("{name}-{number}");
        }
        names.push(free);
    }
    names
}

/// Adds the values at a step twice: under their own tags at the step, and under `virtual_ms/` where
/// milliseconds take the step's place, for a look without changing TensorBoard's axis.
fn add(
    points: &mut Vec<Point>,
    seconds: f64,
    step: u64,
    values: impl IntoIterator<Item = (&'static str, &'static str, f64)>,
) {
    let (mut by_step, mut by_time) = (Vec::new(), Vec::new());
    for (group, name, value) in values {
        by_step.push((format!("{group}/{name}"), value));
        if !value.is_nan() {
            by_time.push((format!("virtual_ms/{group}_{name}").to_lowercase(), value));
        }
    }
    // A cast from f64 saturates.
    let milliseconds = (seconds * 1e3).round() as u64;
    points.push(Point { seconds, step, values: by_step });
    points.push(Point { seconds, step: milliseconds, values: by_time });
}

/// A whole percentage that every run reached, and about three quarters and a half of it.
fn reached_by_all(runs: &[Run]) -> Vec<f64> {
    let best = runs.iter().map(Run::best_accuracy).collect::<Option<Vec<f64>>>();
    let Some(least) = best.and_then(|best| best.into_iter().reduce(f64::min)) else {
        return Vec::new();
    };
    let whole = |share: f64| (least * share * 100.0 + 1e-9).floor() / 100.0;
    let mut targets = vec![whole(0.5), whole(0.75), whole(1.0)];
    targets.dedup();
    targets.retain(|target| *target > 0.0);
    targets
}

/// A pattern in words.
fn name(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::RingAllgather => "ring allgather",
        Pattern::RingAllreduce => "ring allreduce",
        Pattern::Server => "server",
        Pattern::Sharded => "sharded",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_curves_have_names_of_their_own_that_are_not_too_long() {
        let long = |end: &str| format!("{{ preset = \"wan\",{}mtu = {end} }}", " ".repeat(300));
        let words = ["1gbit,latency=1ms".to_string(), long("1500"), long("9000"), "ä".repeat(300)];
        let links = words.map(|word| (word, Link::with_bandwidth(1e9)));
        let names = folders(&links);
        assert_eq!(names[0], "1gbit-latency-1ms");
        assert_eq!(names[2], format!("{}-2", names[1]));
        assert!(names.iter().all(|name| name.len() <= 255), "{names:?}");
    }
}
