//! Random numbers, gradients, threads for ranks, and a collective that keeps what is sent.
#![allow(dead_code, unreachable_pub, reason = "each test takes what it needs")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod transports;

use std::sync::{Arc, Mutex};

use gradwire_exchange::schemes::topk;
use gradwire_exchange::wire::Reader;
use gradwire_exchange::wire::frame::Frame;
use gradwire_exchange::{Collective, Layout, Payload, Result, SchemeConfig, Seat};

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

/// Parameters `p0`, `p1`, … of these lengths.
pub fn parameters(lengths: &[usize]) -> Layout {
    let named = lengths.iter().enumerate().map(|(i, length)| (format!("p{i}"), *length));
    Layout::new(named).unwrap()
}

/// The larger half of every bucket.
pub fn half() -> SchemeConfig {
    SchemeConfig::Topk(topk::Config { ratio: 0.5.into(), ..Default::default() })
}

pub fn seat(length: usize) -> Seat {
    Seat::alone(length, 42)
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Rank 0 of two ranks of which the other always sends the same; keeps what is sent.
#[derive(Clone, Default)]
pub struct Echo {
    pub sent: Arc<Mutex<Vec<Vec<u8>>>>,
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
        let mut echo = Vec::new();
        let mut reader = Reader::new(&mine);
        while !reader.rest().is_empty() {
            let frame = Frame::read(&mut reader)?;
            frame.header.from_rank(1).write(frame.payload, &mut echo);
        }
        Ok(vec![Payload::from(mine), Payload::from(echo)])
    }
}
