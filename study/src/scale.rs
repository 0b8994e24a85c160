//! How much of an experiment is trained.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// How much is trained: a name of the experiment's own choice. The built-in experiments have
/// `smoke` (made-up data, a few steps), `quick` (one pass, about an hour on two cores), `standard`
/// (converged enough to distinguish schemes, hours on two cores) and `full` (the paper's own models,
/// workers, batches and schedules). These come first, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Scale(String);

impl Scale {
    /// The scales of the built-in experiments, from the smallest.
    pub const USUAL: [&str; 4] = ["smoke", "quick", "standard", "full"];

    /// Its word.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Its place among the usual ones, then its name.
    fn rank(&self) -> (usize, &str) {
        let usual = Self::USUAL.iter().position(|usual| *usual == self.0);
        (usual.unwrap_or(Self::USUAL.len()), &self.0)
    }
}

impl From<&str> for Scale {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl Ord for Scale {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Scale {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
