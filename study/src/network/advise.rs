//! Advice: which scheme is worth its computing on which link.
//!
//! Three measurements on this machine, with the recipe's own model, data and number of workers:
//! what a step computes; the gradients of every rank over the first steps of a dense training; and
//! what each scheme takes to encode and decode those, which stand for the progress of local steps where the
//! recipe has them. A step on a link is then the virtual clock's
//! ([`gradwire_exchange::network`]) with these figures.

use crate::statistics;
use anyhow::{Context, Result, anyhow, ensure};
use gradwire::recipe::local::InnerState;
use gradwire::recipe::{Recipe, in_words};
use gradwire::record::network::pattern;
use gradwire::train::optim::Optimizer;
use gradwire::train::replica::Replica;
use gradwire::train::timer::StepTimer;
use gradwire_datasets::{Data, Features, Loader, Plan, Sampler};
use gradwire_exchange::network::{Clock, GroupWork, Link, Pattern, Sent, StepWork};
use gradwire_exchange::{
    Exchange, Law, Layout, Leg, Operation, Scheme, SchemeConfig, Seat, Support, Topology, Traffic,
    mesh,
};
use gradwire_models::kernels::gradients::backward;
use rayon::ThreadPoolBuilder;
use serde::Serialize;
use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

/// Exchanges of each scheme before those that count, in which schemes that learn have learnt.
const WARM: u64 = 12;
/// Exchanges of each scheme that count.
const COUNTED: u64 = 5;
/// Gradients of each rank that are kept, the last ones.
const KEPT: usize = 2;
/// Ranks that compute gradients and exchange them at most; more are counted as these are.
const RANKS: usize = 8;
/// Groups of two levels that are measured at least: with fewer, messages may travel in another way than between more.
const MIN_GROUPS: usize = 4;
/// Steps of the virtual clock, over which jitter averages out.
const CLOCKED: u64 = 50;

/// The longest round whose steps are all clocked.
const LONGEST: u64 = 1000;

/// The median of seconds; 0 where nothing was timed.
fn median(seconds: impl Iterator<Item = f64>) -> f64 {
    statistics::median(seconds).unwrap_or(0.0)
}

/// What a step computes besides the exchange, in seconds: medians.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Compute {
    /// Data and forward pass.
    pub before: f64,
    /// Backward pass.
    pub backward: f64,
    /// Optimizer.
    pub after: f64,
}

impl Compute {
    /// All of it.
    pub fn seconds(&self) -> f64 {
        self.before + self.backward + self.after
    }

    /// The same shares of `seconds`, to stand for another machine.
    #[must_use]
    pub fn scaled(&self, seconds: f64) -> Self {
        let factor = seconds / self.seconds();
        Self {
            before: self.before * factor,
            backward: self.backward * factor,
            after: self.after * factor,
        }
    }
}

/// What training the recipe is like on this machine.
pub struct Workload {
    /// What a step computes.
    pub compute: Compute,
    layout: Layout,
    /// Gradients by rank, then by step.
    gradients: Vec<Vec<Vec<f32>>>,
}

impl Workload {
    /// Elements of the gradient.
    pub fn parameters(&self) -> usize {
        self.layout.len()
    }

    /// Trains the recipe's model densely for `steps` steps, every rank's share in turn.
    ///
    /// # Errors
    /// When the model does not fit the data, or the loss is not finite.
    pub fn measure(recipe: &Recipe, data: &Data, threads: usize, steps: u64) -> Result<Self> {
        let pool = ThreadPoolBuilder::new().num_threads(threads).use_current_thread().build()?;
        pool.install(|| train(recipe, data, steps))
    }
}

