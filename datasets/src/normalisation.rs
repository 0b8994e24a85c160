//! By what the pixels of images are shifted and scaled before a model sees them.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Red, green, blue.
pub(crate) const CHANNELS: usize = 3;

/// Mean and deviation of a training set's pixels per channel (red, green, blue), in units of the
/// full brightness 255. Both sets are shifted and scaled by them. Grey images have the same three times.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Normalisation {
    /// Mean over all pixels of all training images.
    pub mean: [f64; CHANNELS],
    /// Standard deviation over the same pixels (divided by their number, not by one less).
    pub deviation: [f64; CHANNELS],
}

impl Normalisation {
    /// Of the pixels of `pixels`, images one after the other, of 1 or 3 values a pixel. Exact up to the
    /// last rounding: the sums are integers.
    pub(crate) fn from_pixels(pixels: &[u8], channels: usize) -> Self {
        let zero = || [[0u64; 256]; CHANNELS];
        let count = |pixels: &[u8]| {
            let mut counts = zero();
            for pixel in pixels.chunks_exact(channels) {
                for (count, &value) in counts.iter_mut().zip(pixel) {
                    count[usize::from(value)] += 1;
                }
            }
            counts
        };
        let add = |mut sum: [[u64; 256]; CHANNELS], other: [[u64; 256]; CHANNELS]| {
            sum.iter_mut()
                .flatten()
                .zip(other.iter().flatten())
                .for_each(|(sum, other)| *sum += other);
            sum
        };
        let mut counts = pixels.par_chunks(channels << 20).map(count).reduce(zero, add);
        if channels == 1 {
            counts = [counts[0]; CHANNELS];
        }
        let n = (pixels.len() / channels) as f64;
        let mut this = Self { mean: [0.0; CHANNELS], deviation: [0.0; CHANNELS] };
        for (channel, counts) in counts.iter().enumerate() {
            let moment = |power: u32| {
                let terms =
                    counts.iter().zip(0u64..).map(|(&count, value)| count * value.pow(power));
                terms.sum::<u64>() as f64 / n
            };
            let mean = moment(1);
            this.mean[channel] = mean / 255.0;
            this.deviation[channel] = (moment(2) - mean * mean).max(0.0).sqrt() / 255.0;
        }
        this
    }

    /// Whether there can be pixels of this mean and deviation: what stands in a file need not be.
    pub fn is_possible(&self) -> bool {
        self.mean.iter().chain(&self.deviation).all(|moment| (0.0..=1.0).contains(moment))
    }

    /// What each byte becomes, per channel. A channel that is the same everywhere is only shifted.
    pub(crate) fn table(&self) -> ByteValues {
        std::array::from_fn(|channel| {
            let deviation = match self.deviation[channel] {
                0.0 => 1.0,
                deviation => deviation,
            };
            std::array::from_fn(|value| {
                ((value as f64 / 255.0 - self.mean[channel]) / deviation) as f32
            })
        })
    }
}

/// What each byte of a pixel becomes, per channel.
pub(crate) type ByteValues = [[f32; 256]; CHANNELS];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_pixels_have_is_impossible() {
        let grey = Normalisation::from_pixels(&[7; 30], 3);
        assert!(
            grey.is_possible(),
            "a deviation of 0 is that of a channel that is the same everywhere"
        );
        for wrong in [f64::NAN, f64::INFINITY, -0.1, 1.1] {
            let mean = Normalisation { mean: [0.5, wrong, 0.5], ..grey };
            let deviation = Normalisation { deviation: [0.2, 0.2, wrong], ..grey };
            assert!(!mean.is_possible() && !deviation.is_possible(), "{wrong}");
        }
    }
}
