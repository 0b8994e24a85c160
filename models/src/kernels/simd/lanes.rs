//! What a vector can do, whichever instruction set it is of.

/// Operations on vectors of [`Simd::LANES`] f32 values.
///
/// Loads and stores on slices touch the first [`Simd::LANES`] elements and panic on a shorter slice; the `_ptr`
/// forms are for inner loops whose bounds were checked outside.
pub(crate) trait Simd: Copy {
    /// Lanes per vector.
    const LANES: usize;
    /// A vector of lanes.
    type V: Copy;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::V;
    /// `a + b`
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the instruction set can.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`, rounded once where the instruction set can.
    fn nfma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger of each lane; the second operand where either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller of each lane; the second operand where either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a` where `gate > 0`, else zero.
    fn where_positive(self, gate: Self::V, a: Self::V) -> Self::V;
    /// A bit for each lane, the first one lowest: whether `a > 0`.
    fn positive(self, a: Self::V) -> u16;
    /// A bit for each lane, the first one lowest: whether `a > b`, or `a` is NaN.
    fn beats(self, a: Self::V, b: Self::V) -> u16;
    /// `a` where the lane's bit is set, else zero.
    fn where_set(self, bits: u16, a: Self::V) -> Self::V;
    /// `a` where the lane's bit is set, else `b`.
    fn select(self, bits: u16, a: Self::V, b: Self::V) -> Self::V;

    /// The lanes at `p`.
    ///
    /// # Safety
    /// `p` is valid for reading [`Simd::LANES`] elements.
    unsafe fn load_ptr(self, p: *const f32) -> Self::V;
    /// Writes the lanes at `p`.
    ///
    /// # Safety
    /// `p` is valid for writing [`Simd::LANES`] elements.
    unsafe fn store_ptr(self, p: *mut f32, a: Self::V);
    /// The first `n` lanes at `p`, the others zero.
    ///
    /// # Safety
    /// `n <= LANES`, and `p` is valid for reading `n` elements.
    unsafe fn load_ptr_first(self, p: *const f32, n: usize) -> Self::V;
    /// Writes the first `n` lanes at `p`.
    ///
    /// # Safety
    /// `n <= LANES`, and `p` is valid for writing `n` elements.
    unsafe fn store_ptr_first(self, p: *mut f32, a: Self::V, n: usize);

    /// The first `n` lanes of the bf16 values at `p`, widened, the others zero.
    ///
    /// # Safety
    /// `n <= LANES`, and `p` is valid for reading `n` values.
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16, n: usize) -> Self::V {
        let mut lanes = [0.0; 16];
        // SAFETY: what the caller vouches for.
        let values = unsafe { std::slice::from_raw_parts(p, n) };
        lanes.iter_mut().zip(values).for_each(|(lane, x)| *lane = widened(*x));
        self.load(&lanes)
    }
    /// Writes the first `n` lanes at `p`, rounded to bf16.
    ///
    /// # Safety
    /// `n <= LANES`, and `p` is valid for writing `n` values.
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16, a: Self::V, n: usize) {
        // SAFETY: what the caller vouches for.
        let values = unsafe { std::slice::from_raw_parts_mut(p, n) };
        values.iter_mut().zip(lanes(self, a)).for_each(|(to, x)| *to = rounded(x));
    }

    /// Nine elements for each of the first `n` lanes, those of lane `i` at `p + i * stride`: vector `j` holds the `j`-th of
    /// each, and zeros in the other lanes.
    ///
    /// # Safety
    /// `n <= LANES`, and for each of so many lanes nine elements are valid for reading.
    #[inline(always)]
    unsafe fn load_nines(self, p: *const f32, stride: usize, n: usize) -> [Self::V; 9] {
        // SAFETY: what the caller vouches for.
        unsafe { load(self, p, stride, n) }
    }
    /// Four elements for each lane, those of lane `i` at `p + i * stride`: vector `j` holds the `j`-th of each.
    ///
    /// # Safety
    /// For each lane four elements are valid for reading.
    #[inline(always)]
    unsafe fn load_fours(self, p: *const f32, stride: usize) -> [Self::V; 4] {
        // SAFETY: what the caller vouches for.
        unsafe { load(self, p, stride, Self::LANES) }
    }
    /// The other way: writes nine elements for each of the first `n` lanes.
    ///
    /// # Safety
    /// `n <= LANES`, and for each of so many lanes nine elements are valid for writing.
    #[inline(always)]
    unsafe fn store_nines(self, p: *mut f32, stride: usize, n: usize, nines: [Self::V; 9]) {
        // SAFETY: what the caller vouches for.
        unsafe { store_nines(self, p, stride, n, nines) }
    }

    /// `c` plus the products of the two bf16 values that each word of `a` and of `b` is, the upper ones first, each sum
    /// rounded to the nearest; operands and sums that are subnormal count as zero. As `VDPBF16PS` to the bit.
    #[inline(always)]
    fn dot(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        let [a, b, c] = [a, b, c].map(|v| lanes(self, v));
        self.load(&std::array::from_fn::<_, 16, _>(|i| {
            let (a, b) = (a[i].to_bits(), b[i].to_bits());
            let product = |a, b| normal(f32::from_bits(a)) * normal(f32::from_bits(b));
            let upper = normal(normal(c[i]) + product(a & UPPER, b & UPPER));
            normal(upper + product(a << 16, b << 16))
        }))
    }
    /// A word for each lane: that of `low` below that of `high`, both rounded to bf16.
    #[inline(always)]
    fn pack(self, low: Self::V, high: Self::V) -> Self::V {
        let [low, high] = [low, high].map(|v| lanes(self, v));
        self.load(&std::array::from_fn::<_, 16, _>(|i| word(low[i], high[i])))
    }
    /// The lanes of `a` and then of `b`, two neighbours to a word, rounded to bf16.
    #[inline(always)]
    fn narrow(self, a: Self::V, b: Self::V) -> Self::V {
        let mut all = [0.0; 32];
        self.store(&mut all, a);
        self.store(&mut all[Self::LANES..], b);
        self.load(&std::array::from_fn::<_, 16, _>(|i| word(all[2 * i], all[2 * i + 1])))
    }

    /// Runs `kernel`, compiled for the same instruction set, as a function of its own. This is for large kernels of many
    /// cases: the compiler's time grows faster than the size of a function.
    fn apart<K: Kernel>(self, kernel: K);

    /// Asks for the cache line at `p` ahead of its use; `p` may be anything.
    #[inline(always)]
    fn prefetch(self, _p: *const f32) {}

    /// Zero in all lanes.
    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }
    /// The first [`Simd::LANES`] elements of `x`.
    #[inline(always)]
    fn load(self, x: &[f32]) -> Self::V {
        assert!(x.len() >= Self::LANES);
        // SAFETY: the length was just checked.
        unsafe { self.load_ptr(x.as_ptr()) }
    }
    /// Writes the first [`Simd::LANES`] elements of `x`.
    #[inline(always)]
    fn store(self, x: &mut [f32], a: Self::V) {
        assert!(x.len() >= Self::LANES);
        // SAFETY: the length was just checked.
        unsafe { self.store_ptr(x.as_mut_ptr(), a) }
    }
    /// All of `x`, which may be shorter than a vector; the other lanes are zero.
    #[inline(always)]
    fn load_first(self, x: &[f32]) -> Self::V {
        // SAFETY: the slice has so many elements. A whole vector needs no mask, which costs more than the branch.
        unsafe {
            match x.len() {
                n if n < Self::LANES => self.load_ptr_first(x.as_ptr(), n),
                _ => self.load_ptr(x.as_ptr()),
            }
        }
    }
    /// Fills all of `x`, which may be shorter than a vector, with the first lanes of `a`.
    #[inline(always)]
    fn store_first(self, x: &mut [f32], a: Self::V) {
        // SAFETY: as above.
        unsafe {
            match x.len() {
                n if n < Self::LANES => self.store_ptr_first(x.as_mut_ptr(), a, n),
                _ => self.store_ptr(x.as_mut_ptr(), a),
            }
        }
    }
    /// The sum of all lanes, added in a fixed tree.
    #[inline(always)]
    fn sum(self, a: Self::V) -> f32 {
        let mut lanes = [0.0; 16];
        self.store(&mut lanes, a);
        let mut width = Self::LANES;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
        }
        lanes[0]
    }
}

