//! Means on the wire: what a message says of each element.

use super::clusters::MOST_CLUSTERS;
use super::sketch::{Tables, blocks};
use crate::simd::wide;
use crate::wire::Format;

/// What a message says of each element, from its cluster.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableMeans<'a> {
    tables: &'a Tables,
    /// The means of all cells.
    bytes: &'a [u8],
    format: Format,
    weight: f32,
    /// Of each cluster with one cell, its weighted mean; of the others −0, which is added to any number
    /// without changing it.
    alone: [f32; MOST_CLUSTERS],
}

impl<'a> TableMeans<'a> {
    /// `bytes`: the means of all cells; what is missing is 0.
    pub(super) fn new(tables: &'a Tables, bytes: &'a [u8], format: Format, weight: f32) -> Self {
        let mut means = Self { tables, bytes, format, weight, alone: [0.0; MOST_CLUSTERS] };
        means.alone = tables.firsts().map(|cell| means.weighted(format, cell));
        tables.hashed().iter().for_each(|cluster| means.alone[usize::from(*cluster)] = -0.0);
        means
    }

    /// A cell's mean by the weight.
    #[inline(always)]
    fn weighted(&self, format: Format, cell: usize) -> f32 {
        let mean = match format {
            Format::F32 => {
                self.bytes.as_chunks().0.get(cell).map(|bytes| f32::from_le_bytes(*bytes))
            }
            Format::F16 => self.bytes.as_chunks::<2>().0.get(cell).map(|bytes| format.value(bytes)),
            // The upper half of an f32.
            Format::Bf16 => self
                .bytes
                .as_chunks()
                .0
                .get(cell)
                .map(|bytes| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16)),
        };
        self.weight * mean.unwrap_or(0.0)
    }

    /// Adds to each element of `sum`, the first of which is element `first`, the weighted mean of its
    /// cell.
    pub(super) fn add(&self, first: usize, ids: &[u8], sum: &mut [f32]) {
        wide!(match self.format {
            Format::F32 => self.add_as(Format::F32, first, ids, sum),
            Format::F16 => self.add_as(Format::F16, first, ids, sum),
            Format::Bf16 => self.add_as(Format::Bf16, first, ids, sum),
        });
    }

    #[inline(always)]
    fn add_as(&self, format: Format, first: usize, ids: &[u8], sum: &mut [f32]) {
        for block in blocks(first, ids.len()) {
            let (ids, sum) = (&ids[block.clone()], &mut sum[block.clone()]);
            self.add_alone(ids, sum);
            self.tables.each_hashed(
                first + block.start,
                ids,
                #[inline(always)]
                |at, cell| sum[at] += self.weighted(format, cell),
            );
        }
    }

    /// Adds to each element what is the same for all of its cluster.
    #[inline(always)]
    fn add_alone(&self, ids: &[u8], sum: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V4::try_new() {
            let (sixteens, rest) = ids.as_chunks();
            let (sums, rest_sum) = sum.as_chunks_mut();
            simd.vectorize(avx512::Add { simd, ids: sixteens, table: &self.alone, sums });
            return add_one_by_one(rest, &self.alone, rest_sum);
        }
        add_one_by_one(ids, &self.alone, sum);
    }
}

/// The simple form.
#[inline(always)]
fn add_one_by_one(ids: &[u8], table: &[f32; MOST_CLUSTERS], sum: &mut [f32]) {
    for (sum, id) in sum.iter_mut().zip(ids) {
        *sum += table[usize::from(*id) % MOST_CLUSTERS];
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::MOST_CLUSTERS;

    /// Looks up sixteen elements at a time: the table lies in a register.
    pub(super) struct Add<'a> {
        pub(super) simd: pulp::x86::V4,
        pub(super) ids: &'a [[u8; 16]],
        pub(super) table: &'a [f32; MOST_CLUSTERS],
        pub(super) sums: &'a mut [[f32; 16]],
    }

    impl pulp::NullaryFnOnce for Add<'_> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let vectors = self.simd.avx512f;
            let table = pulp::cast(*self.table);
            for (sums, ids) in self.sums.iter_mut().zip(self.ids) {
                let ids = vectors._mm512_cvtepu8_epi32(pulp::cast(*ids));
                let values = vectors._mm512_permutexvar_ps(ids, table);
                *sums = pulp::cast(vectors._mm512_add_ps(pulp::cast(*sums), values));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simd::machines;

    /// All that are no numbers are one.
    fn bits(value: f32) -> u32 {
        if value.is_nan() { u32::MAX } else { value.to_bits() }
    }

    proptest! {
        /// What is added is the weighted mean of the cell of each element's hash, whether or not
        /// there are as many means as cells.
        #[test]
        fn what_is_added_has_the_bits_of_the_simple_form_on_every_instruction_set(
            first in 0usize..3000, ids in proptest::collection::vec(0u8..16, 0..1500), few: bool,
            sizes in proptest::array::uniform16(1u32..9), alone in 0usize..17, wide: bool,
            bytes in proptest::collection::vec(any::<u8>(), 100..300), weight in -2.0f32..2.0,
        ) {
            let (mut sizes, mut ids) = (sizes, ids);
            sizes[..alone].fill(1);
            if few {
                ids.iter_mut().for_each(|id| *id %= 4);
            }
            let tables = Tables::new(&sizes);
            let format = if wide { Format::F32 } else { Format::Bf16 };
            let means = TableMeans::new(&tables, &bytes, format, weight);
            let expected: Vec<u32> = ids
                .iter()
                .enumerate()
                .map(|(i, id)| {
                    let at = tables.simple(first + i, *id) * format.bytes();
                    let mean = bytes.get(at..at + format.bytes());
                    bits(0.5 + weight * mean.map_or(0.0, |bytes| format.value(bytes)))
                })
                .collect();
            let mut sums = [vec![0.5; ids.len()], vec![0.5; ids.len()]];
            means.add_alone(&ids, &mut sums[0]);
            add_one_by_one(&ids, &means.alone, &mut sums[1]);
            let [found, simple] = sums.map(|values| values.into_iter().map(bits).collect::<Vec<_>>());
            prop_assert_eq!(found, simple);
            for machine in machines() {
                let mut sum = vec![0.5; ids.len()];
                machine.dispatch(
                    #[inline(always)]
                    || means.add_as(format, first, &ids, &mut sum),
                );
                let found: Vec<u32> = sum.iter().map(|sum| bits(*sum)).collect();
                prop_assert_eq!(&found, &expected, "{:?}", machine);
            }
        }
    }
}
