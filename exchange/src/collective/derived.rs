//! Collectives derived from one allgather of framed bytes.

use super::{Collective, Payload};
use crate::error::Awaited;
use crate::wire::{Fault, Frame, Header, Kind, Reader};
use crate::{Error, Result};

/// A value that is not the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// Position of the first value that differs.
    pub index: usize,
    /// The lowest rank whose value is not that of rank 0.
    pub rank: usize,
}

pub(super) fn barrier<C: Collective + ?Sized>(group: &mut C) -> Result<()> {
    let gathered = Gathered::new(group, Kind::Barrier, Awaited::Barrier, &[])?;
    gathered.each(|_, payload| expect_length(payload, 0))
}

pub(super) fn broadcast<C: Collective + ?Sized>(
    group: &mut C,
    root: usize,
    bytes: &mut Vec<u8>,
) -> Result<()> {
    if root >= group.world_size() {
        let problem = format!("rank {root} is to broadcast, of {}", group.world_size());
        return Err(Error::Transport { problem });
    }
    let mine: &[u8] = if group.rank() == root { bytes } else { &[] };
    let gathered = Gathered::new(group, Kind::Broadcast, Awaited::Broadcast, mine)?;
    gathered.each(|from, payload| {
        if from != root {
            return expect_length(payload, 0);
        }
        bytes.clear();
        bytes.extend_from_slice(payload);
        Ok(())
    })
}

pub(super) fn sum_f64<C: Collective + ?Sized>(group: &mut C, values: &mut [f64]) -> Result<()> {
    let mine: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let gathered = Gathered::new(group, Kind::Sum, Awaited::Sum, &mine)?;
    gathered.each(|from, payload| {
        let theirs = expect_values(payload, values.len())?;
        for (sum, value) in values.iter_mut().zip(theirs) {
            let value = f64::from_le_bytes(*value);
            *sum = if from == 0 { value } else { *sum + value };
        }
        Ok(())
    })
}

pub(super) fn mean_f32<C: Collective + ?Sized>(group: &mut C, values: &mut [f32]) -> Result<()> {
    let mine: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let gathered = Gathered::new(group, Kind::Mean, Awaited::Mean, &mine)?;
    gathered.each(|from, payload| {
        let theirs = expect_values(payload, values.len())?;
        for (sum, value) in values.iter_mut().zip(theirs) {
            let value = f32::from_le_bytes(*value);
            *sum = if from == 0 { value } else { *sum + value };
        }
        Ok(())
    })?;
    let scale = 1.0 / group.world_size() as f32;
    for value in values {
        *value *= scale;
    }
    Ok(())
}

pub(super) fn compare<C: Collective + ?Sized>(
    group: &mut C,
    values: &[u64],
) -> Result<Option<Mismatch>> {
    let mine: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let gathered = Gathered::new(group, Kind::Comparison, Awaited::Comparison, &mine)?;
    let mut of_rank_0 = Vec::new();
    let mut first: Option<Mismatch> = None;
    gathered.each(|rank, payload| {
        let theirs: &[[u8; 8]] = expect_values(payload, values.len())?;
        if rank == 0 {
            of_rank_0.extend_from_slice(theirs);
        }
        let differs = of_rank_0.iter().zip(theirs).position(|(zero, theirs)| zero != theirs);
        if let Some(index) = differs
            && first.is_none_or(|first| index < first.index)
        {
            first = Some(Mismatch { index, rank });
        }
        Ok(())
    })?;
    Ok(first)
}

/// The messages of all ranks for one derived collective.
struct Gathered {
    messages: Vec<Payload>,
    header: Header,
    awaited: Awaited,
}

impl Gathered {
    fn new<C: Collective + ?Sized>(
        group: &mut C,
        kind: Kind,
        awaited: Awaited,
        payload: &[u8],
    ) -> Result<Self> {
        let (rank, world_size) = (group.rank() as u16, group.world_size() as u16);
        let header = Header { kind, rank, world_size, step: 0, bucket: 0 };
        let mut mine = Vec::new();
        header.write(payload, &mut mine);
        let messages = group.allgather(mine).map_err(|error| error.awaiting(awaited))?;
        Ok(Self { messages, header, awaited })
    }

    /// Visits each rank's payload in order of rank, after checking that all of them are what was
    /// awaited.
    fn each(&self, mut visit: impl FnMut(usize, &[u8]) -> Result<(), Fault>) -> Result<()> {
        let by = usize::from(self.header.rank);
        let blame = |from| move |error: Error| error.sent_by(from, self.awaited);
        let mut payloads = Vec::with_capacity(self.messages.len());
        for (from, message) in self.messages.iter().enumerate() {
            let mut reader = Reader::new(message);
            let frame =
                Frame::expect(&mut reader, self.header.from_rank(from), by).map_err(blame(from))?;
            reader.finish().map_err(Error::from).map_err(blame(from))?;
            payloads.push(frame.payload);
        }
        for (from, payload) in payloads.into_iter().enumerate() {
            visit(from, payload).map_err(Error::from).map_err(blame(from))?;
        }
        Ok(())
    }
}

fn expect_length(payload: &[u8], expected: usize) -> Result<(), Fault> {
    if payload.len() == expected {
        Ok(())
    } else {
        Err(Fault::Length { expected, found: payload.len() })
    }
}

fn expect_values<const N: usize>(payload: &[u8], count: usize) -> Result<&[[u8; N]], Fault> {
    expect_length(payload, count * N)?;
    Ok(payload.as_chunks().0)
}
