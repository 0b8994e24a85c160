//! A bucket as it is: every element as a little-endian f32.
use super::{Compressor, Encoded};
use crate::Result;
use crate::wire::floats;

/// The plain form of a bucket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plain {
    /// Elements of the bucket.
    pub(crate) length: usize,
}

impl Compressor for Plain {
    fn encode(&mut self, gradient: &[f32], _step: u64, out: &mut Vec<u8>) -> Encoded {
        floats::put(gradient, out);
        Encoded::Message
    }

    fn decode_add(&self, wire: &[u8], start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        floats::add(&floats::expect(wire, self.length)?[start..start + sum.len()], weight, sum);
        Ok(())
    }

    fn reads_ranges(&self) -> bool {
        true
    }
}
