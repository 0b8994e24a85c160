//! Bytes: how numbers lie in a message.
//!
//! What a codec of one's own writes and reads its messages with:
//! * [`Reader`]: a cursor over bytes that never reads past them;
//! * [`Fault`]: what is wrong with bytes;
//! * [`Format`]: how a value lies in them.
//!
//! What is not listed here is not part of the interface, though tests, benches and fuzz targets of this
//! crate look at it: frames and their checksums, what a server sends.
//!
//! Everything is little-endian. Readers trust nothing: they fail with a [`Fault`], do not panic,
//! and allocate nothing.

pub(crate) mod bits;
pub(crate) mod codes;
#[doc(hidden)]
pub mod downlink;
#[doc(hidden)]
pub mod floats;
#[doc(hidden)]
pub mod frame;
pub(crate) mod huffman;
pub(crate) mod indices;
pub(crate) mod trits;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

pub(crate) use frame::{Frame, Header, Kind};

/// What is wrong with bytes that should have been a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The message ends early.
    #[error("{needed} more bytes are needed, {left} are left")]
    Truncated {
        /// Bytes that the next field takes.
        needed: usize,
        /// Bytes that are there.
        left: usize,
    },
    /// The message goes on after its end.
    #[doc(hidden)]
    #[error("{left} bytes follow the end of the message")]
    Trailing {
        /// Bytes too many.
        left: usize,
    },
    /// The payload has not the length that its kind demands.
    #[error("the payload has {found} bytes, {expected} are needed")]
    Length {
        /// Bytes needed.
        expected: usize,
        /// Bytes there.
        found: usize,
    },
    /// The first two bytes are not those of a frame.
    #[doc(hidden)]
    #[error("this is no frame: it begins with {found:02x?}")]
    Magic {
        /// The bytes found.
        found: [u8; 2],
    },
    /// The frame is of a version that this build does not read.
    #[doc(hidden)]
    #[error("frame version {found} is not {expected}", expected = frame::VERSION)]
    Version {
        /// The version found.
        found: u8,
    },
    /// The frame is of no known kind.
    #[doc(hidden)]
    #[error("frame kind {found} is unknown")]
    Kind {
        /// The kind found.
        found: u8,
    },
    /// The frame is not as it was written.
    #[doc(hidden)]
    #[error("the frame was damaged on its way: its checksum is {found:08x} and not {written:08x}")]
    Checksum {
        /// What the frame says.
        written: u32,
        /// What its bytes give.
        found: u32,
    },
    /// A field has a value that its writer never gives it.
    #[error("field `{field}` has the value {found}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// More elements are announced than the bucket has.
    #[doc(hidden)]
    #[error("{count} elements are announced in a bucket of {length}")]
    Count {
        /// Elements announced.
        count: u64,
        /// Elements of the bucket.
        length: usize,
    },
    /// A position lies outside the bucket.
    #[doc(hidden)]
    #[error("a position lies beyond the bucket's {length} elements")]
    Position {
        /// Elements of the bucket.
        length: usize,
    },
}

/// Result of reading bytes.
pub type Read<T> = Result<T, Fault>;

