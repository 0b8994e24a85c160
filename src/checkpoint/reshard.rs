//! Going on with another number of workers: whose state is whose.
//!
//! Old rank i's residual and velocity go to new rank i mod N′, added up where several meet there;
//! ranks that none comes to begin with zeros. So the sum over ranks, element by element, is what
//! it was, exactly where none meet, else to one rounding per element (sums run in f64). The
//! residual thus counts as much as a new gradient of any rank: by 1/N′ from now on, where it would
//! have counted by 1/N.
//!
//! What a compressor has learnt from the messages of all ranks (levels, clusters, norms, unions)
//! is the same on all of them and carries over. What a rank has learnt from its own gradient
//! (SIDCo's number of stages) new rank j takes from old rank j mod N. What only some ranks keep
//! stays with the rank of that number.
//!
//! Batch norm's running statistics become on every rank what the next evaluation would have made
//! of them: the mean over the ranks, or rank 0's.

use super::read::Checkpoint;
use super::tensors::{Tensor, Tensors};
use crate::recipe::BatchNorm;
use anyhow::{Result, ensure};
use gradwire_exchange::Entry;
use std::collections::BTreeSet;

/// What is a sum over steps of gradients, and so added where ranks meet.
const ADDED: [&str; 2] = ["exchange/residual", "exchange/velocity"];

impl Checkpoint {
    /// Makes it the same state for `workers` ranks; in words, what became of what was a rank's own.
    ///
    /// # Errors
    /// When the ranks' tensors of one name differ in shape, or residuals add up to more than f32
    /// can hold.
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
            if everywhere.len() < old.len() {
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
            } else if name.starts_with("buffers/") {
                let all = settle(name, &everywhere, batch_norm)?;
                (0..workers).for_each(|rank| put(&mut new, rank, all.clone()));
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

/// Old rank i's vector to new rank i mod `workers`, in order of rank.
fn add(name: &str, old: &[&Tensor], workers: usize) -> Result<Vec<Tensor>> {
    let vectors = f32s(name, old)?;
    let sum = |rank: usize| {
        let mine: Vec<&[f32]> = vectors.iter().skip(rank).step_by(workers).copied().collect();
        let values = match mine[..] {
            [] => vec![0.0; vectors[0].len()],
            [alone] => alone.to_vec(),
            _ => (0..vectors[0].len())
                .map(|i| mine.iter().map(|vector| f64::from(vector[i])).sum::<f64>() as f32)
                .collect(),
        };
        ensure!(values.iter().all(|v| v.is_finite()), "{name}: the ranks' sum is beyond f32");
        Ok(Tensor { shape: old[0].shape.clone(), values: Entry::F32(values) })
    };
    (0..workers).map(sum).collect()
}

/// What an evaluation would have made of batch norm's statistics.
fn settle(name: &str, old: &[&Tensor], batch_norm: BatchNorm) -> Result<Tensor> {
    let vectors = f32s(name, old)?;
    let values = match batch_norm {
        BatchNorm::Rank0 => vectors[0].to_vec(),
        BatchNorm::Averaged | BatchNorm::Synchronised => (0..vectors[0].len())
            .map(|i| {
                let sum: f64 = vectors.iter().map(|vector| f64::from(vector[i])).sum();
                (sum / vectors.len() as f64) as f32
            })
            .collect(),
    };
    Ok(Tensor { shape: old[0].shape.clone(), values: Entry::F32(values) })
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
    let kept = ADDED.map(|name| name.trim_start_matches("exchange/"));
    let kept: Vec<&str> = ADDED
        .iter()
        .zip(kept)
        .filter(|(name, _)| first.0.contains_key(**name))
        .map(|(_, word)| word)
        .collect();
    if !kept.is_empty() {
        words += &format!(
            ": the {} of old rank i is added to new rank i mod {new}, so that the sum over ranks \
             stays as it was; it enters the mean by 1/{new} now",
            kept.join(" and the ")
        );
    }
    if first.0.keys().any(|name| name.starts_with("buffers/")) {
        words += "; batch norm's statistics are those of an evaluation";
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

    fn checkpoint(ranks: Vec<Tensors>) -> Checkpoint {
        Checkpoint {
            folder: "here".into(),
            manifest: Manifest::default(),
            model: Tensors::default(),
            optimizer: Tensors::default(),
            ranks,
        }
    }

    fn rank(number: usize) -> Tensors {
        let value = |i: usize| {
            ((i * 37 + number * 101) as f32 * 0.731).sin() * 10f32.powi(i as i32 % 9 - 4)
        };
        let f32s = |of: &dyn Fn(usize) -> f32| Tensor::flat(Entry::F32((0..64).map(of).collect()));
        let mut tensors = Tensors::default();
        tensors.0.insert("exchange/residual".into(), f32s(&value));
        tensors.0.insert("exchange/velocity".into(), f32s(&|i| value(i + 1)));
        tensors.0.insert("exchange/bucket.0/levels".into(), f32s(&|i| i as f32));
        let stages = Tensor::flat(Entry::U64(vec![number as u64 + 1]));
        tensors.0.insert("exchange/bucket.0/stages".into(), stages);
        tensors.0.insert("buffers/bn.running_mean".into(), f32s(&|_| number as f32));
        tensors
    }

    fn sums(ranks: &[Tensors], name: &str) -> Vec<f64> {
        let mut sums = vec![0.0; 64];
        for rank in ranks {
            let values = rank.f32s(name, &[64]).unwrap();
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        sums
    }

    #[test]
    fn the_sum_of_residuals_stays() {
        for (old, new) in [(8, 4), (4, 8), (4, 3), (3, 4), (5, 1), (1, 5), (8, 3)] {
            let before: Vec<Tensors> = (0..old).map(rank).collect();
            let mut after = checkpoint(before.clone());
            let words = after.reshard(new, BatchNorm::Averaged).unwrap();
            assert_eq!(after.ranks.len(), new);
            for name in ADDED {
                let (was, is) = (sums(&before, name), sums(&after.ranks, name));
                for (i, (was, is)) in was.iter().zip(&is).enumerate() {
                    // Half a unit in the last place of each new rank's value.
                    let ulp = |rank: &Tensors| {
                        f64::from(rank.f32s(name, &[64]).unwrap()[i].abs())
                            * f64::from(f32::EPSILON)
                    };
                    let rounding: f64 = after.ranks.iter().map(ulp).sum::<f64>() / 2.0;
                    let allowed = if new >= old { 1e-15 * was.abs() } else { rounding };
                    assert!((was - is).abs() <= allowed, "{old} → {new}, {name} {i}: {was} {is}");
                }
            }
            assert!(words.contains("residual and the velocity"), "{words}");
            assert_eq!(words.contains("bucket.0/stages"), old > 1, "{words}");
            assert!(!words.contains("levels"), "{words}");
        }
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

    #[test]
    fn shapes_that_differ_and_sums_beyond_f32_are_refused() {
        let of = |values: Vec<f32>| {
            let mut tensors = Tensors::default();
            tensors.0.insert(ADDED[0].into(), Tensor::flat(Entry::F32(values)));
            tensors
        };
        for ranks in [vec![of(vec![1.0]), of(vec![1.0, 2.0])], vec![of(vec![3e38]), of(vec![3e38])]]
        {
            let error = checkpoint(ranks).reshard(1, BatchNorm::Averaged).unwrap_err();
            assert!(error.to_string().contains("exchange/residual"), "{error}");
        }
    }
}
