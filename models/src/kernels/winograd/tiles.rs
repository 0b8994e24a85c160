//! The two-dimensional transforms between images and points: a one-dimensional [`Map`] over columns, then
//! over rows.
//!
//! Points of weights are [`TAPS`]² matrices `[channels, channels]`. Points of tiles are as many matrices
//! `[products · tiles, channels]`: the products that take the same point of the weights lie in one matrix. The channels
//! may be divided into blocks, and then all matrices of one block lie before those of the next one, see [`Layout`].
//!
//! Rows and columns of tiles at an image's end may be short, so that maps of 14 pixels a side cost 22 products and not 24.
//! A short tile takes part in fewer products, and has no row in their matrices: [`Kinds`]. In bf16 two tiles of one kind
//! share a row of words, where the products' inner dimension runs along the tiles.

use std::marker::PhantomData;
use std::ops::Range;

use super::algorithm::{Map, TAPS, short};
use crate::kernels::counts;
use crate::kernels::element::Element;
use crate::kernels::memory::Target;
use crate::kernels::simd::{Isa, Kernel, Simd};
use crate::kernels::values::Values;

/// Elements by which two matrices lie further apart than they are long: one cache line, so that the same element of
/// all of them does not fall into one set of the cache.
const GAP: usize = 16;

/// Elements of a row of tiles at most, if they are asked for while those of the row above are read: more would drive
/// each other out of the first-level cache.
const AHEAD: usize = 4 << 10;

/// Bytes of points that one chunk of tiles may fill while they stay in the second-level cache.
const CHUNK_BYTES: usize = 512 << 10;

/// Tiles in a chunk at least when its weights do not fit beside it, so that each weight read is used often enough; with
/// stride 2, whose weights are used more often for each tile, and whose tiles have more points.
const WIDE_TILES: usize = 64;
const WIDE_STRIDED_TILES: usize = 16;

/// So many tiles are one chunk then, and each weight is read once.
const FEW_TILES: usize = 128;

/// Bytes of weights' points that stay in the second-level cache beside a chunk.
const NARROW_BYTES: usize = 640 << 10;

/// Columns and rows of the weights' points, or of their gradient's, that one chunk alone makes and uses: they stay in the
/// second-level cache meanwhile, which all of them would not. Multiples of any vector's lanes.
pub(super) const SMALL_BLOCK: (usize, usize) = (64, 64);

/// Matrices of the points of weights.
pub(super) const MATRICES: usize = TAPS * TAPS;

/// Elements from one matrix of weights to the next one, for matrices of `len`.
pub(super) const fn stride(len: usize) -> usize {
    len.next_multiple_of(GAP) + GAP
}

/// Where the points of some tiles lie.
#[derive(Clone)]
pub(super) struct Layout<const POINTS: usize> {
    tiles: Kinds,
    /// The channels, padded with zeros to whole vectors.
    padded: usize,
    /// The channels of one block.
    pub width: usize,
    /// Elements from one block of channels to the next one.
    pub block: usize,
    /// Where each product's row of tile 0 would be in a block, by its numbers in the two dimensions, even if that tile does
    /// not have it: then perhaps before the block, and the number has wrapped.
    offsets: [[usize; POINTS]; POINTS],
    matrices: [Matrix; MATRICES],
}

/// The products that one matrix of the weights takes part in.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    /// Its first element.
    pub start: usize,
    /// Its rows: the tiles of all its products.
    pub rows: usize,
}

impl<const POINTS: usize> Layout<POINTS> {
    /// The layout of `tiles` of `channels` in blocks of `width`, or in one block if these are more, for vectors of
    /// `lanes`; `taps` names the point of the weights that each product takes, in one dimension.
    pub(super) fn new(
        taps: &[usize; POINTS],
        tiles: Kinds,
        channels: usize,
        width: usize,
        lanes: usize,
    ) -> Self {
        let channels = counts::product([channels]);
        let padded = channels.next_multiple_of(lanes);
        let width = width.min(padded);
        // More than all matrices have together with the gaps between them: no number of one of their elements wraps.
        let each = POINTS * POINTS + 2 * GAP * MATRICES;
        counts::product([padded.div_ceil(width), width, tiles.count().max(1), each]);
        let mut offsets = [[0; POINTS]; POINTS];
        let mut matrices = [Matrix { start: 0, rows: 0 }; MATRICES];
        let mut block = 0;
        for (matrix, slot) in matrices.iter_mut().enumerate() {
            slot.start = block;
            let takes = |point: usize, tap: usize| taps[point] == tap;
            for y in (0..POINTS).filter(|y| takes(*y, matrix / TAPS)) {
                for x in (0..POINTS).filter(|x| takes(*x, matrix % TAPS)) {
                    let numbers = tiles.with(y >= short(POINTS), x >= short(POINTS));
                    let first = slot.start + slot.rows * width;
                    offsets[y][x] = first.wrapping_sub(numbers.start * width);
                    slot.rows += numbers.len();
                }
            }
            block += stride(slot.rows * width);
        }
        Self { tiles, padded, width, block, offsets, matrices }
    }

