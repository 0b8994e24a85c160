//! The files of one run.

use super::cut::{Cut, cut};
use super::event::{Event, Failed, Finished, Text, Warning};
use super::folder::{self, METRICS, PROVENANCE, RECIPE, lock};
use super::json_lines::JsonLines;
use super::log::RunLog;
use super::provenance::Provenance;
use super::summary::Summary;
use super::tensorboard::{TensorBoard, Trial};
use super::{Stream, network};
use crate::disk::{Disk, Lock};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// The files of one run.
///
/// `metrics.jsonl` is the record of truth: when it cannot be written, [`Record::record`] fails and
/// the run should stop. The TensorBoard file is a view of it: when that cannot be written, the run
/// goes on without it, and one warning says so.
pub struct Record {
    folder: PathBuf,
    lines: JsonLines<Stream>,
    tensorboard: Option<TensorBoard<Stream>>,
    network: Option<JsonLines<Stream>>,
    summary: Summary,
    /// No other process writes the same run.
    _lock: Option<Lock>,
}

impl Record {
    /// Makes the files in a run's folder, which is empty.
    ///
    /// `resolved` is the resolved recipe as TOML; it is also kept as a text of TensorBoard.
    ///
    /// # Errors
    /// A file cannot be made; the error says which and what to do.
    pub fn create(
        disk: &Disk,
        folder: PathBuf,
        resolved: &str,
        provenance: &Provenance,
    ) -> Result<Self> {
        let text = format!("```toml\n{}\n```", resolved.trim_end());
        let begun = Event::from(Text { step: 0, tag: "recipe".into(), text });
        let lock = lock(disk, &folder)?;
        folder::write(disk, &folder.join(RECIPE), resolved)?;
        folder::write(disk, &folder.join(PROVENANCE), &provenance.to_json())?;
        let lines = append(disk, &folder.join(METRICS))?;
        let trial = Trial::new(resolved, &folder, begun.time)?;
        let curves = TensorBoard::create(disk, &folder, &trial, begun.time)?;
        let record = Self::new(folder, lines, curves);
        let mut record = Self { _lock: Some(lock), ..record };
        record.record(&begun)?;
        Ok(record)
    }

    /// Goes on with the record of `folder`, whose `lock` is held, at `first_step`: takes out what tells of
    /// that step and later ones, and makes the TensorBoard file anew from what is left. `summary` is that
    /// of the steps before.
    ///
    /// The resolved recipe takes the place of the earlier one; the provenance of this process is
    /// written beside that of the first.
    ///
    /// # Errors
    /// A file in the folder cannot be read, opened or made; the error says which and what to do. The same
    /// can be done again.
    pub fn resume(
        disk: &Disk,
        folder: &Path,
        lock: Lock,
        first_step: u64,
        summary: Summary,
        resolved: &str,
        provenance: &Provenance,
    ) -> Result<(Self, Cut)> {
        let cut = cut(disk, folder, first_step.saturating_sub(1))?;
        let replace = |name: &str, text: &str| {
            let path = folder.join(name);
            disk.replace(&path, text.as_bytes()).with_context(|| folder::cannot_write(&path))
        };
        replace(RECIPE, resolved)?;
        replace(&format!("provenance-{first_step:08}.json"), &provenance.to_json())?;
        // A run that was stopped before its first line has no log yet.
        let lines = append(disk, &folder.join(METRICS))?;
        let log = RunLog::read(disk, folder)?;
        let trial = Trial::new(resolved, folder, log.began().unwrap_or(summary.started))?;
        let curves = TensorBoard::rewrite(disk, &log, &trial)?;
        let record = Self::new(folder.to_path_buf(), lines, curves);
        Ok((Self { summary, _lock: Some(lock), ..record }, cut))
    }

    /// A record in a folder whose files are open.
    fn new(folder: PathBuf, lines: JsonLines<Stream>, curves: TensorBoard<Stream>) -> Self {
        Self {
            folder,
            lines,
            tensorboard: Some(curves),
            network: None,
            summary: Summary::default(),
            _lock: None,
        }
    }

