//! One step: check, correct, encode, exchange by the topology's route, learn; a group of buckets at
//! a time.

mod ending;
mod outgoing;
mod standing;

use std::collections::VecDeque;

use self::standing::Standing;
use crate::bucket::Bucket;
use crate::collective::{Collective, Payload};
use crate::compress::{Feedback, Scheme};
use crate::cpu::Stopwatch;
use crate::incoming::{Place, first_refusal};
use crate::layout::{Layout, Part};
use crate::measure::Distortion;
use crate::topology::{About, Heard, Route, Setup, Topology, Wiring, Work};
use crate::traffic::Leg;
use crate::wire::{Kind, floats, frame, refusal};
use crate::{Error, Policy, Result, State, Support, Traffic};

/// Elements that a bucket may have, so that its message is surely shorter than 4 GiB.
const MAX_BUCKET: usize = 1 << 29;

/// Turns each rank's gradient into the mean over ranks, bit-identical on all of them.
///
/// One exchange belongs to one rank; all ranks make the same calls in the same order, with the
/// same scheme, policy, layout and groups.
///
/// # Groups
/// A step is [`allreduce`](Self::allreduce), or [`begin`](Self::begin), then
/// [`exchange_group`](Self::exchange_group) once for each group of buckets, as soon as these
/// buckets' part of the gradient is final, then [`finish`](Self::finish). Each group is one
/// message and one rendezvous. Any order will do if it is the same on all ranks; mean, residual,
/// compressors and wire bytes come out bit-identical whatever the groups and their order.
///
/// # Failures
/// When a call fails the step is over: residual and compressors are what they were before it,
/// whichever group failed. In the gradient, groups that had been exchanged hold the mean; the
/// others are as given, and so is the group that failed after [`Error::NonFinite`] and
/// [`Error::Aborted`], which reach every rank alike (but for local clipping without feedback,
/// which scales the gradient in place). After these two the group of ranks can go on, with a new
/// step or the same. After any other error it is broken: drop the exchange, which tells the peers.
pub struct Exchange {
    layout: Layout,
    policy: Policy,
    parts: Vec<Part>,
    buckets: Vec<Bucket>,
    groups: Vec<Vec<usize>>,
    feedback: Option<Feedback>,
    collective: Box<dyn Collective>,
    route: Box<dyn Route>,
    /// Of each group, the last messages sent, oldest first. The older of two has been read by all
    /// ranks when the younger is answered, so that two buffers go round for ever; or one, which the
    /// cache still holds, where all have let go of it before it is needed again.
    sent: Vec<VecDeque<(Payload, Option<Standing>)>>,
    /// What is known of the message of the step under way.
    standing: Option<Standing>,
    distortion: Distortion,
    underway: Option<Underway>,
    /// Outside of which the gradient of the step under way is zero, if that is known.
    support: Option<Support>,
}

/// Where a message is written.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// What is known of an earlier message that lies there, if it is as long as a new one.
    standing: Option<Standing>,
}

/// A step that has begun and is not finished.
struct Underway {
    step: u64,
    traffic: Traffic,
    /// Of each group that has been exchanged, what this rank heard.
    heard: Vec<Option<Heard>>,
}

impl Exchange {
    /// Builds this rank's compressors over a collective that all ranks share, every rank hearing
    /// every rank. What `policy` leaves out is the scheme's habit. All buckets are one group.
    ///
    /// # Errors
    /// As [`over`](Self::over).
    pub fn new(
        scheme: &Scheme,
        policy: impl Into<Policy>,
        layout: Layout,
        seed: u64,
        collective: Box<dyn Collective>,
    ) -> Result<Self> {
        Self::over(Topology::default(), scheme, policy, layout, seed, collective)
    }

