//! The network between workers, as a recipe describes it.

use gradwire_exchange::network::Link;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a recipe says of the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What becomes of the messages' sizes.
    pub mode: Mode,
    /// The link: a word such as `100mbit,latency=1ms`, or a table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
}

/// What becomes of the messages' sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
        if self.mode != Mode::Throttle && self.link.is_some() {
            return Err("network.link has no effect without network.mode = \"throttle\", which makes \
                        every exchange wait as on that link; a recorded run is replayed on any link by \
                        `gradwire network replay`"
                .into());
        }
        Ok(())
    }
}
