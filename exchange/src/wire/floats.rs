//! Plain f32 values on the wire, at the speed of memory.
//!
//! Loops run over blocks that stay in the first cache, so that checking, adding and scaling cost
//! no further pass over memory.

use std::ops::Range;
use std::sync::LazyLock;

use crc32fast::Hasher;

use super::frame::checksum;
use super::{Fault, Read};

/// Elements of which a loop checks or adds up some at a time: 8 KiB.
const CHUNK: usize = 2048;

/// 1 when a value is NaN or infinite, else 0: what loops can or together.
#[inline]
fn special(value: f32) -> u32 {
    const EXPONENT: u32 = 0x7f80_0000;
    u32::from(value.to_bits() & EXPONENT == EXPONENT)
}

/// Whether no value is NaN or infinite.
pub fn all_finite(values: &[f32]) -> bool {
    values.chunks(CHUNK).all(|block| block.iter().fold(0, |any, value| any | special(*value)) == 0)
}

/// The first value of a mean that is NaN or infinite, if one is, as the fault that it is.
pub fn fault_of_mean(written: &[[u8; 4]]) -> Option<Fault> {
    let special = |bytes: &[u8; 4]| special(f32::from_le_bytes(*bytes));
    // Looks at all of them without a branch, and for the first one only where there is one.
    if written.iter().fold(0, |any, bytes| any | special(bytes)) == 0 {
        return None;
    }
    let found = written.iter().find(|bytes| special(bytes) != 0)?;
    Some(Fault::Field { field: "mean", found: u32::from_le_bytes(*found).into() })
}

/// Position of the first value that is NaN or infinite.
pub fn first_non_finite(values: &[f32]) -> Option<usize> {
    let block = values.chunks(CHUNK).position(|block| !all_finite(block))?;
    let start = block * CHUNK;
    let within = values[start..].iter().position(|value| !value.is_finite())?;
    Some(start + within)
}

/// Overwrites values by those that were written.
pub fn copy(written: &[[u8; 4]], values: &mut [f32]) {
    values.iter_mut().zip(written).for_each(|(value, bytes)| *value = f32::from_le_bytes(*bytes));
}

/// Appends values as they are.
pub fn put(values: &[f32], out: &mut Vec<u8>) {
    out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

/// Elements that are computed, checked, written and summed up while the first cache holds them.
const PIECE: usize = 1024;

/// The checksum of a piece of zeros.
static ZEROS: LazyLock<Hasher> = LazyLock::new(|| checksum(&[0; size_of::<f32>() * PIECE]));

/// Appends values as they are, and returns their checksum if all of them are finite. Elements that
/// `are_zero` are written without being read.
pub fn put_checked(
    values: &[f32],
    are_zero: impl Fn(Range<usize>) -> bool,
    out: &mut Vec<u8>,
) -> Option<Hasher> {
    let mut checksum = Hasher::new();
    out.reserve(size_of_val(values));
    for (number, piece) in values.chunks(PIECE).enumerate() {
        let start = number * PIECE;
        let zero = are_zero(start..start + piece.len());
        if !zero && !all_finite(piece) {
            return None;
        }
        put_piece(piece, zero, out, &mut checksum);
    }
    Some(checksum)
}

/// Appends the sum of all parts, which are equally long, added in their order, times `scale`; its
/// checksum, or the first element that is not finite. Each part is read once.
pub fn put_mean(parts: &[&[[u8; 4]]], scale: f32, out: &mut Vec<u8>) -> Result<Hasher, usize> {
    let mut checksum = Hasher::new();
    let mut block = [0.0; PIECE];
    let length = parts.first().map_or(0, |part| part.len());
    out.reserve(size_of::<f32>() * length);
    for start in (0..length).step_by(PIECE) {
        let piece = start..length.min(start + PIECE);
        let mean = &mut block[..piece.len()];
        if !mean_of_each(parts.len(), |part| &parts[part][piece.clone()], scale, mean) {
            return Err(start + first_non_finite(mean).unwrap_or(0));
        }
        put_piece(mean, is_zero(mean), out, &mut checksum);
    }
    Ok(checksum)
}

/// Appends a piece and adds it to the checksum; one of zeros, of which the gradient of a table is
/// full, by what is known of it.
fn put_piece(piece: &[f32], zero: bool, out: &mut Vec<u8>, checksum: &mut Hasher) {
    let start = out.len();
    if zero && piece.len() == PIECE {
        out.resize(start + size_of_val(piece), 0);
        checksum.combine(&ZEROS);
    } else {
        put(piece, out);
        checksum.update(&out[start..]);
    }
}

/// Whether all bits of all values are 0.
fn is_zero(values: &[f32]) -> bool {
    values.iter().fold(0, |any, value| any | value.to_bits()) == 0
}

/// The bytes as f32 values of known number.
pub fn expect(bytes: &[u8], length: usize) -> Read<&[[u8; 4]]> {
    match bytes.as_chunks() {
        (values, []) if values.len() == length => Ok(values),
        _ => Err(Fault::Length { expected: length * size_of::<f32>(), found: bytes.len() }),
    }
}

/// Adds `weight` times each value to the sum at the same position.
pub fn add(values: &[[u8; 4]], weight: f32, sum: &mut [f32]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += weight * f32::from_le_bytes(*value);
    }
}

