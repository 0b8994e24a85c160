//! How the exchange scales with the number of ranks, for three schemes over each topology:
//! `cargo run --release -p gradwire-exchange --example scaling [-- MAX_RANKS [ELEMENTS…]]`.
//!
//! All ranks are threads of one process and share its cores, so that wall time grows with their
//! number whatever they do. What one rank has to do is told by the thread's own clock (Linux'
//! `schedstat`): to encode, and to decode and average. A server's work is told apart.

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gradwire_exchange::rng::Stream;
use gradwire_exchange::{
    Answer, Bucketing, Central, Collective, Exchange, Layout, Payload, Result, Scheme, Serve,
    Topology, optquant, sidco,
};

const PATIENCE: Duration = Duration::from_secs(600);
/// Seconds that the steps of one row may take, more or less; at least one step, at most nine.
const BUDGET: f64 = 4.0;

/// Nanoseconds for which this thread has had a core.
fn cpu() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|nanoseconds| nanoseconds.parse().ok()).unwrap_or(0)
}

/// A rank's end that notes when the rank first sends in a step, by the thread's clock, and what
/// the server's thread works.
struct Clocked {
    end: Box<dyn Collective>,
    sent: Arc<AtomicU64>,
    server: Arc<AtomicU64>,
}

impl Clocked {
    fn note(&self) {
        if self.sent.load(Ordering::Relaxed) == 0 {
            self.sent.store(cpu(), Ordering::Relaxed);
        }
    }
}

impl Collective for Clocked {
    fn rank(&self) -> usize {
        self.end.rank()
    }

    fn world_size(&self) -> usize {
        self.end.world_size()
    }

    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        self.note();
        self.end.allgather(mine)
    }

    fn shares_memory(&self) -> bool {
        self.end.shares_memory()
    }

    fn central(&mut self) -> Option<&mut dyn Central> {
        self.end.central()?;
        Some(self)
    }
}

impl Central for Clocked {
    fn install(&mut self, serve: Box<dyn Serve>) {
        let clocked = ClockedServe { serve, spent: self.server.clone() };
        self.end.central().into_iter().for_each(|central| central.install(Box::new(clocked)));
    }

    fn ask(&mut self, mine: Vec<u8>) -> Result<Answer> {
        self.note();
        self.end.central().expect("invariant: it was there before").ask(mine)
    }
}

struct ClockedServe {
    serve: Box<dyn Serve>,
    spent: Arc<AtomicU64>,
}

impl Serve for ClockedServe {
    fn serve(&mut self, messages: &[Payload], answer: &mut Vec<u8>) -> bool {
        let start = cpu();
        let served = self.serve.serve(messages, answer);
        self.spent.fetch_add(cpu() - start, Ordering::Relaxed);
        served
    }
}

/// One step of one rank, in milliseconds and bytes.
#[derive(Clone, Copy, Default)]
struct Sample {
    wall: f64,
    encode: f64,
    decode: f64,
    up: u64,
    down: u64,
}

