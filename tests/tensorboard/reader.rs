//! Reads TensorBoard event files as its messages. `check.py` compares the files with what TensorBoard's own code reads,
//! checksums among it.

use protobuf::Message;
use std::path::Path;
use tensorboard_proto::event::Event;
use tensorboard_proto::plugin_hparams::HParamsPluginData;
use tensorboard_proto::summary::Summary_Value;

/// One record of an event file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Record {
    /// Seconds since the Unix epoch.
    pub(crate) wall_time: f64,
    /// The step.
    pub(crate) step: i64,
    /// Set in the first record only.
    pub(crate) file_version: String,
    /// The values, each with its tag.
    pub(crate) values: Vec<(String, Value)>,
}

/// A value of a summary.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// A point of a curve.
    Scalar(f32),
    /// A distribution.
    Histogram {
        /// Smallest and largest value, number of values, their sum and that of their squares.
        figures: [f64; 5],
        /// Upper boundaries.
        limits: Vec<f64>,
        /// Counts.
        counts: Vec<f64>,
    },
    /// A text.
    Text(String),
    /// What the HParams plugin is to know.
    Hparams(HParamsPluginData),
    /// A tensor for another plugin, of this name.
    Plugin(String),
}

/// The records of the only event file in `folder`.
pub(crate) fn read_folder(folder: &Path) -> Vec<Record> {
    let mut files = crate::common::entries(folder);
    files.retain(|file| file.to_string_lossy().contains("tfevents"));
    let [file] = &files[..] else { panic!("{files:?} in {}", folder.display()) };
    let mut bytes = &std::fs::read(file).unwrap()[..];
    let mut records = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        // A checksum follows the length, and another the record.
        let (data, rest) = rest[4..].split_at(u64::from_le_bytes(*length) as usize);
        records.push(record(&Message::parse_from_bytes(data).unwrap()));
        bytes = &rest[4..];
    }
    records
}

fn record(event: &Event) -> Record {
    let values = event.get_summary().value.iter();
    Record {
        wall_time: event.wall_time,
        step: event.step,
        file_version: event.get_file_version().into(),
        values: values.map(|entry| (entry.tag.clone(), value(entry))).collect(),
    }
}

fn value(entry: &Summary_Value) -> Value {
    if entry.has_simple_value() {
        return Value::Scalar(entry.get_simple_value());
    }
    if entry.has_histo() {
        let histogram = entry.get_histo();
        return Value::Histogram {
            figures: [
                histogram.min,
                histogram.max,
                histogram.num,
                histogram.sum,
                histogram.sum_squares,
            ],
            limits: histogram.bucket_limit.clone(),
            counts: histogram.bucket.clone(),
        };
    }
    let data = entry.get_metadata().get_plugin_data();
    match (data.get_plugin_name(), entry.get_tensor().get_string_val()) {
        ("text", [text]) => Value::Text(String::from_utf8(text.clone()).unwrap()),
        ("hparams", _) => Value::Hparams(Message::parse_from_bytes(data.get_content()).unwrap()),
        (plugin, _) => Value::Plugin(plugin.into()),
    }
}
