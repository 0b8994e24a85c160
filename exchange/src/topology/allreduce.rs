//! Plain f32 over a transport that really sends: reduce, scattered, then gather.
//!
//! Where every message is f32, nobody needs all of them: each rank is sent its shard of every
//! gradient, averages it in order of rank and gives the mean to all. That moves 2 (N − 1)/N of a
//! gradient into and out of every rank, as a ring's allreduce does, instead of N − 1 of them; and
//! the bits are those of the allgather, because whoever adds an element up adds in order of rank.

use super::sharded::{Piece, shards, take_result};
use super::{Heard, Work};
use crate::Result;
use crate::collective::Payload;
use crate::cpu::Stopwatch;
use crate::incoming::first_refusal;
use crate::wire::frame::HEADER_BYTES;
use crate::wire::{Frame, Kind, Reader, floats, refusal};

/// Whether a group of buckets goes this way: on all ranks alike.
pub(super) fn serves(work: &mut Work<'_>) -> bool {
    let plain = |bucket: &usize| work.buckets[*bucket].decoder().is_none();
    work.group.iter().all(plain) && work.collective.alltoall().is_some()
}

/// As [`Route::reduce`](super::Route::reduce), for a group that this [`serves`].
pub(super) fn reduce(work: &mut Work<'_>, mine: &[u8]) -> Result<Heard> {
    let divided = Stopwatch::start();
    let pieces = shards(work.buckets, work.group, work.place.world_size);
    let parts = pieces.iter().map(|pieces| part(work, mine, pieces)).collect();
    let dividing = divided.read();

    let sent = Stopwatch::start();
    let awaited = work.place.awaited();
    let alltoall = work.collective.alltoall();
    let alltoall = alltoall.expect("invariant: a group goes this way where there is one");
    let messages = alltoall.alltoall(parts).map_err(|error| error.awaiting(awaited))?;
    let (scattering, _) = sent.read();

    let received = Stopwatch::start();
    let mut result = Vec::new();
    let averaged = average(work, &messages, &pieces[work.place.rank], &mut result);
    if let Err(error) = &averaged {
        if first_refusal(&messages).is_some() {
            return averaged.map(|()| Heard::Messages(messages));
        }
        result.clear();
        refusal::write(work.place.header(Kind::Abort, 0), error, &mut result);
    }
    let averaging = received.read();

    let shared = Stopwatch::start();
    let results = work.allgather(result)?;
    let (sharing, _) = shared.read();
    averaged?;
    let taken = Stopwatch::start();
    if let Some(refusal) = first_refusal(&results) {
        return Err(refusal);
    }
    for (rank, (result, pieces)) in results.iter().zip(&pieces).enumerate() {
        take_result(work, rank, result, pieces)?;
    }
    let taking = taken.read();
    work.leg.encode += dividing.0;
    work.leg.encode_cpu += dividing.1;
    work.leg.wait = scattering + sharing;
    work.leg.decode = averaging.0 + taking.0;
    work.leg.decode_cpu = averaging.1 + taking.1;
    // Nobody learns from plain messages.
    Ok(Heard::Messages(Vec::new()))
}

/// What one rank is sent: a frame for each of its pieces.
fn part(work: &Work<'_>, mine: &[u8], pieces: &[Piece]) -> Vec<u8> {
    let size = |piece: &Piece| HEADER_BYTES + 4 * piece.part.len();
    let mut out = Vec::with_capacity(pieces.iter().map(size).sum());
    for Piece { bucket, part } in pieces {
        let before = work.group.iter().take_while(|other| *other != bucket);
        let start: usize = before.map(|b| HEADER_BYTES + 4 * work.buckets[*b].length).sum();
        let values = start + HEADER_BYTES;
        let open = work.place.header(Kind::Dense, *bucket).open(&mut out);
        out.extend_from_slice(&mine[values + 4 * part.start..values + 4 * part.end]);
        open.close(Kind::Dense, &mut out);
    }
    out
}

/// Appends the means of this rank's pieces to `result`, one frame each.
fn average(
    work: &Work<'_>,
    messages: &[Payload],
    pieces: &[Piece],
    result: &mut Vec<u8>,
) -> Result<()> {
    if let Some(refusal) = first_refusal(messages) {
        return Err(refusal);
    }
    let (place, scale) = (work.place, 1.0 / work.place.world_size as f32);
    let mut readers: Vec<Reader<'_>> = messages.iter().map(|m| Reader::new(m)).collect();
    let mut mean = Vec::new();
    for Piece { bucket, part } in pieces {
        let mut values = Vec::with_capacity(messages.len());
        for (from, reader) in readers.iter_mut().enumerate() {
            let expected = place.header(Kind::Dense, *bucket).from_rank(from);
            let read = Frame::expect(reader, expected, place.rank)
                .and_then(|frame| Ok(floats::expect(frame.payload, part.len())?));
            values.push(read.map_err(|error| error.sent_by(from, place.awaited()))?);
        }
        mean.clear();
        mean.resize(part.len(), 0.0);
        if !floats::mean_of(&values, scale, &mut mean) {
            let first = floats::first_non_finite(&mean).unwrap_or(0);
            return Err(work.overflow(*bucket, part.start + first));
        }
        let open = place.header(Kind::Shard, *bucket).open(result);
        floats::put(&mean, result);
        open.close(Kind::Shard, result);
    }
    for (from, reader) in readers.into_iter().enumerate() {
        reader
            .finish()
            .map_err(|fault| crate::Error::from(fault).sent_by(from, place.awaited()))?;
    }
    Ok(())
}
