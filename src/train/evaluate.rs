//! Evaluation on a test set: of the model in training, and of a saved one.

use crate::checkpoint::{self, Saved, Score};
use crate::machine;
use crate::recipe::input;
use crate::record::Provenance;
use crate::train::memory;
use crate::train::position::Phase;
use crate::train::replica::Replica;
use crate::train::session;
use crate::train::worker::Worker;
use anyhow::{Context, Result, ensure};
use gradwire_datasets::{Batch, Data, Dataset, Shape, Shard};
use gradwire_models::kernels;
use rayon::ThreadPoolBuilder;
use std::f64::consts::LN_2;
use std::fs;

/// A saved model beside the test set of its recipe.
pub struct Evaluation<'a> {
    saved: &'a Saved,
    data: Data,
}

impl<'a> Evaluation<'a> {
    /// Reads the test set of `saved.recipe`. Its images are normalised as those that the model learned
    /// from; where the model's file does not say how, by the training set beside them.
    ///
    /// # Errors
    /// When the data is missing or damaged.
    pub fn prepare(saved: &'a Saved) -> Result<Self> {
        let vocabulary = match &saved.vocabulary {
            Some(file) => Some(
                fs::read_to_string(file)
                    .with_context(|| format!("reading the vocabulary {}", file.display()))?,
            ),
            None => None,
        };
        let data = session::load(&saved.recipe, vocabulary.as_deref());
        let mut data = data.with_context(|| match &saved.vocabulary {
            Some(file) => format!("reading texts by the vocabulary {}", file.display()),
            None => "reading what it is tested on".into(),
        })?;
        ensure!(
            saved.vocabulary.is_some() || !saved.recipe.dataset.learns_tokens(),
            "there is no {} beside {} or in the folders above: which number each word has is unknown; put the one of \
             the run there",
            checkpoint::VOCABULARY,
            saved.file.display()
        );
        let normalisation = saved.normalisation.as_ref();
        if let Some(test) = normalisation.and_then(|by| data.test.normalised_by(by)) {
            data.test = test;
        }
        Ok(Self { saved, data })
    }

    /// What whoever reads the score should know: that the data are not those of the run, or that the run evaluated
    /// something else after that step.
    ///
    /// # Errors
    /// When what is beside the model cannot be read.
    pub fn notes(&self) -> Result<Vec<String>> {
        let mut notes: Vec<String> = self.saved.note.into_iter().map(Into::into).collect();
        let Some(file) = &self.saved.provenance else { return Ok(notes) };
        let text = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let Ok(begun) = serde_json::from_slice::<Provenance>(&text) else {
            notes.push(format!(
                "{} is damaged: whether these are the run's data is unknown",
                file.display()
            ));
            return Ok(notes);
        };
        if !begun.own.is_empty() {
            let own: Vec<_> = begun.own.values().map(String::as_str).collect();
            notes.push(format!("the run had parts that its program brought ({})", own.join(", ")));
        } else if let Some(sum) = self.data.files.iter().find(|sum| !begun.data.contains(sum)) {
            notes.push(format!("the data file {} is not one that the run read", sum.name));
        }
        Ok(notes)
    }

    /// Bits of a loss for each byte of the test text, where a text is continued.
    pub fn bits_per_byte(&self, loss: f64) -> Option<f64> {
        self.data.test.bytes_per_token().map(|bytes| loss / LN_2 / bytes)
    }

    fn batch(&self) -> usize {
        self.saved.recipe.evaluation_batch(self.data.test.shape())
    }

    /// How many batches the test set is evaluated in.
    pub fn batches(&self) -> usize {
        self.data.test.len().div_ceil(self.batch())
    }

    /// The score; calls `beat` after each batch.
    ///
    /// # Errors
    /// When the file's variables are not the model's, or the model fails.
    pub fn run(&self, beat: impl Fn() + Send) -> Result<Score> {
        let (test, size) = (&*self.data.test, self.batch());
        with_model(self.saved, (test.shape(), test.classes().len()), |replica| {
            evaluate_share(replica, test, 1, 0, size, beat)
        })
    }
}

/// What `work` makes of a saved model, on all cores, in the precision that it was trained in. It reads samples of this shape
/// and so many classes.
pub(super) fn with_model<T: Send>(
    saved: &Saved,
    samples: (Shape, usize),
    work: impl FnOnce(&Replica) -> Result<T> + Send,
) -> Result<T> {
    let recipe = &saved.recipe;
    // The recipe is the file's own: nothing is allocated by it unchecked.
    memory::check_weights(recipe.model.parameters(&input(samples.0), samples.1)?)?;
    let load = || {
        let replica = Replica::of(recipe.model.definition(), recipe, samples, 0)?;
        checkpoint::load(saved, &replica.store)?;
        work(&replica)
    };
    let kernels = recipe.kernels()?;
    let pool = ThreadPoolBuilder::new().num_threads(machine::cores()).build()?;
    pool.install(|| kernels::with(kernels, load))
}

/// The score of one rank's share of `data`; calls `beat` after each batch.
///
/// # Errors
/// When the model fails.
pub fn evaluate_share(
    replica: &Replica,
    data: &dyn Dataset,
    world_size: usize,
    rank: usize,
    size: usize,
    beat: impl Fn(),
) -> Result<Score> {
    let mut total = Score::default();
    let mut batch = Batch::default();
    for indices in Shard::new(data.len(), world_size, rank, size) {
        data.batch(&indices, None, &mut batch);
        total.add(&replica.evaluate(&batch)?);
        beat();
    }
    Ok(total)
}

impl Worker {
    /// The test set's score: every rank takes its share, the sums are added in rank order.
    pub(super) fn evaluate(&mut self) -> Result<Score> {
        self.average_batch_norm()?;
        let test: &dyn Dataset = &*self.session.data.test;
        let world_size = self.gradient.exchange_mut().collective().world_size();
        let size = self.session.recipe.evaluation_batch(test.shape());
        let rank = self.position.rank();
        let beat = || self.position.beat();
        let mine = evaluate_share(&self.replica, test, world_size, rank, size, beat)?;
        let top5 = mine.top5.unwrap_or(0);
        self.position.enter(Phase::Exchange);
        let mut sums = [mine.loss, mine.correct as f64, mine.samples as f64, top5 as f64];
        self.gradient.exchange_mut().collective().sum_f64(&mut sums)?;
        let [loss, correct, samples, top5] = sums;
        let top5 = mine.top5.map(|_| top5 as u64);
        Ok(Score { loss, correct: correct as u64, top5, samples: samples as u64 })
    }
}
