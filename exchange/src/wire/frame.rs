//! Frames: a payload behind a header. A message is one or more frames.
//!
//! | bytes | field |
//! |---|---|
//! | 0–1 | `GW` |
//! | 2 | version, 2 |
//! | 3 | kind |
//! | 4–5 | sender's rank |
//! | 6–7 | world size |
//! | 8–11 | step modulo 2³², 0 outside of training steps |
//! | 12–14 | bucket |
//! | 15 | round of the step, for a bucket that is reduced in several; else 0 |
//! | 16–19 | length of the payload that follows, in bytes |
//! | 20–23 | CRC-32 (IEEE 802.3, as in zlib) of the bytes before and of the payload |
//!
//! Without the checksum a flipped bit in a value would be trained on, by all ranks alike.
//!
//! A rank sends one or more frames end to end: one for each bucket of its gradient, or one alone.

use std::fmt;

use crc32fast::Hasher;

use super::{Fault, Read, Reader};

const MAGIC: [u8; 2] = *b"GW";

/// The version of the frame that this build writes, and the only one it reads.
pub const VERSION: u8 = 2;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 24;

/// Where the checksum stands in a header, and the length before it.
const CHECKSUM_AT: usize = 20;
const LENGTH_AT: usize = 16;

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// One bucket's gradient in the scheme's own form.
    Compressed = 1,
    /// One bucket's gradient as f32.
    Dense = 2,
    /// Instead of a gradient or of a part of the mean: it is not finite.
    NonFinite = 3,
    /// Instead of anything: the sender gives up the step, and says why.
    Abort = 4,
    /// A barrier; no payload.
    Barrier = 5,
    /// The root's bytes, or nothing from the others.
    Broadcast = 6,
    /// f64 summands.
    Sum = 7,
    /// One rank's f32 values, to be averaged outside of the exchange's messages.
    Mean = 8,
    /// u64 values that should be equal on every rank.
    Comparison = 9,
    /// A part of the mean of one bucket, from the rank that averaged it, as f32.
    Shard = 10,
    /// The mean of one bucket from a server, whose rank is the world size
    /// ([`wire::downlink`](super::downlink)).
    Downlink = 11,
    /// f32 values that a reducer wants averaged.
    Values = 12,
    /// Bytes of a reducer for all ranks.
    Bytes = 13,
}

impl Kind {
    const ALL: [Kind; 13] = [
        Kind::Compressed,
        Kind::Dense,
        Kind::NonFinite,
        Kind::Abort,
        Kind::Barrier,
        Kind::Broadcast,
        Kind::Sum,
        Kind::Mean,
        Kind::Comparison,
        Kind::Shard,
        Kind::Downlink,
        Kind::Values,
        Kind::Bytes,
    ];

    fn from_byte(byte: u8) -> Read<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == byte).ok_or(Fault::Kind { found: byte })
    }

    /// Whether two frames may stand in the same place: a gradient is a gradient in either form.
    fn stands_for(self, other: Kind) -> bool {
        let gradient = |kind| matches!(kind, Kind::Compressed | Kind::Dense);
        self == other || (gradient(self) && gradient(other))
    }
}

/// Who sent a frame, for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    /// What the frame carries.
    pub kind: Kind,
    /// The sender.
    pub rank: u16,
    /// The number of ranks, as the sender knows it.
    pub world_size: u16,
    /// The training step, or 0. Only its low 32 bits travel.
    pub step: u64,
    /// The bucket in the lower 24 bits, and the round of the step in the upper 8; or 0.
    pub bucket: u32,
}

/// Buckets that a frame can tell apart.
pub const MAX_BUCKETS: usize = 1 << 24;

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Header { kind, rank, world_size, step, bucket } = self;
        let (bucket, round) = (bucket % MAX_BUCKETS as u32, bucket >> 24);
        let what = match kind {
            Kind::Compressed | Kind::Dense => {
                return write!(
                    f,
                    "the gradient of step {step}, bucket {bucket}, from rank {rank} of {world_size}"
                );
            }
            Kind::Values | Kind::Bytes => {
                let what = if *kind == Kind::Values { "values" } else { "bytes" };
                return write!(
                    f,
                    "{what} of step {step}, bucket {bucket}, round {round}, from rank {rank} of \
                     {world_size}"
                );
            }
            Kind::NonFinite => "a non-finite gradient",
            Kind::Abort => "an abort",
            Kind::Barrier => "a barrier",
            Kind::Broadcast => "a broadcast",
            Kind::Sum => "a sum",
            Kind::Mean => "a mean",
            Kind::Comparison => "a comparison",
            Kind::Shard => "a part of the mean",
            Kind::Downlink => "a server's mean",
        };
        write!(f, "{what} from rank {rank} of {world_size}")
    }
}

