//! Selection by what all ranks know of the last rounds, so that the ranks' choices overlap.
//!
//! # Paper
//! Wang, Liu & Wu, ICNCC 2018, on gradient sparsification that is aware of aggregation (and the
//! master's thesis of S.-P. Wang, National Taiwan University 2018). A **reconstruction from the
//! abstract**:
//! it says that a parameter server's sending cost is the size of the union of what the ranks
//! send, that the ranks' selection can make it smaller, and that gradients are large for a short
//! time only. The rules are ours.
//!
//! # Idea
//! Ranks that select by themselves select almost disjoint elements, and the server has to send
//! nearly N times k. What the server sent last is known to every rank for nothing: select partly
//! inside it, and the union shrinks.
//!
//! # Wire
//! A sparse message of at most k elements, whatever the rule (`compress/sparse.rs`).
//!
//! # State
//! The last union; for `mix` the last sums. Learned from all ranks' messages, and so the same everywhere.
//!
//! # Where we differ
//! Without a server ([`Topology::Server`](crate::Topology)) every rank hears every message. What a server
//! would have sent is recorded all the same: `union` positions, `server_bytes` (8 bytes each, to each rank) beside
//! `server_bytes_bound` (of disjoint choices, 8·min(N·k, d)). The first round, which knows
//! nothing, is plain top-k. Of equal scores the lowest position goes first. A selection by the
//! last sum alone is not offered: it freezes on its first k elements and does not converge.
//!
//! # What was not within our reach
//! The paper's algorithms, metrics, datasets and numbers.

mod memory;
mod rule;
use memory::Memory;
pub use rule::SelectionRule;

use crate::compress::ratio::Ratio;
use crate::compress::select::Selector;
use crate::compress::values::{QsgdValues, Sender, Values};
use crate::compress::{
    Built, Compressor, Encoded, Law, Properties, Seat, Soundness, StepEnd, StepMessages, sparse,
};
use crate::{Gauge, Result, Scheme, State};

/// Bytes that a server takes for one element: an f32 and a u32.
const SERVER_BYTES: f64 = 8.0;

settings! {
    /// The settings of `aggregation-aware`.
    pub struct Config {
        /// Share of each bucket's elements that each rank sends, above 0 and at most 1: of n
        /// elements max(1, round(ratio·n)); or a falling one. Default 0.01.
        pub ratio: Ratio = 0.01.into(),
        /// The rule of selection. Default `{ by = "prev-union", p = 0.75 }`.
        pub rule: SelectionRule = SelectionRule::default(),
        /// How the values are sent: `f32`, `f16`, `bf16`, `2bit`, or quantised, such as
        /// `{ kind = "qsgd", levels = 1 }`. Default `f32`.
        pub values: Values = Values::default(),
        /// Whether what is not sent is added to the next gradient. Default true.
        pub feedback: bool = true,
    }
}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        Properties {
            name: "aggregation-aware",
            line: "top-k that prefers what all ranks sent last, so that the union stays small",
            paper: "Wang, Liu & Wu 2018 (our reconstruction from the abstract)",
            law: self.values.law(Law::Contraction, self.feedback),
            soundness: Soundness::Sound,
            feedback: self.feedback,
        }
    }

    fn validate(&self) -> Result<()> {
        self.ratio.validate(self.about().name)?;
        self.values.validate(self.about().name)?;
        self.rule.validate(self.about().name)
    }

    fn build(&self, seat: &Seat) -> Built {
        Built::codec(AggregationAware {
            config: self.clone(),
            memory: Memory::new(self.rule, seat.length),
            sender: Sender::new(self.values, self.feedback, self.ratio.most(seat.length), seat),
            selector: Selector::default(),
            scores: Vec::new(),
            inside: Vec::new(),
            selected: Vec::new(),
            gauges: Vec::new(),
        })
    }

    fn examples() -> Vec<Self> {
        let values = QsgdValues { levels: 1, ..QsgdValues::default() }.into();
        let exact = [SelectionRule::Mix { lambda: 0.5 }, SelectionRule::Hysteresis { h: 2.0 }];
        let exact = exact.map(|rule| Self { rule, ..Self::default() });
        [&exact[..], &[Self { values, ..Self::default() }]].concat()
    }
}

struct AggregationAware {
    config: Config,
    memory: Memory,
    sender: Sender,
    selector: Selector,
    /// The gradient as the rule sees it.
    scores: Vec<f32>,
    /// Elements that have been given one of the rule's places.
    inside: Vec<u32>,
    selected: Vec<u32>,
    gauges: Vec<Gauge>,
}

/// What is told of a union.
const UNION_GAUGES: [&str; 4] = ["union", "union_ratio", "server_bytes", "server_bytes_bound"];

