//! The discrete cosine transform of rows and columns: y_b = Σ_j x_j·s_b·cos(π(2j + 1)b / 2n), with s_0 = √(1/n)
//! and s_b = √(2/n), which makes it orthonormal: the way back is its transpose.
//!
//! Sums run in one order whatever the processor, so that all ranks decode the same bits.

use std::f64::consts::PI;

use super::LONGEST;
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

    fn matrix(&self, length: usize) -> &Matrix {
        &self.0[self.0.partition_point(|matrix| matrix.length < length)]
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
        let (down, across) = (self.matrix(height), self.matrix(width));
        let [down, across] = match way {
            Transform::There => [&down.back, &across.there],
            Transform::Back => [&down.there, &across.back],
        };
        wide!(products(given, [down, across], [height, width], half, made));
    }
}

/// made = down·given·across. What arrives is mostly zeros: they, and rows of them, are passed over.
#[inline(always)]
pub(super) fn products(
    given: &[f32],
    [down, across]: [&[f32]; 2],
    [height, width]: [usize; 2],
    half: &mut [f32],
    made: &mut [f32],
) {
    let mut counts = [false; LONGEST];
    let rows = given.chunks_exact(width).zip(half.chunks_exact_mut(width));
    for ((given, half), counts) in rows.zip(&mut counts) {
        combine(given, across, |place| given[place] != 0.0, half);
        *counts = half.iter().any(|value| *value != 0.0);
    }
    for (factors, made) in down.chunks_exact(height).zip(made.chunks_exact_mut(width)) {
        combine(factors, half, |row| counts[row], made);
    }
}

/// Columns whose sums stay in registers.
const LANES: usize = 32;

/// Overwrites `sum` by the sum of those rows that count, each times its factor.
#[inline(always)]
fn combine(factors: &[f32], rows: &[f32], counts: impl Fn(usize) -> bool, sum: &mut [f32]) {
    let width = sum.len();
    let (whole, rest) = sum.as_chunks_mut::<LANES>();
    let start = LANES * whole.len();
    for (number, sum) in whole.iter_mut().enumerate() {
        let mut sums = [0f32; LANES];
        for (place, factor) in factors.iter().enumerate().filter(|(place, _)| counts(*place)) {
            let row = &rows[place * width + LANES * number..][..LANES];
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += factor * value);
        }
        *sum = sums;
    }
    rest.fill(0.0);
    for (place, factor) in factors.iter().enumerate().filter(|(place, _)| counts(*place)) {
        let row = &rows[place * width + start..][..rest.len()];
        rest.iter_mut().zip(row).for_each(|(sum, value)| *sum += factor * value);
    }
}
