//! The shape that messages travel in: who hears whom, and who averages.
//!
//! A [`Topology`] is what a recipe chooses; its route takes one rank's message about a group of
//! buckets and leaves the mean in the gradient. With the default downlink all of them come to the
//! same mean, bit for bit, and leave residuals and compressors the same.
//!
//! Adding one is a file that implements [`Shape`] and [`Route`], its `mod` line, one line in the
//! list of `topologies!`, and its row in [`refusal`]: which schemes may ride on what.

mod allgather;
mod allreduce;
mod server;
mod sharded;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bucket::Bucket;
use crate::collective::cluster::{Cluster, Notes};
use crate::collective::{Collective, Payload};
use crate::compress::{Compressor, Digest, Round, Seat};
use crate::incoming::Place;
use crate::layout::{Bucketing, Layout, Part};
use crate::traffic::Leg;
use crate::wire::frame::Unchecked;
use crate::wire::{self, Frame, Kind};
use crate::{Error, Policy, Result, Scheme, State, Support};

macro_rules! topologies {
    ($($variant:ident($module:ident)),* $(,)?) => {
        /// The shape that messages travel in: `exchange.topology` in a recipe.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Topology {
            $(
                #[doc = concat!("See `exchange/src/topology/", stringify!($module), ".rs`.")]
                $variant,
            )*
        }

        impl Topology {
            /// Every topology.
            pub const ALL: &[Topology] = &[$(Topology::$variant),*];

            /// Its name in a recipe.
            pub fn name(self) -> &'static str {
                match self {
                    $(Topology::$variant => <$module::Definition as Shape>::NAME,)*
                }
            }

            /// What it does, in one line.
            pub fn line(self) -> &'static str {
                match self {
                    $(Topology::$variant => <$module::Definition as Shape>::LINE,)*
                }
            }

            /// Joins `world_size` ranks of this process as it needs, and returns their ends in
            /// order of rank, one for each thread. Waits are bounded by `timeout`.
            ///
            /// # Errors
            /// [`Error::ServerStart`].
            pub fn connect(
                self,
                world_size: usize,
                timeout: Duration,
            ) -> Result<Vec<Box<dyn Collective>>> {
                match self {
                    $(Topology::$variant => <$module::Definition as Shape>::connect(world_size, timeout),)*
                }
            }

            /// The same for `workers` ranks of this process among those of others, who do the same:
            /// ranks of a process are consecutive. Notes travel along
            /// ([`Notes`](crate::cluster::Notes)).
            ///
            /// # Errors
            /// [`Error::WorldSize`].
            pub fn connect_across(
                self,
                cluster: &Cluster,
                workers: usize,
                timeout: Duration,
                notes: Arc<dyn Notes>,
            ) -> Result<Vec<Box<dyn Collective>>> {
                match self {
                    $(Topology::$variant => {
                        let central = <$module::Definition as Shape>::CENTRAL;
                        cluster.connect(central, workers, timeout, notes)
                    })*
                }
            }

            pub(crate) fn route(self, setup: Setup<'_>) -> Result<Box<dyn Route>> {
                match self {
                    $(Topology::$variant => <$module::Definition as Shape>::route(setup),)*
                }
            }
        }
    };
}

topologies! {
    Allgather(allgather),
    Server(server),
    Sharded(sharded),
}

impl Default for Topology {
    /// Every rank hears every rank.
    fn default() -> Self {
        Topology::Allgather
    }
}

/// What a server sends back: `exchange.downlink` in a recipe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Downlink {
    /// The mean: every element, or those that are not 0 and their positions, whichever is shorter.
    #[default]
    Exact,
    /// The mean compressed again by the scheme, with the server's own residual if the scheme has
    /// feedback.
    Compressed,
}

/// A topology and its settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wiring {
    /// The shape.
    pub topology: Topology,
    /// What a server sends back; only with a server; else exact.
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
    pub fn validate(&self, scheme: &Scheme, policy: &Policy) -> Result<()> {
        match refusal(*self, scheme, policy) {
            Some(problem) => Err(self.topology.refuse(problem)),
            None => Ok(()),
        }
    }
}

