//! Schemes whose levels follow the gradients: what they send, and how all ranks come to the same
//! levels.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | 1 when a statistic follows the codes, else 0 |
//! | … | levels, scales and codes ([`rounding`]) |
//! | 8 | with a statistic: its total weight W, f64 |
//! | 4·terms | its terms divided by W, f32 |
//!
//! At steps 1, 10, 30 and every `refresh`-th, each message carries its gradient's statistic
//! (unless the message would be larger than plain f32 with it). After the step every rank adds up
//! the statistics of all messages in order of rank, joins the sum, scaled to weight 1, to its
//! moving average, and solves for the levels of the next step. Where no message carried one, the
//! mean gradient's own statistic takes their place. As long as there are no such levels, each rank
//! sends what is best for its own gradient: decoding takes the levels from the message in any case.
//! With [`Statistics::None`] levels stay uniform.
use serde::{Deserialize, Serialize};

use super::moments::largest;
use super::rounding::{self, Rounder, are_levels};
use super::scheme::require;
use super::{Compressor, Encoded, Seat, StepEnd, StepMessages};
use crate::rng::Stream;
use crate::wire::{Fault, Read, Reader};
use crate::{Entry, Error, Gauge, Result, State};

/// Where the statistic that all ranks agree on comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Statistics {
    /// From every rank's gradient: it rides in the messages now and then.
    #[default]
    Pooled,
    /// From the mean gradient that every rank has anyway: nothing more is sent.
    Aggregate,
    /// From nowhere: levels stay uniform from −1 to 1, which is what optimised ones of equal number are compared with.
    None,
}

/// What of a gradient's distribution decides about its levels, and how.
pub(crate) trait LevelFit: Send {
    /// Number of terms, each a sum over elements; the first [`weights`](Self::weights) of them add
    /// up to the total weight.
    fn terms(&self) -> usize;

    /// Number of terms that are weights.
    fn weights(&self) -> usize;

    /// Adds a block's terms to `sums`; `scale`, its largest magnitude, is not 0.
    fn gather(&self, block: &[f32], scale: f32, sums: &mut [f64]);

    /// Puts the best levels, ascending, into `levels`, from terms whose total weight is positive.
    fn solve(&mut self, terms: &[f64], levels: &mut [f32]);
}

/// What the schemes of this family have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdaptiveSettings {
    pub(crate) rounder: Rounder,
    pub(crate) statistics: Statistics,
    /// Steps between statistics, from step `refresh` on.
    pub(crate) refresh: u64,
    /// Share of the moving average that an older statistic keeps.
    pub(crate) memory: f64,
    /// 1 rounds without bias, 0 to the nearest level.
    pub(crate) sharpness: f32,
}

impl AdaptiveSettings {
    /// Checks the settings of `scheme`.
    pub(crate) fn validate(&self, scheme: &'static str) -> Result<()> {
        self.rounder.validate(scheme)?;
        let steps = "write a number of steps, such as `refresh = 100`";
        require(self.refresh > 0, scheme, "refresh", self.refresh, steps)?;
        let share = "write a number from 0 up to, but not, 1, such as `memory = 0.9`";
        require((0.0..1.0).contains(&self.memory), scheme, "memory", self.memory, share)
    }
}

/// A compressor whose levels follow the gradients.
pub(crate) struct Adaptive<F> {
    seat: Seat,
    settings: AdaptiveSettings,
    fit: F,
    /// The levels that all ranks share, once they do.
    shared: Option<Vec<f32>>,
    /// The moving average behind them; its total weight is positive with them.
    average: Vec<f64>,
    /// The levels of the last message.
    used: Vec<f32>,
    /// The statistic under way.
    sums: Vec<f64>,
    gauges: [Gauge; 4],
}

impl<F: LevelFit> Adaptive<F> {
    pub(crate) fn new(seat: &Seat, settings: AdaptiveSettings, fit: F) -> Self {
        let zeros = vec![0.0; fit.terms()];
        Self {
            seat: seat.clone(),
            settings,
            fit,
            shared: None,
            average: zeros.clone(),
            used: vec![0.0; settings.rounder.levels()],
            sums: zeros,
            gauges: gauges(0, 0, 0, 0.0),
        }
    }

