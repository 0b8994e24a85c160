//! What the tests of several schemes need: one message there and back, and gradients.

use super::{Encoded, Seat};
use crate::Scheme;
use crate::rng::Stream;

/// The first message of `config` at `step`, and what it says.
pub(crate) fn round_trip(config: &impl Scheme, gradient: &[f32], step: u64) -> (Vec<u8>, Vec<f32>) {
    let seat = Seat::alone(gradient.len(), 3);
    let (mut wire, mut decoded) = (Vec::new(), vec![0.0; gradient.len()]);
    let encoded = config.codec(&seat).unwrap().encode(gradient, step, &mut wire);
    assert_eq!(encoded, Encoded::Message);
    config.codec(&seat).unwrap().decode_add(&wire, 0, 1.0, &mut decoded).unwrap();
    (wire, decoded)
}

/// ‖decoded − gradient‖².
pub(crate) fn square_error(decoded: &[f32], gradient: &[f32]) -> f64 {
    decoded.iter().zip(gradient).map(|(s, g)| (f64::from(*s) - f64::from(*g)).powi(2)).sum()
}

/// The mean of [`square_error`] over the first `steps` steps.
pub(crate) fn mean_square_error(config: &impl Scheme, gradient: &[f32], steps: u64) -> f64 {
    let error = |step| square_error(&round_trip(config, gradient, step).1, gradient);
    (1..=steps).map(error).sum::<f64>() / steps as f64
}

/// Σ x².
pub(crate) fn square(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value).powi(2)).sum()
}

/// Laplace distributed with mean 0 and scale 1, as gradients roughly are.
pub(crate) fn laplaces(length: usize, seed: u64) -> Vec<f32> {
    let stream = Stream::new(&[seed]);
    let value = |i: u32| {
        let magnitude = -(1.0 - stream.uniform(2 * i)).ln();
        if stream.bits(2 * i + 1) & 1 == 0 { magnitude } else { -magnitude }
    };
    (0..length as u32).map(value).collect()
}

/// The bits of every number.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
