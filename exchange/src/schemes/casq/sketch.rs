//! One-row hashed tables of means: one table for each cluster, one bucket for each element.

use std::ops::Range;

use super::clusters::{MOST_CLUSTERS, Members};
use crate::simd::wide;
use crate::wire::values::Format;
use crate::wire::{Fault, Read, Reader, put_count};

const BASE: u32 = 131;

/// Indices that share all but their lowest byte.
pub(super) const RUN: usize = 256;

/// The signed byte as the hash takes it.
const fn byte(index: u32) -> u32 {
    index as u8 as i8 as i32 as u32
}

/// What the lowest byte of an index adds to the hash.
const LOWEST: [u32; RUN] = {
    let mut table = [0; RUN];
    let mut i = 0;
    while i < RUN {
        table[i] = byte(i as u32).wrapping_mul(BASE * BASE * BASE);
        i += 1;
    }
    table
};

/// What the upper three bytes of an index add to the hash.
fn upper(index: u32) -> u32 {
    (1..4)
        .fold(0u32, |hash, place| hash.wrapping_mul(BASE).wrapping_add(byte(index >> (8 * place))))
}

/// The BKDR hash, base 131, of an index's four signed bytes, the lowest first, without its sign.
#[cfg(test)]
fn hash(index: u32) -> u32 {
    LOWEST[index as usize % RUN].wrapping_add(upper(index)) & 0x7fff_ffff
}

/// Where a cluster's table lies among the buckets, and how a hash becomes one of them.
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

    /// The bucket of a hash: its remainder by the size, without a division (Lemire, Kaser & Kurz
    /// 2019, exact for 32-bit numbers).
    #[inline(always)]
    fn bucket(&self, hash: u32) -> usize {
        let fraction = self.inverse.wrapping_mul(u64::from(hash));
        let remainder = (u128::from(fraction) * u128::from(self.size)) >> 64;
        self.offset as usize + remainder as usize
    }
}

/// The tables of all clusters, end to end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tables {
    tables: [Table; MOST_CLUSTERS],
    buckets: usize,
}

impl Tables {
    /// Tables of these sizes, each at least 1, together less than 2³².
    pub(super) fn new(sizes: &[u32]) -> Self {
        let mut tables = [Table::new(1, 0); MOST_CLUSTERS];
        let mut buckets = 0usize;
        for (table, size) in tables.iter_mut().zip(sizes) {
            *table = Table::new(*size, buckets as u32);
            buckets += *size as usize;
        }
        Self { tables, buckets }
    }

    /// Buckets of all tables.
    pub(super) fn buckets(&self) -> usize {
        self.buckets
    }

    /// Buckets of the largest table.
    pub(super) fn largest(&self) -> usize {
        self.tables.iter().map(|table| table.size as usize).max().unwrap_or(0)
    }

    /// Appends the sizes of the first `clusters` tables.
    pub(super) fn put(&self, clusters: usize, out: &mut Vec<u8>) {
        self.tables[..clusters].iter().for_each(|table| put_count(table.size, out));
    }

    /// Takes the sizes of `clusters` tables for `length` elements.
    ///
    /// # Errors
    /// [`Fault::Count`] when one is empty or larger than there are elements.
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

    /// The first bucket of each table.
    pub(super) fn firsts(&self) -> [usize; MOST_CLUSTERS] {
        self.tables.map(|table| table.offset as usize)
    }

    /// Visits the place and the bucket of those elements of a run, whose first is element `first`,
    /// that are in clusters with several buckets. A run does not go beyond a multiple of
    /// [`RUN`] elements.
    ///
    /// An element of a cluster with one bucket needs no hash. The others are found eight at a time,
    /// without a branch for each that a processor could foresee no better than a coin.
    #[inline(always)]
    pub(super) fn each_hashed(
        &self,
        first: usize,
        ids: &[u8],
        mut visit: impl FnMut(usize, usize),
    ) {
        let (start, upper) = (first % RUN, upper(first as u32));
        debug_assert!(start + ids.len() <= RUN);
        let mut flags = [0u8; RUN];
        for (cluster, _) in self.tables.iter().enumerate().filter(|(_, table)| table.size > 1) {
            for (flag, id) in flags.iter_mut().zip(ids) {
                *flag |= u8::from(*id == cluster as u8);
            }
        }
        let mut places = [0u8; RUN + 8];
        let mut count = 0;
        for (number, flags) in flags.as_chunks::<8>().0.iter().enumerate() {
            // The flag of the i-th byte moves to the i-th of the highest eight bits.
            let all = u64::from_le_bytes(*flags).wrapping_mul(0x0102_0408_1020_4080) >> 56;
            let within = u64::from_le_bytes(PLACES[all as usize]);
            let among = within + 0x0101_0101_0101_0101 * (8 * number as u64);
            places[count..count + 8].copy_from_slice(&among.to_le_bytes());
            count += all.count_ones() as usize;
        }
        for place in &places[..count] {
            let place = usize::from(*place);
            let hash = LOWEST[(start + place) % RUN].wrapping_add(upper) & 0x7fff_ffff;
            visit(place, self.tables[usize::from(ids[place]) % MOST_CLUSTERS].bucket(hash));
        }
    }
}

