//! Canonical Huffman codes (Huffman 1952) of up to sixteen symbols, told by their lengths alone.
//!
//! | bytes | what |
//! |---|---|
//! | ⌈symbols/2⌉ | the length of each symbol's code, 4 bits each; 0 for a symbol that does not occur |
//! | … | the codes, first bit first, the last byte filled with zeros |
//!
//! Shorter codes come first, and of equally long ones those of lower symbols. A symbol that occurs
//! alone has a code of one bit.

mod taker;

use std::ops::Range;

use taker::{AHEAD, Taker};

use super::{Fault, Read, Reader, codes};
use crate::simd::wide;

/// The most symbols: no code of so few is longer than 15 bits, whatever they occur.
pub(crate) const MAX_SYMBOLS: usize = 16;

/// The longest code.
const MAX_LENGTH: u32 = 15;

/// A code that is no longer than this needs a small table.
const SHORT: u32 = 8;

/// A code: what each symbol becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code {
    symbols: usize,
    lengths: [u8; MAX_SYMBOLS],
    /// The bits of each code, the first in the lowest place.
    words: [u16; MAX_SYMBOLS],
}

impl Code {
    /// The best code for symbols that occur so often. At most [`MAX_SYMBOLS`].
    pub(crate) fn new(counts: &[u64]) -> Self {
        debug_assert!(counts.len() <= MAX_SYMBOLS);
        let mut lengths = [0u8; MAX_SYMBOLS];
        // Trees not joined yet: how often their symbols occur together, and which they are.
        let mut trees = [(u64::MAX, 0u16); MAX_SYMBOLS];
        let mut left = 0;
        for (symbol, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            trees[left] = (*count, 1 << symbol);
            left += 1;
        }
        if left == 1 {
            lengths[trees[0].1.trailing_zeros() as usize] = 1;
        }
        while left > 1 {
            let trees = &mut trees[..left];
            trees.sort_unstable_by_key(|(count, set)| (std::cmp::Reverse(*count), *set));
            let [a, b] = [trees[left - 2], trees[left - 1]];
            for (symbol, length) in lengths.iter_mut().enumerate() {
                *length += u8::from((a.1 | b.1) >> symbol & 1 == 1);
            }
            trees[left - 2] = (a.0 + b.0, a.1 | b.1);
            left -= 1;
        }
        Self::from_lengths(counts.len(), lengths)
    }

    fn from_lengths(symbols: usize, lengths: [u8; MAX_SYMBOLS]) -> Self {
        let mut words = [0; MAX_SYMBOLS];
        let mut next = 0u32;
        for length in 1..=MAX_LENGTH {
            next <<= 1;
            for (word, _) in words.iter_mut().zip(lengths).filter(|(_, l)| u32::from(*l) == length)
            {
                *word = (next as u16).reverse_bits() >> (16 - length);
                next += 1;
            }
        }
        Self { symbols, lengths, words }
    }

    /// Bytes of a message in which symbols occur so often.
    pub(crate) fn bytes(&self, counts: &[u64]) -> u64 {
        let bits = counts.iter().zip(self.lengths).map(|(count, length)| count * u64::from(length));
        codes::bytes(self.symbols, 4) as u64 + bits.sum::<u64>().div_ceil(8)
    }

    /// Appends the lengths and the codes of `symbols`, each of which was counted.
    ///
    /// Appended one by one, each code would have to wait for where the last ended. Instead, a table
    /// gives the bits of several packed symbols at once, and 56 bits are written without a check
    /// whether there are that many.
    pub(crate) fn put(&self, symbols: &[u8], out: &mut Vec<u8>) {
        codes::put(&self.lengths[..self.symbols], 4, out);
        let longest = self.lengths.iter().copied().max().unwrap_or(0);
        match (self.symbols, longest) {
            // Four codes of a group have at most 12 bits, and four groups 48.
            (..=4, _) => self.put_groups::<2, 4>(symbols, out),
            // Two codes of a group have at most 14 bits, and four groups 56.
            (_, ..=7) => self.put_groups::<4, 4>(symbols, out),
            // Two codes of a group have at most 30 bits.
            _ => self.put_groups::<4, 1>(symbols, out),
        }
    }

