//! One step: check the gradient, correct it, encode, exchange along the topology's route, learn.
//! Buckets are exchanged group by group; within a group there is one collective for each kind of
//! message and each round.

mod build;
mod encode;
mod rounds;

use crate::collective::Collective;
use crate::compress::{Built, Compressor, Feedback, StepEnd, StepMessages};
use crate::group::{Bucket, GroupExchange, Item, Member, Received, StepContext};
use crate::layout::BucketRange;
use crate::measure::Distortion;
use crate::refusal;
use crate::support::Gradient;
use crate::topology::{Route, downlinks};
use crate::traffic::{Gauge, Leg, Operation, Stopwatch, Traffic};
use crate::turn::Turn;
use crate::wire::downlink::DownlinkMessage;
use crate::wire::{Frame, Kind, Reader, floats, frame};
use crate::{Error, Policy, Result};

/// Turns each rank's gradient into the mean over ranks, bit-identical on all of them.
///
/// One exchange belongs to one rank; all ranks make the same calls in the same order, with the
/// same scheme, policy, layout and groups.
///
/// # Groups
/// A step is either one call of [`allreduce`](Self::allreduce), or these calls:
/// [`begin`](Self::begin); [`exchange_group`](Self::exchange_group) once for each group of buckets,
/// as soon as these buckets' part of the gradient is final; [`finish`](Self::finish). A group's
/// messages travel together. The groups may be exchanged in any order that is the same on all
/// ranks: mean, residual, compressors and wire bytes are bit-identical whatever the groups and
/// their order.
///
/// # Buckets
/// The flat gradient lies in the order of the buckets: [`layout`](Self::layout) says where each
/// parameter lies, [`buckets`](Self::buckets) which stretch each bucket is. Parameters come in order
/// of name, those for which a rule of the policy sets another scheme behind the others, rule by rule, and last
/// those below its `dense_below`.
///
/// # Failures
/// When a call fails, the step is over: residual and compressors are what they were before the
/// step, whichever group failed. In the gradient, groups that had been exchanged hold the mean, and
/// groups that had not are as given. The group that failed is also as given if the error is
/// [`Error::NonFinite`] or [`Error::Aborted`], which every rank returns alike. There are four
/// exceptions: where a server or an owner finds, in a message whose checksum is right, what cannot be learnt from, the others
/// hold the mean and it alone tells what is wrong; local clipping without feedback scales the gradient in place; with two levels and without feedback
/// it may hold the mean within a group of ranks; and where a group holds buckets of several rounds and fails in a
/// later round, those that were done before may hold the mean. A [`Support`](crate::Support)
/// covers what the gradient then holds: outside of it, the gradient is zero.
///
/// After [`Error::NonFinite`] or [`Error::Aborted`] all ranks can go on, with a new step or with the
/// same one again. After any other error none can: drop the exchange, which tells the peers.
pub struct Exchange {
    member: Member,
    policy: Policy,
    ranges: Vec<BucketRange>,
    groups: Vec<Vec<usize>>,
    route: Route,
    /// Momentum factor masking: whether the velocity of each element that a message sends becomes zero.
    masks: bool,
    /// In a step in which the compression error is measured.
    distortion: Option<Distortion>,
    underway: Option<Underway>,
    /// For each rule of the policy, in this step: bytes that this rank sent about the rule's parameters, and bytes that plain f32
    /// would have taken.
    sent_by_rules: Vec<[u64; 2]>,
}

/// A step that has begun and is not finished.
struct Underway {
    turn: Turn,
    traffic: Traffic,
    /// Of each group that has been exchanged, its items and what this rank received about them.
    received: Vec<Option<(Vec<Item>, Received)>>,
}

