//! What every rank knows of the rounds before, because every rank received the same messages.

use std::collections::VecDeque;

use super::Rule;
use crate::compress::values::Values;
use crate::compress::{StepMessages, Summary, sparse};
use crate::wire::{Read, Reader, indices, put_count};
use crate::{Entry, Error, Result, State};

/// What of f, the moving average of membership, is left after a round outside the union.
const DECAY: f32 = 0.8;

/// An average that has fallen below this counts as none, before it becomes subnormal.
const LEAST_AVERAGE: f32 = 1e-12;

/// The last unions, and what else the rule looks at.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    rule: Rule,
    length: usize,
    /// The last unions, oldest first: one, or as many as a window has.
    unions: VecDeque<Vec<u32>>,
    /// For `leader`: what that rank sent in the last round, ascending.
    pub(super) leader: Vec<u32>,
    /// For `mix`: the last sums over ranks, of the union's elements, in its order.
    pub(super) sums: Vec<f32>,
    /// For `ema`: the moving average of each element's membership.
    pub(super) averages: Vec<f32>,
    /// For `window`: in how many of the unions each element is.
    pub(super) counts: Vec<u8>,
    /// One bit for each element, while a union is made.
    marks: Vec<u64>,
    /// A list of positions under way.
    positions: Vec<u32>,
    /// What the leader of the round under way has sent.
    led: Vec<u32>,
}

impl Memory {
    pub(super) fn new(rule: Rule, length: usize) -> Self {
        let kept_if = |wanted: bool| if wanted { length } else { 0 };
        Self {
            rule,
            length,
            unions: VecDeque::new(),
            leader: Vec::new(),
            sums: Vec::new(),
            averages: vec![0.0; kept_if(matches!(rule, Rule::Ema { .. }))],
            counts: vec![0; kept_if(matches!(rule, Rule::Window { .. }))],
            marks: vec![0; length.div_ceil(64)],
            positions: Vec::new(),
            led: Vec::new(),
        }
    }

    /// Elements of the bucket.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// The last union, ascending; `None` before the first round.
    pub(super) fn union(&self) -> Option<&[u32]> {
        self.unions.back().map(Vec::as_slice)
    }

    /// Unions that are kept.
    fn depth(&self) -> usize {
        match self.rule {
            Rule::Window { rounds, .. } => rounds.into(),
            _ => 1,
        }
    }

    /// Marks what any rank sent, in messages of at most `most` elements each, and keeps what the
    /// leader sent. A bucket that was sent as plain f32 has sent every element.
    pub(super) fn mark_messages(
        &mut self,
        round: &StepMessages<'_>,
        most: usize,
        values: Values,
    ) -> Result<()> {
        self.marks.fill(0);
        let leader = round.step.saturating_sub(1) % round.messages.len().max(1) as u64;
        for (rank, message) in round.messages.iter().enumerate() {
            self.positions.clear();
            match message {
                Some(wire) => {
                    sparse::positions(wire, most, values, self.length, &mut self.positions)?;
                }
                None => self.positions.extend(0..self.length as u32),
            }
            mark(&mut self.marks, &self.positions);
            if matches!(self.rule, Rule::Leader { .. }) && rank as u64 == leader {
                self.led.clone_from(&self.positions);
            }
        }
        Ok(())
    }

    /// Appends a summary of a round for ranks that receive only its mean:
    ///
    /// | bytes | what |
    /// |---|---|
    /// | 1–5 | number of positions where the union differs from where the mean is not 0 |
    /// | … | these positions |
    /// | … | for `leader`: the number of its positions, and these |
    pub(super) fn summarise(
        &mut self,
        round: &StepMessages<'_>,
        most: usize,
        values: Values,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.mark_messages(round, most, values)?;
        self.flip_support(round.mean);
        self.positions.clear();
        each_marked(&self.marks, |position| self.positions.push(position));
        put_list(&self.positions, out);
        if matches!(self.rule, Rule::Leader { .. }) {
            put_list(&self.led, out);
        }
        Ok(())
    }

    /// Marks what a summary says that the ranks sent.
    pub(super) fn mark_summary(&mut self, summary: &Summary<'_>) -> Result<()> {
        let mut reader = Reader::new(summary.bytes);
        take_list(&mut reader, self.length, &mut self.positions)?;
        if matches!(self.rule, Rule::Leader { .. }) {
            take_list(&mut reader, self.length, &mut self.led)?;
        }
        reader.finish()?;
        self.marks.fill(0);
        mark(&mut self.marks, &self.positions);
        self.flip_support(summary.mean);
        Ok(())
    }

    /// Marks the elements where the mean is not 0, and unmarks those of them that are marked.
    fn flip_support(&mut self, mean: &[f32]) {
        for (word, values) in self.marks.iter_mut().zip(mean.chunks(64)) {
            for (bit, value) in values.iter().enumerate() {
                *word ^= u64::from(value.to_bits() != 0) << bit;
            }
        }
    }

