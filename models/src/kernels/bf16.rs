//! Products in bf16: operands are rounded to it and laid out as words of two values, neighbours along the inner dimension
//! ([`Words`]); sums are in f32.
//!
//! No loss needs to be scaled for this, as f16 asks for: bf16 has the exponents of f32, so what f32 does not flush to zero
//! bf16 keeps, with 8 bits of precision.

use super::element::Element;
use super::gemm::{Gemm, Left, Right, Words};
use super::memory::{Scratch, Target};
use super::simd::{Isa, Kernel, Simd};
use super::values::Window;

/// The product of operands that are words, if `isa` says bf16, and else values.
pub(super) fn multiply(isa: Isa, gemm: Gemm) {
    match isa.bf16() {
        Some(bf16) => bf16.run(Words(gemm)),
        None => isa.run(gemm),
    }
}

/// Runs a kernel that may write words.
pub(super) fn run<K: Kernel>(isa: Isa, kernel: K) {
    match isa.bf16() {
        Some(bf16) => bf16.run(kernel),
        None => isa.run(kernel),
    }
}

/// As many elements as hold `values`: half as many words, if `isa` says bf16.
pub(super) fn elements(isa: Isa, values: usize) -> usize {
    if isa.bf16().is_some() { values.div_ceil(2) } else { values }
}

/// The product, in the precision that `isa` says. In bf16 the left operand's values are row after row or column after
/// column, and so are the right one's rows, unless it is in [`Blocks`] of words already.
pub(super) fn product(isa: Isa, gemm: Gemm) {
    if isa.bf16().is_none() {
        return isa.run(gemm);
    }
    let [rows, columns, depth] = gemm.sizes;
    let (a, left) = match gemm.a {
        (a, Left::Rows(apart)) => {
            (neighbours(isa, a, apart, [rows, depth]), Left::Rows(depth.div_ceil(2)))
        }
        (a, Left::Columns(apart)) => {
            let Blocks { words, stride, .. } = Blocks::new(isa, a, apart, [depth, rows], 1);
            (words, Left::Transposed(stride))
        }
        _ => unreachable!("invariant: no left operand is in blocks of values"),
    };
    let made = match gemm.b {
        (b, Right::Rows(apart)) => Some(Blocks::new(isa, b, apart, [depth, columns], 2)),
        _ => None,
    };
    let b = made.as_ref().map_or(gemm.b, |b| (&b.words, b.right()));
    multiply(isa, Gemm { sizes: [rows, columns, depth.div_ceil(2)], a: (&a, left), b, ..gemm });
}

/// The values in f32.
pub(super) fn widen<E: Element>(isa: Isa, xs: &[E]) -> Window<'_, f32> {
    if let Some(xs) = E::as_f32(xs) {
        return Window::Memory(xs);
    }
    let mut wide = Scratch::new(xs.len());
    E::run(isa, Take { from: xs, to: Target::Write(&mut wide) });
    Window::Computed(wide)
}

/// Lets `write` write a result in f32, and takes it to where it goes.
pub(super) fn narrow<E: Element>(isa: Isa, to: Target<E>, write: impl FnOnce(Target)) {
    if E::ROUNDED {
        let mut wide = Scratch::new(to.len());
        write(Target::Write(&mut wide));
        E::run(isa, Take { from: &wide, to });
        return;
    }
    let (to, add) = to.parts();
    let to = E::as_f32_mut(to).expect("invariant: what is not rounded is f32");
    write(if add { Target::Add(to) } else { Target::Write(to) });
}

/// Takes values to where they go. The simple form: `to[i] = from[i]`, or `+=`, rounded if `to` is.
pub(super) struct Take<'a, A, B> {
    pub from: &'a [A],
    pub to: Target<'a, B>,
}

impl<A: Element, B: Element> Kernel for Take<'_, A, B> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (to, add) = self.to.parts();
        assert_eq!(to.len(), self.from.len());
        for (to, from) in to.chunks_mut(S::LANES).zip(self.from.chunks(S::LANES)) {
            let x = A::load_first(s, from);
            let x = if add { s.add(B::load_first(s, to), x) } else { x };
            B::store_first(s, to, x);
        }
    }
}

