//! One step: check the gradient, correct it, encode, exchange along the topology's route, learn.
//! Buckets are exchanged group by group; within a group there is one collective for each kind of
//! message and each round.

mod encode;
mod finish;
mod rounds;

use std::collections::HashMap;

use crate::bucket::{Bucket, Item};
use crate::collective::Collective;
use crate::compress::{Feedback, Run};
use crate::cpu::Stopwatch;
use crate::group::{Buffers, GroupExchange, Member, Received, StepContext};
use crate::layout::{BucketRange, Layout};
use crate::levels::Levels;
use crate::measure::Distortion;
use crate::refusal;
use crate::topology::{Route, Setup, Topology, Wiring};
use crate::traffic::{Leg, Operation};
use crate::wire::{Frame, Kind, Reader, floats, frame};
use crate::zeros::{Gradient, Zeros};
use crate::{Error, Policy, Result, Scheme, State, Traffic};

/// Elements that a bucket may have, so that its message is surely shorter than 4 GiB.
const MAX_BUCKET: usize = 1 << 29;

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
/// [`Error::NonFinite`] or [`Error::Aborted`], which every rank returns alike. There are two
/// exceptions: local clipping without feedback scales the gradient in place; and where a group holds
/// buckets of one message and buckets of several rounds and fails in a later round, those of one
/// message may hold the mean. A [`Support`](crate::Support)
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
    distortion: Distortion,
    underway: Option<Underway>,
    /// Of each of the policy's rules, the bytes that this rank has sent in the step about its parameters, and those
    /// that they would take as plain f32.
    sent_by_rules: Vec<[u64; 2]>,
}

/// A step that has begun and is not finished.
struct Underway {
    step: u64,
    traffic: Traffic,
    /// Of each group that has been exchanged, its items and what this rank received about them.
    received: Vec<Option<(Vec<Item>, Received)>>,
}

impl Exchange {
    /// Builds this rank's compressors over a collective that all ranks share, in the default
    /// topology: every rank hears every rank. Settings that `policy` leaves out are taken from the
    /// scheme's default policy. `run` is a seed, or a [`Run`] that also says how many steps there will be.
    /// All buckets are one group.
    ///
    /// # Errors
    /// As [`with`](Self::with).
    pub fn new(
        scheme: &dyn Scheme,
        policy: impl Into<Policy>,
        layout: Layout,
        run: impl Into<Run>,
        collective: Box<dyn Collective>,
    ) -> Result<Self> {
        Self::with(scheme, Topology::default(), policy, layout, run, collective)
    }

    /// As [`new`](Self::new), over any topology, on a collective that offers what it needs. The scheme is one of [`SchemeConfig`](crate::SchemeConfig) or the caller's
    /// own: a [`Scheme`] builds the compressor or the reducer of each bucket, on every rank alike.
    ///
    /// # Errors
    /// What [`Policy::validate`] and [`Wiring::validate`] refuse; [`Error::Topology`] when the
    /// collective does not offer what the topology needs; [`Error::Invalid`] when there are more
    /// than 2²⁴ buckets or one would have more than 2²⁹ elements.
    pub fn with(
        scheme: &dyn Scheme,
        wiring: impl Into<Wiring>,
        policy: impl Into<Policy>,
        layout: Layout,
        run: impl Into<Run>,
        collective: Box<dyn Collective>,
    ) -> Result<Self> {
        let (wiring, policy) = (wiring.into(), policy.into().or(scheme.default_policy()));
        policy.validate(scheme)?;
        wiring.validate(scheme, &policy)?;
        let ranks = collective.world_size();
        if ranks == 0 || ranks > usize::from(u16::MAX) {
            return Err(Error::world_size(ranks));
        }
        let mut collective = Levels::new(collective, wiring.topology.group())?;
        let (rank, world_size) = (collective.rank(), collective.world_size());
        let bucketing = policy.bucketing.clone().unwrap_or_default();
        let names: Vec<&str> = layout.parameters().iter().map(|p| p.name.as_str()).collect();
        let rules = policy.rules_of(&names)?;
        let rules: HashMap<String, Option<usize>> =
            names.into_iter().map(String::from).zip(rules).collect();
        let (layout, ranges) =
            bucketing.arrange(layout, policy.dense_below.unwrap_or(0), |name| rules[name]);
        if let Some(large) = ranges.iter().find(|bucket| bucket.range.len() > MAX_BUCKET) {
            let problem = format!(
                "bucketing: a bucket of {} elements is too large; write `parameter` or `bytes = {}`",
                large.range.len(),
                MAX_BUCKET
            );
            return Err(Error::Invalid { problem });
        }
        if ranges.len() > frame::MAX_BUCKETS {
            let problem = format!(
                "bucketing: {} buckets are more than {}; write `whole` or a larger `bytes`",
                ranges.len(),
                frame::MAX_BUCKETS
            );
            return Err(Error::Invalid { problem });
        }
        let run = run.into();
        let setup = Setup {
            wiring,
            scheme,
            policy: &policy,
            layout: &layout,
            ranges: &ranges,
            run,
            world_size,
        };
        let buckets = setup.buckets(rank);
        let route = Route::new(&setup, &mut collective)?;
        let feeds_back = policy.schemes(scheme).any(Scheme::feedback);
        let feedback = (feeds_back || policy.shares_momentum())
            .then(|| Feedback::of(policy.feedback, policy.momentum(), layout.len()));
        let groups = vec![(0..buckets.len()).collect()];
        let (zeros, buffers) = (Zeros::default(), no_buffers(1));
        let member = Member { layout, buckets, feedback, collective, zeros, buffers };
        let distortion = Distortion::default();
        let (underway, sent_by_rules) = (None, Vec::new());
        Ok(Self { member, policy, ranges, groups, route, distortion, underway, sent_by_rules })
    }

