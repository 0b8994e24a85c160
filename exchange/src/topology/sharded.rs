//! Scatter, reduce, allgather: each rank averages its shard of all messages and shares the result.
//!
//! A rank decodes its shard of N messages, which is O(d) work, and sends the mean of it as f32; the
//! others copy it. Messages are read where they lie: over a transport that shares no memory the
//! second phase would send 4 bytes for each element, more than a compressed message saves, and
//! compressing it again would give every shard an error of its own; so that is refused.

use std::time::Duration;

use super::{Heard, Route, Setup, Shape, Topology, Work, allreduce, shards};
use crate::Result;
use crate::collective::{Collective, Payload};

pub(super) struct Definition;

impl Shape for Definition {
    const NAME: &'static str = "sharded";
    const LINE: &'static str = "each rank averages its shard of all messages and shares the result";

    fn connect(world_size: usize, timeout: Duration) -> Result<Vec<Box<dyn Collective>>> {
        Topology::Allgather.connect(world_size, timeout)
    }

    fn route(setup: Setup<'_>) -> Result<Box<dyn Route>> {
        if !setup.collective.shares_memory() {
            return Err(Topology::Sharded.refuse(
                "this transport really sends, and the shards' means would be sent as plain f32; \
                 choose the topology `allgather` or `server`",
            ));
        }
        Ok(Box::new(Sharded))
    }
}

struct Sharded;

impl Route for Sharded {
    fn sums_apart(&self, collective: &mut dyn Collective) -> bool {
        collective.world_size() > 1
    }

    fn reduce(&mut self, work: &mut Work<'_>, mine: Vec<u8>) -> Result<Heard> {
        shards::reduce(work, mine).map(Heard::Messages)
    }

    fn allreduce(&mut self, work: &mut Work<'_>, mine: Vec<u8>) -> Result<Option<Payload>> {
        allreduce::reduce(work, mine)
    }
}
