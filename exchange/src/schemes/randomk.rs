//! Random-k: elements at positions that a seed determines, so that none are sent.
//!
//! # Paper
//! Stich, Cordonnier & Jaggi 2018 ("Sparsified SGD with Memory"), rand_k with feedback; Wangni,
//! Wang, Liu & Zhang 2018 ("Gradient Sparsification for Communication-Efficient Distributed
//! Optimization") for random dropping made unbiased by scaling.
//!
//! # Idea
//! A uniformly random set of k positions, the same on all ranks at a step and another at the
//! next. The receiver draws the same set from the key in the message; ranks' messages add up
//! without a union.
//!
//! # Wire
//!
//! | bytes | what |
//! |---|---|
//! | 1–5 | number of elements, seven bits a byte |
//! | 8 | key of the random stream: of the run's seed, the bucket and the step |
//! | 4·kept (f16, bf16: 2·kept) | their [`values`](crate::Values), in ascending order of position, or quantised |
//!
//! # Where we differ
//! Positions are drawn in one pass, each with the probability that makes every set of k equally
//! likely (Fan, Muller & Rezucha 1962), which costs n random numbers instead of k, and no memory.
//! Zeros are sent like all others: the positions do not look at the gradient.
//!
//! # With feedback
//! An element waits 1/ratio steps on average and then moves by all of them at once. The theorem
//! asks for a step size that is small against that delay: ResNet-20 at ratio 0.01 and learning rate
//! 0.1 diverges with an optimizer's momentum of 0.9 and learns without (`optimizer.momentum = 0`,
//! as in published experiments), or with a ratio that falls from large to small.
use crate::compress::moments::largest;
use crate::compress::ratio::Ratio;
use crate::compress::scheme::require;
use crate::compress::values::{Arriving, Coding, QsgdValues, Sender, Values};
use crate::compress::{Built, Compressor, Encoded, Law, Properties, Seat, Soundness};
use crate::rng::Stream;
use crate::simd::wide;
use crate::wire::{Format, Reader, put_count};
use crate::{Gauge, Result, Scheme};

settings! {
    /// The settings of `randomk`.
    pub struct Config {
        /// Share of each bucket's elements that is sent, above 0 and at most 1: of n elements
        /// max(1, round(ratio·n)); or a falling one. Default 0.01.
        pub ratio: Ratio = 0.01.into(),
        /// Whether what is sent is multiplied by n/k, which makes it right in expectation. Without
        /// feedback, and in f32 or quantised only. Default false.
        pub unbiased: bool = false,
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
            name: "randomk",
            line: "elements at random positions that all ranks share and none sends",
            paper: "Stich et al. 2018; Wangni et al. 2018",
            law: {
                let drawn = if self.unbiased { Law::Unbiased } else { Law::Contraction };
                self.values.law(drawn, self.feedback)
            },
            soundness: match self.unbiased {
                false => Soundness::Sound,
                true => Soundness::Unsound(
                    "what is scaled up is no contraction, and its variance would be fed back",
                ),
            },
            feedback: self.feedback,
        }
    }

    fn validate(&self) -> Result<()> {
        self.ratio.validate(self.about().name)?;
        self.values.validate(self.about().name)?;
        let wanted = "write `values = \"f32\"` beside `unbiased = true`, or a quantiser, \
                      such as { kind = \"qsgd\", levels = 1 }: others are rounded";
        let rounds = match self.values {
            Values::Plain(format) => format != Format::F32,
            Values::Coded(_) => true,
            Values::Quantised(_) => false,
        };
        let exact = !(rounds && self.unbiased);
        require(exact, self.about().name, "values", format_args!("{:?}", self.values), wanted)
    }

    fn build(&self, seat: &Seat) -> Built {
        // What is to be right in expectation must not be fitted.
        let (fitted, most) = (self.feedback && !self.unbiased, self.ratio.most(seat.length));
        Built::codec(Randomk {
            config: self.clone(),
            sender: Sender::new(self.values, fitted, most, seat),
            seat: seat.clone(),
            key: 0,
            positions: Vec::new(),
            gauges: Vec::new(),
        })
    }

    fn examples() -> Vec<Self> {
        vec![
            Self { ratio: 0.1.into(), unbiased: true, feedback: false, ..Self::default() },
            Self { ratio: 0.5.into(), values: Format::Bf16.into(), ..Self::default() },
            Self { ratio: 1.0.into(), ..Self::default() },
            Self { ratio: 0.1.into(), values: QsgdValues::default().into(), ..Self::default() },
            Self { ratio: 0.3.into(), values: Values::Coded(Coding::TwoBits), ..Self::default() },
            Self {
                ratio: 0.1.into(),
                unbiased: true,
                values: QsgdValues { levels: 1, ..QsgdValues::default() }.into(),
                feedback: false,
            },
        ]
    }
}

