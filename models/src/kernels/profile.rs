//! Where a training step's time goes: what each kind of kernel has taken on this thread, and the floating-point
//! operations that its matrix products and convolutions stand for.
//!
//! A kernel is timed where its operation calls it, so what remains of a step is candle's: its own operations, the
//! bookkeeping of gradients, allocation. Compositions of candle's operations are neither timed nor counted.
//!
//! Operations are *effective* ones: those of the definition, a multiplication and an addition per product, whatever
//! the algorithm that computes it. Minimal filtering does the same convolution with fewer, and so may well seem faster
//! than the core can multiply. Products with gradients known to be zero (those of windows that are not their text's
//! maximum) are not counted.

use std::cell::Cell;
use std::time::{Duration, Instant};

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident $name:literal)+) => {
        /// A kind of kernel, whose time is counted apart.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Timed {
            $($(#[doc = $doc])+ $kind,)+
        }

        impl Timed {
            /// All kinds, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// A short name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }
        }
    };
}

kinds! {
    /// Convolutions, forward, with the moments of what they write.
    Convolution "convolution"
    /// Gradients of the inputs of convolutions.
    ConvolutionInput "convolution, input gradient"
    /// Gradients of the weights of convolutions.
    ConvolutionWeight "convolution, weight gradient"
    /// Batch norms, forward, with the residuals and ReLUs they take in; without a residual only their statistics, for
    /// the convolution that takes the result computes it.
    BatchNorm "batch norm"
    /// Batch norms, backward: their sums. The gradient of the input is computed by the convolution that takes it.
    BatchNormBackward "batch norm, backward"
    /// Pooling and shortcuts: max-pooling forward, the others both ways. What a convolution pools by itself is its own,
    /// and the gradient of a max-pooling is computed by whatever reads it.
    Pooling "pooling and shortcuts"
    /// Look-ups in embedding tables.
    Embedding "embedding"
    /// Gradients of embedding tables, gathered by row.
    EmbeddingBackward "embedding, backward"
    /// Convolutions over time with ReLU and the maximum, forward.
    TextConvolution "text convolution"
    /// Convolutions over time, backward.
    TextConvolutionBackward "text convolution, backward"
    /// LSTMs, forward.
    Lstm "LSTM"
    /// LSTMs, backward.
    LstmBackward "LSTM, backward"
    /// Self-attention with its projections and its layer norm, forward.
    Attention "attention"
    /// Self-attention, backward.
    AttentionBackward "attention, backward"
    /// Feed-forward networks with their layer norms, forward.
    FeedForward "feed-forward"
    /// Feed-forward networks, backward.
    FeedForwardBackward "feed-forward, backward"
    /// Layer norms that are no part of another kind, and means over texts, forward.
    LayerNorm "layer norm"
    /// The same, backward.
    LayerNormBackward "layer norm, backward"
    /// Linear layers and the loss, forward and backward.
    Linear "linear and loss"
}

/// What a thread's kernels have done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Profile {
    spent: [Duration; Timed::ALL.len()],
    /// Effective floating-point operations.
    pub operations: u64,
}

impl Profile {
    /// The time of every kind that took any, in the order of [`Timed::ALL`].
    pub fn kinds(&self) -> impl Iterator<Item = (Timed, Duration)> {
        let all = Timed::ALL.iter().copied().zip(self.spent);
        all.filter(|(_, spent)| !spent.is_zero())
    }

    /// The time of one kind.
    pub fn time(&self, kind: Timed) -> Duration {
        self.spent[kind as usize]
    }
}

thread_local! {
    static PROFILE: Cell<Profile> =
        const { Cell::new(Profile { spent: [Duration::ZERO; Timed::ALL.len()], operations: 0 }) };
}

/// Runs `work` and counts its time as `kind`, and `products` multiplications with an addition each.
pub(crate) fn timed<R>(kind: Timed, products: usize, work: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = work();
    let mut profile = PROFILE.get();
    profile.spent[kind as usize] += start.elapsed();
    profile.operations += 2 * products as u64;
    PROFILE.set(profile);
    result
}

/// What this thread's kernels have done since the last call; counting starts again from zero.
pub fn take() -> Profile {
    PROFILE.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_gone() {
        take();
        timed(Timed::Pooling, 21, || std::thread::sleep(Duration::from_millis(2)));
        let profile = take();
        assert!(profile.time(Timed::Pooling) >= Duration::from_millis(2));
        let kinds: Vec<Timed> = profile.kinds().map(|(kind, _)| kind).collect();
        assert_eq!((kinds, profile.operations), (vec![Timed::Pooling], 42));
        let profile = take();
        assert_eq!((profile.kinds().count(), profile.operations), (0, 0));
    }

    #[test]
    fn kinds_are_numbered_in_their_order() {
        assert!(Timed::ALL.iter().enumerate().all(|(i, kind)| *kind as usize == i));
    }
}
