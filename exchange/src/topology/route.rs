//! The way that one rank's messages take to become the mean: to every rank, to [owners](super::owners), or in
//! shards.
//!
//! # Shards
//! Averages without every rank averaging everything: a reduce-scatter, then an allgather. The items of a
//! message, buckets or a reducer's values, are laid end to end and cut into one shard for each rank. Each
//! rank averages its shard of all messages, in order of rank as every rank does over an allgather, so that
//! the bits are the same, and shares the mean of it as f32. Where messages can be read in parts, a shard is
//! a stretch of items, cut at multiples of [`RANGE_UNIT`] elements; else it is whole items.
//!
//! * Where memory is shared, messages are read where they lie: a rank decodes its shard of N messages
//!   instead of N messages, and copies the other shards' means.
//! * Between processes each rank is sent its shard alone, which takes messages that have the same number
//!   of bytes for each element. That moves 2 (N − 1)/N of a gradient into and out of every rank, as a
//!   ring allreduce does, instead of N − 1 gradients.

use std::ops::Range;

use super::aggregator::Aggregator;
use super::{Setup, Topology, owners};
use crate::collective::{Collective, Payload};
use crate::compress::compressor::RANGE_UNIT;
use crate::group::{Bucket, GroupExchange, Item, Received};
use crate::refusal;
use crate::traffic::{Operation, Stopwatch};
use crate::wire::frame::HEADER_BYTES;
use crate::wire::{Frame, Kind, Reader, floats};
use crate::{Error, Result, State};

/// How one rank's messages become the mean.
pub(crate) enum Route {
    Allgather,
    Sharded,
    Owners(Box<owners::Owners>),
}

impl Route {
    /// One rank's part in the topology.
    pub(crate) fn new(setup: &Setup<'_>, collective: &mut dyn Collective) -> Result<Self> {
        match setup.wiring.topology {
            Topology::Allgather | Topology::TwoLevel { .. } => Ok(Route::Allgather),
            Topology::Sharded if setup.wiring.downlink.is_none() && !collective.shares_memory() => {
                Err(Topology::Sharded.refuse(
                    "this transport really sends, and the shards' means would be sent as plain f32; \
                     choose the topology `allgather` or `server`",
                ))
            }
            Topology::Sharded if setup.wiring.downlink.is_none() => Ok(Route::Sharded),
            Topology::Server | Topology::Sharded => {
                owners::Owners::new(setup, collective).map(|own| Route::Owners(Box::new(own)))
            }
        }
    }

    /// Whether buckets that are sent as plain f32 are averaged by themselves, or travel in the message
    /// with the others.
    pub(crate) fn sums_apart(&self, collective: &mut dyn Collective) -> bool {
        !self.is_served() && collective.world_size() > 1 && can_shard(collective)
    }

    /// Exchanges `mine`, this rank's message about a group of buckets, and overwrites the group's
    /// elements by their mean; notes time and bytes in the leg. A message of plain f32 alone is an
    /// [`Operation::Allreduce`].
    pub(crate) fn exchange_message(
        &mut self,
        group: &mut GroupExchange<'_>,
        mine: Vec<u8>,
    ) -> Result<Received> {
        let plain = group.leg.operation == Operation::Allreduce;
        match self {
            Route::Sharded if !plain => average_shards_in_memory(group, mine),
            Route::Owners(owners) if !plain || owners.is_server() => {
                owners.exchange_message(group, mine)
            }
            Route::Allgather | Route::Sharded | Route::Owners(_) => {
                let shardable = can_shard(&mut group.member.collective);
                match (plain, shardable) {
                    (true, true) => average_in_shards(group, mine),
                    (false, true) if is_cheaper(group) => {
                        group.leg.operation = Operation::ReduceScatter;
                        average_in_shards(group, mine)
                    }
                    (false, _) => group.allgather_mean(mine),
                    (true, false) => {
                        group.leg.operation = Operation::Allgather;
                        group.allgather_mean(mine)
                    }
                }
            }
        }
    }

