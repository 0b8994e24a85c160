//! Every scheme over every topology, in groups of buckets or not, on threads and on processes: the same
//! bits everywhere, whatever the timing. What goes wrong is in `failures.rs`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{COMPRESSED, Echo, OWNED, Ran, Random, Trial, bits, half, parameters, topk, wirings};
use gradwire_exchange::schemes::{randomk, signsgd};
use gradwire_exchange::{
    Bucketing, Collective, Error, Exchange, Gradient, Rule, Scheme, SchemeConfig, State, Support,
    Topology, Traffic, Turn,
};

const LENGTH: usize = Trial::LENGTH;

/// Server and shards, threads and processes end where the allgather of threads ends, bit for bit: means,
/// residuals, what compressors have learnt, uplink bytes.
#[test]
fn exact_topologies_are_bit_identical_to_the_allgather() {
    let two = [vec![3, 0], vec![4, 2, 1]];
    for scheme in SchemeConfig::specimens() {
        for (bucketing, ranks, groups) in [
            (Bucketing::Whole, 1, &[][..]),
            (Bucketing::Whole, 3, &[]),
            (Bucketing::Parameter, 4, &[]),
            (Bucketing::Parameter, 3, &two),
        ] {
            let trial = |topology: Topology| {
                Trial::new(&scheme, topology).bucketing(bucketing.clone()).groups(groups)
            };
            let expected = trial(Topology::Allgather).run(ranks);
            assert!(expected.iter().all(|ran| ran.means == expected[0].means));
            for trial in common::FLAT.iter().map(|topology| trial(*topology)) {
                if !trial.is_valid() {
                    continue;
                }
                let found = trial.everywhere(ranks, |rank, mut exchange| {
                    trial.steps(rank, &mut exchange, 1..=4)
                });
                let ranks = found.iter().flat_map(|ranks| ranks.iter().zip(&expected));
                for (found, expected) in ranks {
                    let case = format!("{trial:?} × {ranks}", ranks = expected.means.len());
                    assert_eq!(found.means, expected.means, "means: {case}");
                    assert_eq!(found.state, expected.state, "state: {case}");
                    assert_eq!(found.wire_bytes, expected.wire_bytes, "bytes: {case}");
                }
            }
        }
    }
}

/// With local steps there are fewer exchanges than steps. Compressors count the exchanges: what they do every so often, and
/// over a whole run, they do as if steps without an exchange were not there.
#[test]
fn compressors_count_exchanges_and_not_steps() {
    for scheme in SchemeConfig::specimens() {
        let mut trial = Trial::new(&scheme, Topology::Allgather);
        trial.policy.warmup_steps = Some(0);
        trial.policy.measure_every = None;
        let run = |apart: u64| {
            trial.over(3, |rank, mut exchange| {
                let mut means = Vec::new();
                for turn in 1..=40 {
                    let mut gradient = Trial::gradient(rank, turn);
                    gradient.iter_mut().step_by(5).for_each(|value| *value = 0.0);
                    let turn =
                        Turn { step: apart * turn, exchange: turn, before: apart * (turn - 1) };
                    let traffic = exchange.allreduce(turn, &mut gradient).unwrap();
                    means.push((bits(&gradient), traffic.wire_bytes));
                }
                (means, exchange.save())
            })
        };
        assert!(run(1) == run(16), "{trial:?}");
    }
}

/// Groups may be exchanged in any order: means, states, bytes and gauges are those of one call.
#[test]
fn the_groups_and_their_order_change_nothing() {
    let each: Vec<Vec<usize>> = (0..5).map(|bucket| vec![bucket]).collect();
    for scheme in SchemeConfig::specimens() {
        let trial = Trial::new(&scheme, Topology::Allgather);
        for ranks in [1, 3] {
            let expected = trial.run(ranks);
            for (groups, order) in [
                (&each[..], vec![4, 3, 2, 1, 0]),
                (&[vec![4, 2], vec![0], vec![3, 1]], vec![1, 2, 0]),
                (&[vec![1, 4], vec![0, 2, 3]], vec![]),
            ] {
                let grouped = Trial { order, ..trial.clone().groups(groups) };
                assert_eq!(grouped.run(ranks), expected, "{grouped:?} × {ranks}");
            }
        }
    }
}

