//! A sparse message: some elements of a bucket and their positions; and what sparsifiers share, which is
//! all but the choice of the elements.
//!
//! | bytes | what |
//! |---|---|
//! | 1–5 | number of elements kept, seven bits a byte |
//! | 4 or 2 each, or quantised | their values as [`values`](crate::Values) has them, in ascending order of position |
//! | … | their positions (`wire/indices.rs`) |
use super::values::{Sender, Values};
use super::{Compressor, Encoded, Seat, StepEnd};
use crate::wire::{Format, Read, Reader, indices, put_count};
use crate::{Gauge, Result, State};

/// What a sparse message was like: `kept`, `index_bits` and `index_bound` (per kept element: what the
/// positions took, and the least that any code needs for sets of that size, log₂ of the binomial
/// coefficient) and `threshold` (the smallest magnitude that was sent).
fn gauges(kept: usize, length: usize, position_bytes: usize, threshold: f32) -> [Gauge; 4] {
    let weight = kept as f64;
    let each = |bits: f64| if kept == 0 { 0.0 } else { bits / weight };
    [
        Gauge::sum("kept", weight),
        Gauge::mean("index_bits", each(8.0 * position_bytes as f64), weight),
        Gauge::mean("index_bound", each(log2_binomial(length, kept)), weight),
        Gauge::mean("threshold", threshold.into(), weight),
    ]
}

/// log₂ of the number of sets of `kept` out of `length`, by Stirling's series: off by less than
/// 0.01 bits.
fn log2_binomial(length: usize, kept: usize) -> f64 {
    let ln_factorial = |n: usize| {
        if n < 2 {
            return 0.0;
        }
        let n = n as f64;
        n * n.ln() - n + 0.5 * (std::f64::consts::TAU * n).ln() + 1.0 / (12.0 * n)
            - 1.0 / (360.0 * n.powi(3))
    };
    let ways = ln_factorial(length) - ln_factorial(kept) - ln_factorial(length - kept);
    ways.max(0.0) / std::f64::consts::LN_2
}

/// Appends the elements of `gradient` at ascending `positions`.
pub(crate) fn put(
    positions: &[u32],
    gradient: &[f32],
    format: Format,
    out: &mut Vec<u8>,
) -> [Gauge; 4] {
    put_count(positions.len() as u32, out);
    format.put(values(positions, gradient), out);
    put_positions(positions, gradient, out)
}

/// The same, the values as `sender` writes those of `step`.
pub(crate) fn send(
    positions: &[u32],
    gradient: &[f32],
    sender: &mut Sender,
    step: u64,
    out: &mut Vec<u8>,
) -> [Gauge; 4] {
    put_count(positions.len() as u32, out);
    sender.send(positions, values(positions, gradient), step, out);
    put_positions(positions, gradient, out)
}

fn values(positions: &[u32], gradient: &[f32]) -> impl Iterator<Item = f32> {
    positions.iter().map(|position| gradient[*position as usize])
}

fn put_positions(positions: &[u32], gradient: &[f32], out: &mut Vec<u8>) -> [Gauge; 4] {
    let least = values(positions, gradient).map(f32::abs).fold(f32::INFINITY, f32::min);
    let threshold = if positions.is_empty() { 0.0 } else { least };
    let before = out.len();
    indices::put(positions, out);
    gauges(positions.len(), gradient.len(), out.len() - before, threshold)
}

/// Takes a message of at most `most` elements and visits each position and its value, ascending.
pub(crate) fn take(
    wire: &[u8],
    most: usize,
    length: usize,
    values: Values,
    mut visit: impl FnMut(usize, f32),
) -> Read<()> {
    let mut reader = Reader::new(wire);
    let count = reader.count(most.min(length))?;
    let mut values = values.take(&mut reader, count)?;
    indices::take(&mut reader, count, length, |position| visit(position, values.next()))?;
    reader.finish()
}

/// Adds `weight` times what a message of at most `most` elements of `length` says of the elements
/// from `start` on to `sum`.
pub(crate) fn add(
    wire: &[u8],
    most: usize,
    values: Values,
    length: usize,
    start: usize,
    weight: f32,
    sum: &mut [f32],
) -> Result<()> {
    Ok(take(wire, most, length, values, |position, value| {
        // What lies before wraps beyond its end.
        if let Some(sum) = sum.get_mut(position.wrapping_sub(start)) {
            *sum += weight * value;
        }
    })?)
}

/// Overwrites `values` by a message in f32: zeros where it says nothing, and the very bits where
/// it does.
pub(crate) fn set(wire: &[u8], values: &mut [f32]) -> Read<()> {
    values.fill(0.0);
    let length = values.len();
    take(wire, length, length, Format::F32.into(), |position, value| values[position] = value)
}

