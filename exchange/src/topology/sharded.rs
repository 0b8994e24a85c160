//! Scatter, reduce, allgather: each rank averages its shard of all messages and shares the result.
//!
//! The gradient is cut into one shard for each rank. Where a scheme's messages can be read in
//! parts, a shard is a stretch of buckets, cut at multiples of [`PART`] elements; else it is whole
//! buckets. A rank decodes its shard of N messages, which is O(d) work, and sends the mean of it as
//! f32; the others copy it. Messages are read where they lie: over a transport that shares no
//! memory the second phase would send 4 bytes for each element, more than a compressed message
//! saves, and compressing it again would give every shard an error of its own; so that is refused.
//! Where some ranks share memory, those of one process among several, these divide the shards among
//! them, and what crosses between processes is the messages alone.
//!
//! Each element is added up in order of rank by one rank, as every rank does over an allgather. When
//! a shard cannot be averaged its rank says so, and all ranks read all messages to find out why.

use std::ops::Range;
use std::time::Duration;

use super::{Heard, Route, Setup, Shape, Topology, Work};
use crate::bucket::Bucket;
use crate::collective::{Collective, Payload};
use crate::compress::PART;
use crate::cpu::Stopwatch;
use crate::wire::{Frame, Kind, Reader, floats, refusal};
use crate::{Error, Result};

pub(super) struct Definition;

impl Shape for Definition {
    const NAME: &'static str = "sharded";
    const LINE: &'static str = "each rank averages its shard of all messages and shares the result";

    fn connect(world_size: usize, timeout: Duration) -> Result<Vec<Box<dyn Collective>>> {
        Topology::Allgather.connect(world_size, timeout)
    }

    fn route(setup: Setup<'_>) -> Result<Box<dyn Route>> {
        let (rank, everywhere) = (setup.rank, setup.collective.shares_memory());
        let group = match setup.collective.neighbours() {
            Some(neighbours) => Group {
                first: rank - neighbours.rank(),
                ranks: neighbours.world_size(),
                all: false,
            },
            None if everywhere => Group { first: 0, ranks: setup.about.world_size, all: true },
            None => return Err(Topology::Sharded.refuse(
                "this transport really sends, and the shards' means would be sent as plain f32; \
                 write `exchange.topology = \"allgather\"` or `\"server\"`",
            )),
        };
        Ok(Box::new(Sharded { group, mean: Vec::new(), sent: None }))
    }
}

/// A stretch of one bucket's elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) bucket: usize,
    pub(super) part: Range<usize>,
}

/// The ranks that share memory, and so the shards.
#[derive(Clone, Copy)]
struct Group {
    first: usize,
    ranks: usize,
    /// Whether these are all.
    all: bool,
}

struct Sharded {
    group: Group,
    /// The mean of one piece.
    mean: Vec<f32>,
    /// The last result that went out. When the next group's messages are all there, it has been
    /// read.
    sent: Option<Payload>,
}

impl Route for Sharded {
    fn reduce(&mut self, work: &mut Work<'_>, mine: Vec<u8>) -> Result<Heard> {
        let sent = Stopwatch::start();
        let messages = work.allgather(mine)?;
        let (scattering, _) = sent.read();
        let received = Stopwatch::start();
        let frames = work.place.skim(work.group, &messages)?;
        let Group { first, ranks, all } = self.group;
        let seat = work.place.rank - first;
        let pieces = shards(work.buckets, work.group, ranks);
        let mut result = self.sent.take().and_then(Payload::reclaim).unwrap_or_default();
        result.clear();
        // Each message is checked by one rank of those that share it.
        let mut to_check = ((seat + 1) % ranks..messages.len()).step_by(ranks);
        let averaged = to_check
            .try_for_each(|from| work.place.check(from, &messages[from]))
            .and_then(|()| self.average(work, &frames, &pieces[seat], &mut result));
        if let Err(error) = averaged {
            result.clear();
            refusal::write(work.place.header(Kind::Abort, 0), &error, &mut result);
        }
        drop(frames);
        work.leg.downlink_bytes = result.len() as u64;
        let averaging = received.read();
        let averaged = Stopwatch::start();
        let results = if all { work.allgather(result)? } else { work.share(first, result)? };
        let (sharing, _) = averaged.read();
        let shared = Stopwatch::start();
        let refused = results.iter().find_map(|result| Frame::refusal_of(result));
        if let Some((_, refusal)) = refused {
            // The messages are here: what is wrong with them is wrong on every rank.
            work.average(&messages)?;
            return Err(refusal);
        }
        for (rank, (result, pieces)) in results.iter().zip(&pieces).enumerate() {
            take_result(work, first + rank, result, pieces)?;
        }
        self.sent = results.into_iter().nth(seat);
        let taking = shared.read();
        work.leg.wait = scattering + sharing;
        work.leg.decode = averaging.0 + taking.0;
        work.leg.decode_cpu = averaging.1 + taking.1;
        Ok(Heard::Messages(messages))
    }
}

impl Work<'_> {
    /// Gives `mine` to the ranks of this process, of which the first is `first`, and takes theirs.
    fn share(&mut self, first: usize, mine: Vec<u8>) -> Result<Vec<Payload>> {
        let awaited = self.place.awaited();
        let neighbours = self.collective.neighbours();
        let neighbours = neighbours.expect("invariant: a route has been built over them");
        neighbours.allgather(mine).map_err(|error| match error.awaiting(awaited) {
            Error::PeerLost { rank, by, awaited } => {
                Error::PeerLost { rank: first + rank, by: first + by, awaited }
            }
            Error::Timeout { rank, by, awaited, after } => {
                Error::Timeout { rank: first + rank, by: first + by, awaited, after }
            }
            other => other,
        })
    }
}

