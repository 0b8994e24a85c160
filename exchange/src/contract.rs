//! The laws of this crate, for anybody's scheme: [`check`] runs them, and names the first that is
//! broken.
//!
//! ```
//! use gradwire_exchange::schemes::topk;
//! use gradwire_exchange::{SchemeConfig, contract};
//! contract::check(&SchemeConfig::Topk(topk::Config::default()))?;
//! # Ok::<(), contract::Violation>(())
//! ```

mod gradients;

use std::fmt::Display;
use std::time::Duration;

use self::gradients::{LAPLACE, gradients, laplaces, uniform};
use crate::compress::compressor::RANGE_UNIT;
use crate::compress::{Built, Compressor, Encoded, Law, Seat};
use crate::rng::Stream;
use crate::{Bucketing, Collective, Error, Exchange, Layout, Policy, Scheme, Solo, State, mesh};

/// A law that a scheme breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{law}; {case}: {found}")]
pub struct Violation {
    /// The law, in a sentence.
    law: &'static str,
    /// On which gradient, length and number of ranks.
    case: String,
    /// What was found.
    found: String,
}

const SAME_MEAN: &str = "every rank ends with the same bits, whenever it is run";
const FINITE: &str = "a finite gradient gives a finite mean and finite gauges";
const STOPS: &str = "a gradient that is not finite is an error that names it, and changes nothing";
const CONSERVES: &str =
    "with error feedback, what is sent plus what is left is what was given, but for what fades";
const GOES_ON: &str = "a restored state goes on as if never stopped";
const NOTHING: &str = "a gradient of zeros gives a mean of zeros";
const COST: &str = "no message is larger than plain f32";
const HOSTILE: &str = "any bytes are an error or numbers";
const MESSAGE_ALONE: &str = "decoding reads only the configuration and the message";
const REPEATS: &str = "the same seat and the same gradient give the same bytes";
const RANGES: &str = "a range that is decoded alone has the bits that it has in the whole";
const NEARER: &str = "decoding gives back what the scheme's `law` says";

/// How long ranks of a check wait for each other.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lengths around the sizes of words and blocks, and one that is large and odd. The gradient is laid
/// out as two matrices and a vector.
const LENGTHS: [usize; 6] = [1, 7, 64, 513, 1025, 6007];

/// Runs the laws over a scheme: awkward gradients (zeros, constant, one spike, subnormal, huge,
/// Laplace distributed) of several lengths, one rank and several, of which all or one have something
/// to say or one refuses a step, messages cut short and damaged.
///
/// # Errors
/// The first law that is broken, on what, and what was found.
pub fn check(scheme: &dyn Scheme) -> Result<(), Violation> {
    scheme.validate().map_err(|error| broken(FINITE, "its settings", error))?;
    for length in LENGTHS {
        for (name, gradient) in gradients(length) {
            let case = format!("{name} of {length}");
            nearer(scheme, &gradient, &case)?;
            codec(scheme, &gradient, &case)?;
            goes_on(scheme, &gradient, &case)?;
        }
        group(scheme, length)?;
        hears_each(scheme, length)?;
        stops(scheme, length)?;
        stops_together(scheme, length)?;
    }
    unbiased(scheme)
}

fn broken(law: &'static str, case: &str, found: impl Display) -> Violation {
    Violation { law, case: case.to_string(), found: found.to_string() }
}

/// Two matrices and a vector that share `length` elements.
fn layout(length: usize) -> Layout {
    let side = (length as f64 / 2.0).sqrt() as usize;
    let shapes = [
        ("a", vec![side, side]),
        ("b", vec![side, side / 2]),
        ("c", vec![length - side * side - side * (side / 2)]),
    ];
    let named = shapes.map(|(name, shape)| (name.to_string(), shape));
    Layout::shaped(named).expect("invariant: names ascend")
}

/// The scheme on everything, from the first step on.
fn bare() -> Policy {
    Policy {
        dense_below: Some(0),
        warmup_steps: Some(0),
        momentum_correction: Some(0.0),
        clip_norm: Some(0.0),
        ..Policy::from(Bucketing::Whole)
    }
}

fn alone(scheme: &dyn Scheme, length: usize) -> crate::Result<Exchange> {
    end(scheme, length, Box::new(Solo))
}

