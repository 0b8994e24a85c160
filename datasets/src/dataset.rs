//! What a data set is to the trainer: numbered samples, copied into batches on demand.

use std::sync::Arc;

use crate::augment::Augment;
use crate::normalisation::Normalisation;

/// A training or test set, resident in memory.
///
/// Samples are numbered from 0 and never move; orders and shares are the business of
/// [`Sampler`](crate::Sampler).
pub trait Dataset: Send + Sync {
    /// The number of samples.
    fn len(&self) -> usize;

    /// Whether there is not a single sample. A loaded set always has some.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names of the classes; a label is an index into them.
    fn classes(&self) -> &[String];

    /// The shape of one sample.
    fn shape(&self) -> Shape;

    /// The same samples with their pixels normalised by `normalisation`, that of the training set of
    /// an earlier run, in place of their own. None, unless the data set says otherwise, where there
    /// are no pixels to normalise.
    fn normalised_by(&self, _normalisation: &Normalisation) -> Option<Arc<dyn Dataset>> {
        None
    }

    /// Bytes of the text for each of its tokens, where a text is continued: what losses of different tokens are
    /// compared by. None, unless the data set says otherwise.
    fn bytes_per_token(&self) -> Option<f64> {
        None
    }

    /// Copies the samples numbered `indices`, in that order, into `into`, whose buffers are reused.
    ///
    /// With `augment`, images are cropped and flipped at random, each according to seed, epoch and
    /// its own number only. Text is never augmented.
    ///
    /// # Panics
    /// When an index is not below [`len`](Self::len).
    fn batch(&self, indices: &[u32], augment: Option<&Augment>, into: &mut Batch);
}

/// The shape of one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// An image of `height` × `width` pixels with `channels` values each.
    Image {
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// Values per pixel.
        channels: usize,
    },
    /// A text of `length` token ids, each below `vocabulary`.
    Text {
        /// The number of different ids, [`PAD`](crate::PAD) and [`UNK`](crate::UNK) included.
        vocabulary: usize,
        /// The number of ids of every text, padding included.
        length: usize,
    },
    /// A piece of `length` tokens of a text to continue, each below `vocabulary`: every token is a
    /// question, and the one after it the answer.
    Sequence {
        /// The number of different ids. None of them is padding.
        vocabulary: usize,
        /// The number of ids of every piece.
        length: usize,
    },
}

impl Shape {
    /// How many predictions, each with its label, a sample of this shape asks for.
    pub fn labels(self) -> usize {
        match self {
            Self::Image { .. } | Self::Text { .. } => 1,
            Self::Sequence { length, .. } => length,
        }
    }
}

/// Some samples with their labels.
///
/// The default is a batch of no samples and no shape yet; [`Dataset::batch`] gives it both.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// What the model sees.
    pub features: Features,
    /// The class of each sample; of a sequence, the token after each of its tokens.
    pub labels: Vec<u32>,
}

impl Batch {
    /// The number of samples.
    pub fn len(&self) -> usize {
        self.labels.len() / self.features.labels()
    }

    /// Whether there is not a single sample, as may happen to a rank in the last step of an epoch.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

impl Default for Features {
    /// No samples and no shape yet.
    fn default() -> Self {
        Self::Tokens { ids: Vec::new(), length: 0 }
    }
}

/// What the model sees of a batch of B samples.
#[derive(Debug, Clone, PartialEq)]
pub enum Features {
    /// Images.
    Images {
        /// B × height × width × channels values (NHWC), normalised to the training set's mean 0
        /// and deviation 1 per channel.
        pixels: Vec<f32>,
        /// Rows of every image.
        height: usize,
        /// Columns of every image.
        width: usize,
        /// Values per pixel.
        channels: usize,
    },
    /// Texts.
    Tokens {
        /// B × length token ids; texts that are shorter end in [`PAD`](crate::PAD)s.
        ids: Vec<u32>,
        /// The number of ids of every text.
        length: usize,
    },
    /// Pieces of a text to continue.
    Sequences {
        /// B × length token ids.
        ids: Vec<u32>,
        /// The number of ids of every piece.
        length: usize,
    },
}

impl Features {
    /// How many labels each sample has; at least 1.
    pub fn labels(&self) -> usize {
        match self {
            Self::Images { .. } | Self::Tokens { .. } => 1,
            Self::Sequences { length, .. } => (*length).max(1),
        }
    }

    /// The memory of the token ids, to be filled anew; none of images.
    pub fn into_ids(self) -> Vec<u32> {
        let mut ids = match self {
            Self::Images { .. } => Vec::new(),
            Self::Tokens { ids, .. } | Self::Sequences { ids, .. } => ids,
        };
        ids.clear();
        ids
    }
}

/// These samples of `set`, in a batch of their own.
pub(crate) fn batch_of(set: &dyn Dataset, indices: &[u32], augment: Option<&Augment>) -> Batch {
    let mut batch = Batch::default();
    set.batch(indices, augment, &mut batch);
    batch
}

/// All samples of `set`.
pub(crate) fn whole(set: &dyn Dataset) -> Batch {
    batch_of(set, &(0..set.len() as u32).collect::<Vec<_>>(), None)
}
