//! Tiles on images, and how the points of tiles lie in memory.
//!
//! Points of weights are [`TAPS`]² matrices `[channels, channels]`. Points of tiles are as many matrices
//! `[products · tiles, channels]`: the products that take the same point of the weights lie in one matrix. The channels
//! may be divided into blocks, and then all matrices of one block lie before those of the next one, see [`Layout`].
//!
//! Rows and columns of tiles at an image's end may be short, so that maps of 14 pixels a side cost 22 products and not 24.
//! A short tile takes part in fewer products, and has no row in their matrices: [`Kinds`].

use std::ops::Range;

use super::algorithm::{TAPS, short};
use crate::kernels::counts;

/// Elements by which two matrices lie further apart than they are long: one cache line, so that the same element of
/// all of them does not fall into one set of the cache.
const GAP: usize = 16;

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

    /// The channels, padded with zeros to whole vectors.
    #[inline(always)]
    pub(super) fn padded(&self) -> usize {
        self.padded
    }

    /// Where each product's row of tile 0 would be in a block: see the field.
    #[inline(always)]
    pub(super) fn offsets(&self) -> &[[usize; POINTS]; POINTS] {
        &self.offsets
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
    pub(super) fn numbers(
        &self,
        tiling: &Tiling,
        first: usize,
        rows: usize,
        group: usize,
    ) -> [usize; KINDS] {
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
pub(super) const NARROW: u8 = 0;
pub(super) const WHOLE: u8 = 1;
pub(super) const LOW: u8 = 2;
pub(super) const SMALL: u8 = 3;
pub(super) const INSIDE: u8 = 4;

/// Kinds that tiles are counted by.
pub(super) const KINDS: usize = 4;

/// Whether a tile of a kind has row `i` of the `count` that a whole one has: of its pixels, or its products.
pub(super) const fn has_row(kind: u8, i: usize, count: usize) -> bool {
    i < short(count) || !matches!(kind, LOW | SMALL)
}

/// The same of columns.
pub(super) const fn has_column(kind: u8, i: usize, count: usize) -> bool {
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
    pub(super) fn check(&self, first: usize, rows: usize) {
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
    pub(super) fn tile(&self, row: usize, column: usize) -> Tile {
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

/// One tile: where it lies on its image.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub kind: u8,
    top: isize,
    left: isize,
    height: isize,
    width: isize,
    /// The pixel of its first element, counted through all images; meaningless if that lies outside.
    first: isize,
}

impl Tile {
    #[inline(always)]
    pub(super) fn row_inside(&self, y: usize) -> bool {
        (0..self.height).contains(&(self.top + y as isize))
    }

    #[inline(always)]
    pub(super) fn column_inside(&self, x: usize) -> bool {
        (0..self.width).contains(&(self.left + x as isize))
    }

    /// Its kind, or [`INSIDE`] if a whole one has `size` rows.
    #[inline(always)]
    pub(super) fn kind_inside(&self, size: usize) -> u8 {
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
    pub(super) fn pixel(&self, y: usize, x: usize) -> isize {
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
