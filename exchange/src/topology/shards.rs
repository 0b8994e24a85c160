//! Shards: each rank averages its part of all messages, and gives the mean of it to the others.
//!
//! The items of a message, buckets or a reducer's values, are laid end to end and cut into one shard
//! for each rank. Where messages can be read in parts, a shard is a stretch of items, cut at
//! multiples of [`RANGE_UNIT`] elements; else it is whole items. Each element is added up in order of rank
//! by one rank, as every rank does over an allgather, so that the bits are the same.

use std::ops::Range;

use super::Work;
use crate::bucket::Bucket;
use crate::bucket::Item;
use crate::collective::Payload;
use crate::compress::RANGE_UNIT;
use crate::cpu::Stopwatch;
use crate::refusal;
use crate::traffic::Operation;
use crate::wire::{Frame, Kind, Reader, floats};
use crate::{Error, Result};

/// A stretch of one item's elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// The item's place in the message.
    pub(super) index: usize,
    pub(super) part: Range<usize>,
}

/// Gives `mine` to all ranks, averages this rank's shard of all messages where they lie, and shares
/// the mean of it, where all ranks share memory. Everybody's messages.
///
/// When a shard cannot be averaged its rank says so, and all ranks read all messages to find out
/// why: what is wrong with a message is the same error on every rank, its sender included.
///
/// # Errors
/// As [`Route::reduce`](super::Route::reduce).
pub(super) fn reduce(work: &mut Work<'_>, mine: Vec<u8>) -> Result<Vec<Payload>> {
    let (rank, ranks) = (work.place.rank, work.place.world_size);
    let sent = Stopwatch::start();
    let messages = work.allgather(mine)?;
    let (scattering, _) = sent.read();
    let received = Stopwatch::start();
    let frames = work.place.skim(work.items, &messages)?;
    let pieces = cut(work.buckets, work.items, ranks);
    let mut result = work.buffers.results();
    // Each message is checked by one rank of those that share it.
    let mut to_check = ((rank + 1) % ranks..messages.len()).step_by(ranks);
    let averaged = to_check
        .try_for_each(|from| work.place.check(from, &messages[from]))
        .and_then(|()| average(work, &frames, &pieces[rank], &mut result));
    if let Err(error) = averaged {
        result.clear();
        refusal::write(work.place.header(Kind::Abort, 0), &error, &mut result);
    }
    drop(frames);
    if work.leg.operation != Operation::Allreduce {
        work.leg.downlink_bytes = result.len() as u64;
    }
    let averaging = received.read();
    let averaged = Stopwatch::start();
    let results = work.allgather(result)?;
    let (sharing, _) = averaged.read();
    let shared = Stopwatch::start();
    let refused = results.iter().find_map(|result| Frame::refusal_of(result));
    let taken = refused.map_or(Ok(()), |(_, refusal)| Err(refusal)).and_then(|()| {
        let mut shards = results.iter().zip(&pieces).enumerate();
        shards.try_for_each(|(rank, (result, pieces))| take_result(work, rank, result, pieces))
    });
    if let Err(error) = taken {
        // The messages are here: what is wrong with them comes first, and is wrong on every rank.
        work.average(&messages)?;
        return Err(error);
    }
    work.buffers.keep_results(results.into_iter().nth(rank));
    let taking = shared.read();
    work.leg.wait = scattering + sharing;
    work.leg.decode += averaging.0 + taking.0;
    work.leg.decode_cpu += averaging.1 + taking.1;
    Ok(messages)
}

/// Appends the means of a rank's pieces to `result`, one frame each.
fn average(
    work: &mut Work<'_>,
    frames: &[Frame<'_>],
    pieces: &[Piece],
    result: &mut Vec<u8>,
) -> Result<()> {
    let mut mean = std::mem::take(&mut work.buffers.mean);
    let averaged = pieces.iter().try_for_each(|Piece { index, part }| {
        let item = work.items[*index];
        let of_ranks = frames[*index..].iter().step_by(work.items.len());
        let (decoder, place) = (work.decoder(item), work.place);
        match place.put_mean(of_ranks, decoder, item, part.clone(), &mut mean, result)? {
            None => Ok(()),
            Some(_) => {
                let problem = "the mean of a shard is not finite".to_string();
                Err(Error::Aborted { rank: place.rank, step: place.step, reason: problem })
            }
        }
    });
    work.buffers.mean = mean;
    averaged
}

/// Copies the means of the pieces of rank `from` to where they belong.
///
/// # Errors
/// [`Error::Message`], [`Error::OutOfStep`].
pub(super) fn take_result(
    work: &mut Work<'_>,
    from: usize,
    result: &[u8],
    pieces: &[Piece],
) -> Result<()> {
    let awaited = work.place.awaited();
    let blame = |error: Error| error.sent_by(from, awaited);
    let mut reader = Reader::new(result);
    for Piece { index, part } in pieces {
        let item = work.items[*index];
        let expected = work.place.header_of(Kind::Shard, item).from_rank(from);
        let frame = Frame::expect(&mut reader, expected, work.place.rank).map_err(blame)?;
        let values =
            floats::expect(frame.payload, part.len()).map_err(Error::from).map_err(blame)?;
        work.put(item, part.start, values);
    }
    reader.finish().map_err(Error::from).map_err(blame)
}

/// The pieces of each rank's shard: the items end to end, cut into stretches of about the same
/// length where they can be cut, and whole items to the rank with the least where not.
pub(super) fn cut(buckets: &[Bucket], items: &[Item], ranks: usize) -> Vec<Vec<Piece>> {
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
        let place = BucketRange { parameters: 0..1, range: start..start + length, dense: divides };
        let scheme = SchemeConfig::Qsgd(qsgd::Config::default());
        let built = if divides { Built::Plain } else { scheme.build(&Seat::alone(length, 0)) };
        Bucket::new(&place, built)
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

    #[test]
    fn buckets_that_cannot_be_cut_go_to_who_has_least() {
        let buckets: Vec<Bucket> =
            [7, 100, 60, 50, 9].into_iter().map(|length| bucket(0, length, false)).collect();
        let shards = cut(&buckets, &items(&buckets, 0..5), 2);
        let of = |rank: usize| shards[rank].iter().map(|piece| piece.index).collect::<Vec<_>>();
        assert_eq!((of(0), of(1)), (vec![1, 4, 0], vec![2, 3]));
    }
}
