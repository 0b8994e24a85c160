//! Random numbers, gradients, threads for ranks, and a collective that keeps what is sent.
#![allow(dead_code, unreachable_pub, reason = "each test takes what it needs")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod transports;

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gradwire_exchange::schemes::topk;
use gradwire_exchange::wire::Reader;
use gradwire_exchange::wire::frame::Frame;
use gradwire_exchange::{
    Bucketing, Collective, Downlink, Exchange, Gauge, Layout, Payload, Policy, Result,
    SchemeConfig, Seat, State, Topology, Traffic, Wiring, mesh,
};

/// Lengths around the sizes of words, lanes, strides and blocks, and one that is large and odd.
pub const LENGTHS: [usize; 19] =
    [0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 511, 512, 513, 1023, 1024, 1025, 100_003];

/// A small generator of uniform numbers (SplitMix64, Steele et al. 2014).
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end.max(1) as u64) as usize
    }

    /// In (0, 1).
    pub fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Standard normal (Box & Muller 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Laplace distributed with mean 0 and scale 1, as gradients roughly are.
    pub fn laplace(&mut self) -> f32 {
        let uniform = self.uniform() - 0.5;
        (-uniform.signum() * (1.0 - 2.0 * uniform.abs()).ln()) as f32
    }

    pub fn laplaces(&mut self, length: usize) -> Vec<f32> {
        (0..length).map(|_| self.laplace()).collect()
    }
}

/// The awkward gradients of a length, by name. The huge one is such that two ranks can add up four
/// steps of it before f32 overflows.
pub fn gradients(length: usize) -> Vec<(&'static str, Vec<f32>)> {
    let each = |value: &dyn Fn(usize) -> f32| (0..length).map(value).collect::<Vec<f32>>();
    let sign = |i: usize| if i.is_multiple_of(2) { 1.0 } else { -1.0 };
    vec![
        ("zeros", vec![0.0; length]),
        ("constant", vec![-0.25; length]),
        ("one spike", each(&|i| if i == length / 2 { 1e4 } else { 0.0 })),
        ("subnormal", each(&|i| sign(i) * f32::from_bits(1 + (i as u32 * 7919) % 0x7f_ffff))),
        ("huge", each(&|i| sign(i / 2) * 4e37)),
        ("alternating", each(&|i| sign(i))),
        ("Laplace", Random(length as u64).laplaces(length)),
    ]
}

/// Every scheme's specimens over every awkward gradient of every length.
pub fn every_case(mut visit: impl FnMut(&SchemeConfig, &[f32], &str)) {
    for length in LENGTHS {
        for (name, gradient) in gradients(length) {
            for scheme in SchemeConfig::codecs() {
                visit(&scheme, &gradient, &format!("{scheme:?} on {name} of {length}"));
            }
        }
    }
}

/// Runs one thread for each rank, with its end, and returns what they return, in order of rank.
pub fn each_rank<E: Send, T: Send>(ends: Vec<E>, work: impl Fn(usize, E) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let spawn = |(rank, end)| scope.spawn(move || work(rank, end));
        let workers: Vec<_> = ends.into_iter().enumerate().map(spawn).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

/// How long ranks wait where nothing goes wrong.
pub const PATIENT: Duration = Duration::from_secs(20);

/// A server that compresses what it sends back.
pub const COMPRESSED: Wiring =
    Wiring { topology: Topology::Server, downlink: Some(Downlink::Compressed) };

/// Shards that are compressed both ways.
pub const OWNED: Wiring =
    Wiring { topology: Topology::Sharded, downlink: Some(Downlink::Compressed) };

/// The topologies of any number of ranks.
pub const FLAT: &[Topology] = &[Topology::Allgather, Topology::Server, Topology::Sharded];

/// Every topology of any number of ranks as it is by default, and those that compress both ways.
pub fn wirings() -> Vec<Wiring> {
    let plain = FLAT.iter().map(|topology| Wiring::from(*topology));
    plain.chain([COMPRESSED, OWNED]).collect()
}

/// What the ranks of a group do alike: a scheme over a topology, on four compressed buckets or one, and
/// small parameters behind them.
#[derive(Clone, Debug)]
pub struct Trial {
    pub scheme: SchemeConfig,
    pub wiring: Wiring,
    pub policy: Policy,
    /// Of buckets; all of them together where there are none.
    pub groups: Vec<Vec<usize>>,
    /// The order in which groups are exchanged, one by one; all in one call where there is none.
    pub order: Vec<usize>,
}

/// What one rank has after some steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    pub means: Vec<Vec<u32>>,
    pub state: State,
    pub wire_bytes: Vec<u64>,
    pub gauges: Vec<Vec<Gauge>>,
}