    /// Whether levels are to be learned at `step`: the same on every rank.
    fn is_due(&self, step: u64) -> bool {
        self.shared.is_none()
            || matches!(step, 1 | 10 | 30)
            || step.is_multiple_of(self.settings.refresh)
    }

    /// The total weight of terms.
    fn weight(&self, terms: &[f64]) -> f64 {
        terms[..self.fit.weights()].iter().sum()
    }

    /// Makes `sums` the statistic of a gradient.
    fn gather(&mut self, gradient: &[f32]) {
        self.sums.fill(0.0);
        for block in gradient.chunks(self.settings.rounder.block) {
            let scale = largest(block);
            if scale > 0.0 {
                self.fit.gather(block, scale, &mut self.sums);
            }
        }
    }

    /// Makes `sums` the statistics of all messages, added up in order of rank.
    fn pool_all(&mut self, messages: &[Option<&[u8]>]) -> Result<()> {
        self.sums.fill(0.0);
        if self.settings.statistics == Statistics::Pooled {
            for message in messages.iter().flatten() {
                self.pool(message)?;
            }
        }
        Ok(())
    }

    /// Settles on the levels of the next step: from `sums`, or from the mean where they are empty.
    fn adapt(&mut self, mean: &[f32]) {
        if self.weight(&self.sums) <= 0.0 {
            self.gather(mean);
        }
        let weight = self.weight(&self.sums);
        // Shares of the weight; a server's summary may hold any bits.
        let are_shares = self.sums.iter().all(|sum| (sum / weight).abs() < 1e30);
        if weight <= 0.0 || !weight.is_finite() || !are_shares {
            return;
        }
        for (average, sum) in self.average.iter_mut().zip(&self.sums) {
            *average = self.settings.memory * *average + sum / weight;
        }
        let shared = self.shared.get_or_insert_with(|| vec![0.0; self.settings.rounder.levels()]);
        self.fit.solve(&self.average, shared);
    }

    /// Adds the statistic of a message to `sums`, if it carries one.
    fn pool(&mut self, wire: &[u8]) -> Read<()> {
        let mut reader = Reader::new(wire);
        if !carries(&mut reader)? {
            return Ok(());
        }
        reader.take(self.settings.rounder.bytes(self.seat.length))?;
        let weight = f64::from_bits(reader.u64()?);
        if !(0.0..f64::INFINITY).contains(&weight) {
            return Err(Fault::Field { field: "statistic's weight", found: weight.to_bits() });
        }
        for (number, sum) in self.sums.iter_mut().enumerate() {
            let term = f32::from_bits(reader.u32()?);
            // A share of the weight, up to the rounding of f32.
            let least = if number < self.fit.weights() { 0.0 } else { -1.001 };
            if !(least..=1.001).contains(&term) {
                return Err(Fault::Field { field: "statistic", found: term.to_bits().into() });
            }
            *sum += weight * f64::from(term);
        }
        reader.finish()
    }
}

/// Whether a message carries a statistic.
fn carries(reader: &mut Reader<'_>) -> Read<bool> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(Fault::Field { field: "statistic flag", found: found.into() }),
    }
}

fn gauges(bytes: usize, length: usize, statistic: usize, least: f32) -> [Gauge; 4] {
    let weight = length as f64;
    let bits = if length == 0 { 0.0 } else { 8.0 * bytes as f64 / weight };
    [
        Gauge::mean("bits", bits, weight),
        Gauge::mean("least_level", least.into(), weight),
        Gauge::mean("next_level", 0.0, weight),
        Gauge::sum("statistic_bytes", statistic as f64),
    ]
}

