//! Events as JSON, one object a line.

use super::event::Event;
use super::recorder::Recorder;
use std::io::{self, Write};

/// Writes each event as one line, in one piece.
pub struct JsonLines<W> {
    writer: W,
    line: Vec<u8>,
    /// Whether a part of a line may stand at the end.
    torn: bool,
}

impl<W: Write> JsonLines<W> {
    /// Writes to `writer`, which should not hold anything back.
    pub fn new(writer: W) -> Self {
        Self { writer, line: Vec::new(), torn: false }
    }
}

impl<W: Write + Send> Recorder for JsonLines<W> {
    fn record(&mut self, event: &Event) -> io::Result<()> {
        self.line.clear();
        if self.torn {
            // What could not be written whole is to spoil no line but its own.
            self.line.push(b'\n');
        }
        serde_json::to_writer(&mut self.line, event)?;
        self.line.push(b'\n');
        self.torn = true;
        self.writer.write_all(&self.line)?;
        self.writer.flush()?;
        self.torn = false;
        Ok(())
    }
}