/// A cursor over the bytes of one message.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The bytes not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// [`Fault::Truncated`] when there are fewer.
    pub fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let fault = Fault::Truncated { needed: count, left: self.bytes.len() };
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(fault)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let fault = Fault::Truncated { needed: N, left: self.bytes.len() };
        let (taken, rest) = self.bytes.split_first_chunk().ok_or(fault)?;
        self.bytes = rest;
        Ok(*taken)
    }

    /// The next byte.
    ///
    /// # Errors
    /// [`Fault::Truncated`] at the end.
    pub fn u8(&mut self) -> Read<u8> {
        self.array().map(|[byte]| byte)
    }

    /// The next two bytes as a number.
    pub(crate) fn u16(&mut self) -> Read<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next four bytes as a number.
    ///
    /// # Errors
    /// [`Fault::Truncated`] when there are fewer.
    pub fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next eight bytes as a number.
    ///
    /// # Errors
    /// [`Fault::Truncated`] when there are fewer.
    pub fn u64(&mut self) -> Read<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A count of elements of a bucket, 1 to 5 bytes, seven bits each, at most `length`.
    ///
    /// # Errors
    /// [`Fault::Count`] when it is larger, [`Fault::Field`] when it is written in more bytes than
    /// it needs, [`Fault::Truncated`] when it does not end.
    pub(crate) fn count(&mut self, length: usize) -> Read<usize> {
        let mut count = 0u64;
        for shift in (0..35).step_by(7) {
            let byte = self.u8()?;
            count |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    return Err(Fault::Field { field: "count", found: count });
                }
                return match usize::try_from(count) {
                    Ok(fits) if fits <= length => Ok(fits),
                    _ => Err(Fault::Count { count, length }),
                };
            }
        }
        Err(Fault::Count { count, length })
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// [`Fault::Trailing`] when bytes are left.
    pub fn finish(self) -> Read<()> {
        match self.bytes.len() {
            0 => Ok(()),
            left => Err(Fault::Trailing { left }),
        }
    }
}

/// Bytes that [`put_count`] takes.
pub(crate) fn count_bytes(count: u32) -> usize {
    (u32::BITS - count.leading_zeros()).max(1).div_ceil(7) as usize
}

/// Appends a count of elements of a bucket: seven bits a byte, least significant first, the
/// eighth bit set on all but the last.
pub(crate) fn put_count(mut count: u32, out: &mut Vec<u8>) {
    while count >= 0x80 {
        out.push(count as u8 | 0x80);
        count >>= 7;
    }
    out.push(count as u8);
}

/// How a value lies on the wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Four bytes, exact.
    #[default]
    F32,
    /// IEEE binary16, two bytes: 11 bits of precision, up to 65,504.
    F16,
    /// bfloat16, two bytes: 8 bits of precision, the range of f32.
    Bf16,
}

impl Format {
    /// Bytes of one value.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::Bf16 => 2,
        }
    }

    /// Appends values, rounded to nearest even. What is beyond the format's range becomes its
    /// largest finite number.
    pub(crate) fn put(self, values: impl Iterator<Item = f32>, out: &mut Vec<u8>) {
        match self {
            Format::F32 => out.extend(values.flat_map(f32::to_le_bytes)),
            Format::F16 => out.extend(values.flat_map(|value| saturated_f16(value).to_le_bytes())),
            Format::Bf16 => {
                out.extend(values.flat_map(|value| saturated_bf16(value).to_le_bytes()));
            }
        }
    }

    /// Refuses values that are not finite: no gradient that is sent has any.
    pub(crate) fn check(self, bytes: &[u8]) -> Read<()> {
        // All bits of the exponent are set in what is not finite. A sum of such values has no early end, so that the
        // loops are of vectors.
        let count = match self {
            Format::F32 => {
                count(bytes, |word| u32::from_le_bytes(word) & 0x7f80_0000 == 0x7f80_0000)
            }
            Format::F16 => count(bytes, |word| u16::from_le_bytes(word) & 0x7c00 == 0x7c00),
            Format::Bf16 => count(bytes, |word| u16::from_le_bytes(word) & 0x7f80 == 0x7f80),
        };
        match count {
            0 => Ok(()),
            found => Err(Fault::Field { field: "values that are not finite", found }),
        }
    }

    /// The value as it will arrive.
    pub(crate) fn rounded(self, value: f32) -> f32 {
        match self {
            Format::F32 => value,
            Format::F16 => saturated_f16(value).to_f32(),
            Format::Bf16 => saturated_bf16(value).to_f32(),
        }
    }

    /// The value in the first of `bytes`; 0 when there are too few.
    #[inline]
    pub(crate) fn value(self, bytes: &[u8]) -> f32 {
        match self {
            Format::F32 => bytes.first_chunk().map_or(0.0, |bytes| f32::from_le_bytes(*bytes)),
            Format::F16 => {
                bytes.first_chunk().map_or(0.0, |bytes| f16::from_le_bytes(*bytes).to_f32())
            }
            Format::Bf16 => {
                bytes.first_chunk().map_or(0.0, |bytes| bf16::from_le_bytes(*bytes).to_f32())
            }
        }
    }
}