/// Overwrites `mean` with the sum of all parts, added in their order, times `scale`, in one pass
/// over memory. Tells whether every mean is finite.
pub fn mean_of(parts: &[&[[u8; 4]]], scale: f32, mean: &mut [f32]) -> bool {
    let mut finite = true;
    for (number, mean) in mean.chunks_mut(CHUNK).enumerate() {
        let block = number * CHUNK..number * CHUNK + mean.len();
        finite &= mean_of_each(parts.len(), |part| &parts[part][block.clone()], scale, mean);
    }
    finite
}

/// The same of a block that stays in the first cache, of so many parts.
fn mean_of_each<'a>(
    parts: usize,
    part: impl Fn(usize) -> &'a [[u8; 4]],
    scale: f32,
    mean: &mut [f32],
) -> bool {
    if parts == 0 {
        return true;
    }
    for (mean, value) in mean.iter_mut().zip(part(0)) {
        *mean = f32::from_le_bytes(*value);
    }
    if parts == 1 {
        return scale_checked(mean, scale);
    }
    for middle in 1..parts - 1 {
        for (mean, value) in mean.iter_mut().zip(part(middle)) {
            *mean += f32::from_le_bytes(*value);
        }
    }
    let mut any = 0;
    for (mean, value) in mean.iter_mut().zip(part(parts - 1)) {
        *mean = (*mean + f32::from_le_bytes(*value)) * scale;
        any |= special(*mean);
    }
    any == 0
}

/// Multiplies every value by `scale` and tells whether all of them are finite then. What is all
/// zeros is only read: a sparse mean costs no pass of writing.
pub fn scale_checked(values: &mut [f32], scale: f32) -> bool {
    /// Elements that are looked at, and then changed while the first cache holds them.
    const PIECE: usize = 64;
    let scaled = |any: u32, value: &mut f32| {
        *value *= scale;
        any | special(*value)
    };
    let mut any = 0;
    for piece in values.chunks_mut(PIECE) {
        if !is_zero(piece) {
            any |= piece.iter_mut().fold(0, scaled);
        }
    }
    any == 0
}