impl<F: LevelFit> Compressor for Adaptive<F> {
    fn encode(&mut self, gradient: &[f32], step: u64, out: &mut Vec<u8>) -> Encoded {
        let start = out.len();
        let statistic = 8 + 4 * self.fit.terms();
        let plain = 1 + self.settings.rounder.bytes(gradient.len());
        let rides = self.settings.statistics == Statistics::Pooled
            && self.is_due(step)
            && plain + statistic <= size_of_val(gradient);
        let fits = self.settings.statistics != Statistics::None;
        if rides || (fits && self.shared.is_none()) {
            self.gather(gradient);
        }
        match &self.shared {
            Some(shared) => self.used.copy_from_slice(shared),
            None if fits && self.weight(&self.sums) > 0.0 => {
                self.fit.solve(&self.sums, &mut self.used);
            }
            None => rounding::uniform(&mut self.used),
        }
        // Buffers that go round never grow for a statistic later.
        out.reserve(plain + statistic);
        out.push(u8::from(rides));
        let stream = Stream::at(&self.seat, step);
        self.settings.rounder.put(gradient, &self.used, self.settings.sharpness, stream, out);
        if rides {
            let weight = self.weight(&self.sums);
            let divisor = if weight > 0.0 { weight } else { 1.0 };
            out.extend(weight.to_le_bytes());
            out.extend(self.sums.iter().flat_map(|sum| ((sum / divisor) as f32).to_le_bytes()));
        }
        let mut magnitudes = [f32::INFINITY; 2];
        for level in &self.used {
            let [least, next] = &mut magnitudes;
            if level.abs() < *least {
                (*next, *least) = (*least, level.abs());
            } else {
                *next = next.min(level.abs());
            }
        }
        let sent = if rides { statistic } else { 0 };
        self.gauges = gauges(out.len() - start, gradient.len(), sent, magnitudes[0]);
        self.gauges[2].value = magnitudes[1].into();
        Encoded::Message
    }

    fn decode_add(&self, wire: &[u8], start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        let range = start..start + sum.len();
        let mut reader = Reader::new(wire);
        let carries = carries(&mut reader)?;
        self.settings.rounder.add_part(&mut reader, self.seat.length, range, weight, sum)?;
        if carries {
            reader.take(8 + 4 * self.fit.terms())?;
        }
        Ok(reader.finish()?)
    }

    fn learn_from_messages(&mut self, round: &StepMessages<'_>) -> Result<()> {
        if self.is_due(round.step) {
            self.pool_all(round.messages)?;
        }
        Ok(())
    }

    /// The pooled statistic, each term an f64; nothing when no message carries one.
    fn summarise(&mut self, round: &StepMessages<'_>, out: &mut Vec<u8>) -> Result<()> {
        self.pool_all(round.messages)?;
        if self.weight(&self.sums) > 0.0 {
            out.extend(self.sums.iter().flat_map(|sum| sum.to_le_bytes()));
        }
        Ok(())
    }

    fn learn_from_summary(&mut self, _step: u64, summary: &[u8], _mean: &[f32]) -> Result<()> {
        let (sums, rest) = summary.as_chunks();
        if !rest.is_empty() || !(sums.is_empty() || sums.len() == self.sums.len()) {
            let (expected, found) = (8 * self.sums.len(), summary.len());
            return Err(Fault::Length { expected, found }.into());
        }
        self.sums.fill(0.0);
        for (sum, bytes) in self.sums.iter_mut().zip(sums) {
            *sum = f64::from_le_bytes(*bytes);
        }
        Ok(())
    }

    fn commit(&mut self, end: &StepEnd<'_>) {
        if self.settings.statistics != Statistics::None && self.is_due(end.step) {
            self.adapt(end.mean);
        }
    }

    fn reads_ranges(&self) -> bool {
        true
    }

    fn save(&self, state: &mut State) {
        if let Some(shared) = &self.shared {
            state.insert("levels", Entry::F32(shared.clone()));
            let bits = self.average.iter().map(|term| term.to_bits()).collect();
            state.insert("statistic", Entry::U64(bits));
        }
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        if !state.contains("levels") {
            self.shared = None;
            self.average.fill(0.0);
            return Ok(());
        }
        let refuse = |entry: &str, problem: &str| {
            Err(Error::State { entry: entry.to_string(), problem: problem.to_string() })
        };
        let levels = state.f32s("levels", self.settings.rounder.levels())?;
        if !are_levels(levels) {
            return refuse("levels", "does not ascend within [-1, 1]");
        }
        let bits = state.u64s("statistic", self.average.len())?;
        if bits.iter().any(|bits| !f64::from_bits(*bits).is_finite()) {
            return refuse("statistic", "holds a number that is not finite");
        }
        for (average, bits) in self.average.iter_mut().zip(bits) {
            *average = f64::from_bits(*bits);
        }
        self.shared = Some(levels.to_vec());
        Ok(())
    }

    fn gauges(&self) -> &[Gauge] {
        &self.gauges
    }
}
