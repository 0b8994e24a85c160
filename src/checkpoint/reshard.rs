//! Going on with another number of workers: whose state is whose.
//!
//! Old rank i's residual and velocity go, times N′/N, to new rank i mod N′, added up where several
//! meet there; ranks that none comes to begin with zeros. The mean that the ranks' messages come to is
//! divided by N′ from now on, where it was divided by N: so the mean of the residuals over ranks, which
//! is what they will do to the weights, is what it was, to one rounding per element (sums run in f64).
//! What was in a gradient counts as much as it would have without the change, when it was computed and
//! when it arrives. A server's own residual is of the mean, and stays what it is; those of owners of shards,
//! each of its own buckets, are put together again, for all ranks.
//!
//! What a compressor has learnt from the messages of all ranks (levels, clusters, norms, unions)
//! is the same on all of them and carries over. What a rank has learnt from its own gradient
//! (SIDCo's number of stages) new rank j takes from old rank j mod N. What only some ranks keep
//! stays with the rank of that number.
//!
//! Within a round of local steps every rank takes the mean of the ranks' weights and of their optimizers'
//! vectors: the mean progress and the mean momentum stay what they were. The outer weights and the outer
//! momentum are the same on all ranks, and stay.
//!
//! Batch norm's running statistics become on every rank what the next evaluation would have made
//! of them: the mean over the ranks, or rank 0's.

use super::read::Checkpoint;
use crate::recipe::BatchNorm;
use crate::tensors::{Tensor, Tensors};
use anyhow::{Result, ensure};
use gradwire_exchange::Entry;
use std::collections::BTreeSet;

/// What is a sum over steps of gradients, whose mean over ranks stays, and so scaled and added where
/// ranks meet.
const ADDED: [&str; 3] = ["exchange/residual", "exchange/velocity", "exchange/average"];

/// What the owners of shards keep, each of its own buckets: all ranks are given all of it, the residuals
/// added up, which are zero in others' buckets, and take up what they own then.
const OWNED: &str = "exchange/shards/";

/// Batch norm's running statistics, and averages of them over steps.
const SETTLED: [&str; 2] = ["buffers/", "average/"];

/// What local steps have made of a rank's weights and its optimizer's vectors.
const LOCAL: &str = "local/";

impl Checkpoint {
    /// Makes it the same state for `workers` ranks; in words, what became of what was a rank's own.
    ///
    /// # Errors
    /// When the ranks' tensors of one name differ in shape, or residuals, scaled and added, come to
    /// more than f32 can hold.
    pub fn reshard(&mut self, workers: usize, batch_norm: BatchNorm) -> Result<String> {
        let old = std::mem::take(&mut self.ranks);
        let names: BTreeSet<&String> = old.iter().flat_map(|rank| rank.0.keys()).collect();
        let mut new = vec![Tensors::default(); workers];
        let mut own = Vec::new();
        let mut lost = Vec::new();
        for name in names {
            let held: Vec<Option<&Tensor>> = old.iter().map(|rank| rank.0.get(name)).collect();
            let everywhere: Vec<&Tensor> = held.iter().copied().flatten().collect();
            let put = |new: &mut [Tensors], rank: usize, tensor: Tensor| {
                new[rank].0.insert(name.clone(), tensor);
            };
            // What is the same on all ranks from now on.
            let all = match name.strip_prefix(OWNED) {
                Some("residual") => Some(sum(name, &everywhere, 1.0)?),
                Some(_) => Some(everywhere[0].clone()),
                None if everywhere.len() < old.len() => None,
                None if name.starts_with(LOCAL) => {
                    Some(as_evaluated(name, &everywhere, BatchNorm::Averaged)?)
                }
                None if SETTLED.iter().any(|scope| name.starts_with(scope)) => {
                    Some(as_evaluated(name, &everywhere, batch_norm)?)
                }
                None => None,
            };
            if let Some(all) = all {
                (0..workers).for_each(|rank| put(&mut new, rank, all.clone()));
            } else if everywhere.len() < old.len() {
                for (rank, tensor) in held.into_iter().enumerate() {
                    match tensor {
                        Some(tensor) if rank < workers => put(&mut new, rank, tensor.clone()),
                        Some(_) => lost.push(name.as_str()),
                        None => {}
                    }
                }
            } else if ADDED.contains(&name.as_str()) {
                for (rank, sum) in add(name, &everywhere, workers)?.into_iter().enumerate() {
                    put(&mut new, rank, sum);
                }
            } else {
                if everywhere.iter().any(|tensor| *tensor != everywhere[0]) {
                    own.push(name.as_str());
                }
                let of = |rank: usize| everywhere[rank % everywhere.len()].clone();
                (0..workers).for_each(|rank| put(&mut new, rank, of(rank)));
            }
        }
        let words = in_words(old.len(), workers, &new[0], &own, &lost);
        self.ranks = new;
        self.manifest.world_size = workers;
        Ok(words)
    }
}