fn train(recipe: &Recipe, data: &Data, steps: u64) -> Result<Workload> {
    let group = match recipe.exchange.topology {
        Topology::TwoLevel { group } => group.max(1),
        _ => 1,
    };
    let groups = (RANKS / group).max(if group > 1 { MIN_GROUPS } else { 1 });
    let ranks = recipe.workers.min(group * groups);
    let local = recipe.local_batch();
    let plan = Plan {
        augment: recipe.augmentation(),
        seed: recipe.seed,
        last_step: Some(steps),
        ..Plan::default()
    };
    let loader = |rank| {
        let sampler = Sampler::new(recipe.seed, data.train.len(), recipe.workers, rank, local)?;
        Ok(Loader::new(data.train.clone(), sampler, plan)?)
    };
    let mut loaders = (0..ranks).map(loader).collect::<Result<Vec<_>>>()?;
    let replica = Replica::new(recipe, &*data.train, 0)?;
    replica.prepare(recipe.model.definition(), &*data.train)?;
    let params = &replica.params;
    let mut optimizer =
        Optimizer::new(recipe.optimizer.definition(), 0.0, params, recipe.model.table())?;
    let mut gradients = vec![Vec::new(); ranks];
    let mut computed = Vec::new();
    let mut mean = vec![0.0; params.len()];
    let mut support = Support::nothing(params.len());
    support.fill();
    for step in 1..=steps {
        mean.fill(0.0);
        let mut updated = StepTimer::on(recipe.device);
        let mut share = Vec::new();
        for (loader, kept) in loaders.iter_mut().zip(&mut gradients) {
            let mut timer = StepTimer::on(recipe.device);
            let loaded = timer.time(|p| &mut p.data, || loader.next())?;
            let batch = loaded.batch;
            let mut flat = vec![0.0; params.len()];
            let size = recipe.train.batch;
            if let Features::Tokens { ids, .. } = &batch.features {
                timer.time(|p| &mut p.forward, || optimizer.catch_up(params, Some(ids)))?;
            }
            for start in (0..batch.len()).step_by(size) {
                let part = start..(start + size).min(batch.len());
                let (loss, score) = timer.time(
                    |p| &mut p.forward,
                    || replica.forward(&batch, part, [step, 0, start as u64]),
                )?;
                ensure!(
                    score.loss.is_finite(),
                    "the training loss is not finite at step {step}: a lower learning rate may help"
                );
                timer.time(
                    |p| &mut p.backward,
                    || -> Result<()> {
                        let gradients = backward(&loss)?;
                        // The last forward pass's gradient stands for the step's.
                        params.gather(&gradients, &mut flat, None, &mut support)
                    },
                )?;
            }
            loader.recycle(batch);
            mean.iter_mut().zip(&flat).for_each(|(sum, g)| *sum += g / ranks as f32);
            if kept.len() == KEPT {
                kept.remove(0);
            }
            kept.push(flat);
            share.push(timer.own);
        }
        // A tenth of the rate: what is wanted are gradients, not a schedule.
        let rate = recipe.optimizer.definition().learning_rate() / 10.0;
        updated.time(
            |p| &mut p.optimizer,
            || optimizer.step(params, &mut mean, &support, rate, None),
        )?;
        computed.extend(share.into_iter().map(|own| Compute {
            before: own.data + own.forward,
            backward: own.backward,
            after: updated.own.optimizer,
        }));
    }
    let of = |field: fn(&Compute) -> f64| median(computed.iter().map(field));
    Ok(Workload {
        compute: Compute {
            before: of(|c| c.before),
            backward: of(|c| c.backward),
            after: of(|c| c.after),
        },
        layout: params.layout()?,
        gradients,
    })
}

/// What one scheme does with the workload's gradients: medians, means where it says so.
#[derive(Clone, Debug, Serialize)]
pub struct SchemeCost {
    /// The scheme with its settings.
    pub scheme: String,
    /// Its name.
    pub name: &'static str,
    /// Seconds to encode, on one rank.
    pub encode: f64,
    /// Seconds to decode all messages and to learn from them, on one rank.
    pub decode: f64,
    /// Seconds that a server, or the rank whose share it is, takes to aggregate.
    pub aggregate: f64,
    /// Bytes of one rank's message, mean.
    pub wire_bytes: f64,
    /// Bytes that come back to a rank, mean; 0 where nothing does.
    pub downlink_bytes: f64,
    /// Bits on the wire per parameter and step of the optimizer, mean: of an exchange every `every` steps, that share.
    pub bits_per_parameter: f64,
    /// ‖C(g) − g‖² / ‖g‖², mean over ranks; g is the gradient with the residual.
    pub error: f64,
    /// What that may do to the accuracy.
    pub risk: Risk,
    /// Steps from one exchange to the next.
    pub every: u64,
    /// The collectives of an exchange, in their order.
    #[serde(skip)]
    legs: Vec<MeasuredLeg>,
}