    /// The run's folder; checkpoints and models belong in it too.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The run in figures, up to the last event recorded.
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
        self.write(event)?;
        self.show(event)
    }

    /// Writes to the TensorBoard file; the warning when it had to be given up.
    fn show(&mut self, event: &Event) -> Result<Option<Event>> {
        let Some(Err(error)) = self.tensorboard.as_mut().map(|file| file.record(event)) else {
            return Ok(None);
        };
        self.tensorboard = None;
        let warning = Event::from(Warning {
            step: Some(self.summary.step),
            message: format!(
                "cannot write the TensorBoard file in {}: {error}; training goes on, its curves end \
                 here, metrics.jsonl has everything",
                self.folder.display()
            ),
        });
        self.write(&warning)?;
        Ok(Some(warning))
    }

    /// Begins `network.jsonl`, or goes on with the one that is there.
    ///
    /// # Errors
    /// It could not be made or opened.
    pub fn begin_network(&mut self, disk: &Disk, header: &network::Header) -> Result<()> {
        let path = self.folder.join(network::FILE);
        let mut lines = append(disk, &path)?;
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
        self.write(&failed)?;
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
        self.write(&finished)?;
        Ok(finished)
    }

    fn finished(&self) -> Event {
        // Runs are in the folder of their recipe.
        let out = self.folder.parent().and_then(Path::parent).unwrap_or(&self.folder);
        Event::from(Finished {
            summary: self.summary.clone(),
            folder: self.folder.display().to_string(),
            out: out.display().to_string(),
        })
    }

    /// Writes to `metrics.jsonl`.
    fn write(&mut self, event: &Event) -> Result<()> {
        self.summary.observe(event);
        self.lines.write(event).with_context(|| folder::cannot_write(&self.folder.join(METRICS)))
    }
}

/// Writes lines at the end of the file of this path, which is made where there is none.
fn append(disk: &Disk, path: &Path) -> Result<JsonLines<Stream>> {
    let opened = if path.exists() { disk.append(path) } else { disk.create(path) };
    opened.and_then(JsonLines::in_file).with_context(|| folder::cannot_write(path))
}

#[cfg(test)]
mod tests {
    use super::super::event::{Kind, Step};
    use super::super::memory::MemoryStream;
    use super::*;

    fn step(step: u64) -> Event {
        Event::from(Step { step, loss: 1.0, ..Step::default() })
    }

    fn record(lines: &MemoryStream, curves: MemoryStream) -> Record {
        let curves = TensorBoard::new(Box::new(curves) as Stream, 0.0).unwrap();
        let lines = JsonLines::new(Box::new(lines.clone()) as Stream);
        Record::new("out/a/b".into(), lines, curves)
    }

    fn events(lines: &MemoryStream) -> Vec<Event> {
        lines.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn without_tensorboard_the_run_goes_on_with_one_warning() {
        let lines = MemoryStream::default();
        let mut record = record(&lines, MemoryStream::with_room(1000));
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
        let mut record = record(&MemoryStream::with_room(1000), MemoryStream::default());
        let error = (1..=20).find_map(|i| record.record(&step(i)).err()).unwrap();
        let error = format!("{error:#}");
        assert!(error.contains("out/a/b/metrics.jsonl") && error.contains("--out"), "{error}");
    }

    #[test]
    fn steps_passed_over_count_in_the_summary() {
        let lines = MemoryStream::default();
        let mut record = record(&lines, MemoryStream::default());
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
        let lines = MemoryStream::default();
        let record = record(&lines, MemoryStream::default());
        let error = anyhow::anyhow!("loss is NaN").context("worker 1, step 3");
        let event = record.fail(&error, true).unwrap();
        assert_eq!(
            event.kind,
            Kind::Failed(Failed { error: "worker 1, step 3: loss is NaN".into(), diverged: true })
        );
        assert_eq!(events(&lines), [event]);
    }
}
