//! Owners: each bucket has a rank that averages what all ranks say of it and gives back the mean, around a
//! server and where shards are compressed both ways.
//!
//! # Server
//! Rank 0 owns all, and does the server's work in between: one message of each rank up, one down to all, as
//! in DQ-SGD, OptQuant, CASQ and the aggregation-aware selection. What it sends costs a server N times its
//! length: `downlink_bytes`, recorded apart from what ranks send.
//!
//! # Shards compressed both ways
//! A reduce-scatter of messages, a sum in f32, and an allgather of what the scheme makes of the means, as
//! CGX (Markov, Ramezani-Kebrya & Alistarh 2022, "CGX: Adaptive System Support for Communication-Efficient
//! Deep Learning") and torchft's quantised collectives do. The unit is a bucket and not an N-th of the
//! gradient, whose messages of most schemes could not be cut: the largest goes first, to the rank that owns
//! least.
//!
//! # Downlink
//! Exact: every element of the mean, or those that are not 0 and their positions (the sparse union),
//! whichever is shorter; ranks end where an allgather ends, bit for bit. Compressed: the mean compressed
//! again by the same scheme, in place of a rank with the number N, with a residual of the owner's own where
//! the scheme has feedback. With `signsgd` that is a majority vote. Buckets that are sent as they are,
//! uncompressed first steps, and what reducers post come back exact.
//!
//! # What schemes learn
//! Some schemes learn from all ranks' messages, which ranks do not receive here; an owner sends along a
//! summary of it that the scheme defines ([`Compressor::summarise`](crate::Compressor::summarise)), and it
//! is charged as downlink.
//!
//! # State
//! With a compressed downlink the residual of what a rank owns, zero elsewhere, and what its compressors
//! keep: of the server on rank 0 under `server/`, of shards on each rank under `shards/`. With another number
//! of ranks other ranks own the shards: they take up what is theirs.
//!
//! # When it cannot
//! If an owner cannot average what it was sent, all ranks read all messages, and each finds out why by
//! itself.

use std::sync::Arc;
use std::time::Duration;

use super::aggregator::Aggregator;
use super::{Setup, Topology};
use crate::collective::{Collective, Payload};
use crate::compress::{Compressor, sparse};
use crate::group::{GroupExchange, Item, Received, StepContext};
use crate::refusal;
use crate::traffic::Stopwatch;
use crate::wire::downlink::{DownlinkMessage, Form};
use crate::wire::{Fault, Frame, Kind, Read, Reader, floats};
use crate::{Error, Result, State};

/// What one rank does as an owner, and who owns what.
pub(crate) struct Owners {
    pub(super) topology: Topology,
    /// Whether the downlink is compressed: then owners learn from steps.
    pub(super) compresses: bool,
    /// Of each bucket.
    owners: Arc<[usize]>,
    /// What this rank owns by.
    pub(super) aggregator: Option<Aggregator>,
}

/// Where the state of owners is kept, and who they are.
pub(super) const SCOPES: [(&str, &str); 2] = [("server", "server"), ("shards", "owners of shards")];

impl Owners {
    pub(super) fn new(setup: &Setup<'_>, collective: &mut dyn Collective) -> Result<Self> {
        let topology = setup.wiring.topology;
        if !collective.shares_memory() && !collective.divides() {
            return Err(topology.refuse(
                "this transport gives every message to every rank; choose the topology `allgather`",
            ));
        }
        let mut owners = vec![0; setup.ranges.len()];
        if topology != Topology::Server {
            let mut loads = vec![0; setup.world_size];
            let mut order: Vec<usize> = (0..owners.len()).collect();
            order.sort_by_key(|bucket| std::cmp::Reverse(setup.ranges[*bucket].range.len()));
            for bucket in order {
                let least = (0..loads.len()).min_by_key(|rank| loads[*rank]).unwrap_or(0);
                loads[least] += setup.ranges[bucket].range.len();
                owners[bucket] = least;
            }
        }
        let rank = collective.rank();
        let owns = topology != Topology::Server || rank == 0;
        let owned = || {
            let coded = setup.ranges.iter().map(|bucket| !bucket.dense && !bucket.range.is_empty());
            coded.zip(&owners).map(|(coded, owner)| coded && *owner == rank).collect()
        };
        let aggregator = owns.then(|| Aggregator::new(setup, owned()));
        let compresses = setup.wiring.downlink == Some(super::Downlink::Compressed);
        Ok(Self { topology, compresses, owners: owners.into(), aggregator })
    }

