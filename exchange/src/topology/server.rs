//! A parameter server on a thread of its own: one message up from each rank, one down to all.
//!
//! # Shape
//! That of DQ-SGD, OptQuant, CASQ and of the aggregation-aware selection: the server decodes the
//! ranks' messages in order of rank and sends back one message, the same for all. What it sends
//! costs it N times its length: `downlink_bytes`, recorded apart from what ranks send.
//!
//! # Downlink
//! Exact: every element of the mean, or those that are not 0 and their positions (the sparse
//! union), whichever is shorter; ranks end where an allgather ends, bit for bit. Compressed: the
//! mean compressed again by the same scheme, in place of a rank with the number N, with a residual
//! of the server's own where the scheme has feedback. With `signsgd` that is a majority vote.
//! Buckets that are sent as they are, uncompressed first steps, and what reducers post come back
//! exact.
//!
//! # What schemes learn
//! Some schemes learn from what all ranks said. Ranks do not hear that here; the server sends along
//! a summary of it that the scheme defines ([`Compressor::summarise`](crate::Compressor::summarise)), and
//! it is charged as downlink.
//!
//! # State
//! With a compressed downlink the server's residual and its compressors; rank 0 saves and restores
//! them under `server/`.
//!
//! # When it cannot
//! If the server cannot average what it was sent, it passes the messages on to everybody, and each
//! rank finds out why by itself.

mod aggregator;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::aggregator::Aggregator;
use super::{Heard, Route, Setup, Shape, Topology, Work};
use crate::bucket::Item;
use crate::collective::{Aggregate, Collective, Payload, Reply, star};
use crate::compress::{Compressor, sparse};
use crate::cpu::Stopwatch;
use crate::wire::downlink::{Downlink, Form};
use crate::wire::{Fault, Kind, floats};
use crate::{Error, Result, State};

pub(super) struct Definition;

impl Shape for Definition {
    const NAME: &'static str = "server";
    const LINE: &'static str = "a server averages all messages and sends one back to every rank";

    fn connect(world_size: usize, timeout: Duration) -> Result<Vec<Box<dyn Collective>>> {
        Ok(star(world_size, timeout)?.into_iter().map(|end| Box::new(end) as _).collect())
    }

    fn route(setup: Setup<'_>) -> Result<Box<dyn Route>> {
        let Some(server) = setup.collective.server() else {
            return Err(Topology::Server.refuse(
                "this collective has no server in it; make the ranks' ends by `Topology::connect`",
            ));
        };
        if setup.rank != 0 {
            return Ok(Box::new(Client { server: None }));
        }
        let aggregator = Arc::new(Mutex::new(Aggregator::new(&setup.about)));
        server.install(Box::new(Shared(aggregator.clone())));
        Ok(Box::new(Client { server: Some(aggregator) }))
    }
}

/// The server's end of what it shares with rank 0.
struct Shared(Arc<Mutex<Aggregator>>);

impl Aggregate for Shared {
    fn aggregate(&mut self, messages: &[Payload], answer: &mut Vec<u8>) -> bool {
        lock(&self.0).serve(messages, answer)
    }
}

/// The server is idle whenever rank 0 is not waiting for it, so that nobody waits here.
fn lock(server: &Mutex<Aggregator>) -> MutexGuard<'_, Aggregator> {
    server.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One rank.
struct Client {
    /// On rank 0, what the server thinks with: to save and restore it.
    server: Option<Arc<Mutex<Aggregator>>>,
}

impl Route for Client {
    fn sums_apart(&self, _collective: &mut dyn Collective) -> bool {
        false
    }

    fn allreduce(&mut self, work: &mut Work<'_>, mine: Vec<u8>) -> Result<Option<Payload>> {
        let rank = work.place.rank;
        self.reduce(work, mine).map(|heard| heard.into_mine(rank))
    }

