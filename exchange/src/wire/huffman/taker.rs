//! Symbols from the bits of a message, several at a lookup.

use super::Code;
use crate::wire::{Fault, Read, codes};

/// How many symbols some bits begin with.
#[derive(Debug, Clone, Copy, Default)]
struct Begin {
    /// Symbols, up to eight; 0 where the bits end before the first does, or mean nothing.
    count: u8,
    /// The bits of their codes.
    bits: u8,
}

/// Lookups between two looks at where the bytes end: together at most 55 bits, and 56 are known then.
const LOOKUPS: usize = 5;

/// Symbols that may be taken beyond those asked for.
pub(super) const AHEAD: usize = 8 * LOOKUPS;

/// Bits that have been read ahead.
///
/// Which bytes to read next depends only on how many bits were known, not on the results of the lookups: so bytes are
/// read while lookups wait for each other (Giesen 2018, "Reading bits in far too many ways", variant 4).
struct Ahead<'a> {
    bytes: &'a [u8],
    /// The byte whose first bit comes right behind the known ones.
    next: usize,
    /// The bits, the first in the lowest place; those behind the known ones are right too, or 0.
    word: u64,
    /// How many are known.
    known: u32,
}

impl<'a> Ahead<'a> {
    /// From the bit number `at` on; `None` where fewer than eight bytes are left.
    fn new(bytes: &'a [u8], at: usize) -> Option<Self> {
        let mut bits = Self { bytes, next: at / 8, word: 0, known: 0 };
        bits.refill()?;
        bits.word >>= at % 8;
        bits.known -= (at % 8) as u32;
        Some(bits)
    }

    /// Makes 56 bits known, or some more; `None`, and nothing changed, where fewer than eight bytes are left.
    #[inline(always)]
    fn refill(&mut self) -> Option<()> {
        let more = self.bytes.get(self.next..)?.first_chunk()?;
        self.word |= u64::from_le_bytes(*more) << self.known;
        self.next += (63 - self.known as usize) / 8;
        self.known |= 56;
        Some(())
    }

    /// The number of the first bit.
    fn at(&self) -> usize {
        8 * self.next - self.known as usize
    }
}

/// Takes symbols from bits.
pub(super) struct Taker<'a, const FIRST: usize, const SEVERAL: usize> {
    bytes: &'a [u8],
    /// The next bit.
    at: usize,
    longest: u32,
    /// What each string of as many bits as the longest code begins with: a symbol and a length.
    first: [u8; FIRST],
    /// What each bit string begins with, for every length up to the window's: the entries of strings
    /// of w bits start at 2^w.
    several: [Begin; SEVERAL],
    /// The symbols themselves, a byte each, the first in the lowest. They lie apart because the next
    /// lookup waits for `several` only, which is small enough to stay in the first cache.
    symbols: [u64; SEVERAL],
}

impl<'a, const FIRST: usize, const SEVERAL: usize> Taker<'a, FIRST, SEVERAL> {
    /// How many strings are looked up in: 2 to the power of the bits that are looked up at a time.
    const STRINGS: usize = SEVERAL / 2;

    pub(super) fn new(code: &Code, longest: u32, bytes: &'a [u8]) -> Self {
        let mut first = [0u8; FIRST];
        for (symbol, (word, length)) in code.words.iter().zip(code.lengths).enumerate() {
            if length > 0 {
                let from = usize::from(*word);
                let entries = first[..1 << longest].iter_mut().skip(from).step_by(1 << length);
                entries.for_each(|entry| *entry = (symbol as u8) << 4 | length);
            }
        }
        let (mut several, mut symbols) = ([Begin::default(); SEVERAL], [0; SEVERAL]);
        for width in 1..=Self::STRINGS.ilog2() {
            for string in 0..1usize << width {
                let entry = first[string & ((1 << longest) - 1)];
                let (symbol, length) = (u64::from(entry >> 4), u32::from(entry & 0xf));
                if length == 0 || length > width {
                    continue;
                }
                // What follows the first symbol is a shorter string, whose entry is known.
                let rest = (1 << (width - length)) + (string >> length);
                let (mut begin, mut following) = (several[rest], symbols[rest]);
                if begin.count == 8 {
                    // The last makes room.
                    let last = (following >> 56) as usize;
                    begin = Begin { count: 7, bits: begin.bits - code.lengths[last] };
                    following &= u64::MAX >> 8;
                }
                several[(1 << width) + string] =
                    Begin { count: begin.count + 1, bits: begin.bits + length as u8 };
                symbols[(1 << width) + string] = symbol | following << 8;
            }
        }
        Self { bytes, at: 0, longest, first, several, symbols }
    }

    /// Fills `block` from `ready` on, until it holds `wanted` symbols or some more; at most `left` of
    /// the message, from the block's first on. Returns how many it holds.
    ///
    /// One by one ([`next`](Self::next)), each symbol waits for the length of the last. Looked up
    /// together, all that end within a window wait once.
    #[inline(always)]
    pub(super) fn fill(
        &mut self,
        block: &mut [u8; codes::BLOCK + AHEAD],
        ready: usize,
        wanted: usize,
        left: usize,
    ) -> Read<usize> {
        let mut held = ready;
        let mut ahead = Ahead::new(self.bytes, self.at);
        while held < wanted && left - held >= AHEAD {
            let Some(bits) = &mut ahead else { break };
            if bits.refill().is_none() {
                break;
            }
            let before = held;
            for _ in 0..LOOKUPS {
                let string = Self::STRINGS + (bits.word as usize & (Self::STRINGS - 1));
                let begin = self.several[string];
                block[held..held + 8].copy_from_slice(&self.symbols[string].to_le_bytes());
                held += usize::from(begin.count);
                bits.word >>= begin.bits;
                bits.known -= u32::from(begin.bits);
            }
            if held == before {
                self.at = bits.at();
                block[held] = self.next()?;
                held += 1;
                ahead = Ahead::new(self.bytes, self.at);
            }
        }
        self.at = ahead.map_or(self.at, |bits| bits.at());
        while held < wanted {
            block[held] = self.next()?;
            held += 1;
        }
        Ok(held)
    }

    /// The next symbol.
    pub(super) fn next(&mut self) -> Read<u8> {
        let rest = self.bytes.get(self.at / 8..).unwrap_or_default();
        let mut padded = [0; 4];
        let some = rest.len().min(4);
        padded[..some].copy_from_slice(&rest[..some]);
        let string = u32::from_le_bytes(padded) >> (self.at % 8) & ((1 << self.longest) - 1);
        let entry = self.first[string as usize];
        if entry == 0 {
            return Err(Fault::Field { field: "code", found: 1 });
        }
        self.at += usize::from(entry & 0xf);
        if self.at > 8 * self.bytes.len() {
            let left = rest.len();
            return Err(Fault::Truncated { needed: left + 1, left });
        }
        Ok(entry >> 4)
    }

    /// Ends at a byte boundary and returns the number of bytes used.
    pub(super) fn finish(&self) -> Read<usize> {
        let used = self.at.div_ceil(8);
        let last = self.bytes[..used].last().copied().unwrap_or(0);
        let padding = if self.at.is_multiple_of(8) { 0 } else { last >> (self.at % 8) };
        if padding != 0 {
            return Err(Fault::Field { field: "padding", found: padding.into() });
        }
        Ok(used)
    }
}
