//! What a peer sent, told apart: the frame that is awaited, another one, or the peer's own error in
//! its place, which is a refusal.
//!
//! | bytes | the payload of [`Kind::NonFinite`] |
//! |---|---|
//! | 0 | what is not finite: 0 a gradient, 1 a gradient plus its residual, 2 a shard of the mean |
//! | 1–8 | the element, counted within its parameter |
//! | the rest | the parameter's name |
//!
//! That of [`Kind::Abort`] is the sender's words.

use std::ops::Deref;

use crate::wire::{Fault, Frame, Header, Kind, Reader};
use crate::{Error, Result};

/// Bytes of a reason or a name that travel with a refusal; what is longer is cut.
const TEXT_BYTES: usize = 1024;

/// In the place of 0 or 1: a shard of the mean is not finite.
const MEAN: u8 = 2;

impl<'a> Frame<'a> {
    /// Reads the next frame and checks that it is the one awaited by rank `by`.
    pub fn expect(reader: &mut Reader<'a>, expected: Header, by: usize) -> Result<Frame<'a>> {
        Frame::read(reader)?.awaited(expected, by)
    }

    /// This frame, if it is the one awaited by rank `by`.
    pub fn awaited(self, expected: Header, by: usize) -> Result<Frame<'a>> {
        let found = self.header;
        if (found.rank, found.world_size) == (expected.rank, expected.world_size) {
            self.refusal()?;
        }
        if found.answers(expected) {
            Ok(self)
        } else {
            Err(Error::OutOfStep { by, expected, found })
        }
    }

    /// The error that a message carries, if it is a whole frame and carries one instead of what
    /// was awaited, together with the rank that it says it comes from. Cheap when there is none.
    pub fn refusal_of(message: &[u8]) -> Option<(usize, Error)> {
        let refuses = |kind: &u8| [Kind::NonFinite as u8, Kind::Abort as u8].contains(kind);
        message.get(3).filter(|kind| refuses(kind))?;
        let frame = Frame::read(&mut Reader::new(message)).ok()?;
        Some((frame.header.rank.into(), frame.refusal().err()?))
    }

    /// Fails with the error that this frame carries, if it carries one instead of what was
    /// awaited.
    pub fn refusal(&self) -> Result<()> {
        let Header { rank, step, .. } = self.header;
        let rank = usize::from(rank);
        let mut reader = Reader::new(self.payload);
        match self.header.kind {
            Kind::NonFinite => {
                let (of, index) = (reader.u8()?, reader.u64()? as usize);
                let parameter = text(reader.rest());
                let corrected = match of {
                    0 | 1 => of == 1,
                    MEAN => return Err(Error::NonFiniteMean { step, parameter, index }),
                    found => {
                        return Err(Fault::Field { field: "quantity", found: found.into() }.into());
                    }
                };
                Err(Error::NonFinite { rank, step, corrected, parameter, index })
            }
            Kind::Abort => Err(Error::Aborted { rank, step, reason: text(reader.rest()) }),
            _ => Ok(()),
        }
    }
}

/// The error of the lowest rank that refused instead of sending what was awaited; each message is of so
/// many ranks.
pub(crate) fn first<M: Deref<Target = [u8]>>(messages: &[M], group: usize) -> Option<Error> {
    messages.iter().enumerate().find_map(|(from, message)| {
        let (rank, error) = Frame::refusal_of(message)?;
        (rank == from * group).then_some(error)
    })
}

/// Appends the frame by which a rank tells the others its own error, instead of what they await:
/// [`Error::NonFinite`] and [`Error::NonFiniteMean`] as such, everything else as an abort with its words.
pub fn write(header: Header, error: &Error, out: &mut Vec<u8>) {
    let open = header.open(out);
    let kind = match error {
        Error::NonFinite { corrected, parameter, index, .. } => {
            out.push((*corrected).into());
            out.extend_from_slice(&(*index as u64).to_le_bytes());
            out.extend_from_slice(cut(parameter).as_bytes());
            Kind::NonFinite
        }
        Error::NonFiniteMean { parameter, index, .. } => {
            out.push(MEAN);
            out.extend_from_slice(&(*index as u64).to_le_bytes());
            out.extend_from_slice(cut(parameter).as_bytes());
            Kind::NonFinite
        }
        Error::Aborted { reason, .. } => {
            out.extend_from_slice(cut(reason).as_bytes());
            Kind::Abort
        }
        other => {
            out.extend_from_slice(cut(&other.to_string()).as_bytes());
            Kind::Abort
        }
    };
    open.close(kind, out);
}

/// As much of a text as travels with a refusal.
pub(crate) fn cut(text: &str) -> &str {
    let end = (0..=text.len().min(TEXT_BYTES)).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT_BYTES)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header =
        Header { kind: Kind::Dense, rank: 2, world_size: 4, step: 77, bucket: 5 };

    #[test]
    fn refusals_arrive_as_the_senders_own_error() {
        let received = |error: &Error| {
            let mut bytes = Vec::new();
            write(HEADER, error, &mut bytes);
            Frame::expect(&mut Reader::new(&bytes), HEADER, 0).unwrap_err()
        };
        let (corrected, parameter) = (true, "fc.weight".to_string());
        let non_finite = Error::NonFinite { rank: 2, step: 77, corrected, parameter, index: 12 };
        assert_eq!(received(&non_finite), non_finite);
        let aborted = |reason: String| Error::Aborted { rank: 2, step: 77, reason };
        assert_eq!(received(&aborted("é".repeat(TEXT_BYTES))), aborted("é".repeat(TEXT_BYTES / 2)));
        let other = Error::world_size(0);
        assert_eq!(received(&other), aborted(other.to_string()));
    }
}
