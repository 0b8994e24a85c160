//! Overlap: buckets leave while the backward pass of the same step still runs.
//!
//! Kernels hand the gradients of parameters over as they become known. A thread of the worker's own
//! lays them into the flat gradient and exchanges a group of buckets as soon as all of its
//! parameters are final, always in the same order, so that the result does not depend on timing:
//! it is that of an exchange after the backward pass, bit for bit.
//!
//! Which parameters are final with what one kernel hands over, and in which order the groups are,
//! is learnt from the first step, which runs without overlap. All ranks take rank 0's order.

use crate::train::params::{Index, Params};
use crate::train::timer::StepTimer;
use anyhow::{Context, Result, anyhow, bail};
use crossbeam::channel::{Receiver, Sender, unbounded};
use gradwire_exchange::thread_time;
use gradwire_exchange::{Exchange, Traffic};
use gradwire_models::kernels::gradients::Gradients;
use gradwire_models::kernels::handover::Contribution;
use std::ops::Range;
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

/// How the groups of one worker's buckets fill during a backward pass.
pub(super) struct OverlapPlan {
    index: Index,
    /// Each parameter, as they lie in the flat gradient.
    params: Vec<PlannedParameter>,
    groups: usize,
}

/// A parameter, and how its gradient reaches the exchange.
struct PlannedParameter {
    name: String,
    /// Its part of the flat gradient.
    range: Range<usize>,
    /// The group of its bucket.
    group: usize,
    /// Whether one contribution of a kernel is all of its gradient.
    early: bool,
}

/// One step's exchange beside its backward pass.
pub(super) struct Overlapped {
    /// What crossed the wire.
    pub(super) traffic: Traffic,
    /// From the end of the backward pass to the mean gradient: what was not hidden.
    pub(super) exposed: Duration,
    /// The share of the backward pass that was over when each group was final, 0 to 1, in the
    /// order of the exchange; nothing when all were final at its end.
    pub(super) ready: Vec<f64>,
    /// Seconds that the exchanging thread computed to lay each group's gradient into the flat one,
    /// in the order of the exchange; nothing without overlap.
    pub(super) laid: Vec<f64>,
}

/// What the exchanging thread has done in a step.
struct Exchanged {
    traffic: Traffic,
    /// When each group was final, if it was before the end.
    ready: Vec<Option<Instant>>,
    /// As [`Overlapped::laid`].
    laid: Vec<f64>,
}

/// What has become final, as the exchanging thread receives it.
enum Ready {
    /// All of a parameter's gradient, from a kernel, and when.
    Early(usize, Contribution, Instant),
    /// All of a parameter's gradient, after the backward pass.
    Late(usize, Vec<f32>),
    /// Everything is final; what was not sent is zero.
    Final,
}

impl OverlapPlan {
    /// Learns from the `gradients` of a first step without overlap (none if this rank had no
    /// samples), and sets the groups of `exchange`: buckets in the order in which rank 0's become
    /// final, together until they hold `bytes` of f32 gradient. All ranks call it at the same time.
    pub(super) fn learn(
        params: &Params,
        gradients: Option<&Gradients>,
        exchange: &mut Exchange,
        bytes: usize,
    ) -> Result<Self> {
        let index = params.index();
        let mut seen: Vec<Vec<usize>> = vec![Vec::new(); params.iter().count()];
        let contributions = gradients.map_or(&[][..], Gradients::contributions);
        for (moment, contribution) in contributions.iter().enumerate() {
            if let Some(param) = index.of(contribution) {
                seen[param].push(moment);
            }
        }
        // The moment at which each parameter is final; none before the end of the pass.
        let mut moments = Vec::with_capacity(seen.len());
        for (param, seen) in params.iter().zip(&seen) {
            let left = gradients.map_or(Ok(None), |gradients| gradients.left(&param.var))?;
            moments.push(match seen[..] {
                [moment] if left.is_none() => Some(moment),
                _ => None,
            });
        }
        let mut planned: Vec<PlannedParameter> = params
            .iter()
            .zip(&moments)
            .map(|(param, moment)| PlannedParameter {
                name: param.name.clone(),
                range: param.range.clone(),
                group: 0,
                early: moment.is_some(),
            })
            .collect();
        let groups = agreed(&groups(exchange, &moments, bytes), exchange)?;
        let count = groups.len();
        for (group, buckets) in groups.iter().enumerate() {
            for bucket in buckets {
                let parameters = exchange.buckets()[*bucket].parameters.clone();
                planned[parameters].iter_mut().for_each(|planned| planned.group = group);
            }
        }
        exchange.set_groups(groups)?;
        Ok(Self { index: index.clone(), params: planned, groups: count })
    }

