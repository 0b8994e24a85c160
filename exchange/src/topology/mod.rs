//! The topology that messages travel in: who hears whom, and who averages.
//!
//! A [`Topology`] is what a caller chooses; its [`Route`] takes one rank's message about a group of
//! buckets and leaves the mean in the gradient. With the default downlink all of them come to the
//! same mean, bit for bit, and leave residuals and compressors the same.
//!
//! Adding one is a variant, which the compiler then asks for in two places, [`Topology::facts`] and
//! [`Route`], and its row in [`refusal`]: which schemes may ride on what.

mod aggregator;
mod owners;
mod route;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::compress::{Built, Run, Seat};
use crate::group::Bucket;
use crate::layout::{BucketRange, Bucketing, Layout};
use crate::network::Pattern;
use crate::traffic::Operation;
use crate::{Error, Policy, Result, Scheme};

pub(crate) use owners::downlinks;
pub(crate) use route::Route;

/// The topology that messages travel in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(from = "Written", into = "Written")]
#[non_exhaustive]
pub enum Topology {
    /// Every rank hears and decodes every message. Plain f32, and what a scheme says in a fixed number
    /// of bytes for each element, is averaged in shards where that sends less.
    #[default]
    Allgather,
    /// A server averages all messages and sends one back to every rank.
    Server,
    /// Each rank averages its shard of all messages and shares the result. Messages are read where they
    /// lie: between processes the means, as f32, would cost more than a compressed message saves.
    Sharded,
    /// Ranks of a group, such as those of one host, average densely among themselves; one message of each
    /// group then travels as over an allgather.
    TwoLevel {
        /// Ranks of a group, at least 2: ranks 0 to `group` − 1 are the first.
        group: usize,
    },
}

/// A topology as it is written: a word, or a table of `kind` and settings.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Topology"))]
#[serde(
    untagged,
    expecting = "a topology is a word, \"allgather\", \"server\" or \"sharded\", or the table { kind = \
                 \"two-level\", group = 4 }; what a server sends back is `exchange.downlink`"
)]
enum Written {
    Word(TopologyWord),
    Table(TopologyTable),
}

/// A topology without settings.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum TopologyWord {
    /// Every rank hears and decodes every message.
    Allgather,
    /// A server averages all messages and sends one back to every rank.
    Server,
    /// Each rank averages its shard of all messages and shares the result.
    Sharded,
}

/// A topology with settings.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
enum TopologyTable {
    /// Ranks of a group average densely among themselves; one message of each group travels.
    TwoLevel {
        /// Ranks of a group, at least 2.
        #[cfg_attr(feature = "schema", schemars(range(min = 2)))]
        group: usize,
    },
}

impl From<Written> for Topology {
    fn from(written: Written) -> Self {
        match written {
            Written::Word(TopologyWord::Allgather) => Topology::Allgather,
            Written::Word(TopologyWord::Server) => Topology::Server,
            Written::Word(TopologyWord::Sharded) => Topology::Sharded,
            Written::Table(TopologyTable::TwoLevel { group }) => Topology::TwoLevel { group },
        }
    }
}

impl From<Topology> for Written {
    fn from(topology: Topology) -> Self {
        match topology {
            Topology::Allgather => Written::Word(TopologyWord::Allgather),
            Topology::Server => Written::Word(TopologyWord::Server),
            Topology::Sharded => Written::Word(TopologyWord::Sharded),
            Topology::TwoLevel { group } => Written::Table(TopologyTable::TwoLevel { group }),
        }
    }
}

/// Its name, and the ranks of a group: `two-level of 4`.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if let Topology::TwoLevel { group } = self { write!(f, " of {group}") } else { Ok(()) }
    }
}

/// What there is to say of a topology: its name as serde writes it, what it does, which schemes may
/// ride on it, and how its messages travel in the network model.
struct Facts {
    name: &'static str,
    line: &'static str,
    schemes: &'static str,
    pattern: Pattern,
}

impl Topology {
    /// Every topology.
    pub const ALL: &[Topology] = &[
        Topology::Allgather,
        Topology::Server,
        Topology::Sharded,
        Topology::TwoLevel { group: 4 },
    ];

    /// The topology that [`Display`](fmt::Display) writes so.
    pub fn named(text: &str) -> Option<Topology> {
        let group = |text: &str| text.strip_prefix("two-level of ")?.parse().ok();
        let plain = Self::ALL.iter().copied().find(|topology| topology.to_string() == text);
        let of = |group| Topology::TwoLevel { group };
        plain.or_else(|| group(text).filter(|group| *group >= 2).map(of))
    }

    /// Ranks that speak as one.
    pub(crate) fn group(self) -> usize {
        if let Topology::TwoLevel { group } = self { group } else { 1 }
    }

