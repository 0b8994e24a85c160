//! Reading what ranks sent about the items of a message: frames in their places, refusals, the mean.

use std::ops::Range;

use crate::bucket::Bucket;
use crate::bucket::Item;
use crate::collective::Payload;
use crate::compress::{Compressor, SparseBlocks, plain::Plain};
use crate::error::Awaited;
use crate::support::BLOCK;
use crate::wire::downlink::Downlink;
use crate::wire::frame::Unchecked;
use crate::wire::{Frame, Header, Kind, Read, Reader, floats};
use crate::{Error, Result};

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
    /// The header of a frame that this rank writes about a bucket.
    pub(crate) fn header(&self, kind: Kind, bucket: usize) -> Header {
        let (rank, world_size) = (self.rank as u16, self.world_size as u16);
        Header { kind, rank, world_size, step: self.step, bucket: bucket as u32 }
    }

    /// The header of a frame that this rank writes about an item.
    pub(crate) fn header_of(&self, kind: Kind, item: Item) -> Header {
        self.header(kind, item.bucket).in_round(item.round)
    }

    /// What this rank waits for.
    pub(crate) fn awaited(&self) -> Awaited {
        Awaited::Gradient { step: self.step }
    }

    /// The frames of all messages about some items, by rank and then in the items' order, each
    /// checked to be whole and in its place.
    ///
    /// # Errors
    /// The error of the lowest rank that refused; [`Error::OutOfStep`]; [`Error::Message`].
    pub(crate) fn open<'a>(
        &self,
        items: &[Item],
        messages: &'a [Payload],
    ) -> Result<Vec<Frame<'a>>> {
        let frames = self.split(items, messages)?;
        let check = |(index, unchecked): (usize, &Unchecked<'a>)| {
            let blame = |error: Error| error.sent_by(index / items.len(), self.awaited());
            unchecked.check().map_err(Error::from).map_err(blame)
        };
        frames.iter().enumerate().map(check).collect()
    }

    /// The same without looking at checksums: for messages of which others check some, or that
    /// have been opened before. Whatever is wrong here is wrong on every rank.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn skim<'a>(
        &self,
        items: &[Item],
        messages: &'a [Payload],
    ) -> Result<Vec<Frame<'a>>> {
        let frames = self.split(items, messages)?;
        Ok(frames.into_iter().map(|unchecked| unchecked.frame).collect())
    }

    fn split<'a>(&self, items: &[Item], messages: &'a [Payload]) -> Result<Vec<Unchecked<'a>>> {
        if let Some(refusal) = first_refusal(messages) {
            return Err(refusal);
        }
        let mut frames = Vec::with_capacity(messages.len() * items.len());
        for (from, message) in messages.iter().enumerate() {
            let blame = |error: Error| error.sent_by(from, self.awaited());
            let mut reader = Reader::new(message);
            for item in items {
                let expected = self.header_of(item.kind, *item).from_rank(from);
                let unchecked = Frame::split(&mut reader).map_err(Error::from).map_err(blame)?;
                let awaited = unchecked.frame.awaited(expected, self.rank).and_then(|frame| {
                    // A scheme's own form where this rank has plain values only.
                    let (by, found) = (self.rank, frame.header);
                    match found.kind == Kind::Compressed && item.plain {
                        true => Err(Error::OutOfStep { by, expected, found }),
                        false => Ok(()),
                    }
                });
                if let Err(error) = awaited {
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

    /// Overwrites a bucket's elements by the mean of what the frames of all ranks say; the first
    /// element of the mean that is not finite. `encoded` tells that the gradient is what this rank
    /// has encoded, unless its frame is plain.
    ///
    /// # Errors
    /// [`Error::Message`], [`Error::OutOfStep`].
    pub(crate) fn average<'a>(
        &self,
        bucket: &mut Bucket,
        item: Item,
        frames: impl Iterator<Item = &'a Frame<'a>> + Clone,
        encoded: bool,
        gradient: &mut [f32],
    ) -> Result<Option<usize>> {
        let mut touched = std::mem::take(&mut bucket.touched);
        let compressed = |frame: &Frame<'_>| frame.header.kind == Kind::Compressed;
        let sparse = encoded && frames.clone().all(compressed);
        let mean = bucket.elements_mut(gradient);
        let mut compressor = bucket.codec_mut().filter(|_| !item.plain);
        let blocks = compressor.as_mut().filter(|_| sparse).and_then(|some| some.sparse_blocks());
        let (by_blocks, overflow) = match blocks {
            Some(blocks) => {
                let finite = self.mean_of_blocks(frames, blocks, &mut touched, mean);
                let overflow = |finite| if finite { None } else { floats::first_non_finite(mean) };
                (true, finite.map(overflow))
            }
            None => (false, self.mean_of_all(frames, compressor.as_deref(), mean)),
        };
        (bucket.touched, bucket.by_blocks) = (touched, by_blocks);
        overflow
    }

    /// Overwrites `mean` by the mean of what the frames of all ranks say; the first element of it
    /// that is not finite.
    ///
    /// # Errors
    /// As [`average`](Self::average).
    pub(crate) fn mean_of_all<'a>(
        &self,
        frames: impl Iterator<Item = &'a Frame<'a>> + Clone,
        decoder: Option<&dyn Compressor>,
        mean: &mut [f32],
    ) -> Result<Option<usize>> {
        let length = mean.len();
        let finite = self.mean_of(frames, decoder, length, 0..length, mean)?;
        Ok(if finite { None } else { floats::first_non_finite(mean) })
    }

    /// As [`mean_of`](Self::mean_of), where `mean` is what this rank has encoded: what is zero on all
    /// ranks is neither read nor written.
    fn mean_of_blocks<'a>(
        &self,
        frames: impl Iterator<Item = &'a Frame<'a>> + Clone,
        decoder: &dyn SparseBlocks,
        touched: &mut [u64],
        mean: &mut [f32],
    ) -> Result<bool> {
        let length = mean.len();
        let block = |number: usize| number * BLOCK..length.min((number + 1) * BLOCK);
        let blame = |rank| move |error: Error| error.sent_by(rank, self.awaited());
        for (rank, frame) in frames.clone().enumerate().filter(|(rank, _)| *rank == self.rank) {
            let clear = &mut |number| mean[block(number)].fill(0.0);
            decoder.each_block(frame.payload, clear).map_err(blame(rank))?;
        }
        debug_assert!(
            mean.iter().all(|value| value.to_bits() == 0),
            "another gradient was encoded"
        );
        touched.fill(0);
        let added = frames.enumerate().try_for_each(|(rank, frame)| {
            let mark = &mut |number: usize| touched[number / 64] |= 1 << (number % 64);
            let marked = decoder.each_block(frame.payload, mark);
            let added =
                marked.and_then(|()| decoder.decode_add(frame.payload, 0..length, 1.0, mean));
            added.map_err(blame(rank))
        });
        let (scale, mut finite) = (1.0 / self.world_size as f32, true);
        for (word, bits) in touched.iter().enumerate() {
            let mut rest = *bits;
            while rest != 0 {
                let number = 64 * word + rest.trailing_zeros() as usize;
                rest &= rest - 1;
                finite &= floats::scale_checked(&mut mean[block(number)], scale);
            }
        }
        added.map(|()| finite)
    }

    /// Overwrites `mean` by the mean of what the ranks' frames about one item of `length` elements
    /// say of the elements `part`: all of them, unless the decoder reads parts. Tells whether all of
    /// it is finite.
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
        if let Some(parts) = self.plain(frames.clone(), length, part.clone())? {
            return Ok(floats::mean_of(&parts, scale, mean));
        }
        mean.fill(0.0);
        let plain = Plain { length };
        for (rank, Frame { header, payload }) in frames.enumerate() {
            let decoder: &dyn Compressor = match (header.kind, decoder) {
                (Kind::Compressed, Some(decoder)) => decoder,
                (Kind::Compressed, None) => {
                    // A compressed frame where this rank has only plain ones.
                    let expected = Header { kind: Kind::Dense, ..*header };
                    return Err(Error::OutOfStep { by: self.rank, expected, found: *header });
                }
                _ => &plain,
            };
            decoder.decode_add(payload, part.clone(), 1.0, mean).map_err(blame(rank))?;
        }
        Ok(floats::scale_checked(mean, scale))
    }

    /// Appends the frame that tells the mean of the elements `part` of an item, whose length is that
    /// of the ranks' frames; else finds the first element of the part that is not finite.
    ///
    /// # Errors
    /// As [`mean_of`](Self::mean_of).
    pub(crate) fn put_mean<'a>(
        &self,
        frames: impl Iterator<Item = &'a Frame<'a>> + Clone,
        decoder: Option<&dyn Compressor>,
        item: Item,
        part: Range<usize>,
        mean: &mut Vec<f32>,
        out: &mut Vec<u8>,
    ) -> Result<Option<usize>> {
        let (open, length) = (self.header_of(Kind::Shard, item).open(out), item.length);
        let written = match self.plain(frames.clone(), length, part.clone())? {
            Some(parts) => floats::put_mean(&parts, 1.0 / self.world_size as f32, out),
            None => {
                mean.clear();
                mean.resize(part.len(), 0.0);
                self.mean_of(frames, decoder, length, part, mean)?;
                floats::put_checked(mean, None, out)
                    .ok_or_else(|| floats::first_non_finite(mean).unwrap_or(0))
            }
        };
        match written {
            Ok(checksum) => {
                open.close_with(Kind::Shard, &checksum, out);
                Ok(None)
            }
            Err(element) => Ok(Some(element)),
        }
    }

    /// The elements `part` of frames that are all plain f32; `None` when one is not.
    fn plain<'a>(
        &self,
        frames: impl Iterator<Item = &'a Frame<'a>> + Clone,
        length: usize,
        part: Range<usize>,
    ) -> Result<Option<Vec<&'a [[u8; 4]]>>> {
        if frames.clone().any(|frame| frame.header.kind == Kind::Compressed) {
            return Ok(None);
        }
        let plain = |(rank, frame): (usize, &Frame<'a>)| {
            let values = floats::expect(frame.payload, length).map_err(Error::from);
            Ok(&values.map_err(|error| error.sent_by(rank, self.awaited()))?[part.clone()])
        };
        frames.enumerate().map(plain).collect::<Result<_>>().map(Some)
    }

    /// What the server says of each item, each frame checked to be whole and in its place.
    ///
    /// # Errors
    /// [`Error::OutOfStep`]; [`Error::ServerMessage`].
    pub(crate) fn open_downlink<'a>(
        &self,
        items: &[Item],
        message: &'a [u8],
    ) -> Result<Vec<Downlink<'a>>> {
        self.read_downlink(items, message, Frame::read)
    }

    /// The same for a message that has been opened before.
    ///
    /// # Errors
    /// As [`open_downlink`](Self::open_downlink).
    pub(crate) fn skim_downlink<'a>(
        &self,
        items: &[Item],
        message: &'a [u8],
    ) -> Result<Vec<Downlink<'a>>> {
        self.read_downlink(items, message, |reader| Ok(Frame::split(reader)?.frame))
    }

    fn read_downlink<'a>(
        &self,
        items: &[Item],
        message: &'a [u8],
        next: impl Fn(&mut Reader<'a>) -> Read<Frame<'a>>,
    ) -> Result<Vec<Downlink<'a>>> {
        let awaited = self.awaited();
        let blame = |error: Error| match error {
            Error::Wire(fault) => Error::ServerMessage { awaited, fault },
            other => other,
        };
        let mut reader = Reader::new(message);
        let mut downlinks = Vec::with_capacity(items.len());
        for item in items {
            let expected = self.header_of(Kind::Downlink, *item).from_rank(self.world_size);
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
