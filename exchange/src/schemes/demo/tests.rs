use super::*;
use crate::compress::testing::{bits, square, square_error};
use crate::rng::Stream;
use crate::wire::Format;

fn seat(shapes: &[&[usize]]) -> Seat {
    let parameters: Vec<usize> = shapes.iter().map(|shape| shape.iter().product()).collect();
    let shapes = shapes.iter().map(|shape| shape.to_vec()).collect();
    Seat {
        shapes,
        ..Seat { parameters: parameters.clone(), ..Seat::alone(parameters.iter().sum(), 3) }
    }
}

/// The message for a gradient, and what it says of it.
fn round_trip(config: &Config, shapes: &[&[usize]], gradient: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let (mut demo, mut wire) = (Demo::new(config, &seat(shapes)), Vec::new());
    assert_eq!(demo.encode(gradient, 1, &mut wire), Encoded::Message);
    let mut sum = vec![0.0; gradient.len()];
    demo.decode_add(&wire, 0, 1.0, &mut sum).unwrap();
    (wire, sum)
}

/// Numbers about 0.
fn numbers(length: usize) -> Vec<f32> {
    let stream = Stream::new(&[5]);
    (0..length as u32).map(|i| stream.uniform(i) - 0.5).collect()
}

/// The largest divisors of the sides, and rows that lie apart.
#[test]
fn tiles_divide_a_matrix() {
    let sides = |shape: &[usize], chunk| {
        let tiles = Tiles::new(10, shape, chunk);
        (tiles.height, tiles.width, tiles.columns)
    };
    assert_eq!(sides(&[6, 10], 4), (3, 2, 10));
    assert_eq!(sides(&[65, 2, 8, 8], 64), (13, 64, 128));
    assert_eq!(sides(&[131], 64), (1, 1, 131));
    assert_eq!(sides(&[], 64), (1, 1, 1));
    let tiles = Tiles::new(10, &[6, 10], 4);
    let rows = |place| tiles.rows(place).map(|row| row.start).collect::<Vec<_>>();
    assert_eq!(
        (rows(10), rows(16), rows(10 + 6 * 6)),
        (vec![10, 20, 30], vec![12, 22, 32], vec![42, 52, 62])
    );
}

/// Frequencies that are added up and transformed back once are the sum of what messages say, to rounding.
#[test]
fn a_sum_of_messages_is_transformed_once() {
    let shapes: [&[usize]; 4] = [&[16, 24], &[7], &[0, 3], &[4, 3, 2]];
    let length = 16 * 24 + 7 + 24;
    let config = Config { chunk: 8, k: 5, ..Config::default() };
    let gradients = [1, 2, 3].map(|seed| {
        let stream = Stream::new(&[seed]);
        (0..length as u32).map(|i| stream.uniform(i) - 0.5).collect::<Vec<f32>>()
    });
    let reader = Demo::new(&config, &seat(&shapes));
    let (mut one_by_one, mut together) = (vec![0f32; length], vec![0f32; length]);
    for gradient in &gradients {
        let (wire, decoded) = round_trip(&config, &shapes, gradient);
        one_by_one.iter_mut().zip(decoded).for_each(|(sum, value)| *sum += value);
        reader.add_to_sum(&wire, &mut together).unwrap();
    }
    reader.finish_sum(&mut together);
    assert!(one_by_one.iter().any(|value| *value != 0.0));
    for (one, other) in one_by_one.iter().zip(&together) {
        assert!((one - other).abs() < 1e-5, "{one} {other}");
    }
}

/// A wave of each tile is one frequency, that of its numbers of half periods down and across: 4 numbers and 4
/// positions for 4 tiles, and all of the wave arrives.
#[test]
fn a_wave_is_one_number() {
    let wave = |down: usize, across: usize| -> Vec<f32> {
        let cosine = |i: usize, frequency: usize| {
            (std::f64::consts::PI * ((2 * (i % 8) + 1) * frequency) as f64 / 16.0).cos()
        };
        (0..256).map(|i| (cosine(i / 16, down) * cosine(i % 16, across)) as f32).collect()
    };
    for (down, across) in [(0, 0), (3, 0), (0, 7), (5, 2)] {
        let gradient = wave(down, across);
        let config = Config { chunk: 8, k: 1, ..Config::default() };
        let (wire, sum) = round_trip(&config, &[&[16, 16]], &gradient);
        let far = gradient.iter().zip(&sum).map(|(g, s)| (g - s).abs()).fold(0.0, f32::max);
        assert!(far < 1e-6, "{down} {across}: {far}");
        let mut found = Vec::new();
        sparse::positions(&wire, 4, Format::F32.into(), 256, &mut found).unwrap();
        let expected = [0, 1, 2, 3].map(|tile| (64 * tile + 8 * down + across) as u32);
        assert_eq!(found, expected);
    }
}

/// What is kept of each tile is its strongest frequencies, so that what is left is all but those; a tile that is no
/// larger than k is sent whole. Length is the same on both sides.
#[test]
fn what_is_left_has_no_strong_frequency() {
    let shapes: &[&[usize]] = &[&[12, 20], &[7], &[3, 2, 2, 2]];
    let gradient = numbers(240 + 7 + 24);
    let whole = round_trip(&Config { k: 1 << 20, ..Config::default() }, shapes, &gradient).1;
    assert!(square_error(&whole, &gradient) < 1e-10 * square(&gradient));
    let mut lengths = Vec::new();
    for k in [1, 5, 30] {
        let config = Config { chunk: 8, k, ..Config::default() };
        let (wire, sum) = round_trip(&config, shapes, &gradient);
        // Tiles of 6 by 5, of 7, and of 3 by 8.
        let kept = 8 * k.min(30) + k.min(7) + k.min(24);
        assert_eq!(
            usize::from(wire[0] & 127) + 128 * usize::from(kept > 127) * usize::from(wire[1]),
            kept
        );
        let left: Vec<f32> = gradient.iter().zip(&sum).map(|(g, s)| g - s).collect();
        let parts = square(&left) + square(&sum);
        assert!((parts / square(&gradient) - 1.0).abs() < 1e-5, "{parts}");
        lengths.push(square(&left));
    }
    assert!(lengths[0] > lengths[1] && lengths[1] > lengths[2] && lengths[2] < 1e-9, "{lengths:?}");
}

/// What a transform comes to does not depend on the vectors of the processor.
#[test]
fn every_processor_comes_to_the_same() {
    let (given, waves) = (numbers(560), [numbers(49), numbers(6400)]);
    let of = |machine: pulp::Arch| {
        let (mut half, mut made) = (vec![0.0; 560], vec![0.0; 560]);
        machine.dispatch(|| {
            let [down, across] = &waves;
            dct::products(&given, [down, across], [7, 80], &mut half, &mut made);
        });
        bits(&made)
    };
    let found: Vec<_> = crate::simd::machines().into_iter().map(of).collect();
    assert!(found.iter().all(|bits| *bits == found[0]));
}

/// Frequencies beyond f32 send the gradient as it is.
#[test]
fn what_the_transform_takes_out_of_range_is_sent_plain() {
    let mut demo = Demo::new(&Config::default(), &seat(&[&[64, 64]]));
    assert_eq!(demo.encode(&[1e38; 4096], 1, &mut Vec::new()), Encoded::Dense);
    assert_eq!(demo.encode(&[1e32; 4096], 1, &mut Vec::new()), Encoded::Message);
}
