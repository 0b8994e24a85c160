//! A collective that really waits as long as a link would take.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::link::LARGEST_DRAW;
use super::wires::{Sent, Wires};
use super::{Link, Pattern, collective_seconds};
use crate::Result;
use crate::collective::{Answer, Central, Collective, Difference, Payload, Serve, Stage};
use crate::traffic::Operation;

/// Any collective at the pace of a link: an [`allgather`](Collective::allgather) returns when the
/// messages would have come over it, had each left when its rank made the call. Sleeps, and does
/// not spin.
///
/// The messages themselves travel at once. What is no gradient (sums, comparisons, barriers) is not
/// delayed, as it is not charged on the clock. For one rank, nothing is delayed.
pub struct Throttled {
    inner: Box<dyn Collective>,
    wires: Wires,
    board: Arc<Board>,
    /// Rounds so far: what delays are drawn for instead of steps.
    rounds: u64,
    /// What the next message is part of.
    stage: Stage,
    /// The messages of a first half, which wait for the second.
    scattered: Vec<Sent>,
}

/// When each rank was ready with its message, in seconds since all began: of this round and of the
/// one before, which a slower rank may still be reading.
struct Board {
    began: Instant,
    ready: [Mutex<Vec<f64>>; 2],
}

impl Throttled {
    /// Puts all ends of a group on a link. `seed` is that of the delays.
    pub fn all(
        ends: Vec<Box<dyn Collective>>,
        link: &Link,
        pattern: Pattern,
        seed: u64,
    ) -> Vec<Self> {
        let ranks = ends.len();
        let ready = [0, 1].map(|_| Mutex::new(vec![0.0; ranks]));
        let board = Arc::new(Board { began: Instant::now(), ready });
        let throttled = |inner| Self {
            inner,
            wires: Wires::new(link.clone(), pattern, ranks, seed),
            board: board.clone(),
            rounds: 0,
            stage: Stage::Whole(Operation::Messages),
            scattered: Vec::new(),
        };
        ends.into_iter().map(throttled).collect()
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

    /// Notes that this rank is ready; the times of all ranks are there when all have answered.
    fn arrive(&mut self) {
        self.rounds += 1;
        let now = self.board.began.elapsed().as_secs_f64();
        self.board.round(self.rounds, |ready| ready[self.inner.rank()] = now);
    }

    /// Waits as long as what all ranks have `sent` would take, by this operation.
    fn wait(&mut self, operation: Operation, sent: &[Sent]) {
        let mut ready = self.board.round(self.rounds, |ready| ready.clone());
        self.wires.begin(self.rounds);
        let pattern = self.wires.pattern().of(operation);
        self.wires.round(pattern, &mut ready, sent);
        // A wait that no clock can hold does not come up: links and messages are bounded.
        let until = Duration::try_from_secs_f64(ready[self.inner.rank()]).unwrap_or_default();
        std::thread::sleep(until.saturating_sub(self.board.began.elapsed()));
    }
}

impl Board {
    /// Reads or writes the times of a round. A rank begins a round only after all have begun the
    /// one before, so that two places go round for ever.
    fn round<T>(&self, round: u64, with: impl FnOnce(&mut Vec<f64>) -> T) -> T {
        let place = &self.ready[(round % 2) as usize];
        with(&mut place.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn up(length: usize) -> Sent {
    Sent { up: length as u64, ..Sent::default() }
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
        self.arrive();
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
        self.wait(Operation::Messages, &sent);
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
        self.arrive();
        let messages = self.inner.allgather(mine)?;
        let mut sent: Vec<Sent> = messages.iter().map(|message| up(message.len())).collect();
        if self.inner.central().is_some() {
            // The server passes everything on to everybody.
            let all = sent.iter().map(|sent| sent.up).sum();
            sent.iter_mut().for_each(|sent| sent.down = all);
        }
        let operation = match std::mem::replace(&mut self.stage, Stage::Whole(Operation::Messages))
        {
            Stage::Whole(operation) => operation,
            Stage::Scatter(_) => {
                // Two halves make one pattern: the messages wait for the shards' means.
                self.scattered = sent;
                return Ok(messages);
            }
            Stage::Share(operation) => {
                for (rank, sent) in sent.iter_mut().enumerate() {
                    let scattered = self.scattered.get(rank).copied().unwrap_or_default();
                    *sent = Sent { down: sent.up, ..scattered };
                }
                operation
            }
        };
        self.wait(operation, &sent);
        Ok(messages)
    }

    fn announce(&mut self, next: Stage) {
        self.stage = next;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::mesh;

    /// 2 MB around a ring of three at 1 Gbit/s, twice 16.9 ms, one rank being 20 ms late.
    #[test]
    fn ranks_wait_as_long_as_the_clock_says_and_control_does_not() {
        let link = Link::parse("1gbit,latency=1ms,header=0").unwrap();
        let ends = mesh(3, Duration::from_secs(20)).into_iter().map(|end| Box::new(end) as _);
        let ends = Throttled::all(ends.collect(), &link, Pattern::RingAllgather, 1);
        let expected = 0.020 + 2.0 * (0.001 + 0.016);
        let began = Instant::now();
        std::thread::scope(|scope| {
            for mut end in ends {
                scope.spawn(move || {
                    if end.rank() == 1 {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    let messages = end.allgather(vec![end.rank() as u8; 2_000_000]).unwrap();
                    let took = began.elapsed().as_secs_f64();
                    assert!(messages.iter().enumerate().all(|(rank, m)| m[0] == rank as u8));
                    // What the late rank waits for is on its way before it comes itself.
                    let least = if end.rank() == 1 { 0.034 } else { expected };
                    assert!(took > least - 1e-3 && took < 4.0 * expected, "{took} {expected}");
                    for _ in 0..50 {
                        let mut values = [1.0];
                        end.sum_f64(&mut values).unwrap();
                        assert_eq!(values, [3.0]);
                    }
                    let control = began.elapsed().as_secs_f64() - took;
                    assert!(control < 0.1 + 50.0 * 2e-3, "{control}");
                });
            }
        });
    }

    #[test]
    fn the_longest_wait_bounds_every_wait() {
        let link = Link::parse("1gbit,latency=1ms,jitter=1ms,burst=1000").unwrap();
        for pattern in [Pattern::RingAllgather, Pattern::RingAllreduce, Pattern::Server] {
            let longest = Throttled::longest_wait(&link, pattern, 4, 1_000_000);
            let sent = [Sent { up: 1_000_000, down: 700_000, aggregate: 0.0 }; 4];
            let takes = collective_seconds(&link, pattern, &sent);
            assert!(takes < longest, "{pattern:?}: {takes} {longest}");
        }
        assert_eq!(
            Throttled::longest_wait(&link, Pattern::Server, 1, 1 << 30),
            0.001 * 16.64 * 2.0
        );
    }
}