/// To a group that is exchanged alone happens what happens to it in a whole step; the others sit it out: neither their
/// elements change, nor their residual, nor what their compressors keep.
#[test]
fn a_group_alone_leaves_the_others_as_they_were() {
    let groups = [vec![3, 0], vec![4, 2, 1]];
    for scheme in SchemeConfig::specimens() {
        for topology in common::FLAT {
            let trial = Trial::new(&scheme, *topology).groups(&groups);
            let means = trial.over(3, |rank, mut exchange| {
                trial.steps(rank, &mut exchange, 1..=3);
                let before = exchange.save();
                let (given, mut whole) = (Trial::gradient(rank, 4), Trial::gradient(rank, 4));
                exchange.allreduce(4, &mut whole).unwrap();
                let after = exchange.save();
                exchange.restore(&before).unwrap();
                let mut alone = given.clone();
                let traffic = exchange.allreduce_group(4, 0, &mut alone).unwrap();
                assert!(traffic.legs.iter().all(|leg| leg.group == 0));
                let now = exchange.save();
                let flat = |state: &State, entry: &str| {
                    let values = state.contains(entry).then(|| state.f32s(entry, LENGTH).unwrap());
                    values.map(|values| exchange.layout().from_name_order(values))
                };
                for (number, bucket) in exchange.buckets().iter().enumerate() {
                    let takes_part = groups[0].contains(&number);
                    let part = |flat: &[f32]| bits(&flat[bucket.range.clone()]);
                    let case = format!("{trial:?}, bucket {number}");
                    assert_eq!(
                        part(&alone),
                        part(if takes_part { &whole } else { &given }),
                        "{case}"
                    );
                    let expected = if takes_part { &after } else { &before };
                    let scope = format!("bucket.{number}");
                    assert_eq!(now.scope(&scope), expected.scope(&scope), "{case}");
                    let residuals = [&now, expected].map(|state| flat(state, "residual"));
                    let [found, expected] = residuals.map(|residual| residual.map(|r| part(&r)));
                    assert_eq!(found, expected, "{case}");
                }
                // The other group in its turn, and all of them.
                exchange.allreduce_group(5, 1, &mut alone).unwrap();
                exchange.allreduce(6, &mut alone).unwrap();
                bits(&alone)
            });
            assert!(means.iter().all(|mean| *mean == means[0]), "{trial:?}");
        }
    }
    let trial = Trial::new(&half(), COMPRESSED).groups(&groups);
    for error in trial.over(2, |rank, mut exchange| {
        exchange.allreduce_group(1, 0, &mut Trial::gradient(rank, 1)).unwrap_err()
    }) {
        assert!(error.to_string().contains("leave the downlink out"), "{error}");
    }
}

#[test]
fn a_compressed_downlink_is_the_same_on_every_rank_and_every_time() {
    for trial in Trial::each(&SchemeConfig::codecs(), &[COMPRESSED, OWNED]) {
        let (scheme, wiring) = (&trial.scheme, trial.wiring);
        let once = trial.run(3);
        assert!(once.iter().all(|ran| ran.means == once[0].means), "{scheme:?}");
        let feedback = scheme.feedback();
        if wiring == COMPRESSED {
            assert_eq!(once[0].state.contains("server/residual"), feedback, "{scheme:?}");
            assert!(once[1..].iter().all(|ran| ran.state.scope("server").is_empty()));
        } else {
            let keeps = |ran: &Ran| ran.state.contains("shards/residual");
            assert!(once.iter().all(|ran| keeps(ran) == feedback), "{scheme:?}");
        }
        let grouped = trial.clone().groups(&[vec![1, 0], vec![2, 3, 4]]);
        let again: Vec<Vec<Ran>> =
            grouped.everywhere(3, |rank, mut exchange| grouped.steps(rank, &mut exchange, 1..=4));
        assert!(again.iter().all(|again| *again == once), "{scheme:?}");
    }
}

fn rule(pattern: &str, scheme: &SchemeConfig) -> Rule {
    Rule { pattern: pattern.to_string(), scheme: scheme.clone() }
}

