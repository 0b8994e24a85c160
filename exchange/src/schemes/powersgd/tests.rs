use super::*;
use crate::Payload;
use crate::compress::testing::{bits, square, square_error};
use crate::reducer::Mail;
use crate::reducer::tests::step;
use crate::schemes::tests::recorded;

/// Shapes with all kinds of remainders: a convolution, vectors, a matrix too small, a wide and a
/// tall one.
fn shapes() -> Vec<Vec<usize>> {
    vec![vec![16, 3, 3, 3], vec![16], vec![2, 3], vec![9, 130], vec![], vec![70, 21]]
}

fn length(shapes: &[Vec<usize>]) -> usize {
    shapes.iter().map(|shape| shape.iter().product::<usize>()).sum()
}

fn seat(shapes: &[Vec<usize>], rank: usize) -> Seat {
    let parameters = shapes.iter().map(|shape| shape.iter().product()).collect();
    Seat { rank, parameters, shapes: shapes.to_vec(), ..Seat::alone(length(shapes), 11) }
}

fn ranks(config: &Config, shapes: &[Vec<usize>], count: usize) -> Vec<Box<dyn Reducer>> {
    let built = |rank| match config.build(&seat(shapes, rank)) {
        Built::Reducer(reducer) => reducer,
        Built::Plain | Built::Codec(_) => unreachable!("it has rounds"),
    };
    (0..count).map(built).collect()
}

/// Numbers about 0, each rank and step its own.
fn numbers(length: usize, rank: usize, step: u64) -> Vec<f32> {
    let stream = Stream::new(&[7, rank as u64, step]);
    (0..length as u32).map(|i| 2.0 * stream.uniform(i) - 1.0).collect()
}

/// As gradients are: much of it the same on all ranks and steps, of low rank, and noise.
fn gradient(length: usize, rank: usize, step: u64) -> Vec<f32> {
    let mut values = numbers(length, rank, step);
    for (i, value) in values.iter_mut().enumerate() {
        *value = 0.3 * *value + (0.1 * i as f32).sin() + 0.5 * (0.013 * i as f32).cos();
    }
    values
}

fn specimens() -> Vec<Config> {
    let mut specimens = Config::examples();
    specimens.push(Config::default());
    specimens.push(Config { rank: 5, min_compression_rate: 0.1, ..Config::default() });
    specimens
}

/// One step of one rank without feedback: the mean, which is what it sent.
fn sent(reducers: &mut [Box<dyn Reducer>], number: u64, gradient: &[f32]) -> Vec<f32> {
    let mut gradients = [gradient.to_vec()];
    assert!(step(reducers, number, &mut gradients, None).unwrap());
    let [sent] = gradients;
    sent
}

/// PyTorch's hook in f64 from the same Q: every rank's gradients and residuals, but for the residual
/// of what is not compressed, which that hook does not leave at zero.
#[test]
fn means_and_residuals_are_those_of_pytorchs_hook() {
    let text = include_str!("../../../tests/vectors/powersgd.json");
    let vectors: serde_json::Value = serde_json::from_str(text).unwrap();
    let near = |found: &[f32], expected: &[f32], what: &str| {
        assert_eq!(found.len(), expected.len());
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (found - expected).abs();
            assert!(error < 1e-5, "{what}, element {at}: {found} for {expected}");
        }
    };
    let cases = vectors["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 2);
    for case in cases {
        let shapes: Vec<Vec<usize>> = recorded(&case["shapes"]);
        let config = Config { rank: recorded(&case["rank"]), ..Config::default() };
        let rounds: Vec<Vec<Vec<f32>>> = recorded(&case["gradients"]);
        let world_size = rounds[0].len();
        let mut reducers = ranks(&config, &shapes, world_size);
        let mut start = State::default();
        start.insert("q", Entry::F32(recorded(&case["start"])));
        reducers.iter_mut().for_each(|reducer| reducer.restore(&start).unwrap());
        let mut residuals = vec![vec![0.0; length(&shapes)]; world_size];
        let means: Vec<Vec<f32>> = recorded(&case["means"]);
        assert_eq!(means.len(), rounds.len());
        for (number, (mut gradients, mean)) in (1..).zip(rounds.into_iter().zip(means)) {
            assert!(step(&mut reducers, number, &mut gradients, Some(&mut residuals)).unwrap());
            near(&gradients[0], &mean, &format!("{}, step {number}", case["name"]));
        }
        for (rank, residual) in residuals.iter().enumerate() {
            let expected: Vec<f32> = recorded(&case["residuals"][rank]);
            for Matrix { at, .. } in &Division::new(&config, &shapes).matrices {
                let what = format!("residual of rank {rank}, {at:?}");
                near(&residual[at.clone()], &expected[at.clone()], &what);
            }
        }
    }
}