impl Topology {
    fn refuse(self, problem: impl Into<String>) -> Error {
        Error::Topology { topology: self.name(), problem: problem.into() }
    }
}

impl Topology {
    /// Which schemes may ride on it, in words: the table that [`Wiring::validate`] enforces.
    pub fn schemes(self) -> &'static str {
        match self {
            Topology::Allgather => "for all schemes",
            Topology::Server => "for all schemes; `downlink = \"compressed\"` for all but `dense`",
            Topology::Sharded => {
                "for all schemes; with one bucket only those whose messages are read in parts"
            }
        }
    }
}

/// Which scheme may ride on which topology: why this one may not, if it may not.
///
/// | topology | schemes |
/// |---|---|
/// | allgather | all |
/// | server, downlink exact | all; those that learn from messages get a digest of them |
/// | server, downlink compressed | all but `dense` |
/// | sharded | all; one bucket for the whole gradient only those that can read parts of messages |
fn refusal(wiring: Wiring, scheme: &Scheme, policy: &Policy) -> Option<String> {
    let name = scheme.about().name;
    match (wiring.topology, wiring.downlink) {
        (Topology::Allgather | Topology::Sharded, Some(_)) => Some(
            "it has no server that could send anything back; leave out `exchange.downlink`, or \
             write `exchange.topology = \"server\"`"
                .to_string(),
        ),
        (Topology::Allgather, None) | (Topology::Server, None | Some(Downlink::Exact)) => None,
        (Topology::Server, Some(Downlink::Compressed)) => {
            let dense = matches!(scheme, Scheme::Dense(_));
            dense.then(|| {
                format!(
                    "scheme `{name}` has nothing to compress the mean by; write \
                     `exchange.downlink = \"exact\"`, or choose another scheme"
                )
            })
        }
        (Topology::Sharded, None) => {
            let whole = policy.bucketing.clone().unwrap_or_default() == Bucketing::Whole;
            (whole && !reads_parts(scheme)).then(|| {
                format!(
                    "a message of scheme `{name}` is read as a whole, and with one bucket one \
                     rank would read everything; write `policy.bucketing = {{ bytes = 1048576 }}` \
                     or `\"parameter\"`"
                )
            })
        }
    }
}

/// Whether messages of a scheme can be read in parts.
fn reads_parts(scheme: &Scheme) -> bool {
    scheme.build(&Seat::alone(1, 0)).by_parts().is_some()
}

/// What an exchange is made of, on whichever rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) wiring: Wiring,
    pub(crate) scheme: &'a Scheme,
    pub(crate) policy: &'a Policy,
    pub(crate) layout: &'a Layout,
    pub(crate) parts: &'a [Part],
    pub(crate) seed: u64,
    pub(crate) world_size: usize,
}

impl About<'_> {
    /// The buckets with the compressors of `rank`; that of a server is the world size.
    pub(crate) fn buckets(&self, rank: usize) -> Vec<Bucket> {
        let build = |(bucket, part): (usize, &Part)| {
            let parameters = part.ranges.iter().map(std::ops::Range::len).collect();
            let seat = Seat { length: part.length(), parameters, rank, bucket, seed: self.seed };
            let dense = part.dense || matches!(self.scheme, Scheme::Dense(_)) || seat.length == 0;
            Bucket::new(part, (!dense).then(|| self.scheme.build(&seat)))
        };
        self.parts.iter().enumerate().map(build).collect()
    }
}

/// What a route is built from.
pub(crate) struct Setup<'a> {
    pub(crate) about: About<'a>,
    pub(crate) rank: usize,
    pub(crate) collective: &'a mut dyn Collective,
}

/// A topology as a type.
pub(crate) trait Shape {
    /// Its name in a recipe.
    const NAME: &'static str;

    /// What it does, in one line.
    const LINE: &'static str;

