//! Numbers of any width, packed: least significant bit first, the last byte filled with zeros.

use super::{Fault, Read};

/// Bits that one [`BitWriter::put`] or [`BitReader::take`] may move.
pub(crate) const MAX_WIDTH: u32 = 56;

/// Appends numbers of any width to bytes.
#[derive(Debug)]
pub(crate) struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Bits not written yet, the first in the lowest place; the rest is zero.
    pending: u64,
    /// How many, less than 64.
    count: u32,
}

impl<'a> BitWriter<'a> {
    /// Starts at a byte boundary.
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, pending: 0, count: 0 }
    }

    /// Appends the lowest `width` bits of `value`, whose other bits are zero. At most
    /// 56 bits.
    pub(crate) fn put(&mut self, value: u64, width: u32) {
        debug_assert!(width <= MAX_WIDTH && value >> width == 0);
        self.pending |= value << self.count;
        self.count += width;
        if self.count >= u64::BITS {
            self.out.extend_from_slice(&self.pending.to_le_bytes());
            self.count -= u64::BITS;
            self.pending = value.checked_shr(width - self.count).unwrap_or(0);
        }
    }

    /// Appends `ones` set bits and a clear one.
    pub(crate) fn put_unary(&mut self, mut ones: u64) {
        const MOST: u32 = 32;
        while ones >= u64::from(MOST) {
            self.put((1 << MOST) - 1, MOST);
            ones -= u64::from(MOST);
        }
        self.put((1 << ones) - 1, ones as u32 + 1);
    }

    /// Fills the last byte with zeros.
    pub(crate) fn finish(self) {
        let bytes = self.count.div_ceil(8) as usize;
        self.out.extend_from_slice(&self.pending.to_le_bytes()[..bytes]);
    }
}

/// Takes numbers of any width from bytes.
#[derive(Debug, Clone)]
pub(crate) struct BitReader<'a> {
    /// Bytes not yet in `pending`.
    bytes: &'a [u8],
    /// All bytes, for saying how many were used.
    total: usize,
    pending: u64,
    count: u32,
}

impl<'a> BitReader<'a> {
    /// Starts at the first bit of the first byte.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, total: bytes.len(), pending: 0, count: 0 }
    }

    /// Holds at least 56 bits afterwards, or all that are left.
    fn refill(&mut self) {
        if let Some(next) = self.bytes.first_chunk() {
            let more = (63 - self.count) / 8;
            self.pending |= u64::from_le_bytes(*next) << self.count;
            self.bytes = &self.bytes[more as usize..];
            self.count += 8 * more;
            self.pending &= u64::MAX >> (64 - self.count);
        } else {
            while self.count <= MAX_WIDTH
                && let Some((byte, rest)) = self.bytes.split_first()
            {
                self.pending |= u64::from(*byte) << self.count;
                self.count += 8;
                self.bytes = rest;
            }
        }
    }

    /// The next `width` bits as a number. At most 56 bits.
    pub(crate) fn take(&mut self, width: u32) -> Read<u64> {
        debug_assert!(width <= MAX_WIDTH);
        if self.count < width {
            self.refill();
            if self.count < width {
                return Err(self.truncated(width));
            }
        }
        let value = self.pending & ((1 << width) - 1);
        self.pending >>= width;
        self.count -= width;
        Ok(value)
    }

    /// The number of set bits before the next clear one, which is taken too; at most `limit`.
    pub(crate) fn take_unary(&mut self, limit: u64) -> Read<u64> {
        let mut ones = 0;
        loop {
            if self.count == 0 {
                self.refill();
                if self.count == 0 {
                    return Err(self.truncated(1));
                }
            }
            let run = self.pending.trailing_ones().min(self.count);
            ones += u64::from(run);
            if ones > limit {
                return Err(Fault::Field { field: "unary run", found: ones });
            }
            let used = (run + 1).min(self.count);
            self.pending = self.pending.checked_shr(used).unwrap_or(0);
            self.count -= used;
            if used == run + 1 {
                return Ok(ones);
            }
        }
    }

    /// Ends at a byte boundary and returns the number of bytes used.
    pub(crate) fn finish(self) -> Read<usize> {
        let padding = self.pending & ((1 << (self.count % 8)) - 1);
        if padding != 0 {
            return Err(Fault::Field { field: "padding", found: padding });
        }
        Ok(self.total - self.bytes.len() - (self.count / 8) as usize)
    }

    fn truncated(&self, width: u32) -> Fault {
        let left = self.bytes.len() + (self.count / 8) as usize;
        Fault::Truncated { needed: (width as usize).div_ceil(8).max(left + 1), left }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Packed {
        Number(u64, u32),
        Unary(u64),
    }

    fn items() -> impl Strategy<Value = Vec<Packed>> {
        let number = (any::<u64>(), 0..=MAX_WIDTH)
            .prop_map(|(value, width)| Packed::Number(value & ((1 << width) - 1), width));
        let unary = (0u64..200).prop_map(Packed::Unary);
        proptest::collection::vec(prop_oneof![4 => number, 1 => unary], 0..200)
    }

    proptest! {
        #[test]
        fn what_is_put_is_taken(items in items(), trailer in proptest::collection::vec(any::<u8>(), 0..12)) {
            let mut bytes = Vec::new();
            let mut writer = BitWriter::new(&mut bytes);
            let mut bits = 0;
            for item in &items {
                match *item {
                    Packed::Number(value, width) => { writer.put(value, width); bits += u64::from(width); }
                    Packed::Unary(ones) => { writer.put_unary(ones); bits += ones + 1; }
                }
            }
            writer.finish();
            prop_assert_eq!(bytes.len() as u64, bits.div_ceil(8));
            let length = bytes.len();
            bytes.extend_from_slice(&trailer);
            let mut reader = BitReader::new(&bytes);
            for item in &items {
                match *item {
                    Packed::Number(value, width) => prop_assert_eq!(reader.take(width), Ok(value)),
                    Packed::Unary(ones) => prop_assert_eq!(reader.take_unary(ones), Ok(ones)),
                }
            }
            prop_assert_eq!(reader.finish(), Ok(length));
        }
    }

    #[test]
    fn bits_lie_least_significant_first() {
        let mut bytes = Vec::new();
        let mut writer = BitWriter::new(&mut bytes);
        writer.put(0b101, 3);
        writer.put_unary(2);
        writer.put(0b11, 2);
        writer.put(1, 1);
        writer.finish();
        assert_eq!(bytes, [0b1101_1101, 1]);
    }

    #[test]
    fn set_padding_and_missing_bits_are_refused() {
        let mut reader = BitReader::new(&[0b0001_0000]);
        reader.take(4).unwrap();
        assert!(matches!(reader.finish(), Err(Fault::Field { field: "padding", .. })));
        assert!(matches!(
            BitReader::new(&[1]).take(9),
            Err(Fault::Truncated { needed: 2, left: 1 })
        ));
        assert!(matches!(BitReader::new(&[0xff]).take_unary(100), Err(Fault::Truncated { .. })));
        assert!(matches!(BitReader::new(&[0xff]).take_unary(3), Err(Fault::Field { .. })));
    }
}
