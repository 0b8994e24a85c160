//! Sends what lies above a threshold: what Gaussian-k, RedSync and the hard threshold share. How
//! the threshold is found is all that differs.

use std::ops::Range;

use super::exceedances::Exceedances;
use super::{ByParts, Compressor, Encoded, Seat, sparse};
use crate::wire::values::Format;
use crate::{Gauge, Result};

/// A threshold for one gradient.
pub(super) struct Cut {
    /// Magnitudes above it are sent.
    pub(super) threshold: f32,
    /// Elements that were aimed at, if any: then at least one is sent, and k̂/k is told.
    pub(super) aim: Option<usize>,
}

/// Settings that say where to cut.
pub(super) trait Cuts: Send {
    /// The threshold for `gradient` at `step`.
    fn cut(&self, gradient: &[f32], step: u64) -> Cut;

    /// How values are sent.
    fn values(&self) -> Format;
}

/// The compressor of settings that say where to cut.
pub(super) struct Cutoff<C> {
    config: C,
    exceedances: Exceedances,
    gauges: Vec<Gauge>,
}

impl<C: Cuts> Cutoff<C> {
    /// For one seat.
    pub(super) fn new(config: C, seat: &Seat) -> Self {
        Self { config, exceedances: Exceedances::new(seat.length), gauges: Vec::with_capacity(8) }
    }
}

impl<C: Cuts> Compressor for Cutoff<C> {
    fn encode(&mut self, gradient: &[f32], step: u64, out: &mut Vec<u8>) -> Encoded {
        let Cut { threshold, aim } = self.config.cut(gradient, step);
        self.exceedances.gather(gradient, threshold);
        if aim.is_some() {
            self.exceedances.or_largest(gradient);
        }
        let sent = self.exceedances.put(gradient, self.config.values(), out);
        self.gauges.clear();
        self.gauges.extend_from_slice(sent.gauges());
        self.gauges.extend(aim.map(|k| self.exceedances.kept_ratio(k)));
        Encoded::Message
    }

    fn decode_add(&self, wire: &[u8], weight: f32, sum: &mut [f32]) -> Result<()> {
        sparse::add(wire, sum.len(), self.config.values(), weight, sum)
    }

    fn by_parts(&self) -> Option<&dyn ByParts> {
        Some(self)
    }

    fn sent(&self) -> Option<&[u32]> {
        Some(self.exceedances.positions())
    }

    fn gauges(&self) -> &[Gauge] {
        &self.gauges
    }
}

impl<C: Cuts> ByParts for Cutoff<C> {
    fn decode_part(
        &self,
        wire: &[u8],
        length: usize,
        part: Range<usize>,
        weight: f32,
        sum: &mut [f32],
    ) -> Result<()> {
        let (most, format) = (length, self.config.values());
        sparse::add_part(wire, most, format, length, part, weight, sum)
    }
}
