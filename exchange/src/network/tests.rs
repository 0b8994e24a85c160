//! Closed forms, bounds and monotony.

use proptest::prelude::*;

use super::link::{Host, ServerHost};
use super::*;
use crate::Operation;

const PATTERNS: [Pattern; 5] = [
    Pattern::RingAllgather,
    Pattern::RingAllreduce,
    Pattern::Server,
    Pattern::Sharded,
    Pattern::TwoLevel { group: 2, between: Operation::Messages },
];

/// A link without headers, on which arithmetic is easy: 8 Gbit/s are 1 byte per nanosecond.
fn bare(latency: f64) -> Link {
    Link { header: 0, latency, ..Link::with_bandwidth(8e9) }
}

/// Seconds of one round of a collective whose messages are all ready at the same time, and its
/// slowest rank's.
fn collective_seconds(link: &Link, pattern: Pattern, sent: &[Sent]) -> f64 {
    let group = |sent| GroupWork { ready: 1.0, sent, ..GroupWork::default() };
    let work = |sent: &Sent| StepWork { groups: vec![group(*sent)], ..StepWork::default() };
    let works: Vec<StepWork> = sent.iter().map(work).collect();
    Clock::new(link, pattern, sent.len(), 0).step(0, &works).seconds
}

fn equal(ranks: usize, up: u64, down: u64) -> Vec<Sent> {
    vec![Sent { up, down, ..Sent::default() }; ranks]
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-6)
}

#[test]
fn equal_messages_take_what_the_closed_forms_say() {
    let (alpha, link) = (1e-4, bare(1e-4));
    for ranks in [2usize, 3, 4, 8, 64] {
        let n = ranks as f64;
        let (up, down) = (64_000 * ranks as u64, 4_000u64);
        let (t_up, t_down) = (up as f64 / 1e9, down as f64 / 1e9);
        for (pattern, expected) in [
            (Pattern::RingAllgather, (n - 1.0) * (alpha + t_up)),
            (Pattern::RingAllreduce, 2.0 * (n - 1.0) * (alpha + t_up / n)),
            (Pattern::Server, 2.0 * alpha + n * t_up + n * t_down),
            (Pattern::Sharded, (n - 1.0) * (2.0 * alpha + t_up / n + t_down)),
        ] {
            let seconds = collective_seconds(&link, pattern, &equal(ranks, up, down));
            assert!(close(seconds, expected), "{pattern:?} {ranks}: {seconds} {expected}");
        }
    }
}

/// The average within groups, a ring of the firsts, what they hand on: and one group has no ring.
#[test]
fn two_levels_take_what_their_links_say() {
    let link = Link { local: 80e9, local_latency: 1e-6, ..bare(1e-4) };
    for (groups, group) in [(1usize, 4usize), (2, 2), (4, 8)] {
        let (up, down, average, handed) = (1_000_000u64, 40_000u64, 200_000u64, 50_000u64);
        let first = |rank: usize| rank.is_multiple_of(group);
        let sent: Vec<Sent> = (0..groups * group)
            .map(|rank| Sent {
                up: if first(rank) { up } else { 0 },
                down,
                local: average + if first(rank) { handed } else { 0 },
                ..Sent::default()
            })
            .collect();
        // Other groups say that they take part.
        let latency = if groups > 1 { 1e-4 } else { 1e-6 };
        let within = 3.0 * latency + (average + handed) as f64 * 8.0 / 80e9;
        let m = groups as f64;
        for (between, seconds_between) in [
            (Operation::Messages, (m - 1.0) * (1e-4 + 1e-3)),
            (Operation::Allreduce, 2.0 * (m - 1.0) * (1e-4 + 1e-3 / m)),
            (Operation::ReduceScatter, (m - 1.0) * (2e-4 + 1e-3 / m + 4e-5)),
        ] {
            let pattern = Pattern::TwoLevel { group, between: Operation::Messages };
            let seconds = collective_seconds(&link, pattern.carrying(between), &sent);
            assert!(close(seconds, within + seconds_between), "{between:?}: {seconds}");
        }
    }
}

/// Two ranks of three are waited for by the third, which is slow and makes good in a step without messages what the
/// link cost it in the one before.
#[test]
fn what_a_link_cost_and_was_made_good_is_not_counted_twice() {
    let link = bare(1e-3);
    let work = |before: f64, groups| StepWork { before, groups, ..StepWork::default() };
    let mut clock = Clock::new(&link, Pattern::RingAllgather, 3, 0);
    let mut exposed = 0.0;
    for round in 0..4 {
        let meet = vec![GroupWork { ready: 1.0, ..GroupWork::default() }];
        let all = |groups: &Vec<GroupWork>| {
            [0.01, 0.01, 0.05].map(|seconds| work(seconds, groups.clone())).to_vec()
        };
        exposed += clock.step(2 * round, &all(&meet)).exposed;
        exposed += clock.step(2 * round + 1, &all(&Vec::new())).exposed;
    }
    assert!(close(clock.now() - exposed, 4.0 * 0.1), "{exposed} {}", clock.now());
}

