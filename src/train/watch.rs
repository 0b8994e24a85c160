//! The watch over the workers: who is at work, who shows no progress, what went wrong first.

use crate::cluster::{ControlMessage, Job, decode};
use crate::text::duration;
use crate::train::failure::{Failure, RunFailure};
use crate::train::position::{LivePosition, Phase, Position};
use crate::train::relay::WorkerMessage;
use crate::train::report::Report;
use crate::train::session::Session;
use anyhow::{Context, Result, anyhow, ensure};
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest that workers have to stop by themselves after the first failure.
const GRACE: Duration = Duration::from_secs(10);

/// Longer than this thread is ever busy, but where the disk or the machine keeps it waiting.
const GAP: Duration = Duration::from_secs(5);

/// How long after it was asked for the end a process may wait for another before that is told: less
/// than launchers wait before they kill.
const SUSPECT: Duration = Duration::from_millis(300);

/// Watches over the workers of this process; in process 0 it also hears of the others'.
pub(super) struct Watch<'a> {
    job: &'a Job,
    session: Arc<Session>,
    /// The ranks of this process.
    ranks: Range<usize>,
    patience: Duration,
    /// By rank, from this process's first on.
    workers: Vec<Watched>,
    /// Where the workers of other processes were when they last told, by rank.
    elsewhere: Vec<Position>,
    /// Of each process, whether nothing more will come from it.
    told: Vec<bool>,
    failures: Vec<Failure>,
    /// Where all were when the first failure was heard of, by rank.
    positions: Vec<Position>,
    /// Until when those that are still at work may stop by themselves.
    deadline: Option<Instant>,
    /// Since when all of this process have ended and others have not.
    ended: Option<Instant>,
    /// Since when the end has been asked for; whether what that may mean has been told.
    asked: (Option<Instant>, bool),
    /// When this thread last looked around, and since when it has done so without a gap: while a process is stopped,
    /// as by Ctrl-Z, nobody shows progress.
    awake: (Instant, Instant),
}

struct Watched {
    position: LivePosition,
    /// Absent when it has ended.
    thread: Option<JoinHandle<()>>,
    /// Whether its silence has been told of.
    warned: bool,
}

impl<'a> Watch<'a> {
    /// A watch over nobody yet.
    pub(super) fn new(job: &'a Job, session: Arc<Session>) -> Result<Self> {
        let recipe = &session.recipe;
        let workers = job.workers(recipe)?;
        let first = job.process;
        // Who follows waits for nobody's word.
        let told = (0..job.processes).map(|process| process == 0 || !job.leads()).collect();
        Ok(Self {
            job,
            ranks: first..first + workers,
            patience: Duration::from_secs_f64(recipe.exchange.timeout),
            workers: Vec::new(),
            elsewhere: vec![Position::start(); recipe.workers],
            told,
            session,
            failures: Vec::new(),
            positions: Vec::new(),
            deadline: None,
            ended: None,
            asked: (None, false),
            awake: (Instant::now(), Instant::now()),
        })
    }

    /// The worker of the next rank begins.
    pub(super) fn add(&mut self, position: LivePosition, thread: JoinHandle<()>) {
        self.workers.push(Watched { position, thread: Some(thread), warned: false });
    }

    /// Whether somebody is at work who may still be waited for.
    pub(super) fn goes_on(&mut self) -> bool {
        self.look_around();
        (self.is_at_work() || self.told.contains(&false))
            && self.deadline.is_none_or(|deadline| Instant::now() < deadline)
    }

    /// Notices whether this thread, and with it the process, has been away for a while.
    fn look_around(&mut self) {
        let now = Instant::now();
        if now - self.awake.0 > GAP.min(self.patience / 2) {
            self.awake.1 = now;
        }
        self.awake.0 = now;
    }

    fn is_at_work(&self) -> bool {
        self.workers.iter().any(|worker| worker.thread.is_some())
    }

    /// A worker of this process has ended.
    pub(super) fn end(&mut self, rank: usize, failure: Option<Failure>) {
        if let Some(thread) = self.workers[rank - self.ranks.start].thread.take() {
            // It has nothing left to do but to end; and it cannot panic any more.
            let _ = thread.join();
        }
        if let Some(failure) = failure {
            self.fail(failure);
        }
    }

    /// Another process has written: its workers' reports, or how they ended.
    pub(super) fn hear(&mut self, from: usize, message: &[u8]) -> Option<Report> {
        match self.read(from, message) {
            Ok(report) => report,
            Err(error) => {
                let position = self.elsewhere.get(from).copied().unwrap_or_else(Position::start);
                self.fail(Failure::new(from, position, error));
                None
            }
        }
    }

    fn read(&mut self, from: usize, message: &[u8]) -> Result<Option<Report>> {
        let whose = || format!("a message of process {from}");
        // Other messages belong before the run's beginning and after its end.
        let ControlMessage::Report(report) = decode(message).with_context(whose)? else {
            return Ok(None);
        };
        match decode(&report.0).with_context(whose)? {
            WorkerMessage::Report(report) => {
                let rank = match &report {
                    Report::Step(step) => step.rank,
                    Report::Part(part) => part.rank,
                    _ => from,
                };
                ensure!(
                    rank == from && self.job.leads(),
                    "process {from} reports of worker {rank}"
                );
                if let Report::Step(step) = &report {
                    step.check()?;
                    self.elsewhere[rank] = Position::at(step.step + 1, Phase::Unreported);
                }
                return Ok(Some(report));
            }
            WorkerMessage::Failed(reports) => {
                reports.into_iter().for_each(|report| self.fail(report.into()));
            }
            WorkerMessage::Done => {}
        }
        self.told[from] = true;
        Ok(None)
    }