    /// Whether one rank owns all.
    pub(crate) fn is_server(&self) -> bool {
        self.topology == Topology::Server
    }

    /// As [`Route::exchange_message`](super::Route::exchange_message).
    pub(super) fn exchange_message(
        &mut self,
        group: &mut GroupExchange<'_>,
        mine: Vec<u8>,
    ) -> Result<Received> {
        let (context, items, rank) = (group.context, group.items, group.context.rank);
        let owns = |item: &Item| self.owners[item.bucket] == rank;
        let owned: Vec<Item> = items.iter().copied().filter(owns).collect();
        let divides = group.member.collective.divides();
        let (mine, given) = if divides {
            let given = self.divide(group, &mine)?;
            (Payload::from(mine), given)
        } else {
            let given = group.allgather(mine)?;
            (given[rank].clone(), given)
        };

        let answering = Stopwatch::start();
        let mut answer = group.buffers().results.take();
        let opened = match divides {
            true if owned.is_empty() => Ok(Vec::new()),
            true => context.open(&owned, &given),
            false => {
                let frames = context.split(items, &given)?.into_iter().enumerate();
                let owned = frames.filter(|(index, _)| owns(&items[index % items.len()]));
                let checked = owned.map(|(index, frame)| {
                    let blame = context.blame(index / items.len());
                    frame.check().map_err(Error::from).map_err(blame)
                });
                checked.collect()
            }
        };
        let served = opened.and_then(|frames| match &mut self.aggregator {
            Some(aggregator) if !owned.is_empty() => {
                aggregator.serve(context, &owned, &frames, &mut answer)
            }
            _ => Ok(None),
        });
        let own = served.map(|overflow| overflow.map(|(item, at)| group.overflow(item, at)));
        let own = own.unwrap_or_else(Some);
        if let Some(error) = &own {
            answer.clear();
            refusal::write(context.header(Kind::Abort, 0), error, &mut answer);
        }
        if self.is_server() {
            let owner = self.aggregator.is_some();
            group.leg.aggregate_cpu = if owner { answering.read().1 } else { Duration::ZERO };
            group.leg.add_wait(answering);
        } else {
            group.leg.add_decode(answering);
        }

        let answers = group.allgather(answer)?;
        if let Some(error) = own.or_else(|| refusal::first(&answers, context.ranks_per_group)) {
            let messages = if divides { group.allgather(mine.to_vec()) } else { Ok(given) };
            if let Ok(messages) = messages {
                group.mean_of_messages(&messages)?;
            }
            return Err(error);
        }
        group.leg.downlink_bytes = answers[if self.is_server() { 0 } else { rank }].len() as u64;
        let taking = Stopwatch::start();
        self.take(group, &answers)?;
        group.buffers().results.keep(Some(answers[rank].clone()));
        group.leg.add_decode(taking);
        Ok(Received::Mean { mine, answers, owners: self.owners.clone() })
    }