impl Exchange {
    /// Overwrites `gradient` by its mean over ranks: what the ranks' messages say, added in order
    /// of rank, times 1/N. `turn` is the number of the step, or with local steps a [`Turn`]. One whole
    /// step: [`begin`](Self::begin), every group in order, [`finish`](Self::finish). The support of the gradient, where one is given, becomes that of
    /// the mean.
    ///
    /// # Errors
    /// As [`exchange_group`](Self::exchange_group).
    pub fn allreduce<'g>(
        &mut self,
        turn: impl Into<Turn>,
        gradient: impl Into<Gradient<'g>>,
    ) -> Result<Traffic> {
        let Gradient { values, support } = gradient.into();
        self.begin(turn);
        let groups = self.groups.len();
        // The given support is used only with one group of buckets and where each rank speaks for itself. Otherwise other means
        // than this group's (of earlier groups, or within a group of ranks) may be non-zero outside of it.
        let holds = groups == 1 && self.member.collective.ranks_per_group == 1;
        self.member.zeros.begin(support.as_deref().filter(|_| holds));
        let mut exchanged = Ok(());
        for group in 0..groups {
            exchanged = exchanged.and_then(|()| self.exchange_group(group, values));
        }
        if let Some(support) = support {
            self.member.zeros.end(exchanged.as_ref().copied(), support);
        }
        exchanged?;
        self.finish(values)
    }

    /// As [`allreduce`](Self::allreduce), of one group of buckets alone: the elements of the others are neither read nor
    /// written, and their residual and compressors stay what they were. Not with a downlink that is compressed, whose
    /// sender learns from whole steps.
    ///
    /// # Errors
    /// As [`exchange_group`](Self::exchange_group), and [`Error::Topology`] with a compressed downlink.
    pub fn allreduce_group(
        &mut self,
        turn: impl Into<Turn>,
        group: usize,
        gradient: &mut [f32],
    ) -> Result<Traffic> {
        if self.groups.len() > 1 {
            self.route.refuse_partial_steps()?;
        }
        self.begin(turn);
        self.exchange_group(group, gradient)?;
        self.end(gradient)
    }

    /// Begins a step; nothing is sent yet. One that was under way is given up.
    pub fn begin(&mut self, turn: impl Into<Turn>) {
        let turn = turn.into();
        let measures = turn.is_due(self.policy.measure_every.unwrap_or(0));
        self.distortion = measures.then(Distortion::default);
        self.member.zeros.begin(None);
        // What a step sent within a group that then came to no end.
        self.member.collective.sent_within = 0;
        if let Some(aggregator) = self.route.aggregator() {
            aggregator.begin();
        }
        self.sent_by_rules = vec![[0, 0]; self.policy.rules.len()];
        let received = self.groups.iter().map(|_| None).collect();
        let parameters = self.elements() as u64;
        let traffic = Traffic { parameters, ..Traffic::default() };
        self.underway = Some(Underway { turn, traffic, received });
    }

    /// Overwrites the elements of one group's buckets in the flat `gradient` by their mean over
    /// ranks. Of the rest nothing is read or written.
    ///
    /// # Errors
    /// [`Error::Input`] (another length; no step has begun; no such group;
    /// exchanged already) before anything is sent; [`Error::NonFinite`] on every rank when one
    /// rank's gradient (or gradient plus residual) is not finite in this group;
    /// [`Error::NonFiniteMean`] on every rank when the mean overflows; [`Error::Aborted`] when a
    /// peer gave up before this group; [`Error::PeerLost`], [`Error::Timeout`],
    /// [`Error::OutOfStep`] and [`Error::Message`] when a peer is gone, silent, elsewhere (in
    /// another step or group), or not understood.
    pub fn exchange_group(&mut self, group: usize, gradient: &mut [f32]) -> Result<()> {
        self.check_length(gradient)?;
        let problem = match self.underway.as_ref().map(|underway| underway.received.get(group)) {
            Some(Some(None)) => None,
            Some(Some(Some(_))) => {
                Some(format!("group {group} has been exchanged in this step already"))
            }
            Some(None) => Some(format!("there are {} groups, and no {group}", self.groups.len())),
            None => Some(format!("group {group} comes before the step has begun")),
        };
        if let Some(problem) = problem {
            return Err(Error::groups(&problem));
        }
        let mut underway = self.underway.take().expect("invariant: a step is under way");
        for bucket in self.groups[group].iter().map(|number| &self.ranges[*number]) {
            if let Some(rule) = bucket.rule {
                self.sent_by_rules[rule][1] += dense_bytes(bucket.range.len());
            }
        }
        let context = self.context(underway.turn);
        let received = self.exchange_in(context, group, gradient, &mut underway.traffic)?;
        let within = std::mem::take(&mut self.member.collective.sent_within);
        underway.traffic.local_bytes += within;
        if let Some(leg) = underway.traffic.legs.last_mut() {
            leg.local_bytes = within;
        }
        self.take_means(context, group, gradient)?;
        underway.received[group] = Some(received);
        self.underway = Some(underway);
        Ok(())
    }

    /// Ends the step: lets the compressors learn from what all ranks sent, takes up the new
    /// residual, and tells what the step cost. `gradient` is the mean that the groups came to.
    /// When it fails, residual and compressors are what they were before the step.
    ///
    /// # Errors
    /// [`Error::Input`] when the length is another, no step has begun or a group is missing;
    /// [`Error::Wire`], or where one answer came of all messages [`Error::Message`], when a message holds what decoding
    /// alone does not look at, and it is wrong.
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
    fn end(&mut self, gradient: &[f32]) -> Result<Traffic> {
        let underway = self.underway.take().expect("invariant: a step is under way");
        let Underway { turn, mut traffic, received } = underway;
        let (start, context) = (Stopwatch::start(), self.context(turn));
        // Of each bucket, whether it takes part.
        let mut takes_part = vec![false; self.member.buckets.len()];
        for (buckets, _) in self.groups.iter().zip(&received).filter(|(_, got)| got.is_some()) {
            buckets.iter().for_each(|bucket| takes_part[*bucket] = true);
        }
        self.learn_from_messages(context, &received, gradient, &takes_part)?;
        // From here on nothing can fail.
        if let Some(aggregator) = self.route.aggregator() {
            aggregator.end(context);
        }
        self.commit(context, gradient, &takes_part, &mut traffic.gauges);
        for (buffers, received) in self.member.buffers.iter_mut().zip(received) {
            if let Some((_, received)) = received {
                buffers.messages.keep(received.into_mine(context.rank));
            }
        }
        if let Some(feedback) = &self.member.feedback {
            traffic.gauges.push(Gauge::sum("residual_norm", floats::norm(feedback.residual())));
        }
        if let Some(distortion) = self.distortion.take() {
            distortion.end(&mut traffic.gauges);
        }
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
        if self.all_plain() {
            return Ok(());
        }
        let means = self.member.feedback.as_ref().and_then(Feedback::mean_sent).unwrap_or(means);
        let received: Vec<&(Vec<Item>, Received)> = received.iter().flatten().collect();
        let opened = received.iter().map(|(items, received)| Parsed::new(context, items, received));
        let opened = opened.collect::<Result<Vec<Parsed<'_>>>>()?;
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
                None => Parsed::Plain.teach(context, 0, mean, compressor)?,
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
                let (step, ranks) = (context.exchange, context.world_size);
                compressor.commit(&StepEnd { step, ranks, mean });
            }
            if let (Built::Reducer(reducer), true) = (&mut bucket.engine, compresses) {
                reducer.commit();
            }
            if compresses {
                Gauge::merge_into(gauges, bucket.gauges());
            }
        }
    }

    /// Gives feedback the mean of a group's messages, in the two forms that need it: a shared momentum keeps it; EF21 adds it to its
    /// estimate and writes the estimate over the gradient.
    fn take_means(
        &mut self,
        context: StepContext,
        group: usize,
        gradient: &mut [f32],
    ) -> Result<()> {
        let Member { layout, buckets, feedback, zeros, .. } = &mut self.member;
        let Some(feedback) = feedback.as_mut().filter(|feedback| feedback.takes_means()) else {
            return Ok(());
        };
        for bucket in self.groups[group].iter().map(|number| &buckets[*number]) {
            zeros.note(&bucket.range, None);
            let mean = bucket.elements_mut(gradient);
            if let Some(element) = feedback.take_mean(bucket.range.clone(), mean) {
                let (parameter, index) = layout.name(bucket.range.start + element);
                return Err(Error::NonFiniteMean { step: context.step, parameter, index });
            }
        }
        Ok(())
    }

    /// A group's collectives, one after the other.
    fn exchange_in(
        &mut self,
        context: StepContext,
        group: usize,
        gradient: &mut [f32],
        traffic: &mut Traffic,
    ) -> Result<(Vec<Item>, Received)> {
        let start = Stopwatch::start();
        let as_given = self.member.feedback.is_none() && !self.clips();
        let alone = self.member.collective.all.world_size() == 1;
        let counts = !self.policy.rules.is_empty();
        if self.all_plain() && alone && as_given && !counts {
            // The mean over one rank is its gradient: nothing to copy.
            let mut buckets = self.groups[group].iter().map(|number| &self.member.buckets[*number]);
            if !buckets.all(|bucket| floats::all_finite(bucket.elements(gradient))) {
                return Err(self.non_finite(context, group, gradient));
            }
            let mut leg = self.leg(group, Operation::Allreduce);
            leg.wire_bytes = leg.dense_bytes;
            leg.add_encode(start);
            traffic.add(leg);
            return Ok((Vec::new(), Received::Own(None)));
        }
        let mut leg = self.leg(group, Operation::Messages);
        let mut outgoing = self.prepare(context.step, group);
        if !self.form_due(group, gradient) {
            let own = self.non_finite(context, group, gradient);
            return Err(self.refuse(context, own));
        }
        if let Some(own) = self.average_within(context, group, gradient, &mut leg)? {
            return Err(self.refuse(context, own));
        }
        if let Err(own) = self.encode(context, group, gradient, &mut leg, &mut outgoing) {
            return Err(self.refuse(context, own));
        }
        self.member.zeros.encoded();
        let [coded, plain, in_rounds] = outgoing.dense_bytes(&self.member.buckets);
        let (passed, computed) = start.read();
        let passed = passed.saturating_sub(leg.wait);
        leg.encode = passed.saturating_sub(outgoing.measuring);
        // Measuring was timed by what passed: the same share of both clocks is taken off.
        let share = leg.encode.as_secs_f64() / passed.as_secs_f64().max(1e-9);
        leg.encode_cpu = computed.mul_f64(share.min(1.0));
        let mut received = Received::Own(None);
        if !outgoing.items.is_empty() {
            leg.dense_bytes = coded;
            received =
                self.carry(context, &outgoing.items, outgoing.message, gradient, &mut leg)?;
            traffic.add(std::mem::take(&mut leg));
            leg.group = group;
        }
        if !outgoing.plain.is_empty() {
            (leg.operation, leg.dense_bytes) = (Operation::Allreduce, plain);
            let mine = self.carry(context, &outgoing.plain, outgoing.values, gradient, &mut leg)?;
            self.member.buffers[group].plain.keep(mine.into_mine(context.rank));
            traffic.add(std::mem::take(&mut leg));
            leg.group = group;
        }
        if !outgoing.reduced.is_empty() {
            leg.dense_bytes = in_rounds;
            self.run_rounds(context, &outgoing.reduced, gradient, leg, traffic)?;
        }
        Ok((outgoing.items, received))
    }

    /// Sends a message about some items over the topology, and overwrites them by their mean.
    fn carry(
        &mut self,
        context: StepContext,
        items: &[Item],
        message: Vec<u8>,
        gradient: &mut [f32],
        leg: &mut Leg,
    ) -> Result<Received> {
        leg.wire_bytes = self.charged(&message);
        self.count_by_rule(items, &message);
        let mut group = GroupExchange { member: &mut self.member, context, items, gradient, leg };
        self.route.exchange_message(&mut group, message)
    }

    /// The bytes of a message that count as this rank's: none where another rank speaks for its group.
    fn charged(&self, message: &[u8]) -> u64 {
        if self.member.collective.speaks() { message.len() as u64 } else { 0 }
    }

    /// Adds the bytes of this rank's frames to the rules of their buckets.
    fn count_by_rule(&mut self, items: &[Item], message: &[u8]) {
        if self.policy.rules.is_empty() || !self.member.collective.speaks() {
            return;
        }
        let mut reader = Reader::new(message);
        for item in items {
            let before = reader.rest().len();
            Frame::split(&mut reader).expect("invariant: a rank reads its own frames");
            if let Some(rule) = self.ranges[item.bucket].rule {
                self.sent_by_rules[rule][0] += (before - reader.rest().len()) as u64;
            }
        }
    }

    /// Whether no bucket has a compressor or a reducer.
    fn all_plain(&self) -> bool {
        self.member.buckets.iter().all(Bucket::is_plain)
    }

    /// Whether local clipping is on.
    fn clips(&self) -> bool {
        self.policy.clip_norm.is_some_and(|limit| limit > 0.0)
    }

    fn context(&self, Turn { step, exchange, .. }: Turn) -> StepContext {
        let collective = &self.member.collective;
        let (rank, world_size) = (collective.rank(), collective.world_size());
        let ranks_per_group = collective.ranks_per_group;
        StepContext { rank, world_size, step, exchange, ranks_per_group }
    }

    /// Elements of the flat gradient.
    fn elements(&self) -> usize {
        self.ranges.last().map_or(0, |last| last.range.end)
    }

    fn check_length(&self, gradient: &[f32]) -> Result<()> {
        let (expected, found) = (self.elements(), gradient.len());
        if found == expected {
            return Ok(());
        }
        let problem = format!("the gradient has {found} elements, the layout {expected}");
        Err(Error::Input { problem })
    }

    /// A leg of a group, with the bytes that it would take as plain f32.
    fn leg(&self, group: usize, operation: Operation) -> Leg {
        let lengths = self.groups[group].iter().map(|number| self.member.buckets[*number].length());
        Leg { group, operation, dense_bytes: lengths.map(dense_bytes).sum(), ..Leg::default() }
    }

    /// Tells every rank this rank's own error instead of what they await, and returns the error
    /// that all of them return.
    fn refuse(&mut self, context: StepContext, own: Error) -> Error {
        let mut mine = Vec::new();
        let all = &mut self.member.collective.all;
        let header = context.header(Kind::Abort, 0).from_rank(all.rank());
        refusal::write(header, &own, &mut mine);
        match all.allgather(mine) {
            Ok(messages) => refusal::first(&messages, 1).unwrap_or(own),
            Err(_) => own,
        }
    }
}

