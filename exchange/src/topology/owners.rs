//! Shards compressed both ways: each bucket has an owner, who averages what all ranks say of it and gives
//! back the mean, compressed again.
//!
//! A reduce-scatter of messages, a sum in f32, and an allgather of what the scheme makes of the means, as
//! CGX (Markov, Ramezani-Kebrya & Alistarh 2022, "CGX: Adaptive System Support for Communication-Efficient
//! Deep Learning") and torchft's quantised collectives do. An owner is to its buckets what a
//! [server](super::server) with a compressed downlink is to all: with error feedback it keeps the residual
//! of their means, and it sends along what schemes learn from messages.
//!
//! # Where we differ
//! The unit is a bucket and not an N-th of the gradient, whose messages of most schemes could not be cut:
//! the largest goes first, to the rank that owns least.
//!
//! # State
//! Of each rank under `shards/`, of the buckets that it owns: the residual, zero elsewhere, and what
//! compressors keep. With another number of ranks other ranks own them: they take up what is theirs.

use super::server::{self, Aggregator};
use super::{Setup, Topology};
use crate::bucket::Item;
use crate::collective::{Collective, Payload};
use crate::cpu::Stopwatch;
use crate::group::{GroupExchange, Received};
use crate::refusal;
use crate::wire::{Frame, Kind, Reader};
use crate::{Error, Result, State};

/// What one rank does as an owner, and who owns what.
pub(crate) struct Owners {
    /// Of each bucket.
    owners: Vec<usize>,
    aggregator: Aggregator,
}

/// Where the state of what a rank owns is kept.
pub(super) const SCOPE: &str = "shards";

impl Owners {
    pub(super) fn new(setup: &Setup<'_>, collective: &mut dyn Collective) -> Result<Self> {
        if !collective.shares_memory() && collective.alltoall().is_none() {
            return Err(Topology::Sharded.refuse(
                "this transport gives every message to every rank; choose the topology `allgather`",
            ));
        }
        let mut owners = vec![0; setup.ranges.len()];
        let mut loads = vec![0; setup.world_size];
        let mut order: Vec<usize> = (0..owners.len()).collect();
        order.sort_by_key(|bucket| std::cmp::Reverse(setup.ranges[*bucket].range.len()));
        for bucket in order {
            let least = (0..loads.len()).min_by_key(|rank| loads[*rank]).unwrap_or(0);
            loads[least] += setup.ranges[bucket].range.len();
            owners[bucket] = least;
        }
        // Plain buckets are averaged elsewhere.
        let rank = collective.rank();
        let coded = setup.ranges.iter().map(|bucket| !bucket.dense && !bucket.range.is_empty());
        let owned = coded.zip(&owners).map(|(coded, owner)| coded && *owner == rank).collect();
        Ok(Self { aggregator: Aggregator::new(setup, owned), owners })
    }

