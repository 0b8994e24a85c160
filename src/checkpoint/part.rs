//! What the ranks hand in for a checkpoint.

use super::manifest::Manifest;
use crate::tensors::Tensors;
use gradwire_datasets::Normalisation;
use serde::{Deserialize, Serialize};

/// One rank's state at the end of a step: copied there, so that training goes on while it is
/// written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    /// Who.
    pub rank: usize,
    /// The step it follows.
    pub step: u64,
    /// What is this rank's own: `buffers/…`, `average/buffers`, `exchange/…`; with local steps its optimizer's
    /// vectors and, within a round, its weights, `local/…`.
    pub own: Tensors,
    /// What all ranks share; rank 0 hands it in, which is in the process that writes.
    #[serde(skip)]
    pub shared: Option<Shared>,
    /// Seconds that the rank's next step was held up by this.
    pub stall: f64,
}

/// What is the same on all ranks.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The weights, in PyTorch's shapes.
    pub weights: Tensors,
    /// The optimizer's vectors; with local steps the outer one's, `outer/…`.
    pub optimizer: Tensors,
    /// Of the manifest the optimizer's updates, the learning rate, how good the model is and the best one was.
    pub manifest: Manifest,
    /// What the pixels of its data were normalised by, for images.
    pub normalisation: Option<Normalisation>,
}