    /// Appends the codes, `JOINED` bytes of packed symbols, `WIDTH` bits each, at a time.
    fn put_groups<const WIDTH: usize, const JOINED: usize>(
        &self,
        symbols: &[u8],
        out: &mut Vec<u8>,
    ) {
        let table = self.groups::<WIDTH>();
        let mut packed = [0; codes::BLOCK / 2];
        let mut bytes = [0; codes::BLOCK / 8 * MAX_LENGTH as usize + 16];
        // Bits that are no whole byte yet, the first in the lowest place, and how many.
        let (mut pending, mut count) = (0u64, 0);
        for block in symbols.chunks(codes::BLOCK) {
            let packed = &mut packed[..block.len() * WIDTH / 8];
            codes::pack::<WIDTH>(block, packed);
            let mut at = 0;
            let (joined, alone) = packed.as_chunks::<JOINED>();
            let mut append = |word: u64, bits: u32| {
                pending |= word << count;
                count += bits;
                bytes[at..at + 8].copy_from_slice(&pending.to_le_bytes());
                at += count as usize / 8;
                pending >>= count & !7;
                count %= 8;
            };
            for groups in joined {
                let (mut word, mut bits) = (0, 0);
                for group in groups {
                    let CodeRun { word: next, bits: more } = table[usize::from(*group)];
                    word |= u64::from(next) << bits;
                    bits += more;
                }
                append(word, bits);
            }
            for group in alone {
                let CodeRun { word, bits } = table[usize::from(*group)];
                append(u64::from(word), bits);
            }
            for symbol in &block[packed.len() * 8 / WIDTH..] {
                let symbol = usize::from(*symbol) % MAX_SYMBOLS;
                append(u64::from(self.words[symbol]), u32::from(self.lengths[symbol]));
            }
            out.extend_from_slice(&bytes[..at]);
        }
        if count > 0 {
            out.push(pending as u8);
        }
    }

    /// What each byte of packed symbols becomes.
    fn groups<const WIDTH: usize>(&self) -> [CodeRun; 256] {
        std::array::from_fn(|packed| {
            let mut group = CodeRun::default();
            for place in (0..8).step_by(WIDTH) {
                let symbol = packed >> place & ((1 << WIDTH) - 1);
                group.word |= u32::from(self.words[symbol]) << group.bits;
                group.bits += u32::from(self.lengths[symbol]);
            }
            group
        })
    }
}

/// The codes of some symbols, end to end.
#[derive(Debug, Clone, Copy, Default)]
struct CodeRun {
    word: u32,
    bits: u32,
}

/// Takes `count` symbols below `symbols` from `reader`, and visits those of `part`, which begins at a
/// multiple of [`codes::BLOCK`], in blocks of up to so many: the number of the block's first, and the
/// symbols. What follows the part is not looked at.
pub(crate) fn take(
    reader: &mut Reader<'_>,
    symbols: usize,
    count: usize,
    part: Range<usize>,
    visit: impl FnMut(usize, &[u8]) -> Read<()>,
) -> Read<()> {
    debug_assert!(part.start.is_multiple_of(codes::BLOCK) && part.end <= count);
    let mut lengths = [0u8; MAX_SYMBOLS];
    let packed = reader.take(codes::bytes(symbols, 4))?;
    codes::expect(packed, symbols, 4)?.each_block(|_, some| {
        lengths[..some.len()].copy_from_slice(some);
        Ok(())
    })?;
    let longest = lengths.iter().copied().max().map_or(0, u32::from);
    // Shares of all bit strings that the codes take, in units of the shortest.
    let share = |length: &u8| if *length == 0 { 0 } else { 1u32 << (longest - u32::from(*length)) };
    let taken: u32 = lengths.iter().map(share).sum();
    let alone = longest == 1 && taken == 1;
    match (longest, count) {
        (0, 0) => return Ok(()),
        (1.., _) if taken == 1 << longest || alone => {}
        _ => return Err(Fault::Field { field: "code lengths", found: taken.into() }),
    }
    let code = Code::from_lengths(symbols, lengths);
    let wanted = Wanted { code: &code, longest, count, part };
    // A table for more bits takes longer to fill than it saves where symbols are few.
    match (longest, wanted.part.end) {
        (..=SHORT, ..4096) => take_by::<{ 1 << SHORT }, { 2 << 6 }>(reader, wanted, visit),
        (..=SHORT, ..131_072) => take_by::<{ 1 << SHORT }, { 2 << 9 }>(reader, wanted, visit),
        (..=SHORT, _) => take_by::<{ 1 << SHORT }, { 2 << 11 }>(reader, wanted, visit),
        (_, ..131_072) => take_by::<{ 1 << MAX_LENGTH }, { 2 << 9 }>(reader, wanted, visit),
        _ => take_by::<{ 1 << MAX_LENGTH }, { 2 << 11 }>(reader, wanted, visit),
    }
}

