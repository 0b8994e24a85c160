//! A link: how fast bytes cross, and what is lost on the way to crossing.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};

use super::quantity;
use crate::rng::Stream;
use crate::{Error, Result};

/// Bytes of a TCP/IPv4 packet with timestamps that are not payload: IP 20, TCP 20, option 12.
const TCP_IP: u32 = 52;
/// Bytes that Ethernet adds to a packet: preamble 8, header 14, checksum 4, gap 12.
const ETHERNET: u32 = 38;

/// The network that joins the hosts of the ranks, one rank each: a switch that never blocks, and a
/// full-duplex link from every host to it.
///
/// A message of `n` bytes is cut into packets of [`mtu`](Self::mtu) bytes and takes
/// `overhead + wire_bytes(n) · 8 / bandwidth + latency + jitter` from host to host.
///
/// Written as a word, `100mbit`, `wan` or `2.5gbit,latency=1ms,stragglers=0.05,slowdown=3`, or as a table
/// with the same keys. A word that is no preset is a bandwidth with the latency of `1gbit`.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// Bits per second that a host sends, and at the same time receives.
    pub bandwidth: f64,
    /// Seconds from a bit's leaving to its arrival at the other host: half a round trip.
    pub latency: f64,
    /// Mean of an exponentially distributed delay in seconds that each message suffers besides.
    pub jitter: f64,
    /// Seconds that a host spends on each message before its first bit leaves.
    pub(crate) overhead: f64,
    /// Bytes of the largest IP packet.
    pub mtu: u32,
    /// Bytes of each packet on the wire that are not payload: what surrounds the IP packet and,
    /// within it, the headers of TCP and IP.
    pub header: u32,
    /// Bytes that pass at once after a pause long enough: the depth of a token bucket filled at
    /// `bandwidth`. 0 for a plain wire; a bucket of 32 kB is how `tc … tbf` limits a rate.
    pub(crate) burst: u32,
    /// Probability that a rank is a straggler in a step, 0 to 1, drawn anew each step.
    pub(crate) stragglers: f64,
    /// How many times as long a straggler computes, encodes and decodes; at least 1.
    pub(crate) slowdown: f64,
    /// Bits per second between ranks of one group ([`Pattern::TwoLevel`](super::Pattern::TwoLevel)), each
    /// rank's own: shared memory, or what joins the cards of a host.
    pub local: f64,
    /// Seconds of a message's way within a group.
    pub(crate) local_latency: f64,
    /// Hosts that differ from the others.
    pub(crate) ranks: Vec<Host>,
    /// The parameter server's own link, where it differs from the workers'.
    pub(crate) server: Option<ServerHost>,
}

/// What differs on the host of one rank.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Host {
    /// Whose host it is.
    pub(crate) rank: usize,
    /// Bits per second, if not the link's.
    #[serde(default, deserialize_with = "quantity::de_bandwidth")]
    pub(crate) bandwidth: Option<f64>,
    /// Seconds to and from this host, if not the link's; between two hosts the larger counts.
    #[serde(default, deserialize_with = "quantity::de_seconds")]
    pub(crate) latency: Option<f64>,
    /// How many times as long it computes, always.
    #[serde(default)]
    pub(crate) slowdown: Option<f64>,
}

/// What differs on the server's host.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerHost {
    /// Bits per second in and, at the same time, out.
    #[serde(deserialize_with = "quantity::de_bandwidth")]
    pub(crate) bandwidth: Option<f64>,
}

/// The named links: name, what each stands for, bits per second, latency, jitter and MTU. Latencies are
/// half of a round trip of TCP between hosts under one switch.
const PRESETS: [(&str, &str, f64, f64, f64, u32); 8] = [
    ("10mbit", "old Ethernet, or a home's uplink", 10e6, 500e-6, 0.0, 1500),
    ("100mbit", "Fast Ethernet", 100e6, 200e-6, 0.0, 1500),
    ("1gbit", "Gigabit Ethernet", 1e9, 100e-6, 0.0, 1500),
    ("10gbit", "10 Gigabit Ethernet", 10e9, 50e-6, 0.0, 1500),
    ("25gbit", "25 Gigabit Ethernet, jumbo frames", 25e9, 30e-6, 0.0, 9000),
    ("100gbit", "100 Gigabit Ethernet, jumbo frames", 100e9, 20e-6, 0.0, 9000),
    ("datacenter", "virtual machines of one zone: jitter", 25e9, 60e-6, 20e-6, 9000),
    ("wan", "sites of one continent: 40 ms round trip, jitter", 100e6, 20e-3, 2e-3, 1500),
];