    /// Gives each owner its part of a message; what all ranks have for this one.
    fn divide(&self, group: &mut GroupExchange<'_>, mine: &[u8]) -> Result<Vec<Payload>> {
        let (context, dividing) = (group.context, Stopwatch::start());
        let mut parts = vec![Vec::new(); context.world_size];
        let mut reader = Reader::new(mine);
        for item in group.items {
            let before = reader.rest();
            Frame::split(&mut reader)?;
            let frame = &before[..before.len() - reader.rest().len()];
            parts[self.owners[item.bucket]].extend_from_slice(frame);
        }
        // Who owns nothing of it, and is elsewhere, has to find out.
        for part in parts.iter_mut().filter(|part| part.is_empty()) {
            context.header_of(Kind::Shard, group.items[0]).write(&[], part);
        }
        group.leg.add_encode(dividing);
        let sent = Stopwatch::start();
        let given = group.member.collective.alltoall(parts);
        let given = given.map_err(|error| error.awaiting(context.awaited()))?;
        group.leg.add_wait(sent);
        refusal::first(&given, context.ranks_per_group).map_or(Ok(given), Err)
    }

    /// Overwrites the group's elements by what the owners say.
    fn take(&self, group: &mut GroupExchange<'_>, answers: &[Payload]) -> Result<()> {
        let context = group.context;
        let downlinks = downlinks(context, group.items, &self.owners, answers, Frame::read)?;
        for (item, (owner, downlink)) in group.items.iter().zip(downlinks) {
            let bucket = &mut group.member.buckets[item.bucket];
            if let Some(touched) = &mut bucket.touched {
                touched.known = false;
            }
            let taken = match item.kind {
                Kind::Values => read_mean(&downlink, None, bucket.posted_mean(item.length)),
                _ => read_mean(&downlink, bucket.codec(), bucket.elements_mut(group.gradient)),
            };
            taken.map_err(context.blame(owner))?;
            group.note_zeros(*item);
        }
        Ok(())
    }

    /// Where the state of what a rank owns is kept.
    pub(super) fn scope(&self) -> &'static str {
        SCOPES[usize::from(!self.is_server())].0
    }

    pub(super) fn save(&self, state: &mut State) {
        if let Some(aggregator) = &self.aggregator {
            state.insert_scope(self.scope(), aggregator.save());
        }
    }

    pub(super) fn restore(&mut self, state: &State) -> Result<()> {
        // Of a server rank 0 takes it up, for all.
        let state = state.scope(self.scope());
        self.aggregator.as_mut().map_or(Ok(()), |aggregator| aggregator.restore(&state))
    }
}

/// What is said of each item, and its owner, whose frames are as `next` reads them and in their places.
pub(crate) fn downlinks<'a>(
    context: StepContext,
    items: &[Item],
    owners: &[usize],
    answers: &'a [Payload],
    next: impl Fn(&mut Reader<'a>) -> Read<Frame<'a>>,
) -> Result<Vec<(usize, DownlinkMessage<'a>)>> {
    let mut readers: Vec<Reader<'a>> = answers.iter().map(|answer| Reader::new(answer)).collect();
    let item = |item: &Item| {
        let owner = owners[item.bucket];
        let expected = context.header_of(Kind::Downlink, *item).from_rank(context.world_size);
        let mut read = || Ok(next(&mut readers[owner])?.awaited(expected, context.rank)?.payload);
        let payload = read().map_err(context.blame(owner))?;
        let downlink =
            DownlinkMessage::read(payload).map_err(Error::from).map_err(context.blame(owner))?;
        Ok((owner, downlink))
    };
    let downlinks = items.iter().map(item).collect::<Result<_>>()?;
    for (from, reader) in readers.into_iter().enumerate() {
        reader.finish().map_err(Error::from).map_err(context.blame(from))?;
    }
    Ok(downlinks)
}

/// Overwrites `mean` by what an owner says, compressed or not; all of it has to be finite.
fn read_mean(
    downlink: &DownlinkMessage<'_>,
    compressor: Option<&dyn Compressor>,
    mean: &mut [f32],
) -> Result<()> {
    match (downlink.form, compressor) {
        (Form::Dense, _) => floats::copy(floats::expect(downlink.mean, mean.len())?, mean),
        (Form::Sparse, _) => sparse::set(downlink.mean, mean)?,
        (Form::Compressed, Some(compressor)) => {
            mean.fill(0.0);
            compressor.decode_add(downlink.mean, 0, 1.0, mean)?;
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
