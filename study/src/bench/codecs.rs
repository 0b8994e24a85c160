//! `gradwire bench codecs`: what every compression scheme does to one gradient, and how fast.

use crate::statistics::median;
use anyhow::{Context, Result, bail, ensure};
use gradwire::record::gradient::Gradient;
use gradwire_exchange::Scheme;
use gradwire_exchange::rng::Stream;
use gradwire_exchange::{
    Alone, BucketGradient, Built, Compressor, Encoded, Next, Reducer, SchemeConfig, Seat,
    StepMessages,
};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Messages that are not timed, in which schemes that learn from what they see have learnt: SIDCo of a
/// ratio of 0.001 comes to its largest number of stages in 50.
const WARM: u64 = 60;
/// Messages that are timed at least, and the time after which no more are.
const TIMED: u64 = 5;
const PATIENCE: Duration = Duration::from_millis(400);

/// One row of the table. Throughputs are of f32 gradient, medians over messages.
#[derive(Clone, Debug, Serialize)]
pub struct CodecSpeed {
    /// The scheme with its settings.
    pub scheme: String,
    /// GB/s that are encoded.
    pub encode_gb_s: f64,
    /// GB/s that are decoded and added up; absent where the gradient would be sent as it is.
    pub decode_gb_s: Option<f64>,
    /// The same as shares of what a copy in memory reached in the same rounds.
    pub encode_of_memcpy: f64,
    /// See `encode_of_memcpy`.
    pub decode_of_memcpy: Option<f64>,
    /// Bits per parameter, mean over messages, without the frame's header.
    pub bits_per_parameter: f64,
    /// ‖ĝ − g‖² / ‖g‖².
    pub error: f64,
    /// The cosine of the angle between ĝ and g.
    pub cosine: f64,
    /// Whether the scheme found the gradient unfit and would send it as it is.
    pub dense: bool,
}

/// Repeated measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The smallest.
    pub least: f64,
    /// The one in the middle.
    pub median: f64,
    /// The largest.
    pub most: f64,
}

/// Laplace distributed values, a matrix of 1,024 columns where that comes out even, else a vector.
pub fn laplace(elements: usize, seed: u64) -> Gradient {
    let stream = Stream::new(&[seed]);
    let value = |i: usize| {
        let uniform = f64::from(stream.uniform(i as u32)) - 0.5 + 1.0 / 33_554_432.0;
        (-uniform.signum() * (1.0 - 2.0 * uniform.abs()).max(1e-12).ln()) as f32 * 1e-3
    };
    let columns = if elements.is_multiple_of(1024) { 1024 } else { 1 };
    let shape = if columns > 1 { vec![elements / columns, columns] } else { vec![elements] };
    Gradient { flat: (0..elements).map(value).collect(), shapes: vec![shape] }
}

/// Encodes and decodes `gradient` with `scheme`, one bucket for all of it, on this thread. Of a scheme
/// of several rounds, the first is encoding and the others are decoding.
///
/// # Errors
/// When the scheme's settings mean nothing.
pub fn measure(name: String, scheme: &SchemeConfig, gradient: &Gradient) -> Result<CodecSpeed> {
    let flat = gradient.flat.as_slice();
    let (mut encodes, mut decodes, mut copies) = (Vec::new(), Vec::new(), Vec::new());
    let (mut bytes, mut error, mut cosine, mut dense) = (0, 0.0, 0.0, false);
    take_turns(&[scheme], gradient, |_, sent, arrived| {
        dense = sent.dense;
        bytes += if dense { 4 * flat.len() } else { sent.bytes };
        let (e, c) = if dense { (0.0, 1.0) } else { distortion(flat, arrived) };
        (error, cosine) = (error + e, cosine + c);
        encodes.push(sent.encode);
        decodes.push(sent.decode);
        let start = Instant::now();
        arrived.copy_from_slice(std::hint::black_box(flat));
        std::hint::black_box(&mut *arrived);
        copies.push(start.elapsed());
        Ok(())
    })?;
    let gb_s = |times: &[Duration]| {
        let median =
            median(times.iter().map(Duration::as_secs_f64)).context("nothing was timed")?;
        Ok::<_, anyhow::Error>(4e-9 * flat.len() as f64 / median.max(1e-9))
    };
    let n = encodes.len() as f64;
    let (encode, decode, copy) = (gb_s(&encodes)?, gb_s(&decodes)?, gb_s(&copies)?);
    Ok(CodecSpeed {
        scheme: name,
        encode_gb_s: encode,
        decode_gb_s: (!dense).then_some(decode),
        encode_of_memcpy: encode / copy,
        decode_of_memcpy: (!dense).then_some(decode / copy),
        bits_per_parameter: 8.0 * bytes as f64 / n / flat.len() as f64,
        error: error / n,
        cosine: cosine / n,
        dense,
    })
}

