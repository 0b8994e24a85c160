//! The two-dimensional transforms between images and points: a one-dimensional [`Map`] over columns, then over rows.
//!
//! In bf16 two tiles of one kind share a row of words, where the products' inner dimension runs along the tiles.

use std::marker::PhantomData;

use super::algorithm::Map;
use super::tiles::{
    INSIDE, KINDS, LOW, Layout, NARROW, SMALL, Tile, Tiling, WHOLE, has_column, has_row,
};
use crate::kernels::element::Element;
use crate::kernels::memory::Target;
use crate::kernels::simd::{Isa, Kernel, Simd};
use crate::kernels::values::Values;

/// Elements of a row of tiles at most, if they are asked for while those of the row above are read: more would drive
/// each other out of the first-level cache.
const AHEAD: usize = 4 << 10;

/// Calls the function `$tile` of `$of` that was compiled for the kind of the tile, for as many channels as lanes if `$full`; it
/// asks for the tile below if `$ahead`.
macro_rules! run {
    ($of:ident.$tile:ident($($argument:expr),*), $kind:expr, $full:expr, $ahead:expr) => {
        match ($kind, $full) {
            (INSIDE, true) if $ahead => $of.$tile::<S, INSIDE, false, true>($($argument),*),
            (INSIDE, true) => $of.$tile::<S, INSIDE, false, false>($($argument),*),
            (INSIDE, false) => $of.$tile::<S, INSIDE, true, false>($($argument),*),
            (WHOLE, true) => $of.$tile::<S, WHOLE, false, false>($($argument),*),
            (WHOLE, false) => $of.$tile::<S, WHOLE, true, false>($($argument),*),
            (NARROW, true) => $of.$tile::<S, NARROW, false, false>($($argument),*),
            (NARROW, false) => $of.$tile::<S, NARROW, true, false>($($argument),*),
            (LOW, true) => $of.$tile::<S, LOW, false, false>($($argument),*),
            (LOW, false) => $of.$tile::<S, LOW, true, false>($($argument),*),
            (_, true) => $of.$tile::<S, SMALL, false, false>($($argument),*),
            (_, false) => $of.$tile::<S, SMALL, true, false>($($argument),*),
        }
    };
}

/// Some rows of tiles, from a first one counted through all images, to points.
pub(super) fn to_points<M: Map<IN, POINTS>, E: Element, const IN: usize, const POINTS: usize>(
    isa: Isa,
    images: &Values<E>,
    tiling: &Tiling,
    (first, rows): (usize, usize),
    (layout, points): (&Layout<POINTS>, &mut [f32]),
    along_tiles: bool,
) {
    let touched = tiling.touched(first, rows, IN);
    let kernel = ToPoints::<M, E, IN, POINTS> {
        map: PhantomData,
        start: touched.start,
        images: &images.window(touched),
        tiling: *tiling,
        first,
        rows,
        layout,
        points,
    };
    kernel.run_on(isa, along_tiles);
}

/// Tiles of images to points: for `rows` rows of tiles from row `first`, counted through all images.
pub(super) struct ToPoints<'a, M, E, const IN: usize, const POINTS: usize> {
    pub map: PhantomData<M>,
    /// The pixels that the tiles touch, and perhaps more.
    pub images: &'a [E],
    /// Elements of all images before these.
    pub start: usize,
    pub tiling: Tiling,
    pub first: usize,
    pub rows: usize,
    pub layout: &'a Layout<POINTS>,
    pub points: &'a mut [f32],
}

impl<M: Map<IN, POINTS>, E: Element, const IN: usize, const POINTS: usize>
    ToPoints<'_, M, E, IN, POINTS>
{
    /// Runs it; in bf16, points of two neighbouring channels become a word, or those of two neighbouring tiles, as the
    /// products that take the points have their inner dimension along the ones or the others.
    pub(super) fn run_on(self, isa: Isa, along_tiles: bool) {
        if !E::ROUNDED {
            E::run(isa, Pairs::<_, 1, 1>(self));
        } else if along_tiles {
            E::run(isa, Pairs::<_, 2, 1>(self));
        } else {
            E::run(isa, Pairs::<_, 1, 2>(self));
        }
    }
}

/// [`ToPoints`], of which so many tiles and vectors of channels make one vector of points.
struct Pairs<P, const TILES: usize, const VECTORS: usize>(P);

