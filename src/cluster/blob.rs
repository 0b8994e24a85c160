//! How what processes write each other becomes bytes.

use crate::checkpoint::Tensors;
use anyhow::{Context, Result, bail};
use postcard::ser_flavors::Flavor;
use serde::de::{DeserializeOwned, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// A message as bytes.
///
/// # Errors
/// When something in it is no text.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>> {
    postcard::serialize_with_flavor(message, Bytes(Vec::new())).context("writing a letter")
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

/// What letters are written into.
struct Bytes(Vec<u8>);

impl Flavor for Bytes {
    type Output = Vec<u8>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
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
    /// When the bytes are none's.
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
        struct Piece;
        impl Visitor<'_> for Piece {
            type Value = Blob;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Blob, E> {
                Ok(Blob(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Piece)
    }
}
