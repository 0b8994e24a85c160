//! Reading what ranks sent about a group of buckets: frames in their places, refusals, the mean.

use crate::bucket::Bucket;
use crate::collective::Payload;
use crate::compress::{Compressor, dense::Dense};
use crate::error::Awaited;
use crate::wire::{Frame, Header, Kind, Reader, floats};
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
    /// order, each checked to be in its place.
    ///
    /// # Errors
    /// The error of the lowest rank that refused; [`Error::OutOfStep`]; [`Error::Message`].
    pub(crate) fn open<'a>(
        &self,
        group: &[usize],
        messages: &'a [Payload],
    ) -> Result<Vec<Frame<'a>>> {
        if let Some(refusal) = first_refusal(messages) {
            return Err(refusal);
        }
        let awaited = self.awaited();
        let mut frames = Vec::with_capacity(messages.len() * group.len());
        for (from, message) in messages.iter().enumerate() {
            let mut reader = Reader::new(message);
            for bucket in group {
                let expected = self.header(Kind::Dense, *bucket).from_rank(from);
                let frame = Frame::expect(&mut reader, expected, self.rank);
                frames.push(frame.map_err(|error| error.sent_by(from, awaited))?);
            }
            reader.finish().map_err(|fault| Error::Message { rank: from, awaited, fault })?;
        }
        Ok(frames)
    }

    /// Overwrites a group's elements of `gradient` by the mean of what the frames say, each bucket
    /// at its place in `buckets`. When a bucket's mean is not finite: its number and the element.
    ///
    /// # Errors
    /// [`Error::Message`], [`Error::OutOfStep`].
    pub(crate) fn average(
        &self,
        buckets: &mut [Bucket],
        group: &[usize],
        frames: &[Frame<'_>],
        gradient: &mut [f32],
    ) -> Result<Option<(usize, usize)>> {
        let scale = 1.0 / self.world_size as f32;
        for (index, number) in group.iter().enumerate() {
            let of_ranks = frames[index..].iter().step_by(group.len());
            let overflow = buckets[*number].change(gradient, |mean, compressor| {
                let finite = self.mean_of(of_ranks, compressor, scale, mean)?;
                Ok::<_, Error>(if finite { None } else { floats::first_non_finite(mean) })
            })?;
            if let Some(element) = overflow {
                return Ok(Some((*number, element)));
            }
        }
        Ok(None)
    }

    /// Overwrites `mean` by the mean of what the ranks' frames of one bucket say; tells whether all of
    /// it is finite.
    fn mean_of<'a>(
        &self,
        frames: impl Iterator<Item = &'a Frame<'a>> + Clone,
        compressor: Option<&dyn Compressor>,
        scale: f32,
        mean: &mut [f32],
    ) -> Result<bool> {
        let blame = |rank| move |error: Error| error.sent_by(rank, self.awaited());
        if frames.clone().all(|frame| frame.header.kind == Kind::Dense) {
            let plain = |(rank, frame): (usize, &Frame<'a>)| {
                floats::expect(frame.payload, mean.len()).map_err(Error::from).map_err(blame(rank))
            };
            let parts = frames.enumerate().map(plain).collect::<Result<Vec<_>>>()?;
            return Ok(floats::mean_of(&parts, scale, mean));
        }
        mean.fill(0.0);
        for (rank, Frame { header, payload }) in frames.enumerate() {
            let decoder: &dyn Compressor = match (header.kind, compressor) {
                (Kind::Compressed, Some(compressor)) => compressor,
                (Kind::Compressed, None) => {
                    // A compressed frame where this rank has only plain ones.
                    let expected = Header { kind: Kind::Dense, ..*header };
                    return Err(Error::OutOfStep { by: self.rank, expected, found: *header });
                }
                _ => &Dense,
            };
            decoder.decode_add(payload, 1.0, mean).map_err(blame(rank))?;
        }
        Ok(floats::scale_checked(mean, scale))
    }
}

/// The error of the lowest rank that refused instead of sending what was awaited.
pub(crate) fn first_refusal(messages: &[Payload]) -> Option<Error> {
    messages.iter().enumerate().find_map(|(from, message)| {
        let (rank, error) = Frame::refusal_of(message)?;
        (rank == from).then_some(error)
    })
}
