//! One-row hashed tables of means: one table for each cluster, one cell for each element.

use std::ops::Range;

use super::clusters::{MOST_CLUSTERS, Members};
use super::places::{BLOCK, LANES, among, places_of};
use crate::simd::wide;
use crate::wire::{Fault, Format, Read, Reader, put_count};

const BASE: u32 = 131;

/// The signed byte as the hash takes it.
const fn byte(index: u32) -> u32 {
    index as u8 as i8 as i32 as u32
}

/// The BKDR hash, base 131, of an index's four signed bytes, the lowest first, without its sign.
fn hash(index: u32) -> u32 {
    let bytes = (0..4).map(|place| byte(index >> (8 * place)));
    bytes.fold(0u32, |hash, byte| hash.wrapping_mul(BASE).wrapping_add(byte)) & 0x7fff_ffff
}

/// The hash of the index that lies `at` behind a multiple of [`BLOCK`], whose own hash is `of_block`.
///
/// The hash is a sum over the index's bytes. Of a multiple of [`BLOCK`] the lowest byte is 0, and as
/// `at` is smaller than [`BLOCK`], it adds at most 3 to the second, which changes no sign.
#[inline(always)]
fn hash_within(of_block: u32, at: u32) -> u32 {
    const SECOND: u32 = BASE * BASE;
    let (lowest, second) = (byte(at).wrapping_mul(BASE * SECOND), (at >> 8).wrapping_mul(SECOND));
    of_block.wrapping_add(lowest).wrapping_add(second) & 0x7fff_ffff
}

/// Where a cluster's table lies among the cells, and how a hash becomes one of them.
#[derive(Debug, Clone, Copy, Default)]
struct Table {
    /// ⌈2⁶⁴/size⌉, modulo 2⁶⁴.
    inverse: u64,
    size: u32,
    offset: u32,
}

impl Table {
    fn new(size: u32, offset: u32) -> Self {
        Self { inverse: (u64::MAX / u64::from(size.max(1))).wrapping_add(1), size, offset }
    }

    /// The cell of a hash: its remainder by the size, without a division (Lemire, Kaser & Kurz
    /// 2019, exact for 32-bit numbers).
    ///
    /// It is the upper half of (`inverse`·hash mod 2⁶⁴)·size. Vectors multiply 32 by 32 bits, and so
    /// both products are made of such.
    #[inline(always)]
    fn cell(&self, hash: u32) -> u32 {
        const LOW: u64 = u32::MAX as u64;
        let (hash, size) = (u64::from(hash), u64::from(self.size));
        let (low, high) = (self.inverse & LOW, self.inverse >> 32);
        let fraction = (low * hash).wrapping_add((high * hash) << 32);
        let carried = ((fraction & LOW) * size) >> 32;
        let remainder = ((fraction >> 32) * size + carried) >> 32;
        self.offset + remainder as u32
    }
}

/// The tables of all clusters, end to end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tables {
    tables: [Table; MOST_CLUSTERS],
    cells: usize,
    /// The clusters with several cells, and behind them others.
    hashed: [u8; MOST_CLUSTERS],
    /// How many have.
    hashed_count: usize,
}

impl Tables {
    /// Tables of these sizes, each at least 1, together less than 2³².
    pub(super) fn new(sizes: &[u32]) -> Self {
        let mut tables = [Table::new(1, 0); MOST_CLUSTERS];
        let (mut cells, mut hashed, mut hashed_count) = (0usize, [0; MOST_CLUSTERS], 0);
        for (cluster, (table, size)) in tables.iter_mut().zip(sizes).enumerate() {
            *table = Table::new(*size, cells as u32);
            cells += *size as usize;
            if *size > 1 {
                hashed[hashed_count] = cluster as u8;
                hashed_count += 1;
            }
        }
        Self { tables, cells, hashed, hashed_count }
    }

    /// The clusters with several cells, ascending.
    pub(super) fn hashed(&self) -> &[u8] {
        &self.hashed[..self.hashed_count]
    }

    /// Cells of all tables.
    pub(super) fn cells(&self) -> usize {
        self.cells
    }

    /// Cells of the largest table.
    pub(super) fn largest(&self) -> usize {
        self.tables.iter().map(|table| table.size as usize).max().unwrap_or(0)
    }

