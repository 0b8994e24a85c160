//! The maximum of each 2×2 or 3×3 pixels. Which of them it was is kept in a bit for each, so that the maps it was taken
//! from need not be, and their gradient is computed where it is read: see [`values`](super::values).

use std::ops::Range;
use std::sync::Arc;

use candle_core::Result;

use super::counts::product;
use super::element::Element;
use super::maps::{Backward, Maps, Slot};
use super::memory::Scratch;
use super::parallel::each;
use super::profile::{Timed, timed};
use super::simd::{Isa, Kernel, Simd};
use super::values::{Compute, Values};

/// See [`ops::max_pool`](crate::ops::max_pool).
pub(crate) fn max_pool<E: Element>(xs: &Maps<E>, window: usize) -> Result<Maps<E>> {
    let isa = xs.native.isa;
    let sizes = PoolSizes::new(xs.shape, window);
    let (mut ys, mut winners) = Pooled::room(isa, sizes, xs.shape[0]);
    timed(Timed::Pooling, 0, || {
        let images = xs.pixels().chunks_exact(sizes.image());
        let results =
            ys.chunks_exact_mut(sizes.pooled()).zip(winners.chunks_exact_mut(sizes.winners(isa)));
        each(images.zip(results).collect(), |(xs, (ys, winners))| {
            E::run(isa, Maxima { sizes, xs, ys, winners });
        });
    });
    let pooled = Pooled::new(isa, sizes, xs.shape[0], winners);
    let gradient = xs.gradient();
    xs.derive(None, None, pooled.shape(), ys, || MaxPool { pooled, gradient })
}

/// The sizes of an image before pooling, and of a window.
#[derive(Clone, Copy)]
pub(super) struct PoolSizes {
    pub height: usize,
    pub width: usize,
    pub channels: usize,
    /// Rows and columns of a window: 2 or 3.
    pub window: usize,
}

impl PoolSizes {
    /// Of images `[batch, height, width, channels]`.
    pub(super) fn new([_, height, width, channels]: [usize; 4], window: usize) -> Self {
        Self { height, width, channels, window }
    }

    /// Elements of an image.
    fn image(self) -> usize {
        product([self.height, self.width, self.channels])
    }

    /// Rows and columns of its result.
    fn windows(self) -> [usize; 2] {
        [self.height / self.window, self.width / self.window]
    }

    /// Elements of a row of its result.
    pub(super) fn line(self) -> usize {
        self.windows()[1] * self.channels
    }

    /// Elements of its result.
    fn pooled(self) -> usize {
        self.windows()[0] * self.line()
    }

    /// Masks that say the winners of a row of its result: for each vector of channels one for each pixel of the window.
    pub(super) fn line_winners(self, isa: Isa) -> usize {
        self.windows()[1] * self.channels.div_ceil(isa.lanes()) * self.window * self.window
    }

    /// Masks that say all winners.
    fn winners(self, isa: Isa) -> usize {
        self.windows()[0] * self.line_winners(isa)
    }
}

/// One image's maxima, and which of each window they are. All of `ys` and `winners` are written.
pub(super) struct Maxima<'a, E> {
    pub sizes: PoolSizes,
    pub xs: &'a [E],
    pub ys: &'a mut [E],
    pub winners: &'a mut [u16],
}

impl<E: Element> Kernel for Maxima<'_, E> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.sizes.window {
            2 => self.pool::<S, 2, 4>(s),
            _ => self.pool::<S, 3, 9>(s),
        }
    }
}

impl<E: Element> Maxima<'_, E> {
    /// The simple form, of each window and channel: `for p in 1..PIXELS { if x[p] > x[best] { best = p } }`.
    ///
    /// A pixel takes the lead where it beats the best before it, and wins where none behind it takes the lead: masks of
    /// lanes, where the compiler makes of a number for each channel a loop of single elements.
    #[inline(always)]
    fn pool<S: Simd, const SIDE: usize, const PIXELS: usize>(self, s: S) {
        let Self { sizes, xs, ys, winners } = self;
        let PoolSizes { height, width, channels, .. } = sizes;
        let offsets: [usize; PIXELS] =
            std::array::from_fn(|pixel| (pixel / SIDE * width + pixel % SIDE) * channels);
        let (mut to, mut winners) = (0, winners.chunks_exact_mut(PIXELS));
        for (y, x) in (0..height / SIDE).flat_map(|y| (0..width / SIDE).map(move |x| (y, x))) {
            let from = (y * width + x) * SIDE * channels;
            for channel in (0..channels).step_by(S::LANES) {
                let lanes = S::LANES.min(channels - channel);
                let pixel = |at: usize| E::load_first(s, &xs[from + at + channel..][..lanes]);
                let mut best = pixel(offsets[0]);
                let mut leads = [u16::MAX; PIXELS];
                for (lead, at) in leads.iter_mut().zip(offsets).skip(1) {
                    let x = pixel(at);
                    *lead = s.beats(x, best);
                    best = s.select(*lead, x, best);
                }
                E::store_first(s, &mut ys[to + channel..][..lanes], best);
                let winners = winners.next().expect("as many masks as windows and vectors");
                let mut taken = 0;
                for (winner, lead) in winners.iter_mut().zip(leads).rev() {
                    *winner = lead & !taken;
                    taken |= lead;
                }
            }
            to += channels;
        }
    }
}

