//! What a rank keeps for local steps: the outer weights and their optimizer.

use crate::recipe::Recipe;
use crate::recipe::local::InnerState;
use crate::train::optim::{Optimizer, lies_in};
use crate::train::params::Params;
use crate::train::replica::Replica;
use anyhow::{Result, ensure};
use gradwire_exchange::{Exchange, Support};
use std::ops::Range;

/// What a rank keeps for local steps.
pub(super) struct Local {
    pub(super) state: InnerState,
    learning_rate: f64,
    /// What is kept of a rank's own weights when a delayed mean arrives.
    mix: f64,
    /// Where each fragment lies in the flat gradient.
    fragments: Vec<Range<usize>>,
    /// With a delay: room for the progress that is on its way.
    pub(super) on_its_way: Vec<f32>,
    /// With a delay: a mean that has come before its time.
    pub(super) received: Option<Vec<f32>>,
    /// The outer weights, in the flat gradient's layout.
    pub(super) weights: Vec<f32>,
    /// What updates them, with the mean progress as gradient.
    pub(super) outer: Optimizer,
}

impl Local {
    /// What `recipe` needs for local steps, if it asks for them; the outer weights are those of `replica`.
    /// `correction` is the factor of the exchange's momentum correction; the groups of `exchange` are the fragments.
    pub(super) fn new(
        recipe: &Recipe,
        correction: f64,
        replica: &Replica,
        exchange: &Exchange,
    ) -> Result<Option<Self>> {
        if !recipe.is_local() {
            return Ok(None);
        }
        let outer = recipe.outer.unwrap_or_default();
        let rule = outer.optimizer();
        let place = |group: &Vec<usize>| {
            let [first, last] = [group[0], group[group.len() - 1]];
            exchange.buckets()[first].range.start..exchange.buckets()[last].range.end
        };
        let mut local = Self {
            state: recipe.local.state,
            learning_rate: rule.learning_rate,
            mix: outer.mix,
            fragments: exchange.groups().iter().map(place).collect(),
            on_its_way: Vec::new(),
            received: None,
            weights: vec![0.0; replica.params.len()],
            outer: Optimizer::new(&rule, correction, &replica.params, None)?,
        };
        local.begin(&replica.params)?;
        Ok(Some(local))
    }

    /// Where some fragments lie in the flat gradient, one after the other.
    pub(super) fn place(&self, fragments: &Range<usize>) -> Range<usize> {
        self.fragments[fragments.start].start..self.fragments[fragments.end - 1].end
    }

    /// Takes the weights as they are for the outer ones.
    pub(super) fn begin(&mut self, params: &Params) -> Result<()> {
        params.update(|param, now| self.weights[param.range.clone()].copy_from_slice(now))
    }

    /// Exchanges the weights and the outer weights; called again it puts them back.
    pub(super) fn swap(&mut self, params: &Params) -> Result<()> {
        params.update(|param, now| self.weights[param.range.clone()].swap_with_slice(now))
    }

    /// Writes how far the weights `within` this place have come since their last exchange, as a gradient would point:
    /// outer weights minus weights; elsewhere zeros.
    pub(super) fn progress(
        &self,
        params: &Params,
        within: &Range<usize>,
        flat: &mut [f32],
    ) -> Result<()> {
        params.update(|param, now| {
            let (outer, flat) =
                (&self.weights[param.range.clone()], &mut flat[param.range.clone()]);
            if !lies_in(&param.range, within) {
                return flat.fill(0.0);
            }
            let progress = flat.iter_mut().zip(outer).zip(now);
            progress.for_each(|((progress, outer), now)| *progress = outer - *now);
        })
    }

    /// Updates the outer weights `within` this place by the mean progress `flat`, and lets the weights go on from
    /// them; where the mean is `late`, from a mixture with the rank's own.
    pub(super) fn update(
        &mut self,
        params: &Params,
        (flat, support): (&mut [f32], &Support),
        within: Range<usize>,
        late: bool,
    ) -> Result<()> {
        let mix = if late { self.mix as f32 } else { 0.0 };
        let Self { weights, outer, learning_rate, .. } = self;
        params.update(|param, now| {
            if lies_in(&param.range, &within) {
                weights[param.range.clone()].swap_with_slice(now);
            }
        })?;
        outer.step_within(params, flat, support, *learning_rate, None, within.clone())?;
        params.update(|param, now| {
            if lies_in(&param.range, &within) {
                let own = &mut weights[param.range.clone()];
                if mix == 0.0 {
                    return own.copy_from_slice(now);
                }
                for (own, now) in own.iter_mut().zip(now) {
                    let mixed = mix * *own + (1.0 - mix) * *now;
                    *own = std::mem::replace(now, mixed);
                }
            }
        })
    }
}

