//! The end of a step: what is learnt from what all ranks sent, and what lasts of it.

use super::{Exchange, Underway};
use crate::bucket::{Bucket, Engine, Item};
use crate::compress::{Compressor, Feedback, StepEnd, StepMessages};
use crate::cpu::Stopwatch;
use crate::group::{Received, StepContext};
use crate::topology::downlinks;
use crate::wire::downlink::Downlink;
use crate::wire::{Frame, Reader, floats};
use crate::{Error, Gauge, Result, Traffic};

impl Exchange {
    /// Ends the step: lets the compressors learn from what all ranks sent, takes up the new
    /// residual, and tells what the step cost. `gradient` is the mean that the groups came to.
    /// When it fails, residual and compressors are what they were before the step.
    ///
    /// # Errors
    /// [`Error::Input`] when the length is another, no step has begun or a group is missing;
    /// [`Error::Message`] when a message holds what decoding alone does not look at, and it is
    /// wrong.
    pub fn finish(&mut self, gradient: &[f32]) -> Result<Traffic> {
        self.check_length(gradient)?;
        let missing = match &self.underway {
            None => Some("no step has begun that could end".to_string()),
            Some(underway) => (underway.received.iter().position(Option::is_none))
                .map(|group| format!("the step ends before group {group} has been exchanged")),
        };
        match missing {
            Some(problem) => {
                self.underway = None;
                Err(Error::groups(&problem))
            }
            None => self.end(gradient),
        }
    }

    /// As [`finish`](Self::finish), of the groups that have been exchanged: the buckets of the others sit the step out.
    pub(super) fn end(&mut self, gradient: &[f32]) -> Result<Traffic> {
        let underway = self.underway.take().expect("invariant: a step is under way");
        let Underway { step, mut traffic, received } = underway;
        let (start, context) = (Stopwatch::start(), self.context(step));
        // Of each bucket, whether it takes part.
        let mut takes_part = vec![false; self.member.buckets.len()];
        for (buckets, _) in self.groups.iter().zip(&received).filter(|(_, got)| got.is_some()) {
            buckets.iter().for_each(|bucket| takes_part[*bucket] = true);
        }
        self.learn_from_messages(context, &received, gradient, &takes_part)?;
        self.route.end(step)?;
        // From here on nothing can fail.
        self.commit(context, gradient, &takes_part, &mut traffic.gauges);
        for (buffers, received) in self.member.buffers.iter_mut().zip(received) {
            if let Some((_, received)) = received {
                buffers.messages.keep(received.into_mine(context.rank));
            }
        }
        if let Some(feedback) = &self.member.feedback {
            traffic.gauges.push(Gauge::sum("residual_norm", floats::norm(feedback.residual())));
        }
        self.distortion.end(&mut traffic.gauges);
        let (passed, computed) = start.read();
        traffic.decode += passed;
        traffic.finish_cpu = computed;
        traffic.rules = std::mem::take(&mut self.sent_by_rules);
        Ok(traffic)
    }

    /// Lets the compressors that take part read, in order of bucket, what all ranks sent; nothing lasts yet.
    fn learn_from_messages(
        &mut self,
        context: StepContext,
        received: &[Option<(Vec<Item>, Received)>],
        means: &[f32],
        takes_part: &[bool],
    ) -> Result<()> {
        if self.is_dense() {
            return Ok(());
        }
        let means = self.member.feedback.as_ref().and_then(Feedback::mean_sent).unwrap_or(means);
        let received: Vec<&(Vec<Item>, Received)> = received.iter().flatten().collect();
        let opened = received.iter().map(|(items, received)| Opened::new(context, items, received));
        let opened = opened.collect::<Result<Vec<Opened<'_>>>>()?;
        // Of each bucket, in which group's message it was, and as which item.
        let mut sources = vec![None; self.member.buckets.len()];
        for (group, (items, _)) in received.iter().enumerate() {
            for (index, item) in items.iter().enumerate() {
                sources[item.bucket] = Some((group, index));
            }
        }
        let buckets = self.member.buckets.iter_mut().zip(sources).zip(takes_part);
        for ((bucket, source), _) in buckets.filter(|(_, takes_part)| **takes_part) {
            let mean = bucket.elements(means);
            let Some(compressor) = bucket.codec_mut() else { continue };
            match source {
                Some((group, index)) => opened[group].teach(context, index, mean, compressor)?,
                None => Opened::Plain.teach(context, 0, mean, compressor)?,
            }
        }
        Ok(())
    }

    /// Makes what the step has prepared last: residual, and what compressors and reducers learnt.
    /// Gauges are of messages: steps of a warm-up have none.
    fn commit(
        &mut self,
        context: StepContext,
        means: &[f32],
        takes_part: &[bool],
        gauges: &mut Vec<Gauge>,
    ) {
        if let Some(feedback) = &mut self.member.feedback {
            let idle = self.member.buckets.iter().zip(takes_part).filter(|(_, part)| !**part);
            idle.for_each(|(bucket, _)| feedback.skip(bucket.range.clone()));
            Bucket::keep_unsent(&self.member.buckets, feedback);
        }
        let compresses = self.compresses_at(context.step);
        let means = self.member.feedback.as_ref().and_then(Feedback::mean_sent).unwrap_or(means);
        let buckets = self.member.buckets.iter_mut().zip(takes_part);
        for (bucket, _) in buckets.filter(|(_, takes_part)| **takes_part) {
            let mean = bucket.elements(means);
            if let Some(compressor) = bucket.codec_mut() {
                compressor.commit(&StepEnd { step: context.step, ranks: context.world_size, mean });
            }
            if let (Engine::Rounds(reducer, _), true) = (&mut bucket.engine, compresses) {
                reducer.commit();
            }
            if compresses {
                Gauge::merge_into(gauges, bucket.gauges());
            }
        }
    }
}

/// What a rank has received about the items of a message, taken apart.
enum Opened<'a> {
    /// Frames by rank, and then in the order of the items, of which there are so many.
    Frames(Vec<Frame<'a>>, usize),
    /// On each item the words of its owner, and who that is.
    Mean(Vec<(usize, Downlink<'a>)>),
    /// Plain values of all ranks.
    Plain,
}

impl<'a> Opened<'a> {
    /// Takes apart what was received about items.
    fn new(context: StepContext, items: &[Item], received: &'a Received) -> Result<Self> {
        Ok(match received {
            Received::Messages(messages) => {
                Opened::Frames(context.skim(items, messages)?, items.len())
            }
            Received::Mean { answers, owners, .. } => {
                let next = |reader: &mut Reader<'a>| Ok(Frame::split(reader)?.frame);
                Opened::Mean(downlinks(context, items, owners, answers, next)?)
            }
            Received::Own(_) => Opened::Plain,
        })
    }

    /// Lets a compressor read what it learns about the item at `index`, whose mean is given.
    fn teach(
        &self,
        context: StepContext,
        index: usize,
        mean: &[f32],
        compressor: &mut dyn Compressor,
    ) -> Result<()> {
        let (step, ranks) = (context.step, context.world_size);
        let messages = match self {
            Opened::Mean(downlinks) => {
                let (owner, Downlink { summary, .. }) = downlinks[index];
                let learnt = compressor.learn_from_summary(step, summary, mean);
                return learnt.map_err(context.blame(owner));
            }
            Opened::Frames(frames, items) => {
                frames.iter().skip(index).step_by(*items).map(Frame::compressed).collect()
            }
            Opened::Plain => vec![None; ranks],
        };
        compressor.learn_from_messages(&StepMessages { step, messages: &messages, mean })
    }
}
