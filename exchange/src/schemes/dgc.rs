//! Deep gradient compression: the elements above a threshold that a small sample suggests.
//!
//! # Paper
//! Lin, Han, Mao, Wang & Dally 2018 ("Deep Gradient Compression: Reducing the Communication
//! Bandwidth for Distributed Training"), sections 3 and 5: sampled top-k, sparsity warm-up.
//!
//! # Idea
//! The k-th largest of all is estimated by the corresponding one of a hundredth of the elements.
//! If clearly more than k turn out to be above it, k are selected exactly among those.
//!
//! # Wire
//! A sparse message of at most 4k/3 elements (`compress/sparse.rs`).
//!
//! # Where we differ
//! This is sampling and selection; momentum correction, momentum factor masking and local
//! clipping surround the residual and belong to the exchange, and the sparsity warm-up is a
//! falling `ratio`. The sample takes one element at random from each of equal stretches, so that
//! it has no element twice, and is never so small that fewer than two of it are to be kept. An
//! element as large as the threshold is kept, because the threshold is itself an element. If fewer
//! than k are above it, the residual makes up for the others.

use crate::compress::exceedances::Exceedances;
use crate::compress::ratio::{Fall, Ratio};
use crate::compress::scheme::require;
use crate::compress::select::Selector;
use crate::compress::sparse::{Select, Sparsifier};
use crate::compress::values::{QsgdValues, Values};
use crate::compress::{Built, Law, Properties, Seat, Soundness};
use crate::rng::Stream;
use crate::wire::Format;
use crate::{Gauge, Policy, Result, Scheme};

settings! {
    /// The settings of `dgc`.
    pub struct Config {
        /// Share of each bucket's elements that is aimed at, above 0 and at most 1; or a falling one.
        /// Default 0.01.
        pub ratio: Ratio = 0.01.into(),
        /// Share of elements that the threshold is estimated from, above 0 and at most 1. Default
        /// 0.01.
        #[cfg_attr(feature = "schema", schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0)))]
        pub sample: f64 = 0.01,
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
            name: "dgc",
            line: "the elements above a threshold that a small sample suggests",
            paper: "Lin et al. 2018",
            law: self.values.law(Law::Contraction, self.feedback),
            soundness: Soundness::Sound,
            feedback: self.feedback,
        }
    }

    fn default_policy(&self) -> Policy {
        let momentum = if self.feedback { 0.9 } else { 0.0 };
        Policy { momentum_correction: Some(momentum), ..Policy::default() }
    }

    fn validate(&self) -> Result<()> {
        self.ratio.validate(self.about().name)?;
        self.values.validate(self.about().name)?;
        let good = self.sample > 0.0 && self.sample <= 1.0;
        let wanted = "write a share above 0 and at most 1, such as 0.01";
        require(good, self.about().name, "sample", self.sample, wanted)
    }

    fn build(&self, seat: &Seat) -> Built {
        let select = Dgc {
            config: self.clone(),
            seat: seat.clone(),
            sample: Vec::new(),
            selector: Selector::default(),
            exceedances: Exceedances::new(seat.length),
            selected: Vec::new(),
            wanted: 0,
        };
        Built::codec(Sparsifier::new(select, self.values, self.feedback, seat))
    }

    fn examples() -> Vec<Self> {
        vec![
            Self { ratio: 0.001.into(), feedback: false, ..Self::default() },
            Self {
                ratio: Ratio::Falling(Fall { start: 0.25, end: 0.001, steps: 4 }),
                ..Self::default()
            },
            Self { sample: 1.0, values: Format::F16.into(), ..Self::default() },
            Self { values: QsgdValues::default().into(), ..Self::default() },
        ]
    }
}

struct Dgc {
    config: Config,
    seat: Seat,
    sample: Vec<f32>,
    selector: Selector,
    exceedances: Exceedances,
    selected: Vec<u32>,
    /// Elements that were aimed at last.
    wanted: usize,
}

impl Dgc {
    /// Takes a sample, and returns the magnitude that `share` of it reaches.
    fn threshold(&mut self, gradient: &[f32], share: f64, step: u64) -> f32 {
        let stream = Stream::at(&self.seat, step);
        let wanted = (self.config.sample * gradient.len() as f64).max(2.0 / share).ceil();
        let size = (wanted as usize).clamp(1, gradient.len().max(1));
        let start = |number: usize| number * gradient.len() / size;
        self.sample.clear();
        self.sample.extend((0..size.min(gradient.len())).map(|number| {
            let (from, to) = (start(number), start(number + 1));
            gradient[from + stream.below(number as u32, (to - from) as u32) as usize]
        }));
        let count = (share * size as f64).ceil() as usize;
        let largest = self.selector.largest(&self.sample, count);
        let least = |least: f32, position: &u32| least.min(self.sample[*position as usize].abs());
        let reached = largest.iter().fold(f32::INFINITY, least);
        // Zeros are not among the largest: with too few others, all of those are to be kept.
        if largest.len() < count { f32::from_bits(1) } else { reached }
    }
}

impl Select for Dgc {
    fn select(&mut self, gradient: &[f32], step: u64) {
        let k = self.config.ratio.count(gradient.len(), step);
        let threshold = self.threshold(gradient, self.config.ratio.at(step), step);
        self.exceedances.gather(gradient, threshold.next_down());
        let above = self.exceedances.positions();
        let too_many = 3 * above.len() > 4 * k;
        let selected =
            if too_many { self.selector.largest_among(gradient, above, k) } else { above };
        self.selected.clear();
        self.selected.extend_from_slice(selected);
        self.wanted = k;
    }

    fn positions(&self) -> &[u32] {
        &self.selected
    }

    fn most(&self, length: usize) -> usize {
        (self.config.ratio.most(length) * 4 / 3).max(1)
    }

    fn add_gauges(&self, gauges: &mut Vec<Gauge>) {
        let (kept, k) = (self.selected.len() as f64, self.wanted as f64);
        gauges.push(Gauge::mean("kept_ratio", kept / k, k));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(config: &Config, gradient: &[f32], step: u64) -> Vec<u32> {
        let seat = Seat::alone(gradient.len(), 0);
        let mut compressor = config.codec(&seat).unwrap();
        compressor.encode(gradient, step, &mut Vec::new());
        compressor.sent().unwrap().to_vec()
    }

    #[test]
    fn a_sample_of_everything_selects_the_largest() {
        let gradient: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 1009) as f32 - 500.0).collect();
        let config = Config { ratio: 0.05.into(), sample: 1.0, ..Config::default() };
        let mut selector = Selector::default();
        assert_eq!(kept(&config, &gradient, 1).len(), 50);
        for position in selector.largest(&gradient, 49) {
            assert!(kept(&config, &gradient, 1).contains(position));
        }
    }

    #[test]
    fn about_k_are_kept_and_never_many_more() {
        let stream = Stream::new(&[8]);
        let gradient: Vec<f32> = (0..100_000).map(|i| -(1.0 - stream.uniform(i)).ln()).collect();
        let config = Config::default();
        let counts: Vec<usize> =
            (1..=40).map(|step| kept(&config, &gradient, step).len()).collect();
        assert!(counts.iter().all(|count| *count <= 1333), "{counts:?}");
        let mean = counts.iter().sum::<usize>() as f64 / 40.0;
        assert!((800.0..1100.0).contains(&mean), "{mean}");
        assert_eq!(kept(&config, &[1.0; 1000], 1).len(), 10, "equals are trimmed");
    }
}
