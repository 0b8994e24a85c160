//! Faults on purpose: `--inject "panic:worker=2,step=40; kill:step=80"`.
//!
//! What a run survives can be tried out, by people and by tests, with the same words. Each fault
//! happens once, at the place that it names, the same on every run; a run that is restarted in the
//! same process does not meet it again.

use crate::disk::{self, Operation};
use crate::recipe::nearest;
use crate::train::position::LivePosition;
use anyhow::{Context, Result, anyhow, bail, ensure};
use gradwire_exchange::wire::Reader;
use gradwire_exchange::wire::frame::Frame;
use gradwire_exchange::{self as exchange, Collective, Payload};
use signal_hook::consts::SIGKILL;
use signal_hook::low_level::raise;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How often a stalled worker looks whether it has been left behind.
const SLICE: Duration = Duration::from_millis(10);

/// What can be done to a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// A worker panics at the beginning of the step.
    Panic,
    /// A worker does nothing for a while at the beginning of the step.
    Stall(Duration),
    /// One bit of a worker's first message in the step flips on its way.
    Corrupt,
    /// A worker's gradient is no number.
    Nan,
    /// One bit of a worker's weights flips after its update, as in memory that is defective.
    Flip,
    /// A worker's process is killed, as by `kill -9`, when the worker, rank 0 unless another is named,
    /// begins the step.
    Kill,
}

impl FaultKind {
    /// How a clause names it.
    fn name(self) -> &'static str {
        match self {
            Self::Panic => "panic",
            Self::Stall(_) => "stall",
            Self::Corrupt => "corrupt",
            Self::Nan => "nan",
            Self::Flip => "flip",
            Self::Kill => "kill",
        }
    }
}

/// One fault: what, to whom, when.
#[derive(Debug)]
struct InjectedFault {
    kind: FaultKind,
    worker: usize,
    step: u64,
    done: AtomicBool,
}

/// The faults of a run.
#[derive(Debug, Default)]
pub struct Faults {
    text: String,
    faults: Vec<InjectedFault>,
    disk: Option<disk::Fault>,
}

const FORMS: [(&str, &str); 7] = [
    ("panic", "panic:worker=R,step=S"),
    ("stall", "stall:worker=R,step=S,for=5s"),
    ("corrupt", "corrupt:worker=R,step=S"),
    ("nan", "nan:worker=R,step=S"),
    ("flip", "flip:worker=R,step=S"),
    ("disk-full", "disk-full:write=K"),
    ("kill", "kill:step=S or kill:worker=R,step=S"),
];

impl Faults {
    /// Reads clauses parted by semicolons: `panic`, `corrupt`, `nan` and `flip` with `worker=R,step=S`;
    /// `stall` with `for=5s` as well (`ms`, `s`, `m`); `kill:step=S`, `worker=R` if it is to be the
    /// process of another than rank 0; and one of
    /// `disk-full:OPERATION=K`, the K-th of the run's [file operations](Operation) of that name, or
    /// of `any`. Ranks count from 0, steps and operations from 1.
    ///
    /// # Errors
    /// The clause that is wrong, and how it is written.
    pub fn parse(text: &str) -> Result<Self> {
        let mut faults = Self { text: text.trim().into(), ..Self::default() };
        let clauses = text.split(';').map(str::trim).filter(|clause| !clause.is_empty());
        for clause in clauses {
            faults.add(clause).with_context(|| format!("injected fault `{clause}`"))?;
        }
        Ok(faults)
    }

    fn add(&mut self, clause: &str) -> Result<()> {
        let (name, settings) = clause.split_once(':').unwrap_or((clause, ""));
        let name = name.trim();
        let Some((_, form)) = FORMS.iter().find(|(known, _)| *known == name) else {
            let names = FORMS.map(|(name, _)| name);
            let hint = nearest(name, &names).map(|near| format!("; did you mean `{near}`?"));
            bail!(
                "no fault is called `{name}`{}; there are: {}",
                hint.unwrap_or_default(),
                names.join(", ")
            );
        };
        self.add_named(name, settings).with_context(|| format!("write `{form}`"))
    }

