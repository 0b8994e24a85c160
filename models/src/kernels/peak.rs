//! How fast one core multiplies matrices: what the speed of training is measured against.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::gemm::{Gemm, Left, Right, Target, Words, panel};
use super::simd::{Bf16, Isa};

/// Rows, columns and inner dimension of the product: 2.3 MB per matrix, as `sgemm` is usually measured.
const SIZE: usize = 768;

/// Floating-point operations of one product.
const OPERATIONS: f64 = 2.0 * (SIZE * SIZE * SIZE) as f64;

/// GFLOP/s of one thread in a product of two large `f32` matrices, the best of as many as fit into `budget`, and at
/// least one: the faster of the `gemm` crate's and our own on this CPU's widest instruction set.
pub fn sgemm_gflops(budget: Duration) -> f64 {
    let values = |step: f32| (0..SIZE * SIZE).map(|i| (i as f32 * step).sin()).collect();
    let (a, b): (Vec<f32>, Vec<f32>) = (values(0.37), values(0.53));
    let mut c = vec![0.0; SIZE * SIZE];
    let half = budget / 2;
    best(half, || by_crate(&a, &b, black_box(&mut c)))
        .max(best(half, || by_kernel(&a, &b, black_box(&mut c))))
}

/// The same of products of bf16 by the CPU's own instruction, if it has one, with sums in f32.
pub fn bf16_gflops(budget: Duration) -> Option<f64> {
    let bf16 = Bf16::of_cpu()?;
    let words = vec![1.0; SIZE * SIZE];
    let mut c = vec![0.0; SIZE * SIZE];
    // Each word is two values.
    Some(2.0 * best(budget, || bf16.run(Words(product(&words, &words, black_box(&mut c))))))
}

fn best(budget: Duration, mut product: impl FnMut()) -> f64 {
    let (start, mut fastest) = (Instant::now(), Duration::MAX);
    while fastest == Duration::MAX || start.elapsed() < budget {
        let began = Instant::now();
        product();
        fastest = fastest.min(began.elapsed());
    }
    OPERATIONS / fastest.as_secs_f64() / 1e9
}

/// Row-major `c = a · b` by the `gemm` crate.
fn by_crate(a: &[f32], b: &[f32], c: &mut [f32]) {
    assert!([a.len(), b.len(), c.len()] == [SIZE * SIZE; 3]);
    let row = SIZE as isize;
    // SAFETY: the three slices hold SIZE × SIZE elements each, row after row, which is what the strides say; `c` is
    // borrowed for writing and so overlaps neither `a` nor `b`.
    unsafe {
        gemm::gemm(
            SIZE,
            SIZE,
            SIZE,
            c.as_mut_ptr(),
            1,
            row,
            false,
            a.as_ptr(),
            1,
            row,
            b.as_ptr(),
            1,
            row,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// Row-major `c = a · b` by our micro-kernel; `b` is taken as if it lay in panels, which makes no difference to the
/// time.
fn by_kernel(a: &[f32], b: &[f32], c: &mut [f32]) {
    let isa = Isa::best();
    debug_assert_eq!(SIZE % panel(isa.lanes()), 0);
    isa.run(product(a, b, c));
}

fn product<'a>(a: &'a [f32], b: &'a [f32], c: &'a mut [f32]) -> Gemm<'a> {
    let (a, b) = ((a, Left::Rows(SIZE)), (b, Right::Panels));
    Gemm { sizes: [SIZE; 3], a, b, c: (Target::Write(c), SIZE), bias: &[] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_products_are_products() {
        let a: Vec<f32> = (0..SIZE * SIZE).map(|i| (i % 13) as f32 - 6.0).collect();
        let ones = vec![1.0; SIZE * SIZE];
        let (mut c, mut d) = (vec![f32::NAN; SIZE * SIZE], vec![f32::NAN; SIZE * SIZE]);
        by_crate(&a, &ones, &mut c);
        by_kernel(&a, &ones, &mut d);
        for (row, (c, d)) in c.chunks(SIZE).zip(d.chunks(SIZE)).enumerate() {
            let sum: f32 = a[row * SIZE..][..SIZE].iter().sum();
            assert!(c.iter().chain(d).all(|x| *x == sum));
        }
        assert!(sgemm_gflops(Duration::ZERO) > 0.0);
    }
}
