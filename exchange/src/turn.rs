//! Which step of a run an exchange takes place in, and which exchange it is.

/// The step that an exchange takes place in, and which exchange of the run it is. Where every step has one, both are the
/// same number, and a number alone is such a turn; with local steps exchanges are fewer.
///
/// Ranks meet by the step, errors name it, and `warmup_steps` and `measure_every` count in it. Compressors count in
/// exchanges: what they do every so often, and what they plan over a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The step, which counts from 1.
    pub step: u64,
    /// The how-manieth exchange of each bucket it is, from 1. It grows from one exchange of a bucket to its next.
    pub exchange: u64,
    /// The step of the exchange before, or 0.
    pub before: u64,
}

impl From<u64> for Turn {
    fn from(step: u64) -> Self {
        Self { step, exchange: step, before: step.saturating_sub(1) }
    }
}

impl Turn {
    /// Whether something that is due every so many steps is due in this exchange: it is the first since such a step.
    pub(crate) fn is_due(self, every: u64) -> bool {
        every > 0 && (self.step == 1 || self.step / every > self.before / every)
    }
}
