//! How many cells each cluster is given.

use serde::{Deserialize, Serialize};

use super::clusters::{MOST_CLUSTERS, Members};

/// A rule that shares cells among clusters; each gets at least one, and no more than it has
/// members.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Allocation {
    /// So that the expected squared error is least, for members hashed uniformly.
    #[default]
    VarianceOptimal,
    /// As many as said for each cluster, in ascending order of its centre, as long as they fit;
    /// lowered from the largest down where they do not.
    Manual(Vec<u32>),
}

impl Allocation {
    /// Shares at most `budget` cells (or one each, if that is less than one each).
    pub(super) fn share(&self, members: &[Members], budget: u64) -> [u32; MOST_CLUSTERS] {
        if budget <= members.len() as u64 {
            return [1; MOST_CLUSTERS];
        }
        let shares = match self {
            Allocation::VarianceOptimal => optimal(members, budget as f64),
            Allocation::Manual(sizes) => {
                std::array::from_fn(|id| sizes.get(id).map_or(0.0, |size| f64::from(*size)))
            }
        };
        let mut sizes = rounded(shares, members, budget);
        if *self == Allocation::VarianceOptimal {
            fill(&mut sizes[..members.len()], members, budget);
        }
        sizes
    }
}

/// Whole numbers that are in the budget, for shares that may not be.
fn rounded(shares: [f64; MOST_CLUSTERS], members: &[Members], budget: u64) -> [u32; MOST_CLUSTERS] {
    let mut sizes = [1; MOST_CLUSTERS];
    for ((size, share), members) in sizes.iter_mut().zip(shares).zip(members) {
        let most = members.count.clamp(1, u32::MAX.into());
        *size = share.round_ties_even().clamp(1.0, most as f64) as u32;
    }
    trim(&mut sizes[..members.len()], budget);
    sizes
}

/// Lowers the largest sizes until they fit; there is room for one each.
fn trim(sizes: &mut [u32], budget: u64) {
    loop {
        let whole: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
        let excess = whole.saturating_sub(budget);
        if excess == 0 {
            return;
        }
        let most = sizes.iter().copied().max().unwrap_or(1);
        let next = sizes.iter().copied().filter(|size| *size < most).max().unwrap_or(1);
        let largest = sizes.iter_mut().find(|size| **size == most);
        let step = excess.min(u64::from((most - next).max(1))) as u32;
        if let Some(largest) = largest {
            *largest -= step;
        }
    }
}

/// Gives the cells that are left over to the clusters that gain most from one cell more. Many
/// are left over where a cluster gains all of its variance from each of its first cells: such a
/// cluster has been given either one cell or a great many.
fn fill(sizes: &mut [u32], members: &[Members], budget: u64) {
    for _ in 0..sizes.len() {
        let left = budget.saturating_sub(sizes.iter().map(|size| u64::from(*size)).sum());
        let worth = |size: u32, members: &Members| {
            let room = u64::from(size) < members.count;
            let load = members.count as f64 / f64::from(size);
            if room { members.variance() * gain(load) } else { 0.0 }
        };
        let each = sizes.iter_mut().zip(members).map(|(s, m)| (worth(*s, m), s, m));
        let best = each.max_by(|a, b| a.0.total_cmp(&b.0));
        match best {
            Some((worth, size, members)) if worth > 0.0 && left > 0 => {
                *size += left.min(members.count - u64::from(*size)) as u32;
            }
            _ => return,
        }
    }
}

/// The gain of a cell more, in units of the variance, where there are `load` members for each:
/// 1 − e^−λ(1 + λ).
fn gain(load: f64) -> f64 {
    // The difference of nearly equal numbers loses digits below; the series does not.
    if load < 1e-3 {
        return load * load * (0.5 - load / 3.0);
    }
    1.0 - (-load).exp() * (1.0 + load)
}

/// The largest load that [`load`] gives: from there on a cell more gains all of the variance, to the last bit.
const MOST_LOAD: f64 = 60.0;

/// The load at which a cell more gains as much as `target`, between 0 and 1.
fn load(target: f64) -> f64 {
    if target >= gain(MOST_LOAD) {
        return MOST_LOAD;
    }
    // Newton's steps from the leading term, kept between bounds that close in.
    let (mut low, mut high) = (0.0, MOST_LOAD);
    let mut load = (2.0 * target).sqrt().clamp(1e-12, 1.0);
    for _ in 0..60 {
        let off = gain(load) - target;
        if off < 0.0 {
            low = load;
        } else {
            high = load;
        }
        let step = load - off / (load * (-load).exp());
        let next = if step > low && step < high { step } else { (low + high) / 2.0 };
        if (next - load).abs() <= 1e-13 * load {
            return next;
        }
        load = next;
    }
    load
}

