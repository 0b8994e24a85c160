//! One step: check the gradient, correct it, encode, exchange along the topology's route, learn.
//! Buckets are exchanged group by group; within a group there is one collective for each kind of
//! message and each round.

mod ending;
mod outgoing;
mod rounds;

use crate::bucket::Bucket;
use crate::bucket::Item;
use crate::buffers::Buffers;
use crate::collective::Collective;
use crate::compress::{Feedback, Run, Scheme};
use crate::cpu::Stopwatch;
use crate::gradient::Gradient;
use crate::incoming::{Place, first_refusal};
use crate::layout::{BucketRange, Layout};
use crate::measure::Distortion;
use crate::refusal;
use crate::topology::{About, Heard, Route, Setup, Topology, Wiring, Work};
use crate::traffic::{Leg, Operation};
use crate::wire::{Kind, floats, frame};
use crate::{Error, Policy, Result, State, Support, Traffic};

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
/// of name, those below the policy's `dense_below` behind the others.
///
/// # Failures
/// When a call fails, the step is over: residual and compressors are what they were before the
/// step, whichever group failed. In the gradient, groups that had been exchanged hold the mean, and
/// groups that had not are as given. The group that failed is also as given if the error is
/// [`Error::NonFinite`] or [`Error::Aborted`], which every rank returns alike. There are two
/// exceptions: local clipping without feedback scales the gradient in place; and buckets that are
/// sent as they are, beside those of a scheme of several rounds, may hold the mean. A [`Support`]
/// covers what the gradient then holds: outside of it, the gradient is zero.
///
/// After [`Error::NonFinite`] or [`Error::Aborted`] the group of ranks can go on, with a new step or
/// with the same one again. After any other error the group of ranks is broken: drop the exchange,
/// which tells the peers.
pub struct Exchange {
    layout: Layout,
    policy: Policy,
    places: Vec<BucketRange>,
    buckets: Vec<Bucket>,
    groups: Vec<Vec<usize>>,
    feedback: Option<Feedback>,
    collective: Box<dyn Collective>,
    route: Box<dyn Route>,
    /// Of each group, the buffers of its last messages.
    buffers: Vec<Buffers>,
    distortion: Distortion,
    underway: Option<Underway>,
}

/// A step that has begun and is not finished.
struct Underway {
    step: u64,
    traffic: Traffic,
    /// Of each group that has been exchanged, what this rank heard of which items.
    heard: Vec<Option<(Vec<Item>, Heard)>>,
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

    /// As [`new`](Self::new), over any topology; the collective is one that the topology's
    /// [`Topology::connect`] made. The scheme is one of [`SchemeConfig`](crate::SchemeConfig) or the caller's
    /// own: a [`Scheme`] builds the compressor or the reducer of each bucket, on every rank alike.
    ///
    /// # Errors
    /// What [`Policy::validate`] and [`Wiring::validate`] refuse; [`Error::Topology`] when the
    /// collective does not offer what the topology needs; [`Error::Bucketing`] when there are more
    /// than 2²⁴ buckets or one would have more than 2²⁹ elements; [`Error::WorldSize`].
    pub fn with(
        scheme: &dyn Scheme,
        wiring: impl Into<Wiring>,
        policy: impl Into<Policy>,
        layout: Layout,
        run: impl Into<Run>,
        mut collective: Box<dyn Collective>,
    ) -> Result<Self> {
        let (wiring, policy) = (wiring.into(), policy.into().or(scheme.default_policy()));
        policy.validate(scheme)?;
        wiring.validate(scheme, &policy)?;
        let (rank, world_size) = (collective.rank(), collective.world_size());
        if world_size == 0 || world_size > usize::from(u16::MAX) {
            return Err(Error::WorldSize { world_size });
        }
        let bucketing = policy.bucketing.clone().unwrap_or_default();
        let (layout, places) = bucketing.arrange(layout, policy.dense_below.unwrap_or(0));
        if let Some(large) = places.iter().find(|place| place.range.len() > MAX_BUCKET) {
            let problem = format!(
                "a bucket of {} elements is too large; write `parameter` or `bytes = {}`",
                large.range.len(),
                MAX_BUCKET
            );
            return Err(Error::Bucketing { problem });
        }
        if places.len() > frame::MAX_BUCKETS {
            let problem = format!(
                "{} buckets are more than {}; write `whole` or a larger `bytes`",
                places.len(),
                frame::MAX_BUCKETS
            );
            return Err(Error::Bucketing { problem });
        }
        let about = About {
            wiring,
            scheme,
            policy: &policy,
            layout: &layout,
            places: &places,
            run: run.into(),
            world_size,
        };
        let buckets = about.buckets(rank);
        let route = wiring.topology.route(Setup { about, rank, collective: &mut *collective })?;
        let feedback = scheme.feedback().then(|| Feedback::new(layout.len(), policy.momentum()));
        Ok(Self {
            layout,
            policy,
            groups: vec![(0..buckets.len()).collect()],
            places,
            buckets,
            feedback,
            collective,
            route,
            buffers: no_buffers(1),
            distortion: Distortion::default(),
            underway: None,
        })
    }

