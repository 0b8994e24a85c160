//! Numbers of one fixed width of 1 to 8 bits, packed end to end, least significant bit first, the
//! last byte filled with zeros.

use std::ops::Range;

use super::{Fault, Read};
use crate::simd::wide;

/// The widest code.
pub(crate) const MAX_WIDTH: u32 = 8;

/// Bytes that `count` codes take.
pub(crate) fn bytes(count: usize, width: u32) -> usize {
    (count * width as usize).div_ceil(8)
}

/// Appends codes, each less than 2^`width`, starting at a byte boundary.
///
/// To append in several calls, give multiples of eight codes in all but the last.
#[inline]
pub(crate) fn put(codes: &[u8], width: u32, out: &mut Vec<u8>) {
    debug_assert!((1..=MAX_WIDTH).contains(&width));
    debug_assert!(codes.iter().all(|code| u32::from(*code) >> width == 0));
    out.reserve(bytes(codes.len(), width));
    match width {
        1 => put_fixed::<1>(codes, out),
        2 => put_fixed::<2>(codes, out),
        3 => put_fixed::<3>(codes, out),
        4 => put_fixed::<4>(codes, out),
        5 => put_fixed::<5>(codes, out),
        6 => put_fixed::<6>(codes, out),
        7 => put_fixed::<7>(codes, out),
        _ => out.extend_from_slice(codes),
    }
}

fn put_fixed<const WIDTH: usize>(codes: &[u8], out: &mut Vec<u8>) {
    let (eights, rest) = codes.as_chunks::<8>();
    out.extend(eights.iter().flat_map(|eight| {
        let word = gather::<WIDTH>(*eight).to_le_bytes();
        std::array::from_fn::<u8, WIDTH, _>(|i| word[i])
    }));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    out.extend_from_slice(&gather::<WIDTH>(last).to_le_bytes()[..bytes(rest.len(), WIDTH as u32)]);
}

/// Packs codes of `WIDTH` bits into bytes, which hold some of the first eights and no more; a last
/// part of eight is packed as far as whole bytes are asked for.
pub(crate) fn pack<const WIDTH: usize>(codes: &[u8], bytes: &mut [u8]) {
    wide!({
        let (eights, rest) = codes.as_chunks::<8>();
        let (words, rest_bytes) = bytes.as_chunks_mut::<WIDTH>();
        for (word, eight) in words.iter_mut().zip(eights) {
            word.copy_from_slice(&gather::<WIDTH>(*eight).to_le_bytes()[..WIDTH]);
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let last = gather::<WIDTH>(last).to_le_bytes();
        rest_bytes.copy_from_slice(&last[..rest_bytes.len()]);
    });
}

/// Eight codes side by side: neighbours are joined, then pairs, then fours. The simple form:
/// `Σ_i codes[i] << (WIDTH · i)`.
#[inline(always)]
fn gather<const WIDTH: usize>(codes: [u8; 8]) -> u64 {
    let word = u64::from_le_bytes(codes);
    let word = word & lanes(16, WIDTH) | (word >> 8 & lanes(16, WIDTH)) << WIDTH;
    let word = word & lanes(32, 2 * WIDTH) | (word >> 16 & lanes(32, 2 * WIDTH)) << (2 * WIDTH);
    word & lanes(64, 4 * WIDTH) | (word >> 32 & lanes(64, 4 * WIDTH)) << (4 * WIDTH)
}

/// The reverse of [`gather`].
#[inline(always)]
pub(super) fn spread<const WIDTH: usize>(word: u64) -> [u8; 8] {
    let word = word & lanes(64, 4 * WIDTH) | (word >> (4 * WIDTH) & lanes(64, 4 * WIDTH)) << 32;
    let word = word & lanes(32, 2 * WIDTH) | (word >> (2 * WIDTH) & lanes(32, 2 * WIDTH)) << 16;
    let word = word & lanes(16, WIDTH) | (word >> WIDTH & lanes(16, WIDTH)) << 8;
    word.to_le_bytes()
}

/// The lowest `width` bits of every `lane` bits.
const fn lanes(lane: usize, width: usize) -> u64 {
    let mask = (1 << width) - 1;
    let (mut all, mut at) = (0, 0);
    while at < 64 {
        all |= mask << at;
        at += lane;
    }
    all
}

/// The bytes as `count` codes of `width` bits.
pub(crate) fn expect(bytes: &[u8], count: usize, width: u32) -> Read<Codes<'_>> {
    let expected = self::bytes(count, width);
    if bytes.len() != expected {
        return Err(Fault::Length { expected, found: bytes.len() });
    }
    let used = (count * width as usize % 8) as u32;
    if let Some(last) = bytes.last()
        && used > 0
        && u32::from(*last) >> used != 0
    {
        return Err(Fault::Field { field: "padding", found: u64::from(*last) >> used });
    }
    Ok(Codes { bytes, count, width })
}

