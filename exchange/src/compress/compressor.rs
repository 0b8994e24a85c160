//! The codec of one bucket on one rank: what it does, and what it is given.
use crate::wire::{Fault, codes};
use crate::{Gauge, Result, State};

/// Compresses the gradient of one bucket on one rank, and decodes such messages of any rank.
///
/// Laws, each a test over every scheme: the message holds everything that decoding needs beyond
/// the configuration and the bucket's length; the same seat and the same gradients give the same
/// bytes; any bytes decode to an error or to numbers, without panic and without allocation that
/// the bucket's length does not bound.
pub trait Compressor: Send {
    /// Appends the message for `gradient` at `step`, which counts the bucket's exchanges from 1: steps of
    /// the run, but for [local steps](crate::Turn). The gradient has the seat's length, and is finite
    /// unless this compressor [`checks`](Self::checks) that itself.
    fn encode(&mut self, gradient: &[f32], step: u64, out: &mut Vec<u8>) -> Encoded;

    /// Whether [`encode`](Self::encode) itself detects an element that is not finite, and then
    /// returns [`Encoded::Dense`]: the caller need not check all elements first.
    fn checks(&self) -> bool {
        false
    }

    /// Adds `weight` times what a message says of the elements from `start` on to `sum`, as many as it
    /// has: bit for bit the same, whatever the range. Reads only the configuration and the message.
    /// The range is the whole bucket, unless this compressor [reads ranges](Self::reads_ranges).
    ///
    /// # Errors
    /// [`Error::Wire`](crate::Error::Wire) when the bytes are not a message, as far as the range shows
    /// it; `sum` may then have been changed in part.
    fn decode_add(&self, wire: &[u8], start: usize, weight: f32, sum: &mut [f32]) -> Result<()>;

    /// Whether [`decode_add`](Self::decode_add) takes any range that begins at a multiple of
    /// 1024 elements, with less work than for the whole bucket. By default it does not.
    fn reads_ranges(&self) -> bool {
        false
    }

    /// Adds what a whole message says to a sum of messages, in the scheme's own terms: those of
    /// [`decode_add`](Self::decode_add) by default. A scheme that transforms its messages adds them up
    /// before, and transforms the sum once. It is asked where every rank has sent a message, of a compressor
    /// that does not [read ranges](Self::reads_ranges).
    ///
    /// # Errors
    /// As [`decode_add`](Self::decode_add), for the same bytes.
    fn add_to_sum(&self, wire: &[u8], sum: &mut [f32]) -> Result<()> {
        self.decode_add(wire, 0, 1.0, sum)
    }

    /// Overwrites a sum of messages, of at least one, by that of the elements that they mean.
    fn finish_sum(&self, _sum: &mut [f32]) {}

    /// Reads what this compressor learns from every rank's message. Nothing that lasts changes
    /// before [`commit`](Self::commit): a step can still fail after this.
    ///
    /// # Errors
    /// [`Error::Wire`](crate::Error::Wire) when a message holds what decoding alone does not look at, and it is wrong.
    fn learn_from_messages(&mut self, _step: &StepMessages<'_>) -> Result<()> {
        Ok(())
    }