/// What pooling keeps of the maps before it.
#[derive(Clone)]
pub(super) struct Pooled {
    isa: Isa,
    sizes: PoolSizes,
    batch: usize,
    winners: Arc<Scratch<u16>>,
}

impl Pooled {
    /// Of so many images, whose winners these are.
    pub(super) fn new(isa: Isa, sizes: PoolSizes, batch: usize, winners: Scratch<u16>) -> Self {
        Self { isa, sizes, batch, winners: Arc::new(winners) }
    }

    /// Room for the maxima of so many images, and for their winners.
    pub(super) fn room<E: Element>(
        isa: Isa,
        sizes: PoolSizes,
        batch: usize,
    ) -> (Scratch<E>, Scratch<u16>) {
        (Scratch::of(batch * sizes.pooled()), Scratch::of(batch * sizes.winners(isa)))
    }

    /// The result's.
    pub(super) fn shape(&self) -> [usize; 4] {
        let [height, width] = self.sizes.windows();
        [self.batch, height, width, self.sizes.channels]
    }

    /// The gradient of the maps before, from that of the result.
    pub(super) fn gradient<E: Element>(&self, dy: Values<E>) -> Values<E> {
        // Other recipes read this one on several threads: see [`Compute`].
        dy.whole();
        let pooled = self.clone();
        let (len, channels) = (self.batch * self.sizes.image(), self.sizes.channels);
        Values::computed(len, channels, Spread { pooled, dy })
    }
}

/// The gradient of the maps before pooling.
struct Spread<E: Element> {
    pooled: Pooled,
    dy: Values<E>,
}

impl<E: Element> Compute<E> for Spread<E> {
    fn compute(&self, range: Range<usize>, to: &mut [E]) {
        let Pooled { isa, sizes, winners, .. } = &self.pooled;
        let pixels = range.start / sizes.channels..range.end / sizes.channels;
        E::run(*isa, PoolGradient { sizes: *sizes, dy: self.dy.whole(), winners, pixels, dx: to });
    }
}

/// The gradient of some pixels, counted through all images.
struct PoolGradient<'a, E> {
    sizes: PoolSizes,
    dy: &'a [E],
    winners: &'a [u16],
    pixels: Range<usize>,
    dx: &'a mut [E],
}

impl<E: Element> Kernel for PoolGradient<'_, E> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.sizes.window {
            2 => self.gather::<S, 2, 4>(s),
            _ => self.gather::<S, 3, 9>(s),
        }
    }
}

impl<E: Element> PoolGradient<'_, E> {
    /// The simple form: `dx[pixel, c] = if winner[window, c] == pixel { dy[window, c] } else { 0 }`.
    #[inline(always)]
    fn gather<S: Simd, const SIDE: usize, const PIXELS: usize>(self, s: S) {
        let Self { sizes, dy, winners, pixels, dx } = self;
        let PoolSizes { height, width, channels, .. } = sizes;
        let (rows, columns) = (height / SIDE, width / SIDE);
        let masks = channels.div_ceil(S::LANES) * PIXELS;
        for (pixel, dx) in pixels.zip(dx.chunks_exact_mut(channels)) {
            let (row, x) = (pixel / width, pixel % width);
            let (image, y) = (row / height, row % height);
            if y / SIDE >= rows || x / SIDE >= columns {
                // Cut off: in no window.
                dx.fill(E::default());
                continue;
            }
            let window = (image * rows + y / SIDE) * columns + x / SIDE;
            let winners = &winners[window * masks + y % SIDE * SIDE + x % SIDE..];
            let dy = dy[window * channels..][..channels].chunks(S::LANES);
            let vectors = dx.chunks_mut(S::LANES).zip(dy).zip(winners.iter().step_by(PIXELS));
            for ((dx, dy), winner) in vectors {
                E::store_first(s, dx, s.where_set(*winner, E::load_first(s, dy)));
            }
        }
    }
}

/// What the backward pass needs.
struct MaxPool<E: Element> {
    pooled: Pooled,
    gradient: Slot<E>,
}

impl<E: Element> Backward<E> for MaxPool<E> {
    const NAME: &'static str = "max_pool";

    fn backward(&self, dy: Values<E>, _: &[f32], _: &mut [f32]) -> Result<()> {
        self.gradient.receive_values(self.pooled.gradient(dy));
        Ok(())
    }
}
