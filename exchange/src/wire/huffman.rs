//! Canonical Huffman codes (Huffman 1952) of up to sixteen symbols, told by their lengths alone.
//!
//! | bytes | what |
//! |---|---|
//! | ⌈symbols/2⌉ | the length of each symbol's code, 4 bits each; 0 for a symbol that does not occur |
//! | … | the codes, first bit first, the last byte filled with zeros |
//!
//! Shorter codes come first, and of equally long ones those of lower symbols. A symbol that occurs
//! alone has a code of one bit.

use super::bits::{BitReader, BitWriter};
use super::{Fault, Read, Reader, codes};

/// The most symbols: no code of so few is longer than 15 bits, whatever they occur.
pub(crate) const MAX_SYMBOLS: usize = 16;

/// The longest code.
const MAX_LENGTH: u32 = 15;

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
    pub(crate) fn of(counts: &[u64]) -> Self {
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
    pub(crate) fn put(&self, symbols: &[u8], out: &mut Vec<u8>) {
        codes::put(&self.lengths[..self.symbols], 4, out);
        let mut writer = BitWriter::new(out);
        let code = |symbol: u8| {
            let symbol = usize::from(symbol) % MAX_SYMBOLS;
            (u64::from(self.words[symbol]), u32::from(self.lengths[symbol]))
        };
        // Three codes have at most 45 bits.
        let (threes, rest) = symbols.as_chunks::<3>();
        for three in threes {
            let [(a, a_bits), (b, b_bits), (c, c_bits)] = three.map(code);
            writer.put(a | b << a_bits | c << (a_bits + b_bits), a_bits + b_bits + c_bits);
        }
        for symbol in rest {
            let (word, bits) = code(*symbol);
            writer.put(word, bits);
        }
        writer.finish();
    }
}

/// Takes `count` symbols below `symbols` from `reader`, and visits them in blocks of up to
/// [`codes::BLOCK`]: the number of the block's first, and the symbols.
///
/// # Errors
/// [`Fault::Field`] when the lengths are not those of a code or bits mean no symbol,
/// [`Fault::Truncated`]; the first that `visit` returns.
pub(crate) fn take(
    reader: &mut Reader<'_>,
    symbols: usize,
    count: usize,
    mut visit: impl FnMut(usize, &[u8]) -> Read<()>,
) -> Read<()> {
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
    // What each string of as many bits as the longest code begins with: a symbol and a length.
    let mut table = [0u8; 1 << MAX_LENGTH];
    let code = Code::from_lengths(symbols, lengths);
    for (symbol, (word, length)) in code.words.iter().zip(lengths).enumerate() {
        if length > 0 {
            let from = usize::from(*word);
            let entries = table[..1 << longest].iter_mut().skip(from).step_by(1 << length);
            entries.for_each(|entry| *entry = (symbol as u8) << 4 | length);
        }
    }
    let mut bits = BitReader::new(reader.rest());
    let mut block = [0; codes::BLOCK];
    for first in (0..count).step_by(codes::BLOCK) {
        let some = &mut block[..codes::BLOCK.min(count - first)];
        for symbol in some.iter_mut() {
            let entry = table[bits.peek(longest) as usize];
            if entry == 0 {
                return Err(Fault::Field { field: "code", found: 1 });
            }
            bits.skip(u32::from(entry & 0xf))?;
            *symbol = entry >> 4;
        }
        visit(first, some)?;
    }
    let used = bits.finish()?;
    reader.take(used)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn taken(bytes: &[u8], symbols: usize, count: usize) -> Read<Vec<u8>> {
        let (mut reader, mut found) = (Reader::new(bytes), Vec::new());
        take(&mut reader, symbols, count, |first, some| {
            assert_eq!(first, found.len());
            found.extend_from_slice(some);
            Ok(())
        })?;
        reader.finish()?;
        Ok(found)
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
            let code = Code::of(&counts);
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

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>, kinds in 1usize..=16, count in 0usize..2000) {
            let _ = taken(&bytes, kinds, count);
        }
    }

    /// Fibonacci numbers make the longest codes that sixteen symbols can have.
    #[test]
    fn the_longest_codes_come_back() {
        let mut counts = vec![1u64, 1];
        while counts.len() < 16 {
            counts.push(counts[counts.len() - 1] + counts[counts.len() - 2]);
        }
        let code = Code::of(&counts);
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
