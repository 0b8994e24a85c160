//! Reading a run's record back.

use super::event::{Event, Kind, Started};
use super::folder::METRICS;
use crate::disk::Disk;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

/// The largest record that is read.
const MAX_BYTES: u64 = 1 << 32;

/// The events of a run's `metrics.jsonl`, in order, each of them checked.
#[derive(Clone, Debug)]
pub struct RunLog {
    folder: PathBuf,
    events: Vec<Event>,
}

/// How a run stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum RunStatus {
    /// It took all its steps.
    Finished,
    /// It ended before its last step, on request or by a kill.
    Stopped,
    /// It was ended by an error.
    Failed {
        /// The error with its causes.
        error: String,
    },
    /// A gradient, the mean gradient or the loss was not finite any more.
    Diverged {
        /// The error with its causes.
        error: String,
    },
    /// A process is at work in it now.
    Running,
    /// Its recipe or its record cannot be read.
    Damaged {
        /// What is wrong with it.
        error: String,
    },
    /// It has not begun.
    Missing,
}

impl RunStatus {
    /// In one word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Stopped => "stopped",
            Self::Failed { .. } => "failed",
            Self::Diverged { .. } => "diverged",
            Self::Running => "running",
            Self::Damaged { .. } => "damaged",
            Self::Missing => "missing",
        }
    }

    /// What went wrong, if anything did.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Failed { error } | Self::Diverged { error } | Self::Damaged { error } => {
                Some(error)
            }
            Self::Finished | Self::Stopped | Self::Running | Self::Missing => None,
        }
    }

    /// Whether figures of the whole run may be taken from it.
    pub fn is_finished(&self) -> bool {
        *self == Self::Finished
    }

    /// Whether making the run again would come to nothing else: it finished, or it diverged.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Finished | Self::Diverged { .. })
    }
}

impl RunLog {
    /// Reads the record of the run in `folder`. A last line that was never finished, as a killed run
    /// leaves it, does not count.
    ///
    /// # Errors
    /// When there is no record, or a line is damaged: with file and line.
    pub fn read(disk: &Disk, folder: &Path) -> Result<Self> {
        Self::parse(disk, folder, true)
    }

    /// Reads of the record what tells how the run stands: of its steps only the last, after all other
    /// events. Other steps are not decoded, so that many runs can be listed.
    ///
    /// # Errors
    /// Those of [`RunLog::read`]; damage within other steps is not noticed.
    pub fn skim(disk: &Disk, folder: &Path) -> Result<Self> {
        Self::parse(disk, folder, false)
    }

    fn parse(disk: &Disk, folder: &Path, all_steps: bool) -> Result<Self> {
        let path = folder.join(METRICS);
        let no_record = || {
            format!("cannot read {}: is {} the folder of a run?", path.display(), folder.display())
        };
        let event = |number: u64, line: &[u8]| -> Result<Event> {
            serde_json::from_slice(line).with_context(|| {
                format!(
                    "{}, line {number}: this is no event; the record is damaged",
                    path.display()
                )
            })
        };
        let mut lines = disk.lines(&path).with_context(no_record)?.take(MAX_BYTES);
        let (mut events, mut last_step, mut line) = (Vec::new(), None, Vec::new());
        for number in 1.. {
            line.clear();
            lines.read_until(b'\n', &mut line).with_context(no_record)?;
            if !line.ends_with(b"\n") {
                break;
            }
            if all_steps || !is_step(&line) {
                events.push(event(number, &line)?);
            } else {
                last_step = Some((number, line.clone()));
            }
        }
        ensure!(
            lines.limit() > 0,
            "{} is longer than the {MAX_BYTES} bytes that are read of a record",
            path.display()
        );
        if let Some((number, line)) = last_step {
            events.push(event(number, &line)?);
        }
        Ok(Self { folder: folder.into(), events })
    }

    /// The run's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The events, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// When the record begins, in seconds since the Unix epoch.
    pub fn began(&self) -> Option<f64> {
        Some(self.events.first()?.time)
    }

    /// The event with which the last process that trained the run began.
    pub fn started(&self) -> Option<&Started> {
        self.events.iter().rev().find_map(|event| match &event.kind {
            Kind::Started(started) => Some(started),
            _ => None,
        })
    }

    /// The last step of the record; 0 before the first.
    pub fn last_step(&self) -> u64 {
        let step = |event: &Event| match &event.kind {
            Kind::Step(step) => step.step,
            Kind::Epoch(epoch) => epoch.step,
            Kind::Finished(finished) => finished.summary.step,
            _ => 0,
        };
        self.events.iter().map(step).max().unwrap_or(0)
    }

