//! The distribution of many values in few numbers.

use super::number;
use serde::{Deserialize, Serialize};

/// Buckets per octave: the two leading bits of the mantissa choose one, so the boundaries are
/// 1, 1.25, 1.5, 1.75 times a power of two and finding a bucket is a shift.
const MANTISSA_BITS: u32 = 2;
/// Octaves below the largest magnitude that get buckets of their own (a factor of 2²⁰, a million);
/// everything nearer to zero shares the bucket around zero.
const OCTAVES: usize = 20;

/// Bits of an f32 below the ones that choose the bucket.
const SHIFT: u32 = 23 - MANTISSA_BITS;
/// Buckets for each sign over all finite magnitudes.
const SLOTS: usize = 255 << MANTISSA_BITS;
/// Slots of their own for each sign.
const SPAN: usize = OCTAVES << MANTISSA_BITS;

/// A distribution in exponential buckets, like TensorBoard's own but at most 161 of them.
///
/// Boundaries grow by an eighth to a quarter from one to the next on either side of zero, over a
/// factor of about a million below the largest magnitude; what is smaller is counted in one bucket
/// around zero. Empty buckets side by side are one. `min`, `max`, `sum` and `sum_squares` are of
/// the values themselves (summed in f64), not of the buckets.
///
/// Values that are not finite are counted in `non_finite` and nowhere else. Without any finite
/// value all figures are 0 and there is a single empty bucket; for equal values there is one bucket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Number of finite values.
    pub count: u64,
    /// Number of NaN and infinite values.
    pub non_finite: u64,
    /// Sum of the values.
    #[serde(with = "number")]
    pub sum: f64,
    /// Sum of their squares.
    #[serde(with = "number")]
    pub sum_squares: f64,
    /// Upper boundary of each bucket, growing; the first bucket begins at `min`.
    pub limits: Vec<f64>,
    /// Number of values in each bucket; the first and the last are not empty.
    pub counts: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl Histogram {
    /// Counts `values` in one pass.
    #[must_use]
    pub fn new(values: &[f32]) -> Self {
        // Counts by slot of the magnitude, for values below zero and for the others.
        let mut below = vec![0u64; SLOTS];
        let mut above = vec![0u64; SLOTS];
        let (mut min, mut max) = (f32::INFINITY, f32::NEG_INFINITY);
        let (mut sum, mut sum_squares) = (0f64, 0f64);
        let mut non_finite = 0u64;
        for &value in values {
            let slot = ((value.to_bits() & 0x7fff_ffff) >> SHIFT) as usize;
            if slot >= SLOTS {
                non_finite += 1;
                continue;
            }
            if value < 0.0 {
                below[slot] += 1;
            } else {
                above[slot] += 1;
            }
            min = min.min(value);
            max = max.max(value);
            let wide = f64::from(value);
            sum += wide;
            sum_squares += wide * wide;
        }
        let count = values.len() as u64 - non_finite;
        if count == 0 {
            (min, max) = (0.0, 0.0);
        }
        let (limits, counts) = buckets(&below, &above);
        Self {
            min: f64::from(min),
            max: f64::from(max),
            count,
            non_finite,
            sum,
            sum_squares,
            limits,
            counts,
        }
    }
}

/// Lower boundary of a slot's magnitudes; for `SLOTS` the end of the last slot, 2¹²⁸.
fn boundary(slot: usize) -> f64 {
    if slot == SLOTS { 2f64.powi(128) } else { f64::from(f32::from_bits((slot as u32) << SHIFT)) }
}