/// Seconds of encoding and of decoding `gradient` by each of the schemes, one bucket for all of it, on
/// this thread. The schemes take turns, message by message, so that whatever else the machine does
/// slows all of them alike.
///
/// # Errors
/// When a scheme's settings mean nothing, or it sends the gradient as it is.
pub fn in_turns(schemes: &[&SchemeConfig], gradient: &Gradient) -> Result<Vec<[Spread; 2]>> {
    let mut seconds: Vec<[Vec<f64>; 2]> = vec![Default::default(); schemes.len()];
    take_turns(schemes, gradient, |number, sent, _| {
        ensure!(!sent.dense, "{} sends this gradient as it is", schemes[number].about().name);
        seconds[number][0].push(sent.encode.as_secs_f64());
        seconds[number][1].push(sent.decode.as_secs_f64());
        Ok(())
    })?;
    Ok(seconds.into_iter().map(|both| both.map(|times| Spread::new(&times))).collect())
}

/// Lets the schemes encode and decode `gradient` in turns, message by message. `count` sees each message
/// that counts, with the number of its scheme and what arrived.
fn take_turns(
    schemes: &[&SchemeConfig],
    gradient: &Gradient,
    mut count: impl FnMut(usize, &Sent, &mut [f32]) -> Result<()>,
) -> Result<()> {
    let flat = gradient.flat.as_slice();
    let buckets = schemes.iter().map(|scheme| TimedBucket::new(scheme, gradient));
    let mut buckets: Vec<TimedBucket> = buckets.collect::<Result<_>>()?;
    let mut arrived = vec![0.0f32; flat.len()];
    let began = Instant::now();
    let mut step = 0;
    while step < WARM + TIMED || began.elapsed() < PATIENCE * schemes.len() as u32 {
        step += 1;
        for (number, bucket) in buckets.iter_mut().enumerate() {
            let sent = bucket.step(flat, step, &mut arrived)?;
            if step > WARM {
                count(number, &sent, &mut arrived)?;
            }
        }
    }
    Ok(())
}

impl Spread {
    fn new(seconds: &[f64]) -> Self {
        let values = || seconds.iter().copied();
        Self {
            least: values().reduce(f64::min).unwrap_or_default(),
            median: median(values()).unwrap_or_default(),
            most: values().reduce(f64::max).unwrap_or_default(),
        }
    }
}

/// What is timed.
enum TimedBucket {
    /// One message, and the buffer that it is written to.
    Codec(Box<dyn Compressor>, Vec<u8>),
    /// Rounds of a group of one rank.
    Rounds(Box<dyn Reducer>),
}

/// One step of it.
struct Sent {
    encode: Duration,
    decode: Duration,
    bytes: usize,
    /// Whether the gradient would be sent as it is.
    dense: bool,
}

impl TimedBucket {
    /// What `scheme` builds for all of `gradient`.
    fn new(scheme: &SchemeConfig, gradient: &Gradient) -> Result<Self> {
        scheme.validate()?;
        let elements = gradient.flat.len();
        let mut seat = Seat::alone(elements, 1);
        (seat.parameters, seat.shapes) = (gradient.parameters(), gradient.shapes.clone());
        Ok(match scheme.build(&seat) {
            Built::Codec(compressor) => Self::Codec(compressor, Vec::with_capacity(4 * elements)),
            Built::Reducer(reducer) => Self::Rounds(reducer),
            Built::Plain => {
                bail!("{} has nothing to measure: it builds no compressor", scheme.about().name)
            }
        })
    }

