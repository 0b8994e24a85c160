//! Taking back what was recorded after a step, so that a run can go on from there.

use super::event::{Event, Kind};
use super::folder::{self, METRICS};
use super::{gradient, network};
use crate::disk::Disk;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;

/// What was taken out of a run's record when it was resumed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Lines that cannot be read: a process was stopped while writing them, or they were damaged.
    pub unreadable: u64,
    /// Why the run had ended, if it had failed.
    pub failed: Option<String>,
}

impl Cut {
    /// What was taken out, as paragraphs to follow others.
    pub fn in_words(&self) -> String {
        let failed = self.failed.as_ref().map(|error| format!("\n\nIt had failed: {error}"));
        let lines = match self.unreadable {
            0 => String::new(),
            lines => format!("\n\n{lines} unreadable lines were taken out."),
        };
        failed.unwrap_or_default() + &lines
    }
}

/// Takes everything that tells of steps after `step` out of the records of `run`: events, lines of
/// `network.jsonl`, gradients. So too what says that the run has ended, and lines that cannot be read.
/// Each file is replaced as a whole, or left as it is where nothing has to go.
pub(super) fn cut(disk: &Disk, run: &Path, step: u64) -> Result<Cut> {
    let mut cut = Cut::default();
    filter(disk, &run.join(METRICS), |line| match serde_json::from_slice::<Event>(line) {
        Ok(event) => stays(event.kind, step, &mut cut),
        Err(_) => {
            cut.unreadable += u64::from(line != b"\n");
            false
        }
    })?;
    filter(disk, &run.join(network::FILE), |line| {
        let row = serde_json::from_slice::<NetworkLine>(line);
        row.is_ok_and(|row| row.step.is_none_or(|at| at <= step))
    })?;
    gradient::cut(disk, run, step)?;
    Ok(cut)
}

/// Of a line of `network.jsonl` what decides: a header has no step.
#[derive(Deserialize)]
struct NetworkLine {
    step: Option<u64>,
}

/// Whether an event stays in the record of a run that goes on after `step`.
fn stays(event: Kind, step: u64, cut: &mut Cut) -> bool {
    let at = match event {
        Kind::Failed(failed) => {
            cut.failed = Some(failed.error);
            return false;
        }
        Kind::Finished(_) => return false,
        Kind::Started(started) => started.first_step,
        Kind::Step(at) => at.step,
        Kind::Epoch(at) => at.step,
        Kind::Histograms(at) => at.step,
        Kind::Checkpoint(at) => at.step,
        Kind::Text(at) => at.step,
        Kind::Warning(at) => at.step.unwrap_or(0),
    };
    at <= step
}

/// Leaves the lines of a file that are whole and `stay`.
fn filter(disk: &Disk, path: &Path, mut stay: impl FnMut(&[u8]) -> bool) -> Result<()> {
    if !path.is_file() {
        return Ok(());
    }
    let bytes = disk.read(path, u64::MAX).with_context(|| path.display().to_string())?;
    // A line that was never finished is JSON at most by chance.
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let kept: Vec<&[u8]> = lines.filter(|line| stay(line) && line.ends_with(b"\n")).collect();
    let kept = kept.concat();
    if kept.len() != bytes.len() {
        disk.replace(path, &kept).with_context(|| folder::cannot_write(path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::event::{Checkpoint, Failed, Finished, Started, Step, Text, Warning};
    use super::*;
    use std::fs;

    fn step(step: u64) -> Event {
        Event::from(Step { step, loss: 0.5, ..Step::default() })
    }

    fn json(events: &[Event]) -> String {
        events.iter().map(|event| serde_json::to_string(event).unwrap() + "\n").collect()
    }

    #[test]
    fn later_lines_and_ends_go_and_earlier_ones_stay_as_they_are() {
        let run = tempfile::tempdir().unwrap();
        let path = |name: &str| run.path().join(name);
        let start = |first_step| Event::from(Started { first_step, ..Started::default() });
        let warning = |step| Event::from(Warning { step, message: "careful".into() });
        let kept = [
            start(1),
            warning(None),
            step(1),
            step(2),
            start(3),
            warning(Some(2)),
            Event::from(Text { step: 3, ..Text::default() }),
            step(3),
            Event::from(Checkpoint { step: 3, ..Checkpoint::default() }),
        ];
        let failed = Event::from(Failed { error: "worker 1 is gone".into(), diverged: false });
        let finished = Event::from(Finished::default());
        let gone = [step(4), start(4), warning(Some(4)), finished, failed];
        let torn = ["\n", "{}\n", "{\"time\":1.5,\"event\":\"step\",\"st"].concat();
        fs::write(path(METRICS), json(&kept) + &json(&gone) + &torn).unwrap();
        let rows = "{\"network\":1}\n{\"step\":3}\n";
        fs::write(path(network::FILE), format!("{rows}{{\"step\":4}}\n{{\"step\":1}}")).unwrap();
        // What others have put there is theirs.
        fs::write(path("mine.jsonl"), "{\"step\":4}\n").unwrap();
        fs::create_dir(path("gradients")).unwrap();
        for step in [3, 4] {
            fs::write(path(&format!("gradients/step-{step:06}.safetensors")), "").unwrap();
        }
        let found = cut(&Disk::default(), run.path(), 3).unwrap();
        assert_eq!(found, Cut { unreadable: 2, failed: Some("worker 1 is gone".into()) });
        for _ in 0..2 {
            let read = |name: &str| fs::read_to_string(path(name)).unwrap();
            assert_eq!(read(METRICS), json(&kept));
            assert_eq!(
                (read(network::FILE), read("mine.jsonl")),
                (rows.into(), "{\"step\":4}\n".into())
            );
            assert!(path("gradients/step-000003.safetensors").is_file());
            assert!(!path("gradients/step-000004.safetensors").exists());
            // Nothing more goes when it is done again.
            assert_eq!(cut(&Disk::default(), run.path(), 3).unwrap(), Cut::default());
        }
    }
}
