//! Long plain messages between ranks that share memory, of which each rank reads its shard: the same
//! mean as if it read all of them, and whatever is wrong is wrong on every rank.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{PATIENT, Random, Tampered, bits};
use gradwire_exchange::schemes::powersgd;
use gradwire_exchange::{
    Awaited, Bucketing, Collective, Error, Exchange, Gradient, Layout, Result, SchemeConfig,
    Support, mesh,
};

const RANKS: usize = 3;

/// Each bucket is long; neither is a whole number of blocks.
const PARTS: [usize; 2] = [300_007, 280_001];
const LENGTH: usize = PARTS[0] + PARTS[1];

/// What happens to messages.
#[derive(Clone)]
enum Trouble {
    /// A bit of these ranks' messages is flipped on the way: round, rank, byte, bit.
    Flips(Vec<(usize, usize, usize, u8)>),
    /// Rank 2 alone sees a flipped bit in what rank 0 has sent first.
    Misread,
    /// Rank 1 goes before its message of this meeting.
    GoesBefore(usize),
}

use Trouble::{Flips, GoesBefore, Misread};

/// The ends of a mesh, each with this trouble.
fn troubled(shares: bool, trouble: &Trouble) -> Vec<Box<dyn Collective>> {
    let with = |(rank, end): (usize, Box<dyn Collective>)| -> Box<dyn Collective> {
        let trouble = trouble.clone();
        let tamper = move |round: usize, goes_up: bool, bytes: &mut Vec<u8>| -> Result<()> {
            match &trouble {
                Flips(flips) if goes_up => {
                    let here = flips.iter().filter(|flip| (flip.0, flip.1) == (round, rank));
                    here.for_each(|(_, _, byte, bit)| bytes[*byte] ^= 1 << bit);
                }
                Misread if !goes_up && (rank, round) == (2, 0) => bytes[1_000_000] ^= 1,
                GoesBefore(meeting) if (rank, round) == (1, *meeting) => {
                    return Err(Error::Transport { problem: "gone".to_string() });
                }
                _ => {}
            }
            Ok(())
        };
        Box::new(Tampered { end, shares, rounds: 0, tamper })
    };
    mesh(RANKS, PATIENT).into_iter().enumerate().map(with).collect()
}

/// What `work` returns on each rank.
fn each_rank<T: Send>(
    shares: bool,
    bucketing: &Bucketing,
    trouble: &Trouble,
    work: impl Fn(usize, &mut Exchange) -> T + Sync,
) -> Vec<T> {
    let layout = Layout::new([("a".to_string(), PARTS[0]), ("b".to_string(), PARTS[1])]).unwrap();
    let ends = troubled(shares, trouble);
    common::each_rank(ends, |rank, end| {
        let (scheme, layout) = (SchemeConfig::default(), layout.clone());
        let exchange = Exchange::new(&scheme, bucketing.clone(), layout, 9, end);
        work(rank, &mut exchange.unwrap())
    })
}

fn errors(trouble: &Trouble) -> Vec<Error> {
    each_rank(true, &Bucketing::Parameter, trouble, |rank, exchange| {
        exchange.allreduce(1, &mut Random(rank as u64).laplaces(LENGTH)).unwrap_err()
    })
}

const AWAITED: Awaited = Awaited::Gradient { step: 1 };

/// Checks that all ranks return the same error: of this rank's message, awaited as this.
fn names(errors: &[Error], culprit: usize, as_what: Awaited) {
    let named = |error: &Error| match error {
        Error::Message { rank, awaited, .. } => (*rank, *awaited) == (culprit, as_what),
        _ => false,
    };
    assert!(errors.iter().all(named), "{errors:?}");
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
}

#[test]
fn the_mean_is_that_of_all_messages() {
    for bucketing in [Bucketing::Whole, Bucketing::Parameter] {
        let of = |shares| {
            each_rank(shares, &bucketing, &Flips(Vec::new()), |rank, exchange| {
                let mut means = Vec::new();
                for step in 1..=4 {
                    let mut random = Random(10 * step + rank as u64);
                    let mut gradient = vec![0.0; LENGTH];
                    let mut support = Support::nothing(LENGTH);
                    for _ in 0..step * 40 {
                        let start = random.below(LENGTH - 200);
                        support.add(start..start + 200);
                        // Less than there might be, and a zero with a sign.
                        gradient[start + 3..start + 90].fill_with(|| random.laplace());
                        gradient[start + 100] = -0.0;
                    }
                    let within = Gradient::within(&mut gradient, &mut support);
                    exchange.allreduce(step, within).unwrap();
                    let outside = |i: &usize| !support.meets(*i..*i + 1);
                    assert!((0..LENGTH).filter(outside).all(|i| gradient[i].to_bits() == 0));
                    means.push(bits(&gradient));
                    let mut full = random.laplaces(LENGTH);
                    exchange.allreduce(100 + step, &mut full).unwrap();
                    means.push(bits(&full));
                }
                means
            })
        };
        let (shared, apart) = (of(true), of(false));
        assert!(shared.iter().all(|means| *means == apart[0]));
        assert!(apart.iter().all(|means| *means == apart[0]));
    }
}

