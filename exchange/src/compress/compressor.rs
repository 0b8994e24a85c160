//! The codec of one bucket on one rank: what it does, and what it is told.

use std::ops::Range;

use crate::wire::{Fault, codes};
use crate::{Gauge, Result, State};

/// Compresses the gradient of one bucket on one rank, and decodes such messages of any rank.
///
/// Laws, each a test over every scheme: the message holds everything that decoding needs beyond
/// the configuration and the bucket's length; the same seat and the same gradients give the same
/// bytes; any bytes decode to an error or to numbers, without panic and without allocation that
/// the bucket's length does not bound.
pub trait Compressor: Send {
    /// Appends the message for `gradient` at `step`, which counts from 1. The gradient has the
    /// seat's length, and is finite unless this compressor [`checks`](Self::checks) that itself.
    fn encode(&mut self, gradient: &[f32], step: u64, out: &mut Vec<u8>) -> Encoded;

    /// As [`encode`](Self::encode), the same message, of a gradient that is zero outside the blocks of
    /// 64 elements that have a bit in `support`.
    fn encode_within(
        &mut self,
        gradient: &[f32],
        _support: &[u64],
        step: u64,
        out: &mut Vec<u8>,
    ) -> Encoded {
        self.encode(gradient, step, out)
    }

    /// Whether [`encode`](Self::encode) itself detects an element that is not finite, and then
    /// returns [`Encoded::Dense`]: the caller need not check all elements first.
    fn checks(&self) -> bool {
        false
    }

    /// Adds `weight` times what a message says to `sum`, of the seat's length. Reads only the
    /// configuration and the message.
    ///
    /// # Errors
    /// [`Error::Wire`](crate::Error::Wire) when the bytes are not a message; `sum` may then have
    /// been changed in part.
    fn decode_add(&self, wire: &[u8], weight: f32, sum: &mut [f32]) -> Result<()>;

    /// Reads what this compressor learns from every rank's message. Nothing that lasts changes
    /// before [`settle`](Self::settle): a step can still fail after this.
    ///
    /// # Errors
    /// [`Error::Wire`](crate::Error::Wire) when a message holds what decoding alone does not look at, and it is wrong.
    fn observe(&mut self, _heard: &Observed<'_>) -> Result<()> {
        Ok(())
    }