    /// The same over another topology, whose [`Topology::connect`] made the collective.
    ///
    /// # Errors
    /// What [`Policy::validate`] and [`Wiring::validate`] refuse; [`Error::Topology`] when the
    /// collective does not offer what the topology needs; [`Error::Bucketing`] when a bucket would
    /// have more than 2²⁹ elements; [`Error::WorldSize`].
    pub fn over(
        wiring: impl Into<Wiring>,
        scheme: &Scheme,
        policy: impl Into<Policy>,
        layout: Layout,
        seed: u64,
        mut collective: Box<dyn Collective>,
    ) -> Result<Self> {
        let (wiring, policy) = (wiring.into(), policy.into().or(scheme.habits()));
        policy.validate(scheme)?;
        wiring.validate(scheme, &policy)?;
        let (rank, world_size) = (collective.rank(), collective.world_size());
        if world_size == 0 || world_size > usize::from(u16::MAX) {
            return Err(Error::WorldSize { world_size });
        }
        let bucketing = policy.bucketing.clone().unwrap_or_default();
        let parts = bucketing.parts(&layout, policy.dense_below.unwrap_or(0));
        if let Some(part) = parts.iter().find(|part| part.length() > MAX_BUCKET) {
            let problem = format!(
                "a bucket of {} elements is too large; write `parameter` or `bytes = {}`",
                part.length(),
                MAX_BUCKET
            );
            return Err(Error::Bucketing { problem });
        }
        let about = About {
            wiring,
            scheme,
            policy: &policy,
            layout: &layout,
            parts: &parts,
            seed,
            world_size,
        };
        let buckets = about.buckets(rank);
        let route = wiring.topology.route(Setup { about, rank, collective: &mut *collective })?;
        let feedback = scheme.feedback().then(|| Feedback::new(layout.len(), policy.momentum()));
        Ok(Self {
            layout,
            policy,
            groups: vec![(0..buckets.len()).collect()],
            parts,
            buckets,
            feedback,
            collective,
            route,
            sent: no_messages(1),
            standing: None,
            distortion: Distortion::default(),
            underway: None,
            support: None,
        })
    }

