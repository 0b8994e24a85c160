//! A collective that really waits as long as a link would take.

use std::time::{Duration, Instant};

use super::link::LARGEST_DRAW;
use super::wires::{Sent, Wires};
use super::{Link, Pattern, collective_seconds};
use crate::Result;
use crate::collective::{Answer, Central, Collective, Difference, Payload, Serve};
use crate::wire::{Frame, Kind, Reader};

/// Any collective at the pace of a link: an [`allgather`](Collective::allgather) returns when the
/// messages would have come over it. Sleeps, and does not spin.
///
/// The messages themselves travel at once; when this rank has all of them, it waits for what the
/// [`Pattern`] would take from then on. So a step is no shorter than on the virtual clock, and a
/// little longer where ranks were not ready at the same time. What is no gradient (sums,
/// comparisons, barriers) is not delayed, as it is not charged on the clock.
///
/// For one rank, nothing is delayed.
pub struct Throttled {
    inner: Box<dyn Collective>,
    wires: Wires,
    began: Instant,
    /// Allgathers so far: what delays are drawn for instead of steps.
    rounds: u64,
    /// With shards, the messages of the first phase.
    scattered: Vec<Sent>,
}

impl Throttled {
    /// Puts `inner` on a link, the same on all ranks. `seed` is that of the delays.
    pub fn new(inner: Box<dyn Collective>, link: Link, pattern: Pattern, seed: u64) -> Self {
        let wires = Wires::new(link, pattern, inner.world_size(), seed);
        Self { inner, wires, began: Instant::now(), rounds: 0, scattered: Vec::new() }
    }

    /// An upper bound, in seconds, of what one allgather waits when no message is longer than
    /// `bytes`, and so of how long one rank may keep another waiting.
    pub fn longest_wait(link: &Link, pattern: Pattern, ranks: usize, bytes: u64) -> f64 {
        let sent = vec![Sent { up: bytes, down: bytes, aggregate: 0.0 }; ranks];
        // No rank sends more than 2 (N − 1) messages one after the other, and one that waits for
        // N of them waits for no more than all.
        let messages = 2.0 * (ranks as f64) * (ranks as f64);
        let jitter = link.jitter * LARGEST_DRAW * messages;
        let still = Link { jitter: 0.0, burst: 0, ..link.clone() };
        collective_seconds(&still, pattern, &sent) + jitter
    }
}

impl Throttled {
    /// Sleeps until these messages would have come.
    fn wait(&mut self, sent: &[Sent]) {
        self.rounds += 1;
        self.wires.begin(self.rounds);
        let now = self.began.elapsed().as_secs_f64();
        let mut ready = vec![now; sent.len()];
        self.wires.round(&mut ready, sent);
        let until = Duration::from_secs_f64(ready[self.inner.rank()]);
        std::thread::sleep(until.saturating_sub(self.began.elapsed()));
    }
}

fn up(length: usize) -> Sent {
    Sent { up: length as u64, ..Sent::default() }
}

/// Whether a message holds the mean of a shard.
fn is_shard(message: &[u8]) -> bool {
    let frame = Frame::split(&mut Reader::new(message));
    frame.is_ok_and(|(frame, _)| frame.header.kind == Kind::Shard)
}

/// A server is heard at this pace too. A rank does not see what the others sent: it is taken to be
/// as long as its own message.
impl Central for Throttled {
    fn install(&mut self, serve: Box<dyn Serve>) {
        if let Some(central) = self.inner.central() {
            central.install(serve);
        }
    }

    fn ask(&mut self, mine: Vec<u8>) -> Result<Answer> {
        let central = self.inner.central().expect("invariant: it is asked through `central`");
        let answer = central.ask(mine)?;
        let sent = match &answer {
            Answer::Served { mine, answer } => {
                let sent = Sent { down: answer.len() as u64, ..up(mine.len()) };
                vec![sent; self.inner.world_size()]
            }
            Answer::Declined(messages) => {
                let down = messages.iter().map(|message| message.len() as u64).sum();
                messages.iter().map(|message| Sent { down, ..up(message.len()) }).collect()
            }
        };
        self.wait(&sent);
        Ok(answer)
    }
}

impl Collective for Throttled {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        let messages = self.inner.allgather(mine)?;
        let mut sent: Vec<Sent> = messages.iter().map(|message| up(message.len())).collect();
        if self.wires.pattern() == Pattern::Sharded {
            // Two phases make one pattern: the messages wait for the shards' means.
            if !messages.iter().any(|message| is_shard(message)) {
                self.scattered = sent;
                return Ok(messages);
            }
            for (rank, sent) in sent.iter_mut().enumerate() {
                let scattered = self.scattered.get(rank).copied().unwrap_or_default();
                *sent = Sent { down: sent.up, ..scattered };
            }
        }
        self.wait(&sent);
        Ok(messages)
    }

    fn shares_memory(&self) -> bool {
        self.inner.shares_memory()
    }

    fn central(&mut self) -> Option<&mut dyn Central> {
        self.inner.central()?;
        Some(self)
    }

    fn barrier(&mut self) -> Result<()> {
        self.inner.barrier()
    }

    fn broadcast(&mut self, root: usize, bytes: &mut Vec<u8>) -> Result<()> {
        self.inner.broadcast(root, bytes)
    }

    fn sum_f64(&mut self, values: &mut [f64]) -> Result<()> {
        self.inner.sum_f64(values)
    }

    fn mean_f32(&mut self, values: &mut [f32]) -> Result<()> {
        self.inner.mean_f32(values)
    }

    fn compare(&mut self, values: &[u64]) -> Result<Option<Difference>> {
        self.inner.compare(values)
    }
}
