//! Sums over the magnitudes of a gradient, in one pass at memory speed.
//!
//! Magnitudes are widened to f64 before they are added, in independent lanes: nothing overflows,
//! and the sums are good to 13 digits for a bucket of any length.

use crate::simd::wide;

/// Numbers added side by side.
const LANES: usize = 16;

/// What one pass over magnitudes gives.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Moments {
    /// Magnitudes.
    pub count: usize,
    /// Their sum.
    pub sum: f64,
    /// The sum of their squares.
    pub squares: f64,
}

impl Moments {
    /// Their mean; 0 of none.
    pub(crate) fn mean(self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    /// Their unbiased variance; NaN of fewer than two, 0 where rounding is all there is.
    pub(crate) fn variance(self) -> f64 {
        if self.count < 2 {
            return f64::NAN;
        }
        let n = self.count as f64;
        let excess = self.squares - self.sum * (self.sum / n);
        // Sums of squares carry some 1e-14 of themselves as rounding.
        if excess <= 1e-12 * self.squares { 0.0 } else { excess / (n - 1.0) }
    }
}

/// Adds up `term(value)` over lanes; the order is fixed. The simple form: `Σ term(value)`, in which each addition waits for
/// the one before.
#[inline(always)]
fn sum(values: &[f32], term: impl Fn(f32) -> f64) -> f64 {
    let (lines, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0.0f64; LANES];
    for line in lines {
        for (lane, value) in lanes.iter_mut().zip(line) {
            *lane += term(*value);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|value| term(*value)).sum::<f64>()
}

/// The sum of magnitudes.
pub(crate) fn magnitude_sum(values: &[f32]) -> f64 {
    wide!(sum(values, |value| f64::from(value.abs())))
}

/// The sums of magnitudes and of their squares.
pub(crate) fn moments(values: &[f32]) -> Moments {
    /// Elements read twice while they are in the nearest cache.
    const BLOCK: usize = 4096;
    let (mut total, mut squares) = (0.0, 0.0);
    for block in values.chunks(BLOCK) {
        total += magnitude_sum(block);
        squares += squares_about(block, 0.0);
    }
    Moments { count: values.len(), sum: total, squares }
}

/// The largest magnitude; 0 of none.
pub(crate) fn largest(values: &[f32]) -> f32 {
    // Bits of magnitudes order as the magnitudes do, and integers have a vector maximum.
    let bits = wide!(values.iter().fold(0u32, |most, value| most.max(value.abs().to_bits())));
    f32::from_bits(bits)
}

/// What exceeds a threshold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tail {
    /// The moments of magnitudes above the threshold.
    pub moments: Moments,
    /// The smallest of them; infinity of none.
    pub smallest: f32,
}

/// The moments of those magnitudes that are above `threshold`, which is not negative, and the
/// smallest; the sum of squares only with `SQUARES`, else 0.
pub(crate) fn tail<const SQUARES: bool>(values: &[f32], threshold: f32) -> Tail {
    /// Elements added up before their sums join the total.
    const BLOCK: usize = 2048;
    let mut tail = Tail { moments: Moments::default(), smallest: f32::INFINITY };
    for block in values.chunks(BLOCK) {
        let Tail { moments, smallest } = wide!(tail_of_block::<SQUARES>(block, threshold));
        tail.smallest = tail.smallest.min(smallest);
        tail.moments.count += moments.count;
        tail.moments.sum += moments.sum;
        tail.moments.squares += moments.squares;
    }
    tail
}

/// The same of fewer than 2³² values, in one pass. The simple form is that of `rest` below, with a branch for each value.
#[inline(always)]
fn tail_of_block<const SQUARES: bool>(block: &[f32], threshold: f32) -> Tail {
    let (mut sums, mut squares) = ([0.0f64; LANES], [0.0f64; LANES]);
    let (mut counts, mut least) = ([0u32; LANES], [u32::MAX; LANES]);
    let (lines, rest) = block.as_chunks::<LANES>();
    for line in lines {
        for (lane, value) in line.iter().enumerate() {
            let above = u32::from(value.abs() > threshold);
            // A magnitude that is not above becomes 0, which adds nothing to the sums; minus one,
            // it wraps to the largest u32, which lowers no minimum.
            let over = value.abs().to_bits() & 0u32.wrapping_sub(above);
            let magnitude = f64::from(f32::from_bits(over));
            counts[lane] += above;
            least[lane] = least[lane].min(over.wrapping_sub(1));
            sums[lane] += magnitude;
            if SQUARES {
                squares[lane] += magnitude * magnitude;
            }
        }
    }
    let mut count: usize = counts.iter().sum::<u32>() as usize;
    let mut smallest = least.into_iter().fold(u32::MAX, u32::min);
    let (mut sum, mut square) = (0.0, 0.0);
    for value in rest.iter().map(|value| value.abs()).filter(|value| *value > threshold) {
        let magnitude = f64::from(value);
        count += 1;
        smallest = smallest.min(value.to_bits() - 1);
        sum += magnitude;
        if SQUARES {
            square += magnitude * magnitude;
        }
    }
    let smallest = match smallest {
        u32::MAX => f32::INFINITY,
        less_one => f32::from_bits(less_one + 1),
    };
    let (sum, squares) = (sums.iter().sum::<f64>() + sum, squares.iter().sum::<f64>() + square);
    Tail { moments: Moments { count, sum, squares }, smallest }
}

/// The sum of (|value| − `centre`)².
pub(crate) fn squares_about(values: &[f32], centre: f64) -> f64 {
    wide!({
        sum(values, |value| {
            let off = f64::from(value.abs()) - centre;
            off * off
        })
    })
}

/// The sum of ln(|value| + `floor`), for a `floor` of 0 only where no value is zero.
///
/// Logarithms are not taken one by one: mantissas are multiplied in lanes, exponents added, and
/// one logarithm a block and lane makes up for both.
pub(crate) fn log_sum(values: &[f32], floor: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    const ONE: u64 = 1023 << 52;
    /// Lines to a block: a product of that many numbers below 2 is below 2^512.
    const LINES: usize = 512;
    let (mut products, mut exponents) = (0.0, 0i64);
    let (lines, rest) = values.as_chunks::<LANES>();
    for block in lines.chunks(LINES) {
        let (lanes, sums) = wide!({
            let (mut lanes, mut sums) = ([1.0f64; LANES], [0u64; LANES]);
            for line in block {
                for ((lane, sum), value) in lanes.iter_mut().zip(&mut sums).zip(line) {
                    let bits = (f64::from(value.abs()) + floor).to_bits();
                    *lane *= f64::from_bits(bits & MANTISSA | ONE);
                    *sum += bits >> 52;
                }
            }
            (lanes, sums)
        });
        products += lanes.iter().map(|lane| lane.ln()).sum::<f64>();
        exponents += sums.iter().map(|sum| *sum as i64).sum::<i64>();
        exponents -= 1023 * (LANES * block.len()) as i64;
    }
    let rest: f64 = rest.iter().map(|value| (f64::from(value.abs()) + floor).ln()).sum();
    products + exponents as f64 * std::f64::consts::LN_2 + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::exceedances::count_above;
    use crate::rng::Stream;

    fn values(length: usize) -> Vec<f32> {
        let stream = Stream::new(&[length as u64]);
        let sign = |i| if stream.bits(i + 1_000_000) & 1 == 0 { 1.0 } else { -1.0 };
        (0..length as u32).map(|i| sign(i) * (stream.uniform(i) * 40.0 - 30.0).exp()).collect()
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() <= 1e-12 * expected.abs(), "{found} for {expected}");
    }