/// One collective of a step.
#[derive(Clone, Copy, Debug)]
struct MeasuredLeg {
    operation: Operation,
    /// Seconds, medians.
    encode: f64,
    decode: f64,
    aggregate: f64,
    /// Bytes, means.
    up: f64,
    down: f64,
    /// Of a rank that speaks for its group, and of the others.
    local: [f64; 2],
}

impl MeasuredLeg {
    /// Of so many bytes that are summed on the way, and that nobody encodes.
    fn summed(up: f64) -> Self {
        let operation = Operation::Allreduce;
        Self { operation, encode: 0.0, decode: 0.0, aggregate: 0.0, up, down: 0.0, local: [0.0; 2] }
    }
}

/// What a compression error may do to the accuracy: a rule of thumb, not a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Risk {
    /// Nothing to speak of is lost.
    Negligible,
    /// What is lost is small beside the noise of the batch, or comes late by a few steps.
    Low,
    /// Gradients come late by tens of steps, or with noise of their own size.
    Moderate,
    /// Gradients come late by more than a hundred steps, or are mostly noise.
    High,
}

impl Risk {
    /// By the error, and by what becomes of it: with feedback a share 1 − error of what is due is
    /// sent each step, so that an element waits about 1 / (1 − error) steps (Stich, Cordonnier &
    /// Jaggi 2018, theorem 2.4); without, an unbiased error is noise that averages over the ranks,
    /// and a biased one stays.
    pub fn new(error: f64, feedback: bool, law: Law, ranks: usize) -> Self {
        if error < 1e-3 {
            return Self::Negligible;
        }
        let grade = |value: f64, low: f64, moderate: f64| match value {
            v if v <= low => Self::Low,
            v if v <= moderate => Self::Moderate,
            _ => Self::High,
        };
        match (feedback, law) {
            (true, _) if error < 1.0 => grade(1.0 / (1.0 - error), 10.0, 100.0),
            (true, _) => Self::High,
            (false, Law::Exact | Law::Unbiased) => grade(error / ranks as f64, 0.25, 2.0),
            (false, _) => grade(error, 0.1, 0.5),
        }
    }

    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Negligible => "negligible",
            Self::Low => "low",
            Self::Moderate => "moderate",
            Self::High => "high",
        }
    }
}

