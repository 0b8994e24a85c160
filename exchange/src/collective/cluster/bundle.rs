//! What one process sends another about a round: the messages of all its ranks, together.
//!
//! | bytes | |
//! |---|---|
//! | 0 | what it is: a round's messages, a server's answer, a loss |
//! | 1–24 | the [`Notes`](super::Notes), 8 bytes each |
//! | then, of a round | the number of ranks (2 bytes); of each rank how its message is meant (1), into how many parts it is divided (2), each part's length (8) |
//! | then | all parts, end to end |
//!
//! A loss goes on with why (1) and the rank (4).

use std::sync::Arc;

use super::{Broken, NOTES};
use crate::collective::Payload;
use crate::wire::Fault;

const ROUND: u8 = 1;
const ANSWER: u8 = 2;
const GONE: u8 = 3;
const BROKEN: u8 = 4;

const ALL: u8 = 1;
const EACH: u8 = 2;
const ASK: u8 = 3;

const LOST: u8 = 1;
const SILENT: u8 = 2;

/// What one rank says in a round.
#[derive(Debug, Clone)]
pub(super) enum Said {
    /// A message for every rank.
    All(Payload),
    /// One for each rank, in order of rank; in a parcel, for each rank of the process it goes to.
    Each(Vec<Payload>),
    /// A message for the server.
    Ask(Payload),
}

/// What one process tells another about rounds.
#[derive(Debug)]
pub(super) enum Parcel {
    /// Its ranks' part in a round, in order of rank; from a server, everybody's.
    Round(Vec<Said>),
    /// The server's answer.
    Answer(Payload),
    /// A rank of it is gone.
    Gone(usize),
    /// The round cannot be completed.
    Broken(Broken),
}

impl Parcel {
    /// As bytes.
    pub(super) fn write(&self, notes: [u64; NOTES]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 + self.length());
        bytes.push(match self {
            Parcel::Round(_) => ROUND,
            Parcel::Answer(_) => ANSWER,
            Parcel::Gone(_) => GONE,
            Parcel::Broken(_) => BROKEN,
        });
        notes.iter().for_each(|note| bytes.extend_from_slice(&note.to_le_bytes()));
        match self {
            Parcel::Round(said) => {
                // A world has at most 65,535 ranks.
                bytes.extend_from_slice(&(said.len() as u16).to_le_bytes());
                for said in said {
                    let (kind, parts) = said.parts();
                    bytes.push(kind);
                    bytes.extend_from_slice(&(parts.len() as u16).to_le_bytes());
                    for part in parts {
                        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
                    }
                }
                for part in said.iter().flat_map(|said| said.parts().1) {
                    bytes.extend_from_slice(part);
                }
            }
            Parcel::Answer(answer) => bytes.extend_from_slice(answer),
            Parcel::Gone(rank) => bytes.extend_from_slice(&(*rank as u32).to_le_bytes()),
            Parcel::Broken(broken) => {
                let (why, rank) = match broken {
                    Broken::Lost(rank) => (LOST, *rank),
                    Broken::Silent(rank) | Broken::Garbled(rank, _) => (SILENT, *rank),
                };
                bytes.push(why);
                bytes.extend_from_slice(&(rank as u32).to_le_bytes());
            }
        }
        bytes
    }

    /// From bytes, which the messages go on sharing; nothing is allocated that they do not hold.
    ///
    /// # Errors
    /// When they are not what [`write`](Self::write) wrote.
    pub(super) fn read(bytes: Vec<u8>) -> Result<([u64; NOTES], Self), Fault> {
        let bytes = Arc::new(bytes);
        let mut rest = &bytes[..];
        let [kind] = take(&mut rest)?;
        let mut notes = [0; NOTES];
        for note in &mut notes {
            *note = u64::from_le_bytes(take(&mut rest)?);
        }
        let parcel = match kind {
            ROUND => Parcel::Round(read_round(&bytes, &mut rest)?),
            ANSWER => {
                let length = rest.len() as u64;
                Parcel::Answer(cut(&bytes, &mut rest, length)?)
            }
            GONE => Parcel::Gone(u32::from_le_bytes(take(&mut rest)?) as usize),
            BROKEN => {
                let [why] = take(&mut rest)?;
                let rank = u32::from_le_bytes(take(&mut rest)?) as usize;
                match why {
                    LOST => Parcel::Broken(Broken::Lost(rank)),
                    SILENT => Parcel::Broken(Broken::Silent(rank)),
                    found => return Err(field("why", found)),
                }
            }
            found => return Err(field("parcel", found)),
        };
        if rest.is_empty() {
            Ok((notes, parcel))
        } else {
            Err(Fault::Trailing { left: rest.len() })
        }
    }

    fn length(&self) -> usize {
        match self {
            Parcel::Round(said) => {
                let parts = said.iter().flat_map(|said| said.parts().1);
                parts.map(|part| part.len() + 11).sum()
            }
            Parcel::Answer(answer) => answer.len(),
            Parcel::Gone(_) | Parcel::Broken(_) => 0,
        }
    }
}