/// How many of the words of `bytes` are `such`.
fn count<const N: usize>(bytes: &[u8], such: impl Fn([u8; N]) -> bool) -> u64 {
    bytes.as_chunks().0.iter().map(|word| u64::from(such(*word))).sum()
}

fn saturated_f16(value: f32) -> f16 {
    let rounded = f16::from_f32(value);
    if rounded.is_infinite() { f16::MAX.copysign(rounded) } else { rounded }
}

fn saturated_bf16(value: f32) -> bf16 {
    let rounded = bf16::from_f32(value);
    if rounded.is_infinite() { bf16::MAX.copysign(rounded) } else { rounded }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn counts_come_back(count: u32) {
            let mut bytes = Vec::new();
            put_count(count, &mut bytes);
            prop_assert!(bytes.len() <= 5);
            prop_assert_eq!(bytes.len(), count_bytes(count));
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.count(count as usize), Ok(count as usize));
            prop_assert_eq!(reader.finish(), Ok(()));
            if count > 0 {
                let refused = Reader::new(&bytes).count(count as usize - 1);
                let is_count_fault = matches!(refused, Err(Fault::Count { .. }));
                prop_assert!(is_count_fault);
            }
        }
    }

    #[test]
    fn counts_have_one_spelling() {
        assert_eq!(
            Reader::new(&[0x80, 0x00]).count(9),
            Err(Fault::Field { field: "count", found: 0 })
        );
        assert!(Reader::new(&[0x80; 9]).count(9).is_err());
        assert!(Reader::new(&[]).count(9).is_err());
    }

    #[test]
    fn values_that_are_not_finite_are_refused() {
        for (format, largest, infinite) in [
            (Format::F32, f32::MAX.to_le_bytes().to_vec(), f32::INFINITY.to_le_bytes().to_vec()),
            (Format::F16, f16::MAX.to_le_bytes().to_vec(), f16::NAN.to_le_bytes().to_vec()),
            (
                Format::Bf16,
                bf16::MIN.to_le_bytes().to_vec(),
                bf16::NEG_INFINITY.to_le_bytes().to_vec(),
            ),
        ] {
            assert_eq!(format.check(&largest.repeat(3)), Ok(()));
            let refused = format.check(&[largest.clone(), infinite, largest].concat());
            assert!(matches!(refused, Err(Fault::Field { found: 1, .. })), "{format:?}");
        }
    }

    #[test]
    fn values_come_back_as_rounded_and_never_infinite() {
        let values =
            [0.0, -0.0, 1.0, -1.000_1, 65_504.0, 1e6, -1e6, f32::MAX, f32::MIN, 1e-40, 3.3e-5];
        for format in [Format::F32, Format::F16, Format::Bf16] {
            let mut bytes = Vec::new();
            format.put(values.into_iter(), &mut bytes);
            assert_eq!(bytes.len(), values.len() * format.bytes());
            let chunks = bytes.chunks_exact(format.bytes());
            let back: Vec<f32> = chunks.map(|bytes| format.value(bytes)).collect();
            assert!(back.iter().all(|value| value.is_finite()));
            let rounded = values.map(|value| format.rounded(value));
            assert_eq!(back, rounded);
        }
        assert_eq!(Format::F16.rounded(1e6), 65_504.0);
        assert_eq!(Format::Bf16.rounded(1.003), 1.0);
    }
}
