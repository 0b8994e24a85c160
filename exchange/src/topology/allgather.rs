//! Every rank hears every rank: all of them decode all messages, in order of rank.
//!
//! One message out for each rank, N in, and N decodings on each rank. Plain f32 between processes
//! takes the shorter way of [`allreduce`]. Where ranks share memory none of them reads a long plain
//! message of its own: it has the gradient, and the others tell it if they could not read it.

use std::time::Duration;

use super::{Heard, Route, Setup, Shape, Work, all_plain, allreduce};
use crate::collective::{Collective, Payload, Solo, mesh};
use crate::cpu::Stopwatch;
use crate::wire::{Kind, refusal};
use crate::{Error, Result};

/// Bytes of a message that are read in less time than ranks take to meet once more. Where the orders of
/// meeting are tried out, all messages are long.
const SHORT: usize = if cfg!(feature = "shuttle") { 0 } else { 1 << 20 };

pub(super) struct Definition;

impl Shape for Definition {
    const NAME: &'static str = "allgather";
    const LINE: &'static str = "every rank hears and decodes every message";

    fn connect(world_size: usize, timeout: Duration) -> Result<Vec<Box<dyn Collective>>> {
        if world_size == 1 {
            return Ok(vec![Box::new(Solo)]);
        }
        Ok(mesh(world_size, timeout).into_iter().map(|end| Box::new(end) as _).collect())
    }

    fn route(_setup: Setup<'_>) -> Result<Box<dyn Route>> {
        Ok(Box::new(Allgather))
    }
}

struct Allgather;

impl Route for Allgather {
    fn reduce(&mut self, work: &mut Work<'_>, mine: Vec<u8>) -> Result<Heard> {
        if allreduce::serves(work) {
            return allreduce::reduce(work, &mine);
        }
        let sent = Stopwatch::start();
        let messages = work.allgather(mine)?;
        (work.leg.wait, _) = sent.read();
        let received = Stopwatch::start();
        let meeting = average(work, &messages)?;
        (work.leg.decode, work.leg.decode_cpu) = received.read();
        work.leg.decode = work.leg.decode.saturating_sub(meeting);
        work.leg.wait += meeting;
        Ok(Heard::Messages(messages))
    }
}

/// Overwrites the group's elements by the mean of what all messages say, each rank reading those of
/// the others where that will do. The time that it took to agree that all could be read.
///
/// # Errors
/// As [`Work::average`].
fn average(work: &mut Work<'_>, messages: &[Payload]) -> Result<Duration> {
    let (place, group) = (work.place, work.group);
    let long = messages.iter().all(|message| message.len() > SHORT);
    if !(work.as_sent && long && work.collective.shares_memory()) {
        return work.average(messages).map(|()| Duration::ZERO);
    }
    let frames = place.split(group, messages)?;
    if !all_plain(&frames) {
        return work.average(messages).map(|()| Duration::ZERO);
    }
    let averaged = work.average_frames(&frames, Some(place.rank));
    let met = Stopwatch::start();
    let agreed = agree(work, averaged.as_ref().err());
    let (meeting, _) = met.read();
    if averaged.is_err() || agreed.is_err() {
        // The messages are here: what is wrong with them is wrong on every rank.
        place.check_all(group, &frames)?;
    }
    let overflow = averaged?;
    agreed?;
    work.finite(overflow).map(|()| meeting)
}

/// Tells the others whether this rank could read their messages, and hears whether they could.
///
/// # Errors
/// What the lowest rank that could not has met, as [`Error::Aborted`] by it.
fn agree(work: &mut Work<'_>, trouble: Option<&Error>) -> Result<()> {
    let Some(trouble) = trouble else {
        let awaited = work.place.awaited();
        return work.collective.barrier().map_err(|error| error.awaiting(awaited));
    };
    let mut mine = Vec::new();
    refusal::write(work.place.header(Kind::Abort, 0), trouble, &mut mine);
    work.allgather(mine).map(|_| ())
}