/// What each of `count` ranks comes to, every rank on a thread of its own.
fn ranks<T: Send>(
    count: usize,
    rank: impl Fn(usize, Box<dyn Collective>) -> crate::Result<T> + Sync,
) -> crate::Result<Vec<T>> {
    std::thread::scope(|scope| {
        let (ends, rank) = (mesh(count, PATIENCE).into_iter().enumerate(), &rank);
        let threads: Vec<_> =
            ends.map(|(number, end)| scope.spawn(move || rank(number, end))).collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect()
    })
}

/// One rank's end of an exchange.
fn end(
    scheme: &dyn Scheme,
    length: usize,
    collective: Box<dyn Collective>,
) -> crate::Result<Exchange> {
    Exchange::with(scheme, crate::Topology::default(), bare(), layout(length), 42, collective)
}

fn square(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// One step of one rank: the mean is what the scheme says of the gradient.
fn nearer(scheme: &dyn Scheme, gradient: &[f32], case: &str) -> Result<(), Violation> {
    let mut decoded = gradient.to_vec();
    let blame = |error| broken(FINITE, case, error);
    let mut exchange = alone(scheme, gradient.len()).map_err(blame)?;
    let traffic = exchange.allreduce(1, &mut decoded).map_err(blame)?;
    if let Some(at) = decoded.iter().position(|value| !value.is_finite()) {
        return Err(broken(FINITE, case, format!("element {at} is {}", decoded[at])));
    }
    if let Some(gauge) = traffic.gauges.iter().find(|gauge| !gauge.value.is_finite()) {
        return Err(broken(FINITE, case, format!("`{}` is {}", gauge.name, gauge.value)));
    }
    let zero = |values: &[f32]| values.iter().all(|value| *value == 0.0);
    if zero(gradient) && !zero(&decoded) {
        return Err(broken(NOTHING, case, "something arrives"));
    }
    let one_message = matches!(scheme.build(&Seat::alone(1, 0)), Built::Codec(_));
    if one_message && traffic.wire_bytes > traffic.dense_bytes {
        let found = format!("{} bytes of {}", traffic.wire_bytes, traffic.dense_bytes);
        return Err(broken(COST, case, found));
    }
    if let Some(residual) = exchange.residual() {
        for ((given, sent), left) in gradient.iter().zip(&decoded).zip(residual) {
            let [given, sent, left] = [given, sent, left].map(|value| f64::from(*value));
            if (sent + left - given).abs() > (given.abs() + sent.abs()) * 1e-6 {
                return Err(broken(CONSERVES, case, format!("{sent} and {left} of {given}")));
            }
        }
    }
    let (error, whole) = distance(&decoded, gradient);
    let kept = match scheme.properties().law {
        Law::Exact => bits(&decoded) == bits(gradient),
        Law::Contraction if case.contains(LAPLACE) && gradient.len() > 1 => error < whole,
        Law::Contraction => error <= whole * (1.0 + 1e-6),
        Law::Unbiased | Law::Biased => true,
    };
    let found =
        || format!("{:?}, and ‖C(g) − g‖² = {error:e}, ‖g‖² = {whole:e}", scheme.properties().law);
    if kept { Ok(()) } else { Err(broken(NEARER, case, found())) }
}

/// ‖decoded − gradient‖² and ‖gradient‖².
fn distance(decoded: &[f32], gradient: &[f32]) -> (f64, f64) {
    let errors = decoded.iter().zip(gradient).map(|(s, g)| f64::from(*s) - f64::from(*g));
    (square(errors), square(gradient.iter().map(|g| f64::from(*g))))
}

/// Messages of a scheme that has such, cut short and damaged.
fn codec(scheme: &dyn Scheme, gradient: &[f32], case: &str) -> Result<(), Violation> {
    let seat = Seat::alone(gradient.len(), 42);
    let Built::Codec(mut compressor) = scheme.build(&seat) else { return Ok(()) };
    let mut wire = Vec::new();
    if compressor.encode(gradient, 1, &mut wire) == Encoded::Dense {
        return Ok(());
    }
    ranges(&*compressor, &wire, gradient.len(), case)?;
    let mut again = Vec::new();
    if let Built::Codec(mut same) = scheme.build(&seat) {
        same.encode(gradient, 1, &mut again);
    }
    if again != wire {
        return Err(broken(REPEATS, case, "other bytes the second time"));
    }
    // A compressor in another place, which has encoded another gradient, reads the same.
    let elsewhere = Seat { rank: 3, bucket: 9, seed: 7, ..seat };
    if let Built::Codec(mut other) = scheme.build(&elsewhere) {
        other.encode(&laplaces(5, gradient.len()), 1, &mut Vec::new());
        let decoded = [&*compressor, &*other].map(|compressor| {
            let mut sum = vec![0.0; gradient.len()];
            compressor.decode_add(&wire, 0, 1.0, &mut sum).map(|()| bits(&sum))
        });
        if decoded[0].is_err() || decoded[0] != decoded[1] {
            return Err(broken(MESSAGE_ALONE, case, "another compressor reads something else"));
        }
    }
    let mut sum = vec![0.0; gradient.len()];
    let mut decode = |compressor: &dyn Compressor, wire: &[u8]| {
        sum.fill(0.0);
        let alone = compressor.decode_add(wire, 0, 1.0, &mut sum);
        sum.fill(0.0);
        let in_sum = compressor.add_to_sum(wire, &mut sum);
        compressor.finish_sum(&mut sum);
        match (alone, in_sum) {
            (Ok(()), Ok(())) | (Err(Error::Wire(_)), Err(Error::Wire(_))) => Ok(()),
            other => {
                let found = format!("{other:?}: neither read both ways nor twice an `Error::Wire`");
                Err(broken(HOSTILE, case, found))
            }
        }
    };
    let ends = (0..wire.len()).step_by(1 + wire.len() / 64);
    ends.into_iter().try_for_each(|end| decode(&*compressor, &wire[..end]))?;
    for number in 0..64 {
        let mut damaged = wire.clone();
        let at = Stream::new(&[number]).bits(0) as usize % damaged.len().max(1);
        if let Some(byte) = damaged.get_mut(at) {
            *byte ^= 1 << (number % 8);
        }
        decode(&*compressor, &damaged)?;
    }
    Ok(())
}

/// Every range of a message, decoded alone, by a compressor that reads ranges.
fn ranges(
    compressor: &dyn Compressor,
    wire: &[u8],
    length: usize,
    case: &str,
) -> Result<(), Violation> {
    let decoded = |range: std::ops::Range<usize>| {
        let mut sum = vec![0.25; range.len()];
        let result = compressor.decode_add(wire, range.start, 0.3, &mut sum);
        result.map(|()| bits(&sum)).map_err(|error| broken(RANGES, case, error))
    };
    if !compressor.reads_ranges() {
        return Ok(());
    }
    let whole = decoded(0..length)?;
    for start in (0..length).step_by(RANGE_UNIT) {
        for end in [length.min(start + RANGE_UNIT), length] {
            if decoded(start..end)? != whole[start..end] {
                let found = format!("elements {start} to {end} differ");
                return Err(broken(RANGES, case, found));
            }
        }
    }
    Ok(())
}

/// What a rank ended with: the bits of all means, its state, and what it was given and got.
type Ended = (Vec<Vec<u32>>, State, Vec<f64>);

/// Three ranks over four steps.
fn run(scheme: &dyn Scheme, length: usize) -> crate::Result<Vec<Ended>> {
    const STEPS: u64 = 4;
    ranks(3, |rank, collective| {
        let mut exchange = end(scheme, length, collective)?;
        let (mut means, mut balance) = (Vec::new(), vec![0.0; length]);
        let decay = exchange.policy().decay();
        for step in 1..=STEPS {
            let given = laplaces(100 * step + rank as u64, length);
            let mut mean = given.clone();
            exchange.allreduce(step, &mut mean)?;
            for ((balance, given), mean) in balance.iter_mut().zip(&given).zip(&mean) {
                *balance = decay * *balance + f64::from(*given) - f64::from(*mean);
            }
            means.push(bits(&mean));
        }
        if let Some(residual) = exchange.residual() {
            balance.iter_mut().zip(residual).for_each(|(sum, left)| *sum -= f64::from(*left));
        }
        Ok((means, exchange.save(), balance))
    })
}

fn group(scheme: &dyn Scheme, length: usize) -> Result<(), Violation> {
    let case = format!("three ranks with {length} elements");
    let runs = [(); 2].map(|()| run(scheme, length));
    let [first, again] = runs.map(|run| run.map_err(|error| broken(SAME_MEAN, &case, error)));
    let (first, again) = (first?, again?);
    if let Some(rank) = first.iter().position(|(means, ..)| *means != first[0].0) {
        return Err(broken(SAME_MEAN, &case, format!("rank {rank} has another mean than rank 0")));
    }
    if first.iter().zip(&again).any(|(one, two)| (&one.0, &one.1) != (&two.0, &two.1)) {
        return Err(broken(SAME_MEAN, &case, "a second run ends otherwise"));
    }
    if !scheme.feedback() {
        return Ok(());
    }
    for element in 0..length {
        // Given − got − left, over all ranks: rounding only.
        let lost: f64 = first.iter().map(|(.., balance)| balance[element]).sum();
        if lost.abs() > 1e-3 {
            let found = format!("element {element} has lost {lost}");
            return Err(broken(CONSERVES, &case, found));
        }
    }
    Ok(())
}

/// What a rank says arrives, whichever it is: of three ranks the others have zeros, so that thrice the
/// mean is what the scheme makes of the one's gradient.
fn hears_each(scheme: &dyn Scheme, length: usize) -> Result<(), Violation> {
    const RANKS: usize = 3;
    for speaker in 0..RANKS {
        let case =
            format!("rank {speaker} of {RANKS} alone has {length} elements that are not zero");
        let gradient = laplaces(7, length);
        let means = ranks(RANKS, |rank, collective| {
            let mut mean = if rank == speaker { gradient.clone() } else { vec![0.0; length] };
            end(scheme, length, collective)?.allreduce(1, &mut mean)?;
            Ok(mean)
        });
        let mut decoded = means.map_err(|error| broken(NEARER, &case, error))?.swap_remove(0);
        decoded.iter_mut().for_each(|value| *value *= RANKS as f32);
        let (error, whole) = distance(&decoded, &gradient);
        let kept = match scheme.properties().law {
            Law::Exact => error <= whole * 1e-12,
            Law::Contraction => error <= whole * (1.0 + 1e-5),
            Law::Unbiased | Law::Biased => true,
        };
        if !kept {
            let found = format!(
                "{:?}, and ‖3·mean − g‖² = {error:e}, ‖g‖² = {whole:e}",
                scheme.properties().law
            );
            return Err(broken(NEARER, &case, found));
        }
    }
    Ok(())
}

/// Over many steps, the mean of what arrives of a gradient is the gradient, if the scheme's law is that
/// it is unbiased: along directions that show a bias of any kind.
fn unbiased(scheme: &dyn Scheme) -> Result<(), Violation> {
    const DEVIATIONS: f64 = 4.5;
    if scheme.properties().law != Law::Unbiased {
        return Ok(());
    }
    for (length, steps) in [(1601, 600), (6007, 150)] {
        let case = format!("the mean of {steps} steps on {LAPLACE} of {length}");
        let gradient = laplaces(length as u64, length);
        let directions = directions(&gradient);
        let blame = |error: Error| broken(NEARER, &case, error);
        let mut exchange = alone(scheme, length).map_err(blame)?;
        let mut misses = vec![Vec::new(); directions.len()];
        for step in 1..=steps {
            let mut decoded = gradient.clone();
            exchange.allreduce(step, &mut decoded).map_err(blame)?;
            for (misses, (_, direction)) in misses.iter_mut().zip(&directions) {
                let errors = decoded.iter().zip(&gradient);
                let errors = errors.map(|(value, given)| f64::from(*value) - f64::from(*given));
                let along = errors.zip(direction).map(|(error, along)| error * f64::from(*along));
                misses.push(along.sum::<f64>());
            }
        }
        for (misses, (name, direction)) in misses.iter().zip(&directions) {
            let count = misses.len() as f64;
            let mean = misses.iter().sum::<f64>() / count;
            let deviation = (square(misses.iter().map(|miss| miss - mean)) / count / count).sqrt();
            let size: f64 =
                gradient.iter().zip(direction).map(|(g, d)| f64::from((g * d).abs())).sum();
            if mean.abs() > DEVIATIONS * deviation + 1e-6 * size {
                let found =
                    format!("Unbiased, and along {name} it misses by {mean:e} ± {deviation:e}");
                return Err(broken(NEARER, &case, found));
            }
        }
    }
    Ok(())
}

/// Directions that show a bias: towards the gradient, of large and of small elements, of all.
fn directions(gradient: &[f32]) -> Vec<(String, Vec<f32>)> {
    let each = |along: &dyn Fn(f32) -> f32| gradient.iter().map(|g| along(*g)).collect();
    let mut all = vec![
        ("the gradient".to_string(), gradient.to_vec()),
        ("its signs".to_string(), each(&f32::signum)),
        ("all elements".to_string(), each(&|_| 1.0)),
        ("its small elements".to_string(), each(&|g| if g.abs() < 0.3 { g.signum() } else { 0.0 })),
    ];
    all.extend((0..4).map(|number| {
        let sign = |element| if uniform(900 + number, element) < 0.0 { -1.0 } else { 1.0 };
        (format!("random signs {number}"), (0..gradient.len()).map(sign).collect())
    }));
    all
}

fn stops(scheme: &dyn Scheme, length: usize) -> Result<(), Violation> {
    let case = format!("{length} elements");
    let mut exchange = alone(scheme, length).map_err(|error| broken(STOPS, &case, error))?;
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let before = exchange.save();
        let mut gradient = laplaces(2, length);
        gradient[length / 2] = special;
        let copy = bits(&gradient);
        match exchange.allreduce(1, &mut gradient) {
            Err(Error::NonFinite { .. }) => {}
            other => return Err(broken(STOPS, &case, format!("{special} gives {other:?}"))),
        }
        if bits(&gradient) != copy || exchange.save() != before {
            return Err(broken(STOPS, &case, format!("{special} leaves a trace")));
        }
    }
    Ok(())
}

