//! Every rank hears every rank: all of them decode all messages, in order of rank.
//!
//! One message out for each rank, N in, and N decodings on each rank. Plain f32 between processes
//! takes the shorter way of [`allreduce`].

use std::time::Duration;

use super::{Heard, Route, Setup, Shape, Work, allreduce};
use crate::Result;
use crate::collective::{Collective, Solo, mesh};
use crate::cpu::Stopwatch;

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
        work.average(&messages)?;
        (work.leg.decode, work.leg.decode_cpu) = received.read();
        Ok(Heard::Messages(messages))
    }
}
