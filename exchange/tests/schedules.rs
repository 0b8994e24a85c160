//! The orders in which ranks may run, tried out: no deadlock, no lost message, the same mean on
//! every rank, the loss of a rank noticed by all others.
//!
//! `cargo test -p gradwire-exchange --features loom --test schedules` runs every order of a small
//! group with at most three preemptions; with `--features shuttle` instead, some
//! thousand orders, seeded, of whole exchanges. A waiting thread that nobody wakes is a deadlock
//! to either, because their clocks stand still: nothing here is saved by a timeout.
#![cfg(any(feature = "loom", feature = "shuttle"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use gradwire_exchange::{Collective, Error, mesh};

const PATIENCE: Duration = Duration::from_secs(3600);

#[cfg(feature = "loom")]
mod small {
    use super::*;
    use loom::thread;

    const PREEMPTIONS: usize = 3;

    /// Every round, each rank says its number and the round; the last rank goes after `last` rounds.
    fn talk(mut end: Box<dyn Collective>, rounds: u8, last: u8) -> Result<(), Error> {
        let (rank, ranks) = (end.rank() as u8, end.world_size() as u8);
        let rounds = if rank + 1 == ranks { last } else { rounds };
        for round in 0..rounds {
            let all = end.allgather(vec![rank, round])?;
            let decoded: Vec<&[u8]> = all.iter().map(|message| &**message).collect();
            let expected: Vec<[u8; 2]> = (0..ranks).map(|from| [from, round]).collect();
            assert_eq!(decoded, expected, "rank {rank} in round {round}");
        }
        Ok(())
    }

    fn group(ranks: usize, rounds: u8, last: u8) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(PREEMPTIONS);
        model.check(move || {
            let mut ends = mesh(ranks, PATIENCE).into_iter();
            let first = ends.next().unwrap();
            let threads: Vec<_> =
                ends.map(|end| thread::spawn(move || talk(end, rounds, last))).collect();
            let mut outcomes = vec![talk(first, rounds, last)];
            outcomes.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
            let gone = outcomes.pop().unwrap();
            assert_eq!(gone, Ok(()), "the last rank had everybody as long as it stayed");
            for outcome in outcomes {
                let lost = matches!(outcome, Err(Error::PeerLost { .. }));
                assert!(if last < rounds { lost } else { outcome.is_ok() }, "{outcome:?}");
            }
        });
    }

    #[test]
    fn two_ranks_hear_each_other() {
        group(2, 2, 2);
    }

    #[test]
    fn three_ranks_hear_one_another() {
        group(3, 1, 1);
    }

    #[test]
    fn a_rank_that_goes_is_missed_by_the_others() {
        group(2, 2, 1);
        group(3, 1, 0);
    }
}

#[cfg(all(feature = "shuttle", not(feature = "loom")))]
mod whole {
    use super::*;
    use gradwire_exchange::schemes::{powersgd, topk};
    use gradwire_exchange::{Bucketing, Exchange, Layout, SchemeConfig};
    use shuttle::thread;

    const RANKS: usize = 4;
    const STEPS: u64 = 3;
    const LENGTH: usize = 12;
    const ORDERS: usize = 1500;

    /// Trains nothing: exchanges, compares, and perhaps goes or gives up before the last step.
    fn life(
        end: Box<dyn Collective>,
        scheme: &SchemeConfig,
        fate: Fate,
    ) -> Result<Vec<f32>, Error> {
        let rank = end.rank();
        let layout = Layout::shaped([("a".to_string(), vec![4]), ("b".to_string(), vec![4, 2])])?;
        let mut exchange = Exchange::new(scheme, Bucketing::Parameter, layout, 1, end)?;
        let mut sum = vec![0.0; LENGTH];
        for step in 1..=STEPS {
            let last = step == STEPS && rank == 2;
            match fate {
                Fate::Goes if last => return Ok(sum),
                Fate::GivesUp if last => return Err(exchange.abort(step, "no more")),
                _ => {}
            }
            let mut gradient: Vec<f32> =
                (0..LENGTH).map(|i| ((i + 3 * rank) % 7) as f32 - step as f32).collect();
            exchange.allreduce(step, &mut gradient)?;
            sum.iter_mut().zip(&gradient).for_each(|(sum, g)| *sum += g);
            let hash = sum.iter().map(|v| u64::from(v.to_bits())).sum();
            assert_eq!(exchange.collective().compare(&[hash])?, None);
        }
        Ok(sum)
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Fate {
        Stays,
        Goes,
        GivesUp,
    }

    /// The outcome on each rank.
    fn lives(scheme: &SchemeConfig, fate: Fate) -> Vec<Result<Vec<f32>, Error>> {
        let threads: Vec<_> = mesh(RANKS, PATIENCE)
            .into_iter()
            .map(|end| {
                let scheme = scheme.clone();
                thread::spawn(move || life(end, &scheme, fate))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    fn explore(check: impl Fn() + Send + Sync + Clone + 'static) {
        let again = check.clone();
        shuttle::check_random(check, ORDERS);
        // Orders with few preemptions in unlikely places (Burckhardt et al. 2010).
        shuttle::check_pct(again, ORDERS, 3);
    }

    fn topk() -> SchemeConfig {
        SchemeConfig::Topk(topk::Config { ratio: 0.25.into(), ..Default::default() })
    }

    /// Two rounds for the matrix, one for the vector.
    fn powersgd() -> SchemeConfig {
        let min_compression_rate = 0.5;
        SchemeConfig::Powersgd(powersgd::Config {
            rank: 1,
            min_compression_rate,
            ..Default::default()
        })
    }

    #[test]
    fn exchanges_end_and_agree() {
        for scheme in [SchemeConfig::default(), topk(), powersgd()] {
            explore(move || {
                let outcomes = lives(&scheme, Fate::Stays);
                let first = outcomes[0].clone().unwrap();
                assert!(outcomes.iter().all(|o| o.as_ref() == Ok(&first)), "{outcomes:?}");
            });
        }
    }

    #[test]
    fn the_loss_of_a_rank_ends_all_others() {
        for scheme in [SchemeConfig::default(), topk(), powersgd()] {
            explore(move || {
                for (rank, outcome) in lives(&scheme, Fate::Goes).into_iter().enumerate() {
                    let lost = matches!(outcome, Err(Error::PeerLost { .. }));
                    assert!(if rank == 2 { outcome.is_ok() } else { lost }, "{rank}: {outcome:?}");
                }
            });
        }
    }

    #[test]
    fn an_abort_is_heard_by_all() {
        for scheme in [SchemeConfig::default(), topk(), powersgd()] {
            explore(move || {
                let outcomes = lives(&scheme, Fate::GivesUp);
                let heard = |o: &Result<_, Error>| {
                    matches!(o, Err(Error::Aborted { rank: 2, step: STEPS, .. }))
                };
                assert!(outcomes.iter().all(heard), "{outcomes:?}");
            });
        }
    }
}