    /// The last evaluation's fraction of right answers.
    pub fn test_accuracy(&self) -> Option<f64> {
        self.events.iter().rev().find_map(|event| match &event.kind {
            Kind::Epoch(epoch) => epoch.test_accuracy,
            _ => None,
        })
    }

    /// How the run ended, as far as its record tells: it cannot tell that a process is at work.
    pub fn status(&self) -> RunStatus {
        let (mut status, mut planned) = (RunStatus::Stopped, 0);
        for event in &self.events {
            match &event.kind {
                Kind::Started(started) => (status, planned) = (RunStatus::Stopped, started.steps),
                Kind::Finished(finished) if finished.summary.step >= planned => {
                    status = RunStatus::Finished;
                }
                Kind::Failed(failed) => {
                    let error = failed.error.clone();
                    status = match failed.diverged {
                        true => RunStatus::Diverged { error },
                        false => RunStatus::Failed { error },
                    };
                }
                _ => {}
            }
        }
        status
    }
}

/// Whether a line of `metrics.jsonl` is a step, as far as its beginning tells: in front of an event's kind
/// stands the time.
fn is_step(line: &[u8]) -> bool {
    const HEAD: usize = 64;
    let head = &line[..line.len().min(HEAD)];
    let kind = br#""event":"step""#;
    head.starts_with(b"{\"time\":") && head.windows(kind.len()).any(|part| part == kind)
}

#[cfg(test)]
mod tests {
    use super::super::event::{Epoch, Failed, Finished, Step};
    use super::super::summary::Summary;
    use super::*;
    use std::fs;

    fn started() -> Event {
        Event::from(Started { steps: 4, ..Started::default() })
    }

    fn step(step: u64) -> Event {
        Event::from(Step { step, ..Step::default() })
    }

    fn finished(step: u64) -> Event {
        let summary = Summary { step, ..Summary::default() };
        Event::from(Finished { summary, ..Finished::default() })
    }

    fn failed(diverged: bool) -> Event {
        Event::from(Failed { error: "why".into(), diverged })
    }

    fn lines(events: &[Event]) -> String {
        events.iter().map(|event| serde_json::to_string(event).unwrap() + "\n").collect()
    }

    #[test]
    fn a_record_tells_how_its_run_stands() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::default();
        let epoch = Event::from(Epoch { step: 3, test_accuracy: Some(0.5), ..Epoch::default() });
        let error = || "why".to_string();
        for (events, status, last) in [
            (vec![started(), step(3), epoch, finished(4)], RunStatus::Finished, 4),
            (vec![started(), step(1), step(2), finished(2)], RunStatus::Stopped, 2),
            (vec![started(), finished(4), started(), step(5)], RunStatus::Stopped, 5),
            (vec![started(), step(1), failed(false)], RunStatus::Failed { error: error() }, 1),
            (vec![started(), failed(true)], RunStatus::Diverged { error: error() }, 0),
            (vec![], RunStatus::Stopped, 0),
        ] {
            // A line that was never finished does not count.
            let text = lines(&events) + "{\"time\":1.5,\"event\":\"failed\"";
            fs::write(folder.path().join(METRICS), text).unwrap();
            let read = RunLog::read(&disk, folder.path()).unwrap();
            assert_eq!(read.events(), events);
            for log in [read, RunLog::skim(&disk, folder.path()).unwrap()] {
                assert_eq!((log.status(), log.last_step()), (status.clone(), last), "{events:?}");
                assert_eq!(log.test_accuracy(), (last == 4).then_some(0.5));
                assert_eq!(log.began(), events.first().map(|event| event.time));
                assert_eq!(log.started().is_some(), !events.is_empty());
            }
        }
    }

    #[test]
    fn damage_is_named_with_file_and_line() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::default();
        let refusal = |text: &str, read: fn(&Disk, &Path) -> Result<RunLog>| {
            fs::write(folder.path().join(METRICS), text).unwrap();
            format!("{:#}", read(&disk, folder.path()).unwrap_err())
        };
        for text in ["{\"time\":1.0,\"event\":\"started\"\n", "\n", "{}\n", "\u{fffd}\n"] {
            let text = lines(&[started(), step(1)]) + text;
            for read in [RunLog::read, RunLog::skim] {
                let error = refusal(&text, read);
                assert!(error.contains("metrics.jsonl, line 3: this is no event"), "{error}");
            }
        }
        fs::remove_file(folder.path().join(METRICS)).unwrap();
        let error = format!("{:#}", RunLog::read(&disk, folder.path()).unwrap_err());
        assert!(error.contains("the folder of a run?"), "{error}");
    }
}
