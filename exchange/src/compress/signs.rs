//! One bit per element: its sign.

use crate::simd::wide;
use crate::wire::Read;
use crate::wire::codes::{self, BLOCK};

/// Appends the sign bits, 1 for negative, packed.
pub(super) fn put(gradient: &[f32], out: &mut Vec<u8>) {
    out.reserve(codes::bytes(gradient.len(), 1));
    let mut signs = [0; BLOCK];
    for some in gradient.chunks(BLOCK) {
        let signs = &mut signs[..some.len()];
        wide(
            #[inline(always)]
            || {
                for (sign, value) in signs.iter_mut().zip(some) {
                    *sign = (value.to_bits() >> 31) as u8;
                }
            },
        );
        codes::put(signs, 1, out);
    }
}

/// Adds `plus` where a sign bit is clear and `minus` where it is set.
///
/// # Errors
/// [`Fault`](crate::wire::Fault) when the bytes are not as many signs as the sum has elements.
pub(super) fn add(wire: &[u8], plus: f32, minus: f32, sum: &mut [f32]) -> Read<()> {
    codes::expect(wire, sum.len(), 1)?.each_block(|first, signs| {
        let sum = &mut sum[first..first + signs.len()];
        wide(
            #[inline(always)]
            || {
                for (sum, sign) in sum.iter_mut().zip(signs) {
                    *sum += if *sign == 0 { plus } else { minus };
                }
            },
        );
        Ok(())
    })
}

/// The sum of magnitudes, added up in f64.
pub(super) fn total(values: &[f32]) -> f64 {
    const LANES: usize = 16;
    let mut lanes = [0f64; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    wide(
        #[inline(always)]
        || {
            for chunk in chunks {
                for (lane, value) in lanes.iter_mut().zip(chunk) {
                    *lane += f64::from(value.abs());
                }
            }
        },
    );
    lanes.iter().sum::<f64>() + rest.iter().map(|value| f64::from(value.abs())).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_come_back_and_magnitudes_add_up() {
        let values: Vec<f32> = (0..2100).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
        let mut wire = Vec::new();
        put(&values, &mut wire);
        assert_eq!(wire.len(), 263);
        let mut sum = vec![0.5; values.len()];
        add(&wire, 1.0, -2.0, &mut sum).unwrap();
        let expected = values.iter().map(|value| if *value < 0.0 { -1.5 } else { 1.5 });
        assert_eq!(sum, expected.collect::<Vec<f32>>());
        let naive: f64 = values.iter().map(|value| f64::from(value.abs())).sum();
        assert!((total(&values) - naive).abs() < 1e-9 * naive);
        assert!(add(&wire[1..], 1.0, 1.0, &mut sum).is_err());
    }
}
