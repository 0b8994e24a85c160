//! Events as TensorBoard's curves, histograms and texts.

use super::event::{Epoch, Event, Kind, Step, now};
use super::hparams::{self, Settings};
use super::layout::layout;
use super::tensorboard::{TensorBoard, histogram, scalar, scalars, text};
use std::io::{self, Write};
use tensorboard_proto::summary::Summary_Value;

/// Says before everything else what is trained, in which `trial`, to the HParams dashboard, and which charts to
/// show, to that of custom scalars.
pub(super) fn introduce<W: Write>(
    file: &mut TensorBoard<W>,
    trial: &str,
    settings: &Settings,
) -> io::Result<()> {
    let time = now();
    file.values(time, 0, vec![hparams::start(trial, settings, time), layout()])
}

impl<W: Write> TensorBoard<W> {
    /// Writes what TensorBoard shows of an event; it is out of this process when this returns.
    pub(super) fn record(&mut self, event: &Event) -> io::Result<()> {
        match &event.kind {
            Kind::Step(step) => {
                self.step = step.step;
                self.values(event.time, step.step, of_step(step))
            }
            Kind::Epoch(epoch) => {
                self.step = epoch.step;
                self.values(event.time, epoch.step, of_epoch(epoch))
            }
            Kind::Histograms(histograms) => {
                let values =
                    histograms.entries.iter().map(|entry| histogram(&entry.tag, &entry.histogram));
                self.values(event.time, histograms.step, values.collect())
            }
            Kind::Checkpoint(checkpoint) => {
                let values = vec![
                    scalar("checkpoint/stall_seconds", checkpoint.stall_seconds),
                    scalar("checkpoint/write_seconds", checkpoint.write_seconds),
                    scalar("checkpoint/bytes", checkpoint.bytes as f64),
                ];
                self.values(event.time, checkpoint.step, values)
            }
            Kind::Text(words) => {
                self.values(event.time, words.step, vec![text(&words.tag, &words.text)])
            }
            Kind::Started(started) => {
                self.step = started.first_step.saturating_sub(1);
                self.last_step = Some(started.steps);
                Ok(())
            }
            Kind::Finished(finished) => {
                let step = finished.summary.step;
                self.values(event.time, step, hparams::end(event, self.last_step))
            }
            Kind::Failed(_) => {
                self.values(event.time, self.step, hparams::end(event, self.last_step))
            }
            Kind::Warning(_) => Ok(()),
        }
    }
}

fn of_step(step: &Step) -> Vec<Summary_Value> {
    let mut values = vec![
        scalar("Train/loss", step.loss),
        scalar("Train/learning_rate", step.learning_rate),
        scalar("exchange/seconds", step.exchange_seconds),
        scalar("exchange/exposed_seconds", step.exposed_seconds),
        scalar("exchange/wire_bytes", step.wire_bytes),
        scalar("exchange/wire_bytes_total", step.wire_bytes_total as f64),
        scalar("exchange/bits_per_parameter", step.bits_per_parameter),
        scalar("exchange/compression_ratio", step.compression_ratio),
    ];
    let speed = (step.seconds > 0.0).then(|| step.samples as f64 / step.seconds);
    values.extend(scalars([
        ("Train/accuracy", step.accuracy),
        ("Train/gradient_norm", step.gradient_norm),
        ("exchange/residual_norm", step.residual_norm),
        ("exchange/uplink_bytes", step.uplink_bytes.map(|bytes| bytes as f64)),
        ("exchange/downlink_bytes", step.downlink_bytes.map(|bytes| bytes as f64)),
        ("speed/samples_per_second", speed),
    ]));
    let phases = step.phases.named();
    values.extend(phases.map(|(name, seconds)| scalar(&format!("phase/{name}"), seconds)));
    let gauges = step.gauges.iter();
    values.extend(gauges.map(|(name, value)| scalar(&format!("scheme/{name}"), *value)));
    values
}

fn of_epoch(epoch: &Epoch) -> Vec<Summary_Value> {
    let values = [
        ("epoch/train_loss", Some(epoch.train_loss)),
        ("epoch/seconds", Some(epoch.seconds)),
        ("epoch/samples_per_second", Some(epoch.samples_per_second)),
        ("epoch/train_accuracy", epoch.train_accuracy),
        ("Test/loss", epoch.test_loss),
        ("Test/accuracy", epoch.test_accuracy),
    ];
    scalars(values).collect()
}
