//! How the exchange scales with the number of ranks, for three schemes over each topology:
//! `cargo run --release -p gradwire-exchange --example scaling [-- MAX_RANKS [ELEMENTS…]]`.
//!
//! All ranks are threads of one process and share its cores, so that wall time grows with their
//! number whatever they do. What one rank has to do is told by the thread's own clock: to encode,
//! and to decode and average. A server's work is told apart.

use std::error::Error;
use std::time::{Duration, Instant};

use gradwire_exchange::rng::Stream;
use gradwire_exchange::schemes::{optquant, sidco};
use gradwire_exchange::{
    Bucketing, Collective, Exchange, Layout, Leg, Result, Scheme, SchemeConfig, Topology, mesh,
};

const PATIENCE: Duration = Duration::from_secs(600);
/// Seconds that the steps of one row may take, more or less; at least one step, at most nine.
const BUDGET: f64 = 4.0;

/// One step of one rank, in milliseconds and bytes.
#[derive(Clone, Copy, Default)]
struct Sample {
    wall: f64,
    encode: f64,
    decode: f64,
    server: f64,
    up: u64,
    down: u64,
}

/// The steps of one rank, after two that are not counted.
fn rank(
    end: Box<dyn Collective>,
    scheme: &SchemeConfig,
    topology: Topology,
    elements: usize,
) -> Result<Vec<Sample>> {
    let number = end.rank();
    let layout = Layout::new([("weight".to_string(), elements)])?;
    let mut exchange = Exchange::with(scheme, topology, Bucketing::Whole, layout, 1, end)?;
    let stream = Stream::new(&[number as u64]);
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
        let start = Instant::now();
        let traffic = exchange.allreduce(step, &mut gradient)?;
        let wall = start.elapsed().as_secs_f64();
        if step == 2 {
            // What two steps took decides how many follow, on all ranks alike.
            let mut longest = [wall];
            exchange.collective().sum_f64(&mut longest)?;
            let mean = longest[0] / exchange.collective().world_size() as f64;
            steps = 2 + (BUDGET / mean).clamp(1.0, 9.0) as u64;
        } else if step > 2 {
            let sum = |of: fn(&Leg) -> Duration| {
                1e3 * traffic.legs.iter().map(of).sum::<Duration>().as_secs_f64()
            };
            samples.push(Sample {
                wall: wall * 1e3,
                encode: sum(|leg| leg.encode_cpu),
                decode: sum(|leg| leg.decode_cpu),
                server: sum(|leg| leg.aggregate_cpu),
                up: traffic.wire_bytes,
                down: traffic.downlink_bytes,
            });
        }
    }
    Ok(samples)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

fn row(scheme: &SchemeConfig, topology: Topology, elements: usize, ranks: usize) -> Result<String> {
    let ends = mesh(ranks, PATIENCE).into_iter();
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
    let served = median(all.first().into_iter().flatten().map(|sample| sample.server).collect());
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
    let schemes =
        [SchemeConfig::default(), SchemeConfig::Sidco(sidco), SchemeConfig::Optquant(optquant)];
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
                // Groups are of four.
                let least = if topology.name() == "two-level" { 4 } else { 2 };
                for ranks in
                    [2, 4, 8, 16, 32, 64].into_iter().filter(|n| (least..=most).contains(n))
                {
                    println!("{}", row(scheme, *topology, elements, ranks)?);
                }
            }
        }
    }
    Ok(())
}
