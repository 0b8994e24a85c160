//! What the server does with the messages of a round.

use std::time::Duration;

use crate::bucket::{Bucket, Item};
use crate::collective::Payload;
use crate::compress::{Compressor, Encoded, Feedback, FeedbackRule, StepEnd, StepMessages, sparse};
use crate::cpu::Stopwatch;
use crate::group::StepContext;
use crate::topology::{Downlink, Setup};
use crate::wire::downlink::{self, Form};
use crate::wire::values::Format;
use crate::wire::{Frame, Kind, Reader, floats};
use crate::{Error, Layout, Result, Scheme, State};

/// Averages the ranks' messages, and says what came of it.
pub(in crate::topology) struct Aggregator {
    world_size: usize,
    layout: Layout,
    /// Of each bucket, whether it is averaged here.
    owned: Vec<bool>,
    /// Steps at the beginning that come back exact.
    warmup_steps: u64,
    downlink: Downlink,
    /// The buckets, each with a compressor that reads the ranks' messages and, for a compressed
    /// downlink, writes the server's.
    buckets: Vec<Bucket>,
    /// The mean of the step, as ranks take it.
    mean: Vec<f32>,
    feedback: Option<Feedback>,
    /// Of the step under way: its number, and the answer about each bucket so far.
    step: u64,
    answers: Vec<BucketAnswer>,
    positions: Vec<u32>,
    /// The mean of what reducers posted.
    values: Vec<f32>,
    took: Duration,
}

/// The server's answer about a bucket in this step.
#[derive(Debug, Clone, Default)]
struct BucketAnswer {
    given: bool,
    /// The message, if it was compressed.
    message: Option<Vec<u8>>,
    /// A buffer for the next.
    spare: Vec<u8>,
}

impl Aggregator {
    /// For the buckets that are `owned`.
    pub(in crate::topology) fn new(setup: &Setup<'_>, owned: Vec<bool>) -> Self {
        let Setup { world_size, policy, scheme, layout, .. } = *setup;
        let downlink = setup.wiring.downlink.unwrap_or_default();
        let buckets: Vec<Bucket> = setup.buckets(world_size);
        let feeds_back =
            downlink == Downlink::Compressed && policy.schemes(scheme).any(Scheme::feedback);
        Self {
            world_size,
            layout: layout.clone(),
            owned,
            warmup_steps: policy.warmup_steps.unwrap_or(0),
            downlink,
            answers: vec![BucketAnswer::default(); buckets.len()],
            buckets,
            mean: vec![0.0; layout.len()],
            feedback: feeds_back.then(|| {
                let fades = Some(FeedbackRule::Decay(policy.decay()));
                Feedback::of(fades, 0.0, layout.len())
            }),
            step: 0,
            positions: Vec::new(),
            values: Vec::new(),
            took: Duration::ZERO,
        }
    }

    /// Writes the answer to the ranks' messages; false when they cannot be averaged. Nothing that
    /// lasts changes before the step's last bucket has been answered, which `ends` the step, or has to be
    /// told ([`end`](Self::end)).
    pub(in crate::topology) fn serve(
        &mut self,
        messages: &[Payload],
        answer: &mut Vec<u8>,
        ends: bool,
    ) -> bool {
        let start = Stopwatch::start();
        let served = self.serve_round(messages, answer) && !(ends && self.end(self.step).is_err());
        (_, self.took) = start.read();
        served
    }

    /// What the server's thread computed in the last round.
    pub(super) fn last_took(&self) -> Duration {
        self.took
    }

    fn serve_round(&mut self, messages: &[Payload], answer: &mut Vec<u8>) -> bool {
        let Some((step, items)) = self.asked(messages) else { return false };
        let (rank, world_size) = (self.world_size, self.world_size);
        let context = StepContext { rank, world_size, step, group: 1 };
        let Ok(frames) = context.open(&items, messages) else { return false };
        if items.iter().any(|item| item.kind == Kind::Values) {
            return self.average_values(context, &items, &frames, answer);
        }
        if step != self.step || items.iter().any(|item| self.answers[item.bucket].given) {
            self.begin(step);
        }
        for (index, item) in items.iter().enumerate() {
            let of_ranks = || frames[index..].iter().step_by(items.len());
            let (bucket, mean) = (&mut self.buckets[item.bucket], &mut self.mean);
            let averaged = context.average(bucket, *item, of_ranks(), false, mean);
            if averaged != Ok(None)
                || self.answer_bucket(context, item.bucket, of_ranks(), answer).is_err()
            {
                return false;
            }
        }
        true
    }