/// Divides the buckets of an exchange into fragments, runs of neighbours of about as many elements, which are its
/// groups from now on.
pub(super) fn divide(exchange: &mut Exchange, fragments: u64) -> Result<()> {
    let buckets = exchange.buckets();
    let most = buckets.len() as u64;
    ensure!(
        fragments <= most,
        "outer.fragments = {fragments}, and a fragment is whole buckets, of which there are {most}; write \
         outer.fragments = {most} or fewer{}",
        match buckets.len() == exchange.layout().parameters().len() {
            // Each has one parameter already.
            true => "",
            false =>
                ", or smaller buckets: policy.bucketing = \"parameter\", or { bytes = 1048576 } or fewer",
        }
    );
    let (fragments, all) = (fragments as usize, exchange.layout().len() as u128);
    let mut groups = vec![Vec::new(); fragments];
    for (number, bucket) in buckets.iter().enumerate() {
        let middle = (bucket.range.start + bucket.range.end) as u128 / 2;
        let share = (middle * fragments as u128 / all.max(1)) as usize;
        // Each fragment has a bucket: neither one of those before is left empty, nor one of those behind.
        let begun = groups.iter().take_while(|group| !group.is_empty()).count();
        let first = fragments.saturating_sub(buckets.len() - number).max(begun.saturating_sub(1));
        groups[share.clamp(first, begun.min(fragments - 1))].push(number);
    }
    Ok(exchange.set_groups(groups)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Source;
    use crate::train::session;
    use crate::train::worker;
    use gradwire_exchange::Solo;

    /// Streaming DiLoCo's algorithm 2 in f64, beside it: two fragments, Nesterov's momentum and a late mean.
    #[test]
    fn a_fragment_is_updated_and_the_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let out = format!("record.out={:?}", folder.path());
        let outer =
            "outer={fragments=3,delay=1,mix=0.25,learning_rate=0.5,momentum=0.5,nesterov=true}";
        let sets = [
            "dataset=synthetic-cifar10",
            "samples.train=8",
            "samples.test=2",
            "local.steps=9",
            &out,
            outer,
            "policy.bucketing=parameter",
            "scheme=dense",
            "workers=1",
        ];
        let recipe = Source::of(sets).load().unwrap();
        let data = session::load(&recipe, None).unwrap();
        let mut replica = Replica::new(&recipe, &*data.train, 0).unwrap();
        let parts = crate::train::parts::Parts::of(&recipe);
        let end = Box::new(Solo);
        let exchange = worker::exchange(&recipe, &parts, 9, &mut replica, end).unwrap();
        let (_, local) = worker::optimizer(&recipe, &parts, &replica, &exchange).unwrap();
        let mut local = local.unwrap();
        let length = replica.params.len();
        let places: Vec<Range<usize>> = (0..3).map(|p| local.place(&(p..p + 1))).collect();
        assert_eq!((places[0].start, places[2].end), (0, length));
        assert!(places.windows(2).all(|pair| pair[0].end == pair[1].start && !pair[1].is_empty()));
        assert_eq!(local.place(&(0..3)), 0..length);

        let value = |i: usize, salt: usize| ((i * 37 + salt * 101) as f64 * 0.731).sin();
        let f32s = |salt: usize| (0..length).map(|i| value(i, salt) as f32).collect::<Vec<_>>();
        let set = |values: &[f32]| {
            let params = &replica.params;
            params.update(|param, now| now.copy_from_slice(&values[param.range.clone()])).unwrap();
        };
        let get = || {
            let mut all = vec![0.0; length];
            let params = &replica.params;
            params.update(|param, now| all[param.range.clone()].copy_from_slice(now)).unwrap();
            all
        };
        set(&f32s(0));
        local.begin(&replica.params).unwrap();
        let (mut outer, mut velocity) =
            (f32s(0).iter().map(|v| f64::from(*v)).collect::<Vec<_>>(), vec![0.0; length]);
        for (turn, late) in
            [(0, true), (2, false), (1, true), (0, false), (2, true)].into_iter().enumerate()
        {
            let (place, own) = (places[late.0].clone(), f32s(turn + 1));
            set(&own);
            let mut flat = f32s(77);
            local.progress(&replica.params, &place, &mut flat).unwrap();
            for (i, progress) in flat.iter().enumerate() {
                let far = if place.contains(&i) { outer[i] - f64::from(own[i]) } else { 0.0 };
                assert!((f64::from(*progress) - far).abs() < 1e-5, "{turn}: {i}");
            }
            let mut mean = f32s(turn + 20);
            let support = Support::nothing(length);
            local.update(&replica.params, (&mut mean, &support), place.clone(), late.1).unwrap();
            let now = get();
            for i in 0..length {
                let mut expected = f64::from(own[i]);
                if place.contains(&i) {
                    let mean = value(i, turn + 20);
                    velocity[i] = 0.5 * velocity[i] + mean;
                    outer[i] -= 0.5 * (mean + 0.5 * velocity[i]);
                    let kept = if late.1 { 0.25 } else { 0.0 };
                    expected = kept * expected + (1.0 - kept) * outer[i];
                }
                assert!((f64::from(now[i]) - expected).abs() < 1e-5, "{turn}: {i}");
                assert!((f64::from(local.weights[i]) - outer[i]).abs() < 1e-5, "{turn}: {i}");
            }
        }
    }
}