    /// The buckets, by number: which parameters each holds, and where they lie. A bucket's part of
    /// the gradient is final when all of its parameters' are.
    pub fn buckets(&self) -> &[BucketRange] {
        &self.places
    }

    /// The groups of buckets that travel in one message each; one group of all unless set.
    pub fn groups(&self) -> &[Vec<usize>] {
        &self.groups
    }

    /// Sets the groups: every bucket in exactly one, on every rank the same. A step that is under
    /// way is given up.
    ///
    /// # Errors
    /// [`Error::Groups`] when they are no partition of the buckets, when one is empty, or when
    /// there are several although the policy needs the whole gradient first (local clipping).
    pub fn set_groups(&mut self, groups: Vec<Vec<usize>>) -> Result<()> {
        let refuse = |problem: String| Err(Error::Groups { problem });
        let count = self.buckets.len();
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
        self.buffers = no_buffers(groups.len());
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
        let Gradient { values, mut support } = gradient.into();
        self.begin(step);
        if self.groups.len() > 1
            && let Some(support) = support.take()
        {
            // Whichever group fails, the ones before it may have left their means anywhere.
            support.fill();
        }
        for group in 0..self.groups.len() {
            self.exchange_with(group, values, support.as_deref_mut())?;
        }
        self.finish(values)
    }

    /// Begins a step; nothing is sent yet. One that was under way is given up.
    pub fn begin(&mut self, step: u64) {
        self.distortion.begin();
        let heard = self.groups.iter().map(|_| None).collect();
        let parameters = self.layout.len() as u64;
        let traffic = Traffic { parameters, ..Traffic::default() };
        self.underway = Some(Underway { step, traffic, heard });
    }

    /// Overwrites the elements of one group's buckets in the flat `gradient` by their mean over
    /// ranks. Of the rest nothing is read or written.
    ///
    /// # Errors
    /// [`Error::GradientLength`] and [`Error::Groups`] (no step has begun; no such group;
    /// exchanged already) before anything is sent; [`Error::NonFinite`] on every rank when one
    /// rank's gradient (or gradient plus residual) is not finite in this group;
    /// [`Error::NonFiniteMean`] on every rank when the mean overflows; [`Error::Aborted`] when a
    /// peer gave up before this group; [`Error::PeerLost`], [`Error::Timeout`],
    /// [`Error::OutOfStep`] and [`Error::Message`] when a peer is gone, silent, elsewhere (in
    /// another step or group), or not understood.
    pub fn exchange_group(&mut self, group: usize, gradient: &mut [f32]) -> Result<()> {
        self.exchange_with(group, gradient, None)
    }

