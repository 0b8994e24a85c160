//! TensorBoard event files.
//!
//! `tensorboard-rs` gives the messages and their framing; its `SummaryWriter` is not used, because
//! its `flush` does not wait, two of its writers may share a file, and it panics where a file
//! cannot be written. Here the file is ours, every event is written before the call returns, and
//! failures are errors.

use super::event::now;
use super::histogram::Histogram;
use super::{Stream, folder};
use crate::disk::Disk;
use anyhow::{Context, Result};
use protobuf::{Message, RepeatedField};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tensorboard_proto::event::{Event as Proto, SessionLog, SessionLog_SessionStatus};
use tensorboard_proto::summary::{
    Summary, Summary_Value, SummaryMetadata, SummaryMetadata_PluginData,
};
use tensorboard_proto::tensor::TensorProto;
use tensorboard_proto::tensor_shape::{TensorShapeProto, TensorShapeProto_Dim};
use tensorboard_proto::types::DataType;
use tensorboard_rs::record_writer::RecordWriter;
use tensorboard_rs::summary;

/// Writes a TensorBoard event file.
///
/// Scalars are grouped by what they are about: `Test/`, `Train/`, `checkpoint/`, `epoch/`, `exchange/`,
/// `phase/`, `scheme/`, `speed/`. TensorBoard shows groups in order of name, capital letters first, and
/// opens the first two. It keeps scalars as f32. A [`Kind::Step`](super::Kind::Step) becomes one
/// record with all its scalars, so a file has few more records than the run has steps.
pub(super) struct TensorBoard<W: Write> {
    records: RecordWriter<BufWriter<W>>,
    /// The last step so far.
    pub(super) step: u64,
    /// The step after which the run is whole; unknown before it starts.
    pub(super) last_step: Option<u64>,
}

impl TensorBoard<Stream> {
    /// Makes an event file in a folder, which comes after those in `earlier`, begins it at a time in
    /// seconds since the Unix epoch, and writes what comes first into it.
    pub(super) fn create(
        disk: &Disk,
        folder: &Path,
        earlier: &[PathBuf],
        time: f64,
        write_first: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> Result<Self> {
        let path = folder.join(file_name(earlier));
        let stream: Stream = Box::new(folder::open(disk, &path)?);
        let begun = Self::new(stream, time).and_then(|mut file| {
            write_first(&mut file)?;
            Ok(file)
        });
        begun.with_context(|| folder::cannot_write(&path))
    }
}

impl<W: Write> TensorBoard<W> {
    /// Begins an event file at a time in seconds since the Unix epoch.
    pub(super) fn new(writer: W, time: f64) -> io::Result<Self> {
        let records = RecordWriter::new(BufWriter::new(writer));
        let mut file = Self { records, step: 0, last_step: None };
        let mut header = event(time, 0);
        header.set_file_version("brain.Event:2".into());
        file.write(&header)?;
        Ok(file)
    }

    /// Tells whoever shows the curves that a process begins at `step`: points that an earlier one
    /// has written for it and later steps are not to be shown.
    pub(super) fn restart_at(&mut self, step: u64) -> io::Result<()> {
        let mut log = SessionLog::new();
        log.set_status(SessionLog_SessionStatus::START);
        let mut proto = event(now(), step);
        proto.set_session_log(log);
        self.write(&proto)
    }

    /// Writes values that belong to one step.
    pub(super) fn values(
        &mut self,
        time: f64,
        step: u64,
        values: Vec<Summary_Value>,
    ) -> io::Result<()> {
        let mut summary = Summary::new();
        summary.set_value(RepeatedField::from_vec(values));
        let mut proto = event(time, step);
        proto.set_summary(summary);
        self.write(&proto)
    }

