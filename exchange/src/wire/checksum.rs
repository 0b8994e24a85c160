//! CRC-32 (IEEE 802.3, as in zlib) of bytes end to end.

use crc32fast::Hasher;

/// The checksum of the bytes so far.
#[derive(Debug, Clone, Default)]
pub struct Checksum(Hasher);

impl Checksum {
    /// Of these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        let mut checksum = Self::default();
        checksum.add(bytes);
        checksum
    }

    /// Adds bytes that follow.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds bytes that follow, by their checksum.
    pub fn append(&mut self, following: &Checksum) {
        self.0.combine(&following.0);
    }

    /// What the bytes so far come to.
    pub fn value(&self) -> u32 {
        self.0.clone().finalize()
    }
}