/// A rule that every parameter goes by is its scheme: the same means, states, bytes and gauges.
#[test]
fn a_rule_for_every_parameter_is_its_scheme() {
    for scheme in SchemeConfig::specimens() {
        for bucketing in [Bucketing::Whole, Bucketing::Parameter] {
            for mut alone in bare_trials(&scheme, &bucketing) {
                alone.policy = alone.policy.or(scheme.default_policy());
                let mut ruled = Trial { scheme: SchemeConfig::default(), ..alone.clone() };
                ruled.policy.rules = vec![rule("*", &scheme)];
                assert!(ruled.is_valid(), "{ruled:?}");
                assert_eq!(ruled.run(2), alone.run(2), "{ruled:?}");
            }
        }
    }
}

/// The bits of a rank's means, its residual, its state, and the bytes of each step: of the first rule, and of all others.
type Ruled = (Vec<Vec<u32>>, Vec<f32>, State, Vec<[u64; 2]>);

/// What each rank has after the steps of a trial, with a state saved and taken up after the second.
fn ruled(trial: &Trial) -> Vec<Ruled> {
    let run = |steps: std::ops::RangeInclusive<u64>, states: Option<&[State]>| {
        trial.over(3, |rank, mut exchange| {
            if let Some(states) = states {
                exchange.restore(&states[rank]).unwrap();
            }
            let (mut means, mut bytes) = (Vec::new(), Vec::new());
            for step in steps.clone() {
                let mut gradient = Trial::gradient(rank, step);
                let traffic = exchange.allreduce(step, &mut gradient).unwrap();
                let [wire, dense] = traffic.rules[0];
                assert!(wire <= traffic.wire_bytes && dense == 2 * 24 + 4 * (9 + 2048));
                means.push(bits(&gradient));
                bytes.push([wire, traffic.wire_bytes - wire]);
            }
            let residual = exchange.residual().map_or(vec![0.0; LENGTH], <[f32]>::to_vec);
            (means, residual, exchange.save(), bytes)
        })
    };
    let whole = run(1..=4, None);
    let first = run(1..=2, None);
    let states: Vec<State> = first.iter().map(|ran| ran.2.clone()).collect();
    for (rank, rest) in run(3..=4, Some(&states)).into_iter().enumerate() {
        assert_eq!(
            (&rest.0[..], &rest.1, &rest.2),
            (&whole[rank].0[2..], &whole[rank].1, &whole[rank].2)
        );
    }
    whole
}

/// Where a rule parts the parameters, each of them ends as where its scheme is everybody's: means, residuals, what
/// compressors have learnt, and bytes.
#[test]
fn parameters_that_go_by_a_rule_and_others_do_not_meet() {
    const RULED: &str = "p[45]";
    let from = LENGTH - 9 - 2048;
    let powersgd = SchemeConfig::all().into_iter().find(|one| one.about().name == "powersgd");
    let qsgd = SchemeConfig::Qsgd(Default::default());
    let others = [SchemeConfig::default(), half(), qsgd, powersgd.unwrap()];
    // Which rank owns a bucket, and so what its compressor draws, follows from all buckets that are compressed.
    let unowned = || wirings().into_iter().filter(|wiring| *wiring != OWNED);
    for (scheme, wiring) in SchemeConfig::specimens()
        .iter()
        .flat_map(|scheme| unowned().map(move |wiring| (scheme, wiring)))
    {
        // The form of feedback is that of the policy, whichever scheme brings it.
        let form = scheme.default_policy().feedback;
        let trial = |scheme: &SchemeConfig, other: &SchemeConfig| {
            let mut trial = Trial::new(scheme, wiring);
            trial.policy.feedback = form.filter(|_| scheme.feedback() || other.feedback());
            (trial.policy.dense_below, trial.policy.momentum_correction) = (Some(0), Some(0.0));
            trial.policy.rules = vec![rule(RULED, other)];
            trial
        };
        let alone = trial(scheme, scheme);
        let alone = alone.is_valid().then(|| ruled(&alone));
        for other in &others {
            let mixed = trial(scheme, other);
            if !mixed.is_valid() {
                continue;
            }
            let mixed_case = format!("{mixed:?}");
            let (mixed, by_other) = (ruled(&mixed), trial(other, other));
            let by_other = by_other.is_valid().then(|| ruled(&by_other));
            for rank in 0..3 {
                let (means, residual, state, bytes) = &mixed[rank];
                for (expected, range, number, buckets) in
                    [(&alone, 0..from, 1, 0..4), (&by_other, from..LENGTH, 0, 4..6)]
                {
                    // A server that compresses has nothing to say of `dense` alone.
                    let Some(expected) = expected.as_ref().map(|ranks| &ranks[rank]) else {
                        continue;
                    };
                    for (step, mean) in means.iter().enumerate() {
                        assert_eq!(
                            mean[range.clone()],
                            expected.0[step][range.clone()],
                            "{mixed_case}"
                        );
                        assert_eq!(bytes[step][number], expected.3[step][number], "{mixed_case}");
                    }
                    assert_eq!(residual[range.clone()], expected.1[range], "{mixed_case}");
                    for bucket in buckets.map(|bucket| format!("bucket.{bucket}")) {
                        assert_eq!(state.scope(&bucket), expected.2.scope(&bucket), "{mixed_case}");
                    }
                }
            }
        }
    }
}

