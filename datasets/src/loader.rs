//! Batches filled ahead of time on a thread of their own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::augment::{Augment, Augmentation};
use crate::dataset::{Batch, Dataset};
use crate::error::{Error, Result};
use crate::sampler::Sampler;
use crate::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel, sync_channel,
};
use crate::sync::thread::{self, JoinHandle};

/// Of waiting for a batch, what is counted at once: no more of it counts when the process is stopped meanwhile.
const SLICE: Duration = Duration::from_secs(1);

/// Which batches a [`Loader`] fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// How samples are changed at random; absent for not at all.
    pub augment: Option<Augmentation>,
    /// The seed of the augmentation.
    pub seed: u64,
    /// The first step, counted from 1; a resumed run begins later.
    pub first_step: u64,
    /// The last step, or `None` to go on for as long as batches are taken.
    pub last_step: Option<u64>,
    /// How many batches may lie ready; at least 1.
    pub depth: usize,
    /// How long [`Loader::next`] waits for a batch before it gives up.
    pub patience: Duration,
}

impl Default for Plan {
    /// From step 1 without end or augmentation, four batches ahead, waiting five minutes at most.
    fn default() -> Self {
        let patience = Duration::from_secs(300);
        Self { augment: None, seed: 0, first_step: 1, last_step: None, depth: 4, patience }
    }
}

/// One rank's share of one step.
#[derive(Debug)]
pub struct Loaded {
    /// The samples; in the last step of an epoch perhaps fewer than usual, or none.
    pub batch: Batch,
    /// The step, counted from 1.
    pub step: u64,
    /// The epoch it belongs to, counted from 1.
    pub epoch: u64,
    /// The number of samples that all ranks together see at this step.
    pub global_samples: usize,
    /// How long [`Loader::next`] had to wait for the batch; zero when it lay ready.
    pub waited: Duration,
}

/// Fills the batches of a [`Sampler`]'s steps, in order, ahead of their use.
///
/// Dropping the loader ends its thread, whatever it is doing, and waits for that: at most the
/// time of filling one batch.
pub struct Loader {
    filled: Option<Receiver<Loaded>>,
    emptied: Sender<Batch>,
    thread: Option<JoinHandle<()>>,
    rank: usize,
    last_step: Option<u64>,
    patience: Duration,
}

impl Loader {
    /// Starts filling at once.
    ///
    /// # Errors
    /// [`Error::Loader`] when the system allows no further thread.
    pub fn new(dataset: Arc<dyn Dataset>, sampler: Sampler, plan: Plan) -> Result<Self> {
        let rank = sampler.rank();
        let (fill, filled) = sync_channel(plan.depth.max(1));
        let (emptied, empty) = channel();
        let thread = thread::Builder::new()
            .name(format!("loader-{rank}"))
            .spawn(move || fill_batches(&*dataset, sampler, plan, &fill, &empty))
            .map_err(|cause| {
                let problem = format!(
                    "cannot start the loader thread of rank {rank}: {cause}; use fewer workers or raise the limit"
                );
                Error::Loader { problem }
            })?;
        Ok(Self {
            filled: Some(filled),
            emptied,
            thread: Some(thread),
            rank,
            last_step: plan.last_step,
            patience: plan.patience,
        })
    }

    /// The batch of the next step.
    ///
    /// # Errors
    /// [`Error::Exhausted`] after the plan's last step; [`Error::Loader`] when the thread died, or
    /// fills no batch within the plan's patience.
    #[expect(clippy::should_implement_trait, reason = "a loader without end is not an iterator")]
    pub fn next(&mut self) -> Result<Loaded> {
        let Some(filled) = &self.filled else {
            return Err(self.ended());
        };
        match filled.try_recv() {
            Ok(loaded) => return Ok(loaded),
            Err(TryRecvError::Disconnected) => return Err(self.ended()),
            Err(TryRecvError::Empty) => {}
        }
        let (start, mut left) = (Instant::now(), self.patience);
        while !left.is_zero() {
            let (began, slice) = (Instant::now(), left.min(SLICE));
            match filled.recv_timeout(slice) {
                Ok(loaded) => return Ok(Loaded { waited: start.elapsed(), ..loaded }),
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
                Err(RecvTimeoutError::Timeout) => left -= began.elapsed().min(slice),
            }
        }
        // A thread that waits for a disk that does not answer would never be waited for to the end.
        self.thread = None;
        Err(self.failed(format_args!("has filled no batch for {:?}", self.patience)))
    }