/// The server's interface is what its uplinks and downlinks share; a faster one leaves the ranks'.
#[test]
fn a_server_is_as_fast_as_its_interface() {
    let mut link = bare(0.0);
    let sent = equal(8, 1_000_000, 500_000);
    assert!(close(collective_seconds(&link, Pattern::Server, &sent), 12e-3));
    link.server = Some(ServerHost { bandwidth: Some(8e10) });
    assert!(close(collective_seconds(&link, Pattern::Server, &sent), 1.5e-3));
    link.ranks = vec![Host { rank: 3, bandwidth: Some(8e8), latency: None, slowdown: None }];
    assert!(close(collective_seconds(&link, Pattern::Server, &sent), 15e-3));
}

/// A burst passes at once, and comes back only with time.
#[test]
fn a_token_bucket_gives_its_burst_once() {
    let link = Link { burst: 250_000, ..bare(0.0) };
    let work = |before| StepWork {
        before,
        groups: vec![GroupWork {
            ready: 1.0,
            sent: Sent { up: 1_000_000, ..Sent::default() },
            ..GroupWork::default()
        }],
        ..StepWork::default()
    };
    let mut clock = Clock::new(&link, Pattern::RingAllgather, 2, 0);
    let mut step = |number, before| clock.step(number, &[work(before), work(before)]).exposed;
    assert!(close(step(1, 1.0), 0.75e-3));
    assert!(close(step(2, 0.0), 1e-3), "the bucket is empty");
    assert!(close(step(3, 1e-4), 0.9e-3), "100 kB have come back");
    assert!(close(step(4, 1.0), 0.75e-3), "it holds no more than its depth");
}

/// A server is a host of its own: a slow rank does not slow it, though it slows the share of a shard.
#[test]
fn a_straggler_does_not_slow_a_separate_server() {
    let mut link = bare(0.0);
    link.ranks = vec![Host { rank: 1, bandwidth: None, latency: None, slowdown: Some(3.0) }];
    let sent = Sent { aggregate: 0.25, ..Sent::default() };
    let work = |pattern| StepWork {
        groups: vec![GroupWork { sent, pattern, ..GroupWork::default() }],
        ..StepWork::default()
    };
    let seconds = |own: Pattern, pattern| {
        Clock::new(&link, own, 2, 0).step(1, &[work(pattern), work(pattern)]).seconds
    };
    assert!(close(seconds(Pattern::Server, None), 0.25));
    assert!(close(seconds(Pattern::RingAllgather, Some(Pattern::Server)), 0.25));
    assert!(close(seconds(Pattern::Sharded, None), 0.75));
}

/// An exchange beside the steps costs what the steps until it is waited for do not hide.
#[test]
fn what_is_exchanged_beside_the_steps_is_hidden_by_them() {
    let sent = Sent { up: 1_000_000, ..Sent::default() };
    let group = GroupWork { ready: 1.0, encode: 1e-4, sent, ..GroupWork::default() };
    // The exchange takes 1 ms on the link, and 0.1 ms to encode; of four steps the first begins it.
    let took = |delay, seconds: f64| {
        let quiet = StepWork { before: seconds, after: seconds, ..StepWork::default() };
        let sending = StepWork { groups: vec![group], delay, ..quiet.clone() };
        let mut clock = Clock::new(&bare(0.0), Pattern::RingAllgather, 2, 0);
        let steps = (1..=4).map(|step| if step == 1 { &sending } else { &quiet });
        let took = (1..).zip(steps).map(|(n, work)| clock.step(n, &[work.clone(), work.clone()]));
        let took: Vec<f64> = took.map(|took| took.seconds).collect();
        (took, clock.now())
    };
    let (seconds, now) = took(0, 1e-4);
    assert!(close(seconds[0], 1.3e-3) && close(now, 1.9e-3), "{seconds:?}");
    let (seconds, now) = took(2, 1e-4);
    assert!(close(seconds[0], 2e-4) && close(seconds[1], 2e-4), "nobody waits yet: {seconds:?}");
    assert!(close(seconds[2], 9e-4) && close(now, 1.5e-3), "two steps hide 0.4 ms: {seconds:?}");
    let (_, now) = took(2, 1e-3);
    assert!(close(now, 8e-3), "long steps hide all of it");
}