    /// Appends a summary of the messages: what a rank that does not receive them needs in order to
    /// learn what [`learn_from_messages`](Self::learn_from_messages) reads from them. A server calls
    /// this, and sends the summary along with the mean. By default the summary is empty, for schemes
    /// that learn nothing from messages.
    ///
    /// # Errors
    /// As [`learn_from_messages`](Self::learn_from_messages).
    fn summarise(&mut self, _step: &StepMessages<'_>, _out: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }

    /// [`learn_from_messages`](Self::learn_from_messages) for a rank that has a summary of the
    /// messages in their place, and the mean gradient.
    ///
    /// # Errors
    /// [`Error::Wire`](crate::Error::Wire) when the bytes are not such a summary.
    fn learn_from_summary(&mut self, _step: u64, summary: &[u8], _mean: &[f32]) -> Result<()> {
        match summary.len() {
            0 => Ok(()),
            left => Err(Fault::Trailing { left }.into()),
        }
    }

    /// The step has succeeded: what was learnt from its messages or their summary takes effect, as
    /// does what the step itself has shown. This cannot fail, and concludes the same on every rank,
    /// because every rank is given the same.
    fn commit(&mut self, _end: &StepEnd<'_>) {}

    /// Gradients come in another unit from now on, `factor` times as large: whatever lasts and is in their unit is
    /// multiplied by it.
    fn rescale(&mut self, _factor: f32) {}

    /// [`learn_from_messages`](Self::learn_from_messages) and [`commit`](Self::commit), for a step
    /// that cannot fail any more: for whoever drives a compressor without an exchange.
    ///
    /// # Errors
    /// As [`learn_from_messages`](Self::learn_from_messages).
    fn learn_and_commit(&mut self, step: &StepMessages<'_>) -> Result<()> {
        self.learn_from_messages(step)?;
        let StepMessages { step, messages, mean } = *step;
        self.commit(&StepEnd { step, ranks: messages.len(), mean });
        Ok(())
    }

    /// The bytes of one element, if every element takes the same number of bytes and a message
    /// holds nothing else: such a message can be cut between any two elements, and
    /// [`decode_add`](Self::decode_add) also takes the bytes of its range alone. Where that saves
    /// bytes, ranks are sent only parts of messages, and
    /// [`learn_from_messages`](Self::learn_from_messages) is called without messages.
    fn element_bytes(&self) -> Option<usize> {
        None
    }

    /// This compressor, if its messages consist of blocks of a gradient that is mostly zeros.
    #[doc(hidden)]
    fn sparse_blocks(&mut self) -> Option<&mut dyn SparseBlocks> {
        None
    }

    /// The positions, ascending, of the elements that the last message sends. `None`: it sends something of every element,
    /// and the momentum of none ends.
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

/// Ranges of elements that are decoded begin at multiples of this many, 1024.
pub(crate) const RANGE_UNIT: usize = codes::BLOCK;

/// A compressor whose messages hold some blocks of 64 elements, bit for bit, and say that all others
/// are zero. Whoever knows which blocks can be other than zero spares it, and the exchange, the work
/// of looking through all of them.
#[doc(hidden)]
pub trait SparseBlocks: Compressor {
    /// As [`encode`](Compressor::encode), the same message, of a gradient that is zero outside the
    /// blocks that have a bit in `support`.
    fn encode_within(
        &mut self,
        gradient: &[f32],
        support: &[u64],
        step: u64,
        out: &mut Vec<u8>,
    ) -> Encoded;

    /// Visits the numbers of the blocks that a message holds, in ascending order, each once and
    /// within the bucket.
    ///
    /// # Errors
    /// [`Error::Wire`](crate::Error::Wire) when the bytes are not a message; some may have been visited by then.
    fn each_block(&self, wire: &[u8], visit: &mut dyn FnMut(usize)) -> Result<()>;
}

/// What became of a call of [`Compressor::encode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoded {
    /// The message has been appended.
    Message,
    /// This gradient cannot be encoded: it would decode to numbers beyond the range of f32. The
    /// caller has to discard what has been appended, and to send the bucket as plain f32.
    Dense,
}

/// One step of one bucket, as every rank that receives the messages knows it after the exchange.
#[derive(Debug, Clone, Copy)]
pub struct StepMessages<'a> {
    /// The step, as [`Compressor::encode`] counts.
    pub step: u64,
    /// Every rank's message, in order of rank; `None` where it was sent as plain f32, or did not reach this rank whole.
    pub messages: &'a [Option<&'a [u8]>],
    /// The mean gradient of the bucket.
    pub mean: &'a [f32],
}

/// The end of a successful step of one bucket.
#[derive(Debug, Clone, Copy)]
pub struct StepEnd<'a> {
    /// The step, as [`Compressor::encode`] counts.
    pub step: u64,
    /// The number of ranks whose messages made the mean.
    pub ranks: usize,
    /// The mean gradient of the bucket.
    pub mean: &'a [f32],
}