impl AggregationAware {
    /// Tells of the last union what a server would pay for it.
    fn note_union(&mut self, step: u64, ranks: usize, length: usize) {
        let union = self.memory.union().map_or(0, <[u32]>::len) as f64;
        let k = self.config.ratio.count(length, step) as f64;
        let bound = (k * ranks as f64).min(length as f64);
        // Without a message, as in the first steps of a warm-up, nothing has cleared those of the step before.
        self.gauges.retain(|gauge| !UNION_GAUGES.contains(&&*gauge.name));
        self.gauges.extend([
            Gauge::sum(UNION_GAUGES[0], union),
            Gauge::mean(UNION_GAUGES[1], union / k, k),
            Gauge::sum(UNION_GAUGES[2], SERVER_BYTES * union),
            Gauge::sum(UNION_GAUGES[3], SERVER_BYTES * bound),
        ]);
    }

    /// Leaves the positions to send, at most `k`, ascending, in `selected`.
    fn select(&mut self, gradient: &[f32], k: usize) {
        let Self { memory, selector, inside, selected, .. } = self;
        let (rule, union) = match memory.union() {
            Some(union) => (self.config.rule, union),
            None => (SelectionRule::Topk, &[][..]),
        };
        match rule {
            SelectionRule::Topk => copy(selector.largest(gradient, k), selected),
            SelectionRule::PrevUnion { p } => {
                copy(selector.largest_among(gradient, union, SelectionRule::places(p, k)), inside);
                self.fill_up(gradient, k);
            }
            SelectionRule::Mix { .. } | SelectionRule::Hysteresis { .. } => {
                copy(gradient, &mut self.scores);
                score(rule, &mut self.scores, union, memory);
                copy(selector.largest(&self.scores, k), selected);
            }
        }
    }

    /// Selects `inside` and, up to `k`, the largest of all others.
    fn fill_up(&mut self, gradient: &[f32], k: usize) {
        copy(gradient, &mut self.scores);
        self.inside.iter().for_each(|position| self.scores[*position as usize] = 0.0);
        let others = self.selector.largest(&self.scores, k.saturating_sub(self.inside.len()));
        self.selected.clear();
        let mut inside = self.inside.iter().copied().peekable();
        for other in others {
            while let Some(position) = inside.next_if(|position| position < other) {
                self.selected.push(position);
            }
            self.selected.push(*other);
        }
        self.selected.extend(inside);
    }
}

/// Turns elements into what the rule compares.
fn score(rule: SelectionRule, scores: &mut [f32], union: &[u32], memory: &Memory) {
    match rule {
        SelectionRule::Mix { lambda } => {
            for (position, sum) in union.iter().zip(&memory.sums) {
                let score = &mut scores[*position as usize];
                *score = score.abs() + lambda as f32 * sum.abs();
            }
        }
        SelectionRule::Hysteresis { h } => {
            union.iter().for_each(|position| scores[*position as usize] *= h as f32);
        }
        _ => {}
    }
}

/// Makes `to` equal to `from`, in the memory it has.
fn copy<T: Copy>(from: &[T], to: &mut Vec<T>) {
    to.clear();
    to.extend_from_slice(from);
}

impl Compressor for AggregationAware {
    fn encode(&mut self, gradient: &[f32], step: u64, out: &mut Vec<u8>) -> Encoded {
        self.select(gradient, self.config.ratio.count(gradient.len(), step));
        let sent = sparse::send(&self.selected, gradient, &mut self.sender, step, out);
        self.gauges.clear();
        self.gauges.extend_from_slice(&sent);
        Encoded::Message
    }

    fn decode_add(&self, wire: &[u8], start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        let (length, values) = (self.memory.length(), self.config.values);
        sparse::add(wire, self.config.ratio.most(length), values, length, start, weight, sum)
    }

    fn learn_from_messages(&mut self, round: &StepMessages<'_>) -> Result<()> {
        let most = self.config.ratio.most(round.mean.len());
        self.memory.mark_messages(round, most, self.config.values)
    }

    /// Where the union differs from the mean's support.
    fn summarise(&mut self, round: &StepMessages<'_>, out: &mut Vec<u8>) -> Result<()> {
        let most = self.config.ratio.most(round.mean.len());
        self.memory.summarise(round, most, self.config.values, out)
    }

    fn learn_from_summary(&mut self, _step: u64, summary: &[u8], mean: &[f32]) -> Result<()> {
        self.memory.mark_summary(summary, mean)
    }

    fn commit(&mut self, end: &StepEnd<'_>) {
        self.memory.commit(end.ranks, end.mean);
        self.note_union(end.step, end.ranks, end.mean.len());
    }

    fn rescale(&mut self, factor: f32) {
        self.memory.sums.iter_mut().for_each(|sum| *sum *= factor);
    }

    fn reads_ranges(&self) -> bool {
        true
    }

    fn sent(&self) -> Option<&[u32]> {
        Some(self.sender.sent(&self.selected))
    }

    fn save(&self, state: &mut State) {
        self.memory.save(state);
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        self.memory.restore(state)
    }

    fn gauges(&self) -> &[Gauge] {
        &self.gauges
    }
}

#[cfg(test)]
mod tests;
