//! What events are written to.

use super::event::Event;
use std::io::{self, Write};

/// Somewhere events are written to.
pub trait Recorder: Send {
    /// Writes one event; it is out of this process when this returns.
    ///
    /// # Errors
    /// The event could not be written.
    fn record(&mut self, event: &Event) -> io::Result<()>;
}

/// Somewhere bytes go.
pub(super) type Stream = Box<dyn Write + Send>;