    /// Appends a digest of the messages: what a rank that does not hear them must be told to learn
    /// what [`observe`](Self::observe) reads from them. A server calls this, and sends the digest
    /// along with the mean. By default the digest is empty, for schemes that learn nothing from
    /// messages.
    ///
    /// # Errors
    /// As [`observe`](Self::observe).
    fn digest(&mut self, _heard: &Observed<'_>, _out: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }

    /// [`observe`](Self::observe) for a rank that has a digest of the messages in their place.
    ///
    /// # Errors
    /// [`Error::Wire`](crate::Error::Wire) when the bytes are not such a digest.
    fn learn(&mut self, digest: &Digest<'_>) -> Result<()> {
        match digest.bytes.len() {
            0 => Ok(()),
            left => Err(Fault::Trailing { left }.into()),
        }
    }

    /// The step has succeeded: what [`observe`](Self::observe) or [`learn`](Self::learn) has read
    /// takes effect, as does what the step itself has shown. This cannot fail, and concludes the
    /// same on every rank, because every rank is told the same.
    fn settle(&mut self, _end: &StepEnd<'_>) {}

    /// [`observe`](Self::observe) and [`settle`](Self::settle), for a step that cannot fail any
    /// more: for whoever drives a compressor without an exchange.
    ///
    /// # Errors
    /// As [`observe`](Self::observe).
    fn take_in(&mut self, heard: &Observed<'_>) -> Result<()> {
        self.observe(heard)?;
        let Observed { step, messages, mean } = *heard;
        self.settle(&StepEnd { step, ranks: messages.len(), mean });
        Ok(())
    }

    /// This compressor as a reader of parts of messages, if their form allows it.
    fn by_parts(&self) -> Option<&dyn ByParts> {
        None
    }

    /// The bytes of one element, if every element takes the same number of bytes and a message
    /// holds nothing else: such a message can be cut between any two elements. Where that saves
    /// bytes, ranks are sent only parts of messages, and [`observe`](Self::observe) is called
    /// without messages.
    fn element_bytes(&self) -> Option<usize> {
        None
    }

    /// This compressor as a reader of the blocks that a message speaks of, if finding these is
    /// quicker than decoding all elements.
    fn by_blocks(&self) -> Option<&dyn ByBlocks> {
        None
    }

    /// The positions, ascending, that the last message speaks of; `None` when it speaks of all.
    fn sent(&self) -> Option<&[u32]> {
        None
    }

    /// Puts everything that later messages depend on into `state`.
    fn save(&self, _state: &mut State) {}

    /// Takes up what [`save`](Self::save) put there.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State) when it does not fit.
    fn restore(&mut self, _state: &State) -> Result<()> {
        Ok(())
    }

    /// What the last message was like, for the record.
    fn gauges(&self) -> &[Gauge] {
        &[]
    }
}

/// Reads a part of a message without the work of reading all of it.
pub trait ByParts {
    /// Adds `weight` times what a message of a bucket of `length` elements says of the elements
    /// `part` to `sum`, of the part's length: bit for bit what [`Compressor::decode_add`] adds
    /// there. The part begins at a multiple of [`PART`].
    ///
    /// # Errors
    /// [`Error::Wire`](crate::Error::Wire) when the bytes are not a message, as far as the part shows it; `sum` is
    /// then in pieces.
    fn decode_part(
        &self,
        wire: &[u8],
        length: usize,
        part: Range<usize>,
        weight: f32,
        sum: &mut [f32],
    ) -> Result<()>;
}

/// Reads which blocks of elements a message speaks of. Such a message decodes to the sender's
/// gradient, bit for bit, in these blocks, and to zero in all others.
pub trait ByBlocks {
    /// Elements of a block; the bucket's last may be shorter.
    fn block(&self) -> usize;

    /// Visits the numbers of the blocks that a message of a bucket of `length` elements speaks of, in
    /// ascending order, each once and within the bucket.
    ///
    /// # Errors
    /// [`Error::Wire`](crate::Error::Wire) when the bytes are not a message; some may have been visited by then.
    fn each_block(&self, wire: &[u8], length: usize, visit: &mut dyn FnMut(usize)) -> Result<()>;
}

/// Parts of messages begin at multiples of this many elements.
pub const PART: usize = codes::BLOCK;

/// What became of a call of [`Compressor::encode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoded {
    /// The message has been appended.
    Message,
    /// This gradient cannot be encoded: it would decode to numbers beyond the range of f32. The
    /// caller has to discard what has been appended, and to send the bucket as plain f32.
    Dense,
}

/// One step of one bucket, as every rank that hears the messages knows it after the exchange.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// The step.
    pub step: u64,
    /// Every rank's message, in order of rank; `None` where the bucket was sent as plain f32.
    pub messages: &'a [Option<&'a [u8]>],
    /// The mean gradient of the bucket.
    pub mean: &'a [f32],
}

/// The end of a successful step of one bucket.
#[derive(Debug, Clone, Copy)]
pub struct StepEnd<'a> {
    /// The step.
    pub step: u64,
    /// The number of ranks whose messages made the mean.
    pub ranks: usize,
    /// The mean gradient of the bucket.
    pub mean: &'a [f32],
}

/// One step of one bucket, as a rank knows it that has heard the mean and a digest of the
/// messages.
#[derive(Debug, Clone, Copy)]
pub struct Digest<'a> {
    /// The step.
    pub step: u64,
    /// The number of ranks whose messages were digested.
    pub ranks: usize,
    /// What [`Compressor::digest`] wrote.
    pub bytes: &'a [u8],
    /// The mean gradient of the bucket.
    pub mean: &'a [f32],
}