/// Packed codes whose length has been checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Codes<'a> {
    bytes: &'a [u8],
    count: usize,
    width: u32,
}

/// Codes that [`Codes::each_block`] unpacks at a time.
pub(crate) const BLOCK: usize = 1024;

impl Codes<'_> {
    /// The code of this number, if there are so many.
    #[inline]
    pub(crate) fn get(self, number: usize) -> Option<u8> {
        let at = number * self.width as usize;
        let low = *self.bytes.get(at / 8).filter(|_| number < self.count)?;
        let high = self.bytes.get(at / 8 + 1).copied().unwrap_or(0);
        let both = u32::from(u16::from_le_bytes([low, high]));
        Some((both >> (at % 8) & ((1 << self.width) - 1)) as u8)
    }

    /// Unpacks block by block: `visit` gets the number of the block's first code, and up to
    /// [`BLOCK`] codes.
    #[inline(always)]
    pub(crate) fn each_block<E>(
        self,
        visit: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.each_block_of(0..self.count, visit)
    }

    /// The same for the codes `part`, which begins at a multiple of [`BLOCK`] and lies within.
    #[inline(always)]
    pub(crate) fn each_block_of<E>(
        self,
        part: Range<usize>,
        mut visit: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        debug_assert!(part.start.is_multiple_of(BLOCK) && part.end <= self.count);
        let mut codes = [0; BLOCK];
        for first in part.clone().step_by(BLOCK) {
            let some = &mut codes[..BLOCK.min(part.end - first)];
            let start = first / 8 * self.width as usize;
            self.unpack(&self.bytes[start..], some);
            visit(first, some)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn unpack(self, bytes: &[u8], codes: &mut [u8]) {
        match self.width {
            1 => unpack::<1>(bytes, codes),
            2 => unpack::<2>(bytes, codes),
            3 => unpack::<3>(bytes, codes),
            4 => unpack::<4>(bytes, codes),
            5 => unpack::<5>(bytes, codes),
            6 => unpack::<6>(bytes, codes),
            7 => unpack::<7>(bytes, codes),
            _ => codes.copy_from_slice(&bytes[..codes.len()]),
        }
    }
}

#[inline(always)]
fn unpack<const WIDTH: usize>(bytes: &[u8], codes: &mut [u8]) {
    let (eights, rest) = codes.as_chunks_mut::<8>();
    let (words, tail) = bytes.as_chunks::<WIDTH>();
    for (eight, word) in eights.iter_mut().zip(words) {
        let mut padded = [0; 8];
        padded[..WIDTH].copy_from_slice(word);
        *eight = spread::<WIDTH>(u64::from_le_bytes(padded));
    }
    let mut padded = [0; 8];
    let tail = words.get(eights.len()).map_or(tail, |word| word.as_slice());
    padded[..tail.len()].copy_from_slice(tail);
    rest.copy_from_slice(&spread::<WIDTH>(u64::from_le_bytes(padded))[..rest.len()]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::bits::BitWriter;
    use super::*;

    fn unpacked(bytes: &[u8], count: usize, width: u32) -> Read<Vec<u8>> {
        let mut codes = Vec::new();
        expect(bytes, count, width)?.each_block(|first, some| {
            assert_eq!(first, codes.len());
            codes.extend_from_slice(some);
            Ok(())
        })?;
        Ok(codes)
    }

    proptest! {
        #[test]
        fn codes_lie_as_a_bit_writer_puts_them_and_come_back(
            numbers in proptest::collection::vec(any::<u8>(), 0..3000), width in 1u32..=8,
        ) {
            let codes: Vec<u8> = numbers.iter().map(|code| code >> (8 - width)).collect();
            let mut packed = Vec::new();
            let whole = codes.len() / 16 * 8;
            put(&codes[..whole], width, &mut packed);
            put(&codes[whole..], width, &mut packed);
            let mut naive = Vec::new();
            let mut writer = BitWriter::new(&mut naive);
            codes.iter().for_each(|code| writer.put(u64::from(*code), width));
            writer.finish();
            prop_assert_eq!(&packed, &naive);
            let read = expect(&packed, codes.len(), width).unwrap();
            let each = (0..=codes.len()).map_while(|number| read.get(number));
            prop_assert_eq!(each.collect::<Vec<_>>(), codes.clone());
            prop_assert_eq!(unpacked(&packed, codes.len(), width), Ok(codes));
        }
    }

    #[test]
    fn wrong_lengths_and_set_padding_are_refused() {
        assert!(matches!(unpacked(&[0; 3], 8, 2), Err(Fault::Length { expected: 2, found: 3 })));
        assert!(matches!(unpacked(&[0b1000], 3, 1), Err(Fault::Field { field: "padding", .. })));
        assert_eq!(unpacked(&[0b101], 3, 1), Ok(vec![1, 0, 1]));
        assert_eq!(unpacked(&[], 0, 5), Ok(vec![]));
    }
}
