//! What a step of a record is charged.

use super::*;

const NANOSECOND: f64 = 1e-9;

fn header(ranks: usize, topology: &str) -> Header {
    let text = format!(
        r#"{{"network": 1, "ranks": {ranks}, "threads": 1, "clock": "cpu", "scheme": "x",
            "summable": false, "topology": "{topology}", "parameters": 1000, "seed": 1}}"#
    );
    serde_json::from_str(&text).unwrap()
}

/// A step of `ranks` ranks that are alike, in collectives of these bytes.
fn row(ranks: usize, up: &[u64]) -> Row {
    Row {
        step: 1,
        compute: vec![[10, 20, 30, 40]; ranks],
        encode: vec![vec![50; up.len()]; ranks],
        decode: vec![vec![800; up.len()]; ranks],
        up: vec![up.to_vec(); ranks],
        ..Row::default()
    }
}

fn charged(header: &Header, row: &Row, assumptions: &Assumptions) -> Vec<StepWork> {
    let messages = pattern(&header.topology).unwrap();
    works(header, row, assumptions.pattern.unwrap_or(messages), assumptions)
}

fn as_pattern(pattern: Pattern) -> Assumptions {
    Assumptions { pattern: Some(pattern), ..Assumptions::default() }
}

fn close(found: f64, nanoseconds: f64) -> bool {
    (found - nanoseconds * NANOSECOND).abs() < 1e-6 * NANOSECOND
}

#[test]
fn an_allreduce_is_charged_as_it_was() {
    let row = Row { operations: vec![Operation::Allreduce], ..row(8, &[4000]) };
    let charged = charged(&header(8, "allgather"), &row, &Assumptions::default());
    assert_eq!(charged[0].groups[0].pattern, Some(Pattern::RingAllreduce));
    assert!(close(charged[0].groups[0].decode, 800.0));
}

#[test]
fn another_topology_is_charged_what_its_ranks_and_its_server_read() {
    // Eight messages took 800.
    let (coded, gathered) = (row(8, &[100]), header(8, "allgather"));
    let at = |header: &Header, row: &Row, pattern| {
        let group = charged(header, row, &as_pattern(pattern))[3].groups[0];
        (group.decode / NANOSECOND, group.sent.aggregate / NANOSECOND)
    };
    let is = |(decode, aggregate): (f64, f64), expected: (f64, f64)| {
        (decode - expected.0).abs() < 1e-6 && (aggregate - expected.1).abs() < 1e-6
    };
    assert!(is(at(&gathered, &coded, Pattern::RingAllgather), (800.0, 0.0)));
    assert!(is(at(&gathered, &coded, Pattern::Server), (100.0, 800.0)));
    assert!(is(at(&gathered, &coded, Pattern::Sharded), (200.0, 0.0)));
    // A server read eight in 960, and a rank its answer in 800.
    let served = Row { aggregate: vec![960], ..row(8, &[100]) };
    let server = header(8, "server");
    assert!(is(at(&server, &served, Pattern::Server), (800.0, 960.0)));
    assert!(is(at(&server, &served, Pattern::RingAllgather), (960.0, 0.0)));
    assert!(is(at(&server, &served, Pattern::RingAllreduce), (240.0, 0.0)));
    let shards = Row { operations: vec![Operation::Allreduce], ..row(8, &[4000]) };
    assert!(is(at(&gathered, &shards, Pattern::Server), (400.0, 3200.0)));
    // Bytes that every rank needs are read by every rank, whoever passes them on.
    let bytes = Row { operations: vec![Operation::Allgather], ..row(8, &[100]) };
    assert!(is(at(&gathered, &bytes, Pattern::Server), (800.0, 0.0)));
}

#[test]
fn a_downlink_that_did_not_exist_is_no_longer_than_its_groups_mean() {
    let header = header(4, "allgather");
    let down = |row: &Row, pattern| -> Vec<u64> {
        let works = charged(&header, row, &as_pattern(pattern));
        works[0].groups.iter().map(|group| group.sent.down).collect()
    };
    // Three groups of 400, 600 and 3000 bytes as f32; messages of 300, 100 and 900 bytes.
    let row = Row { dense: vec![400, 600, 3000], ..row(4, &[300, 100, 900]) };
    assert_eq!(down(&row, Pattern::Server), [400, 400, 3000]);
    assert_eq!(down(&row, Pattern::Sharded), [100, 100, 750]);
    // Every rank needs all of what is no gradient.
    let operations = vec![Operation::Messages, Operation::Allreduce, Operation::Allgather];
    let rounds = Row { operations, dense: vec![400, 0, 0], ..row };
    assert_eq!(down(&rounds, Pattern::Server), [400, 100, 3600]);
}

#[test]
fn a_recorded_downlink_becomes_that_of_another_topology() {
    let server = Row { down: vec![vec![1000]; 4], ..row(4, &[300]) };
    let down = |topology: &str, row: &Row, pattern| {
        charged(&header(4, topology), row, &as_pattern(pattern))[0].groups[0].sent.down
    };
    assert_eq!(down("server", &server, Pattern::Server), 1000);
    assert_eq!(down("server", &server, Pattern::Sharded), 250);
    let shards = Row { down: vec![vec![250], vec![200], vec![300], vec![260]], ..row(4, &[300]) };
    assert_eq!(down("sharded", &shards, Pattern::Sharded), 250);
    assert_eq!(down("sharded", &shards, Pattern::Server), 1010);
}

/// `--compute` is about the model, `--codec-speed` about the scheme: what it learns is the scheme's.
#[test]
fn learning_is_the_codecs_and_not_computing() {
    let header = header(2, "allgather");
    let row = Row { learn: vec![500, 700], ..row(2, &[100]) };
    let measured = charged(&header, &row, &Assumptions::default());
    assert!(close(measured[0].after, 540.0) && close(measured[1].after, 740.0), "{measured:?}");
    let ten = Assumptions { codec_speed: Some(10.0), ..Assumptions::default() };
    assert!(close(charged(&header, &row, &ten)[1].after, 110.0));
    // Computing in no time at all; the learning stays.
    let none = Assumptions { compute: Some(0.0), ..Assumptions::default() };
    assert!(close(charged(&header, &row, &none)[1].after, 700.0));
}

/// Of an even number of steps, neither replay nor advice takes the slower one in the middle.
#[test]
fn the_median_of_two_steps_lies_between_them() {
    let took = |seconds: f64| StepTime { seconds, exposed: seconds / 4.0 };
    let replayed = Replayed {
        link: Link::with_bandwidth(1e9),
        pattern: Pattern::Server,
        steps: vec![took(1.0), took(2.0)],
        ends: vec![1.0, 3.0],
    };
    assert_eq!((replayed.median().seconds, replayed.median().exposed), (1.5, 0.375));
}