    /// Appends the sizes of the first `clusters` tables.
    pub(super) fn put(&self, clusters: usize, out: &mut Vec<u8>) {
        self.tables[..clusters].iter().for_each(|table| put_count(table.size, out));
    }

    /// Takes the sizes of `clusters` tables for `length` elements.
    pub(super) fn take(reader: &mut Reader<'_>, clusters: usize, length: usize) -> Read<Self> {
        let mut sizes = [1; MOST_CLUSTERS];
        for size in &mut sizes[..clusters] {
            *size = reader.count(length.max(1))? as u32;
            if *size == 0 {
                return Err(Fault::Count { count: 0, length });
            }
        }
        let whole: u64 = sizes[..clusters].iter().map(|size| u64::from(*size)).sum();
        if whole > (length + clusters) as u64 {
            return Err(Fault::Count { count: whole, length });
        }
        Ok(Self::new(&sizes[..clusters]))
    }

    /// The first cell of each table.
    pub(super) fn firsts(&self) -> [usize; MOST_CLUSTERS] {
        self.tables.map(|table| table.offset as usize)
    }

    /// Visits the place and the cell of those elements of a block, whose first is element `first`,
    /// that are in clusters with several cells. A block does not go beyond a multiple of
    /// [`BLOCK`] elements.
    ///
    /// An element of a cluster with one cell needs no hash. The others are found several at a time,
    /// without a branch for each that a processor could foresee no better than a coin, and so are
    /// their cells.
    #[inline(always)]
    pub(super) fn each_hashed(&self, first: usize, ids: &[u8], visit: impl FnMut(usize, usize)) {
        let start = first % BLOCK;
        debug_assert!(start + ids.len() <= BLOCK);
        let of_block = hash((first - start) as u32);
        let hash = |place: u16| hash_within(of_block, start as u32 + u32::from(place));
        let mut places = [0; BLOCK + LANES];
        let count = places_of(&among(ids, self.hashed()), ids.len(), &mut places);
        match self.hashed() {
            // The usual case, whose table stays at hand.
            [one] => {
                let table = self.tables[usize::from(*one)];
                each_cell(&places, count, |place| table.cell(hash(place)), visit);
            }
            _ => {
                // Behind the last place there may be any.
                let id = |place: u16| usize::from(*ids.get(usize::from(place)).unwrap_or(&0));
                let cell = |place| self.tables[id(place) % MOST_CLUSTERS].cell(hash(place));
                each_cell(&places, count, cell, visit);
            }
        }
    }
}

/// Visits the first `count` places and the cell of each. Cells are also found of up to [`LANES`]
/// places more, so that their loop always has the same length, and is compiled to vectors.
#[inline(always)]
fn each_cell(
    places: &[u16; BLOCK + LANES],
    count: usize,
    cell: impl Fn(u16) -> u32,
    mut visit: impl FnMut(usize, usize),
) {
    for (first, places) in (0..count).step_by(LANES).zip(places.as_chunks::<LANES>().0) {
        let mut cells = [0; LANES];
        for (found, place) in cells.iter_mut().zip(places) {
            *found = cell(*place);
        }
        for (place, cell) in places[..LANES.min(count - first)].iter().zip(cells) {
            visit(usize::from(*place), cell as usize);
        }
    }
}

/// The blocks that `length` elements from `first` on are cut into, counted from `first`: none goes
/// beyond a multiple of [`BLOCK`].
#[inline(always)]
pub(super) fn blocks(first: usize, length: usize) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let block = at..length.min(at + BLOCK - (first + at) % BLOCK);
        at = block.end;
        (!block.is_empty()).then_some(block)
    })
}

/// What a cell holds: the sum of its elements and their number, which are added to together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MeanCell([f64; 2]);

