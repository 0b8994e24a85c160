//! What a run leaves behind, and what it shows while it goes.
//!
//! The launching thread owns one [`Record`] and one [`Console`] and hands every [`Event`] that the
//! workers send to both:
//!
//! ```no_run
//! # use gradwire::record::*;
//! # fn main() -> anyhow::Result<()> {
//! # let disk = gradwire::disk::Disk::default();
//! # let (recipe, provenance, events) = (String::new(), Provenance::default(), Vec::<Event>::new());
//! let place = Place::New { out: "runs/out".as_ref(), recipe: "newcomer", name: None };
//! let mut record = Record::create(&disk, place, &recipe, &provenance)?;
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
//! | `metrics.jsonl` | every event, one JSON object a line: the record of truth |
//! | `network.jsonl` | of every step, what each rank computed and sent ([`network`]) |
//! | `events.out.tfevents.…` | the same as curves, histograms and texts, for TensorBoard |
//!
//! An event is in both files when [`Record::record`] returns: nothing is buffered here that a
//! killed process could lose.

mod console;
mod curves;
mod cut;
mod display;
mod event;
pub mod event_file;
mod folder;
pub mod gradient;
mod histogram;
pub mod hparams;
mod json_lines;
mod layout;
mod live;
#[cfg(test)]
mod memory;
pub mod network;
mod number;
mod progress;
mod proto;
mod provenance;
pub mod remove;
pub mod replay;
mod run;
mod summary;
mod tensorboard;

pub use console::{Console, Mode};
pub use cut::{Cut, cut};
pub use event::{
    Checkpoint, Epoch, Event, Failed, Finished, Histograms, Kind, Started, Step, Tagged, Text,
    Warning,
};
pub use folder::set_aside;
pub use histogram::Histogram;
pub use provenance::{FileSum, Provenance};
pub use run::{METRICS, Place, RECIPE, Record, is_run, is_written, lock, read_metrics};
pub use summary::{Phases, Summary};

/// Somewhere bytes go.
type Stream = Box<dyn std::io::Write + Send>;
