//! Writes a group's messages: all that is sent about it but what reducers post in rounds.

use std::ops::Range;
use std::time::Duration;

use super::Exchange;
use crate::compress::{Built, Compressor, Encoded, Feedback};
use crate::group::{Bucket, Item, Member, StepContext};
use crate::measure::Distortion;
use crate::traffic::{Leg, Stopwatch};
use crate::wire::frame::HEADER_BYTES;
use crate::wire::{Kind, floats};
use crate::{Error, Result};

/// What a rank is about to send of a group.
#[derive(Default)]
pub(super) struct Outgoing {
    /// What the message is about: buckets with a compressor, and the plain ones that travel with
    /// them.
    pub(super) items: Vec<Item>,
    pub(super) message: Vec<u8>,
    /// Plain buckets that are averaged by themselves, and their values.
    pub(super) plain: Vec<Item>,
    pub(super) values: Vec<u8>,
    /// Buckets with a reducer, whose rounds follow.
    pub(super) reduced: Vec<usize>,
    /// The part of the encoding time that measuring took.
    pub(super) measuring: Duration,
}

impl Outgoing {
    /// Bytes of the items, the plain ones and those of rounds as plain f32, headers included.
    pub(super) fn dense_bytes(&self, buckets: &[Bucket]) -> [u64; 3] {
        let bytes = |number: usize| (HEADER_BYTES + 4 * buckets[number].length()) as u64;
        let all = |items: &[Item]| items.iter().map(|item| bytes(item.bucket)).sum();
        [all(&self.items), all(&self.plain), self.reduced.iter().map(|number| bytes(*number)).sum()]
    }
}

impl Exchange {
    /// Whether compression has begun at `step`: the first steps may be plain f32.
    pub(super) fn compresses_at(&self, step: u64) -> bool {
        step > self.policy.warmup_steps.unwrap_or(0)
    }

    /// Overwrites what is due of a group of buckets by its mean over the ranks that speak as one. Returns this rank's own
    /// error, if any, which it has to tell the others.
    pub(super) fn average_within(
        &mut self,
        context: StepContext,
        group: usize,
        gradient: &mut [f32],
        leg: &mut Leg,
    ) -> Result<Option<Error>> {
        let Member { layout, buckets, feedback, collective, .. } = &mut self.member;
        if context.ranks_per_group == 1 {
            return Ok(None);
        }
        let ranges = || self.groups[group].iter().map(|number| buckets[*number].range.clone());
        let due = match feedback {
            Some(feedback) => feedback.due_mut(),
            None => &mut *gradient,
        };
        let mut values = Vec::with_capacity(ranges().map(|range| range.len()).sum());
        ranges().for_each(|range| values.extend_from_slice(&due[range]));
        if !floats::all_finite(&values) {
            return Ok(Some(self.non_finite(context, group, gradient)));
        }
        let sent = Stopwatch::start();
        let overflow = collective.mean_within(context.step, group, &mut values)?;
        leg.add_wait(sent);
        let mut at = 0;
        for range in ranges() {
            let length = range.len();
            if let Some(element) = overflow.filter(|element| (at..at + length).contains(element)) {
                let (parameter, index) = layout.name(range.start + element - at);
                return Ok(Some(Error::NonFiniteMean { step: context.step, parameter, index }));
            }
            due[range].copy_from_slice(&values[at..at + length]);
            at += length;
        }
        Ok(None)
    }

    /// What is sent of a group, and in which form, before anything is written.
    pub(super) fn prepare(&mut self, step: u64, group: usize) -> Outgoing {
        let compresses = self.compresses_at(step);
        let apart = self.route.sums_apart(&mut self.member.collective);
        let mut outgoing = Outgoing::default();
        for number in &self.groups[group] {
            let bucket = &self.member.buckets[*number];
            let item = Item::gradient(*number, bucket, !compresses);
            match bucket.engine {
                Built::Reducer(_) if compresses => outgoing.reduced.push(*number),
                _ if item.plain && apart => outgoing.plain.push(item),
                _ => outgoing.items.push(item),
            }
        }
        let buffers = &mut self.member.buffers[group];
        if !outgoing.items.is_empty() {
            outgoing.message = buffers.messages.take();
        }
        if !outgoing.plain.is_empty() {
            outgoing.values = buffers.plain.take();
        }
        outgoing
    }

