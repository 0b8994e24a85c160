//! The maximum of each 2×2 or 3×3 pixels. Which of them it was is kept in a bit for each, so that the maps it was taken
//! from need not be.

use candle_core::Result;

use super::maps::{Backward, Maps, Slot};
use super::memory::{Bits, Scratch, Target};
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
    let mut winners = Bits::new(batch * sizes.winners(isa));
    timed(Kind::Pooling, 0, || {
        let images = xs.pixels().chunks_exact(sizes.image());
        let results =
            ys.chunks_exact_mut(sizes.pooled()).zip(winners.chunks_exact_mut(sizes.winners(isa)));
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

    /// Windows of an image.
    fn windows(self) -> usize {
        (self.height / self.window) * (self.width / self.window)
    }

    /// Elements of its result.
    fn pooled(self) -> usize {
        self.windows() * self.channels
    }

    /// What says the winners of all its windows: for each vector of channels one mask for each pixel of the window.
    fn winners(self, isa: Isa) -> usize {
        self.windows() * self.channels.div_ceil(isa.lanes()) * self.window * self.window
    }

    /// Calls `visit` for each vector of channels of each window: with where it begins in the result, where in the first
    /// pixel of the window, its number, and its channels, if it is not full.
    #[inline(always)]
    fn each_vector<S: Simd>(self, mut visit: impl FnMut(usize, usize, usize, usize)) {
        let Self { height, width, channels, window } = self;
        let (mut to, mut number) = (0, 0);
        for y in 0..height / window {
            for x in 0..width / window {
                let from = (y * width + x) * window * channels;
                for channel in (0..channels).step_by(S::LANES) {
                    visit(to + channel, from + channel, number, S::LANES.min(channels - channel));
                    number += 1;
                }
                to += channels;
            }
        }
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
    winners: &'a mut [u16],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.sizes.window {
            2 => self.pool::<S, 4>(s),
            _ => self.pool::<S, 9>(s),
        }
    }
}

impl Forward<'_> {
    /// A pixel takes the lead where it beats the best before it, and wins where none behind it takes the lead: masks of
    /// lanes, where the compiler makes of a number for each channel a loop of single elements.
    #[inline(always)]
    fn pool<S: Simd, const PIXELS: usize>(self, s: S) {
        let Self { sizes, xs, ys, winners } = self;
        let offsets = sizes.offsets::<PIXELS>();
        sizes.each_vector::<S>(|to, from, number, lanes| {
            let pixel = |at: usize| s.load_first(&xs[from + at..][..lanes]);
            let mut best = pixel(offsets[0]);
            let mut leads = [u16::MAX; PIXELS];
            for (lead, at) in leads.iter_mut().zip(offsets).skip(1) {
                let x = pixel(at);
                *lead = s.beats(x, best);
                best = s.select(*lead, x, best);
            }
            s.store_first(&mut ys[to..][..lanes], best);
            let mut taken = 0;
            let winners = &mut winners[number * PIXELS..][..PIXELS];
            for (winner, lead) in winners.iter_mut().zip(leads).rev() {
                *winner = lead & !taken;
                taken |= lead;
            }
        });
    }
}

/// One image's gradient.
struct Scatter<'a> {
    sizes: Sizes,
    dy: &'a [f32],
    winners: &'a [u16],
    dx: Target<'a>,
}

impl Kernel for Scatter<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.sizes.window {
            2 => self.scatter::<S, 4>(s),
            _ => self.scatter::<S, 9>(s),
        }
    }
}

impl Scatter<'_> {
    #[inline(always)]
    fn scatter<S: Simd, const PIXELS: usize>(self, s: S) {
        let Self { sizes, dy, winners, dx } = self;
        let (dx, add) = dx.parts();
        if !add {
            clear_outside(sizes, dx);
        }
        let offsets = sizes.offsets::<PIXELS>();
        sizes.each_vector::<S>(|to, from, number, lanes| {
            let dy = s.load_first(&dy[to..][..lanes]);
            let winners = &winners[number * PIXELS..][..PIXELS];
            for (winner, at) in winners.iter().zip(offsets) {
                let dx = &mut dx[from + at..][..lanes];
                let mine = s.where_set(*winner, dy);
                s.store_first(dx, if add { s.add(s.load_first(dx), mine) } else { mine });
            }
        });
    }
}

/// Sets what no window of the image reaches, rows and columns at its end, to zero.
fn clear_outside(sizes: Sizes, image: &mut [f32]) {
    let Sizes { height, width, channels, window } = sizes;
    let inside = |size: usize| size / window * window;
    let (reached, rest) = image.split_at_mut(inside(height) * width * channels);
    rest.fill(0.0);
    for row in reached.chunks_exact_mut(width * channels) {
        row[inside(width) * channels..].fill(0.0);
    }
}

/// What the backward pass needs.
struct MaxPool {
    isa: Isa,
    sizes: Sizes,
    batch: usize,
    winners: Bits,
    gradient: Slot,
}

impl Backward for MaxPool {
    const NAME: &'static str = "max_pool";

    fn backward(&self, dy: Values, _: &[f32], _: &mut [f32]) -> Result<()> {
        let (dy, sizes) = (dy.whole(), self.sizes);
        timed(Kind::Pooling, 0, || {
            self.gradient.receive(self.batch * sizes.image(), |dx| {
                let winners = self.winners.chunks_exact(sizes.winners(self.isa));
                let results = dy.chunks_exact(sizes.pooled()).zip(winners);
                each(results.zip(dx.chunks(sizes.image())).collect(), |((dy, winners), dx)| {
                    self.isa.run(Scatter { sizes, dy, winners, dx });
                });
            });
        });
        Ok(())
    }
}
