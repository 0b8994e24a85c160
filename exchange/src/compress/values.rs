//! How a sparsifier sends the values that it selected: as f32, f16 or bf16, in two bits, or quantised.
//!
//! # Paper
//! Sarfi, Thérien, Lidin & Belilovsky 2025 ("Communication Efficient LLM Pre-training with SparseLoCo"):
//! two bits for each of the largest elements of a chunk (`two_bits.rs`, `"2bit"`).
//!
//! Basu, Data, Karakus & Diggavi 2019 ("Qsparse-local-SGD: Distributed SGD with Quantization,
//! Sparsification, and Local Computations"): a sparsifier, then a quantiser of what it selected,
//! with one error feedback around both.
//!
//! # Idea
//! The positions of a sparse message cost some eight bits each; values of 32 bits beside them are
//! most of the message. Of selected values, which are all large, a sign and few levels say enough.
//!
//! # Wire
//! | bytes | what |
//! |---|---|
//! | 4·kept (f16, bf16: 2·kept) | the values, in ascending order of position, or, in two bits: |
//! | 4·⌈kept/64⌉ + ⌈kept/4⌉ | 64 by 64: two magnitudes, and two bits for each value (`two_bits.rs`); or, quantised: |
//! | 4·blocks | the scale of each block of kept values, f32 |
//! | ⌈kept·w/8⌉ | a sign and a level each, as [`qsgd`](crate::schemes::qsgd) has them |
//!
//! # Laws
//! Let T be the selection, Q the quantiser and E‖Q(x) − x‖² ≤ β‖x‖². Q is unbiased, so that Q∘T is
//! right in expectation wherever T is (`randomk` with `unbiased`).
//!
//! With error feedback Q∘T has to be a contraction, and it is one only while β < 1 (with the paper's
//! coefficient (1 − β)·k/d for the composition as it is): with few levels β is above 1, and the
//! residual would grow. The paper's scaled composition divides by 1 + β, which makes a contraction
//! of any Q, with the coefficient k/(d·(1 + β)). We multiply each block by the number that leaves the least
//! of it, c = ⟨x, Q(x)⟩/‖Q(x)‖², but at most by 1. No number between 0 and 1 leaves less, 1/(1 + β)
//! included, so that this coefficient holds; and ‖c·Q(x) − x‖ ≤ ‖x‖ holds for every message
//! and not only in expectation. It costs nothing on the wire, because the scales are there anyway, and
//! β need not be known.
//!
//! Two bits are a contraction whatever surrounds them: a magnitude is the mean of those that it stands
//! for, but for rounding, so that ‖Q(x) − x‖² = ‖x‖² − Σ nᵢcᵢ², nᵢ values standing for magnitude cᵢ.
//!
//! Without feedback no block of the others is multiplied. If T is a contraction, Q∘T is then neither a
//! contraction nor right in expectation.

use serde::{Deserialize, Serialize};

use super::ladder::{Ladder, Uniform, width};
use super::levels::{Elements, Norm, Quantiser, stretch};
use super::scheme::require;
use super::two_bits::{self, TwoBits};
use super::{Law, Seat};
use crate::Result;
use crate::rng::Stream;
use crate::wire::{Format, Read, Reader, codes};

/// How values are sent: `"f32"`, `"f16"`, `"bf16"`, `"2bit"`, or by a quantiser, such as
/// `{ kind = "qsgd", levels = 1 }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(
    untagged,
    expecting = "values are \"f32\", \"f16\", \"bf16\", \"2bit\" or a quantiser, such as { kind = \"qsgd\", levels = 1 }"
)]
#[non_exhaustive]
pub enum Values {
    /// One by one, in a format of floating point.
    Plain(Format),
    /// As a sign and one of two magnitudes.
    Coded(Coding),
    /// Rounded to levels.
    Quantised(Quantised),
}

/// A coding of selected values that has no settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub enum Coding {
    /// A sign and one of two magnitudes, those nearest to each 64 values in order of position (Sarfi et
    /// al. 2025).
    #[serde(rename = "2bit")]
    TwoBits,
}

/// A quantiser of selected values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Quantised {
    /// As [`qsgd`](crate::schemes::qsgd) quantises gradients.
    Qsgd(QsgdValues),
}

/// The settings of `{ kind = "qsgd" }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct QsgdValues {
    /// Levels above zero, 1 to 127. Default 7: 4 bits with the sign; 1 is 2 bits.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 127)))]
    pub levels: u8,
    /// What a block is scaled by. Default `linf`.
    pub norm: Norm,
    /// Selected values of a block; 0 for all of the bucket's. Default 512.
    pub block: usize,
}