    /// Averages values of reducers, and buckets that are plain beside them: neither is kept.
    fn average_values(
        &mut self,
        context: StepContext,
        items: &[Item],
        frames: &[Frame<'_>],
        answer: &mut Vec<u8>,
    ) -> bool {
        items.iter().enumerate().all(|(index, item)| {
            let of_ranks = frames[index..].iter().step_by(items.len());
            self.values.clear();
            self.values.resize(item.length, 0.0);
            let averaged = context.mean_of_values(of_ranks, &mut self.values);
            let open = context.header_of(Kind::Downlink, *item).open(answer);
            let form_at = answer.len();
            answer.push(0);
            answer[form_at] = put_exact(&self.values, &mut self.positions, answer) as u8;
            downlink::close(answer.len(), answer);
            open.close(Kind::Downlink, answer);
            averaged == Ok(None)
        })
    }

    /// The step and the items that rank 0 speaks of.
    fn asked(&self, messages: &[Payload]) -> Option<(u64, Vec<Item>)> {
        let mut reader = Reader::new(messages.first()?);
        let (mut step, mut items) = (None, Vec::<Item>::new());
        while !reader.rest().is_empty() {
            let Frame { header, payload } = Frame::split(&mut reader).ok()?.frame;
            let (number, round) = header.place();
            let bucket = self.buckets.get(number)?;
            let item = match header.kind {
                Kind::Values => Item::values(number, payload.len() / size_of::<f32>(), round),
                _ => Item { round, ..Item::gradient(number, bucket, false) },
            };
            let again = |other: &Item| (other.bucket, other.kind) == (item.bucket, item.kind);
            if items.iter().any(again) {
                return None;
            }
            step = Some(header.step);
            items.push(item);
        }
        Some((step?, items))
    }

    /// Begins a step; answers of one that came to no end are forgotten.
    fn begin(&mut self, step: u64) {
        self.step = step;
        for answer in &mut self.answers {
            answer.given = false;
            if let Some(message) = answer.message.take() {
                answer.spare = message;
            }
        }
    }

    /// Appends the frame about one bucket, whose mean is in context.
    fn answer_bucket<'a>(
        &mut self,
        context: StepContext,
        number: usize,
        frames: impl Iterator<Item = &'a Frame<'a>>,
        answer: &mut Vec<u8>,
    ) -> Result<()> {
        let open = context.header(Kind::Downlink, number).open(answer);
        let (form_at, mean_at) = (answer.len(), answer.len() + 1);
        answer.push(Form::Compressed as u8);
        let warm = context.step > self.warmup_steps;
        let compresses = self.downlink == Downlink::Compressed && warm;
        if !(compresses && self.compress(context.step, number, answer)?) {
            answer.truncate(mean_at);
            let mean = self.buckets[number].elements(&self.mean);
            answer[form_at] = put_exact(mean, &mut self.positions, answer) as u8;
        }
        let summary_at = answer.len();
        let bucket = &mut self.buckets[number];
        let mean = bucket.elements(&self.mean);
        if let Some(compressor) = bucket.codec_mut() {
            let messages: Vec<Option<&[u8]>> = frames.map(Frame::compressed).collect();
            let round = StepMessages { step: context.step, messages: &messages, mean };
            compressor.summarise(&round, answer)?;
        }
        downlink::close(summary_at, answer);
        open.close(Kind::Downlink, answer);
        self.answers[number].given = true;
        Ok(())
    }

    /// Appends a bucket's mean plus the server's residual (if it has one), compressed, and
    /// overwrites the mean by what that decodes to. Returns false when the bucket has to be sent
    /// exactly; the mean then holds what to send.
    fn compress(&mut self, step: u64, number: usize, answer: &mut Vec<u8>) -> Result<bool> {
        let bucket = &mut self.buckets[number];
        let range = bucket.range.clone();
        let Some(compressor) = bucket.codec_mut() else { return Ok(false) };
        let due = &mut self.mean[range.clone()];
        if let Some(feedback) = &mut self.feedback {
            if !feedback.begin(range.clone(), due, 1.0) {
                // The sum overflows: the mean goes out by itself, the rest stays pending.
                feedback.skip(range);
                return Ok(false);
            }
            due.copy_from_slice(&feedback.with_residual()[range.clone()]);
        }
        let at = answer.len();
        let encoded = compressor.encode(due, step, answer);
        if encoded == Encoded::Dense || answer.len() - at > size_of_val(due) {
            if let Some(feedback) = &mut self.feedback {
                feedback.pending()[range].fill(0.0);
            }
            return Ok(false);
        }
        let message = &answer[at..];
        if let Some(feedback) = &mut self.feedback {
            decode(compressor, message, -1.0, &mut feedback.pending()[range]);
        }
        due.fill(0.0);
        decode(compressor, message, 1.0, due);
        let kept_answer = &mut self.answers[number];
        let mut kept = std::mem::take(&mut kept_answer.spare);
        kept.clear();
        kept.extend_from_slice(message);
        kept_answer.message = Some(kept);
        Ok(true)
    }