impl Trial {
    /// The parameters' lengths: with a bucket for each, buckets of 700, 1200, 64 and 2048, and one of 12.
    pub const LENGTHS: [usize; 6] = [700, 3, 1200, 64, 9, 2048];
    pub const LENGTH: usize = 4024;

    /// With a bucket for each parameter and a first step that is sent as it is.
    pub fn new(scheme: &SchemeConfig, wiring: impl Into<Wiring>) -> Self {
        let policy = Policy {
            dense_below: Some(10),
            warmup_steps: Some(1),
            measure_every: Some(2),
            ..Policy::from(Bucketing::Parameter)
        };
        let (scheme, wiring) = (scheme.clone(), wiring.into());
        Self { scheme, wiring, policy, groups: Vec::new(), order: Vec::new() }
    }

    /// Each of these schemes over each of these topologies that can carry it.
    pub fn each(schemes: &[SchemeConfig], wirings: &[Wiring]) -> Vec<Self> {
        let over_each = |scheme| wirings.iter().map(move |wiring| Self::new(scheme, *wiring));
        schemes.iter().flat_map(over_each).filter(Self::is_valid).collect()
    }

    /// With this bucketing.
    pub fn bucketing(mut self, bucketing: Bucketing) -> Self {
        self.policy.bucketing = Some(bucketing);
        self
    }

    /// In these groups.
    pub fn groups(mut self, groups: &[Vec<usize>]) -> Self {
        self.groups = groups.to_vec();
        self
    }

    /// Whether the scheme can be carried.
    pub fn is_valid(&self) -> bool {
        self.wiring.validate(&self.scheme, &self.policy).is_ok()
    }

    /// One rank's exchange.
    pub fn exchange(&self, end: Box<dyn Collective>) -> Exchange {
        let (policy, layout) = (self.policy.clone(), parameters(&Self::LENGTHS));
        let mut exchange =
            Exchange::with(&self.scheme, self.wiring, policy, layout, 9, end).unwrap();
        if !self.groups.is_empty() {
            exchange.set_groups(self.groups.clone()).unwrap();
        }
        exchange
    }

    /// The gradient of a rank at a step.
    pub fn gradient(rank: usize, step: u64) -> Vec<f32> {
        Random(10 * step + rank as u64).laplaces(Self::LENGTH)
    }

    /// What a rank holds of means that it compressed, as the server or of its own shard: the residual of the way
    /// back; zeros with exact means.
    pub fn residual_of_means(&self, rank: usize, exchange: &Exchange) -> Vec<f32> {
        let scope = match self.wiring {
            COMPRESSED if rank == 0 => "server",
            OWNED => "shards",
            _ => return vec![0.0; Self::LENGTH],
        };
        let kept = exchange.save().scope(scope);
        exchange.layout().from_name_order(kept.f32s("residual", Self::LENGTH).unwrap())
    }