/// Exchanges the workload's gradients with `scheme` between as many ranks as computed them.
///
/// # Errors
/// When the recipe's topology refuses the scheme, with the reason.
pub fn exchange(recipe: &Recipe, scheme: &SchemeConfig, workload: &Workload) -> Result<SchemeCost> {
    let mut policy =
        if *scheme == recipe.scheme { recipe.policy.clone() } else { Default::default() };
    policy = policy.or(recipe.optimizer.definition().policy());
    policy.bucketing = policy.bucketing.or_else(|| recipe.policy.bucketing.clone());
    policy.rules.clone_from(&recipe.policy.rules);
    // Dense first steps are not what is asked about.
    policy.warmup_steps = Some(0);
    policy.measure_every = Some(1);
    policy.validate(scheme)?;
    let wiring = recipe.exchange.wiring();
    wiring.validate(scheme, &policy.clone().or(scheme.default_policy()))?;
    let patience = Duration::from_secs_f64(recipe.exchange.timeout);
    let ranks = workload.gradients.len();
    let ends = mesh(ranks, patience);
    let on_rank = |end, gradients: &[Vec<f32>]| -> Result<Vec<Traffic>> {
        let layout = workload.layout.clone();
        let mut exchange =
            Exchange::with(scheme, wiring, policy.clone(), layout, recipe.seed, end)?;
        let mut flat;
        let mut counted = Vec::new();
        for step in 1..=WARM + COUNTED {
            let by_name = &gradients[step as usize % gradients.len()];
            flat = exchange.layout().from_name_order(by_name);
            let traffic = exchange.allreduce(step, &mut flat)?;
            if step > WARM {
                counted.push(traffic);
            }
        }
        Ok(counted)
    };
    let counted: Vec<Traffic> = thread::scope(|scope| {
        let threads: Vec<_> = ends
            .into_iter()
            .zip(&workload.gradients)
            .map(|(end, gradients)| scope.spawn(|| on_rank(end, gradients)))
            .collect();
        let all = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect::<Result<Vec<_>>>()?;
        Ok::<_, anyhow::Error>(all.into_iter().flatten().collect())
    })
    .with_context(|| in_words(scheme))?;
    let seconds = |of: &dyn Fn(&Traffic) -> Duration| {
        median(counted.iter().map(|traffic| of(traffic).as_secs_f64()))
    };
    let mean = |of: &dyn Fn(&Traffic) -> f64| {
        counted.iter().map(of).sum::<f64>() / counted.len().max(1) as f64
    };
    let mut legs =
        measured_legs(&counted, pattern_of(recipe)?, recipe.workers as f64 / ranks as f64);
    // Ranks that average their optimizers' state send its vectors with each exchange, as f32.
    let averages = recipe.is_local() && recipe.local.state == InnerState::Averaged;
    let vectors =
        if averages { recipe.optimizer.definition().rule(0.0).vectors().len() } else { 0 };
    let vector = (size_of::<f32>() * workload.parameters()) as f64;
    legs.extend(std::iter::repeat_n(MeasuredLeg::summed(vector), vectors));
    let state_bits = 8.0 * size_of::<f32>() as f64 * vectors as f64;
    let every = recipe.local.steps;
    let sum = |of: fn(&MeasuredLeg) -> f64| legs.iter().map(of).sum::<f64>();
    let error = mean(&|traffic| traffic.gauge("compression_error").unwrap_or(0.0));
    let risk = Risk::new(error, scheme.feedback(), scheme.properties().law, recipe.workers);
    let momentum = recipe.momentum_behind_exchange(recipe.optimizer.definition().momentum());
    let accelerates = scheme.feedback() && momentum > 0.0;
    Ok(SchemeCost {
        scheme: in_words(scheme),
        name: scheme.about().name,
        encode: sum(|leg| leg.encode),
        decode: sum(|leg| leg.decode) + seconds(&|traffic| traffic.finish_cpu),
        aggregate: sum(|leg| leg.aggregate),
        wire_bytes: mean(&|traffic| traffic.wire_bytes as f64) + vector * vectors as f64,
        downlink_bytes: sum(|leg| leg.down),
        bits_per_parameter: (mean(&Traffic::bits_per_parameter) + state_bits) / every as f64,
        error,
        risk: if accelerates && is_blind(scheme) { Risk::High } else { risk },
        every,
        legs,
    })
}

/// Whether it chooses less than half of the elements without looking at the gradient: then all of them come late, large
/// ones too, and what has gathered comes at once. A momentum behind the exchange makes more of each such lump, and training
/// does not get off the ground: ResNet-20 on CIFAR-10 with random-k of 10 % (4 workers, 200 steps, momentum 0.9).
fn is_blind(scheme: &SchemeConfig) -> bool {
    const LENGTH: usize = 4096;
    // A ratio that falls has fallen by then.
    const STEP: u64 = 1 << 40;
    let chosen = |phase: f32| -> Option<Vec<bool>> {
        let gradient: Vec<f32> = (0..LENGTH).map(|i| (i as f32 * phase).sin() + 2.0).collect();
        let (mut wire, mut decoded) = (Vec::new(), vec![0.0; LENGTH]);
        let mut codec = scheme.codec(&Seat::alone(LENGTH, 1))?;
        codec.encode(&gradient, STEP, &mut wire);
        codec.decode_add(&wire, 0, 1.0, &mut decoded).ok()?;
        Some(decoded.iter().map(|value| *value != 0.0).collect())
    };
    let (one, other) = (chosen(0.3), chosen(0.7));
    let few = |chosen: &Vec<bool>| 2 * chosen.iter().filter(|chosen| **chosen).count() < LENGTH;
    one == other && one.as_ref().is_some_and(few)
}

