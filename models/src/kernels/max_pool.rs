//! The maximum of each 2×2 pixels. Which of the four it was is kept in a byte, so that the maps it was taken from need
//! not be.

use candle_core::Result;

use super::maps::{Backward, Maps, Slot};
use super::memory::{Scratch, Target};
use super::parallel::each;
use super::profile::{Kind, timed};
use super::simd::{Isa, Kernel, Simd};
use super::values::Values;

/// See [`ops::max_pool`](crate::ops::max_pool).
pub(crate) fn max_pool(xs: &Maps) -> Result<Maps> {
    let isa = xs.native.isa;
    let sizes = Sizes::of(xs.shape);
    let [batch, height, width, channels] = xs.shape;
    let shape = [batch, height / 2, width / 2, channels];
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

/// The sizes of an image before pooling.
#[derive(Clone, Copy)]
struct Sizes {
    height: usize,
    width: usize,
    channels: usize,
}

impl Sizes {
    fn of([_, height, width, channels]: [usize; 4]) -> Self {
        Self { height, width, channels }
    }

    /// Elements of an image.
    fn image(self) -> usize {
        self.height * self.width * self.channels
    }

    /// Elements of its result.
    fn pooled(self) -> usize {
        (self.height / 2) * (self.width / 2) * self.channels
    }

    /// Where each pixel of the result begins, and where the first of its four does.
    #[inline(always)]
    fn windows(self) -> impl Iterator<Item = (usize, usize)> {
        let Self { height, width, channels } = self;
        let pixels = (0..height / 2).flat_map(move |y| (0..width / 2).map(move |x| (y, x)));
        pixels
            .enumerate()
            .map(move |(to, (y, x))| (to * channels, (2 * y * width + 2 * x) * channels))
    }

    /// How far the four pixels of a window lie behind its first, row by row.
    fn corners(self) -> [usize; 4] {
        [0, self.channels, self.width * self.channels, (self.width + 1) * self.channels]
    }
}

/// One image's maxima, and which of each four they are.
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
        let channels = self.sizes.channels;
        for (to, from) in self.sizes.windows() {
            let [a, b, c, d] = self.sizes.corners().map(|at| &self.xs[from + at..][..channels]);
            let ys = &mut self.ys[to..][..channels];
            let winners = &mut self.winners[to..][..channels];
            for i in 0..channels {
                let (mut best, mut winner) = (a[i], 0);
                for (number, x) in [(1, b[i]), (2, c[i]), (3, d[i])] {
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
        let channels = self.sizes.channels;
        let (dx, add) = self.dx.parts();
        if !add {
            // An odd row or column at the end is in no window.
            dx.fill(0.0);
        }
        for (to, from) in self.sizes.windows() {
            let dy = &self.dy[to..][..channels];
            let winners = &self.winners[to..][..channels];
            for (number, at) in (0..).zip(self.sizes.corners()) {
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
    /// Which of its four each pixel of the result is, row by row.
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
