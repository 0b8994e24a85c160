//! A bucket as it is: every element as a little-endian f32.

use std::ops::Range;

use super::{ByParts, Compressor, Encoded};
use crate::Result;
use crate::wire::floats;

/// The plain form of a bucket.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Plain;

impl Compressor for Plain {
    fn encode(&mut self, gradient: &[f32], _step: u64, out: &mut Vec<u8>) -> Encoded {
        floats::put(gradient, out);
        Encoded::Message
    }

    fn decode_add(&self, wire: &[u8], weight: f32, sum: &mut [f32]) -> Result<()> {
        floats::add(floats::expect(wire, sum.len())?, weight, sum);
        Ok(())
    }

    fn by_parts(&self) -> Option<&dyn ByParts> {
        Some(self)
    }
}

impl ByParts for Plain {
    fn decode_part(
        &self,
        wire: &[u8],
        length: usize,
        part: Range<usize>,
        weight: f32,
        sum: &mut [f32],
    ) -> Result<()> {
        floats::add(&floats::expect(wire, length)?[part], weight, sum);
        Ok(())
    }
}
