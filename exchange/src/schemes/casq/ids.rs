//! Which cluster each value belongs to: how many bounds it is above.

/// Elements whose clusters are found side by side.
const LANES: usize = 32;

/// Puts into `ids` how many of the ascending `bounds` each value is above, and adds how often each id
/// occurs to `counts`: one more than there are bounds. At most 2³¹ values.
pub(super) fn put<const BOUNDS: usize, const CLUSTERS: usize>(
    values: &[f32],
    bounds: &[f32; BOUNDS],
    ids: &mut [u8],
    counts: &mut [u64; CLUSTERS],
) {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V3::try_new() {
        let (whole, rest) = values.as_chunks();
        let (whole_ids, rest_ids) = ids.as_chunks_mut();
        simd.vectorize(avx2::Put { simd, values: whole, bounds, ids: whole_ids, counts });
        return side_by_side(rest, bounds, rest_ids, counts);
    }
    side_by_side(values, bounds, ids, counts);
}

/// The simple form.
fn side_by_side<const BOUNDS: usize, const CLUSTERS: usize>(
    values: &[f32],
    bounds: &[f32; BOUNDS],
    ids: &mut [u8],
    counts: &mut [u64; CLUSTERS],
) {
    for (ids, values) in ids.chunks_mut(LANES).zip(values.chunks(LANES)) {
        let mut padded = [0.0; LANES];
        padded[..values.len()].copy_from_slice(values);
        let mut above = [0u32; LANES];
        for bound in bounds {
            for i in 0..LANES {
                above[i] += u32::from(padded[i] > *bound);
            }
        }
        for (id, above) in ids.iter_mut().zip(above) {
            *id = above as u8;
            counts[above as usize % CLUSTERS] += 1;
        }
    }
}

/// Adds to the count of each id, of `values` in all, of which so many are `above` each bound.
pub(super) fn tally<const BOUNDS: usize, const CLUSTERS: usize>(
    values: usize,
    above: [u64; BOUNDS],
    counts: &mut [u64; CLUSTERS],
) {
    let mut rest = values as u64;
    for (count, above) in counts.iter_mut().zip(above) {
        *count += rest - above;
        rest = above;
    }
    counts[BOUNDS] += rest;
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{__m256i, _CMP_GT_OQ};

    use super::LANES;

    /// Counts how many values are above each bound where it compares them, so that no id is looked
    /// at again.
    pub(super) struct Put<'a, const BOUNDS: usize, const CLUSTERS: usize> {
        pub(super) simd: pulp::x86::V3,
        pub(super) values: &'a [[f32; LANES]],
        pub(super) bounds: &'a [f32; BOUNDS],
        pub(super) ids: &'a mut [[u8; LANES]],
        pub(super) counts: &'a mut [u64; CLUSTERS],
    }

    impl<const BOUNDS: usize, const CLUSTERS: usize> pulp::NullaryFnOnce for Put<'_, BOUNDS, CLUSTERS> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let (avx, avx2) = (self.simd.avx, self.simd.avx2);
            let none = avx._mm256_setzero_si256();
            let mut above = [none; BOUNDS];
            for (ids, values) in self.ids.iter_mut().zip(self.values) {
                let values: [[f32; 8]; 4] = pulp::cast(*values);
                let [a, b, c, d] = values.map(pulp::cast);
                let mut found = [none; 4];
                for (above, bound) in above.iter_mut().zip(self.bounds) {
                    let bound = avx._mm256_set1_ps(*bound);
                    // All bits are set where a value is above: −1.
                    let a: __m256i = pulp::cast(avx._mm256_cmp_ps::<_CMP_GT_OQ>(a, bound));
                    let b: __m256i = pulp::cast(avx._mm256_cmp_ps::<_CMP_GT_OQ>(b, bound));
                    let c: __m256i = pulp::cast(avx._mm256_cmp_ps::<_CMP_GT_OQ>(c, bound));
                    let d: __m256i = pulp::cast(avx._mm256_cmp_ps::<_CMP_GT_OQ>(d, bound));
                    found = [
                        avx2._mm256_sub_epi32(found[0], a),
                        avx2._mm256_sub_epi32(found[1], b),
                        avx2._mm256_sub_epi32(found[2], c),
                        avx2._mm256_sub_epi32(found[3], d),
                    ];
                    let (ab, cd) = (avx2._mm256_add_epi32(a, b), avx2._mm256_add_epi32(c, d));
                    *above = avx2._mm256_sub_epi32(*above, avx2._mm256_add_epi32(ab, cd));
                }
                let [a, b, c, d] = found;
                let (ab, cd) = (avx2._mm256_packs_epi32(a, b), avx2._mm256_packs_epi32(c, d));
                // Packing has left the halves of each vector apart, in fours.
                let apart = avx2._mm256_packus_epi16(ab, cd);
                let order = pulp::cast([0u32, 4, 1, 5, 2, 6, 3, 7]);
                *ids = pulp::cast(avx2._mm256_permutevar8x32_epi32(apart, order));
            }
            let above = above.map(|lanes| {
                let lanes: [u32; 8] = pulp::cast(lanes);
                lanes.iter().map(|lane| u64::from(*lane)).sum()
            });
            super::tally(LANES * self.values.len(), above, self.counts);
        }
    }
}