    /// Ends the step, if it is the one under way and all of it has been answered.
    pub(in crate::topology) fn end(&mut self, step: u64) -> Result<()> {
        let mut answers = self.answers.iter().zip(&self.owned);
        let complete = answers.all(|(answer, owned)| answer.given || !owned);
        if complete && step == self.step { self.finish() } else { Ok(()) }
    }

    /// Ends a step in which every bucket has been answered: takes up the residual, and lets the
    /// compressors learn from what the server sent.
    fn finish(&mut self) -> Result<()> {
        if self.downlink != Downlink::Compressed {
            return Ok(());
        }
        let step = self.step;
        let all = self.buckets.iter_mut().zip(&self.answers).zip(&self.owned);
        for ((bucket, answer), _) in all.filter(|(_, owned)| **owned) {
            let mean = bucket.elements(&self.mean);
            let Some(compressor) = bucket.codec_mut() else { continue };
            let messages = [answer.message.as_deref()];
            compressor.learn_from_messages(&StepMessages { step, messages: &messages, mean })?;
        }
        // From here on nothing can fail.
        if let Some(feedback) = self.feedback.as_mut().filter(|_| step > self.warmup_steps) {
            // Buckets without a compressor have nothing pending, and those of others nothing here.
            for (bucket, owned) in self.buckets.iter().zip(&self.owned) {
                if bucket.codec().is_none() || !owned {
                    feedback.skip(bucket.range.clone());
                }
            }
            Bucket::keep_unsent(&self.buckets, feedback);
        }
        for (bucket, _) in self.buckets.iter_mut().zip(&self.owned).filter(|(_, owned)| **owned) {
            let mean = bucket.elements(&self.mean);
            if let Some(compressor) = bucket.codec_mut() {
                compressor.commit(&StepEnd { step, ranks: 1, mean });
            }
        }
        Ok(())
    }

    /// The residual and the compressors' entries; nothing with an exact downlink.
    pub(in crate::topology) fn save(&self) -> State {
        let mut state = State::default();
        if self.downlink == Downlink::Compressed {
            Bucket::save_all(&self.buckets, &self.owned, &mut state);
            if let Some(feedback) = &self.feedback {
                feedback.save(&self.layout, &mut state);
            }
        }
        state
    }

    /// Takes up what [`save`](Self::save) returned.
    pub(in crate::topology) fn restore(&mut self, state: &State) -> Result<()> {
        if self.downlink != Downlink::Compressed {
            let problem = "would be lost: this server sends exact means".to_string();
            let entry = super::SCOPE.to_string();
            return if state.is_empty() { Ok(()) } else { Err(Error::State { entry, problem }) };
        }
        Feedback::restore(self.feedback.as_mut(), &self.layout, state)?;
        if let Some(feedback) = &mut self.feedback {
            let others = self.buckets.iter().zip(&self.owned).filter(|(_, owned)| !**owned);
            others.for_each(|(bucket, _)| feedback.forget(bucket.range.clone()));
        }
        Bucket::restore_all(&mut self.buckets, &self.owned, state)?;
        self.begin(0);
        Ok(())
    }
}

/// Appends the mean as it is, in the shorter form.
fn put_exact(mean: &[f32], positions: &mut Vec<u32>, out: &mut Vec<u8>) -> Form {
    let at = out.len();
    let support = mean.iter().filter(|value| value.to_bits() != 0).count();
    if support < mean.len() {
        positions.clear();
        let places = mean.iter().enumerate().filter(|(_, value)| value.to_bits() != 0);
        positions.extend(places.map(|(position, _)| position as u32));
        sparse::put(positions, mean, Format::F32, out);
        if out.len() - at < size_of_val(mean) {
            return Form::Sparse;
        }
        out.truncate(at);
    }
    floats::put(mean, out);
    Form::Dense
}

fn decode(compressor: &dyn Compressor, message: &[u8], weight: f32, sum: &mut [f32]) {
    compressor
        .decode_add(message, 0..sum.len(), weight, sum)
        .expect("invariant: a compressor reads its own message");
}