/// The named links: name, what it stands for in one line, link.
pub fn presets() -> impl Iterator<Item = (&'static str, &'static str, Link)> {
    PRESETS.into_iter().map(|(name, line, bandwidth, latency, jitter, mtu)| {
        let link = Link { latency, jitter, mtu, ..Link::with_bandwidth(bandwidth) };
        (name, line, link)
    })
}

impl Link {
    /// The highest rank whose host differs from the others, if one does.
    pub fn highest_rank(&self) -> Option<usize> {
        self.ranks.iter().map(|host| host.rank).max()
    }

    /// A link of so many bits per second, everything else as `1gbit` has it.
    pub fn with_bandwidth(bandwidth: f64) -> Self {
        Self {
            bandwidth,
            latency: 100e-6,
            jitter: 0.0,
            overhead: 0.0,
            mtu: 1500,
            header: TCP_IP + ETHERNET,
            burst: 0,
            stragglers: 0.0,
            slowdown: 1.0,
            local: 100e9,
            local_latency: 2e-6,
            ranks: Vec::new(),
            server: None,
        }
    }

    /// A link over which everything arrives when it leaves.
    pub fn free() -> Self {
        let (bandwidth, local) = (f64::INFINITY, f64::INFINITY);
        let (latency, local_latency) = (0.0, 0.0);
        Self { bandwidth, local, latency, local_latency, ..Self::with_bandwidth(0.0) }
    }

    /// Reads a link's word: a preset or a bandwidth, and changes of it after commas.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what to write instead.
    pub fn parse(text: &str) -> Result<Self> {
        let mut parts = text.split(',').map(str::trim);
        let mut link = base(parts.next().unwrap_or_default())?;
        for part in parts {
            let (key, value) =
                part.split_once('=').ok_or_else(|| refused("link", part, "write KEY=VALUE"))?;
            link.change(key.trim(), value.trim())?;
        }
        link.validate()?;
        Ok(link)
    }

