//! Events as TensorBoard's curves, histograms and texts.

use super::values::{histogram, scalar, scalars, text};
use crate::record::RuleTraffic;
use crate::record::event::{Checkpoint, Epoch, Event, Kind, Step};
use tensorboard_proto::summary::Summary_Value;

/// What TensorBoard shows of an event, and at which step; nothing of those without curve or text.
pub(super) fn values(event: &Event) -> Option<(u64, Vec<Summary_Value>)> {
    Some(match &event.kind {
        Kind::Step(step) => (step.step, step_values(step)),
        Kind::Epoch(epoch) => (epoch.step, epoch_values(epoch)),
        Kind::Checkpoint(checkpoint) => (checkpoint.step, checkpoint_values(checkpoint)),
        Kind::Histograms(histograms) => {
            let entries = histograms.entries.iter();
            (histograms.step, entries.map(|e| histogram(&e.tag, &e.histogram)).collect())
        }
        Kind::Text(words) => (words.step, vec![text(&words.tag, &words.text)]),
        Kind::Started(_) | Kind::Warning(_) | Kind::Finished(_) | Kind::Failed(_) => return None,
    })
}

fn step_values(step: &Step) -> Vec<Summary_Value> {
    let mut values = vec![
        scalar("Train/loss", step.loss),
        scalar("Train/learning_rate", step.learning_rate),
        scalar("exchange/wire_bytes_total", step.wire_bytes_total as f64),
    ];
    // Within a round of local steps nothing is exchanged.
    if step.wire_bytes > 0.0 {
        values.extend([
            scalar("exchange/seconds", step.exchange_seconds),
            scalar("exchange/exposed_seconds", step.exposed_seconds),
            scalar("exchange/wire_bytes", step.wire_bytes),
            scalar("exchange/bits_per_parameter", step.bits_per_parameter),
            scalar("exchange/compression_ratio", step.compression_ratio),
        ]);
        let of_rule = |rule: &RuleTraffic| {
            scalar(&format!("rule_bits/{}", rule.pattern), rule.bits_per_parameter)
        };
        values.extend(step.rules.iter().map(of_rule));
    }
    let speed = (step.seconds > 0.0).then(|| step.samples as f64 / step.seconds);
    values.extend(scalars([
        ("Train/accuracy", step.accuracy),
        ("Train/gradient_norm", step.gradient_norm),
        ("exchange/residual_norm", step.residual_norm),
        ("exchange/uplink_bytes", step.uplink_bytes.map(|bytes| bytes as f64)),
        ("exchange/downlink_bytes", step.downlink_bytes.map(|bytes| bytes as f64)),
        ("exchange/local_bytes", step.local_bytes.map(|bytes| bytes as f64)),
        ("speed/samples_per_second", speed),
    ]));
    let phases = step.phases.named();
    values.extend(phases.map(|(name, seconds)| scalar(&format!("phase/{name}"), seconds)));
    let gauges = step.gauges.iter();
    values.extend(gauges.map(|(name, value)| scalar(&format!("scheme/{name}"), *value)));
    values
}

fn epoch_values(epoch: &Epoch) -> Vec<Summary_Value> {
    let values = [
        ("epoch/train_loss", Some(epoch.train_loss)),
        ("epoch/seconds", Some(epoch.seconds)),
        ("epoch/samples_per_second", Some(epoch.samples_per_second)),
        ("epoch/train_accuracy", epoch.train_accuracy),
        ("Test/loss", epoch.test_loss),
        ("Test/accuracy", epoch.test_accuracy),
        ("Test/top5_accuracy", epoch.test_top5_accuracy),
        ("Test/bits_per_byte", epoch.bits_per_byte),
        ("Test/perplexity", epoch.bits_per_byte.and(epoch.test_loss).map(f64::exp)),
    ];
    scalars(values).collect()
}

fn checkpoint_values(checkpoint: &Checkpoint) -> Vec<Summary_Value> {
    vec![
        scalar("checkpoint/stall_seconds", checkpoint.stall_seconds),
        scalar("checkpoint/write_seconds", checkpoint.write_seconds),
        scalar("checkpoint/bytes", checkpoint.bytes as f64),
    ]
}
