//! Every element as f32: what the other schemes are judged against.
//!
//! # Wire
//! | bytes | what |
//! |---|---|
//! | 4·n | the gradient, little-endian |
//!
//! # State
//! None. Nothing is left unsaid, so there is no error feedback and no key for it.
//!
//! # Paper
//! None: data-parallel training as in Dean et al. 2012, with the mean taken by all ranks alike.
//!
//! The exchange sends every bucket of this scheme, and every bucket whose compressed form is
//! larger, as a frame of kind `Dense`, and averages such frames in one pass over memory.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{About, ByParts, Compressor, Definition, Encoded, Law, Seat, Soundness};
use crate::Result;
use crate::wire::floats;

/// The settings of `dense`: none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {}

impl Definition for Config {
    type Instance = Box<dyn Compressor>;

    const ABOUT: About = About {
        name: "dense",
        line: "every element as f32, nothing left out",
        paper: "Dean et al. 2012 (data-parallel training)",
    };
    const FEEDBACK: Soundness = Soundness::Lossless;

    fn feedback(&self) -> bool {
        false
    }

    fn law(&self) -> Law {
        Law::Exact
    }

    fn validate(&self) -> Result<()> {
        Ok(())
    }

    fn plain(&self) -> bool {
        true
    }

    fn build(&self, _seat: &Seat) -> Box<dyn Compressor> {
        Box::new(Dense)
    }
}

/// The plain form of a bucket.
#[derive(Debug, Clone, Copy, Default)]
pub struct Dense;

impl Compressor for Dense {
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

impl ByParts for Dense {
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
