//! The network between workers: what a recipe says of it, waiting as it would make us wait, and the
//! time that a recorded run would have taken on another.
//!
//! The model itself is [`gradwire_exchange::network`].

mod plot;
pub mod replay;
pub mod report;
mod throttle;

use crate::recipe::Recipe;
use crate::record::network::{Header, Meter};
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

/// What holds for the whole run, for its network record; `None` when the recipe wants none.
pub fn header(recipe: &Recipe, threads: usize, parameters: u64) -> Option<Header> {
    (recipe.network.mode != Mode::Off).then(|| Header {
        network: 1,
        ranks: recipe.workers,
        threads,
        clock: if threads == 1 { Meter::Cpu } else { Meter::Wall },
        scheme: recipe.scheme_in_words(),
        summable: summable(recipe),
        topology: topology(recipe).into(),
        parameters,
        seed: recipe.seed,
        link: recipe.network.link.clone(),
    })
}

/// Whether messages can be summed on the way.
fn summable(recipe: &Recipe) -> bool {
    recipe.scheme.plain()
}

/// The name of the recipe's topology.
fn topology(recipe: &Recipe) -> &'static str {
    recipe.exchange.topology.name()
}

/// How the messages of a topology travel, by its name in a recipe; other operations travel as
/// [`Pattern::of`] has it. `None` for no such topology.
pub fn pattern(topology: &str) -> Option<Pattern> {
    match topology {
        "allgather" => Some(Pattern::RingAllgather),
        "server" => Some(Pattern::Server),
        "sharded" => Some(Pattern::Sharded),
        _ => None,
    }
}