/// Trials over every topology in which every parameter is the scheme's.
fn bare_trials(scheme: &SchemeConfig, bucketing: &Bucketing) -> Vec<Trial> {
    let trials = wirings().into_iter().map(|wiring| {
        let mut trial = Trial::new(scheme, wiring).bucketing(bucketing.clone());
        trial.policy.dense_below = Some(0);
        trial
    });
    trials.filter(Trial::is_valid).collect()
}

/// The schemes that make use of a support.
fn knowing() -> impl Iterator<Item = SchemeConfig> {
    let knows = |scheme: &SchemeConfig| ["dense", "nonzero"].contains(&scheme.about().name);
    SchemeConfig::all().into_iter().filter(knows)
}

/// Where a gradient holds something outside of its support.
fn outside(support: &Support, gradient: &[f32]) -> Option<usize> {
    (0..LENGTH).find(|i| gradient[*i].to_bits() != 0 && !support.meets(*i..i + 1))
}

/// Knowing where a gradient is zero changes no bit, and the mean's support holds all of the mean.
#[test]
fn a_known_support_changes_no_bit() {
    for (scheme, bucketing) in SchemeConfig::specimens()
        .iter()
        .flat_map(|scheme| [(scheme, Bucketing::Whole), (scheme, Bucketing::Parameter)])
    {
        for trial in bare_trials(scheme, &bucketing) {
            let run = |within: bool| {
                trial.over(3, |rank, mut exchange| {
                    let (mut means, mut support) = (Vec::new(), Support::nothing(LENGTH));
                    for step in 1..=4 {
                        let mut random = Random(10 * step + rank as u64);
                        let mut gradient = vec![0.0; LENGTH];
                        support.clear();
                        for _ in 0..6 {
                            let start = random.below(LENGTH - 5);
                            gradient[start..start + 5].fill_with(|| random.laplace());
                            support.add(start..start + 5);
                        }
                        if within {
                            let within = Gradient::within(&mut gradient, &mut support);
                            exchange.allreduce(step, within).unwrap();
                            assert_eq!(outside(&support, &gradient), None, "{trial:?}");
                        } else {
                            exchange.allreduce(step, &mut gradient).unwrap();
                        }
                        means.push(bits(&gradient));
                    }
                    (means, exchange.save(), support.is_everything())
                })
            };
            let found = run(true);
            for (found, expected) in found.iter().zip(run(false)) {
                assert_eq!((&found.0, &found.1), (&expected.0, &expected.1), "{trial:?}");
            }
            let known = knowing().any(|scheme| scheme == trial.scheme)
                && trial.wiring.topology != Topology::Server
                && trial.wiring.downlink.is_none();
            assert!(!(known && found[0].2), "{trial:?}");
        }
    }
}