/// The runs that `length` elements from `first` on are cut into, counted from `first`: none goes
/// beyond a multiple of [`RUN`].
#[inline(always)]
pub(super) fn runs(first: usize, length: usize) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let run = at..length.min(at + RUN - (first + at) % RUN);
        at = run.end;
        (!run.is_empty()).then_some(run)
    })
}

/// The places of the bits that are set in a byte, ascending.
const PLACES: [[u8; 8]; 256] = {
    let mut all = [[0; 8]; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut place, mut count) = (0, 0);
        while place < 8 {
            if byte >> place & 1 == 1 {
                all[byte][count] = place;
                count += 1;
            }
            place += 1;
        }
        byte += 1;
    }
    all
};

/// What a bucket holds: the sum of its elements and their number, which are added to together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bucket([f64; 2]);

impl Bucket {
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

/// Fills `buckets` with the elements of a gradient, in their order, as far as the rounding of their
/// means to `format` can tell the order: a cluster's only bucket takes the sum that `members` has.
pub(super) fn fill(
    gradient: &[f32],
    ids: &[u8],
    tables: &Tables,
    members: &[Members],
    format: Format,
    buckets: &mut Vec<Bucket>,
) {
    buckets.clear();
    buckets.resize(tables.buckets(), Bucket::default());
    wide(
        #[inline(always)]
        || {
            for run in runs(0, ids.len()) {
                let values = &gradient[run.clone()];
                tables.each_hashed(run.start, &ids[run], |at, bucket| {
                    buckets[bucket].add(values[at]);
                });
            }
        },
    );
    for (id, (table, members)) in tables.tables.iter().zip(members).enumerate() {
        if table.size > 1 || members.count == 0 {
            continue;
        }
        let bucket = &mut buckets[table.offset as usize];
        *bucket = Bucket([members.sum, members.count as f64]);
        if !bucket.is_certain(format) {
            *bucket = Bucket::default();
            let own = gradient.iter().zip(ids).filter(|(_, own)| usize::from(**own) == id);
            own.for_each(|(value, _)| bucket.add(*value));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::clusters::assign;
    use super::*;
    use crate::simd::machines;

    impl Tables {
        /// The bucket of element `index`, in the cluster `id`.
        pub(in super::super) fn simple(&self, index: usize, id: u8) -> usize {
            self.tables[usize::from(id)].bucket(hash(index as u32))
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
            assert_eq!(table.bucket(hash(index)), expected as usize % 500_000, "{index}");
        }
    }

    proptest! {
        #[test]
        fn remainders_are_those_of_a_division(hash in 0u32..1 << 31, size in 1u32.., small in 1u32..3000) {
            for size in [size, small, size >> 8 | 1, 1 << (small % 31), 1] {
                prop_assert_eq!(Table::new(size, 0).bucket(hash), (hash % size) as usize);
            }
        }

        #[test]
        fn every_hashed_element_meets_the_bucket_of_its_own_hash(
            first in 0usize..3000, ids in proptest::collection::vec(0u8..4, 0..1500),
            sizes in proptest::array::uniform4(1u32..400), alone in 0usize..5,
        ) {
            let mut sizes = sizes;
            sizes[..alone].fill(1);
            let tables = Tables::new(&sizes);
            let naive: Vec<_> = ids
                .iter()
                .enumerate()
                .filter(|(_, id)| sizes[usize::from(**id)] > 1)
                .map(|(i, id)| {
                    let id = usize::from(*id);
                    let offset: u32 = sizes[..id].iter().sum();
                    (i, (offset + hash((first + i) as u32) % sizes[id]) as usize)
                })
                .collect();
            for machine in machines() {
                let mut met = Vec::new();
                machine.dispatch(
                    #[inline(always)]
                    || {
                        for run in runs(first, ids.len()) {
                            let start = run.start;
                            let of = &ids[run];
                            tables.each_hashed(first + start, of, |at, bucket| {
                                met.push((start + at, bucket));
                            });
                        }
                    },
                );
                prop_assert_eq!(&met, &naive, "{:?}", machine);
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
            let mut simple = vec![(0.0, 0u32); tables.buckets()];
            for (i, (value, id)) in values.iter().zip(&ids).enumerate() {
                let (sum, count) = &mut simple[tables.simple(i, *id)];
                (*sum, *count) = (*sum + f64::from(*value), *count + 1);
            }
            let mean = |(sum, count): &(f64, u32)| match count {
                0 => 0.0,
                _ => (sum / f64::from(*count)) as f32,
            };
            let expected: Vec<u32> =
                simple.iter().map(|bucket| format.rounded(mean(bucket)).to_bits()).collect();
            let mut filled = Vec::new();
            fill(&values, &ids, &tables, &members, format, &mut filled);
            let found: Vec<u32> =
                filled.iter().map(|bucket| format.rounded(bucket.mean()).to_bits()).collect();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(
                filled.iter().filter(|bucket| bucket.is_empty()).count(),
                simple.iter().filter(|bucket| bucket.1 == 0).count()
            );
        }
    }
}
