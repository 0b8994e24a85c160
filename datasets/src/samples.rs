//! A data set of samples that a program brings itself.

use crate::augment::Augment;
use crate::dataset::{Batch, Dataset, Features, Shape};
use crate::definition::Data;
use crate::error::{Error, Result};
use crate::files::{FileSum, sha256};

/// Samples in memory, collected from an iterator. They are trained on as they are: no augmentation.
///
/// ```
/// use gradwire_datasets::{Dataset, Samples};
///
/// let points = (0..10).map(|i| (vec![i as f32, 1.0], u32::from(i > 4)));
/// let samples = Samples::vectors(2, ["low", "high"], points)?;
/// assert_eq!(samples.len(), 10);
/// # Ok::<(), gradwire_datasets::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Samples {
    classes: Vec<String>,
    labels: Vec<u32>,
    values: SampleValues,
}

/// The samples' values, one sample after the other.
#[derive(Clone, Debug)]
enum SampleValues {
    Images { pixels: Vec<f32>, size: [usize; 3] },
    Texts { ids: Vec<u32>, vocabulary: usize, length: usize },
}

impl Samples {
    /// Images of `[height, width, channels]`: each its values in that order, channels last, and the
    /// number of its class.
    ///
    /// # Errors
    /// Names the first sample that is not of that size or whose class has no name; no samples at all.
    pub fn images<C: Into<String>>(
        size: [usize; 3],
        classes: impl IntoIterator<Item = C>,
        samples: impl IntoIterator<Item = (Vec<f32>, u32)>,
    ) -> Result<Self> {
        let length = size.into_iter().fold(1, usize::saturating_mul);
        let (classes, labels, pixels) = collect(length, classes, samples, |_| None)?;
        Ok(Self { classes, labels, values: SampleValues::Images { pixels, size } })
    }

    /// Vectors of `length` numbers, which a model sees as images of one pixel with so many channels.
    ///
    /// # Errors
    /// As [`images`](Self::images).
    pub fn vectors<C: Into<String>>(
        length: usize,
        classes: impl IntoIterator<Item = C>,
        samples: impl IntoIterator<Item = (Vec<f32>, u32)>,
    ) -> Result<Self> {
        Self::images([1, 1, length], classes, samples)
    }

    /// Texts of `length` token ids below `vocabulary`, padded with [`PAD`](crate::PAD).
    ///
    /// # Errors
    /// As [`images`](Self::images), and a token outside of the vocabulary.
    pub fn texts<C: Into<String>>(
        vocabulary: usize,
        length: usize,
        classes: impl IntoIterator<Item = C>,
        samples: impl IntoIterator<Item = (Vec<u32>, u32)>,
    ) -> Result<Self> {
        let outside = |token: &u32| {
            let inside = (*token as usize) < vocabulary;
            (!inside).then(|| format!("its token {token} is not below {vocabulary}"))
        };
        let (classes, labels, ids) = collect(length, classes, samples, outside)?;
        Ok(Self { classes, labels, values: SampleValues::Texts { ids, vocabulary, length } })
    }

    /// The sum of all that the samples are, under this name.
    fn sum(&self, name: &str) -> FileSum {
        let about = format!("{:?} {:?} {:?}", self.shape(), self.classes, self.labels);
        let mut bytes = about.into_bytes();
        match &self.values {
            SampleValues::Images { pixels, .. } => {
                bytes.extend(pixels.iter().flat_map(|v| v.to_le_bytes()));
            }
            SampleValues::Texts { ids, .. } => {
                bytes.extend(ids.iter().flat_map(|v| v.to_le_bytes()));
            }
        }
        FileSum { name: name.to_owned(), bytes: bytes.len() as u64, sha256: sha256(&bytes) }
    }
}

/// The names of the classes, each sample's class, and the samples' values end to end.
type Collected<T> = (Vec<String>, Vec<u32>, Vec<T>);

