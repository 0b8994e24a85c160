//! Text from a trained model: one token after the other, each drawn from what the model gives for the next.

use crate::checkpoint::{self, Saved};
use crate::train::evaluate::with_model;
use anyhow::{Context, Result, bail, ensure};
use gradwire_datasets::{Batch, Features, Shape, Tokens};
use gradwire_exchange::rng::Stream;
use std::fs;

/// How tokens are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Drawing {
    /// Tokens to draw.
    pub tokens: usize,
    /// What logits are divided by; 0 takes the most likely token.
    pub temperature: f64,
    /// Only so many of the most likely tokens are drawn from; 0 for all.
    pub top: usize,
    /// What the draws derive from.
    pub seed: u64,
}

/// Continues `prompt` by the model in `saved`; the prompt is not repeated. Without one the text begins after a line break,
/// or where no token is one, after the first token there is.
///
/// # Errors
/// When the model continues no texts, its tokens are missing or do not know a character of the prompt, or the model's
/// file does not fit.
pub fn sample(saved: &Saved, prompt: Option<&str>, drawing: Drawing) -> Result<String> {
    let recipe = &saved.recipe;
    let Shape::Sequence { length, .. } = recipe.dataset.form()?.shape else {
        bail!(
            "{} was trained on {}, which is no text to continue; `sample` wants a run of a model such as gpt",
            recipe.model.name(),
            recipe.dataset.name()
        )
    };
    let temperature = drawing.temperature;
    ensure!(
        temperature >= 0.0 && temperature.is_finite(),
        "a temperature of {temperature} is none; write 0 for the most likely tokens, or 0.8"
    );
    let file = saved.vocabulary.as_ref().with_context(|| {
        format!(
            "the run of {} has no {}: its tokens are unknown",
            saved.file.display(),
            checkpoint::VOCABULARY
        )
    })?;
    let json = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let tokens = Tokens::from_json(&json)?;
    let mut ids = match prompt {
        Some(prompt) => tokens.encode(prompt).context("the prompt")?,
        None => tokens.encode("\n").ok().filter(|ids| !ids.is_empty()).unwrap_or_else(|| vec![0]),
    };
    ensure!(!ids.is_empty(), "the prompt is empty; begin with a character, such as a line break");
    let begins = ids.len();
    let (vocabulary, stream) = (tokens.len(), Stream::new(&[drawing.seed]));
    let samples = (Shape::Sequence { vocabulary, length }, vocabulary);
    with_model(saved, samples, |replica| {
        for number in 0..drawing.tokens {
            let seen = &ids[ids.len().saturating_sub(length)..];
            let features = Features::Sequences { ids: seen.to_vec(), length: seen.len() };
            let logits = replica.last_logits(&Batch { features, labels: seen.to_vec() })?;
            ensure!(
                logits.iter().all(|logit| logit.is_finite()),
                "the model gives no numbers for the next token: its weights are not those of a trained network"
            );
            ids.push(drawn(&logits, &drawing, f64::from(stream.uniform(number as u32))));
        }
        Ok(())
    })?;
    Ok(tokens.decode(&ids[begins..])?)
}

/// The token that `uniform`, in `[0, 1)`, falls on.
fn drawn(logits: &[f32], drawing: &Drawing, uniform: f64) -> u32 {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
    if drawing.temperature == 0.0 {
        return order[0];
    }
    if drawing.top > 0 {
        order.truncate(drawing.top);
    }
    let logit = |id: u32| f64::from(logits[id as usize]);
    let largest = logit(order[0]);
    let weights: Vec<f64> =
        order.iter().map(|id| ((logit(*id) - largest) / drawing.temperature).exp()).collect();
    let mut left = uniform * weights.iter().sum::<f64>();
    for (id, weight) in order.iter().zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return *id;
        }
    }
    order[order.len() - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_drawn_as_often_as_they_are_likely() {
        let logits = [0.0, 3f32.ln(), f32::MIN, 0.0];
        let shares = |drawing: Drawing| {
            let mut counts = [0; 4];
            (0..1000).for_each(|at| {
                counts[drawn(&logits, &drawing, (f64::from(at) + 0.5) / 1e3) as usize] += 1;
            });
            counts
        };
        let drawing = Drawing { tokens: 1, temperature: 1.0, top: 0, seed: 0 };
        assert_eq!(shares(drawing), [200, 600, 0, 200]);
        assert_eq!(shares(Drawing { temperature: 0.0, ..drawing }), [0, 1000, 0, 0]);
        assert_eq!(shares(Drawing { top: 2, ..drawing }), [250, 750, 0, 0]);
        // Half the temperature squares the odds.
        assert_eq!(shares(Drawing { temperature: 0.5, top: 2, ..drawing }), [100, 900, 0, 0]);
    }
}
