//! Writing a rank's message about a group of buckets.

use std::time::Duration;

use super::standing::Standing;
use super::{Buffer, Exchange};
use crate::Error;
use crate::bucket::Bucket;
use crate::compress::{Encoded, Feedback};
use crate::error::Quantity;
use crate::incoming::Place;
use crate::traffic::Leg;
use crate::wire::frame::HEADER_BYTES;
use crate::wire::{Kind, floats};

impl Exchange {
    /// Writes one frame for each bucket of a group into `mine`, and prepares their new residual;
    /// returns what of this is time spent on measuring. `None` when the group's gradient is not
    /// finite; then nothing that lasts has been touched.
    pub(super) fn encode(
        &mut self,
        place: Place,
        gradient: &mut [f32],
        leg: &mut Leg,
        mine: &mut Buffer,
    ) -> Option<Duration> {
        self.buckets.iter_mut().for_each(|bucket| bucket.by_blocks = false);
        if self.stands(gradient) {
            return self.encode_standing(place, gradient, mine);
        }
        mine.standing = None;
        let mine = &mut mine.bytes;
        mine.clear();
        let step = place.step;
        let group = &self.groups[leg.group];
        let plain = group.iter().all(|number| self.buckets[*number].compressor.is_none());
        let checks = |bucket: &Bucket| bucket.compressor.as_ref().is_none_or(|c| c.checks());
        let checked = group.iter().all(|number| checks(&self.buckets[*number]));
        let scale = self.clipping(gradient);
        let ranges = || group.iter().flat_map(|number| self.buckets[*number].ranges.iter());
        let finite = match &mut self.feedback {
            Some(feedback) => ranges().fold(true, |finite, range| {
                feedback.correct(range.clone(), gradient, scale) & finite
            }),
            None => {
                if scale != 1.0 {
                    gradient.iter_mut().for_each(|value| *value *= scale);
                }
                // Plain frames are checked while they are copied.
                checked || ranges().all(|range| floats::all_finite(&gradient[range.clone()]))
            }
        };
        if !finite {
            return None;
        }
        if plain {
            mine.reserve(leg.dense_bytes as usize);
        }
        let warm = step > self.policy.warmup_steps.unwrap_or(0);
        let measures = self.policy.measures(step);
        let masks = self.policy.momentum() > 0.0 && self.policy.momentum_masking.unwrap_or(true);
        let mut measuring = Duration::ZERO;
        for number in group {
            let bucket = &mut self.buckets[*number];
            // What an earlier gradient has left over may lie anywhere.
            let whole = self.feedback.is_none() && bucket.is_all_of(gradient);
            let support = self.support.as_ref().filter(|_| whole);
            let corrected = self.feedback.as_ref().map(Feedback::corrected);
            let (source, compressor) = bucket.view(corrected.unwrap_or(gradient));
            let open = place.header(Kind::Dense, *number).open(mine);
            let payload_at = open.payload_at();
            let (mut kind, mut checksum) = (Kind::Dense, None);
            if let Some(compressor) = compressor.filter(|_| warm) {
                let encoded = match support {
                    Some(support) => compressor.encode_within(source, support.words(), step, mine),
                    None => compressor.encode(source, step, mine),
                };
                if encoded == Encoded::Dense || mine.len() - payload_at > size_of_val(source) {
                    mine.truncate(payload_at);
                    leg.dense_fallbacks += 1;
                } else {
                    kind = Kind::Compressed;
                }
                if measures {
                    let message = &mine[payload_at..];
                    measuring += self.distortion.add(*number, &**compressor, source, message);
                }
            }
            if kind == Kind::Dense {
                checksum = Some(floats::put_checked(source, mine)?);
            }
            if let Some(feedback) = &mut self.feedback {
                let message = (kind == Kind::Compressed).then(|| &mine[payload_at..]);
                take_off(feedback, bucket, message, masks);
            }
            match checksum {
                Some(checksum) => open.close_with(kind, &checksum, mine),
                None => open.close(kind, mine),
            }
        }
        Some(measuring)
    }

    /// The same where the message can be what an earlier one was, but for what has changed: that of
    /// a whole gradient, plain, of which a part is known to be zero.
    fn encode_standing(
        &self,
        place: Place,
        gradient: &[f32],
        mine: &mut Buffer,
    ) -> Option<Duration> {
        let support = self.support.as_ref()?;
        let zeros = || {
            mine.bytes.clear();
            mine.bytes.resize(HEADER_BYTES + size_of_val(gradient), 0);
            Standing::zeros(gradient.len())
        };
        let mut standing = mine.standing.take().unwrap_or_else(zeros);
        let open = place.header(Kind::Dense, 0).reopen(0, &mut mine.bytes);
        let payload = &mut mine.bytes[open.payload_at()..];
        let checksum = standing.write(gradient, support.words(), payload)?;
        open.close_with(Kind::Dense, &checksum, &mut mine.bytes);
        mine.standing = Some(standing);
        Some(Duration::ZERO)
    }

    /// Whether this can be.
    fn stands(&self, gradient: &[f32]) -> bool {
        let whole = matches!(self.buckets.as_slice(), [bucket] if bucket.is_all_of(gradient));
        let partial = self.support.as_ref().is_some_and(|support| !support.is_everything());
        whole && partial && self.is_dense() && !self.clips()
    }

    /// What local clipping multiplies this rank's gradient by.
    fn clipping(&self, gradient: &[f32]) -> f32 {
        let Some(limit) = self.policy.clip_norm.filter(|limit| *limit > 0.0) else { return 1.0 };
        let limit = limit / (self.collective.world_size() as f64).sqrt();
        let norm = floats::norm(gradient);
        if norm > limit { (limit / norm) as f32 } else { 1.0 }
    }

    /// Where a group of this rank's gradient, or its sum with the residual, is not finite.
    pub(super) fn non_finite(&self, place: Place, group: usize, gradient: &[f32]) -> Error {
        let corrected = self.feedback.as_ref().map(Feedback::corrected);
        let places =
            [(Quantity::Gradient, gradient), (Quantity::Corrected, corrected.unwrap_or(&[]))];
        let first = |values: &[f32]| {
            let buckets = self.groups[group].iter().map(|number| &self.buckets[*number]);
            let ranges = buckets.flat_map(|bucket| bucket.ranges.iter());
            let positions = ranges.filter_map(|range| {
                Some(range.start + floats::first_non_finite(values.get(range.clone())?)?)
            });
            positions.min()
        };
        let (quantity, position) = places
            .into_iter()
            .find_map(|(quantity, values)| Some((quantity, first(values)?)))
            .expect("invariant: a value was seen to be non-finite");
        let (parameter, index) = self.layout.name(position);
        Error::NonFinite { rank: place.rank, step: place.step, quantity, parameter, index }
    }
}

/// Takes off a bucket's unsaid part what its message says, or everything if it was sent as it is;
/// with `masks`, the momentum of what a message speaks of ends.
fn take_off(feedback: &mut Feedback, bucket: &mut Bucket, message: Option<&[u8]>, masks: bool) {
    bucket.change(feedback.unsaid(), |unsaid, compressor| match (message, compressor) {
        (Some(message), Some(compressor)) => compressor
            .decode_add(message, -1.0, unsaid)
            .expect("invariant: a compressor reads its own message"),
        _ => unsaid.fill(0.0),
    });
    let sent = bucket.compressor.as_ref().filter(|_| message.is_some()).and_then(|c| c.sent());
    if let Some(sent) = sent.filter(|_| masks) {
        sent.iter().for_each(|element| feedback.mask(bucket.position(*element as usize)));
    }
}