/// What is to be taken.
struct Wanted<'a> {
    code: &'a Code,
    /// Bits of its longest code.
    longest: u32,
    count: usize,
    part: Range<usize>,
}

/// [`take`] with `FIRST` table entries for strings as long as the longest code, and `SEVERAL` for
/// strings up to a window's length.
fn take_by<const FIRST: usize, const SEVERAL: usize>(
    reader: &mut Reader<'_>,
    wanted: Wanted<'_>,
    mut visit: impl FnMut(usize, &[u8]) -> Read<()>,
) -> Read<()> {
    let Wanted { code, longest, count, part } = wanted;
    let mut taker = Taker::<FIRST, SEVERAL>::new(code, longest, reader.rest());
    let mut block = [0; codes::BLOCK + AHEAD];
    // Symbols of the block that were taken with those of the block before.
    let mut ready = 0;
    for first in (0..part.end).step_by(codes::BLOCK) {
        let length = codes::BLOCK.min(part.end - first);
        ready = wide!(taker.fill(&mut block, ready, length, count - first))?;
        if first >= part.start {
            visit(first, &block[..length])?;
        }
        block.copy_within(codes::BLOCK.., 0);
        ready = ready.saturating_sub(codes::BLOCK);
    }
    let used = if part.end == count { taker.finish()? } else { reader.rest().len() };
    reader.take(used)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn taken(bytes: &[u8], symbols: usize, count: usize) -> Read<Vec<u8>> {
        let (mut reader, mut found) = (Reader::new(bytes), Vec::new());
        take(&mut reader, symbols, count, 0..count, |first, some| {
            assert_eq!(first, found.len());
            found.extend_from_slice(some);
            Ok(())
        })?;
        reader.finish()?;
        Ok(found)
    }

    /// The same by tables of these sizes, of codes behind their lengths.
    fn taken_by<const FIRST: usize, const SEVERAL: usize>(
        code: &Code,
        codes: &[u8],
        count: usize,
    ) -> Vec<u8> {
        let (mut reader, mut found) = (Reader::new(codes), Vec::new());
        let longest = code.lengths.iter().copied().max().unwrap_or(0).into();
        let wanted = Wanted { code, longest, count, part: 0..count };
        take_by::<FIRST, SEVERAL>(&mut reader, wanted, |_, some| {
            found.extend_from_slice(some);
            Ok(())
        })
        .unwrap();
        found
    }

    fn counted(symbols: &[u8], kinds: usize) -> Vec<u64> {
        let mut counts = vec![0; kinds];
        symbols.iter().for_each(|symbol| counts[usize::from(*symbol)] += 1);
        counts
    }

    proptest! {
        #[test]
        fn what_is_put_is_taken(
            draws in proptest::collection::vec(any::<u16>(), 0..3000), kinds in 1usize..=16, skew in 0u32..16,
        ) {
            let symbols: Vec<u8> = draws
                .iter()
                .map(|draw| (draw.leading_zeros().min(skew) + u32::from(draw & 3)) as u8 % kinds as u8)
                .collect();
            let counts = counted(&symbols, kinds);
            let code = Code::new(&counts);
            let mut bytes = Vec::new();
            code.put(&symbols, &mut bytes);
            prop_assert_eq!(bytes.len() as u64, code.bytes(&counts));
            // Within a bit of the entropy of each symbol.
            let n = symbols.len() as f64;
            let entropy: f64 = counts
                .iter()
                .filter(|count| **count > 0)
                .map(|count| *count as f64 * (n / *count as f64).log2())
                .sum();
            prop_assert!(8.0 * bytes.len() as f64 <= entropy + n + 80.0);
            prop_assert_eq!(taken(&bytes, kinds, symbols.len()), Ok(symbols));
        }

        /// Symbols taken together are those taken one by one, and parts are parts of the whole.
        #[test]
        fn parts_are_those_of_symbols_taken_one_by_one(
            draws in proptest::collection::vec(any::<u16>(), 1..6000), kinds in 1usize..=16,
            skew in 0u32..16, from in 0usize..6, to in 0usize..6000,
        ) {
            let symbols: Vec<u8> = draws
                .iter()
                .map(|draw| (draw.leading_zeros().min(skew) + u32::from(draw & 1)) as u8 % kinds as u8)
                .collect();
            let code = Code::new(&counted(&symbols, kinds));
            let mut bytes = Vec::new();
            code.put(&symbols, &mut bytes);
            let longest = code.lengths.iter().copied().max().unwrap_or(0);
            let codes = &bytes[codes::bytes(kinds, 4)..];
            if u32::from(longest) <= SHORT {
                prop_assert_eq!(&taken_by::<256, { 2 << 6 }>(&code, codes, symbols.len()), &symbols);
                prop_assert_eq!(&taken_by::<256, { 2 << 9 }>(&code, codes, symbols.len()), &symbols);
                prop_assert_eq!(&taken_by::<256, { 2 << 11 }>(&code, codes, symbols.len()), &symbols);
            }
            prop_assert_eq!(&taken_by::<32_768, { 2 << 9 }>(&code, codes, symbols.len()), &symbols);
            prop_assert_eq!(&taken_by::<32_768, { 2 << 11 }>(&code, codes, symbols.len()), &symbols);
            let mut taker = Taker::<{ 1 << MAX_LENGTH }, { 2 << 11 }>::new(&code, longest.into(), codes);
            for symbol in &symbols {
                prop_assert_eq!(taker.next(), Ok(*symbol));
            }
            let from = (codes::BLOCK * from).min(symbols.len() / codes::BLOCK * codes::BLOCK);
            let part = from..to.clamp(from, symbols.len());
            let (mut reader, mut found) = (Reader::new(&bytes), Vec::new());
            take(&mut reader, kinds, symbols.len(), part.clone(), |first, some| {
                assert_eq!(first, part.start + found.len());
                found.extend_from_slice(some);
                Ok(())
            })
            .unwrap();
            prop_assert_eq!(reader.finish(), Ok(()));
            prop_assert_eq!(found, &symbols[part]);
        }
    }

    /// Fibonacci numbers make the longest codes that sixteen symbols can have.
    #[test]
    fn the_longest_codes_come_back() {
        let mut counts = vec![1u64, 1];
        while counts.len() < 16 {
            counts.push(counts[counts.len() - 1] + counts[counts.len() - 2]);
        }
        let code = Code::new(&counts);
        assert_eq!(code.lengths.iter().max(), Some(&15));
        let symbols: Vec<u8> = (0..16).chain((0..16).rev()).collect();
        let mut bytes = Vec::new();
        code.put(&symbols, &mut bytes);
        assert_eq!(taken(&bytes, 16, 32), Ok(symbols));
    }

    #[test]
    fn lengths_that_are_no_code_and_bits_that_are_none_are_refused() {
        assert!(matches!(taken(&[0x11, 0x01, 0], 4, 2), Err(Fault::Field { .. })));
        assert!(matches!(taken(&[0x00, 0x00, 0], 4, 2), Err(Fault::Field { .. })));
        assert!(matches!(
            taken(&[0x01, 0x00, 0b10], 4, 2),
            Err(Fault::Field { field: "code", .. })
        ));
        assert!(matches!(taken(&[0x11], 2, 9), Err(Fault::Truncated { .. })));
        assert_eq!(taken(&[0x11, 0b10], 2, 2), Ok(vec![0, 1]));
    }
}
