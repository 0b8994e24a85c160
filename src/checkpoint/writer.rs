//! The thread that writes checkpoints while training goes on.

use super::part::Part;
use super::write::{Whole, retain, write};
use crate::disk::Disk;
use crate::recipe;
use anyhow::{Context, Error, Result, anyhow, ensure};
use crossbeam::channel::{Receiver, Sender, unbounded};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What became of a checkpoint.
#[derive(Debug)]
pub struct WriteReport {
    /// The step it follows.
    pub step: u64,
    /// Seconds that the slowest rank's next step was held up.
    pub stall: f64,
    /// Seconds that writing took, in the background.
    pub seconds: f64,
    /// The bytes written, or why it could not be.
    pub result: Result<u64>,
    /// Why older ones could not be removed, if so. The new one is whole all the same.
    pub retention: Option<Error>,
}

/// Gathers the ranks' parts and writes them as checkpoints, one at a time, on a thread of its own.
pub struct Writer {
    workers: usize,
    open: BTreeMap<u64, Vec<Option<Part>>>,
    jobs: Option<Sender<Whole>>,
    done: Receiver<WriteReport>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// A writer of checkpoints of `workers` ranks into the run's folder. When one is
    /// written, or has failed to be, `free` is called.
    ///
    /// # Errors
    /// When the system allows no further thread.
    pub fn new(
        disk: Disk,
        run: PathBuf,
        settings: recipe::CheckpointSettings,
        workers: usize,
        free: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let (jobs, inbox) = unbounded::<Whole>();
        let (outbox, done) = unbounded();
        let work = move || {
            for whole in inbox {
                let step = whole.progress.step;
                let stall = whole.parts.iter().map(|part| part.stall).fold(0.0, f64::max);
                let began = Instant::now();
                let result = write(&disk, &run, whole).map(|(_, bytes)| bytes);
                let retention = match &result {
                    Ok(_) => retain(&disk, &run, settings.keep_last, settings.keep_best).err(),
                    Err(_) => None,
                };
                let seconds = began.elapsed().as_secs_f64();
                free();
                if outbox.send(WriteReport { step, stall, seconds, result, retention }).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new()
            .name("checkpoints".into())
            .spawn(work)
            .context("starting the thread that writes checkpoints")?;
        Ok(Self { workers, open: BTreeMap::new(), jobs: Some(jobs), done, thread: Some(thread) })
    }

    /// Takes a rank's part; all parts of its step, in order of rank, if this was the last.
    pub fn add(&mut self, part: Part) -> Option<Vec<Part>> {
        let (step, rank, workers) = (part.step, part.rank, self.workers);
        let slots = self.open.entry(step).or_insert_with(|| (0..workers).map(|_| None).collect());
        slots[rank] = Some(part);
        if slots.iter().any(Option::is_none) {
            return None;
        }
        self.open.remove(&step).map(|slots| slots.into_iter().flatten().collect())
    }

    /// Writes a checkpoint, as soon as those before it are written.
    pub fn write(&self, whole: Whole) {
        if let Some(jobs) = &self.jobs {
            // A thread that is gone has panicked; `finish` tells.
            let _ = jobs.send(whole);
        }
    }

    /// What has become of checkpoints since this was last asked.
    pub fn done(&self) -> Vec<WriteReport> {
        self.done.try_iter().collect()
    }

    /// Waits until everything is written; what has become of it, and an error when the thread has panicked or the disk
    /// does not answer.
    pub fn finish(mut self) -> (Vec<WriteReport>, Result<()>) {
        let ended = self.end();
        (self.done(), ended)
    }

    /// Waits until everything is written and the thread has ended.
    fn end(&mut self) -> Result<()> {
        self.jobs = None;
        self.thread.take().map_or(Ok(()), |thread| join_within(thread, PATIENCE))
    }
}

/// How long a disk may take for what is still to be written.
const PATIENCE: Duration = Duration::from_secs(600);

/// Waits for a thread; one that takes longer than `limit` is left behind.
fn join_within(thread: JoinHandle<()>, limit: Duration) -> Result<()> {
    let began = Instant::now();
    while !thread.is_finished() {
        ensure!(
            began.elapsed() < limit,
            "the disk has not taken the last checkpoint for {limit:?}: it is not whole, and those before it are"
        );
        thread::sleep(Duration::from_millis(2));
    }
    thread.join().map_err(|_| anyhow!("the thread that writes checkpoints panicked"))
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_does_not_answer_is_left_behind() {
        let (hold, held) = unbounded::<()>();
        let stuck = thread::spawn(move || {
            let _ = held.recv();
        });
        let error = join_within(stuck, Duration::from_millis(20)).unwrap_err().to_string();
        assert!(error.contains("the disk has not taken"), "{error}");
        drop(hold);
        assert!(join_within(thread::spawn(|| ()), PATIENCE).is_ok());
        assert!(join_within(thread::spawn(|| panic!("as it is to")), PATIENCE).is_err());
    }
}
