//! Taking back what was recorded after a step, so that a run can go on from there.

use super::run::METRICS;
use super::{event_file, folder, gradient, hparams, network, tensorboard};
use crate::disk::Disk;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;

/// What [`cut`] took away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Lines about later steps, and about the run's end.
    pub lines: u64,
    /// Lines that cannot be read: a process was stopped while writing them, or they were damaged.
    pub unreadable: u64,
    /// Event files whose end could not be read and was taken out: which, from where on, and why.
    pub torn: Vec<String>,
    /// Why the run had ended, if it had failed.
    pub failed: Option<String>,
}

/// Takes everything that tells of steps after `step` out of the records of `run`: lines of
/// `metrics.jsonl` and `network.jsonl` whose `step` is greater, points of the program's own event
/// files, gradients. So too what says that the run has ended, lines that are no JSON, and an event
/// file from the first record on that is damaged, because nothing after it can be found. Each file
/// is replaced as a whole, or left as it is where nothing has to go. Other files are left alone.
///
/// # Errors
/// When a file cannot be read or replaced. What was cut until then stays cut; to do it again does
/// no harm.
pub fn cut(disk: &Disk, run: &Path, step: u64) -> Result<Cut> {
    let mut cut = Cut::default();
    let files = disk.list(run).with_context(|| format!("listing {}", run.display()))?;
    for path in files.iter().filter(|path| path.is_file()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_lines = name == METRICS || name == network::FILE;
        if !is_lines && !tensorboard::is_own(&name) {
            continue;
        }
        let bytes = disk.read(path, u64::MAX).with_context(|| path.display().to_string())?;
        let kept = if is_lines {
            lines(&bytes, step, &mut cut)
        } else {
            let (kept, damage) = event_file::up_to(&bytes, step, hparams::END);
            cut.torn.extend(damage.map(|damage| format!("{name}: {damage}")));
            kept
        };
        if kept.len() != bytes.len() {
            disk.replace(path, &kept).with_context(|| folder::cannot_write(path))?;
        }
    }
    gradient::cut(disk, run, step)?;
    Ok(cut)
}