    /// Checks after each of so many steps that what all ranks were given is what they took and what they still hold, but for
    /// what fades, and for less than `rounding`; what each rank sent last, and what it holds of means.
    pub fn loses_nothing(
        &self,
        ranks: usize,
        steps: u64,
        rounding: f64,
    ) -> Vec<(Traffic, Vec<f32>)> {
        let ran = self.over(ranks, |rank, mut exchange| {
            let (mut due, mut lost) = (vec![0f64; Self::LENGTH], Vec::new());
            let (mut last, decay) = (None, exchange.policy().decay());
            for step in 1..=steps {
                let given = Self::gradient(rank, step);
                let mut mean = given.clone();
                let traffic = exchange.allreduce(step, &mut mean).unwrap();
                let both = due.iter_mut().zip(given.iter().zip(&mean));
                both.for_each(|(due, (given, mean))| {
                    *due = decay * *due + f64::from(*given) - f64::from(*mean);
                });
                // What is held of a mean belongs to all ranks.
                let of_means = self.residual_of_means(rank, &exchange);
                let held = exchange.residual().unwrap().iter().zip(&of_means);
                let held =
                    held.map(|(own, of_mean)| f64::from(*own) + ranks as f64 * f64::from(*of_mean));
                lost.push(due.iter().zip(held).map(|(due, held)| due - held).collect::<Vec<_>>());
                last = Some((traffic, of_means));
            }
            (lost, last.unwrap())
        });
        let (lost, last): (Vec<Vec<Vec<f64>>>, Vec<_>) = ran.into_iter().unzip();
        for step in 0..steps as usize {
            for i in 0..Self::LENGTH {
                let lost: f64 = lost.iter().map(|rank| rank[step][i]).sum();
                assert!(lost.abs() < rounding, "{self:?}, step {}, element {i}: {lost}", step + 1);
            }
        }
        last
    }

    /// What `work` returns on each of some threads.
    pub fn over<T: Send>(
        &self,
        ranks: usize,
        work: impl Fn(usize, Exchange) -> T + Sync,
    ) -> Vec<T> {
        each_rank(mesh(ranks, PATIENT), |rank, end| work(rank, self.exchange(end)))
    }

    /// The same over threads and, where the topology joins them, over processes.
    pub fn everywhere<T: Send>(
        &self,
        ranks: usize,
        work: impl Fn(usize, Exchange) -> T + Sync,
    ) -> Vec<Vec<T>> {
        let mut found = vec![self.over(ranks, &work)];
        if self.wiring.topology != Topology::Sharded || self.wiring.downlink.is_some() {
            let ends = transports::processes(ranks, PATIENT);
            found.push(each_rank(ends, |rank, end| work(rank, self.exchange(end))));
        }
        found
    }

    /// Takes these steps on one rank, with random delays.
    pub fn steps(&self, rank: usize, exchange: &mut Exchange, steps: RangeInclusive<u64>) -> Ran {
        let mut sleeps = Random(rank as u64 + 1000);
        let (mut means, mut wire_bytes, mut gauges) = (Vec::new(), Vec::new(), Vec::new());
        for step in steps {
            std::thread::sleep(Duration::from_micros(sleeps.below(300) as u64));
            let mut gradient = Self::gradient(rank, step);
            let traffic = if self.order.is_empty() {
                exchange.allreduce(step, &mut gradient).unwrap()
            } else {
                exchange.begin(step);
                for group in &self.order {
                    exchange.exchange_group(*group, &mut gradient).unwrap();
                }
                exchange.finish(&gradient).unwrap()
            };
            check_legs(&traffic, &self.order);
            means.push(bits(&gradient));
            wire_bytes.extend([traffic.wire_bytes, traffic.dense_bytes]);
            gauges.push(traffic.gauges);
        }
        Ran { means, state: exchange.save(), wire_bytes, gauges }
    }

    /// These steps of a group of threads, from what each has saved.
    pub fn go_on(&self, saved: &[State], steps: RangeInclusive<u64>) -> Vec<Ran> {
        self.over(saved.len(), |rank, mut exchange| {
            exchange.restore(&saved[rank]).unwrap();
            self.steps(rank, &mut exchange, steps.clone())
        })
    }

    /// Checks that ranks which save after two steps and are taken up go on as if nothing had been; what they
    /// had saved.
    pub fn goes_on_the_same(&self, ranks: usize) -> Vec<State> {
        let ran = self.over(ranks, |rank, mut exchange| {
            let saved = self.steps(rank, &mut exchange, 1..=2).state;
            (saved, self.steps(rank, &mut exchange, 3..=5))
        });
        let (saved, whole): (Vec<State>, Vec<Ran>) = ran.into_iter().unzip();
        for (resumed, whole) in self.go_on(&saved, 3..=5).into_iter().zip(whole) {
            assert!(resumed == whole, "{self:?}");
        }
        saved
    }