impl<
    M: Map<IN, POINTS>,
    E: Element,
    const IN: usize,
    const POINTS: usize,
    const TILES: usize,
    const VECTORS: usize,
> Kernel for Pairs<ToPoints<'_, M, E, IN, POINTS>, TILES, VECTORS>
{
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self(of) = self;
        let Tiling { width, channels, columns, step, .. } = of.tiling;
        assert!(of.layout.width.is_multiple_of(S::LANES));
        assert!(channels.div_ceil(VECTORS) <= of.layout.padded());
        let mut numbers = of.layout.numbers(&of.tiling, of.first, of.rows, TILES);
        assert!(of.layout.len() <= of.points.len());
        let below = step.wrapping_mul(width * channels);
        let ahead = below <= AHEAD;
        of.tiling.check(of.first, of.rows);
        let touched = of.tiling.touched(of.first, of.rows, IN);
        assert!(of.start <= touched.start && touched.end <= of.start + of.images.len());
        let images = of.images.as_ptr().wrapping_sub(of.start);
        let points = of.points.as_mut_ptr();
        // The points of one tile and one vector, before two of these become words.
        let mut held = [[[s.zero(); POINTS]; POINTS]; 2];
        let places = std::array::from_fn(|y| std::array::from_fn(|x| (y * POINTS + x) * S::LANES));
        // Of each kind the tile that waits for another one, and for the end if none comes.
        let mut waiting = [None; KINDS];
        let tiles = of.rows * columns;
        for at in 0..tiles + (TILES - 1) * KINDS {
            let next = (at < tiles).then(|| of.tiling.tile(of.first + at / columns, at % columns));
            let kind = next.map_or(at.wrapping_sub(tiles), |tile| usize::from(tile.kind));
            let here = match waiting[kind].take() {
                None if TILES > 1 => {
                    waiting[kind] = next;
                    continue;
                }
                None => [next, None],
                first => [first, next],
            };
            let inside = here.map(|tile| tile.map_or(INSIDE, |tile| tile.kind_inside(IN)));
            let number = numbers[kind];
            numbers[kind] += 1;
            for start in (0..channels).step_by(VECTORS * S::LANES) {
                let to = points.wrapping_add(of.layout.at(number, start / VECTORS));
                for which in 0..TILES * VECTORS {
                    let channel = start + which % VECTORS * S::LANES;
                    let tile = here[which % TILES].filter(|_| channel < channels);
                    let Some(tile) = tile else {
                        held[which] = [[s.zero(); POINTS]; POINTS];
                        continue;
                    };
                    let lanes = S::LANES.min(channels - channel);
                    let (to, offsets) = match TILES * VECTORS {
                        1 => (to, of.layout.offsets()),
                        _ => ((&raw mut held[which]).cast(), &places),
                    };
                    // SAFETY: a tile inside its image, and `load` otherwise, reads `lanes` channels from `channel`
                    // of pixels inside the images, which the slice was checked to hold as far as the tiles touch
                    // them; what is written is a vector of a row inside each matrix, for the layout is that of these
                    // tiles, and has such a row for each product that a tile of this kind and number takes, or of those
                    // that are held.
                    unsafe {
                        let from = images.wrapping_add(channel);
                        let full = lanes == S::LANES;
                        run!(
                            of.tile(s, tile, from, lanes, to, offsets),
                            inside[which % TILES],
                            full,
                            ahead
                        );
                    }
                }
                if TILES * VECTORS == 1 {
                    continue;
                }
                let offsets = of.layout.offsets();
                // SAFETY: as above.
                unsafe {
                    match kind as u8 {
                        WHOLE => words::<S, TILES, POINTS, WHOLE>(s, &held, to, offsets),
                        NARROW => words::<S, TILES, POINTS, NARROW>(s, &held, to, offsets),
                        LOW => words::<S, TILES, POINTS, LOW>(s, &held, to, offsets),
                        _ => words::<S, TILES, POINTS, SMALL>(s, &held, to, offsets),
                    }
                }
            }
        }
    }
}

