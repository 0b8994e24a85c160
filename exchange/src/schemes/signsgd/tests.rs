use super::*;
use crate::compress::testing::bits;
use crate::reducer::Alone;
use crate::wire::frame::HEADER_BYTES;
use crate::{BucketGradient, Collective, Error, Exchange, Layout, Next, SchemeConfig, mesh};

fn majority(magnitude: Magnitude, ties: Ties) -> Config {
    Config { magnitude, vote: Vote::Majority, ties, ..Config::default() }
}

/// The mean that ranks with `gradients` end with, the same bits on all of them.
fn arrives(config: &Config, gradients: &[Vec<f32>]) -> Vec<f32> {
    let scheme = SchemeConfig::Signsgd(config.clone());
    let rank = |end: Box<dyn Collective>| {
        let mut gradient = gradients[end.rank()].clone();
        let layout = Layout::shaped([("a".to_string(), vec![gradient.len()])]).unwrap();
        let mut exchange = Exchange::new(&scheme, Bucketing::Whole, layout, 7, end).unwrap();
        let traffic = exchange.allreduce(1, &mut gradient).unwrap();
        let message = 4 + gradient.len().div_ceil(8);
        assert_eq!(traffic.wire_bytes, (HEADER_BYTES + message) as u64);
        gradient
    };
    let ends = mesh(gradients.len(), std::time::Duration::from_secs(60));
    let means: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let threads: Vec<_> = ends.into_iter().map(|end| scope.spawn(|| rank(end))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(means.iter().all(|mean| bits(mean) == bits(&means[0])));
    means[0].clone()
}

#[test]
fn the_sign_that_more_ranks_have_arrives_however_large_the_others_are() {
    let gradients =
        [vec![9.0, -1.0, 2.0, -0.0], vec![-1.0, -1.0, 2.0, 0.0], vec![-1.0, 70.0, 4.0, 5.0]];
    let unit = majority(Magnitude::Unit, Ties::Zero);
    assert_eq!(arrives(&unit, &gradients), [-1.0, -1.0, 1.0, 1.0]);
    // The mean of the mean magnitudes 3, 1 and 20.
    let mean = arrives(&majority(Magnitude::Mean, Ties::Zero), &gradients);
    assert_eq!(mean, [-8.0, -8.0, 8.0, 8.0]);
    // The mean of the messages is another thing.
    let all = arrives(&Config { magnitude: Magnitude::Unit, ..Config::default() }, &gradients);
    assert!((all[0] + 1.0 / 3.0).abs() < 1e-6, "{all:?}");
}

#[test]
fn ties_are_nothing_or_plus_and_who_has_nothing_abstains() {
    let gradients = [vec![1.0, -1.0, 1.0, -1.0], vec![-2.0, -3.0, 4.0, 5.0]];
    let of = |ties, gradients: &[Vec<f32>]| arrives(&majority(Magnitude::Unit, ties), gradients);
    assert_eq!(of(Ties::Zero, &gradients), [0.0, -1.0, 1.0, 0.0]);
    assert_eq!(of(Ties::Plus, &gradients), [1.0, -1.0, 1.0, 1.0]);
    let silent = [vec![0.0; 3], vec![-2.0, 3.0, -4.0], vec![-0.0; 3]];
    for ties in [Ties::Zero, Ties::Plus] {
        assert_eq!(of(ties, &silent), [-1.0, 1.0, -1.0]);
        assert_eq!(of(ties, &[vec![0.0; 3], vec![-0.0; 3]]), [0.0; 3]);
    }
}

/// Over two ranks: what one of them alone has arrives in every other place, and what none has never does.
#[test]
fn zeros_by_turns_are_ties_where_all_ranks_have_them() {
    for vote in [Vote::Majority, Vote::Mean] {
        let by_turns =
            Config { magnitude: Magnitude::Unit, vote, zeros: Zeros::ByTurns, ..Config::default() };
        let gradients = [vec![0.0, -0.0, 3.0, 3.0, -2.0], vec![0.0, 0.0, 0.0, 0.0, -5.0]];
        assert_eq!(arrives(&by_turns, &gradients), [0.0, 0.0, 1.0, 0.0, -1.0]);
        let swapped = [gradients[1].clone(), gradients[0].clone()];
        assert_eq!(arrives(&by_turns, &swapped), [0.0, 0.0, 0.0, 1.0, -1.0]);
    }
}

/// One rank's votes over a transport that says other things.
#[test]
fn messages_that_are_no_votes_are_refused() {
    let good = [&1f32.to_le_bytes()[..], &[0b101]].concat();
    let Built::Reducer(mut reducer) =
        majority(Magnitude::Unit, Ties::Zero).build(&Seat::alone(3, 1))
    else {
        panic!("a vote takes a round");
    };
    let mut alone = Alone::default();
    let mut values = [-1.0, 2.0, -3.0];
    let mut bucket = BucketGradient::new(&mut values, None);
    assert_eq!(alone.turn(&mut *reducer, 1, &mut bucket), Ok(Next::Again));
    assert_eq!(alone.turn(&mut *reducer, 1, &mut bucket), Ok(Next::Done));
    assert_eq!(values, [-1.0, 1.0, -1.0]);
    let votes = Majority::new(Signs::new(Magnitude::Unit), Ties::Zero, &Seat::alone(3, 1));
    let mut mean = [0.0; 3];
    assert!(votes.count([&good[..], &good].into_iter(), &mut mean).is_ok());
    for broken in [
        &good[..4],
        &good[..2],
        &[],
        &[&good[..], &[0]].concat(),
        &[&(-1f32).to_le_bytes()[..], &[0b101]].concat(),
        &[&f32::NAN.to_le_bytes()[..], &[0b101]].concat(),
    ] {
        let found = votes.count([&good[..], broken].into_iter(), &mut mean);
        assert!(matches!(found, Err(Error::Wire(_))), "{broken:?}: {found:?}");
    }
}

#[test]
fn settings_read_from_a_recipe_and_the_old_ones_are_the_defaults() {
    let read = |text: &str| toml::from_str::<Config>(text).unwrap();
    assert_eq!(read("vote = 'majority'"), majority(Magnitude::Mean, Ties::Zero));
    assert_eq!(read("magnitude = 'mean'"), Config::default());
    assert!(matches!(Config::default().build(&Seat::alone(1, 0)), Built::Codec(_)));
    let stray = Config { ties: Ties::Plus, ..Config::default() };
    assert!(matches!(stray.validate(), Err(Error::Config { key: "ties", .. })));
    assert_eq!(majority(Magnitude::Unit, Ties::Plus).validate(), Ok(()));
}
