//! Numbers in JSON that keep what is not finite: `"NaN"`, `"Infinity"`, `"-Infinity"`.
//!
//! For `#[serde(with = …)]`: this module for `f64`, [`option`] for `Option<f64>` and [`map`] for a
//! list of named values, which becomes an object in the same order.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One number on its way in or out.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(untagged)]
enum Number {
    Finite(f64),
    Other(Word),
}

/// What is not finite.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Word {
    NaN,
    Infinity,
    #[serde(rename = "-Infinity")]
    NegativeInfinity,
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        match value {
            _ if value.is_finite() => Self::Finite(value),
            _ if value.is_nan() => Self::Other(Word::NaN),
            _ if value > 0.0 => Self::Other(Word::Infinity),
            _ => Self::Other(Word::NegativeInfinity),
        }
    }
}

impl From<Number> for f64 {
    fn from(number: Number) -> Self {
        match number {
            Number::Finite(value) => value,
            Number::Other(Word::NaN) => Self::NAN,
            Number::Other(Word::Infinity) => Self::INFINITY,
            Number::Other(Word::NegativeInfinity) => Self::NEG_INFINITY,
        }
    }
}

pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    Number::from(*value).serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Number::deserialize(deserializer).map(f64::from)
}

/// The same for a value that may be absent.
pub(super) mod option {
    use super::{Deserialize, Deserializer, Number, Serialize, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(
        value: &Option<f64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(Number::from).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<f64>, D::Error> {
        Option::<Number>::deserialize(deserializer).map(|value| value.map(f64::from))
    }
}

/// The same for named values, in order.
pub(super) mod map {
    use std::fmt;

    use serde::de::{MapAccess, Visitor};

    use super::{Deserializer, Number, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(
        values: &[(String, f64)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(values.iter().map(|(name, value)| (name, Number::from(*value))))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(String, f64)>, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vec<(String, f64)>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of numbers")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut values = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Number>()? {
                    values.push((name, value.into()));
                }
                Ok(values)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