    /// Gives a used batch back, so that its buffers are filled again.
    pub fn recycle(&self, batch: Batch) {
        // A thread that has ended needs no more buffers.
        let _ = self.emptied.send(batch);
    }

    /// Why nothing comes any more.
    fn ended(&mut self) -> Error {
        self.filled = None;
        let panic = self.thread.take().and_then(|thread| thread.join().err());
        match (panic, self.last_step) {
            (None, Some(last_step)) => Error::Exhausted { last_step },
            (panic, _) => {
                let message = panic.as_ref().and_then(|panic| {
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    text.or_else(|| panic.downcast_ref::<&str>().copied())
                });
                let message = message.unwrap_or("it ended without a message");
                // Asked again, the answer must not become `Exhausted`.
                self.last_step = None;
                self.failed(format_args!("failed: {message}; this is a bug, please report it"))
            }
        }
    }

    fn failed(&self, how: std::fmt::Arguments<'_>) -> Error {
        Error::Loader { problem: format!("the loader thread of rank {} {how}", self.rank) }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Without a receiver the thread's next send fails, and it ends.
        self.filled = None;
        if let Some(thread) = self.thread.take() {
            // Its panic, if any, was reported by `next` or is of no more interest.
            let _ = thread.join();
        }
    }
}

fn fill_batches(
    dataset: &dyn Dataset,
    mut sampler: Sampler,
    plan: Plan,
    fill: &SyncSender<Loaded>,
    empty: &Receiver<Batch>,
) {
    let mut indices = Vec::new();
    let last_step = plan.last_step.unwrap_or(u64::MAX);
    for step in plan.first_step.max(1)..=last_step {
        let epoch = sampler.epoch_of(step);
        sampler.indices(step, &mut indices);
        let augment = plan.augment.map(|how| Augment { seed: plan.seed, epoch, how });
        let mut batch = empty.try_recv().unwrap_or_default();
        dataset.batch(&indices, augment.as_ref(), &mut batch);
        let global_samples = sampler.global_samples(step);
        let loaded = Loaded { batch, step, epoch, global_samples, waited: Duration::ZERO };
        if fill.send(loaded).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{Features, Shape};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Sample i has label i and the one token i + epoch; the poisoned one panics.
    struct Numbers {
        len: usize,
        poisoned: Option<u32>,
        fills: AtomicUsize,
        delay: Duration,
    }

    impl Numbers {
        fn new(len: usize) -> Self {
            Self { len, poisoned: None, fills: AtomicUsize::new(0), delay: Duration::ZERO }
        }
    }

    impl Dataset for Numbers {
        fn len(&self) -> usize {
            self.len
        }
        fn classes(&self) -> &[String] {
            &[]
        }
        fn shape(&self) -> Shape {
            Shape::Text { vocabulary: self.len, length: 1 }
        }
        fn batch(&self, indices: &[u32], augment: Option<&Augment>, into: &mut Batch) {
            thread::sleep(self.delay);
            self.fills.fetch_add(1, Ordering::SeqCst);
            assert!(self.poisoned.is_none_or(|p| !indices.contains(&p)), "sample is poisoned");
            let shift = augment.map_or(0, |augment| augment.epoch as u32);
            into.labels.clear();
            into.labels.extend(indices);
            if let Features::Tokens { ids, length } = &mut into.features {
                *length = 1;
                ids.clear();
                ids.extend(indices.iter().map(|&i| i + shift));
            }
        }
    }

    fn sampler(len: usize, batch: usize) -> Sampler {
        Sampler::new(5, len, 2, 1, batch).unwrap()
    }

    #[test]
    fn steps_come_in_order_with_the_samplers_indices() {
        let plan = Plan { augment: Some(Augmentation::default()), ..Plan::default() };
        let mut loader = Loader::new(Arc::new(Numbers::new(21)), sampler(21, 4), plan).unwrap();
        let mut reference = sampler(21, 4);
        let mut indices = Vec::new();
        for step in 1..=10 {
            let loaded = loader.next().unwrap();
            reference.indices(step, &mut indices);
            assert_eq!(loaded.batch.labels, indices);
            assert_eq!((loaded.step, loaded.epoch), (step, (step - 1) / 3 + 1));
            assert_eq!(loaded.global_samples, if step % 3 == 0 { 5 } else { 8 });
            let Features::Tokens { ids, .. } = &loaded.batch.features else { panic!() };
            let shifted: Vec<u32> = indices.iter().map(|&i| i + loaded.epoch as u32).collect();
            assert_eq!(ids, &shifted);
            loader.recycle(loaded.batch);
        }
    }

    #[test]
    fn a_resumed_loader_goes_on_where_the_first_would() {
        let labels = |first_step| {
            let plan = Plan { first_step, last_step: Some(9), ..Plan::default() };
            let mut loader = Loader::new(Arc::new(Numbers::new(21)), sampler(21, 4), plan).unwrap();
            let mut labels = Vec::new();
            while let Ok(loaded) = loader.next() {
                labels.push(loaded.batch.labels);
            }
            labels
        };
        assert_eq!(labels(1)[4..], labels(5)[..]);
    }

    #[test]
    fn it_ends_after_the_last_step() {
        let plan = Plan { last_step: Some(2), ..Plan::default() };
        let mut loader = Loader::new(Arc::new(Numbers::new(8)), sampler(8, 2), plan).unwrap();
        assert!(loader.next().is_ok() && loader.next().is_ok());
        for _ in 0..2 {
            assert!(matches!(loader.next(), Err(Error::Exhausted { last_step: 2 })));
        }
    }

    #[test]
    fn it_fills_no_further_than_its_depth() {
        let numbers = Arc::new(Numbers::new(8));
        let plan = Plan { depth: 3, ..Plan::default() };
        let mut loader = Loader::new(numbers.clone(), sampler(8, 2), plan).unwrap();
        loader.next().unwrap();
        let fills = || numbers.fills.load(Ordering::SeqCst);
        // One taken, three lying ready, one in the thread's hand.
        let started = Instant::now();
        while fills() < 5 && started.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(50));
        assert_eq!(fills(), 5);
    }

    #[test]
    fn dropping_ends_the_thread_full_or_waiting() {
        for takes in [0, 3] {
            let numbers = Arc::new(Numbers::new(8));
            let mut loader = Loader::new(numbers.clone(), sampler(8, 2), Plan::default()).unwrap();
            for _ in 0..takes {
                loader.next().unwrap();
            }
            drop(loader);
            assert_eq!(Arc::strong_count(&numbers), 1, "the thread still holds the data set");
        }
    }

    #[test]
    fn waiting_is_measured() {
        let numbers = Numbers { delay: Duration::from_millis(500), ..Numbers::new(8) };
        let mut loader = Loader::new(Arc::new(numbers), sampler(8, 2), Plan::default()).unwrap();
        assert!(loader.next().unwrap().waited >= Duration::from_millis(5));
        thread::sleep(Duration::from_secs(3));
        assert_eq!(loader.next().unwrap().waited, Duration::ZERO);
    }

    #[test]
    fn patience_has_an_end() {
        let numbers = Numbers { delay: Duration::from_secs(2), ..Numbers::new(8) };
        let plan = Plan { patience: Duration::from_millis(10), ..Plan::default() };
        let mut loader = Loader::new(Arc::new(numbers), sampler(8, 2), plan).unwrap();
        let error = loader.next().unwrap_err();
        assert!(error.to_string().contains("rank 1 has filled no batch"), "{error}");
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let numbers = Numbers { poisoned: Some(3), ..Numbers::new(8) };
        let whole = Sampler::new(0, 8, 1, 0, 8).unwrap();
        let plan = Plan { last_step: Some(4), ..Plan::default() };
        let mut loader = Loader::new(Arc::new(numbers), whole, plan).unwrap();
        for attempt in 0..2 {
            let error = loader.next().unwrap_err();
            assert!(error.to_string().contains("rank 0 failed"), "{error}");
            assert!(attempt == 1 || error.to_string().contains("poisoned"), "{error}");
        }
    }
}
