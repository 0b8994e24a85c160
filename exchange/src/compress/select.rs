//! The k largest magnitudes, exactly, in linear time whatever the values.
//!
//! A radix selection on the 31 bits of the magnitude, which order as the magnitudes do: a
//! histogram of the upper 11 bits finds the bin in which the k-th largest lies; one more pass
//! gathers everything from that bin upwards (in order of position); two more histograms, over
//! the gathered members of that bin only, find the k-th largest itself.

const UPPER_BITS: u32 = 11;
const LOWER_BITS: u32 = 10;

/// Elements that are passed over at once when none of them is large enough.
const STRIDE: usize = 16;

/// Finds the largest magnitudes of a slice, keeping its memory for the next time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selector {
    positions: Vec<u32>,
    histogram: Vec<[u32; 1 << UPPER_BITS]>,
    /// Values of candidates.
    among: Vec<f32>,
}

/// The magnitude's bits: they order as magnitudes do, NaN above infinity.
fn key(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

impl Selector {
    /// Positions of the `k` values of largest magnitude, ascending. Of equal magnitudes the
    /// lowest position goes first; zeros are never among them, so that there can be fewer.
    ///
    /// `values` has fewer than 2³² elements.
    pub(crate) fn largest(&mut self, values: &[f32], k: usize) -> &[u32] {
        self.positions.clear();
        if k == 0 || values.is_empty() {
            return &self.positions;
        }
        let (bin, above, within) = self.find_bin(values, k);
        let floor = (bin << (2 * LOWER_BITS)).max(1);
        self.gather(values, floor, above + within);
        if self.positions.len() > k {
            self.trim(values, bin, k - above);
        }
        &self.positions
    }

    /// The same among the values at `candidates` only; of equal magnitudes the first candidate
    /// goes first, and positions are in the candidates' order.
    pub(crate) fn largest_among(&mut self, values: &[f32], candidates: &[u32], k: usize) -> &[u32] {
        let mut among = std::mem::take(&mut self.among);
        among.clear();
        among.extend(candidates.iter().map(|position| values[*position as usize]));
        self.largest(&among, k);
        self.among = among;
        self.positions.iter_mut().for_each(|position| *position = candidates[*position as usize]);
        &self.positions
    }

    /// The bin of upper bits in which the k-th largest lies, the number of values in bins above
    /// it, and in it. The simple form counts `histogram[bin(value)] += 1`.
    fn find_bin(&mut self, values: &[f32], k: usize) -> (u32, usize, usize) {
        const TABLES: usize = 4;
        self.histogram.clear();
        self.histogram.resize(TABLES, [0; 1 << UPPER_BITS]);
        let [a, b, c, d] = self.histogram.as_mut_slice() else {
            unreachable!("invariant: there are {TABLES} tables")
        };
        let bin = |value: f32| (key(value) >> (2 * LOWER_BITS)) as usize;
        // Neighbours often fall into the same bin: four tables keep their counts apart.
        let (fours, rest) = values.as_chunks::<TABLES>();
        for four in fours {
            a[bin(four[0])] += 1;
            b[bin(four[1])] += 1;
            c[bin(four[2])] += 1;
            d[bin(four[3])] += 1;
        }
        for value in rest {
            a[bin(*value)] += 1;
        }
        for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
            *a += *b + *c + *d;
        }
        descend(a, k)
    }

    /// Gathers the positions of all values whose key is `floor` or more, of which there are at
    /// most `most`.
    fn gather(&mut self, values: &[f32], floor: u32, most: usize) {
        // The slot after the last is written to, and not kept, by values that are too small.
        self.positions.resize(most + 1, 0);
        let mut count = 0;
        for (chunk, values) in values.chunks(STRIDE).enumerate() {
            if values.iter().fold(0, |any, value| any | u32::from(key(*value) >= floor)) == 0 {
                continue;
            }
            for (within, value) in values.iter().enumerate() {
                self.positions[count] = (chunk * STRIDE + within) as u32;
                count += usize::from(key(*value) >= floor);
            }
        }
        self.positions.truncate(count);
    }

    /// Keeps, of the gathered members of `bin`, the `k` largest; members of bins above stay.
    fn trim(&mut self, values: &[f32], bin: u32, k: usize) {
        let keys = || self.positions.iter().map(|position| key(values[*position as usize]));
        let refine = |prefix: u32, shift: u32, k: usize| {
            let mut histogram = [0u32; 1 << LOWER_BITS];
            for key in keys().filter(|key| key >> (shift + LOWER_BITS) == prefix) {
                histogram[(key >> shift) as usize % (1 << LOWER_BITS)] += 1;
            }
            let (digit, above, _) = descend(&histogram, k);
            (prefix << LOWER_BITS | digit, k - above)
        };
        let (prefix, k) = refine(bin, LOWER_BITS, k);
        let (threshold, mut ties) = refine(prefix, 0, k);
        self.positions.retain(|position| {
            let key = key(values[*position as usize]);
            let tie = key == threshold && ties > 0;
            ties -= usize::from(tie);
            key > threshold || tie
        });
    }
}

