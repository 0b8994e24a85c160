//! The files of one run.

use super::event::{Event, Failed, Finished, Kind, Text, Warning, now};
use super::json_lines::JsonLines;
use super::provenance::Provenance;
use super::summary::Summary;
use super::tensorboard::TensorBoard;
use super::{Stream, curves, folder, hparams, network};
use crate::disk::{Disk, File, Lock};
use anyhow::{Context, Result, anyhow};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Reads the events of the run in `folder`, in order. A last line that was never finished, as a
/// killed run leaves it, does not count.
///
/// # Errors
/// When there is no record, or a line is damaged: with file and line.
pub fn read_metrics(disk: &Disk, folder: &Path, mut take: impl FnMut(Event)) -> Result<()> {
    const MAX_BYTES: u64 = 1 << 32;
    let path = folder.join(METRICS);
    let bytes = disk.read(&path, MAX_BYTES).with_context(|| {
        format!("cannot read {}: is {} the folder of a run?", path.display(), folder.display())
    })?;
    for (number, line) in (1..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
        let Some(line) = line.strip_suffix(b"\n") else { break };
        let event = serde_json::from_slice(line).with_context(|| {
            format!("{}, line {number}: this is no event; the record is damaged", path.display())
        })?;
        take(event);
    }
    Ok(())
}

/// Where a run's record is to be.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// In a folder of its own, `<out>/<recipe>/<stamp>`.
    New {
        /// The folder that runs are written under.
        out: &'a Path,
        /// The recipe's name.
        recipe: &'a str,
        /// What the run is called, if anything: its folder is then `<out>/<recipe>/<stamp>-<name>`.
        name: Option<&'a str>,
    },
    /// In this folder, which does not exist.
    Given {
        /// The folder.
        folder: &'a Path,
        /// What the run is called, if anything.
        name: Option<&'a str>,
    },
}

/// The files of one run.
///
/// `metrics.jsonl` is the record of truth: when it cannot be written, [`Record::record`] fails and
/// the run should stop. The TensorBoard file is a view of it: when that cannot be written, the run
/// goes on without it and is told so once.
pub struct Record {
    out: PathBuf,
    folder: PathBuf,
    lines: JsonLines<Stream>,
    tensorboard: Option<TensorBoard<Stream>>,
    network: Option<JsonLines<Stream>>,
    summary: Summary,
    /// No other process writes the same run.
    _lock: Option<Lock>,
}

/// The file whose lock the process that writes a run holds, in the run's folder.
pub(super) const LOCK: &str = ".lock";
/// The record of truth.
pub const METRICS: &str = "metrics.jsonl";
/// The resolved recipe, without which a folder is no run's.
pub const RECIPE: &str = "recipe.toml";
/// What produced the figures.
const PROVENANCE: &str = "provenance.json";

/// Whether a folder is that of a run: a recipe with something beside it that only a run has.
pub fn is_run(folder: &Path) -> bool {
    let is = |name: &str| folder.join(name).symlink_metadata().is_ok_and(|about| about.is_file());
    is(RECIPE) && [METRICS, PROVENANCE, LOCK].into_iter().any(is)
}

/// Whether a process is at work in a run.
pub fn is_written(disk: &Disk, run: &Path) -> bool {
    let path = run.join(LOCK);
    tried(|| disk.is_locked(&path), |locked| *locked)
}

/// How often a lock is tried before it is taken for held, with what pause: whoever asks whether a run is
/// being written holds its lock for a moment, and so does a process that was just being started.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// What the first attempt comes to that does not find the lock held, or else the last.
fn tried<T>(mut attempt: impl FnMut() -> T, held: impl Fn(&T) -> bool) -> T {
    for _ in 1..TRIES {
        let found = attempt();
        if !held(&found) {
            return found;
        }
        thread::sleep(PAUSE);
    }
    attempt()
}

/// Takes the lock of a run's folder.
///
/// # Errors
/// When another process writes this run, or the lock's file cannot be made.
pub fn lock(disk: &Disk, run: &Path) -> Result<Lock> {
    let path = run.join(LOCK);
    let held = |taken: &io::Result<Lock>| {
        taken.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    };
    tried(|| disk.lock(&path), held).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            anyhow!("another process is training in {}: wait for its end, or end it", run.display())
        }
        _ => anyhow::Error::new(error).context(folder::cannot_write(&path)),
    })
}

/// Writes lines at the end of the file of this path.
fn json_lines(file: File, path: &Path) -> Result<JsonLines<Stream>> {
    JsonLines::in_file(file).with_context(|| folder::cannot_write(path))
}