/// What the collectives of a step take, from several steps. Where every rank decodes every message,
/// `more` times as many ranks decode in proportion, a server aggregates in proportion, and each rank's
/// share of a mean is so many times as short.
fn measured_legs(counted: &[Traffic], messages: Pattern, more: f64) -> Vec<MeasuredLeg> {
    let count = counted.iter().map(|traffic| traffic.legs.len()).max().unwrap_or(0);
    let leg = |number: usize| {
        let all = || counted.iter().filter_map(|traffic| traffic.legs.get(number));
        let seconds = |of: fn(&Leg) -> Duration| median(all().map(|leg| of(leg).as_secs_f64()));
        let mean = |of: fn(&Leg) -> u64| {
            all().map(|leg| of(leg) as f64).sum::<f64>() / all().count().max(1) as f64
        };
        let operation = all().next().map_or(Operation::Messages, |leg| leg.operation);
        // What a group's first sends for all of it.
        let speaks =
            if let Pattern::TwoLevel { group, .. } = messages { group as f64 } else { 1.0 };
        let (decoded, aggregated, returned) = match messages.carrying(operation) {
            Pattern::Server => (1.0, more, 1.0),
            Pattern::RingAllreduce | Pattern::TwoLevel { between: Operation::Allreduce, .. } => {
                (1.0, 1.0, 1.0)
            }
            Pattern::Sharded | Pattern::TwoLevel { between: Operation::ReduceScatter, .. } => {
                (1.0, 1.0, 1.0 / more)
            }
            Pattern::RingAllgather | Pattern::TwoLevel { .. } => (more, 1.0, 1.0),
        };
        // One rank alone reports what a server took.
        let reported = all().map(|leg| leg.aggregate_cpu.as_secs_f64()).filter(|took| *took > 0.0);
        let mut local = [true, false].map(|speaks| {
            let of = || all().filter(move |leg| (leg.wire_bytes > 0) == speaks);
            of().map(|leg| leg.local_bytes as f64).sum::<f64>() / of().count().max(1) as f64
        });
        let is_gathered = matches!(operation, Operation::Messages | Operation::Allgather);
        if is_gathered && matches!(messages, Pattern::TwoLevel { .. }) {
            // A group's first hands on the messages of all groups.
            local[0] = local[1] + more * (local[0] - local[1]);
        }
        MeasuredLeg {
            operation,
            encode: seconds(|leg| leg.encode_cpu),
            decode: decoded * seconds(|leg| leg.decode_cpu),
            aggregate: aggregated * median(reported),
            up: speaks * mean(|leg| leg.wire_bytes),
            local,
            down: returned * mean(|leg| leg.downlink_bytes),
        }
    };
    (0..count).map(leg).collect()
}

fn pattern_of(recipe: &Recipe) -> Result<Pattern> {
    let topology = recipe.exchange.topology.to_string();
    pattern(&topology).with_context(|| anyhow!("no link model of topology {topology}"))
}

/// Seconds of a step on a link, without overlap; the mean over a round of local steps.
///
/// # Errors
/// When the network model does not know the recipe's topology.
pub fn step_seconds(
    recipe: &Recipe,
    compute: &Compute,
    measured: &SchemeCost,
    link: &Link,
) -> Result<f64> {
    let pattern = pattern_of(recipe)?;
    // Each of a round's exchanges has a fragment.
    let fragments = recipe.outer.map_or(1, |outer| outer.fragments);
    let part = 1.0 / fragments as f64;
    let per_group = if let Pattern::TwoLevel { group, .. } = pattern { group } else { 1 };
    let group = |leg: &MeasuredLeg, rank: usize| GroupWork {
        ready: 1.0,
        encode: part * leg.encode,
        decode: part * leg.decode,
        sent: Sent {
            up: (part * leg.up).round() as u64,
            down: (part * leg.down).round() as u64,
            local: (part * leg.local[usize::from(!rank.is_multiple_of(per_group))]).round() as u64,
            aggregate: part * leg.aggregate,
        },
        pattern: Some(pattern.carrying(leg.operation)),
    };
    let Compute { before, backward, after } = *compute;
    let learning = measured.decode - measured.legs.iter().map(|leg| leg.decode).sum::<f64>();
    let delay = recipe.outer.map_or(0, |outer| outer.delay);
    let work = |rank| {
        let groups = measured.legs.iter().map(|leg| group(leg, rank)).collect();
        StepWork { before, backward, after: after + part * learning, groups, delay }
    };
    let alone = StepWork { before, backward, after, ..StepWork::default() };
    let alone = vec![alone; recipe.workers];
    let works: Vec<StepWork> = (0..recipe.workers).map(work).collect();
    let every = measured.every.min(LONGEST.max(fragments));
    let clocked = |steps: u64, sends: &dyn Fn(u64) -> bool| {
        let mut clock = Clock::new(link, pattern, recipe.workers, recipe.seed);
        for step in 1..=steps {
            clock.step(step, if sends(step) { &works } else { &alone });
        }
        clock.now() / steps as f64
    };
    let exchanges = |step| step * fragments / every;
    let seconds =
        clocked(CLOCKED.next_multiple_of(every), &|step| exchanges(step) > exchanges(step - 1));
    if measured.every <= every {
        return Ok(seconds);
    }
    // The steps of a longer round that were left out send nothing.
    let share = every as f64 / measured.every as f64;
    Ok(share * seconds + (1.0 - share) * clocked(CLOCKED, &|_| false))
}

