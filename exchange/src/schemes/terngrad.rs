//! TernGrad: minus the scale, zero, or the scale.
//!
//! # Paper
//! Wen, Xu, Yan, Wu, Wang, Chen & Li 2017 ("TernGrad: Ternary Gradients to Reduce Communication in
//! Distributed Deep Learning"), equations 1 to 3, and section 4 for clipping.
//!
//! # Idea
//! An element becomes ±s, s the largest magnitude, with the probability |g|/s, else 0. The variance
//! grows with s, so outliers are clipped at c standard deviations first.
//!
//! # Wire
//! | bytes | what |
//! |---|---|
//! | 4·blocks | the scale of each block, f32 |
//! | ⌈n/5⌉ for each 1024 | the elements as 0 (zero), 1 (plus), 2 (minus), five in a byte: 1.6 bits (`wire/trits.rs`) |
//!
//! # Where we differ
//! As in the paper each parameter is a bucket, unless the policy says otherwise.
//! Without clipping (`clip = 0`, equations 1 to 3 by themselves) it is unbiased; with it (the default,
//! c = 2.5 as in the paper) it is not, as in the paper. Comparisons differ: GRACE's code clips (Xu et
//! al. 2021), while the TernGrad in the table of DQ-SGD (Yan et al. 2021) is as good as their QSGD
//! of two bits, which it is without clipping only. σ is the root of the mean square of the block,
//! not of what is left after its mean, so that a constant gradient is not clipped to nothing. The
//! paper counts log2(3) = 1.58 bits; 1.6 are sent. Ranks have scales of their own; the paper's
//! sharing of the largest one is for summing codes on a server, and there is none here.
use crate::compress::ladder::Uniform;
use crate::compress::levels::{self, Norm, Quantiser, Scales};
use crate::compress::scheme::require;
use crate::compress::{Built, Compressor, Encoded, Law, Properties, Seat, Soundness};
use crate::rng::Stream;
use crate::wire::codes::BLOCK;
use crate::wire::trits;
use crate::{Bucketing, Gauge, Policy, Result, Scheme};

settings! {
    /// The settings of `terngrad`.
    pub struct Config {
        /// Standard deviations at which elements are clipped; 0 for no clipping. Default 2.5.
        #[cfg_attr(feature = "schema", schemars(range(min = 0.0)))]
        pub clip: f64 = 2.5,
        /// Elements of a block; 0 for the whole bucket. Default 0.
        pub block: usize = 0,
        /// Error feedback, which does harm here: its variance is fed back. Default false.
        pub feedback: bool = false,
    }
}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        Properties {
            name: "terngrad",
            line: "minus the scale, zero or the scale, at random; outliers clipped",
            paper: "Wen et al. 2017",
            law: if self.clip > 0.0 { Law::Biased } else { Law::Unbiased },
            soundness: Soundness::Unsound(
                "its rounding is random, and its variance, larger than the gradient, is fed back",
            ),
            feedback: self.feedback,
        }
    }

    fn default_policy(&self) -> Policy {
        Policy::from(Bucketing::Parameter)
    }

    fn validate(&self) -> Result<()> {
        let good = self.clip >= 0.0 && self.clip.is_finite();
        let wanted = "write a number of standard deviations, or 0 for no clipping";
        require(good, self.about().name, "clip", self.clip, wanted)
    }

    fn build(&self, seat: &Seat) -> Built {
        Built::codec(Terngrad {
            config: self.clone(),
            seat: seat.clone(),
            quantiser: Quantiser::default(),
            gauges: Vec::with_capacity(1),
        })
    }

    fn examples() -> Vec<Self> {
        vec![Self { clip: 0.0, ..Self::default() }, Self { block: 512, ..Self::default() }]
    }
}

impl Config {
    /// The largest magnitude, or what it is clipped to.
    fn scale(&self, block: &[f32]) -> f32 {
        let largest = Norm::Linf.scale(block);
        if self.clip == 0.0 {
            return largest;
        }
        let deviation = crate::wire::floats::norm(block) / (block.len().max(1) as f64).sqrt();
        largest.min((self.clip * deviation) as f32)
    }
}

