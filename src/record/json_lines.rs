//! Values as JSON, one a line.

use serde::Serialize;
use std::io::{self, Write};

/// Writes each value, such as an [`Event`](super::Event), as one line, in one piece.
pub(super) struct JsonLines<W> {
    writer: W,
    line: Vec<u8>,
    /// Whether a part of a line may stand at the end.
    torn: bool,
}

impl<W: Write> JsonLines<W> {
    /// Writes to `writer`, which should not hold anything back.
    pub(super) fn new(writer: W) -> Self {
        Self { writer, line: Vec::new(), torn: false }
    }

    /// Writes one value; it is out of this process when this returns.
    pub(super) fn write(&mut self, value: &impl Serialize) -> io::Result<()> {
        self.line.clear();
        if self.torn {
            // What could not be written whole is to spoil no line but its own.
            self.line.push(b'\n');
        }
        serde_json::to_writer(&mut self.line, value)?;
        self.line.push(b'\n');
        self.torn = true;
        self.writer.write_all(&self.line)?;
        self.writer.flush()?;
        self.torn = false;
        Ok(())
    }
}