impl MeanCell {
    #[inline(always)]
    pub(super) fn mean(&self) -> f32 {
        let Self([sum, count]) = *self;
        if count == 0.0 { 0.0 } else { (sum / count) as f32 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0[1] == 0.0
    }

    #[inline(always)]
    fn add(&mut self, value: f32) {
        let Self(held) = self;
        *held = [held[0] + f64::from(value), held[1] + 1.0];
    }

    /// Whether its mean goes over the wire as it would if the same elements, of one sign, had been
    /// added in any other order.
    fn is_certain(&self, format: Format) -> bool {
        // Each of n additions rounds by half of EPSILON at most, in either order.
        let off = 2.0 * self.0[1] * f64::EPSILON;
        let rounded = |factor: f64| {
            let Self([sum, count]) = *self;
            format.rounded(Self([sum * factor, count]).mean()).to_bits()
        };
        rounded(1.0 - off) == rounded(1.0 + off)
    }
}

/// Fills `cells` with the elements of a gradient, in their order, as far as the rounding of their
/// means to `format` can tell the order: a cluster's only cell takes the sum that `members` has.
pub(super) fn fill(
    gradient: &[f32],
    ids: &[u8],
    tables: &Tables,
    members: &[Members],
    format: Format,
    cells: &mut Vec<MeanCell>,
) {
    cells.clear();
    cells.resize(tables.cells(), MeanCell::default());
    wide!({
        for block in blocks(0, ids.len()) {
            let values = &gradient[block.clone()];
            tables.each_hashed(
                block.start,
                &ids[block],
                #[inline(always)]
                |at, cell| cells[cell].add(values[at]),
            );
        }
    });
    for (id, (table, members)) in tables.tables.iter().zip(members).enumerate() {
        if table.size > 1 || members.count == 0 {
            continue;
        }
        let cell = &mut cells[table.offset as usize];
        *cell = MeanCell([members.sum, members.count as f64]);
        if !cell.is_certain(format) {
            *cell = MeanCell::default();
            let own = gradient.iter().zip(ids).filter(|(_, own)| usize::from(**own) == id);
            own.for_each(|(value, _)| cell.add(*value));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::clusters::assign;
    use super::*;

    impl Tables {
        /// The cell of element `index`, in the cluster `id`.
        pub(in super::super) fn simple(&self, index: usize, id: u8) -> usize {
            self.tables[usize::from(id)].cell(hash(index as u32)) as usize
        }
    }

    /// `bkdr_le_i8_base131_and_7fffffff` of the project's reference vectors.
    #[test]
    fn hashes_are_those_of_the_reference() {
        for (index, expected) in [
            (0, 0),
            (1, 2_248_091),
            (2, 4_496_182),
            (127, 285_507_557),
            (128, 1_859_728_000),
            (255, 2_145_235_557),
            (256, 17_161),
            (65_535, 2_145_218_396),
            (65_536, 131),
            (1_000_000, 145_012_415),
            (21_797_671, 85_952_245u32),
        ] {
            assert_eq!(hash(index), expected, "{index}");
            let table = Table::new(500_000, 0);
            assert_eq!(table.cell(hash(index)), expected % 500_000, "{index}");
        }
    }

    proptest! {
        #[test]
        fn remainders_are_those_of_a_division(hash in 0u32..1 << 31, size in 1u32.., small in 1u32..3000) {
            for size in [size, small, size >> 8 | 1, 1 << (small % 31), 1] {
                prop_assert_eq!(Table::new(size, 0).cell(hash), hash % size);
            }
        }

        /// Means are those of sums in order, as they go over the wire.
        #[test]
        fn means_have_the_bits_of_sums_in_order(
            values in proptest::collection::vec(-9.0f32..9.0, 1..3000), wide: bool,
            sizes in proptest::array::uniform4(1u32..40), alone in 0usize..5,
        ) {
            let mut sizes = sizes;
            sizes[..alone].fill(1);
            let mut ids = Vec::new();
            let members = assign(&values, &[-5.0, -2.0, 2.0, 5.0], &mut ids);
            let tables = Tables::new(&sizes);
            let format = if wide { Format::F32 } else { Format::Bf16 };
            let mut simple = vec![(0.0, 0u32); tables.cells()];
            for (i, (value, id)) in values.iter().zip(&ids).enumerate() {
                let (sum, count) = &mut simple[tables.simple(i, *id)];
                (*sum, *count) = (*sum + f64::from(*value), *count + 1);
            }
            let mean = |(sum, count): &(f64, u32)| match count {
                0 => 0.0,
                _ => (sum / f64::from(*count)) as f32,
            };
            let expected: Vec<u32> =
                simple.iter().map(|cell| format.rounded(mean(cell)).to_bits()).collect();
            let mut filled = Vec::new();
            fill(&values, &ids, &tables, &members, format, &mut filled);
            let found: Vec<u32> =
                filled.iter().map(|cell| format.rounded(cell.mean()).to_bits()).collect();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(
                filled.iter().filter(|cell| cell.is_empty()).count(),
                simple.iter().filter(|cell| cell.1 == 0).count()
            );
        }
    }
}