/// Scaled values beyond this are not sent: their sum over all the ranks that there may be could
/// overflow.
const MOST_SCALED: f32 = f32::MAX / 65_536.0;

struct Randomk {
    config: Config,
    sender: Sender,
    seat: Seat,
    /// The key of the last message, and what it stands for.
    key: u64,
    positions: Vec<u32>,
    gauges: Vec<Gauge>,
}

/// Positions whose random bits are had at once.
const STRETCH: usize = 512;

/// Visits `count` of the positions below `length`, in ascending order, every set of that size being
/// equally likely; `count` is at most `length`. For one position after another, a random number
/// below the number of positions left is drawn, and the position is taken if that number is below
/// the number of positions still wanted.
///
/// Few positions are taken. So the random bits of a whole stretch are first compared with the
/// largest that any position of the stretch could have and still be taken, in a loop that vector
/// units run; only the positions that pass are looked at one by one.
fn draw(key: u64, count: usize, length: usize, mut visit: impl FnMut(u32)) {
    let stream = Stream::from_key(key);
    let (mut wanted, length) = (count as u32, length as u32);
    let (mut numbers, mut maybe) = ([0; STRETCH], [0; STRETCH]);
    for first in (0..length).step_by(STRETCH) {
        let left = length - first;
        if wanted == 0 {
            return;
        }
        if wanted >= left {
            return (first..length).for_each(visit);
        }
        // Taken if bits·end/2³² < wanted: `wanted` only falls, and `end`, the positions left, is
        // `least` at the last position of the stretch.
        let least = left.saturating_sub(STRETCH as u32 - 1).max(1);
        let most = (u64::from(wanted) << 32).div_ceil(least.into()).min(u32::MAX.into()) as u32;
        wide!({
            for (i, (number, maybe)) in numbers.iter_mut().zip(&mut maybe).enumerate() {
                *number = stream.bits(first.wrapping_add(i as u32));
                *maybe = u8::from(*number <= most);
            }
        });
        for (eight, maybe) in maybe.as_chunks().0.iter().enumerate() {
            let mut maybe = u64::from_le_bytes(*maybe);
            while maybe != 0 {
                let at = 8 * eight + maybe.trailing_zeros() as usize / 8;
                maybe &= maybe - 1;
                // Beyond the last position none is left.
                let left = u64::from(left.saturating_sub(at as u32));
                if (u64::from(numbers[at]) * left) >> 32 < u64::from(wanted) && left > 0 {
                    visit(first + at as u32);
                    wanted -= 1;
                }
            }
        }
    }
}

impl Randomk {
    /// Adds `weight` times the `next` value at each position that a key stands for.
    fn add(
        &self,
        count: usize,
        key: u64,
        mut next: impl FnMut() -> f32,
        weight: f32,
        sum: &mut [f32],
    ) {
        let length = sum.len();
        let add = |position: u32| sum[position as usize] += weight * next();
        // Ranks share the key: what this rank has drawn for its own message serves for all.
        let drawn = key == self.key && count == self.positions.len();
        if drawn && self.seat.length == length {
            self.positions.iter().copied().for_each(add);
        } else {
            draw(key, count, length, add);
        }
    }
}

