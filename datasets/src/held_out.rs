//! A part of the training set that is tested on in the test set's place: what settings are chosen by, while nobody
//! looks at the test set.

use std::sync::Arc;

use crate::augment::Augment;
use crate::dataset::{Batch, Dataset, Shape};
use crate::definition::Data;
use crate::error::{Error, Result};
use crate::normalisation::Normalisation;
use crate::rng::{Purpose, RandomStream};

impl Data {
    /// Holds out a share of the training set, by `seed`, and tests on it in the test set's place: on the end of a text,
    /// whose pieces would tell of each other (the piece before it is left out: blocks may begin later than they lie); of everything else on samples drawn at random. Mean, deviation and
    /// vocabulary stay those of the whole training set.
    ///
    /// # Errors
    /// [`Error::Setting`] when that leaves no sample on one of both sides.
    pub fn hold_out(self, share: f64, seed: u64) -> Result<Self> {
        let len = self.train.len();
        let held = (share * len as f64).round() as usize;
        let is_text = matches!(self.train.shape(), Shape::Sequence { .. });
        let gap = usize::from(is_text);
        if held < 1 || held >= len.saturating_sub(gap) {
            let problem = format!("of {len} training samples that leaves none on one side");
            return Err(Error::setting("samples.validation", &share, problem));
        }
        let mut order: Vec<u32> = (0..len as u32).collect();
        if !is_text {
            RandomStream::keyed(Purpose::HoldOut, seed, 0, 0).shuffle(&mut order);
        }
        let mut held = order.split_off(len - held);
        order.truncate(order.len() - gap);
        let [train, test] = [&mut order, &mut held].map(|numbers| -> Arc<dyn Dataset> {
            numbers.sort_unstable();
            Arc::new(SampleSubset {
                whole: Arc::clone(&self.train),
                numbers: std::mem::take(numbers).into(),
            })
        });
        Ok(Self { train, test, ..self })
    }
}

/// Some samples of a set, in its order.
struct SampleSubset {
    whole: Arc<dyn Dataset>,
    /// Their numbers there.
    numbers: Arc<[u32]>,
}

impl Dataset for SampleSubset {
    fn len(&self) -> usize {
        self.numbers.len()
    }

    fn classes(&self) -> &[String] {
        self.whole.classes()
    }

    fn shape(&self) -> Shape {
        self.whole.shape()
    }

    fn normalised_by(&self, normalisation: &Normalisation) -> Option<Arc<dyn Dataset>> {
        let whole = self.whole.normalised_by(normalisation)?;
        Some(Arc::new(Self { whole, numbers: Arc::clone(&self.numbers) }))
    }

    /// That of the whole set.
    fn bytes_per_token(&self) -> Option<f64> {
        self.whole.bytes_per_token()
    }

    fn batch(&self, indices: &[u32], augment: Option<&Augment>, into: &mut Batch) {
        let numbers: Vec<u32> = indices.iter().map(|i| self.numbers[*i as usize]).collect();
        self.whole.batch(&numbers, augment, into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{Features, whole};
    use crate::samples::Samples;

    fn numbered(len: u32) -> Data {
        let samples =
            || Samples::vectors(1, ["one"], (0..len).map(|i| (vec![i as f32], 0))).unwrap();
        Data::new(samples(), samples(), Vec::new())
    }

    fn values(set: &Arc<dyn Dataset>) -> Vec<f32> {
        match whole(&**set).features {
            Features::Images { pixels, .. } => pixels,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_sample_is_on_one_side_and_the_seed_decides_on_which() {
        let of = |seed| {
            let data = numbered(100).hold_out(0.2, seed).unwrap();
            (values(&data.train), values(&data.test))
        };
        let (train, test) = of(1);
        assert_eq!((train.len(), test.len()), (80, 20));
        let mut all = [train.clone(), test.clone()].concat();
        all.sort_by(f32::total_cmp);
        assert_eq!(all, (0..100).map(|i| i as f32).collect::<Vec<_>>());
        assert_eq!(of(1), (train, test.clone()));
        assert_ne!(of(2).1, test);
    }

    #[test]
    fn a_side_without_samples_is_refused() {
        for (len, share) in [(100, 0.001), (4, 0.9), (1, 0.5)] {
            let error = numbered(len).hold_out(share, 1).err().expect("refused").to_string();
            assert!(error.contains("samples.validation"), "{error}");
        }
    }
}