    fn reduce(&mut self, work: &mut Work<'_>, mine: Vec<u8>) -> Result<Heard> {
        let sent = Stopwatch::start();
        let awaited = work.place.awaited();
        let server = work.collective.server();
        let server = server.expect("invariant: a route has been built over this server");
        let reply = server.ask(mine).map_err(|error| error.awaiting(awaited))?;
        (work.leg.wait, _) = sent.read();
        let received = Stopwatch::start();
        let heard = match reply {
            Reply::Answer { mine, answer } => {
                work.leg.downlink_bytes = answer.len() as u64;
                take(work, &answer)?;
                Heard::Mean { mine, downlink: answer }
            }
            Reply::Messages(messages) => {
                work.leg.downlink_bytes = messages.iter().map(|message| message.len() as u64).sum();
                work.average(&messages)?;
                Heard::Messages(messages)
            }
        };
        let (passed, computed) = received.read();
        work.leg.decode += passed;
        work.leg.decode_cpu += computed;
        let server = self.server.as_ref();
        work.leg.aggregate_cpu = server.map_or(Duration::ZERO, |server| lock(server).last_took());
        Ok(heard)
    }

    fn save(&self, state: &mut State) {
        if let Some(server) = &self.server {
            state.insert_scope(SCOPE, lock(server).save());
        }
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        match &self.server {
            Some(server) => lock(server).restore(&state.scope(SCOPE)),
            // Rank 0 takes it up, for all.
            None => Ok(()),
        }
    }
}

/// Where rank 0 keeps the server's state.
const SCOPE: &str = "server";

/// Refuses a state that a server left, where there is none to take it up.
pub(super) fn refuse_state(state: &State) -> Result<()> {
    if state.scope(SCOPE).is_empty() {
        return Ok(());
    }
    let problem = "would be lost: this topology has no server that could take it up".to_string();
    Err(Error::State { entry: SCOPE.to_string(), problem })
}

/// Overwrites the group's elements by what the server says.
fn take(work: &mut Work<'_>, answer: &[u8]) -> Result<()> {
    let awaited = work.place.awaited();
    let blame = |error: Error| match error {
        Error::Wire(fault) => Error::ServerMessage { awaited, fault },
        other => other,
    };
    let downlinks = work.place.open_downlink(work.items, answer)?;
    for (item, downlink) in work.items.iter().zip(downlinks) {
        take_item(work, *item, &downlink).map_err(blame)?;
        if item.kind == Kind::Dense {
            work.note_support(*item);
        }
    }
    Ok(())
}

/// Overwrites an item by what the server says of it.
fn take_item(work: &mut Work<'_>, item: Item, downlink: &Downlink<'_>) -> Result<()> {
    let bucket = &mut work.buckets[item.bucket];
    bucket.by_blocks = false;
    if item.kind != Kind::Values {
        let mean = bucket.elements_mut(work.gradient);
        return read_mean(downlink, bucket.codec(), mean);
    }
    let mail = bucket.mail_mut().expect("invariant: values are posted by a reducer");
    mail.mean.clear();
    mail.mean.resize(item.length, 0.0);
    read_mean(downlink, None, &mut mail.mean)
}

/// Overwrites `mean` by what the server says, compressed or not; all of it has to be finite.
fn read_mean(
    downlink: &Downlink<'_>,
    compressor: Option<&dyn Compressor>,
    mean: &mut [f32],
) -> Result<()> {
    match (downlink.form, compressor) {
        (Form::Dense, _) => {
            let values = floats::expect(downlink.mean, mean.len())?;
            for (mean, value) in mean.iter_mut().zip(values) {
                *mean = f32::from_le_bytes(*value);
            }
        }
        (Form::Sparse, _) => sparse::set(downlink.mean, mean)?,
        (Form::Compressed, Some(compressor)) => {
            mean.fill(0.0);
            compressor.decode_add(downlink.mean, 0..mean.len(), 1.0, mean)?;
        }
        (Form::Compressed, None) => {
            let found = Form::Compressed as u64;
            return Err(Fault::Field { field: "form", found }.into());
        }
    }
    match floats::first_non_finite(mean) {
        Some(element) => {
            let found = mean[element].to_bits().into();
            Err(Fault::Field { field: "mean", found }.into())
        }
        None => Ok(()),
    }
}
