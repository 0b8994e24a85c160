//! Where levels should lie: a moment histogram of normalised gradients, and the levels that
//! round its distribution with the least error, found by dynamic programming.
//!
//! With weight w = s² of its block, bin j between the edges e_j and e_{j+1} holds Σw, Σw·u and
//! Σw·u². The expected error of rounding everything between two levels that are edges follows
//! from these sums exactly, in constant time; the best chain of levels on the grid is a shortest
//! path.

use crate::simd::wide;

/// Edges of the usual grid: ±(k/127)², k = 0 … 127.
pub(crate) const EDGES: usize = 255;

const HALF: usize = EDGES / 2;

/// The edges of the usual grid, ascending.
pub(crate) fn edges() -> Vec<f64> {
    let side = |k: usize| (k as f64 / HALF as f64).powi(2);
    (1..=HALF).rev().map(|k| -side(k)).chain((0..=HALF).map(side)).collect()
}

/// The bin of the usual grid in which `u` in [−1, 1] lies; edges belong to the bin above.
pub(crate) fn bin(u: f64) -> usize {
    let root = HALF as f64 * u.abs().sqrt();
    let bin = if u < 0.0 { HALF - (root.ceil() as usize).min(HALF) } else { HALF + root as usize };
    bin.min(EDGES - 2)
}

/// Sums of w, w·u and w·u² over all bins below a point.
pub(crate) type BinSums = [f64; 3];

fn between(low: BinSums, high: BinSums) -> BinSums {
    std::array::from_fn(|i| high[i] - low[i])
}

/// ∫ of c₂u² + c₁u + c₀.
fn integral(sums: BinSums, c2: f64, c1: f64, c0: f64) -> f64 {
    c2 * sums[2] + c1 * sums[1] + c0 * sums[0]
}

/// A distribution as sums below each edge.
#[derive(Debug, Clone, Default)]
pub(crate) struct Distribution {
    edges: Vec<f64>,
    below: Vec<BinSums>,
}

impl Distribution {
    /// Nothing yet, on ascending `edges`.
    pub(crate) fn on(edges: Vec<f64>) -> Self {
        Self { below: vec![[0.0; 3]; edges.len()], edges }
    }

    /// Takes up the moments of bin after bin.
    pub(crate) fn fill(&mut self, bins: impl Iterator<Item = BinSums>) {
        let mut sums = [0.0; 3];
        for (below, bin) in self.below[1..].iter_mut().zip(bins) {
            (0..3).for_each(|i| sums[i] += bin[i]);
            *below = sums;
        }
    }

    /// Everything.
    fn whole(&self) -> BinSums {
        self.below.last().copied().unwrap_or_default()
    }

    /// BinSums below `x`, which lies in bin `bin`, inside which everything is spread evenly.
    fn below(&self, x: f64, bin: usize) -> BinSums {
        let (low, high) = (self.edges[bin], self.edges[bin + 1]);
        let share = ((x - low) / (high - low)).clamp(0.0, 1.0);
        std::array::from_fn(|i| {
            self.below[bin][i] + share * (self.below[bin + 1][i] - self.below[bin][i])
        })
    }

    /// BinSums between two points.
    pub(crate) fn range(&self, low: f64, high: f64) -> BinSums {
        let bin = |x: f64| {
            let above = self.edges.partition_point(|edge| *edge <= x);
            above.saturating_sub(1).min(self.edges.len() - 2)
        };
        between(self.below(low, bin(low)), self.below(high, bin(high)))
    }

    /// Expected squared error of unbiased rounding to `levels`, weighted: Σ w(u−l_j)(l_{j+1}−u).
    pub(crate) fn variance(&self, levels: &[f64]) -> f64 {
        let each = |pair: &[f64]| {
            let [a, c] = [pair[0], pair[1]];
            integral(self.range(a, c), -1.0, a + c, -a * c)
        };
        levels.windows(2).map(each).sum()
    }
}

/// What to minimise: λ·bias² + variance of rounding with the best probabilities for λ (which is
/// unbiased rounding when λ is infinite, and to the nearest level when it is 1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Aim {
    /// No bias: the end levels are the ends of the grid.
    Unbiased,
    /// The weight λ ≥ 1 of the squared bias; what lies beyond the end levels is clipped to them.
    Biased(f64),
}

/// The memory of the dynamic programme.
#[derive(Debug, Clone, Default)]
pub(crate) struct Solver {
    /// At level·edges + edge: the least error of everything below the edge if the level is there.
    best: Vec<f64>,
    /// The error between each edge below and the one under consideration.
    costs: Vec<f64>,
}

