//! The event file of a run.

use super::curves;
use super::hparams::{self, Trial};
use super::layout::layout;
use crate::disk::Disk;
use crate::record::event::{Event, Kind, now};
use crate::record::log::RunLog;
use crate::record::summary::Summary as Figures;
use crate::record::{Stream, folder};
use anyhow::{Context, Result};
use protobuf::{Message, RepeatedField};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tensorboard_proto::event::{Event as Proto, SessionLog, SessionLog_SessionStatus};
use tensorboard_proto::summary::{Summary, Summary_Value};
use tensorboard_rs::record_writer::RecordWriter;

/// Writes a TensorBoard event file.
///
/// Scalars are grouped by what they are about: `Test/`, `Train/`, `checkpoint/`, `epoch/`, `exchange/`,
/// `phase/`, `scheme/`, `speed/`. TensorBoard shows groups in order of name, capital letters first, and
/// opens the first two. It keeps scalars as f32. A [`Kind::Step`] becomes one
/// record with all its scalars, so a file has few more records than the run has steps.
pub(in crate::record) struct TensorBoard<W: Write> {
    records: RecordWriter<BufWriter<W>>,
    /// The run in figures, up to the last event shown.
    figures: Figures,
    /// The step after which the run is whole; unknown before it starts.
    last_step: Option<u64>,
}

impl TensorBoard<Stream> {
    /// Makes the event file of a run that begins at this time, in seconds since the Unix epoch.
    pub(in crate::record) fn create(
        disk: &Disk,
        folder: &Path,
        trial: &Trial,
        time: f64,
    ) -> Result<Self> {
        Self::begin(disk, folder, &[], time, |file| file.introduce(trial, time))
    }

    /// Makes the event file anew that shows what `log` holds, in place of those in its folder.
    pub(in crate::record) fn rewrite(disk: &Disk, log: &RunLog, trial: &Trial) -> Result<Self> {
        let folder = log.folder();
        let files = disk.list(folder).with_context(|| format!("listing {}", folder.display()))?;
        let own = |path: &PathBuf| path.file_name().is_some_and(|n| is_own(&n.to_string_lossy()));
        let earlier: Vec<PathBuf> = files.into_iter().filter(own).collect();
        for path in &earlier {
            disk.remove_file(path).with_context(|| folder::cannot_write(path))?;
        }
        let time = log.began().unwrap_or_else(now);
        Self::begin(disk, folder, &earlier, time, |file| {
            file.forget_earlier(time)?;
            file.introduce(trial, time)?;
            log.events().iter().try_for_each(|event| file.show(event))
        })
    }

    /// Makes an event file, which comes after those in `earlier`, and writes into it what it begins with.
    fn begin(
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
            file.records.flush()?;
            Ok(file)
        });
        begun.with_context(|| folder::cannot_write(&path))
    }
}

impl<W: Write> TensorBoard<W> {
    /// Begins an event file at a time in seconds since the Unix epoch.
    pub(in crate::record) fn new(writer: W, time: f64) -> io::Result<Self> {
        let records = RecordWriter::new(BufWriter::new(writer));
        let mut file = Self { records, figures: Figures::default(), last_step: None };
        let mut header = event(time, 0);
        header.set_file_version("brain.Event:2".into());
        file.write(&header)?;
        Ok(file)
    }

    /// Writes what TensorBoard shows of an event; it is out of this process when this returns.
    pub(in crate::record) fn record(&mut self, event: &Event) -> io::Result<()> {
        self.show(event)?;
        self.records.flush()
    }

    /// Writes what TensorBoard shows of an event: curves, histograms and texts, and how the run ended.
    fn show(&mut self, event: &Event) -> io::Result<()> {
        self.figures.observe(event);
        if let Kind::Started(started) = &event.kind {
            self.last_step = Some(started.steps);
        }
        let ended = hparams::end(event, self.last_step);
        let (step, values) = curves::values(event).unwrap_or((self.figures.step, ended));
        if !values.is_empty() {
            self.values(event.time, step, values)?;
        }
        match &event.kind {
            Kind::Epoch(epoch) if epoch.test_accuracy.is_some() => {
                self.values(event.time, epoch.step, hparams::results(&self.figures))
            }
            _ => Ok(()),
        }
    }

    /// Says what is trained, in which trial, to the HParams dashboard, and which charts to show, to that
    /// of custom scalars.
    fn introduce(&mut self, trial: &Trial, time: f64) -> io::Result<()> {
        self.values(time, 0, vec![hparams::start(trial, time), layout()])
    }

    /// Tells a TensorBoard that has read an earlier file of the run to show nothing of it any more.
    fn forget_earlier(&mut self, time: f64) -> io::Result<()> {
        let mut log = SessionLog::new();
        log.set_status(SessionLog_SessionStatus::START);
        let mut proto = event(time, 0);
        proto.set_session_log(log);
        self.write(&proto)
    }

    /// Writes values that belong to one step.
    fn values(&mut self, time: f64, step: u64, values: Vec<Summary_Value>) -> io::Result<()> {
        let mut summary = Summary::new();
        summary.set_value(RepeatedField::from_vec(values));
        let mut proto = event(time, step);
        proto.set_summary(summary);
        self.write(&proto)
    }

    fn write(&mut self, proto: &Proto) -> io::Result<()> {
        let bytes = proto.write_to_bytes().map_err(io::Error::other)?;
        self.records.write(&bytes)
    }
}

/// An event without content.
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
fn is_own(name: &str) -> bool {
    name.strip_prefix(PREFIX).is_some_and(|rest| rest.contains(WRITER))
}

/// What the names of event files begin with, whoever writes them.
const PREFIX: &str = "events.out.tfevents.";
/// What stands in the names of this program's, where other programs name the machine.
const WRITER: &str = ".gradwire.";