impl Record {
    /// Makes the run's folder and the files in it.
    ///
    /// `resolved` is the resolved recipe as TOML; it is also kept as a text of TensorBoard.
    /// Two runs that start in the same second get different folders.
    ///
    /// # Errors
    /// The folder or a file in it cannot be made; the error says which and what to do.
    pub fn create(
        disk: &Disk,
        place: Place<'_>,
        resolved: &str,
        provenance: &Provenance,
    ) -> Result<Self> {
        let settings = hparams::settings(resolved)?;
        let (name, out, folder, again) = match place {
            Place::New { out, recipe, name } => {
                (name, out, folder::create(disk, out, recipe, name)?, String::new())
            }
            Place::Given { folder, name } => {
                folder::create_given(disk, folder)?;
                let again = format!(" · {}", folder::now());
                (name, folder.parent().unwrap_or(folder), folder.to_path_buf(), again)
            }
        };
        let lock = lock(disk, &folder)?;
        folder::write(disk, &folder.join(RECIPE), resolved)?;
        folder::write(disk, &folder.join(PROVENANCE), &provenance.to_json())?;
        let path = folder.join(METRICS);
        let lines = json_lines(folder::open(disk, &path)?, &path)?;
        let trial = hparams::trial(&settings, name, &folder, &again);
        let curves = TensorBoard::create(disk, &folder, &[], now(), |file| {
            curves::introduce(file, &trial, &settings)
        })?;
        let record = Self::over(out, folder, lines, curves);
        let mut record = Self { _lock: Some(lock), ..record };
        record.record(&Event::from(Text {
            step: 0,
            tag: "recipe".into(),
            text: format!("```toml\n{}\n```", resolved.trim_end()),
        }))?;
        Ok(record)
    }

    /// Goes on with the records of `folder`, which are cut to the step before `first_step`
    /// ([`cut`](super::cut())) and whose `lock` is held. `summary` is that of the steps before.
    ///
    /// The resolved recipe takes the place of the earlier one; the provenance of this process is
    /// written beside that of the first.
    ///
    /// # Errors
    /// A file in the folder cannot be opened or made; the error says which and what to do.
    pub fn resume(
        disk: &Disk,
        folder: &Path,
        lock: Lock,
        first_step: u64,
        summary: Summary,
        resolved: &str,
        provenance: &Provenance,
    ) -> Result<Self> {
        let replace = |name: &str, text: &str| {
            let path = folder.join(name);
            disk.replace(&path, text.as_bytes()).with_context(|| folder::cannot_write(&path))
        };
        replace(RECIPE, resolved)?;
        replace(&format!("provenance-{first_step:08}.json"), &provenance.to_json())?;
        // A run that was stopped before its first line has none.
        let path = folder.join(METRICS);
        let lines = json_lines(folder::append(disk, &path)?, &path)?;
        let files = disk.list(folder).with_context(|| format!("listing {}", folder.display()))?;
        let curves =
            TensorBoard::create(disk, folder, &files, now(), |file| file.restart_at(first_step))?;
        let out = folder.parent().and_then(Path::parent).unwrap_or(folder);
        let record = Self::over(out, folder.to_path_buf(), lines, curves);
        Ok(Self { summary, _lock: Some(lock), ..record })
    }

    /// A record in a folder whose files are open.
    fn over(
        out: &Path,
        folder: PathBuf,
        lines: JsonLines<Stream>,
        curves: TensorBoard<Stream>,
    ) -> Self {
        Self {
            out: out.to_path_buf(),
            folder,
            lines,
            tensorboard: Some(curves),
            network: None,
            summary: Summary::default(),
            _lock: None,
        }
    }

    /// The run's folder; checkpoints and models belong in it too.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The run in figures, up to the last event recorded.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Writes one event.
    ///
    /// Returns a warning to show when the TensorBoard file had to be given up; it is already part
    /// of the record.
    ///
    /// # Errors
    /// `metrics.jsonl` could not be written.
    pub fn record(&mut self, event: &Event) -> Result<Option<Event>> {
        self.truth(event)?;
        self.show(event)
    }

    /// Writes to the TensorBoard file; the warning when it had to be given up.
    fn show(&mut self, event: &Event) -> Result<Option<Event>> {
        let Some(tensorboard) = &mut self.tensorboard else { return Ok(None) };
        let mut shown = tensorboard.record(event);
        if let Kind::Epoch(epoch) = &event.kind
            && epoch.test_accuracy.is_some()
            && shown.is_ok()
        {
            shown = tensorboard.values(event.time, epoch.step, hparams::results(&self.summary));
        }
        let Err(error) = shown else { return Ok(None) };
        self.tensorboard = None;
        let warning = Event::from(Warning {
            step: Some(self.summary.step),
            message: format!(
                "cannot write the TensorBoard file in {}: {error}; training goes on, its curves end \
                 here, metrics.jsonl has everything",
                self.folder.display()
            ),
        });
        self.truth(&warning)?;
        Ok(Some(warning))
    }

