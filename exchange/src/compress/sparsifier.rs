//! What sparsifiers share: all but the choice of the elements that are sent.

use std::ops::Range;

use super::sparse;
use super::values::{Sender, Values};
use super::{Compressor, Encoded, Seat, StepEnd};
use crate::{Gauge, Result, State};

/// Chooses the elements of a gradient that are sent.
pub(crate) trait Select: Send {
    /// Chooses elements of `gradient` at `step`.
    fn select(&mut self, gradient: &[f32], step: u64);

    /// The positions chosen last, ascending.
    fn positions(&self) -> &[u32];

    /// The most elements that are ever chosen of `length`.
    fn most(&self, length: usize) -> usize {
        length
    }

    /// Appends the gauges of the last choice.
    fn add_gauges(&self, _gauges: &mut Vec<Gauge>) {}

    /// As [`Compressor::commit`].
    fn commit(&mut self, _step: u64) {}

    /// As [`Compressor::save`].
    fn save(&self, _state: &mut State) {}

    /// As [`Compressor::restore`].
    ///
    /// # Errors
    /// As there.
    fn restore(&mut self, _state: &State) -> Result<()> {
        Ok(())
    }
}

/// Sends what is selected as [`sparse`] messages, the values as the settings say.
pub(crate) struct Sparsifier<S> {
    pub(crate) choice: S,
    length: usize,
    values: Values,
    sender: Sender,
    gauges: Vec<Gauge>,
}

impl<S: Select> Sparsifier<S> {
    /// For one seat, within error feedback or not.
    pub(crate) fn new(choice: S, values: Values, feedback: bool, seat: &Seat) -> Self {
        let sender = Sender::new(values, feedback, choice.most(seat.length), seat);
        Self { choice, length: seat.length, values, sender, gauges: Vec::with_capacity(8) }
    }
}

impl<S: Select> Compressor for Sparsifier<S> {
    fn encode(&mut self, gradient: &[f32], step: u64, out: &mut Vec<u8>) -> Encoded {
        self.choice.select(gradient, step);
        // Their number may wander: room for the longest message that is ever sent, so that buffers
        // do not grow with it.
        out.reserve(size_of::<f32>() * self.choice.most(gradient.len()));
        let sent = sparse::send(self.choice.positions(), gradient, &mut self.sender, step, out);
        self.gauges.clear();
        self.gauges.extend_from_slice(sent.gauges());
        self.choice.add_gauges(&mut self.gauges);
        Encoded::Message
    }

    fn decode_add(
        &self,
        wire: &[u8],
        range: Range<usize>,
        weight: f32,
        sum: &mut [f32],
    ) -> Result<()> {
        let most = self.choice.most(self.length);
        sparse::add(wire, most, self.values, self.length, range, weight, sum)
    }

    fn commit(&mut self, end: &StepEnd<'_>) {
        self.choice.commit(end.step);
    }

    fn reads_ranges(&self) -> bool {
        true
    }

    fn sent(&self) -> Option<&[u32]> {
        Some(self.sender.sent(self.choice.positions()))
    }

    fn save(&self, state: &mut State) {
        self.choice.save(state);
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        self.choice.restore(state)
    }

    fn gauges(&self) -> &[Gauge] {
        &self.gauges
    }
}
