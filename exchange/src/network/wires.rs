//! What a collective costs on a link: when each rank has what it waits for.

use super::Link;
use crate::traffic::Operation;

/// How messages travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Every rank's message visits all ranks along a ring: N − 1 hops (Thakur, Rabenseifner & Gropp
    /// 2005, section 4.1). A rank sends on what it received in the hop before, as soon as it has it.
    RingAllgather,
    /// Sums of chunks travel around the ring, then the chunks themselves: 2 (N − 1) hops of one
    /// N-th of the message (Patarasuk & Yuan 2009). Only for what can be summed on the way: dense.
    RingAllreduce,
    /// Every rank's message goes up to a server, whose answer comes down to every rank. Uplinks
    /// share what the server's host receives, downlinks what it sends.
    Server,
    /// Every rank sends each other rank that one's share of its message, one after the other; the
    /// reduced shares then travel around the ring.
    Sharded,
    /// Ranks of a group average over the link that they share ([`Link`]'s `local`); then the groups' firsts
    /// send around a ring of their own, and hand on what they heard. In each of these rounds a rank also waits for word
    /// of every other that it takes part: an empty message, which takes a latency.
    TwoLevel {
        /// Ranks of a group.
        group: usize,
        /// What travels between groups.
        between: Operation,
    },
}

/// What one rank puts on the wire in one round of a collective.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sent {
    /// Bytes of the rank's message.
    pub up: u64,
    /// Bytes that come back: of the server's answer to this rank, or of the reduced share that this
    /// rank passes on. Without meaning for the rings.
    pub down: u64,
    /// Bytes to other ranks of the group.
    pub local: u64,
    /// Seconds that the server, or the rank whose share it is, takes to aggregate. A rank's slowdown
    /// slows its share, and never a server.
    pub aggregate: f64,
}

/// The hosts' network interfaces over time.
#[derive(Debug, Clone)]
pub(super) struct Wires {
    link: Link,
    pattern: Pattern,
    seed: u64,
    step: u64,
    /// Messages that each rank has sent in the present step; the server's follow those of the ranks.
    messages: Vec<u32>,
    out: Vec<Interface>,
    into: Vec<Interface>,
}

/// One direction of a host's interface: a token bucket, of depth 0 for a plain wire.
#[derive(Debug, Clone, Copy)]
struct Interface {
    /// Seconds per byte.
    pace: f64,
    /// Bytes that may pass at once.
    burst: f64,
    /// When all that has been sent would have passed at the plain rate.
    clear: f64,
}

impl Interface {
    fn new(bandwidth: f64, burst: f64) -> Self {
        Self { pace: 8.0 / bandwidth, burst, clear: f64::NEG_INFINITY }
    }

    /// When the last of `bytes`, the first of which came at `start`, has passed.
    fn pass(&mut self, start: f64, bytes: f64) -> f64 {
        self.clear = self.clear.max(start - self.burst * self.pace) + bytes * self.pace;
        self.clear.max(start)
    }
}

impl Pattern {
    /// How an operation travels where messages travel like this.
    #[must_use]
    pub fn carrying(self, operation: Operation) -> Pattern {
        match (self, operation) {
            // A server hears everything, whatever it is.
            (Pattern::Server, _) => Pattern::Server,
            (Pattern::TwoLevel { group, .. }, between) => Pattern::TwoLevel { group, between },
            (messages, Operation::Messages) => messages,
            (_, Operation::Allgather) => Pattern::RingAllgather,
            (_, Operation::Allreduce) => Pattern::RingAllreduce,
            (_, Operation::ReduceScatter) => Pattern::Sharded,
        }
    }
}

impl Wires {
    pub(super) fn new(link: Link, pattern: Pattern, ranks: usize, seed: u64) -> Self {
        let burst = f64::from(link.burst);
        // The server's host comes after the ranks'.
        let server = link.server_bandwidth().unwrap_or(link.bandwidth);
        let speeds = (0..ranks).map(|rank| link.bandwidth_of(rank)).chain([server]);
        let interfaces: Vec<_> = speeds.map(|speed| Interface::new(speed, burst)).collect();
        Self {
            link,
            pattern,
            seed,
            step: 0,
            messages: vec![0; ranks + 1],
            out: interfaces.clone(),
            into: interfaces,
        }
    }

