//! What one exchange cost: bytes on the wire, time, what of it a thread has computed, and what compressors report
//! about themselves.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How the values of one gauge, from several buckets, become one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Merge {
    /// They add up.
    Sum,
    /// Their mean, each counting with this weight.
    Mean {
        /// The weight of this value.
        weight: f64,
    },
}

/// One number that a compressor reports about its last message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gauge {
    /// Name, the same for every bucket and step.
    pub name: Cow<'static, str>,
    /// Value.
    pub value: f64,
    /// How it joins the same gauge of other buckets.
    pub(crate) merge: Merge,
}

impl Gauge {
    /// A count, adding up over buckets.
    pub fn sum(name: &'static str, value: f64) -> Self {
        Self { name: name.into(), value, merge: Merge::Sum }
    }

    /// A property, averaged over buckets by `weight`.
    pub fn mean(name: &'static str, value: f64, weight: f64) -> Self {
        Self { name: name.into(), value, merge: Merge::Mean { weight } }
    }

    /// Joins `gauges` into `merged`, by name.
    pub(crate) fn merge_into(merged: &mut Vec<Gauge>, gauges: &[Gauge]) {
        for gauge in gauges {
            match merged.iter_mut().find(|other| other.name == gauge.name) {
                Some(other) => other.join(gauge),
                None => merged.push(gauge.clone()),
            }
        }
    }

    fn join(&mut self, other: &Gauge) {
        match (&mut self.merge, other.merge) {
            (Merge::Mean { weight: mine }, Merge::Mean { weight: theirs }) => {
                let total = *mine + theirs;
                if total > 0.0 {
                    self.value = (self.value * *mine + other.value * theirs) / total;
                }
                *mine = total;
            }
            _ => self.value += other.value,
        }
    }
}

/// What one step of one rank cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Traffic {
    /// Bytes of this rank's message, all headers included. One rank alone counts what it would
    /// have sent.
    pub wire_bytes: u64,
    /// Bytes that came of all messages and went back to this rank: from a server its message; with
    /// shards what this rank shared of its own. 0 over an allgather, as of messages of plain f32, whose ranks
    /// divide the shards among themselves.
    pub downlink_bytes: u64,
    /// Bytes that this rank sent to others of its own group, where ranks speak in groups, all headers
    /// included; not among [`wire_bytes`](Self::wire_bytes), which the group's first rank counts.
    pub local_bytes: u64,
    /// Bytes of the same message sent as plain f32, all headers included.
    pub dense_bytes: u64,
    /// Elements of the gradient.
    pub parameters: u64,
    /// Buckets that were sent as f32 because their compressed form was larger, or because the scheme had none for them.
    pub dense_fallbacks: u64,
    /// Time to check, compress and frame the gradient.
    pub encode: Duration,
    /// Time to send, and to wait for the other ranks' messages.
    pub wait: Duration,
    /// Time to check, decode and average all messages, or to take what a server made of them.
    pub decode: Duration,
    /// What the compressors tell, joined over buckets; with error feedback also
    /// `residual_norm`, the L2 norm of what was not sent.
    pub gauges: Vec<Gauge>,
    /// The collectives that made up the step, in their order: one for each group of buckets and
    /// kind of message, several where a scheme takes several rounds. Bytes, fallbacks and times
    /// above are the sums of theirs.
    pub legs: Vec<Leg>,
    /// What this rank's thread computed after the last group: what compressors learn, gauges.
    pub finish_cpu: Duration,
    /// Of each of the policy's rules, what its parameters have of `wire_bytes` and of `dense_bytes`.
    pub rules: Vec<[u64; 2]>,
}

/// Which collective carried a leg.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Operation {
    /// A message of every rank, averaged where the topology says: by every rank, a server, or each
    /// rank its shard.
    #[default]
    Messages,
    /// Bytes of every rank to every rank.
    Allgather,
    /// f32 values, averaged: nobody needs all ranks' values.
    Allreduce,
    /// A message of every rank of which each rank is sent its shard; the means of the shards travel
    /// as f32.
    ReduceScatter,
}

/// One collective of a step: what one group of buckets sends in one round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Leg {
    /// The group's number.
    pub group: usize,
    /// What carried it.
    pub operation: Operation,
    /// Bytes of this rank's message about it, all headers included.
    pub wire_bytes: u64,
    /// Bytes that came back, as [`Traffic::downlink_bytes`].
    pub downlink_bytes: u64,
    /// Bytes within the group of ranks, as [`Traffic::local_bytes`]: of all legs of a group of buckets
    /// together, on the last of them.
    pub local_bytes: u64,
    /// Bytes of the same message sent as plain f32, all headers included.
    pub dense_bytes: u64,
    /// Buckets of it that were sent as f32 because their compressed form was larger.
    pub dense_fallbacks: u64,
    /// Time to check, compress and frame it.
    pub encode: Duration,
    /// Time to send it, and to wait for the other ranks'.
    pub wait: Duration,
    /// Time to check, decode and average what came.
    pub decode: Duration,
    /// What this rank's thread computed in [`encode`](Self::encode), whatever else ran meanwhile.
    pub encode_cpu: Duration,
    /// What this rank's thread computed in [`decode`](Self::decode).
    pub decode_cpu: Duration,
    /// What a server's thread computed to check, decode, average and answer; counted on rank 0.
    pub aggregate_cpu: Duration,
}

