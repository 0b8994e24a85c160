//! Reading what ranks sent about a group of buckets: frames in their places, refusals, the mean.

mod plain;

use std::ops::Range;

use self::plain::Plain;
use crate::bucket::Bucket;
use crate::collective::Payload;
use crate::compress::{Compressor, dense::Dense};
use crate::error::Awaited;
use crate::wire::downlink::Downlink;
use crate::wire::frame::Unchecked;
use crate::wire::{Frame, Header, Kind, Read, Reader, floats};
use crate::{Error, Result, Support};

/// Who reads, and which step it is at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The rank that reads.
    pub(crate) rank: usize,
    /// The number of ranks.
    pub(crate) world_size: usize,
    /// The step.
    pub(crate) step: u64,
}

impl Place {
    /// The header of a frame that this rank writes.
    pub(crate) fn header(&self, kind: Kind, bucket: usize) -> Header {
        let (rank, world_size) = (self.rank as u16, self.world_size as u16);
        Header { kind, rank, world_size, step: self.step, bucket: bucket as u32 }
    }

    /// What this rank waits for.
    pub(crate) fn awaited(&self) -> Awaited {
        Awaited::Gradient { step: self.step }
    }

    /// The frames of all messages about the buckets of a group, by rank and then in the group's
    /// order, each checked to be whole and in its place.
    ///
    /// # Errors
    /// The error of the lowest rank that refused; [`Error::OutOfStep`]; [`Error::Message`].
    pub(crate) fn open<'a>(
        &self,
        group: &[usize],
        messages: &'a [Payload],
    ) -> Result<Vec<Frame<'a>>> {
        self.check_all(group, &self.split(group, messages)?)
    }

    /// The same without looking at checksums: for messages of which others check some, or that
    /// have been opened before. Whatever is wrong here is wrong on every rank.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn skim<'a>(
        &self,
        group: &[usize],
        messages: &'a [Payload],
    ) -> Result<Vec<Frame<'a>>> {
        let frames = self.split(group, messages)?;
        Ok(frames.into_iter().map(|unchecked| unchecked.frame).collect())
    }

    /// What [`split`](Self::split) has split, checked.
    ///
    /// # Errors
    /// [`Error::Message`].
    pub(crate) fn check_all<'a>(
        &self,
        group: &[usize],
        frames: &[Unchecked<'a>],
    ) -> Result<Vec<Frame<'a>>> {
        let check = |(index, unchecked): (usize, &Unchecked<'a>)| {
            let blame = |error: Error| error.sent_by(index / group.len(), self.awaited());
            unchecked.check().map_err(Error::from).map_err(blame)
        };
        frames.iter().enumerate().map(check).collect()
    }

    /// As [`skim`](Self::skim), with what the checksums can be checked by.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn split<'a>(
        &self,
        group: &[usize],
        messages: &'a [Payload],
    ) -> Result<Vec<Unchecked<'a>>> {
        if let Some(refusal) = first_refusal(messages) {
            return Err(refusal);
        }
        let mut frames = Vec::with_capacity(messages.len() * group.len());
        for (from, message) in messages.iter().enumerate() {
            let blame = |error: Error| error.sent_by(from, self.awaited());
            let mut reader = Reader::new(message);
            for bucket in group {
                let expected = self.header(Kind::Dense, *bucket).from_rank(from);
                let unchecked = Frame::split(&mut reader).map_err(Error::from).map_err(blame)?;
                if let Err(error) = unchecked.frame.awaited(expected, self.rank) {
                    // A damaged header tells of a frame that nobody sent.
                    unchecked.check().map_err(Error::from).map_err(blame)?;
                    return Err(blame(error));
                }
                frames.push(unchecked);
            }
            reader.finish().map_err(Error::from).map_err(blame)?;
        }
        Ok(frames)
    }

    /// Looks at the checksums of the message of rank `from`.
    ///
    /// # Errors
    /// [`Error::Message`].
    pub(crate) fn check(&self, from: usize, message: &[u8]) -> Result<()> {
        let mut reader = Reader::new(message);
        while !reader.rest().is_empty() {
            Frame::read(&mut reader)
                .map_err(Error::from)
                .map_err(|error| error.sent_by(from, self.awaited()))?;
        }
        Ok(())
    }

    /// Overwrites a group's elements of `gradient` by the mean of what the frames say, each bucket
    /// at its place in `buckets`. When a bucket's mean is not finite: its number and the element.
    /// `encoded` tells that the gradient is what this rank has encoded, unless its frame is plain.
    ///
    /// # Errors
    /// [`Error::Message`], [`Error::OutOfStep`].
    pub(crate) fn average(
        &self,
        buckets: &mut [Bucket],
        group: &[usize],
        frames: &[Frame<'_>],
        gradient: &mut [f32],
        encoded: bool,
    ) -> Result<Option<(usize, usize)>> {
        for (index, number) in group.iter().enumerate() {
            let of_ranks = frames[index..].iter().step_by(group.len());
            let bucket = &mut buckets[*number];
            let mut spoken_of = std::mem::take(&mut bucket.spoken_of);
            let compressed = |frame: &Frame<'_>| frame.header.kind == Kind::Compressed;
            let sparse = encoded && of_ranks.clone().all(compressed);
            let averaged = bucket.change(gradient, |mean, compressor| {
                let length = mean.len();
                let by_blocks =
                    compressor.filter(|decoder| sparse && decoder.by_blocks().is_some());
                let finite = match by_blocks {
                    Some(decoder) => {
                        self.mean_of_blocks(of_ranks, decoder, &mut spoken_of, mean)?
                    }
                    None => self.mean_of(of_ranks, compressor, length, 0..length, mean)?,
                };
                let overflow = if finite { None } else { floats::first_non_finite(mean) };
                Ok::<_, Error>((by_blocks.is_some(), overflow))
            });
            bucket.spoken_of = spoken_of;
            let overflow;
            (bucket.by_blocks, overflow) = averaged?;
            if let Some(element) = overflow {
                return Ok(Some((*number, element)));
            }
        }
        Ok(None)
    }

    /// As [`average`](Self::average), where all frames are plain: in one pass, which looks at the
    /// checksums as well. With a support, the gradient is zero outside of it, and so is what this rank
    /// has sent. What the rank `own` has sent is the gradient, and is taken from there.
    ///
    /// # Errors
    /// [`Error::Message`].
    pub(crate) fn average_plain(
        &self,
        buckets: &mut [Bucket],
        group: &[usize],
        frames: &[Unchecked<'_>],
        gradient: &mut [f32],
        support: Option<&Support>,
        own: Option<usize>,
    ) -> Result<Option<(usize, usize)>> {
        for (index, number) in group.iter().enumerate() {
            let bucket = &mut buckets[*number];
            let support =
                support.filter(|support| bucket.is_all_of(gradient) && !support.is_everything());
            let known = support.map_or(0, |support| support.words().len());
            let mut spoken_of = std::mem::take(&mut bucket.spoken_of);
            spoken_of.resize(known.max(spoken_of.len()), 0);
            let plain = Plain {
                place: self,
                frames: frames[index..].iter().step_by(group.len()).collect(),
                own,
                support: support.map(Support::words),
            };
            let averaged = bucket.change(gradient, |mean, _| {
                let finite = plain.average(&mut spoken_of, mean)?;
                Ok::<_, Error>(if finite { None } else { floats::first_non_finite(mean) })
            });
            bucket.by_blocks = support.is_some();
            bucket.spoken_of = spoken_of;
            if let Some(element) = averaged? {
                return Ok(Some((*number, element)));
            }
        }
        Ok(None)
    }

    /// As [`mean_of`](Self::mean_of), where `mean` is what this rank has encoded: what is zero on all
    /// ranks is neither read nor written.
    fn mean_of_blocks<'a>(
        &self,
        frames: impl Iterator<Item = &'a Frame<'a>> + Clone,
        decoder: &dyn Compressor,
        spoken_of: &mut [u64],
        mean: &mut [f32],
    ) -> Result<bool> {
        let Some(blocks) = decoder.by_blocks() else { return Ok(true) };
        let (length, size) = (mean.len(), blocks.block());
        let block = |number: usize| number * size..length.min((number + 1) * size);
        let blame = |rank| move |error: Error| error.sent_by(rank, self.awaited());
        for (rank, frame) in frames.clone().enumerate().filter(|(rank, _)| *rank == self.rank) {
            let clear = &mut |number| mean[block(number)].fill(0.0);
            blocks.each_block(frame.payload, length, clear).map_err(blame(rank))?;
        }
        debug_assert!(
            mean.iter().all(|value| value.to_bits() == 0),
            "another gradient was encoded"
        );
        spoken_of.fill(0);
        let added = frames.enumerate().try_for_each(|(rank, frame)| {
            let mark = &mut |number: usize| spoken_of[number / 64] |= 1 << (number % 64);
            let marked = blocks.each_block(frame.payload, length, mark);
            marked.and_then(|()| decoder.decode_add(frame.payload, 1.0, mean)).map_err(blame(rank))
        });
        let (scale, mut finite) = (1.0 / self.world_size as f32, true);
        for (word, bits) in spoken_of.iter().enumerate() {
            let mut rest = *bits;
            while rest != 0 {
                let number = 64 * word + rest.trailing_zeros() as usize;
                rest &= rest - 1;
                finite &= floats::scale_checked(&mut mean[block(number)], scale);
            }
        }
        added.map(|()| finite)
    }

    /// Overwrites `mean` by the mean of what the ranks' frames about one bucket of `length`
    /// elements say of the elements `part`: all of them, unless the decoder reads parts. Tells
    /// whether all of it is finite.
    ///
    /// # Errors
    /// [`Error::Message`], [`Error::OutOfStep`].
    pub(crate) fn mean_of<'a>(
        &self,
        frames: impl Iterator<Item = &'a Frame<'a>> + Clone,
        decoder: Option<&dyn Compressor>,
        length: usize,
        part: Range<usize>,
        mean: &mut [f32],
    ) -> Result<bool> {
        let scale = 1.0 / self.world_size as f32;
        let blame = |rank| move |error: Error| error.sent_by(rank, self.awaited());
        if frames.clone().all(|frame| frame.header.kind == Kind::Dense) {
            let plain = |(rank, frame): (usize, &Frame<'a>)| {
                let values = floats::expect(frame.payload, length);
                Ok::<_, Error>(&values.map_err(Error::from).map_err(blame(rank))?[part.clone()])
            };
            let parts = frames.enumerate().map(plain).collect::<Result<Vec<_>>>()?;
            return Ok(floats::mean_of(&parts, scale, mean));
        }
        mean.fill(0.0);
        for (rank, Frame { header, payload }) in frames.enumerate() {
            let decoder: &dyn Compressor = match (header.kind, decoder) {
                (Kind::Compressed, Some(decoder)) => decoder,
                (Kind::Compressed, None) => {
                    // A compressed frame where this rank has only plain ones.
                    let expected = Header { kind: Kind::Dense, ..*header };
                    return Err(Error::OutOfStep { by: self.rank, expected, found: *header });
                }
                _ => &Dense,
            };
            let added = match decoder.by_parts() {
                Some(parts) if part.len() < length => {
                    parts.decode_part(payload, length, part.clone(), 1.0, mean)
                }
                _ => decoder.decode_add(payload, 1.0, mean),
            };
            added.map_err(blame(rank))?;
        }
        Ok(floats::scale_checked(mean, scale))
    }

    /// What the server says of each bucket of a group, each frame checked to be whole and in its
    /// place.
    ///
    /// # Errors
    /// [`Error::OutOfStep`]; [`Error::ServerMessage`].
    pub(crate) fn open_downlink<'a>(
        &self,
        group: &[usize],
        message: &'a [u8],
    ) -> Result<Vec<Downlink<'a>>> {
        self.read_downlink(group, message, Frame::read)
    }

    /// The same for a message that has been opened before.
    ///
    /// # Errors
    /// As [`open_downlink`](Self::open_downlink).
    pub(crate) fn skim_downlink<'a>(
        &self,
        group: &[usize],
        message: &'a [u8],
    ) -> Result<Vec<Downlink<'a>>> {
        self.read_downlink(group, message, |reader| Ok(Frame::split(reader)?.frame))
    }

    fn read_downlink<'a>(
        &self,
        group: &[usize],
        message: &'a [u8],
        next: impl Fn(&mut Reader<'a>) -> Read<Frame<'a>>,
    ) -> Result<Vec<Downlink<'a>>> {
        let awaited = self.awaited();
        let blame = |error: Error| match error {
            Error::Wire(fault) => Error::ServerMessage { awaited, fault },
            other => other,
        };
        let mut reader = Reader::new(message);
        let mut downlinks = Vec::with_capacity(group.len());
        for bucket in group {
            let expected = self.header(Kind::Downlink, *bucket).from_rank(self.world_size);
            let frame = next(&mut reader).map_err(Error::from).map_err(blame)?;
            let frame = frame.awaited(expected, self.rank).map_err(blame)?;
            downlinks.push(Downlink::read(frame.payload).map_err(Error::from).map_err(blame)?);
        }
        reader.finish().map_err(Error::from).map_err(blame)?;
        Ok(downlinks)
    }
}

/// The error of the lowest rank that refused instead of sending what was awaited.
pub(crate) fn first_refusal(messages: &[Payload]) -> Option<Error> {
    messages.iter().enumerate().find_map(|(from, message)| {
        let (rank, error) = Frame::refusal_of(message)?;
        (rank == from).then_some(error)
    })
}