    /// Reads several words separated by commas: what follows a comma and holds `=` changes the link
    /// before it. Each link comes with its words.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_list(text: &str) -> Result<Vec<(String, Self)>> {
        let mut words: Vec<String> = Vec::new();
        for part in text.split(',').map(str::trim) {
            match words.last_mut() {
                Some(word) if part.contains('=') => *word = format!("{word},{part}"),
                _ => words.push(part.to_string()),
            }
        }
        words.into_iter().map(|word| Self::parse(&word).map(|link| (word, link))).collect()
    }

    fn change(&mut self, key: &str, value: &str) -> Result<()> {
        let number = || value.parse::<f64>().ok();
        let time = || number().or_else(|| quantity::seconds(value));
        let bytes = || value.parse::<u32>().ok();
        let bits = || number().or_else(|| quantity::bandwidth(value));
        let (done, wanted) = match key {
            "bandwidth" => (put(&mut self.bandwidth, bits()), "write a bandwidth such as 100mbit"),
            "local" => (put(&mut self.local, bits()), "write a bandwidth such as 100gbit"),
            "local_latency" => (put(&mut self.local_latency, time()), "write a time such as 2us"),
            "latency" => (put(&mut self.latency, time()), "write a time such as 1ms"),
            "jitter" => (put(&mut self.jitter, time()), "write a time such as 1ms"),
            "overhead" => (put(&mut self.overhead, time()), "write a time such as 20us"),
            "mtu" => (put(&mut self.mtu, bytes()), "write a number of bytes"),
            "header" => (put(&mut self.header, bytes()), "write a number of bytes"),
            "burst" => (put(&mut self.burst, bytes()), "write a number of bytes"),
            "stragglers" => (put(&mut self.stragglers, number()), "write a probability"),
            "slowdown" => (put(&mut self.slowdown, number()), "write a factor such as 3"),
            _ => return Err(refused("link", key, KEYS)),
        };
        if done { Ok(()) } else { Err(refused(key, value, wanted)) }
    }

    /// Checks that the link can be.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the value and what to write instead.
    pub fn validate(&self) -> Result<()> {
        let check = |good: bool, key: &'static str, value: f64, wanted| {
            if good { Ok(()) } else { Err(refused(key, &value.to_string(), wanted)) }
        };
        let within = |value: f64, range: std::ops::RangeInclusive<f64>| range.contains(&value);
        let speed = |value, key| {
            let wanted = "write at least 1 bit and at most 1000 tbit per second, such as 100mbit";
            check(within(value, 1.0..=1e15), key, value, wanted)
        };
        let delay = |value, key| {
            check(within(value, 0.0..=3600.0), key, value, "write 0 to 3600 seconds, such as 1ms")
        };
        let factor = |value, key| {
            let wanted = "write how many times as long, 1 to 1000000";
            check(within(value, 1.0..=1e6), key, value, wanted)
        };
        speed(self.bandwidth, "bandwidth")?;
        speed(self.local, "local")?;
        delay(self.local_latency, "local_latency")?;
        delay(self.latency, "latency")?;
        delay(self.jitter, "jitter")?;
        delay(self.overhead, "overhead")?;
        check(
            (256..=65_535).contains(&self.mtu),
            "mtu",
            self.mtu.into(),
            "write 256 to 65535 bytes: 1500 is Ethernet's, 9000 that of jumbo frames",
        )?;
        check(
            self.header <= 200,
            "header",
            self.header.into(),
            "write 0 to 200 bytes: 90 is TCP's over IPv4 over Ethernet",
        )?;
        check(self.burst <= 1 << 30, "burst", self.burst.into(), "write at most 1073741824 bytes")?;
        check(
            within(self.stragglers, 0.0..=1.0),
            "stragglers",
            self.stragglers,
            "write a probability, 0 to 1",
        )?;
        factor(self.slowdown, "slowdown")?;
        check(
            (self.stragglers > 0.0) == (self.slowdown > 1.0),
            "slowdown",
            self.slowdown,
            "stragglers says how often a rank is slow, and slowdown how many times as slow: write both, or none",
        )?;
        for (place, host) in self.ranks.iter().enumerate() {
            let rank = host.rank as f64;
            let twice = self.ranks[..place].iter().any(|other| other.rank == host.rank);
            check(!twice, "ranks.rank", rank, "write each rank once")?;
            check(host.rank < 65_535, "ranks.rank", rank, "ranks count from 0")?;
            host.bandwidth.map_or(Ok(()), |value| speed(value, "ranks.bandwidth"))?;
            host.latency.map_or(Ok(()), |value| delay(value, "ranks.latency"))?;
            host.slowdown.map_or(Ok(()), |value| factor(value, "ranks.slowdown"))?;
        }
        self.server_bandwidth().map_or(Ok(()), |value| speed(value, "server.bandwidth"))
    }

    /// Bytes that `bytes` of payload take on the wire, headers of the packets included.
    pub fn wire_bytes(&self, bytes: u64) -> f64 {
        let payload = u64::from(self.mtu.saturating_sub(TCP_IP).max(1));
        bytes as f64 + bytes.div_ceil(payload) as f64 * f64::from(self.header)
    }

    /// Bits per second of a rank's host.
    pub(crate) fn bandwidth_of(&self, rank: usize) -> f64 {
        self.host(rank).and_then(|host| host.bandwidth).unwrap_or(self.bandwidth)
    }

    /// Bits per second of the parameter server's host, if it has its own.
    pub(crate) fn server_bandwidth(&self) -> Option<f64> {
        self.server.as_ref().and_then(|server| server.bandwidth)
    }

    /// Seconds from a rank's host to another's.
    pub(crate) fn latency_between(&self, from: usize, to: usize) -> f64 {
        self.latency_of(from).max(self.latency_of(to))
    }

    /// Seconds to and from a rank's host.
    pub(crate) fn latency_of(&self, rank: usize) -> f64 {
        self.host(rank).and_then(|host| host.latency).unwrap_or(self.latency)
    }

    /// How many times as long a rank computes in a step. The same (seed, rank, step) always gives
    /// the same answer.
    pub(crate) fn slowdown_of(&self, seed: u64, rank: usize, step: u64) -> f64 {
        let always = self.host(rank).and_then(|host| host.slowdown).unwrap_or(1.0);
        let unlucky = self.stragglers > 0.0
            && f64::from(draws(seed, rank, step).uniform(u32::MAX)) < self.stragglers;
        if unlucky { always * self.slowdown } else { always }
    }

    /// The extra delay of the `message`th message that a rank sends in a step.
    pub(super) fn jitter_of(&self, seed: u64, rank: usize, step: u64, message: u32) -> f64 {
        if self.jitter == 0.0 {
            return 0.0;
        }
        // At most 24 ln 2 = 16.6 times the mean: `uniform` is a multiple of 2⁻²⁴.
        -self.jitter * (-f64::from(draws(seed, rank, step).uniform(message))).ln_1p()
    }

    fn host(&self, rank: usize) -> Option<&Host> {
        self.ranks.iter().find(|host| host.rank == rank)
    }
}

const KEYS: &str = "the keys are bandwidth, latency, jitter, overhead, mtu, header, burst, \
                    stragglers, slowdown, local and local_latency";

fn draws(seed: u64, rank: usize, step: u64) -> Stream {
    const NETWORK: u64 = 0x6e65_7477_6f72_6b00;
    Stream::new(&[seed, NETWORK, rank as u64, step])
}

fn put<T>(place: &mut T, value: Option<T>) -> bool {
    value.map(|value| *place = value).is_some()
}

