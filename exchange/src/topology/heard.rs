//! What a rank has heard of the others in a step, and what its compressors learn from it.

use crate::bucket::Item;
use crate::collective::Payload;
use crate::compress::{Compressor, StepMessages, Summary};
use crate::incoming::Place;
use crate::wire::{self, Frame};
use crate::{Error, Result};

/// What a rank has heard about the items of a message, kept until the step is finished.
pub(crate) enum Heard {
    /// Every rank's message, its own included; empty when there was nothing to exchange.
    Messages(Vec<Payload>),
    /// Its own message, and the server's.
    Mean { mine: Payload, downlink: Payload },
    /// At most its own: nobody heard whole messages, and nobody learns from them.
    Own(Option<Payload>),
}

/// The same, taken apart.
pub(crate) enum Received<'a> {
    /// Frames by rank, and then in the order of the items, of which there are so many.
    Frames(Vec<Frame<'a>>, usize),
    /// The server's words on each item.
    Mean(Vec<wire::downlink::Downlink<'a>>),
    /// Plain values of all ranks.
    Plain,
}

impl Received<'_> {
    /// Lets a compressor read what it learns about the item at `index`, whose mean is given.
    ///
    /// # Errors
    /// As [`Compressor::learn_from_messages`] and [`Compressor::learn_from_summary`].
    pub(crate) fn tell(
        &self,
        place: Place,
        index: usize,
        mean: &[f32],
        compressor: &mut dyn Compressor,
    ) -> Result<()> {
        let (step, ranks) = (place.step, place.world_size);
        match self {
            Received::Frames(frames, items) => {
                let of_ranks = frames.iter().skip(index).step_by(*items);
                let messages: Vec<Option<&[u8]>> = of_ranks.map(Frame::compressed).collect();
                compressor.learn_from_messages(&StepMessages { step, messages: &messages, mean })
            }
            Received::Mean(downlinks) => {
                let summary = Summary { step, ranks, bytes: downlinks[index].summary, mean };
                compressor.learn_from_summary(&summary).map_err(|error| match error {
                    Error::Wire(fault) => Error::ServerMessage { awaited: place.awaited(), fault },
                    other => other,
                })
            }
            Received::Plain => compressor.learn_from_messages(&StepMessages {
                step,
                messages: &vec![None; ranks],
                mean,
            }),
        }
    }
}

impl Heard {
    /// Takes apart what was heard about items.
    ///
    /// # Errors
    /// None that has not been met before the mean was taken.
    pub(crate) fn open(&self, place: Place, items: &[Item]) -> Result<Received<'_>> {
        Ok(match self {
            Heard::Messages(messages) => {
                Received::Frames(place.skim(items, messages)?, items.len())
            }
            Heard::Mean { downlink, .. } => Received::Mean(place.skim_downlink(items, downlink)?),
            Heard::Own(_) => Received::Plain,
        })
    }

    /// What rank `rank` sent, when it was this one.
    pub(crate) fn into_mine(self, rank: usize) -> Option<Payload> {
        match self {
            Heard::Messages(messages) => messages.into_iter().nth(rank),
            Heard::Mean { mine, .. } => Some(mine),
            Heard::Own(mine) => mine,
        }
    }
}
