//! What replays come to: figures and a table.

use super::replay::{RecordedRun, Replayed};
use gradwire::record::network::{Header, Meter};
use gradwire::text::{Column, Table, duration, percent, percent_to};
use gradwire_exchange::network::{Link, Pattern};
use serde::Serialize;

/// A link, and the word by which it was asked for.
pub type NamedLink = (String, Link);

/// Several runs on several links.
pub struct ReplayReport<'a> {
    runs: &'a [RecordedRun],
    links: &'a [NamedLink],
    /// Of each run, its replays by link.
    replayed: Vec<Vec<Replayed>>,
    /// Accuracies that all runs reached, in ascending order.
    targets: Vec<f64>,
}

/// One run on one link, in figures.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    run: String,
    scheme: String,
    /// The link's word.
    link: String,
    /// Bits per second.
    bandwidth: f64,
    /// How messages travelled.
    pattern: &'static str,
    ranks: usize,
    steps: usize,
    /// Median seconds of a step; in rounds of local steps the mean.
    step_seconds: f64,
    /// The same of what the link cost.
    exposed_seconds: f64,
    /// Seconds of all steps; evaluations are not charged.
    total_seconds: f64,
    /// Seconds that the link cost in all steps.
    total_exposed_seconds: f64,
    /// Accuracies, and the seconds until an evaluation found each.
    to_accuracy: Vec<(f64, Option<f64>)>,
    /// Seconds, step and accuracy of each evaluation.
    evaluations: Vec<(f64, u64, f64)>,
    /// Seconds, step and training loss of each recorded step.
    losses: Vec<(f64, u64, f64)>,
}

impl<'a> ReplayReport<'a> {
    /// A report over `runs`, each replayed over each of `links`, for the accuracies `targets`; if
    /// there are none, for three that all runs reached.
    pub fn new(
        runs: &'a [RecordedRun],
        links: &'a [NamedLink],
        replayed: Vec<Vec<Replayed>>,
        targets: Vec<f64>,
    ) -> Self {
        let targets = if targets.is_empty() { reached_by_all(runs) } else { targets };
        Self { runs, links, replayed, targets }
    }

    /// Every run on every link.
    pub fn figures(&self) -> Vec<Figures> {
        let runs = self.runs.iter().zip(&self.replayed);
        let pairs = runs.flat_map(|(run, replays)| {
            replays.iter().zip(self.links).map(move |(replay, (word, _))| (run, replay, word))
        });
        pairs.map(|(run, replay, word)| self.figures_of(run, replay, word)).collect()
    }

    fn figures_of(&self, run: &RecordedRun, replay: &Replayed, word: &str) -> Figures {
        let typical = replay.typical();
        let evaluations = run.evaluations.iter();
        Figures {
            run: run.name(),
            scheme: run.header.scheme.clone(),
            link: word.to_string(),
            bandwidth: replay.link.bandwidth,
            pattern: match replay.pattern {
                Pattern::RingAllgather => "ring allgather",
                Pattern::RingAllreduce => "ring allreduce",
                Pattern::Server => "server",
                Pattern::Sharded => "sharded",
                Pattern::TwoLevel { .. } => "two levels",
            },
            ranks: run.header.ranks,
            steps: replay.steps.len(),
            step_seconds: typical.seconds,
            exposed_seconds: typical.exposed,
            total_seconds: replay.seconds(),
            total_exposed_seconds: replay.exposed(),
            to_accuracy: self.targets.iter().map(|a| (*a, replay.seconds_to(run, *a))).collect(),
            evaluations: evaluations.map(|e| (replay.at(e.step), e.step, e.accuracy)).collect(),
            losses: run
                .losses
                .iter()
                .map(|(step, loss)| (replay.at(*step), *step, *loss))
                .collect(),
        }
    }