/// Stores words of the points of two tiles of one kind, or of two vectors of channels of one tile. The simple form:
/// `[low[c], high[c]]` for each channel, or `[low[2c], low[2c + 1]]` and then those of `high`, both rounded.
///
/// # Safety
/// `to` is a vector at the offset of each product that the kind has.
#[inline(always)]
unsafe fn words<S: Simd, const TILES: usize, const POINTS: usize, const KIND: u8>(
    s: S,
    [low, high]: &[[[S::V; POINTS]; POINTS]; 2],
    to: *mut f32,
    offsets: &[[usize; POINTS]; POINTS],
) {
    for y in (0..POINTS).filter(|y| has_row(KIND, *y, POINTS)) {
        for x in (0..POINTS).filter(|x| has_column(KIND, *x, POINTS)) {
            let (a, b) = (low[y][x], high[y][x]);
            let v = if TILES == 1 { s.narrow(a, b) } else { s.pack(a, b) };
            // SAFETY: the caller's promise.
            unsafe { s.store_ptr(to.wrapping_add(offsets[y][x]), v) };
        }
    }
}

impl<M: Map<IN, POINTS>, E: Element, const IN: usize, const POINTS: usize>
    ToPoints<'_, M, E, IN, POINTS>
{
    /// Takes one vector of channels of one tile to the points. The simple form: `p = M d Mᵀ` of the tile's pixels `d`, zero
    /// outside of its image, for each channel. Columns and then rows are mapped in registers, and what a kind of tiles
    /// lacks is left out when this is compiled.
    ///
    /// # Safety
    /// `KIND` is that of the tile, `PARTIAL` if there are less channels than lanes, `AHEAD` to ask for the tile below;
    /// `from`, the channels' first of the first pixel of all images, reaches all pixels inside the image, `to` a vector at
    /// the offset of each product that the kind has.
    #[inline(always)]
    unsafe fn tile<S: Simd, const KIND: u8, const PARTIAL: bool, const AHEAD: bool>(
        &self,
        s: S,
        tile: Tile,
        from: *const E,
        lanes: usize,
        to: *mut f32,
        offsets: &[[usize; POINTS]; POINTS],
    ) {
        let Tiling { width, channels, step, .. } = self.tiling;
        let mut half = [[s.zero(); IN]; POINTS];
        for x in 0..IN {
            if !has_column(KIND, x, IN) {
                continue;
            }
            let mut column = [s.zero(); IN];
            if KIND == INSIDE || tile.column_inside(x) {
                for (y, v) in column.iter_mut().enumerate() {
                    if has_row(KIND, y, IN) && (KIND == INSIDE || tile.row_inside(y)) {
                        let from = from.wrapping_offset(tile.pixel(y, x) * channels as isize);
                        if AHEAD {
                            s.prefetch(
                                from.wrapping_add(step.wrapping_mul(width * channels)).cast(),
                            );
                        }
                        // SAFETY: the pixel lies inside the image, by the caller's promise or the two tests.
                        *v = unsafe { E::load::<S, PARTIAL>(s, from, lanes) };
                    }
                }
            }
            let mapped = M::apply(s, column);
            for y in 0..POINTS {
                half[y][x] = mapped[y];
            }
        }
        for (y, row) in half.into_iter().enumerate() {
            if has_row(KIND, y, POINTS) {
                let mapped = M::apply(s, row);
                for (x, v) in mapped.into_iter().enumerate() {
                    if has_column(KIND, x, POINTS) {
                        // SAFETY: the caller's promise.
                        unsafe { s.store_ptr(to.wrapping_add(offsets[y][x]), v) };
                    }
                }
            }
        }
    }
}

/// Points to tiles of images, laid out as in [`ToPoints`]; what falls outside an image is dropped.
///
/// `images` is what `rows` rows of tiles from row `first` cover and nothing else; of its channels, `channels` from
/// `channel` are written.
pub(super) struct FromPoints<'a, M, E, const POINTS: usize, const OUT: usize> {
    pub map: PhantomData<M>,
    pub layout: &'a Layout<POINTS>,
    pub points: &'a [f32],
    pub tiling: Tiling,
    pub first: usize,
    pub rows: usize,
    pub channel: usize,
    pub channels: usize,
    pub images: Target<'a, E>,
}