/// After a refusal the gradient and its support are as given, so that the step can be made again.
#[test]
fn a_refused_step_leaves_the_support_as_it_was() {
    for trial in knowing().flat_map(|scheme| bare_trials(&scheme, &Bucketing::Whole)) {
        let means = trial.over(3, |rank, mut exchange| {
            let place = 1000 * rank;
            let mut given = Support::nothing(LENGTH);
            given.add(place..place + 1);
            let (mut gradient, mut support) = (vec![0.0; LENGTH], given.clone());
            gradient[place] = if rank == 1 { f32::NAN } else { 3.0 };
            let refused = exchange.allreduce(2, Gradient::within(&mut gradient, &mut support));
            assert!(matches!(refused, Err(Error::NonFinite { rank: 1, .. })), "{refused:?}");
            assert_eq!(support, given, "{trial:?}");
            gradient[place] = 3.0;
            exchange.allreduce(2, Gradient::within(&mut gradient, &mut support)).unwrap();
            gradient
        });
        for mean in means {
            let places: Vec<usize> = (0..LENGTH).filter(|i| mean[*i] != 0.0).collect();
            assert_eq!(places, [0, 1000, 2000], "{trial:?}");
            assert!(places.iter().all(|place| (mean[*place] - 1.0).abs() < 1e-6));
        }
    }
}

/// After any failure the gradient is zero outside of its support, also where means of other ranks
/// had come before the failure: in an earlier group, or in an earlier bucket of the same group.
#[test]
fn a_support_covers_what_a_failed_step_leaves_behind() {
    for (groups, poison) in [
        (vec![vec![0, 1], vec![2, 3, 4, 5]], f32::NAN),
        (vec![vec![0, 1], vec![2, 3, 4, 5]], f32::MAX),
        (vec![vec![0, 1, 2, 3, 4, 5]], f32::MAX),
    ] {
        for trial in knowing().flat_map(|scheme| bare_trials(&scheme, &Bucketing::Parameter)) {
            let trial = trial.groups(&groups);
            trial.over(3, |rank, mut exchange| {
                let (mut gradient, mut support) = (vec![0.0; LENGTH], Support::nothing(LENGTH));
                let own = [200 * rank, LENGTH - 1];
                own.iter().for_each(|place| support.add(*place..place + 1));
                (gradient[own[0]], gradient[own[1]]) = (3.0, poison);
                let within = Gradient::within(&mut gradient, &mut support);
                let failed = exchange.allreduce(2, within).unwrap_err();
                let expected = match poison.is_nan() {
                    true => matches!(failed, Error::NonFinite { step: 2, .. }),
                    false => matches!(failed, Error::NonFiniteMean { step: 2, .. }),
                };
                assert!(expected, "{trial:?}: {failed}");
                assert_eq!(outside(&support, &gradient), None, "{trial:?}: {failed}");
            });
        }
    }
}

/// With feedback on both ways nothing is lost: what ranks were given is what they took, and what
/// ranks and server still hold; of every scheme, and whatever rules say.
#[test]
fn nothing_is_lost_when_both_ways_are_compressed() {
    let dense = SchemeConfig::default();
    let rules = [None, Some(rule("p[45]", &dense)), Some(rule("p[24]", &topk(0.1)))];
    let schemes = SchemeConfig::specimens().into_iter().chain([topk(0.05)]);
    let usual =
        |scheme: &SchemeConfig| scheme.feedback() && scheme.default_policy().feedback.is_none();
    for mut trial in schemes
        .filter(usual)
        .flat_map(|scheme| [COMPRESSED, OWNED].map(|wiring| Trial::new(&scheme, wiring)))
    {
        trial.policy.momentum_correction = Some(0.0);
        for rule in &rules {
            trial.policy.rules = rule.iter().cloned().collect();
            if trial.is_valid() {
                both_ways(&trial);
            }
        }
    }
}

fn both_ways(trial: &Trial) {
    let ranks = trial.loses_nothing(3, 12, 3e-4);
    // 5 % of values and positions, where the union of three ranks would be nearly 15 %.
    let twentieth = trial.scheme == topk(0.05) && trial.policy.rules.is_empty();
    for (Traffic { downlink_bytes, .. }, _) in &ranks {
        assert!(!twentieth || *downlink_bytes < 8 * LENGTH as u64 / 15, "{downlink_bytes}");
    }
    // What one owns is nobody else's.
    let owners = |i: usize| ranks.iter().filter(|(_, of_means)| of_means[i] != 0.0).count();
    let most = (0..LENGTH).map(owners).max();
    // Some schemes send all of a mean that has few elements, such as SIDCo.
    assert!(most == Some(1) || most == Some(0) && trial.scheme != topk(0.05), "{trial:?}");
}

