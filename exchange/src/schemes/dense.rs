//! Every element as f32: what the other schemes are judged against.
//!
//! # Wire
//! | bytes | what |
//! |---|---|
//! | 4·n | the gradient, little-endian |
//!
//! # State
//! None. Nothing is left pending, so there is no error feedback and no key for it.
//!
//! # Paper
//! None: data-parallel training as in Dean et al. 2012, with the mean taken by all ranks alike.
//!
//! The exchange sends every bucket of this scheme, and every bucket whose compressed form is
//! larger, as a frame of kind `Dense`, and averages such frames in one pass over memory.

use serde::{Deserialize, Serialize};

use crate::compress::{Built, Compressor, Encoded, Law, Properties, Seat, Soundness};
use crate::wire::floats;
use crate::{Result, Scheme};

/// The settings of `dense`: none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Config {}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        Properties {
            name: "dense",
            line: "every element as f32, nothing left out",
            paper: "Dean et al. 2012 (data-parallel training)",
            law: Law::Exact,
            soundness: Soundness::Lossless,
            feedback: false,
        }
    }

    fn plain(&self) -> bool {
        true
    }

    fn build(&self, seat: &Seat) -> Built {
        Built::codec(Plain { length: seat.length })
    }
}

/// Every element as a little-endian f32.
struct Plain {
    length: usize,
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
