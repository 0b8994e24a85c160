//! Vectors of f32 lanes behind one trait, and the choice of instruction set at run time.
//!
//! A `Simd` value is a token: holding one proves that the CPU has its instruction set, so its operations are safe
//! to call. Tokens come only from `Isa::run`, which enters code compiled for the set and hands the token to a
//! `Kernel`. Everything a kernel calls with its token must be `#[inline(always)]`: only what is inlined into that
//! entry, or into one that `Simd::apart` makes, is compiled for the set.

mod lanes;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;

pub(crate) use lanes::{Kernel, Simd, rounded, widened};

/// An instruction set that this CPU has, and how products are computed on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa {
    set: Set,
    bf16: Option<Bf16>,
}

/// What multiplies bf16: words of two values, whose products are summed in f32 by `Simd::dot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bf16 {
    /// `VDPBF16PS` of AVX512-BF16, which this CPU has.
    Instruction(Available),
    /// The same arithmetic in plain Rust, slower than f32.
    Emulated,
}

/// Made only where the CPU has the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available(());

impl Bf16 {
    /// The CPU's own, if it has the instruction.
    pub fn of_cpu() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512bf16")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512f")
            && avx2_detected()
        {
            return Some(Self::Instruction(Available(())));
        }
        None
    }

    /// Runs `kernel` compiled for it.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value exists, so `of_cpu` found the sets on this CPU.
            Self::Instruction(_) => unsafe { x86::run_avx512_bf16(kernel) },
            _ => portable::run(kernel),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// The sets this CPU has, the widest first; the last is always the portable one.
    pub fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let wide = [
            (is_x86_feature_detected!("avx512f") && avx2_detected()).then_some(Set::Avx512),
            avx2_detected().then_some(Set::Avx2),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let wide = [None; 0];
        let sets = wide.into_iter().flatten().chain(std::iter::once(Set::Portable));
        sets.map(|set| Self { set, bf16: None })
    }

    /// The widest set this CPU has.
    pub fn best() -> Self {
        Self::available().next().unwrap_or(Self { set: Set::Portable, bf16: None })
    }

    /// The set that computes its products by `bf16`: what surrounds these has as many lanes.
    pub fn multiplying(bf16: Bf16) -> Self {
        let set = match bf16 {
            #[cfg(target_arch = "x86_64")]
            Bf16::Instruction(_) => Set::Avx512,
            _ => Set::Portable,
        };
        Self { set, bf16: Some(bf16) }
    }

    /// The same set with products in f32.
    pub(crate) fn in_f32(self) -> Self {
        Self { bf16: None, ..self }
    }

    /// What multiplies bf16, unless products are in f32.
    pub fn bf16(self) -> Option<Bf16> {
        self.bf16
    }

    /// The widest set with products in bf16: by the CPU's own instruction, if it has one, and emulated.
    #[cfg(test)]
    pub(crate) fn with_bf16() -> impl Iterator<Item = Self> {
        let ways = Bf16::of_cpu().into_iter().chain([Bf16::Emulated]);
        ways.map(Self::multiplying)
    }

    /// Its name, as the user writes it.
    pub fn name(self) -> &'static str {
        match self.set {
            Set::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "avx512",
        }
    }

    /// Lanes per vector of the set.
    pub fn lanes(self) -> usize {
        match self.set {
            Set::Portable => portable::Portable::LANES,
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => x86::Avx2::LANES,
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => x86::Avx512::LANES,
        }
    }

    /// Runs `kernel` compiled for the set.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) {
        match self.set {
            Set::Portable => portable::run(kernel),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value exists, so `available` found AVX2 and FMA on this CPU.
            Set::Avx2 => unsafe { x86::run_avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value exists, so `available` found AVX-512 F (and AVX2 and FMA) on this CPU.
            Set::Avx512 => unsafe { x86::run_avx512(kernel) },
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self.bf16 {
            None => Ok(()),
            Some(Bf16::Instruction(_)) => f.write_str(" bf16"),
            Some(Bf16::Emulated) => f.write_str(" bf16-emulated"),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn avx2_detected() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operation on two vectors, written lane by lane.
    struct Operations<'a> {
        a: &'a [f32; 16],
        b: &'a [f32; 16],
    }

    impl Kernel for Operations<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let (a, b) = (s.load(self.a), s.load(self.b));
            let check = |name: &str, v: S::V, expected: fn(f32, f32) -> f32| {
                let mut lanes = [0.0; 16];
                s.store(&mut lanes, v);
                for i in 0..S::LANES {
                    let expected = expected(self.a[i], self.b[i]);
                    assert!((lanes[i] - expected).abs() <= 1e-6, "{name}: {} {expected}", lanes[i]);
                }
            };
            check("add", s.add(a, b), |a, b| a + b);
            check("sub", s.sub(a, b), |a, b| a - b);
            check("mul", s.mul(a, b), |a, b| a * b);
            check("fma", s.fma(a, b, a), |a, b| a * b + a);
            check("nfma", s.nfma(a, b, a), |a, b| a - a * b);
            check("max", s.max(a, b), f32::max);
            check("min", s.min(a, b), f32::min);
            let nan = s.splat(f32::NAN);
            check("max of NaN and b", s.max(nan, b), |_, b| b);
            check("min of NaN and b", s.min(nan, b), |_, b| b);
            let mut lanes = [0.0; 16];
            for v in [s.max(a, nan), s.min(a, nan)] {
                s.store(&mut lanes, v);
                assert!(lanes[..S::LANES].iter().all(|x| x.is_nan()));
            }
            check("where_positive of NaN", s.where_positive(nan, b), |_, _| 0.0);
            check("where_positive", s.where_positive(a, b), |a, b| if a > 0.0 { b } else { 0.0 });
            let bits = s.positive(a);
            assert_eq!(
                bits,
                (0..S::LANES).fold(0, |bits, i| bits | u16::from(self.a[i] > 0.0) << i)
            );
            check("where_set", s.where_set(bits, b), |a, b| if a > 0.0 { b } else { 0.0 });
            let larger = s.beats(s.where_positive(a, b), a);
            let at = |i: usize| if self.a[i] > 0.0 { self.b[i] } else { 0.0 };
            let beaten = (0..S::LANES).map(|i| u16::from(at(i) > self.a[i]) << i);
            assert_eq!(larger, beaten.sum::<u16>());
            let all = ((1_u32 << S::LANES) - 1) as u16;
            assert_eq!((s.beats(nan, a), s.beats(a, nan), s.beats(nan, nan)), (all, 0, all));
            check("select", s.select(bits, a, b), |a, b| if a > 0.0 { a } else { b });
            check("zero", s.zero(), |_, _| 0.0);
            let sum: f32 = self.a[..S::LANES].iter().sum();
            assert!((s.sum(a) - sum).abs() < 1e-5);
            for n in 0..=S::LANES {
                let mut lanes = [7.0; 17];
                s.store_first(&mut lanes[..n], s.load_first(&self.a[..n]));
                assert_eq!(&lanes[..n], &self.a[..n]);
                assert!(lanes[n..].iter().all(|x| *x == 7.0), "wrote past {n}");
                s.store(&mut lanes, s.load_first(&self.a[..n]));
                assert!(lanes[n..S::LANES].iter().all(|x| *x == 0.0), "lanes past {n} not zero");
            }
        }
    }

    #[test]
    fn every_set_computes_what_the_lanes_say() {
        let a = std::array::from_fn(|i| (i as f32 - 7.0) * 0.37);
        let b = std::array::from_fn(|i| (i as f32 * 1.7).sin());
        for isa in Isa::available() {
            assert!(16 % isa.lanes() == 0);
            isa.run(Operations { a: &a, b: &b });
        }
    }

    /// Tests run on the sets that [`Isa::available`] names: which of all these are not among them is said here, past the
    /// test harness, which keeps what is printed to itself.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_set_that_was_not_there_to_be_tested_is_named() {
        use std::io::Write;

        let available: Vec<&str> = Isa::available().map(Isa::name).collect();
        assert_eq!(available.last(), Some(&"portable"));
        for missing in ["avx512", "avx2"].iter().filter(|name| !available.contains(name)) {
            writeln!(
                std::io::stderr(),
                "NOTICE: this CPU has no {missing}: its kernels were NOT tested"
            )
            .unwrap();
        }
    }

    /// Nines of every number of lanes, there and back, against the elements by their places.
    struct Nines;

    impl Kernel for Nines {
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for stride in [9, 10, 64] {
                let len = 15 * stride + 9;
                let from: Vec<f32> = (0..len).map(|i| i as f32).collect();
                // SAFETY: nine elements after each of sixteen strides.
                let fours = unsafe { s.load_fours(from[5..].as_ptr(), stride) };
                for (j, v) in fours.into_iter().enumerate() {
                    let mut lanes = [0.0; 16];
                    s.store(&mut lanes, v);
                    let expected = |lane: usize| from[5 + lane * stride + j];
                    assert!((0..S::LANES).all(|lane| lanes[lane] == expected(lane)));
                }
                for n in 0..=S::LANES {
                    // SAFETY: nine elements after each of sixteen strides.
                    let nines = unsafe { s.load_nines(from.as_ptr(), stride, n) };
                    for (j, v) in nines.into_iter().enumerate() {
                        let mut lanes = [7.0; 16];
                        s.store(&mut lanes, v);
                        for (lane, x) in lanes[..S::LANES].iter().enumerate() {
                            let expected = if lane < n { from[lane * stride + j] } else { 0.0 };
                            assert_eq!(*x, expected, "{n} lanes of stride {stride}: {lane}, {j}");
                        }
                    }
                    let mut to = vec![-1.0; len];
                    // SAFETY: as above.
                    unsafe { s.store_nines(to.as_mut_ptr(), stride, n, nines) };
                    for (i, x) in to.iter().enumerate() {
                        let within = i / stride < n && i % stride < 9;
                        assert_eq!(*x, if within { from[i] } else { -1.0 });
                    }
                }
            }
        }
    }

    #[test]
    fn nines_are_the_elements_by_lane() {
        Isa::available().for_each(|isa| isa.run(Nines));
    }
}
