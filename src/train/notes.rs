//! Warnings before the first step: what a recipe asks for and the data or the machine do not give.

use crate::recipe::Recipe;
use crate::recipe::local::{Local, Outer};
use crate::text::three_digits;
use crate::train::memory;
use crate::train::parts::Parts;
use crate::train::session::Session;
use anyhow::Result;

/// Warnings about a run of `parameters` parameters with `workers` workers on this machine.
pub(super) fn warnings(session: &Session, parameters: u64, workers: usize) -> Result<Vec<String>> {
    let (recipe, samples) = (&session.recipe, session.data.train.len());
    let scarce = memory::check(session, parameters, workers)?;
    let single = if session.own.scheme.is_none() { single(recipe, parameters) } else { None };
    let slow = slow_start(recipe, session.steps.steps_per_epoch, session.steps.last_step);
    let twice = twice(&session.parts(), recipe);
    let never = uncompressed(recipe, session.steps.last_step);
    let idle = no_round(recipe, session.steps.last_step);
    let late = idle_mix(recipe);
    let all =
        [altered(session), cut(recipe, samples), slow, never, idle, late, single, twice, scarce];
    Ok(session.data.warnings.iter().cloned().chain(all.into_iter().flatten()).collect())
}

/// About data files that are not the official ones.
fn altered(session: &Session) -> Option<String> {
    let files = &session.data.altered;
    (!files.is_empty()).then(|| {
        format!(
            "{} of {} holds as many records as the official file, but not the same bytes: a copy may \
             have been damaged, and accuracies may not be comparable with others; `gradwire data \
             verify` tells more, dataset.partial = true says that it is meant",
            files.join(", "),
            session.recipe.dataset.name()
        )
    })
}

/// About a batch that the training set cannot fill.
fn cut(recipe: &Recipe, samples: usize) -> Option<String> {
    let (batch, workers) = (recipe.local_batch(), recipe.workers);
    (batch.saturating_mul(workers) > samples).then(|| {
        format!(
            "a step is to take {workers} × {batch} samples and the training set has {samples}: every \
             step takes all of them; write train.batch = {} or less for smaller steps",
            (samples / workers / recipe.train.accumulate.max(1)).max(1)
        )
    })
}

/// About a warm-up that takes half of the run or more.
fn slow_start(recipe: &Recipe, steps_per_epoch: u64, steps: u64) -> Option<String> {
    let epochs = recipe.schedule.warmup();
    let (warmup, steps) = (epochs * steps_per_epoch as f64, steps as f64);
    (warmup >= 2.0 && 2.0 * warmup >= steps).then(|| {
        let taken = match warmup >= steps {
            true => format!("all {steps}"),
            false => format!("{warmup:.0} of the {steps}"),
        };
        format!(
            "schedule.warmup = {epochs} (epochs of {steps_per_epoch} steps) takes {taken} steps of the run, in \
             which the learning rate only rises; write schedule.warmup = {} for a tenth of the run",
            three_digits(0.1 * steps / steps_per_epoch as f64)
        )
    })
}

/// About first steps that cross uncompressed and are all of the run.
fn uncompressed(recipe: &Recipe, steps: u64) -> Option<String> {
    let first = recipe.policy().warmup_steps.filter(|first| *first > 0 && *first >= steps)?;
    let needed = recipe.optimizer.definition().policy().warmup_steps.is_some();
    let key = if needed { "optimizer.warmup_steps" } else { "policy.warmup_steps" };
    Some(format!(
        "{key} = {first} lets all {steps} steps of the run cross uncompressed, so that nothing of the scheme is seen; write \
         {key} = {} for a tenth of the run",
        steps / 10
    ))
}

/// About the share of its own weights that a rank keeps when a mean comes late, where none does.
fn idle_mix(recipe: &Recipe) -> Option<String> {
    let outer = recipe.outer?;
    (outer.delay == 0 && outer.mix != Outer::default().mix).then(|| {
        format!(
            "outer.mix = {} changes nothing: with outer.delay = 0 the ranks wait for the mean; leave it out, or write an \
             outer.delay",
            outer.mix
        )
    })
}

/// About settings of local steps in a run that has none.
fn no_round(recipe: &Recipe, steps: u64) -> Option<String> {
    let local = recipe.local;
    if recipe.is_local() {
        return (local.after >= steps).then(|| {
            format!(
                "local.after = {} lets all {steps} steps of the run exchange gradients, so that no step is local; write \
                 local.after = {} for half of the run",
                local.after,
                steps / 2
            )
        });
    }
    (local != Local::default()).then(|| {
        "with local.steps = 1 the ranks exchange gradients at every step, and no other setting of `local` changes \
         anything; write local.steps = 16 for rounds of 16 steps, or outer = {} to exchange weights at every step"
            .into()
    })
}

