//! Events as TensorBoard's curves, histograms and texts.

use super::event::{Epoch, Event, Kind, Step, now};
use super::hparams::{self, Settings};
use super::layout::layout;
use super::recorder::Recorder;
use super::tensorboard::{TensorBoard, histogram, scalar, text};
use std::io::{self, Write};
use tensorboard_proto::summary::Summary_Value;

/// Says before everything else what is trained, in which `trial`, to the HParams dashboard, and which charts to
/// show, to that of custom scalars.
///
/// # Errors
/// It could not be written.
pub(super) fn introduce<W: Write>(
    file: &mut TensorBoard<W>,
    trial: &str,
    settings: &Settings,
) -> io::Result<()> {
    let time = now();
    file.values(time, 0, vec![hparams::start(trial, settings, time), layout()])
}

impl<W: Write + Send> Recorder for TensorBoard<W> {
    fn record(&mut self, event: &Event) -> io::Result<()> {
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
    values.extend(step.accuracy.map(|value| scalar("Train/accuracy", value)));
    values.extend(step.gradient_norm.map(|value| scalar("Train/gradient_norm", value)));
    values.extend(step.residual_norm.map(|value| scalar("exchange/residual_norm", value)));
    let sent = [("uplink", step.uplink_bytes), ("downlink", step.downlink_bytes)];
    values.extend(
        sent.into_iter().filter_map(|(way, bytes)| {
            Some(scalar(&format!("exchange/{way}_bytes"), bytes? as f64))
        }),
    );
    if step.seconds > 0.0 {
        values.push(scalar("speed/samples_per_second", step.samples as f64 / step.seconds));
    }
    for (name, seconds) in step.phases.named() {
        values.push(scalar(&format!("phase/{name}"), seconds));
    }
    for (name, value) in &step.gauges {
        values.push(scalar(&format!("scheme/{name}"), *value));
    }
    values
}

fn of_epoch(epoch: &Epoch) -> Vec<Summary_Value> {
    let mut values = vec![
        scalar("epoch/train_loss", epoch.train_loss),
        scalar("epoch/seconds", epoch.seconds),
        scalar("epoch/samples_per_second", epoch.samples_per_second),
    ];
    values.extend(epoch.train_accuracy.map(|value| scalar("epoch/train_accuracy", value)));
    values.extend(epoch.test_loss.map(|value| scalar("Test/loss", value)));
    values.extend(epoch.test_accuracy.map(|value| scalar("Test/accuracy", value)));
    values
}
