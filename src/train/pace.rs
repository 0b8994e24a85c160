//! Waiting as long as the recipe's link would take.

use crate::recipe::Recipe;
use crate::recipe::network::Mode;
use crate::record::network::pattern;
use anyhow::{Result, ensure};
use gradwire_exchange::Scheme;
use gradwire_exchange::network::{Link, Pattern, Throttled};
use gradwire_exchange::{Collective, Operation};

/// The recipe's link, if workers are to feel it.
#[derive(Clone, Debug)]
pub struct Pace {
    throttle: Option<(Link, Pattern, u64)>,
}

/// What frames add to a dense gradient is far below this share.
const FRAMES: f64 = 1.25;

impl Pace {
    /// The pace of a recipe whose gradient has so many parameters.
    ///
    /// # Errors
    /// When one exchange may take longer than ranks are willing to wait for each other.
    pub fn new(recipe: &Recipe, parameters: u64) -> Result<Self> {
        let (Mode::Throttle, Some(link)) = (recipe.network.mode, &recipe.network.link) else {
            return Ok(Self { throttle: None });
        };
        let pattern = pattern(recipe.exchange.topology.name());
        let pattern = pattern.expect("invariant: every topology of a recipe has a pattern");
        // A scheme may send what it cannot compress as it is.
        let dense = (4.0 * parameters as f64 * FRAMES) as u64 + 4096;
        let plain = std::slice::from_ref(&Operation::Allreduce);
        let operations = if recipe.scheme.plain() {
            plain
        } else {
            &[Operation::Messages, Operation::Allreduce]
        };
        let wait = |operation: &Operation| {
            Throttled::longest_wait(link, pattern.of(*operation), recipe.workers, dense)
        };
        let longest = operations.iter().map(wait).fold(0.0, f64::max);
        let timeout = recipe.exchange.timeout;
        ensure!(
            longest < timeout,
            "over {link}, an uncompressed gradient of {parameters} parameters may take {longest:.0} \
             seconds between {} workers, and exchange.timeout = {timeout}; write a faster link, or \
             exchange.timeout = {:.0}",
            recipe.workers,
            (2.0 * longest).ceil()
        );
        Ok(Self { throttle: Some((link.clone(), pattern, recipe.seed)) })
    }

    /// All ranks' ends of the exchange, at this pace.
    pub fn keep(&self, ends: Vec<Box<dyn Collective>>) -> Vec<Box<dyn Collective>> {
        let Some((link, pattern, seed)) = &self.throttle else { return ends };
        let throttled = Throttled::all(ends, link, *pattern, *seed).into_iter();
        throttled.map(|end| Box::new(end) as _).collect()
    }
}
