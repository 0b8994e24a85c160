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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_may_be_added_in_any_pieces() {
        let bytes: Vec<u8> = (0..3000u32).map(|i| (i * 7 % 251) as u8).collect();
        let whole = Checksum::new(&bytes).value();
        for cut in [0, 1, 63, 64, 1024, 2999, 3000] {
            let (before, after) = bytes.split_at(cut);
            let mut pieces = Checksum::new(before);
            pieces.add(after);
            assert_eq!(pieces.value(), whole);
            let mut joined = Checksum::new(before);
            joined.append(&Checksum::new(after));
            assert_eq!(joined.value(), whole);
        }
        // As Python's zlib.crc32 has it.
        assert_eq!(Checksum::new(b"123456789").value(), 0xcbf4_3926);
    }
}
