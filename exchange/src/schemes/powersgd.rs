//! The gradient of each weight matrix as a product of two slim ones, found together by all ranks.
//!
//! # Paper
//! Vogels, Karimireddy & Jaggi 2019 ("PowerSGD: Practical Low-Rank Gradient Compression for
//! Distributed Optimization"), algorithms 1 and 2.
//!
//! # Idea
//! A gradient of n × m numbers that is nearly of rank r is nearly P̂·Qᵀ with (n + m)·r numbers. One
//! step of subspace iteration finds these: P = M·Q with the Q of the step before, P̂ is P with its
//! columns made orthonormal, and Q = Mᵀ·P̂. Both products are linear in M, so that ranks need not
//! gather each other's messages: they average P, then Q, and what they get is one such step on the
//! mean gradient. As Q is carried over, the iteration goes on from step to step while the gradient's
//! directions change slowly. What P̂·Qᵀ does not say waits in the residual.
//!
//! A parameter of shape \[a, b, c, …\] is a matrix of a rows and b·c·… columns; it is compressed when
//! that makes it smaller by more than `min_compression_rate`, at a rank of min(n, m, `rank`).
//!
//! # Wire
//! Two allreduces of f32 numbers, each factor column by column:
//!
//! | round | numbers | what |
//! |---|---|---|
//! | 0 | Σ n·r | P = M·Q of every compressed matrix |
//! | 0 | … | the parameters that are not compressed |
//! | 1 | Σ m·r | Q = Mᵀ·P̂ of every compressed matrix |
//!
//! The second is left out when nothing is compressed. With `factors = "bf16"` each rank's factors
//! are gathered by all ranks, 2 bytes a number, which average them in f32 in order of rank; what is
//! not compressed stays an allreduce of f32.
//!
//! # State
//! Q of the last step that ended well, the same on all ranks; none without `warm_start`.
//!
//! # Where we differ
//! From the paper: the residual is the gradient less what all ranks settled on, P̂·mean(Q)ᵀ, as in
//! the authors' code and in PyTorch's, where algorithm 2 takes off the rank's own P̂·Qᵀ: the mean of
//! the residuals is the same. Matrices that would hardly become smaller are sent as they are, which is
//! PyTorch's rule; the paper compresses all. Momentum is the optimizer's, after the exchange. The columns of Q are
//! scaled by powers of two before a step, so that P neither overflows nor vanishes; that changes
//! no bit of P̂. A column of P that depends on those before it becomes zero, and so does its Q, which
//! is drawn anew in the next step; without that, a matrix whose gradient was zero once would never
//! be sent again.
//!
//! From PyTorch's hook (`powerSGD_hook`): it makes Q orthonormal too before it multiplies. That is
//! the same P̂ if numbers were exact: column j of P changes by a multiple of itself and of those
//! before it. It divides zero columns by zero unless told to add a number to their norms. Where it
//! does not compress, it leaves a rank's gradient less the mean in the residual, which is zero on
//! average; ours is zero. It starts after 1,000 steps where we start with the first, and takes a rank
//! of 1 where we take 4.

use std::ops::Range;

use crate::compress::scheme::require;
use crate::compress::{Built, Law, Properties, Seat, Soundness};
use crate::reducer::{BucketGradient, Next, Reducer, Round};
use crate::rng::Stream;
use crate::wire::Fault;
use crate::wire::Format;
use crate::{Entry, Gauge, Policy, Result, Scheme, State};

mod kernels;
mod orthogonal;
mod start;
mod sums;

