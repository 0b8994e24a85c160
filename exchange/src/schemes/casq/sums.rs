//! Sums of the values of each cluster, and of their squares.
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

    /// Adds values with these ids. Calls but the last give a multiple of eight values.
    #[inline(always)]
    pub(super) fn add(&mut self, values: &[f32], ids: &[u8]) {
        for (values, ids) in values.chunks(LANES).zip(ids.chunks(LANES)) {
            for (lane, (value, id)) in values.iter().zip(ids).enumerate() {
                let value = f64::from(*value);
                let own = &mut self.lanes[usize::from(*id) % CLUSTERS][lane];
                *own = [own[0] + value, own[1] + value * value];
            }
        }
    }
}

/// The simple form is [`ids::put`](super::ids::put) and then [`ClusterSums::add`] of these values. Here AVX-512 compares a
/// value with every bound once for both; returns for how many of the first: a multiple of eight, 0 without AVX-512.
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