    /// Runs `backward`, which hands what it is given to the kernels as their listener, beside the
    /// exchange of the gradient, and adds its time to `timer`. On return `flat` is the mean gradient. With `add` what `flat` holds
    /// is part of this rank's gradient.
    pub(super) fn run(
        &self,
        step: u64,
        (params, exchange, flat): (&Params, &mut Exchange, &mut [f32]),
        add: bool,
        timer: &mut StepTimer,
        backward: impl FnOnce(Listener) -> Result<Gradients>,
    ) -> Result<Overlapped> {
        let (sender, received) = unbounded();
        let rank = exchange.collective().rank();
        thread::scope(|scope| {
            let exchanging = thread::Builder::new()
                .name(format!("exchange-{rank}"))
                .spawn_scoped(scope, || self.exchange(step, exchange, flat, add, &received))
                .context("starting the exchanging thread")?;
            let began = Instant::now();
            let passed = timer.time(
                |phases| &mut phases.backward,
                || {
                    let gradients = backward(self.listener(sender.clone()))?;
                    self.send_rest(params, &gradients, &sender)
                },
            );
            let ended = Instant::now();
            // Nothing more is sent; without [`Ready::Final`] the thread gives the step up.
            drop(sender);
            let exchanged = exchanging.join().unwrap_or_else(|panic| resume_unwind(panic));
            passed?;
            let Some(Exchanged { traffic, ready, laid }) = exchanged? else {
                bail!("the step was given up")
            };
            let whole = (ended - began).as_secs_f64();
            let share = |moment: Option<Instant>| {
                moment
                    .map_or(1.0, |moment| ((moment - began).as_secs_f64() / whole).clamp(0.0, 1.0))
            };
            let ready = ready.into_iter().map(share).collect();
            Ok(Overlapped { traffic, exposed: ended.elapsed(), ready, laid })
        })
    }

    /// Passes on whatever is final, and gives the rest back.
    fn listener(&self, sender: Sender<Ready>) -> Listener {
        let index = self.index.clone();
        let early: Vec<bool> = self.params.iter().map(|planned| planned.early).collect();
        Box::new(move |contribution| match index.of(&contribution) {
            Some(param) if early[param] => {
                // If nobody listens, the exchange has failed, which its thread reports.
                let _ = sender.send(Ready::Early(param, contribution, Instant::now()));
                None
            }
            _ => Some(contribution),
        })
    }

    /// Sends all gradients that are final only now.
    fn send_rest(
        &self,
        params: &Params,
        gradients: &Gradients,
        sender: &Sender<Ready>,
    ) -> Result<()> {
        for (number, (param, planned)) in params.iter().zip(&self.params).enumerate() {
            if !planned.early {
                let mut values = vec![0.0; planned.range.len()];
                gradients.copy(&param.var, &mut values)?;
                let _ = sender.send(Ready::Late(number, values));
            } else if gradients.left(&param.var)?.is_some() {
                return Err(self.changed(number, "has a part that no kernel handed over"));
            }
        }
        let _ = sender.send(Ready::Final);
        Ok(())
    }

