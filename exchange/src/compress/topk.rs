//! The k elements of largest magnitude; the others wait in the residual.
//!
//! # Paper
//! Aji & Heafield 2017 ("Sparse Communication for Distributed Gradient Descent") drop all but the
//! largest; Stich, Cordonnier & Jaggi 2018 ("Sparsified SGD with Memory") prove that it converges
//! with error feedback.
//!
//! # Idea
//! Few elements hold most of the gradient's length. Send those exactly, with their positions;
//! add what was not sent to the next gradient, so that every element is sent in the end.
//!
//! # Wire
//! A sparse message: their number, their values, their positions.
//!
//! | bytes | what |
//! |---|---|
//! | 1–5 | number of elements kept, seven bits a byte |
//! | 4·kept (f16, bf16: 2·kept) | their values, in ascending order of position |
//! | … | their positions ([`wire::indices`](crate::wire::indices)) |
//!
//! # State
//! None of its own; the residual is the exchange's.
//!
//! # Where we differ
//! The selection is exact and made anew every step, not from a sampled threshold. Of equal
//! magnitudes the lowest position goes first, so that runs repeat bit for bit. Zeros are not
//! sent, even if there are fewer than k other elements.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::ratio::{Fall, Ratio};
use super::select::Selector;
use super::sparse::{self, Sent};
use super::{About, ByParts, Compressor, Definition, Encoded, Law, Seat, Soundness};
use crate::wire::values::Format;
use crate::{Gauge, Result};

/// The settings of `topk`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Share of each bucket's elements that is sent, above 0 and at most 1: of n elements
    /// max(1, round(ratio·n)); or a falling one. Default 0.01.
    pub ratio: Ratio,
    /// How the values are sent. Default `f32`.
    pub values: Format,
    /// Whether what is not sent is added to the next gradient. Default true.
    pub feedback: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { ratio: 0.01.into(), values: Format::F32, feedback: true }
    }
}

impl Definition for Config {
    type Instance = Box<dyn Compressor>;

    const ABOUT: About = About {
        name: "topk",
        line: "the largest elements and their positions; the others wait in the residual",
        paper: "Aji & Heafield 2017; Stich et al. 2018",
    };
    const FEEDBACK: Soundness = Soundness::Sound;

    fn feedback(&self) -> bool {
        self.feedback
    }

    fn law(&self) -> Law {
        Law::Contraction
    }

    fn validate(&self) -> Result<()> {
        self.ratio.validate(Self::ABOUT.name)
    }

    fn build(&self, _seat: &Seat) -> Box<dyn Compressor> {
        Box::new(Topk {
            config: self.clone(),
            selector: Selector::default(),
            sent: Sent::default(),
        })
    }

    fn specimens() -> Vec<Self> {
        let with = |ratio: f64, feedback| Self { ratio: ratio.into(), feedback, ..Self::default() };
        vec![
            with(0.001, true),
            with(0.01, false),
            with(0.1, true),
            with(0.5, true),
            with(1.0, true),
            Self { values: Format::F16, ..Self::default() },
            Self {
                ratio: Ratio::Falling(Fall { start: 0.25, end: 0.01, steps: 4 }),
                ..Self::default()
            },
        ]
    }
}

struct Topk {
    config: Config,
    selector: Selector,
    sent: Sent,
}

impl Compressor for Topk {
    fn encode(&mut self, gradient: &[f32], step: u64, out: &mut Vec<u8>) -> Encoded {
        let k = self.config.ratio.count(gradient.len(), step);
        let positions = self.selector.largest(gradient, k);
        self.sent = sparse::put(positions, gradient, self.config.values, out);
        Encoded::Message
    }

    fn decode_add(&self, wire: &[u8], weight: f32, sum: &mut [f32]) -> Result<()> {
        sparse::add(wire, self.config.ratio.most(sum.len()), self.config.values, weight, sum)
    }

    fn by_parts(&self) -> Option<&dyn ByParts> {
        Some(self)
    }

    fn sent(&self) -> Option<&[u32]> {
        Some(self.selector.positions())
    }

    fn gauges(&self) -> &[Gauge] {
        self.sent.gauges()
    }
}

impl ByParts for Topk {
    fn decode_part(
        &self,
        wire: &[u8],
        length: usize,
        part: Range<usize>,
        weight: f32,
        sum: &mut [f32],
    ) -> Result<()> {
        let (most, format) = (self.config.ratio.most(length), self.config.values);
        sparse::add_part(wire, most, format, length, part, weight, sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::wire::Fault;

    fn with(ratio: f64) -> Config {
        Config { ratio: ratio.into(), ..Config::default() }
    }

    fn encode(config: &Config, gradient: &[f32]) -> (Vec<u8>, Vec<f32>, Vec<f64>) {
        let seat = Seat::alone(gradient.len(), 0);
        let mut compressor = config.build(&seat);
        let mut wire = Vec::new();
        compressor.encode(gradient, 1, &mut wire);
        let mut sum = vec![0.0; gradient.len()];
        compressor.decode_add(&wire, 1.0, &mut sum).unwrap();
        (wire, sum, compressor.gauges().iter().map(|gauge| gauge.value).collect())
    }

    #[test]
    fn the_largest_arrive_and_the_gauges_say_so() {
        let (wire, sum, gauges) = encode(&with(0.4), &[0.1, -3.0, 0.0, 2.0, -0.2]);
        assert_eq!(sum, [0.0, -3.0, 0.0, 2.0, 0.0]);
        // count, two values, coding, width 1, gaps 1 and 1.
        assert_eq!(
            wire,
            [&[2u8][..], &(-3f32).to_le_bytes(), &2f32.to_le_bytes(), &[0, 1, 0b11]].concat()
        );
        assert_eq!((gauges[0], gauges[1], gauges[3]), (2.0, 12.0, 2.0));
    }

    #[test]
    fn more_elements_than_k_are_refused() {
        let (wire, ..) = encode(&with(1.0), &[1.0, 2.0, 3.0, 4.0]);
        let seat = Seat::alone(4, 0);
        assert!(matches!(
            with(0.5).build(&seat).decode_add(&wire, 1.0, &mut [0.0; 4]),
            Err(Error::Wire(Fault::Count { count: 4, length: 2 }))
        ));
    }
}