    /// The buckets, by number: which parameters each holds, and where they lie. A bucket's part of
    /// the gradient is final when all of its parameters' are.
    pub fn buckets(&self) -> &[BucketRange] {
        &self.ranges
    }

    /// The groups of buckets that travel in one message each; one group of all unless set.
    pub fn groups(&self) -> &[Vec<usize>] {
        &self.groups
    }

    /// Sets the groups: every bucket in exactly one, on every rank the same. A step that is under
    /// way is given up.
    ///
    /// # Errors
    /// [`Error::Input`] when they are no partition of the buckets, when one is empty, or when
    /// there are several although the policy needs the whole gradient first (local clipping).
    pub fn set_groups(&mut self, groups: Vec<Vec<usize>>) -> Result<()> {
        let refuse = |problem: String| Err(Error::groups(&problem));
        let count = self.ranges.len();
        let mut seen = vec![false; count];
        for (group, buckets) in groups.iter().enumerate() {
            if buckets.is_empty() {
                return refuse(format!("group {group} is empty; leave it out"));
            }
            for bucket in buckets {
                match seen.get_mut(*bucket) {
                    None => return refuse(format!("there are {count} buckets, and no {bucket}")),
                    Some(true) => {
                        return refuse(format!("bucket {bucket} is in two places; give it once"));
                    }
                    Some(seen) => *seen = true,
                }
            }
        }
        if let Some(bucket) = seen.iter().position(|seen| !seen) {
            return refuse(format!("bucket {bucket} is in none; give each bucket once"));
        }
        if groups.len() > 1 && self.clips() {
            let limit = self.policy.clip_norm.unwrap_or(0.0);
            return refuse(format!(
                "clip_norm = {limit} needs the norm of the whole gradient before the first \
                 message; set `clip_norm` to 0, or exchange all buckets as one group"
            ));
        }
        self.member.buffers = no_buffers(groups.len());
        self.groups = groups;
        self.underway = None;
        Ok(())
    }

