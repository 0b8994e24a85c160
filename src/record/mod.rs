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
//! let folder = create_stamped(&disk, "runs/out".as_ref(), "newcomer", None)?;
//! let mut record = Record::create(&disk, folder, &recipe, &provenance)?;
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
//! [`RunLog`] reads `metrics.jsonl` back, [`network::read`] the network's record. An event is in both files when [`Record::record`] returns: nothing is buffered here that a
//! killed process could lose.

pub(crate) mod as_json;
mod console;
mod cut;
mod display;
mod event;
mod folder;
pub mod gradient;
mod histogram;
mod json_lines;
mod live;
mod log;
#[cfg(test)]
mod memory;
pub mod network;
mod number;
mod progress;
mod provenance;
mod run;
mod summary;
mod tensorboard;

pub use console::{Console, Mode};
pub use cut::Cut;
pub use event::{
    Checkpoint, Epoch, Event, Failed, Finished, Histograms, Kind, RuleParameters, Started, Step,
    Tagged, Text, Warning,
};
pub use folder::{
    METRICS, PROVENANCE, RECIPE, create_given, create_stamped, is_run, is_written, lock, set_aside,
};
pub use gradwire_datasets::FileSum;
pub use histogram::Histogram;
pub use log::{RunLog, RunStatus};
pub use provenance::Provenance;
pub use run::Record;
pub use summary::{Phases, RuleTraffic, Summary};

/// Somewhere bytes go.
type Stream = Box<dyn std::io::Write + Send>;
