//! What variables begin with.

use candle_core::Shape;
use candle_nn::Init;
use candle_nn::init::NormalOrUniform;

use crate::randomness::{GOLDEN, mixed};

/// The values that a variable begins with. They depend on the seed, its name and its shape alone; the first row of an
/// embedding table, that of padding, is zero.
pub(crate) fn values_of(seed: u64, name: &str, shape: &Shape, init: Init) -> Vec<f32> {
    let count = shape.elem_count();
    let mut stream = SplitMix64::new(seed, name);
    let mut uniform = |lo: f64, up: f64| -> Vec<f32> {
        (0..count).map(|_| (lo + (up - lo) * stream.unit()) as f32).collect()
    };
    let mut values = match init {
        Init::Const(value) => vec![value as f32; count],
        Init::Uniform { lo, up } => uniform(lo, up),
        Init::Randn { mean, stdev } => stream.normals(count, mean, stdev),
        Init::Kaiming { dist, fan, non_linearity } => {
            let stdev = non_linearity.gain() / (fan.for_shape(shape) as f64).sqrt();
            match dist {
                NormalOrUniform::Normal => stream.normals(count, 0., stdev),
                NormalOrUniform::Uniform => {
                    let bound = 3f64.sqrt() * stdev;
                    uniform(-bound, bound)
                }
            }
        }
    };
    if name == "embedding.weight" {
        let row = shape.dims().last().copied().unwrap_or(0).min(count);
        values[..row].fill(0.);
    }
    values
}

/// SplitMix64 (Steele, Lea and Flood 2014), started from the seed and the FNV-1a hash of a name.
struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    fn new(seed: u64, name: &str) -> Self {
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut seeded = Self { state: seed };
        Self { state: seeded.next() ^ hash }
    }

    fn next(&mut self) -> u64 {
        let state = self.state;
        self.state = state.wrapping_add(GOLDEN);
        mixed(state)
    }

    /// Uniform in `[0, 1)`, 53 bits.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Box–Muller, both of each pair used.
    fn normals(&mut self, count: usize, mean: f64, stdev: f64) -> Vec<f32> {
        let mut values = Vec::with_capacity(count + 1);
        while values.len() < count {
            let radius = (-2. * (1. - self.unit()).ln()).sqrt() * stdev;
            let (sin, cos) = (std::f64::consts::TAU * self.unit()).sin_cos();
            values.push((mean + radius * cos) as f32);
            values.push((mean + radius * sin) as f32);
        }
        values.truncate(count);
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(values: &[f32]) -> (f64, f64) {
        let count = values.len() as f64;
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
        let square = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / count;
        (mean, square.sqrt())
    }

    #[test]
    fn distributions_have_their_moments() {
        let shape = Shape::from((64, 32, 3, 3));
        let kaiming = |dist| Init::Kaiming {
            dist,
            fan: candle_nn::init::FanInOut::FanOut,
            non_linearity: candle_nn::init::NonLinearity::ReLU,
        };
        let fan_out = (2f64 / (64. * 9.)).sqrt();
        let cases = [
            (Init::Const(0.25), 0.25, 0.),
            (Init::Randn { mean: 1., stdev: 2. }, 1., 2.),
            (Init::Uniform { lo: -0.5, up: 0.1 }, -0.2, 0.6 / 12f64.sqrt()),
            (kaiming(NormalOrUniform::Normal), 0., fan_out),
            (kaiming(NormalOrUniform::Uniform), 0., fan_out),
        ];
        for (init, mean, stdev) in cases {
            let found = moments(&values_of(5, "w", &shape, init));
            // 18,432 values: standard errors are stdev/136 and stdev/192.
            assert!((found.0 - mean).abs() <= 4. * stdev / 136., "{init:?}: {found:?}");
            assert!((found.1 - stdev).abs() <= 4. * stdev / 192., "{init:?}: {found:?}");
        }
        let uniform = values_of(5, "w", &shape, Init::Uniform { lo: -0.5, up: 0.1 });
        assert!(uniform.iter().all(|v| (-0.5..0.1).contains(v)));
    }
}