/// Rows of values as words of neighbours, each row's last one alone if their number is odd.
pub(super) fn neighbours(
    isa: Isa,
    from: &[f32],
    apart: usize,
    [rows, width]: [usize; 2],
) -> Scratch {
    let to_apart = width.div_ceil(2);
    let mut words = Scratch::new(rows * to_apart);
    run(isa, Neighbours { rows, width, from, apart, to: &mut words, to_apart });
    words
}

/// Writes rows of `width` values as words of neighbours, rows of these `to_apart` apart. The simple form: `to[row, k] =
/// [from[row, 2k], from[row, 2k + 1]]`, both rounded; two vectors are one of words by one instruction.
pub(super) struct Neighbours<'a, E> {
    pub rows: usize,
    pub width: usize,
    pub from: &'a [E],
    pub apart: usize,
    pub to: &'a mut [f32],
    pub to_apart: usize,
}

impl<E: Element> Kernel for Neighbours<'_, E> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in 0..self.rows {
            let from = &self.from[row * self.apart..][..self.width];
            let to = &mut self.to[row * self.to_apart..][..self.width.div_ceil(2)];
            let (pairs, rest) = from.split_at(from.len() / (2 * S::LANES) * 2 * S::LANES);
            let (whole, last) = to.split_at_mut(pairs.len() / 2);
            let words = whole.chunks_exact_mut(S::LANES);
            for (from, to) in pairs.chunks_exact(2 * S::LANES).zip(words) {
                let (a, b) = from.split_at(S::LANES);
                s.store(to, s.narrow(E::load_first(s, a), E::load_first(s, b)));
            }
            let (a, b) = rest.split_at(rest.len().min(S::LANES));
            s.store_first(last, s.narrow(E::load_first(s, a), E::load_first(s, b)));
        }
    }
}

/// A matrix `[depth, columns]` as words of the values of two rows, in blocks of columns, as [`Right::Blocks`] and
/// [`Left::Transposed`] have them.
pub(super) struct Blocks {
    pub words: Scratch,
    /// Columns of a block.
    pub width: usize,
    /// Words from one block to the next one.
    pub stride: usize,
}

impl Blocks {
    /// Blocks of so many vectors, of the matrix whose rows are `apart`.
    pub(super) fn new(
        isa: Isa,
        from: &[f32],
        apart: usize,
        [depth, columns]: [usize; 2],
        vectors: usize,
    ) -> Self {
        let width = vectors * isa.lanes();
        let stride = depth.div_ceil(2) * width;
        let mut words = Scratch::new(columns.div_ceil(width) * stride);
        let to = &mut words;
        run(isa, Across { rows: depth, columns, from, apart, to, width, stride });
        Self { words, width, stride }
    }

    /// How they lie, as a right operand.
    pub(super) fn right(&self) -> Right {
        Right::Blocks { width: self.width, stride: self.stride }
    }
}

/// Writes words of rows `2i` and `2i + 1`, in blocks of columns; a row behind the last one is zero. The simple form:
/// `to[k, c] = [from[2k, c], from[2k + 1, c]]`, both rounded.
pub(super) struct Across<'a> {
    pub rows: usize,
    pub columns: usize,
    pub from: &'a [f32],
    pub apart: usize,
    pub to: &'a mut [f32],
    pub width: usize,
    pub stride: usize,
}

impl Kernel for Across<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for pair in 0..self.rows.div_ceil(2) {
            let low = &self.from[2 * pair * self.apart..][..self.columns];
            let high = match 2 * pair + 1 < self.rows {
                true => &self.from[(2 * pair + 1) * self.apart..][..self.columns],
                false => &[],
            };
            for column in (0..self.columns).step_by(S::LANES) {
                let block = column / self.width * self.stride;
                let to = &mut self.to[block + pair * self.width + column % self.width..];
                let lanes = S::LANES.min(self.columns - column);
                let high = s.load_first(high.get(column..).unwrap_or_default());
                s.store_first(&mut to[..lanes], s.pack(s.load_first(&low[column..]), high));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::element::Rounded;
    use crate::kernels::simd::Bf16;

    /// Words and their products by the definition, against every way to compute them.
    struct WordCheck<'a>([f32; 4], &'a mut [u32; 3]);