settings! {
    /// The settings of `powersgd`.
    pub struct Config {
        /// Columns of the factors, r: at least 1. Default 4.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub rank: usize = 4,
        /// The first step that is compressed, counted from 1: those before are sent as they are,
        /// unless `policy.warmup_steps` says otherwise. Default 1.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub start_step: u64 = 1,
        /// A matrix is compressed when (n + m)·r times this is less than n·m; above 0. Default 2.
        #[cfg_attr(feature = "schema", schemars(extend("exclusiveMinimum" = 0.0)))]
        pub min_compression_rate: f64 = 2.0,
        /// Whether a step starts from the Q of the one before, else from a random one. Default true.
        pub warm_start: bool = true,
        /// How the numbers of the factors travel: `f32`, or rounded as `bf16`, which has the same
        /// range. What a factor loses is in the residual. Default `f32`.
        pub factors: Format = Format::F32,
        /// Whether what is not sent is added to the next gradient. Default true.
        pub feedback: bool = true,
    }
}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        Properties {
            name: "powersgd",
            line: "two slim factors of each weight matrix, by a step of subspace iteration",
            paper: "Vogels et al. 2019",
            law: Law::Contraction,
            soundness: Soundness::Sound,
            feedback: self.feedback,
        }
    }

    /// Steps before the first compressed one are sent as they are.
    fn default_policy(&self) -> Policy {
        Policy { warmup_steps: Some(self.start_step.saturating_sub(1)), ..Policy::default() }
    }

    fn validate(&self) -> Result<()> {
        let scheme = self.about().name;
        require(self.rank > 0, scheme, "rank", self.rank, "write a rank of 1 or more")?;
        let wanted = "steps count from 1; write 1 to compress from the first step";
        require(self.start_step > 0, scheme, "start_step", self.start_step, wanted)?;
        let rate = self.min_compression_rate;
        let good = rate > 0.0 && rate.is_finite();
        require(good, scheme, "min_compression_rate", rate, "write a number above 0")?;
        let wanted = "small gradients are below its range; write `bf16`, or `f32`";
        require(self.factors != Format::F16, scheme, "factors", "'f16'", wanted)
    }

    /// # Panics
    /// When the shapes have not as many elements as the seat.
    fn build(&self, seat: &Seat) -> Built {
        Built::reducer(Powersgd::new(self, seat))
    }

    fn examples() -> Vec<Self> {
        vec![
            Self { rank: 1, feedback: false, ..Self::default() },
            Self { rank: 2, warm_start: false, ..Self::default() },
            Self { rank: 32, min_compression_rate: 1.0, ..Self::default() },
            Self { factors: Format::Bf16, ..Self::default() },
        ]
    }
}

/// A parameter that is compressed.
#[derive(Debug, Clone, PartialEq)]
struct Matrix {
    /// Where it lies in the bucket.
    at: Range<usize>,
    /// n.
    rows: usize,
    /// m.
    columns: usize,
    /// Where its P lies among those of the bucket: rank·n numbers.
    p: Range<usize>,
    /// Where its Q lies among those of the bucket: rank·m numbers.
    q: Range<usize>,
}

/// What is compressed of a bucket, and what is not.
#[derive(Debug, Default, PartialEq)]
struct Division {
    matrices: Vec<Matrix>,
    /// What is not compressed, in ascending order.
    plain: Vec<Range<usize>>,
    /// Numbers of all P, and of all Q.
    numbers: (usize, usize),
    /// Elements that are not compressed.
    plain_length: usize,
    /// Numbers of the longest P.
    longest: usize,
}

impl Division {
    fn new(config: &Config, shapes: &[Vec<usize>]) -> Self {
        let mut division = Self::default();
        let mut start = 0;
        for shape in shapes {
            let length: usize = shape.iter().product();
            let at = start..start + length;
            start = at.end;
            let rows = shape.first().copied().unwrap_or(1);
            let columns = length.checked_div(rows).unwrap_or(0);
            let rank = config.rank.min(rows).min(columns);
            let slim = (rows + columns) as f64 * rank as f64 * config.min_compression_rate;
            if shape.len() < 2 || slim >= length as f64 {
                division.plain_length += length;
                match division.plain.last_mut() {
                    Some(last) if last.end == at.start => last.end = at.end,
                    _ => division.plain.push(at),
                }
                continue;
            }
            let (p, q) = division.numbers;
            division.numbers = (p + rank * rows, q + rank * columns);
            division.longest = division.longest.max(rank * rows);
            let (p, q) = (p..division.numbers.0, q..division.numbers.1);
            division.matrices.push(Matrix { at, rows, columns, p, q });
        }
        division
    }
}