    /// As [`Route::average`](super::Route::average).
    pub(super) fn average(
        &mut self,
        group: &mut GroupExchange<'_>,
        mine: Vec<u8>,
    ) -> Result<Received> {
        let (context, items) = (group.context, group.items);
        let of = |owner: usize| -> Vec<Item> {
            let owned = items.iter().filter(|item| self.owners[item.bucket] == owner);
            owned.copied().collect()
        };
        let dividing = Stopwatch::start();
        let mut parts = vec![Vec::new(); context.world_size];
        self.each_frame(items, &mine, |owner, frame| parts[owner].extend_from_slice(frame))?;
        group.leg.add_encode(dividing);
        let given = self.give(group, parts)?;

        let answering = Stopwatch::start();
        let owned = of(context.rank);
        let mut answer = Vec::new();
        let mut own = Ok(());
        if !owned.is_empty() && !self.aggregator.serve(&given, &mut answer, false) {
            let (member, gradient, leg) =
                (&mut *group.member, &mut *group.gradient, &mut *group.leg);
            let mut part = GroupExchange { member, context, items: &owned, gradient, leg };
            let reason = "the mean of a shard cannot be told".to_string();
            let unknown = Error::Aborted { rank: context.rank, step: context.step, reason };
            let error = part.average(&given).err().unwrap_or(unknown);
            answer.clear();
            refusal::write(context.header(Kind::Abort, 0), &error, &mut answer);
            own = Err(error);
        }
        group.leg.downlink_bytes = answer.len() as u64;
        group.leg.add_decode(answering);

        let answers = group.allgather(answer)?;
        if let Some(refusal) = refusal::first(&answers, context.group) {
            return Err(refusal);
        }
        own?;
        let taking = Stopwatch::start();
        for (owner, answer) in answers.iter().enumerate() {
            let owned = of(owner);
            let (member, gradient, leg) =
                (&mut *group.member, &mut *group.gradient, &mut *group.leg);
            let mut part = GroupExchange { member, context, items: &owned, gradient, leg };
            server::take(&mut part, answer).map_err(|error| match error {
                Error::ServerMessage { fault, .. } => context.blame(owner)(fault.into()),
                other => other,
            })?;
        }
        let mut readers: Vec<Reader<'_>> =
            answers.iter().map(|answer| Reader::new(answer)).collect();
        let mut downlink = Vec::new();
        for item in items {
            let reader = &mut readers[self.owners[item.bucket]];
            let before = reader.rest();
            Frame::split(reader)?;
            downlink.extend_from_slice(&before[..before.len() - reader.rest().len()]);
        }
        group.leg.add_decode(taking);
        Ok(Received::Mean { mine: mine.into(), downlink: downlink.into() })
    }

    /// Gives each owner its part; all ranks' parts for this one.
    fn give(&self, group: &mut GroupExchange<'_>, parts: Vec<Vec<u8>>) -> Result<Vec<Payload>> {
        let context = group.context;
        let divides = group.member.collective.alltoall().is_some();
        let given = if divides {
            let sent = Stopwatch::start();
            let alltoall = group.member.collective.alltoall();
            let alltoall = alltoall.expect("invariant: it is there");
            let given = alltoall.alltoall(parts).map_err(|e| e.awaiting(context.awaited()))?;
            group.leg.add_wait(sent);
            given
        } else {
            group.allgather(parts.concat())?
        };
        if let Some(refusal) = refusal::first(&given, context.group) {
            return Err(refusal);
        }
        if divides {
            return Ok(given);
        }
        // Parts lie in order of owner.
        let before = |item: &&Item| self.owners[item.bucket] < context.rank;
        let skipped = group.items.iter().filter(before).count();
        let own =
            group.items.iter().filter(|item| self.owners[item.bucket] == context.rank).count();
        let part = |(from, message): (usize, &Payload)| {
            let mut reader = Reader::new(message);
            let mut at = [0; 2];
            for (at, frames) in at.iter_mut().zip([skipped, own]) {
                for _ in 0..frames {
                    Frame::split(&mut reader).map_err(Error::from).map_err(context.blame(from))?;
                }
                *at = message.len() - reader.rest().len();
            }
            Ok(message.slice(at[0]..at[1]))
        };
        given.iter().enumerate().map(part).collect()
    }

    /// Visits the frame about each item, with its owner.
    fn each_frame(
        &self,
        items: &[Item],
        message: &[u8],
        mut visit: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        let mut reader = Reader::new(message);
        for item in items {
            let before = reader.rest();
            Frame::split(&mut reader)?;
            visit(self.owners[item.bucket], &before[..before.len() - reader.rest().len()]);
        }
        Ok(())
    }

    /// As [`Route::end`](super::Route::end).
    pub(super) fn end(&mut self, step: u64) -> Result<()> {
        self.aggregator.end(step)
    }

    pub(super) fn save(&self, state: &mut State) {
        state.insert_scope(SCOPE, self.aggregator.save());
    }

    pub(super) fn restore(&mut self, state: &State) -> Result<()> {
        self.aggregator.restore(&state.scope(SCOPE))
    }
}
