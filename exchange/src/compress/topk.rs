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
//! | bytes | what |
//! |---|---|
//! | 1–5 | number of elements kept, seven bits a byte |
//! | 4·kept | their values, f32, in ascending order of position |
//! | … | their positions ([`wire::indices`](crate::wire::indices)) |
//!
//! # State
//! None of its own; the residual is the exchange's.
//!
//! # Where we differ
//! The selection is exact and made anew every step, not from a sampled threshold. Of equal
//! magnitudes the lowest position goes first, so that runs repeat bit for bit. Zeros are not
//! sent, even if there are fewer than k other elements.

use serde::{Deserialize, Serialize};

use super::select::Selector;
use super::{About, Compressor, Definition, Seat, Soundness};
use crate::wire::{Fault, Reader, indices, put_count};
use crate::{Error, Gauge, Result};

/// The settings of `topk`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Share of each bucket's elements that is sent, above 0 and at most 1: of n elements
    /// max(1, round(ratio·n)). Default 0.01.
    pub ratio: f64,
    /// Whether what is not sent is added to the next gradient. Default true.
    pub feedback: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { ratio: 0.01, feedback: true }
    }
}

impl Definition for Config {
    const ABOUT: About = About {
        name: "topk",
        line: "the largest elements and their positions; the others wait in the residual",
        paper: "Aji & Heafield 2017; Stich et al. 2018",
    };
    const FEEDBACK: Soundness = Soundness::Sound;

    fn feedback(&self) -> bool {
        self.feedback
    }

    fn validate(&self) -> Result<()> {
        if self.ratio > 0.0 && self.ratio <= 1.0 {
            return Ok(());
        }
        Err(Error::Config {
            scheme: Self::ABOUT.name,
            key: "ratio",
            value: self.ratio.to_string(),
            wanted: "write a share above 0 and at most 1, such as 0.01",
        })
    }

    fn build(&self, seat: &Seat) -> Box<dyn Compressor> {
        let k = ((self.ratio * seat.length as f64).round() as usize).clamp(1, seat.length.max(1));
        Box::new(Topk { k, selector: Selector::default(), gauges: [Gauge::sum("kept", 0.0); 3] })
    }

    fn specimens() -> Vec<Self> {
        let with = |ratio, feedback| Self { ratio, feedback };
        vec![
            with(0.001, true),
            with(0.01, false),
            with(0.1, true),
            with(0.5, true),
            with(1.0, true),
        ]
    }
}

struct Topk {
    k: usize,
    selector: Selector,
    gauges: [Gauge; 3],
}

impl Compressor for Topk {
    fn encode(&mut self, gradient: &[f32], _step: u64, out: &mut Vec<u8>) {
        let positions = self.selector.largest(gradient, self.k);
        put_count(positions.len() as u32, out);
        let mut threshold = f32::INFINITY;
        out.extend(positions.iter().flat_map(|position| {
            let value = gradient[*position as usize];
            threshold = threshold.min(value.abs());
            value.to_le_bytes()
        }));
        let before_positions = out.len();
        indices::put(positions, out);

        let kept = positions.len() as f64;
        let position_bits = 8.0 * (out.len() - before_positions) as f64;
        let of_each = |value: f64| if positions.is_empty() { 0.0 } else { value };
        self.gauges = [
            Gauge::sum("kept", kept),
            Gauge::mean("index_bits", of_each(position_bits / kept), kept),
            Gauge::mean("threshold", of_each(threshold.into()), kept),
        ];
    }

    fn decode_add(&self, wire: &[u8], weight: f32, sum: &mut [f32]) -> Result<()> {
        let mut reader = Reader::new(wire);
        let count = reader.count(self.k.min(sum.len()))?;
        let mut values = reader.take(count * size_of::<f32>())?.as_chunks().0.iter();
        indices::take(&mut reader, count, sum.len(), |position| {
            if let Some(value) = values.next() {
                sum[position] += weight * f32::from_le_bytes(*value);
            }
        })?;
        reader.finish().map_err(Fault::into)
    }

    fn gauges(&self) -> &[Gauge] {
        &self.gauges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(config: &Config, gradient: &[f32]) -> (Vec<u8>, Vec<f32>, Vec<f64>) {
        let seat = Seat { length: gradient.len(), rank: 0, bucket: 0, seed: 0 };
        let mut compressor = config.build(&seat);
        let mut wire = Vec::new();
        compressor.encode(gradient, 1, &mut wire);
        let mut sum = vec![0.0; gradient.len()];
        compressor.decode_add(&wire, 1.0, &mut sum).unwrap();
        (wire, sum, compressor.gauges().iter().map(|gauge| gauge.value).collect())
    }

    #[test]
    fn the_largest_arrive_and_the_gauges_say_so() {
        let config = Config { ratio: 0.4, feedback: true };
        let (wire, sum, gauges) = encode(&config, &[0.1, -3.0, 0.0, 2.0, -0.2]);
        assert_eq!(sum, [0.0, -3.0, 0.0, 2.0, 0.0]);
        // count, two values, coding, width 1, gaps 1 and 1.
        assert_eq!(
            wire,
            [&[2u8][..], &(-3f32).to_le_bytes(), &2f32.to_le_bytes(), &[0, 1, 0b11]].concat()
        );
        assert_eq!(gauges, [2.0, 12.0, 2.0]);
    }

    #[test]
    fn k_is_the_rounded_share_and_at_least_one() {
        for (ratio, length, k) in
            [(0.01, 1, 1), (0.01, 149, 1), (0.01, 150, 2), (1.0, 7, 7), (1e-9, 100, 1), (0.5, 3, 2)]
        {
            let gradient: Vec<f32> = (1..=length).map(|i| i as f32).collect();
            let (_, _, gauges) = encode(&Config { ratio, feedback: true }, &gradient);
            assert_eq!(gauges[0] as usize, k, "ratio {ratio} of {length}");
        }
    }

    #[test]
    fn ratios_without_meaning_are_refused() {
        for ratio in [0.0, -0.1, 1.000001, f64::NAN, f64::INFINITY] {
            let error = Config { ratio, feedback: true }.validate().unwrap_err();
            assert!(matches!(error, Error::Config { key: "ratio", .. }), "{error}");
        }
    }

    #[test]
    fn more_elements_than_k_are_refused() {
        let gradient = [1.0, 2.0, 3.0, 4.0];
        let (wire, ..) = encode(&Config { ratio: 1.0, feedback: true }, &gradient);
        let seat = Seat { length: 4, rank: 0, bucket: 0, seed: 0 };
        let fewer = Config { ratio: 0.5, feedback: true }.build(&seat);
        assert!(matches!(
            fewer.decode_add(&wire, 1.0, &mut [0.0; 4]),
            Err(Error::Wire(Fault::Count { count: 4, length: 2 }))
        ));
    }
}