/// Upper limits and counts from the first bucket that is not empty to the last; empty buckets side
/// by side are one.
fn buckets(below: &[u64], above: &[u64]) -> (Vec<f64>, Vec<u64>) {
    let largest = (0..SLOTS).rev().find(|&slot| below[slot] + above[slot] > 0).unwrap_or(0);
    // Slots below this one are the bucket around zero; at least the first slot, which holds zero.
    let near = (largest + 1).saturating_sub(SPAN).max(1);

    let around = below[..near].iter().sum::<u64>() + above[..near].iter().sum::<u64>();
    let mut all = Vec::with_capacity(2 * SPAN + 1);
    all.extend((near..=largest).rev().map(|slot| (-boundary(slot), below[slot])));
    all.push((boundary(near), around));
    all.extend((near..=largest).map(|slot| (boundary(slot + 1), above[slot])));

    let first = all.iter().position(|&(_, count)| count > 0).unwrap_or(0);
    let last = all.iter().rposition(|&(_, count)| count > 0).unwrap_or(0);
    let mut all = all[first..=last].to_vec();
    all.dedup_by(|next, kept| {
        let empty = next.1 == 0 && kept.1 == 0;
        if empty {
            kept.0 = next.0;
        }
        empty
    });
    all.into_iter().unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn consistent(histogram: &Histogram) {
        assert_eq!(histogram.limits.len(), histogram.counts.len());
        assert!(!histogram.limits.is_empty() && histogram.limits.len() <= 2 * SPAN + 1);
        assert!(histogram.limits.iter().all(|limit| limit.is_finite()));
        assert!(histogram.limits.is_sorted_by(|a, b| a < b));
        assert!(!histogram.counts.windows(2).any(|pair| pair == [0, 0]), "{:?}", histogram.counts);
        assert_eq!(histogram.counts.iter().sum::<u64>(), histogram.count);
        assert!(histogram.min <= histogram.max);
        assert!(histogram.limits[0] >= histogram.min);
        assert!(histogram.limits[histogram.limits.len() - 1] >= histogram.max);
    }

    #[test]
    fn nothing_finite_is_one_empty_bucket() {
        for values in [&[][..], &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]] {
            let histogram = Histogram::new(values);
            consistent(&histogram);
            assert_eq!(histogram.counts, [0]);
            assert_eq!((histogram.min, histogram.max, histogram.sum), (0.0, 0.0, 0.0));
            assert_eq!(histogram.non_finite, values.len() as u64);
        }
    }

    #[test]
    fn equal_values_share_one_bucket() {
        for value in [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1.5e-38, f32::MAX, f32::MIN, 0.3] {
            let histogram = Histogram::new(&[value; 7]);
            consistent(&histogram);
            assert_eq!(histogram.counts, [7], "{value}");
            assert_eq!(histogram.min, f64::from(value));
            assert_eq!(histogram.max, f64::from(value));
        }
    }

    #[test]
    fn every_value_lies_in_its_bucket() {
        // Each magnitude over the whole range of f32, one at a time beside a fixed one.
        let mut value = f32::MAX;
        while value > 1e-42 {
            let histogram = Histogram::new(&[-value, 1.0, value]);
            consistent(&histogram);
            let mut lower = f64::NEG_INFINITY;
            let mut expected = vec![0; histogram.limits.len()];
            for (count, &limit) in expected.iter_mut().zip(&histogram.limits) {
                let inside = |v: f64| {
                    if v < 0.0 { v > lower && v <= limit } else { v >= lower && v < limit }
                };
                *count =
                    [-value, 1.0, value].iter().filter(|&&v| inside(f64::from(v))).count() as u64;
                lower = limit;
            }
            assert_eq!(histogram.counts, expected, "±{value:e}: {:?}", histogram.limits);
            value *= 0.37;
        }
    }

    #[test]
    fn moments_are_of_the_values() {
        let values: Vec<f32> =
            (0..10_000).map(|i| ((i * 37 % 1000) as f32 - 400.0) / 64.0).collect();
        let histogram = Histogram::new(&values);
        consistent(&histogram);
        assert_eq!(histogram.count, 10_000);
        assert_eq!(histogram.min, -400.0 / 64.0);
        assert_eq!(histogram.max, 599.0 / 64.0);
        // All values are multiples of 1/64, so these sums are exact.
        assert_eq!(histogram.sum, 10.0 * (999.0 * 1000.0 / 2.0 - 400.0 * 1000.0) / 64.0);
        assert_eq!(
            histogram.sum_squares,
            values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>()
        );
    }

    #[test]
    fn no_bucket_is_wider_than_a_quarter() {
        let values: Vec<f32> = (1..60_000).map(|i| (i as f32 * 1e-3).sin() * 0.1).collect();
        let histogram = Histogram::new(&values);
        consistent(&histogram);
        for (index, pair) in histogram.limits.windows(2).enumerate() {
            let ratio = pair[1] / pair[0];
            if pair[0] > 0.0 && histogram.counts[index + 1] > 0 {
                assert!((1.125..=1.25).contains(&ratio), "{ratio}");
            }
        }
    }
}