impl Leg {
    /// Counts what has passed since as encoding.
    pub(crate) fn add_encode(&mut self, since: Stopwatch) {
        let (passed, computed) = since.read();
        self.encode += passed;
        self.encode_cpu += computed;
    }

    /// Counts what has passed since as waiting.
    pub(crate) fn add_wait(&mut self, since: Stopwatch) {
        self.wait += since.read().0;
    }

    /// Counts what has passed since as decoding.
    pub(crate) fn add_decode(&mut self, since: Stopwatch) {
        let (passed, computed) = since.read();
        self.decode += passed;
        self.decode_cpu += computed;
    }
}

impl Traffic {
    /// Time of the whole exchange.
    pub fn total(&self) -> Duration {
        self.encode + self.wait + self.decode
    }

    /// Bits per parameter: 32 times the [compression ratio](Self::compression_ratio), so that a
    /// gradient sent as plain f32 takes exactly 32; 0 when there was nothing to send.
    pub fn bits_per_parameter(&self) -> f64 {
        32.0 * self.compression_ratio()
    }

    /// Compression ratio: bytes on the wire over bytes of plain f32, both with their headers.
    /// Smaller is stronger.
    pub fn compression_ratio(&self) -> f64 {
        ratio(self.wire_bytes, self.dense_bytes)
    }

    /// Adds a group's part.
    pub(crate) fn add(&mut self, leg: Leg) {
        self.wire_bytes += leg.wire_bytes;
        self.downlink_bytes += leg.downlink_bytes;
        self.dense_bytes += leg.dense_bytes;
        self.dense_fallbacks += leg.dense_fallbacks;
        self.encode += leg.encode;
        self.wait += leg.wait;
        self.decode += leg.decode;
        self.legs.push(leg);
    }

    /// The value of a gauge.
    pub fn gauge(&self, name: &str) -> Option<f64> {
        self.gauges.iter().find(|gauge| gauge.name == name).map(|gauge| gauge.value)
    }
}

/// What has passed, and what this thread has computed of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch {
    passed: Instant,
    computed: Duration,
}

impl Stopwatch {
    /// Begins to count.
    pub(crate) fn start() -> Self {
        Self { passed: Instant::now(), computed: thread_time() }
    }

    /// What has passed, and what the thread has computed, since it was started, on this thread.
    pub(crate) fn read(&self) -> (Duration, Duration) {
        (self.passed.elapsed(), thread_time().saturating_sub(self.computed))
    }
}

/// What the processors have spent on the calling thread since it began. Two readings on one thread
/// tell what lay between them, whatever else ran meanwhile; waiting costs nothing. Where the
/// system has no such clock, the time that has passed, waiting included.
#[cfg(unix)]
pub fn thread_time() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    // The clock counts up from 0 and a second has 10⁹ nanoseconds.
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// What has passed: this system has no clock for a thread's own time.
#[cfg(not(unix))]
pub fn thread_time() -> Duration {
    use std::sync::OnceLock;
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed()
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn gauges_join_over_buckets() {
        let mut merged = Vec::new();
        Gauge::merge_into(&mut merged, &[Gauge::sum("kept", 3.0), Gauge::mean("bits", 8.0, 3.0)]);
        Gauge::merge_into(&mut merged, &[Gauge::sum("kept", 1.0), Gauge::mean("bits", 4.0, 1.0)]);
        let traffic = Traffic { gauges: merged, ..Traffic::default() };
        assert_eq!(traffic.gauge("kept"), Some(4.0));
        assert_eq!(traffic.gauge("bits"), Some(7.0));
        assert_eq!(traffic.gauge("levels"), None);
    }

    /// A name of any process is read, however many have been read before.
    #[test]
    fn gauges_are_read_whatever_their_names() {
        for number in 0..1000 {
            let gauge = Gauge::mean("x", 0.5, 2.0);
            let text = toml::to_string(&gauge).unwrap().replace("\"x\"", &format!("\"x{number}\""));
            let read: Gauge = toml::from_str(&text).unwrap();
            assert_eq!((read.name.as_ref(), read.value), (format!("x{number}").as_str(), 0.5));
        }
    }

    #[test]
    fn computing_is_charged_and_sleeping_is_not() {
        let before = thread_time();
        std::thread::sleep(Duration::from_millis(30));
        let slept = thread_time() - before;
        assert!(slept < Duration::from_millis(15), "{slept:?}");
        let mut sum = 0u64;
        while thread_time() - before < slept + Duration::from_millis(5) {
            sum = black_box(sum.wrapping_add(1));
        }
        assert!(sum > 0);
    }
}