/// A step that another rank refuses leaves no trace on this one: it is made again as if for the first
/// time.
fn stops_together(scheme: &dyn Scheme, length: usize) -> Result<(), Violation> {
    let case = format!("two ranks with {length} elements, of which the second refuses a step");
    let blame = |error: Error| broken(STOPS, &case, error);
    let run = |refuses: bool| {
        ranks(2, |rank, collective| {
            let mut exchange = end(scheme, length, collective)?;
            let (mut left, mut means) = (true, Vec::new());
            for step in 1..=2 {
                let given = laplaces(10 * step + rank as u64, length);
                if refuses && step == 2 {
                    let (mut bad, before) = (given.clone(), exchange.save());
                    if rank == 1 {
                        bad[length / 2] = f32::NAN;
                    }
                    let refused = exchange.allreduce(step, &mut bad);
                    left = matches!(refused, Err(Error::NonFinite { rank: 1, .. }))
                        && exchange.save() == before;
                }
                let mut mean = given;
                exchange.allreduce(step, &mut mean)?;
                means.push(bits(&mean));
            }
            Ok((left, means, exchange.save()))
        })
    };
    let (plain, refused) = (run(false).map_err(blame)?, run(true).map_err(blame)?);
    for (rank, (one, other)) in plain.iter().zip(&refused).enumerate() {
        if !other.0 {
            return Err(broken(STOPS, &case, format!("rank {rank} goes on, or has another state")));
        }
        if (&one.1, &one.2) != (&other.1, &other.2) {
            return Err(broken(STOPS, &case, format!("rank {rank} then ends otherwise")));
        }
    }
    Ok(())
}

/// Steps of ever smaller gradients, with a state saved and restored between them.
fn goes_on(scheme: &dyn Scheme, gradient: &[f32], case: &str) -> Result<(), Violation> {
    let blame = |error: Error| broken(GOES_ON, case, error);
    let mut whole = alone(scheme, gradient.len()).map_err(blame)?;
    let step = |exchange: &mut Exchange, step: u64| {
        let factor = 1.0 / step as f32;
        let mut mean: Vec<f32> = gradient.iter().map(|value| value * factor).collect();
        exchange.allreduce(step, &mut mean).map(|_| bits(&mean)).map_err(blame)
    };
    (1..=3).try_for_each(|number| step(&mut whole, number).map(|_| ()))?;
    let mut restored = alone(scheme, gradient.len()).map_err(blame)?;
    restored.restore(&whole.save()).map_err(blame)?;
    for number in 4..=6 {
        if step(&mut whole, number)? != step(&mut restored, number)? {
            return Err(broken(GOES_ON, case, format!("step {number} differs")));
        }
    }
    if whole.save() != restored.save() {
        return Err(broken(GOES_ON, case, "the states differ"));
    }
    Ok(())
}