    /// Begins `network.jsonl`, or goes on with the one that is there.
    ///
    /// # Errors
    /// It could not be made or opened.
    pub fn begin_network(&mut self, disk: &Disk, header: &network::Header) -> Result<()> {
        let path = self.folder.join(network::FILE);
        let mut lines = json_lines(folder::append(disk, &path)?, &path)?;
        lines.write(header).with_context(|| folder::cannot_write(&path))?;
        self.network = Some(lines);
        Ok(())
    }

    /// Writes a step to `network.jsonl`, if it was begun.
    ///
    /// # Errors
    /// It could not be written.
    pub fn network(&mut self, row: &network::Row) -> Result<()> {
        let Some(lines) = &mut self.network else { return Ok(()) };
        lines.write(row).with_context(|| folder::cannot_write(&self.folder.join(network::FILE)))
    }

    /// Counts an event in the summary without writing it, for a recipe that records only some steps.
    pub fn pass_over(&mut self, event: &Event) {
        self.summary.observe(event);
    }

    /// Writes that the run was stopped by `error`, and whether it had diverged, and returns it for
    /// the console to show.
    ///
    /// # Errors
    /// `metrics.jsonl` could not be written.
    pub fn fail(mut self, error: &anyhow::Error, diverged: bool) -> Result<Event> {
        let failed = Event::from(Failed { error: format!("{error:#}"), diverged });
        self.show(&failed)?;
        self.truth(&failed)?;
        Ok(failed)
    }

    /// Writes the end of the run, and returns it for the console to show.
    ///
    /// # Errors
    /// `metrics.jsonl` could not be written.
    pub fn finish(mut self) -> Result<Event> {
        let mut finished = self.finished();
        if self.show(&finished)?.is_some() {
            // That it could not be shown is part of the record, which ends after it.
            finished = self.finished();
        }
        self.truth(&finished)?;
        Ok(finished)
    }

    fn finished(&self) -> Event {
        Event::from(Finished {
            summary: self.summary.clone(),
            folder: self.folder.display().to_string(),
            out: self.out.display().to_string(),
        })
    }

    /// Writes to the record of truth.
    fn truth(&mut self, event: &Event) -> Result<()> {
        self.summary.observe(event);
        self.lines.write(event).with_context(|| folder::cannot_write(&self.folder.join(METRICS)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::Step;
    use super::super::memory::Memory;
    use super::*;

    fn step(step: u64) -> Event {
        Event::from(Step { step, loss: 1.0, ..Step::default() })
    }

    fn over(lines: &Memory, curves: Memory) -> Record {
        let curves = TensorBoard::new(Box::new(curves) as Stream, 0.0).unwrap();
        let lines = JsonLines::new(Box::new(lines.clone()) as Stream);
        Record::over("out".as_ref(), "out/a/b".into(), lines, curves)
    }

    fn events(lines: &Memory) -> Vec<Event> {
        lines.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn without_tensorboard_the_run_goes_on_and_is_told_once() {
        let lines = Memory::default();
        let mut record = over(&lines, Memory::with_room(1000));
        let warnings: Vec<_> = (1..=20).filter_map(|i| record.record(&step(i)).unwrap()).collect();
        let [Event { kind: Kind::Warning(warning), .. }] = &warnings[..] else {
            panic!("one warning, not {warnings:?}")
        };
        assert!(warning.message.contains("out/a/b") && warning.step.is_some(), "{warning:?}");
        assert_eq!(events(&lines).len(), 21);
        assert!(events(&lines).contains(&warnings[0]));
        assert_eq!((record.summary().steps, record.summary().warnings), (20, 1));
    }

    #[test]
    fn without_metrics_the_run_stops() {
        let mut record = over(&Memory::with_room(1000), Memory::default());
        let error = (1..=20).find_map(|i| record.record(&step(i)).err()).unwrap();
        let error = format!("{error:#}");
        assert!(error.contains("out/a/b/metrics.jsonl") && error.contains("--out"), "{error}");
    }

    #[test]
    fn steps_passed_over_count_in_the_summary() {
        let lines = Memory::default();
        let mut record = over(&lines, Memory::default());
        record.pass_over(&step(1));
        record.record(&step(2)).unwrap();
        let Kind::Finished(finished) = record.finish().unwrap().kind else {
            panic!("another kind")
        };
        assert_eq!(finished.summary.steps, 2);
        assert_eq!((finished.folder.as_str(), finished.out.as_str()), ("out/a/b", "out"));
        assert_eq!(events(&lines).len(), 2);
    }

    #[test]
    fn a_failure_is_written_with_its_causes() {
        let lines = Memory::default();
        let record = over(&lines, Memory::default());
        let error = anyhow::anyhow!("loss is NaN").context("worker 1, step 3");
        let event = record.fail(&error, true).unwrap();
        assert_eq!(
            event.kind,
            Kind::Failed(Failed { error: "worker 1, step 3: loss is NaN".into(), diverged: true })
        );
        assert_eq!(events(&lines), [event]);
    }
}
