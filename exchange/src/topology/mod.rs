//! The shape that messages travel in: who hears whom, and who averages.
//!
//! A [`Topology`] is what a caller chooses; its route takes one rank's message about a group of
//! buckets and leaves the mean in the gradient. With the default downlink all of them come to the
//! same mean, bit for bit, and leave residuals and compressors the same. What travels as plain f32
//! is averaged by [`allreduce`] wherever there is no server.
//!
//! Adding one is a file that implements [`Shape`] and [`Route`], its `mod` line, one line in the
//! list of `topologies!`, and its row in [`refusal`]: which schemes may ride on what.

mod allgather;
mod allreduce;
mod heard;
mod server;
mod sharded;
mod shards;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bucket::{Bucket, Item};
use crate::buffers::Buffers;
use crate::collective::cluster::{Cluster, Notes};
use crate::collective::{Collective, Payload};
use crate::compress::{Built, Compressor, Run, Scheme, Seat};
use crate::incoming::Place;
use crate::layout::{BucketRange, Bucketing, Layout};
use crate::network::Pattern;
use crate::traffic::Leg;
use crate::wire::Kind;
use crate::{Error, Policy, Result, State, Support};

pub(crate) use heard::{Heard, Received};

macro_rules! topologies {
    ($($variant:ident($module:ident)),* $(,)?) => {
        /// The shape that messages travel in.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "kebab-case")]
        #[non_exhaustive]
        pub enum Topology {
            $(
                #[doc = concat!("See `exchange/src/topology/", stringify!($module), ".rs`.")]
                $variant,
            )*
        }

        impl Topology {
            /// Every topology.
            pub const ALL: &[Topology] = &[$(Topology::$variant),*];

            /// Its name, as serde writes it.
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

            /// The same for this process among others, who do the same: its end. Notes travel along
            /// ([`Notes`](crate::cluster::Notes)).
            ///
            /// # Errors
            /// [`Error::WorldSize`], [`Error::ServerStart`].
            pub fn connect_across(
                self,
                cluster: &Cluster,
                timeout: Duration,
                notes: Arc<dyn Notes>,
            ) -> Result<Box<dyn Collective>> {
                cluster.connect(self == Topology::Server, timeout, notes)
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

/// What a server sends back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
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
    pub fn validate(&self, scheme: &dyn Scheme, policy: &Policy) -> Result<()> {
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
    /// How its messages travel in the network model; other operations travel as [`Pattern::carrying`] has
    /// it.
    pub fn pattern(self) -> Pattern {
        match self {
            Topology::Allgather => Pattern::RingAllgather,
            Topology::Server => Pattern::Server,
            Topology::Sharded => Pattern::Sharded,
        }
    }

    /// Which schemes may ride on it, in words: the table that [`Wiring::validate`] enforces.
    pub fn schemes(self) -> &'static str {
        match self {
            Topology::Allgather => "for all schemes",
            Topology::Server => {
                "for all schemes; `downlink = \"compressed\"` for those of one message but `dense`"
            }
            Topology::Sharded => {
                "for all schemes; with one bucket only those whose messages are read in parts, or \
                 that take several rounds"
            }
        }
    }
}

/// Which scheme may ride on which topology: why this one may not, if it may not.
///
/// | topology | schemes |
/// |---|---|
/// | allgather | all |
/// | server, downlink exact | all; those that learn from messages get a summary of them |
/// | server, downlink compressed | those of one message, but not `dense` |
/// | sharded | all; one bucket for the whole gradient only those that can read parts of messages, or that take several rounds |
fn refusal(wiring: Wiring, scheme: &dyn Scheme, policy: &Policy) -> Option<String> {
    let name = scheme.about().name;
    let built = || scheme.build(&Seat::alone(1, 0));
    match (wiring.topology, wiring.downlink) {
        (Topology::Allgather | Topology::Sharded, Some(_)) => Some(
            "it has no server that could send anything back; leave out the downlink, or choose the \
             topology `server`"
                .to_string(),
        ),
        (Topology::Allgather, None) | (Topology::Server, None | Some(Downlink::Exact)) => None,
        (Topology::Server, Some(Downlink::Compressed)) => {
            let codes = !scheme.plain() && matches!(built(), Built::Codec(_));
            (!codes).then(|| {
                format!(
                    "scheme `{name}` has nothing to compress the mean by; choose the downlink `exact`, \
                     or another scheme"
                )
            })
        }
        (Topology::Sharded, None) => {
            let whole = policy.bucketing.clone().unwrap_or_default() == Bucketing::Whole;
            let in_parts = match built() {
                Built::Codec(compressor) => compressor.reads_ranges(),
                Built::Plain | Built::Reducer(_) => true,
            };
            (whole && !in_parts).then(|| {
                format!(
                    "a message of scheme `{name}` is read as a whole, and with one bucket one \
                     rank would read everything; choose buckets of at most 1048576 bytes, or one \
                     for each parameter"
                )
            })
        }
    }
}

/// What an exchange is made of, on whichever rank.
#[derive(Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) wiring: Wiring,
    pub(crate) scheme: &'a dyn Scheme,
    pub(crate) policy: &'a Policy,
    pub(crate) layout: &'a Layout,
    pub(crate) places: &'a [BucketRange],
    pub(crate) run: Run,
    pub(crate) world_size: usize,
}

impl About<'_> {
    /// The buckets with the compressors or reducers of `rank`; that of a server is the world size.
    pub(crate) fn buckets(&self, rank: usize) -> Vec<Bucket> {
        let build = |(bucket, place): (usize, &BucketRange)| {
            let held = &self.layout.parameters()[place.parameters.clone()];
            let parameters = held.iter().map(|parameter| parameter.range.len()).collect();
            let shapes = held.iter().map(|parameter| parameter.shape.clone()).collect();
            let length = place.range.len();
            let Run { seed, steps } = self.run;
            let seat = Seat { length, parameters, shapes, rank, bucket, seed, steps };
            let plain = place.dense || self.scheme.plain() || length == 0;
            Bucket::new(place, if plain { Built::Plain } else { self.scheme.build(&seat) })
        };
        self.places.iter().enumerate().map(build).collect()
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
    /// Its name, as serde writes it.
    const NAME: &'static str;

    /// What it does, in one line.
    const LINE: &'static str;

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
    /// Whether buckets that are sent as plain f32 are averaged by themselves
    /// ([`allreduce`](Self::allreduce)), or travel in the message with the others.
    fn sums_apart(&self, collective: &mut dyn Collective) -> bool;

    /// Exchanges `mine`, this rank's message about a group of buckets, and overwrites the group's
    /// elements by their mean; notes time and bytes in the leg.
    ///
    /// # Errors
    /// As [`Exchange::exchange_group`](crate::Exchange::exchange_group).
    fn reduce(&mut self, work: &mut Work<'_>, mine: Vec<u8>) -> Result<Heard>;

    /// The same of a message whose items are all plain f32; this rank's message back, when its
    /// buffer can be used again.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    fn allreduce(&mut self, work: &mut Work<'_>, mine: Vec<u8>) -> Result<Option<Payload>>;

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

/// One message about a group of buckets that is being exchanged.
pub(crate) struct Work<'a> {
    pub(crate) place: Place,
    pub(crate) items: &'a [Item],
    pub(crate) layout: &'a Layout,
    pub(crate) buckets: &'a mut [Bucket],
    pub(crate) collective: &'a mut dyn Collective,
    pub(crate) gradient: &'a mut [f32],
    /// Whether the gradient is what this rank has encoded, bit for bit.
    pub(crate) as_sent: bool,
    /// Where this rank's own gradient may be other than zero, if `support` is there.
    pub(crate) within: &'a Support,
    /// Where the mean may be other than zero, as far as it has been taken.
    pub(crate) support: Option<&'a mut Support>,
    pub(crate) buffers: &'a mut Buffers,
    pub(crate) leg: &'a mut Leg,
}

impl Work<'_> {
    /// Gives `mine` to every rank and takes everybody's.
    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        let awaited = self.place.awaited();
        let messages = self.collective.allgather(mine).map_err(|error| error.awaiting(awaited))?;
        let (found, ranks) = (messages.len(), self.place.world_size);
        if found != ranks {
            let problem = format!("an allgather of {ranks} ranks gave {found} messages");
            return Err(Error::Transport { problem });
        }
        Ok(messages)
    }

    /// What reads messages about an item.
    fn decoder(&self, item: Item) -> Option<&dyn Compressor> {
        item.decoder(self.buckets)
    }

    /// Overwrites all items by the mean of what the messages say.
    ///
    /// # Errors
    /// What is wrong with the messages, which is the same on every rank.
    fn average(&mut self, messages: &[Payload]) -> Result<()> {
        let place = self.place;
        let frames = place.open(self.items, messages)?;
        for (index, item) in self.items.iter().enumerate() {
            let of_ranks = frames[index..].iter().step_by(self.items.len());
            let averaged = if item.kind == Kind::Values {
                let mail = self.buckets[item.bucket].mail_mut();
                let mail = mail.expect("invariant: values are posted by a reducer");
                mail.mean.clear();
                mail.mean.resize(item.length, 0.0);
                place.mean_of_all(of_ranks, None, &mut mail.mean)
            } else {
                place.average(
                    &mut self.buckets[item.bucket],
                    *item,
                    of_ranks,
                    self.as_sent,
                    self.gradient,
                )
            };
            if let Some(element) = averaged? {
                return Err(self.overflow(*item, element));
            }
            if item.kind == Kind::Dense {
                self.note_support(*item);
            }
        }
        Ok(())
    }

    /// Overwrites elements of an item's mean, from `start` on.
    fn put(&mut self, item: Item, start: usize, values: &[[u8; 4]]) {
        if item.kind == Kind::Values {
            let mail = self.buckets[item.bucket].mail_mut();
            let mail = mail.expect("invariant: values are posted by a reducer");
            mail.mean.resize(item.length, 0.0);
            let mean = mail.mean[start..].iter_mut();
            return mean.zip(values).for_each(|(mean, value)| *mean = f32::from_le_bytes(*value));
        }
        let bucket = &self.buckets[item.bucket];
        match &mut self.support {
            Some(support) => {
                bucket.put_within(start, values, self.within, support, self.gradient);
            }
            None => bucket.put(start, values, self.gradient),
        }
    }

    /// Notes where the mean of a bucket may be other than zero: what its messages spoke of, or all.
    fn note_support(&mut self, item: Item) {
        let Some(support) = &mut self.support else { return };
        self.buckets[item.bucket].note_touched(support);
    }

    /// The mean of this element of an item is not finite.
    fn overflow(&self, item: Item, element: usize) -> Error {
        let bucket = &self.buckets[item.bucket];
        let gradient = item.kind == Kind::Dense;
        let position = bucket.range.start + if gradient { element } else { 0 };
        let (mut parameter, mut index) = self.layout.name(position);
        if !gradient {
            index = element;
            parameter = format!("{parameter} (values of round {} of its bucket)", item.round);
        }
        Error::NonFiniteMean { step: self.place.step, parameter, index }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SchemeConfig;

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
        for scheme in SchemeConfig::specimens() {
            let rounds = matches!(scheme.build(&Seat::alone(1, 0)), Built::Reducer(_));
            let dense = matches!(scheme, SchemeConfig::Dense(_)) || rounds;
            let whole = Policy::from(Bucketing::Whole);
            let several = Policy::from(Bucketing::Bytes(4096));
            for policy in [&whole, &several] {
                let may = |wiring: Wiring| wiring.validate(&scheme, policy).is_ok();
                assert!(may(with(Topology::Allgather, None)));
                assert!(!may(with(Topology::Allgather, exact)));
                assert!(may(with(Topology::Server, None)) && may(with(Topology::Server, exact)));
                assert_eq!(may(with(Topology::Server, Some(Downlink::Compressed))), !dense);
                assert!(!may(with(Topology::Sharded, exact)));
                let codec = scheme.codec(&Seat::alone(1, 0));
                let parts = codec.is_none_or(|codec| codec.reads_ranges());
                let sharded = parts || *policy == several;
                assert_eq!(may(with(Topology::Sharded, None)), sharded, "{scheme:?}");
            }
        }
    }
}
