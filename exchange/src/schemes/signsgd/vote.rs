//! The majority's vote: every rank's signs, counted by each rank.

use serde::{Deserialize, Serialize};

use crate::compress::levels::take_scales;
use crate::compress::signs::{self, Signs};
use crate::compress::{Compressor, Seat};
use crate::reducer::{BucketGradient, Next, Reducer, Round};
use crate::{Gauge, Result};

/// What becomes of the ranks' signs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Vote {
    /// Their mean: with N ranks one of N + 1 values.
    #[default]
    Mean,
    /// The sign that more ranks have, as in Bernstein et al. 2018, algorithm 3.
    Majority,
}

/// What arrives where as many ranks have either sign.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Ties {
    /// 0, the sign of a sum of 0.
    #[default]
    Zero,
    /// Plus, as in GRACE's code: a drift upwards of what is only noise.
    Plus,
}

/// Signs of one magnitude, of which the majority's arrives.
pub(super) struct Majority {
    signs: Signs,
    ties: Ties,
    message: Vec<u8>,
    gauges: Vec<Gauge>,
}

impl Majority {
    pub(super) fn new(signs: Signs, ties: Ties, seat: &Seat) -> Self {
        let message = Vec::with_capacity(4 + seat.length.div_ceil(8));
        Self { signs, ties, message, gauges: Vec::with_capacity(3) }
    }

    /// Overwrites `mean` by what the ranks' messages come to; the share of elements in a tie.
    pub(super) fn count<'a>(
        &self,
        messages: impl Iterator<Item = &'a [u8]>,
        mean: &mut [f32],
    ) -> Result<f64> {
        mean.fill(0.0);
        let (mut voters, mut sum) = (0u32, 0.0);
        for message in messages {
            let (magnitude, signs) = take_scales(message, 1)?;
            let magnitude = magnitude.first().map_or(0.0, |bytes| f32::from_le_bytes(*bytes));
            // A rank that has nothing but zeros abstains.
            let voice = if magnitude > 0.0 { 1.0 } else { 0.0 };
            signs::add(signs, voice, -voice, mean)?;
            voters += voice as u32;
            sum += f64::from(magnitude);
        }
        let magnitude = (sum / f64::from(voters.max(1))) as f32;
        let tie = match self.ties {
            Ties::Zero => 0.0,
            Ties::Plus => magnitude,
        };
        let mut ties = 0;
        for value in mean.iter_mut() {
            ties += u64::from(*value == 0.0);
            *value = if *value == 0.0 { tie } else { magnitude.copysign(*value) };
        }
        Ok(ties as f64 / mean.len().max(1) as f64)
    }
}

impl Reducer for Majority {
    fn reduce(&mut self, bucket: &mut BucketGradient<'_>, round: &mut Round<'_>) -> Result<Next> {
        if round.number() == 0 {
            self.message.clear();
            self.signs.encode(bucket.due(), round.step(), &mut self.message);
            round.allgather(&self.message);
            return Ok(Next::Again);
        }
        let (mean, unsent) = bucket.parts_mut();
        let ties = self.count(round.messages(), mean)?;
        if let Some(unsent) = unsent {
            unsent.iter_mut().zip(&*mean).for_each(|(left, sent)| *left -= sent);
        }
        self.gauges.clear();
        self.gauges.extend_from_slice(self.signs.gauges());
        self.gauges.push(Gauge::mean("ties", ties, mean.len() as f64));
        Ok(Next::Done)
    }

    fn gauges(&self) -> &[Gauge] {
        &self.gauges
    }
}