/// The L2 norm, added up in f64. The simple form: `√Σ v²`; sixteen sums do not wait for each other.
pub fn norm(values: &[f32]) -> f64 {
    const LANES: usize = 16;
    let squares = |values: &[f32]| {
        let (chunks, rest) = values.as_chunks::<LANES>();
        let mut lanes = [0f64; LANES];
        for chunk in chunks {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                let value = f64::from(*value);
                *lane += value * value;
            }
        }
        let rest: f64 = rest.iter().map(|value| f64::from(*value).powi(2)).sum();
        lanes.iter().sum::<f64>() + rest
    };
    values.chunks(CHUNK).map(squares).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes_of(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn values_are_written_as_they_are_whatever_the_length() {
        for length in [0, 1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7] {
            let values: Vec<f32> = (0..length).map(|i| (i as f32).sin()).collect();
            let mut out = vec![7u8];
            put(&values, &mut out);
            let mut checked = vec![7u8];
            let written = put_checked(&values, |_| false, &mut checked).unwrap();
            assert_eq!(checked, out);
            assert_eq!(written.finalize(), crc32fast::hash(&out[1..]));
            assert_eq!(out[1..], bytes_of(&values));
            assert_eq!(expect(&out[1..], length).unwrap().len(), length);
            assert!(expect(&out, length).is_err());
            assert!(expect(&out[1..], length + 1).is_err());
        }
    }

    #[test]
    fn values_within_a_support_are_written_as_all_of_them_are() {
        for length in [1, 63, PIECE, 3 * PIECE, 9 * PIECE + 65] {
            for filled in [0..0, 0..1, 5 * PIECE - 3..5 * PIECE + 70, 0..length, length - 1..length]
            {
                let filled = filled.start.min(length)..filled.end.min(length);
                let mut support = crate::Support::nothing(length);
                support.add(filled.clone());
                let mut values = vec![0.0; length];
                values[filled].fill(-1.5);
                let (mut within, mut whole) = (vec![7], vec![7]);
                let zero = |elements| !support.meets(elements);
                let known = put_checked(&values, zero, &mut within).unwrap();
                let checksum = put_checked(&values, |_| false, &mut whole).unwrap();
                assert_eq!(within, whole, "{length}");
                assert_eq!(known.finalize(), checksum.finalize(), "{length}");
            }
        }
    }

    #[test]
    fn the_first_special_value_is_found_wherever_it_lies() {
        for special in
            [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7f80_0001)]
        {
            for at in [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 3] {
                let mut values = vec![f32::MAX; 2 * CHUNK + 5];
                values[at..].fill(special);
                assert_eq!(first_non_finite(&values), Some(at));
                assert!(put_checked(&values, |_| false, &mut Vec::new()).is_none());
            }
        }
        assert_eq!(first_non_finite(&[f32::MAX, f32::MIN, 0.0, f32::from_bits(1)]), None);
    }

    proptest! {
        #[test]
        fn the_fused_mean_equals_the_plain_one(
            columns in proptest::collection::vec(proptest::array::uniform3(-1e3f32..1e3), 0..300),
            repeat in 1usize..40,
        ) {
            let columns: Vec<_> = columns.iter().copied().cycle().take(columns.len() * repeat).collect();
            let parts: Vec<Vec<u8>> = (0..3)
                .map(|rank| bytes_of(&columns.iter().map(|column| column[rank]).collect::<Vec<_>>()))
                .collect();
            let parts: Vec<_> = parts.iter().map(|part| expect(part, columns.len()).unwrap()).collect();
            let mut mean = vec![f32::NAN; columns.len()];
            prop_assert!(mean_of(&parts, 1.0 / 3.0, &mut mean));
            let plain: Vec<f32> = columns.iter().map(|[a, b, c]| (a + b + c) * (1.0 / 3.0)).collect();
            prop_assert_eq!(bits(&mean), bits(&plain));
            let mut written = Vec::new();
            let checksum = put_mean(&parts, 1.0 / 3.0, &mut written).unwrap();
            prop_assert_eq!(&written, &bytes_of(&plain));
            prop_assert_eq!(checksum.finalize(), crc32fast::hash(&written));
        }
    }

    #[test]
    fn an_overflowing_mean_is_noticed() {
        let mut values = vec![0.0; 2 * PIECE + 2];
        values[PIECE + 1] = f32::MAX;
        let part = bytes_of(&values);
        let part = expect(&part, values.len()).unwrap();
        let mut mean = vec![0.0; values.len()];
        assert!(!mean_of(&[part, part], 0.5, &mut mean));
        assert_eq!(first_non_finite(&mean), Some(PIECE + 1));
        let mut written = Vec::new();
        assert_eq!(put_mean(&[part, part], 0.5, &mut written).map(|_| ()), Err(PIECE + 1));
        assert!(put_mean(&[part], 0.5, &mut written).is_ok());
    }
}