/// The positions of a message of at most `most` elements of `length`, ascending, appended to
/// `positions`.
pub(crate) fn positions(
    wire: &[u8],
    most: usize,
    values: Values,
    length: usize,
    positions: &mut Vec<u32>,
) -> Result<()> {
    Ok(take(wire, most, length, values, |position, _| positions.push(position as u32))?)
}

/// Chooses the elements of a gradient that are sent.
pub(crate) trait Select: Send {
    /// Chooses elements of `gradient` at `step`.
    fn select(&mut self, gradient: &[f32], step: u64);

    /// The positions chosen last, ascending.
    fn positions(&self) -> &[u32];

    /// The most elements that are ever chosen of `length`.
    fn most(&self, length: usize) -> usize {
        length
    }

    /// Appends the gauges of the last choice.
    fn add_gauges(&self, _gauges: &mut Vec<Gauge>) {}

    /// As [`Compressor::commit`].
    fn commit(&mut self, _step: u64) {}

    /// As [`Compressor::save`].
    fn save(&self, _state: &mut State) {}

    /// As [`Compressor::restore`].
    fn restore(&mut self, _state: &State) -> Result<()> {
        Ok(())
    }
}

/// Sends what is selected as a sparse message, the values as the settings say.
pub(crate) struct Sparsifier<S> {
    pub(crate) choice: S,
    length: usize,
    values: Values,
    sender: Sender,
    gauges: Vec<Gauge>,
}

impl<S: Select> Sparsifier<S> {
    /// For one seat, within error feedback or not.
    pub(crate) fn new(choice: S, values: Values, feedback: bool, seat: &Seat) -> Self {
        let sender = Sender::new(values, feedback, choice.most(seat.length), seat);
        Self { choice, length: seat.length, values, sender, gauges: Vec::with_capacity(8) }
    }
}

impl<S: Select> Compressor for Sparsifier<S> {
    fn encode(&mut self, gradient: &[f32], step: u64, out: &mut Vec<u8>) -> Encoded {
        self.choice.select(gradient, step);
        // Their number may wander: room for the longest message that is ever sent, so that buffers
        // do not grow with it.
        out.reserve(size_of::<f32>() * self.choice.most(gradient.len()));
        let sent = send(self.choice.positions(), gradient, &mut self.sender, step, out);
        self.gauges.clear();
        self.gauges.extend_from_slice(&sent);
        self.choice.add_gauges(&mut self.gauges);
        Encoded::Message
    }

    fn decode_add(&self, wire: &[u8], start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        let most = self.choice.most(self.length);
        add(wire, most, self.values, self.length, start, weight, sum)
    }

    fn commit(&mut self, end: &StepEnd<'_>) {
        self.choice.commit(end.step);
    }

    fn reads_ranges(&self) -> bool {
        true
    }

    fn sent(&self) -> Option<&[u32]> {
        Some(self.sender.sent(self.choice.positions()))
    }

    fn save(&self, state: &mut State) {
        self.choice.save(state);
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        self.choice.restore(state)
    }

    fn gauges(&self) -> &[Gauge] {
        &self.gauges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_arrives_in_every_format() {
        let gradient = [0.1, -3.0, 0.0, 2.0, -0.2];
        for format in [Format::F32, Format::F16, Format::Bf16] {
            let mut wire = Vec::new();
            let sent = put(&[1, 3], &gradient, format, &mut wire);
            let mut sum = [0.0; 5];
            add(&wire, 5, format.into(), 5, 0, 1.0, &mut sum).unwrap();
            assert_eq!(sum, [0.0, -3.0, 0.0, 2.0, 0.0]);
            let mut found = Vec::new();
            positions(&wire, 2, format.into(), 5, &mut found).unwrap();
            assert_eq!(found, [1, 3]);
            let values: Vec<f64> = sent.iter().map(|gauge| gauge.value).collect();
            assert_eq!((values[0], values[1], values[3]), (2.0, 12.0, 2.0));
            assert!((values[2] - 10f64.log2() / 2.0).abs() < 0.01);
            let refused = add(&wire, 1, format.into(), 5, 0, 1.0, &mut sum);
            assert!(refused.is_err(), "more elements than allowed");
        }
    }

    #[test]
    fn the_bound_is_that_of_the_exact_coefficient() {
        for (length, kept, ways) in
            [(5usize, 0usize, 1f64), (5, 5, 1.0), (10, 3, 120.0), (52, 5, 2_598_960.0)]
        {
            assert!((log2_binomial(length, kept) - ways.log2()).abs() < 0.01, "{length} {kept}");
        }
    }
}