/// The lines that tell of steps up to `step`.
fn lines(bytes: &[u8], step: u64, cut: &mut Cut) -> Vec<u8> {
    /// The keys that decide.
    #[derive(Deserialize)]
    struct Line {
        event: Option<String>,
        step: Option<u64>,
        first_step: Option<u64>,
        error: Option<String>,
    }
    let mut kept = Vec::with_capacity(bytes.len());
    for text in bytes.split_inclusive(|byte| *byte == b'\n') {
        let whole = text.ends_with(b"\n");
        let Some(line) = serde_json::from_slice::<Line>(text).ok().filter(|_| whole) else {
            cut.unreadable += u64::from(text != b"\n");
            continue;
        };
        let event = line.event.as_deref().unwrap_or_default();
        let later = line.step.is_some_and(|at| at > step)
            || (event == "started" && line.first_step.is_some_and(|first| first > step));
        if event == "failed" {
            cut.failed = line.error;
        }
        if later || event == "failed" || event == "finished" {
            cut.lines += 1;
        } else {
            kept.extend_from_slice(text);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::super::event::{Checkpoint, Event, Failed, Finished, Started, Step, Warning};
    use super::super::event_file::Fault;
    use super::super::memory::Memory;
    use super::super::tensorboard::TensorBoard;
    use super::*;
    use std::fs;

    fn step(step: u64) -> Event {
        Event::from(Step { step, loss: 0.5, ..Step::default() })
    }

    fn json(events: &[Event]) -> Vec<u8> {
        let line = |event: &Event| serde_json::to_string(event).unwrap() + "\n";
        events.iter().map(line).collect::<String>().into_bytes()
    }

    #[test]
    fn later_lines_and_ends_go_and_earlier_ones_stay_as_they_are() {
        let start = |first_step| Event::from(Started { first_step, ..Started::default() });
        let warning = |step| Event::from(Warning { step, message: "careful".into() });
        let kept = [
            start(1),
            warning(None),
            step(1),
            step(2),
            start(3),
            warning(Some(2)),
            step(3),
            Event::from(Checkpoint { step: 3, ..Checkpoint::default() }),
        ];
        let failed = Event::from(Failed { error: "worker 1 is gone".into(), diverged: false });
        let gone = [step(4), start(4), warning(Some(4)), failed];
        let mut bytes = json(&kept);
        bytes.extend(json(&gone));
        bytes.extend(b"{\"time\":1.5,\"event\":\"step\",\"st");
        let mut cut = Cut::default();
        assert_eq!(lines(&bytes, 3, &mut cut), json(&kept));
        let failed = Some("worker 1 is gone".to_string());
        assert_eq!(cut, Cut { lines: 4, unreadable: 1, torn: vec![], failed });
        // Cut again, and not at all.
        assert_eq!(lines(&json(&kept), 3, &mut cut), json(&kept));
        assert_eq!(lines(&json(&kept), u64::MAX, &mut cut), json(&kept));
    }

    fn curves(steps: std::ops::RangeInclusive<u64>) -> Vec<u8> {
        let file = Memory::default();
        // The same moments in all of them, so that their bytes can be compared.
        let mut board = TensorBoard::new(file.clone(), 0.5).unwrap();
        let fixed = |n| Event { time: n as f64, ..step(n) };
        steps.for_each(|n| board.record(&fixed(n)).unwrap());
        file.bytes()
    }

    fn points(bytes: &[u8], step: u64) -> Vec<u8> {
        event_file::up_to(bytes, step, hparams::END).0
    }

    #[test]
    fn later_points_and_torn_tails_go() {
        let (all, half) = (curves(1..=6), curves(1..=3));
        assert_eq!(points(&all, 3), half);
        assert_eq!(points(&all, 6), all);
        for torn in 1..40 {
            let torn = &all[..all.len() - torn];
            assert_eq!(points(torn, 6), curves(1..=5));
        }
        let mut flipped = all.clone();
        flipped[half.len() + 20] ^= 1;
        assert_eq!(points(&flipped, 6), half, "nothing after damage can be read");
        assert!(points(&[0xff; 100], 6).is_empty());
    }

    #[test]
    fn the_end_of_a_run_goes_whatever_its_step() {
        let file = Memory::default();
        let mut board = TensorBoard::new(file.clone(), 0.5).unwrap();
        board.record(&step(1)).unwrap();
        let going_on = file.bytes();
        for end in [Event::from(Finished::default()), Event::from(Failed::default())] {
            board.record(&end).unwrap();
            let ended = file.bytes();
            assert!(ended.len() > going_on.len());
            assert_eq!(points(&ended, 1), going_on);
        }
    }

    #[test]
    fn all_records_of_a_run_are_cut_together() {
        let run = tempfile::tempdir().unwrap();
        let path = |name: &str| run.path().join(name);
        fs::write(path("metrics.jsonl"), json(&[step(1), step(2), step(3)])).unwrap();
        let rows = "{\"step\":2}\n{\"step\":3}\n{\"rate\":1}\n";
        fs::write(path("network.jsonl"), rows).unwrap();
        fs::write(path("events.out.tfevents.1.gradwire.7"), curves(1..=3)).unwrap();
        let torn = [curves(1..=2), vec![7; 30]].concat();
        fs::write(path("events.out.tfevents.2.gradwire.7"), &torn).unwrap();
        // What others have put there is theirs.
        fs::write(path("mine.jsonl"), rows).unwrap();
        fs::write(path("events.out.tfevents.2.host.7"), &torn).unwrap();
        fs::write(path("recipe.toml"), "step = 3").unwrap();
        fs::create_dir(path("gradients")).unwrap();
        for step in [2, 3] {
            fs::write(path(&format!("gradients/step-{step:06}.safetensors")), "").unwrap();
        }
        let found = cut(&Disk::default(), run.path(), 2).unwrap();
        assert_eq!(found.lines, 2);
        let at = curves(1..=2).len();
        let damage = event_file::Damage { offset: at, fault: Fault::LengthSum };
        assert_eq!(found.torn, [format!("events.out.tfevents.2.gradwire.7: {damage}")]);
        let read = |name: &str| fs::read(path(name)).unwrap();
        assert_eq!(read("network.jsonl"), b"{\"step\":2}\n{\"rate\":1}\n");
        assert_eq!(read("events.out.tfevents.1.gradwire.7"), curves(1..=2));
        assert_eq!(read("events.out.tfevents.2.gradwire.7"), curves(1..=2));
        assert_eq!(read("mine.jsonl"), rows.as_bytes());
        assert_eq!(read("events.out.tfevents.2.host.7"), torn);
        assert_eq!(read("metrics.jsonl").iter().filter(|byte| **byte == b'\n').count(), 2);
        assert!(path("gradients/step-000002.safetensors").is_file());
        assert!(!path("gradients/step-000003.safetensors").exists());
        assert_eq!(read("recipe.toml"), b"step = 3");
    }
}
