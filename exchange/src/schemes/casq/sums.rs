//! Sums of the values of each cluster, and of their squares.
//!
//! Neighbours often fall into the same cluster, and each sum waits for the one before: so the i-th
//! value is added in lane i modulo four, in order, and the lanes are added up at the end. The bits
//! of the sums decide about sizes of tables, and do not depend on the way in which they come about.

/// Lanes of a cluster.
const LANES: usize = 4;

/// The sums of all clusters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sums<const CLUSTERS: usize> {
    /// Of each cluster and lane, the sum and that of squares.
    lanes: [[[f64; 2]; LANES]; CLUSTERS],
}

impl<const CLUSTERS: usize> Default for Sums<CLUSTERS> {
    fn default() -> Self {
        Self { lanes: [[[0.0; 2]; LANES]; CLUSTERS] }
    }
}

impl<const CLUSTERS: usize> Sums<CLUSTERS> {
    /// The sum of a cluster, and that of squares.
    pub(super) fn of(&self, cluster: usize) -> [f64; 2] {
        let [first, others @ ..] = self.lanes[cluster];
        others.iter().fold(first, |a, b| [a[0] + b[0], a[1] + b[1]])
    }

    /// Adds values with these ids, which say how many of the ascending `bounds` each is above. Calls
    /// but the last give a multiple of four values.
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
            let (fours, rest) = values.as_chunks();
            simd.vectorize(avx2::AddToAll { simd, values: fours, bounds, sums: self });
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

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{__m256d, _CMP_GT_OQ};

    use super::{LANES, Sums};

    /// Adds four values to all clusters at once: itself to its own, and 0 to the others, which
    /// changes no sum that began at 0. The sums stay in registers, where the simple form stores each
    /// and reads it again.
    pub(super) struct AddToAll<'a, const BOUNDS: usize, const CLUSTERS: usize> {
        pub(super) simd: pulp::x86::V3,
        pub(super) values: &'a [[f32; LANES]],
        pub(super) bounds: &'a [f32; BOUNDS],
        pub(super) sums: &'a mut Sums<CLUSTERS>,
    }

    impl<const BOUNDS: usize, const CLUSTERS: usize> pulp::NullaryFnOnce
        for AddToAll<'_, BOUNDS, CLUSTERS>
    {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let avx = self.simd.avx;
            let lanes = &mut self.sums.lanes;
            let bounds = self.bounds.map(|bound| avx._mm256_set1_pd(f64::from(bound)));
            let part = |cluster: usize, order: usize| -> __m256d {
                pulp::cast(std::array::from_fn::<f64, LANES, _>(|i| lanes[cluster][i][order]))
            };
            let mut sums: [_; CLUSTERS] = std::array::from_fn(|cluster| part(cluster, 0));
            let mut squares: [_; CLUSTERS] = std::array::from_fn(|cluster| part(cluster, 1));
            for values in self.values {
                let values = avx._mm256_cvtps_pd(pulp::cast(*values));
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
                let of: [f64; LANES] = pulp::cast(sums[cluster]);
                let squares: [f64; LANES] = pulp::cast(squares[cluster]);
                lanes[cluster] = std::array::from_fn(|i| [of[i], squares[i]]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bits<const CLUSTERS: usize>(sums: &Sums<CLUSTERS>) -> Vec<u64> {
        sums.lanes.as_flattened().as_flattened().iter().map(|sum| sum.to_bits()).collect()
    }

    /// The simple form, and each other that this processor has.
    fn compare<const BOUNDS: usize, const CLUSTERS: usize>(values: &[f32], bounds: &[f32]) {
        let mut bounds: [f32; BOUNDS] = std::array::from_fn(|j| bounds[j]);
        bounds.sort_unstable_by(f32::total_cmp);
        let id = |value: &f32| bounds.iter().filter(|bound| value > bound).count() as u8;
        let ids: Vec<u8> = values.iter().map(id).collect();
        let (fours, _) = values.as_chunks();
        let (first, second) = fours.split_at(fours.len() / 3);
        let mut simple = Sums::<CLUSTERS>::default();
        simple.add_to_own(fours.as_flattened(), &ids);
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            let mut found = Sums::<CLUSTERS>::default();
            for values in [first, second] {
                let (bounds, sums) = (&bounds, &mut found);
                simd.vectorize(avx2::AddToAll { simd, values, bounds, sums });
            }
            assert_eq!(bits(&found), bits(&simple), "AVX2");
        }
        let mut found = Sums::<CLUSTERS>::default();
        found.add(values, &ids, &bounds);
        simple.add_to_own(&values[4 * fours.len()..], &ids[4 * fours.len()..]);
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