    #[test]
    fn sums_equal_those_taken_one_by_one() {
        for length in [0, 1, 15, 16, 17, 8191, 8192, 8209, 70_001] {
            let values = values(length);
            let wide: Vec<f64> = values.iter().map(|value| f64::from(value.abs())).collect();
            let found = moments(&values);
            close(found.sum, wide.iter().sum());
            close(magnitude_sum(&values), wide.iter().sum());
            close(found.squares, wide.iter().map(|a| a * a).sum());
            close(log_sum(&values, 1e-8), wide.iter().map(|a| (a + 1e-8).ln()).sum());
            close(log_sum(&values, 0.0), wide.iter().map(|a| a.ln()).sum());
            assert_eq!(f64::from(largest(&values)), wide.iter().copied().fold(0.0, f64::max));
            for threshold in [0.0, 1e-6, 1.0, f32::MAX] {
                let above: Vec<f64> =
                    wide.iter().copied().filter(|a| *a > f64::from(threshold)).collect();
                let least = above.iter().copied().fold(f64::INFINITY, f64::min);
                let with_squares = tail::<true>(&values, threshold);
                close(with_squares.moments.squares, above.iter().map(|a| a * a).sum());
                for tail in [with_squares, tail::<false>(&values, threshold)] {
                    assert_eq!(tail.moments.count, above.len());
                    close(tail.moments.sum, above.iter().sum());
                    assert_eq!(f64::from(tail.smallest), least);
                    assert_eq!(tail.moments.sum.to_bits(), with_squares.moments.sum.to_bits());
                }
            }
            assert_eq!(count_above(&values, 0.0), length);
            close(squares_about(&values, 0.5), wide.iter().map(|a| (a - 0.5) * (a - 0.5)).sum());
            if length > 1 {
                let mean = found.mean();
                let squares: f64 = wide.iter().map(|a| (a - mean) * (a - mean)).sum();
                let variance = squares / (length as f64 - 1.0);
                assert!((found.variance() - variance).abs() <= 1e-11 * variance);
            }
        }
        assert_eq!(count_above(&[0.0, -0.0, 1.0], 0.0), 1);
    }

    #[test]
    fn extremes_do_not_overflow_and_constants_do_not_vary() {
        let huge = moments(&[f32::MAX; 1000]);
        close(huge.sum, 1000.0 * f64::from(f32::MAX));
        assert_eq!(huge.variance(), 0.0);
        assert!(moments(&[1.0]).variance().is_nan());
        close(log_sum(&[f32::from_bits(1); 40], 0.0), 40.0 * -149.0 * std::f64::consts::LN_2);
        assert_eq!(moments(&[0.1; 12_345]).variance(), 0.0);
    }
}