    /// The same, of a gradient that is zero outside `support`, which becomes that of the mean.
    fn exchange_with(
        &mut self,
        group: usize,
        gradient: &mut [f32],
        mut support: Option<&mut Support>,
    ) -> Result<()> {
        let refuse = |problem: String| Err(Error::Groups { problem });
        if gradient.len() != self.layout.len() {
            let (expected, found) = (self.layout.len(), gradient.len());
            return Err(Error::GradientLength { expected, found });
        }
        let Some(mut underway) = self.underway.take() else {
            return refuse(format!("group {group} comes before the step has begun"));
        };
        match underway.heard.get(group) {
            None => {
                let count = self.groups.len();
                self.underway = Some(underway);
                return refuse(format!("there are {count} groups, and no {group}"));
            }
            Some(Some(_)) => {
                self.underway = Some(underway);
                return refuse(format!("group {group} has been exchanged in this step already"));
            }
            Some(None) => {}
        }
        let place = self.place(underway.step);
        let given = support.as_deref().cloned().unwrap_or_default();
        let taken = (support.as_deref_mut(), &given);
        match self.exchange_in(place, group, gradient, taken, &mut underway.traffic) {
            Ok(heard) => underway.heard[group] = Some(heard),
            Err(error) => {
                if let Some(support) = support {
                    match error {
                        // Buckets hold the whole mean, which the support covers, or are as given.
                        Error::NonFinite { .. } | Error::Aborted { .. } => support.join(&given),
                        _ => support.fill(),
                    }
                }
                return Err(error);
            }
        }
        self.underway = Some(underway);
        Ok(())
    }

    /// A group's collectives, one after the other. `support` becomes that of the mean; `given` is what it
    /// was.
    fn exchange_in(
        &mut self,
        place: Place,
        group: usize,
        gradient: &mut [f32],
        (mut support, given): (Option<&mut Support>, &Support),
        traffic: &mut Traffic,
    ) -> Result<(Vec<Item>, Heard)> {
        let start = Stopwatch::start();
        let as_given = self.feedback.is_none() && !self.clips();
        if self.is_dense() && place.world_size == 1 && as_given {
            // The mean over one rank is its gradient: nothing to copy.
            let mut buckets = self.groups[group].iter().map(|number| &self.buckets[*number]);
            if !buckets.all(|bucket| floats::all_finite(bucket.elements(gradient))) {
                return Err(self.non_finite(place, group, gradient));
            }
            let mut leg = self.leg(group, Operation::Allreduce);
            leg.wire_bytes = leg.dense_bytes;
            (leg.encode, leg.encode_cpu) = start.read();
            traffic.add(leg);
            return Ok((Vec::new(), Heard::Own(None)));
        }
        let mut leg = self.leg(group, Operation::Messages);
        let outgoing = match self.encode(place, group, gradient, support.as_deref(), &mut leg) {
            Ok(outgoing) => outgoing,
            Err(own) => return Err(self.refuse(place, own)),
        };
        let [coded, plain, in_rounds] = outgoing.dense_bytes(&self.buckets);
        let (passed, computed) = start.read();
        leg.encode = passed.saturating_sub(outgoing.measuring);
        // Measuring was timed by what passed: the same share of both clocks is taken off.
        let share = leg.encode.as_secs_f64() / passed.as_secs_f64().max(1e-9);
        leg.encode_cpu = computed.mul_f64(share.min(1.0));
        if let Some(support) = &mut support {
            support.clear();
        }
        let as_sent = self.feedback.is_none();
        let mut work = Work {
            place,
            items: &outgoing.items,
            layout: &self.layout,
            buckets: &mut self.buckets,
            collective: &mut *self.collective,
            gradient: &mut *gradient,
            as_sent,
            within: given,
            support,
            buffers: &mut self.buffers[group],
            leg: &mut leg,
        };
        let mut heard = Heard::Own(None);
        if !outgoing.items.is_empty() {
            (work.leg.wire_bytes, work.leg.dense_bytes) = (outgoing.message.len() as u64, coded);
            heard = self.route.reduce(&mut work, outgoing.message)?;
            traffic.add(std::mem::take(work.leg));
            work.leg.group = group;
        }
        if !outgoing.plain.is_empty() {
            work.items = &outgoing.plain;
            work.leg.operation = Operation::Allreduce;
            (work.leg.wire_bytes, work.leg.dense_bytes) = (outgoing.values.len() as u64, plain);
            let mine = self.route.allreduce(&mut work, outgoing.values)?;
            work.buffers.keep_plain(mine);
            traffic.add(std::mem::take(work.leg));
            work.leg.group = group;
        }
        if !outgoing.rounds.is_empty() {
            if let Some(support) = work.support.take() {
                // What a reducer writes may lie anywhere in its bucket.
                let rounds = outgoing.rounds.iter();
                rounds.for_each(|number| support.add(work.buckets[*number].range.clone()));
            }
            let first = Leg { dense_bytes: in_rounds, ..std::mem::take(work.leg) };
            self.run_rounds(place, &outgoing.rounds, gradient, first, traffic)?;
        }
        Ok((outgoing.items, heard))
    }

