//! What one process sends another in a round.
//!
//! | bytes | |
//! |---|---|
//! | any number | the content |
//! | 24 | the [`Notes`](super::Notes), 8 bytes each |
//! | 1 | the kind: a message, a message that asks the server, the server's answer, the messages of all ranks, the end of a rank |
//!
//! The content stands first, so that a message is sent where it lies. Messages of all ranks lie end
//! to end, followed by the length of each (8 bytes) and their number (2). The end of a rank is why
//! (1), the rank (4), and what is wrong with its bytes (two numbers of 8).

use std::sync::Arc;

use super::NOTES;
use crate::collective::Payload;
use crate::collective::mesh::Missing;
use crate::wire::Fault;

const MESSAGE: u8 = 1;
const QUESTION: u8 = 2;
const ANSWER: u8 = 3;
const ALL: u8 = 4;
const END: u8 = 5;

const GONE: u8 = 1;
const SILENT: u8 = 2;
const TRUNCATED: u8 = 3;
const FIELD: u8 = 4;

/// What one process tells another in a round.
#[derive(Debug)]
pub(super) enum Packet {
    /// A rank's message; whether it asks the server for an answer.
    Message { payload: Payload, asks: bool },
    /// The server's answer.
    Answer(Payload),
    /// From the server: everybody's messages, in order of rank.
    All(Vec<Payload>),
    /// The sender sends nothing more.
    End(Missing),
}

/// The numbers that travel along.
pub(super) type Numbers = [u64; NOTES];

/// Makes a message a packet: the packet, and the message in it.
pub(super) fn message(message: Vec<u8>, asks: bool, notes: Numbers) -> (Arc<Vec<u8>>, Payload) {
    seal(message, if asks { QUESTION } else { MESSAGE }, notes)
}

/// Makes a server's answer a packet: the packet, and the answer in it.
pub(super) fn answer(answer: Vec<u8>, notes: Numbers) -> (Arc<Vec<u8>>, Payload) {
    seal(answer, ANSWER, notes)
}

/// A packet of everybody's messages.
pub(super) fn all(messages: &[Payload], notes: Numbers) -> Arc<Vec<u8>> {
    let mut bytes: Vec<u8> = messages.iter().flat_map(|message| message.iter().copied()).collect();
    for message in messages {
        bytes.extend_from_slice(&(message.len() as u64).to_le_bytes());
    }
    // A world has at most 65,535 ranks.
    bytes.extend_from_slice(&(messages.len() as u16).to_le_bytes());
    seal(bytes, ALL, notes).0
}

/// A packet that tells why its sender sends nothing more.
pub(super) fn end(why: Missing, notes: Numbers) -> Arc<Vec<u8>> {
    let (kind, rank, numbers) = match why {
        Missing::Gone(rank) => (GONE, rank, [0, 0]),
        Missing::Silent(rank) => (SILENT, rank, [0, 0]),
        Missing::Unreadable(rank, Fault::Truncated { needed, left }) => {
            (TRUNCATED, rank, [needed as u64, left as u64])
        }
        Missing::Unreadable(rank, Fault::Field { found, .. }) => (FIELD, rank, [found, 0]),
        Missing::Unreadable(rank, _) => (FIELD, rank, [0, 0]),
    };
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&(rank as u32).to_le_bytes());
    numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    seal(bytes, END, notes).0
}

fn seal(mut bytes: Vec<u8>, kind: u8, notes: Numbers) -> (Arc<Vec<u8>>, Payload) {
    let length = bytes.len();
    bytes.reserve_exact(8 * NOTES + 1);
    notes.iter().for_each(|note| bytes.extend_from_slice(&note.to_le_bytes()));
    bytes.push(kind);
    let bytes = Arc::new(bytes);
    let content = Payload::within(&bytes, 0..length);
    (bytes, content)
}

/// Reads a packet, whose bytes the messages go on sharing; nothing is allocated that they do not hold.
pub(super) fn read(bytes: &Arc<Vec<u8>>) -> Result<(Numbers, Packet), Fault> {
    let mut rest = &bytes[..];
    let [kind] = take(&mut rest)?;
    let notes: [[u8; 8]; NOTES] = [take(&mut rest)?, take(&mut rest)?, take(&mut rest)?];
    // The last comes first.
    let [third, second, first] = notes.map(u64::from_le_bytes);
    let content = Payload::within(bytes, 0..rest.len());
    let packet = match kind {
        MESSAGE | QUESTION => Packet::Message { payload: content, asks: kind == QUESTION },
        ANSWER => Packet::Answer(content),
        ALL => Packet::All(read_all(bytes, rest)?),
        END => Packet::End(read_end(rest)?),
        found => return Err(field(found.into())),
    };
    Ok(([first, second, third], packet))
}

