//! Every rank hears every rank: all of them decode all messages, in order of rank.
//!
//! One message out for each rank, N in, and N decodings on each rank. Plain f32 takes the shorter
//! way of [`allreduce`], and so does what a scheme says in a fixed number of bytes for each element
//! where that sends less.

use std::time::Duration;

use super::{Heard, Route, Setup, Shape, Work, allreduce};
use crate::Result;
use crate::collective::{Collective, Payload, Solo, mesh};
use crate::cpu::Stopwatch;
use crate::traffic::Operation;

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
    fn sums_apart(&self, collective: &mut dyn Collective) -> bool {
        collective.world_size() > 1 && allreduce::is_served(collective)
    }

    fn reduce(&mut self, work: &mut Work<'_>, mine: Vec<u8>) -> Result<Heard> {
        if allreduce::is_cheaper(work) && allreduce::is_served(work.collective) {
            work.leg.operation = Operation::ReduceScatter;
            let mine = allreduce::reduce(work, mine)?;
            return Ok(Heard::Own(mine));
        }
        let sent = Stopwatch::start();
        let messages = work.allgather(mine)?;
        (work.leg.wait, _) = sent.read();
        let received = Stopwatch::start();
        work.average(&messages)?;
        let (passed, computed) = received.read();
        work.leg.decode += passed;
        work.leg.decode_cpu += computed;
        Ok(Heard::Messages(messages))
    }

    fn allreduce(&mut self, work: &mut Work<'_>, mine: Vec<u8>) -> Result<Option<Payload>> {
        allreduce::reduce(work, mine)
    }
}