/// Going down from the last bin: the first at which the count reaches `k` (the lowest bin if
/// none does), the count of bins above it, and its own.
fn descend(histogram: &[u32], k: usize) -> (u32, usize, usize) {
    let mut above = 0;
    for (bin, &count) in histogram.iter().enumerate().rev() {
        let count = count as usize;
        if above + count >= k || bin == 0 {
            return (bin as u32, above, count);
        }
        above += count;
    }
    (0, 0, 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same by sorting everything.
    fn naive(values: &[f32], k: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..values.len() as u32).collect();
        order.sort_by_key(|position| {
            (std::cmp::Reverse(key(values[*position as usize])), *position)
        });
        order.truncate(k);
        order.retain(|position| values[*position as usize] != 0.0);
        order.sort_unstable();
        order
    }

    fn awkward() -> impl Strategy<Value = f32> {
        prop_oneof![
            8 => -1.0f32..1.0,
            2 => prop::sample::select(vec![0.0, -0.0, 1.0, -1.0, 0.5, f32::MAX, f32::MIN, f32::MIN_POSITIVE]),
            2 => (0u32..0x7f80_0000).prop_map(f32::from_bits),
            1 => (0u32..100).prop_map(f32::from_bits),
            2 => (0u32..5).prop_map(|low| f32::from_bits(0x3f80_0000 + low)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn selection_equals_sorting(values in proptest::collection::vec(awkward(), 0..300), k in 0usize..320) {
            let mut selector = Selector::default();
            prop_assert_eq!(selector.largest(&values, k), naive(&values, k));
            let few = k % 7;
            prop_assert_eq!(selector.largest(&values, few), naive(&values, few));
        }
    }

    #[test]
    fn candidates_are_the_only_ones_that_count() {
        let mut selector = Selector::default();
        let values = [9.0, -1.0, 2.0, 0.0, 2.0, -3.0];
        assert_eq!(selector.largest_among(&values, &[1, 2, 3, 4], 2), [2, 4]);
        assert_eq!(selector.largest_among(&values, &[1, 2, 3, 4], 9), [1, 2, 4]);
        assert_eq!(selector.largest_among(&values, &[], 2), [0u32; 0]);
    }

    #[test]
    fn of_equal_magnitudes_the_lowest_positions_go_first() {
        let mut selector = Selector::default();
        assert_eq!(selector.largest(&[1.0, -1.0, 1.0, 2.0, -1.0], 3), [0, 1, 3]);
        assert_eq!(selector.largest(&[0.0; 50], 3), [0u32; 0]);
        assert_eq!(selector.largest(&[7.0; 50], 3), [0, 1, 2]);
    }

    #[test]
    fn values_that_should_not_be_here_do_no_harm() {
        let values = [f32::NAN, 1.0, f32::INFINITY, -f32::NAN, f32::from_bits(0xffff_ffff)];
        assert_eq!(Selector::default().largest(&values, 4), [0, 2, 3, 4]);
    }
}
