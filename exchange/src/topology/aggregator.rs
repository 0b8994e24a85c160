//! What an owner does with the messages about its buckets.

use crate::compress::{Compressor, Encoded, Feedback, FeedbackRule, StepEnd, StepMessages, sparse};
use crate::group::{Bucket, Item, StepContext};
use crate::topology::{Downlink, Setup};
use crate::wire::Format;
use crate::wire::downlink::{self, Form};
use crate::wire::{Frame, Kind, floats};
use crate::{Error, Layout, Result, Scheme, State};

/// Averages what ranks say of the buckets of one owner, and says what came of it.
pub(crate) struct Aggregator {
    layout: Layout,
    /// Of each bucket, whether it is averaged here and has something to compress it by.
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
    /// Of the step under way: whether each bucket has been answered.
    answered: Vec<bool>,
    positions: Vec<u32>,
    /// The mean of what reducers posted.
    values: Vec<f32>,
}

impl Aggregator {
    /// For the buckets that are `owned`. One that the scheme or a rule leaves plain is averaged and never answered: there
    /// is nothing to keep of it.
    pub(super) fn new(setup: &Setup<'_>, mut owned: Vec<bool>) -> Self {
        let Setup { world_size, policy, scheme, layout, .. } = *setup;
        let downlink = setup.wiring.downlink.unwrap_or_default();
        let buckets: Vec<Bucket> = setup.buckets(world_size);
        owned.iter_mut().zip(&buckets).for_each(|(owned, bucket)| *owned &= !bucket.is_plain());
        let feeds_back =
            downlink == Downlink::Compressed && policy.schemes(scheme).any(Scheme::feedback);
        Self {
            layout: layout.clone(),
            owned,
            warmup_steps: policy.warmup_steps.unwrap_or(0),
            downlink,
            answered: vec![false; buckets.len()],
            buckets,
            mean: vec![0.0; layout.len()],
            feedback: feeds_back.then(|| {
                let fades = Some(FeedbackRule::Decay(policy.decay()));
                Feedback::of(fades, 0.0, layout.len())
            }),
            positions: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Writes the answer to the ranks' frames about `items`, which lie by rank; the first element of a mean
    /// that is not finite. Nothing that lasts changes before the step [ends](Self::end).
    pub(super) fn serve(
        &mut self,
        context: StepContext,
        items: &[Item],
        frames: &[Frame<'_>],
        answer: &mut Vec<u8>,
    ) -> Result<Option<(Item, usize)>> {
        let values = items.iter().any(|item| item.kind == Kind::Values);
        for (index, item) in items.iter().enumerate() {
            let of_ranks = || frames[index..].iter().step_by(items.len());
            let overflow = match values {
                true => self.answer_values(context, *item, of_ranks(), answer)?,
                false => {
                    let bucket = &mut self.buckets[item.bucket];
                    context.mean_of_bucket(bucket, *item, of_ranks(), false, &mut self.mean)?
                }
            };
            if let Some(element) = overflow {
                return Ok(Some((*item, element)));
            }
            if !values {
                self.answer_bucket(context, item.bucket, of_ranks(), answer)?;
            }
        }
        Ok(None)
    }

    /// Averages values of a reducer, which are not kept.
    fn answer_values<'a>(
        &mut self,
        context: StepContext,
        item: Item,
        frames: impl Iterator<Item = &'a Frame<'a>> + Clone,
        answer: &mut Vec<u8>,
    ) -> Result<Option<usize>> {
        self.values.clear();
        self.values.resize(item.length, 0.0);
        let overflow = context.mean_of_values(frames, &mut self.values)?;
        let open =
            context.header_of(Kind::Downlink, item).from_rank(context.world_size).open(answer);
        let form_at = answer.len();
        answer.push(0);
        answer[form_at] = put_exact(&self.values, &mut self.positions, answer) as u8;
        downlink::close(answer.len(), answer);
        open.close(Kind::Downlink, answer);
        Ok(overflow)
    }

    /// Begins a step; answers of one that came to no end are forgotten.
    pub(crate) fn begin(&mut self) {
        self.answered.fill(false);
    }

    /// Appends the frame about one bucket, whose mean has been taken; with a compressed downlink its compressor
    /// reads what it learns from that.
    fn answer_bucket<'a>(
        &mut self,
        context: StepContext,
        number: usize,
        frames: impl Iterator<Item = &'a Frame<'a>>,
        answer: &mut Vec<u8>,
    ) -> Result<()> {
        let header = context.header(Kind::Downlink, number).from_rank(context.world_size);
        let open = header.open(answer);
        let (form_at, mean_at) = (answer.len(), answer.len() + 1);
        answer.push(Form::Compressed as u8);
        let step = context.exchange;
        let learns = self.downlink == Downlink::Compressed;
        let warm = context.step > self.warmup_steps;
        let compressed = learns && warm && self.compress(step, number, answer);
        if !compressed {
            answer.truncate(mean_at);
            let mean = self.buckets[number].elements(&self.mean);
            answer[form_at] = put_exact(mean, &mut self.positions, answer) as u8;
        }
        let summary_at = answer.len();
        let bucket = &mut self.buckets[number];
        let mean = bucket.elements(&self.mean);
        if let Some(compressor) = bucket.codec_mut() {
            let messages: Vec<Option<&[u8]>> = frames.map(Frame::compressed).collect();
            compressor.summarise(&StepMessages { step, messages: &messages, mean }, answer)?;
            if learns {
                let messages = [compressed.then(|| &answer[mean_at..summary_at])];
                compressor.learn_from_messages(&StepMessages {
                    step,
                    messages: &messages,
                    mean,
                })?;
            }
        }
        downlink::close(summary_at, answer);
        open.close(Kind::Downlink, answer);
        self.answered[number] = true;
        Ok(())
    }

    /// Appends a bucket's mean plus the server's residual (if it has one), compressed, and
    /// overwrites the mean by what that decodes to. Returns false when the bucket has to be sent
    /// exactly; the mean then holds what to send.
    fn compress(&mut self, step: u64, number: usize, answer: &mut Vec<u8>) -> bool {
        let bucket = &mut self.buckets[number];
        let range = bucket.range.clone();
        let Some(compressor) = bucket.codec_mut() else { return false };
        let due = &mut self.mean[range.clone()];
        if let Some(feedback) = &mut self.feedback {
            if !feedback.begin(range.clone(), due, 1.0) {
                // The sum overflows: the mean goes out by itself, the rest stays pending.
                feedback.skip(range);
                return false;
            }
            due.copy_from_slice(&feedback.due()[range.clone()]);
        }
        let at = answer.len();
        let encoded = compressor.encode(due, step, answer);
        if encoded == Encoded::Dense || answer.len() - at > size_of_val(due) {
            if let Some(feedback) = &mut self.feedback {
                feedback.due_mut()[range].fill(0.0);
            }
            return false;
        }
        let message = &answer[at..];
        if let Some(feedback) = &mut self.feedback {
            decode(compressor, message, -1.0, &mut feedback.due_mut()[range]);
        }
        due.fill(0.0);
        decode(compressor, message, 1.0, due);
        true
    }

    /// Ends the step, if all of it has been answered: with a compressed downlink
    /// takes up the residual and what compressors have learnt.
    pub(crate) fn end(&mut self, context: StepContext) {
        let StepContext { step, exchange, .. } = context;
        let mut answered = self.answered.iter().zip(&self.owned);
        let complete = answered.all(|(answered, owned)| *answered || !owned);
        if !complete || self.downlink != Downlink::Compressed {
            return;
        }
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
                compressor.commit(&StepEnd { step: exchange, ranks: 1, mean });
            }
        }
    }

    /// Multiplies the residual, and what was learnt, by `factor`: means are given in another unit from now on.
    pub(crate) fn rescale(&mut self, factor: f32) {
        let codecs = self.buckets.iter_mut().filter_map(Bucket::codec_mut);
        codecs.for_each(|codec| codec.rescale(factor));
        if let Some(feedback) = &mut self.feedback {
            feedback.rescale(factor);
        }
    }

    /// The residual and the compressors' entries; nothing with an exact downlink.
    pub(super) fn save(&self) -> State {
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
    pub(super) fn restore(&mut self, state: &State) -> Result<()> {
        if self.downlink != Downlink::Compressed {
            let problem = "would be lost: this server sends exact means".to_string();
            let entry = "server".to_string();
            return if state.is_empty() { Ok(()) } else { Err(Error::State { entry, problem }) };
        }
        Feedback::restore(self.feedback.as_mut(), &self.layout, state)?;
        if let Some(feedback) = &mut self.feedback {
            let others = self.buckets.iter().zip(&self.owned).filter(|(_, owned)| !**owned);
            others.for_each(|(bucket, _)| feedback.forget(bucket.range.clone()));
        }
        Bucket::restore_all(&mut self.buckets, &self.owned, state)?;
        self.begin();
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
        .decode_add(message, 0, weight, sum)
        .expect("invariant: a compressor reads its own message");
}
