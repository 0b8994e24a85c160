//! An exchange is made; its groups of buckets are set; what lasts of it is saved and taken up.

use std::collections::HashMap;

use super::Exchange;
use crate::collective::Collective;
use crate::compress::{Feedback, Run};
use crate::group::{Bucket, Buffers, Member, Ranks};
use crate::layout::{BucketRange, Layout};
use crate::refusal;
use crate::support::KnownZeros;
use crate::topology::{Route, Setup, Topology, Wiring};
use crate::traffic::Operation;
use crate::wire::frame;
use crate::{Error, Policy, Result, Scheme, State};

/// Elements that a bucket may have, so that its message is surely shorter than 4 GiB.
const MAX_BUCKET: usize = 1 << 29;

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
        let mut collective = Ranks::in_groups(collective, wiring.topology.group())?;
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
        let (zeros, buffers) = (KnownZeros::default(), no_buffers(1));
        let member = Member { layout, buckets, feedback, collective, zeros, buffers };
        let masks = policy.momentum() > 0.0 && policy.momentum_masking.unwrap_or(true);
        let (distortion, underway, sent_by_rules) = (None, None, Vec::new());
        Ok(Self {
            member,
            policy,
            ranges,
            groups,
            route,
            masks,
            distortion,
            underway,
            sent_by_rules,
        })
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

    /// Bytes of the whole gradient as plain f32, headers included.
    pub fn dense_bytes(&self) -> u64 {
        (0..self.groups.len()).map(|group| self.leg(group, Operation::Messages).dense_bytes).sum()
    }

    /// Of each of the policy's rules, the bytes of its parameters as plain f32, headers included.
    pub fn dense_bytes_by_rule(&self) -> Vec<u64> {
        let mut bytes = vec![0; self.policy.rules.len()];
        for bucket in &self.ranges {
            if let Some(rule) = bucket.rule {
                bytes[rule] += super::dense_bytes(bucket.range.len());
            }
        }
        bytes
    }

    /// Multiplies the residual, that of a compressed downlink too, with momentum correction the velocity, and what
    /// compressors have learnt in that unit, by `factor`: from now on the same vectors are given in another unit, such
    /// as in steps of the weights where it was gradients.
    pub fn rescale(&mut self, factor: f32) {
        let codecs = self.member.buckets.iter_mut().filter_map(Bucket::codec_mut);
        codecs.for_each(|codec| codec.rescale(factor));
        if let Some(feedback) = &mut self.member.feedback {
            feedback.rescale(factor);
        }
        if let Some(aggregator) = self.route.aggregator() {
            aggregator.rescale(factor);
        }
    }

    /// Gives up, and with it the step that is under way on this rank, if any. On every rank the
    /// call in progress, or else the next call, fails with the returned error, whatever call it is.
    /// Waits for the others to make that call, no longer than the collective waits.
    ///
    /// If a rank of lower number refuses at the same time, its error is everybody's.
    pub fn abort(&mut self, step: u64, reason: &str) -> Error {
        self.underway = None;
        let (context, reason) = (self.context(step.into()), refusal::cut(reason).to_string());
        let rank = self.member.collective.all.rank();
        self.refuse(context, Error::Aborted { rank, step, reason })
    }

    /// The collective, for everything that is not a gradient: sums of an evaluation, averaged
    /// statistics, comparing replicas.
    pub fn collective(&mut self) -> &mut dyn Collective {
        &mut *self.member.collective.all
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
            // What this exchange saved it can take up, unless a scheme from outside fails in that, too, which then
            // fails in the next step.
            let _ = self.take_up(&before);
        })
    }

    fn take_up(&mut self, state: &State) -> Result<()> {
        let member = &mut self.member;
        Feedback::restore(member.feedback.as_mut(), &member.layout, state)?;
        Bucket::restore_all(&mut member.buckets, &vec![true; self.ranges.len()], state)?;
        self.route.restore(state)
    }
}

/// No buffers, for so many groups.
fn no_buffers(groups: usize) -> Vec<Buffers> {
    (0..groups).map(|_| Buffers::default()).collect()
}
