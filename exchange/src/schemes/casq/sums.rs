//! ClusterSums of the values of each cluster, and of their squares.
//!
//! Neighbours often fall into the same cluster, and each sum waits for the one before: so the i-th
//! value is added in lane i modulo eight, in order, and the lanes are added up at the end. The bits
//! of the sums decide about sizes of tables, and do not depend on the way in which they come about.

/// Lanes of a cluster.
const LANES: usize = 8;

/// The sums of all clusters.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClusterSums<const CLUSTERS: usize> {
    /// Of each cluster and lane, the sum and that of squares.
    lanes: [[[f64; 2]; LANES]; CLUSTERS],
}

impl<const CLUSTERS: usize> Default for ClusterSums<CLUSTERS> {
    fn default() -> Self {
        Self { lanes: [[[0.0; 2]; LANES]; CLUSTERS] }
    }
}

impl<const CLUSTERS: usize> ClusterSums<CLUSTERS> {
    /// The sum of a cluster, and that of squares.
    pub(super) fn totals(&self, cluster: usize) -> [f64; 2] {
        let [first, others @ ..] = self.lanes[cluster];
        others.iter().fold(first, |a, b| [a[0] + b[0], a[1] + b[1]])
    }

    /// Adds values with these ids, which say how many of the ascending `bounds` each is above. Calls
    /// but the last give a multiple of eight values.
    #[inline(always)]
    pub(super) fn add<const BOUNDS: usize>(
        &mut self,
        values: &[f32],
        ids: &[u8],
        bounds: &[f32; BOUNDS],
    ) {
        // Every value is compared with every bound: among many it is quicker to look up its own sum.
        #[cfg(target_arch = "x86_64")]
        if CLUSTERS <= 4
            && let Some(simd) = pulp::x86::V3::try_new()
        {
            let (eights, rest) = values.as_chunks();
            simd.vectorize(avx2::AddToAll { simd, values: eights, bounds, sums: self });
            return self.add_to_own(rest, &ids[values.len() - rest.len()..]);
        }
        self.add_to_own(values, ids);
    }

    /// The simple form: each value is added to its own cluster.
    #[inline(always)]
    fn add_to_own(&mut self, values: &[f32], ids: &[u8]) {
        for (values, ids) in values.chunks(LANES).zip(ids.chunks(LANES)) {
            for (lane, (value, id)) in values.iter().zip(ids).enumerate() {
                let value = f64::from(*value);
                let own = &mut self.lanes[usize::from(*id) % CLUSTERS][lane];
                *own = [own[0] + value, own[1] + value * value];
            }
        }
    }
}

