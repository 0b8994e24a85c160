//! What schemes are made of: the traits of one, and the parts that several share. The schemes
//! themselves are in [`schemes`](crate::schemes).

pub(crate) mod adaptive;
pub(crate) mod bit_schedule;
pub(crate) mod compressor;
pub(crate) mod cutoff;
pub(crate) mod exceedances;
pub(crate) mod feedback;
pub(crate) mod histogram;
pub(crate) mod ladder;
pub(crate) mod levels;
pub(crate) mod moments;
pub(crate) mod ratio;
pub(crate) mod rounding;
pub(crate) mod scheme;
pub(crate) mod select;
pub(crate) mod signs;
pub(crate) mod sparse;
pub(crate) mod special;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod two_bits;
pub(crate) mod values;

pub use adaptive::Statistics;
pub use compressor::{Compressor, Encoded, SparseBlocks, StepEnd, StepMessages};
pub use feedback::{Feedback, FeedbackRule};
pub use gradwire_registry::About;
pub use levels::Norm;
pub use ratio::{Fall, Ratio};
pub use scheme::{Built, Law, Properties, Run, Seat, Soundness};
pub use values::{Coding, QsgdValues, Quantised, Values};
