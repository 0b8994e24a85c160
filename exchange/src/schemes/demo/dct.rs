//! The discrete cosine transform of rows and columns: y_b = Σ_j x_j·s_b·cos(π(2j + 1)b / 2n), with s_0 = √(1/n)
//! and s_b = √(2/n), which makes it orthonormal: the way back is its transpose.
//!
//! Sums run in one order whatever the processor, so that all ranks decode the same bits.

use std::f64::consts::PI;

use super::LONGEST;
use crate::simd::wide;

/// The transforms of some lengths.
pub(super) struct Dct(Vec<CosineMatrix>);

struct CosineMatrix {
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

impl CosineMatrix {
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
        Self(lengths.into_iter().map(CosineMatrix::new).collect())
    }

    fn matrix(&self, length: usize) -> &CosineMatrix {
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
    let mut places = [0; LONGEST];
    for (given, half) in given.chunks_exact(width).zip(half.chunks_exact_mut(width)) {
        let count = list(given.iter().map(|value| *value != 0.0), &mut places);
        combine(given, &places[..count], across, half);
    }
    let rows = half.chunks_exact(width);
    let count = list(rows.map(|row| row.iter().any(|value| *value != 0.0)), &mut places);
    for (factors, made) in down.chunks_exact(height).zip(made.chunks_exact_mut(width)) {
        combine(factors, &places[..count], half, made);
    }
}

/// Writes down the places at which something counts; their number.
#[inline(always)]
fn list(counts: impl Iterator<Item = bool>, places: &mut [u8; LONGEST]) -> usize {
    let mut count = 0;
    for (place, counts) in (0..LONGEST as u8).zip(counts) {
        places[count] = place;
        count += usize::from(counts);
    }
    count
}

/// Columns whose sums stay in registers: a tile's at the defaults.
const LANES: usize = 64;

/// Overwrites `sum` by the sum of the rows at these places, each times its factor. The simple form:
/// `sum[j] = Σ_p factors[p] · rows[p][j]`; here [`LANES`] columns of it stay in registers.
#[inline(always)]
fn combine(factors: &[f32], places: &[u8], rows: &[f32], sum: &mut [f32]) {
    let width = sum.len();
    let terms = || places.iter().map(|place| (factors[usize::from(*place)], usize::from(*place)));
    let (whole, rest) = sum.as_chunks_mut::<LANES>();
    let start = LANES * whole.len();
    for (number, sum) in whole.iter_mut().enumerate() {
        let mut sums = [0f32; LANES];
        for (factor, place) in terms() {
            let row = rows[place * width + LANES * number..].first_chunk::<LANES>();
            let row = row.expect("invariant: a row has the columns of its sum");
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += factor * value);
        }
        *sum = sums;
    }
    rest.fill(0.0);
    for (factor, place) in terms() {
        let row = &rows[place * width + start..][..rest.len()];
        rest.iter_mut().zip(row).for_each(|(sum, value)| *sum += factor * value);
    }
}