#[test]
fn shapes_are_compressed_by_pytorchs_rule() {
    let config = Config { rank: 4, ..Config::default() };
    for (shape, rank) in [
        (vec![], None),
        (vec![100_000], None),
        (vec![0, 5], None),
        (vec![5, 0], None),
        (vec![100, 1, 1], None),
        // (16 + 16)·4·2 = 256 is not less than 256.
        (vec![16, 16], None),
        (vec![16, 17], Some(4)),
        (vec![64, 3, 3, 3], Some(4)),
        // (10 + 512)·4·2 is less than 5120.
        (vec![10, 512], Some(4)),
        // (2 + m)·2·2 never is less than 2·m, (5 + m)·2·2 is less than 5·m.
        (vec![2, 1000], None),
        (vec![5, 1000], None),
        (vec![9, 1000], Some(4)),
    ] {
        let division = Division::new(&config, std::slice::from_ref(&shape));
        let found = division.matrices.first().map(|matrix| matrix.p.len() / matrix.rows);
        assert_eq!(found, rank, "{shape:?}");
        assert_eq!(division.plain_length, if rank.is_some() { 0 } else { shape.iter().product() });
    }
    let division = Division::new(&config, &shapes());
    assert_eq!(division.plain, [432..454, 1624..1625]);
    let found: Vec<_> =
        division.matrices.iter().map(|m| (m.at.clone(), m.rows, m.columns)).collect();
    assert_eq!(found, [(0..432, 16, 27), (454..1624, 9, 130), (1625..3095, 70, 21)]);
    assert_eq!(division.numbers, (4 * (16 + 9 + 70), 4 * (27 + 130 + 21)));
}

/// ‖M − M̂‖ ≤ ‖M‖ for all gradients, strictly for those that are not zero, and the same M̂ on all
/// ranks: P̂·P̂ᵀ·M is a projection.
#[test]
fn what_is_sent_is_nearer_than_nothing() {
    let shapes = shapes();
    for config in specimens() {
        assert_eq!(config.validate(), Ok(()));
        let config = Config { feedback: false, ..config };
        let exact = config.factors == Format::F32;
        for magnitude in [1e-37f32, 1e-20, 1.0, 1e20, 1e37] {
            // Next to the smallest normal number bf16 has few digits left.
            if !exact && magnitude < 1e-30 {
                continue;
            }
            let mut reducers = ranks(&config, &shapes, 1);
            for number in 1..6 {
                let mut given = gradient(length(&shapes), 0, number);
                given.iter_mut().for_each(|value| *value *= magnitude);
                let sent = sent(&mut reducers, number, &given);
                for matrix in &Division::new(&config, &shapes).matrices {
                    let (given, sent) = (&given[matrix.at.clone()], &sent[matrix.at.clone()]);
                    let share = square_error(sent, given) / square(given);
                    // A random column alone takes 1/min(n, m) on average.
                    assert!(share < 0.999, "{config:?}, {magnitude}: {share} is left");
                    // Of a projection: ‖M̂‖² + ‖M − M̂‖² = ‖M‖².
                    let whole = share + square(sent) / square(given);
                    let most = if exact { 1e-5 } else { 2e-2 };
                    assert!((whole - 1.0).abs() < most, "{config:?}, {magnitude}: {whole}");
                }
            }
        }
    }
}

