//! The two-dimensional transforms between images or weights and points: a one-dimensional [`Map`] over columns, then
//! over rows.
//!
//! Points are matrices, one for each of the `POINTS²` products per tile: `[tiles, channels]` of images,
//! `[channels, channels]` of weights. The matrices lie a whole cache line further apart than they are long, so that
//! the same element of all of them does not fall into one set of the cache.

use std::marker::PhantomData;

use super::algorithm::Map;
use crate::kernels::gemm::panel;
use crate::kernels::memory::Out;
use crate::kernels::simd::{Kernel, Simd};

/// Elements by which the matrices of two points lie further apart than they are long.
const GAP: usize = 16;

/// Elements from the matrix of one point to the next one's, for matrices of `len`.
pub(super) const fn stride(len: usize) -> usize {
    len.next_multiple_of(GAP) + GAP
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
    pub step: usize,
    pub margin: usize,
}

impl Tiling {
    /// The tile at `column` of the row of tiles `row`, counted through all images.
    #[inline(always)]
    fn tile(&self, row: usize, column: usize) -> Tile {
        let (image, row) = (row / self.rows, row % self.rows);
        let top = (row * self.step) as isize - self.margin as isize;
        let left = (column * self.step) as isize - self.margin as isize;
        let first = ((image * self.height) as isize + top) * self.width as isize + left;
        Tile { top, left, height: self.height as isize, width: self.width as isize, first }
    }
}

/// One tile: where it lies on its image.
#[derive(Clone, Copy)]
struct Tile {
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

    #[inline(always)]
    fn inside(&self, size: usize) -> bool {
        let last = size - 1;
        self.row_inside(0)
            && self.column_inside(0)
            && self.row_inside(last)
            && self.column_inside(last)
    }

    /// The pixel at row `y` and column `x` of the tile, counted through all images.
    #[inline(always)]
    fn pixel(&self, y: usize, x: usize) -> isize {
        self.first + y as isize * self.width + x as isize
    }
}

/// Tiles of images to points: for `rows` rows of tiles from row `first`, counted through all images.
///
/// Matrix `p` starts at `p * stride`; its rows, one per tile, hold the channels padded with zeros to `padded`, whole
/// vectors.
pub(super) struct ToPoints<'a, M, const IN: usize, const POINTS: usize> {
    pub map: PhantomData<M>,
    pub images: &'a [f32],
    pub tiling: Tiling,
    pub first: usize,
    pub rows: usize,
    pub points: &'a mut [f32],
    pub padded: usize,
    pub stride: usize,
}

impl<M: Map<IN, POINTS>, const IN: usize, const POINTS: usize> Kernel
    for ToPoints<'_, M, IN, POINTS>
{
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Tiling { height, width, channels, rows, columns, .. } = self.tiling;
        assert!(self.padded % S::LANES == 0 && channels <= self.padded);
        assert!(self.rows * columns * self.padded <= self.stride);
        assert!(POINTS * POINTS * self.stride <= self.points.len());
        let images = (self.first + self.rows).div_ceil(rows);
        assert!(images * height * width * channels <= self.images.len());
        for row in 0..self.rows {
            for column in 0..columns {
                let tile = self.tiling.tile(self.first + row, column);
                let inside = tile.inside(IN);
                let to = (row * columns + column) * self.padded;
                let mut channel = 0;
                while channel < channels {
                    let lanes = S::LANES.min(channels - channel);
                    // SAFETY: a tile inside its image, and `load` otherwise, reads `lanes` channels from `channel`
                    // of pixels inside the images that the slice was checked to hold; what is written is a vector
                    // of a row inside each matrix.
                    unsafe {
                        let map = To::<S, M, IN, POINTS> {
                            s,
                            map: PhantomData,
                            tile,
                            from: self.images.as_ptr().wrapping_add(channel),
                            channels,
                            lanes,
                            to: self.points.as_mut_ptr().add(to + channel),
                            stride: self.stride,
                        };
                        match (inside, lanes == S::LANES) {
                            (true, true) => map.run::<true, false>(),
                            (true, false) => map.run::<true, true>(),
                            (false, true) => map.run::<false, false>(),
                            (false, false) => map.run::<false, true>(),
                        }
                    }
                    channel += S::LANES;
                }
            }
        }
    }
}

