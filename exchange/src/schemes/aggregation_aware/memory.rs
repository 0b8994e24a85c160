//! What every rank knows of the rounds before, because every rank received the same messages.

use super::SelectionRule;
use crate::compress::values::Values;
use crate::compress::{StepMessages, sparse};
use crate::wire::{Read, Reader, indices, put_count};
use crate::{Entry, Error, Result, State};

/// The last union, and what else the rule looks at.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    rule: SelectionRule,
    length: usize,
    union: Option<Vec<u32>>,
    /// For `mix`: the last sums over ranks, of the union's elements, in its order.
    pub(super) sums: Vec<f32>,
    /// One bit for each element, while a union is made.
    marks: Vec<u64>,
    /// A list of positions under way.
    positions: Vec<u32>,
}

impl Memory {
    pub(super) fn new(rule: SelectionRule, length: usize) -> Self {
        let marks = vec![0; length.div_ceil(64)];
        Self { rule, length, union: None, sums: Vec::new(), marks, positions: Vec::new() }
    }

    /// Elements of the bucket.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// The last union, ascending; `None` before the first round.
    pub(super) fn union(&self) -> Option<&[u32]> {
        self.union.as_deref()
    }

    /// Marks what any rank sent, in messages of at most `most` elements each. A bucket that was sent as
    /// plain f32 has sent every element.
    pub(super) fn mark_messages(
        &mut self,
        round: &StepMessages<'_>,
        most: usize,
        values: Values,
    ) -> Result<()> {
        self.marks.fill(0);
        for message in round.messages {
            self.positions.clear();
            match message {
                Some(wire) => {
                    sparse::positions(wire, most, values, self.length, &mut self.positions)?;
                }
                None => self.positions.extend(0..self.length as u32),
            }
            mark(&mut self.marks, &self.positions);
        }
        Ok(())
    }

    /// Appends a summary of a round for ranks that receive only its mean:
    ///
    /// | bytes | what |
    /// |---|---|
    /// | 1–5 | number of positions where the union differs from where the mean is not 0 |
    /// | … | these positions |
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
        Ok(())
    }

    /// Marks what a summary says that the ranks sent.
    pub(super) fn mark_summary(&mut self, summary: &[u8], mean: &[f32]) -> Result<()> {
        let mut reader = Reader::new(summary);
        take_list(&mut reader, self.length, &mut self.positions)?;
        reader.finish()?;
        self.marks.fill(0);
        mark(&mut self.marks, &self.positions);
        self.flip_support(mean);
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
        let mut union = self.union.take().unwrap_or_default();
        union.clear();
        each_marked(&self.marks, |position| union.push(position));
        if matches!(self.rule, SelectionRule::Mix { .. }) {
            let ranks = ranks as f32;
            self.sums.clear();
            self.sums.extend(union.iter().map(|at| mean[*at as usize] * ranks));
        }
        self.union = Some(union);
    }

    pub(super) fn save(&self, state: &mut State) {
        if self.rule == SelectionRule::Topk {
            return;
        }
        // How many unions there are, and each.
        let mut bytes = Vec::new();
        put_count(self.union.iter().len() as u32, &mut bytes);
        self.union.iter().for_each(|list| put_list(list, &mut bytes));
        state.insert("unions", Entry::Bytes(bytes));
        if matches!(self.rule, SelectionRule::Mix { .. }) {
            state.insert("sums", Entry::F32(self.sums.clone()));
        }
    }

    pub(super) fn restore(&mut self, state: &State) -> Result<()> {
        if self.rule == SelectionRule::Topk {
            return Ok(());
        }
        let mut read = Memory::new(self.rule, self.length);
        let mut unions = || {
            let mut reader = Reader::new(state.bytes("unions")?);
            for _ in 0..reader.count(1)? {
                take_list(&mut reader, self.length, read.union.insert(Vec::new()))?;
            }
            Ok(reader.finish()?)
        };
        unions().map_err(|error: Error| match error {
            Error::Wire(fault) => Error::State {
                entry: "unions".to_string(),
                problem: format!("cannot be read: {fault}"),
            },
            other => other,
        })?;
        if matches!(self.rule, SelectionRule::Mix { .. }) {
            let union = read.union().map_or(0, <[u32]>::len);
            read.sums = state.f32s("sums", union)?.to_vec();
        }
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