/// How many times dense's speed is worth a word.
const WORTH: f64 = 1.02;

/// By what part of itself what a scheme takes to encode and decode differs from one call to the next.
const NOISE: f64 = 0.25;

impl SchemeCost {
    /// Seconds by which a step of it may be off.
    fn noise(&self) -> f64 {
        NOISE * (self.encode + self.decode + self.aggregate) / self.every as f64
    }

    /// Whether its step, of `seconds`, is faster than that of `other` by more than the noise.
    fn beats(&self, seconds: f64, (other, others): (&Self, f64)) -> bool {
        others - seconds > self.noise() + other.noise() && others >= WORTH * seconds
    }

    /// Whether it sends fewer bytes than dense: without that its speed is no gain of compression.
    fn sends_less(&self, dense: &Self) -> bool {
        WORTH * self.wire_bytes < dense.wire_bytes
    }
}

/// The schemes to recommend where their steps take these seconds, of those that send less than dense and whose risk is at
/// most `most`: the one of least risk and fewest bytes among the fastest, then those that the noise does not tell
/// from the fastest. None where nothing beats dense.
pub fn recommended(
    measured: &[SchemeCost],
    seconds: &[f64],
    dense: usize,
    most: Risk,
) -> Vec<usize> {
    let base = (&measured[dense], seconds[dense]);
    let is_eligible = |place: &usize| {
        let row = &measured[*place];
        row.risk <= most && row.sends_less(base.0) && row.beats(seconds[*place], base)
    };
    let eligible: Vec<usize> = (0..measured.len()).filter(is_eligible).collect();
    let fastest = eligible.iter().copied().min_by(|a, b| seconds[*a].total_cmp(&seconds[*b]));
    let Some(fastest) = fastest else { return eligible };
    let ties = |place: &usize| {
        !measured[fastest].beats(seconds[fastest], (&measured[*place], seconds[*place]))
    };
    let mut ties: Vec<usize> = eligible.into_iter().filter(ties).collect();
    ties.sort_by(|a, b| {
        let [a, b] = [a, b].map(|place| &measured[*place]);
        a.risk.cmp(&b.risk).then(a.wire_bytes.total_cmp(&b.wire_bytes))
    });
    ties
}

/// Below what bandwidth a scheme is faster than dense.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BreakEven {
    /// Below this many bit/s.
    Below(f64),
    /// It is faster on every link.
    Always,
    /// It is faster on no link.
    Never,
}

/// Below what bandwidth `measured` is faster than `dense` by more than the noise, on links that are `link` but for that.
///
/// # Errors
/// As [`step_seconds`].
pub fn break_even(
    recipe: &Recipe,
    compute: &Compute,
    (measured, dense): (&SchemeCost, &SchemeCost),
    link: &Link,
) -> Result<BreakEven> {
    let gains = |bandwidth: f64| -> Result<bool> {
        let mut link = link.clone();
        link.bandwidth = bandwidth;
        let ours = step_seconds(recipe, compute, measured, &link)?;
        Ok(measured.beats(ours, (dense, step_seconds(recipe, compute, dense, &link)?)))
    };
    let (mut low, mut high) = (1e4f64, 1e13f64);
    if !measured.sends_less(dense) || !gains(low)? {
        return Ok(BreakEven::Never);
    }
    if gains(high)? {
        return Ok(BreakEven::Always);
    }
    while high / low > 1.01 {
        let middle = (low * high).sqrt();
        if gains(middle)? { low = middle } else { high = middle }
    }
    Ok(BreakEven::Below((low * high).sqrt()))
}

#[cfg(test)]
mod tests;
