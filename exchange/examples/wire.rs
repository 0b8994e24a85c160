//! Messages of given sizes over TCP, in the pattern of a collective, between processes that may be
//! on different hosts; and what the model says about them. `benches/network/check.py` runs it.
//!
//! `wire host PLAN PLACE` is one host: it reads the plan, meets the others, runs every round and
//! prints, for each, the seconds at which it began and had everything (`-` for the server).
//! `wire model PLAN` reads lines of `begin:end …` per round, one pair per rank, and prints for each
//! round the measured and the modelled seconds.
//!
//! PLAN is JSON: `{"pattern": "allgather", "link": "1gbit,header=66", "addresses": ["10.0.0.1:7000",
//! …], "rounds": [[[up, down], …], …]}`; with pattern `server`, the last address is the server's.

use std::error::Error;
use std::io::{BufRead, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gradwire_exchange::network::{Clock, GroupWork, Link, Pattern, Sent, StepWork};
use serde::Deserialize;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// How long to wait for a host that does not answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// From the word to start to the start: enough for token buckets to fill.
const HEAD_START: f64 = 0.008;

#[derive(Deserialize)]
struct Plan {
    pattern: String,
    link: Link,
    addresses: Vec<String>,
    /// Of each round and each rank, the bytes up and down.
    rounds: Vec<Vec<[u64; 2]>>,
}

impl Plan {
    fn pattern(&self) -> Result<Pattern> {
        match self.pattern.as_str() {
            "allgather" => Ok(Pattern::RingAllgather),
            "allreduce" => Ok(Pattern::RingAllreduce),
            "server" => Ok(Pattern::Server),
            "sharded" => Ok(Pattern::Sharded),
            other => Err(format!("no pattern {other:?}").into()),
        }
    }

    fn ranks(&self) -> usize {
        self.addresses.len() - usize::from(self.pattern == "server")
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let plan = |path: &str| -> Result<Plan> {
        Ok(serde_json::from_str(
            &std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?,
        )?)
    };
    match words[..] {
        ["host", path, place] => Host::meet(&plan(path)?, place.parse()?)?.run(&plan(path)?),
        ["model", path] => model(&plan(path)?),
        _ => Err("write `wire host PLAN PLACE` or `wire model PLAN`".into()),
    }
}

/// Prints measured and modelled seconds of each round whose times come in.
fn model(plan: &Plan) -> Result<()> {
    for (round, line) in plan.rounds.iter().zip(std::io::stdin().lock().lines()) {
        let mut times = Vec::new();
        for pair in line?.split_whitespace() {
            let (begin, end) = pair.split_once(':').ok_or("a time without end")?;
            times.push((begin.parse::<f64>()?, end.parse::<f64>()?));
        }
        let first = times.iter().map(|(begin, _)| *begin).fold(f64::INFINITY, f64::min);
        let last = times.iter().map(|(_, end)| *end).fold(0.0, f64::max);
        let work = |([up, down], (begin, _)): (&[u64; 2], &(f64, f64))| {
            let sent = Sent { up: *up, down: *down, ..Sent::default() };
            let group = GroupWork { ready: 1.0, sent, ..GroupWork::default() };
            StepWork { before: begin - first, groups: vec![group], ..StepWork::default() }
        };
        let works: Vec<StepWork> = round.iter().zip(&times).map(work).collect();
        let took = Clock::new(&plan.link, plan.pattern()?, works.len(), 0).step(1, &works);
        println!("{:.6} {:.6}", last - first, took.seconds);
    }
    Ok(())
}

/// One process, and its connections to all others: one for each direction, so that what
/// acknowledges does not wait behind what is sent.
struct Host {
    place: usize,
    /// By place: what comes from there; the own is absent.
    streams: Vec<Option<TcpStream>>,
    /// By place.
    writers: Vec<Option<Writer>>,
}

/// To the thread that writes to a place, and the thread.
type Writer = (Sender<Vec<u8>>, JoinHandle<()>);

/// So many bytes to, or from, a place.
type Part = (usize, u64);

impl Host {
    /// Connects to all other hosts and is connected to by them.
    fn meet(plan: &Plan, place: usize) -> Result<Self> {
        let listener = TcpListener::bind(&plan.addresses[place])?;
        let others = || (0..plan.addresses.len()).filter(|other| *other != place);
        let mut streams: Vec<Option<TcpStream>> = plan.addresses.iter().map(|_| None).collect();
        let mut writers: Vec<Option<_>> = plan.addresses.iter().map(|_| None).collect();
        for other in others() {
            let mut stream = connect(&plan.addresses[other])?;
            stream.write_all(&[place as u8])?;
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(PATIENCE))?;
            let (sender, inbox) = channel::<Vec<u8>>();
            // The host that misses what cannot be written tells.
            let mut write = move || inbox.iter().try_for_each(|bytes| stream.write_all(&bytes));
            writers[other] = Some((sender, thread::spawn(move || drop(write()))));
        }
        for _ in others() {
            let (mut stream, _) = listener.accept()?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut from = [0];
            stream.read_exact(&mut from)?;
            before_bulk(&stream)?;
            streams[usize::from(from[0])] = Some(stream);
        }
        Ok(Self { place, streams, writers })
    }

    fn run(&mut self, plan: &Plan) -> Result<()> {
        for round in &plan.rounds {
            if self.place == plan.ranks() {
                self.serve(round)?;
                println!("-");
                continue;
            }
            let begin = wait_until(self.agree_on_start(plan.ranks())?);
            for [(to, out), (from, back)] in hops(plan, self.place, round)? {
                self.send(to, vec![0; out as usize])?;
                receive(self.stream(from)?, back)?;
            }
            println!("{begin:.9}:{:.9}", now());
        }
        // What the writers still hold must leave before the process does.
        for (sender, thread) in self.writers.drain(..).flatten() {
            drop(sender);
            thread.join().map_err(|_| "a writer panicked")?;
        }
        Ok(())
    }

    /// Everybody tells rank 0 of being there; rank 0 tells when to start.
    fn agree_on_start(&mut self, ranks: usize) -> Result<f64> {
        let mut word = [0; 8];
        if self.place > 0 {
            self.send(0, word.to_vec())?;
            self.stream(0)?.read_exact(&mut word)?;
            return Ok(f64::from_le_bytes(word));
        }
        for rank in 1..ranks {
            self.stream(rank)?.read_exact(&mut word)?;
        }
        let start = now() + HEAD_START;
        (1..ranks).try_for_each(|rank| self.send(rank, start.to_le_bytes().to_vec()))?;
        Ok(start)
    }

    /// The server: receives from all, then answers all.
    fn serve(&mut self, round: &[[u64; 2]]) -> Result<()> {
        thread::scope(|scope| {
            let reader = |(rank, [up, _]): (usize, &[u64; 2])| {
                let (stream, up) = (self.stream(rank)?, *up);
                Ok(scope.spawn(move || receive(stream, up)))
            };
            let readers = round.iter().enumerate().map(reader).collect::<Result<Vec<_>>>()?;
            readers
                .into_iter()
                .try_for_each(|reader| reader.join().map_err(|_| "a reader panicked")?)
        })?;
        let mut answers = round.iter().enumerate();
        answers.try_for_each(|(rank, [_, down])| self.send(rank, vec![0; *down as usize]))
    }

    fn stream(&self, place: usize) -> Result<&TcpStream> {
        self.streams[place].as_ref().ok_or_else(|| "no stream to oneself".into())
    }

    fn send(&self, place: usize, bytes: Vec<u8>) -> Result<()> {
        let (writer, _) = self.writers[place].as_ref().ok_or("no stream to oneself")?;
        writer.send(bytes).map_err(|_| "a writer has ended: its host is gone".into())
    }
}

/// What a rank does in a round, hop by hop: what it sends, and then what it receives.
fn hops(plan: &Plan, place: usize, round: &[[u64; 2]]) -> Result<Vec<[Part; 2]>> {
    let ranks = plan.ranks();
    // Around the ring goes what began at each rank.
    let ring = |hops: usize, bytes: &dyn Fn(usize) -> u64| -> Vec<[Part; 2]> {
        let (next, previous) = ((place + 1) % ranks, (place + ranks - 1) % ranks);
        let hop = |hop: usize| {
            let origin = |at: usize| (at + ranks - hop % ranks) % ranks;
            [(next, bytes(origin(place))), (previous, bytes(origin(previous)))]
        };
        (0..hops).map(hop).collect()
    };
    let [up, down] = [0, 1].map(|way| move |rank: usize| round[rank][way]);
    Ok(match plan.pattern()? {
        Pattern::TwoLevel { .. } => return Err("a plan has one level".into()),
        Pattern::RingAllgather => ring(ranks - 1, &up),
        Pattern::RingAllreduce => {
            let whole = (0..ranks).map(up).max().unwrap_or(0);
            ring(2 * (ranks - 1), &|_| whole.div_ceil(ranks as u64))
        }
        Pattern::Server => vec![[(ranks, up(place)), (ranks, down(place))]],
        // In turn k each sends its share to the rank k places on and receives from k places back.
        Pattern::Sharded => {
            let share = |rank: usize| up(rank).div_ceil(ranks as u64);
            let scatter = (1..ranks).map(|turn| {
                let (to, from) = ((place + turn) % ranks, (place + ranks - turn) % ranks);
                [(to, share(place)), (from, share(from))]
            });
            scatter.chain(ring(ranks - 1, &down)).collect()
        }
    })
}

/// Lets what this end sends, acknowledgements, pass before bulk data in the host's queue, as fair
/// queueing, the default of most Linux systems, would.
#[cfg(unix)]
fn before_bulk(stream: &TcpStream) -> Result<()> {
    const LOW_DELAY: u8 = 0x10;
    Ok(rustix::net::sockopt::set_ip_tos(stream, LOW_DELAY)?)
}

/// Leaves the queue as it is.
#[cfg(not(unix))]
fn before_bulk(_stream: &TcpStream) -> Result<()> {
    Ok(())
}

fn receive(stream: &TcpStream, bytes: u64) -> Result<()> {
    match std::io::copy(&mut stream.take(bytes), &mut std::io::sink())? {
        read if read == bytes => Ok(()),
        read => Err(format!("{read} of {bytes} bytes came").into()),
    }
}

fn connect(address: &str) -> Result<TcpStream> {
    let began = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return Ok(stream),
            Err(error) if began.elapsed() > PATIENCE => {
                return Err(format!("{address}: {error}").into());
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Sleeps until shortly before `start`, then looks at the clock until it has come.
fn wait_until(start: f64) -> f64 {
    let ahead = start - now() - 2e-4;
    if ahead > 0.0 {
        thread::sleep(Duration::from_secs_f64(ahead));
    }
    while now() < start {
        std::hint::spin_loop();
    }
    now()
}

/// Seconds on a clock that all processes of a machine share.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
