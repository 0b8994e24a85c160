//! A model of the network between ranks: links, what collectives cost on them, virtual clocks.
//!
//! In one process nothing is slow about the wire. This module tells what a step *would* take: given
//! each rank's computing time and the sizes of its messages ([`StepWork`]), a [`Link`] and the
//! [`Pattern`] in which messages travel, a [`Clock`] per rank advances by both. It knows no files
//! and no threads, waits for nothing, and gives the same answer for the same (seed, rank, step).
//!
//! A message takes α + n/β (latency plus wire bytes over bandwidth) from host to host; an interface
//! sends, and at the same time receives, one byte after the other. From that follow, for N ranks
//! with equal messages that are ready at the same time, without jitter,
//!
//! | pattern | seconds |
//! |---|---|
//! | ring allgather | (N − 1) (α + n/β) |
//! | ring allreduce | 2 (N − 1) (α + n/(N β)) |
//! | server | 2 α + N up/β + N down/β, β being the server's |
//! | sharded | (N − 1) (α + n/(N β)), then the ring allgather of the reduced shares |
//! | two levels, groups of G | 2 α″ + l/β′, l being what a rank sends within its group to average; a ring of the N/G firsts; α″ + N/G n/β′ · (G − 1), what a first hands on; α″ is the larger of α and the latency within a group, for the other groups send an empty message |
//!
//! # What it leaves out
//! TCP's slow start and its loss recovery, acknowledgements, other traffic, switches that block,
//! and the processor's part in moving bytes (give it as a link's `overhead`). `benches/network`
//! compares the model with TCP between network namespaces.

mod clock;
mod link;
mod quantity;
mod wires;

#[cfg(test)]
mod tests;

pub use clock::{Clock, GroupWork, StepTime, StepWork};
pub use link::{Link, presets};
pub use wires::{Pattern, Sent};
