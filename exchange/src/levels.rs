//! Two levels: ranks of a group average what is due among themselves, densely, and speak with one voice
//! between groups.
//!
//! All ranks of a group then have the same bits, encode the same message and decode the same messages, so
//! that what they keep (residual, what compressors learn) stays the same on all of them and no mean has to
//! be sent back. Between groups only the first of each sends; it hands on what it hears within its group.
//! What the exchange above takes for a rank is a group: its number is its seat, and the number of groups
//! divides the mean.
//!
//! | round among all ranks | who sends what to whom |
//! |---|---|
//! | 1 | each rank of a group to each other one: that one's shard of what is due, as f32 |
//! | 2 | the same: the mean of its own shard |
//! | 3 | the group's first to the other groups' firsts: the message |
//! | 4 | the group's first to its others: all messages, each behind its length |
//!
//! Where messages can be read by all ranks at no cost (threads of one process) 3 and 4 are one. Every rank
//! takes part in every round, so that a rank that gives up is heard by all in whichever it is.
//!
//! # What is due
//! With error feedback gradient plus residual: so residuals need not be the same in a group, as they are
//! not after a change of the number of ranks, and their mean over all ranks is what it was. What a form of
//! feedback keeps of the gradient before that (the velocity of momentum correction, EF21's running mean) is
//! each rank's own; its mean over the group is what one rank with the group's mean would keep.
//!
//! # Sums
//! Within a group in order of rank, times 1/G; then over groups in order, times G/N.

use crate::collective::{Collective, Payload};
use crate::error::Awaited;
use crate::group::Ranks;
use crate::refusal;
use crate::wire::{Frame, Header, Kind, Reader, floats};
use crate::{Error, Result};

impl Ranks {
    /// Divides all ranks into groups.
    pub(crate) fn in_groups(all: Box<dyn Collective>, group: usize) -> Result<Self> {
        let ranks = all.world_size();
        if !ranks.is_multiple_of(group) {
            let problem = format!(
                "{ranks} ranks do not divide into groups of {group}; write a group that divides \
                 them, or another number of ranks"
            );
            return Err(Error::Topology { topology: "two-level", problem });
        }
        Ok(Self { all, ranks_per_group: group, sent_within: 0 })
    }

    /// This rank's place in its group.
    fn place(&self) -> usize {
        self.all.rank() % self.ranks_per_group
    }

    /// The number of the group's first rank.
    fn first(&self) -> usize {
        self.all.rank() - self.place()
    }