    /// Whether a server averages everything.
    pub(crate) fn is_served(&self) -> bool {
        matches!(self, Route::Owners(owners) if owners.is_server())
    }

    /// Fails if an owner compresses the downlink: it learns from whole steps, and here some buckets would sit out.
    pub(crate) fn refuse_partial_steps(&self) -> Result<()> {
        match self {
            Route::Owners(owners) if owners.compresses => Err(owners.topology.refuse(
                "a downlink that is compressed is about whole steps, and not about one group of \
                 buckets; leave the downlink out",
            )),
            _ => Ok(()),
        }
    }

    /// What this rank owns, if anything: the means that it takes for all.
    pub(crate) fn aggregator(&mut self) -> Option<&mut Aggregator> {
        match self {
            Route::Owners(owners) => owners.aggregator.as_mut(),
            Route::Allgather | Route::Sharded => None,
        }
    }

    /// Puts what later steps depend on into `state`.
    pub(crate) fn save(&self, state: &mut State) {
        match self {
            Route::Owners(owners) => owners.save(state),
            Route::Allgather | Route::Sharded => {}
        }
    }

    /// Takes up what [`save`](Self::save) put there.
    pub(crate) fn restore(&mut self, state: &State) -> Result<()> {
        let own = if let Route::Owners(owners) = self { owners.scope() } else { "" };
        for (scope, who) in owners::SCOPES.iter().filter(|(scope, _)| *scope != own) {
            if !state.scope(scope).is_empty() {
                let problem =
                    format!("would be lost: this topology has no {who} that could take it up");
                return Err(Error::State { entry: scope.to_string(), problem });
            }
        }
        match self {
            Route::Owners(owners) => owners.restore(state),
            Route::Allgather | Route::Sharded => Ok(()),
        }
    }
}

/// Bytes of a shard's mean that are checked and copied while the first cache holds them.
const PIECE: usize = 4 * RANGE_UNIT;

/// A stretch of one item's elements.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    /// The item's place in the message.
    index: usize,
    part: Range<usize>,
}

/// Whether a transport can average in shards.
fn can_shard(collective: &mut dyn Collective) -> bool {
    collective.divides() || collective.shares_memory()
}

/// Whether coded messages take fewer bytes this way: all of them have a fixed number w of bytes per
/// element, and their shards plus the means as f32 are less than N − 1 whole messages:
/// (w + 4) (N − 1)/N < w (N − 1).
fn is_cheaper(group: &GroupExchange<'_>) -> bool {
    let ranks = group.context.world_size;
    let cheaper = |item: &Item| {
        let codec = group.member.buckets[item.bucket].codec();
        codec.and_then(|codec| codec.element_bytes()).is_some_and(|bytes| bytes + 4 < bytes * ranks)
    };
    group.items.iter().all(cheaper)
}

/// Averages the items of a message over ranks, by whichever of the two the transport offers. Nobody
/// learns from the messages.
fn average_in_shards(group: &mut GroupExchange<'_>, mine: Vec<u8>) -> Result<Received> {
    if group.member.collective.divides() {
        return average_sent_shards(group, &mine)
            .map(|()| Received::Own(Some(Payload::from(mine))));
    }
    let rank = group.context.rank;
    average_shards_in_memory(group, mine).map(|received| Received::Own(received.into_mine(rank)))
}