/// The upper half of a word.
const UPPER: u32 = 0xffff << 16;

#[inline(always)]
fn lanes<S: Simd>(s: S, v: S::V) -> [f32; 16] {
    let mut lanes = [0.0; 16];
    s.store(&mut lanes, v);
    lanes
}

/// `x`, or zero of its sign if it is subnormal.
#[inline(always)]
fn normal(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { x * 0.0 } else { x }
}

/// `x` rounded to bf16, to the nearest and of two the even one; what is subnormal becomes zero.
#[inline(always)]
pub(crate) fn rounded(x: f32) -> u16 {
    let bits = normal(x).to_bits();
    let bits = if x.is_nan() { bits | 1 << 22 } else { bits + 0x7fff + (bits >> 16 & 1) };
    (bits >> 16) as u16
}

/// The value that these bits are in bf16.
#[inline(always)]
pub(crate) fn widened(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Two values rounded to bf16.
#[inline(always)]
fn word(low: f32, high: f32) -> f32 {
    f32::from_bits(u32::from(rounded(low)) | u32::from(rounded(high)) << 16)
}

/// Work that runs on vectors of whichever instruction set was chosen.
pub(crate) trait Kernel {
    /// The work; must be `#[inline(always)]`, see the module's documentation.
    fn run<S: Simd>(self, simd: S);
}

/// What [`Simd::load_nines`] and [`Simd::load_fours`] load, lane by lane: an instruction set may have a quicker way.
///
/// # Safety
/// As there, for `N` elements of each lane.
#[inline(always)]
pub(super) unsafe fn load<S: Simd, const N: usize>(
    s: S,
    p: *const f32,
    stride: usize,
    n: usize,
) -> [S::V; N] {
    let mut elements = [[0.0; 16]; N];
    for lane in 0..n {
        for (j, lanes) in elements.iter_mut().enumerate() {
            // SAFETY: the caller vouches for so many elements of each lane.
            lanes[lane] = unsafe { *p.add(lane * stride + j) };
        }
    }
    elements.map(|lanes| s.load(&lanes))
}

/// See [`Simd::store_nines`].
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn store_nines<S: Simd>(
    s: S,
    p: *mut f32,
    stride: usize,
    n: usize,
    nines: [S::V; 9],
) {
    for (j, v) in nines.into_iter().enumerate() {
        let mut lanes = [0.0; 16];
        s.store(&mut lanes, v);
        for (lane, x) in lanes[..n].iter().enumerate() {
            // SAFETY: the caller vouches for nine elements of each lane.
            unsafe { *p.add(lane * stride + j) = *x };
        }
    }
}