    /// Gives up, and with it the step that is under way on this rank, if any. On every rank the
    /// call in progress, or else the next call, fails with the returned error, whatever call it is.
    /// Waits for the others to make that call, no longer than the collective waits.
    ///
    /// If a rank of lower number refuses at the same time, its error is everybody's.
    pub fn abort(&mut self, step: u64, reason: &str) -> Error {
        self.underway = None;
        let (place, reason) = (self.place(step), refusal::cut(reason).to_string());
        self.refuse(place, Error::Aborted { rank: place.rank, step, reason })
    }

    /// The collective, for everything that is not a gradient: sums of an evaluation, averaged
    /// statistics, comparing replicas.
    pub fn collective(&mut self) -> &mut dyn Collective {
        &mut *self.collective
    }

    /// How the flat gradient is laid out: the parameters that were given, in the order of buckets.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What surrounds the scheme: what was given, and the scheme's default policy for the rest.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// With error feedback: what this rank has not sent yet, in the gradient's layout.
    pub fn residual(&self) -> Option<&[f32]> {
        self.feedback.as_ref().map(Feedback::residual)
    }

    /// Everything of this rank that later messages depend on: `residual` (in
    /// [name order](Layout::to_name_order), whatever the bucketing), the compressors' own entries under `bucket.N/`, and on rank 0 those of a
    /// server under `server/`. To be called between steps.
    pub fn save(&self) -> State {
        let mut state = State::default();
        if let Some(feedback) = &self.feedback {
            feedback.save(&self.layout, &mut state);
        }
        Bucket::save_all(&self.buckets, &mut state);
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
        Feedback::restore(self.feedback.as_mut(), &self.layout, state)?;
        Bucket::restore_all(&mut self.buckets, state)?;
        self.route.restore(state)
    }

    fn is_dense(&self) -> bool {
        self.buckets.iter().all(Bucket::is_plain)
    }

    /// Whether local clipping is on.
    fn clips(&self) -> bool {
        self.policy.clip_norm.is_some_and(|limit| limit > 0.0)
    }

    fn place(&self, step: u64) -> Place {
        Place { rank: self.collective.rank(), world_size: self.collective.world_size(), step }
    }

    /// A leg of a group, with the bytes that it would take as plain f32.
    fn leg(&self, group: usize, operation: Operation) -> Leg {
        let lengths = self.groups[group].iter().map(|number| self.buckets[*number].length());
        let dense_bytes = lengths.map(|length| frame::HEADER_BYTES + 4 * length).sum::<usize>();
        Leg { group, operation, dense_bytes: dense_bytes as u64, ..Leg::default() }
    }

    /// Tells every rank this rank's own error instead of what they await, and returns the error
    /// that all of them return.
    fn refuse(&mut self, place: Place, own: Error) -> Error {
        let mut mine = Vec::new();
        refusal::write(place.header(Kind::Abort, 0), &own, &mut mine);
        match self.collective.allgather(mine) {
            Ok(messages) => first_refusal(&messages).unwrap_or(own),
            Err(_) => own,
        }
    }
}

/// No buffers, for so many groups.
fn no_buffers(groups: usize) -> Vec<Buffers> {
    (0..groups).map(|_| Buffers::default()).collect()
}