/// One vector of channels of one tile, on its way to the points.
struct To<S, M, const IN: usize, const POINTS: usize> {
    s: S,
    map: PhantomData<M>,
    tile: Tile,
    /// The channels' first, of the first pixel of all images.
    from: *const f32,
    channels: usize,
    lanes: usize,
    to: *mut f32,
    stride: usize,
}

impl<S: Simd, M: Map<IN, POINTS>, const IN: usize, const POINTS: usize> To<S, M, IN, POINTS> {
    /// # Safety
    /// `INSIDE` only if the whole tile lies inside its image, `PARTIAL` if there are less channels than lanes; `from`
    /// reaches all pixels inside the image, `to` a vector in each of `POINTS²` matrices.
    #[inline(always)]
    unsafe fn run<const INSIDE: bool, const PARTIAL: bool>(self) {
        let s = self.s;
        let mut half = [[s.zero(); IN]; POINTS];
        for x in 0..IN {
            let mut column = [s.zero(); IN];
            if INSIDE || self.tile.column_inside(x) {
                for (y, v) in column.iter_mut().enumerate() {
                    if INSIDE || self.tile.row_inside(y) {
                        let from = self
                            .from
                            .wrapping_offset(self.tile.pixel(y, x) * self.channels as isize);
                        // SAFETY: the pixel lies inside the image, by the caller's promise or the two tests.
                        *v = unsafe {
                            if PARTIAL {
                                s.load_ptr_first(from, self.lanes)
                            } else {
                                s.load_ptr(from)
                            }
                        };
                    }
                }
            }
            let mapped = M::apply(s, column);
            for y in 0..POINTS {
                half[y][x] = mapped[y];
            }
        }
        for (y, row) in half.into_iter().enumerate() {
            let mapped = M::apply(s, row);
            for (x, v) in mapped.into_iter().enumerate() {
                // SAFETY: the caller's promise, for matrix y * POINTS + x.
                unsafe { s.store_ptr(self.to.add((y * POINTS + x) * self.stride), v) };
            }
        }
    }
}

/// Points to tiles of images, laid out as in [`ToPoints`]; what falls outside an image is dropped.
///
/// `images` is what `rows` rows of tiles from row `first` cover and nothing else.
pub(super) struct FromPoints<'a, M, const POINTS: usize, const OUT: usize> {
    pub map: PhantomData<M>,
    pub points: &'a [f32],
    pub padded: usize,
    pub stride: usize,
    pub tiling: Tiling,
    pub first: usize,
    pub rows: usize,
    pub images: Out<'a>,
}

impl<M: Map<POINTS, OUT>, const POINTS: usize, const OUT: usize> Kernel
    for FromPoints<'_, M, POINTS, OUT>
{
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Tiling { channels, columns, margin, .. } = self.tiling;
        assert!(self.padded % S::LANES == 0 && channels <= self.padded && margin == 0);
        assert!(self.rows * columns * self.padded <= self.stride);
        assert!(POINTS * POINTS * self.stride <= self.points.len());
        let covered = self.tiling.covered(self.first, self.rows);
        assert_eq!(covered.len(), self.images.len());
        let start = self.images.as_mut_ptr().wrapping_sub(covered.start);
        for row in 0..self.rows {
            for column in 0..columns {
                let tile = self.tiling.tile(self.first + row, column);
                let inside = tile.inside(OUT);
                let from = (row * columns + column) * self.padded;
                let mut channel = 0;
                while channel < channels {
                    let lanes = S::LANES.min(channels - channel);
                    // SAFETY: a vector of a row inside each matrix is read, and `lanes` channels from `channel` are
                    // written of pixels inside both the tile and its image, all of them covered by `images`.
                    unsafe {
                        let map = From::<S, M, POINTS, OUT> {
                            s,
                            map: PhantomData,
                            from: self.points.as_ptr().add(from + channel),
                            stride: self.stride,
                            tile,
                            to: start.wrapping_add(channel),
                            channels,
                            lanes,
                        };
                        match (inside, lanes == S::LANES) {
                            (true, true) => map.run::<true, false>(),
                            (true, false) => map.run::<true, true>(),
                            (false, true) => map.run::<false, false>(),
                            (false, false) => map.run::<false, true>(),
                        }
                    }
                    channel += S::LANES;
                }
            }
        }
    }
}

