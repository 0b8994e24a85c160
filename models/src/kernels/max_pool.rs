//! The maximum of each 2×2 or 3×3 pixels. Which of them it was is kept in a byte, so that the maps it was taken from
//! need not be.

use candle_core::Result;

use super::maps::{Backward, Maps, Slot};
use super::memory::{Scratch, Target};
use super::parallel::each;
use super::profile::{Kind, timed};
use super::simd::{Isa, Kernel, Simd};
use super::values::Values;

/// See [`ops::max_pool`](crate::ops::max_pool).
pub(crate) fn max_pool(xs: &Maps, window: usize) -> Result<Maps> {
    let isa = xs.native.isa;
    let [batch, height, width, channels] = xs.shape;
    let sizes = Sizes { height, width, channels, window };
    let shape = [batch, height / window, width / window, channels];
    let mut ys = Scratch::new(shape.iter().product());
    let mut winners = vec![0; ys.len()];
    timed(Kind::Pooling, 0, || {
        let images = xs.pixels().chunks_exact(sizes.image());
        let results =
            ys.chunks_exact_mut(sizes.pooled()).zip(winners.chunks_exact_mut(sizes.pooled()));
        each(images.zip(results).collect(), |(xs, (ys, winners))| {
            isa.run(Forward { sizes, xs, ys, winners });
        });
    });
    let gradient = xs.gradient();
    xs.derive(None, None, shape, ys, || MaxPool { isa, sizes, batch, winners, gradient })
}

/// The sizes of an image before pooling, and of a window.
#[derive(Clone, Copy)]
struct Sizes {
    height: usize,
    width: usize,
    channels: usize,
    /// Rows and columns of a window.
    window: usize,
}

impl Sizes {
    /// Elements of an image.
    fn image(self) -> usize {
        self.height * self.width * self.channels
    }

    /// Elements of its result.
    fn pooled(self) -> usize {
        (self.height / self.window) * (self.width / self.window) * self.channels
    }

    /// Where each pixel of the result begins, and where the first of its window does.
    #[inline(always)]
    fn windows(self) -> impl Iterator<Item = (usize, usize)> {
        let Self { height, width, channels, window } = self;
        let rows = 0..height / window;
        let pixels = rows.flat_map(move |y| (0..width / window).map(move |x| (y, x)));
        pixels
            .enumerate()
            .map(move |(to, (y, x))| (to * channels, (y * width + x) * window * channels))
    }

    /// How far the pixels of a window, as many as it has, lie behind its first, row by row.
    #[inline(always)]
    fn offsets<const PIXELS: usize>(self) -> [usize; PIXELS] {
        assert_eq!(self.window * self.window, PIXELS);
        let at = |pixel: usize| pixel / self.window * self.width + pixel % self.window;
        std::array::from_fn(|pixel| at(pixel) * self.channels)
    }
}

/// One image's maxima, and which of each window they are.
struct Forward<'a> {
    sizes: Sizes,
    xs: &'a [f32],
    ys: &'a mut [f32],
    winners: &'a mut [u8],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        match self.sizes.window {
            2 => self.pool::<4>(),
            _ => self.pool::<9>(),
        }
    }
}

impl Forward<'_> {
    /// The pixels of a window are so many slices of all channels: a loop over these takes whole vectors of them, and
    /// keeps the best so far and its number in registers.
    #[inline(always)]
    fn pool<const PIXELS: usize>(self) {
        let channels = self.sizes.channels;
        let offsets = self.sizes.offsets::<PIXELS>();
        for (to, from) in self.sizes.windows() {
            let pixels = offsets.map(|at| &self.xs[from + at..][..channels]);
            let ys = &mut self.ys[to..][..channels];
            let winners = &mut self.winners[to..][..channels];
            for i in 0..channels {
                let (mut best, mut winner) = (pixels[0][i], 0);
                for (number, pixel) in (0..).zip(&pixels).skip(1) {
                    let x = pixel[i];
                    let taken = x > best || x.is_nan();
                    best = if taken { x } else { best };
                    winner = if taken { number } else { winner };
                }
                (ys[i], winners[i]) = (best, winner);
            }
        }
    }
}

/// One image's gradient.
struct Scatter<'a> {
    sizes: Sizes,
    dy: &'a [f32],
    winners: &'a [u8],
    dx: Target<'a>,
}

impl Kernel for Scatter<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        match self.sizes.window {
            2 => self.scatter::<4>(),
            _ => self.scatter::<9>(),
        }
    }
}

impl Scatter<'_> {
    #[inline(always)]
    fn scatter<const PIXELS: usize>(self) {
        let channels = self.sizes.channels;
        let offsets = self.sizes.offsets::<PIXELS>();
        let (dx, add) = self.dx.parts();
        if !add {
            // Rows and columns at the end may be in no window.
            dx.fill(0.0);
        }
        for (to, from) in self.sizes.windows() {
            let dy = &self.dy[to..][..channels];
            let winners = &self.winners[to..][..channels];
            for (number, at) in (0..).zip(offsets) {
                let dx = &mut dx[from + at..][..channels];
                for i in 0..channels {
                    dx[i] += if winners[i] == number { dy[i] } else { 0.0 };
                }
            }
        }
    }
}

/// What the backward pass needs.
struct MaxPool {
    isa: Isa,
    sizes: Sizes,
    batch: usize,
    /// Which of its window each pixel of the result is, row by row.
    winners: Vec<u8>,
    gradient: Slot,
}

impl Backward for MaxPool {
    const NAME: &'static str = "max_pool";

    fn backward(&self, dy: Values, _: &[f32], _: &mut [f32]) -> Result<()> {
        let (dy, sizes) = (dy.whole(), self.sizes);
        timed(Kind::Pooling, 0, || {
            self.gradient.receive(self.batch * sizes.image(), |dx| {
                let results =
                    dy.chunks_exact(sizes.pooled()).zip(self.winners.chunks_exact(sizes.pooled()));
                each(results.zip(dx.chunks(sizes.image())).collect(), |((dy, winners), dx)| {
                    self.isa.run(Scatter { sizes, dy, winners, dx });
                });
            });
        });
        Ok(())
    }
}
