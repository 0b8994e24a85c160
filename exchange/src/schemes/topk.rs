//! The k elements of largest magnitude, of a bucket or of each chunk; the others wait in the residual.
//!
//! # Paper
//! Aji & Heafield 2017 ("Sparse Communication for Distributed Gradient Descent") drop all but the
//! largest; Stich, Cordonnier & Jaggi 2018 ("Sparsified SGD with Memory") prove that it converges
//! with error feedback. Sarfi, Thérien, Lidin & Belilovsky 2025 ("Communication Efficient LLM Pre-training
//! with SparseLoCo", arXiv 2508.15706), algorithm 1: the largest of each chunk of 4096, in two bits.
//!
//! # Idea
//! Few elements hold most of the gradient's norm. Send those exactly, with their positions;
//! add what was not sent to the next gradient, so that every element is sent in the end.
//!
//! # Wire
//! A sparse message: the number of elements kept, their values, their positions.
//!
//! | bytes | what |
//! |---|---|
//! | 1–5 | number of elements kept, seven bits a byte |
//! | 4·kept (f16, bf16: 2·kept; quantised: see there) | their [`values`](crate::Values), in ascending order of position |
//! | … | their positions (`wire/indices.rs`) |
//!
//! # Where we differ
//! The selection is exact and made anew every step, not from a sampled threshold. Of equal
//! magnitudes the lowest position goes first, so that runs repeat bit for bit. Zeros are not
//! sent, even if there are fewer than k other elements.
//!
//! A chunk is a stretch of the bucket, the last one shorter, of which at least one element is kept; that of
//! SparseLoCo's code is a square of 64 by 64 of a matrix. Positions are coded over the whole bucket: at a
//! ratio of 1 % a position takes about 8 bits, where a position within a chunk of 4096 takes 12, and no chunk needs a header.

use crate::compress::levels::Norm;
use crate::compress::ratio::{Fall, Ratio};
use crate::compress::select::Selector;
use crate::compress::sparse::{Select, Sparsifier};
use crate::compress::values::{Coding, QsgdValues, Values};
use crate::compress::{Built, Law, Properties, Seat, Soundness};
use crate::wire::Format;
use crate::{Result, Scheme};

settings! {
    /// The settings of `topk`.
    pub struct Config {
        /// Share of each bucket's elements that is sent, above 0 and at most 1: of n elements
        /// max(1, round(ratio·n)); or a falling one. Default 0.01.
        pub ratio: Ratio = 0.01.into(),
        /// Elements of a chunk, whose own share is sent: 4096 is SparseLoCo's; 0, the default, for the
        /// whole bucket.
        pub chunk: usize = 0,
        /// How the values are sent: `f32`, `f16`, `bf16`, `2bit`, or quantised, such as
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
            paper: "Aji & Heafield 2017; Stich et al. 2018; Sarfi et al. 2025",
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
        let chunk = if self.chunk == 0 { seat.length.max(1) } else { self.chunk };
        let (selector, positions) = (Selector::default(), Vec::new());
        let select = Topk { ratio: self.ratio, chunk, selector, positions };
        Built::codec(Sparsifier::new(select, self.values, self.feedback, seat))
    }

    fn examples() -> Vec<Self> {
        let two_bits = QsgdValues { levels: 1, ..QsgdValues::default() };
        let quantised = QsgdValues { levels: 5, norm: Norm::L2, block: 100 };
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
            Self { values: quantised.into(), ..with(0.3, true) },
            Self { values: quantised.into(), ..with(0.3, false) },
            Self { chunk: 4096, values: Values::Coded(Coding::TwoBits), ..Self::default() },
            Self { chunk: 48, values: Values::Coded(Coding::TwoBits), ..with(0.1, false) },
        ]
    }
}

struct Topk {
    ratio: Ratio,
    /// Elements of a chunk.
    chunk: usize,
    selector: Selector,
    positions: Vec<u32>,
}

impl Select for Topk {
    fn select(&mut self, gradient: &[f32], step: u64) {
        self.positions.clear();
        for (number, chunk) in gradient.chunks(self.chunk).enumerate() {
            let largest = self.selector.largest(chunk, self.ratio.count(chunk.len(), step));
            self.positions.extend(largest.iter().map(|at| (number * self.chunk) as u32 + at));
        }
    }

    fn positions(&self) -> &[u32] {
        &self.positions
    }

    fn most(&self, length: usize) -> usize {
        let last = length % self.chunk;
        let of_last = if last == 0 { 0 } else { self.ratio.most(last) };
        length / self.chunk * self.ratio.most(self.chunk) + of_last
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
        compressor.decode_add(&wire, 0, 1.0, &mut sum).unwrap();
        (wire, sum, compressor.gauges().iter().map(|gauge| gauge.value).collect())
    }

    /// Of each chunk its own largest, the last of fewer elements, and all their positions: as by hand.
    #[test]
    fn each_chunk_sends_its_own() {
        let config = Config { chunk: 4, ..with(0.5) };
        let gradient = [0.1, -9.0, 0.3, 0.2, 8.0, 7.0, 6.0, 5.0, 0.01, 0.02];
        let (wire, sum, gauges) = encode(&config, &gradient);
        assert_eq!(sum, [0.0, -9.0, 0.3, 0.0, 8.0, 7.0, 0.0, 0.0, 0.0, 0.02]);
        assert_eq!((wire[0], gauges[0]), (5, 5.0));
        let seat = Seat::alone(10, 0);
        let codec = |config: &Config| config.codec(&seat).unwrap();
        assert!(codec(&with(0.4)).decode_add(&wire, 0, 1.0, &mut [0.0; 10]).is_err(), "five");
        assert!(codec(&config).decode_add(&wire, 0, 1.0, &mut [0.0; 10]).is_ok());
    }

    /// SparseLoCo's setting: 41 of each 4096, two bits each, and what 64 share; positions within 3 % of
    /// what any code needs.
    #[test]
    fn the_bytes_of_two_bits_in_chunks() {
        const LENGTH: usize = 64 * 4096;
        let config =
            Config { chunk: 4096, values: Values::Coded(Coding::TwoBits), ..Config::default() };
        let stream = crate::rng::Stream::new(&[8]);
        let gradient: Vec<f32> =
            (0..LENGTH as u32).map(|i| stream.uniform(i).powi(4) - 0.2).collect();
        let (wire, sum, gauges) = encode(&config, &gradient);
        let kept = 64 * 41;
        assert_eq!(sum.iter().filter(|value| **value != 0.0).count(), kept);
        let positions = (gauges[1] * kept as f64 / 8.0).round() as usize;
        assert_eq!(wire.len(), 2 + 4 * kept.div_ceil(64) + kept / 4 + positions);
        assert!(gauges[1] < 1.03 * gauges[2], "{} bits of {}", gauges[1], gauges[2]);
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