    fn add_named(&mut self, name: &str, settings: &str) -> Result<()> {
        let mut settings = ClauseSettings::read(settings)?;
        if name == "disk-full" {
            ensure!(self.disk.is_none(), "one run takes one of these");
            self.disk = Some(settings.disk()?);
            return settings.end();
        }
        let of_rank_0 = name == "kill" && !settings.names("worker");
        let worker = if of_rank_0 { 0 } else { settings.number("worker")? as usize };
        let step = settings.number("step")?;
        ensure!(step > 0, "steps count from 1");
        let kind = match name {
            "panic" => FaultKind::Panic,
            "stall" => FaultKind::Stall(duration(settings.take("for")?)?),
            "corrupt" => FaultKind::Corrupt,
            "nan" => FaultKind::Nan,
            "flip" => FaultKind::Flip,
            _ => FaultKind::Kill,
        };
        self.faults.push(InjectedFault { kind, worker, step, done: AtomicBool::new(false) });
        settings.end()
    }

    /// Refuses faults that cannot happen in these `steps` of a run of so many workers, some of which `sends` messages, and
    /// after some of which all ranks have the same weights.
    ///
    /// # Errors
    /// The fault, and what the run has.
    pub fn check(
        &self,
        workers: usize,
        steps: RangeInclusive<u64>,
        sends: impl Fn(u64) -> bool,
        is_whole: impl Fn(u64) -> bool,
    ) -> Result<()> {
        for fault in &self.faults {
            let InjectedFault { kind, worker, step, .. } = fault;
            let name = kind.name();
            ensure!(
                *worker < workers,
                "injected fault `{name}`: there is no worker {worker} of {workers}; they count from 0"
            );
            ensure!(
                steps.contains(step),
                "injected fault `{name}`: step {step} is none of those to come, {} to {}",
                steps.start(),
                steps.end()
            );
            ensure!(
                *kind != FaultKind::Corrupt || workers > 1,
                "injected fault `{name}`: a single worker sends no messages"
            );
            ensure!(
                *kind != FaultKind::Corrupt || sends(*step),
                "injected fault `{name}`: in step {step}, within a round of local steps, no message is sent"
            );
            ensure!(
                *kind != FaultKind::Flip || is_whole(*step),
                "injected fault `{name}`: after step {step}, within a round of local steps, weights differ anyway"
            );
        }
        Ok(())
    }

    /// The warning at the beginning of a run to which this happens.
    pub fn announcement(&self) -> Option<String> {
        let some = self.disk.is_some() || !self.faults.is_empty();
        some.then(|| format!("faults are injected into this run: {}", self.text))
    }

    /// What is to happen to the disk.
    pub fn disk(&self) -> Option<disk::Fault> {
        self.disk
    }

    /// What happens to `rank` at the beginning of `step`.
    ///
    /// # Panics
    /// When that is what is to happen.
    fn strike(&self, rank: usize, step: u64, position: &LivePosition) {
        if self.happens(rank, step, |kind| kind == FaultKind::Kill) {
            // Nothing comes back from this one; a system that refuses leaves the run as it is.
            let _ = raise(SIGKILL);
        }
        if self.happens(rank, step, |kind| kind == FaultKind::Panic) {
            panic!("injected at step {step}");
        }
        let stall = self.faults.iter().find_map(|fault| match fault.kind {
            FaultKind::Stall(duration) if fault.happens(rank, step) => Some(duration),
            _ => None,
        });
        let mut left = stall.unwrap_or_default();
        while !left.is_zero() && !position.is_abandoned() {
            let slice = left.min(SLICE);
            thread::sleep(slice);
            left -= slice;
        }
    }

    /// The worker's position, at whose steps what is to happen there happens.
    pub fn at_steps(faults: &Arc<Self>, position: &LivePosition) -> LivePosition {
        let (faults, seen) = (faults.clone(), position.clone());
        position.calling(move |step| faults.strike(seen.rank(), step, &seen))
    }

    /// Whether a fault is for the gradient of `rank` at `step`, [spoilt](Self::spoils_gradient) already or not.
    pub fn awaits_gradient(&self, rank: usize, step: u64) -> bool {
        self.faults.iter().any(|fault| fault.kind == FaultKind::Nan && fault.is_at(rank, step))
    }

    /// Whether the gradient of `rank` at `step` is to be spoilt now.
    pub fn spoils_gradient(&self, rank: usize, step: u64) -> bool {
        self.happens(rank, step, |kind| kind == FaultKind::Nan)
    }

    /// Whether a bit of the weights of `rank` is to flip now, at `step`.
    pub fn flips_weight(&self, rank: usize, step: u64) -> bool {
        self.happens(rank, step, |kind| kind == FaultKind::Flip)
    }

