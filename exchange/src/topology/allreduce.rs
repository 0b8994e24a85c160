//! Averages without every rank reading every message in full: a reduce-scatter, then an allgather.
//!
//! Where every message has the same number of bytes for each element, no rank needs whole messages:
//! each rank reads its shard of every message, averages it in order of rank and gives the mean to
//! all. Between processes that moves 2 (N − 1)/N of a gradient into and out of every rank, as a
//! ring allreduce does, instead of N − 1 gradients; where memory is shared, every rank reads two
//! gradients' worth instead of N. The mean is bit-identical to that of an allgather, because the
//! rank that sums an element adds in order of rank.

use super::Work;
use super::shards::{self, Piece, cut, take_result};
use crate::bucket::Item;
use crate::collective::{Collective, Payload};
use crate::cpu::Stopwatch;
use crate::incoming::first_refusal;
use crate::refusal;
use crate::traffic::Operation;
use crate::wire::frame::HEADER_BYTES;
use crate::wire::{Frame, Kind, Reader};
use crate::{Error, Result};

/// Whether a transport offers it.
pub(super) fn is_served(collective: &mut dyn Collective) -> bool {
    collective.alltoall().is_some() || collective.shares_memory()
}

/// Whether coded messages take fewer bytes this way: all of them have a fixed number w of bytes per
/// element, and their shards plus the means as f32 are less than N − 1 whole messages:
/// (w + 4) (N − 1)/N < w (N − 1).
pub(super) fn is_cheaper(work: &Work<'_>) -> bool {
    let ranks = work.place.world_size;
    let cheaper = |item: &Item| {
        let codec = work.buckets[item.bucket].codec();
        codec.and_then(|codec| codec.element_bytes()).is_some_and(|bytes| bytes + 4 < bytes * ranks)
    };
    work.items.iter().all(cheaper)
}

/// Averages the items of a message over ranks; returns this rank's message when memory is shared, so
/// that its buffer can be used again.
///
/// # Errors
/// As [`Route::reduce`](super::Route::reduce).
pub(super) fn reduce(work: &mut Work<'_>, mine: Vec<u8>) -> Result<Option<Payload>> {
    let rank = work.place.rank;
    if work.collective.alltoall().is_some() {
        return divided(work, &mine).map(|()| Some(Payload::from(mine)));
    }
    if work.collective.shares_memory() {
        return shards::reduce(work, mine).map(|messages| messages.into_iter().nth(rank));
    }
    let sent = Stopwatch::start();
    work.leg.operation = Operation::Allgather;
    let messages = work.allgather(mine)?;
    (work.leg.wait, _) = sent.read();
    let received = Stopwatch::start();
    work.average(&messages)?;
    let (passed, computed) = received.read();
    work.leg.decode += passed;
    work.leg.decode_cpu += computed;
    Ok(messages.into_iter().nth(rank))
}