    /// From here on, delays are those of `step`.
    pub(super) fn begin(&mut self, step: u64) {
        self.step = step;
        self.messages.fill(0);
    }

    /// How messages travel that nothing else is said of.
    pub(super) fn pattern(&self) -> Pattern {
        self.pattern
    }

    /// One round of a collective that travels as `pattern`: rank r has `sent[r]` ready at `ready[r]`.
    /// Overwrites `ready` by the times at which the ranks have all that they need to decode. Alone, a
    /// rank waits for nothing.
    pub(super) fn round(&mut self, pattern: Pattern, ready: &mut [f64], sent: &[Sent]) {
        let ranks = ready.len();
        if ranks < 2 {
            return;
        }
        match pattern {
            Pattern::RingAllgather => self.gather(ready, 1, sent, |sent| sent.up),
            Pattern::RingAllreduce => self.allreduce(ready, 1, sent),
            Pattern::TwoLevel { group, between } => self.levels(ready, sent, group, between),
            Pattern::Server => self.server(ready, sent),
            Pattern::Sharded => {
                self.scatter(ready, 1, sent);
                self.gather(ready, 1, sent, |sent| sent.down);
            }
        }
    }

    /// Messages of so many `bytes` around the ring of every `apart`th rank.
    fn gather(
        &mut self,
        ready: &mut [f64],
        apart: usize,
        sent: &[Sent],
        bytes: impl Fn(&Sent) -> u64,
    ) {
        let bytes: Vec<f64> = sent.iter().map(|sent| self.link.wire_bytes(bytes(sent))).collect();
        self.ring(ready, apart, ready.len() - 1, &bytes);
    }

    /// Sums of chunks of so many `sent` bytes around the ring of every `apart`th rank, then the chunks.
    fn allreduce(&mut self, ready: &mut [f64], apart: usize, sent: &[Sent]) {
        // Chunks are as equal as can be; the largest message decides where ranks differ.
        let (ranks, whole) = (ready.len(), sent.iter().map(|s| s.up).max().unwrap_or(0));
        let chunk = self.link.wire_bytes(whole.div_ceil(ranks as u64));
        self.ring(ready, apart, 2 * (ranks - 1), &vec![chunk; ranks]);
    }

    /// Within the groups, between their firsts, and within again.
    fn levels(&mut self, ready: &mut [f64], sent: &[Sent], group: usize, between: Operation) {
        let local = |bytes: u64| bytes as f64 * 8.0 / self.link.local;
        let latency = match ready.len() > group {
            true => self.link.local_latency.max(self.link.latency),
            false => self.link.local_latency,
        };
        // All ranks take part, and the last decides.
        let latest = ready.iter().copied().fold(0.0, f64::max);
        // Beside the average, which all of a group take part in alike, the first hands on what it heard.
        let averaged = |group: &[Sent]| group.iter().map(|s| s.local).min().unwrap_or(0);
        let average = |sent: &[Sent]| latest + 2.0 * latency + local(averaged(sent));
        let mut firsts: Vec<f64> = sent.chunks(group).map(average).collect();
        let handed: Vec<f64> = sent
            .chunks(group)
            .map(|sent| latency + local(sent[0].local.saturating_sub(averaged(sent))))
            .collect();
        let of_firsts: Vec<Sent> = sent.iter().step_by(group).copied().collect();
        match between {
            _ if firsts.len() == 1 => {}
            Operation::Allreduce => self.allreduce(&mut firsts, group, &of_firsts),
            Operation::ReduceScatter => {
                self.scatter(&mut firsts, group, &of_firsts);
                self.gather(&mut firsts, group, &of_firsts, |sent| sent.down);
            }
            Operation::Messages | Operation::Allgather => {
                self.gather(&mut firsts, group, &of_firsts, |sent| sent.up);
            }
        }
        for ((ready, first), handed) in ready.chunks_mut(group).zip(firsts).zip(handed) {
            ready.fill(first + handed);
        }
    }

    /// A ring of every `apart`th rank. In hop h, the ring's member r sends the next what began at member
    /// r − h, of so many `bytes`.
    fn ring(&mut self, ready: &mut [f64], apart: usize, hops: usize, bytes: &[f64]) {
        let ranks = ready.len();
        let mut arrived = vec![0.0; ranks];
        for hop in 0..hops {
            for from in 0..ranks {
                let to = (from + 1) % ranks;
                let origin = (from + ranks - hop % ranks) % ranks;
                arrived[to] = self.carry(from * apart, to * apart, ready[from], bytes[origin]);
            }
            for (ready, arrived) in ready.iter_mut().zip(&arrived) {
                *ready = ready.max(*arrived);
            }
        }
    }