    fn facts(self) -> Facts {
        match self {
            Topology::Allgather => Facts {
                name: "allgather",
                line: "every rank hears and decodes every message",
                schemes: "for all schemes",
                pattern: Pattern::RingAllgather,
            },
            Topology::Server => Facts {
                name: "server",
                line: "a server averages all messages and sends one back to every rank",
                schemes: "for all schemes; `downlink = \"compressed\"` for those of one message but \
                          `dense`",
                pattern: Pattern::Server,
            },
            Topology::Sharded => Facts {
                name: "sharded",
                line: "each rank averages its shard of all messages and shares the result",
                schemes: "for all schemes; with one bucket only those whose messages are read in \
                          parts, or that take several rounds; `downlink = \"compressed\"` for those of \
                          one message but `dense`, in several buckets",
                pattern: Pattern::Sharded,
            },
            Topology::TwoLevel { group } => Facts {
                name: "two-level",
                line: "ranks of a group average densely; one message of each group travels",
                schemes: "for all schemes",
                pattern: Pattern::TwoLevel { group, between: Operation::Messages },
            },
        }
    }

    /// Its name, as serde writes it.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// What it does, in one line.
    pub fn line(self) -> &'static str {
        self.facts().line
    }

    /// Which schemes may ride on it, in words: the table that [`Wiring::validate`] enforces.
    pub fn schemes(self) -> &'static str {
        self.facts().schemes
    }

    /// How its messages travel in the network model; other operations travel as [`Pattern::carrying`] has
    /// it.
    pub fn pattern(self) -> Pattern {
        self.facts().pattern
    }

    fn refuse(self, problem: impl Into<String>) -> Error {
        Error::Topology { topology: self.name(), problem: problem.into() }
    }
}

/// What a server sends back, or the owner of a shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Downlink {
    /// The mean: every element, or those that are not 0 and their positions, whichever is shorter.
    #[default]
    Exact,
    /// The mean compressed again by the scheme, with the server's or the owner's own residual if the scheme
    /// has feedback.
    Compressed,
}

/// A topology and its settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wiring {
    /// The shape.
    pub topology: Topology,
    /// What a server sends back, or the owner of a shard: only with these; else exact.
    pub downlink: Option<Downlink>,
}

impl From<Topology> for Wiring {
    fn from(topology: Topology) -> Self {
        Self { topology, downlink: None }
    }
}

impl Wiring {
    /// Checks whether the scheme, in these surroundings, can use the topology.
    ///
    /// # Errors
    /// [`Error::Topology`] with the reason, and what to write instead.
    pub fn validate(&self, scheme: &dyn Scheme, policy: &Policy) -> Result<()> {
        match refusal(*self, scheme, policy) {
            Some(problem) => Err(self.topology.refuse(problem)),
            None => Ok(()),
        }
    }
}

/// Which scheme may ride on which topology: why this one, or one of the policy's rules, may not, if it may not.
///
/// | topology | schemes |
/// |---|---|
/// | allgather | all |
/// | server, downlink exact | all; those that learn from messages get a summary of them |
/// | server, downlink compressed | those of one message, but not `dense` alone |
/// | sharded, downlink compressed | those of one message, but not `dense` alone, in several buckets |
/// | two-level | all, between groups of at least two ranks |
/// | sharded | all; one bucket for the whole gradient only those that can read parts of messages, or that take several rounds |
fn refusal(wiring: Wiring, scheme: &dyn Scheme, policy: &Policy) -> Option<String> {
    let built = |scheme: &dyn Scheme| scheme.build(&Seat::alone(1, 0));
    let mut schemes = policy.schemes(scheme);
    let whole = policy.bucketing.clone().unwrap_or_default() == Bucketing::Whole;
    match (wiring.topology, wiring.downlink) {
        (Topology::Allgather | Topology::TwoLevel { .. }, Some(_))
        | (Topology::Sharded, Some(Downlink::Exact)) => Some(
            "it has no server that could send anything back; leave out the downlink, or choose the \
             topology `server`"
                .to_string(),
        ),
        (Topology::Allgather, None) | (Topology::Server, None | Some(Downlink::Exact)) => None,
        (Topology::Sharded, Some(Downlink::Compressed)) if whole => Some(
            "with one bucket one rank would own, average and compress everything; choose buckets \
              of at most 1048576 bytes, or one for each parameter"
                .to_string(),
        ),
        (Topology::Server | Topology::Sharded, Some(Downlink::Compressed)) => {
            let plain = policy.schemes(scheme).all(|one| one.plain()).then_some(scheme);
            let unfit = plain.or_else(|| schemes.find(|one| matches!(built(*one), Built::Reducer(_))));
            unfit.map(|unfit| {
                format!(
                    "scheme `{}` has nothing to compress the mean by; choose the downlink `exact`, \
                     or another scheme",
                    unfit.about().name
                )
            })
        }
        (Topology::TwoLevel { group: 0 | 1 }, None) => Some(
            "a group has at least two ranks; write their number, such as \
             { kind = \"two-level\", group = 4 }, or the topology `allgather`"
                .to_string(),
        ),
        (Topology::TwoLevel { .. }, None) => None,
        (Topology::Sharded, None) => {
            let unfit = schemes.find(|one| match built(*one) {
                Built::Codec(compressor) => whole && !compressor.reads_ranges(),
                Built::Plain | Built::Reducer(_) => false,
            });
            unfit.map(|unfit| {
                format!(
                    "a message of scheme `{}` is read as a whole, and with one bucket one \
                     rank would read everything; choose buckets of at most 1048576 bytes, or one \
                     for each parameter",
                    unfit.about().name
                )
            })
        }
    }
}

