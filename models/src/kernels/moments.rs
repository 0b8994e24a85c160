//! The mean and the variance of each channel.

use super::channels::{At, Pass, Walk, load, span};
use super::element::Element;
use super::parallel::each;
use super::simd::{Isa, Simd};

/// What the mean and the variance of each channel of some pixels come from. The simple form takes two passes:
/// `mean = Σ x / n`, and then `variance = Σ (x - mean)² / n`. One pass gives both sums here.
///
/// Deviations are taken from one of the pixels, so that a mean far from zero costs no digits. As blocks of 128 are summed
/// in f32, a pivot that lies `d` from the mean of the pixels summed with it makes their variance uncertain by up to
/// 400 · 2⁻²⁴ · (variance + d²), and in practice by a thousandth of that. Of n pixels none lies further than √(n − 1)
/// standard deviations from their mean, yet one may lie as far. So the pivot is the one in the middle of three, that
/// one value far from all others is never the pivot.
pub(crate) struct Moments {
    pixels: usize,
    pivot: Vec<f32>,
    /// Σ (x - pivot)
    sum: Vec<f64>,
    /// Σ (x - pivot)²
    square: Vec<f64>,
}

impl Moments {
    /// Of some pixels, which this thread reads once.
    ///
    /// # Panics
    /// When there is none.
    pub(crate) fn on_one_thread<E: Element>(isa: Isa, xs: &[E], channels: usize) -> Self {
        let pixels = xs.len() / channels;
        let pixel = |number: usize| xs[number * channels..][..channels].iter().map(|x| x.get());
        let three = pixel(0).zip(pixel(pixels / 2)).zip(pixel(pixels - 1));
        let pivot = three.map(|((a, b), c)| a.min(b).max(a.max(b).min(c))).collect::<Vec<_>>();
        let (mut sum, mut square) = (vec![0.0; channels], vec![0.0; channels]);
        let pass = Deviations { xs, pivot: &pivot };
        E::run(isa, Walk { pass, channels, sums: [&mut sum, &mut square] });
        Self { pixels, pivot, sum, square }
    }

    /// Of all pixels, on all threads; which of them reads what makes no difference to any bit.
    ///
    /// # Panics
    /// When there is none.
    pub(crate) fn on_all_threads<E: Element>(isa: Isa, xs: &[E], channels: usize) -> Self {
        let parts = xs.chunks(span(channels) * channels);
        let mut moments: Vec<Option<Self>> = parts.clone().map(|_| None).collect();
        each(moments.iter_mut().zip(parts).collect(), |(moments, part)| {
            *moments = Some(Self::on_one_thread(isa, part, channels));
        });
        Self::merged(moments)
    }

    /// Of pixels in parts, in their order.
    ///
    /// # Panics
    /// When there is none, or one is missing.
    pub(crate) fn merged(parts: impl IntoIterator<Item = Option<Self>>) -> Self {
        let mut parts =
            parts.into_iter().map(|part| part.expect("invariant: every part was summed"));
        let mut whole = parts.next().expect("invariant: there are pixels");
        parts.for_each(|part| whole.take(&part));
        whole
    }

    fn take(&mut self, other: &Self) {
        let pixels = other.pixels as f64;
        for c in 0..self.pivot.len() {
            let apart = f64::from(other.pivot[c]) - f64::from(self.pivot[c]);
            self.sum[c] += other.sum[c] + pixels * apart;
            self.square[c] += other.square[c] + apart * (2.0 * other.sum[c] + pixels * apart);
        }
        self.pixels += other.pixels;
    }

    /// Pixels.
    pub(crate) fn pixels(&self) -> usize {
        self.pixels
    }

    /// Of each channel the mean and the biased variance, which is NaN if a value or its square is not finite.
    pub(crate) fn mean_and_variance(&self) -> (Vec<f64>, Vec<f64>) {
        let count = self.pixels as f64;
        let channel = |((sum, square), pivot): ((&f64, &f64), &f32)| {
            let mean = sum / count;
            let variance = square / count - mean * mean;
            // Rounding may have made it negative. Of values that are not finite, or too large for their squares to be,
            // there is none: `max` would make 0 of it, a division by infinity 0, and either hide them.
            let variance = if variance.is_finite() { variance.max(0.0) } else { f64::NAN };
            (mean + f64::from(*pivot), variance)
        };
        self.sum.iter().zip(&self.square).zip(&self.pivot).map(channel).unzip()
    }
}

/// Deviations from a pivot: their sum and the sum of their squares.
struct Deviations<'a, E> {
    xs: &'a [E],
    pivot: &'a [f32],
}

impl<E: Element> Pass for Deviations<'_, E> {
    const SUMS: bool = true;

    fn len(&self, channels: usize, _: usize) -> usize {
        assert_eq!(self.pivot.len(), channels);
        self.xs.len()
    }

    #[inline(always)]
    unsafe fn constants<S: Simd, const PARTIAL: bool>(&self, s: S, at: At) -> [S::V; 5] {
        // SAFETY: the caller's promise.
        let pivot = unsafe { load::<S, _, PARTIAL>(s, self.pivot, at) };
        [pivot, s.zero(), s.zero(), s.zero(), s.zero()]
    }

    #[inline(always)]
    unsafe fn visit<S: Simd, const PARTIAL: bool>(
        &mut self,
        s: S,
        [pivot, ..]: &[S::V; 5],
        at: At,
    ) -> (S::V, S::V) {
        // SAFETY: the caller's promise.
        let deviation = unsafe { s.sub(load::<S, _, PARTIAL>(s, self.xs, at), *pivot) };
        (deviation, deviation)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However the pixels are cut, the moments are those of all of them.
        #[test]
        fn parts_merge_to_the_whole(
            channels in 1usize..40,
            pixels in prop::collection::vec(1usize..300, 1..6),
            far in prop::collection::vec(-50f32..50.0, 6),
            seed: u64,
        ) {
            let noise = |i: usize| ((seed ^ 0x9e37).wrapping_mul(2 * i as u64 + 1) >> 40) as f32 / 8388608.0 - 1.0;
            let parts: Vec<Vec<f32>> = pixels.iter().zip(&far).enumerate().map(|(p, (pixels, far))| {
                (0..pixels * channels).map(|i| far + noise(p + 7 * i)).collect()
            }).collect();
            let whole = parts.concat();
            for isa in Isa::available() {
                let merged = Moments::merged(parts.iter().map(|part| Some(Moments::on_one_thread(isa, part, channels))));
                prop_assert_eq!(merged.pixels(), pixels.iter().sum::<usize>());
                for moments in [merged, Moments::on_all_threads(isa, &whole, channels)] {
                    let (mean, variance) = moments.mean_and_variance();
                    for c in 0..channels {
                        let values = || whole[c..].iter().step_by(channels).map(|x| f64::from(*x));
                        let exact = values().sum::<f64>() / moments.pixels() as f64;
                        let spread = values().map(|x| (x - exact).powi(2)).sum::<f64>() / moments.pixels() as f64;
                        prop_assert!((mean[c] - exact).abs() < 1e-4, "{isa}: {} {exact}", mean[c]);
                        prop_assert!((variance[c] - spread).abs() < 1e-4 * (1.0 + spread), "{isa}: {} {spread}", variance[c]);
                    }
                }
            }
        }
    }
}
