use proptest::prelude::*;

use super::*;
use crate::compress::testing::{laplaces, round_trip, square_error};

fn seat(length: usize) -> Seat {
    Seat::alone(length, 11)
}

fn square(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum()
}

/// `casq_roundtrip_bkdr` of the project's reference vectors.
#[test]
fn the_reference_round_trip_comes_out() {
    let gradient = [-2.0, -1.5, -0.4, -0.3, -0.2, 0.1, 0.2, 0.3, 0.9, 1.1, 2.5, 3.0f32];
    let ids = [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3u8];
    let mut found = Vec::new();
    let members = assign(&gradient, &[-1.75, -0.3, 0.2, 1.0], &mut found);
    assert_eq!(found, ids);
    assert_eq!(members.map(|members| members.count)[..4], [2, 3, 3, 4]);
    let tables = Tables::new(&[1, 1, 2, 2]);
    let flat: Vec<usize> = ids.iter().enumerate().map(|(i, id)| tables.simple(i, *id)).collect();
    assert_eq!(flat, [0, 0, 1, 1, 1, 3, 2, 3, 4, 5, 4, 5]);
    let mut cells = Vec::new();
    sketch::fill(&gradient, &ids, &tables, &members, Format::F32, &mut cells);
    let means: Vec<f32> = cells.iter().map(MeanCell::mean).collect();
    assert_eq!(means, [-1.75, -0.3, 0.2, 0.2, 1.7, 2.05]);
    let mut packed = Vec::new();
    codes::put(&ids, 2, &mut packed);
    assert_eq!(packed, 16_755_024u32.to_le_bytes()[..3]);
    let mut bytes = Vec::new();
    Format::F32.put(means.into_iter(), &mut bytes);
    let mut sum = [0.0; 12];
    TableMeans::new(&tables, &bytes, Format::F32, 1.0).add(0, &ids, &mut sum);
    assert_eq!(sum, [-1.75, -1.75, -0.3, -0.3, -0.3, 0.2, 0.2, 0.2, 1.7, 2.05, 1.7, 2.05]);
}

/// Any gradient that the exchange hands over, with both signs, one, or none.
fn gradients() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        6 => -1.0f32..1.0,
        2 => -1e3f32..1e3,
        1 => Just(0.0),
        1 => (0u32..100).prop_map(f32::from_bits),
    ];
    let values = proptest::collection::vec(value, 0..400);
    (values, 0..4).prop_map(|(values, kind)| match kind {
        0 => values.iter().map(|value| value.abs()).collect(),
        1 => values.iter().map(|value| -value.abs()).collect(),
        2 => vec![values.first().copied().unwrap_or(0.0); values.len()],
        _ => values,
    })
}

proptest! {
    #[test]
    fn sums_are_kept_and_the_error_is_bounded(
        gradient in gradients(), bits in 1u32..=4, by_hand: bool, polish in 0u32..3,
    ) {
        let allocation = match by_hand {
            true => Allocation::Manual(vec![3; 1 << bits]),
            false => Allocation::VarianceOptimal,
        };
        let config =
            Config { bits, preset: Preset::Paper, allocation, polish, ..Config::default() };
        let (_, decoded) = round_trip(&config, &gradient, 1);
        let sum = |values: &[f32]| values.iter().map(|value| f64::from(*value)).sum::<f64>();
        let magnitudes: f64 = gradient.iter().map(|value| f64::from(value.abs())).sum();
        // (F1), up to the rounding of the means to f32, which is a unit of the smallest numbers at least.
        let (count, unit) = (gradient.len() as f64, f64::from(f32::from_bits(1)));
        prop_assert!((sum(&decoded) - sum(&gradient)).abs() <= 1e-6 * magnitudes + count * unit);
        // (F5).
        let whole = square(gradient.iter().map(|value| f64::from(*value)));
        let side = |positive: bool| {
            let of = gradient.iter().filter(|value| (**value > 0.0) == positive);
            let (count, sum) = of.fold((0.0f64, 0.0), |(n, sum), v| (n + 1.0, sum + f64::from(*v)));
            sum * sum / count.max(1.0)
        };
        let bound = whole - side(true) - side(false);
        prop_assert!(square_error(&decoded, &gradient) <= bound + 1e-6 * whole + count * unit * unit, "{:?}", gradient);
        prop_assert!(bound <= whole - magnitudes.powi(2) / gradient.len().max(1) as f64 + 1e-9 * whole);
    }
}

#[test]
fn a_lean_message_takes_the_bits_it_is_given_and_no_more() {
    for (bits, length) in [(2, 1000), (2, 5000), (2, 100_003), (3, 100_003), (4, 20_000)] {
        let gradient = laplaces(length, 9);
        let config = Config { bits, ..Config::default() };
        let (wire, decoded) = round_trip(&config, &gradient, 1);
        let most = bits as usize * length / 8;
        assert!(wire.len() <= most, "{bits} bits of {length}: {} bytes", wire.len());
        // All of it is used, up to the rounding of the tables' sizes.
        assert!(wire.len() + 2 * 16 + 2 >= most, "{bits} bits of {length}: {} bytes", wire.len());
        let rel =
            square_error(&decoded, &gradient) / square(gradient.iter().map(|g| f64::from(*g)));
        assert!(rel < [0.2, 0.06, 0.02][bits as usize - 2], "{bits} bits of {length}: {rel}");
    }
}

#[test]
fn broken_models_tables_and_sizes_by_hand_are_refused() {
    const LENGTH: usize = 2000;
    let config = Config::default();
    let (wire, _) = round_trip(&config, &laplaces(LENGTH, 4), 1);
    let mut compressor = config.codec(&seat(LENGTH)).unwrap();
    let mut spoilt = wire.clone();
    spoilt[1..5].copy_from_slice(&f32::NAN.to_le_bytes());
    let round = StepMessages { step: 1, messages: &[Some(&spoilt)], mean: &[] };
    assert!(matches!(
        compressor.learn_from_messages(&round),
        Err(Error::Wire(Fault::Field { .. }))
    ));
    for (at, bytes) in [(17, [0; 4]), (17, [0xff; 4]), (18, [0xff, 0xff, 0, 0])] {
        let mut spoilt = wire.clone();
        spoilt[at..at + 4].copy_from_slice(&bytes);
        assert!(compressor.decode_add(&spoilt, 0, 1.0, &mut [0.0; LENGTH]).is_err());
    }
    let manual = Config { allocation: Allocation::Manual(vec![1; 3]), ..Config::default() };
    let refused = manual.validate().unwrap_err().to_string();
    assert!(refused.contains("allocation = [1, 1, 1]"), "{refused}");
}