    fn write(&mut self, proto: &Proto) -> io::Result<()> {
        let bytes = proto.write_to_bytes().map_err(io::Error::other)?;
        self.records.write(&bytes)?;
        self.records.flush()
    }
}

/// An event that says nothing yet.
fn event(time: f64, step: u64) -> Proto {
    let mut proto = Proto::new();
    proto.set_wall_time(time);
    proto.set_step(i64::try_from(step).unwrap_or(i64::MAX));
    proto
}

/// A name for the file, of the form TensorBoard looks for, which comes after those of the files
/// in `earlier`: TensorBoard reads a run's files in order of name.
fn file_name(earlier: &[PathBuf]) -> String {
    let second = |path: &PathBuf| -> Option<u64> {
        path.file_name()?.to_str()?.strip_prefix(PREFIX)?.split('.').next()?.parse().ok()
    };
    let last = earlier.iter().filter_map(second).max();
    let second = (now() as u64).max(last.map_or(0, |last| last.saturating_add(1)));
    format!("{PREFIX}{second:010}{WRITER}{}", std::process::id())
}

/// Whether an event file of this name is one that this program has written.
pub(super) fn is_own(name: &str) -> bool {
    name.strip_prefix(PREFIX).is_some_and(|rest| rest.contains(WRITER))
}

/// What the names of event files begin with, whoever writes them.
const PREFIX: &str = "events.out.tfevents.";
/// What stands in the names of this program's, where other programs name the machine.
const WRITER: &str = ".gradwire.";

pub(super) fn scalar(tag: &str, value: f64) -> Summary_Value {
    only(summary::scalar(tag, value as f32))
}

/// Those scalars that there are.
pub(super) fn scalars<'a>(
    values: impl IntoIterator<Item = (&'a str, Option<f64>)>,
) -> impl Iterator<Item = Summary_Value> {
    values.into_iter().filter_map(|(tag, value)| Some(scalar(tag, value?)))
}

pub(super) fn histogram(tag: &str, histogram: &Histogram) -> Summary_Value {
    let counts: Vec<f64> = histogram.counts.iter().map(|&count| count as f64).collect();
    only(summary::histogram_raw(
        tag,
        histogram.min,
        histogram.max,
        histogram.count as f64,
        histogram.sum,
        histogram.sum_squares,
        &histogram.limits,
        &counts,
    ))
}

pub(super) fn text(tag: &str, text: &str) -> Summary_Value {
    of_plugin(tag, "text", Vec::new(), string(&[1], text.as_bytes().to_vec()))
}

/// A tensor marked for one of TensorBoard's plugins, and what that is to know of it:
/// `tensorboard-rs` has no summaries for them.
pub(super) fn of_plugin(
    tag: &str,
    plugin: &str,
    content: Vec<u8>,
    tensor: TensorProto,
) -> Summary_Value {
    let mut data = SummaryMetadata_PluginData::new();
    data.set_plugin_name(plugin.into());
    data.set_content(content);
    let mut metadata = SummaryMetadata::new();
    metadata.set_plugin_data(data);

    let mut value = Summary_Value::new();
    value.set_tag(tag.into());
    value.set_metadata(metadata);
    value.set_tensor(tensor);
    value
}

/// A tensor of this shape, which holds one string.
pub(super) fn string(shape: &[i64], bytes: Vec<u8>) -> TensorProto {
    let mut tensor = tensor(DataType::DT_STRING, shape);
    tensor.set_string_val(RepeatedField::from_vec(vec![bytes]));
    tensor
}

/// A tensor without elements, where the plugin reads only what it is to know.
pub(super) fn nothing() -> TensorProto {
    tensor(DataType::DT_FLOAT, &[0])
}

fn tensor(kind: DataType, shape: &[i64]) -> TensorProto {
    let dimensions = shape.iter().map(|&size| {
        let mut dimension = TensorShapeProto_Dim::new();
        dimension.set_size(size);
        dimension
    });
    let mut shape = TensorShapeProto::new();
    shape.set_dim(dimensions.collect());
    let mut tensor = TensorProto::new();
    tensor.set_dtype(kind);
    tensor.set_tensor_shape(shape);
    tensor
}

/// The value of a summary that was made with exactly one.
fn only(mut summary: Summary) -> Summary_Value {
    summary.take_value().pop().expect("invariant: tensorboard-rs makes summaries of one value")
}
