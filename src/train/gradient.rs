//! This rank's gradient of a step, and the exchange that makes the mean gradient of it.

use crate::recipe::Recipe;
use crate::train::overlap::{OverlapPlan, Overlapped};
use crate::train::params::Params;
use crate::train::position::{LivePosition, Phase};
use crate::train::timer::StepTimer;
use anyhow::{Context, Result};
use candle_core::Tensor;
use gradwire_exchange::{Exchange, Gauge, Gradient, Support, Traffic, Turn};
use gradwire_models::kernels::gradients::{Gradients, backward, backward_in_place, backward_into};
use std::ops::Range;
use std::panic::resume_unwind;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The gradient of one rank and its exchange. A step is [`begin`](Self::begin),
/// [`backward`](Self::backward) for each part of the batch, [`finish`](Self::finish).
pub(super) struct GradientExchange {
    exchange: Option<Exchange>,
    /// The exchange that is under way beside the steps, on a thread of its own, with what it exchanges.
    away: Option<JoinHandle<(Exchange, Landed)>>,
    world_size: usize,
    /// What a step costs in which nothing is exchanged.
    nothing: Traffic,
    /// One value for each parameter: this rank's gradient, and the mean gradient once the exchange is
    /// finished. Between steps zero where the optimizer leaves zeros.
    pub(super) flat: Vec<f32>,
    /// Outside of which `flat` is zero.
    pub(super) support: Support,
    /// The gradient of one part of the batch, when several make an update.
    part: Vec<f32>,
    overlap: Overlap,
    /// Bytes of gradient that are exchanged together beside the backward pass.
    group_bytes: usize,
    position: LivePosition,
    current: CurrentStep,
}

/// The mean that an exchange beside the steps came to, in the place of what was given to it, and what that cost.
pub(super) type Landed = (Vec<f32>, Result<Traffic, gradwire_exchange::Error>);

const HERE: &str = "invariant: the exchange is not under way";

/// The step that has begun.
#[derive(Default)]
struct CurrentStep {
    step: u64,
    /// Samples of this rank, and of all ranks.
    samples: [usize; 2],
    /// Whether somebody looks at this rank's gradient, or changes it, before it is exchanged.
    inspected: bool,
    exchanged: Option<Overlapped>,
}

/// Whether buckets leave while the backward pass still runs.
enum Overlap {
    Off,
    /// No plan yet: the first exchanged step in which every rank has samples gives one. The gradients to learn it from.
    Learning(Option<Gradients>),
    Planned(OverlapPlan),
}

impl GradientExchange {
    /// A gradient of zeros.
    pub(super) fn new(recipe: &Recipe, mut exchange: Exchange, position: LivePosition) -> Self {
        let parameters = exchange.layout().len();
        let mut nothing = Traffic::default();
        nothing.dense_bytes = exchange.dense_bytes();
        nothing.parameters = parameters as u64;
        nothing.rules =
            exchange.dense_bytes_by_rule().into_iter().map(|dense| [0, dense]).collect();
        Self {
            world_size: exchange.collective().world_size(),
            exchange: Some(exchange),
            away: None,
            nothing,
            flat: vec![0.0; parameters],
            support: Support::nothing(parameters),
            part: Vec::new(),
            overlap: if recipe.exchange.overlap { Overlap::Learning(None) } else { Overlap::Off },
            group_bytes: recipe.exchange.overlap_bytes,
            position,
            current: CurrentStep::default(),
        }
    }

    /// Begins `step`, in which this rank has `own` of the `all` samples. Where it takes the step `alone`, the mean is over
    /// this rank's samples. Where the gradient is `inspected`, it is exchanged only once it is whole.
    pub(super) fn begin(
        &mut self,
        step: u64,
        alone: bool,
        own: usize,
        all: usize,
        inspected: bool,
    ) {
        let all = if alone { own * self.world_size } else { all };
        self.current = CurrentStep { step, samples: [own, all], inspected, exchanged: None };
        if own == 0 {
            self.flat.fill(0.0);
            self.support.clear();
        }
    }

    /// The backward pass of the loss of these `samples` of the batch. Their gradient is added to that of
    /// the samples before, weighed so that the plain mean over ranks is the mean over the global batch,
    /// whatever the ranks' shares. With overlap, the pass of the last samples hands each bucket to the
    /// exchange as soon as it is ready.
    pub(super) fn backward(
        &mut self,
        loss: &Tensor,
        samples: &Range<usize>,
        params: &Params,
        zeros: Option<&Range<usize>>,
        timer: &mut StepTimer,
    ) -> Result<()> {
        let [local, global] = self.current.samples;
        let weight = (samples.len() * self.world_size) as f64 / global as f64;
        let loss = if weight == 1.0 { loss.clone() } else { (loss * weight)? };
        let add = samples.start > 0;
        if let Overlap::Planned(plan) = &self.overlap
            && !self.current.inspected
            && samples.end == local
        {
            self.position.enter(Phase::OverlappedExchange);
            self.support.fill();
            let exchange = (params, self.exchange.as_mut().expect(HERE), self.flat.as_mut_slice());
            let pass = |listener| Ok(backward_into(&loss, listener)?);
            self.current.exchanged =
                Some(plan.run(self.current.step, exchange, add, timer, pass)?);
            return Ok(());
        }
        self.position.enter(Phase::Backward);
        timer.time(|p| &mut p.backward, || self.gather(&loss, add, params, zeros))
    }