    /// Elements of all matrices.
    pub(super) fn len(&self) -> usize {
        self.padded.div_ceil(self.width) * self.block
    }

    /// The vector of a tile's channels from `channel` on, before the offset of a product is added.
    #[inline(always)]
    pub(super) fn at(&self, tile: usize, channel: usize) -> usize {
        channel / self.width * self.block + tile * self.width + channel % self.width
    }

    /// The first number of each kind of tiles, or of groups of `group` of one kind, if these are the tiles of `rows` rows
    /// of `tiling` from row `first`.
    ///
    /// # Panics
    /// When they are not.
    #[inline(always)]
    fn numbers(&self, tiling: &Tiling, first: usize, rows: usize, group: usize) -> [usize; KINDS] {
        assert_eq!(self.tiles, tiling.kinds(first, rows).in_groups(|tiles| tiles.div_ceil(group)));
        self.tiles.firsts()
    }

    /// The matrices, in the order of those of the weights.
    pub(super) fn matrices(&self) -> impl Iterator<Item = Matrix> {
        self.matrices.into_iter()
    }

    /// The matrix of number `i`.
    pub(super) fn matrix(&self, i: usize) -> Matrix {
        self.matrices[i]
    }
}

/// Kinds of tiles, where a function is compiled for one of them: short in width; whole; short in height; short in both;
/// and whole tiles of which all lies inside an image.
const NARROW: u8 = 0;
const WHOLE: u8 = 1;
const LOW: u8 = 2;
const SMALL: u8 = 3;
const INSIDE: u8 = 4;

/// Kinds that tiles are counted by.
const KINDS: usize = 4;

/// Whether a tile of a kind has row `i` of the `count` that a whole one has: of its pixels, or its products.
const fn has_row(kind: u8, i: usize, count: usize) -> bool {
    i < short(count) || !matches!(kind, LOW | SMALL)
}

/// The same of columns.
const fn has_column(kind: u8, i: usize, count: usize) -> bool {
    i < short(count) || !matches!(kind, NARROW | SMALL)
}

/// How many tiles there are of each kind. They are numbered in the order of the kinds, for then those that have a product
/// follow each other, whichever it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Kinds([usize; KINDS]);

impl Kinds {
    fn count(self) -> usize {
        self.0.iter().sum()
    }

    /// How many groups of tiles of one kind there are, if `groups` is how many so many tiles make.
    pub(super) fn in_groups(self, groups: impl Fn(usize) -> usize) -> Self {
        Self(self.0.map(groups))
    }

    /// The first number of each kind.
    fn firsts(self) -> [usize; KINDS] {
        let Self([a, b, c, _]) = self;
        [0, a, a + b, a + b + c]
    }

    /// The numbers of the tiles with a product that those lack that are short in height, or in width.
    fn with(self, tall: bool, wide: bool) -> Range<usize> {
        let Self([a, b, c, d]) = self;
        let end = a + b + if tall { 0 } else { c + if wide { 0 } else { d } };
        if wide { a..end } else { 0..end }
    }
}

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

/// Square tiles laid over images `[batch, height, width, channels]`, `step` apart in both directions and starting
/// `margin` above and left of each image.
#[derive(Clone, Copy)]
pub(super) struct Tiling {
    pub height: usize,
    pub width: usize,
    pub channels: usize,
    /// Rows of tiles on one image.
    pub rows: usize,
    /// Tiles in one row.
    pub columns: usize,
    /// Rows of tiles, and tiles in a row, that are whole. Those behind are short: a quarter of `step` is missing.
    pub whole: [usize; 2],
    pub step: usize,
    pub margin: usize,
}

impl Tiling {
    /// Panics unless the elements of all images up to the last of some rows of tiles can be counted: then no number of
    /// one wraps.
    #[inline(always)]
    fn check(&self, first: usize, rows: usize) {
        let images = first.saturating_add(rows).div_ceil(self.rows);
        counts::product([images, self.height, self.width, self.channels]);
        counts::product([images, self.rows, self.step]);
        counts::product([self.columns, self.step]);
    }

    /// How many tiles cover so many pixels, `step` each, and how many of them are whole: no more than have to be.
    pub(super) fn over(pixels: usize, step: usize) -> (usize, usize) {
        let tiles = pixels.div_ceil(step);
        (tiles, tiles.saturating_sub((tiles * step - pixels) / (step / 4)))
    }