/// Gives `mine` to all ranks, averages this rank's shard of all messages where they lie, and shares
/// the mean of it, where all ranks share memory.
///
/// When a shard cannot be averaged its rank says so, and all ranks read all messages to find out
/// why: what is wrong with a message is the same error on every rank, its sender included.
fn average_shards_in_memory(group: &mut GroupExchange<'_>, mine: Vec<u8>) -> Result<Received> {
    let (context, items) = (group.context, group.items);
    let (rank, ranks) = (context.rank, context.world_size);
    let messages = group.allgather(mine)?;
    let received = Stopwatch::start();
    let frames = context.skim(items, &messages)?;
    let pieces = cut(&group.member.buckets, items, ranks);
    let parts =
        frames.chunks(items.len().max(1)).map(|frames| part_bytes(items, frames, &pieces[rank]));
    let parts = parts.sum();
    group.member.collective.hands_on_parts(&messages, parts);
    // Each message is checked by one rank of those that share it.
    let mut to_check = ((rank + 1) % ranks..messages.len()).step_by(ranks);
    let checked = to_check.try_for_each(|from| context.check(from, &messages[from]));
    let (result, _) = shard(group, |group, mean, result| {
        checked?;
        for Piece { index, part } in &pieces[rank] {
            let item = items[*index];
            let of_ranks = frames[*index..].iter().step_by(items.len());
            let decoder = group.decoder(item);
            let overflow = context.put_mean(of_ranks, decoder, item, part.clone(), mean, result)?;
            if overflow.is_some() {
                let reason = "the mean of a shard is not finite".to_string();
                return Err(Error::Aborted { rank, step: context.step, reason });
            }
        }
        Ok(())
    });
    group.leg.add_decode(received);
    let results = group.allgather(result)?;
    let refused = results.iter().find_map(|result| Frame::refusal_of(result));
    let taken = match refused {
        Some((_, refusal)) => Err(refusal),
        None => take_results(group, results, &pieces),
    };
    if let Err(error) = taken {
        // The messages are here: what is wrong with them comes first, and is wrong on every rank.
        group.mean_of_messages(&messages)?;
        return Err(error);
    }
    Ok(Received::Messages(messages))
}

/// The same over a transport that really sends: each rank is sent its shard alone.
fn average_sent_shards(group: &mut GroupExchange<'_>, mine: &[u8]) -> Result<()> {
    let (context, items) = (group.context, group.items);
    let dividing = Stopwatch::start();
    let pieces = cut(&group.member.buckets, items, context.world_size);
    let mut reader = Reader::new(mine);
    let own =
        items.iter().map(|_| Ok(Frame::split(&mut reader)?.frame)).collect::<Result<Vec<_>>>()?;
    let parts = pieces.iter().map(|pieces| part(group, &own, pieces)).collect();
    group.leg.add_encode(dividing);

    let sent = Stopwatch::start();
    let messages = group.member.collective.alltoall(parts);
    let messages = messages.map_err(|error| error.awaiting(context.awaited()))?;
    group.leg.add_wait(sent);

    let received = Stopwatch::start();
    if let Some(refusal) = refusal::first(&messages, context.ranks_per_group) {
        return Err(refusal);
    }
    let own = &pieces[context.rank];
    let (result, averaged) = shard(group, |group, mean, result| {
        let mut readers: Vec<Reader<'_>> = messages.iter().map(|m| Reader::new(m)).collect();
        let blame = |from| context.blame(from);
        for Piece { index, part } in own {
            let item = items[*index];
            let mut frames = Vec::with_capacity(messages.len());
            for (from, reader) in readers.iter_mut().enumerate() {
                let expected = context.sent_by(from, context.header_of(item.kind, item));
                frames.push(Frame::expect(reader, expected, context.rank).map_err(blame(from))?);
            }
            let (decoder, sent) = (group.decoder(item), Item { length: part.len(), ..item });
            let all = 0..part.len();
            if let Some(element) =
                context.put_mean(frames.iter(), decoder, sent, all, mean, result)?
            {
                return Err(group.overflow(item, part.start + element));
            }
        }
        for (from, reader) in readers.into_iter().enumerate() {
            reader.finish().map_err(Error::from).map_err(blame(from))?;
        }
        Ok(())
    });
    group.leg.add_decode(received);

    let results = group.allgather(result)?;
    if let Err(error) = averaged {
        // Several shards may have a mean that overflows: all ranks tell of the first.
        let first = refusal::first(&results, context.ranks_per_group)
            .filter(|_| matches!(error, Error::NonFiniteMean { .. }));
        return Err(first.unwrap_or(error));
    }
    if let Some(refusal) = refusal::first(&results, context.ranks_per_group) {
        return Err(refusal);
    }
    take_results(group, results, &pieces)
}