/// What is kept on either way follows the gradient into another unit.
#[test]
fn residuals_of_both_ways_are_rescaled() {
    for (wiring, scope) in [(COMPRESSED, "server"), (OWNED, "shards")] {
        let trial = Trial::new(&topk(0.05), wiring);
        trial.over(3, |rank, mut exchange| {
            let before = trial.steps(rank, &mut exchange, 1..=4).state;
            exchange.rescale(0.25);
            let after = exchange.save();
            for residual in ["residual".to_string(), format!("{scope}/residual")] {
                if scope == "server" && rank > 0 && residual.contains('/') {
                    continue;
                }
                let of = |state: &State| state.f32s(&residual, LENGTH).unwrap().to_vec();
                let quarter: Vec<f32> = of(&before).iter().map(|value| value / 4.0).collect();
                assert!(quarter.iter().any(|value| *value != 0.0), "{residual}");
                assert_eq!(of(&after), quarter, "{residual}");
            }
        });
    }
}

/// A change of sign is a change of unit: runs go on, and what they save can be taken up.
#[test]
fn a_negative_unit_is_one() {
    for trial in Trial::each(&SchemeConfig::specimens(), &[Topology::Allgather.into()]) {
        trial.over(2, |rank, mut exchange| {
            trial.steps(rank, &mut exchange, 1..=8);
            exchange.rescale(-1.0);
            let negated = exchange.save();
            exchange.restore(&negated).unwrap();
            let state = trial.steps(rank, &mut exchange, 9..=30).state;
            exchange.restore(&state).unwrap();
        });
    }
}

/// A step that failed is made again with its groups in another order: what waited for the way back goes once.
#[test]
fn a_compressed_downlink_forgets_a_step_that_failed() {
    for wiring in [COMPRESSED, OWNED] {
        let trial = Trial::new(&topk(0.05), wiring).groups(&[vec![1, 3], vec![4, 0, 2]]);
        let run = |fails: bool| {
            trial.over(3, |rank, mut exchange| {
                trial.steps(rank, &mut exchange, 1..=2);
                if fails {
                    let mut gradient = Trial::gradient(rank, 3);
                    // In bucket 3.
                    gradient[1964] = if rank == 2 { f32::NAN } else { 0.0 };
                    exchange.begin(3);
                    exchange.exchange_group(1, &mut gradient).unwrap();
                    exchange.exchange_group(0, &mut gradient).unwrap_err();
                }
                trial.steps(rank, &mut exchange, 3..=5)
            })
        };
        assert_eq!(run(true), run(false), "{wiring:?}");
    }
}

/// What a scheme has learnt follows as well: in another unit means are the same in that unit. Of schemes that have a
/// unit of their own, such as a threshold, this holds of no run.
#[test]
fn what_was_learnt_is_rescaled() {
    let mut checked = 0;
    for trial in Trial::each(&SchemeConfig::specimens(), &[Topology::Allgather.into(), OWNED]) {
        // From the step after `at` on everything is an eighth.
        let run = |at: u64| {
            trial.over(3, |rank, mut exchange| {
                let mut means = Vec::new();
                for step in 1..=30 {
                    let unit = if step > at { 0.125 } else { 1.0 };
                    let mut gradient = Trial::gradient(rank, step);
                    gradient.iter_mut().for_each(|value| *value *= unit);
                    exchange.allreduce(step, &mut gradient).unwrap();
                    means.extend(gradient.iter().map(|value| value / unit));
                    if step == at {
                        exchange.rescale(0.125);
                    }
                }
                bits(&means)
            })
        };
        let (never, always) = (run(30), run(0));
        if never == always {
            assert!(run(15) == never, "{trial:?}");
            checked += 1;
        }
    }
    assert!(checked > 60, "{checked}");
}