    /// A rank's end of the exchange, whose messages the faults damage.
    pub fn on_the_wire(
        faults: &Arc<Self>,
        inner: Box<dyn Collective>,
        position: &LivePosition,
    ) -> Box<dyn Collective> {
        if faults.faults.iter().all(|fault| fault.kind != FaultKind::Corrupt) {
            return inner;
        }
        Box::new(Wire { inner, faults: faults.clone(), position: position.clone() })
    }

    fn happens(&self, rank: usize, step: u64, which: impl Fn(FaultKind) -> bool) -> bool {
        self.faults.iter().any(|fault| which(fault.kind) && fault.happens(rank, step))
    }
}

impl InjectedFault {
    fn is_at(&self, rank: usize, step: u64) -> bool {
        self.worker == rank && self.step == step
    }

    fn happens(&self, rank: usize, step: u64) -> bool {
        self.is_at(rank, step) && !self.done.swap(true, Ordering::SeqCst)
    }
}

/// A collective whose messages of gradients can be damaged: what else ranks say is of step 0, and no fault is.
struct Wire {
    inner: Box<dyn Collective>,
    faults: Arc<Faults>,
    position: LivePosition,
}

impl Collective for Wire {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn allgather(&mut self, mut mine: Vec<u8>) -> exchange::Result<Vec<Payload>> {
        self.corrupt(&mut mine);
        self.inner.allgather(mine)
    }

    fn shares_memory(&self) -> bool {
        self.inner.shares_memory()
    }

    fn divides(&self) -> bool {
        self.inner.divides()
    }

    fn alltoall(&mut self, mut mine: Vec<Vec<u8>>) -> exchange::Result<Vec<Payload>> {
        if let Some(longest) = mine.iter_mut().max_by_key(|part| part.len()) {
            self.corrupt(longest);
        }
        self.inner.alltoall(mine)
    }
}

impl Wire {
    /// Damages a message if that is to happen now.
    fn corrupt(&self, mine: &mut [u8]) {
        // An exchange beside the steps says itself in which it began; parts of a message say nothing.
        let framed = Frame::split(&mut Reader::new(mine)).ok();
        let step = framed.map_or(self.position.get().step, |found| found.frame.header.step);
        if self.faults.happens(self.rank(), step, |kind| kind == FaultKind::Corrupt) {
            // Two thirds into the message lies a value or an index, seldom a header.
            let at = mine.len() * 2 / 3;
            if let Some(byte) = mine.get_mut(at) {
                *byte ^= 1 << (step % 8);
            }
        }
    }
}

/// The settings of a clause that nobody has taken yet.
struct ClauseSettings<'a>(Vec<(&'a str, &'a str)>);

impl<'a> ClauseSettings<'a> {
    fn read(text: &'a str) -> Result<Self> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let pairs = parts.map(|part| {
            let pair = part.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
            pair.with_context(|| format!("`{part}` is not a setting such as `step=40`"))
        });
        Ok(Self(pairs.collect::<Result<_>>()?))
    }

    fn names(&self, key: &str) -> bool {
        self.0.iter().any(|(found, _)| *found == key)
    }

    fn take(&mut self, key: &str) -> Result<&'a str> {
        let at = self.0.iter().position(|(found, _)| *found == key);
        let at = at.with_context(|| format!("`{key}` is missing"))?;
        Ok(self.0.remove(at).1)
    }

    fn number(&mut self, key: &str) -> Result<u64> {
        let value = self.take(key)?;
        value.parse().map_err(|_| anyhow!("`{key}={value}` is not a whole number"))
    }

    fn disk(&mut self) -> Result<disk::Fault> {
        let (name, _) = *self.0.first().context("the operation is missing")?;
        let names = || Operation::ALL.map(Operation::name).join(", ");
        let operation = Operation::from_name(name);
        ensure!(
            operation.is_some() || name == "any",
            "`{name}` is no file operation; there are: any, {}",
            names()
        );
        let first = self.number(name)?;
        ensure!(first > 0, "operations count from 1");
        Ok(disk::Fault::full(operation, first))
    }

    fn end(&self) -> Result<()> {
        match self.0.first() {
            Some((key, _)) => bail!("`{key}` has no meaning here"),
            None => Ok(()),
        }
    }
}