struct Terngrad {
    config: Config,
    seat: Seat,
    quantiser: Quantiser,
    gauges: Vec<Gauge>,
}

impl Compressor for Terngrad {
    fn encode(&mut self, gradient: &[f32], step: u64, out: &mut Vec<u8>) -> Encoded {
        let (config, start) = (&self.config, out.len());
        let scale = |block: &[f32]| config.scale(block);
        self.quantiser.put_scales(gradient, config.block, scale, out);
        out.reserve(trits::bytes(gradient.len()));
        let stream = Stream::at(&self.seat, step);
        let mut digits = [0; BLOCK];
        self.quantiser.each_codes(gradient, config.block, Uniform(1), stream, |codes| {
            let digits = &mut digits[..codes.len()];
            for (digit, code) in digits.iter_mut().zip(codes) {
                *digit = (code & 1) * (1 + (code >> 1));
            }
            trits::put(digits, out);
        });
        self.gauges.clear();
        self.gauges.push(levels::bits_gauge(out.len() - start, gradient.len()));
        Encoded::Message
    }

    fn decode_add(&self, wire: &[u8], _start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        let length = sum.len();
        let (scales, rest) = Scales::take(wire, self.config.block, length)?;
        let mut codes = [0; BLOCK];
        trits::each_block(rest, length, |first, digits| {
            let codes = &mut codes[..digits.len()];
            for (code, digit) in codes.iter_mut().zip(digits) {
                *code = digit.div_ceil(2) | (digit & 2);
            }
            scales.add(first, codes, Uniform(1), weight, sum);
            Ok(())
        })?;
        Ok(())
    }

    fn gauges(&self) -> &[Gauge] {
        &self.gauges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::testing::{mean_square_error, round_trip};

    #[test]
    fn elements_become_the_scale_or_zero_in_1_6_bits() {
        let config = Config { clip: 0.0, ..Config::default() };
        let (wire, sum) = round_trip(&config, &[2.0, 0.0, -2.0, -2.0, 2.0, 0.0, 2.0], 1);
        assert_eq!(sum, [2.0, 0.0, -2.0, -2.0, 2.0, 0.0, 2.0]);
        // Two bytes a stretch of two digits: 1 0, 2 2, 1 0, 1: 1 + 3·2 + 9·1 + 27·1 and 0 + 3·2.
        assert_eq!(wire, [&2f32.to_le_bytes()[..], &[43, 6]].concat());
        let gradient: Vec<f32> = (0..10_240).map(|i| (i as f32).sin()).collect();
        assert_eq!(round_trip(&config, &gradient, 1).0.len(), 4 + 2050);
    }

    #[test]
    fn outliers_are_clipped_at_their_deviations() {
        let mut gradient = vec![1.0; 99];
        gradient.push(50.0);
        let deviation = ((99.0 + 2500.0) / 100.0f64).sqrt();
        let (_, sum) = round_trip(&Config::default(), &gradient, 1);
        assert_eq!(sum[99], (2.5 * deviation) as f32);
        let (_, constant) = round_trip(&Config::default(), &[3.0; 70], 1);
        assert_eq!(constant, [3.0; 70]);
    }

    /// Equation 5 of the paper: the second moment of an element is s·|g|, its variance |g|(s − |g|).
    #[test]
    fn the_error_has_the_variance_of_the_closed_form() {
        const STEPS: u64 = 400;
        let gradient: Vec<f32> = (0..300).map(|i| (i as f32 * 0.7).sin()).collect();
        let config = Config { clip: 0.0, ..Config::default() };
        let scale = Norm::Linf.scale(&gradient);
        let expected: f64 = gradient.iter().map(|g| f64::from(g.abs() * (scale - g.abs()))).sum();
        let mean = mean_square_error(&config, &gradient, STEPS);
        assert!((mean / expected - 1.0).abs() < 0.05, "{mean} {expected}");
    }
}
