//! The network between workers: what a recipe says of it, waiting as it would make us wait, and the
//! time that a recorded run would have taken on another.
//!
//! The model itself is [`gradwire_exchange::network`].

mod throttle;

use gradwire_exchange::network::{Link, Pattern};
use serde::{Deserialize, Serialize};

pub use throttle::Pace;

/// What a recipe says of the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What becomes of the messages' sizes.
    pub mode: Mode,
    /// The link: a word such as `100mbit,latency=1ms`, or a table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
}

/// What becomes of the messages' sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Every step's sizes and times are recorded, for `gradwire network replay`.
    #[default]
    Record,
    /// They are recorded, and every exchange really waits as long as the link would take.
    Throttle,
    /// They are not recorded.
    Off,
}

impl Config {
    /// Checks that mode and link fit.
    ///
    /// # Errors
    /// A sentence that says what to write.
    pub fn validate(&self) -> Result<(), String> {
        if self.mode == Mode::Throttle && self.link.is_none() {
            return Err("network.mode = \"throttle\" needs a link; write network.link = \
                        \"100mbit\" (see `gradwire network links`)"
                .into());
        }
        Ok(())
    }
}

/// How the messages of a topology travel: by its name in a recipe. Messages that can be summed on
/// the way take the ring's allreduce instead of its allgather. `None` for no such topology.
pub fn pattern(topology: &str, summable: bool) -> Option<Pattern> {
    match (topology, summable) {
        ("allgather", true) => Some(Pattern::RingAllreduce),
        ("allgather", false) => Some(Pattern::RingAllgather),
        ("server", _) => Some(Pattern::Server),
        ("sharded", _) => Some(Pattern::Sharded),
        _ => None,
    }
}
