//! Gradients drawn from distributions whose shape is known, and the exact error of rounding them
//! without bias. The distributions are those of `casq_optquant_verify.py`, the project's numerical
//! study, from another random generator.
#![allow(dead_code, unreachable_pub, reason = "each user takes what it needs")]

#[path = "../common/mod.rs"]
mod common;

use common::Random;
use gradwire_exchange::{Scheme, SchemeConfig, Seat};

/// Elements that share a scale.
const BLOCK: usize = 512;

/// Student's t: a normal number over the root of a mean of squares of `freedom` others.
fn student(random: &mut Random, freedom: u32) -> f64 {
    let squares: f64 = (0..freedom).map(|_| random.normal().powi(2)).sum();
    random.normal() / (squares / f64::from(freedom)).sqrt()
}

/// Five gradients of `length` elements, by name.
pub fn distributions(length: usize) -> Vec<(&'static str, Vec<f32>)> {
    let mut random = Random(1);
    let mut draw = |one: &mut dyn FnMut(&mut Random) -> f64| -> Vec<f32> {
        (0..length).map(|_| one(&mut random) as f32).collect()
    };
    let gauss = draw(&mut Random::normal);
    let laplace = draw(&mut |random| random.laplace().into());
    let mixture = draw(&mut |random| {
        let width = if random.uniform() < 0.9 { 0.1 } else { 1.0 };
        width * random.normal()
    });
    let heavy = draw(&mut |random| student(random, 3));
    // Shares of 24 layers: gaps between uniform cuts, which are Dirichlet distributed.
    let mut cuts: Vec<f64> = (0..23).map(|_| random.uniform()).collect();
    cuts.sort_by(f64::total_cmp);
    cuts.push(1.0);
    let mut layers = Vec::with_capacity(length);
    for cut in cuts {
        let scale = (random.normal() - 6.0).exp();
        let end = (cut * length as f64) as usize;
        while layers.len() < end {
            layers.push((scale * student(&mut random, 4)) as f32);
        }
    }
    vec![
        ("Gaussian", gauss),
        ("Laplace", laplace),
        ("mixture", mixture),
        ("Student t3", heavy),
        ("24 layers t4", layers),
    ]
}

fn square(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum()
}

/// ‖decoded − gradient‖²/‖gradient‖².
pub fn error(decoded: &[f32], gradient: &[f32]) -> f64 {
    let off = decoded.iter().zip(gradient).map(|(s, g)| f64::from(*s) - f64::from(*g));
    square(off) / square(gradient.iter().map(|g| f64::from(*g)))
}

/// The relative error and the bits for each element of one message.
pub fn measured(scheme: &SchemeConfig, gradient: &[f32]) -> (f64, f64) {
    let mut compressor = scheme.codec(&Seat::alone(gradient.len(), 1)).expect("a codec");
    let (mut wire, mut decoded) = (Vec::new(), vec![0.0; gradient.len()]);
    compressor.encode(gradient, 1, &mut wire);
    let read = compressor.decode_add(&wire, 0..gradient.len(), 1.0, &mut decoded);
    read.expect("a scheme reads its own message");
    (error(&decoded, gradient), 8.0 * wire.len() as f64 / gradient.len() as f64)
}

/// The exact expectation of the error for random rounding without bias to ascending levels from −1
/// to 1, times the largest magnitude of each block of 512.
pub fn exact(gradient: &[f32], levels: &[f64]) -> f64 {
    let block = |block: &[f32]| {
        let scale = block.iter().fold(0f64, |most, value| most.max(f64::from(value.abs())));
        let element = |value: &f32| {
            let u = f64::from(*value) / scale;
            let above = levels.partition_point(|level| *level <= u).clamp(1, levels.len() - 1);
            (u - levels[above - 1]) * (levels[above] - u) * scale * scale
        };
        if scale == 0.0 { 0.0 } else { block.iter().map(element).sum() }
    };
    let variance: f64 = gradient.chunks(BLOCK).map(block).sum();
    variance / square(gradient.iter().map(|g| f64::from(*g)))
}

/// Levels that do not follow the gradient.
pub mod levels {
    /// 2^bits even ones.
    pub fn uniform(bits: u32) -> Vec<f64> {
        let last = (1 << bits) - 1;
        (0..=last).map(|j| 2.0 * f64::from(j) / f64::from(last) - 1.0).collect()
    }

    /// A sign and bits − 1 bits of magnitude: QSGD with s = 2^(bits−1) − 1.
    pub fn sign_and_magnitude(bits: u32) -> Vec<f64> {
        let most = (1 << (bits - 1)) - 1;
        (-most..=most).map(|j| f64::from(j) / f64::from(most)).collect()
    }

    /// Powers of ½ with both signs, without zero.
    pub fn exponential(bits: u32) -> Vec<f64> {
        let half = 1 << (bits - 1);
        let lower = (0..half).map(|j| -0.5f64.powi(j));
        lower.chain((0..half).rev().map(|j| 0.5f64.powi(j))).collect()
    }
}