    /// Every `apart`th rank sends each other of them an equal share of its message: in turn k, the r-th sends to
    /// the (r + k)-th and receives from the (r − k)-th, so that no interface is shared.
    fn scatter(&mut self, ready: &mut [f64], apart: usize, sent: &[Sent]) {
        let ranks = ready.len();
        let share = |sent: &Sent| self.link.wire_bytes(sent.up.div_ceil(ranks as u64));
        let shares: Vec<f64> = sent.iter().map(share).collect();
        let mut arrived = vec![0.0; ranks];
        for turn in 1..ranks {
            for from in 0..ranks {
                let to = (from + turn) % ranks;
                arrived[to] = self.carry(from * apart, to * apart, ready[from], shares[from]);
            }
            for (ready, arrived) in ready.iter_mut().zip(&arrived) {
                *ready = ready.max(*arrived);
            }
        }
        for (ready, sent) in ready.iter_mut().zip(sent) {
            *ready += sent.aggregate;
        }
    }

    /// When all flows into one host have arrived: (from, start, bytes) in order of start. `left`
    /// tells when their last bits leave. They share the interface, so that each ends when all do.
    fn converge(&mut self, to: usize, flows: Vec<(usize, f64, f64)>, left: &[f64]) -> f64 {
        let (mut own, mut shared, mut slowest) = (f64::NEG_INFINITY, f64::NEG_INFINITY, 0f64);
        for (from, start, bytes) in flows {
            let delay = self.delay(from, to);
            own = own.max(left[from] + delay);
            shared = shared.max(self.into[to].pass(start, bytes));
            slowest = slowest.max(delay);
        }
        own.max(shared + slowest)
    }

    /// Up to the server and down again.
    fn server(&mut self, ready: &mut [f64], sent: &[Sent]) {
        let server = ready.len();
        let starts: Vec<f64> = ready.iter().map(|ready| ready + self.link.overhead).collect();
        let bytes: Vec<f64> = sent.iter().map(|sent| self.link.wire_bytes(sent.up)).collect();
        let left: Vec<f64> =
            (0..server).map(|from| self.out[from].pass(starts[from], bytes[from])).collect();
        let flows = by_time(&starts).into_iter().map(|from| (from, starts[from], bytes[from]));
        let complete = self.converge(server, flows.collect(), &left);
        let aggregate = sent.iter().map(|sent| sent.aggregate).fold(0.0, f64::max);
        let answer = complete + aggregate;
        // The answers share the server's interface, so that all of them end when the last does.
        let mut arrived = vec![0.0; server];
        let mut shared = f64::NEG_INFINITY;
        for (to, arrived) in arrived.iter_mut().enumerate() {
            let (bytes, overhead) = (self.link.wire_bytes(sent[to].down), self.link.overhead);
            let start = answer + overhead * (to + 1) as f64;
            shared = shared.max(self.out[server].pass(start, bytes));
            *arrived = self.into[to].pass(start, bytes);
        }
        for (to, arrived) in arrived.into_iter().enumerate() {
            ready[to] = ready[to].max(arrived.max(shared) + self.delay(server, to));
        }
    }

    /// Sends `bytes` that are ready at `start` from host to host; when they have arrived.
    fn carry(&mut self, from: usize, to: usize, start: f64, bytes: f64) -> f64 {
        let start = start + self.link.overhead;
        let passed = self.out[from].pass(start, bytes).max(self.into[to].pass(start, bytes));
        passed + self.delay(from, to)
    }

    fn delay(&mut self, from: usize, to: usize) -> f64 {
        let number = self.messages[from];
        self.messages[from] += 1;
        let jitter = self.link.jitter_of(self.seed, from, self.step, number);
        self.link.latency_between(from, to) + jitter
    }
}

/// The ranks in the order in which they start. What comes first is taken to pass first: that does
/// not decide when the last bit has passed.
fn by_time(starts: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..starts.len()).collect();
    order.sort_by(|a, b| starts[*a].total_cmp(&starts[*b]));
    order
}
