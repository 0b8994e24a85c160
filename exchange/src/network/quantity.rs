//! Words for quantities: `100mbit`, `1.5ms`.

use serde::de::{self, Deserializer, Visitor};
use std::fmt;

/// A unit's name, how many of the base unit it is, and how many of it are one of the base unit: one
/// of the two is 1, so that no word is rounded twice.
type Unit = (&'static str, f64, f64);

/// Bits per second, the longest first. Networks count in powers of ten.
const BANDWIDTH: [Unit; 5] = [
    ("tbit", 1e12, 1.0),
    ("gbit", 1e9, 1.0),
    ("mbit", 1e6, 1.0),
    ("kbit", 1e3, 1.0),
    ("bit", 1.0, 1.0),
];

/// Seconds.
const TIME: [Unit; 5] =
    [("ms", 1.0, 1e3), ("us", 1.0, 1e6), ("µs", 1.0, 1e6), ("ns", 1.0, 1e9), ("s", 1.0, 1.0)];

/// Bits per second of a word such as `100mbit`; `None` when it is none.
pub(super) fn bandwidth(text: &str) -> Option<f64> {
    number_and_unit(text, &BANDWIDTH)
}

/// Seconds of a word such as `1.5ms`; `None` when it is none.
pub(super) fn seconds(text: &str) -> Option<f64> {
    number_and_unit(text, &TIME)
}

fn number_and_unit(text: &str, units: &[Unit]) -> Option<f64> {
    let text = text.trim();
    let (number, many, part) = units
        .iter()
        .find_map(|(unit, many, part)| Some((text.strip_suffix(unit)?, *many, *part)))?;
    Some(number.trim().parse::<f64>().ok()? * many / part)
}

/// Bits per second in words: `100mbit`, `2.5gbit`.
pub(super) fn bandwidth_in_words(bits: f64) -> String {
    in_words(bits, &BANDWIDTH)
}

/// Seconds in words: `200us`, `1.5ms`.
pub(super) fn seconds_in_words(seconds: f64) -> String {
    let [ms, us, _, ns, s] = TIME;
    in_words(seconds, &[s, ms, us, ns])
}

/// In the first unit of which it is at least one, else in the last.
fn in_words(value: f64, units: &[Unit]) -> String {
    let fits = |(_, many, part): &&Unit| value * part / many >= 1.0;
    let (unit, many, part) =
        units.iter().find(fits).or(units.last()).copied().unwrap_or(("", 1.0, 1.0));
    let number = format!("{:.3}", value * part / many);
    format!("{}{unit}", number.trim_end_matches('0').trim_end_matches('.'))
}

/// For `#[serde(deserialize_with = …)]`: bits per second as a number or a word.
pub(super) fn de_bandwidth<'de, D: Deserializer<'de>>(de: D) -> Result<Option<f64>, D::Error> {
    de.deserialize_any(Quantity(
        bandwidth,
        "bits per second as a number, or a word such as 100mbit",
    ))
    .map(Some)
}

/// For `#[serde(deserialize_with = …)]`: seconds as a number or a word.
pub(super) fn de_seconds<'de, D: Deserializer<'de>>(de: D) -> Result<Option<f64>, D::Error> {
    de.deserialize_any(Quantity(seconds, "seconds as a number, or a word such as 1.5ms")).map(Some)
}

/// Reads a number as it is and a word by its unit.
struct Quantity(fn(&str) -> Option<f64>, &'static str);

impl Visitor<'_> for Quantity {
    type Value = f64;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.1)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<f64, E> {
        Ok(value)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<f64, E> {
        (self.0)(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}
