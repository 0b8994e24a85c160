//! A stream in memory, for tests.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// Takes so many bytes, then is full. Clones share the bytes.
#[derive(Clone)]
pub(super) struct MemoryStream {
    content: Arc<Mutex<Vec<u8>>>,
    room: usize,
}

impl MemoryStream {
    pub(super) fn with_room(room: usize) -> Self {
        Self { content: Arc::default(), room }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.content.lock().unwrap().clone()
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.bytes()).unwrap()
    }
}

impl Default for MemoryStream {
    fn default() -> Self {
        Self::with_room(usize::MAX)
    }
}

impl Write for MemoryStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut content = self.content.lock().unwrap();
        let taken = bytes.len().min(self.room - content.len());
        if taken == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        content.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