impl<M: Map<POINTS, OUT>, E: Element, const POINTS: usize, const OUT: usize> Kernel
    for FromPoints<'_, M, E, POINTS, OUT>
{
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Tiling { width, channels: pixel, columns, margin, step, .. } = self.tiling;
        let channels = self.channels;
        assert!(self.layout.width.is_multiple_of(S::LANES) && channels <= self.layout.padded());
        assert_eq!(margin, 0);
        assert!(self.channel + channels <= pixel);
        let mut numbers = self.layout.numbers(&self.tiling, self.first, self.rows, 1);
        assert!(self.layout.len() <= self.points.len());
        let below = step.wrapping_mul(width * pixel);
        let ahead = below <= AHEAD;
        self.tiling.check(self.first, self.rows);
        let covered = self.tiling.covered(self.first, self.rows);
        assert_eq!(covered.len(), self.images.len());
        let (images, add) = self.images.range(0..covered.len()).parts();
        let start = images.as_mut_ptr().wrapping_sub(covered.start);
        let points = self.points.as_ptr();
        for row in 0..self.rows {
            for column in 0..columns {
                let tile = self.tiling.tile(self.first + row, column);
                let kind = tile.kind_inside(OUT);
                let number = numbers[usize::from(tile.kind)];
                numbers[usize::from(tile.kind)] += 1;
                let mut channel = 0;
                while channel < channels {
                    let lanes = S::LANES.min(channels - channel);
                    // SAFETY: a vector of a row inside each matrix is read, as above, and `lanes` channels from `channel` are
                    // written of pixels inside both the tile and its image, all of them covered by `images`.
                    unsafe {
                        let from = points.wrapping_add(self.layout.at(number, channel));
                        let to = (start.wrapping_add(self.channel + channel), add);
                        run!(self.tile(s, tile, from, to, lanes), kind, lanes == S::LANES, ahead);
                    }
                    channel += S::LANES;
                }
            }
        }
    }
}

impl<M: Map<POINTS, OUT>, E: Element, const POINTS: usize, const OUT: usize>
    FromPoints<'_, M, E, POINTS, OUT>
{
    /// Takes one vector of channels of one tile from the points, and adds it if `add`. The simple form: `y = M p Mᵀ` of the
    /// points `p`, for each channel, as above.
    ///
    /// # Safety
    /// `KIND` is that of the tile, `PARTIAL` if there are less channels than lanes, `AHEAD` to ask for the tile below;
    /// `from` is a vector at the offset of each product that the kind has, `to`, the channels' first of the first pixel of
    /// all images, reaches all of the tile's pixels inside the image.
    #[inline(always)]
    unsafe fn tile<S: Simd, const KIND: u8, const PARTIAL: bool, const AHEAD: bool>(
        &self,
        s: S,
        tile: Tile,
        from: *const f32,
        (to, add): (*mut E, bool),
        lanes: usize,
    ) {
        let Tiling { width, channels, step, .. } = self.tiling;
        let mut half = [[s.zero(); POINTS]; OUT];
        for x in 0..POINTS {
            if !has_column(KIND, x, POINTS) {
                continue;
            }
            let mut column = [s.zero(); POINTS];
            for (y, v) in column.iter_mut().enumerate() {
                if has_row(KIND, y, POINTS) {
                    // SAFETY: the caller's promise.
                    *v = unsafe { s.load_ptr(from.wrapping_add(self.layout.offsets()[y][x])) };
                }
            }
            let mapped = M::apply(s, column);
            for y in 0..OUT {
                half[y][x] = mapped[y];
            }
        }
        for (y, row) in half.into_iter().enumerate() {
            if !has_row(KIND, y, OUT) || KIND != INSIDE && !tile.row_inside(y) {
                break;
            }
            let mapped = M::apply(s, row);
            for (x, v) in mapped.into_iter().enumerate() {
                if has_column(KIND, x, OUT) && (KIND == INSIDE || tile.column_inside(x)) {
                    let to = to.wrapping_offset(tile.pixel(y, x) * channels as isize);
                    if AHEAD {
                        s.prefetch(to.wrapping_add(step.wrapping_mul(width * channels)).cast());
                    }
                    // SAFETY: the pixel lies inside the image, by the caller's promise or the two tests.
                    unsafe {
                        let v = match add {
                            true => s.add(E::load::<S, PARTIAL>(s, to, lanes), v),
                            false => v,
                        };
                        E::store::<S, PARTIAL>(s, to, v, lanes);
                    }
                }
            }
        }
    }
}