    /// Encodes `gradient`, and writes what arrives into `arrived`.
    fn step(&mut self, gradient: &[f32], step: u64, arrived: &mut [f32]) -> Result<Sent> {
        match self {
            TimedBucket::Codec(compressor, wire) => {
                wire.clear();
                let start = Instant::now();
                let encoded = compressor.encode(gradient, step, wire);
                let encode = start.elapsed();
                // As an exchange does: what is longer than the gradient is not sent.
                let dense = encoded == Encoded::Dense || wire.len() > size_of_val(gradient);
                arrived.fill(0.0);
                let mut decode = Duration::ZERO;
                if !dense {
                    let start = Instant::now();
                    compressor.decode_add(wire, 0, 1.0, arrived)?;
                    decode = start.elapsed();
                }
                let message = (!dense).then_some(wire.as_slice());
                compressor.learn_and_commit(&StepMessages {
                    step,
                    messages: &[message],
                    mean: gradient,
                })?;
                Ok(Sent { encode, decode, bytes: wire.len(), dense })
            }
            TimedBucket::Rounds(reducer) => {
                arrived.copy_from_slice(gradient);
                let (mut alone, mut bucket) =
                    (Alone::default(), BucketGradient::new(arrived, None));
                let start = Instant::now();
                let mut next = alone.turn(&mut **reducer, step, &mut bucket)?;
                let encode = start.elapsed();
                while next == Next::Again {
                    next = alone.turn(&mut **reducer, step, &mut bucket)?;
                }
                let decode = start.elapsed() - encode;
                reducer.commit();
                Ok(Sent { encode, decode, bytes: alone.wire_bytes(), dense: false })
            }
        }
    }
}

/// ‖ĝ − g‖² / ‖g‖² and the cosine between the two.
fn distortion(gradient: &[f32], arrived: &[f32]) -> (f64, f64) {
    let (mut whole, mut error, mut length, mut dot) = (0.0, 0.0, 0.0, 0.0);
    for (g, s) in gradient.iter().zip(arrived) {
        let (g, s) = (f64::from(*g), f64::from(*s));
        whole += g * g;
        length += s * s;
        dot += g * s;
        error += (g - s) * (g - s);
    }
    let nothing = if error > 0.0 { 0.0 } else { 1.0 };
    let share = |part: f64, of: f64, otherwise| if of > 0.0 { part / of } else { otherwise };
    (share(error, whole, 0.0), share(dot, (whole * length).sqrt(), nothing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_has_a_row_of_finite_figures() {
        let gradient = laplace(3000, 1);
        for scheme in SchemeConfig::all() {
            let row = measure(scheme.about().name.into(), &scheme, &gradient).unwrap();
            assert!(row.error.is_finite() && row.cosine <= 1.0 + 1e-9, "{row:?}");
            assert!(row.bits_per_parameter <= 40.0 && row.encode_gb_s > 0.0, "{row:?}");
        }
        let dense = measure("dense".into(), &SchemeConfig::default(), &gradient).unwrap();
        assert_eq!((dense.error, dense.bits_per_parameter), (0.0, 32.0));
    }

    #[test]
    fn schemes_in_turns_are_timed_each() {
        let (topk, qsgd) = (
            gradwire::recipe::scheme_of("topk").unwrap(),
            gradwire::recipe::scheme_of("qsgd").unwrap(),
        );
        let rows = in_turns(&[&topk, &qsgd], &laplace(3000, 1)).unwrap();
        assert_eq!(rows.len(), 2);
        for spread in rows.into_iter().flatten() {
            let Spread { least, median, most } = spread;
            assert!(0.0 < least && least <= median && median <= most, "{spread:?}");
        }
        let spread = Spread::new(&[3.0, 1.0, 4.0, 2.0]);
        assert_eq!(spread, Spread { least: 1.0, median: 2.5, most: 4.0 });
    }
}
