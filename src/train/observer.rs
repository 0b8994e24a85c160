//! Who receives what happens in a run: the record with TensorBoard's file, the console, the checkpoints,
//! and whatever a program adds.

use crate::checkpoint::{Outcome, Part, Sums, Whole, Writer};
use crate::record::network::Row;
use crate::record::{Checkpoint, Console, Event, Provenance, Record, Summary, Warning};
use crate::train::session::Session;
use anyhow::Result;
use std::sync::Arc;

/// What happens in a run, from all ranks together.
pub enum RunEvent {
    /// An event that is recorded: the start, a step, an epoch, a checkpoint, a warning, the end.
    Recorded(Event),
    /// A step that the recipe does not record; it counts in the summary.
    Unrecorded(Event),
    /// What each rank computed and sent in a step, for replays on other networks.
    Network(Row),
    /// A rank's part of a checkpoint, and the sums of the epoch at that step; taken by who writes it.
    Part(Option<(Box<Part>, Sums)>),
}

impl RunEvent {
    /// The event, whether or not it is recorded.
    pub fn event(&self) -> Option<&Event> {
        match self {
            Self::Recorded(event) | Self::Unrecorded(event) => Some(event),
            Self::Network(_) | Self::Part(_) => None,
        }
    }
}

/// Receives what happens in a run, on the launching thread and in order.
pub trait Observer {
    /// Takes what has happened. The events that it gives back are passed on to the other observers.
    ///
    /// # Errors
    /// What should end the run.
    fn observe(&mut self, event: &mut RunEvent) -> Result<Vec<Event>>;

    /// What has happened since it was last asked, without an event from the run.
    fn news(&mut self) -> Vec<Event> {
        Vec::new()
    }
}

impl Observer for Record {
    fn observe(&mut self, event: &mut RunEvent) -> Result<Vec<Event>> {
        match event {
            RunEvent::Recorded(event) => Ok(self.record(event)?.into_iter().collect()),
            RunEvent::Unrecorded(event) => {
                self.pass_over(event);
                Ok(Vec::new())
            }
            RunEvent::Network(row) => self.network(row).map(|()| Vec::new()),
            RunEvent::Part(_) => Ok(Vec::new()),
        }
    }
}

impl Observer for Console {
    fn observe(&mut self, event: &mut RunEvent) -> Result<Vec<Event>> {
        event.event().map_or(Ok(()), |event| self.record(event)).map(|()| Vec::new())
    }
}

/// The observers of a run, in the order in which events reach them.
pub(super) struct Observers<'a>(Vec<&'a mut dyn Observer>);

impl<'a> Observers<'a> {
    /// The run's own observers, and then the others.
    pub(super) fn new<const N: usize>(
        own: [&'a mut dyn Observer; N],
        others: &'a mut [&mut dyn Observer],
    ) -> Self {
        let others = others.iter_mut().map(|other| &mut **other as &mut dyn Observer);
        Self(own.into_iter().chain(others).collect())
    }

    /// Passes an event on to all of them, and what they give back to the others.
    pub(super) fn pass_on(&mut self, event: RunEvent) -> Result<()> {
        self.pass_on_except(event, None)
    }

    /// Passes an event on that is recorded.
    pub(super) fn pass_on_recorded(&mut self, event: Event) -> Result<()> {
        self.pass_on(RunEvent::Recorded(event))
    }

    /// Passes on what has happened to the observers themselves.
    pub(super) fn pass_on_news(&mut self) -> Result<()> {
        let news: Vec<Event> = self.0.iter_mut().flat_map(|observer| observer.news()).collect();
        news.into_iter().try_for_each(|event| self.pass_on_recorded(event))
    }

    fn pass_on_except(&mut self, mut event: RunEvent, source: Option<usize>) -> Result<()> {
        let mut replies = Vec::new();
        for (number, observer) in self.0.iter_mut().enumerate() {
            if Some(number) != source {
                let reply = observer.observe(&mut event)?;
                replies.extend(reply.into_iter().map(|event| (number, event)));
            }
        }
        replies.into_iter().try_for_each(|(number, event)| {
            self.pass_on_except(RunEvent::Recorded(event), Some(number))
        })
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
    /// The run in figures so far.
    summary: Summary,
}

impl Observer for Checkpoints {
    fn observe(&mut self, event: &mut RunEvent) -> Result<Vec<Event>> {
        if let RunEvent::Part(part) = event
            && let Some((part, sums)) = part.take()
        {
            self.add(*part, sums);
        }
        if let Some(event) = event.event() {
            self.summary.observe(event);
        }
        Ok(Vec::new())
    }

    fn news(&mut self) -> Vec<Event> {
        let done = self.writer.as_ref().map_or_else(Vec::new, Writer::done);
        done.into_iter().flat_map(|outcome| self.events(outcome)).collect()
    }
}

impl Checkpoints {
    /// Those of a run that has come to `summary`.
    pub(super) fn new(
        session: Arc<Session>,
        provenance: Provenance,
        summary: Summary,
    ) -> Result<Self> {
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
        Ok(Self { session, provenance, writer, newest, summary })
    }

    /// Takes a rank's part of a checkpoint. With the last of a step it is handed to the writer, with
    /// the sums and the summary of this very step: every rank reports its step before its part.
    fn add(&mut self, part: Part, sums: Sums) {
        let step = part.step;
        let Some(writer) = &mut self.writer else { return };
        if let Some(parts) = writer.add(part) {
            writer.write(Whole {
                progress: self.session.steps.after(step),
                recipe: self.session.recipe.clone(),
                provenance: self.provenance.clone(),
                sums,
                summary: self.summary.clone(),
                parts,
            });
        }
    }

    /// Waits until everything is written; what has become of it.
    pub(super) fn finish(&mut self) -> Result<Vec<Event>> {
        let done = self.writer.take().map_or_else(|| Ok(Vec::new()), Writer::finish)?;
        Ok(done.into_iter().flat_map(|outcome| self.events(outcome)).collect())
    }

    fn events(&mut self, outcome: Outcome) -> Vec<Event> {
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