/// Every cluster with more than one cell gains equally from one more: σ²·γ(n/m) = q, with q such that
/// the cells are as many as the budget has, within a quarter of one. At a jump, or where their number
/// changes nearly as fast, they may be fewer: [`fill`] gives away the others.
///
/// There are jumps where q is the variance of a cluster, which has one cell from there on. Between two
/// of them the logarithm of the number of cells is nearly linear in that of q, and followed by secants.
fn optimal(members: &[Members], budget: f64) -> [f64; MOST_CLUSTERS] {
    const SECANTS: usize = 12;
    const MOST: usize = 100;
    let share = |members: &Members, q: f64| {
        let (count, variance) = (members.count as f64, members.variance());
        if variance > q && count > 0.0 { (count / load(q / variance)).max(1.0) } else { 1.0 }
    };
    let whole = |q: f64| members.iter().map(|members| share(members, q)).sum::<f64>();
    let shares =
        |q: f64| std::array::from_fn(|id| members.get(id).map_or(0.0, |members| share(members, q)));
    let mut variances = [0.0; MOST_CLUSTERS];
    for (variance, members) in variances.iter_mut().zip(members) {
        *variance = members.variance();
    }
    let variances = &mut variances[..members.len()];
    variances.sort_unstable_by(f64::total_cmp);
    let (mut low, mut high) = (0.0, 0.0);
    for variance in variances {
        high = *variance;
        if whole(high) <= budget {
            break;
        }
        low = high;
    }
    let jump = |members: &Members| (members.count as f64 / MOST_LOAD).max(1.0) - 1.0;
    let jumping = members.iter().filter(|members| members.variance() == high);
    if whole(high) + jumping.map(jump).sum::<f64>() > budget {
        return shares(high);
    }
    // What they would be if each load were small: γ(λ) = λ²/2.
    let sums = members.iter().map(|members| members.count as f64 * members.variance().sqrt());
    let mut q = (sums.sum::<f64>() / budget).powi(2) / 2.0;
    let mut last = None;
    for round in 0..MOST {
        if high - low <= 1e-12 * high {
            break;
        }
        if !(q > low && q < high) {
            q = (low + high) / 2.0;
        }
        let cells = whole(q);
        if (cells - budget).abs() <= 0.25 {
            high = q;
            break;
        }
        let beyond = (cells / budget).ln();
        if beyond > 0.0 {
            low = q;
        } else {
            high = q;
        }
        let here = (q.ln(), beyond);
        // With one point, the slope of the leading term.
        let slope = last.map_or(-0.5, |last: (f64, f64)| (here.1 - last.1) / (here.0 - last.0));
        last = Some(here);
        q = if round < SECANTS { (here.0 - here.1 / slope).exp() } else { f64::NAN };
    }
    shares(high)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn members(count: f64, mean: f64, variance: f64) -> Members {
        let square = variance + mean * mean;
        Members { count: count as u64, sum: mean * count, squares: square * count }
    }

    /// `allocation` of the project's reference vectors, whose rounded shares are not trimmed.
    #[test]
    fn shares_are_those_of_the_reference() {
        let clusters = [
            members(52_000.0, -2.4, 0.9),
            members(448_000.0, -0.5, 0.08),
            members(447_000.0, 0.5, 0.08),
            members(53_000.0, 2.5, 1.1),
        ];
        for (rule, expected) in [
            (Allocation::VarianceOptimal, [3015, 1, 1, 16_983]),
            (Allocation::Manual(vec![7, 1, 1, 90]), [7, 1, 1, 90]),
        ] {
            let mut expected = expected;
            trim(&mut expected, 20_000);
            assert_eq!(rule.share(&clusters, 20_000)[..4], expected, "{rule:?}");
        }
    }

    /// `gain_g(lambda)` of the project's reference vectors.
    #[test]
    fn gains_are_those_of_the_reference() {
        for (at, expected) in [
            (0.01, 4.966_791_334e-5),
            (0.1, 0.004_678_840_160_444),
            (0.5, 0.090_204_010_431_05),
            (1.0, 0.264_241_117_657_115),
            (2.0, 0.593_994_150_290_162),
            (8.0, 0.996_980_836_348_877),
        ] {
            assert!((gain(at) - expected).abs() < 1e-12, "{at}: {}", gain(at));
            assert!((load(expected) / at - 1.0).abs() < 1e-6, "{at}");
        }
        assert!((gain(1e-3) / gain(1.000_001e-3) - 1.0).abs() < 1e-5);
    }

    proptest! {
        #[test]
        fn no_rule_gives_too_many_or_none(
            counts in proptest::collection::vec(0u32..1_000_000, 16), bits in 1usize..=4,
            spreads in proptest::collection::vec(0.0f64..10.0, 16), budget in 0u64..200_000, manual: bool,
        ) {
            let clusters = 1 << bits;
            let all: Vec<Members> = counts
                .iter()
                .zip(&spreads)
                .take(clusters)
                .map(|(count, spread)| members(f64::from(*count), spread - 5.0, spread * spread))
                .collect();
            let optimal = Allocation::VarianceOptimal;
            let rule = if manual { Allocation::Manual(counts) } else { optimal };
            let sizes = rule.share(&all, budget);
            let sizes = &sizes[..clusters];
            let whole: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
            prop_assert!(whole <= budget.max(clusters as u64));
            for (size, members) in sizes.iter().zip(&all) {
                prop_assert!(*size >= 1 && u64::from(*size) <= members.count.max(1));
            }
        }
    }
}