#[test]
fn a_damaged_message_is_the_same_error_on_every_rank_its_senders_too() {
    let mut random = Random(1);
    for rank in 0..RANKS {
        for _ in 0..4 {
            let (byte, bit) = (random.below(4 * LENGTH), random.below(8) as u8);
            names(&errors(&Flips(vec![(0, rank, byte, bit)])), rank, AWAITED);
        }
        // The highest bit of an exponent: the damaged mean may not even be finite.
        names(&errors(&Flips(vec![(0, rank, 24 + 4 * 150_000 + 3, 6)])), rank, AWAITED);
    }
    // Of two, the lower.
    let two = |a, b| Flips(vec![(0, a, 2_000_000, 3), (0, b, 500_000, 3)]);
    names(&errors(&two(0, 2)), 0, AWAITED);
    names(&errors(&two(2, 1)), 1, AWAITED);
    names(&errors(&Flips((0..RANKS).map(|rank| (0, rank, 77, 0)).collect())), 0, AWAITED);
}

#[test]
fn a_damaged_mean_of_a_shard_is_too() {
    names(&errors(&Flips(vec![(1, 1, 21, 0)])), 1, AWAITED);
    // The messages come first.
    names(&errors(&Flips(vec![(0, 2, 1_000_000, 0), (1, 1, 21, 0)])), 2, AWAITED);
}

#[test]
fn what_one_rank_alone_could_not_read_ends_the_step_of_all() {
    let errors = errors(&Misread);
    assert!(matches!(errors[2], Error::Message { rank: 0, .. }), "{}", errors[2]);
    for error in &errors[..2] {
        let Error::Aborted { rank: 2, step: 1, reason } = error else { panic!("{error}") };
        assert!(reason.contains("message of rank 0"), "{reason}");
    }
}

#[test]
fn who_goes_before_saying_so_is_missed() {
    let errors = errors(&GoesBefore(1));
    for by in [0, 2] {
        assert_eq!(errors[by], Error::PeerLost { rank: 1, by, awaited: AWAITED });
    }
}

/// A scheme of two rounds, each an allreduce of two meetings: scatter and share, scatter and share.
fn errors_of_rounds(trouble: &Trouble) -> Vec<Result<(), Error>> {
    let shapes = [("a".to_string(), vec![600, 900]), ("b".to_string(), vec![70])];
    let layout = Layout::shaped(shapes).unwrap();
    common::each_rank(troubled(true, trouble), |rank, end| {
        let scheme = SchemeConfig::Powersgd(powersgd::Config::default());
        let layout = layout.clone();
        let mut exchange = Exchange::new(&scheme, Bucketing::Whole, layout, 9, end).unwrap();
        let before = exchange.save();
        let mut gradient = Random(rank as u64).laplaces(540_070);
        let done = exchange.allreduce(1, &mut gradient).map(|_| ());
        assert_eq!(done.is_err(), exchange.save() == before);
        done
    })
}

#[test]
fn damage_in_either_round_is_the_same_error_on_every_rank_and_leaves_no_trace() {
    assert!(errors_of_rounds(&Flips(Vec::new())).iter().all(Result::is_ok));
    for round in 0..4 {
        for (rank, byte) in [(0, 30), (1, 200), (2, 77)] {
            let outcomes = errors_of_rounds(&Flips(vec![(round, rank, byte, 3)]));
            let errors: Vec<Error> = outcomes.into_iter().map(Result::unwrap_err).collect();
            names(&errors, rank, AWAITED);
        }
    }
}

#[test]
fn a_rank_lost_between_the_rounds_is_missed_by_the_others() {
    let outcomes = errors_of_rounds(&GoesBefore(2));
    for by in [0, 2] {
        assert_eq!(outcomes[by], Err(Error::PeerLost { rank: 1, by, awaited: AWAITED }));
    }
}
