//! Where a training step's time goes: what each kind of kernel has taken on this thread.
//!
//! A kernel is timed where its operation calls it, so what remains of a step is candle's: its own operations, the
//! bookkeeping of gradients, allocation.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// What is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Kind {
    /// Convolutions, forward.
    Convolution,
    /// Gradients of the inputs of convolutions.
    ConvolutionInput,
    /// Gradients of the weights of convolutions.
    ConvolutionWeight,
    /// Batch norms, forward, with the residuals and ReLUs they take in.
    BatchNorm,
    /// Batch norms, backward.
    BatchNormBackward,
    /// Pooling and shortcuts, forward and backward.
    Pooling,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Convolution,
        Self::ConvolutionInput,
        Self::ConvolutionWeight,
        Self::BatchNorm,
        Self::BatchNormBackward,
        Self::Pooling,
    ];

    /// A short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Convolution => "convolution",
            Self::ConvolutionInput => "convolution, input gradient",
            Self::ConvolutionWeight => "convolution, weight gradient",
            Self::BatchNorm => "batch norm",
            Self::BatchNormBackward => "batch norm, backward",
            Self::Pooling => "pooling and shortcuts",
        }
    }
}

thread_local! {
    static SPENT: Cell<[Duration; Kind::ALL.len()]> = const { Cell::new([Duration::ZERO; Kind::ALL.len()]) };
}

/// Runs `work` and counts its time as `kind`.
pub(crate) fn timed<R>(kind: Kind, work: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = work();
    let mut spent = SPENT.get();
    spent[kind as usize] += start.elapsed();
    SPENT.set(spent);
    result
}

/// What every kind has taken on this thread since the last call; counting starts again from zero.
pub fn take() -> [(Kind, Duration); Kind::ALL.len()] {
    let spent = SPENT.take();
    Kind::ALL.map(|kind| (kind, spent[kind as usize]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_gone() {
        take();
        timed(Kind::Pooling, || std::thread::sleep(Duration::from_millis(2)));
        for (i, (kind, spent)) in take().into_iter().enumerate() {
            assert_eq!(kind as usize, i);
            assert_eq!(spent >= Duration::from_millis(2), kind == Kind::Pooling);
        }
        assert!(take().iter().all(|(_, spent)| spent.is_zero()));
    }
}