impl Said {
    fn parts(&self) -> (u8, &[Payload]) {
        match self {
            Said::All(message) => (ALL, std::slice::from_ref(message)),
            Said::Each(messages) => (EACH, messages),
            Said::Ask(message) => (ASK, std::slice::from_ref(message)),
        }
    }

    /// What a process is told whose ranks are these.
    pub(super) fn for_ranks(&self, ranks: std::ops::Range<usize>) -> Self {
        match self {
            Said::Each(messages) => Said::Each(messages[ranks].to_vec()),
            other => other.clone(),
        }
    }
}

fn read_round(bytes: &Arc<Vec<u8>>, rest: &mut &[u8]) -> Result<Vec<Said>, Fault> {
    let count = usize::from(u16::from_le_bytes(take(rest)?));
    let mut lengths = Vec::new();
    for _ in 0..count {
        let [kind] = take(rest)?;
        let parts = usize::from(u16::from_le_bytes(take(rest)?));
        if !matches!((kind, parts), (ALL | ASK, 1) | (EACH, _)) {
            return Err(field("message", kind));
        }
        let of_rank = (0..parts).map(|_| Ok(u64::from_le_bytes(take(rest)?)));
        lengths.push((kind, of_rank.collect::<Result<Vec<u64>, Fault>>()?));
    }
    let mut said = Vec::with_capacity(lengths.len());
    for (kind, lengths) in lengths {
        let mut parts = Vec::with_capacity(lengths.len());
        for length in lengths {
            parts.push(cut(bytes, rest, length)?);
        }
        said.push(match (kind, parts.pop()) {
            (ALL, Some(message)) => Said::All(message),
            (ASK, Some(message)) => Said::Ask(message),
            (_, last) => Said::Each(parts.into_iter().chain(last).collect()),
        });
    }
    Ok(said)
}

/// The next `length` bytes of the `rest` of a buffer.
fn cut(bytes: &Arc<Vec<u8>>, rest: &mut &[u8], length: u64) -> Result<Payload, Fault> {
    let left = rest.len();
    let needed = usize::try_from(length).unwrap_or(usize::MAX);
    let (_, after) = rest.split_at_checked(needed).ok_or(Fault::Truncated { needed, left })?;
    let start = bytes.len() - left;
    *rest = after;
    Ok(Payload::within(bytes, start..start + needed))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Fault> {
    let (first, after) =
        rest.split_first_chunk().ok_or(Fault::Truncated { needed: N, left: rest.len() })?;
    *rest = after;
    Ok(*first)
}

fn field(field: &'static str, found: u8) -> Fault {
    Fault::Field { field, found: found.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(bytes: &[u8]) -> Payload {
        Payload::from(bytes.to_vec())
    }

    fn parcels() -> Vec<Parcel> {
        let each = vec![payload(b"x"), payload(b""), payload(b"yz")];
        vec![
            Parcel::Round(vec![Said::All(payload(b"abc")), Said::Ask(payload(b""))]),
            Parcel::Round(vec![Said::Each(each), Said::Each(vec![]), Said::All(payload(b"q"))]),
            Parcel::Answer(payload(b"mean")),
            Parcel::Gone(7),
            Parcel::Broken(Broken::Silent(65_000)),
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        for parcel in parcels() {
            let bytes = parcel.write([1, u64::MAX, 3]);
            let (notes, read) = Parcel::read(bytes.clone()).unwrap();
            assert_eq!(notes, [1, u64::MAX, 3]);
            assert_eq!(read.write(notes), bytes);
            assert_eq!(format!("{read:?}"), format!("{parcel:?}"));
        }
    }

    #[test]
    fn anything_else_is_an_error() {
        for parcel in parcels() {
            let bytes = parcel.write([0; NOTES]);
            let open = matches!(parcel, Parcel::Answer(_));
            for end in 0..bytes.len() {
                assert!(open && end >= 25 || Parcel::read(bytes[..end].to_vec()).is_err());
            }
            assert!(open || Parcel::read([&bytes[..], b"!"].concat()).is_err());
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut damaged = bytes.clone();
                    damaged[at] ^= 1 << bit;
                    // Whatever comes of it: no panic, and no more memory than there are bytes.
                    let _ = Parcel::read(damaged);
                }
            }
        }
    }
}