/// Bytes of a bucket of so many elements as plain f32, with its header.
fn dense_bytes(length: usize) -> u64 {
    (frame::HEADER_BYTES + 4 * length) as u64
}

/// What a rank has received about the items of a message, taken apart.
enum Parsed<'a> {
    /// Frames by rank, and then in the order of the items, of which there are so many.
    Frames(Vec<Frame<'a>>, usize),
    /// For each item its owner's rank, and what that owner answered.
    Mean(Vec<(usize, DownlinkMessage<'a>)>),
    /// Nothing: the items were averaged as plain f32 or in shards, and no rank kept messages.
    Plain,
}

impl<'a> Parsed<'a> {
    /// Takes apart what was received about items.
    fn new(context: StepContext, items: &[Item], received: &'a Received) -> Result<Self> {
        Ok(match received {
            Received::Messages(messages) => {
                Parsed::Frames(context.skim(items, messages)?, items.len())
            }
            Received::Mean { answers, owners, .. } => {
                let next = |reader: &mut Reader<'a>| Ok(Frame::split(reader)?.frame);
                Parsed::Mean(downlinks(context, items, owners, answers, next)?)
            }
            Received::Own(_) => Parsed::Plain,
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
        let (step, ranks) = (context.exchange, context.world_size);
        let messages = match self {
            Parsed::Mean(downlinks) => {
                let (owner, DownlinkMessage { summary, .. }) = downlinks[index];
                let learnt = compressor.learn_from_summary(step, summary, mean);
                return learnt.map_err(context.blame(owner));
            }
            Parsed::Frames(frames, items) => {
                frames.iter().skip(index).step_by(*items).map(Frame::compressed).collect()
            }
            Parsed::Plain => vec![None; ranks],
        };
        compressor.learn_from_messages(&StepMessages { step, messages: &messages, mean })
    }
}
