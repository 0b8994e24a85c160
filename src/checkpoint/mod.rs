//! What a run keeps so that it, or someone else, can go on from it.
//!
//! Two things. **Models** (`<run>/best/`, `<run>/last/`): PyTorch's state dictionary and the
//! recipe, for whoever wants to use the network (`model.rs`). **Checkpoints**
//! (`<run>/checkpoints/step-00000123/`): everything that the run's next step depends on, so that
//! `train --resume` takes that step with the same bits.
//!
//! # Format version 2
//!
//! | file | |
//! |---|---|
//! | `manifest.json` | format and version; step, epoch, place in the epoch, and what the run planned at its beginning; world size; the running epoch's sums; recipe; provenance; length and SHA-256 of every other file ([`Manifest`]) |
//! | `manifest.sha256` | the manifest's own SHA-256, as `sha256sum -c` reads it |
//! | `model.safetensors` | weights and fixed variables, which are the same on all ranks, and rank 0's batch norm statistics: a model file as in `best/` |
//! | `optimizer.safetensors` | the vectors that the optimizer names, such as `momentum`, or `exp_avg` and `exp_avg_sq`, in the flat gradient's layout; with local steps in their place `outer/…`, the outer optimizer's vectors, how often it was updated, and the mean that has been received and is still to be applied; `waiting/…`: what an embedding table's rows wait with (`optim/table.rs`), its weights in the model being as if none waited; `average/…`: the average of the weights, in the same layout, and how often it was updated |
//! | `rank-0000.safetensors`, … | what is each rank's own: `buffers/…`, its batch norm statistics; `average/buffers`, their average, one after the other; `exchange/…`, residual, velocity, EF21's average and estimate, a momentum that the exchange keeps, and the compressors' states, those of a server or of this rank's shards under `exchange/server/…` and `exchange/shards/…`; with local steps `local/…`, the inner optimizer's vectors, and the weights that the rank has come to |
//!
//! Random numbers have no state: each is a function of the seed and its place. The learning rate
//! is a function of the step. A checkpoint is written beside its place under a name that begins
//! with a dot, brought to the disk, and renamed: one under its own name is whole, or the disk has
//! damaged it, which its checksums tell.
//!
//! A reader takes every byte for hostile: nothing is allocated by what a file says, only by its
//! length, which is looked at first.

mod manifest;
mod model;
mod names;
mod part;
mod progress;
mod read;
mod reshard;
mod rewind;
mod write;
mod writer;

pub use crate::tensors::{MOST_UPDATES, Tensor, Tensors};
pub use manifest::Manifest;
pub use model::{BEST, LAST, Saved, VOCABULARY, find, load, save, save_vocabulary};
pub use names::{FOLDER, MODEL};
pub use part::{Part, Shared};
pub use progress::{Planned, Progress, Score, Sums};
pub use read::{Checkpoint, Location, find_newest, locate, newest};
pub use rewind::rewind;
pub use write::{Whole, write};
pub use writer::{WriteReport, Writer};
