//! Value clusters: where their centres lie, and which of them a value belongs to.

use super::sums::{ClusterSums, put_and_add};
use super::{Config, ids};
use crate::rng::Stream;

/// The most clusters, at 4 bits.
pub(super) const MOST_CLUSTERS: usize = 16;

/// The sorted magnitudes of one sign.
#[derive(Debug, Clone, Default)]
struct Side {
    sorted: Vec<f32>,
    /// Sums of the first 0, 1, 2, … of them.
    sums: Vec<f64>,
}

/// A sample of a gradient, by sign; keeps its memory for the next time.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    negative: Side,
    positive: Side,
}

impl Sample {
    /// Looks at a gradient (all of it, or as many values as the settings say, drawn with
    /// replacement) and puts the centres, ascending, the negative half first, into `centres`.
    /// Returns whether there was a value other than zero. A side without values mirrors the other.
    pub(super) fn centres(
        &mut self,
        gradient: &[f32],
        config: &Config,
        stream: Stream,
        centres: &mut [f32],
    ) -> bool {
        let all = gradient.len() <= config.sample;
        let (count, length) = (gradient.len().min(config.sample), gradient.len() as u32);
        let sides = [&mut self.negative, &mut self.positive];
        for side in sides {
            side.sorted.clear();
            side.sums.clear();
            side.sorted.reserve(count);
            side.sums.reserve(count + 1);
        }
        for i in 0..count {
            let at = if all { i } else { stream.below(i as u32, length) as usize };
            let value = gradient[at];
            let side = if value > 0.0 { &mut self.positive } else { &mut self.negative };
            side.sorted.push(value.abs());
        }
        let half = config.clusters() / 2;
        let mut found = [[0f64; MOST_CLUSTERS / 2]; 2];
        for (side, found) in [&mut self.negative, &mut self.positive].into_iter().zip(&mut found) {
            side.sort();
            side.centres(config, &mut found[..half]);
        }
        if self.negative.sorted.is_empty() {
            found[0] = found[1];
        } else if self.positive.sorted.is_empty() {
            found[1] = found[0];
        }
        for j in 0..half {
            centres[half - 1 - j] = -found[0][j] as f32;
            centres[half + j] = found[1][j] as f32;
        }
        [&self.negative, &self.positive].iter().any(|side| side.sums.last() > Some(&0.0))
    }
}

impl Side {
    fn sort(&mut self) {
        // The bits of magnitudes order as the magnitudes do.
        self.sorted.sort_unstable_by_key(|magnitude| magnitude.to_bits());
        self.sums.push(0.0);
        let mut sum = 0.0;
        self.sums.extend(self.sorted.iter().map(|magnitude| {
            sum += f64::from(*magnitude);
            sum
        }));
    }

    /// The `share`-quantile of the first `count` values, interpolated.
    fn quantile(&self, share: f64, count: usize) -> f64 {
        let Some(last) = count.checked_sub(1) else { return 0.0 };
        let at = share * last as f64;
        let (low, high) = (at.floor() as usize, (at.ceil() as usize).min(last));
        let (low, high) = (f64::from(self.sorted[low]), f64::from(self.sorted[high]));
        low + (high - low) * at.fract()
    }

    /// Moves each centre to the mean of those of the first `count` values that are nearest to it.
    fn lloyd(&self, centres: &mut [f64], count: usize, iterations: u32) {
        for _ in 0..iterations {
            let mut from = 0;
            for j in 0..centres.len() {
                let to = match centres.get(j + 1) {
                    // `centres[j]` has not moved yet, and is the old one of this pair.
                    Some(next) => {
                        let middle = (centres[j] + next) / 2.0;
                        let values = &self.sorted[from..count];
                        from + values.partition_point(|value| f64::from(*value) <= middle)
                    }
                    None => count,
                };
                if to > from {
                    centres[j] = (self.sums[to] - self.sums[from]) / (to - from) as f64;
                }
                from = to;
            }
        }
    }

    /// One centre at the percentile, the others by k-means of what is below it; ascending.
    fn centres(&self, config: &Config, centres: &mut [f64]) {
        const K_MEANS_ITERATIONS: u32 = 10;
        let count = self.sorted.len();
        let last = centres.len() - 1;
        if last == 0 {
            centres[0] = if count == 0 { 0.0 } else { self.sums[count] / count as f64 };
            return;
        }
        let tail = self.quantile(config.percentile / 100.0, count);
        let body = self.sorted.partition_point(|value| f64::from(*value) < tail);
        for (j, centre) in centres[..last].iter_mut().enumerate() {
            *centre =
                if body == 0 { tail } else { self.quantile((j as f64 + 0.5) / last as f64, body) };
        }
        self.lloyd(&mut centres[..last], body, K_MEANS_ITERATIONS);
        centres[last] = tail;
        self.lloyd(centres, count, config.polish);
        centres.sort_unstable_by(f64::total_cmp);
    }
}

/// What is known of the members of a cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Members {
    pub(super) count: u64,
    pub(super) sum: f64,
    pub(super) squares: f64,
}