    /// Whether there is a server in the middle.
    const CENTRAL: bool = false;

    /// As [`Topology::connect`].
    fn connect(world_size: usize, timeout: Duration) -> Result<Vec<Box<dyn Collective>>>;

    /// One rank's part in it.
    ///
    /// # Errors
    /// [`Error::Topology`] when the collective does not offer what it needs.
    fn route(setup: Setup<'_>) -> Result<Box<dyn Route>>;
}

/// How one rank's message becomes the mean.
pub(crate) trait Route: Send {
    /// Exchanges `mine`, this rank's message about a group of buckets, and overwrites the group's
    /// elements by their mean; notes time and bytes in the leg.
    ///
    /// # Errors
    /// As [`Exchange::exchange_group`](crate::Exchange::exchange_group).
    fn reduce(&mut self, work: &mut Work<'_>, mine: Vec<u8>) -> Result<Heard>;

    /// Puts what later steps depend on into `state`.
    fn save(&self, _state: &mut State) {}

    /// Takes up what [`save`](Self::save) put there.
    ///
    /// # Errors
    /// [`Error::State`] when it does not fit, or would be lost.
    fn restore(&mut self, state: &State) -> Result<()> {
        server::refuse_state(state)
    }
}

/// One group of buckets that is being exchanged.
pub(crate) struct Work<'a> {
    pub(crate) place: Place,
    pub(crate) group: &'a [usize],
    pub(crate) layout: &'a Layout,
    pub(crate) buckets: &'a mut [Bucket],
    pub(crate) collective: &'a mut dyn Collective,
    pub(crate) gradient: &'a mut [f32],
    /// Whether the gradient is, bit for bit, what this rank's message says where that is plain.
    pub(crate) as_sent: bool,
    /// Outside of which the gradient is zero, where it is as sent and that is known.
    pub(crate) support: Option<&'a Support>,
    pub(crate) leg: &'a mut Leg,
}

impl Work<'_> {
    /// Gives `mine` to every rank and takes everybody's.
    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        let awaited = self.place.awaited();
        self.collective.allgather(mine).map_err(|error| error.awaiting(awaited))
    }

    /// Overwrites the group's elements by the mean of what all messages say.
    ///
    /// # Errors
    /// What is wrong with the messages, which is the same on every rank.
    fn average(&mut self, messages: &[Payload]) -> Result<()> {
        let frames = self.place.split(self.group, messages)?;
        let overflow = self.average_frames(&frames, None)?;
        self.finite(overflow)
    }

    /// The same of frames that have been split; where the mean is not finite, the bucket and the
    /// element. The plain ones of the rank `own`, which are what the gradient is, are not read.
    ///
    /// # Errors
    /// As [`average`](Self::average).
    fn average_frames(
        &mut self,
        frames: &[Unchecked<'_>],
        own: Option<usize>,
    ) -> Result<Option<(usize, usize)>> {
        let (place, buckets, group) = (self.place, &mut *self.buckets, self.group);
        if all_plain(frames) {
            return place.average_plain(buckets, group, frames, self.gradient, self.support, own);
        }
        let frames = place.check_all(group, frames)?;
        place.average(buckets, group, &frames, self.gradient, true)
    }

    /// Fails where an element of a bucket's mean is not finite.
    fn finite(&self, overflow: Option<(usize, usize)>) -> Result<()> {
        overflow.map_or(Ok(()), |(bucket, element)| Err(self.overflow(bucket, element)))
    }

    /// The mean of this element of a bucket is not finite.
    fn overflow(&self, bucket: usize, element: usize) -> Error {
        let (parameter, index) = self.layout.name(self.buckets[bucket].position(element));
        Error::NonFiniteMean { step: self.place.step, parameter, index }
    }
}