impl Header {
    /// Appends the header, for a payload that is not written yet; [`Open::close`] settles it.
    #[must_use]
    pub fn open(&self, out: &mut Vec<u8>) -> Open {
        let at = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        let Header { kind, rank, world_size, step, bucket } = self;
        let header = &mut out[at..];
        header[..2].copy_from_slice(&MAGIC);
        header[2..4].copy_from_slice(&[VERSION, *kind as u8]);
        header[4..6].copy_from_slice(&rank.to_le_bytes());
        header[6..8].copy_from_slice(&world_size.to_le_bytes());
        header[8..12].copy_from_slice(&low(*step).to_le_bytes());
        header[12..LENGTH_AT].copy_from_slice(&bucket.to_le_bytes());
        Open { at }
    }

    /// Appends a whole frame.
    pub fn write(&self, payload: &[u8], out: &mut Vec<u8>) {
        let open = self.open(out);
        out.extend_from_slice(payload);
        open.close(self.kind, out);
    }

    /// This header in a round of the step.
    #[must_use]
    pub fn in_round(mut self, round: u8) -> Header {
        self.bucket = (self.bucket % MAX_BUCKETS as u32) | (u32::from(round) << 24);
        self
    }

    /// The bucket, and the round of the step.
    pub fn place(&self) -> (usize, u8) {
        (self.bucket as usize % MAX_BUCKETS, (self.bucket >> 24) as u8)
    }

    /// Whether this header is the one that was awaited, as far as it travels.
    pub(crate) fn answers(self, awaited: Header) -> bool {
        let alike = Header { kind: self.kind, step: low(awaited.step).into(), ..awaited };
        self == alike && self.kind.stands_for(awaited.kind)
    }

    /// This header as another rank would send it.
    #[must_use]
    pub fn from_rank(mut self, rank: usize) -> Header {
        self.rank = rank as u16;
        self
    }
}

/// A frame whose payload is being written.
#[derive(Debug)]
pub struct Open {
    at: usize,
}

impl Open {
    /// Where the payload begins.
    pub fn payload_at(&self) -> usize {
        self.at + HEADER_BYTES
    }

    /// Settles the kind, and the length and checksum of the payload, which is everything written
    /// since.
    ///
    /// # Panics
    /// When the payload has 4 GiB or more; buckets are limited so that none has.
    pub fn close(self, kind: Kind, out: &mut [u8]) {
        let payload = checksum(&out[self.payload_at()..]);
        self.close_with(kind, &payload, out);
    }

    /// The same, of a payload whose checksum is known.
    ///
    /// # Panics
    /// As [`close`](Self::close).
    pub fn close_with(self, kind: Kind, payload: &Hasher, out: &mut [u8]) {
        let length = u32::try_from(out.len() - self.payload_at())
            .expect("invariant: a bucket's message is shorter than 4 GiB");
        let header = &mut out[self.at..self.payload_at()];
        header[3] = kind as u8;
        header[LENGTH_AT..CHECKSUM_AT].copy_from_slice(&length.to_le_bytes());
        let mut whole = checksum(&header[..CHECKSUM_AT]);
        whole.combine(payload);
        header[CHECKSUM_AT..].copy_from_slice(&whole.finalize().to_le_bytes());
    }
}

/// The checksum of these bytes, to which more can be added.
pub(super) fn checksum(bytes: &[u8]) -> Hasher {
    let mut checksum = Hasher::new();
    checksum.update(bytes);
    checksum
}

/// The part of a step's number that travels.
fn low(step: u64) -> u32 {
    step as u32
}

/// A frame whose checksum has not been looked at.
#[derive(Debug, Clone, Copy)]
pub struct Unchecked<'a> {
    /// The frame, if its checksum is right.
    pub frame: Frame<'a>,
    header: &'a [u8],
    written: u32,
}