impl Sharded {
    /// Appends the means of a rank's pieces to `result`, one frame each.
    fn average(
        &mut self,
        work: &Work<'_>,
        frames: &[Frame<'_>],
        pieces: &[Piece],
        result: &mut Vec<u8>,
    ) -> Result<()> {
        for Piece { bucket, part } in pieces {
            let index = work.group.iter().position(|number| number == bucket);
            let index = index.expect("invariant: pieces are of the group's buckets");
            let of_ranks = frames[index..].iter().step_by(work.group.len());
            let bucket = &work.buckets[*bucket];
            self.mean.clear();
            self.mean.resize(part.len(), 0.0);
            let mean = &mut self.mean[..];
            if !work.place.mean_of(of_ranks, bucket.decoder(), bucket.length, part.clone(), mean)? {
                let problem = "the mean of a shard is not finite".to_string();
                let (rank, step) = (work.place.rank, work.place.step);
                return Err(Error::Aborted { rank, step, reason: problem });
            }
            let open = work.place.header(Kind::Shard, work.group[index]).open(result);
            floats::put(mean, result);
            open.close(Kind::Shard, result);
        }
        Ok(())
    }
}

/// Copies the means of the pieces of rank `from` into the gradient.
pub(super) fn take_result(
    work: &mut Work<'_>,
    from: usize,
    result: &[u8],
    pieces: &[Piece],
) -> Result<()> {
    let awaited = work.place.awaited();
    let blame = |error: Error| error.sent_by(from, awaited);
    let mut reader = Reader::new(result);
    for Piece { bucket, part } in pieces {
        let expected = work.place.header(Kind::Shard, *bucket).from_rank(from);
        let frame = Frame::expect(&mut reader, expected, work.place.rank).map_err(blame)?;
        let values =
            floats::expect(frame.payload, part.len()).map_err(Error::from).map_err(blame)?;
        work.buckets[*bucket].put(part.start, values, work.gradient);
    }
    reader.finish().map_err(Error::from).map_err(blame)
}

/// The pieces of each rank's shard: the group's buckets end to end, cut into stretches of about
/// the same length where they can be cut, and whole buckets to the rank with the least where not.
pub(super) fn shards(buckets: &[Bucket], group: &[usize], ranks: usize) -> Vec<Vec<Piece>> {
    let mut shards = vec![Vec::new(); ranks];
    let divides = |bucket: &&usize| {
        buckets[**bucket].decoder().is_none_or(|compressor| compressor.by_parts().is_some())
    };
    let (divided, whole): (Vec<&usize>, Vec<&usize>) = group.iter().partition(divides);
    let total: usize = divided.iter().map(|bucket| buckets[**bucket].length).sum();
    let mut before = 0;
    for bucket in divided {
        let length = buckets[*bucket].length;
        // Where rank r's shard begins, in this bucket.
        let cut = |rank: usize| {
            let target = (total as u128 * rank as u128 / ranks as u128) as usize;
            let within = target.saturating_sub(before).min(length);
            let rounded = (within + PART / 2) / PART * PART;
            if within == length { length } else { rounded.min(length) }
        };
        for (rank, shard) in shards.iter_mut().enumerate() {
            let part = cut(rank)..if rank + 1 == ranks { length } else { cut(rank + 1) };
            if !part.is_empty() {
                shard.push(Piece { bucket: *bucket, part });
            }
        }
        before += length;
    }
    let mut loads = vec![0; ranks];
    let mut whole = whole;
    whole.sort_by_key(|bucket| std::cmp::Reverse(buckets[**bucket].length));
    for bucket in whole {
        let length = buckets[*bucket].length;
        let least = (0..ranks).min_by_key(|rank| loads[*rank]).unwrap_or(0);
        loads[least] += length;
        shards[least].push(Piece { bucket: *bucket, part: 0..length });
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Part;
    use crate::{Scheme, Seat, casq};

    fn bucket(start: usize, length: usize, divides: bool) -> Bucket {
        let range = start..start + length;
        let scheme = Scheme::Casq(casq::Config::default());
        let compressor = (!divides).then(|| scheme.build(&Seat::alone(length, 0)));
        Bucket::new(&Part { ranges: vec![range], dense: divides }, compressor)
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
            let group: Vec<usize> = (0..lengths.len()).rev().collect();
            let shards = shards(&buckets, &group, ranks);
            let mut covered: Vec<Vec<u8>> = lengths.iter().map(|length| vec![0; *length]).collect();
            for shard in &shards {
                let load: usize = shard.iter().map(|piece| piece.part.len()).sum();
                assert!(load <= total / ranks + lengths.len() * PART, "{load} of {total}");
                for Piece { bucket, part } in shard {
                    assert!(part.start.is_multiple_of(PART));
                    covered[*bucket][part.clone()].iter_mut().for_each(|times| *times += 1);
                }
            }
            assert!(covered.iter().flatten().all(|times| *times == 1), "{lengths:?} × {ranks}");
        }
    }

    #[test]
    fn buckets_that_cannot_be_cut_go_to_who_has_least() {
        let buckets: Vec<Bucket> =
            [7, 100, 60, 50, 9].into_iter().map(|length| bucket(0, length, false)).collect();
        let shards = shards(&buckets, &[0, 1, 2, 3, 4], 2);
        let of = |rank: usize| shards[rank].iter().map(|piece| piece.bucket).collect::<Vec<_>>();
        assert_eq!((of(0), of(1)), (vec![1, 4, 0], vec![2, 3]));
    }
}
