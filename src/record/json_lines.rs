//! Events as JSON, one object a line.

use super::Recorder;
use super::event::Event;
use std::io::{self, Write};

/// Writes each event as one line, in one piece.
pub struct JsonLines<W> {
    writer: W,
    line: Vec<u8>,
}

impl<W: Write> JsonLines<W> {
    /// Writes to `writer`, which should not hold anything back.
    pub fn new(writer: W) -> Self {
        Self { writer, line: Vec::new() }
    }
}

impl<W: Write + Send> Recorder for JsonLines<W> {
    fn record(&mut self, event: &Event) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, event)?;
        self.line.push(b'\n');
        self.writer.write_all(&self.line)?;
        self.writer.flush()
    }
}