    /// Writes one frame for each bucket of a group that is sent in one message, and prepares their
    /// new residual. When it fails with [`Error::NonFinite`], nothing that lasts has been touched.
    pub(super) fn encode(
        &mut self,
        context: StepContext,
        group: usize,
        gradient: &mut [f32],
        leg: &mut Leg,
        outgoing: &mut Outgoing,
    ) -> Result<()> {
        let apart = self.route.sums_apart(&mut self.member.collective);
        if outgoing.reduced.is_empty() && outgoing.items.iter().all(|item| item.plain) {
            let values = if apart { &mut outgoing.values } else { &mut outgoing.message };
            values.reserve(leg.dense_bytes as usize);
        }
        let Outgoing { items, message, plain, values, .. } = outgoing;
        let coded = self.write_items(context, gradient, leg, items, message);
        // Plain buckets are not measured.
        let measuring =
            coded.filter(|_| self.write_items(context, gradient, leg, plain, values).is_some());
        match measuring {
            Some(took) => outgoing.measuring = took,
            None => return Err(self.non_finite(context, group, gradient)),
        }
        Ok(())
    }

    /// Clips this rank's gradient and forms what is due of a group; false if any of it is not finite. Without feedback, plain
    /// values are not looked at here: copying them checks them.
    pub(super) fn form_due(&mut self, group: usize, gradient: &mut [f32]) -> bool {
        let scale = self.clipping(gradient);
        let group = &self.groups[group];
        let Some(feedback) = &mut self.member.feedback else {
            if scale != 1.0 {
                gradient.iter_mut().for_each(|value| *value *= scale);
            }
            return group.iter().all(|number| {
                let bucket = &self.member.buckets[*number];
                let checks = match &bucket.engine {
                    Built::Plain => true,
                    Built::Codec(compressor) => compressor.checks(),
                    Built::Reducer(_) => false,
                };
                checks || floats::all_finite(bucket.elements(gradient))
            });
        };
        // All of them are prepared, whatever is found, for `non_finite` reads them all.
        group.iter().fold(true, |finite, number| {
            let bucket = &self.member.buckets[*number];
            feedback.begin(bucket.range.clone(), bucket.elements(gradient), scale) & finite
        })
    }

    /// Writes the frames of some items to `out`; the time that measuring took, or `None` when a value is not finite.
    fn write_items(
        &mut self,
        context: StepContext,
        gradient: &[f32],
        leg: &mut Leg,
        items: &[Item],
        out: &mut Vec<u8>,
    ) -> Option<Duration> {
        let mut measuring = Duration::ZERO;
        let member = &mut self.member;
        for item in items {
            let bucket = &mut member.buckets[item.bucket];
            let due = member.feedback.as_ref().map(Feedback::due);
            // What an earlier gradient has left over may lie anywhere.
            let zeros = due.is_none().then_some(&member.zeros);
            let (range, source) = (bucket.range.clone(), bucket.elements(due.unwrap_or(gradient)));
            // The kind is settled at the end.
            let open = context.header_of(Kind::Dense, *item).open(out);
            let payload_at = open.payload_at();
            let (mut kind, mut checksum) = (Kind::Dense, None);
            if let Some(compressor) = bucket.codec_mut().filter(|_| !item.plain) {
                let words = zeros.and_then(|zeros| zeros.words(&range));
                let blocks = words.zip(compressor.sparse_blocks());
                let encoded = match blocks {
                    Some((words, blocks)) => {
                        blocks.encode_within(source, words, context.exchange, out)
                    }
                    None => compressor.encode(source, context.exchange, out),
                };
                if encoded == Encoded::Dense || out.len() - payload_at > size_of_val(source) {
                    out.truncate(payload_at);
                    leg.dense_fallbacks += 1;
                } else {
                    kind = Kind::Compressed;
                }
                if let Some(distortion) = &mut self.distortion {
                    let message = (kind == Kind::Compressed).then(|| &out[payload_at..]);
                    measuring += measure(distortion, item.bucket, compressor, source, message);
                }
            }
            if kind == Kind::Dense {
                let at = range.start;
                let known = zeros.filter(|zeros| zeros.words(&range).is_some());
                let zero = |part: Range<usize>| {
                    known.is_some_and(|zeros| zeros.are_all(at + part.start..at + part.end))
                };
                checksum = Some(floats::put_checked(source, zero, out)?);
            }
            if let Some(feedback) = &mut member.feedback {
                let message = (kind == Kind::Compressed).then(|| &out[payload_at..]);
                subtract_sent(feedback, bucket, message, self.masks);
            }
            match checksum {
                Some(checksum) => open.close_with(kind, &checksum, out),
                None => open.close(kind, out),
            }
        }
        Some(measuring)
    }