    impl Kernel for WordCheck<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let [low, high, other, sum] = self.0.map(|x| s.splat(x));
            let word = s.pack(low, high);
            let two = s.narrow(low, high);
            *self.1 = [word, two, s.dot(word, s.pack(other, low), sum)].map(|v| {
                let mut lanes = [0.0; 16];
                s.store(&mut lanes, v);
                lanes[0].to_bits()
            });
        }
    }

    fn word(isa: Isa, values: [f32; 4]) -> [u32; 3] {
        let mut found = [0; 3];
        run(isa, WordCheck(values, &mut found));
        found
    }

    #[test]
    fn words_and_their_products_are_those_of_the_instruction() {
        let (tiny, half) = (f32::MIN_POSITIVE, f32::MIN_POSITIVE / 2.0);
        let values = [
            0.0,
            -0.0,
            1.0,
            -1.5,
            1.003_906_2,
            1.011_718_8,
            3.1e38,
            -1e19,
            1.3e-20,
            tiny,
            half,
            f32::INFINITY,
        ];
        for low in values {
            for (high, (other, sum)) in
                values.into_iter().zip(values.into_iter().rev().zip([0.3, tiny, -half]))
            {
                let found: Vec<_> =
                    Isa::with_bf16().map(|isa| word(isa, [low, high, other, sum])).collect();
                let same = |(a, b): (&u32, &u32)| {
                    a == b || f32::from_bits(*a).is_nan() && f32::from_bits(*b).is_nan()
                };
                assert!(
                    found.windows(2).all(|two| two[0].iter().zip(&two[1]).all(same)),
                    "{low} {high} {other} {sum}: {found:x?}"
                );
            }
        }
        // To the nearest, of two the even one.
        let [two, neighbours, product] =
            word(Isa::multiplying(Bf16::Emulated), [1.003_906_2, 1.011_718_8, 2.0, 0.5]);
        assert_eq!((two, neighbours), (0x3f82_3f80, 0x3f80_3f80));
        assert_eq!(f32::from_bits(product), 0.5 + 1.015_625 * 1.0 + 1.0 * 2.0);
    }

    #[test]
    fn what_is_added_in_bf16_is_rounded_once() {
        let (one, small) = ([Rounded::of(1.0); 37], [0.007_f32; 37]);
        for isa in Isa::with_bf16() {
            let mut to = one;
            narrow(isa, Target::Add(&mut to), |to| to.parts().0.copy_from_slice(&small));
            assert!(to.iter().all(|x| x.get() == 1.007_812_5));
            assert_eq!(widen(isa, &to).to_vec(), [1.007_812_5; 37]);
            let mut by_value = one;
            Target::Add(&mut by_value).take(&small);
            assert!(by_value.iter().all(|x| x.get() == 1.007_812_5));
        }
    }

    #[test]
    fn products_in_bf16_are_those_of_rounded_operands_and_the_same_bits_emulated() {
        let rounded = |x: f32| {
            let bits = x.to_bits();
            f64::from(f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000))
        };
        let value = |i: usize| (i as f32 * 0.37).sin();
        for (rows, columns, depth) in
            [(1, 1, 1), (5, 9, 3), (33, 49, 18), (17, 70, 1100), (40, 16, 7)]
        {
            let a: Vec<f32> = (0..rows * depth).map(value).collect();
            let b: Vec<f32> = (0..depth * columns).map(|i| value(i + 11)).collect();
            let across: Vec<f32> =
                (0..rows * depth).map(|i| a[i % rows * depth + i / rows]).collect();
            let mut first: Option<Vec<f32>> = None;
            for isa in Isa::with_bf16() {
                for (a, left) in [(&a, Left::Rows(depth)), (&across, Left::Columns(rows))] {
                    let mut sum = vec![0.5; rows * columns];
                    let (b, c) = ((&b[..], Right::Rows(columns)), (Target::Add(&mut sum), columns));
                    let sizes = [rows, columns, depth];
                    product(isa, Gemm { sizes, a: (a, left), b, c, bias: &[] });
                    assert_eq!(first.get_or_insert_with(|| sum.clone()), &sum, "{isa}");
                }
            }
            for (at, found) in first.unwrap().into_iter().enumerate() {
                let (i, j) = (at / columns, at % columns);
                let products =
                    (0..depth).map(|k| rounded(a[i * depth + k]) * rounded(b[k * columns + j]));
                let (sum, size) =
                    products.fold((0.5, 0.5), |(sum, size), x| (sum + x, size + x.abs()));
                let off = (depth + 2) as f64 * f64::from(f32::EPSILON / 2.0) * size;
                assert!((f64::from(found) - sum).abs() <= off, "({i}, {j}): {found} and not {sum}");
            }
        }
    }
}