    /// The buckets, by number: which parameters each holds. A bucket's part of the gradient is
    /// final when all of these are.
    pub fn buckets(&self) -> &[Part] {
        &self.parts
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
                 message; write `policy.clip_norm = 0`, or exchange all buckets as one group"
            ));
        }
        self.sent = no_messages(groups.len());
        self.groups = groups;
        self.underway = None;
        Ok(())
    }

    /// Overwrites `gradient` by its mean over ranks: what the ranks' messages say, added in order
    /// of rank, times 1/N. One whole step: [`begin`](Self::begin), every group in order,
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// As [`exchange_group`](Self::exchange_group).
    pub fn allreduce(&mut self, step: u64, gradient: &mut [f32]) -> Result<Traffic> {
        self.begin(step);
        for group in 0..self.groups.len() {
            self.exchange_group(group, gradient)?;
        }
        self.finish(gradient)
    }

    /// The same, of a gradient that is zero outside `support`, which becomes that of the mean:
    /// everything, where that is not known.
    ///
    /// # Errors
    /// As [`exchange_group`](Self::exchange_group).
    ///
    /// # Panics
    /// When `support` is of a gradient of another length.
    pub fn allreduce_within(
        &mut self,
        step: u64,
        gradient: &mut [f32],
        support: &mut Support,
    ) -> Result<Traffic> {
        assert_eq!(support.len(), self.layout.len(), "a support of another gradient");
        self.support = Some(std::mem::take(support));
        let done = self.allreduce(step, gradient);
        *support = self.support.take().unwrap_or_default();
        match self.buckets.as_slice() {
            [bucket] if bucket.by_blocks && bucket.is_all_of(gradient) => {
                support.set(&bucket.spoken_of);
            }
            _ => support.fill(),
        }
        done
    }

    /// Begins a step; nothing is sent yet. One that was under way is given up.
    pub fn begin(&mut self, step: u64) {
        self.distortion.begin();
        self.standing = None;
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
        if gradient.len() != self.layout.len() {
            let (expected, found) = (self.layout.len(), gradient.len());
            return Err(Error::GradientLength { expected, found });
        }
        let refuse = |problem: String| Err(Error::Groups { problem });
        let Some(mut underway) = self.underway.take() else {
            return refuse(format!("group {group} comes before the step has begun"));
        };
        match underway.heard.get(group) {
            Some(None) => {}
            Some(Some(_)) => return refuse(format!("group {group} has been exchanged already")),
            None => {
                return refuse(format!("there are {}, and no {group}", underway.heard.len()));
            }
        }
        let place = self.place(underway.step);
        let heard = self.exchange_in(place, group, gradient, &mut underway.traffic)?;
        underway.heard[group] = Some(heard);
        self.underway = Some(underway);
        Ok(())
    }

    fn exchange_in(
        &mut self,
        place: Place,
        group: usize,
        gradient: &mut [f32],
        traffic: &mut Traffic,
    ) -> Result<Heard> {
        let start = Stopwatch::start();
        let lengths = self.groups[group].iter().map(|number| self.buckets[*number].length);
        let dense_bytes = lengths.map(|length| frame::HEADER_BYTES + 4 * length).sum::<usize>();
        let mut leg = Leg { group, dense_bytes: dense_bytes as u64, ..Leg::default() };
        if self.is_dense() && place.world_size == 1 && !self.clips() {
            // The mean over one rank is its gradient: nothing to copy.
            let mut ranges = self.groups[group].iter().flat_map(|n| &self.buckets[*n].ranges);
            if !ranges.all(|range| floats::all_finite(&gradient[range.clone()])) {
                return Err(self.non_finite(place, group, gradient));
            }
            leg.wire_bytes = leg.dense_bytes;
            (leg.encode, leg.encode_cpu) = start.read();
            traffic.add(leg);
            return Ok(Heard::Messages(Vec::new()));
        }

        let mut mine = self.spare_buffer(group);
        let Some(measuring) = self.encode(place, gradient, &mut leg, &mut mine) else {
            let own = self.non_finite(place, group, gradient);
            return Err(self.refuse(place, own));
        };
        let Buffer { bytes: mine, standing } = mine;
        leg.wire_bytes = mine.len() as u64;
        let (passed, computed) = start.read();
        leg.encode = passed.saturating_sub(measuring);
        // Measuring was timed by what passed: the same share of both clocks is taken off.
        let share = leg.encode.as_secs_f64() / passed.as_secs_f64().max(1e-9);
        leg.encode_cpu = computed.mul_f64(share.min(1.0));
        let mut work = Work {
            place,
            group: &self.groups[group],
            layout: &self.layout,
            buckets: &mut self.buckets,
            collective: &mut *self.collective,
            gradient,
            as_sent: self.feedback.is_none(),
            support: self.support.as_ref().filter(|_| self.feedback.is_none()),
            leg: &mut leg,
        };
        let heard = self.route.reduce(&mut work, mine)?;
        self.standing = standing;
        traffic.add(leg);
        Ok(heard)
    }

    /// Gives up: every rank's next or present call, whatever it is, fails with the returned
    /// error, and so does the step that is under way here. Waits for the others to make that
    /// call, no longer than the collective waits.
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

    /// How the flat gradient is laid out.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What surrounds the scheme: what was given, and the scheme's habits where it was silent.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// With error feedback: what this rank has not said yet, in the gradient's layout.
    pub fn residual(&self) -> Option<&[f32]> {
        self.feedback.as_ref().map(Feedback::residual)
    }

    /// Everything of this rank that later messages depend on: `residual` (the flat one, whatever
    /// the bucketing), the compressors' own entries under `bucket.N/`, and on rank 0 those of a
    /// server under `server/`. To be called between steps.
    pub fn save(&self) -> State {
        let mut state = State::default();
        if let Some(feedback) = &self.feedback {
            feedback.save(&mut state);
        }
        Bucket::save_all(&self.buckets, &mut state);
        self.route.save(&mut state);
        state
    }

    /// Takes up what [`save`](Self::save) returned, before any rank's next step. A step that is
    /// under way is given up.
    ///
    /// # Errors
    /// [`Error::State`] when an entry is missing or does not fit, or when there is a residual
    /// that this scheme would silently lose.
    pub fn restore(&mut self, state: &State) -> Result<()> {
        self.underway = None;
        Feedback::restore(self.feedback.as_mut(), self.layout.len(), state)?;
        Bucket::restore_all(&mut self.buckets, state)?;
        self.route.restore(state)
    }

    fn is_dense(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.compressor.is_none())
    }

    /// Whether local clipping is on.
    fn clips(&self) -> bool {
        self.policy.clip_norm.is_some_and(|limit| limit > 0.0)
    }

    fn place(&self, step: u64) -> Place {
        Place { rank: self.collective.rank(), world_size: self.collective.world_size(), step }
    }

    fn spare_buffer(&mut self, group: usize) -> Buffer {
        let sent = &mut self.sent[group];
        let spare = match sent.back() {
            Some((youngest, _)) if youngest.is_unshared() => sent.pop_back(),
            _ if sent.len() < 2 => None,
            _ => sent.pop_front(),
        };
        let reclaimed = spare.and_then(|(message, standing)| Some((message.reclaim()?, standing)));
        let (bytes, standing) = reclaimed.unwrap_or_default();
        Buffer { bytes, standing }
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

/// Places for the last messages of so many groups.
fn no_messages(groups: usize) -> Vec<VecDeque<(Payload, Option<Standing>)>> {
    (0..groups).map(|_| VecDeque::with_capacity(3)).collect()
}