impl Default for QsgdValues {
    fn default() -> Self {
        Self { levels: 7, norm: Norm::Linf, block: 512 }
    }
}

impl Default for Values {
    fn default() -> Self {
        Values::Plain(Format::default())
    }
}

impl From<Format> for Values {
    fn from(format: Format) -> Self {
        Values::Plain(format)
    }
}

impl From<QsgdValues> for Values {
    fn from(qsgd: QsgdValues) -> Self {
        Values::Quantised(Quantised::Qsgd(qsgd))
    }
}

impl Values {
    /// Checks the setting by itself.
    pub(crate) fn validate(self, scheme: &'static str) -> Result<()> {
        let Values::Quantised(Quantised::Qsgd(QsgdValues { levels, .. })) = self else {
            return Ok(());
        };
        let wanted = "write 1 to 127 levels above zero, such as \
                      `values = { kind = \"qsgd\", levels = 1 }`";
        require((1..=127).contains(&levels), scheme, "values.levels", levels, wanted)
    }

    /// What a message gives back whose selection, sent exactly, gives back `selection`.
    pub(crate) fn law(self, selection: Law, feedback: bool) -> Law {
        match (self, selection) {
            (Values::Quantised(_), Law::Contraction) if !feedback => Law::Biased,
            _ => selection,
        }
    }

    /// Takes `count` values.
    pub(crate) fn take<'a>(self, reader: &mut Reader<'a>, count: usize) -> Read<Arriving<'a>> {
        match self {
            Values::Plain(format) => {
                let bytes = reader.take(count * format.bytes())?;
                format.check(bytes)?;
                Ok(Arriving::Plain(format, bytes.chunks_exact(format.bytes())))
            }
            Values::Coded(Coding::TwoBits) => TwoBits::take(reader, count).map(Arriving::TwoBits),
            Values::Quantised(Quantised::Qsgd(QsgdValues { levels, block, .. })) => {
                let elements = Elements::take(reader, count, block, Uniform(levels))?;
                Ok(Arriving::Quantised(elements))
            }
        }
    }
}

