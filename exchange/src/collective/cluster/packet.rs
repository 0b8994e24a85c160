//! What one process sends another in a round.
//!
//! | bytes | |
//! |---|---|
//! | any number | the content |
//! | 24 | the [`Notes`](super::Notes), 8 bytes each |
//! | 1 | the kind: a message, or the end of a rank |
//!
//! The content stands first, so that a message is sent where it lies. The end of a rank is why
//! (1), the rank (4), and what is wrong with its bytes (two numbers of 8).

use std::sync::Arc;

use super::NOTES;
use crate::collective::Payload;
use crate::collective::mesh::Missing;
use crate::wire::Fault;

const MESSAGE: u8 = 1;
const END: u8 = 2;

const GONE: u8 = 1;
const SILENT: u8 = 2;
const TRUNCATED: u8 = 3;
const FIELD: u8 = 4;

/// What one process tells another in a round.
#[derive(Debug)]
pub(super) enum Packet {
    /// A rank's message.
    Message(Payload),
    /// The sender sends nothing more.
    End(Missing),
}

/// The numbers that travel along.
pub(super) type Numbers = [u64; NOTES];

/// Makes a message a packet: the packet, and the message in it.
pub(super) fn message(message: Vec<u8>, notes: Numbers) -> (Arc<Vec<u8>>, Payload) {
    seal(message, MESSAGE, notes)
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
        MESSAGE => Packet::Message(content),
        END => Packet::End(read_end(rest)?),
        found => return Err(field(found.into())),
    };
    Ok(([first, second, third], packet))
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

fn field(found: u64) -> Fault {
    Fault::Field { field: "packet", found }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: Numbers = [1, u64::MAX, 3];

    fn packets() -> Vec<Arc<Vec<u8>>> {
        let faults = [Fault::Truncated { needed: 8, left: 3 }, field(77)];
        let faults = faults.map(|fault| Missing::Unreadable(2, fault));
        let ends = [Missing::Gone(7), Missing::Silent(65_000)].into_iter().chain(faults);
        let messages = [b"abc".to_vec(), Vec::new()].map(|bytes| message(bytes, NUMBERS).0);
        messages.into_iter().chain(ends.map(|why| end(why, NUMBERS))).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        for bytes in packets() {
            let (numbers, packet) = read(&bytes).unwrap();
            assert_eq!(numbers, NUMBERS);
            let again = match packet {
                Packet::Message(payload) => message(payload.to_vec(), NUMBERS).0,
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
            let longer = read(&Arc::new([b"!", &bytes[..]].concat()));
            assert_eq!(longer.is_err(), bytes.ends_with(&[END]));
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