impl<'a> Unchecked<'a> {
    /// Looks at the checksum.
    pub fn check(self) -> Read<Frame<'a>> {
        self.check_while(usize::MAX, |_| ())
    }

    /// Looks at the checksum and, in the same pass, gives the payload to `use_it` in parts of `bytes` bytes. If this fails, the
    /// caller must discard what `use_it` did.
    pub fn check_while(self, bytes: usize, mut use_it: impl FnMut(&'a [u8])) -> Read<Frame<'a>> {
        let mut checksum = checksum(self.header);
        for part in self.frame.payload.chunks(bytes) {
            checksum.update(part);
            use_it(part);
        }
        let (written, found) = (self.written, checksum.finalize());
        if found == written { Ok(self.frame) } else { Err(Fault::Checksum { written, found }) }
    }
}

/// One received frame.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// Who sent it, for what.
    pub header: Header,
    /// What it carries.
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Reads the next frame.
    pub fn read(reader: &mut Reader<'a>) -> Read<Frame<'a>> {
        Frame::split(reader)?.check()
    }

    /// The next frame, without looking at its checksum: for messages that somebody checks, or has
    /// checked.
    pub fn split(reader: &mut Reader<'a>) -> Read<Unchecked<'a>> {
        let bytes = reader.rest();
        let magic = reader.u16()?.to_le_bytes();
        if magic != MAGIC {
            return Err(Fault::Magic { found: magic });
        }
        let version = reader.u8()?;
        if version != VERSION {
            return Err(Fault::Version { found: version });
        }
        let header = Header {
            kind: Kind::from_byte(reader.u8()?)?,
            rank: reader.u16()?,
            world_size: reader.u16()?,
            step: reader.u32()?.into(),
            bucket: reader.u32()?,
        };
        let length = reader.u32()?;
        let written = reader.u32()?;
        let payload = reader.take(length as usize)?;
        Ok(Unchecked { frame: Frame { header, payload }, header: &bytes[..CHECKSUM_AT], written })
    }

    /// The payload, if it is a gradient in a scheme's own form.
    pub fn compressed(&self) -> Option<&'a [u8]> {
        (self.header.kind == Kind::Compressed).then_some(self.payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    const HEADER: Header =
        Header { kind: Kind::Dense, rank: 2, world_size: 4, step: 77, bucket: 5 };

    fn framed(header: Header, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        header.write(payload, &mut bytes);
        bytes
    }

    #[test]
    fn frames_lie_end_to_end_and_come_back() {
        let mut bytes = framed(HEADER, b"first");
        HEADER.from_rank(3).write(b"", &mut bytes);
        assert_eq!(bytes.len(), 2 * HEADER_BYTES + 5);
        let mut reader = Reader::new(&bytes);
        let first = Frame::expect(&mut reader, HEADER, 0).unwrap();
        assert_eq!((first.header, first.payload), (HEADER, b"first".as_slice()));
        assert_eq!(Frame::read(&mut reader).unwrap().header.rank, 3);
        reader.finish().unwrap();
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        // The checksum is that of Python's zlib.crc32.
        let bytes = framed(HEADER, &[9]);
        let (header, rest) = bytes.split_at(CHECKSUM_AT);
        assert_eq!(header, [b'G', b'W', 2, 2, 2, 0, 4, 0, 77, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(rest, [218, 30, 210, 51, 9]);
    }

    #[test]
    fn any_flipped_bit_is_found() {
        let whole = framed(HEADER, &[7; 40]);
        for bit in 0..8 * whole.len() {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Frame::read(&mut Reader::new(&flipped)).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_frame_than_the_awaited_is_named_with_both() {
        let others = [
            Header { step: 78, ..HEADER },
            Header { bucket: 6, ..HEADER },
            Header { rank: 1, ..HEADER },
            Header { world_size: 5, ..HEADER },
            Header { kind: Kind::Sum, ..HEADER },
            Header { kind: Kind::Abort, world_size: 5, ..HEADER },
        ];
        for found in others {
            let bytes = framed(found, b"");
            let error = Frame::expect(&mut Reader::new(&bytes), HEADER, 0).unwrap_err();
            assert_eq!(error, Error::OutOfStep { by: 0, expected: HEADER, found });
        }
        let compressed = framed(Header { kind: Kind::Compressed, ..HEADER }, b"");
        assert!(Frame::expect(&mut Reader::new(&compressed), HEADER, 0).is_ok());
    }

    #[test]
    fn every_broken_header_is_refused() {
        let whole = framed(HEADER, b"payload");
        for cut in 0..whole.len() {
            assert!(Frame::read(&mut Reader::new(&whole[..cut])).is_err(), "cut at {cut}");
        }
        for (at, value) in [(0, b'X'), (2, 9), (3, 0), (3, 99), (20, 8)] {
            let mut broken = whole.clone();
            broken[at] = value;
            assert!(Frame::read(&mut Reader::new(&broken)).is_err(), "byte {at} = {value}");
        }
    }
}