/// Whether every frame is plain f32.
fn all_plain(frames: &[Unchecked<'_>]) -> bool {
    frames.iter().all(|unchecked| unchecked.frame.header.kind == Kind::Dense)
}

/// What a rank has heard about a group, kept until the step is finished.
pub(crate) enum Heard {
    /// Every rank's message, its own included; empty when there was nothing to exchange.
    Messages(Vec<Payload>),
    /// Its own message, and the server's.
    Mean { mine: Payload, downlink: Payload },
}

/// The same, taken apart.
pub(crate) enum Said<'a> {
    /// Frames by rank, and then in the order of the group's buckets, of which there are so many.
    Messages(Vec<Frame<'a>>, usize),
    /// The server's words on each bucket.
    Mean(Vec<wire::downlink::Downlink<'a>>),
}

impl Said<'_> {
    /// Tells a compressor what was said of the group's bucket at `index`, whose mean is given.
    ///
    /// # Errors
    /// As [`Compressor::observe`] and [`Compressor::learn`].
    pub(crate) fn tell(
        &self,
        place: Place,
        index: usize,
        mean: &[f32],
        compressor: &mut dyn Compressor,
    ) -> Result<()> {
        let (step, ranks) = (place.step, place.world_size);
        match self {
            Said::Messages(frames, buckets) => {
                let of_ranks = frames.iter().skip(index).step_by(*buckets);
                let messages: Vec<Option<&[u8]>> = of_ranks.map(Frame::compressed).collect();
                compressor.observe(&Round { step, messages: &messages, mean })
            }
            Said::Mean(downlinks) => {
                let digest = Digest { step, ranks, bytes: downlinks[index].digest, mean };
                compressor.learn(&digest).map_err(|error| match error {
                    Error::Wire(fault) => Error::ServerMessage { awaited: place.awaited(), fault },
                    other => other,
                })
            }
        }
    }
}

impl Heard {
    /// Takes apart what was heard about the buckets of a group.
    ///
    /// # Errors
    /// None that has not been met before the mean was taken.
    pub(crate) fn open(&self, place: Place, group: &[usize]) -> Result<Said<'_>> {
        Ok(match self {
            Heard::Messages(messages) => Said::Messages(place.skim(group, messages)?, group.len()),
            Heard::Mean { downlink, .. } => Said::Mean(place.skim_downlink(group, downlink)?),
        })
    }

    /// What rank `rank` sent, when it was this one.
    pub(crate) fn into_mine(self, rank: usize) -> Option<Payload> {
        match self {
            Heard::Messages(messages) => messages.into_iter().nth(rank),
            Heard::Mean { mine, .. } => Some(mine),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topologies_read_from_a_recipe_by_their_names() {
        for topology in Topology::ALL {
            let text = format!("topology = '{}'", topology.name());
            let table: std::collections::BTreeMap<String, Topology> =
                toml::from_str(&text).unwrap();
            assert_eq!(table["topology"], *topology);
            assert!(!topology.line().is_empty());
        }
        assert_eq!(Topology::default(), Topology::Allgather);
    }

    /// The table of who may ride on what, as the documentation gives it.
    #[test]
    fn the_table_refuses_what_it_says_and_nothing_else() {
        let with = |topology, downlink| Wiring { topology, downlink };
        let exact = Some(Downlink::Exact);
        for scheme in Scheme::specimens() {
            let dense = matches!(scheme, Scheme::Dense(_));
            let whole = Policy::from(Bucketing::Whole);
            let several = Policy::from(Bucketing::Bytes(4096));
            for policy in [&whole, &several] {
                let may = |wiring: Wiring| wiring.validate(&scheme, policy).is_ok();
                assert!(may(with(Topology::Allgather, None)));
                assert!(!may(with(Topology::Allgather, exact)));
                assert!(may(with(Topology::Server, None)) && may(with(Topology::Server, exact)));
                assert_eq!(may(with(Topology::Server, Some(Downlink::Compressed))), !dense);
                assert!(!may(with(Topology::Sharded, exact)));
                let sharded = reads_parts(&scheme) || *policy == several;
                assert_eq!(may(with(Topology::Sharded, None)), sharded, "{scheme:?}");
            }
        }
    }
}
