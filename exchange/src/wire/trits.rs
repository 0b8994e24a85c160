//! Digits 0, 1, 2, five in a byte: 1.6 bits each.
//!
//! Digits go in blocks of [`BLOCK`]. The byte i of a block's m = ⌈digits/5⌉ bytes holds the digits
//! i, m + i, …, 4m + i, the first as units, the last as 81s; digits beyond the block are 0. So the
//! bytes of a block are made by adding up stretches, not by gathering neighbours.

use super::codes::BLOCK;
use super::{Fault, Read};

/// Digits in a byte.
const FIVE: usize = 5;

/// 3⁵: bytes from here on are no five digits.
const END: u8 = 243;

/// Bytes that `count` digits take.
pub(crate) fn bytes(count: usize) -> usize {
    count / BLOCK * BLOCK.div_ceil(FIVE) + (count % BLOCK).div_ceil(FIVE)
}

/// Appends digits. To append in several calls, give multiples of [`BLOCK`] in all but the last.
#[inline(always)]
pub(crate) fn put(digits: &[u8], out: &mut Vec<u8>) {
    debug_assert!(digits.iter().all(|digit| *digit < 3));
    for block in digits.chunks(BLOCK) {
        let (start, stride) = (out.len(), block.len().div_ceil(FIVE));
        out.extend_from_slice(&block[..stride]);
        let packed = &mut out[start..];
        for (power, digits) in [3, 9, 27, 81].into_iter().zip(block.chunks(stride).skip(1)) {
            for (byte, digit) in packed.iter_mut().zip(digits) {
                *byte += power * digit;
            }
        }
    }
}

/// Visits `count` digits block by block: the number of the block's first, and its digits.
#[inline(always)]
pub(crate) fn each_block(
    bytes: &[u8],
    count: usize,
    mut visit: impl FnMut(usize, &[u8]) -> Read<()>,
) -> Read<()> {
    let expected = self::bytes(count);
    if bytes.len() != expected {
        return Err(Fault::Length { expected, found: bytes.len() });
    }
    const STRIDE: usize = BLOCK.div_ceil(FIVE);
    let mut digits = [0; FIVE * STRIDE];
    for (block, packed) in bytes.chunks(STRIDE).enumerate() {
        let first = block * BLOCK;
        let some = BLOCK.min(count - first);
        let highest = packed.iter().fold(0, |most: u8, byte| most.max(*byte));
        if highest >= END {
            return Err(Fault::Field { field: "digits", found: highest.into() });
        }
        for (power, digits) in [1, 3, 9, 27, 81].into_iter().zip(digits.chunks_mut(packed.len())) {
            unpack(power, packed, digits);
        }
        if digits[some..FIVE * packed.len()].iter().any(|digit| *digit != 0) {
            return Err(Fault::Field { field: "padding", found: 1 });
        }
        visit(first, &digits[..some])?;
    }
    Ok(())
}

/// The digit of one power in every byte. Multiplying by ⌈2¹⁵/power⌉ divides: exactly, below 243.
#[inline(always)]
fn unpack(power: u16, packed: &[u8], digits: &mut [u8]) {
    let divide = |number: u16, by: u16| {
        ((u32::from(number) * u32::from((1u16 << 15).div_ceil(by))) >> 15) as u16
    };
    for (digit, byte) in digits.iter_mut().zip(packed) {
        let shifted = divide(u16::from(*byte), power);
        *digit = (shifted - 3 * divide(shifted, 3)) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpacked(bytes: &[u8], count: usize) -> Read<Vec<u8>> {
        let mut digits = Vec::new();
        each_block(bytes, count, |first, some| {
            assert_eq!(first, digits.len());
            digits.extend_from_slice(some);
            Ok(())
        })?;
        Ok(digits)
    }

    #[test]
    fn every_byte_is_its_five_digits_in_base_three() {
        for byte in 0..END {
            let digits = unpacked(&[byte], 5).unwrap();
            let value = digits.iter().rev().fold(0, |value, digit| 3 * value + u32::from(*digit));
            assert_eq!(value, u32::from(byte));
        }
        assert!(matches!(unpacked(&[END], 5), Err(Fault::Field { field: "digits", .. })));
        assert!(matches!(unpacked(&[81], 4), Err(Fault::Field { field: "padding", .. })));
        assert!(matches!(unpacked(&[0], 6), Err(Fault::Length { expected: 2, found: 1 })));
    }
}