/// A length of time such as `5s`, `300ms` or `2m`.
fn duration(text: &str) -> Result<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => bail!("`{text}` is not a length of time such as 5s, 300ms or 2m"),
    };
    let number: f64 =
        number.parse().map_err(|_| anyhow!("`{text}` does not begin with a number"))?;
    Duration::try_from_secs_f64(number * seconds).with_context(|| format!("`{text}` is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_clauses_are_read() {
        let all = "panic:worker=2,step=40; stall:worker=1,step=50,for=5s; corrupt:worker=0,step=60; \
                   nan:worker=3,step=70; disk-full:write=3; kill:step=80";
        let faults = Faults::parse(all).unwrap();
        let read: Vec<_> = faults.faults.iter().map(|f| (f.kind, f.worker, f.step)).collect();
        let five = Duration::from_secs(5);
        assert_eq!(
            read,
            [
                (FaultKind::Panic, 2, 40),
                (FaultKind::Stall(five), 1, 50),
                (FaultKind::Corrupt, 0, 60),
                (FaultKind::Nan, 3, 70),
                (FaultKind::Kill, 0, 80)
            ]
        );
        assert_eq!(faults.disk(), Some(disk::Fault::full(Some(Operation::Write), 3)));
        faults.check(4, 1..=80, |_| true, |_| true).unwrap();
        assert!(Faults::parse(" ; ").unwrap().faults.is_empty());
        let any = Faults::parse("disk-full:any=7").unwrap();
        assert_eq!(any.disk(), Some(disk::Fault::full(None, 7)));
    }

    #[test]
    fn what_is_wrong_is_told_with_the_clause_and_its_form() {
        for (text, part) in [
            ("panik:step=3", "did you mean `panic`"),
            ("panic:worker=1", "`step` is missing"),
            ("kill:step=1; panic:worker=x,step=2", "`worker=x` is not a whole number"),
            ("panic:worker=1,step=0", "steps count from 1"),
            ("panic:worker=1,step=2,for=3s", "`for` has no meaning here"),
            ("stall:worker=1,step=2", "`for` is missing"),
            ("stall:worker=1,step=2,for=5", "5s, 300ms or 2m"),
            ("stall:worker=1,step=2,for=1e999s", "5s, 300ms or 2m"),
            ("stall:worker=1,step=2,for=99999999999999999999999s", "too long"),
            ("disk-full:wirte=3", "create-folder"),
            ("disk-full:write=0", "count from 1"),
            ("disk-full:write=1;disk-full:write=2", "one run takes one"),
            ("kill", "`step` is missing"),
            ("kill:80", "not a setting"),
        ] {
            let error = format!("{:#}", Faults::parse(text).unwrap_err());
            let clause = text.split(';').next_back().unwrap().trim();
            assert!(error.contains(part) && error.contains(clause), "{text}: {error}");
        }
    }

    #[test]
    fn what_cannot_happen_is_refused() {
        let check = |text, workers, last| {
            let fifth = |step| step % 5 == 0;
            Faults::parse(text).unwrap().check(workers, 4..=last, fifth, fifth)
        };
        let error = |text, workers, steps| check(text, workers, steps).unwrap_err().to_string();
        assert!(error("nan:worker=4,step=4", 4, 9).contains("no worker 4 of 4"));
        assert!(error("kill:step=10", 4, 9).contains("none of those to come, 4 to 9"));
        assert!(error("kill:step=3", 4, 9).contains("none of those to come, 4 to 9"));
        assert!(error("corrupt:worker=0,step=4", 1, 9).contains("sends no messages"));
        assert!(error("corrupt:worker=0,step=6", 2, 9).contains("in step 6, within a round"));
        assert!(error("flip:worker=0,step=6", 2, 9).contains("weights differ anyway"));
        check("corrupt:worker=0,step=5; nan:worker=1,step=6; flip:worker=1,step=5", 2, 9).unwrap();
    }

    #[test]
    fn a_fault_happens_once_at_its_place() {
        let faults = Faults::parse("nan:worker=1,step=3").unwrap();
        let seen: Vec<_> = (1..=4)
            .flat_map(|step| (0..2).map(move |rank| (rank, step)))
            .filter(|(rank, step)| faults.spoils_gradient(*rank, *step))
            .collect();
        assert_eq!(seen, [(1, 3)]);
        assert!(!faults.spoils_gradient(1, 3), "a restarted run does not meet it again");
    }

    #[test]
    fn a_stall_ends_when_nobody_waits_any_more() {
        let position = LivePosition::new(0);
        let faults = Faults::parse("stall:worker=0,step=1,for=60m").unwrap();
        position.abandon();
        faults.strike(0, 1, &position);
    }
}