/// PowerSGD on one bucket of one rank.
struct Powersgd {
    warm_start: bool,
    factors: Format,
    /// What random numbers are drawn by: the run's seed and the bucket's number.
    key: [u64; 2],
    division: Division,
    /// Q after the last step that was committed; random before the first.
    q: Vec<f32>,
    /// Q of the step under way: what P is made with, this rank's own, then the mean.
    next: Vec<f32>,
    /// P of the step under way, this rank's own, then the mean, then P̂; and behind it the elements
    /// that are not compressed.
    front: Vec<f32>,
    /// Memory for [`orthogonal::orthogonalise`].
    basis: Vec<f64>,
    /// Memory for factors as they travel.
    bytes: Vec<u8>,
    /// Whether `next` is what a finished step has settled on.
    settled: bool,
    gauges: Vec<Gauge>,
}

impl Powersgd {
    fn new(config: &Config, seat: &Seat) -> Self {
        let shapes = seat.shapes.as_slice();
        let division = Division::new(config, shapes);
        let length: usize = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
        assert_eq!(length, seat.length, "the shapes {shapes:?} are not those of the bucket");
        let (p, q) = division.numbers;
        let mut new = Self {
            warm_start: config.warm_start,
            factors: config.factors,
            key: [seat.seed, seat.bucket as u64],
            q: vec![0.0; q],
            next: vec![0.0; q],
            front: vec![0.0; p + division.plain_length],
            basis: vec![0.0; division.longest],
            bytes: Vec::new(),
            settled: false,
            gauges: Vec::with_capacity(1),
            division,
        };
        new.begin(0);
        new.q.copy_from_slice(&new.next);
        new
    }

    /// Prepares the Q that P is made with: the last Q, with random columns in place of those that
    /// are zero; without warm start all columns are random.
    fn begin(&mut self, step: u64) {
        self.settled = false;
        if self.warm_start {
            self.next.copy_from_slice(&self.q);
        } else {
            self.next.fill(0.0);
        }
        for (number, matrix) in self.division.matrices.iter().enumerate() {
            let columns = self.next[matrix.q.clone()].chunks_exact_mut(matrix.columns);
            for (j, column) in columns.enumerate() {
                if !start::scale(column) {
                    let [seed, bucket] = self.key;
                    // No rank: every rank draws the same.
                    let words = [seed, 0, bucket, step, number as u64, j as u64];
                    start::draw(column, Stream::new(&words));
                    start::scale(column);
                }
            }
        }
    }

    /// Round 0: P of every matrix, and what is not compressed.
    fn left(&mut self, values: &[f32]) {
        for Matrix { at, columns, p, q, .. } in &self.division.matrices {
            let (p, q) = (&mut self.front[p.clone()], &self.next[q.clone()]);
            kernels::times(&values[at.clone()], *columns, q, p);
        }
        let mut rest = &mut self.front[self.division.numbers.0..];
        for range in &self.division.plain {
            let (some, others) = rest.split_at_mut(range.len());
            some.copy_from_slice(&values[range.clone()]);
            rest = others;
        }
    }

    /// Round 1: P̂ and Q of every matrix.
    fn right(&mut self, values: &[f32]) {
        let (mut independent, mut most) = (0, 0);
        for Matrix { at, rows, columns, p, q } in &self.division.matrices {
            let (p, q) = (&mut self.front[p.clone()], &mut self.next[q.clone()]);
            independent += orthogonal::orthogonalise(p, *rows, &mut self.basis);
            most += p.len() / rows;
            kernels::transposed_times(&values[at.clone()], *columns, p, q);
        }
        let (share, weight) = (independent as f64 / most as f64, most as f64);
        self.gauges.clear();
        self.gauges.push(Gauge::mean("independent_columns", share, weight));
    }

