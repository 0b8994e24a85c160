//! What a run leaves behind, and what it shows while it goes.
//!
//! The launching thread owns one [`Record`] and one [`Console`] and hands every [`Event`] that the
//! workers send to both:
//!
//! ```no_run
//! # use gradwire::record::*;
//! # fn main() -> anyhow::Result<()> {
//! # let (recipe, provenance, events) = (String::new(), Provenance::default(), Vec::<Event>::new());
//! let mut record = Record::create("runs/out".as_ref(), "newcomer", &recipe, &provenance)?;
//! let mut console = Console::new(Mode::Default);
//! for event in events {
//!     if let Some(warning) = record.record(&event)? {
//!         console.record(&warning)?;
//!     }
//!     console.record(&event)?;
//! }
//! console.record(&record.finish()?)?;
//! # Ok(())
//! # }
//! ```
//!
//! `<out>/<recipe>/<stamp>/` then holds
//!
//! | file | |
//! |---|---|
//! | `recipe.toml` | the recipe with every default and override resolved |
//! | `provenance.json` | what produced the figures: version, commit, machine, data ([`Provenance`]) |
//! | `metrics.jsonl` | every event, one JSON object a line: the record of truth ([`JsonLines`]) |
//! | `events.out.tfevents.…` | the same as curves, histograms and texts ([`TensorBoard`]) |
//!
//! An event is in both files when [`Record::record`] returns: nothing is buffered here that a
//! killed process could lose.

mod console;
mod display;
mod event;
mod folder;
mod histogram;
mod json_lines;
mod number;
mod progress;
mod provenance;
mod summary;
mod tensorboard;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub use console::{Console, Mode};
pub use event::{
    Epoch, Event, Failed, Finished, Histograms, Kind, Phases, Started, Step, Tagged, Text, Warning,
};
pub use histogram::Histogram;
pub use json_lines::JsonLines;
pub use provenance::{FileSum, Provenance};
pub use summary::Summary;
pub use tensorboard::TensorBoard;

/// Somewhere events are written to.
pub trait Recorder: Send {
    /// Writes one event; it is out of this process when this returns.
    ///
    /// # Errors
    /// The event could not be written.
    fn record(&mut self, event: &Event) -> std::io::Result<()>;
}

/// The files of one run.
///
/// `metrics.jsonl` is the record of truth: when it cannot be written, [`Record::record`] fails and
/// the run should stop. The TensorBoard file is a view of it: when that cannot be written, the run
/// goes on without it and is told so once.
pub struct Record {
    out: PathBuf,
    folder: PathBuf,
    lines: JsonLines<std::fs::File>,
    tensorboard: Option<TensorBoard<std::fs::File>>,
    summary: Summary,
}

impl Record {
    /// Makes the run's folder `<out>/<recipe>/<stamp>` and the files in it.
    ///
    /// `resolved` is the resolved recipe as TOML; it is also kept as a text of TensorBoard.
    /// Two runs that start in the same second get different folders.
    ///
    /// # Errors
    /// The folder or a file in it cannot be made; the error says which and what to do.
    pub fn create(
        out: &Path,
        recipe: &str,
        resolved: &str,
        provenance: &Provenance,
    ) -> Result<Self> {
        let folder = folder::create(out, recipe)?;
        folder::write(&folder.join("recipe.toml"), resolved)?;
        folder::write(&folder.join("provenance.json"), &provenance.to_json())?;
        let lines = JsonLines::new(folder::open(&folder.join("metrics.jsonl"))?);
        let curves = folder.join(tensorboard::file_name());
        let tensorboard = TensorBoard::new(folder::open(&curves)?)
            .with_context(|| folder::cannot_write(&curves))?;
        let mut record = Self {
            out: out.to_path_buf(),
            folder,
            lines,
            tensorboard: Some(tensorboard),
            summary: Summary::default(),
        };
        record.record(&Event::from(Text {
            step: 0,
            tag: "recipe".into(),
            text: format!("```toml\n{}\n```", resolved.trim_end()),
        }))?;
        Ok(record)
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
        let Some(tensorboard) = &mut self.tensorboard else { return Ok(None) };
        let Err(error) = tensorboard.record(event) else { return Ok(None) };
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

    /// Counts an event in the summary without writing it, for a recipe that records only some steps.
    pub fn pass_over(&mut self, event: &Event) {
        self.summary.observe(event);
    }

    /// Writes that the run was stopped by `error`, and returns it for the console to show.
    ///
    /// # Errors
    /// `metrics.jsonl` could not be written.
    pub fn fail(mut self, error: &anyhow::Error) -> Result<Event> {
        let failed = Event::from(Failed { error: format!("{error:#}") });
        self.truth(&failed)?;
        Ok(failed)
    }

    /// Writes the end of the run, and returns it for the console to show.
    ///
    /// # Errors
    /// `metrics.jsonl` could not be written.
    pub fn finish(mut self) -> Result<Event> {
        let finished = Event::from(Finished {
            summary: self.summary.clone(),
            folder: self.folder.display().to_string(),
            out: self.out.display().to_string(),
        });
        self.truth(&finished)?;
        Ok(finished)
    }

    /// Writes to the record of truth.
    fn truth(&mut self, event: &Event) -> Result<()> {
        self.summary.observe(event);
        self.lines
            .record(event)
            .with_context(|| folder::cannot_write(&self.folder.join("metrics.jsonl")))
    }
}