    /// Overwrites finite values by their mean over the ranks of the group; the first element of this
    /// rank's shard whose mean is not finite, if one is: then nothing is overwritten, and this rank has to
    /// refuse. `number` is that of what is exchanged in this step.
    pub(crate) fn mean_within(
        &mut self,
        step: u64,
        number: usize,
        values: &mut [f32],
    ) -> Result<Option<usize>> {
        let (first, place, ranks) = (self.first(), self.place(), self.all.world_size());
        let (rank, world_size, bucket) = (self.all.rank() as u16, ranks as u16, number as u32);
        let header = |kind| Header { kind, rank, world_size, step, bucket };
        let awaited = Awaited::Gradient { step };
        let (group, length) = (self.ranks_per_group, values.len());
        let cut = |place: usize| length * place / group;
        let shard = |place: usize| cut(place)..cut(place + 1);
        let frame = |kind, values: &[f32]| {
            let mut out = Vec::new();
            let open = header(kind).open(&mut out);
            floats::put(values, &mut out);
            open.close(kind, &mut out);
            out
        };
        let mut parts = vec![Vec::new(); ranks];
        for mate in 0..group {
            parts[first + mate] = frame(Kind::Mean, &values[shard(mate)]);
        }
        let whole = !self.all.divides();
        let given = self.deal(parts, awaited)?;
        let of_mate = |mate: usize, kind, all: &'_ [Payload]| -> Result<Vec<f32>> {
            let from = first + mate;
            let read = || {
                let mut reader = Reader::new(&all[from]);
                // Where nothing can be divided, a mate sends the shards of all mates, one after the other.
                let others = if whole && kind == Kind::Mean { group - 1 } else { 0 };
                let before = place.min(others);
                for _ in 0..before {
                    Frame::split(&mut reader)?;
                }
                let expected = header(kind).from_rank(from);
                let frame = Frame::expect(&mut reader, expected, rank.into())?;
                let length = shard(if kind == Kind::Mean { place } else { mate }).len();
                let written = floats::expect(frame.payload, length)?;
                if let Some(fault) = floats::fault_of_mean(written) {
                    return Err(fault.into());
                }
                for _ in before..others {
                    Frame::split(&mut reader)?;
                }
                reader.finish()?;
                let mut found = vec![0.0; length];
                floats::copy(written, &mut found);
                Ok(found)
            };
            read().map_err(|error: Error| error.sent_by(from, awaited))
        };
        let mut mean = vec![0.0; shard(place).len()];
        for mate in 0..self.ranks_per_group {
            let theirs = of_mate(mate, Kind::Mean, &given)?;
            mean.iter_mut().zip(theirs).for_each(|(sum, value)| *sum += value);
        }
        if !floats::scale_checked(&mut mean, 1.0 / self.ranks_per_group as f32) {
            return Ok(floats::first_non_finite(&mean).map(|element| cut(place) + element));
        }
        let mine = frame(Kind::Shard, &mean);
        let mut parts = vec![Vec::new(); ranks];
        if whole {
            // All of the group read the same.
            self.sent_within += (group as u64 - 1) * mine.len() as u64;
            parts[first + place] = mine;
        } else {
            parts[first..first + group].fill(mine);
        }
        let means = self.deal(parts, awaited)?;
        for mate in 0..self.ranks_per_group {
            let theirs = of_mate(mate, Kind::Shard, &means)?;
            values[shard(mate)].copy_from_slice(&theirs);
        }
        Ok(None)
    }

    /// One round among all ranks: each is given its part, or where nothing can be divided all parts, and
    /// reads its own. Fails with a peer's refusal.
    fn deal(&mut self, parts: Vec<Vec<u8>>, awaited: Awaited) -> Result<Vec<Payload>> {
        let within = self.first()..self.first() + self.ranks_per_group;
        let own = self.all.rank();
        let mates = within.filter(|rank| *rank != own);
        self.sent_within += mates.map(|mate| parts[mate].len() as u64).sum::<u64>();
        let given = match self.all.divides() {
            true => self.all.alltoall(parts),
            false => self.all.allgather(parts.concat()),
        };
        let given = given.map_err(|error| error.awaiting(awaited))?;
        refusal::first(&given, 1).map_or(Ok(given), Err)
    }

    /// Gives each group its part of what this one says; what all groups have said to this one.
    pub(crate) fn across(&mut self, parts: Vec<Vec<u8>>) -> Result<Vec<Payload>> {
        let (own, first, ranks) = (self.rank(), self.first(), self.all.world_size());
        let (awaited, mut mine, mut dealt) =
            (Awaited::Message, Vec::new(), vec![Vec::new(); ranks]);
        for (to, part) in parts.into_iter().enumerate() {
            match to == own {
                true => mine = part,
                false if self.speaks() => dealt[to * self.ranks_per_group] = part,
                false => {}
            }
        }
        let heard = self.deal(dealt, awaited)?;
        let mut dealt = vec![Vec::new(); ranks];
        if self.speaks() {
            let mut bundle = Vec::new();
            for from in 0..self.world_size() {
                let message =
                    if from == own { &mine } else { &*heard[from * self.ranks_per_group] };
                bundle.extend_from_slice(&(message.len() as u64).to_le_bytes());
                bundle.extend_from_slice(message);
            }
            dealt[first + 1..first + self.ranks_per_group].fill(bundle);
        }
        let handed = self.deal(dealt, awaited)?;
        if self.speaks() {
            let mut all: Vec<Payload> = heard.into_iter().step_by(self.ranks_per_group).collect();
            all[own] = Payload::from(mine);
            return Ok(all);
        }
        let bundle = &handed[first];
        let mut reader = Reader::new(bundle);
        let read = || {
            let mut all = Vec::with_capacity(self.world_size());
            for _ in 0..self.world_size() {
                let length = reader.u64()?;
                let at = bundle.len() - reader.rest().len();
                reader.take(usize::try_from(length).unwrap_or(usize::MAX))?;
                all.push(bundle.slice(at..bundle.len() - reader.rest().len()));
            }
            reader.finish()?;
            Ok(all)
        };
        let all = read().map_err(|error: Error| error.sent_by(first, awaited))?;
        self.agree(&mine, &all[own])?;
        Ok(all)
    }

    /// Ranks of a group keep the same state, and so have the same to say.
    fn agree(&self, mine: &[u8], said: &[u8]) -> Result<()> {
        if *mine == *said {
            return Ok(());
        }
        let (rank, first) = (self.all.rank(), self.first());
        let problem = format!(
            "ranks {first} and {rank} of one group would send other messages: what their \
             compressors keep differs, as it does when a run goes on in other groups; begin anew, \
             or go on with the topology and group that it was saved with"
        );
        Err(Error::Topology { topology: "two-level", problem })
    }

    /// Counts what the group's first hands on of `messages` that were given to all: parts of so many bytes together, where
    /// [`between`](Self::between) counted whole ones. Between processes parts alone are sent.
    pub(crate) fn hands_on_parts(&mut self, messages: &[Payload], parts: u64) {
        if self.ranks_per_group > 1 && self.speaks() {
            let whole: u64 = messages.iter().map(|message| message.len() as u64).sum();
            self.sent_within -= (self.ranks_per_group as u64 - 1) * (whole - parts);
        }
    }

    /// Gives what this group says to every group; what all groups have said.
    pub(crate) fn between(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        let groups = self.world_size();
        if self.all.divides() {
            return match Frame::refusal_of(&mine) {
                None => self.across(vec![mine; groups]),
                Some(_) => {
                    let all = self.all.allgather(mine)?;
                    refusal::first(&all, 1).map_or(Ok(all), Err)
                }
            };
        }
        let own = self.rank();
        let (said, kept) = if self.speaks() { (mine, None) } else { (Vec::new(), Some(mine)) };
        let all = self.all.allgather(said)?;
        let refusals = all.iter().enumerate().filter(|(rank, _)| rank % self.ranks_per_group != 0);
        for (from, message) in refusals {
            if let Some((_, error)) = Frame::refusal_of(message).filter(|(rank, _)| *rank == from) {
                return Err(error);
            }
        }
        let all: Vec<Payload> = all.into_iter().step_by(self.ranks_per_group).collect();
        if let Some(kept) = kept.filter(|_| Frame::refusal_of(&all[own]).is_none()) {
            self.agree(&kept, &all[own])?;
        }
        if self.speaks() {
            let bytes: u64 = all.iter().map(|message| 8 + message.len() as u64).sum();
            self.sent_within += (self.ranks_per_group as u64 - 1) * bytes;
        }
        Ok(all)
    }
}