/// About a momentum on top of that of a scheme whose residual is one.
fn twice(parts: &Parts<'_>, recipe: &Recipe) -> Option<String> {
    let momentum = recipe.momentum_behind_exchange(parts.optimizer.momentum());
    let own = parts.scheme.default_policy().feedback.is_some();
    (own && momentum > 0.0).then(|| {
        format!(
            "the residual of scheme {} is a momentum, and that of the optimizer, {momentum}, acts on top of it; the paper \
             has none: write optimizer = {{ kind = \"sgd\", momentum = 0, sign = true, learning_rate = 0.001 }} for its \
             update",
            parts.scheme.about().name
        )
    })
}

/// About a share that is less than one element: what is sent then is one.
fn single(recipe: &Recipe, parameters: u64) -> Option<String> {
    let settings = toml::Table::try_from(&recipe.scheme).ok()?;
    let ratio = settings.get("ratio")?.as_float()?;
    let few = ratio * parameters as f64;
    (few < 1.0).then(|| {
        format!(
            "scheme.ratio = {ratio:e} of {parameters} parameters is {few:.2} elements: at least one is \
             sent; write scheme.ratio = {:.1e} or more",
            1.0 / parameters.max(1) as f64
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Source;

    #[test]
    fn batches_and_ratios_that_cannot_be_as_written_are_told() {
        let recipe = |sets: &[&str]| Source::of(sets.iter().copied()).load().unwrap();
        let large = recipe(&["workers=2", "train.batch=100"]);
        assert_eq!(cut(&large, 200), None);
        let warning = cut(&large, 150).unwrap();
        assert!(warning.contains("2 × 100") && warning.contains("train.batch = 75"), "{warning}");

        let rising = recipe(&["schedule={kind=\"cosine\",warmup=1}"]);
        assert_eq!(slow_start(&rising, 16, 33), None);
        let warning = slow_start(&rising, 16, 20).unwrap();
        assert!(
            warning.contains("16 of the 20 steps") && warning.contains("warmup = 0.12"),
            "{warning}"
        );
        assert!(slow_start(&rising, 391, 150).unwrap().contains("all 150 steps"));

        let dense = recipe(&["scheme=topk", "policy.warmup_steps=50"]);
        assert_eq!(uncompressed(&dense, 51), None);
        let warning = uncompressed(&dense, 50).unwrap();
        assert!(
            warning.contains("all 50 steps") && warning.contains("warmup_steps = 5 "),
            "{warning}"
        );
        let onebit = recipe(&["scheme=onebit", "optimizer={kind='onebit-adam'}"]);
        assert!(uncompressed(&onebit, 9).unwrap().starts_with("optimizer.warmup_steps = 100"));

        let late = recipe(&["local={steps=4,after=50}"]);
        assert_eq!(no_round(&late, 51), None);
        assert!(no_round(&late, 50).unwrap().contains("all 50 steps"));
        assert!(no_round(&recipe(&["local.after=5"]), 50).unwrap().contains("local.steps = 16"));
        let weights = recipe(&["local.state=averaged", "outer={}"]);
        assert_eq!([no_round(&weights, 50), no_round(&recipe(&[]), 50)], [None, None]);

        let mixes = idle_mix(&recipe(&["local.steps=4", "outer={mix=0.9}"])).unwrap();
        assert!(mixes.contains("outer.mix = 0.9"), "{mixes}");
        assert_eq!(idle_mix(&recipe(&["local.steps=4", "outer={mix=0.9,delay=1}"])), None);

        let few = recipe(&["scheme.ratio=1e-6"]);
        assert_eq!(single(&few, 2_000_000), None);
        let warning = single(&few, 270_000).unwrap();
        assert!(warning.contains("0.27 elements") && warning.contains("3.7e-6"), "{warning}");
        assert_eq!(single(&recipe(&["scheme=dense"]), 10), None);

        let twice = |sets: &[&str]| {
            let recipe = recipe(sets);
            twice(&Parts::of(&recipe), &recipe)
        };
        assert!(twice(&["scheme=demo"]).unwrap().contains("momentum = 0, sign = true"));
        assert_eq!(twice(&["scheme=demo", "optimizer.momentum=0"]), None);
        assert_eq!(twice(&["scheme=topk"]), None);
    }
}