    /// What local clipping multiplies this rank's gradient by.
    fn clipping(&self, gradient: &[f32]) -> f32 {
        let Some(limit) = self.policy.clip_norm.filter(|limit| *limit > 0.0) else { return 1.0 };
        let limit = limit / (self.member.collective.all.world_size() as f64).sqrt();
        let norm = floats::norm(gradient);
        if norm > limit { (limit / norm) as f32 } else { 1.0 }
    }

    /// The error that names the first element of a group that is not finite: in the gradient, or else in what is due.
    pub(super) fn non_finite(&self, context: StepContext, group: usize, gradient: &[f32]) -> Error {
        let due = self.member.feedback.as_ref().map(Feedback::due);
        let either = [(false, gradient), (true, due.unwrap_or(&[]))];
        let first = |values: &[f32]| {
            let ranges =
                self.groups[group].iter().map(|number| self.member.buckets[*number].range.clone());
            let positions = ranges.filter_map(|range| {
                let start = range.start;
                Some(start + floats::first_non_finite(values.get(range)?)?)
            });
            positions.min()
        };
        let (corrected, position) = either
            .into_iter()
            .find_map(|(corrected, values)| Some((corrected, first(values)?)))
            .expect("invariant: a value was seen to be non-finite");
        let (parameter, index) = self.member.layout.name(position);
        let (rank, step) = (self.member.collective.all.rank(), context.step);
        Error::NonFinite { rank, step, corrected, parameter, index }
    }
}

/// Measures how far a message, none where the gradient was sent as it is, is from the gradient; the time that this took.
fn measure(
    distortion: &mut Distortion,
    bucket: usize,
    compressor: &dyn Compressor,
    gradient: &[f32],
    message: Option<&[u8]>,
) -> Duration {
    distortion.add(bucket, gradient, |unsent| {
        let Some(message) = message else { return unsent.fill(0.0) };
        compressor
            .decode_add(message, 0, -1.0, unsent)
            .expect("invariant: a compressor reads its own message");
    })
}

/// Subtracts what was sent from what is due of a bucket, which leaves its next residual: what the message decodes to, or everything
/// if the bucket was sent plain or keeps no residual. With `masks`, the velocity of the elements sent becomes zero.
fn subtract_sent(feedback: &mut Feedback, bucket: &Bucket, message: Option<&[u8]>, masks: bool) {
    let unsent = bucket.elements_mut(feedback.due_mut());
    let message = message.filter(|_| bucket.feeds_back);
    match (message, bucket.codec()) {
        (Some(message), Some(compressor)) => compressor
            .decode_add(message, 0, -1.0, unsent)
            .expect("invariant: a compressor reads its own message"),
        _ => unsent.fill(0.0),
    }
    let sent = bucket.codec().filter(|_| message.is_some()).and_then(Compressor::sent);
    if let Some(sent) = sent.filter(|_| masks) {
        sent.iter().for_each(|element| feedback.mask(bucket.range.start + *element as usize));
    }
}