/// Does what [`ids::put`](super::ids::put) and then [`ClusterSums::add`] would do to the first of these values, where
/// AVX-512 compares a value with every bound once for both, and returns to how many: a multiple of eight, if not 0.
pub(super) fn put_and_add<const BOUNDS: usize, const CLUSTERS: usize>(
    values: &[f32],
    bounds: &[f32; BOUNDS],
    ids: &mut [u8],
    counts: &mut [u64; CLUSTERS],
    sums: &mut ClusterSums<CLUSTERS>,
) -> usize {
    #[cfg(target_arch = "x86_64")]
    if CLUSTERS <= 4
        && let Some(simd) = pulp::x86::V4::try_new()
    {
        let (values, _) = values.as_chunks();
        let (ids, _) = ids.as_chunks_mut();
        simd.vectorize(avx512::PutAndAdd { simd, values, bounds, ids, counts, sums });
        return values.as_flattened().len();
    }
    0
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::_CMP_GT_OQ;

    use super::{ClusterSums, LANES};
    use crate::schemes::casq::ids::tally;

    /// Goes through the clusters for eight values at once, and adds in those lanes whose values are the
    /// cluster's own. The sums stay in registers, where the simple form stores each and reads it again.
    pub(super) struct PutAndAdd<'a, const BOUNDS: usize, const CLUSTERS: usize> {
        pub(super) simd: pulp::x86::V4,
        pub(super) values: &'a [[f32; 2 * LANES]],
        pub(super) bounds: &'a [f32; BOUNDS],
        pub(super) ids: &'a mut [[u8; 2 * LANES]],
        pub(super) counts: &'a mut [u64; CLUSTERS],
        pub(super) sums: &'a mut ClusterSums<CLUSTERS>,
    }

    impl<const BOUNDS: usize, const CLUSTERS: usize> pulp::NullaryFnOnce
        for PutAndAdd<'_, BOUNDS, CLUSTERS>
    {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let (vectors, bytes) = (self.simd.avx512f, self.simd.avx512bw);
            let lanes = &mut self.sums.lanes;
            let bounds = self.bounds.map(|bound| vectors._mm512_set1_ps(bound));
            let part = |cluster: usize, order: usize| {
                pulp::cast(std::array::from_fn::<f64, LANES, _>(|i| lanes[cluster][i][order]))
            };
            let mut sums: [_; CLUSTERS] = std::array::from_fn(|cluster| part(cluster, 0));
            let mut squares: [_; CLUSTERS] = std::array::from_fn(|cluster| part(cluster, 1));
            let one = vectors._mm512_set1_epi32(1);
            let mut counts = [vectors._mm512_setzero_si512(); BOUNDS];
            for (ids, values) in self.ids.iter_mut().zip(self.values) {
                let sixteen = pulp::cast(*values);
                let above =
                    bounds.map(|bound| vectors._mm512_cmp_ps_mask::<_CMP_GT_OQ>(sixteen, bound));
                let mut id = self.simd.sse2._mm_setzero_si128();
                for (count, above) in counts.iter_mut().zip(above) {
                    // All bits are set where a value is above: −1.
                    id = self.simd.sse2._mm_sub_epi8(id, bytes._mm_movm_epi8(above));
                    *count = vectors._mm512_mask_add_epi32(*count, above, *count, one);
                }
                *ids = pulp::cast(id);
                // A cluster's own values are above the bound below it, and not above the one over it.
                let own: [u16; CLUSTERS] = std::array::from_fn(|cluster| {
                    let from = if cluster == 0 { !0 } else { above[cluster - 1] };
                    if cluster < BOUNDS { from & !above[cluster] } else { from }
                });
                let halves: [[f32; LANES]; 2] = pulp::cast(*values);
                for (values, shift) in halves.into_iter().zip([0, LANES]) {
                    let values = vectors._mm512_cvtps_pd(pulp::cast(values));
                    let square = vectors._mm512_mul_pd(values, values);
                    for cluster in 0..CLUSTERS {
                        let own = (own[cluster] >> shift) as u8;
                        let (sum, of_squares) = (&mut sums[cluster], &mut squares[cluster]);
                        *sum = vectors._mm512_mask_add_pd(*sum, own, *sum, values);
                        *of_squares =
                            vectors._mm512_mask_add_pd(*of_squares, own, *of_squares, square);
                    }
                }
            }
            for cluster in 0..CLUSTERS {
                let of: [f64; LANES] = pulp::cast(sums[cluster]);
                let squares: [f64; LANES] = pulp::cast(squares[cluster]);
                lanes[cluster] = std::array::from_fn(|i| [of[i], squares[i]]);
            }
            let above = counts.map(|lanes| {
                let lanes: [u32; 16] = pulp::cast(lanes);
                lanes.iter().map(|lane| u64::from(*lane)).sum()
            });
            tally(2 * LANES * self.values.len(), above, self.counts);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{__m256d, _CMP_GT_OQ};

    use super::{ClusterSums, LANES};

    /// Lanes of a vector.
    const HALF: usize = LANES / 2;

    /// Adds four values to all clusters at once: itself to its own, and 0 to the others, which
    /// changes no sum that began at 0. The lower lanes come first and then the upper ones, so that the
    /// sums of either stay in registers, where the simple form stores each and reads it again.
    pub(super) struct AddToAll<'a, const BOUNDS: usize, const CLUSTERS: usize> {
        pub(super) simd: pulp::x86::V3,
        pub(super) values: &'a [[f32; LANES]],
        pub(super) bounds: &'a [f32; BOUNDS],
        pub(super) sums: &'a mut ClusterSums<CLUSTERS>,
    }

    impl<const BOUNDS: usize, const CLUSTERS: usize> pulp::NullaryFnOnce
        for AddToAll<'_, BOUNDS, CLUSTERS>
    {
        type Output = ();

        #[inline(always)]
        fn call(mut self) {
            self.add(0);
            self.add(HALF);
        }
    }

    impl<const BOUNDS: usize, const CLUSTERS: usize> AddToAll<'_, BOUNDS, CLUSTERS> {
        /// Adds in the lanes from `first` on.
        #[inline(always)]
        fn add(&mut self, first: usize) {
            let avx = self.simd.avx;
            let lanes = &mut self.sums.lanes;
            let bounds = self.bounds.map(|bound| avx._mm256_set1_pd(f64::from(bound)));
            let part = |cluster: usize, order: usize| -> __m256d {
                let lane = |i: usize| lanes[cluster][first + i][order];
                pulp::cast(std::array::from_fn::<f64, HALF, _>(lane))
            };
            let mut sums: [_; CLUSTERS] = std::array::from_fn(|cluster| part(cluster, 0));
            let mut squares: [_; CLUSTERS] = std::array::from_fn(|cluster| part(cluster, 1));
            for values in self.values {
                let values: [f32; HALF] = std::array::from_fn(|i| values[first + i]);
                let values = avx._mm256_cvtps_pd(pulp::cast(values));
                let mut rest = values;
                for cluster in 0..CLUSTERS {
                    // What is above the next bound is left for the clusters to come.
                    let mut own = rest;
                    if cluster < BOUNDS {
                        let above = avx._mm256_cmp_pd::<_CMP_GT_OQ>(values, bounds[cluster]);
                        own = avx._mm256_andnot_pd(above, rest);
                        rest = avx._mm256_and_pd(above, rest);
                    }
                    sums[cluster] = avx._mm256_add_pd(sums[cluster], own);
                    let square = avx._mm256_mul_pd(own, own);
                    squares[cluster] = avx._mm256_add_pd(squares[cluster], square);
                }
            }
            for cluster in 0..CLUSTERS {
                let of: [f64; HALF] = pulp::cast(sums[cluster]);
                let squares: [f64; HALF] = pulp::cast(squares[cluster]);
                for i in 0..HALF {
                    lanes[cluster][first + i] = [of[i], squares[i]];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bits<const CLUSTERS: usize>(sums: &ClusterSums<CLUSTERS>) -> Vec<u64> {
        sums.lanes.as_flattened().as_flattened().iter().map(|sum| sum.to_bits()).collect()
    }

    /// The simple form, and each other that this processor has.
    fn compare<const BOUNDS: usize, const CLUSTERS: usize>(values: &[f32], bounds: &[f32]) {
        let mut bounds: [f32; BOUNDS] = std::array::from_fn(|j| bounds[j]);
        bounds.sort_unstable_by(f32::total_cmp);
        let id = |value: &f32| bounds.iter().filter(|bound| value > bound).count() as u8;
        let ids: Vec<u8> = values.iter().map(id).collect();
        let (eights, _) = values.as_chunks();
        let (first, second) = eights.split_at(eights.len() / 3);
        let mut simple = ClusterSums::<CLUSTERS>::default();
        simple.add_to_own(eights.as_flattened(), &ids);
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            let mut found = ClusterSums::<CLUSTERS>::default();
            for values in [first, second] {
                let (bounds, sums) = (&bounds, &mut found);
                simd.vectorize(avx2::AddToAll { simd, values, bounds, sums });
            }
            assert_eq!(bits(&found), bits(&simple), "AVX2");
        }
        let (mut found, mut counts) = (ClusterSums::<CLUSTERS>::default(), [3; CLUSTERS]);
        let mut same_ids = vec![0xff; values.len()];
        let done = put_and_add(values, &bounds, &mut same_ids, &mut counts, &mut found);
        assert_eq!(same_ids[..done], ids[..done]);
        for (id, count) in counts.iter().enumerate() {
            let times = ids[..done].iter().filter(|own| usize::from(**own) == id).count();
            assert_eq!(*count, 3 + times as u64);
        }
        found.add(&values[done..], &ids[done..], &bounds);
        simple.add_to_own(&values[8 * eights.len()..], &ids[8 * eights.len()..]);
        assert_eq!(bits(&found), bits(&simple), "as it is chosen");
    }

    proptest! {
        #[test]
        fn sums_have_the_bits_of_the_simple_form_on_every_instruction_set(
            values in proptest::collection::vec(-2.0f32..2.0, 0..500),
            bounds in proptest::collection::vec(-2.0f32..2.0, 15),
            zeros in 0usize..5,
        ) {
            let mut values = values;
            values.iter_mut().step_by(zeros + 2).for_each(|value| *value *= -0.0);
            compare::<1, 2>(&values, &bounds);
            compare::<3, 4>(&values, &bounds);
            compare::<7, 8>(&values, &bounds);
            compare::<15, 16>(&values, &bounds);
        }
    }
}