impl Compressor for Randomk {
    fn encode(&mut self, gradient: &[f32], step: u64, out: &mut Vec<u8>) -> Encoded {
        let n = gradient.len();
        let k = self.config.ratio.count(n, step).min(n);
        self.key = Stream::shared(&self.seat, step).key();
        self.positions.clear();
        draw(self.key, k, n, |position| self.positions.push(position));
        // A mean is zero but at these positions, where ranks have scaled it.
        let scaled = self.config.unbiased && !self.seat.of_means;
        let scale = if scaled { n as f32 / k.max(1) as f32 } else { 1.0 };
        // A message that is to be thrown away has finite numbers too.
        let finite = |value: f32| value.clamp(f32::MIN, f32::MAX);
        let values =
            self.positions.iter().map(|position| finite(gradient[*position as usize] * scale));
        // By the whole gradient: by what is drawn, a large element would come more often unscaled.
        let too_large = scaled && largest(gradient) * scale > MOST_SCALED;
        put_count(k as u32, out);
        out.extend_from_slice(&self.key.to_le_bytes());
        self.sender.send(&self.positions, values, step, out);
        self.gauges.clear();
        self.gauges.push(Gauge::sum("kept", k as f64));
        if too_large { Encoded::Dense } else { Encoded::Message }
    }

    fn decode_add(&self, wire: &[u8], _start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        let length = sum.len();
        let most = self.config.ratio.most(length).min(length);
        let mut reader = Reader::new(wire);
        let count = reader.count(most)?;
        let key = reader.u64()?;
        let values = self.config.values.take(&mut reader, count)?;
        reader.finish()?;
        // The loop is compiled for each form that values have: they are few instructions.
        match values {
            Arriving::Plain(format, mut bytes) => {
                let next = || bytes.next().map_or(0.0, |bytes| format.value(bytes));
                self.add(count, key, next, weight, sum);
            }
            Arriving::TwoBits(mut values) => {
                self.add(count, key, || values.next().unwrap_or(0.0), weight, sum);
            }
            Arriving::Quantised(mut elements) => {
                self.add(count, key, || elements.next(), weight, sum);
            }
        }
        Ok(())
    }

    fn sent(&self) -> Option<&[u32]> {
        Some(self.sender.sent(&self.positions))
    }

    fn gauges(&self) -> &[Gauge] {
        &self.gauges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_is_equally_likely() {
        let mut counts = std::collections::BTreeMap::new();
        for number in 0..6000u64 {
            let mut set = Vec::new();
            draw(Stream::new(&[number]).key(), 2, 4, |position| set.push(position));
            *counts.entry(set).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|count| (880..1120).contains(count)), "{counts:?}");
    }

    /// One position after another, as the papers say.
    fn naive(key: u64, count: usize, length: usize) -> Vec<u32> {
        let (stream, mut wanted) = (Stream::from_key(key), count as u32);
        let taken = |position: &u32| {
            let taken = stream.below(*position, length as u32 - position) < wanted;
            wanted -= u32::from(taken);
            taken
        };
        (0..length as u32).filter(taken).collect()
    }

    #[test]
    fn stretches_draw_what_one_after_another_draws() {
        for length in [1usize, 2, 7, 8, 511, 512, 513, 1023, 1025, 5000, 100_003] {
            for key in 0..20u64 {
                let key = Stream::new(&[key, length as u64]).key();
                for count in [0, 1, length / 1000, length / 90, length / 2, length - 1, length] {
                    let mut drawn = Vec::new();
                    draw(key, count, length, |position| drawn.push(position));
                    assert_eq!(drawn.len(), count);
                    assert!(drawn == naive(key, count, length), "{count} of {length}, {key}");
                }
            }
        }
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let unbiased = Config { unbiased: true, feedback: false, ..Config::default() };
        assert_eq!(unbiased.validate(), Ok(()));
        assert!(unbiased.properties().soundness.check("randomk", true).is_err());
        assert!(Config { values: Format::F16.into(), ..unbiased }.validate().is_err());
    }
}