    /// The last round: the mean of every element, and what has not been sent of it.
    fn finish(&mut self, values: &mut [f32], mut residual: Option<&mut [f32]>) {
        for Matrix { at, columns, p, q, .. } in &self.division.matrices {
            let (p, q) = (&self.front[p.clone()], &self.next[q.clone()]);
            let residual = residual.as_mut().map(|residual| &mut residual[at.clone()]);
            kernels::outer(p, q, *columns, &mut values[at.clone()], residual);
        }
        let mut rest = &self.front[self.division.numbers.0..];
        for range in &self.division.plain {
            let (some, others) = rest.split_at(range.len());
            values[range.clone()].copy_from_slice(some);
            if let Some(residual) = &mut residual {
                residual[range.clone()].fill(0.0);
            }
            rest = others;
        }
        self.settled = true;
    }
}

/// Posts numbers, of which so many first are `factors` and travel in this format; the others are as they are.
fn post(
    format: Format,
    numbers: &[f32],
    factors: usize,
    bytes: &mut Vec<u8>,
    round: &mut Round<'_>,
) {
    if format == Format::F32 {
        return round.allreduce(numbers);
    }
    let (factors, plain) = numbers.split_at(factors);
    if !factors.is_empty() {
        bytes.clear();
        format.put(factors.iter().copied(), bytes);
        round.allgather(bytes);
    }
    if !plain.is_empty() {
        round.allreduce(plain);
    }
}

/// Overwrites numbers by the mean of what all ranks posted by [`post`], added up in order of rank.
fn read(format: Format, numbers: &mut [f32], factors: usize, round: &Round<'_>) -> Result<()> {
    if format == Format::F32 {
        numbers.copy_from_slice(round.mean());
        return Ok(());
    }
    let (numbers, plain) = numbers.split_at_mut(factors);
    if !plain.is_empty() {
        plain.copy_from_slice(round.mean());
    }
    let (size, share) = (format.bytes(), 1.0 / round.world_size() as f32);
    numbers.fill(0.0);
    for message in round.messages() {
        if message.len() != size * numbers.len() {
            Err(Fault::Length { expected: size * numbers.len(), found: message.len() })?;
        }
        for (sum, word) in numbers.iter_mut().zip(message.chunks_exact(size)) {
            let number = format.value(word);
            if !number.is_finite() {
                let found = u16::from_le_bytes([word[0], word[1]]).into();
                Err(Fault::Field { field: "factor", found })?;
            }
            *sum += number;
        }
    }
    numbers.iter_mut().for_each(|sum| *sum *= share);
    Ok(())
}

impl Reducer for Powersgd {
    fn reduce(&mut self, bucket: &mut BucketGradient<'_>, round: &mut Round<'_>) -> Result<Next> {
        let (p, q) = self.division.numbers;
        match round.number() {
            0 => {
                self.begin(round.step());
                self.left(bucket.due());
                post(self.factors, &self.front, p, &mut self.bytes, round);
                return Ok(Next::Again);
            }
            1 => {
                read(self.factors, &mut self.front, p, round)?;
                if !self.division.matrices.is_empty() {
                    self.right(bucket.due());
                    post(self.factors, &self.next, q, &mut self.bytes, round);
                    return Ok(Next::Again);
                }
            }
            _ => read(self.factors, &mut self.next, q, round)?,
        }
        let (mean, unsent) = bucket.parts_mut();
        self.finish(mean, unsent);
        Ok(Next::Done)
    }

    fn commit(&mut self) {
        if std::mem::take(&mut self.settled) && self.warm_start {
            std::mem::swap(&mut self.q, &mut self.next);
        }
    }

    fn save(&self, state: &mut State) {
        if self.warm_start {
            state.insert("q", Entry::F32(self.q.clone()));
        }
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        if self.warm_start {
            let q = state.f32s("q", self.q.len())?;
            self.q.copy_from_slice(q);
        }
        Ok(())
    }

    fn gauges(&self) -> &[Gauge] {
        &self.gauges
    }
}

#[cfg(test)]
mod tests;