/// Values of a message, read one after another.
pub(crate) enum Arriving<'a> {
    Plain(Format, std::slice::ChunksExact<'a, u8>),
    TwoBits(TwoBits<'a>),
    Quantised(Elements<'a, Uniform>),
}

impl Arriving<'_> {
    /// The next value; 0 when there are no more.
    #[inline]
    pub(crate) fn next(&mut self) -> f32 {
        match self {
            Arriving::Plain(format, bytes) => bytes.next().map_or(0.0, |bytes| format.value(bytes)),
            Arriving::TwoBits(values) => values.next().unwrap_or(0.0),
            Arriving::Quantised(elements) => elements.next(),
        }
    }
}

/// Writes the values of one seat's messages; keeps its memory.
#[derive(Debug)]
pub(crate) struct Sender {
    values: Values,
    /// Whether blocks are multiplied by what leaves the least of them.
    fitted: bool,
    seat: Seat,
    quantiser: Quantiser,
    kept: Vec<f32>,
    codes: Vec<u8>,
    /// The positions whose values the last message sends, if they are rounded.
    sent: Vec<u32>,
}

impl Sender {
    /// Of messages of at most `most` values; within error feedback what is quantised is `fitted`.
    pub(crate) fn new(values: Values, fitted: bool, most: usize, seat: &Seat) -> Self {
        let (room, blocks) = match values {
            Values::Plain(Format::F32) => (0, 0),
            Values::Plain(_) => (most, 0),
            Values::Coded(Coding::TwoBits) => (two_bits::BLOCK, 0),
            Values::Quantised(Quantised::Qsgd(QsgdValues { block, .. })) => {
                (most, most.div_ceil(stretch(block, most)))
            }
        };
        Self {
            values,
            fitted,
            seat: seat.clone(),
            quantiser: Quantiser::with_capacity(blocks),
            kept: Vec::with_capacity(room),
            codes: Vec::with_capacity(room),
            sent: Vec::with_capacity(room),
        }
    }

    /// Appends the values of the elements at `positions`, those of the message at `step`.
    pub(crate) fn send(
        &mut self,
        positions: &[u32],
        values: impl Iterator<Item = f32>,
        step: u64,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        self.put(values, step, out);
        let Self { values, codes, sent, .. } = self;
        let decoded = positions.iter().copied();
        sent.clear();
        match *values {
            Values::Plain(Format::F32) | Values::Coded(_) => {}
            Values::Plain(format) => {
                let values = out[start..].chunks_exact(format.bytes());
                let arrives = |value: &[u8]| format.value(value) != 0.0;
                sent.extend(
                    decoded
                        .zip(values)
                        .filter(|(_, value)| arrives(value))
                        .map(|(position, _)| position),
                );
            }
            Values::Quantised(Quantised::Qsgd(qsgd)) => {
                let levels = levels_of(qsgd.levels);
                sent.extend(
                    decoded
                        .zip(codes)
                        .filter(|(_, code)| **code & levels != 0)
                        .map(|(position, _)| position),
                );
            }
        }
    }

    /// Given the `positions` of the last message, those whose values it really sends: a value that
    /// was rounded to 0 stays whole in the residual.
    pub(crate) fn sent<'a>(&'a self, positions: &'a [u32]) -> &'a [u32] {
        match self.values {
            Values::Plain(Format::F32) | Values::Coded(_) => positions,
            Values::Plain(_) | Values::Quantised(_) => &self.sent,
        }
    }

    fn put(&mut self, values: impl Iterator<Item = f32>, step: u64, out: &mut Vec<u8>) {
        match self.values {
            Values::Plain(format) => format.put(values, out),
            Values::Coded(Coding::TwoBits) => two_bits::put(values, &mut self.kept, out),
            Values::Quantised(Quantised::Qsgd(qsgd)) => {
                self.kept.clear();
                self.kept.extend(values);
                self.put_qsgd(qsgd, step, out);
            }
        }
    }

    fn put_qsgd(&mut self, qsgd: QsgdValues, step: u64, out: &mut Vec<u8>) {
        let QsgdValues { levels, norm, block } = qsgd;
        let stream = self.stream(step);
        let (ladder, kept, codes) = (Uniform(levels), &self.kept, &mut self.codes);
        let scales_at = out.len();
        self.quantiser.put_scales(kept, block, |some| norm.scale(some), out);
        codes.clear();
        self.quantiser
            .each_codes(kept, block, ladder, stream, |some| codes.extend_from_slice(some));
        if self.fitted {
            let blocks = stretch(block, kept.len());
            let (scales, _) = out[scales_at..].as_chunks_mut();
            for ((scale, values), codes) in
                scales.iter_mut().zip(kept.chunks(blocks)).zip(codes.chunks(blocks))
            {
                *scale = fitted(f32::from_le_bytes(*scale), values, codes, ladder).to_le_bytes();
            }
        }
        codes::put(codes, width(ladder.top()), out);
    }

    /// Random numbers of its own: independent of those that a sparsifier draws at that step.
    fn stream(&self, step: u64) -> Stream {
        const VALUES: u64 = 1;
        let Seat { seed, rank, bucket, .. } = self.seat;
        Stream::new(&[seed, 1 + rank as u64, bucket as u64, step, VALUES])
    }
}

/// The bits of a code that hold its level, of levels up to `top`.
fn levels_of(top: u8) -> u8 {
    (1 << (width(top) - 1)) - 1
}

/// The scale, at most `scale`, with which the codes of a block are nearest to its values x:
/// ⟨x, q⟩/‖q‖², where q holds for each value its sign times its share of the scale; 0 where all
/// shares are 0.
fn fitted(scale: f32, values: &[f32], codes: &[u8], ladder: impl Ladder) -> f32 {
    let levels = levels_of(ladder.top());
    let (mut product, mut square) = (0.0, 0.0);
    for (value, code) in values.iter().zip(codes) {
        let share = f64::from(ladder.share(code & levels));
        product += f64::from(value.abs()) * share;
        square += share * share;
    }
    if square > 0.0 { scale.min((product / square) as f32) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 1e-9 is below f16's smallest number, and not below bf16's.
    #[test]
    fn what_arrives_as_zero_is_not_sent() {
        for (format, expected) in [
            (Format::F32, [4, 7, 9].as_slice()),
            (Format::F16, &[4, 9]),
            (Format::Bf16, &[4, 7, 9]),
        ] {
            let mut sender = Sender::new(format.into(), false, 3, &Seat::alone(10, 1));
            sender.send(&[4, 7, 9], [1.0, 1e-9, -2.0].into_iter(), 1, &mut Vec::new());
            assert_eq!(sender.sent(&[4, 7, 9]), expected, "{format:?}");
        }
    }

    fn qsgd(levels: u8, norm: Norm, block: usize) -> Values {
        QsgdValues { levels, norm, block }.into()
    }

    fn settings() -> Vec<Values> {
        vec![
            Format::F32.into(),
            Format::F16.into(),
            Format::Bf16.into(),
            Values::Coded(Coding::TwoBits),
            qsgd(1, Norm::Linf, 512),
            qsgd(1, Norm::L2, 0),
            qsgd(5, Norm::L2, 7),
            qsgd(127, Norm::Linf, 100),
        ]
    }

    fn sent(setting: Values, fitted: bool, values: &[f32], step: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let mut sender = Sender::new(setting, fitted, values.len(), &Seat::alone(99, 5));
        sender.put(values.iter().copied(), step, &mut out);
        out
    }

    fn read(setting: Values, bytes: &[u8], count: usize) -> Read<Vec<f32>> {
        let mut reader = Reader::new(bytes);
        let mut arriving = setting.take(&mut reader, count)?;
        let values = (0..count).map(|_| arriving.next()).collect();
        reader.finish()?;
        Ok(values)
    }

    fn square(values: impl Iterator<Item = f32>) -> f64 {
        values.map(|value| f64::from(value).powi(2)).sum()
    }

    proptest! {
        /// And no number from 0 to 1 in place of the one that was fitted leaves less.
        #[test]
        fn what_is_fitted_contracts_every_time(
            values in prop::collection::vec(-3f32..3.0, 1..300), step: u64, factor in 0f32..=1.0,
        ) {
            for setting in settings() {
                let Values::Quantised(_) = setting else { continue };
                let count = values.len();
                let arrived = |fitted| read(setting, &sent(setting, fitted, &values, step), count);
                let (plain, fitted) = (arrived(false).unwrap(), arrived(true).unwrap());
                let off = |decoded: &[f32], factor: f32| {
                    square(decoded.iter().zip(&values).map(|(decoded, value)| factor * decoded - value))
                };
                let least = off(&fitted, 1.0);
                prop_assert!(least <= square(values.iter().copied()) * (1.0 + 1e-6), "{setting:?}");
                prop_assert!(least <= off(&plain, factor) * (1.0 + 1e-5) + 1e-9, "{setting:?}");
            }
        }
    }

    /// With one level of the L2 norm of many values, β is far above 1: unscaled rounding moves away
    /// by β on average, and fitted it leaves no more than the paper's second lemma, 1 − 1/(1 + β).
    #[test]
    fn the_lemmas_coefficient_holds_where_unscaled_rounding_is_no_contraction() {
        const STEPS: u64 = 300;
        let values: Vec<f32> = (0..400).map(|i| 1.0 + (i as f32 * 0.7).sin()).collect();
        let setting = qsgd(1, Norm::L2, 0);
        let whole = square(values.iter().copied());
        let share_left = |fitted| {
            let one = |step| {
                let decoded = read(setting, &sent(setting, fitted, &values, step), 400).unwrap();
                square(decoded.iter().zip(&values).map(|(decoded, value)| decoded - value))
            };
            (1..=STEPS).map(one).sum::<f64>() / STEPS as f64 / whole
        };
        // E‖Q(x)‖² = ‖x‖·‖x‖₁ with one level, and so β = ‖x‖₁/‖x‖ − 1.
        let sum: f64 = values.iter().map(|value| f64::from(*value)).sum();
        let beta = sum / whole.sqrt() - 1.0;
        assert!(beta > 10.0, "{beta}");
        let (unscaled, fitted) = (share_left(false), share_left(true));
        assert!((unscaled / beta - 1.0).abs() < 0.1, "{unscaled} {beta}");
        assert!(fitted <= 1.0 - 1.0 / (1.0 + beta) + 0.005, "{fitted} {beta}");
    }

    #[test]
    fn settings_read_and_write_as_toml_and_others_are_refused_with_the_remedy() {
        #[derive(Debug, Serialize, Deserialize, PartialEq)]
        struct Recipe {
            values: Values,
        }
        for values in settings() {
            let text = toml::to_string(&Recipe { values }).unwrap();
            assert_eq!(toml::from_str::<Recipe>(&text).unwrap(), Recipe { values }, "{text}");
            assert_eq!(values.validate("topk"), Ok(()));
        }
        let read = |text: &str| toml::from_str::<Recipe>(text).map(|recipe| recipe.values);
        assert_eq!(read("values = 'f16'"), Ok(Format::F16.into()));
        assert_eq!(
            toml::to_string(&Recipe { values: Format::F16.into() }).unwrap(),
            "values = \"f16\"\n"
        );
        assert_eq!(read("values = { kind = 'qsgd' }"), Ok(QsgdValues::default().into()));
        for text in [
            "values = 'f8'",
            "values = 16",
            "values = true",
            "values = { kind = 'terngrad' }",
            "values = { kind = 'qsgd', feedback = true }",
            "values = { levels = 1 }",
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("{ kind = \"qsgd\", levels = 1 }"), "{error}");
        }
        for levels in [0, 128] {
            let values = Values::from(QsgdValues { levels, ..QsgdValues::default() });
            let error = values.validate("topk").unwrap_err().to_string();
            assert!(error.contains("values.levels") && error.contains("1 to 127"), "{error}");
        }
    }
}