/// The bytes of what [`part`] writes of one message.
fn part_bytes(items: &[Item], frames: &[Frame<'_>], pieces: &[Piece]) -> u64 {
    let bytes = |piece: &Piece| {
        let length = items[piece.index].length.max(1);
        HEADER_BYTES + frames[piece.index].payload.len() / length * piece.part.len()
    };
    pieces.iter().map(bytes).sum::<usize>() as u64
}

/// What one rank is sent: a frame for each of its pieces.
fn part(group: &GroupExchange<'_>, frames: &[Frame<'_>], pieces: &[Piece]) -> Vec<u8> {
    let size = |piece: &Piece| HEADER_BYTES + 4 * piece.part.len();
    let mut out = Vec::with_capacity(pieces.iter().map(size).sum());
    for Piece { index, part } in pieces {
        let (item, Frame { header, payload }) = (group.items[*index], &frames[*index]);
        let bytes = payload.len() / item.length.max(1);
        let open = group.context.header_of(header.kind, item).open(&mut out);
        out.extend_from_slice(&payload[bytes * part.start..bytes * part.end]);
        open.close(header.kind, &mut out);
    }
    out
}

/// What this rank tells all others: the means of its pieces, one frame each, which `write` appends; or
/// why there are none.
fn shard(
    group: &mut GroupExchange<'_>,
    write: impl FnOnce(&GroupExchange<'_>, &mut Vec<f32>, &mut Vec<u8>) -> Result<()>,
) -> (Vec<u8>, Result<()>) {
    let mut result = group.buffers().results.take();
    let mut mean = std::mem::take(&mut group.buffers().mean);
    let averaged = write(group, &mut mean, &mut result);
    group.buffers().mean = mean;
    if let Err(error) = &averaged {
        result.clear();
        refusal::write(group.context.header(Kind::Abort, 0), error, &mut result);
    }
    if group.leg.operation != Operation::Allreduce {
        group.leg.downlink_bytes = result.len() as u64;
    }
    (result, averaged)
}

/// Copies the means of all ranks' pieces to where they belong.
fn take_results(
    group: &mut GroupExchange<'_>,
    results: Vec<Payload>,
    pieces: &[Vec<Piece>],
) -> Result<()> {
    let (context, taking) = (group.context, Stopwatch::start());
    for (from, (result, pieces)) in results.iter().zip(pieces).enumerate() {
        let blame = context.blame(from);
        let mut reader = Reader::new(result);
        for Piece { index, part } in pieces {
            let item = group.items[*index];
            let expected = context.sent_by(from, context.header_of(Kind::Shard, item));
            let sent = Frame::split(&mut reader).map_err(Error::from).map_err(&blame)?;
            let of_length = floats::expect(sent.frame.payload, part.len());
            if sent.frame.header.answers(expected) && of_length.is_ok() {
                let (mut at, mut fault) = (part.start, None);
                let put = |bytes: &[u8]| {
                    let values = bytes.as_chunks().0;
                    fault = fault.take().or_else(|| floats::fault_of_mean(values));
                    group.put(item, at, values);
                    at += values.len();
                };
                sent.check_while(PIECE, put).map_err(Error::from).map_err(&blame)?;
                match fault {
                    Some(fault) => return Err(blame(fault.into())),
                    None => continue,
                }
            }
            let checked = sent.check().map_err(Error::from).map_err(&blame)?;
            checked.awaited(expected, context.rank).map_err(&blame)?;
            of_length.map_err(Error::from).map_err(&blame)?;
        }
        reader.finish().map_err(Error::from).map_err(blame)?;
    }
    group.buffers().results.keep(results.into_iter().nth(context.rank));
    group.leg.add_decode(taking);
    Ok(())
}

/// The pieces of each rank's shard: the items end to end, cut into stretches of about the same
/// length where they can be cut, and whole items to the rank with the least where not.
fn cut(buckets: &[Bucket], items: &[Item], ranks: usize) -> Vec<Vec<Piece>> {
    let mut shards = vec![Vec::new(); ranks];
    let divides =
        |item: &Item| item.decoder(buckets).is_none_or(|compressor| compressor.reads_ranges());
    let (divided, mut whole): (Vec<usize>, Vec<usize>) =
        (0..items.len()).partition(|index| divides(&items[*index]));
    let total: usize = divided.iter().map(|index| items[*index].length).sum();
    let mut before = 0;
    for index in divided {
        let length = items[index].length;
        // Where rank r's shard begins, in this item.
        let cut = |rank: usize| {
            let target = (total as u128 * rank as u128 / ranks as u128) as usize;
            let within = target.saturating_sub(before).min(length);
            let rounded = (within + RANGE_UNIT / 2) / RANGE_UNIT * RANGE_UNIT;
            if within == length { length } else { rounded.min(length) }
        };
        for (rank, shard) in shards.iter_mut().enumerate() {
            let part = cut(rank)..if rank + 1 == ranks { length } else { cut(rank + 1) };
            if !part.is_empty() {
                shard.push(Piece { index, part });
            }
        }
        before += length;
    }
    let mut loads = vec![0; ranks];
    whole.sort_by_key(|index| std::cmp::Reverse(items[*index].length));
    for index in whole {
        let length = items[index].length;
        let least = (0..ranks).min_by_key(|rank| loads[*rank]).unwrap_or(0);
        loads[least] += length;
        shards[least].push(Piece { index, part: 0..length });
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::Built;
    use crate::layout::BucketRange;
    use crate::schemes::qsgd;
    use crate::{Scheme, SchemeConfig, Seat};

    fn bucket(start: usize, length: usize, divides: bool) -> Bucket {
        let range = start..start + length;
        let place = BucketRange { parameters: 0..1, range, dense: divides, rule: None };
        let scheme = SchemeConfig::Qsgd(qsgd::Config::default());
        let built = if divides { Built::Plain } else { scheme.build(&Seat::alone(length, 0)) };
        Bucket::new(&place, built, false)
    }

    fn items(buckets: &[Bucket], order: impl Iterator<Item = usize>) -> Vec<Item> {
        let item = |bucket: usize| Item::gradient(bucket, &buckets[bucket], false);
        order.map(item).collect()
    }

    #[test]
    fn shards_cover_every_element_once_and_are_even() {
        for (lengths, ranks) in [
            (vec![100_000], 4),
            (vec![10, 50_000, 0, 3, 70_001, 1024], 3),
            (vec![5], 64),
            (vec![1 << 20, 1 << 19], 64),
        ] {
            let total: usize = lengths.iter().sum();
            let mut start = 0;
            let mut buckets = Vec::new();
            for length in &lengths {
                buckets.push(bucket(start, *length, true));
                start += length;
            }
            let items = items(&buckets, (0..lengths.len()).rev());
            let shards = cut(&buckets, &items, ranks);
            let mut covered: Vec<Vec<u8>> = lengths.iter().map(|length| vec![0; *length]).collect();
            for shard in &shards {
                let load: usize = shard.iter().map(|piece| piece.part.len()).sum();
                assert!(load <= total / ranks + lengths.len() * RANGE_UNIT, "{load} of {total}");
                for Piece { index, part } in shard {
                    assert!(part.start.is_multiple_of(RANGE_UNIT));
                    let covered = &mut covered[items[*index].bucket];
                    covered[part.clone()].iter_mut().for_each(|times| *times += 1);
                }
            }
            assert!(covered.iter().flatten().all(|times| *times == 1), "{lengths:?} × {ranks}");
        }
    }
}