/// Old rank i's vector, times new ranks over old, to new rank i mod `workers`, in order of rank.
fn add(name: &str, old: &[&Tensor], workers: usize) -> Result<Vec<Tensor>> {
    f32s(name, old)?;
    let scale = workers as f64 / old.len() as f64;
    let of = |rank: usize| {
        let mine: Vec<&Tensor> = old.iter().skip(rank).step_by(workers).copied().collect();
        if mine.is_empty() { sum(name, &old[..1], 0.0) } else { sum(name, &mine, scale) }
    };
    (0..workers).map(of).collect()
}

/// So many times the sum of vectors, in order of rank.
fn sum(name: &str, old: &[&Tensor], scale: f64) -> Result<Tensor> {
    let values = combined(name, old, |sum| scale * sum)?;
    ensure!(values.iter().all(|v| v.is_finite()), "{name}: the ranks' sum is beyond f32");
    Ok(Tensor { shape: old[0].shape.clone(), values: Entry::F32(values) })
}

/// What an evaluation would have made of batch norm's statistics.
fn as_evaluated(name: &str, old: &[&Tensor], batch_norm: BatchNorm) -> Result<Tensor> {
    let mean = combined(name, old, |sum| sum / old.len() as f64)?;
    Ok(match batch_norm {
        BatchNorm::Rank0 => old[0].clone(),
        _ => Tensor { shape: old[0].shape.clone(), values: Entry::F32(mean) },
    })
}

/// What comes of the sums of the elements over the ranks, in order of rank.
fn combined(name: &str, old: &[&Tensor], of_sum: impl Fn(f64) -> f64) -> Result<Vec<f32>> {
    let vectors = f32s(name, old)?;
    let sum = |i: usize| vectors.iter().map(|vector| f64::from(vector[i])).sum::<f64>();
    Ok((0..vectors[0].len()).map(|i| of_sum(sum(i)) as f32).collect())
}

fn f32s<'a>(name: &str, tensors: &[&'a Tensor]) -> Result<Vec<&'a [f32]>> {
    let shape = &tensors[0].shape;
    let each = tensors.iter().map(|tensor| match &tensor.values {
        Entry::F32(values) if &tensor.shape == shape => Ok(values.as_slice()),
        _ => anyhow::bail!("{name} is not of one shape and of f32 on all ranks"),
    });
    each.collect()
}

