//! The launching thread's part in checkpoints: the ranks' parts in, whole checkpoints to the
//! writer, what became of them back as events.

use crate::checkpoint::{Outcome, Part, Whole, Writer};
use crate::record::{Checkpoint, Event, Provenance, Summary, Warning};
use crate::train::session::Session;
use crate::train::tally::Tally;
use anyhow::Result;
use std::sync::Arc;

/// Sees to it that checkpoints are written.
pub struct CheckpointDriver {
    session: Arc<Session>,
    provenance: Provenance,
    /// Absent when the recipe wants none.
    writer: Option<Writer>,
    /// The step of the newest whole one.
    newest: Option<u64>,
}

impl CheckpointDriver {
    /// The driver of a run that has a folder.
    ///
    /// # Errors
    /// When the thread that writes cannot be started.
    pub fn new(session: Arc<Session>, provenance: Provenance) -> Result<Self> {
        let settings = session.recipe.checkpoint;
        let writer = match &session.folder {
            Some(folder) if settings.keep_last > 0 => {
                let (flags, workers) = (Arc::clone(&session.flags), session.recipe.workers);
                let free = move || flags.set_writing(false);
                let (disk, folder) = (session.disk.clone(), folder.clone());
                Some(Writer::new(disk, folder, settings, workers, free)?)
            }
            _ => None,
        };
        let newest = Some(session.course.from().step).filter(|step| *step > 0);
        Ok(Self { session, provenance, writer, newest })
    }

    /// Takes a rank's part of a checkpoint. With the last of a step it is handed to the writer,
    /// with the sums of `tally` and the `summary`: every rank tells of its step before it hands in
    /// its part, so they are those of this very step.
    pub fn add(&mut self, part: Part, tally: &Tally, summary: &Summary) {
        let step = part.step;
        let Some(writer) = &mut self.writer else { return };
        if let Some(parts) = writer.add(part) {
            writer.write(Whole {
                progress: self.session.course.after(step),
                recipe: self.session.recipe.clone(),
                provenance: self.provenance.clone(),
                sums: tally.sums(),
                summary: summary.clone(),
                parts,
            });
        }
    }

    /// What has become of checkpoints since this was last asked.
    pub fn news(&mut self) -> Vec<Event> {
        let done = self.writer.as_ref().map_or_else(Vec::new, Writer::done);
        done.into_iter().flat_map(|outcome| self.tell(outcome)).collect()
    }

    /// Waits until everything is written; what has become of it.
    ///
    /// # Errors
    /// When the writer panicked.
    pub fn finish(mut self) -> Result<Vec<Event>> {
        let done = self.writer.take().map_or_else(|| Ok(Vec::new()), Writer::finish)?;
        Ok(done.into_iter().flat_map(|outcome| self.tell(outcome)).collect())
    }

    fn tell(&mut self, outcome: Outcome) -> Vec<Event> {
        let Outcome { step, stall, seconds, result, retention } = outcome;
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
