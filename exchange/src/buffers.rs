//! Buffers of messages, used again once no other rank reads them any more.

use crate::collective::Payload;

/// The buffers of one group of buckets on one rank.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    messages: Spare,
    plain: Spare,
    bytes: Spare,
    results: Spare,
    /// The mean of one piece of a shard.
    pub(crate) mean: Vec<f32>,
}

/// Messages of one kind that went out, oldest first.
///
/// The youngest that all ranks have let go of is written over first: it is the one that a cache may
/// still hold.
#[derive(Debug, Default)]
struct Spare(Vec<Payload>);

/// Messages that may still be read when the next is written. All ranks have read the one before the
/// last when the last is answered.
const KEPT: usize = 3;

impl Spare {
    fn take(&mut self) -> Vec<u8> {
        let free = self.0.iter().rposition(Payload::is_unshared);
        let mut buffer = free.and_then(|free| self.0.remove(free).reclaim()).unwrap_or_default();
        buffer.clear();
        buffer
    }

    fn keep(&mut self, sent: Option<Payload>) {
        self.0.extend(sent);
        if self.0.len() > KEPT {
            self.0.remove(0);
        }
    }
}

impl Buffers {
    /// An empty buffer for a message about buckets.
    pub(crate) fn messages(&mut self) -> Vec<u8> {
        self.messages.take()
    }

    /// Takes such a message, to be used again.
    pub(crate) fn keep_messages(&mut self, sent: Option<Payload>) {
        self.messages.keep(sent);
    }

    /// An empty buffer for plain values.
    pub(crate) fn plain(&mut self) -> Vec<u8> {
        self.plain.take()
    }

    /// Takes such a message, to be used again.
    pub(crate) fn keep_plain(&mut self, sent: Option<Payload>) {
        self.plain.keep(sent);
    }

    /// An empty buffer for bytes of reducers.
    pub(crate) fn bytes(&mut self) -> Vec<u8> {
        self.bytes.take()
    }

    /// Takes such a message, to be used again.
    pub(crate) fn keep_bytes(&mut self, sent: Option<Payload>) {
        self.bytes.keep(sent);
    }

    /// An empty buffer for the mean of a shard.
    pub(crate) fn results(&mut self) -> Vec<u8> {
        self.results.take()
    }

    /// Takes such a message, to be used again.
    pub(crate) fn keep_results(&mut self, sent: Option<Payload>) {
        self.results.keep(sent);
    }
}
