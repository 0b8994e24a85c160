//! What a step of a record is charged.

use super::*;

const NANOSECOND: f64 = 1e-9;

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

fn charged(row: &Row, assumptions: &Assumptions) -> Vec<StepWork> {
    works(row, Pattern::RingAllgather, assumptions)
}

fn close(found: f64, nanoseconds: f64) -> bool {
    (found - nanoseconds * NANOSECOND).abs() < 1e-6 * NANOSECOND
}

#[test]
fn a_collective_is_charged_as_it_was() {
    let operations = vec![Operation::Messages, Operation::Allreduce];
    let row = Row {
        operations,
        down: vec![vec![0, 30]; 8],
        aggregate: vec![0, 9],
        ..row(8, &[100, 4000])
    };
    let groups = &charged(&row, &Assumptions::default())[0].groups;
    let patterns = groups.iter().map(|group| group.pattern);
    assert!(patterns.eq([Pattern::RingAllgather, Pattern::RingAllreduce].map(Some)));
    let Sent { up, down, aggregate, .. } = groups[1].sent;
    assert_eq!((up, down), (4000, 30));
    assert!(close(groups[1].decode, 800.0) && close(aggregate, 9.0), "{groups:?}");
}

/// `--compute` is about the model, `--codec-speed` about the scheme: what it learns is the scheme's.
#[test]
fn learning_is_the_codecs_and_not_computing() {
    let row = Row { learn: vec![500, 700], ..row(2, &[100]) };
    let measured = charged(&row, &Assumptions::default());
    assert!(close(measured[0].after, 540.0) && close(measured[1].after, 740.0), "{measured:?}");
    let ten = Assumptions { codec_speed: Some(10.0), ..Assumptions::default() };
    assert!(close(charged(&row, &ten)[1].after, 110.0));
    // Computing in no time at all; the learning stays.
    let none = Assumptions { compute: Some(0.0), ..Assumptions::default() };
    assert!(close(charged(&row, &none)[1].after, 700.0));
}

/// Of an even number of steps, neither replay nor advice takes the slower one in the middle.
#[test]
fn the_median_of_two_steps_lies_between_them() {
    let took = |seconds: f64| StepTime { seconds, exposed: seconds / 4.0 };
    let mut replayed = Replayed {
        link: Link::with_bandwidth(1e9),
        pattern: Pattern::Server,
        steps: vec![took(1.0), took(2.0)],
        ends: vec![1.0, 3.0],
        in_rounds: false,
    };
    assert_eq!((replayed.typical().seconds, replayed.typical().exposed), (1.5, 0.375));
    // A round of four steps, of which the last alone sends: the mean, which is not that of the others.
    replayed.steps = [1.0, 1.0, 1.0, 5.0].map(took).into();
    replayed.in_rounds = true;
    assert_eq!((replayed.typical().seconds, replayed.typical().exposed), (2.0, 0.5));
}