    /// Makes the marked elements the last union, of so many ranks that came to this mean.
    pub(super) fn commit(&mut self, ranks: usize, mean: &[f32]) {
        self.push_marked();
        if matches!(self.rule, Rule::Leader { .. }) {
            std::mem::swap(&mut self.leader, &mut self.led);
        }
        let union = self.unions.back().map_or(&[][..], Vec::as_slice);
        match self.rule {
            Rule::Mix { .. } => {
                let ranks = ranks as f32;
                self.sums.clear();
                self.sums.extend(union.iter().map(|at| mean[*at as usize] * ranks));
            }
            Rule::Ema { .. } => {
                for average in &mut self.averages {
                    let less = *average * DECAY;
                    *average = if less < LEAST_AVERAGE { 0.0 } else { less };
                }
                for position in union {
                    self.averages[*position as usize] += 1.0 - DECAY;
                }
            }
            _ => {}
        }
    }

    /// Makes the marked elements the last union.
    fn push_marked(&mut self) {
        let mut union = Vec::new();
        if self.unions.len() == self.depth() {
            union = self.unions.pop_front().unwrap_or_default();
            self.count(&union, |count| count - 1);
            union.clear();
        }
        each_marked(&self.marks, |position| union.push(position));
        self.count(&union, |count| count + 1);
        self.unions.push_back(union);
    }

    fn count(&mut self, union: &[u32], change: impl Fn(u8) -> u8) {
        if !self.counts.is_empty() {
            for position in union {
                let count = &mut self.counts[*position as usize];
                *count = change(*count);
            }
        }
    }

    pub(super) fn save(&self, state: &mut State) {
        let leader = match self.rule {
            Rule::Topk | Rule::Significant { .. } => return,
            Rule::Leader { .. } if !self.unions.is_empty() => Some(&self.leader),
            _ => None,
        };
        let mut bytes = Vec::new();
        put_count(self.unions.len() as u32, &mut bytes);
        self.unions.iter().chain(leader).for_each(|list| put_list(list, &mut bytes));
        state.insert("unions", Entry::Bytes(bytes));
        match self.rule {
            Rule::Mix { .. } => state.insert("sums", Entry::F32(self.sums.clone())),
            Rule::Ema { .. } => state.insert("averages", Entry::F32(self.averages.clone())),
            _ => {}
        }
    }

    pub(super) fn restore(&mut self, state: &State) -> Result<()> {
        if matches!(self.rule, Rule::Topk | Rule::Significant { .. }) {
            return Ok(());
        }
        let length = self.length;
        let mut read = Memory::new(self.rule, length);
        let mut reader = Reader::new(state.bytes("unions")?);
        let fault = |fault| Error::State {
            entry: "unions".to_string(),
            problem: format!("cannot be read: {fault}"),
        };
        let list = |reader: &mut Reader<'_>| {
            let mut list = Vec::new();
            take_list(reader, length, &mut list).map(|()| list)
        };
        let unions = reader.count(read.depth()).map_err(fault)?;
        for _ in 0..unions {
            let union = list(&mut reader).map_err(fault)?;
            read.count(&union, |count| count + 1);
            read.unions.push_back(union);
        }
        match self.rule {
            Rule::Leader { .. } if unions > 0 => read.leader = list(&mut reader).map_err(fault)?,
            Rule::Mix { .. } => {
                let union = read.union().map_or(0, <[u32]>::len);
                read.sums = state.f32s("sums", union)?.to_vec();
            }
            Rule::Ema { .. } => read.averages = state.f32s("averages", length)?.to_vec(),
            _ => {}
        }
        reader.finish().map_err(fault)?;
        *self = read;
        Ok(())
    }
}

/// Sets the bits of these positions.
fn mark(marks: &mut [u64], positions: &[u32]) {
    for position in positions {
        marks[*position as usize / 64] |= 1 << (position % 64);
    }
}

/// Visits the positions whose bits are set, ascending.
fn each_marked(marks: &[u64], mut visit: impl FnMut(u32)) {
    for (word, mut bits) in marks.iter().copied().enumerate() {
        while bits != 0 {
            visit(word as u32 * 64 + bits.trailing_zeros());
            bits &= bits - 1;
        }
    }
}

fn put_list(positions: &[u32], out: &mut Vec<u8>) {
    put_count(positions.len() as u32, out);
    indices::put(positions, out);
}

/// Makes `positions` the list that comes next, all below `length`.
fn take_list(reader: &mut Reader<'_>, length: usize, positions: &mut Vec<u32>) -> Read<()> {
    let count = reader.count(length)?;
    positions.clear();
    indices::take(reader, count, length, |position| positions.push(position as u32))
}