/// One vector of channels of one tile, on its way from the points.
struct From<S, M, const POINTS: usize, const OUT: usize> {
    s: S,
    map: PhantomData<M>,
    from: *const f32,
    stride: usize,
    tile: Tile,
    /// The channels' first, of the first pixel of all images.
    to: *mut f32,
    channels: usize,
    lanes: usize,
}

impl<S: Simd, M: Map<POINTS, OUT>, const POINTS: usize, const OUT: usize> From<S, M, POINTS, OUT> {
    /// # Safety
    /// `INSIDE` only if the whole tile lies inside its image, `PARTIAL` if there are less channels than lanes; `from`
    /// is a vector in each of `POINTS²` matrices, `to` reaches all of the tile's pixels inside the image.
    #[inline(always)]
    unsafe fn run<const INSIDE: bool, const PARTIAL: bool>(self) {
        let s = self.s;
        let mut half = [[s.zero(); POINTS]; OUT];
        for x in 0..POINTS {
            let mut column = [s.zero(); POINTS];
            for (y, v) in column.iter_mut().enumerate() {
                // SAFETY: the caller's promise, for matrix y * POINTS + x.
                *v = unsafe { s.load_ptr(self.from.add((y * POINTS + x) * self.stride)) };
            }
            let mapped = M::apply(s, column);
            for y in 0..OUT {
                half[y][x] = mapped[y];
            }
        }
        for (y, row) in half.into_iter().enumerate() {
            if !INSIDE && !self.tile.row_inside(y) {
                break;
            }
            let mapped = M::apply(s, row);
            for (x, v) in mapped.into_iter().enumerate() {
                if INSIDE || self.tile.column_inside(x) {
                    let to =
                        self.to.wrapping_offset(self.tile.pixel(y, x) * self.channels as isize);
                    // SAFETY: the pixel lies inside the image, by the caller's promise or the two tests.
                    unsafe {
                        if PARTIAL {
                            s.store_ptr_first(to, v, self.lanes)
                        } else {
                            s.store_ptr(to, v)
                        }
                    }
                }
            }
        }
    }
}

impl Tiling {
    /// The elements that `rows` rows of tiles from row `first`, each `step` high, cover.
    pub(super) fn covered(&self, first: usize, rows: usize) -> std::ops::Range<usize> {
        let line = |row: usize| {
            let (image, row) = (row / self.rows, row % self.rows);
            (image * self.height + (row * self.step).min(self.height)) * self.width * self.channels
        };
        line(first)..line(first + rows)
    }
}

/// How weights `[out, in, 3, 3]` are read as a matrix `[depth, columns]` of 3×3 taps.
#[derive(Clone, Copy)]
pub(super) enum Side {
    /// Columns are the outputs: the forward pass.
    Forward,
    /// Columns are the inputs and the taps reversed: the input gradient.
    Reversed,
}

/// Weights to points: matrix `p` starts at `p * stride` and lies in panels, as
/// [`Right::Panels`](crate::kernels::gemm::Right::Panels) has it, its columns padded with zeros to whole vectors.
pub(super) struct WeightToPoints<'a, M, const POINTS: usize> {
    pub map: PhantomData<M>,
    pub weight: &'a [f32],
    pub inputs: usize,
    pub outputs: usize,
    pub side: Side,
    pub points: &'a mut [f32],
    pub stride: usize,
}