impl Members {
    pub(super) fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / self.count as f64 }
    }

    /// Their variance (divided by their number).
    pub(super) fn variance(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        (self.squares / self.count as f64 - self.mean().powi(2)).max(0.0)
    }
}

/// Puts each value's cluster, that of the nearest centre of its own sign (zero is not positive),
/// into `ids`, and returns what the clusters hold then.
pub(super) fn assign(
    gradient: &[f32],
    centres: &[f32],
    ids: &mut Vec<u8>,
) -> [Members; MOST_CLUSTERS] {
    assign_by(gradient, centres, ids, true)
}

/// The same, with ids and sums in one pass where the processor can, or never.
fn assign_by(
    gradient: &[f32],
    centres: &[f32],
    ids: &mut Vec<u8>,
    together: bool,
) -> [Members; MOST_CLUSTERS] {
    ids.resize(gradient.len(), 0);
    match centres.len() {
        2 => assign_to::<1, 2>(gradient, centres, ids, together),
        4 => assign_to::<3, 4>(gradient, centres, ids, together),
        8 => assign_to::<7, 8>(gradient, centres, ids, together),
        _ => assign_to::<15, 16>(gradient, centres, ids, together),
    }
}

fn assign_to<const BOUNDS: usize, const CLUSTERS: usize>(
    gradient: &[f32],
    centres: &[f32],
    ids: &mut [u8],
    together: bool,
) -> [Members; MOST_CLUSTERS] {
    let mut bounds: [f32; BOUNDS] = std::array::from_fn(|j| {
        let (low, high) = (f64::from(centres[j]), f64::from(centres[j + 1]));
        if j == BOUNDS / 2 { 0.0 } else { ((low + high) / 2.0) as f32 }
    });
    // How many of them a value is above does not depend on their order, and the centres that
    // another rank has sent may lie on one side of zero.
    bounds.sort_unstable_by(f32::total_cmp);
    // Values are read twice, while the first cache holds them.
    const BLOCK: usize = 4096;
    let mut counts = [0; CLUSTERS];
    let mut sums = ClusterSums::<CLUSTERS>::default();
    for (values, ids) in gradient.chunks(BLOCK).zip(ids.chunks_mut(BLOCK)) {
        let done = match together {
            true => put_and_add(values, &bounds, ids, &mut counts, &mut sums),
            false => 0,
        };
        let (values, ids) = (&values[done..], &mut ids[done..]);
        ids::put(values, &bounds, ids, &mut counts);
        sums.add(values, ids);
    }
    let mut whole = [Members::default(); MOST_CLUSTERS];
    for (cluster, whole) in whole.iter_mut().enumerate().take(CLUSTERS) {
        let [sum, squares] = sums.totals(cluster);
        *whole = Members { count: counts[cluster], sum, squares };
    }
    whole
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One value at a time, in the eight lanes that the sums are kept in.
    fn simple(gradient: &[f32], bounds: &[f32]) -> (Vec<u8>, [Members; MOST_CLUSTERS]) {
        let mut lanes = [[Members::default(); MOST_CLUSTERS]; 8];
        let mut ids = Vec::new();
        for (i, value) in gradient.iter().enumerate() {
            let id = bounds.iter().filter(|bound| value > bound).count();
            let members = &mut lanes[i % 8][id];
            members.count += 1;
            members.sum += f64::from(*value);
            members.squares += f64::from(*value) * f64::from(*value);
            ids.push(id as u8);
        }
        let [mut whole, others @ ..] = lanes;
        for lane in others {
            for (whole, part) in whole.iter_mut().zip(lane) {
                whole.count += part.count;
                whole.sum += part.sum;
                whole.squares += part.squares;
            }
        }
        (ids, whole)
    }

    fn bits(members: &[Members]) -> Vec<[u64; 3]> {
        members.iter().map(|m| [m.count, m.sum.to_bits(), m.squares.to_bits()]).collect()
    }

    fn compare(values: &[f32], centres: &[f32]) {
        let bounds: Vec<f32> = (1..centres.len())
            .map(|j| match j == centres.len() / 2 {
                true => 0.0,
                false => ((f64::from(centres[j - 1]) + f64::from(centres[j])) / 2.0) as f32,
            })
            .collect();
        let (expected_ids, expected) = simple(values, &bounds);
        for together in [true, false] {
            let mut ids = vec![0xff; 10];
            let found = assign_by(values, centres, &mut ids, together);
            assert_eq!(ids, expected_ids);
            assert_eq!(bits(&found), bits(&expected));
        }
    }

    proptest! {
        #[test]
        fn clusters_have_the_bits_of_their_simple_form(
            values in proptest::collection::vec(-2.0f32..2.0, 0..9000),
            centres in proptest::collection::vec(-2.0f32..2.0, 16), zeros in 0usize..5,
        ) {
            let (mut values, mut centres) = (values, centres);
            values.iter_mut().step_by(zeros + 2).for_each(|value| *value *= -0.0);
            centres.sort_unstable_by(f32::total_cmp);
            for clusters in [2, 4, 8, 16] {
                compare(&values, &centres[..clusters]);
            }
        }
    }
}
