//! One-row hashed tables of means: one table for each cluster, one bucket for each element.

use super::clusters::MOST_CLUSTERS;
use crate::wire::values::Format;
use crate::wire::{Fault, Read, Reader, put_count};

const BASE: u32 = 131;

/// Indices that share all but their lowest byte.
const RUN: usize = 256;

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

    /// Visits the place and the bucket of elements `first`, `first` + 1, … of these clusters.
    #[inline(always)]
    pub(super) fn each(&self, first: usize, ids: &[u8], mut visit: impl FnMut(usize, usize)) {
        let mut at = first;
        let mut ids = ids;
        while !ids.is_empty() {
            let start = at % RUN;
            let (run, rest) = ids.split_at(ids.len().min(RUN - start));
            let upper = upper(at as u32);
            for (i, (id, lowest)) in run.iter().zip(&LOWEST[start..]).enumerate() {
                let hash = lowest.wrapping_add(upper) & 0x7fff_ffff;
                visit(at + i, self.tables[usize::from(*id) % MOST_CLUSTERS].bucket(hash));
            }
            at += run.len();
            ids = rest;
        }
    }
}

/// What a bucket holds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bucket {
    sum: f64,
    count: u32,
}

impl Bucket {
    pub(super) fn mean(&self) -> f32 {
        if self.count == 0 { 0.0 } else { (self.sum / f64::from(self.count)) as f32 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Fills `buckets` with the elements of a gradient, in their order.
pub(super) fn fill(gradient: &[f32], ids: &[u8], tables: &Tables, buckets: &mut Vec<Bucket>) {
    buckets.clear();
    buckets.resize(tables.buckets(), Bucket::default());
    tables.each(0, ids, |at, bucket| {
        let bucket = &mut buckets[bucket];
        bucket.sum += f64::from(gradient[at]);
        bucket.count += 1;
    });
}

/// Adds `weight` times the mean of its bucket to each element of `sum` from `first` on.
#[inline(always)]
pub(super) fn add(
    first: usize,
    ids: &[u8],
    tables: &Tables,
    means: &[u8],
    format: Format,
    weight: f32,
    sum: &mut [f32],
) {
    let bytes = format.bytes();
    tables.each(first, ids, |at, bucket| {
        let mean = means.get(bucket * bytes..).map_or(0.0, |bytes| format.value(bytes));
        sum[at] += weight * mean;
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        fn every_element_meets_the_bucket_of_its_own_hash(
            first in 0usize..3000, ids in proptest::collection::vec(0u8..4, 0..1500),
            sizes in proptest::array::uniform4(1u32..400),
        ) {
            let tables = Tables::new(&sizes);
            let mut met = Vec::new();
            tables.each(first, &ids, |at, bucket| met.push((at, bucket)));
            let naive: Vec<_> = ids
                .iter()
                .enumerate()
                .map(|(i, id)| {
                    let id = usize::from(*id);
                    let offset: u32 = sizes[..id].iter().sum();
                    (first + i, (offset + hash((first + i) as u32) % sizes[id]) as usize)
                })
                .collect();
            prop_assert_eq!(met, naive);
        }
    }
}