    fn fail(&mut self, failure: Failure) {
        if self.failures.is_empty() {
            self.positions.clone_from(&self.elsewhere);
            for (rank, worker) in self.ranks.clone().zip(&self.workers) {
                self.positions[rank] = worker.position.get();
            }
        }
        self.failures.push(failure);
        self.last_call();
    }

    /// From now on those at work have only a short while.
    pub(super) fn last_call(&mut self) {
        let grace = self.patience.min(GRACE);
        self.deadline.get_or_insert_with(|| Instant::now() + grace);
    }

    /// Looks after those at work: tells of one that others have waited for half their patience,
    /// and gives up one that shows no progress for longer than anybody would wait in an exchange.
    pub(super) fn look(&mut self) -> Option<Report> {
        self.look_around();
        if self.deadline.is_some() {
            return None;
        }
        if !self.is_at_work() {
            self.look_elsewhere();
            return None;
        }
        if let Some(suspicion) = self.suspect() {
            return Some(suspicion);
        }
        let positions: Vec<_> = self.workers.iter().map(|worker| worker.position.get()).collect();
        let at_work = |seat: &usize| self.workers[*seat].thread.is_some();
        let silence = |position: &Position| position.elapsed().min(self.awake.1.elapsed());
        let silent = (0..positions.len()).filter(at_work);
        let seat = silent.max_by_key(|seat| {
            // Those in an exchange, overlapped or not, wait for another, unless all do.
            let exchanges = [Phase::Exchange, Phase::OverlappedExchange];
            (!exchanges.contains(&positions[*seat].phase), silence(&positions[*seat]))
        })?;
        let (rank, position) = (self.ranks.start + seat, positions[seat]);
        let silent = silence(&position);
        // Who waits in the exchange may do so for longer, and knows better.
        let limit = self.patience.mul_f64(if self.job.is_shared() { 3.0 } else { 1.5 });
        if silent > limit {
            self.fail(Failure::stall(rank, position, limit));
            return None;
        }
        let worker = &mut self.workers[seat];
        if silent < self.patience / 2 {
            worker.warned = false;
            return None;
        }
        if std::mem::replace(&mut worker.warned, true) {
            return None;
        }
        let others = others(self.ranks.start, &positions, seat);
        let waiting = self.awaited().map(|it| format!("; waiting for {it}")).unwrap_or_default();
        let message = format!(
            "worker {rank} shows no progress: {position}, for {}; the others: {others}{waiting}",
            duration(silent.as_secs_f64()),
        );
        Some(Report::Warning(Some(position.step), message))
    }

    /// All of this process have ended: gives up a process that does not tell how it ended.
    fn look_elsewhere(&mut self) {
        let since = *self.ended.get_or_insert_with(Instant::now);
        let limit = self.patience.mul_f64(1.5);
        let Some(process) = self.told.iter().position(|told| !told) else { return };
        if since.elapsed() > limit {
            let limit = duration(limit.as_secs_f64());
            let error = anyhow!("the process has not told its end for {limit}");
            self.fail(Failure::new(process, self.elsewhere[process], error));
        }
    }

    /// The process that this one's workers wait for, in words.
    fn awaited(&self) -> Option<String> {
        self.job.whereabouts(self.job.awaited()?)
    }

    /// Launchers end a whole job when one of its processes has died, by a signal and soon after by
    /// a harder one: a process that is asked for the end while it waits for another says so before
    /// it is too late.
    fn suspect(&mut self) -> Option<Report> {
        if !self.job.is_shared() || !self.job.leads() || !self.session.requests.stopping() {
            return None;
        }
        let asked = *self.asked.0.get_or_insert_with(Instant::now);
        if self.asked.1 || asked.elapsed() < SUSPECT {
            return None;
        }
        let awaited = self.awaited()?;
        self.asked.1 = true;
        let position = self.workers.first()?.position.get();
        let message = format!(
            "the end was asked for while the workers here are at {position}, waiting for {awaited}: a \
             launcher ends a job like that when one of its processes has died; if it does, the last \
             checkpoint can be gone on from"
        );
        Some(Report::Warning(Some(position.step), message))
    }

    /// Leaves behind those whose threads have not stopped; a warning for each.
    pub(super) fn left_behind(&self) -> Vec<Report> {
        let at_work = self.ranks.clone().zip(&self.workers).filter(|(_, w)| w.thread.is_some());
        at_work
            .map(|(rank, worker)| {
                worker.position.abandon();
                let position = worker.position.get();
                let since = duration(position.elapsed().as_secs_f64());
                let message =
                    format!("worker {rank} has not stopped: {position}, for {since}; left behind");
                Report::Warning(Some(position.step), message)
            })
            .collect()
    }

    /// How the workers of this process have ended, for process 0.
    pub(super) fn report(&self) -> WorkerMessage {
        match &self.failures[..] {
            [] => WorkerMessage::Done,
            failures => WorkerMessage::Failed(failures.iter().map(Into::into).collect()),
        }
    }

    /// The first cause of all failures.
    pub(super) fn first_cause(self) -> Option<RunFailure> {
        let mut first = RunFailure::first(self.failures, &self.positions)?;
        first.whereabouts = self.job.whereabouts(first.rank);
        Some(first)
    }
}

/// Where all of these workers but one are.
fn others(first: usize, positions: &[Position], but: usize) -> String {
    let others = positions.iter().enumerate().filter(|(seat, _)| *seat != but);
    let words: Vec<_> = others
        .map(|(seat, position)| {
            let since = duration(position.elapsed().as_secs_f64());
            format!("worker {} in {position} for {since}", first + seat)
        })
        .collect();
    if words.is_empty() { "none".into() } else { words.join("; ") }
}
