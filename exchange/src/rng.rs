//! Random numbers that are a function of where they are needed, not of when.
//!
//! A [`Stream`] belongs to one message: (seed, rank, bucket, step). Its i-th number is a hash of i
//! under the stream's key, so that any element's number can be had alone, in any order, and by
//! loops that run over several elements at once. Nothing has to be saved in a checkpoint.
//!
//! The hash is Wellons' `lowbias32` (2018, public domain; the integer hash of two multiplications
//! with the lowest known bias), with a second key word between the multiplications, so that two
//! streams do not walk through the same sequence at different offsets.

/// The random numbers of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    first: u32,
    second: u32,
}

/// SplitMix64 (Steele, Lea & Flood 2014): mixes one more word into a key.
fn absorb(key: u64, word: u64) -> u64 {
    let mut z = (key ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Stream {
    /// The stream of a key made of any number of words, whose order counts.
    pub fn new(words: &[u64]) -> Self {
        let key = words.iter().fold(0x6772_6164_7769_7265, |key, word| absorb(key, *word));
        Self::from_key(key)
    }

    /// The stream's key, for a message whose reader needs the same numbers.
    pub(crate) fn key(self) -> u64 {
        u64::from(self.second) << 32 | u64::from(self.first)
    }

    /// The stream of a [`key`](Self::key).
    pub(crate) fn from_key(key: u64) -> Self {
        Self { first: key as u32, second: (key >> 32) as u32 }
    }

    /// The 32 random bits of element `i`.
    #[inline(always)]
    pub fn bits(self, i: u32) -> u32 {
        let mut x = i.wrapping_mul(0x9e37_79b9) ^ self.first;
        x ^= x >> 16;
        x = x.wrapping_mul(0x7feb_352d);
        x ^= (x >> 15) ^ self.second;
        x = x.wrapping_mul(0x846c_a68b);
        x ^ (x >> 16)
    }

    /// A uniform number in [0, 1) for element `i`: one of 2²⁴ equally spaced ones.
    #[inline(always)]
    pub fn uniform(self, i: u32) -> f32 {
        // The shift leaves a positive i32, whose conversion vector units have.
        (self.bits(i) >> 8) as i32 as f32 * (1.0 / 16_777_216.0)
    }

    /// A uniform number below `end`, for element `i`; its bias is at most end/2³².
    #[inline]
    pub fn below(self, i: u32, end: u32) -> u32 {
        ((u64::from(self.bits(i)) * u64::from(end)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seat;

    fn seat(rank: usize, bucket: usize, seed: u64) -> Seat {
        Seat { rank, bucket, ..Seat::alone(1, seed) }
    }

    #[test]
    fn every_coordinate_changes_the_stream_and_equal_ones_do_not() {
        let base = Stream::at(&seat(0, 0, 0), 1);
        assert_eq!(base, Stream::at(&seat(0, 0, 0), 1));
        let others = [
            Stream::at(&seat(1, 0, 0), 1),
            Stream::at(&seat(0, 1, 0), 1),
            Stream::at(&seat(0, 0, 1), 1),
            Stream::at(&seat(0, 0, 0), 2),
            Stream::shared(&seat(0, 0, 0), 1),
        ];
        assert!(others.iter().all(|other| *other != base));
        assert_eq!(Stream::shared(&seat(3, 0, 0), 1), Stream::shared(&seat(5, 0, 0), 1));
        assert_eq!(Stream::from_key(base.key()), base);
    }
}
