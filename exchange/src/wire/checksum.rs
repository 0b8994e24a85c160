//! CRC-32 (IEEE 802.3, as in zlib) of bytes end to end, and of pages whose checksums are known.

use std::array;
use std::sync::LazyLock;

use crc32fast::Hasher;

/// The checksum of the bytes so far.
#[derive(Debug, Clone, Default)]
pub struct Checksum(Hasher);

impl Checksum {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
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

    /// Adds so many [pages](PAGE) of zeros, without reading any.
    pub fn add_zeros(&mut self, pages: usize) {
        if pages > 0 {
            let value = (0..pages).fold(self.value(), |value, _| follow(value, *ZEROS));
            let length = self.0.total_len() + (pages * PAGE) as u64;
            self.0 = Hasher::new_with_initial_len(value, length);
        }
    }

    /// What the bytes so far come to.
    pub fn value(&self) -> u32 {
        self.0.clone().finalize()
    }
}

/// Bytes of a page.
pub const PAGE: usize = 1024;

/// The checksum of a page of zeros.
pub static ZEROS: LazyLock<u32> = LazyLock::new(|| Checksum::of(&[0; PAGE]).value());

/// What a page of zeros after some bytes makes of each byte of their checksum. The map is linear over
/// bits (exclusive or), so that these are all of it.
static FOLLOWED: LazyLock<[[u32; 256]; 4]> = LazyLock::new(|| {
    // Combining takes the bits that follow off at the same time: zero ones take off nothing.
    let page = Hasher::new_with_initial_len(0, PAGE as u64);
    let followed = |value: u32| {
        let mut hasher = Hasher::new_with_initial(value);
        hasher.combine(&page);
        hasher.finalize()
    };
    let bits: [u32; 32] = array::from_fn(|bit| followed(1 << bit));
    array::from_fn(|byte| {
        array::from_fn(|value: usize| {
            let set = (0..8).filter(|bit| value >> bit & 1 == 1);
            set.fold(0, |sum, bit| sum ^ bits[8 * byte + bit])
        })
    })
});

/// The checksum of whole pages end to end, each of which has the checksum that is given.
pub fn of_pages(pages: &[u32]) -> Checksum {
    let value = pages.iter().fold(0, |value, page| follow(value, *page));
    Checksum(Hasher::new_with_initial_len(value, (pages.len() * PAGE) as u64))
}

/// The checksum of bytes and a page after them, from those of both.
fn follow(before: u32, page: u32) -> u32 {
    let (followed, bytes) = (&*FOLLOWED, before.to_le_bytes());
    (0..4).fold(page, |sum, byte| sum ^ followed[byte][usize::from(bytes[byte])])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pages_come_to_what_their_bytes_do(
            pages in prop::collection::vec(any::<Option<u8>>(), 0..9),
            before in prop::collection::vec(any::<u8>(), 0..40),
            tail in prop::collection::vec(any::<u8>(), 0..PAGE),
        ) {
            let page = |seed: &Option<u8>| -> Vec<u8> {
                let byte = |i: usize| seed.map_or(0, |seed| (i * 7 + i / 5) as u8 ^ seed);
                (0..PAGE).map(byte).collect()
            };
            let bytes: Vec<u8> = pages.iter().flat_map(page).collect();
            let checksum = |seed: &Option<u8>| match seed {
                None => *ZEROS,
                some => Checksum::of(&page(some)).value(),
            };
            let checksums: Vec<u32> = pages.iter().map(checksum).collect();
            let mut found = of_pages(&checksums);
            prop_assert_eq!(found.value(), crc32fast::hash(&bytes));
            let mut skipping = Checksum::of(&before);
            for seed in &pages {
                match seed {
                    None => skipping.add_zeros(1),
                    some => skipping.add(&page(some)),
                }
            }
            skipping.add_zeros(2);
            let zeros = [0; 2 * PAGE];
            let all = [&before, &bytes, &zeros[..]].concat();
            prop_assert_eq!(skipping.value(), crc32fast::hash(&all));
            found.add(&tail);
            let mut whole = Checksum::of(&before);
            whole.append(&found);
            prop_assert_eq!(whole.value(), crc32fast::hash(&[before, bytes, tail].concat()));
        }
    }
}