    /// Overwrites `gradient` by its mean over ranks: what the ranks' messages say, added in order
    /// of rank, times 1/N. One whole step: [`begin`](Self::begin), every group in order,
    /// [`finish`](Self::finish). The support of the gradient, where one is given, becomes that of
    /// the mean.
    ///
    /// # Errors
    /// As [`exchange_group`](Self::exchange_group).
    pub fn allreduce<'g>(
        &mut self,
        step: u64,
        gradient: impl Into<Gradient<'g>>,
    ) -> Result<Traffic> {
        let Gradient { values, support } = gradient.into();
        self.begin(step);
        let groups = self.groups.len();
        // Whichever of several groups fails, the ones before it may have left their means anywhere.
        // What a rank's own group adds to its gradient may lie anywhere, too.
        let alone = groups == 1 && self.member.collective.group() == 1;
        self.member.zeros.begin(support.as_deref().filter(|_| alone));
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
        step: u64,
        group: usize,
        gradient: &mut [f32],
    ) -> Result<Traffic> {
        if self.groups.len() > 1 {
            self.route.takes_parts()?;
        }
        self.begin(step);
        self.exchange_group(group, gradient)?;
        self.end(gradient)
    }

    /// Bytes of the whole gradient as plain f32, headers included.
    pub fn dense_bytes(&self) -> u64 {
        (0..self.groups.len()).map(|group| self.leg(group, Operation::Messages).dense_bytes).sum()
    }

    /// Multiplies the residual, and with momentum correction the velocity, by `factor`: from now on the
    /// same vectors are given in another unit, such as in steps of the weights where it was gradients.
    pub fn rescale(&mut self, factor: f32) {
        if let Some(feedback) = &mut self.member.feedback {
            feedback.rescale(factor);
        }
    }

    /// Begins a step; nothing is sent yet. One that was under way is given up.
    pub fn begin(&mut self, step: u64) {
        self.distortion.begin();
        self.member.zeros.begin(None);
        self.sent_by_rules = vec![[0, 0]; self.policy.rules.len()];
        let received = self.groups.iter().map(|_| None).collect();
        let parameters = self.member.layout.len() as u64;
        let traffic = Traffic { parameters, ..Traffic::default() };
        self.underway = Some(Underway { step, traffic, received });
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
        let context = self.context(underway.step);
        let received = self.exchange_in(context, group, gradient, &mut underway.traffic)?;
        let within = self.member.collective.take_sent_within();
        underway.traffic.local_bytes += within;
        if let Some(leg) = underway.traffic.legs.last_mut() {
            leg.local_bytes = within;
        }
        self.take_means(context, group, gradient)?;
        underway.received[group] = Some(received);
        self.underway = Some(underway);
        Ok(())
    }

    /// Where feedback takes up a group's mean of messages, or overwrites it by what it makes of it.
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
        let alone = self.member.collective.ranks() == 1;
        let counts = !self.policy.rules.is_empty();
        if self.is_dense() && alone && as_given && !counts {
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
        if !self.correct(group, gradient) {
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
        self.count(items, &message);
        let mut group = GroupExchange { member: &mut self.member, context, items, gradient, leg };
        self.route.average(&mut group, message)
    }

    /// Bytes of a message that this rank sends, if it is its to send.
    fn charged(&self, message: &[u8]) -> u64 {
        if self.member.collective.speaks() { message.len() as u64 } else { 0 }
    }

    /// Counts a message of this rank about some items for the rules that their buckets go by.
    fn count(&mut self, items: &[Item], message: &[u8]) {
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

    /// Gives up, and with it the step that is under way on this rank, if any. On every rank the
    /// call in progress, or else the next call, fails with the returned error, whatever call it is.
    /// Waits for the others to make that call, no longer than the collective waits.
    ///
    /// If a rank of lower number refuses at the same time, its error is everybody's.
    pub fn abort(&mut self, step: u64, reason: &str) -> Error {
        self.underway = None;
        let (context, reason) = (self.context(step), refusal::cut(reason).to_string());
        let rank = self.member.collective.number();
        self.refuse(context, Error::Aborted { rank, step, reason })
    }

    /// The collective, for everything that is not a gradient: sums of an evaluation, averaged
    /// statistics, comparing replicas.
    pub fn collective(&mut self) -> &mut dyn Collective {
        self.member.collective.all()
    }

    /// How the flat gradient is laid out: the parameters that were given, in the order of buckets.
    pub fn layout(&self) -> &Layout {
        &self.member.layout
    }

    /// What surrounds the scheme: what was given, and the scheme's default policy for the rest.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// With error feedback: what this rank has not sent yet, in the gradient's layout.
    pub fn residual(&self) -> Option<&[f32]> {
        self.member.feedback.as_ref().map(Feedback::residual)
    }

    /// Everything of this rank that later messages depend on: `residual` (in
    /// [name order](Layout::to_name_order), whatever the bucketing), the compressors' own entries under `bucket.N/`, and on rank 0 those of a
    /// server under `server/`. To be called between steps.
    pub fn save(&self) -> State {
        let mut state = State::default();
        if let Some(feedback) = &self.member.feedback {
            feedback.save(&self.member.layout, &mut state);
        }
        Bucket::save_all(&self.member.buckets, &vec![true; self.ranges.len()], &mut state);
        self.route.save(&mut state);
        state
    }

    /// Takes up what [`save`](Self::save) returned, before any rank's next step; after an error
    /// everything is as it was. A step that is under way is given up.
    ///
    /// # Errors
    /// [`Error::State`] when an entry is missing or does not fit, or when there is a residual
    /// that this scheme would silently lose.
    pub fn restore(&mut self, state: &State) -> Result<()> {
        self.underway = None;
        let before = self.save();
        self.take_up(state).inspect_err(|_| {
            self.take_up(&before).expect("invariant: what this exchange saved it can take up");
        })
    }

    fn take_up(&mut self, state: &State) -> Result<()> {
        let member = &mut self.member;
        Feedback::restore(member.feedback.as_mut(), &member.layout, state)?;
        Bucket::restore_all(&mut member.buckets, &vec![true; self.ranges.len()], state)?;
        self.route.restore(state)
    }

    fn is_dense(&self) -> bool {
        self.member.buckets.iter().all(Bucket::is_plain)
    }

    /// Whether local clipping is on.
    fn clips(&self) -> bool {
        self.policy.clip_norm.is_some_and(|limit| limit > 0.0)
    }

    fn context(&self, step: u64) -> StepContext {
        let collective = &self.member.collective;
        let (rank, world_size) = (collective.rank(), collective.world_size());
        StepContext { rank, world_size, step, group: collective.group() }
    }

    fn check_length(&self, gradient: &[f32]) -> Result<()> {
        let (expected, found) = (self.member.layout.len(), gradient.len());
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
        let all = self.member.collective.all();
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

/// No buffers, for so many groups.
fn no_buffers(groups: usize) -> Vec<Buffers> {
    (0..groups).map(|_| Buffers::default()).collect()
}
