//! The discrete cosine transform of rows and columns: y_b = Σ_j x_j·s_b·cos(π(2j + 1)b / 2n), with s_0 = √(1/n)
//! and s_b = √(2/n), which makes it orthonormal: the way back is its transpose.
//!
//! Sums run in one order whatever the processor, so that all ranks decode the same bits.

use std::f64::consts::PI;

use crate::simd::wide;

/// The transforms of some lengths.
pub(super) struct Dct(Vec<Matrix>);

struct Matrix {
    length: usize,
    /// By place and frequency.
    there: Vec<f32>,
    /// By frequency and place.
    back: Vec<f32>,
}

/// From places to frequencies, or back.
#[derive(Clone, Copy)]
pub(super) enum Transform {
    There,
    Back,
}

impl Matrix {
    fn new(length: usize) -> Self {
        let value = |place: usize, frequency: usize| {
            let angle = PI * ((2 * place + 1) * frequency) as f64 / (2 * length) as f64;
            let scale = if frequency == 0 { 1.0 } else { 2.0 } / length as f64;
            (scale.sqrt() * angle.cos()) as f32
        };
        let each = |of: &dyn Fn(usize, usize) -> f32| {
            (0..length * length).map(|i| of(i / length, i % length)).collect()
        };
        Self {
            length,
            there: each(&value),
            back: each(&|frequency, place| value(place, frequency)),
        }
    }
}

impl Dct {
    /// Of these lengths.
    pub(super) fn of(lengths: impl Iterator<Item = usize>) -> Self {
        let mut lengths: Vec<usize> = lengths.collect();
        lengths.sort_unstable();
        lengths.dedup();
        Self(lengths.into_iter().map(Matrix::new).collect())
    }

    fn matrix(&self, way: Transform, length: usize) -> &[f32] {
        let matrix = &self.0[self.0.partition_point(|matrix| matrix.length < length)];
        match way {
            Transform::There => &matrix.there,
            Transform::Back => &matrix.back,
        }
    }

    /// Overwrites `made` by the transform of the rows and columns of `given`, a matrix of these sides.
    ///
    /// # Panics
    /// When a side is not one of the lengths.
    pub(super) fn apply(
        &self,
        way: Transform,
        [height, width]: [usize; 2],
        given: &[f32],
        half: &mut [f32],
        made: &mut [f32],
    ) {
        let (across, down) = (self.matrix(way, width), self.matrix(way, height));
        wide!(products(given, [across, down], [width, height], half, made));
    }
}

/// made = downᵀ·(given·across). Of what arrives most numbers are zero, and so are rows of them: they are passed over.
#[inline(always)]
pub(super) fn products(
    given: &[f32],
    [across, down]: [&[f32]; 2],
    [width, height]: [usize; 2],
    half: &mut [f32],
    made: &mut [f32],
) {
    half.fill(0.0);
    made.fill(0.0);
    for (given, half) in given.chunks_exact(width).zip(half.chunks_exact_mut(width)) {
        for (factor, wave) in given.iter().zip(across.chunks_exact(width)) {
            if *factor != 0.0 {
                half.iter_mut().zip(wave).for_each(|(sum, wave)| *sum += factor * wave);
            }
        }
    }
    for (half, waves) in half.chunks_exact(width).zip(down.chunks_exact(height)) {
        if half.iter().all(|value| *value == 0.0) {
            continue;
        }
        for (factor, made) in waves.iter().zip(made.chunks_exact_mut(width)) {
            made.iter_mut().zip(half).for_each(|(sum, value)| *sum += factor * value);
        }
    }
}