/// What an exchange is made of, on whichever rank.
#[derive(Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub(crate) wiring: Wiring,
    pub(crate) scheme: &'a dyn Scheme,
    pub(crate) policy: &'a Policy,
    pub(crate) layout: &'a Layout,
    pub(crate) ranges: &'a [BucketRange],
    pub(crate) run: Run,
    pub(crate) world_size: usize,
}

impl Setup<'_> {
    /// The buckets with the compressors or reducers of `rank`; that of a server is the world size.
    pub(crate) fn buckets(&self, rank: usize) -> Vec<Bucket> {
        let build = |(bucket, range): (usize, &BucketRange)| {
            let held = &self.layout.parameters()[range.parameters.clone()];
            let parameters = held.iter().map(|parameter| parameter.range.len()).collect();
            let shapes = held.iter().map(|parameter| parameter.shape.clone()).collect();
            let length = range.range.len();
            let Run { seed, steps } = self.run;
            let of_means = rank == self.world_size;
            let seat = Seat { length, parameters, shapes, rank, bucket, seed, steps, of_means };
            let scheme = range.rule.map_or(self.scheme, |rule| &self.policy.rules[rule].scheme);
            let plain = range.dense || scheme.plain() || length == 0;
            let built = if plain { Built::Plain } else { scheme.build(&seat) };
            Bucket::new(range, built, plain || scheme.feedback())
        };
        self.ranges.iter().enumerate().map(build).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SchemeConfig;

    #[test]
    fn topologies_read_from_a_recipe_by_their_names() {
        for topology in Topology::ALL {
            let text = match topology {
                Topology::TwoLevel { group } => {
                    format!("topology = {{ kind = 'two-level', group = {group} }}")
                }
                _ => format!("topology = '{topology}'"),
            };
            let table: std::collections::BTreeMap<String, Topology> =
                toml::from_str(&text).unwrap();
            assert_eq!(table["topology"], *topology);
            let written = toml::to_string(&table).unwrap();
            assert_eq!(toml::from_str(&written), Ok(table), "{written}");
            assert_eq!(Topology::named(&topology.to_string()), Some(*topology));
            assert!(!topology.line().is_empty());
        }
        assert_eq!(Topology::default(), Topology::Allgather);
        assert_eq!(Topology::named("two-level of 7"), Some(Topology::TwoLevel { group: 7 }));
        assert_eq!(Topology::named("two-level of 0"), None, "a record that says so is damaged");
        for wrong in ["star", "two-level", "two-level of x"] {
            assert_eq!(Topology::named(wrong), None);
        }
    }

    /// The table of who may ride on what, as the documentation gives it.
    #[test]
    fn the_table_refuses_what_it_says_and_nothing_else() {
        let with = |topology, downlink| Wiring { topology, downlink };
        let exact = Some(Downlink::Exact);
        for scheme in SchemeConfig::specimens() {
            let rounds = matches!(scheme.build(&Seat::alone(1, 0)), Built::Reducer(_));
            let dense = matches!(scheme, SchemeConfig::Dense(_)) || rounds;
            let whole = Policy::from(Bucketing::Whole);
            let several = Policy::from(Bucketing::Bytes(4096));
            for policy in [&whole, &several] {
                let may = |wiring: Wiring| wiring.validate(&scheme, policy).is_ok();
                assert!(may(with(Topology::Allgather, None)));
                assert!(may(with(Topology::TwoLevel { group: 2 }, None)));
                assert!(!may(with(Topology::TwoLevel { group: 1 }, None)));
                assert!(!may(with(Topology::TwoLevel { group: 2 }, exact)));
                assert!(!may(with(Topology::Allgather, exact)));
                assert!(may(with(Topology::Server, None)) && may(with(Topology::Server, exact)));
                assert_eq!(may(with(Topology::Server, Some(Downlink::Compressed))), !dense);
                assert!(!may(with(Topology::Sharded, exact)));
                let both_ways = !dense && *policy == several;
                assert_eq!(may(with(Topology::Sharded, Some(Downlink::Compressed))), both_ways);
                let codec = scheme.codec(&Seat::alone(1, 0));
                let parts = codec.is_none_or(|codec| codec.reads_ranges());
                let sharded = parts || *policy == several;
                assert_eq!(may(with(Topology::Sharded, None)), sharded, "{scheme:?}");
            }
        }
    }
}
