//! A group of one rank.

use super::{Collective, Payload};
use crate::Result;

/// The collective of a single worker: what it sends is what it receives.
#[derive(Debug, Clone, Copy, Default)]
pub struct Solo;

impl Collective for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn shares_memory(&self) -> bool {
        true
    }

    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        Ok(vec![Payload::from(mine)])
    }
}
