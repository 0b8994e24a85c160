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
//! | 4·kept (f16, bf16: 2·kept) | their [`values`](crate::Values), in ascending order of position, or quantised |
//! | … | their positions (`wire/indices.rs`) |
//!
//! # Where we differ
//! The selection is exact and made anew every step, not from a sampled threshold. Of equal
//! magnitudes the lowest position goes first, so that runs repeat bit for bit. Zeros are not
//! sent, even if there are fewer than k other elements.

use crate::compress::levels::{Entropy, Norm};
use crate::compress::ratio::{Fall, Ratio};
use crate::compress::select::Selector;
use crate::compress::sparse::{Select, Sparsifier};
use crate::compress::values::{QsgdValues, Values};
use crate::compress::{Built, Law, Properties, Seat, Soundness};
use crate::wire::values::Format;
use crate::{Result, Scheme};

settings! {
    /// The settings of `topk`.
    pub struct Config {
        /// Share of each bucket's elements that is sent, above 0 and at most 1: of n elements
        /// max(1, round(ratio·n)); or a falling one. Default 0.01.
        pub ratio: Ratio = 0.01.into(),
        /// How the values are sent: `f32`, `f16`, `bf16`, or quantised, such as
        /// `{ kind = "qsgd", levels = 1 }`. Default `f32`.
        pub values: Values = Values::default(),
        /// Whether what is not sent is added to the next gradient. Default true.
        pub feedback: bool = true,
    }
}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        Properties {
            name: "topk",
            line: "the largest elements and their positions; the others wait in the residual",
            paper: "Aji & Heafield 2017; Stich et al. 2018",
            law: self.values.law(Law::Contraction, self.feedback),
            soundness: Soundness::Sound,
            feedback: self.feedback,
        }
    }

    fn validate(&self) -> Result<()> {
        self.ratio.validate(self.about().name)?;
        self.values.validate(self.about().name)
    }

    fn build(&self, seat: &Seat) -> Built {
        let select = Topk { ratio: self.ratio, selector: Selector::default() };
        Built::codec(Sparsifier::new(select, self.values, self.feedback, seat))
    }

    fn examples() -> Vec<Self> {
        let two_bits = QsgdValues { levels: 1, ..QsgdValues::default() };
        let elias = QsgdValues { levels: 5, norm: Norm::L2, block: 100, entropy: Entropy::Elias };
        let with = |ratio: f64, feedback| Self { ratio: ratio.into(), feedback, ..Self::default() };
        vec![
            with(0.001, true),
            with(0.01, false),
            with(0.1, true),
            with(0.5, true),
            with(1.0, true),
            Self { values: Format::F16.into(), ..Self::default() },
            Self {
                ratio: Ratio::Falling(Fall { start: 0.25, end: 0.01, steps: 4 }),
                ..Self::default()
            },
            Self { values: two_bits.into(), ..Self::default() },
            Self { values: elias.into(), ..with(0.3, true) },
            Self { values: elias.into(), ..with(0.3, false) },
        ]
    }
}

struct Topk {
    ratio: Ratio,
    selector: Selector,
}

impl Select for Topk {
    fn select(&mut self, gradient: &[f32], step: u64) {
        self.selector.largest(gradient, self.ratio.count(gradient.len(), step));
    }

    fn positions(&self) -> &[u32] {
        self.selector.positions()
    }

    fn most(&self, length: usize) -> usize {
        self.ratio.most(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(ratio: f64) -> Config {
        Config { ratio: ratio.into(), ..Config::default() }
    }

    fn encode(config: &Config, gradient: &[f32]) -> (Vec<u8>, Vec<f32>, Vec<f64>) {
        let seat = Seat::alone(gradient.len(), 0);
        let mut compressor = config.codec(&seat).unwrap();
        let mut wire = Vec::new();
        compressor.encode(gradient, 1, &mut wire);
        let mut sum = vec![0.0; gradient.len()];
        compressor.decode_add(&wire, 0..sum.len(), 1.0, &mut sum).unwrap();
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
}
