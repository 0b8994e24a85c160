//! Global average pooling, and the parameter-free shortcut between stages.

use candle_core::{Result, Tensor};

use super::element::Element;
use super::maps::{Backward, Maps, Slot};
use super::memory::{Scratch, Target};
use super::profile::{Timed, timed};
use super::values::Values;

/// See [`ops::global_average_pool`](crate::ops::global_average_pool).
pub(crate) fn global_average_pool<E: Element>(xs: &Maps<E>) -> Result<Tensor> {
    let [batch, height, width, channels] = xs.shape;
    let means = timed(Timed::Pooling, 0, || {
        let mut means = vec![0.0; batch * channels];
        let images = xs.pixels().chunks_exact(height * width * channels);
        for (mean, image) in means.chunks_exact_mut(channels).zip(images) {
            let mut row = vec![0.0; channels];
            for pixels in image.chunks_exact(width * channels) {
                row.fill(0.0);
                for pixel in pixels.chunks_exact(channels) {
                    row.iter_mut().zip(pixel).for_each(|(sum, x)| *sum += x.get());
                }
                mean.iter_mut().zip(&row).for_each(|(sum, x)| *sum += x);
            }
            mean.iter_mut().for_each(|sum| *sum /= (height * width) as f32);
        }
        means
    });
    xs.leave((batch, channels), means, |dy, [_, height, width, channels], mut dx| {
        timed(Timed::Pooling, 0, || {
            let area = height * width;
            for (image, dy) in dy.chunks_exact(channels).enumerate() {
                let dy: Vec<f32> = dy.iter().map(|dy| dy / area as f32).collect();
                for pixel in image * area..(image + 1) * area {
                    dx.range(pixel * channels..(pixel + 1) * channels).take(&dy);
                }
            }
        });
    })
}

/// See [`ops::shortcut_a`](crate::ops::shortcut_a).
pub(crate) fn shortcut_a<E: Element>(xs: &Maps<E>, channels: usize) -> Result<Maps<E>> {
    let [batch, height, width, inputs] = xs.shape;
    let shortcut = Shortcut { from: xs.shape, channels, gradient: xs.gradient() };
    let shape = [batch, height.div_ceil(2), width.div_ceil(2), channels];
    let mut ys = Scratch::<E>::zeroed(shape.iter().product());
    timed(Timed::Pooling, 0, || {
        for (to, from) in shortcut.pixels() {
            ys[to..to + inputs].copy_from_slice(&xs.pixels()[from..from + inputs]);
        }
    });
    xs.derive(None, None, shape, ys, || shortcut)
}

/// The shortcut's sizes, and where its input's gradient goes.
struct Shortcut<E: Element> {
    from: [usize; 4],
    /// Channels of the result.
    channels: usize,
    gradient: Slot<E>,
}

impl<E: Element> Shortcut<E> {
    /// Where each pixel of the result has the first of the input's channels, and where the input has it.
    fn pixels(&self) -> impl Iterator<Item = (usize, usize)> {
        let ([batch, height, width, inputs], channels) = (self.from, self.channels);
        let first = (channels - inputs) / 2;
        let rows = (0..batch)
            .flat_map(move |image| (0..height).step_by(2).map(move |y| image * height + y));
        let pixels = rows.flat_map(move |row| (0..width).step_by(2).map(move |x| row * width + x));
        pixels.enumerate().map(move |(to, from)| (to * channels + first, from * inputs))
    }
}

impl<E: Element> Backward<E> for Shortcut<E> {
    const NAME: &'static str = "shortcut_a";

    fn backward(&self, dy: Values<E>, _: &[f32], _: &mut [f32]) -> Result<()> {
        let (dy, inputs) = (dy.whole(), self.from[3]);
        timed(Timed::Pooling, 0, || {
            self.gradient.receive(self.from.iter().product(), |mut dx| {
                if let Target::Write(dx) = &mut dx {
                    dx.fill(E::default());
                }
                for (from, to) in self.pixels() {
                    dx.range(to..to + inputs).take(&dy[from..from + inputs]);
                }
            });
        });
        Ok(())
    }
}