    /// The backward pass into `flat`; with `add` on top of what is there.
    fn gather(
        &mut self,
        loss: &Tensor,
        add: bool,
        params: &Params,
        zeros: Option<&Range<usize>>,
    ) -> Result<()> {
        let flat = if add {
            self.part.resize(self.flat.len(), 0.0);
            &mut self.part
        } else {
            self.support.clear();
            &mut self.flat
        };
        // The plan is learnt from the kernels' single contributions, so none may be written in place.
        let learns = matches!(self.overlap, Overlap::Learning(_));
        let gradients =
            if learns { backward(loss)? } else { backward_in_place(loss, flat, params.places())? };
        if self.current.step == 1 && !add {
            params.audit(&gradients)?;
        }
        params.gather(&gradients, flat, zeros.filter(|_| !add), &mut self.support)?;
        if add {
            self.flat.iter_mut().zip(&self.part).for_each(|(sum, part)| *sum += part);
        }
        if learns {
            self.overlap = Overlap::Learning(Some(gradients));
        }
        Ok(())
    }

    /// Exchanges what the backward pass has not: from here on `flat` is the mean gradient.
    pub(super) fn finish(&mut self, params: &Params) -> Result<Overlapped> {
        if let Some(exchanged) = self.current.exchanged.take() {
            return Ok(exchanged);
        }
        self.position.enter(Phase::Exchange);
        let began = Instant::now();
        let exchange = self.exchange.as_mut().expect(HERE);
        let gradient = Gradient::within(&mut self.flat, &mut self.support);
        let traffic = exchange.allreduce(self.current.step, gradient)?;
        let exposed = began.elapsed();
        // A rank without samples would learn that nothing is ever early: all wait for a step in which
        // each has some.
        let [_, global] = self.current.samples;
        let all_have_some = global >= self.world_size;
        if let (true, Overlap::Learning(first)) = (all_have_some, &mut self.overlap) {
            let plan = OverlapPlan::learn(params, first.as_ref(), exchange, self.group_bytes)?;
            self.overlap = Overlap::Planned(plan);
        }
        Ok(Overlapped { traffic, exposed, ready: Vec::new(), laid: Vec::new() })
    }

    /// The exchange; not while it is away.
    pub(super) fn exchange(&self) -> &Exchange {
        self.exchange.as_ref().expect(HERE)
    }

    /// The same, to be used.
    pub(super) fn exchange_mut(&mut self) -> &mut Exchange {
        self.exchange.as_mut().expect(HERE)
    }

    /// Begins the exchange of one group of `values` beside the steps that follow.
    pub(super) fn send(&mut self, turn: Turn, group: usize, mut values: Vec<f32>) -> Result<()> {
        let rank = self.position.rank();
        let mut exchange = self.exchange.take().expect(HERE);
        let exchanging = move || {
            let traffic = exchange.allreduce_group(turn, group, &mut values);
            (exchange, (values, traffic))
        };
        let thread = thread::Builder::new().name(format!("exchange-{rank}"));
        self.away = Some(thread.spawn(exchanging).context("starting the exchanging thread")?);
        Ok(())
    }

    /// Whether an exchange is under way beside the steps.
    pub(super) fn is_away(&self) -> bool {
        self.away.is_some()
    }

    /// Waits for the exchange that is under way beside the steps, if one is: what came of it, and how long that took.
    pub(super) fn land(&mut self) -> Option<(Landed, Duration)> {
        let thread = self.away.take()?;
        self.position.enter(Phase::Exchange);
        let began = Instant::now();
        let (exchange, landed) = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        self.exchange = Some(exchange);
        Some((landed, began.elapsed()))
    }

    /// Completes the traffic of an exchange of progress (how far local steps have moved the weights): dense bytes are those of all
    /// parameters, of the policy's rules too, and the norm of the mean is added.
    pub(super) fn complete_progress(&self, traffic: &mut Traffic, norm: f64) {
        traffic.dense_bytes = self.nothing.dense_bytes;
        for ([_, dense], [_, all]) in traffic.rules.iter_mut().zip(&self.nothing.rules) {
            *dense = *all;
        }
        traffic.gauges.push(Gauge::sum("progress_norm", norm));
    }

    /// What a step costs in which nothing is exchanged.
    pub(super) fn nothing_sent(&self) -> Overlapped {
        let traffic = self.nothing.clone();
        Overlapped { traffic, exposed: Duration::ZERO, ready: Vec::new(), laid: Vec::new() }
    }

    /// Stops every rank before the update; the error for this rank.
    pub(super) fn abort(&mut self, reason: &str) -> anyhow::Error {
        self.exchange.as_mut().expect(HERE).abort(self.current.step, reason).into()
    }
}

/// Nobody leaves the others' exchange half-done: what is under way ends first.
impl Drop for GradientExchange {
    fn drop(&mut self) {
        if let Some(thread) = self.away.take() {
            // If it has failed, whoever ends this knows already.
            let _ = thread.join();
        }
    }
}
