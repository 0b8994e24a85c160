//! A clock per rank that advances by what a step would take on a given link.

use super::wires::{Sent, Wires};
use super::{Link, Pattern};

/// One rank's part in one step, as it was measured or is assumed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepWork {
    /// Seconds from the step's beginning to the backward pass: data and forward pass.
    pub before: f64,
    /// Seconds of the backward pass.
    pub backward: f64,
    /// Seconds from the mean gradient to the step's end: what compressors learn, and the optimizer.
    pub after: f64,
    /// What is exchanged, in the order of the exchange; the same number of groups on every rank.
    pub groups: Vec<GroupWork>,
    /// Steps that follow before the rank waits for what it sends here: 0 for an exchange that is part of the step, else
    /// it begins at the step's end; the same on every rank.
    pub delay: u64,
}

/// One collective of a step: what a group of buckets sends, encoded, exchanged and decoded as one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GroupWork {
    /// How much of the backward pass has to be over before the group's gradient is final, 0 to 1.
    /// 1 for an exchange that follows the backward pass.
    pub ready: f64,
    /// Seconds to encode it.
    pub encode: f64,
    /// Seconds to decode it.
    pub decode: f64,
    /// What crosses the wire.
    pub sent: Sent,
    /// How it travels, if not as the clock's other messages; the same on every rank.
    pub pattern: Option<Pattern>,
}

/// What a step took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepTime {
    /// Seconds from the end of the step before to the end of this one, each on the rank that was
    /// last.
    pub seconds: f64,
    /// Seconds that the link cost: how much longer this was than over a link that is free. Below 0 where the ranks make
    /// good in computing what the link has cost in a step before, so that the sum is what it cost in all of them.
    pub exposed: f64,
}

/// Virtual clocks of all ranks.
///
/// In a step, a rank computes; an exchange thread of its own takes the groups one after the other,
/// encodes each when its gradient is final, waits for the collective, and decodes. The rank's step
/// ends when both are through and the optimizer has run. With one group that is ready at 1, that
/// is a plain sequential step. Nothing is rounded and no time passes but this.
///
/// ```
/// use gradwire_exchange::network::{Clock, GroupWork, Link, Pattern, Sent, StepWork};
/// // Two ranks allgather 1 MB each over Gigabit Ethernet, after 50 ms of computing.
/// let group = GroupWork { ready: 1.0, sent: Sent { up: 1_000_000, ..Sent::default() }, ..GroupWork::default() };
/// let work = StepWork { before: 0.02, backward: 0.03, groups: vec![group], ..StepWork::default() };
/// let link = Link::parse("1gbit")?;
/// let mut clock = Clock::new(&link, Pattern::RingAllgather, 2, 0);
/// let took = clock.step(1, &[work.clone(), work]);
/// assert!((took.exposed - (100e-6 + link.wire_bytes(1_000_000) * 8.0 / 1e9)).abs() < 1e-9);
/// # Ok::<(), gradwire_exchange::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Clock {
    link: Link,
    seed: u64,
    real: Hands,
    /// The same ranks over a link that is free, to tell what the link costs.
    free: Hands,
}

/// What the clocks of all ranks show over one link.
#[derive(Debug, Clone)]
struct Hands {
    wires: Wires,
    now: Vec<f64>,
    /// Of an exchange beside the steps: the step at whose end it is waited for, and when each rank is through with it.
    beside: Option<(u64, Vec<f64>)>,
}

impl Clock {
    /// Clocks of `ranks` ranks at 0. Delays and stragglers derive from `seed`.
    pub fn new(link: &Link, pattern: Pattern, ranks: usize, seed: u64) -> Self {
        let hands = |link| Hands::new(Wires::new(link, pattern, ranks, seed), ranks);
        Self { link: link.clone(), seed, real: hands(link.clone()), free: hands(Link::free()) }
    }

    /// Seconds since the first step began, on the rank that is last.
    pub fn now(&self) -> f64 {
        self.real.last()
    }

    /// Advances by one step, to which every rank contributes one `StepWork`.
    ///
    /// # Panics
    /// When there are more or fewer ranks than the clock was made for, or their groups differ in
    /// number.
    pub fn step(&mut self, step: u64, ranks: &[StepWork]) -> StepTime {
        assert_eq!(ranks.len(), self.real.now.len(), "invariant: one StepWork for every rank");
        let slow: Vec<f64> =
            (0..ranks.len()).map(|rank| self.link.slowdown_of(self.seed, rank, step)).collect();
        let seconds = self.real.step(step, ranks, &slow);
        let exposed = seconds - self.free.step(step, ranks, &slow);
        StepTime { seconds, exposed }
    }
}

impl Hands {
    fn new(wires: Wires, ranks: usize) -> Self {
        Self { wires, now: vec![0.0; ranks], beside: None }
    }

    fn last(&self) -> f64 {
        self.now.iter().copied().fold(0.0, f64::max)
    }

    fn step(&mut self, step: u64, ranks: &[StepWork], slow: &[f64]) -> f64 {
        let began = self.last();
        self.wires.begin(step);
        let groups = ranks.first().map_or(0, |work| work.groups.len());
        let delay = ranks.first().map_or(0, |work| work.delay);
        let whole = |work: &StepWork| work.before + work.backward + work.after;
        // When each rank's exchange thread is free again.
        let mut exchange = self.now.clone();
        if delay > 0 {
            let ends = exchange.iter_mut().zip(ranks).zip(slow);
            ends.for_each(|((end, work), slow)| *end += whole(work) * slow);
        }
        if let Some((_, through)) = &self.beside {
            let both = exchange.iter_mut().zip(through).filter(|_| groups > 0);
            both.for_each(|(free, through)| *free = free.max(*through));
        }
        let mut sent = Vec::with_capacity(ranks.len());
        for group in 0..groups {
            sent.clear();
            let own = ranks.first().and_then(|work| work.groups[group].pattern);
            let pattern = own.unwrap_or_else(|| self.wires.pattern());
            for (rank, work) in ranks.iter().enumerate() {
                let GroupWork { ready, encode, sent: bytes, .. } = work.groups[group];
                let computed = (work.before + work.backward * ready) * slow[rank];
                exchange[rank] =
                    exchange[rank].max(self.now[rank] + computed) + encode * slow[rank];
                // A server is a host of its own, which no rank's slowdown concerns.
                let slowdown = if pattern == Pattern::Server { 1.0 } else { slow[rank] };
                sent.push(Sent { aggregate: bytes.aggregate * slowdown, ..bytes });
            }
            self.wires.round(pattern, &mut exchange, &sent);
            for (rank, work) in ranks.iter().enumerate() {
                exchange[rank] += work.groups[group].decode * slow[rank];
            }
        }
        for (rank, work) in ranks.iter().enumerate() {
            let computed = self.now[rank] + (work.before + work.backward) * slow[rank];
            let waits = if delay > 0 { computed } else { computed.max(exchange[rank]) };
            self.now[rank] = waits + work.after * slow[rank];
        }
        if let Some((_, through)) = self.beside.take_if(|(due, _)| *due <= step) {
            let both = self.now.iter_mut().zip(through);
            both.for_each(|(now, through)| *now = now.max(through));
        }
        if delay > 0 && groups > 0 {
            self.beside = Some((step.saturating_add(delay), exchange));
        }
        self.last() - began
    }
}