fn read_all(bytes: &Arc<Vec<u8>>, mut rest: &[u8]) -> Result<Vec<Payload>, Fault> {
    let count = usize::from(u16::from_le_bytes(take(&mut rest)?));
    let mut messages = Vec::new();
    let mut end = rest.len().saturating_sub(8 * count);
    for _ in 0..count {
        let length = u64::from_le_bytes(take(&mut rest)?);
        let start = usize::try_from(length).ok().and_then(|length| end.checked_sub(length));
        let start = start.ok_or(field(length))?;
        messages.push(Payload::within(bytes, start..end));
        end = start;
    }
    messages.reverse();
    if end == 0 { Ok(messages) } else { Err(field(end as u64)) }
}

fn read_end(mut rest: &[u8]) -> Result<Missing, Fault> {
    let [second, first] = [take(&mut rest)?, take(&mut rest)?].map(u64::from_le_bytes);
    let rank = u32::from_le_bytes(take(&mut rest)?) as usize;
    let [kind] = take(&mut rest)?;
    let (needed, left) = (first as usize, second as usize);
    match kind {
        _ if !rest.is_empty() => Err(field(rest.len() as u64)),
        GONE => Ok(Missing::Gone(rank)),
        SILENT => Ok(Missing::Silent(rank)),
        TRUNCATED => Ok(Missing::Unreadable(rank, Fault::Truncated { needed, left })),
        FIELD => Ok(Missing::Unreadable(rank, field(first))),
        found => Err(field(found.into())),
    }
}

/// Takes the last bytes.
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Fault> {
    let (before, last) =
        rest.split_last_chunk().ok_or(Fault::Truncated { needed: N, left: rest.len() })?;
    *rest = before;
    Ok(*last)
}

pub(super) fn field(found: u64) -> Fault {
    Fault::Field { field: "packet", found }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: Numbers = [1, u64::MAX, 3];

    fn payload(bytes: &[u8]) -> Payload {
        Payload::from(bytes.to_vec())
    }

    fn packets() -> Vec<Arc<Vec<u8>>> {
        let messages = [payload(b"abc"), payload(b""), payload(b"yz")];
        let faults = [Fault::Truncated { needed: 8, left: 3 }, field(77)];
        let mut packets = vec![
            message(b"abc".to_vec(), false, NUMBERS).0,
            message(Vec::new(), true, NUMBERS).0,
            answer(b"mean".to_vec(), NUMBERS).0,
            all(&messages, NUMBERS),
            end(Missing::Gone(7), NUMBERS),
            end(Missing::Silent(65_000), NUMBERS),
        ];
        packets.extend(faults.map(|fault| end(Missing::Unreadable(2, fault), NUMBERS)));
        packets
    }

    #[test]
    fn what_is_written_is_read() {
        for bytes in packets() {
            let (numbers, packet) = read(&bytes).unwrap();
            assert_eq!(numbers, NUMBERS);
            let again = match packet {
                Packet::Message { payload, asks } => message(payload.to_vec(), asks, NUMBERS).0,
                Packet::Answer(bytes) => answer(bytes.to_vec(), NUMBERS).0,
                Packet::All(messages) => all(&messages, NUMBERS),
                Packet::End(why) => end(why, NUMBERS),
            };
            assert_eq!(again, bytes);
        }
    }

    #[test]
    fn anything_else_is_an_error() {
        for bytes in packets() {
            for start in bytes.len() - 24..=bytes.len() {
                assert!(read(&Arc::new(bytes[start..].to_vec())).is_err());
            }
            let bounded = bytes.ends_with(&[ALL]) || bytes.ends_with(&[END]);
            let longer = read(&Arc::new([b"!", &bytes[..]].concat()));
            assert_eq!(longer.is_err(), bounded);
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut damaged = bytes.to_vec();
                    damaged[at] ^= 1 << bit;
                    // Whatever comes of it: no panic, and no more memory than there are bytes.
                    let _ = read(&Arc::new(damaged));
                }
            }
        }
    }
}
