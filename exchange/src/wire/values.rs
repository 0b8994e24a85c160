//! Values on the wire as f32, f16 or bf16.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

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
    use super::*;

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
