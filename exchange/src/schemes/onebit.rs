//! One bit per element and two means: of the elements that are negative, and of the others.
//!
//! # Paper
//! Seide, Fu, Droppo, Li & Yu 2014 ("1-Bit Stochastic Gradient Descent and its Application to
//! Data-Parallel Distributed Training of Speech DNNs"), sections 3.1 and 3.2: threshold 0,
//! reconstruction values that minimise the square error, error feedback.
//!
//! # Idea
//! Of all ways to say an element by its sign alone the means of both sides are the nearest:
//! ‖C(g) − g‖² = ‖g‖² − n₊·m₊² − n₋·m₋². The residual carries what is missed.
//!
//! # Wire
//! | bytes | what |
//! |---|---|
//! | 8·blocks | mean magnitude of the block's elements that are not negative, and of its negative ones, f32 |
//! | ⌈n/8⌉ | the sign bits |
//!
//! # Where we differ
//! The paper has a pair of means for each column of a weight matrix. A bucket knows no columns:
//! blocks of 512 elements stand for them, 1.125 bits in all. The paper's nodes quantise the sums on the way back too, with
//! a residual of their own; here that is the topology `server` or `sharded` with `downlink = "compressed"`.
use crate::compress::levels::{self, stretch, take_scales};
use crate::compress::signs;
use crate::compress::{Built, Compressor, Encoded, Law, Properties, Seat, Soundness};
use crate::wire::{codes, floats};
use crate::{Gauge, Result, Scheme};

settings! {
    /// The settings of `onebit`.
    pub struct Config {
        /// Elements that share two means; 0 for the whole bucket. Default 512.
        pub block: usize = 512,
        /// Whether what is missed is added to the next gradient: the paper's method. Default true.
        pub feedback: bool = true,
    }
}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        Properties {
            name: "onebit",
            line: "signs and the means of both sides; what they miss waits in the residual",
            paper: "Seide et al. 2014",
            law: Law::Contraction,
            soundness: Soundness::Sound,
            feedback: self.feedback,
        }
    }

    fn build(&self, _seat: &Seat) -> Built {
        Built::codec(Onebit { block: self.block, means: Vec::new(), gauges: Vec::with_capacity(1) })
    }

    fn examples() -> Vec<Self> {
        vec![Self { block: 0, ..Self::default() }, Self { block: 100, feedback: false }]
    }
}

struct Onebit {
    block: usize,
    /// Means of both sides, block by block.
    means: Vec<f32>,
    gauges: Vec<Gauge>,
}

impl Compressor for Onebit {
    fn encode(&mut self, gradient: &[f32], _step: u64, out: &mut Vec<u8>) -> Encoded {
        let start = out.len();
        self.means.clear();
        for block in gradient.chunks(stretch(self.block, gradient.len())) {
            self.means.extend(signs::means(block));
        }
        floats::put(&self.means, out);
        signs::put(gradient, out);
        self.gauges.clear();
        self.gauges.push(levels::bits_gauge(out.len() - start, gradient.len()));
        Encoded::Message
    }

    fn decode_add(&self, wire: &[u8], _start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        let length = sum.len();
        let stretch = stretch(self.block, length);
        let (means, rest) = take_scales(wire, 2 * length.div_ceil(stretch))?;
        codes::expect(rest, length, 1)?.each_block(|first, some| {
            levels::each_part(first, some.len(), stretch, |block, part| {
                let mean = |side: usize| weight * f32::from_le_bytes(means[2 * block + side]);
                let sum = &mut sum[first + part.start..first + part.end];
                signs::add_some(&some[part], mean(0), -mean(1), sum);
            });
            Ok::<_, crate::Error>(())
        })
    }

    fn gauges(&self) -> &[Gauge] {
        &self.gauges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::testing::round_trip;

    #[test]
    fn both_sides_of_each_block_arrive_as_their_means() {
        let config = Config { block: 4, ..Config::default() };
        let (wire, sum) = round_trip(&config, &[1.0, 3.0, -2.0, 2.0, -1.0, -4.0], 1);
        assert_eq!(sum, [2.0, 2.0, -2.0, 2.0, -2.5, -2.5]);
        let means = [2f32, 2.0, 0.0, 2.5].map(f32::to_le_bytes).concat();
        assert_eq!(wire, [&means[..], &[0b11_0100]].concat());
    }
}