impl Solver {
    /// Puts the best levels on the grid, ascending, into `levels`; of equally good ones those
    /// that are lowest, the highest level first. There are at least as many edges as levels.
    pub(crate) fn solve(&mut self, distribution: &Distribution, aim: Aim, levels: &mut [f64]) {
        let Distribution { edges, below } = distribution;
        let (count, size) = (levels.len(), edges.len());
        let clipped = |sums: BinSums, at: f64| match aim {
            Aim::Unbiased => f64::INFINITY,
            Aim::Biased(lambda) => lambda * integral(sums, 1.0, -2.0 * at, at * at),
        };
        self.costs.clear();
        self.costs.resize(size, 0.0);
        self.best.clear();
        self.best.resize(count * size, f64::INFINITY);
        for (edge, at) in edges.iter().enumerate() {
            self.best[edge] = clipped(below[edge], *at);
        }
        if aim == Aim::Unbiased {
            self.best[0] = 0.0;
        }
        for edge in 1..size {
            costs(distribution, aim, edge, &mut self.costs);
            for level in 1..count {
                let (done, rest) = self.best.split_at_mut(level * size);
                let before = &done[(level - 1) * size..][..edge];
                rest[edge] = wide!(least_sum(before, &self.costs[..edge]));
            }
        }
        let top = &self.best[(count - 1) * size..];
        let mut edge = match aim {
            Aim::Unbiased => size - 1,
            Aim::Biased(_) => {
                let total = |edge: usize| {
                    top[edge] + clipped(between(below[edge], distribution.whole()), edges[edge])
                };
                (1..size).fold(0, |best, edge| if total(edge) < total(best) { edge } else { best })
            }
        };
        levels[count - 1] = edges[edge];
        for level in (1..count).rev() {
            costs(distribution, aim, edge, &mut self.costs);
            let before = &self.best[(level - 1) * size..][..edge];
            let reached = self.best[level * size + edge];
            edge = before
                .iter()
                .zip(&self.costs)
                .position(|(before, cost)| before + cost == reached)
                .unwrap_or(0);
            levels[level - 1] = edges[edge];
        }
    }
}

/// The least of the sums of two slices of equal length, at least 1.
#[inline(always)]
fn least_sum(a: &[f64], b: &[f64]) -> f64 {
    const LANES: usize = 8;
    let lower = |a: f64, b: f64| if b < a { b } else { a };
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut least = [f64::INFINITY; LANES];
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            least[i] = lower(least[i], a[i] + b[i]);
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| a + b);
    rest.chain(least).fold(f64::INFINITY, lower)
}

/// Puts the error between each lower edge and `edge` into `costs`.
fn costs(of: &Distribution, aim: Aim, edge: usize, costs: &mut [f64]) {
    let (above, high) = (of.below[edge], of.edges[edge]);
    let mut breaks = [0; 2];
    for (a, cost) in costs[..edge].iter_mut().enumerate() {
        *cost = match aim {
            Aim::Unbiased => {
                let low = of.edges[a];
                integral(between(of.below[a], above), -1.0, low + high, -low * high)
            }
            Aim::Biased(lambda) => biased(of, lambda, a, edge, &mut breaks),
        };
    }
}

/// The error between two levels at edges `a` and `c` under λ: λt² below t = 1/2λ, ¼ − κ(t − ½)²
/// in the middle, λ(1 − t)² above, times the square of their distance, with κ = λ/(λ − 1).
///
/// `bins` are where the two breaks were for a lower `a`: they ascend with it.
fn biased(of: &Distribution, lambda: f64, a: usize, c: usize, bins: &mut [usize; 2]) -> f64 {
    let (low, high) = (of.edges[a], of.edges[c]);
    let width = high - low;
    let mut at = |number: usize, x: f64| {
        let bin = &mut bins[number];
        while *bin + 2 < of.edges.len() && of.edges[*bin + 1] <= x {
            *bin += 1;
        }
        of.below(x, *bin)
    };
    let lower = at(0, low + width / (2.0 * lambda));
    let upper = at(1, high - width / (2.0 * lambda));
    let mut cost = lambda * integral(between(of.below[a], lower), 1.0, -2.0 * low, low * low)
        + lambda * integral(between(upper, of.below[c]), 1.0, -2.0 * high, high * high);
    if lambda > 1.0 {
        let (kappa, middle) = (lambda / (lambda - 1.0), (low + high) / 2.0);
        let constant = width * width / 4.0 - kappa * middle * middle;
        cost += integral(between(lower, upper), -kappa, 2.0 * kappa * middle, constant);
    }
    cost
}

#[cfg(test)]
mod tests;
