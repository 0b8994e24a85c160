//! The gradients that the laws are tried on.

use crate::rng::Stream;

/// The name of gradients as they occur.
pub(super) const LAPLACE: &str = "Laplace numbers";

/// Uniform in −½ to ½, each (seed, element) its own.
pub(super) fn uniform(seed: u64, element: usize) -> f64 {
    f64::from(Stream::new(&[seed]).uniform(element as u32)) - 0.5 + f64::from(f32::EPSILON) / 4.0
}

/// Laplace distributed, as gradients roughly are.
pub(super) fn laplaces(seed: u64, length: usize) -> Vec<f32> {
    let value = |i: usize| {
        let uniform = uniform(seed, i);
        (-uniform.signum() * (1.0 - 2.0 * uniform.abs()).max(1e-12).ln()) as f32
    };
    (0..length).map(value).collect()
}

pub(super) fn gradients(length: usize) -> [(&'static str, Vec<f32>); 6] {
    let each = |value: &dyn Fn(usize) -> f32| (0..length).map(value).collect::<Vec<f32>>();
    let sign = |i: usize| if i.is_multiple_of(2) { 1.0 } else { -1.0 };
    [
        ("zeros", vec![0.0; length]),
        ("a constant", vec![-0.25; length]),
        ("one spike", each(&|i| if i == length / 2 { 1e4 } else { 0.0 })),
        (
            "subnormal numbers",
            each(&|i| sign(i) * f32::from_bits(1 + (i as u32 * 7919) % 0x7f_ffff)),
        ),
        ("huge numbers", each(&|i| sign(i / 2) * 4e37)),
        (LAPLACE, laplaces(length as u64, length)),
    ]
}
