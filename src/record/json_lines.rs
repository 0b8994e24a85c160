//! Values as JSON, one a line.

use super::Stream;
use crate::disk::File;
use serde::Serialize;
use std::io::{self, Write};

/// Writes each value, such as an [`Event`](super::Event), as one line, in one piece.
pub(super) struct JsonLines<W>(W);

impl JsonLines<Stream> {
    /// Writes at the end of a file whose lines are whole. They stay so: what a full disk has taken of a
    /// line is cut off before the next one is written.
    pub(super) fn in_file(file: File) -> io::Result<Self> {
        let length = file.length()?;
        Ok(Self(Box::new(WholeLines { file, length, torn: false })))
    }
}

impl<W: Write> JsonLines<W> {
    /// Writes to `writer`, which should not hold anything back.
    pub(super) fn new(writer: W) -> Self {
        Self(writer)
    }

    /// Writes one value; it is out of this process when this returns.
    pub(super) fn write(&mut self, value: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.0.write_all(&line)?;
        self.0.flush()
    }
}

/// A file of lines, each of which is written in one call.
struct WholeLines {
    file: File,
    /// Bytes of the lines that are whole.
    length: u64,
    /// Whether a part of another may stand after them.
    torn: bool,
}

impl Write for WholeLines {
    /// Writes the whole line, or fails.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.torn {
            self.file.cut(self.length)?;
        }
        self.torn = true;
        self.file.write_all(line)?;
        self.torn = false;
        self.length += line.len() as u64;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, Fault, Operation};
    use std::fs;

    #[test]
    fn a_file_has_whole_lines_again_when_there_is_room_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let fault = Fault { count: 2, ..Fault::full(Some(Operation::Write), 2) };
        let disk = Disk::failing(fault);
        let mut lines = JsonLines::in_file(disk.create(&path).unwrap()).unwrap();
        let read = || fs::read_to_string(&path).unwrap();
        lines.write(&1).unwrap();
        assert!(lines.write(&"there is no room").is_err());
        assert_eq!(read(), "1\n\"there is");
        // Even what is there cannot be cut off yet.
        assert!(lines.write(&2).is_err());
        lines.write(&3).unwrap();
        assert_eq!(read(), "1\n3\n");

        let disk = Disk::failing(Fault::full(Some(Operation::Write), 1));
        let mut lines = JsonLines::in_file(disk.append(&path).unwrap()).unwrap();
        assert!(lines.write(&"nor is there now").is_err());
        lines.write(&4).unwrap();
        assert_eq!(read(), "1\n3\n4\n");
    }
}