fn in_words(old: usize, new: usize, first: &Tensors, own: &[&str], lost: &[&str]) -> String {
    let mut words = format!("{new} workers go on with the state of {old}");
    let kept = ADDED.into_iter().filter(|name| first.0.contains_key(*name));
    let kept: Vec<&str> = kept.map(|name| name.trim_start_matches("exchange/")).collect();
    if !kept.is_empty() {
        words += &format!(
            ": the {} of old rank i, times {new}/{old}, is added to new rank i mod {new}, so that \
             the mean over ranks stays as it was",
            kept.join(" and the ")
        );
    }
    if first.0.keys().any(|name| name.starts_with("buffers/")) {
        words += "; batch norm's statistics are those of an evaluation";
    }
    if first.0.keys().any(|name| name.starts_with(LOCAL)) {
        words +=
            "; the optimizer's vectors, and weights within a round, are the mean over the ranks";
    }
    if !own.is_empty() {
        words += &format!("; new rank j takes {} of old rank j mod {old}", own.join(", "));
    }
    if !lost.is_empty() {
        words += &format!("; {} of ranks that are no more is given up", lost.join(", "));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Manifest;
    use gradwire_exchange::{
        Collective, Exchange, FeedbackRule, Layout, Policy, Scheme, SchemeConfig, State, Topology,
        Wiring, mesh,
    };
    use std::ops::RangeInclusive;
    use std::time::Duration;

    fn checkpoint(ranks: Vec<Tensors>) -> Checkpoint {
        Checkpoint {
            folder: "here".into(),
            manifest: Manifest::default(),
            model: Tensors::default(),
            optimizer: Tensors::default(),
            ranks,
        }
    }

    /// A rank's weights within a round, and its optimizer's momentum.
    const LOCALS: [&str; 2] = ["local/weights", "local/velocity"];

    fn rank(number: usize) -> Tensors {
        let value = |i: usize| {
            ((i * 37 + number * 101) as f32 * 0.731).sin() * 10f32.powi(i as i32 % 9 - 4)
        };
        let f32s = |of: &dyn Fn(usize) -> f32| Tensor::flat(Entry::F32((0..64).map(of).collect()));
        let mut tensors = Tensors::default();
        tensors.0.insert("exchange/residual".into(), f32s(&value));
        tensors.0.insert("exchange/velocity".into(), f32s(&|i| value(i + 1)));
        tensors.0.insert("exchange/average".into(), f32s(&|i| value(i + 2)));
        tensors.0.insert(LOCALS[0].into(), f32s(&|i| value(i + 3)));
        tensors.0.insert(LOCALS[1].into(), f32s(&|i| value(i + 4)));
        tensors.0.insert("exchange/bucket.0/levels".into(), f32s(&|i| i as f32));
        let stages = Tensor::flat(Entry::U64(vec![number as u64 + 1]));
        tensors.0.insert("exchange/bucket.0/stages".into(), stages);
        tensors.0.insert("buffers/bn.running_mean".into(), f32s(&|_| number as f32));
        tensors
    }

    /// The means over ranks, element by element, of what `vector` takes of each.
    fn means<T>(ranks: &[T], vector: impl Fn(&T) -> &[f32]) -> Vec<f64> {
        let mut means = vec![0.0; vector(&ranks[0]).len()];
        for rank in ranks {
            let each = means.iter_mut().zip(vector(rank));
            each.for_each(|(mean, value)| *mean += f64::from(*value) / ranks.len() as f64);
        }
        means
    }

    #[test]
    fn the_mean_of_residuals_of_weights_and_of_momentum_stays() {
        for (old, new) in [(8, 4), (4, 8), (4, 3), (3, 4), (5, 1), (1, 5), (8, 3)] {
            let before: Vec<Tensors> = (0..old).map(rank).collect();
            let mut after = checkpoint(before.clone());
            let words = after.reshard(new, BatchNorm::Averaged).unwrap();
            assert_eq!(after.ranks.len(), new);
            for name in ADDED.into_iter().chain(LOCALS) {
                let of = |ranks: &[Tensors]| means(ranks, |rank| rank.f32s(name, &[64]).unwrap());
                let (was, is) = (of(&before), of(&after.ranks));
                for (i, (was, is)) in was.iter().zip(&is).enumerate() {
                    // Half a unit in the last place of each new rank's value.
                    let ulp = |rank: &Tensors| {
                        f64::from(rank.f32s(name, &[64]).unwrap()[i].abs())
                            * f64::from(f32::EPSILON)
                    };
                    let rounding = after.ranks.iter().map(ulp).sum::<f64>() / 2.0 / new as f64;
                    let allowed = rounding + 1e-15 * was.abs();
                    assert!((was - is).abs() <= allowed, "{old} → {new}, {name} {i}: {was} {is}");
                }
            }
            for (rank, name) in after.ranks.iter().flat_map(|rank| LOCALS.map(|name| (rank, name)))
            {
                assert_eq!(rank.0[name], after.ranks[0].0[name], "{old} → {new}, {name}");
            }
            assert!(words.contains("residual and the velocity and the average"), "{words}");
            assert_eq!(words.contains("bucket.0/stages"), old > 1, "{words}");
            assert!(!words.contains("levels"), "{words}");
        }
    }

    /// Some steps of each rank's exchange, taken up from `states` if there are any; the mean of each
    /// step, and the states after them. Without `gradients` every gradient is zero.
    fn exchanged(
        (scheme, topology): (&SchemeConfig, Topology),
        policy: &Policy,
        states: &[State],
        ranks: usize,
        (steps, gradients): (RangeInclusive<u64>, bool),
    ) -> (Vec<Vec<f32>>, Vec<State>) {
        const LENGTH: usize = 640;
        let ends = mesh(ranks, Duration::from_secs(60));
        let on_rank = |(rank, end): (usize, Box<dyn Collective>)| {
            let layout =
                Layout::new([("b".to_string(), LENGTH - 500), ("w".to_string(), 500)]).unwrap();
            let wiring = Wiring::from(topology);
            let mut exchange =
                Exchange::with(scheme, wiring, policy.clone(), layout, 7, end).unwrap();
            if let Some(state) = states.get(rank) {
                exchange.restore(state).unwrap();
            }
            let mut means = Vec::new();
            for step in steps.clone() {
                let value = |i: usize| {
                    let place = (i * 31 + rank * 17) as f32 + step as f32 * 5.0;
                    if gradients { (place * 0.37).sin() * (1.0 + (i % 13) as f32) } else { 0.0 }
                };
                let mut gradient: Vec<f32> = (0..LENGTH).map(value).collect();
                exchange.allreduce(step, &mut gradient[..]).unwrap();
                means.push(gradient);
            }
            (means, exchange.save())
        };
        let mut all: Vec<_> = std::thread::scope(|scope| {
            let start = |end| scope.spawn(|| on_rank(end));
            let threads: Vec<_> = ends.into_iter().enumerate().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let states = all.iter_mut().map(|(_, state)| std::mem::take(state)).collect();
        (all.swap_remove(0).0, states)
    }

    /// The states of ranks through a checkpoint of as many, for `workers` ranks.
    fn resharded(states: &[State], workers: usize) -> Vec<State> {
        let tensors = |state: &State| {
            let mut tensors = Tensors::default();
            tensors.insert_state("exchange", state.clone());
            Tensors::decode(&tensors.encode(None).unwrap()).unwrap()
        };
        let mut checkpoint = checkpoint(states.iter().map(tensors).collect());
        checkpoint.reshard(workers, BatchNorm::Averaged).unwrap();
        checkpoint.ranks.iter().map(|rank| rank.state("exchange")).collect()
    }

    fn residual(state: &State) -> &[f32] {
        state.f32s("residual", 640).unwrap()
    }

    /// What ranks had not sent when they became more or fewer does to the weights what it would have
    /// done: with any scheme, residuals and velocities, whatever comes of them at once or by and by.
    #[test]
    fn what_was_not_sent_does_to_the_weights_what_it_would_have_done() {
        let (mut cases, mut pending) = (0, 0);
        let fed_back = SchemeConfig::specimens().into_iter().filter(|scheme| scheme.feedback());
        let rules =
            [FeedbackRule::Efsgdm(0.25), FeedbackRule::Momentum(0.75), FeedbackRule::Decay(0.75)];
        let one_level = [(8, 1), (4, 3), (3, 4), (1, 5)].map(|ranks| (Topology::Allgather, ranks));
        let two_levels = [(8, 2), (4, 6)].map(|ranks| (Topology::TwoLevel { group: 2 }, ranks));
        let forms = [(0.0, None), (0.9, None)];
        let forms = forms.into_iter().chain(rules.map(|rule| (0.0, Some(rule))));
        for (scheme, (momentum, feedback)) in
            fed_back.flat_map(|s| forms.clone().map(move |f| (s.clone(), f)))
        {
            let momentum_correction = Some(momentum);
            let policy = Policy { momentum_correction, feedback, ..Policy::default() };
            if policy.validate(&scheme).is_err() {
                continue;
            }
            let all_sent = Policy { warmup_steps: Some(1000), ..policy.clone() };
            for (topology, (old, new)) in one_level.into_iter().chain(two_levels) {
                let with = (&scheme, topology);
                let (_, states) = exchanged(with, &policy, &[], old, (1..=4, true));
                let moved = resharded(&states, new);
                let case =
                    format!("{topology}, {old} → {new}, {momentum}, {feedback:?}, {scheme:?}");
                let near = |a: f64, b: f64| assert!((a - b).abs() < 2e-5, "{case}: {a} {b}");
                // Everything at once, and what momentum makes of it in the steps after.
                let (before, _) = exchanged(with, &all_sent, &states, old, (5..=7, false));
                let (after, _) = exchanged(with, &all_sent, &moved, new, (5..=7, false));
                let both = before.iter().flatten().zip(after.iter().flatten());
                both.for_each(|(was, is)| near(f64::from(*was), f64::from(*is)));
                cases += 1;
                pending += usize::from(before[0].iter().any(|value| value.abs() > 0.1));
                let own = scheme.default_policy().feedback;
                if momentum > 0.0 || feedback.or(own).is_some() {
                    continue;
                }
                // Step by step: what has been sent since and what has not are together what was not.
                let (sent, left) = exchanged(with, &policy, &moved, new, (5..=8, false));
                let due = means(&states, residual);
                for (i, left) in means(&left, residual).into_iter().enumerate() {
                    let sent: f64 = sent.iter().map(|mean| f64::from(mean[i])).sum();
                    near(sent + left, due[i]);
                }
            }
        }
        // Short messages of some schemes are longer than dense, and then all is sent.
        assert!(2 * pending > cases, "{pending} of {cases}");
    }

    #[test]
    fn what_ranks_share_carries_over_and_what_is_their_own_finds_a_rank() {
        let before: Vec<Tensors> = (0..4).map(rank).collect();
        let mut after = checkpoint(before.clone());
        after.reshard(6, BatchNorm::Averaged).unwrap();
        for (number, rank) in after.ranks.iter().enumerate() {
            let old = &before[number % 4];
            for name in ["exchange/bucket.0/levels", "exchange/bucket.0/stages"] {
                assert_eq!(rank.0[name], old.0[name]);
            }
            assert_eq!(rank.f32s("buffers/bn.running_mean", &[64]).unwrap(), [1.5; 64]);
        }
        let mut after = checkpoint(before);
        after.reshard(2, BatchNorm::Rank0).unwrap();
        assert_eq!(after.ranks[1].f32s("buffers/bn.running_mean", &[64]).unwrap(), [0.0; 64]);
    }

    #[test]
    fn what_one_rank_keeps_stays_with_its_number_or_is_told_to_be_lost() {
        let mut before: Vec<Tensors> = (0..4).map(rank).collect();
        let alone = Tensor::flat(Entry::U64(vec![7]));
        before[0].0.insert("exchange/server".into(), alone.clone());
        before[3].0.insert("exchange/shard".into(), alone.clone());
        let mut after = checkpoint(before);
        let words = after.reshard(3, BatchNorm::Averaged).unwrap();
        assert_eq!(after.ranks[0].0.get("exchange/server"), Some(&alone));
        assert!(after.ranks[1..].iter().all(|rank| !rank.0.contains_key("exchange/server")));
        assert!(words.contains("exchange/shard of ranks that are no more"), "{words}");
    }

    /// Whichever rank owns a bucket then finds what its owner kept, once.
    #[test]
    fn what_owners_of_shards_keep_is_given_to_all() {
        let mut before: Vec<Tensors> = (0..2).map(rank).collect();
        let kept = |values: &[f32]| Tensor::flat(Entry::F32(values.to_vec()));
        let levels = "exchange/shards/bucket.1/levels".to_string();
        before[0].0.insert("exchange/shards/residual".into(), kept(&[0.25, -3.0, 0.0]));
        before[1].0.insert("exchange/shards/residual".into(), kept(&[0.0, 0.0, 7.5]));
        before[1].0.insert(levels.clone(), kept(&[9.0]));
        let mut after = checkpoint(before);
        after.reshard(3, BatchNorm::Averaged).unwrap();
        for rank in &after.ranks {
            let residual = rank.f32s("exchange/shards/residual", &[3]).unwrap();
            assert_eq!((residual, &rank.0[&levels]), (&[0.25, -3.0, 7.5][..], &kept(&[9.0])));
        }
    }

    #[test]
    fn shapes_that_differ_and_sums_beyond_f32_are_refused() {
        let of = |values: Vec<f32>| {
            let mut tensors = Tensors::default();
            tensors.0.insert(ADDED[0].into(), Tensor::flat(Entry::F32(values)));
            tensors
        };
        for (ranks, workers) in [
            (vec![of(vec![1.0]), of(vec![1.0, 2.0])], 1),
            (vec![of(vec![3e38])], 2),
            (vec![of(vec![3e38]), of(vec![3e38]), of(vec![3e38])], 2),
        ] {
            let error = checkpoint(ranks).reshard(workers, BatchNorm::Averaged).unwrap_err();
            assert!(error.to_string().contains("exchange/residual"), "{error}");
        }
    }
}
