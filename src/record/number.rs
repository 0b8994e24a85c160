//! Numbers in JSON that keep what is not finite: `"NaN"`, `"Infinity"`, `"-Infinity"`.
//!
//! For `#[serde(with = …)]`: this module for `f64`, [`option`] for `Option<f64>` and [`map`] for a
//! list of named values, which becomes an object.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One number on its way in or out.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Number {
    Finite(f64),
    Other(NotFinite),
}

/// What is not finite.
#[derive(Serialize, Deserialize)]
enum NotFinite {
    NaN,
    Infinity,
    #[serde(rename = "-Infinity")]
    NegativeInfinity,
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        match value {
            f64::INFINITY => Self::Other(NotFinite::Infinity),
            f64::NEG_INFINITY => Self::Other(NotFinite::NegativeInfinity),
            _ if value.is_nan() => Self::Other(NotFinite::NaN),
            _ => Self::Finite(value),
        }
    }
}

impl From<Number> for f64 {
    fn from(number: Number) -> Self {
        match number {
            Number::Finite(value) => value,
            Number::Other(NotFinite::NaN) => Self::NAN,
            Number::Other(NotFinite::Infinity) => Self::INFINITY,
            Number::Other(NotFinite::NegativeInfinity) => Self::NEG_INFINITY,
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

/// The same for named values, which are read in order of their names.
pub(super) mod map {
    use super::{Deserialize, Deserializer, Number, Serializer};
    use std::collections::BTreeMap;

    pub(in super::super) fn serialize<S: Serializer>(
        values: &[(String, f64)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(values.iter().map(|(name, value)| (name, Number::from(*value))))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(String, f64)>, D::Error> {
        let values = BTreeMap::<String, Number>::deserialize(deserializer)?;
        Ok(values.into_iter().map(|(name, value)| (name, value.into())).collect())
    }
}