    /// The figures of each run as a table, and where there are several, the time that each takes to the
    /// highest of the accuracies.
    pub fn table(&self) -> String {
        let figures = self.figures();
        let mut text = String::new();
        for (run, rows) in self.runs.iter().zip(figures.chunks(self.links.len().max(1))) {
            let Some(Figures { run: name, scheme, steps, pattern, .. }) = rows.first() else {
                continue;
            };
            let ranks = over_stretches(run, |header| header.ranks.to_string());
            let meter = over_stretches(run, |header| meter_in_words(header.clock).to_string());
            text += &format!("{name}: {scheme}, {ranks} ranks, {steps} steps, {pattern}\n");
            text += &format!("computing: {meter}\n{}\n", self.table_of_run(rows));
        }
        match self.targets.last() {
            Some(target) if self.runs.len() > 1 => text + &self.comparison(&figures, *target),
            _ => text,
        }
    }

    fn table_of_run(&self, rows: &[Figures]) -> Table {
        let titles = ["per step", "exposed", "share"].map(String::from).into_iter();
        let targets = self.targets.iter().map(|target| format!("to {}", percent(*target)));
        let titles = titles.chain(targets).chain(["all steps".into()]);
        let link = Column::left("link").at_least(9);
        let mut table = Table::new([link].into_iter().chain(titles.map(Column::right)));
        for row in rows {
            let share =
                if row.step_seconds > 0.0 { row.exposed_seconds / row.step_seconds } else { 0.0 };
            let times = [row.step_seconds, row.exposed_seconds].map(duration).into_iter();
            let share = percent_to(share, 0);
            let reached = row.to_accuracy.iter().map(|(_, seconds)| or_never(*seconds));
            let cells = [row.link.clone()].into_iter().chain(times).chain([share]).chain(reached);
            table.row(cells.chain([duration(row.total_seconds)]));
        }
        table
    }

    fn comparison(&self, figures: &[Figures], target: f64) -> String {
        let runs = self.names().into_iter().map(Column::right);
        let mut table = Table::new([Column::left("link")].into_iter().chain(runs));
        for (link, (word, _)) in self.links.iter().enumerate() {
            let rows = figures.iter().skip(link).step_by(self.links.len());
            let times = rows.map(|row| or_never(row.to_accuracy.last().and_then(|(_, s)| *s)));
            table.row([word.clone()].into_iter().chain(times));
        }
        format!("time to {} on the test set\n{table}", percent(target))
    }

    /// The runs by the names of their schemes, or by their folders where these are the same.
    fn names(&self) -> Vec<String> {
        let scheme = |run: &RecordedRun| {
            run.header.scheme.split([' ', '(']).next().unwrap_or("").to_string()
        };
        let name = |run: &RecordedRun| {
            let alike = self.runs.iter().filter(|other| scheme(other) == scheme(run)).count();
            if alike > 1 { run.name() } else { scheme(run) }
        };
        self.runs.iter().map(name).collect()
    }
}

fn or_never(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "never".into(), duration)
}

/// What holds in each stretch of a run, one after the other where it changes.
fn over_stretches(run: &RecordedRun, of: impl Fn(&Header) -> String) -> String {
    let mut all: Vec<String> = run.stretches.iter().map(|stretch| of(&stretch.header)).collect();
    all.dedup();
    all.join(", later ")
}

fn meter_in_words(meter: Meter) -> &'static str {
    match meter {
        Meter::Cpu => "each worker's own processor time",
        Meter::Wall => {
            "the time that passed, because workers have several threads or a device; encoding and \
             decoding by their thread's processor time"
        }
    }
}

/// A whole percentage that every run reached, and about three quarters and a half of it.
fn reached_by_all(runs: &[RecordedRun]) -> Vec<f64> {
    let best = runs.iter().map(RecordedRun::best_accuracy).collect::<Option<Vec<f64>>>();
    let Some(least) = best.and_then(|best| best.into_iter().reduce(f64::min)) else {
        return Vec::new();
    };
    let whole = |share: f64| (least * share * 100.0 + 1e-9).floor() / 100.0;
    let mut targets = vec![whole(0.5), whole(0.75), whole(1.0)];
    targets.dedup();
    targets.retain(|target| *target > 0.0);
    targets
}