impl<M: Map<3, POINTS>, const POINTS: usize> Kernel for WeightToPoints<'_, M, POINTS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (inputs, outputs) = (self.inputs, self.outputs);
        let (depth, columns, along_depth, along_columns) = match self.side {
            Side::Forward => (inputs, outputs, 9, inputs * 9),
            Side::Reversed => (outputs, inputs, inputs * 9, 9),
        };
        let padded = columns.next_multiple_of(S::LANES);
        assert_eq!(self.weight.len(), inputs * outputs * 9);
        assert!(depth * padded <= self.stride);
        assert!(POINTS * POINTS * self.stride <= self.points.len());
        let mut column = 0;
        while column < columns {
            let in_panel = column % panel(S::LANES);
            let start = column - in_panel;
            let width = panel(S::LANES).min(padded - start);
            let lanes = S::LANES.min(columns - column);
            for k in 0..depth {
                let mut taps = [[0.0; 16]; 9];
                let from = k * along_depth + column * along_columns;
                for lane in 0..lanes {
                    let from = from + lane * along_columns;
                    for (tap, w) in self.weight[from..from + 9].iter().enumerate() {
                        match self.side {
                            Side::Forward => taps[tap][lane] = *w,
                            Side::Reversed => taps[8 - tap][lane] = *w,
                        }
                    }
                }
                let mut half = [[s.zero(); 3]; POINTS];
                for x in 0..3 {
                    let mapped =
                        M::apply(s, [s.load(&taps[x]), s.load(&taps[3 + x]), s.load(&taps[6 + x])]);
                    for y in 0..POINTS {
                        half[y][x] = mapped[y];
                    }
                }
                let to = start * depth + k * width + in_panel;
                for (y, row) in half.into_iter().enumerate() {
                    for (x, v) in M::apply(s, row).into_iter().enumerate() {
                        // SAFETY: row `k` of a panel `width` wide that starts `start` columns in: inside a matrix of
                        // `depth` × `padded`, which was checked to lie inside the points.
                        unsafe {
                            let matrix =
                                self.points.as_mut_ptr().add((y * POINTS + x) * self.stride);
                            s.store_ptr(matrix.add(to), v);
                        }
                    }
                }
            }
            column += S::LANES;
        }
    }
}

/// Points `[outputs, inputs padded to whole vectors]` to the gradient of weights `[outputs, inputs, 3, 3]`.
pub(super) struct PointsToWeight<'a, M, const POINTS: usize> {
    pub map: PhantomData<M>,
    pub points: &'a [f32],
    pub stride: usize,
    pub inputs: usize,
    pub outputs: usize,
    pub weight: Out<'a>,
}

impl<M: Map<POINTS, 3>, const POINTS: usize> Kernel for PointsToWeight<'_, M, POINTS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let padded = self.inputs.next_multiple_of(S::LANES);
        assert_eq!(self.weight.len(), self.inputs * self.outputs * 9);
        let last = (POINTS * POINTS - 1) * self.stride;
        assert!(last + self.outputs * padded <= self.points.len());
        for output in 0..self.outputs {
            let mut input = 0;
            while input < self.inputs {
                let mut half = [[s.zero(); POINTS]; 3];
                for x in 0..POINTS {
                    let mut column = [s.zero(); POINTS];
                    for (y, v) in column.iter_mut().enumerate() {
                        // SAFETY: a vector of a row inside the matrix, which was checked to lie inside the points.
                        *v = unsafe {
                            let matrix = self.points.as_ptr().add((y * POINTS + x) * self.stride);
                            s.load_ptr(matrix.add(output * padded + input))
                        };
                    }
                    let mapped = M::apply(s, column);
                    for y in 0..3 {
                        half[y][x] = mapped[y];
                    }
                }
                let mut taps = [[0.0; 16]; 9];
                for (y, row) in half.into_iter().enumerate() {
                    for (x, v) in M::apply(s, row).into_iter().enumerate() {
                        s.store(&mut taps[y * 3 + x], v);
                    }
                }
                let lanes = S::LANES.min(self.inputs - input);
                let mut block = [0.0; 16 * 9];
                for lane in 0..lanes {
                    for tap in 0..9 {
                        block[lane * 9 + tap] = taps[tap][lane];
                    }
                }
                let start = (output * self.inputs + input) * 9;
                self.weight.range(start..start + lanes * 9).copy_from(&block[..lanes * 9]);
                input += S::LANES;
            }
        }
    }
}