    /// Four steps of a group of threads.
    pub fn run(&self, ranks: usize) -> Vec<Ran> {
        self.over(ranks, |rank, mut exchange| self.steps(rank, &mut exchange, 1..=4))
    }
}

/// Legs add up to the whole; a group has one for each kind of message, in the groups' order.
fn check_legs(traffic: &Traffic, order: &[usize]) {
    let sum = |part: fn(&gradwire_exchange::Leg) -> u64| traffic.legs.iter().map(part).sum::<u64>();
    assert_eq!(sum(|leg| leg.wire_bytes), traffic.wire_bytes);
    assert_eq!(sum(|leg| leg.downlink_bytes), traffic.downlink_bytes);
    assert_eq!(sum(|leg| leg.dense_bytes), traffic.dense_bytes);
    let mut groups: Vec<usize> = traffic.legs.iter().map(|leg| leg.group).collect();
    groups.dedup();
    assert!(order.is_empty() || groups == order);
}

/// Parameters `p0`, `p1`, … of these lengths.
pub fn parameters(lengths: &[usize]) -> Layout {
    let named = lengths.iter().enumerate().map(|(i, length)| (format!("p{i}"), *length));
    Layout::new(named).unwrap()
}

/// The largest of every bucket, this share.
pub fn topk(ratio: f64) -> SchemeConfig {
    SchemeConfig::Topk(topk::Config { ratio: ratio.into(), ..Default::default() })
}

/// The larger half of every bucket.
pub fn half() -> SchemeConfig {
    topk(0.5)
}

pub fn seat(length: usize) -> Seat {
    Seat::alone(length, 42)
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Rank 0 of two ranks of which the other always sends the same, but for what `spoil` makes of each frame's
/// payload; keeps what is sent.
#[derive(Clone, Default)]
pub struct Echo {
    pub sent: Arc<Mutex<Vec<Vec<u8>>>>,
    pub spoil: Option<fn(&mut Vec<u8>)>,
}

impl Collective for Echo {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        2
    }

    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        self.sent.lock().unwrap().push(mine.clone());
        let echo = echo(&mine, |payload| self.spoil.iter().for_each(|spoil| spoil(payload)))?;
        Ok(vec![mine.into(), echo])
    }
}

/// What rank 1 sends that has the same to say, but for what `change` makes of each frame's payload.
pub fn echo(mine: &[u8], change: impl Fn(&mut Vec<u8>)) -> Result<Payload> {
    let (mut echo, mut reader) = (Vec::new(), Reader::new(mine));
    while let Ok(frame) = Frame::read(&mut reader) {
        let mut payload = frame.payload.to_vec();
        change(&mut payload);
        frame.header.from_rank(1).write(&payload, &mut echo);
    }
    reader.finish()?;
    Ok(echo.into())
}

/// An end of which `tamper` changes the messages: in each round its own on the way up, and then that of rank 0 on the way
/// down. It is told the number of the round, and whether the message goes up.
pub struct Tampered<F> {
    pub end: Box<dyn Collective>,
    pub shares: bool,
    pub rounds: usize,
    pub tamper: F,
}

impl<F: FnMut(usize, bool, &mut Vec<u8>) -> Result<()> + Send> Collective for Tampered<F> {
    fn rank(&self) -> usize {
        self.end.rank()
    }

    fn world_size(&self) -> usize {
        self.end.world_size()
    }

    fn shares_memory(&self) -> bool {
        self.shares
    }

    fn allgather(&mut self, mut mine: Vec<u8>) -> Result<Vec<Payload>> {
        let round = self.rounds;
        self.rounds += 1;
        (self.tamper)(round, true, &mut mine)?;
        let mut all = self.end.allgather(mine)?;
        let mut first = all[0].to_vec();
        (self.tamper)(round, false, &mut first)?;
        all[0] = first.into();
        Ok(all)
    }
}
