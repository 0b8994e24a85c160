//! For `#[serde(with = …)]`: a value as JSON text in a message, for only JSON can leave keys out.

use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<S: Serializer>(of: &impl Serialize, out: S) -> Result<S::Ok, S::Error> {
    serde_json::to_string(of).map_err(S::Error::custom)?.serialize(out)
}

pub(crate) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    from: D,
) -> Result<T, D::Error> {
    serde_json::from_str(<&str>::deserialize(from)?).map_err(D::Error::custom)
}
