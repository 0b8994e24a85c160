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
//! Some schemes learn from all ranks' messages, which ranks do not receive here; the server sends along
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

pub(super) use self::aggregator::Aggregator;
use super::{Setup, Topology};
use crate::bucket::Item;
use crate::collective::{Aggregate, Collective, Payload, Reply};
use crate::compress::{Compressor, sparse};
use crate::cpu::Stopwatch;
use crate::group::{GroupExchange, Received, StepContext};
use crate::wire::downlink::{Downlink, Form};
use crate::wire::{Fault, Frame, Kind, Read, Reader, floats};
use crate::{Error, Result, State};

/// The server's end of what it shares with rank 0.
struct Shared(Arc<Mutex<Aggregator>>);

impl Aggregate for Shared {
    fn aggregate(&mut self, messages: &[Payload], answer: &mut Vec<u8>) -> bool {
        lock(&self.0).serve(messages, answer, true)
    }
}

/// The server is idle whenever rank 0 is not waiting for it, so that nobody waits here.
fn lock(server: &Mutex<Aggregator>) -> MutexGuard<'_, Aggregator> {
    server.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One rank.
pub(crate) struct Client {
    /// Whether the downlink is compressed.
    compresses: bool,
    /// On rank 0, what the server thinks with: to save and restore it.
    server: Option<Arc<Mutex<Aggregator>>>,
}

impl Client {
    /// The rank at this end; rank 0 tells the server what to do.
    pub(super) fn new(setup: &Setup<'_>, collective: &mut dyn Collective) -> Result<Self> {
        let rank = collective.rank();
        let compresses = setup.wiring.downlink == Some(super::Downlink::Compressed);
        let Some(server) = collective.server() else {
            return Err(Topology::Server.refuse(
                "this collective has no server in it; make the ranks' ends by `Topology::connect`",
            ));
        };
        if rank != 0 {
            return Ok(Client { compresses, server: None });
        }
        let aggregator =
            Arc::new(Mutex::new(Aggregator::new(setup, vec![true; setup.ranges.len()])));
        server.install(Box::new(Shared(aggregator.clone())));
        Ok(Client { compresses, server: Some(aggregator) })
    }

    /// As [`Route::average`](super::Route::average).
    pub(super) fn average(&self, group: &mut GroupExchange<'_>, mine: Vec<u8>) -> Result<Received> {
        let (sent, awaited) = (Stopwatch::start(), group.context.awaited());
        let server = group.member.collective.server();
        let server = server.expect("invariant: a route has been built over this server");
        let reply = server.ask(mine).map_err(|error| error.awaiting(awaited))?;
        group.leg.add_wait(sent);
        let answered = Stopwatch::start();
        let received = match reply {
            Reply::Answer { mine, answer } => {
                group.leg.downlink_bytes = answer.len() as u64;
                take(group, &answer)?;
                Received::Mean { mine, downlink: answer }
            }
            Reply::Messages(messages) => {
                group.leg.downlink_bytes =
                    messages.iter().map(|message| message.len() as u64).sum();
                group.average(&messages)?;
                Received::Messages(messages)
            }
        };
        group.leg.add_decode(answered);
        let server = self.server.as_ref();
        group.leg.aggregate_cpu = server.map_or(Duration::ZERO, |server| lock(server).last_took());
        Ok(received)
    }

    /// Whether the server learns from steps.
    pub(super) fn learns(&self) -> bool {
        self.compresses
    }

    pub(super) fn save(&self, state: &mut State) {
        if let Some(server) = &self.server {
            state.insert_scope(SCOPE, lock(server).save());
        }
    }

    pub(super) fn restore(&self, state: &State) -> Result<()> {
        match &self.server {
            Some(server) => lock(server).restore(&state.scope(SCOPE)),
            // Rank 0 takes it up, for all.
            None => Ok(()),
        }
    }
}

/// Where rank 0 keeps the server's state.
pub(super) const SCOPE: &str = "server";

/// Refuses a state that a server left, or owners of shards, where there is nobody to take it up.
pub(super) fn refuse_state(state: &State, scope: &str) -> Result<()> {
    if state.scope(scope).is_empty() {
        return Ok(());
    }
    let who = if scope == SCOPE { "server" } else { "owners of shards" };
    let problem = format!("would be lost: this topology has no {who} that could take it up");
    Err(Error::State { entry: scope.to_string(), problem })
}

/// Overwrites the group's elements by what the server says.
pub(super) fn take(group: &mut GroupExchange<'_>, answer: &[u8]) -> Result<()> {
    let context = group.context;
    let downlinks = read_downlink(context, group.items, answer, Frame::read)?;
    for (item, downlink) in group.items.iter().zip(downlinks) {
        let bucket = &mut group.member.buckets[item.bucket];
        if let Some(touched) = &mut bucket.touched {
            touched.known = false;
        }
        let taken = match item.kind {
            Kind::Values => read_mean(&downlink, None, bucket.posted_mean(item.length)),
            _ => read_mean(&downlink, bucket.codec(), bucket.elements_mut(group.gradient)),
        };
        taken.map_err(|error| blame_server(context, error))?;
        group.note_zeros(*item);
    }
    Ok(())
}

/// The error of a message of the server that cannot be read.
pub(crate) fn blame_server(context: StepContext, error: Error) -> Error {
    match error {
        Error::Wire(fault) => Error::ServerMessage { awaited: context.awaited(), fault },
        other => other,
    }
}

/// What the server says of each item, in a message that has been read before.
pub(crate) fn skim_downlink<'a>(
    context: StepContext,
    items: &[Item],
    message: &'a [u8],
) -> Result<Vec<Downlink<'a>>> {
    read_downlink(context, items, message, |reader| Ok(Frame::split(reader)?.frame))
}

/// What the server says of each item, each frame as `next` reads it and in its place.
fn read_downlink<'a>(
    context: StepContext,
    items: &[Item],
    message: &'a [u8],
    next: impl Fn(&mut Reader<'a>) -> Read<Frame<'a>>,
) -> Result<Vec<Downlink<'a>>> {
    let mut reader = Reader::new(message);
    let read = || {
        let item = |item: &Item| {
            let expected = context.header_of(Kind::Downlink, *item).from_rank(context.world_size);
            let frame = next(&mut reader)?.awaited(expected, context.rank)?;
            Ok(Downlink::read(frame.payload)?)
        };
        let downlinks = items.iter().map(item).collect::<Result<Vec<_>>>()?;
        reader.finish()?;
        Ok(downlinks)
    };
    read().map_err(|error| blame_server(context, error))
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