    /// The exchanging thread: each group as soon as it is final. `None` when the backward pass ended
    /// without a last word.
    fn exchange(
        &self,
        step: u64,
        exchange: &mut Exchange,
        flat: &mut [f32],
        add: bool,
        received: &Receiver<Ready>,
    ) -> Result<Option<Exchanged>> {
        exchange.begin(step);
        let mut missing = vec![0; self.groups];
        self.params.iter().for_each(|planned| missing[planned.group] += 1);
        let mut known = vec![false; self.params.len()];
        let (mut next, mut ready) = (0, vec![None; self.groups]);
        let mut laid = vec![0.0; self.groups];
        for received in received {
            let (param, last) = match &received {
                Ready::Early(param, ..) | Ready::Late(param, _) => (Some(*param), false),
                Ready::Final => (None, true),
            };
            if let Some(param) = param {
                if std::mem::replace(&mut known[param], true) {
                    bail!(self.changed(param, "came twice"));
                }
                let group = self.params[param].group;
                missing[group] -= 1;
                if let Ready::Early(_, _, moment) = received
                    && missing[group] == 0
                {
                    ready[group] = Some(moment);
                }
                let before = thread_time();
                lay(received, add, &mut flat[self.params[param].range.clone()]);
                laid[group] += thread_time().saturating_sub(before).as_secs_f64();
            }
            if last {
                let unknown = self.params.iter().zip(&known).filter(|(_, known)| !**known && !add);
                unknown.for_each(|(planned, _)| flat[planned.range.clone()].fill(0.0));
                missing.fill(0);
            }
            while next < self.groups && missing[next] == 0 {
                exchange.exchange_group(next, flat)?;
                next += 1;
            }
            if last {
                let traffic = exchange.finish(flat)?;
                return Ok(Some(Exchanged { traffic, ready, laid }));
            }
        }
        Ok(None)
    }

    fn changed(&self, param: usize, how: &str) -> anyhow::Error {
        anyhow!(
            "the gradient of {} {how}, unlike in the first step: this model cannot overlap; write \
             exchange.overlap = false",
            self.params[param].name
        )
    }
}

/// What the kernels of a backward pass hand gradients to.
pub(super) type Listener = Box<dyn FnMut(Contribution) -> Option<Contribution>>;

/// Lays a parameter's gradient into its part of the flat gradient.
fn lay(received: Ready, add: bool, into: &mut [f32]) {
    match (received, add) {
        (Ready::Early(_, contribution, _), true) => contribution.add_to(into),
        (Ready::Early(_, contribution, _), false) => contribution.write_to(into),
        (Ready::Late(_, values), true) => into.iter_mut().zip(values).for_each(|(a, b)| *a += b),
        (Ready::Late(_, values), false) => into.copy_from_slice(&values),
        (Ready::Final, _) => {}
    }
}

/// The exchange's buckets in the order in which they become final, together until they hold `bytes`
/// of gradient; those that are final only at the end in one group.
fn groups(exchange: &Exchange, moments: &[Option<usize>], bytes: usize) -> Vec<Vec<usize>> {
    let last_moment = |parameters: Range<usize>| {
        let moments = moments[parameters].iter();
        moments.map(|moment| moment.unwrap_or(usize::MAX)).max().unwrap_or(usize::MAX)
    };
    let mut buckets: Vec<(usize, usize, usize)> = (exchange.buckets().iter().enumerate())
        .map(|(number, bucket)| {
            (last_moment(bucket.parameters.clone()), number, bucket.range.len())
        })
        .collect();
    buckets.sort_unstable();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let (mut held, mut open_until) = (0, None);
    for (moment, number, length) in buckets {
        let late = moment == usize::MAX;
        match groups.last_mut() {
            Some(group) if open_until == Some(late) && (late || held < bytes) => {
                group.push(number);
                held += 4 * length;
            }
            _ => {
                groups.push(vec![number]);
                held = 4 * length;
            }
        }
        open_until = Some(late);
    }
    groups
}

/// Rank 0's groups, on every rank.
fn agreed(groups: &[Vec<usize>], exchange: &mut Exchange) -> Result<Vec<Vec<usize>>> {
    // Each group as its length and its buckets, 32 bits each.
    let words = groups.iter().flat_map(|group| [group.len()].into_iter().chain(group.clone()));
    let mut bytes: Vec<u8> = words.flat_map(|word| (word as u32).to_le_bytes()).collect();
    exchange.collective().broadcast(0, &mut bytes)?;
    let (words, _) = bytes.as_chunks::<4>();
    let mut words = words.iter().map(|word| u32::from_le_bytes(*word) as usize);
    let mut groups = Vec::new();
    while let Some(length) = words.next() {
        groups.push(words.by_ref().take(length).collect());
    }
    Ok(groups)
}
