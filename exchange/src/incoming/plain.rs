//! The mean of plain frames: checksums, sums and what is zero, in one pass over memory.

use super::Place;
use crate::simd::wide;
use crate::support::BLOCK;
use crate::wire::checksum::{Checksum, PAGE};
use crate::wire::floats;
use crate::wire::frame::Unchecked;
use crate::{Error, Result};

/// Blocks that are checked, and averaged while the first cache holds them: 8 KiB of each frame.
const BLOCKS: usize = 32;

/// The same in elements.
const CHUNK: usize = BLOCKS * BLOCK;

/// The frames of all ranks about one bucket.
pub(super) struct Plain<'a> {
    pub(super) place: &'a Place,
    pub(super) frames: Vec<&'a Unchecked<'a>>,
    /// The rank whose frame says what lies where the mean is to be.
    pub(super) own: Option<usize>,
    /// Of that, blocks outside of which it is zero: a bit for each.
    pub(super) support: Option<&'a [u64]>,
}

impl Plain<'_> {
    /// Overwrites `mean` by the mean; with a support, leaves in `spoken_of` a bit for each block in which
    /// another rank has something, or this one may. Tells whether all of the mean is finite.
    ///
    /// # Errors
    /// [`Error::Message`]; the mean is then in pieces.
    pub(super) fn average(&self, spoken_of: &mut [u64], mean: &mut [f32]) -> Result<bool> {
        let blame = |rank| move |error: Error| error.sent_by(rank, self.place.awaited());
        let mut values = Vec::with_capacity(self.frames.len());
        for (rank, unchecked) in self.frames.iter().enumerate() {
            let expected = floats::expect(unchecked.frame.payload, mean.len());
            values.push(expected.map_err(Error::from).map_err(blame(rank))?);
        }
        let mut checksums: Vec<Checksum> = self.frames.iter().map(|frame| frame.begin()).collect();
        let others = || (0..values.len()).filter(|rank| Some(*rank) != self.own);
        let scale = 1.0 / self.place.world_size as f32;
        let (mut finite, mut own) = (true, [[0; 4]; CHUNK]);
        for (number, mean) in mean.chunks_mut(CHUNK).enumerate() {
            let length = mean.len();
            let chunk = |rank: usize| &values[rank][number * CHUNK..number * CHUNK + length];
            let mut some = u32::MAX;
            if let Some(support) = self.support {
                some = half(support, number);
                for rank in others() {
                    let found = something(chunk(rank));
                    add(&mut checksums[rank], chunk(rank).as_flattened(), found);
                    some |= found;
                }
                set_half(spoken_of, number, some);
            } else {
                others().for_each(|rank| checksums[rank].add(chunk(rank).as_flattened()));
            }
            if some == 0 {
                continue;
            }
            for blocks in runs(some) {
                let end = length.min(blocks.end * BLOCK);
                let elements = (blocks.start * BLOCK).min(end)..end;
                let mean = &mut mean[elements.clone()];
                if self.own.is_some() {
                    let own = own[elements.clone()].iter_mut();
                    own.zip(&*mean).for_each(|(own, value)| *own = value.to_le_bytes());
                }
                let part = |rank| match Some(rank) == self.own {
                    true => &own[elements.clone()],
                    false => &chunk(rank)[elements.clone()],
                };
                finite &= floats::mean_of_each(values.len(), part, scale, mean);
            }
        }
        for rank in others() {
            let checked = self.frames[rank].end(&checksums[rank]);
            checked.map_err(Error::from).map_err(blame(rank))?;
        }
        Ok(finite)
    }
}

/// The bits of a chunk's blocks.
fn half(words: &[u64], chunk: usize) -> u32 {
    (words[chunk / 2] >> (32 * (chunk % 2))) as u32
}

fn set_half(words: &mut [u64], chunk: usize, bits: u32) {
    let at = 32 * (chunk % 2);
    let word = &mut words[chunk / 2];
    *word = *word & !(u64::from(u32::MAX) << at) | u64::from(bits) << at;
}

/// A bit for each block of a chunk that is not all zeros with a plus sign.
fn something(values: &[[u8; 4]]) -> u32 {
    wide(|| {
        values.chunks(BLOCK).enumerate().fold(0, |some, (block, values)| {
            let any = values.iter().fold(0, |any, value| any | u32::from_le_bytes(*value));
            some | u32::from(any != 0) << block
        })
    })
}

/// Adds a chunk, of which only the blocks with bits in `some` are not zero.
fn add(checksum: &mut Checksum, chunk: &[u8], some: u32) {
    /// Blocks of a page, and the bits of the first.
    const OF_PAGE: usize = PAGE / 4 / BLOCK;
    const MASK: u32 = (1 << OF_PAGE) - 1;
    if chunk.len() < 4 * CHUNK {
        return checksum.add(chunk);
    }
    // A bit for each page: the first of its blocks.
    let pages = (0..BLOCKS).step_by(OF_PAGE).filter(|block| some >> block & MASK != 0);
    let pages = pages.fold(0, |pages, block| pages | 1 << (block / OF_PAGE));
    let mut at = 0;
    for run in runs(pages) {
        checksum.add_zeros(run.start - at);
        checksum.add(&chunk[run.start * PAGE..run.end * PAGE]);
        at = run.end;
    }
    checksum.add_zeros(BLOCKS / OF_PAGE - at);
}

/// The ranges of blocks whose bits are set.
fn runs(bits: u32) -> impl Iterator<Item = std::ops::Range<usize>> {
    let (mut rest, mut at) = (bits, 0);
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let skipped = rest.trailing_zeros();
        let length = (rest >> skipped).trailing_ones();
        let start = at + skipped;
        at = start + length;
        rest = rest.checked_shr(skipped + length).unwrap_or(0);
        Some(start as usize..at as usize)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_are_the_bits_that_are_set(bits in any::<u32>()) {
            let found = runs(bits).fold(0u64, |found, run| {
                (run.start..run.end).fold(found, |found, bit| found | 1 << bit)
            });
            prop_assert_eq!(found, u64::from(bits));
            prop_assert!(runs(u32::MAX).eq(std::iter::once(0..32)));
        }

        #[test]
        fn halves_of_words_are_those_of_chunks(bits in any::<[u32; 4]>()) {
            let mut words = [u64::MAX; 2];
            bits.iter().enumerate().for_each(|(chunk, bits)| set_half(&mut words, chunk, *bits));
            for (chunk, bits) in bits.iter().enumerate() {
                prop_assert_eq!(half(&words, chunk), *bits);
            }
            let blocks = (0..128).filter(|block| words[block / 64] >> (block % 64) & 1 == 1);
            let naive = (0..128).filter(|block| bits[block / 32] >> (block % 32) & 1 == 1);
            prop_assert!(blocks.eq(naive));
        }
    }
}