    /// How many tiles of each kind there are in `rows` rows from row `first`.
    pub(super) fn kinds(&self, first: usize, rows: usize) -> Kinds {
        counts::product([rows, self.columns]);
        let whole = (first..first + rows).filter(|row| row % self.rows < self.whole[0]).count();
        let (columns, narrow) = (self.whole[1], self.columns - self.whole[1]);
        let low = rows - whole;
        Kinds([whole * narrow, whole * columns, low * columns, low * narrow])
    }

    /// Where on its image a row of tiles begins, counted through all images.
    #[inline(always)]
    pub(super) fn top(&self, row: usize) -> usize {
        self.start(row % self.rows, self.whole[0])
    }

    /// Where a row of an image's tiles begins of which so many are whole, or a column.
    #[inline(always)]
    fn start(&self, row: usize, whole: usize) -> usize {
        row * self.step - row.saturating_sub(whole) * (self.step / 4)
    }

    /// The tile at `column` of the row of tiles `row`, counted through all images.
    #[inline(always)]
    fn tile(&self, row: usize, column: usize) -> Tile {
        let (image, row) = (row / self.rows, row % self.rows);
        let [rows, columns] = self.whole;
        let top = self.start(row, rows) as isize - self.margin as isize;
        let left = self.start(column, columns) as isize - self.margin as isize;
        let first = ((image * self.height) as isize + top) * self.width as isize + left;
        let (height, width) = (self.height as isize, self.width as isize);
        let kind = match (row < rows, column < columns) {
            (true, true) => WHOLE,
            (true, false) => NARROW,
            (false, true) => LOW,
            (false, false) => SMALL,
        };
        Tile { kind, top, left, height, width, first }
    }
}

/// One tile: where it lies on its image.
#[derive(Clone, Copy)]
struct Tile {
    kind: u8,
    top: isize,
    left: isize,
    height: isize,
    width: isize,
    /// The pixel of its first element, counted through all images; meaningless if that lies outside.
    first: isize,
}

impl Tile {
    #[inline(always)]
    fn row_inside(&self, y: usize) -> bool {
        (0..self.height).contains(&(self.top + y as isize))
    }

    #[inline(always)]
    fn column_inside(&self, x: usize) -> bool {
        (0..self.width).contains(&(self.left + x as isize))
    }

    /// Its kind, or [`INSIDE`] if a whole one has `size` rows.
    #[inline(always)]
    fn kind_inside(&self, size: usize) -> u8 {
        let last = size - 1;
        let inside = self.kind == WHOLE
            && self.row_inside(0)
            && self.column_inside(0)
            && self.row_inside(last)
            && self.column_inside(last);
        if inside { INSIDE } else { self.kind }
    }

    /// The pixel at row `y` and column `x` of the tile, counted through all images.
    #[inline(always)]
    fn pixel(&self, y: usize, x: usize) -> isize {
        self.first + y as isize * self.width + x as isize
    }
}

/// Rows of tiles in one chunk, of `total` rows, for so many tiles in a row, products per tile, and channels on the two
/// sides.
pub(super) fn chunk_rows(
    total: usize,
    columns: usize,
    products: usize,
    from: usize,
    to: usize,
) -> usize {
    let mut tiles = CHUNK_BYTES / (4 * products * (from + to));
    if 4 * MATRICES * from * to > NARROW_BYTES {
        tiles = match total * columns {
            ..=FEW_TILES => return total,
            _ if products > MATRICES => tiles.max(WIDE_STRIDED_TILES),
            _ => tiles.max(WIDE_TILES),
        };
    }
    (tiles / columns).clamp(1, total)
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
        assert!(channels.div_ceil(VECTORS) <= of.layout.padded);
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
                        1 => (to, &of.layout.offsets),
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
                let offsets = &of.layout.offsets;
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
        assert!(self.layout.width.is_multiple_of(S::LANES) && channels <= self.layout.padded);
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
                    *v = unsafe { s.load_ptr(from.wrapping_add(self.layout.offsets[y][x])) };
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

impl Tiling {
    /// The elements that the tiles of `rows` rows from row `first`, of which whole ones are `size` high, may have inside
    /// their images, and those between.
    pub(super) fn touched(&self, first: usize, rows: usize, size: usize) -> Range<usize> {
        let line = |row: usize, below: usize| {
            let y = (self.top(row) + below).saturating_sub(self.margin).min(self.height);
            (row / self.rows * self.height + y) * self.width * self.channels
        };
        let last = first + rows - 1;
        let whole = last % self.rows < self.whole[0];
        line(first, 0)..line(last, if whole { size } else { short(size) })
    }

    /// The elements that `rows` rows of tiles from row `first` cover.
    pub(super) fn covered(&self, first: usize, rows: usize) -> Range<usize> {
        let line = |row: usize| {
            let y = self.top(row).min(self.height);
            (row / self.rows * self.height + y) * self.width * self.channels
        };
        line(first)..line(first + rows)
    }
}
