use proptest::prelude::*;

use super::*;
use crate::kernels::simd::Isa;

/// Numbers from -1 to 1, the same in each call: Miri adds an error of its own to what `sin` returns.
fn value(i: usize) -> f32 {
    let mixed = (i as u32).wrapping_mul(0x9e37_79b9);
    (mixed >> 8) as f32 / 8_388_608.0 - 1.0
}

/// A matrix `[rows, columns]` in blocks of `width` columns, and elements from one block to the next; what belongs to
/// no element is NaN.
fn blocks(
    rows: usize,
    columns: usize,
    width: usize,
    at: impl Fn(usize, usize) -> f32,
) -> (Vec<f32>, usize) {
    let stride = rows * width + 5;
    let mut blocks = vec![f32::NAN; columns.div_ceil(width) * stride];
    for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
        blocks[j / width * stride + i * width + j % width] = at(i, j);
    }
    (blocks, stride)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_way_to_lie_gives_the_definition(
        rows in 1..40_usize, columns in 1..70_usize, depth in 1..40_usize, deep in any::<bool>(),
        narrow in any::<bool>(), add in any::<bool>(),
    ) {
        let depth = if deep { depth + DEPTH } else { depth };
        check((rows, columns, depth), narrow, add);
    }
}

#[test]
fn every_way_to_lie_at_small_sizes() {
    for (rows, columns, depth) in [(1, 1, 1), (5, 9, 3), (17, 33, 18)] {
        check((rows, columns, depth), false, true);
        check((rows, columns, depth), true, false);
    }
}

/// Every way to lie of both operands, against the definition in f64.
fn check((rows, columns, depth): (usize, usize, usize), narrow: bool, add: bool) {
    let a = |i: usize, k: usize| value(i * depth + k);
    let b = |k: usize, j: usize| value(7 + k * columns + j);
    for isa in Isa::available() {
        let lanes = isa.lanes();
        let wide = panel(lanes);
        let (left_rows, _) = blocks(rows, depth, depth, a);
        let (left_blocks, a_blocks) = blocks(rows, depth, lanes, a);
        let (transposed, a_transposed) = blocks(depth, rows, lanes, |k, i| a(i, k));
        let (left_columns, _) = blocks(depth, rows, rows, |k, i| a(i, k));
        let (windows, apart) = blocks(rows, depth, 5, a);
        let lefts = [
            (&windows, Left::Windows { row: 5, run: 5, apart }),
            (&left_rows, Left::Rows(depth)),
            (&left_columns, Left::Columns(rows)),
            (&left_blocks, Left::Blocks(a_blocks)),
            (&transposed, Left::Transposed(a_transposed)),
        ];
        let width = if narrow { lanes } else { wide };
        let (right_rows, _) = blocks(depth, columns, columns, b);
        let (right_blocks, stride) = blocks(depth, columns, width, b);
        let mut panels = Vec::new();
        for start in (0..columns).step_by(wide) {
            let end = columns.min(start + wide);
            panels.extend((0..depth).flat_map(|k| (start..end).map(move |j| b(k, j))));
        }
        let rights = [
            (&right_rows, Right::Rows(columns)),
            (&right_blocks, Right::Blocks { width, stride }),
            (&panels, Right::Panels),
        ];
        for ((a_values, left), (b_values, right)) in
            lefts.iter().flat_map(|left| rights.iter().map(move |right| (*left, *right)))
        {
            let c_row = columns + 3;
            let biased = if add || rows.is_multiple_of(2) { 0 } else { columns };
            let bias: Vec<f32> = (0..biased).map(|j| value(3 + j)).collect();
            let mut c = vec![0.5; rows * c_row];
            let to = if add { Target::Add(&mut c) } else { Target::Write(&mut c) };
            let (left, right) = ((&a_values[..], left), (&b_values[..], right));
            let sizes = [rows, columns, depth];
            isa.run(Gemm { sizes, a: left, b: right, c: (to, c_row), bias: &bias });
            for (i, j) in (0..rows).flat_map(|i| (0..c_row).map(move |j| (i, j))) {
                let products = (0..depth).map(|k| f64::from(a(i, k)) * f64::from(b(k, j)));
                let size: f64 = products.clone().map(f64::abs).sum();
                let product: f64 = products.sum();
                let expected = match (j < columns, add) {
                    (false, _) => 0.5,
                    (true, false) => product + bias.get(j).map_or(0.0, |x| f64::from(*x)),
                    (true, true) => 0.5 + product,
                };
                let found = f64::from(c[i * c_row + j]);
                // What as many roundings may come to, in whatever order.
                let off = (depth + 2) as f64 * f64::from(f32::EPSILON / 2.0) * (1.0 + size);
                assert!(
                    (found - expected).abs() <= off,
                    "({i}, {j}) on {isa:?}: {found} and not {expected}"
                );
            }
        }
    }
}

/// Operands of which an element lies `far` away, once the number of it has wrapped: none is in its slice.
#[test]
fn numbers_that_wrap_are_no_elements() {
    const FAR: usize = 1 << (usize::BITS - 4);
    let product = |isa: Isa, left, right, c_row, rows, columns, depth| {
        let (a, b, mut c) = (vec![1.0; 64], vec![1.0; 64], vec![0.0; 64]);
        let (sizes, c) = ([rows, columns, depth], (Target::Write(&mut c), c_row));
        isa.run(Gemm { sizes, a: (&a, left), b: (&b, right), c, bias: &[] });
    };
    let (rows, panels) = (Left::Rows(1), Right::Panels);
    let wide = Right::Blocks { width: 8, stride: FAR };
    let cases = [
        (rows, panels, 1, 1, 16, FAR + 1),
        (rows, Right::Rows(FAR), 1, 1, 1, 17),
        (rows, wide, 129, 1, 129, 1),
        (Left::Rows(FAR), panels, 1, 17, 1, 1),
        (Left::Columns(FAR), panels, 1, 1, 1, 17),
        (Left::Blocks(FAR), panels, 1, 1, 1, 16 * 16 + 1),
        (Left::Transposed(FAR), panels, 1, 16 * 16 + 1, 1, 1),
        (rows, panels, FAR, 17, 1, 1),
        (Left::Windows { row: FAR, run: 1, apart: 1 }, panels, 1, 17, 1, 1),
        (Left::Windows { row: 1, run: 1, apart: FAR }, panels, 1, 1, 1, 17),
    ];
    for isa in Isa::available() {
        for (number, (left, right, c_row, rows, columns, depth)) in cases.into_iter().enumerate() {
            let run = || product(isa, left, right, c_row, rows, columns, depth);
            let panic = std::panic::catch_unwind(run).expect_err("it is refused");
            let message = panic.downcast_ref::<&str>().copied().unwrap_or_default();
            assert!(message.ends_with(" too short"), "case {number} on {isa}: {message:?}");
        }
    }
}