/// Collects samples of `length` values each, of which `refused` names what is wrong.
fn collect<C: Into<String>, T>(
    length: usize,
    classes: impl IntoIterator<Item = C>,
    samples: impl IntoIterator<Item = (Vec<T>, u32)>,
    refused: impl Fn(&T) -> Option<String>,
) -> Result<Collected<T>> {
    let classes: Vec<String> = classes.into_iter().map(Into::into).collect();
    let (mut all, mut labels) = (Vec::new(), Vec::new());
    for (number, (sample, label)) in (1..).zip(samples) {
        let problem = if sample.len() != length {
            Some(format!("it has {} values and not {length}", sample.len()))
        } else if label as usize >= classes.len() {
            Some(format!("its class is {label} of {}", classes.len()))
        } else {
            sample.iter().find_map(&refused)
        };
        if let Some(problem) = problem {
            return Err(Error::Samples { problem: format!("sample {number}: {problem}") });
        }
        all.extend(sample);
        labels.push(label);
    }
    if all.is_empty() {
        let problem = "there are no samples to make a data set of, or they have no values".into();
        return Err(Error::Samples { problem });
    }
    Ok((classes, labels, all))
}

impl From<[Samples; 2]> for Data {
    /// Samples to train on, and others to test on.
    fn from([train, test]: [Samples; 2]) -> Self {
        let files = vec![train.sum("training samples"), test.sum("test samples")];
        Self::new(train, test, files)
    }
}

impl Dataset for Samples {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn shape(&self) -> Shape {
        match self.values {
            SampleValues::Images { size: [height, width, channels], .. } => {
                Shape::Image { height, width, channels }
            }
            SampleValues::Texts { vocabulary, length, .. } => Shape::Text { vocabulary, length },
        }
    }

    fn batch(&self, indices: &[u32], _augment: Option<&Augment>, into: &mut Batch) {
        let Batch { features, mut labels } = std::mem::take(into);
        labels.clear();
        labels.extend(indices.iter().map(|index| self.labels[*index as usize]));
        let features = match (&self.values, features) {
            (SampleValues::Images { pixels, size: [height, width, channels] }, features) => {
                let reused = match features {
                    Features::Images { pixels, .. } => pixels,
                    Features::Tokens { .. } | Features::Sequences { .. } => Vec::new(),
                };
                let (height, width, channels) = (*height, *width, *channels);
                let pixels = gathered(pixels, indices, height * width * channels, reused);
                Features::Images { pixels, height, width, channels }
            }
            (SampleValues::Texts { ids, length, .. }, features) => {
                let ids = gathered(ids, indices, *length, features.into_ids());
                Features::Tokens { ids, length: *length }
            }
        };
        *into = Batch { features, labels };
    }
}

/// The samples of these numbers, of `length` values each, in a buffer that is `reused`.
fn gathered<T: Copy>(values: &[T], indices: &[u32], length: usize, mut reused: Vec<T>) -> Vec<T> {
    reused.clear();
    for index in indices {
        reused.extend_from_slice(&values[*index as usize * length..][..length]);
    }
    reused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::batch_of;

    #[test]
    fn samples_are_batched_by_number() {
        let vectors = (0..4u16).map(|i| (vec![f32::from(i), 0.5], u32::from(i % 2)));
        let samples = Samples::vectors(2, ["even", "odd"], vectors).unwrap();
        let batch = batch_of(&samples, &[3, 0], None);
        let pixels = vec![3.0, 0.5, 0.0, 0.5];
        assert_eq!(batch.features, Features::Images { pixels, height: 1, width: 1, channels: 2 });
        assert_eq!(batch.labels, [1, 0]);

        let texts = [(vec![5, 0, 0], 0), (vec![1, 2, 0], 1)];
        let samples = Samples::texts(6, 3, ["a", "b"], texts).unwrap();
        let batch = batch_of(&samples, &[1], None);
        assert_eq!(batch.features, Features::Tokens { ids: vec![1, 2, 0], length: 3 });
    }

    #[test]
    fn what_does_not_fit_is_refused_by_its_number() {
        let error = |samples: Vec<(Vec<u32>, u32)>| {
            Samples::texts(6, 3, ["a", "b"], samples).unwrap_err().to_string()
        };
        assert!(error(vec![(vec![1, 2, 3], 0), (vec![1, 2], 0)]).contains("sample 2"));
        assert!(error(vec![(vec![1, 2, 3], 2)]).contains("class is 2 of 2"));
        assert!(error(vec![(vec![1, 2, 6], 0)]).contains("token 6 is not below 6"));
        assert!(error(Vec::new()).contains("no samples"));
    }

    #[test]
    fn other_samples_have_another_sum() {
        let sum = |value: f32| {
            let samples = Samples::vectors(1, ["a"], [(vec![value], 0)]).unwrap();
            Data::from([samples.clone(), samples]).files[0].sha256.clone()
        };
        assert_eq!(sum(1.0), sum(1.0));
        assert_ne!(sum(1.0), sum(2.0));
    }
}