/// Both ways draw the same elements, and only the first one scales them up.
#[test]
fn drawn_elements_are_scaled_once() {
    let unbiased = randomk::Config {
        ratio: 0.1.into(),
        unbiased: true,
        feedback: false,
        ..Default::default()
    };
    let scheme = SchemeConfig::Randomk(unbiased);
    let exact = Trial::new(&scheme, Topology::Server).run(3);
    for wiring in [COMPRESSED, OWNED] {
        let compressed = Trial::new(&scheme, wiring).run(3);
        assert_eq!(compressed[0].means, exact[0].means, "{wiring:?}");
    }
}

/// Signs up and signs down are a majority vote (Bernstein et al. 2018).
#[test]
fn signs_both_ways_are_a_majority_vote() {
    let scheme = SchemeConfig::Signsgd(signsgd::Config::default());
    let mut trial = Trial::new(&scheme, COMPRESSED).bucketing(Bucketing::Whole);
    (trial.policy.dense_below, trial.policy.warmup_steps) = (None, None);
    let ranks = trial.over(3, |rank, mut exchange| {
        let given = Trial::gradient(rank, 5);
        let mut gradient = given.clone();
        exchange.allreduce(1, &mut gradient).unwrap();
        (given, gradient)
    });
    for i in 0..LENGTH {
        let votes = ranks.iter().map(|(given, _)| given[i].signum()).sum::<f32>();
        assert_eq!(ranks[0].1[i].signum(), votes.signum(), "element {i}");
    }
}

/// The server's answer is no longer than dense, and for few elements the union.
#[test]
fn an_exact_downlink_is_the_union_or_dense_whichever_is_shorter() {
    for (ratio, most) in [(0.01, 24 + 5 + 8 * 150), (1.0, 24 + 5 + 4 * LENGTH)] {
        let mut trial = Trial::new(&topk(ratio), Topology::Server).bucketing(Bucketing::Whole);
        trial.policy.dense_below = None;
        let bytes = trial.over(3, |rank, mut exchange| {
            exchange.allreduce(2, &mut Trial::gradient(rank, 2)).unwrap().downlink_bytes
        });
        assert!(bytes.iter().all(|each| *each == bytes[0] && *each <= most as u64), "{bytes:?}");
        assert!(bytes[0] > 24 + 4 * 3 * 39 * u64::from(ratio < 1.0), "{bytes:?}");
    }
}

#[test]
fn sixty_four_ranks_share_two_cores() {
    for trial in Trial::each(&[SchemeConfig::default(), half()], &wirings()) {
        let ranks = trial.run(64);
        assert!(ranks.iter().all(|ran| ran.means == ranks[0].means), "{trial:?}");
    }
}

/// Saved and restored in the middle, every topology goes on as if nothing had been.
#[test]
fn a_run_that_is_taken_up_again_goes_on_the_same() {
    for trial in Trial::each(&SchemeConfig::specimens(), &wirings()) {
        trial.goes_on_the_same(2);
    }
}

#[test]
fn a_servers_state_is_not_silently_lost() {
    let compressed = Trial::new(&half(), COMPRESSED);
    let saved =
        compressed.over(1, |rank, mut exchange| compressed.steps(rank, &mut exchange, 1..=2).state);
    for topology in common::FLAT {
        Trial::new(&half(), *topology).over(1, |_, mut exchange| {
            let error = exchange.restore(&saved[0]).unwrap_err();
            assert!(matches!(error, Error::State { .. }), "{error}");
            assert!(error.to_string().contains("server"), "{error}");
        });
    }
}

#[test]
fn collectives_that_do_not_offer_what_a_topology_needs_are_refused() {
    let build = |topology, end: Box<dyn Collective>| {
        let layout = parameters(&Trial::LENGTHS);
        Exchange::with(&half(), topology, Bucketing::Whole, layout, 9, end).err()
    };
    // A transport that really sends, everything to everybody.
    let error = build(Topology::Server, Box::<Echo>::default()).unwrap();
    assert!(matches!(error, Error::Topology { topology: "server", .. }), "{error}");
    let error = build(Topology::Sharded, Box::<Echo>::default()).unwrap();
    assert!(matches!(error, Error::Topology { topology: "sharded", .. }), "{error}");
    assert!(error.to_string().contains("plain f32"), "{error}");
    assert!(build(Topology::Allgather, Box::<Echo>::default()).is_none());
}