/// A constant gradient is of rank 1 everywhere and arrives whole, whatever the other columns are.
#[test]
fn a_gradient_of_low_rank_arrives_whole() {
    let shapes = [vec![40, 50]];
    let row = numbers(50, 0, 0);
    let given: Vec<f32> = (0..2000).map(|i| (1.0 + (i / 50) as f32) * row[i % 50]).collect();
    let mut reducers = ranks(&Config::default(), &shapes, 1);
    for number in 1..5 {
        for (sent, given) in sent(&mut reducers, number, &given).iter().zip(&given) {
            assert!((sent - given).abs() <= 1e-5 * given.abs().max(1.0), "{sent} for {given}");
        }
        assert!(reducers[0].gauges()[0].value >= 0.25);
    }
}

/// With warm start a constant gradient's best approximation is found: subspace iteration.
#[test]
fn steps_of_one_gradient_converge_to_its_largest_singular_values() {
    const N: usize = 24;
    let given: Vec<f32> = (0..N * N)
        .map(|i| if i % (N + 1) == 0 { 0.7f32.powi((i / (N + 1)) as i32) } else { 0.0 })
        .collect();
    let best: f64 = (3..N).map(|i| 0.7f64.powi(2 * i as i32)).sum();
    let config = Config { rank: 3, feedback: false, ..Config::default() };
    let left_after = |config: &Config, steps: u64| {
        let mut reducers = ranks(config, &[vec![N, N]], 1);
        let all = (1..=steps).map(|number| sent(&mut reducers, number, &given));
        square_error(&all.last().unwrap(), &given)
    };
    let (first, warm) = (left_after(&config, 1), left_after(&config, 40));
    let cold = left_after(&Config { warm_start: false, ..config }, 40);
    assert!(warm < best * 1.001 && warm > best * 0.999, "{warm}, at best {best}");
    assert!(first > best * 1.01 && cold > best * 1.01, "{first} and {cold} by luck");
}

/// A gradient of zeros has a mean of zeros, and does not end a matrix's being sent.
#[test]
fn zeros_are_zeros_and_what_follows_is_sent() {
    let shapes = [vec![30, 40]];
    let mut reducers = ranks(&Config::default(), &shapes, 2);
    let mut zeros = vec![vec![0.0; 1200]; 2];
    for number in 1..3 {
        assert!(step(&mut reducers, number, &mut zeros, None).unwrap());
        assert!(zeros.iter().flatten().all(|value| *value == 0.0));
        assert_eq!(reducers[0].gauges()[0].value, 0.0);
    }
    let given = gradient(1200, 0, 3);
    let mut gradients = vec![given.clone(), given.clone()];
    assert!(step(&mut reducers, 3, &mut gradients, None).unwrap());
    assert_eq!(bits(&gradients[0]), bits(&gradients[1]));
    let (left, whole) = (square_error(&gradients[0], &given), square(&given));
    assert!(left < 0.5 * whole, "{left} of {whole}");
    assert_eq!(reducers[0].gauges()[0].value, 1.0);
}

/// Of a gradient of these magnitudes P is finite and Q, 20 times an element, is not; of the other
/// neither is.
#[test]
fn a_gradient_beyond_f32_is_noticed_and_leaves_no_trace() {
    let shapes = [vec![400, 12]];
    for magnitude in [2.5e37, f32::MAX] {
        let (mut reducers, mut others) =
            (ranks(&Config::default(), &shapes, 1), ranks(&Config::default(), &shapes, 1));
        let given = gradient(4800, 0, 1);
        assert_eq!(sent(&mut reducers, 1, &given), sent(&mut others, 1, &given));
        assert!(!step(&mut reducers, 2, &mut [vec![magnitude; 4800]], None).unwrap());
        // A step that this took no part in, as one that is sent uncompressed, is committed too.
        reducers[0].commit();
        let given = gradient(4800, 0, 3);
        assert_eq!(bits(&sent(&mut reducers, 3, &given)), bits(&sent(&mut others, 3, &given)));
    }
}

