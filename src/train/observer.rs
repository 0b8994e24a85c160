//! Who receives what happens in a run: the record with TensorBoard's file, the checkpoints, and observers such as
//! the console or a program's own.

use crate::checkpoint::{Part, Sums, Whole, WriteReport, Writer};
use crate::record::network::Row;
use crate::record::{Checkpoint, Event, Provenance, Record, Summary, Warning};
use crate::train::session::Session;
use anyhow::Result;
use std::sync::Arc;

/// What happens in a run, from all ranks together.
pub(super) enum RunEvent {
    /// An event that is recorded: the start, a step, an epoch, a checkpoint, a warning, the end.
    Recorded(Event),
    /// A step that the recipe does not record; it counts in the summary.
    Unrecorded(Event),
    /// What each rank computed and sent in a step, for replays on other networks.
    Network(Row),
    /// A rank's part of a checkpoint, and the sums of the epoch at that step.
    Part(Box<Part>, Sums),
}

/// Is called with each event of a run, on the launching thread and in order; an error ends the run.
pub type Observer<'a> = dyn FnMut(&Event) -> Result<()> + 'a;

/// Shows an event to all observers.
pub(super) fn show(observers: &mut [&mut Observer<'_>], event: &Event) -> Result<()> {
    observers.iter_mut().try_for_each(|observer| observer(event))
}

/// All that receive what happens in a run.
pub(super) struct Receivers<'a, 'b, 'c> {
    pub(super) record: Record,
    pub(super) checkpoints: Checkpoints,
    pub(super) observers: &'a mut [&'b mut Observer<'c>],
}

impl Receivers<'_, '_, '_> {
    /// Passes on what has happened.
    pub(super) fn take(&mut self, event: RunEvent) -> Result<()> {
        match event {
            RunEvent::Recorded(event) => self.record(&event),
            RunEvent::Unrecorded(event) => {
                self.record.pass_over(&event);
                show(self.observers, &event)
            }
            RunEvent::Network(row) => self.record.network(&row),
            RunEvent::Part(part, sums) => {
                self.checkpoints.add(*part, sums, self.record.summary().clone());
                Ok(())
            }
        }
    }

    /// Passes on what has become of checkpoints since this was last asked.
    pub(super) fn take_news(&mut self) -> Result<()> {
        self.checkpoints.news().into_iter().try_for_each(|event| self.record(&event))
    }

    /// Records an event, and shows it.
    pub(super) fn record(&mut self, event: &Event) -> Result<()> {
        let warning = self.record.record(event)?;
        show(self.observers, event)?;
        warning.map_or(Ok(()), |warning| show(self.observers, &warning))
    }

    /// Waits until all checkpoints are written.
    pub(super) fn finish_checkpoints(&mut self) -> Result<()> {
        let (events, ended) = self.checkpoints.finish();
        events.iter().try_for_each(|event| self.record(event)).and(ended)
    }
}

/// Collects the ranks' parts of checkpoints, and has whole ones written.
pub(super) struct Checkpoints {
    session: Arc<Session>,
    provenance: Provenance,
    /// Absent when the recipe wants none.
    writer: Option<Writer>,
    /// The step of the newest whole one.
    newest: Option<u64>,
}

impl Checkpoints {
    /// Those of a run.
    pub(super) fn new(session: Arc<Session>, provenance: Provenance) -> Result<Self> {
        let settings = session.recipe.checkpoint;
        let writer = match &session.folder {
            Some(folder) if settings.keep_last > 0 => {
                let (requests, workers) = (session.requests.clone(), session.recipe.workers);
                let free = move || requests.set_writing(false);
                let (disk, folder) = (session.disk.clone(), folder.clone());
                Some(Writer::new(disk, folder, settings, workers, free)?)
            }
            _ => None,
        };
        let newest = Some(session.steps.from.step).filter(|step| *step > 0);
        Ok(Self { session, provenance, writer, newest })
    }

    /// Takes a rank's part of a checkpoint. With the last of a step it is handed to the writer, with
    /// the sums and the summary of this very step: every rank reports its step before its part.
    fn add(&mut self, part: Part, sums: Sums, summary: Summary) {
        let step = part.step;
        let Some(writer) = &mut self.writer else { return };
        if let Some(parts) = writer.add(part) {
            writer.write(Whole {
                progress: self.session.steps.after(step),
                recipe: self.session.recipe.clone(),
                provenance: self.provenance.clone(),
                sums,
                summary,
                parts,
            });
        }
    }

    /// What has become of checkpoints since this was last asked.
    fn news(&mut self) -> Vec<Event> {
        let done = self.writer.as_ref().map_or_else(Vec::new, Writer::done);
        done.into_iter().flat_map(|outcome| self.events(outcome)).collect()
    }

    /// Waits until everything is written; what has become of it.
    fn finish(&mut self) -> (Vec<Event>, Result<()>) {
        let (done, ended) = self.writer.take().map_or_else(|| (Vec::new(), Ok(())), Writer::finish);
        (done.into_iter().flat_map(|outcome| self.events(outcome)).collect(), ended)
    }

    fn events(&mut self, outcome: WriteReport) -> Vec<Event> {
        let WriteReport { step, stall, seconds, result, retention } = outcome;
        let warning = |message| Event::from(Warning { step: Some(step), message });
        let first = match result {
            Ok(bytes) => {
                self.newest = Some(step);
                let (stall_seconds, write_seconds) = (stall, seconds);
                Event::from(Checkpoint { step, bytes, stall_seconds, write_seconds })
            }
            Err(error) => {
                let newest = self.newest.map_or_else(
                    || "there is none to go on from yet".to_string(),
                    |step| format!("that of step {step} stays"),
                );
                warning(format!(
                    "the checkpoint could not be written: {error:#}; training goes on, the next \
                     one is another attempt, and {newest}"
                ))
            }
        };
        let second = retention.map(|error| {
            warning(format!("older checkpoints could not be removed: {error:#}; training goes on"))
        });
        [Some(first), second].into_iter().flatten().collect()
    }
}