/// Any link on which time is finite.
fn links() -> impl Strategy<Value = Link> {
    let speed = (4.0..11.0f64).prop_map(|power| 10f64.powf(power));
    (speed, 0.0..0.1f64, 0.0..0.01f64, 0.0..0.001f64, 0..100_000u32, 0.0..1.0f64, 1.0..5.0f64)
        .prop_map(|(bandwidth, latency, jitter, overhead, burst, stragglers, slowdown)| Link {
            latency,
            jitter,
            overhead,
            burst,
            stragglers,
            slowdown,
            ..Link::with_bandwidth(bandwidth)
        })
}

fn works() -> impl Strategy<Value = Vec<StepWork>> {
    let group = (0.0..1.0f64, 0.0..0.01f64, 0.0..0.01f64, 0..4_000_000u64, 0..4_000_000u64)
        .prop_map(|(ready, encode, decode, up, down)| GroupWork {
            ready,
            encode,
            decode,
            sent: Sent { up, down, ..Sent::default() },
            pattern: None,
        });
    (1..7usize, 1..5usize).prop_flat_map(move |(ranks, groups)| {
        let work = (0.0..0.1f64, 0.0..0.1f64, 0.0..0.01f64).prop_flat_map({
            let group = group.clone();
            move |(before, backward, after)| {
                prop::collection::vec(group.clone(), groups).prop_map(move |mut groups| {
                    groups.sort_by(|a, b| a.ready.total_cmp(&b.ready));
                    StepWork { before, backward, after, groups, delay: 0 }
                })
            }
        });
        prop::collection::vec(work, ranks)
    })
}

fn pattern() -> impl Strategy<Value = Pattern> {
    prop::sample::select(PATTERNS.to_vec())
}

fn after(link: &Link, pattern: Pattern, works: &[StepWork]) -> (f64, Vec<StepTime>) {
    let mut clock = Clock::new(link, pattern, works.len(), 5);
    let took = (1..=4).map(|step| clock.step(step, works)).collect();
    (clock.now(), took)
}

/// Room for rounding.
const SLACK: f64 = 1e-9;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn time_is_finite_repeats_and_adds_up(link in links(), pattern in pattern(), works in works()) {
        prop_assert!(link.validate().is_ok());
        let (now, took) = after(&link, pattern, &works);
        prop_assert!(now.is_finite());
        prop_assert_eq!(&after(&link, pattern, &works), &(now, took.clone()));
        let sum: f64 = took.iter().map(|took| took.seconds).sum();
        prop_assert!((sum - now).abs() <= 1e-9 * now);
        prop_assert!(took.iter().all(|took| took.seconds >= 0.0 && took.exposed <= took.seconds + SLACK));
    }

    /// More bandwidth, less latency, shorter messages and faster ranks never take longer.
    #[test]
    fn better_is_not_slower(link in links(), pattern in pattern(), works in works(), by in 0.1..1.0f64) {
        let link = Link { burst: 0, ..link };
        let (now, _) = after(&link, pattern, &works);
        let faster = [
            Link { bandwidth: link.bandwidth / by, ..link.clone() },
            Link { latency: link.latency * by, ..link.clone() },
            Link { jitter: link.jitter * by, ..link.clone() },
            Link { overhead: link.overhead * by, ..link.clone() },
            Link { slowdown: 1.0, ..link.clone() },
        ];
        for link in faster {
            prop_assert!(after(&link, pattern, &works).0 <= now + SLACK * (1.0 + now));
        }
        let mut smaller = works;
        for group in smaller.iter_mut().flat_map(|work| &mut work.groups) {
            group.sent.up = (group.sent.up as f64 * by) as u64;
        }
        prop_assert!(after(&link, pattern, &smaller).0 <= now + SLACK * (1.0 + now));
    }

    /// max(compute, exchange) ≤ a step with overlap ≤ compute + exchange.
    #[test]
    fn overlap_hides_no_more_than_there_is(link in links(), pattern in pattern(), works in works()) {
        // Equal ranks, so that nobody waits for another's computing.
        let link = Link { stragglers: 0.0, jitter: 0.0, burst: 0, ..link };
        let equal = vec![works[0].clone(); works.len()];
        let without = |change: &dyn Fn(&mut StepWork)| {
            let mut works = equal.clone();
            works.iter_mut().for_each(change);
            Clock::new(&link, pattern, works.len(), 5).step(1, &works).seconds
        };
        let overlapped = without(&|_| ());
        let sequential =
            without(&|work| work.groups.iter_mut().for_each(|group| group.ready = 1.0));
        let computing = equal[0].before + equal[0].backward + equal[0].after;
        let exchanging = without(&|work| (work.before, work.backward, work.after) = (0.0, 0.0, 0.0));
        prop_assert!(overlapped <= sequential + SLACK * (1.0 + sequential));
        prop_assert!(sequential <= computing + exchanging + SLACK * (1.0 + sequential));
        prop_assert!(overlapped + SLACK * (1.0 + sequential) >= computing.max(exchanging));
    }
}