/// The same over a transport that really sends: each rank is sent its shard alone.
fn divided(work: &mut Work<'_>, mine: &[u8]) -> Result<()> {
    let dividing = Stopwatch::start();
    let pieces = cut(work.buckets, work.items, work.place.world_size);
    let frames = own_frames(work, mine)?;
    let parts = pieces.iter().map(|pieces| part(work, &frames, pieces)).collect();
    let dividing = dividing.read();

    let sent = Stopwatch::start();
    let awaited = work.place.awaited();
    let alltoall = work.collective.alltoall();
    let alltoall = alltoall.expect("invariant: a group goes this way where there is one");
    let messages = alltoall.alltoall(parts).map_err(|error| error.awaiting(awaited))?;
    let (scattering, _) = sent.read();

    let received = Stopwatch::start();
    let mut result = work.buffers.results();
    let averaged = average(work, &messages, &pieces[work.place.rank], &mut result);
    if let Err(error) = &averaged {
        if first_refusal(&messages).is_some() {
            return averaged;
        }
        result.clear();
        refusal::write(work.place.header(Kind::Abort, 0), error, &mut result);
    }
    if work.leg.operation != Operation::Allreduce {
        work.leg.downlink_bytes = result.len() as u64;
    }
    let averaging = received.read();

    let shared = Stopwatch::start();
    let results = work.allgather(result)?;
    let (sharing, _) = shared.read();
    if let Err(error) = averaged {
        // Several shards may have a mean that overflows: all ranks tell of the first.
        let first =
            first_refusal(&results).filter(|_| matches!(error, Error::NonFiniteMean { .. }));
        return Err(first.unwrap_or(error));
    }
    let taken = Stopwatch::start();
    if let Some(refusal) = first_refusal(&results) {
        return Err(refusal);
    }
    for (rank, (result, pieces)) in results.iter().zip(&pieces).enumerate() {
        take_result(work, rank, result, pieces)?;
    }
    let rank = work.place.rank;
    work.buffers.keep_results(results.into_iter().nth(rank));
    let taking = taken.read();
    work.leg.encode += dividing.0;
    work.leg.encode_cpu += dividing.1;
    work.leg.wait = scattering + sharing;
    work.leg.decode += averaging.0 + taking.0;
    work.leg.decode_cpu += averaging.1 + taking.1;
    Ok(())
}

/// The frames of this rank's own message, in the order of its items.
fn own_frames<'a>(work: &Work<'_>, mine: &'a [u8]) -> Result<Vec<Frame<'a>>> {
    let mut reader = Reader::new(mine);
    let frame = |_: &Item| Ok(Frame::split(&mut reader)?.frame);
    work.items.iter().map(frame).collect()
}

/// What one rank is sent: a frame for each of its pieces.
fn part(work: &Work<'_>, frames: &[Frame<'_>], pieces: &[Piece]) -> Vec<u8> {
    let size = |piece: &Piece| HEADER_BYTES + 4 * piece.part.len();
    let mut out = Vec::with_capacity(pieces.iter().map(size).sum());
    for Piece { index, part } in pieces {
        let (item, Frame { header, payload }) = (work.items[*index], &frames[*index]);
        let bytes = payload.len() / item.length.max(1);
        let open = work.place.header_of(header.kind, item).open(&mut out);
        out.extend_from_slice(&payload[bytes * part.start..bytes * part.end]);
        open.close(header.kind, &mut out);
    }
    out
}

/// Appends the means of this rank's pieces to `result`, one frame each.
fn average(
    work: &mut Work<'_>,
    messages: &[Payload],
    pieces: &[Piece],
    result: &mut Vec<u8>,
) -> Result<()> {
    if let Some(refusal) = first_refusal(messages) {
        return Err(refusal);
    }
    let mut mean = std::mem::take(&mut work.buffers.mean);
    let averaged = average_into(work, messages, pieces, &mut mean, result);
    work.buffers.mean = mean;
    averaged
}

fn average_into(
    work: &Work<'_>,
    messages: &[Payload],
    pieces: &[Piece],
    mean: &mut Vec<f32>,
    result: &mut Vec<u8>,
) -> Result<()> {
    let place = work.place;
    let mut readers: Vec<Reader<'_>> = messages.iter().map(|m| Reader::new(m)).collect();
    for Piece { index, part } in pieces {
        let item = work.items[*index];
        let mut frames = Vec::with_capacity(messages.len());
        for (from, reader) in readers.iter_mut().enumerate() {
            let expected = place.header_of(item.kind, item).from_rank(from);
            let read = Frame::expect(reader, expected, place.rank);
            frames.push(read.map_err(|error| error.sent_by(from, place.awaited()))?);
        }
        let (decoder, sent) = (work.decoder(item), Item { length: part.len(), ..item });
        let overflow = place.put_mean(frames.iter(), decoder, sent, 0..part.len(), mean, result)?;
        if let Some(element) = overflow {
            return Err(work.overflow(item, part.start + element));
        }
    }
    for (from, reader) in readers.into_iter().enumerate() {
        reader.finish().map_err(|fault| Error::from(fault).sent_by(from, place.awaited()))?;
    }
    Ok(())
}