/// Every rank draws the same; every bucket, matrix and column has its own, and every step without
/// warm start.
#[test]
fn random_starts_differ_where_they_should() {
    let shapes = [vec![20, 30], vec![20, 30]];
    let start = |config: &Config, seat: &Seat, step: u64| {
        let parameters = vec![600; 2];
        let seat = Seat { parameters, shapes: shapes.to_vec(), ..seat.clone() };
        let mut reducer = Powersgd::new(config, &seat);
        reducer.begin(step);
        reducer.next
    };
    let config = Config { rank: 2, ..Config::default() };
    let cold = Config { warm_start: false, ..config.clone() };
    let base = seat(&shapes, 0);
    let q = start(&config, &base, 1);
    assert_eq!(q, start(&config, &seat(&shapes, 3), 1));
    assert_eq!(q, start(&config, &base, 2));
    assert_ne!(q, start(&config, &Seat { bucket: 1, ..base.clone() }, 1));
    assert_ne!(q, start(&config, &Seat { seed: 1, ..base.clone() }, 1));
    assert_ne!(start(&cold, &base, 1), start(&cold, &base, 2));
    let mut columns: Vec<_> = q.chunks(30).map(bits).collect();
    columns.sort();
    columns.dedup();
    assert_eq!(columns.len(), 4);
}

#[test]
fn steps_before_the_first_compressed_one_are_sent_as_they_are() {
    let config = Config { start_step: 11, ..Config::default() };
    assert_eq!(config.default_policy().warmup_steps, Some(10));
}

/// Rounded factors change the mean by little, on every rank alike, and what they lose is in the residual.
#[test]
fn rounded_factors_lose_what_the_residual_keeps() {
    let shapes = shapes();
    let run = |factors| {
        let config = Config { factors, ..Config::default() };
        let mut reducers = ranks(&config, &shapes, 3);
        let mut residuals = vec![vec![0.0; length(&shapes)]; 3];
        let mut gradients: Vec<Vec<f32>> =
            (0..3).map(|rank| gradient(length(&shapes), rank, 1)).collect();
        assert!(step(&mut reducers, 1, &mut gradients, Some(&mut residuals)).unwrap());
        assert!(gradients.iter().all(|mean| bits(mean) == bits(&gradients[0])));
        let given = |at: usize| {
            (0..3).map(|rank| gradient(length(&shapes), rank, 1)[at]).sum::<f32>() / 3.0
        };
        for at in 0..length(&shapes) {
            let kept = residuals.iter().map(|residual| residual[at]).sum::<f32>() / 3.0;
            assert!(
                (gradients[0][at] + kept - given(at)).abs() < 1e-5,
                "{factors:?}, element {at}"
            );
        }
        gradients.swap_remove(0)
    };
    let (exact, rounded) = (run(Format::F32), run(Format::Bf16));
    let difference: Vec<f32> = exact.iter().zip(&rounded).map(|(a, b)| a - b).collect();
    let share = square(&difference) / square(&exact);
    assert!(share > 0.0 && share < 1e-3, "{share}");
}

#[test]
fn factors_of_a_peer_that_are_no_numbers_or_too_few_are_refused() {
    let mut numbers = [0.0; 2];
    let mut read = |message: &[u8]| {
        let mut mail = Mail { messages: vec![Payload::from(message.to_vec())], ..Mail::default() };
        let round = Round { step: 1, number: 1, rank: 0, world_size: 1, mail: &mut mail };
        read(Format::Bf16, &mut numbers, 2, &round)
    };
    assert!(read(&[0x80, 0x3f, 0, 0]).is_ok());
    assert!(read(&[0x80, 0x3f]).is_err());
    assert!(read(&[0x80, 0x3f, 0x80, 0x7f]).is_err());
    assert!(read(&[0x80, 0x3f, 1, 0x7f, 0]).is_err());
    assert!(read(&[0x80, 0x3f, 0xc0, 0x7f]).is_err());
}