/// The steps of one rank, after two that are not counted.
fn rank(end: Clocked, scheme: &Scheme, topology: Topology, elements: usize) -> Result<Vec<Sample>> {
    let (number, sent, server) = (end.rank(), end.sent.clone(), end.server.clone());
    let layout = Layout::new([("weight".to_string(), elements)])?;
    let mut exchange =
        Exchange::over(topology, scheme, Bucketing::Whole, layout, 1, Box::new(end))?;
    let stream = Stream::of(&[number as u64]);
    let laplace = |i: usize| {
        let uniform = stream.uniform(i as u32) - 0.5;
        -uniform.signum() * (1.0 - 2.0 * uniform.abs()).max(1e-30).ln()
    };
    let given: Vec<f32> = (0..elements).map(laplace).collect();
    let mut gradient = given.clone();
    let (mut samples, mut steps, mut step) = (Vec::new(), u64::MAX, 0);
    while step < steps {
        step += 1;
        gradient.copy_from_slice(&given);
        exchange.collective().barrier()?;
        sent.store(0, Ordering::Relaxed);
        let (start, before) = (Instant::now(), cpu());
        let traffic = exchange.allreduce(step, &mut gradient)?;
        let (after, first) = (cpu(), sent.load(Ordering::Relaxed));
        let wall = start.elapsed().as_secs_f64();
        if step == 2 {
            // What two steps took decides how many follow, on all ranks alike.
            let mut longest = [wall];
            exchange.collective().sum_f64(&mut longest)?;
            let mean = longest[0] / exchange.collective().world_size() as f64;
            steps = 2 + (BUDGET / mean).clamp(1.0, 9.0) as u64;
            server.store(0, Ordering::Relaxed);
        } else if step > 2 {
            let milliseconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
            samples.push(Sample {
                wall: wall * 1e3,
                encode: milliseconds(before, first),
                decode: milliseconds(first, after),
                up: traffic.wire_bytes,
                down: traffic.downlink_bytes,
            });
        }
    }
    Ok(samples)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn row(scheme: &Scheme, topology: Topology, elements: usize, ranks: usize) -> Result<String> {
    let server = Arc::new(AtomicU64::new(0));
    let ends = topology.connect(ranks, PATIENCE)?.into_iter().map(|end| Clocked {
        end,
        sent: Arc::default(),
        server: server.clone(),
    });
    let all: Vec<Result<Vec<Sample>>> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            ends.map(|end| scope.spawn(move || rank(end, scheme, topology, elements))).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| {
            worker.join().expect("invariant: ranks report errors")
        };
        workers.into_iter().map(join).collect()
    });
    let all: Vec<Vec<Sample>> = all.into_iter().collect::<Result<_>>()?;
    let steps = all.first().map_or(0, Vec::len);
    let slowest = |step: usize| all.iter().map(|samples| samples[step].wall).fold(0.0, f64::max);
    let of = |value: fn(&Sample) -> f64| median(all.iter().flatten().map(value).collect());
    let served = server.load(Ordering::Relaxed) as f64 / 1e6 / steps.max(1) as f64;
    let last = all.first().and_then(|samples| samples.last()).copied().unwrap_or_default();
    Ok(format!(
        "{elements:>9} {:<9} {:<9} {ranks:>3} {steps:>5} {:>10.2} {:>10.2} {:>10.2} {served:>10.2} {:>11} {:>11}",
        scheme.about().name,
        topology.name(),
        median((0..steps).map(slowest).collect()),
        of(|sample| sample.encode),
        of(|sample| sample.decode),
        last.up,
        last.down,
    ))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let most: usize = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let sizes = arguments.map(|text| text.parse()).collect::<Result<Vec<usize>, _>>()?;
    let sizes = if sizes.is_empty() { vec![270_000, 11_200_000] } else { sizes };
    let sidco = sidco::Config { ratio: 0.001.into(), ..Default::default() };
    let optquant = optquant::Config { bits: 3, ..Default::default() };
    let schemes = [Scheme::default(), Scheme::Sidco(sidco), Scheme::Optquant(optquant)];
    println!(
        "{:>9} {:<9} {:<9} {:>3} {:>5} {:>10} {:>10} {:>10} {:>10} {:>11} {:>11}",
        "elements",
        "scheme",
        "topology",
        "N",
        "steps",
        "wall ms",
        "encode ms",
        "decode ms",
        "server ms",
        "up bytes",
        "down bytes"
    );
    println!("{:>46} {:>10} {:>10} {:>10}", "", "per rank,", "own clock", "own clock");
    for elements in sizes {
        for scheme in &schemes {
            for topology in Topology::ALL {
                for ranks in [2, 4, 8, 16, 32, 64].into_iter().filter(|ranks| *ranks <= most) {
                    println!("{}", row(scheme, *topology, elements, ranks)?);
                }
            }
        }
    }
    Ok(())
}
