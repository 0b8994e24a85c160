//! How what processes write each other becomes bytes.

use crate::checkpoint::Tensors;
use anyhow::{Context, Result, bail};
use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize, Serializer};

/// A message as bytes.
///
/// # Errors
/// When something in it is no text.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>> {
    postcard::to_extend(message, Vec::new()).context("writing a letter")
}

/// A message from bytes.
///
/// # Errors
/// When they are not such a message's.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes).context("it cannot be read")? {
        (message, []) => Ok(message),
        (_, rest) => bail!("{} bytes follow its end", rest.len()),
    }
}

/// Bytes, written as one piece.
#[derive(Clone, Debug, PartialEq)]
pub struct Blob(pub Vec<u8>);

impl Blob {
    /// Tensors as one piece.
    ///
    /// # Errors
    /// When they cannot be encoded.
    pub fn of(tensors: &Tensors) -> Result<Self> {
        Ok(Self(tensors.encode(None)?))
    }

    /// The tensors in it.
    ///
    /// # Errors
    /// When the bytes are not those of tensors.
    pub fn tensors(&self) -> Result<Tensors> {
        Tensors::decode(&self.0)
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A letter is read from a slice, which can be borrowed from.
        <&[u8]>::deserialize(deserializer).map(|bytes| Self(bytes.to_vec()))
    }
}