fn base(word: &str) -> Result<Link> {
    if let Some((.., link)) = presets().find(|(name, ..)| *name == word) {
        return Ok(link);
    }
    quantity::bandwidth(word).map(Link::with_bandwidth).ok_or_else(|| {
        let names = PRESETS.map(|(name, ..)| name).join(", ");
        refused("bandwidth", word, format!("write a bandwidth such as 250mbit, or one of {names}"))
    })
}

fn refused(key: &str, value: &str, wanted: impl fmt::Display) -> Error {
    Error::Invalid { problem: format!("link: {key} = {value} is not possible; {wanted}") }
}

/// The bandwidth and what differs from its preset, as a word that [`Link::parse`] reads; hosts of
/// their own are left out.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bare = |link: &Self| Self { ranks: Vec::new(), server: None, ..link.clone() };
        let (bare, bits) = (bare(self), quantity::bandwidth_in_words(self.bandwidth));
        if let Some((name, ..)) = presets().find(|(.., link)| *link == bare) {
            return f.write_str(name);
        }
        f.write_str(&bits)?;
        let usual = base(&bits).unwrap_or_else(|_| Self::with_bandwidth(self.bandwidth));
        for (key, value, usual) in [
            ("latency", self.latency, usual.latency),
            ("jitter", self.jitter, usual.jitter),
            ("overhead", self.overhead, usual.overhead),
            ("local_latency", self.local_latency, usual.local_latency),
        ] {
            if value != usual {
                write!(f, ",{key}={}", quantity::seconds_in_words(value))?;
            }
        }
        if self.local != usual.local {
            write!(f, ",local={}", quantity::bandwidth_in_words(self.local))?;
        }
        for (key, value, usual) in [
            ("mtu", f64::from(self.mtu), f64::from(usual.mtu)),
            ("header", f64::from(self.header), f64::from(usual.header)),
            ("burst", f64::from(self.burst), f64::from(usual.burst)),
            ("stragglers", self.stragglers, usual.stragglers),
            ("slowdown", self.slowdown, usual.slowdown),
        ] {
            if value != usual {
                write!(f, ",{key}={value}")?;
            }
        }
        Ok(())
    }
}

/// The keys of a link written as a table; what is absent is as the preset has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkTable {
    preset: Option<String>,
    #[serde(default, deserialize_with = "quantity::de_bandwidth")]
    bandwidth: Option<f64>,
    #[serde(default, deserialize_with = "quantity::de_seconds")]
    latency: Option<f64>,
    #[serde(default, deserialize_with = "quantity::de_seconds")]
    jitter: Option<f64>,
    #[serde(default, deserialize_with = "quantity::de_seconds")]
    overhead: Option<f64>,
    mtu: Option<u32>,
    header: Option<u32>,
    burst: Option<u32>,
    stragglers: Option<f64>,
    slowdown: Option<f64>,
    #[serde(default, deserialize_with = "quantity::de_bandwidth")]
    local: Option<f64>,
    #[serde(default, deserialize_with = "quantity::de_seconds")]
    local_latency: Option<f64>,
    #[serde(default)]
    ranks: Vec<Host>,
    server: Option<ServerHost>,
}

impl LinkTable {
    fn link(self) -> Result<Link> {
        let base = match (&self.preset, self.bandwidth) {
            (Some(preset), _) => base(preset)?,
            (None, Some(bandwidth)) => Link::with_bandwidth(bandwidth),
            (None, None) => {
                return Err(refused("bandwidth", "nothing", "write bandwidth = \"100mbit\""));
            }
        };
        let link = Link {
            bandwidth: self.bandwidth.unwrap_or(base.bandwidth),
            latency: self.latency.unwrap_or(base.latency),
            jitter: self.jitter.unwrap_or(base.jitter),
            overhead: self.overhead.unwrap_or(base.overhead),
            mtu: self.mtu.unwrap_or(base.mtu),
            header: self.header.unwrap_or(base.header),
            burst: self.burst.unwrap_or(base.burst),
            stragglers: self.stragglers.unwrap_or(base.stragglers),
            slowdown: self.slowdown.unwrap_or(base.slowdown),
            local: self.local.unwrap_or(base.local),
            local_latency: self.local_latency.unwrap_or(base.local_latency),
            ranks: self.ranks,
            server: self.server,
        };
        link.validate()?;
        Ok(link)
    }
}

impl<'de> Deserialize<'de> for Link {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LinkVisitor;
        impl<'de> Visitor<'de> for LinkVisitor {
            type Value = Link;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a link's word such as \"100mbit,latency=1ms\", or a table")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Link, E> {
                Link::parse(text).map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Link, A::Error> {
                let table = LinkTable::deserialize(MapAccessDeserializer::new(map))?;
                table.link().map_err(de::Error::custom)
            }
        }
        deserializer.deserialize_any(LinkVisitor)
    }
}

#[cfg(test)]
mod tests;
